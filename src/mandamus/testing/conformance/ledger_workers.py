"""What workers ask of a ledger: pools and priorities, a duty that one of them holds, and who lives.

The rule a newcomer would break: none of this is evidence, and nothing here may change what a chain says.
"""

from __future__ import annotations

import asyncio

import msgspec

from mandamus.errors import Conflict, Misuse
from mandamus.ports import AT_REST, Ledger, Node, Wake
from mandamus.testing.conformance.chains import Chain
from mandamus.testing.conformance.suite import FUTURE, PAST, POOL, TTL, Suite, expect, gather, head_of, put


class WorkerCases(Suite):
    # -- pools and priorities --------------------------------------------------------------------------------------------------
    async def test_a_run_is_placed_where_its_wake_up_says(self, ledger: Ledger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(), wake=Wake(FUTURE, 0, pool="gpu", prio=3))
        assert (head.pool, head.prio) == ("gpu", 3)
        head = await put(ledger, head, chain.next(), wake=Wake(FUTURE, 0))
        assert (head.pool, head.prio) == ("gpu", 3), "without a word about it, it stays"
        head = await ledger.append("run-1", head, [], wake=Wake(FUTURE, 0, prio=-1))
        assert (head.pool, head.prio) == ("gpu", -1)
        head = await ledger.append("run-1", head, [], wake=Wake(FUTURE, 0, pool="cpu", prio=0))
        assert (head.pool, head.prio) == ("cpu", 0)
        assert await (await self.another()).head("run-1") == head
        plain = await put(ledger, None, Chain("run-2").genesis())
        assert (plain.pool, plain.prio) == (POOL, 0)

    async def test_a_claim_takes_from_its_pool_only(self, ledger: Ledger) -> None:
        for name, pool in (("run-1", "gpu"), ("run-2", POOL), ("run-3", "gpu")):
            await put(ledger, None, Chain(name).genesis(), wake=Wake(PAST, 0, pool=pool))
        taken = [await ledger.claim(POOL, TTL), await ledger.claim(POOL, TTL), await ledger.claim("none", TTL)]
        assert [head.run if head else None for head in taken] == ["run-2", None, None]
        rest = [await ledger.claim("gpu", TTL) for _ in range(3)]
        assert sorted(head.run for head in rest if head) == ["run-1", "run-3"]

    async def test_a_claim_by_name_asks_for_no_pool(self, ledger: Ledger) -> None:
        await put(ledger, None, Chain("run-1").genesis(), wake=Wake(FUTURE, 0, pool="gpu"))
        head = await ledger.claim(POOL, TTL, run="run-1")
        assert head is not None
        assert head.pool == "gpu"

    async def test_the_higher_priority_goes_first(self, ledger: Ledger) -> None:
        due = {"run-1": (0, PAST), "run-2": (5, PAST + 2), "run-3": (5, PAST + 1), "run-4": (9, FUTURE), "run-5": (-2, PAST)}
        for name, (prio, at) in due.items():
            await put(ledger, None, Chain(name).genesis(), wake=Wake(at, 0, prio=prio))
        taken = [await ledger.claim(POOL, TTL) for _ in range(5)]
        assert [head.run if head else None for head in taken] == ["run-3", "run-2", "run-1", "run-5", None]

    async def test_a_run_at_rest_is_claimed_by_name_only(self, ledger: Ledger) -> None:
        for n, state in enumerate((*AT_REST, "sealing")):
            await put(ledger, None, Chain(f"run-{n}").genesis(), wake=Wake(None if state in AT_REST else PAST, 0, state))
            await ledger.send(f"run-{n}", b"hello")
        taken = [await ledger.claim(POOL, TTL) for _ in range(2)]
        assert [head.run if head else None for head in taken] == ["run-4", None]
        named = await ledger.claim(POOL, TTL, run="run-0")
        assert named is not None

    async def test_many_workers_never_get_the_same_run(self, ledger: Ledger) -> None:
        handles = [ledger, *[await self.another() for _ in range(3)]]
        for i in range(12):
            await put(ledger, None, Chain(f"run-{i:02}").genesis(), wake=Wake(PAST + i, 0))
        taken = await asyncio.gather(*(handle.claim(POOL, TTL) for _ in range(4) for handle in handles))
        runs = [head.run for head in taken if head]
        assert sorted(runs) == [f"run-{i:02}" for i in range(12)]

    async def test_a_hint_ends_at_the_latest_with_its_time(self, ledger: Ledger) -> None:
        await asyncio.wait_for(ledger.hint(POOL, 50), 30)
        waiting = asyncio.create_task(ledger.hint(POOL, 20_000))
        await asyncio.sleep(0.05)
        await put(await self.another(), None, Chain("run-1").genesis(), wake=Wake(PAST, 0))
        await asyncio.wait_for(waiting, 30)
        assert (await head_of(ledger, "run-1")).wake_at == PAST

    # -- leases ----------------------------------------------------------------------------------------------------------------
    async def test_only_where_a_lock_proves_a_death_is_a_lease_no_matter(self, ledger: Ledger) -> None:
        """A lease that ran out frees the run, and its late owner cannot renew it; a lock is free when its holder is."""
        second = await self.another()
        await put(ledger, None, Chain("run-1").genesis(), wake=Wake(PAST, 0))
        head = await ledger.claim(POOL, 1_000)
        assert head is not None
        if ledger.locks:
            assert await second.claim(POOL, TTL) is None
            return
        for _ in range(100):
            taken = await second.claim(POOL, TTL)
            if taken is not None:
                break
            await asyncio.sleep(0.1)
        assert taken is not None
        assert (taken.run, taken.tries) == ("run-1", head.tries + 1)
        assert taken.owner != head.owner
        await expect(Conflict, ledger.renew(head, TTL))
        await expect(Conflict, ledger.renew(head, 0))
        assert (await head_of(ledger, "run-1")).owner == taken.owner

    # -- duties ----------------------------------------------------------------------------------------------------------------
    async def test_a_duty_is_held_by_one(self, ledger: Ledger) -> None:
        second = await self.another()
        first = await ledger.duty("sweeper", TTL)
        assert first is not None
        assert await second.duty("sweeper", TTL) is None
        assert await ledger.duty("sweeper", TTL) == first, "asking again renews it"
        assert await second.duty("archiver", TTL) is not None, "another duty is free"
        assert await second.duty("sweeper", 0) is None
        assert await ledger.duty("sweeper", TTL) == first, "nobody else can give it back"
        assert await ledger.duty("sweeper", 0) is None
        taken = await second.duty("sweeper", TTL)
        assert taken is not None
        assert taken > first, "each new holder has a higher epoch"
        assert await ledger.duty("sweeper", TTL) is None

    async def test_a_duty_that_was_left_behind_is_free_after_its_time(self, ledger: Ledger) -> None:
        second, first = await self.another(), await ledger.duty("sweeper", 1_000)
        assert first is not None
        for _ in range(100):
            taken = await second.duty("sweeper", TTL)
            if taken is not None:
                break
            await asyncio.sleep(0.1)
        assert taken is not None
        assert taken > first
        assert await ledger.duty("sweeper", TTL) is None

    async def test_a_duty_has_a_name(self, ledger: Ledger) -> None:
        for wrong in ("", "two words", "a.b", "x" * 65):
            await expect(Misuse, ledger.duty(wrong, TTL))

    # -- who lives -------------------------------------------------------------------------------------------------------------
    async def test_workers_are_known_while_they_are_heard_of(self, ledger: Ledger) -> None:
        second = await self.another()
        one = Node("worker-1", POOL, 4, 1, "0.1", ("d" * 64,))
        two = Node("worker-2", "gpu", 2, 0, "0.1", draining=True)
        await ledger.beat(two, TTL)
        await second.beat(one, TTL)
        await ledger.beat(one, TTL)
        known = await gather(second.nodes())
        assert all(node.seen > PAST for node in known)
        assert [msgspec.structs.replace(node, seen=0) for node in known] == [one, two]
        await ledger.beat(msgspec.structs.replace(one, busy=3), TTL)
        await ledger.beat(two, 0)
        assert [(node.id, node.busy) for node in await gather(second.nodes())] == [("worker-1", 3)]

    async def test_a_worker_that_is_not_heard_of_is_forgotten(self, ledger: Ledger) -> None:
        await ledger.beat(Node("worker-1", POOL, 1, 0, "0.1"), 1_000)
        for _ in range(100):
            if not await gather(ledger.nodes()):
                break
            await asyncio.sleep(0.1)
        assert await gather(ledger.nodes()) == []
