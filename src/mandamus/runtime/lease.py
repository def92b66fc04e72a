"""Keeps the lease of a run while it is driven: `async with kept(s)` renews it at a third of its time, on ledgers where it can run out.

    await fresh(s)      # before something leaves the process: a process that slept through its lease asks first
    async with claimed(env, held): ...      # the same before there is a session: a long chain takes longer to read than a lease lasts

A lease serves liveness, so that two workers do not drive one run for long. Safety is the compare-and-append on the run's head: a
worker whose lease ran out and who does not know it yet is refused there. The rule a newcomer would break: nothing may rest on a
lease that was seen a moment ago; between looking and sending a process can be paused for any time.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from mandamus.errors import Conflict, Misuse, Unavailable
from mandamus.ports import Head
from mandamus.runtime.env import Env
from mandamus.runtime.session import Session

LEASE_MS = 15_000
SHARES = 3  # renewed at a third of its time


def from_environment() -> int:
    """`MANDAMUS_LEASE_MS`, else 15 s. Raises Misuse."""
    said = os.environ.get("MANDAMUS_LEASE_MS", "")
    if not said:
        return LEASE_MS
    if not said.isascii() or not said.isdigit() or not 1_000 <= int(said) <= 3_600_000:
        raise Misuse(
            "MANDAMUS_LEASE_MS is no lease", code="MDM-0136", expected="milliseconds, from 1000 to 3600000", found=said[:40],
            fix="MANDAMUS_LEASE_MS=15000",
        )  # fmt: skip
    return int(said)


@asynccontextmanager
async def kept(s: Session) -> AsyncIterator[None]:
    """Raises Conflict when another owner has the run: whatever was under way here is cancelled, and nothing more is written."""
    if s.live is None or s.env.ledger.locks:
        yield
        return
    s.renewed = _boot()
    async with _renewing(s.env, lambda: _renew(s)):
        yield


@asynccontextmanager
async def claimed(env: Env, held: Head) -> AsyncIterator[None]:
    """Keeps a claim while its run is read and bound. Without it, a run that takes longer than a lease is taken from one worker by the next,
    none of whom gets anywhere, and in the end it is parked for poison. Raises Conflict as `kept` does."""
    if env.ledger.locks:
        yield
        return

    async def renew() -> None:
        await env.ledger.renew(held, env.lease_ms)

    async with _renewing(env, renew):
        yield


@asynccontextmanager
async def _renewing(env: Env, renew: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    driving = asyncio.current_task()
    assert driving is not None, "a drive is a task"
    lost: list[Conflict] = []
    keeper = asyncio.create_task(_keep(env, renew, driving, lost))
    try:
        yield
    except asyncio.CancelledError:
        if not lost:
            raise
        if driving.uncancel():
            raise  # somebody else asked this task to go as well
        raise lost[0] from None
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])


async def fresh(s: Session) -> None:
    """Renews a lease that was not renewed for two thirds of its time. Raises Conflict when it is another's by now, Unavailable."""
    if s.live is None or s.env.ledger.locks or _boot() - s.renewed < s.env.lease_ms / 1000 * (SHARES - 1) / SHARES:
        return
    await _renew(s)


async def _keep(env: Env, renew: Callable[[], Awaitable[None]], driving: asyncio.Task[object], lost: list[Conflict]) -> None:
    pause = env.lease_ms / 1000 / SHARES
    while True:
        await asyncio.sleep(pause)
        try:
            await renew()
        except Unavailable:
            continue  # the next append finds out what there is to find
        except Conflict as conflict:
            lost.append(conflict)
            driving.cancel()
            return


async def _renew(s: Session) -> None:
    assert s.live is not None
    began = _boot()  # counted from before it was asked
    s.live = await s.env.ledger.renew(s.live, s.env.lease_ms)
    s.renewed = began


def _boot() -> float:
    """Seconds, also while the machine was suspended: `time.monotonic` stands still then."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
