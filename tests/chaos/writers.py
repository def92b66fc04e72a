"""Writers for the chaos tests: each has a chain of its own, appends to it as the runtime does, and remembers what was acknowledged.

    crew = Crew(open_ledger, writers=32)
    async with crew: ...faults...; await crew.at_least(100_000)
    report = await crew.verify(other_ledger)

The rule a newcomer would break: a writer resends the very bytes of an append whose outcome is unknown, and believes the head, never
its own hope. What it counts as acknowledged is what the ledger returned from.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from mandamus.core.records import EVENT, decode
from mandamus.core.seal import Sealed
from mandamus.errors import Conflict, MandamusError, Unavailable
from mandamus.ports import Head, Ledger
from mandamus.testing.conformance.chains import Chain, bodies, raws, turn

PAUSE_S = 0.05


@dataclass
class Writer:
    """`acked`: the hash of each record that was acknowledged, by its seq."""

    ledger: Ledger
    chain: Chain
    head: Head | None = None
    acked: dict[int, str] = field(default_factory=dict)
    appends: int = 0
    resent: int = 0
    foreign: list[str] = field(default_factory=list)

    async def work(self, until: asyncio.Event) -> None:
        await self._put(self.chain.genesis(), until)
        while not until.is_set():
            await self._put(self.chain.next(turn(), note=f"{self.appends}"), until)

    async def _put(self, sealed: list[Sealed], until: asyncio.Event) -> None:
        """Until it is acknowledged. Given up only when the test ends, and then nothing of it is counted."""
        doubted = False
        while True:
            try:
                if doubted:
                    self.resent += 1
                    now = await self.ledger.head(self.chain.run)
                    if now is not None and now.hash == sealed[-1].hash:
                        return self._acknowledged(now, sealed)
                return self._acknowledged(
                    await self.ledger.append(self.chain.run, self.head, raws(sealed), payloads=bodies(sealed)), sealed
                )
            except Conflict as conflict:
                if not doubted:
                    self.foreign.append(f"{self.chain.run}: {conflict}")
                    until.set()
                    return
            except Unavailable:
                pass
            doubted = True
            if until.is_set():
                return
            await asyncio.sleep(PAUSE_S)

    def _acknowledged(self, head: Head, sealed: list[Sealed]) -> None:
        self.head = head
        self.appends += 1
        for one in sealed:
            self.acked[one.record.seq] = one.hash


@dataclass
class Report:
    """What stands in the store against what was acknowledged. All of it must be nothing but `appends`, `records` and `resent`."""

    appends: int = 0
    records: int = 0
    resent: int = 0
    lost: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        return self.lost + self.broken + self.foreign


class Crew:
    """Writers on handles of their own, `each` on one connection."""

    def __init__(self, open: Callable[[], Ledger | Awaitable[Ledger]], *, writers: int = 32, handles: int = 4, name: str = "chaos") -> None:
        self._open, self._name, self._count, self._handles = open, name, writers, handles
        self.writers: list[Writer] = []
        self.ledgers: list[Ledger] = []
        self.until = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Crew:
        for _ in range(self._handles):
            made = self._open()
            self.ledgers.append(await made if isinstance(made, Awaitable) else made)
            await self.ledgers[-1].head("none")  # it is open before the first fault
        for n in range(self._count):
            self.writers.append(Writer(self.ledgers[n % self._handles], Chain(f"{self._name}-{n:03}")))
        self._tasks = [asyncio.create_task(writer.work(self.until)) for writer in self.writers]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.until.set()
        done, late = await asyncio.wait(self._tasks, timeout=60)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        faults = [task.exception() for task in done if not task.cancelled() and task.exception() is not None]
        for ledger in self.ledgers:
            await ledger.close()
        if faults:
            raise AssertionError(f"a writer ended by {faults[0]!r}") from faults[0]

    @property
    def appends(self) -> int:
        return sum(writer.appends for writer in self.writers)

    async def more(self, n: int, timeout_s: float = 60.0) -> None:
        """Until `n` more appends were acknowledged: the store works again."""
        wanted = self.appends + n
        await self.at_least(wanted, timeout_s)

    async def at_least(self, wanted: int, timeout_s: float = 60.0) -> None:
        async with asyncio.timeout(timeout_s):
            while self.appends < wanted:
                assert not any(task.done() for task in self._tasks), self._ended()
                await asyncio.sleep(0.02)

    def _ended(self) -> str:
        told = [repr(task.exception()) for task in self._tasks if task.done() and not task.cancelled() and task.exception()]
        return "a writer ended: " + "; ".join(told + [text for writer in self.writers for text in writer.foreign])

    async def verify(self, ledger: Ledger) -> Report:
        """Reads every chain back: each acknowledged record is there with its hash, each record follows the one before it."""
        report = Report(resent=sum(writer.resent for writer in self.writers))
        for writer in self.writers:
            report.foreign += writer.foreign
            report.appends += writer.appends
            await _walk(ledger, writer, report)
        return report


async def _walk(ledger: Ledger, writer: Writer, report: Report) -> None:
    run, found, prev, seq = writer.chain.run, dict[int, str](), "", -1
    try:
        async for raw in ledger.read(run):
            record, hash = decode(raw), hashlib.sha256(EVENT + raw).hexdigest()
            if record.seq != seq + 1 or (seq >= 0 and record.prev != prev):
                report.broken.append(f"{run}: event {record.seq} does not follow event {seq}")
            found[record.seq], prev, seq = hash, hash, record.seq
    except MandamusError as error:
        report.broken.append(f"{run}: {error}")
    head = await ledger.head(run)
    if head is not None and (head.seq, head.hash) != (seq, prev):
        report.broken.append(f"{run}: the head is at event {head.seq}, the chain ends at event {seq}")
    report.records += len(found)
    report.lost += [f"{run}: event {n} was acknowledged" for n, hash in writer.acked.items() if found.get(n) != hash]
