"""Judge a batch: gather the facts, ask every layer, and bring along what an ALLOW needs for its intent.

The rule a newcomer would break: every vote that counts is verified here, from its stored payload, against the trust file, at every
judgement; a record of an earlier owner proves nothing. People never start anything: they are facts, and policy is asked again.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import facts as f
from mandamus.core import handed
from mandamus.core import judge as j
from mandamus.core.asks import answered
from mandamus.core.canonical import canon_own
from mandamus.core.clock import Clock
from mandamus.core.definition import ToolSpec
from mandamus.core.digests import operation_id
from mandamus.core.duties import needs_approval
from mandamus.core.payload import card_digest
from mandamus.core.records import Ask, Issued, Reserve
from mandamus.core.rules import CLOCK_AGE, RECONCILE_TRIES
from mandamus.core.run import Action, Waiting, decision_of, late, ripe
from mandamus.runtime import engines, handoff, levels, mail, people
from mandamus.runtime.batch import Batch
from mandamus.runtime.env import ulid
from mandamus.runtime.session import Session

PREVIEW_RULES = 8


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What a judgement reads from outside the run. `used` is what an allowance would be charged."""

    people: f.PeopleFacts
    votes: dict[str, int]
    sums: dict[str, int]
    reserves: tuple[Reserve, ...] = ()
    used: tuple[Reserve, ...] = ()
    stopped: bool = False
    exhausted: str = ""


class Judging(Batch):
    """A batch that reads what lies outside the run where it stands now; replay gives what was recorded instead."""

    async def gather(self, action: Action, tool: ToolSpec, args: dict[str, Any]) -> Gathered:
        sums, reserves = await sums_of(self, tool, args, action)
        lent = await _allowances(self, tool, args, action)
        facts, said = f.PeopleFacts(), people.NOBODY
        if lent or action.granted or action.request or action.awaits:
            said = await people.counted(self, action, lambda met: _wanted(self, tool, action, args, met, sums), lent)
            met = tuple(sorted({*said.met, *await levels.held(self.s, action.seq)}))
            facts = f.PeopleFacts(allowed=said.allowed, approved=len(said.people), met=met, roles=people.roles(self.s, said.people))
        stopped = self.s.env.log.stopped(self.s.bound.spec.name, self.s.env.tenant, self.s.env.trust) or await handoff.stopped(self)
        below, exhausted = handed_down(self, tool, action) if tool.agent else ((), "")
        return Gathered(
            people=facts, votes=said.votes, sums=sums, reserves=reserves + below, used=tuple(said.used), stopped=stopped,
            exhausted=exhausted,
        )  # fmt: skip

    def lacks(self, level: str) -> str:
        """Why this level of evidence cannot be had here at all; "" when it can."""
        log = self.s.env.tlog
        return "there is no log of this ledger" if log is None else str(log.offers(level))

    async def said(self, action: Action, request: Waiting, decision: str) -> bool:
        """Whether people gave this answer about an outcome, by ballots that verify now."""
        return await people.said(self, action, request, decision)


async def perform(s: Session, effect: e.Judge) -> e.Rulings:
    s.authority = s.env.log.authority
    batch = Judging(s, policy_clock(s, exact=any(_ages(s.run.actions[id]) for id in effect.actions)))
    if s.env.log.policies.get(s.bound.spec.name, s.bound.book.digest) != s.bound.book.digest:
        return e.Rulings(seq=effect.seq, clock=batch.clock, rulings=(_replaced(batch, batch.run.actions[effect.actions[0]]),))
    verdicts: list[e.Ruling] = []
    for id in effect.actions:
        verdicts.append(await one(batch, batch.run.actions[id]))
    tiers = () if batch.clock is s.run.clock else mail.next_tiers(s, batch.clock)
    return e.Rulings(seq=effect.seq, clock=batch.clock, rulings=tuple(verdicts), read=tuple(batch.read.values()), tiers=tiers)


def _replaced(b: Judging, action: Action) -> e.Ruling:
    """Another policy of this agent was put in force while the run lives: the one at hand answers for nothing any more."""
    gone = j.Answer(layer="policy", verdict="error", code="policy_replaced", errors=("the policy of this run was replaced",))
    combined = j.combine([gone])
    return _verdict(b, action, combined, None, {}, _decision(combined, "", 0))


def policy_clock(s: Session, exact: bool = False) -> Clock:
    """Policy's clock is the newest recorded one, so that replay sees the same; an old one is refreshed, and that is recorded."""
    now, known = s.clock(), s.run.clock
    return now if exact or known is None or now.now - known.now > CLOCK_AGE else known


def _ages(action: Action) -> bool:
    """A key may have lost its meaning on the other side since it was used first: that is held against the clock of now."""
    return action.effect == "keyed" and action.state == "doubted"


async def one(b: Judging, action: Action) -> e.Ruling:
    asked = action.request
    if action.state == "unknown" and asked and asked.about == "start":  # people said again; now its start is asked for
        return await _start(b, action)
    if _nothing_left_to_try(b, action):
        return await _settle(b, action)
    return await _start(b, action)


def _nothing_left_to_try(b: Judging, action: Action) -> bool:
    """Only people can say what became of it (docs/concepts/effect-protocol.md, "Doubt")."""
    if action.state == "unknown":
        return True
    if action.state != "doubted" or action.absent:
        return False
    if b.run.stage == "stopping" and action.effect not in ("read", "reconcilable"):
        return True  # nothing is sent again behind a stop
    tool = b.s.bound.tools.get(action.tool)
    attempts = tool.spec.retry.attempts if tool else 1
    match action.effect:
        case "irreversible":
            return True
        case "reconcilable":
            return action.doubts > RECONCILE_TRIES
        case "keyed":
            late = tool is not None and _age_ms(b, action) > tool.spec.key_life_ms
            return late or (action.cause != "lost" and action.attempt >= attempts)
        case _:
            return action.cause != "lost" and action.attempt >= attempts and action.effect != "read"


def _age_ms(b: Judging, action: Action) -> int:
    """How long ago its operation id was used first."""
    return (b.clock.now - action.clock) // 1000 if action.clock else 0


# -- the start of an action --------------------------------------------------------------------------------------------------
async def _start(b: Judging, action: Action) -> e.Ruling:
    s, run = b.s, b.run
    tool = s.bound.tools.get(action.tool)
    first = j.contract(action, tool.spec if tool else None)
    if first.verdict == "deny" or tool is None:
        return _verdict(b, action, j.combine([first]), None, {}, {})
    args = await s.value(action.seq, "args")
    got = await b.gather(action, tool.spec, args)
    known, sums = got.people, got.sums
    guarded = s.bound.spec.oversight if needs_approval(s.bound.spec, tool.spec) else ""
    own = [
        first,
        j.asks(action, guarded, known.met, bool(action.awaits) and late(run, action)),
        j.capability(run, action),
        j.limits(run, action, got.stopped, got.exhausted),
    ]
    began = s.env.time.now()
    facts, combined = await _ask(b, tool.spec, action, args, own, known, sums)
    hypothetical = ""
    if combined.verdict == "escalate":
        full = msgspec.structs.replace(known, met=tuple(sorted({*known.met, *answered(combined.asks)})), approved=99)
        _, then = await _ask(b, tool.spec, action, args, own, full, sums)
        hypothetical = then.verdict
        if then.verdict not in ("allow", "escalate"):
            combined = msgspec.structs.replace(then, code=then.code or "policy")
        elif lacks := next((why for a in combined.asks if a.to == "log" and (why := b.lacks(a.chain))), ""):
            combined = j.combine([*own, j.Answer(layer="policy", verdict="error", code="no_evidence", errors=(lacks,))])
    decision = _decision(combined, hypothetical, s.env.time.now() - began)
    if combined.verdict == "allow" and not action.reserves:
        for r in (*got.reserves, *got.used):
            b.tentative[r.account] = b.tentative.get(r.account, 0) + r.amount
    return await _with_intent(b, action, tool.spec, args, combined, facts, decision, got)


async def _ask(
    b: Judging, tool: ToolSpec, action: Action, args: dict[str, Any], own: list[j.Answer], known: f.PeopleFacts, sums: dict[str, int]
) -> tuple[Any, j.Combined]:
    """No permit at all is a deny. An engine that asks people is no answer yet: whether a permit stands behind it is asked with a full
    quorum before anybody is bothered."""
    try:
        facts = j.envelope(b.run, b.s.bound.spec, tool, action, args, b.clock, known, sums)
    except (ValueError, KeyError, TypeError) as error:
        broken = j.Answer(layer="policy", verdict="error", code="facts", errors=(f"facts: {error}",))
        return {}, j.combine([*own, broken])
    unknown = engines.unknown_chain(b.s.bound.book, [a for x in own for a in x.asks])
    if unknown:
        return facts, j.combine([*own, _no_chain(unknown)])
    return facts, j.combine(own + await engines.ask(b.s.bound, facts))


def _no_chain(name: str) -> j.Answer:
    return j.Answer(layer="policy", verdict="error", code="chain", errors=(f"chain {name!r} is declared by no policy",))


async def _wanted(
    b: Judging, tool: ToolSpec, action: Action, args: dict[str, Any], met: tuple[str, ...], sums: dict[str, int]
) -> dict[str, int]:
    """Per chain, how many people the policy of today asks for while only the chains `met` have answered."""
    try:
        facts = j.envelope(b.run, b.s.bound.spec, tool, action, args, b.clock, f.PeopleFacts(met=met), sums)
    except (ValueError, KeyError, TypeError):
        return {}  # the judgement itself comes to the same error
    out: dict[str, int] = {}
    for ask in (a for x in await engines.ask(b.s.bound, facts) for a in x.asks if a.to == "people"):
        out[ask.chain] = max(out.get(ask.chain, 0), ask.quorum)
    return out


async def _with_intent(
    b: Judging,
    action: Action,
    tool: ToolSpec,
    args: dict[str, Any],
    combined: j.Combined,
    facts: Any,
    decision: Any,
    got: Gathered,
) -> e.Ruling:
    verdict = _verdict(b, action, combined, tool, facts, decision)
    settle = "again" if action.state == "unknown" else ""
    if combined.verdict == "escalate" and any(a.to == "log" for a in combined.asks):
        return msgspec.structs.replace(verdict, settle=settle)  # the log first: it takes a second, people an hour
    if combined.verdict == "escalate":
        ask = next(a for a in combined.asks)
        request = await _request(b, action, tool, args, combined, ask, "start", got.people.allowed.count(ask.chain))
        return msgspec.structs.replace(verdict, request=request, settle=settle)
    if combined.verdict == "deny" and action.request is not None:
        chain = engines.chain_of(b.s.bound.book, action.request.chain) or f.DEFAULT_CHAIN
        rejected = any(d.id == "ask.rejected" for d in combined.determining)
        return msgspec.structs.replace(verdict, terminate=rejected and j.terminates(chain, tool), settle=settle)
    if combined.verdict != "allow":
        return msgspec.structs.replace(verdict, settle=settle)
    issued = [Issued(capability=f"tool.invoke:{tool.name}", mechanism="in_process")]
    operation = action.operation or operation_id(args=action.args, call=action.call, run=b.run.id, tool=tool.name)
    return msgspec.structs.replace(
        verdict, operation=operation, capabilities=tuple(issued), deadline_ms=tool.timeout_ms, landing_ms=tool.timeout_ms,
        reserves=(*got.reserves, *got.used),
        votes=tuple(sorted(got.votes.values())), child=handoff.child_id(operation) if tool.kind == "handoff" else "", settle=settle,
    )  # fmt: skip


def _verdict(b: Judging, action: Action, c: j.Combined, tool: ToolSpec | None, facts: Any, decision: Any) -> e.Ruling:
    return e.Ruling(
        action=action.id, verdict=c.verdict, layers=c.layers, determining=tuple([d.id for d in c.determining]), asks=c.asks, code=c.code,
        engine=c.engine, bundle=b.s.bound.book.digest, authority=b.authority,
        facts=canon_own(facts), decision=decision, halt="denials" if c.halt else "",
    )  # fmt: skip


def _decision(c: j.Combined, hypothetical: str, micros: int) -> dict[str, Any]:
    """What `decision.json` needs beyond the record itself (`mandamus bundle RUN --views DIR`)."""
    out: dict[str, Any] = {"determining": msgspec.to_builtins(c.determining), "eval_micros": micros}
    if c.errors:
        out["errors"] = list(c.errors)
    if hypothetical:
        out["hypothetical"] = hypothetical
    return out


# -- sums --------------------------------------------------------------------------------------------------------------------
async def sums_of(b: Judging, tool: ToolSpec, args: dict[str, Any], action: Action) -> tuple[dict[str, int], tuple[Reserve, ...]]:
    """Per limit: what is used in its window, and what this action would reserve. What the action itself holds is not counted twice."""
    sums: dict[str, int] = {}
    reserves: list[Reserve] = []
    held = {x.account: x.amount for x in action.reserves}
    for limit in b.s.bound.book.limits:
        sums[limit.id] = 0
        if not _applies(limit, tool):
            continue
        amount = 1
        if limit.currency:
            money = j.amount(tool, args)
            if money is UNSET or money.currency != limit.currency:
                continue
            amount = money.minor
        id = limit_account(b, limit, tool, args)
        balance = await b.balance(id)
        sums[limit.id] = balance.used + b.tentative.get(id, 0) - held.get(id, 0)
        reserves.append(Reserve(account=id, amount=amount))
    return sums, tuple(reserves)


def handed_down(b: Judging, tool: ToolSpec, action: Action) -> tuple[tuple[Reserve, ...], str]:
    """What a handoff reserves of the run's own budget, or the code of what is used up."""
    return handed.reserves(b.run, action, b.s.bound.children[tool.agent].spec.budget, b.tentative)


def _applies(limit: f.Limit, tool: ToolSpec) -> bool:
    return tool.name in limit.tools if limit.tools else not limit.safety or tool.safety in limit.safety


def limit_account(b: Judging, limit: f.Limit, tool: ToolSpec, args: dict[str, Any]) -> str:
    """A counterparty goes by a pseudonym: an account's name stands in records for ever, and in bundles."""
    match limit.per:
        case "agent":
            who = b.s.bound.spec.name
        case "tenant":
            who = "-"
        case "counterparty":
            who = b.s.env.pseudonym(j.counterparty(tool, args))
    window = b.clock.local().date if limit.window == "day" else b.run.id
    return f"limit/{b.s.env.tenant}/{limit.id}/{who}/{window}"


async def _allowances(b: Judging, tool: ToolSpec, args: dict[str, Any], action: Action) -> tuple[people.Lent, ...]:
    """Standing votes that still cover this action. None for what is asked each time, nor for a deed under GDPR, Art. 22.

    An action that holds reservations from an earlier attempt keeps to the allowances among them: others could not be charged any more.
    """
    if not b.s.env.log.standing or tool.effect == "irreversible" or tool.safety == "privileged" or needs_approval(b.s.bound.spec, tool):
        return ()
    out: list[people.Lent] = []
    for a in b.s.env.log.allowances(b.s.env.trust(), b.s.bound.book.digest, b.clock):
        money = j.amount(tool, args)
        charge = a.charge(tool.name, args, None if money is UNSET else money, b.run.id, b.clock.local().date)
        if charge is None:
            continue
        fits, held = True, {x.account: x.amount for x in action.reserves}
        for account, amount, limit in charge:
            balance = await b.balance(account)
            fits = fits and balance.used + b.tentative.get(account, 0) - held.get(account, 0) + amount <= limit
            fits = fits and (not held or account in held)
        if fits:
            out.append(people.Lent(a.principal, a.chain, tuple(Reserve(account=x, amount=n) for x, n, _ in charge)))
    return tuple(out)


# -- requests to people ------------------------------------------------------------------------------------------------------
async def _request(
    b: Judging, action: Action, tool: ToolSpec, args: dict[str, Any], c: j.Combined, ask: Ask, about: str, allowed: int = 0
) -> e.Request:
    """`allowed`: how many standing votes count in the first tier; that many fewer people are asked, but never nobody."""
    chain = engines.chain_of(b.s.bound.book, ask.chain)
    assert chain is not None, "an ask of an unknown chain is the verdict error"
    first = max(1, max(chain.tiers[0].quorum, ask.quorum) - allowed)
    quorums = (first, *(t.quorum for t in chain.tiers[1:]))
    deadlines = tuple(t.deadline_ms for t in chain.tiers)
    id, digest = ulid(b.s.env.time), people.digest_of(b.s, action)
    expires = b.clock.now + chain.total_ms * 1000
    card = j.card(id, digest, tool, args, c.determining[:PREVIEW_RULES], b.s.bound.book.texts, quorums[0], expires, about)
    secret = await b.s.secret(action.seq, "args")
    return e.Request(
        id=id, chain=ask.chain, digest=digest, card=card, card_digest=card_digest(secret, card), quorums=quorums, deadlines_ms=deadlines,
        policy=b.s.bound.book.digest,
    )  # fmt: skip


async def _settle(b: Judging, action: Action) -> e.Ruling:
    """Nobody knows what became of it: ask people, or carry out what they said."""
    tool = b.s.bound.tools[action.tool]
    if engines.chain_of(b.s.bound.book, _chain(b)) is None:
        broken = j.combine([_no_chain(_chain(b))])
        return msgspec.structs.replace(_verdict(b, action, broken, tool.spec, {}, _decision(broken, "", 0)), about="outcome")
    rule = f.Determining(id="outcome.unknown", verdict="escalate")
    asks = j.Answer(layer="asks", verdict="escalate", asks=(Ask(chain=_chain(b), quorum=1),), determining=(rule,))
    combined = j.combine([asks])
    verdict = msgspec.structs.replace(_verdict(b, action, combined, tool.spec, {}, _decision(combined, "", 0)), about="outcome")
    request = action.request
    if request is None or not ripe(request):
        args = await b.s.value(action.seq, "args")
        return msgspec.structs.replace(verdict, request=await _request(b, action, tool.spec, args, combined, combined.asks[0], "outcome"))
    said = decision_of(request)
    if said and await b.said(action, request, said):
        if said == "again":
            return await _start(b, msgspec.structs.replace(action, request=None))
        return msgspec.structs.replace(verdict, verdict="allow", settle=said)
    rule = f.Determining(id="ask.expired", verdict="deny")
    expired = j.combine([j.Answer(layer="asks", verdict="deny", code="expired", determining=(rule,))])
    return msgspec.structs.replace(_verdict(b, action, expired, tool.spec, {}, _decision(expired, "", 0)), about="outcome", halt="people")


def _chain(b: Judging) -> str:
    """Who settles unknown outcomes: the agent's oversight chain, else the only chain there is, else any one approver."""
    chains = b.s.bound.book.chains
    return b.s.bound.spec.oversight or (next(iter(chains)) if len(chains) == 1 else f.DEFAULT_CHAIN.id)
