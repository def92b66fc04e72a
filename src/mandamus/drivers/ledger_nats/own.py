"""Who drives a run, and who holds a duty: leases taken, renewed and given back, each with the schedule that finds a dead owner.

    own = Ownership(leases, work, look, clock); head = await own.claim("default", 15_000, None)

The rule a newcomer would break: the lease comes first and the schedule after it. A schedule that was set by somebody who then lost the race
would put off the look at the run of the one who won it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mandamus.drivers.ledger_nats import rows
from mandamus.drivers.ledger_nats.layout import Count
from mandamus.drivers.ledger_nats.lease import Free, Held, Leases, Lost
from mandamus.drivers.ledger_nats.rows import Look
from mandamus.drivers.ledger_nats.work import Work
from mandamus.ports import Head


class Ownership:
    """What one handle holds."""

    def __init__(self, leases: Leases, work: Work, look: Callable[[str], Awaitable[Look | None]], clock: Callable[[], int]) -> None:
        self._leases, self._work, self._look, self._clock = leases, work, look, clock
        self._held: dict[str, Held] = {}
        self._duties: dict[str, Held] = {}

    def of(self, run: str) -> Held | None:
        return self._held.get(run)

    # -- runs ----------------------------------------------------------------------------------------------------------------
    async def claim(self, pool: str, ttl_ms: int, run: str | None) -> Head | None:
        if run is None:
            return await self._work.claim(pool, lambda look: self._lease(look, ttl_ms))
        look = await self._look(run)
        if look is None:
            return None
        taken = None if look.head.owner else await self._lease(look, ttl_ms)
        if taken is None:
            raise rows.driven(run, await self.head(run), self._leases.me)
        self._work.later(self._work.owned(taken, taken.lease_until))
        return taken

    async def renew(self, head: Head, ttl_ms: int) -> Head:
        held = self._held.get(head.run)
        if held is None:
            raise rows.not_mine(head.run, await self.head(head.run))
        try:
            if ttl_ms == 0:
                return await self._give_back(held, head)
            self._held[head.run] = await self._leases.renew(held, ttl_ms)
        except Lost:
            self._held.pop(head.run, None)
            raise rows.not_mine(head.run, await self.head(head.run)) from None
        stored, _ = await asyncio.gather(self.must(head.run), self._work.owned(head, self._clock() + ttl_ms * 1000))
        return stored

    async def _lease(self, look: Look, ttl_ms: int) -> Head | None:
        """None: another was faster."""
        head, progress = look.head, look.known.row.progress
        if not isinstance(look.lease, Free):
            return None
        try:
            count = Count(look.tries + 1, progress)
            self._held[head.run] = await self._leases.take(("lease", "tries"), head.run, look.lease, count, ttl_ms)
        except Lost:
            return None
        return await self.must(head.run)  # as it stands under the lease: the earlier look may be older than its last owner's append

    async def _give_back(self, held: Held, head: Head) -> Head:
        less = ("tries", Count(head.tries, held.mark)) if head.tries < held.count else None
        self._held.pop(head.run, None)
        await self._leases.drop(held, less)
        free = await self.must(head.run)
        if free.owner:
            return free
        if free.wake_at is not None and free.wake_at <= self._clock():
            await self._work.place(free)
        else:  # until then the schedule of the lease stands, whose look would do the same
            self._work.later(self._work.place(free, again=True))
        return free

    async def head(self, run: str) -> Head | None:
        look = await self._look(run)
        return look.head if look else None

    async def must(self, run: str) -> Head:
        head = await self.head(run)
        assert head is not None, "a run that was claimed cannot vanish: records are never deleted"
        return head

    # -- duties --------------------------------------------------------------------------------------------------------------
    async def duty(self, name: str, ttl_ms: int) -> int | None:
        held = self._duties.pop(name, None)
        try:
            if ttl_ms == 0:
                if held is not None:
                    await self._leases.drop(held)
                return None
            if held is None:
                return await self._take(name, ttl_ms)
            self._duties[name] = await self._leases.renew(held, ttl_ms)
            return held.count
        except Lost:
            return None if ttl_ms == 0 else await self._take(name, ttl_ms)

    async def _take(self, name: str, ttl_ms: int) -> int | None:
        found, counted = await asyncio.gather(self._leases.look("duty", name), self._leases.count("epoch", name))
        if not isinstance(found, Free):
            return None
        try:
            self._duties[name] = await self._leases.take(("duty", "epoch"), name, found, Count(counted.n + 1), ttl_ms)
        except Lost:
            return None
        return counted.n + 1
