"""What follows from a message and from the time: a vote, a stop, words, a refusal; the next tier of those who are asked.

The rule a newcomer would break: a genuine message may still have no place in the run as it stands. It is refused and recorded, never
dropped: the mailbox is read once.
"""

from __future__ import annotations

from typing import Any

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.clock import Clock
from mandamus.core.drafts import NotDue, cancelled, draft, ended, proposal
from mandamus.core.run import ENDED, IN_DOUBT, Run
from mandamus.core.seal import Content, Draft


def mail(run: Run, given: e.Mail) -> list[Draft]:
    """Every message becomes exactly one fact, whatever it is worth. Behind the seal there is no fact any more."""
    if run.life == "sealed":
        raise NotDue("the run is sealed")
    reason = given.reason or _why_not(run, given)
    if reason:
        body = () if given.value is None else (Content("message", given.value, "confidential"),)
        return [draft(run, r.MessageRefused(mail=given.ref, reason=reason), *body)]  # type: ignore[arg-type]
    match given.kind:
        case "stop":
            return _stop(run, given)
        case "message":
            return [
                draft(
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
    out = [draft(run, fact, *body)]
    if given.decision == "halt":
        out.append(draft(run, r.RunHalted(action=given.action, cause="people", code="halted")))
    if given.decision == "modify" and given.modified is not None:
        out.append(ended(run, action, "cancelled", "people"))
        out.append(proposal(run, given.modified, _successor(action.id), "person", action.parent, replaces=action.id))
    return out


def _successor(id: str) -> str:
    """1.1 → 1.1m1 → 1.1m2; a step of a replaced action, 1.1m1.2, becomes 1.1m1.2m1."""
    head, dot, last = id.rpartition(".")
    base, _, n = last.partition("m")
    return f"{head}{dot}{base}m{int(n or 0) + 1}"


def _stop(run: Run, given: e.Mail) -> list[Draft]:
    fact = r.StopRequested(clock=given.clock, mail=given.ref, mode=given.mode, principal=given.principal)
    out = [draft(run, fact, *_signed(given))]
    if given.mode == "halt":
        return [*out, draft(run, r.RunHalted(cause="people", code="stop"))] if run.life == "running" else out
    return out + cancelled(run, set(), "stop")


def time(run: Run, given: e.Time) -> list[Draft]:
    return passed(run, given.clock, given.source, given.tiers)


def passed(run: Run, clock: Clock, source: Any, tiers: tuple[e.NextTier, ...]) -> list[Draft]:
    """Tiers that ended give way to the next one under the same request, so that votes already cast keep counting."""
    out = [draft(run, r.TimePassed(clock=clock, source=source))]
    for t in tiers:
        request = run.actions[t.action].request
        if request:
            fact = r.ApprovalRequested(
                about=request.about, action=t.action, card=request.card, carries=t.carries, chain=request.chain,  # type: ignore[arg-type]
                digest=request.digest, expires=request.expires, policy=request.policy, quorum=t.quorum, request=request.id,
                tier=t.tier, until=t.until,
            )  # fmt: skip
            out.append(draft(run, fact))
    return out
