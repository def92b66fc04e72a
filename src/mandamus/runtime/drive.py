"""The loop (ARCHITECTURE, section 2). Everything it knows about the rules, it asks the core; it alone calls core and the ledger.

The rule a newcomer would break: nothing leaves the process before everything known is saved, and an append that was refused sends
the loop back to `due`, never forward.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mandamus.core.rules import due, wakes
from mandamus.runtime import mail
from mandamus.runtime.session import POLL_S, Session
from mandamus.runtime.world import perform


async def drive(s: Session) -> None:
    """Carry a run as far as it goes now: to its end, to a halt, or to where only people or time can move it."""
    s.carry = drive
    try:
        while True:
            fresh = [x for x in due(s.run) if x not in s.flying and x.not_before <= s.env.time.now()]
            if (s.urgent or any(x.leaves for x in fresh)) and not await s.save():
                continue
            for effect in fresh:
                s.flying[effect] = asyncio.create_task(perform(s, effect), name=type(effect).__name__)
            if not await _take_next(s):
                break
        if not await s.save():
            await drive(s)
    finally:
        await _land(s)


async def _take_next(s: Session) -> bool:
    """Take whatever comes first: an answer, mail, a request from a running tool, or the time. False: nothing will come."""
    if s.head and s.head.mail > s.run.cursor and not s.unsaved:
        await mail.drain(s)
        return True
    if not s.flying:
        return await _wait(s)
    s.bell = s.bell if s.bell and not s.bell.done() else asyncio.get_running_loop().create_future()
    waiting: list[asyncio.Future[Any]] = [*s.flying.values(), s.bell]
    done, _ = await asyncio.wait(waiting, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
    if s.inbox:
        await _hear(s)
    for effect in [x for x, task in s.flying.items() if task in done]:
        s.take(s.flying.pop(effect).result())
    if not done:
        await mail.look(s)
    return True


async def _hear(s: Session) -> None:
    """What a running tool asks for is decided and saved before it hears of it."""
    given, s.inbox = s.inbox, []
    for one, _ in given:
        s.take(one)
    await s.save()
    for _, heard in given:
        if not heard.done():
            heard.set_result(None)


async def _wait(s: Session) -> bool:
    """Nothing is in flight. Wait for a time that is near; what is far belongs to whoever is woken then."""
    at = wakes(s.run)
    if at is None:
        return False
    now = s.env.time.now()
    if at - now > s.env.patience_ms * 1000:
        return False
    if at > now:
        if not await s.save():
            return True
        await s.env.time.sleep_until(at)
    if any(x.not_before <= s.env.time.now() for x in due(s.run)):
        return True
    s.take(mail.time_passed(s))
    return True


async def _land(s: Session) -> None:
    """Whatever ends the loop, nothing of it goes on behind its back."""
    for task in s.flying.values():
        task.cancel()
    if s.flying:
        await asyncio.gather(*s.flying.values(), return_exceptions=True)
    s.flying.clear()

