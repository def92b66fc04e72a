"""What follows from a judgement: starts, requests to people, a halt or an end, or nothing but the verdict.

The rule a newcomer would break: an intent stands right behind its ALLOW, in the same list; and where a verdict of the batch halts or
ends the run, none of the batch starts.
"""

from __future__ import annotations

from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.canonical import canon_own
from mandamus.core.drafts import NotDue, cancelled, draft, ended, freed
from mandamus.core.mailed import passed
from mandamus.core.run import IN_DOUBT, Action, Run, awaiting
from mandamus.core.seal import Content, Draft


def judgement(run: Run, given: e.Rulings) -> list[Draft]:
    """Void when the run moved since it was drawn. One escalation makes the rest of the batch wait; where one ends the run, none starts."""
    if run.life != "running" or given.seq != run.seq:
        return []
    out: list[Draft] = []
    if run.clock is None or given.clock.now > run.clock.now:
        out += passed(run, given.clock, "worker", given.tiers)
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
        return [draft(run, r.RunHalted(action=v.action, cause="engine", code=v.code or "engine_error"))]
    if v.terminate:
        return cancelled(run, {x.action for x in rulings if x.verdict == "deny"}) + _failing(run, "rejected")
    return [draft(run, r.RunHalted(action=v.action, cause=v.halt or "denials", code=v.code or "denied"))]


def _waits(run: Run, given: e.Rulings) -> bool:
    """Whether people, or the log, are still to be asked about the start of any open action."""
    judged = set()
    for v in given.rulings:
        if v.verdict == "escalate" and v.about == "start":
            return True
        judged.add(v.action)
    if len(judged) == len(run.actions):
        return False
    others = [a for a in run.actions.values() if a.id not in judged and not a.closed]
    return any((a.request and a.request.about == "start") or awaiting(run, a) for a in others)


def _failing(run: Run, code: str) -> list[Draft]:
    """A run that must fail ends at once when nothing is in the air; else it halts, and fails when that is settled."""
    if any(a.state in IN_DOUBT for a in run.actions.values()):
        return [draft(run, r.RunHalted(cause="people", code=code))]
    return [draft(run, r.RunEnded(state="failed", code=code))]


def _verdict(run: Run, action: Action, v: e.Ruling, waits: bool, now: int, held: bool) -> list[Draft]:
    """`held`: nothing starts, neither now nor, while the run is being stopped, later."""
    if v.settle:
        return _settled(run, action, v, now, held)
    judged = _judged(run, action, v)
    if v.verdict == "escalate":
        unknown = [ended(run, action, "unknown", "policy")] if v.about == "outcome" and action.state == "doubted" else []
        return [*unknown, judged, *_request(run, action, v, now)]
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
    return draft(run, fact)


def _denied_in_doubt(run: Run, action: Action) -> list[Draft]:
    """Not allowed any more: known absent or without effect → cancelled; else nobody knows, and people decide."""
    if action.state == "unknown":
        return []
    if action.absent or action.effect == "read":
        return [ended(run, action, "cancelled", "policy", freed(action))]
    return [ended(run, action, "unknown", "policy")]


def _request(run: Run, action: Action, v: e.Ruling, now: int) -> list[Draft]:
    q = v.request
    if q is None and any(a.to == "log" for a in v.asks):
        return []  # people are asked when the log has answered
    if q is None:
        raise NotDue("an escalation without a request")
    fact = r.ApprovalRequested(
        about=v.about, action=action.id, card=q.card_digest, chain=q.chain, digest=q.digest, expires=now + sum(q.deadlines_ms) * 1000,
        policy=q.policy, quorum=q.quorums[0], request=q.id, tier=0, until=now + q.deadlines_ms[0] * 1000,
    )  # fmt: skip
    return [draft(run, fact, Content("card", q.card))]


def _settled(run: Run, action: Action, v: e.Ruling, now: int, held: bool) -> list[Draft]:
    """People answered an unknown outcome. `again` is a further attempt: it is judged like any other, and may have to be asked for."""
    match v.settle:
        case "done":
            return [ended(run, action, "done", "people", tuple(action.reserves))]
        case "abandon":
            return [ended(run, action, "unknown", "people", freed(action))]
        case _ if v.verdict == "escalate":
            return [_judged(run, action, v), *_request(run, action, v, now)]
        case _:
            return [_judged(run, action, v), *([_start(run, action, v)] if v.verdict == "allow" and not held else [])]
