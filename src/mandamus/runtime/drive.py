"""The loop (docs/concepts/effect-protocol.md). Everything it knows about the rules, it asks the core; it alone calls core and the ledger.

The rule a newcomer would break: nothing leaves the process before everything known is saved, and an append that was refused sends
the loop back to `due`, never forward.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable

from mandamus.core.effects import Effect, Execute, Input, Judge, Rulings
from mandamus.core.records import ActionJudged, RunHalted
from mandamus.core.rules import wakes
from mandamus.core.seal import Draft
from mandamus.errors import EngineFault, ProofError, Unavailable
from mandamus.runtime import mail
from mandamus.runtime.lease import kept
from mandamus.runtime.log import TAKEN_BACK
from mandamus.runtime.session import Session
from mandamus.runtime.within import resumed
from mandamus.runtime.world import perform

AT_ONCE_MAX = 16


async def drive(s: Session) -> None:
    """Carry a run as far as it goes now: to its end, to a halt, or to where only people or time can move it."""
    s.carry, s.deaf = drive, False
    async with kept(s):
        try:
            while await _round(s) or not await _settled(s):
                pass
            if s.parked:
                await s.say_waiting()
        except (ProofError, EngineFault) as fault:
            await _halt(s, fault)
            raise
        finally:
            await s.land()


async def _round(s: Session) -> bool:
    """Start what is due, take what comes. False: nothing will come by itself."""
    if s.inbox:
        await _hear(s)
    fresh, leaves = _fresh(s)
    if s.env.leaving:
        fresh = [x for x in fresh if _finishes(s, x)]
        if not fresh and not any(isinstance(x, Execute) for x in s.flying):
            return False
    if (s.urgent or leaves) and not await s.save():
        return True
    if not s.flying and len(fresh) == 1:
        if leaves:
            await _alone(s, fresh[0])
        else:
            await _take(s, await perform(s, fresh[0]))
        return True
    for effect in fresh:
        s.launch(effect, perform(s, effect))
    return await _take_next(s)


async def _alone(s: Session, effect: Effect) -> None:
    """The only effect that is due begins in this very task: one that answers at once costs the event loop nothing."""
    s.at_once += 1
    if not s.at_once % AT_ONCE_MAX:
        await asyncio.sleep(0)  # other runs, signals and timers have their turn
    steps, context = perform(s, effect).__await__(), contextvars.copy_context()
    try:
        waits_for = context.run(next, steps)
    except StopIteration as done:
        await _take(s, done.value)
        if _unread(s):
            await mail.look(s)  # nobody waited, so no deputy has read it
    except Exception as error:
        s.land_here(effect).set_exception(error)
        await _land(s)
    else:
        await _wait_here(s, effect, resumed(steps, waits_for, context))


async def _wait_here(s: Session, effect: Effect, rest: Awaitable[Input]) -> None:
    """It has to wait: meanwhile a deputy drives, reads mail, looks at the time, hears what a tool asks for. Only one of the two drives."""
    task = asyncio.current_task()
    assert task is not None, "a drive is a task"
    place = s.flying[effect] = asyncio.get_running_loop().create_future()
    deputy = asyncio.create_task(_stand_in(s, place))
    called_off = False

    def call_off(_: asyncio.Task[None]) -> None:
        nonlocal called_off
        if not place.done():
            s.deafen()
            called_off = task.cancel()

    deputy.add_done_callback(call_off)
    try:
        place.set_result(await rest)
    except asyncio.CancelledError:
        if not called_off:
            raise
    except Exception as error:
        place.set_exception(error)
    finally:
        if not place.done():
            await _dismiss(s, effect, place, deputy)
    others = task.uncancel() if called_off else 0
    await _hand_back(s, effect, place, deputy)
    if others:
        raise asyncio.CancelledError  # somebody else asked this task to go as well


async def _hand_back(s: Session, effect: Effect, place: asyncio.Future[Input], deputy: asyncio.Task[None]) -> None:
    """The drive goes on when the deputy has ended. What is known by then is taken, whatever it was that ended it."""
    try:
        if place.cancelled():
            deputy.result()  # raises the fault by which it ended; without one, this process was asked to go
        else:
            s.landed.append(effect)
            s.ring()
            await deputy
    except Exception:
        await _land(s)
        raise
    await _land(s)


async def _dismiss(s: Session, effect: Effect, place: asyncio.Future[Input], deputy: asyncio.Task[None]) -> None:
    """Nobody will hear what the effect came to. The deputy stops where it stands, before anybody else looks at the run."""
    place.cancel()
    s.flying.pop(effect, None)
    deputy.cancel()
    await asyncio.gather(deputy, return_exceptions=True)


async def _stand_in(s: Session, place: asyncio.Future[Input]) -> None:
    while not place.done() and await _round(s):
        pass


def _fresh(s: Session) -> tuple[list[Effect], bool]:
    """(what is due now and neither in flight nor parked, whether any of it leaves the process)."""
    fresh: list[Effect] = []
    leaves, now, busy = False, 0, s.flying or s.parked
    for x in s.due():
        if x.not_before:
            now = now or s.env.time.now()
        if x.not_before <= now and not (busy and (x in s.flying or x in s.parked)):
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
    """A broken payload or an engine that broke its promise: the run halts where it is. A ledger that is gone ends the process instead,
    and so does one that took back what this process had read: what it knows is of another history."""
    if isinstance(fault, Unavailable) or s.run.life != "running" or fault.diagnosis.code == TAKEN_BACK:
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
    if s.unsaved and type(given) is not Rulings:
        for x in s.unsaved:
            if type(x.record.fact) is ActionJudged:
                await s.save()
                break
    return s.take(given)


async def _hear(s: Session) -> None:
    """What a running tool asks for is decided and saved before it hears of it."""
    given, s.inbox = s.inbox, []
    try:
        await s.save()  # with no intent among what follows, nothing of it can be rolled back
        accepted = [await _take(s, one) for one, _ in given]
        await s.save()
    except BaseException:
        s.inbox = given + s.inbox  # who asked hears of it when the drive lands
        raise
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
