"""The feed of the ledger port: every record once, in an order that never changes, for the log that all of them are leaves of."""

from __future__ import annotations

import asyncio
import random

from mandamus.core.records import LOG, decode
from mandamus.errors import Conflict, Misuse, ProofError
from mandamus.ports import Fed, Head, Ledger, Wake
from mandamus.testing.conformance.chains import Chain, log_opened, turn
from mandamus.testing.conformance.suite import PAST, POOL, TTL, Suite, expect, gather, put


class FeedCases(Suite):
    async def test_the_feed_gives_every_record_once_and_each_run_in_order(self, ledger: Ledger) -> None:
        chains = [Chain(LOG, log_opened()), *(Chain(f"run-{i}") for i in range(4))]
        heads = [await put(ledger, None, chain.genesis()) for chain in chains]
        for _ in range(3):
            heads = [await put(ledger, head, chain.next(turn(), turn(), note="n")) for head, chain in zip(heads, chains)]
        fed = await gather(ledger.feed())
        assert len(fed) == 5 * 7
        await self._whole(ledger, fed)

    async def test_the_feed_is_the_same_for_every_handle_and_every_time(self, ledger: Ledger) -> None:
        chain, other = Chain("run-1"), Chain("run-2")
        head = await put(ledger, None, chain.genesis(input="i"))
        await put(ledger, None, other.genesis())
        head = await put(ledger, head, chain.next(turn(), turn()))
        fed = await gather(ledger.feed())
        assert await gather((await self.another()).feed()) == fed
        await put(ledger, head, chain.next())
        again = await gather((await self.another()).feed())
        assert (again[:-1], again[-1].seq) == (fed, 3)
        assert len({one.cursor for one in again}) == len(again)

    async def test_a_cursor_goes_on_behind_its_record(self, ledger: Ledger) -> None:
        chain, other = Chain("run-1"), Chain("run-2")
        head = await put(ledger, None, chain.genesis())
        await put(ledger, None, other.genesis())
        await put(ledger, head, chain.next(*[turn()] * 5))
        fed = await gather(ledger.feed())
        for at, one in enumerate(fed, 1):
            assert await gather(ledger.feed(one.cursor)) == fed[at:]
            assert await gather(ledger.feed(one.cursor, 2)) == fed[at : at + 2]
        for limit in (0, 1, 4, 8, 9):
            assert await gather(ledger.feed("", limit)) == fed[:limit]

    async def test_the_feed_ends_with_what_is_there(self, ledger: Ledger) -> None:
        assert await gather(ledger.feed()) == []
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(), wake=Wake(PAST, 0))
        (first,) = await gather(ledger.feed())
        assert await gather(ledger.feed(first.cursor)) == []
        await put(ledger, head, chain.next())
        (second,) = await gather(ledger.feed(first.cursor))
        assert (second.run, second.seq, decode(second.raw).seq) == ("run-1", 1, 1)

    async def test_only_what_is_stored_is_fed(self, ledger: Ledger) -> None:
        """Neither what a Conflict refused, nor wake-ups, leases and mail."""
        chain = Chain("run-1")
        first = await put(ledger, None, chain.genesis())
        fork = chain.fork()
        head = await put(ledger, first, chain.next(note="ours"))
        await expect(Conflict, put(ledger, first, fork.next(note="theirs")))
        head = await ledger.append("run-1", head, [], wake=Wake(PAST, 0))
        await ledger.send("run-1", b"hello")
        claimed = await ledger.claim(POOL, TTL, run="run-1")
        assert claimed is not None
        await ledger.renew(claimed, 0)
        fed = await gather(ledger.feed())
        assert len(fed) == 2
        await self._whole(ledger, fed)

    async def test_more_records_than_a_page_holds(self, ledger: Ledger) -> None:
        chain, other = Chain("run-1"), Chain("run-2")
        head = await put(ledger, None, chain.genesis())
        small = await put(ledger, None, other.genesis())
        for _ in range(4):
            head = await put(ledger, head, chain.next(*[turn()] * 200))
            small = await put(ledger, small, other.next())
        fed = await gather(ledger.feed())
        assert len(fed) == 806
        await self._whole(ledger, fed)
        pieces: list[Fed] = []
        while page := await gather(ledger.feed(pieces[-1].cursor if pieces else "", 97)):
            pieces += page
        assert pieces == fed

    async def test_a_reader_that_follows_many_writers_misses_nothing(self, ledger: Ledger) -> None:
        """What it read never changes: nothing is put between two records that were given out."""
        handles = [ledger, *[await self.another() for _ in range(3)]]
        reader, chance = await self.another(), random.Random(7)
        seen: list[Fed] = []

        async def write(number: int) -> None:
            chain, handle = Chain(f"run-{number:02}"), handles[number % len(handles)]
            head = await put(handle, None, chain.genesis())
            for _ in range(6):
                head = await put(handle, head, chain.next(*[turn()] * chance.randint(1, 4), note="n"))

        async def follow() -> None:
            seen.extend(await gather(reader.feed(seen[-1].cursor if seen else "", chance.randint(1, 40))))

        writers = asyncio.gather(*(write(number) for number in range(16)))
        while not writers.done():
            await follow()
            await asyncio.sleep(0)
        await writers
        while True:
            before = len(seen)
            await follow()
            if len(seen) == before:
                break
        assert seen == await gather(ledger.feed())
        await self._whole(ledger, seen)

    async def test_refuses_what_is_no_cursor(self, ledger: Ledger) -> None:
        head = await put(ledger, None, Chain("run-1").genesis())
        assert isinstance(head, Head)
        for wrong in ("x", "-1", "0", "1.1.1.1.1-" + "0" * 16, " ", "1-", "01-" + "0" * 16, "9" * 40 + "-" + "0" * 16):
            refused = await expect(Misuse, gather(ledger.feed(wrong)))
            assert refused.diagnosis.code == "MDM-0910"

    async def test_refuses_to_go_on_behind_a_record_that_is_not_there(self, ledger: Ledger) -> None:
        """An older backup, or another ledger: what was read from it is contradicted by what comes now."""
        chain = Chain("run-1")
        await put(ledger, await put(ledger, None, chain.genesis()), chain.next())
        fed = await gather(ledger.feed())
        for one in fed:
            place, _, mark = one.cursor.rpartition("-")
            first, *rest = place.split(".")
            other = f"{place}-{'0' if mark[0] != '0' else '1'}{mark[1:]}"
            later = ".".join((f"{int(first) + 1000}", *rest)) + f"-{mark}"
            for wrong in (other, later):
                lost = await expect(ProofError, gather(ledger.feed(wrong)))
                assert lost.diagnosis.code == "MDM-0911"

    async def _whole(self, ledger: Ledger, fed: list[Fed]) -> None:
        """As much as the runs hold, byte for byte, each run in its order."""
        runs = [head.run async for head in ledger.runs()]
        assert {one.run for one in fed} == set(runs)
        for run in runs:
            mine = [one for one in fed if one.run == run]
            assert [one.raw for one in mine] == await gather(ledger.read(run))
            assert [one.seq for one in mine] == list(range(len(mine)))
