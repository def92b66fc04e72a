"""The rules: `due(run)` says what must happen next, `decide(run, given)` says which facts follow from an answer, `wakes(run)` when.

The rule a newcomer would break: nothing here starts an action but an ALLOW, and each ActionStarted is emitted right behind its
ALLOW, in the same list, for one append.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.canonical import canon_own
from mandamus.core.clock import Clock
from mandamus.core.price import at_most
from mandamus.core.run import ENDED, IN_DOUBT, NOTHING, Action, Run, ripe, state_digest
from mandamus.core.seal import Content, Draft

RECONCILE_TRIES = 5
CLOCK_AGE = 60_000_000  # microseconds: an older clock is refreshed at a judgement that starts something


class NotDue(Exception):
    """The answer does not fit the run as it stands. Nothing follows from it."""


# -- due ---------------------------------------------------------------------------------------------------------------------
def due(run: Run) -> list[e.Effect]:
    """What must happen next, in order. Empty: the run has ended, is halted, or waits."""
    if run.life in ("new", "sealed", "halted"):
        return []
    if run.life in ENDED:
        return [e.Seal(ended=True)]
    if run.actions and (acting := _acting(run)) is not None:
        return acting
    match run.stage:
        case "ready" | "acting":
            return [e.Prepare(turn=run.turn + 1, attempt=1)]
        case "failed":
            return [e.Prepare(turn=run.turn, attempt=run.attempt + 1, not_before=run.retry_at)]
        case "asking":
            return [e.AskModel(turn=run.turn, attempt=run.attempt)]
        case "answered" | "stopping":
            return [e.Seal(ended=False)]
        case _:
            raise AssertionError(run.stage)


def _acting(run: Run) -> list[e.Effect] | None:
    """None: every action of the turn is closed, another turn is due."""
    actions = run.open_actions
    if not actions:
        return None
    out: list[e.Effect] = []
    batch: list[str] = []
    held: list[str] = []
    waits = False
    for a in actions:
        if a.state == "started":
            out.append(e.Execute(action=a.id, attempt=a.attempt))
        elif a.request and not ripe(a.request):
            waits = waits or a.request.about == "start"
        elif a.state == "doubted" and a.effect == "reconcilable" and not a.absent and a.doubts <= RECONCILE_TRIES:
            out.append(e.Reconcile(action=a.id, attempt=a.attempt, tries=a.doubts, not_before=a.retry_at))
        elif a.retry_at:
            out.append(e.Judge(actions=(a.id,), seq=run.seq, not_before=a.retry_at))
        elif a.state == "judged" and a.verdict == "allow":
            held.append(a.id)
        else:
            batch.append(a.id)
    if held and not waits:
        batch = [a.id for a in actions if a.id in batch or a.id in held]
    if batch and run.stage != "stopping":
        out.append(e.Judge(actions=tuple(batch), seq=run.seq))
    elif batch:  # only what is in doubt may still be asked about while the run is being stopped
        doubted = tuple(i for i in batch if run.actions[i].state in IN_DOUBT)
        out += [e.Judge(actions=doubted, seq=run.seq)] if doubted else []
    return out


def wakes(run: Run, effects: list[e.Effect] | None = None, children: Mapping[e.Effect, int | None] = {}) -> tuple[int | None, str]:
    """When somebody must look again, and what the run waits for (docs/concepts/effect-protocol.md, rule 6).

    0 = now, an instant, or None = only mail wakes it; the word stands in the head row: running halted completed failed cancelled
    people time child. `effects`: what `due` said of this run, when the caller has asked already. `children`: what is due and waits for
    a child run, and when that one wants to be looked at; whoever drives this run then drives that one.
    """
    effects = due(run) if effects is None else effects
    if run.life in ENDED:
        return (0 if effects else None), run.end
    if children:
        effects = [x for x in effects if x not in children]
    if run.life != "running":
        return None, run.life
    for x in effects:
        if not x.not_before:
            return 0, "running"
    times = [x.not_before for x in effects]
    asked = [a.request for a in run.open_actions if a.request and not ripe(a.request)]
    times += [min(q.until, q.expires) for q in asked]
    times += [at for at in children.values() if at is not None]
    return (min(times) if times else None), "people" if asked else "child" if children else "time"


# -- decide ------------------------------------------------------------------------------------------------------------------
def decide(run: Run, given: e.Input) -> list[Draft]:
    """The facts that follow. Raises NotDue where the answer was not asked for; an empty list: ask again."""
    return _DECIDE[type(given)](run, given)


def _draft(run: Run, fact: r.Fact, *body: Content, turn: int | None = None) -> Draft:
    return Draft(fact, run.turn if turn is None else turn, body)


def _checks(run: Run, checks: tuple[e.GuardCheck, ...], action: str = "", turn: int | None = None) -> list[Draft]:
    return [
        _draft(
            run,
            r.GuardrailChecked(
                action=action or UNSET,
                name=c.name,
                point=c.point,
                result=c.result,
                source=c.source,
                usage=UNSET if c.usage is None else c.usage,
            ),
            *(() if c.finding is None else (Content("finding", c.finding),)),
            turn=turn,
        )
        for c in checks
    ]


def _blocked(run: Run, checks: tuple[e.GuardCheck, ...], turn: int | None = None) -> list[Draft]:
    if not checks or not any(c.result == "block" for c in checks):
        return []
    return [_draft(run, r.RunHalted(cause="guardrail", code="hard_block"), turn=turn)]


def _prepared(run: Run, given: e.Prepared) -> list[Draft]:
    first = given.attempt == 1
    if run.life != "running" or given.turn != run.turn + first or run.stage not in ("ready", "acting", "failed"):
        raise NotDue("prepare")
    spent = over_budget(run, given)
    if spent:
        return [_draft(run, r.RunHalted(cause="budget", code=spent))]
    if given.fault:
        return [_draft(run, r.RunHalted(cause="context", code=given.fault))]
    called = Draft(r.ModelCalled(attempt=given.attempt, model=given.model, reserves=given.reserves), given.turn)
    if not first:
        return [called]
    out = [Draft(r.TurnStarted(clock=given.clock), given.turn)]
    if given.checks:
        out += _checks(run, given.checks, turn=given.turn)
        if halt := _blocked(run, given.checks, turn=given.turn):
            return out + halt
    compiled = r.ContextCompiled(items=given.items, tokens=given.tokens, window=given.window)
    manifest = Content("manifest", given.manifest, raw=canon_own(given.manifest))
    return [*out, Draft(compiled, given.turn, (manifest,)), called]


def over_budget(run: Run, given: e.Prepared) -> str:
    """Which limit of the run would be broken by one more model call; "" when none."""
    limits, s = run.genesis.budget, run.spent
    below = s.below or NOTHING
    if given.attempt == 1 and run.turn >= limits.turns:
        return "turns"
    if s.retries > limits.retries:
        return "retries"
    if limits.tokens is not UNSET and s.input + s.output + below.tokens + given.reserves > limits.tokens:
        return "tokens"
    if limits.cost is not UNSET and (s.cost or 0) + below.cost + _asked_for(run, given, limits.cost) > limits.cost:
        return "cost"
    if limits.calls is not UNSET and s.calls + below.calls >= limits.calls:
        return "calls"
    if limits.wall_ms is not UNSET and given.clock.now - run.genesis.clock.now > limits.wall_ms * 1000:
        return "wall"
    return ""


def _asked_for(run: Run, given: e.Prepared, limit: int) -> int:
    """What the next model call may cost. Without a price nobody can say, and it is more than there is."""
    if run.price is UNSET:
        return limit + 1
    tokens = given.tokens if given.attempt == 1 else run.compiled or 0
    return at_most(run.price, tokens, given.reserves - tokens)


def _reply(run: Run, given: e.Reply) -> list[Draft]:
    if run.life in ENDED or run.stage not in ("asking", "stopping") or (given.turn, given.attempt) != (run.turn, run.attempt):
        raise NotDue("reply")
    n = len(given.proposals)
    fact = r.ModelReplied(attempt=given.attempt, calls=n, model=given.model, stop=given.stop, usage=given.usage)
    out = [Draft(fact, run.turn, (Content("reply", given.value, raw=given.raw),))]
    if given.checks:
        out += _checks(run, given.checks)
        if halt := _blocked(run, given.checks):
            return out + halt
    if given.bad:
        return [*out, _draft(run, r.ModelFailed(attempt=given.attempt, category="bad_output"))]
    if run.stage == "stopping":
        return out
    return out + [_proposal(run, p, f"{run.turn}.{k}", "model") for k, p in enumerate(given.proposals, 1)]


def _proposal(run: Run, p: e.Proposal, id: str, by: Any, parent: str = "", replaces: str = "") -> Draft:
    fact = r.ActionProposed(
        action=id, by=by, call=id, effect=p.effect, fault=p.fault or UNSET, kind=p.kind, parent=parent or UNSET, pin=p.pin or UNSET,
        repeats=UNSET if p.repeats is None else p.repeats, replaces=replaces or UNSET, safety=p.safety, tool=p.tool,
    )  # fmt: skip
    return Draft(fact, run.turn, (Content("args", p.args, p.data, secret=p.secret, raw=p.raw),))


_FATAL = {"auth": "model_auth", "bad_request": "model_request", "fault": "model_driver"}


def _lost(run: Run, given: e.ModelLost) -> list[Draft]:
    if run.life in ENDED or run.stage not in ("asking", "stopping") or given.attempt != run.attempt:
        raise NotDue("model")
    again = given.retry_at is not None and run.spent.retries < run.genesis.budget.retries and run.stage != "stopping"
    fact = r.ModelFailed(
        attempt=given.attempt, category=given.category, status=UNSET if given.status is None else given.status,  # type: ignore[arg-type]
        retry_at=given.retry_at if again and given.retry_at is not None else UNSET,
    )  # fmt: skip
    out = [_draft(run, fact, *((Content("partial", given.partial),) if given.partial else ()))]
    if again or run.stage == "stopping":
        return out
    if given.category == "refusal":
        return [*out, _draft(run, r.RunEnded(state="failed", code="model_refusal"))]
    if given.category in _FATAL:
        return [*out, _draft(run, r.RunHalted(cause="engine", code=_FATAL[given.category]))]
    return [*out, _draft(run, r.RunHalted(cause="budget", code="retries"))]


# -- judgement ---------------------------------------------------------------------------------------------------------------
def _judgement(run: Run, given: e.Rulings) -> list[Draft]:
    """Void when the run moved since it was drawn. One escalation makes the rest of the batch wait; where one ends the run, none starts."""
    if run.life != "running" or given.seq != run.seq:
        return []
    out: list[Draft] = []
    if run.clock is None or given.clock.now > run.clock.now:
        out += _passed(run, given.clock, "worker", given.tiers)
    waits = _waits(run, given)
    last = _last(run, given, waits)
    for n, v in enumerate(given.rulings):
        out += _verdict(run, run.actions[v.action], v, waits, given.clock.now, held=last is not None or run.stage == "stopping")
        if n == last:
            return out + _stopped_by(run, given.rulings[: n + 1])
    return out


def _last(run: Run, given: e.Rulings, waits: bool) -> int | None:
    """The verdict that halts or ends the run, if one does. An intent beside it would be committed and never carried out."""
    denials = run.spent.denials
    for n, v in enumerate(given.rulings):
        if v.verdict == "error":
            return n
        if v.verdict == "deny":
            denials += 1
            if v.terminate or v.halt or denials >= run.genesis.budget.denials or run.actions[v.action].repeats in run.denied:
                return n
        elif v.verdict == "allow" and not waits:
            denials = 0
    return None


def _stopped_by(run: Run, rulings: tuple[e.Ruling, ...]) -> list[Draft]:
    v = rulings[-1]
    if v.verdict == "error":
        return [_draft(run, r.RunHalted(action=v.action, cause="engine", code=v.code or "engine_error"))]
    if v.terminate:
        return _cancelled(run, {x.action for x in rulings if x.verdict == "deny"}) + _failing(run, "rejected")
    return [_draft(run, r.RunHalted(action=v.action, cause=v.halt or "denials", code=v.code or "denied"))]


def _waits(run: Run, given: e.Rulings) -> bool:
    """Whether people are still to be asked about the start of any open action."""
    judged = set()
    for v in given.rulings:
        if v.verdict == "escalate" and v.about == "start":
            return True
        judged.add(v.action)
    if len(judged) == len(run.actions):
        return False
    return any(a.request and a.request.about == "start" and a.id not in judged and not a.closed for a in run.actions.values())


def _failing(run: Run, code: str) -> list[Draft]:
    """A run that must fail ends at once when nothing is in the air; else it halts, and fails when that is settled."""
    if any(a.state in IN_DOUBT for a in run.actions.values()):
        return [_draft(run, r.RunHalted(cause="people", code=code))]
    return [_draft(run, r.RunEnded(state="failed", code=code))]


def _cancelled(run: Run, but: set[str], via: Any = "policy") -> list[Draft]:
    """Everything that has not started is cancelled."""
    return [
        _draft(run, r.ActionEnded(action=a.id, attempt=a.attempt, output="none", result="cancelled", via=via))
        for a in run.open_actions
        if a.id not in but and a.state not in IN_DOUBT
    ]


def _verdict(run: Run, action: Action, v: e.Ruling, waits: bool, now: int, held: bool) -> list[Draft]:
    """`held`: nothing starts, neither now nor, while the run is being stopped, later."""
    if v.settle:
        return _settled(run, action, v, now, held)
    judged = _judged(run, action, v)
    if v.verdict == "escalate":
        ended = [_ended(run, action, "unknown", "policy")] if v.about == "outcome" and action.state == "doubted" else []
        return [*ended, judged, *_request(run, action, v, now)]
    if v.verdict == "deny" and action.state in ("doubted", "unknown"):
        return [judged, *_denied_in_doubt(run, action)]
    if v.verdict == "allow" and run.stage == "stopping":
        return [judged, *_denied_in_doubt(run, action)]
    if v.verdict == "allow" and not held and (action.attempt or not waits):  # a batch waits for its first start only
        return [judged, _start(run, action, v)]
    return [judged]


def _judged(run: Run, action: Action, v: e.Ruling) -> Draft:
    fact = r.ActionJudged(
        action=v.action, asks=v.asks or UNSET, attempt=action.attempt + 1, authority=v.authority, bundle=v.bundle, code=v.code or UNSET,
        determining=v.determining, engine=v.engine, layers=v.layers, verdict=v.verdict,
    )  # fmt: skip
    return Draft(fact, run.turn, (Content("facts", None, raw=v.facts), Content("decision", v.decision, raw=canon_own(v.decision))))


def _start(run: Run, action: Action, v: e.Ruling) -> Draft:
    held = bool(action.reserves)
    fact = r.ActionStarted(
        action=action.id, attempt=action.attempt + 1, capabilities=v.capabilities, child=v.child or UNSET, deadline=v.deadline_ms,
        effect=action.effect, landing=v.landing_ms, operation=v.operation, reserves=() if held else v.reserves, votes=v.votes,
    )  # fmt: skip
    return _draft(run, fact)


def _ended(run: Run, action: Action, result: Any, via: Any, spends: tuple[r.Reserve, ...] = (), code: str = "") -> Draft:
    return _draft(
        run,
        r.ActionEnded(action=action.id, attempt=action.attempt, code=code or UNSET, output="none", result=result, spends=spends, via=via),
    )


def _denied_in_doubt(run: Run, action: Action) -> list[Draft]:
    """Not allowed any more: known absent or without effect → cancelled; else nobody knows, and people decide."""
    if action.state == "unknown":
        return []
    if action.absent or action.effect == "read":
        return [_ended(run, action, "cancelled", "policy", freed(action))]
    return [_ended(run, action, "unknown", "policy")]


def freed(action: Action) -> tuple[r.Reserve, ...]:
    """Spends that give every reservation back."""
    return tuple(r.Reserve(account=x.account, amount=0) for x in action.reserves)


def _request(run: Run, action: Action, v: e.Ruling, now: int) -> list[Draft]:
    q = v.request
    if q is None:
        raise NotDue("an escalation without a request")
    fact = r.ApprovalRequested(
        about=v.about, action=action.id, card=q.card_digest, chain=q.chain, digest=q.digest, expires=now + sum(q.deadlines_ms) * 1000,
        policy=q.policy, quorum=q.quorums[0], request=q.id, tier=0, until=now + q.deadlines_ms[0] * 1000,
    )  # fmt: skip
    return [_draft(run, fact, Content("card", q.card))]


def _settled(run: Run, action: Action, v: e.Ruling, now: int, held: bool) -> list[Draft]:
    """People answered an unknown outcome. `again` is a further attempt: it is judged like any other, and may have to be asked for."""
    match v.settle:
        case "done":
            return [_ended(run, action, "done", "people", tuple(action.reserves))]
        case "abandon":
            return [_ended(run, action, "unknown", "people", freed(action))]
        case _ if v.verdict == "escalate":
            return [_judged(run, action, v), *_request(run, action, v, now)]
        case _:
            return [_judged(run, action, v), *([_start(run, action, v)] if v.verdict == "allow" and not held else [])]


# -- outcome -----------------------------------------------------------------------------------------------------------------
def _outcome(run: Run, given: e.Outcome) -> list[Draft]:
    action = run.actions.get(given.action)
    if action is None or given.attempt != action.attempt or action.state not in ("started", "doubted"):
        raise NotDue(f"outcome of {given.action}")
    out = _ended_or_doubted(run, action, given)
    if not given.checks:
        return out
    out += _checks(run, given.checks, action.id)
    return out + (_blocked(run, given.checks) if run.life == "running" else [])


def _ended_or_doubted(run: Run, action: Action, given: e.Outcome) -> list[Draft]:
    again = given.retry_at is not None and run.spent.retries < run.genesis.budget.retries and run.stage != "stopping"
    retry: Any = given.retry_at if again else UNSET
    match given.kind:
        case "done":
            spends = given.spends if given.spends is not None else tuple(action.reserves)
            fact = r.ActionEnded(
                action=action.id,
                attempt=action.attempt,
                code=given.code or UNSET,
                output=given.output,
                result="done",
                spends=spends,
                via=given.via,
            )
            return [
                _draft(
                    run,
                    fact,
                    *((Content("output", given.value, given.data, raw=given.raw),) if given.output in ("valid", "invalid") else ()),
                )
            ]
        case "failed" | "absent":
            fact = r.ActionEnded(
                action=action.id, attempt=action.attempt, code=given.code or UNSET, output="none", result="failed", retry_at=retry,
                spends=given.spends if given.via == "child" and given.spends is not None else freed(action), via=given.via,
            )  # fmt: skip
            return [_draft(run, fact, *((Content("output", given.value, given.data),) if given.value is not None else ()))]
        case "doubt":
            if action.effect == "read" and not again:
                return [_ended(run, action, "failed", given.via, freed(action), given.code or given.cause)]
            doubt = r.ActionDoubted(action=action.id, attempt=action.attempt, cause=given.cause, retry_at=retry)
            return [_draft(run, doubt, *((Content("fault", given.value, given.data),) if given.value is not None else ()))]
        case "unclear":
            return [_draft(run, r.ActionDoubted(action=action.id, attempt=action.attempt, cause="unclear", retry_at=retry))]


def _steps(run: Run, given: e.Steps) -> list[Draft]:
    parent = run.actions.get(given.parent)
    if parent is None or parent.state != "started":
        raise NotDue(f"{given.parent} is not running")
    ids = [f"{given.parent}.{k}" for k in range(given.first, given.first + len(given.proposals))]
    if any(id in run.actions for id in ids):
        raise NotDue("a step is proposed once")
    return [_proposal(run, p, id, "tool", given.parent) for id, p in zip(ids, given.proposals, strict=True)]


def _use(run: Run, given: e.Use) -> list[Draft]:
    action = run.actions.get(given.action)
    if action is None or action.state != "started":
        raise NotDue(f"{given.action} is not running")
    fact = r.CapabilityChecked(
        action=given.action, capability=given.capability, mechanism=given.mechanism, result=given.result, use=given.use
    )
    return [_draft(run, fact, *((Content("value", given.value),) if given.value is not None else ()))]


def owned(run: Run, fact: r.RunOwned) -> list[Draft]:
    """Taking over. A model call without reply is lost: its reservation counts as spent, the next attempt comes out of the retries."""
    out = [_draft(run, fact)]
    if run.stage == "asking":
        again = run.spent.retries < run.genesis.budget.retries
        out.append(_draft(run, r.ModelFailed(attempt=run.attempt, category="lost", retry_at=fact.clock.now if again else UNSET)))
        if not again:
            out.append(_draft(run, r.RunHalted(cause="budget", code="retries")))
    return out


# -- mail and time -----------------------------------------------------------------------------------------------------------
def _mail(run: Run, given: e.Mail) -> list[Draft]:
    """Every message becomes exactly one fact, whatever it is worth. Behind the seal there is no fact any more."""
    if run.life == "sealed":
        raise NotDue("the run is sealed")
    reason = given.reason or _why_not(run, given)
    if reason:
        body = () if given.value is None else (Content("message", given.value, "confidential"),)
        return [_draft(run, r.MessageRefused(mail=given.ref, reason=reason), *body)]  # type: ignore[arg-type]
    match given.kind:
        case "stop":
            return _stop(run, given)
        case "message":
            return [
                _draft(
                    run,
                    r.MessageReceived(clock=given.clock, mail=given.ref, principal=given.principal),
                    Content("text", given.value, secret=given.secret),
                    *_signed(given),
                )
            ]
        case "vote":
            return _vote(run, given)
        case "refused":
            raise AssertionError("a refused message has a reason")


def _signed(given: e.Mail) -> tuple[Content, ...]:
    return () if given.statement is None else (Content("statement", given.statement),)


def _why_not(run: Run, given: e.Mail) -> str:
    """Why a message that is genuine has no place in the run as it stands."""
    if given.ref.key in run.keys:
        return "duplicate"
    if run.life in ENDED:
        return "ended"
    if given.kind != "vote":
        return ""
    action = run.actions.get(given.action)
    request = action.request if action else None
    if request is None:
        return "not_waiting"
    if request.id != given.request or request.about != given.about:
        return "wrong_request"
    if given.decision == "modify" and action is not None and action.state in IN_DOUBT:
        return "wrong_action"  # it may have happened: nobody replaces what is not settled
    if given.decision == "again" and run.stage == "stopping":
        return "wrong_action"  # nothing is sent behind a stop
    if given.clock.now >= request.expires:
        return "expired"
    return "voted_already" if any(v.principal == given.principal for v in request.votes) else ""


def _vote(run: Run, given: e.Mail) -> list[Draft]:
    action = run.actions[given.action]
    fact = r.Voted(
        about=given.about, action=given.action, ballot=given.ballot, clock=given.clock, decision=given.decision, mail=given.ref,  # type: ignore[arg-type]
        principal=given.principal, request=given.request, scope="once", veto=given.veto,
    )  # fmt: skip
    body = (Content("ballot", given.value), *((Content("card", given.card),) if given.card is not None else ()))
    out = [_draft(run, fact, *body)]
    if given.decision == "halt":
        out.append(_draft(run, r.RunHalted(action=given.action, cause="people", code="halted")))
    if given.decision == "modify" and given.modified is not None:
        out.append(_ended(run, action, "cancelled", "people"))
        out.append(_proposal(run, given.modified, _successor(action.id), "person", action.parent, replaces=action.id))
    return out


def _successor(id: str) -> str:
    """1.1 → 1.1m1 → 1.1m2; a step of a replaced action, 1.1m1.2, becomes 1.1m1.2m1."""
    head, dot, last = id.rpartition(".")
    base, _, n = last.partition("m")
    return f"{head}{dot}{base}m{int(n or 0) + 1}"


def _stop(run: Run, given: e.Mail) -> list[Draft]:
    fact = r.StopRequested(clock=given.clock, mail=given.ref, mode=given.mode, principal=given.principal)
    out = [_draft(run, fact, *_signed(given))]
    if given.mode == "halt":
        return [*out, _draft(run, r.RunHalted(cause="people", code="stop"))] if run.life == "running" else out
    return out + _cancelled(run, set(), "stop")


def _time(run: Run, given: e.Time) -> list[Draft]:
    return _passed(run, given.clock, given.source, given.tiers)


def _passed(run: Run, clock: Clock, source: Any, tiers: tuple[e.NextTier, ...]) -> list[Draft]:
    """Tiers that ended give way to the next one under the same request, so that votes already cast keep counting."""
    out = [_draft(run, r.TimePassed(clock=clock, source=source))]
    for t in tiers:
        request = run.actions[t.action].request
        if request:
            fact = r.ApprovalRequested(
                about=request.about, action=t.action, card=request.card, carries=t.carries, chain=request.chain,  # type: ignore[arg-type]
                digest=request.digest, expires=request.expires, policy=request.policy, quorum=t.quorum, request=request.id,
                tier=t.tier, until=t.until,
            )  # fmt: skip
            out.append(_draft(run, fact))
    return out


def _closing(run: Run, given: e.Closing) -> list[Draft]:
    if run.life in ENDED and run.life != "sealed":
        return [_draft(run, r.RunSealed(closed=run.life, count=run.seq + 1, head=run.head, state=state_digest(run)))]  # type: ignore[arg-type]
    if run.life != "running" or run.stage not in ("answered", "stopping") or run.open_actions:
        raise NotDue("the run cannot end yet")
    return [_draft(run, r.RunEnded(state=run.end, code=run.code or UNSET))]  # type: ignore[arg-type]


_DECIDE: dict[type, Callable[[Run, Any], list[Draft]]] = {
    e.Prepared: _prepared,
    e.Reply: _reply,
    e.ModelLost: _lost,
    e.Rulings: _judgement,
    e.Outcome: _outcome,
    e.Steps: _steps,
    e.Use: _use,
    e.Mail: _mail,
    e.Time: _time,
    e.Closing: _closing,
    e.Nothing: lambda run, given: [],
}
