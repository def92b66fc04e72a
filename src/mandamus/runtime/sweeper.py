"""Duties that one worker of a ledger does for all of them, and the sweeper, which is one: `await keep(env, DUTIES)`.

A duty is held alone by name (`Ledger.duty`), with an epoch that rises with each new holder. The rule a newcomer would break: two
workers may believe for a moment that they hold it, and a worker may die in the middle of it. So a duty does nothing that is wrong when it
is done twice, or half: it writes by compare-and-append only, and what it writes is a wake-up. Who is woken owns the run first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from mandamus.errors import Conflict, MandamusError, Misuse, ProofError, Unavailable
from mandamus.ports import Head, Wake
from mandamus.runtime import owed, recover
from mandamus.runtime.env import Env
from mandamus.runtime.forgetting.retention import Forgetting

HOLDS = 3  # a duty is free again after this many of its turns were missed
WAITS = ("people", "level", "time", "child")  # what a living owner has left; of what still runs, its owner knows
RUNS_MAX = 256  # chains that one sweep reads


class Duty(NamedTuple):
    """Every `every_s` seconds one worker does what `make()` answered when that worker began."""

    name: str
    every_s: float
    make: Callable[[], Callable[[Env], Awaitable[None]]]


async def keep(env: Env, duties: Sequence[Duty]) -> None:
    """For as long as this worker lives; on the way out they are given back."""
    held = [asyncio.create_task(_keep(env, duty)) for duty in duties]
    try:
        await asyncio.gather(*held)
    finally:
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        for duty in duties:
            with contextlib.suppress(MandamusError):
                await env.ledger.duty(duty.name, 0)


async def _keep(env: Env, duty: Duty) -> None:
    said, work = "", duty.make()
    while True:
        try:
            if await env.ledger.duty(duty.name, int(duty.every_s * HOLDS * 1000)) is not None:
                await work(env)
            said = ""
        except Unavailable:  # whoever claims runs says so
            pass
        except Exception as error:  # a duty that fails is said, and tried again; the runs go on
            if said != str(error):
                said = str(error)
                env.warn(f"mandamus: duty {duty.name}: {type(error).__name__}: {error}")
        await asyncio.sleep(duty.every_s)


class Sweeper:
    """Finds runs that wait, and owe an account a settlement that nobody remembers; they are due at once, and their next owner settles it.

    An outcome is never refused for an account's sake, so it may stand in the chain without its settlement. Its owner settles it before it
    gives the run back, or makes the run due soon; one that dies in between leaves it to whoever takes the run over, which for a run that
    waits for people may be never.
    """

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}  # run -> the head up to which it owes nothing

    async def __call__(self, env: Env) -> None:
        waiting = [head async for head in _waiting(env)]
        self._seen = {head.run: head.hash for head in waiting if self._seen.get(head.run) == head.hash}
        fresh = [head for head in waiting if head.run not in self._seen]
        for head in fresh[:RUNS_MAX]:  # what one sweep has no time for is the next one's
            try:
                await self._look(env, head)
            except (ProofError, Misuse):  # a broken chain is found by whoever drives it
                self._seen[head.run] = head.hash

    async def _look(self, env: Env, head: Head) -> None:
        nobody: Any = None  # what its agent is bound to is not needed to read what happened
        s = await recover.read_run(env, nobody, head.run)
        if s.head is None or s.head.state != head.state:
            return  # it was moved since it was listed; what its row says now must stay
        if s.moved and s.run.life == "running" and await owed.missing(s, s.moved):
            with contextlib.suppress(Conflict):  # somebody moves it: who owns it settles
                await env.ledger.append(head.run, s.head, [], wake=Wake(env.time.now(), s.run.cursor, head.state))
            return
        self._seen[head.run] = s.run.head


async def _waiting(env: Env) -> AsyncIterator[Head]:
    """Runs that wait, and are not due anyway. An owner that died still stands in its row."""
    now = env.time.now()
    for word in WAITS:
        async for head in env.ledger.runs(state=word):
            if (not head.owner or head.lease_until < now) and (head.wake_at is None or head.wake_at > now):
                yield head


DUTIES = (
    Duty("sweeper", 30.0, Sweeper),
    Duty("forgetting", 60.0, Forgetting),
)
