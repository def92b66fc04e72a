"""Leases that run out by the clock, as on a server: who drives keeps them, who lost one writes nothing more, and none proves a death."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from mandamus import Absent, Ctx, Found, wiring
from mandamus.core import records as r
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.errors import Conflict, Misuse, Unavailable
from mandamus.runtime import lease
from mandamus.runtime.env import SystemTime
from mandamus.testing.power import StepTime
from tests.crash.stand import Around, Stand, agent_of, pay_tool

TTL_MS = 300


async def stand_of(*tools: Any, **more: Any) -> Stand:
    """A stand on a store with leases, and on the machine's clock: they run out while somebody waits."""
    time = SystemTime()
    return Stand(await wiring.bind(agent_of(*tools, **more)), time, MemoryLedger(time.now, leases=True))  # type: ignore[arg-type]


async def worker(stand: Stand, name: str, around: Any = None) -> Any:
    env = await stand.worker(name, around)
    env.lease_ms = TTL_MS
    return env


def test_a_run_that_is_driven_keeps_its_lease() -> None:
    async def story() -> None:
        seen: list[str] = []

        async def deed(ctx: Ctx) -> None:
            for _ in range(4):
                await asyncio.sleep(TTL_MS / 1000 * 0.6)
                with pytest.raises(Conflict):
                    await other.claim("default", 1_000, run=ctx.run_id)
                seen.append("held")

        stand = await stand_of(pay_tool(deed=deed))
        other = MemoryLedger(beside=stand.ledger)
        s = await stand.carry(await stand.open(await worker(stand, "one")))
        assert seen == ["held"] * 4
        assert s.run.end == "completed"
        head = await stand.ledger.head(s.run.id)
        assert head is not None
        assert (head.owner, head.lease_until) == ("", 0)

    asyncio.run(story())


def test_who_lost_the_lease_is_stopped_and_writes_nothing_more() -> None:
    """Its tool is cancelled where it stands; the next owner finds the intent, and asks."""

    async def story() -> None:
        told: list[str] = []

        async def deed(ctx: Ctx) -> None:
            stand.ledger._store.holders.clear()  # as if it had been paused for longer than its lease
            taken = await stand.ledger.claim("default", 60_000, run=ctx.run_id)
            assert taken is not None
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                told.append("cancelled")
                raise

        stand = await stand_of(pay_tool(deed=deed))
        s = await stand.open(await worker(stand, "one"))
        before = await stand.ledger.head(s.run.id)
        with pytest.raises(Conflict):
            await stand.carry(s)
        assert told == ["cancelled"]
        facts = await stand.facts(s.run.id)
        assert isinstance(facts[-1], r.ActionStarted)
        head = await stand.ledger.head(s.run.id)
        assert before is not None
        assert head is not None
        assert head.epoch == before.epoch
        assert head.owner != before.owner

    asyncio.run(story())


def test_a_store_that_does_not_answer_for_a_while_costs_no_lease() -> None:
    async def story() -> None:
        silent = Counter[str]()

        class Deaf(Around):
            async def renew(self, head: Any, ttl_ms: int) -> Any:
                silent["asked"] += 1
                if silent["asked"] == 1:
                    raise Unavailable("the store does not answer")
                return await self._inner.renew(head, ttl_ms)

        async def nothing(_: Any) -> None:
            pass

        async def deed(ctx: Ctx) -> None:
            await asyncio.sleep(TTL_MS / 1000)

        stand = await stand_of(pay_tool(deed=deed))
        s = await stand.carry(await stand.open(await worker(stand, "one", lambda inner: Deaf(inner, nothing))))
        assert s.run.end == "completed"
        assert silent["asked"] >= 2

    asyncio.run(story())


def test_a_process_that_slept_through_its_lease_asks_before_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        boot = 1000.0
        monkeypatch.setattr(lease, "_boot", lambda: boot)
        stand = await stand_of(pay_tool())
        s = await stand.open(await worker(stand, "one"))
        async with lease.kept(s):
            head = s.live
            await lease.fresh(s)
            assert s.live is head, "a fresh lease is not asked for"
            boot += TTL_MS / 1000 * 0.7
            await lease.fresh(s)
            assert s.live is not head
            stand.ledger._store.holders.clear()
            await lease.fresh(s)
            boot += 60.0
            with pytest.raises(Conflict):
                await lease.fresh(s)

    asyncio.run(story())


@pytest.mark.parametrize("locks", [True, False])
def test_absent_proves_nothing_while_the_earlier_owner_may_still_send(locks: bool) -> None:
    """On a file its lock proves that it is dead. A lease that ran out does not: people are asked, and nothing is sent again."""

    async def story() -> None:
        class Bank:
            """Sees nothing yet: the payment of the first worker is still under way."""

            async def find(self, operation_id: str) -> Any:
                return Absent("nothing of that number")

        sent: list[str] = []

        async def deed(ctx: Ctx) -> None:
            sent.append(ctx.operation_id)
            if len(sent) == 1:
                raise BaseException("the process is paused")

        time = StepTime(0)
        bound = await wiring.bind(agent_of(pay_tool("reconcilable", deed, reconcile=Bank())))
        stand = Stand(bound, time, MemoryLedger(time.now, leases=not locks))
        s = await stand.open(await stand.worker("one"))
        with pytest.raises(BaseException, match="paused"):
            await stand.carry(s)
        time.instant += 3_600_000_000
        stand.ledger._store.holders.clear()
        s = await stand.resume(s.run.id)
        for _ in range(12):
            if s.run.life != "running" or any(a.request for a in s.run.open_actions):
                break
            time.instant += 3_600_000_000
            s = await stand.resume(s.run.id)
        if locks:
            assert len(sent) == 2
            assert s.run.end == "completed"
        else:
            assert len(sent) == 1, "it may still land"
            assert any(isinstance(f, r.ActionEnded) and f.result == "unknown" for f in await stand.facts(s.run.id))

    asyncio.run(story())


def test_found_is_an_answer_whoever_may_still_send() -> None:
    async def story() -> None:
        class Bank:
            async def find(self, operation_id: str) -> Any:
                return Found({"id": "tx-1"})

        async def deed(ctx: Ctx) -> None:
            raise BaseException("the process is paused")

        time = StepTime(0)
        bound = await wiring.bind(agent_of(pay_tool("reconcilable", deed, reconcile=Bank())))
        stand = Stand(bound, time, MemoryLedger(time.now, leases=True))
        s = await stand.open(await stand.worker("one"))
        with pytest.raises(BaseException, match="paused"):
            await stand.carry(s)
        stand.ledger._store.holders.clear()
        s = await stand.resume(s.run.id)
        assert s.run.end == "completed"

    asyncio.run(story())


@pytest.mark.parametrize("said", ["soon", "999", "-1", "3600001", "１５０００"])
def test_a_lease_is_a_number_of_milliseconds(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANDAMUS_LEASE_MS", said)
    with pytest.raises(Misuse, match="MDM-0136"):
        lease.from_environment()
    monkeypatch.setenv("MANDAMUS_LEASE_MS", "2000")
    assert lease.from_environment() == 2000


def test_a_resend_that_meets_its_own_first_attempt_is_no_foreign_owner() -> None:
    """The answer was lost, the head still stood, the same bytes are sent again; meanwhile the first attempt came through."""

    async def story() -> None:
        late: list[Any] = []

        class Slow(Around):
            async def append(self, run: str, after: Any, records: Any, **more: Any) -> Any:
                if late == [] and any(isinstance(r.decode(raw).fact, r.ActionStarted) for raw in records):
                    late.append((run, after, records, more))
                    raise Unavailable("no answer", outcome="unknown")
                if len(late) == 1:
                    run_, after_, records_, more_ = late[0]
                    late.append("came through")
                    await self._inner.append(run_, after_, records_, **more_)
                return await self._inner.append(run, after, records, **more)

        async def nothing(_: Any) -> None:
            pass

        stand = await stand_of(pay_tool())
        s = await stand.carry(await stand.open(await worker(stand, "one", lambda inner: Slow(inner, nothing))))
        assert late[1] == "came through"
        assert s.run.end == "completed"
        assert len(await stand.facts(s.run.id, r.ActionStarted)) == 1

    asyncio.run(story())
