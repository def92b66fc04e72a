"""What a crash, a store that fails, or another process does to the log: whoever comes next goes on with the same tree."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.spans_sqlite import Spans
from mandamus.drivers.store_memory import MemoryStore
from mandamus.errors import ProofError, Unavailable
from mandamus.ports import Fed
from mandamus.proof.note import parse_checkpoint, parse_note
from mandamus.proof.tree import entries_path, tile_path
from mandamus.runtime.tlog import objects
from mandamus.runtime.tlog.joint import Joint
from mandamus.runtime.tlog.objects import CHECKPOINT, COSIGNED, PENDING, SIGNED
from mandamus.runtime.tlog.tiles import Edge
from mandamus.testing.power import Power, PowerCut
from tests.core.tlog_stand import CutStore, Notary, Stand


def all_cuts() -> int:
    """How many places a life of three rounds has."""

    async def count() -> int:
        stand = Stand()
        power = Power()
        await _life(stand, power, [])
        return len(power.trace)

    return asyncio.run(count())


async def _life(stand: Stand, power: Power, spans: list[Spans]) -> None:
    """Three rounds on one process, across the borders of tiles."""
    tlog = stand.process(store=CutStore(stand.store, power), spans=spans[0] if spans else None)
    for many in (3, 250, 9):
        await stand.writer.write("01RUNA", many)
        await stand.writer.write("01RUNB", 2)
        await tlog.catch_up()


async def _recovered(stand: Stand, notary: Notary, spans: Spans) -> None:
    """The next process goes on; the log is the whole ledger in the feed's order, and holds everything that was ever signed."""
    tlog = stand.process(spans=spans)
    await tlog.check()
    await stand.writer.write("01RUNB", 1)
    size = await tlog.catch_up()
    assert size == stand.writer.tree.size
    for old, root in notary.roots.items():
        assert stand.writer.tree.root(old) == root, f"what was signed at size {old} is no beginning of the log"
    pending, signed = await objects.sizes(stand.store, PENDING), await objects.sizes(stand.store, SIGNED)
    assert set(signed) <= set(pending)
    assert [raw async for _, raw in tlog.reader.records(0, size)] == [f.raw async for f in stand.ledger.feed()]
    assert parse_checkpoint(parse_note(stand.store.objects[CHECKPOINT]).text).size == size


@pytest.mark.parametrize("keeps_index", [False, True])
def test_the_power_goes_at_every_write_and_the_next_process_goes_on(keeps_index: bool) -> None:
    """A crash at any step leaves nothing that was signed and is not a beginning of the log; no record is lost or doubled."""

    async def play(cut: int) -> None:
        stand = Stand()
        notary, spans = Notary(stand), Spans.open(None)
        with pytest.raises(PowerCut):
            await _life(stand, Power((cut,)), [spans])
        await _recovered(stand, notary, spans if keeps_index else Spans.open(None))

    cuts = all_cuts()
    assert cuts > 30
    for cut in range(cuts):
        asyncio.run(play(cut))


@pytest.mark.parametrize("seed", range(20))
def test_the_power_goes_again_and_again(seed: int) -> None:
    async def play() -> None:
        rng, stand = random.Random(seed), Stand()
        notary, spans = Notary(stand), Spans.open(None)
        for _ in range(12):
            store = CutStore(stand.store, Power((rng.randrange(14),)))
            tlog = stand.process(store=store, spans=spans if rng.random() < 0.7 else Spans.open(None))
            try:
                for _ in range(4):
                    await stand.writer.some(rng, rng.randint(1, 60))
                    await tlog.catch_up()
            except PowerCut:
                pass
        await _recovered(stand, notary, spans)

    asyncio.run(play())


@pytest.mark.parametrize("seed", range(10))
def test_two_processes_on_one_ledger_and_one_store_write_one_log(seed: int) -> None:
    """Safety never rests on who holds the duty: both write the same bytes, and whoever is behind goes on from the other's tree."""

    async def play() -> None:
        rng, stand = random.Random(seed), Stand()
        notary = Notary(stand)

        class Slow(MemoryStore):
            async def put_new(self, path: str, raw: bytes) -> bool:
                await asyncio.sleep(rng.random() / 500)
                return await super().put_new(path, raw)

        shared = Spans.open(None)
        logs = [stand.process(store=Slow(stand.store), spans=shared if seed % 2 else None) for _ in range(3)]

        async def work(n: int) -> None:
            for _ in range(12):
                await asyncio.sleep(rng.random() / 300)
                await logs[n].catch_up()

        async def write() -> None:
            for _ in range(60):
                await stand.writer.some(rng, 8)
                await asyncio.sleep(rng.random() / 1000)

        await asyncio.gather(write(), *(work(n) for n in range(3)))
        await _recovered(stand, notary, Spans.open(None))

    asyncio.run(play())


def test_a_store_that_does_not_answer_stops_no_run_and_is_gone_on_with() -> None:
    async def play() -> None:
        stand = Stand()
        said: list[str] = []

        class Away(MemoryStore):
            silent = False

            async def put_new(self, path: str, raw: bytes) -> bool:
                if self.silent:
                    raise Unavailable("no answer", outcome="unknown", code="MDM-0918")
                return await super().put_new(path, raw)

        store = Away(stand.store)
        tlog = stand.process(store=store, warn=said.append, within_s=0.01)
        await tlog.begin()
        await stand.writer.write("01RUNA", 300)
        store.silent = True
        while not said:
            await asyncio.sleep(0.05)
        assert "goes on when it does" in said[0]
        await stand.writer.write("01RUNA", 3)
        store.silent = False
        await tlog.reach("01RUNA", 302, "sealed")
        await tlog.close()
        assert len(said) == 1

    asyncio.run(play())


def test_what_the_ledger_took_is_signed_when_the_process_ends() -> None:
    async def play() -> None:
        stand = Stand()
        tlog = stand.process()
        await tlog.begin()
        await stand.writer.write("01RUNA", 3)
        assert await tlog.lag() == 3
        await tlog.close()
        await tlog.close()
        assert await objects.sizes(stand.store, SIGNED) == [3]
        assert await objects.sizes(stand.store, COSIGNED) == []
        assert await stand.process().lag() == 0

    asyncio.run(play())


def test_a_pending_row_that_is_not_the_tree_of_the_tiles_is_never_signed() -> None:
    import msgspec

    async def play() -> None:
        stand = Stand()
        await stand.writer.write("01RUNA", 3)
        tlog = stand.process(store=CutStore(stand.store, Power((5,))))  # two objects of two places each, and then the row
        with pytest.raises(PowerCut):
            await tlog.catch_up()
        path = objects.name(PENDING, 3)
        assert path in stand.store.objects
        assert objects.name(SIGNED, 3) not in stand.store.objects
        row = objects.unpack(stand.store.objects[path], objects.Pending, path, "mandamus.local/suite")
        stand.store.objects[path] = objects.pack(msgspec.structs.replace(row, root="ab" * 32))
        notary = Notary(stand)
        with pytest.raises(ProofError, match="MDM-0932"):
            await stand.process().catch_up()
        assert notary.roots == {}

    asyncio.run(play())


class Asked(MemoryLedger):
    """Keeps from where its feed was asked for."""

    asked: list[str]

    def feed(self, after: str = "", limit: int | None = None) -> AsyncIterator[Fed]:
        self.asked = [*getattr(self, "asked", []), after]
        return super().feed(after, limit)


def test_the_next_process_reads_only_what_is_new() -> None:
    async def play() -> None:
        ledger = Asked()
        stand = Stand(ledger=ledger)
        for _ in range(3):
            await stand.writer.write("01RUNA", 50)
            await stand.writer.write("01RUNB", 50)
            await stand.process().catch_up()
        ledger.asked = []
        later = stand.process()
        await later.check()
        await stand.writer.write("01RUNA", 1)
        await later.catch_up()
        assert "" not in ledger.asked, "the whole feed is read only where it does not fit"

    asyncio.run(play())


@pytest.mark.parametrize("nth", range(12))
def test_a_write_that_failed_is_done_again_by_the_same_process(nth: int) -> None:
    """Nothing that was in memory is believed after a fault: what is stored is read anew."""

    async def play() -> None:
        stand = Stand()
        notary = Notary(stand)

        class Fails(MemoryStore):
            left = nth

            async def put_new(self, path: str, raw: bytes) -> bool:
                self.left -= 1
                if self.left == -1:
                    raise Unavailable("no answer", outcome="unknown", code="MDM-0918")
                return await super().put_new(path, raw)

        tlog = stand.process(store=Fails(stand.store))
        await stand.writer.write("01RUNA", 10)
        failed = 0
        for many in (700, 3):
            await stand.writer.write("01RUNA", many)
            try:
                await tlog.catch_up()
            except Unavailable:
                failed += 1
        await tlog.catch_up()
        assert failed == 1
        await _recovered(stand, notary, Spans.open(None))

    asyncio.run(play())


def test_growing_objects_that_are_gone_are_read_from_the_full_ones() -> None:
    """C2SP tlog-tiles: a partial tile may be deleted once the full one stands, also when nothing of that size is announced yet."""

    async def play() -> None:
        stand = Stand()
        await stand.writer.write("01RUNA", 200)
        await stand.process().catch_up()
        await stand.writer.write("01RUNA", 100)
        for path, raw in Edge().extend([f.raw async for f in stand.ledger.feed()]):
            stand.store.objects[path] = raw  # a process that died before it announced them
        for path in (tile_path(0, 0, 200), entries_path(0, 200)):
            del stand.store.objects[path]
        await _recovered(stand, Notary(stand), Spans.open(None))

    asyncio.run(play())


def test_rounds_never_overlap_and_each_caller_gets_one_that_began_later() -> None:
    async def play() -> None:
        under_way, began, rng = 0, 0, random.Random(1)

        async def work() -> int:
            nonlocal under_way, began
            assert under_way == 0
            under_way, began = 1, began + 1
            mine = began
            await asyncio.sleep(rng.random() / 200)
            under_way = 0
            return mine

        shared = Joint(work)

        async def caller() -> None:
            for _ in range(10):
                await asyncio.sleep(rng.random() / 200)
                before = began
                assert await shared() > before

        leaver = asyncio.create_task(shared())
        await asyncio.sleep(0)
        leaver.cancel()
        await asyncio.gather(*(caller() for _ in range(20)))
        assert began < 150, "callers share rounds"

    asyncio.run(play())
