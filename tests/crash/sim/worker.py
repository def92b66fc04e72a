"""One process of a simulation, and its wire to the store. Everything that it waits for is a place where the plan may strike.

    worker = Worker(sim, "0a")
    ledger = SimLedger(worker)      # hand it to `wiring.open_env`

The rule a newcomer would break: dead, it reaches nothing; asleep, no part of it goes on, its keeper of the lease no more than its drive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from mandamus.core.records import EMPTY_ROOT, Anchor
from mandamus.errors import Conflict, Misuse, Unavailable
from mandamus.testing.power import PowerCut
from tests.crash.sim.clock import SimTime

HOUR, MINUTES = 3_600_000_000, 240_000_000  # an idle pool asks every second: an hour of it is much work and no news
STALLS_S = (30.0, 60.0, 300.0)
SLOW_S = 60.0


class Worker:
    def __init__(self, sim: Any, name: str) -> None:
        self.sim, self.name, self.dead = sim, name, False
        self.handle = sim.store.handle()
        self.time = SimTime(f"{sim.seed}/{name}")
        self.doubts = False  # a write of it has an unknown outcome, and no later one was acknowledged
        self.run = ""  # the run it works on
        self._asleep_until = 0.0
        self._loop = asyncio.get_running_loop()
        sim.workers.append(self)

    def die(self) -> None:
        """What it held by a lock is free at once; what it held by a lease, when that has run out."""
        if not self.dead:
            self.dead = True
            self.sim.farewell(self.handle.close())

    async def at(self, label: str, kind: str) -> str:
        """A place where something waits. Returns the fault that the caller must act on."""
        sim = self.sim
        await self.awake(label)
        fault = sim.pass_by(self.name, label, kind)
        if fault:
            await self._strike(fault, label)
        await asyncio.sleep(sim.random.uniform(0.001, 0.05))
        await self.awake(label)
        return str(fault)

    async def _strike(self, fault: str, label: str) -> None:
        sim = self.sim
        match fault:
            case "crash":
                self.die()
                raise PowerCut(label)
            case "stall":
                self._asleep_until = self._loop.time() + sim.random.choice(STALLS_S)
            case "slow":
                await asyncio.sleep(SLOW_S)
            case "clock":
                machine = sim.random.choice((self.time, sim.time))
                wrong = MINUTES if sim.pool else HOUR
                machine.skew = sim.random.choice([x for x in (-wrong, 0, wrong) if x != machine.skew])
            case "mail":
                await sim.deliver_again()
            case "wake":
                sim.wake(self.run)
            case "authority":
                await sim.change_authority()

    async def awake(self, label: str) -> None:
        """Asleep, nothing of the process goes on, its timers no more than its calls: a deadline that passed is heard at waking."""
        late: asyncio.CancelledError | None = None
        while not self.dead and self._asleep_until > self._loop.time():
            try:
                await asyncio.sleep(self._asleep_until - self._loop.time())
            except asyncio.CancelledError as cancelled:
                late = cancelled
        if self.dead:
            raise PowerCut(label)
        if late is not None:
            raise late


class SimLedger:
    """A driver as the port wants it, on a store that fails: after an unknown outcome it answers `head` only with what will last."""

    def __init__(self, worker: Worker) -> None:
        self.worker = self._worker = worker
        self._store = worker.sim.store

    @property
    def locks(self) -> bool:
        return bool(self._worker.handle.locks)

    # -- writes --------------------------------------------------------------------------------------------------------------
    async def append(self, run: str, after: Any, records: Any, **more: Any) -> Any:
        head = await self._write("append", "append", run, after, records, **more)
        self._worker.sim.acknowledged(run, head)
        await self._worker.at("appended", "after")
        return head

    async def claim(self, pool: str, ttl_ms: int, *, run: str | None = None) -> Any:
        before = {run for run, holder in self._held() if holder is self._worker.handle}
        try:
            head = await self._write("claim", "claim", pool, ttl_ms, run=run)
        except Unavailable:
            self._unlock({run for run, holder in self._held() if holder is self._worker.handle} - before)
            raise
        await self._worker.at("claimed", "after")
        return head

    async def renew(self, head: Any, ttl_ms: int) -> Any:
        try:
            return await self._write("renew" if ttl_ms else "give back", "renew", head, ttl_ms)
        except Unavailable:
            if not ttl_ms:
                self._unlock({head.run})
            raise

    def _held(self) -> list[tuple[str, Any]]:
        return list(self._store.data.holders.items())

    def _unlock(self, runs: set[str]) -> None:
        """A kernel's lock is let go whatever the file says; a lease only runs out."""
        if self.locks:
            for run, holder in self._held():
                if run in runs and holder is self._worker.handle:
                    del self._store.data.holders[run]

    async def send(self, run: str, message: bytes) -> Any:
        return await self._write("send", "send", run, message)

    async def duty(self, name: str, ttl_ms: int) -> Any:
        return await self._write("duty", "duty", name, ttl_ms)

    async def beat(self, node: Any, ttl_ms: int) -> Any:
        return await self._write("beat", "beat", node, ttl_ms)

    async def _write(self, label: str, name: str, *given: Any, **more: Any) -> Any:
        worker, store = self._worker, self._store
        fault = await worker.at(label, "write")
        if fault == "unavailable":
            await self._perhaps(name, *given, **more)
            raise self._unknown(label)
        if fault == "ghost":
            lost = worker.sim.random.random() < 0.7
            await worker.awake(label)
            store.doubt(lost, worker.sim.random.uniform(0.2, 5.0))
            await self._do(name, *given, **more)
            raise self._unknown(label)
        try:
            await store.acknowledged()
        except Unavailable:
            worker.doubts = True
            raise
        await worker.awake(label)
        done = await self._do(name, *given, **more)
        worker.doubts = False
        return done

    async def _perhaps(self, name: str, *given: Any, **more: Any) -> None:
        """Not done, done, or still on its way to be done when the writer has long been told that nobody knows."""
        kernels = self.locks and name == "claim"  # a lock is taken by the caller itself: never later
        what = self._worker.sim.random.choice(("not", "done") if kernels else ("not", "done", "later"))
        if what == "not":
            return
        await self._store.acknowledged()
        if what == "done":
            await self._do(name, *given, **more)
            return

        async def later() -> None:
            await asyncio.sleep(self._worker.sim.random.uniform(0.01, 2.0))
            try:
                await self._store.acknowledged()
                await self._do(name, *given, **more)
            except (Conflict, Unavailable, Misuse):
                pass  # nobody hears of it; Misuse: the handle was closed meanwhile

        self._worker.sim.farewell(later())

    async def _do(self, name: str, *given: Any, **more: Any) -> Any:
        done = await getattr(self._worker.handle, name)(*given, **more)
        if name == "append":
            self._worker.sim.written(given[0], given[2])
        return done

    def _unknown(self, label: str) -> Unavailable:
        self._worker.doubts = True
        return Unavailable(f"the store does not answer to {label}")

    # -- reads ---------------------------------------------------------------------------------------------------------------
    async def head(self, run: str) -> Any:
        await self._read("head")
        while self._worker.doubts and self._worker.sim.settles:
            try:
                await self._store.acknowledged()
            except Unavailable:
                continue  # the same question to the new primary
            self._worker.doubts = False
        await self._worker.awake("head")
        return await self._worker.handle.head(run)

    async def account(self, id: str) -> Any:
        await self._read("account")
        return await self._worker.handle.account(id)

    async def payload(self, run: str, seq: int, part: str) -> Any:
        await self._read("payload")
        return await self._worker.handle.payload(run, seq, part)

    def read(self, run: str, after: int = -1, upto: int | None = None) -> AsyncIterator[bytes]:
        return self._stream("read", run, after, upto)

    def payloads(self, run: str, after: int = -1, parts: Any = ()) -> AsyncIterator[Any]:
        return self._stream("payloads", run, after, parts)

    def mailbox(self, run: str, after: int = 0) -> AsyncIterator[Any]:
        return self._stream("mailbox", run, after)

    def deltas(self, id: str) -> AsyncIterator[bytes]:
        return self._stream("deltas", id)

    def runs(self, after: str | None = None, state: str | None = None) -> AsyncIterator[Any]:
        return self._stream("runs", after, state)

    async def feed(self, after: str = "", limit: int | None = None) -> AsyncIterator[Any]:
        """Of what no failover takes back."""
        await self._read("feed")
        await self._store.acknowledged()
        for one in [one async for one in self._worker.handle.feed(after, limit)]:  # no time passes meanwhile
            yield one

    def nodes(self) -> AsyncIterator[Any]:
        return self._stream("nodes")

    async def _read(self, label: str) -> None:
        if await self._worker.at(label, "read") == "unavailable":
            raise Unavailable(f"the store does not answer to {label}", outcome="none")

    async def _stream(self, name: str, *given: Any) -> AsyncIterator[Any]:
        """A stream may break in its middle."""
        breaks = await self._worker.at(name, "read") == "unavailable"
        left = self._worker.sim.random.randint(0, 3)
        async for one in getattr(self._worker.handle, name)(*given):
            if breaks and not left:
                break
            left -= 1
            yield one
        if breaks:
            raise Unavailable(f"the store does not answer to {name}", outcome="none")

    async def hint(self, pool: str, timeout_ms: int) -> None:
        await self._worker.at("hint", "read")
        await self._worker.handle.hint(pool, timeout_ms)

    async def close(self) -> None:
        if not self._worker.dead:
            await self._worker.handle.close()


class SimLog:
    """The transparency log as the loop asks it: it has what is stored for good and nothing else, and it may not answer."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def offers(self, level: str) -> str:
        return ""

    async def anchor(self) -> Anchor:
        return Anchor(root=EMPTY_ROOT, size=0)

    async def covered(self, run: str, seq: int, level: str) -> None:
        """What it has, it has for good."""
        if await self._worker.at("ask the log again", "reply") == "unavailable":
            raise Unavailable("the log does not answer", outcome="none")
        if seq >= len(self._worker.sim.store.durable(run)):
            self._worker.sim.findings.append("I17 the log was asked for what nobody has")

    async def reach(self, run: str, seq: int, level: str) -> Any:
        sim = self._worker.sim
        if await self._worker.at("ask the log", "reply") == "unavailable":
            raise Unavailable("the log does not answer", outcome="none")
        if seq >= len(sim.store.durable(run)):
            sim.findings.append("I17 the log was asked for what nobody has")
        await self._worker.at("answer of the log", "tool")
        return SimpleNamespace(root="ab" * 32, size=seq + 1)
