"""A run is the fold of its records: `evolve(run, record) -> Run`, one step for each type of fact.

The rule a newcomer would break: a step looks at the record and at the run before it, and at nothing else; it believes what was decided,
and only refuses a move that the table of actions does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

from msgspec import UNSET, UnsetType, structs

from mandamus.core import records as r
from mandamus.core.accounts import unit_of
from mandamus.core.price import Price, priced
from mandamus.core.records import Fact, Record, Reserve
from mandamus.core.run import (
    ACTIONS,
    EMPTY,
    NOTHING,
    Action,
    Awaiting,
    Granted,
    Run,
    Spent,
    Vote,
    Waiting,
    decision_of,
    ends_by_no,
    reserved_cost,
)
from mandamus.errors import ProofError

replace, set_new = structs.replace, structs.force_setattr


def fold(records: Iterable[Record[Any]], run: Run = EMPTY) -> Run:
    return reduce(evolve, records, run)


def evolve(run: Run, record: Record[Any], hash: str = "") -> Run:
    """What is now true. `hash` is the record's own, when the caller has it at hand."""
    fact = record.fact
    now = _STEP[type(fact)](run, record, fact)
    if now is run:
        return replace(run, seq=record.seq, head=hash)
    set_new(now, "seq", record.seq)  # what a step answers is new, and nobody else's yet: a second copy would cost as much as the step
    set_new(now, "head", hash)
    return now


Step = Callable[[Run, Record[Any], Any], Run]
_STEP: dict[type[Fact], Step] = {}


def _on(kind: type[Fact]) -> Callable[[Step], Step]:
    def register(step: Step) -> Step:
        _STEP[kind] = step
        return step

    return register


def _with(run: Run, id: str, **changes: Any) -> Run:
    return replace(run, actions={**run.actions, id: replace(run.actions[id], **changes)})


# -- run ---------------------------------------------------------------------------------------------------------------------
@_on(r.RunOpened)
def _opened(run: Run, record: Record[Any], fact: r.RunOpened) -> Run:
    return replace(run, id=record.run, epoch=record.epoch, life="running", opened=fact, clock=fact.clock)


@_on(r.RunOwned)
def _owned(run: Run, record: Record[Any], fact: r.RunOwned) -> Run:
    """A takeover doubts all that was started, but for what a child run answers, and lifts a halt: whoever resumes has seen its cause."""
    actions = {i: _doubted_by_takeover(a, fact.clock.now) for i, a in run.actions.items()}
    life = "running" if run.life == "halted" else run.life
    if run.life == "halted" and run.cause == "guardrail" and run.stage == "answered":  # what was blocked is not given out by a resume
        run = replace(run, stage="ready", end="", answer=-1)
    spent = replace(run.spent, denials=0) if run.life == "halted" else run.spent
    stage = "failed" if run.stage == "asking" else run.stage
    code = run.code if run.stage == "stopping" and run.end == "failed" else ""
    return replace(run, epoch=record.epoch, actions=actions, life=life, cause="", code=code, spent=spent, clock=fact.clock, stage=stage)


def _doubted_by_takeover(a: Action, now: int) -> Action:
    """The landing time begins anew on the new owner's clock: nobody knows when the old one sent last."""
    if a.state not in ("started", "doubted") or a.child:
        return a
    lands = a.lands or now + a.landing * 1000
    return replace(a, lands=lands) if a.state == "doubted" else replace(a, state="doubted", cause="lost", retry_at=0, lands=lands)


@_on(r.StopRequested)
def _stop(run: Run, record: Record[Any], fact: r.StopRequested) -> Run:
    run = _mailed(replace(run, clock=fact.clock), fact.mail)
    return replace(run, end="cancelled", stage="stopping") if fact.mode == "cancel" else run


@_on(r.RunHalted)
def _halted(run: Run, record: Record[Any], fact: r.RunHalted) -> Run:
    """A person's no that ends the run, while something was in the air: it is halted, and when that is settled it can only fail."""
    run = replace(run, life="halted", cause=fact.cause, code=fact.code)
    return replace(run, stage="stopping", end="failed") if ends_by_no(fact) else run


@_on(r.RunEnded)
def _ended(run: Run, record: Record[Any], fact: r.RunEnded) -> Run:
    return replace(run, life=fact.state, end=fact.state, code=fact.code or "")


@_on(r.RunSealed)
def _sealed(run: Run, record: Record[Any], fact: r.RunSealed) -> Run:
    return replace(run, life="sealed")


# -- turn --------------------------------------------------------------------------------------------------------------------
@_on(r.TurnStarted)
def _turn(run: Run, record: Record[Any], fact: r.TurnStarted) -> Run:
    """The last turn's actions are history now: another turn is due only when none of them is open."""
    return replace(run, turn=record.turn, clock=fact.clock, actions={}, attempt=0, heard=0)


@_on(r.GuardrailChecked)
def _checked(run: Run, record: Record[Any], fact: r.GuardrailChecked) -> Run:
    """What a guardrail asked of the model is paid from the run's budget."""
    if fact.result == "block" and fact.action in run.actions:
        run = _with(run, str(fact.action), withheld=True)
    if fact.usage is UNSET:
        return run
    spent = replace(run.spent, input=run.spent.input + fact.usage.input, output=run.spent.output + fact.usage.output)
    return replace(run, spent=spent if run.price is UNSET else _paid(spent, run.price, fact.usage))


@_on(r.ContextCompiled)
def _compiled(run: Run, record: Record[Any], fact: r.ContextCompiled) -> Run:
    """The length of the prompt matters only where it has a price."""
    return run if run.price is UNSET else replace(run, compiled=fact.tokens)


@_on(r.ModelPriced)
def _priced(run: Run, record: Record[Any], fact: r.ModelPriced) -> Run:
    return replace(run, price=fact.price)


@_on(r.ModelCalled)
def _called(run: Run, record: Record[Any], fact: r.ModelCalled) -> Run:
    return replace(run, stage="asking", attempt=fact.attempt, reserved=fact.reserves, retry_at=0)


@_on(r.ModelReplied)
def _replied(run: Run, record: Record[Any], fact: r.ModelReplied) -> Run:
    u, s = fact.usage, run.spent
    spent = replace(s, input=s.input + u.input, output=s.output + u.output, calls=s.calls + fact.calls)
    stage = "stopping" if run.stage == "stopping" else "acting" if fact.calls else "answered"
    if run.price is not UNSET:
        spent = _paid(spent, run.price, u)
    if stage == "answered":
        return replace(run, stage=stage, spent=spent, reserved=0, end="completed", answer=record.seq)
    return replace(run, stage=stage, spent=spent, reserved=0)


@_on(r.ModelFailed)
def _failed(run: Run, record: Record[Any], fact: r.ModelFailed) -> Run:
    """A lost call counts as spent in full. A bad answer is a reply already; it makes another turn due."""
    s = run.spent
    if fact.category == "bad_output":
        spent = replace(s, bad=s.bad + 1, retries=s.retries + 1)
        again = s.bad == 0 and run.stage != "stopping"
        return replace(
            run, spent=spent, stage="ready" if again else run.stage, end="" if again else "failed", code="" if again else "bad_output"
        )
    lost = run.reserved if fact.category == "lost" else 0
    again = fact.retry_at is not UNSET
    spent = replace(s, input=s.input + lost, retries=s.retries + 1 if again else s.retries)
    if lost and run.price is not UNSET:
        spent = replace(spent, cost=(s.cost or 0) + reserved_cost(run))
    stage = "stopping" if run.stage == "stopping" else "failed"
    return replace(run, stage=stage, spent=spent, reserved=0, retry_at=fact.retry_at or 0)


def _paid(spent: Spent, price: Price, u: r.Usage) -> Spent:
    return replace(spent, cost=(spent.cost or 0) + priced(price, u.input, u.output, u.cache_read, u.cache_write))


# -- action ------------------------------------------------------------------------------------------------------------------
@_on(r.ActionProposed)
def _proposed(run: Run, record: Record[Any], fact: r.ActionProposed) -> Run:
    action = Action(  # in the order of its fields: a name is looked up among all of them
        fact.action, fact.call, fact.tool, fact.kind, fact.safety, fact.effect, fact.by, record.seq,
        record.body[0].commit if record.body else "", fact.pin or "", fact.parent or "", fact.fault or "",
        None if fact.repeats is UNSET else fact.repeats,
        author=replaced.author if fact.replaces and (replaced := run.actions.get(fact.replaces)) else "",
    )  # fmt: skip
    if fact.by == "tool":  # a call that a tool makes is a call of the run's budget, like one of the model
        run = replace(run, spent=replace(run.spent, calls=run.spent.calls + 1))
    return replace(run, actions={**run.actions, action.id: action})


@_on(r.ActionJudged)
def _judged(run: Run, record: Record[Any], fact: r.ActionJudged) -> Run:
    action = run.actions[fact.action]
    change: dict[str, Any] = {"verdict": fact.verdict, "code": fact.code or "", "request": None}
    if fact.asks or action.awaits is not UNSET:
        change["awaits"] = _awaited(run, action, fact)
    if action.state in ("proposed", "judged", "failed"):
        change["state"] = "denied" if fact.verdict == "deny" else "judged"
    if action.request and decision_of(action.request) == "approve":
        q, now = action.request, run.clock.now if run.clock else 0
        change["granted"] = (*action.granted, Granted(q.chain, tuple(v.seq for v in q.votes), q.tier, q.asked, now))
    if fact.verdict == "deny":
        change["retry_at"] = 0
        run = replace(run, denied=(*run.denied[-15:], action.seq), spent=replace(run.spent, denials=run.spent.denials + 1))
    return _with(run, fact.action, **change)


def _awaited(run: Run, action: Action, fact: r.ActionJudged) -> Awaiting | UnsetType:
    """The level that is asked of the log. Asked again for the same one, the time does not begin anew."""
    ask = next((a for a in fact.asks or () if a.to == "log"), None)
    if ask is None:
        return UNSET
    if action.awaits is not UNSET and action.awaits.level == ask.chain:
        return action.awaits
    return Awaiting(ask.chain, (run.clock.now if run.clock else 0) + (ask.within or 0) * 1000)


@_on(r.ActionStarted)
def _started(run: Run, record: Record[Any], fact: r.ActionStarted) -> Run:
    _move(record, run.actions[fact.action], "started")
    if run.spent.denials:
        run = replace(run, spent=replace(run.spent, denials=0))
    return _with(
        run, fact.action, state="started", attempt=fact.attempt, operation=fact.operation,
        reserves=run.actions[fact.action].reserves or fact.reserves, child=fact.child or "",
        retry_at=0, absent=False, cause="", landing=fact.landing, lands=0,
        clock=run.actions[fact.action].clock or (run.clock.now if run.clock else 0),
    )  # fmt: skip


def _move(record: Record[Any], action: Action, state: str) -> None:
    """The table is the law for stored records too: nobody goes on with a run that its rules cannot have made."""
    if state not in ACTIONS[action.state]:
        raise ProofError(
            f"an action that is {action.state} cannot be {state}", code="MDM-0643", where=f"run {record.run} (event {record.seq})",
            why="the stored run is not one that these rules make",
        )  # fmt: skip


@_on(r.CapabilityChecked)
def _used(run: Run, record: Record[Any], fact: r.CapabilityChecked) -> Run:
    return _with(run, fact.action, uses=run.actions[fact.action].uses + 1)


@_on(r.ActionDoubted)
def _doubted(run: Run, record: Record[Any], fact: r.ActionDoubted) -> Run:
    action = run.actions[fact.action]
    run = _retried(run, fact.retry_at is not UNSET and fact.cause != "unclear")  # to ask again is no attempt
    cause = action.cause if fact.cause == "unclear" and action.cause else fact.cause  # no answer says nothing about why it is in doubt
    return _with(run, fact.action, state="doubted", cause=cause, doubts=action.doubts + 1, retry_at=fact.retry_at or 0)


@_on(r.ActionEnded)
def _action_ended(run: Run, record: Record[Any], fact: r.ActionEnded) -> Run:
    """An unknown that people abandon is settled; a failure with `retry_at` is tried again, after a new judgement."""
    unknown = fact.result == "unknown"
    state = "settled" if unknown and fact.via == "people" else fact.result
    _move(record, run.actions[fact.action], state)
    change: dict[str, Any] = {"state": state, "code": fact.code or "", "retry_at": fact.retry_at or 0, "request": None}
    if not unknown or fact.via == "people":
        change["reserves"] = ()
    if fact.retry_at:
        change["absent"] = True
        run = _retried(run, True)
    if record.body:
        change["out"] = record.seq
    if fact.spends and run.actions[fact.action].child:
        run = _came_back(run, fact.spends)
    return _with(run, fact.action, **change)


def _came_back(run: Run, spends: tuple[Reserve, ...]) -> Run:
    """What a child used is used of this run's budget, with all below it."""
    below = run.spent.below or NOTHING
    used = {unit: getattr(below, unit) + x.amount for x in spends if (unit := unit_of(run.id, x.account))}
    return replace(run, spent=replace(run.spent, below=replace(below, **used))) if used else run


def _retried(run: Run, again: bool) -> Run:
    return replace(run, spent=replace(run.spent, retries=run.spent.retries + 1)) if again else run


# -- waiting -----------------------------------------------------------------------------------------------------------------
@_on(r.ApprovalRequested)
def _requested(run: Run, record: Record[Any], fact: r.ApprovalRequested) -> Run:
    old = run.actions[fact.action].request
    again = old if old and old.id == fact.request else None
    waiting = Waiting(
        id=fact.request, about=fact.about, chain=fact.chain, digest=fact.digest, card=fact.card, policy=fact.policy, quorum=fact.quorum,
        tier=fact.tier, until=fact.until, expires=fact.expires, seq=again.seq if again else record.seq,
        asked=again.asked if again else run.clock.now if run.clock else 0,
        votes=tuple(v for v in again.votes if v.seq in fact.carries) if again else (),
    )  # fmt: skip
    return _with(run, fact.action, request=waiting)


@_on(r.Voted)
def _voted(run: Run, record: Record[Any], fact: r.Voted) -> Run:
    run = _mailed(replace(run, clock=fact.clock), fact.mail)
    request = run.actions[fact.action or ""].request
    if request is None:
        return run
    vote = Vote(fact.principal, fact.decision, record.seq, fact.veto)
    changes: dict[str, Any] = {"author": fact.principal} if fact.decision == "modify" else {}
    return _with(run, fact.action or "", request=replace(request, votes=(*request.votes, vote)), **changes)


@_on(r.EvidenceReached)
def _evidence(run: Run, record: Record[Any], fact: r.EvidenceReached) -> Run:
    """A level holds for everything before it too."""
    if fact.level == "witnessed":
        return replace(run, witnessed=max(run.witnessed or 0, fact.seq))
    return replace(run, sealed=max(run.sealed or 0, fact.seq))


@_on(r.MessageReceived)
def _message(run: Run, record: Record[Any], fact: r.MessageReceived) -> Run:
    run = _mailed(replace(run, clock=fact.clock, heard=run.heard + 1), fact.mail)
    return replace(run, stage="ready", end="") if run.stage == "answered" and run.end == "completed" else run


@_on(r.MessageRefused)
def _message_refused(run: Run, record: Record[Any], fact: r.MessageRefused) -> Run:
    return _mailed(run, fact.mail)


@_on(r.TimePassed)
def _time(run: Run, record: Record[Any], fact: r.TimePassed) -> Run:
    """A tier or a chain whose end has passed is over: what waited on it is judged again, with that as a fact."""
    run = replace(run, clock=fact.clock)
    for action in run.actions.values():
        if action.request and not action.request.over and fact.clock.now >= action.request.expires:
            run = _with(run, action.id, request=replace(action.request, over=True))
    return run


def _mailed(run: Run, mail: Any) -> Run:
    if mail is UNSET:
        return run
    return replace(run, cursor=max(run.cursor, mail.cursor), keys=run.keys.plus(mail.key))
