"""The loop (ARCHITECTURE, section 2). Everything it knows about the rules, it asks the core; it alone calls core and the ledger.

The rule a newcomer would break: nothing leaves the process before everything known is saved, and an append that was refused sends
the loop back to `due`, never forward.
"""

from __future__ import annotations

from mandamus.core.effects import Effect, Execute, Input, Judge, Judgement
from mandamus.core.records import ActionJudged, RunHalted
from mandamus.core.rules import wakes
from mandamus.core.seal import Draft
from mandamus.errors import EngineFault, ProofError, Unavailable
from mandamus.runtime import mail
from mandamus.runtime.session import Session
from mandamus.runtime.world import perform


async def drive(s: Session) -> None:
    """Carry a run as far as it goes now: to its end, to a halt, or to where only people or time can move it."""
    s.carry = drive
    try:
        while await _round(s) or not await _settled(s):
            pass
    except (ProofError, EngineFault) as fault:
        await _halt(s, fault)
        raise
    finally:
        await s.land()


async def _round(s: Session) -> bool:
    """Start what is due, take what comes. False: nothing will come by itself."""
    fresh, leaves = _fresh(s)
    if s.env.leaving:
        fresh = [x for x in fresh if _finishes(s, x)]
        if not fresh and not any(isinstance(x, Execute) for x in s.flying):
            return False
    if (s.urgent or leaves) and not await s.save():
        return True
    if not s.flying and len(fresh) == 1 and not fresh[0].leaves:
        s.take(await perform(s, fresh[0]))  # it stays in this process: no task, nothing to wait beside it
        return True
    for effect in fresh:
        s.launch(effect, perform(s, effect))
    return await _take_next(s)


def _fresh(s: Session) -> tuple[list[Effect], bool]:
    """(what is due now and neither in flight nor parked, whether any of it leaves the process)."""
    fresh: list[Effect] = []
    leaves, now = False, 0
    for x in s.due():
        if x.not_before:
            now = now or s.env.time.now()
        if x.not_before <= now and x not in s.flying and x not in s.parked:
            fresh.append(x)
            leaves = leaves or x.leaves
    return fresh, leaves


def _finishes(s: Session, effect: Effect) -> bool:
    """Asked to go, what has its intent is still carried out, and what a running tool waits for is still judged. Nothing else begins."""
    return isinstance(effect, Execute) or (isinstance(effect, Judge) and all(s.run.actions[id].parent for id in effect.actions))


async def _settled(s: Session) -> bool:
    """Everything is saved, and nobody wrote to us meanwhile."""
    if not await s.save():
        return False
    if _unread(s):
        await mail.drain(s)
        return False
    return True


def _unread(s: Session) -> bool:
    """Mail behind the cursor. A sealed run reads none: nothing may stand behind its seal."""
    return s.head is not None and s.head.mail > s.run.cursor and s.run.life != "sealed"


async def _halt(s: Session, fault: ProofError | EngineFault) -> None:
    """A broken payload or an engine that broke its promise: the run halts where it is. A ledger that is gone ends the process instead."""
    if isinstance(fault, Unavailable) or s.run.life != "running":
        return
    code = "proof" if isinstance(fault, ProofError) else "engine_fault"
    await s.unstart()
    s.record([Draft(RunHalted(cause="engine", code=code), s.run.turn)])
    await s.save()


async def _take_next(s: Session) -> bool:
    """Take whatever comes first: an answer, mail, a request from a running tool, or the time. False: nothing will come."""
    if _unread(s) and not s.unsaved:
        await mail.drain(s)
        return True
    if not s.flying:
        return await _wait(s)
    rang = await s.listen()
    if s.inbox:
        await _hear(s)
    await _land(s)
    if not rang:
        await mail.look(s)
    return True


async def _land(s: Session) -> None:
    """Take all that landed. What one of them raises ends the drive, but only when the others' outcomes are known."""
    fault: Exception | None = None
    while s.landed:
        task = s.flying.pop(s.landed.pop(0))
        try:
            given = task.result()
        except Exception as error:
            fault = fault or error
            continue
        await _take(s, given)
    if fault is not None:
        await s.unstart()
        await s.save()
        raise fault


async def _take(s: Session, given: Input) -> bool:
    """What happened in the world may not share its append with an intent: if that is refused, all behind its judgement is void."""
    if s.unsaved and not isinstance(given, Judgement) and any(isinstance(x.record.fact, ActionJudged) for x in s.unsaved):
        await s.save()
    return s.take(given)


async def _hear(s: Session) -> None:
    """What a running tool asks for is decided and saved before it hears of it."""
    given, s.inbox = s.inbox, []
    await s.save()  # with no intent among what follows, nothing of it can be rolled back
    accepted = [await _take(s, one) for one, _ in given]
    await s.save()
    for (_, heard), known in zip(given, accepted, strict=True):
        if not heard.done():
            heard.set_result(known)


async def _wait(s: Session) -> bool:
    """Nothing is in flight. Wait for a time that is near; what is far belongs to whoever is woken then."""
    due = [x for x in s.due() if x not in s.parked]  # a child that waits is looked at again by the next owner
    at, _ = wakes(s.run, due)
    if at is None:
        return False
    now = s.env.time.now()
    if at - now > s.env.patience_ms * 1000:
        return False
    if at > now:
        if not await s.save():
            return True
        await s.env.time.sleep_until(at)
    if any(x.not_before <= s.env.time.now() for x in due):
        return True
    s.take(mail.time_passed(s))
    return True
