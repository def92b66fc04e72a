"""Work: the queue of runs to look at, the schedules that put them there, and the sweep that finds what was lost.

A task says *look at this run*, nothing more: whoever takes it reads the run's row from the leader, and claims it, puts the look off, or
drops it. A run that is owned has a schedule at its lease's end, so that a dead owner is found without anybody asking; a run that sleeps has
one at its wake-up. Schedule and queue are one stream, so a schedule that fires is a task, whoever is alive.

The rule a newcomer would break: a task is acknowledged after what follows from it was stored, and its acknowledgement proves nothing.
What drives a run is its lease, and what protects it is compare-and-append.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from nats.aio.msg import Msg

from mandamus.drivers.ledger_nats.layout import Message, Names
from mandamus.drivers.ledger_nats.rows import Look
from mandamus.drivers.ledger_nats.wire import Refusal, Silence, Task, Wire
from mandamus.errors import ProofError
from mandamus.ports import AT_REST, Head

LOOK_AHEAD = 4  # tasks taken together, to find the one that waits longest
ACK_WAIT_NS = 5 * 10**9
WAIT_MS = 250  # a consumer may stand on a replica that lags
PAGE = 256
EARLY_NS = {1: 50_000_000, 2: 500_000_000}  # a task that leads nowhere at its nth delivery comes again after
SETTLE_US = 300_000  # after a lease's end, for the server to notice


class Work:
    """The tasks of one handle. `look(run)` reads its row; `lease(look)` takes it, or finds it taken."""

    def __init__(self, wire: Wire, names: Names, clock: Callable[[], int], look: Callable[[str], Awaitable[Look | None]]) -> None:
        self._wire, self._names, self._clock, self._look = wire, names, clock, look
        self._levels: dict[str, set[int]] = {}  # priorities seen, by pool
        self._made: set[tuple[str, int]] = set()
        self._bells: dict[str, asyncio.Event] = {}
        self._doing: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening = asyncio.Lock()
        self._swept, self._cursor, self._page = 0.0, "", []  # type: tuple[float, str, list[str]]
        wire.again.append(self._recount)

    # -- putting runs where they are seen --------------------------------------------------------------------------------------
    async def place(self, head: Head, *, again: bool = False) -> None:
        """Where a run without an owner belongs: in the queue, in a schedule, or nowhere. `again`: take an older schedule away."""
        if head.state not in AT_REST and head.wake_at is not None:
            await self.at(head, head.wake_at)
        elif again:
            await self._send(Message(self._names.wake(head.run), b"", headers=(("Nats-TTL", "1s"),)))

    async def at(self, head: Head, instant: int) -> None:
        if instant <= self._clock():
            await self.ring(head.run, head.pool, head.prio, instant)
            return
        target = self._names.tasks(head.pool, head.prio, head.run)
        headers = (("Nats-Schedule", f"@at {_stamp(instant)}"), ("Nats-Schedule-Target", target))
        await self._send(Message(self._names.wake(head.run), str(instant).encode(), headers=headers))

    async def owned(self, head: Head, until: int) -> None:
        """Look again when its owner's lease has run out."""
        await self.at(head, max(until, self._clock()) + SETTLE_US)

    async def ring(self, run: str, pool: str, prio: int, instant: int) -> None:
        self._levels.setdefault(pool, set()).add(prio)
        await self._send(Message(self._names.tasks(pool, prio, run), str(max(instant, 0)).encode()))

    async def _send(self, message: Message) -> None:
        """A hint that gets lost is found by the sweep: it never makes an append fail that was written."""
        for _ in range(3):
            with contextlib.suppress(Refusal, Silence):
                await self._wire.put(message)
                return
            await asyncio.sleep(0.05)

    # -- taking one ------------------------------------------------------------------------------------------------------------
    async def claim(self, pool: str, lease: Callable[[Look], Awaitable[Head | None]]) -> Head | None:
        await self._listen(pool)
        self._bells[pool].clear()
        for patient in (False, True):
            while tasks := await self._fetch(pool, patient):
                first, *rest = sorted(tasks, key=lambda task: (-task.prio, task.at))
                given_back = asyncio.gather(*(self._wire.ask(task.reply, b"-NAK") for task in rest), return_exceptions=True)
                try:
                    head = await self._consider(first, pool, lease)
                finally:
                    await given_back  # answered: the next claim shall find them
                if head is not None:
                    self.later(self._taken(first, head))
                    return head
            if not patient and time.monotonic() - self._swept > self._wire.options.sweep_ms / 1000:
                await self.sweep()
        return None

    async def _consider(self, task: Task, pool: str, lease: Callable[[Look], Awaitable[Head | None]]) -> Head | None:
        """A task may be here before what it is about: then it comes again, twice."""
        look, early = await self._seen(task.run), b'-NAK {"delay": %d}' % EARLY_NS.get(task.delivered, 0)
        done = early if task.delivered in EARLY_NS else b"+ACK"
        if look is not None and look.head.state not in AT_REST:
            head = look.head
            if head.owner:
                await self.owned(head, head.lease_until)
                done = b"+ACK"
            elif head.wake_at is not None and ((head.pool, head.prio) != (pool, task.prio) or head.wake_at > self._clock()):
                await self.place(head)
            elif head.wake_at is not None:
                if (taken := await lease(look)) is not None:
                    return taken
                done = b"+ACK"
        await self._wire.tell(task.reply, done)
        return None

    async def _seen(self, run: str) -> Look | None:
        """None also for a run that cannot be read: no reason to leave the others lying. Whoever names it is told."""
        try:
            return await self._look(run)
        except ProofError:
            return None

    async def _taken(self, task: Task, head: Head) -> None:
        await self.owned(head, head.lease_until)
        await self._wire.tell(task.reply, b"+ACK")

    def later(self, doing: Coroutine[Any, Any, None]) -> None:
        """What nobody waits for. Were it lost, the task would come again, or the sweep find the run."""
        task = asyncio.ensure_future(doing)
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    async def finished(self) -> None:
        if self._doing:
            await asyncio.wait(self._doing)

    async def _fetch(self, pool: str, patient: bool) -> list[Task]:
        """From the highest priority that has any."""
        levels = sorted(self._levels[pool] | {0}, reverse=True)
        if patient:
            asked = (self._take(pool, prio, 1, WAIT_MS) for prio in levels)
            return [task for tasks in await asyncio.gather(*asked) for task in tasks]
        for prio in levels:
            if tasks := await self._take(pool, prio, LOOK_AHEAD, 0):
                return tasks
        return []

    async def _take(self, pool: str, prio: int, batch: int, wait_ms: int) -> list[Task]:
        name = self._names.consumer(pool, prio)
        if (pool, prio) not in self._made:
            await self._consumer(name, self._names.tasks(pool, prio))
            self._made.add((pool, prio))
            if not (tasks := await self._wire.fetch(self._names.task, name, 1, WAIT_MS)):  # a new one has not looked at the stream yet
                return []
            return tasks + await self._wire.fetch(self._names.task, name, batch - 1, 0) if batch > 1 else tasks
        return await self._wire.fetch(self._names.task, name, batch, wait_ms)

    async def _consumer(self, name: str, filter: str) -> None:
        config = {"durable_name": name, "ack_policy": "explicit", "ack_wait": ACK_WAIT_NS, "max_deliver": -1, "filter_subject": filter}
        verb = f"CONSUMER.CREATE.{self._names.task}.{name}.{filter}"
        await self._wire.api(verb, {"stream_name": self._names.task, "config": config | {"name": name}, "action": ""})

    # -- hearing of it ---------------------------------------------------------------------------------------------------------
    async def hint(self, pool: str, timeout_ms: int) -> None:
        if await self._listen(pool):
            return  # what came before we listened was not heard
        bell = self._bells[pool]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(bell.wait(), timeout_ms / 1000)
        bell.clear()

    async def _listen(self, pool: str) -> bool:
        """Whether it is new. The stream tells what it has stored on a subject of its own, also what a schedule put there."""
        if self._loop is not asyncio.get_running_loop():
            self._loop = asyncio.get_running_loop()
            self._bells, self._made, self._listening = {}, set(), asyncio.Lock()
        async with self._listening:
            if pool in self._bells:
                return False
            bell = asyncio.Event()
            await self._listen_to(pool, bell)
            self._bells[pool] = bell
        return True

    async def _listen_to(self, pool: str, bell: asyncio.Event) -> None:
        subject = self._names.tasks(pool).replace(".task.", ".bell.", 1)

        def heard(message: Msg) -> None:
            self._levels.setdefault(pool, set()).update(_level(message.subject))
            bell.set()

        await self._wire.listen(subject, heard)
        await self._count(pool)

    async def _count(self, pool: str) -> None:
        levels = self._levels.setdefault(pool, set())
        for subject in await self._wire.subjects(self._names.task, self._names.tasks(pool)):
            levels.update(_level(subject))

    async def _recount(self) -> None:
        """After a reconnection: nobody told us what came meanwhile."""
        for pool, bell in self._bells.items():
            with contextlib.suppress(Refusal, Silence):
                await self._count(pool)
            bell.set()

    # -- what was lost -----------------------------------------------------------------------------------------------------------
    async def sweep(self) -> int:
        """One page of runs: those that are due and have no owner get a task again. How many."""
        if not self._page:
            self._page = await self._wire.subjects(self._names.log, self._names.events)
        page, self._page = self._page[:PAGE], self._page[PAGE:]
        if not self._page:
            self._swept = time.monotonic()
        found = 0
        for i in range(0, len(page), 32):
            looks = await asyncio.gather(*(self._seen(subject.rpartition(".")[2]) for subject in page[i : i + 32]))
            for head in (look.head for look in looks if look is not None):
                if not head.owner and head.wake_at is not None and head.state not in AT_REST:
                    await self.at(head, head.wake_at)
                    found += 1
        return found


def _level(subject: str) -> tuple[int, ...]:
    """The priority that a task's subject names; none, when it is no number."""
    word = subject.split(".")[-2]
    return (int(word),) if re.fullmatch(r"-?[0-9]{1,9}", word) else ()


def _stamp(instant: int) -> str:
    """RFC 3339, never earlier than the instant."""
    whole = min(-(-instant // 1000), 253_402_300_799_000)
    at = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=whole)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{whole % 1000:03d}Z"
