"""What a crash, an old backup, a second writer or a changed object does to the log: it goes on with its tree, or stops and says why."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.spans_sqlite import Spans
from mandamus.drivers.store_memory import MemoryStore
from mandamus.errors import MandamusError, ProofError, Unavailable
from mandamus.proof.note import parse_checkpoint, parse_note
from mandamus.proof.tree import entries_path, tile_path
from mandamus.runtime.tlog import objects
from mandamus.runtime.tlog.objects import CHECKPOINT, COSIGNED, PENDING, SIGNED
from mandamus.runtime.tlog.reader import Reader
from mandamus.testing.power import Power, PowerCut
from tests.core.tlog_stand import Stand, key


class CutStore:
    """A store on a power switch: the process is gone before a write, or after it before anybody hears of it. Reading goes on."""

    def __init__(self, inner: MemoryStore, power: Power) -> None:
        self.inner, self.power = inner, power
        self.signed: list[tuple[int, bytes]] = []  # whatever left the key, also what was never stored

    async def get(self, path: str) -> bytes | None:
        return await self.inner.get(path)

    def list(self, prefix: str = "") -> AsyncIterator[str]:
        return self.inner.list(prefix)

    async def put_new(self, path: str, raw: bytes) -> bool:
        self.power.place(f"before {path}")
        done = await self.inner.put_new(path, raw)
        self.power.place(f"after {path}")
        return done

    async def put(self, path: str, raw: bytes) -> None:
        self.power.place(f"before {path}")
        await self.inner.put(path, raw)
        self.power.place(f"after {path}")

    async def delete(self, path: str) -> None:
        self.power.place(f"before {path}")
        await self.inner.delete(path)
        self.power.place(f"after {path}")

    async def close(self) -> None:
        return None


class Notary:
    """Wraps the log's key: keeps every checkpoint that was ever signed, stored or not. No two of one size may differ."""

    def __init__(self, stand: Stand) -> None:
        self.roots: dict[int, bytes] = {}
        inner = stand.signer.sign

        def sign(message: bytes) -> bytes:
            point = parse_checkpoint(message.decode())
            assert self.roots.setdefault(point.size, point.root) == point.root, "two roots of one size were signed"
            return inner(message)

        stand.signer.sign = sign  # type: ignore[method-assign]


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


# -- evidence that does not fit ----------------------------------------------------------------------------------------------------
async def _signed(rounds: int = 3) -> Stand:
    stand = Stand()
    tlog = stand.process()
    for _ in range(rounds):
        await stand.writer.write("log" if "log" not in stand.writer.chains else "01RUNA", 40)
        await stand.writer.write("01RUNB", 60)
        await tlog.catch_up()
    return stand


async def _older(stand: Stand, keep: int) -> MemoryLedger:
    """An old backup: each chain cut to its first `keep` records."""
    old = MemoryLedger()
    for run, was in stand.ledger._store.records.items():
        await old.append(run, None, was[:keep])
    return old


def test_an_old_backup_of_the_ledger_is_refused_and_the_gap_named() -> None:
    async def play() -> None:
        stand = await _signed()
        old = await _older(stand, 50)
        tlog = stand.process(ledger=old)
        for ask in (tlog.check, tlog.catch_up):
            with pytest.raises(ProofError, match="MDM-0934") as refused:
                await ask()
            assert refused.value.diagnosis.where == "run 01RUNA"
            assert (refused.value.diagnosis.expected, refused.value.diagnosis.found) == ("event 79 or later", "event 49")
        before = dict(stand.store.objects)
        run = "01RUNB"
        await old.append(run, await old.head(run), _other(stand, run))
        with pytest.raises(ProofError, match="MDM-0934"):
            await stand.process(ledger=old).catch_up()
        assert stand.store.objects == before, "nothing was written"

    asyncio.run(play())


def _other(stand: Stand, run: str) -> list[bytes]:
    """What a restored ledger writes where another record once stood."""
    from mandamus.core.records import decode, event_hash
    from mandamus.core.seal import Position
    from mandamus.testing.conformance.chains import Chain

    raw = stand.ledger._store.records[run][49]
    chain = Chain(run, stand.writer.chains[run].first)
    chain.at = Position(run, 49, event_hash(raw), decode(raw).epoch)
    return [x.raw for x in chain.next()]


def test_a_run_that_the_ledger_lost_is_named_too() -> None:
    async def play() -> None:
        stand = await _signed()
        lost = MemoryLedger()
        for run in ("log", "01RUNA"):
            await lost.append(run, None, stand.ledger._store.records[run])
        with pytest.raises(ProofError, match="MDM-0934") as refused:
            await stand.process(ledger=lost).check()
        assert "01RUNB" in refused.value.diagnosis.where
        assert refused.value.diagnosis.found == "nothing"

    asyncio.run(play())


@pytest.mark.parametrize("taken", ["pending and signed", "signed checkpoint shown", "index"])
def test_an_old_backup_of_the_store_is_refused(taken: str) -> None:
    """Smaller than what was signed: with whatever is left that knows, nothing is signed again."""

    async def play() -> None:
        stand = Stand()
        spans = Spans.open(None)
        tlog = stand.process(spans=spans)
        old: dict[str, bytes] = {}
        for n in range(3):
            await stand.writer.write("01RUNA", 40)
            await tlog.catch_up()
            if n == 1:
                old = dict(stand.store.objects)
        new = dict(stand.store.objects)
        stand.store.objects.clear()
        stand.store.objects.update(old)
        if taken == "pending and signed":
            stand.store.objects[objects.name(SIGNED, 120)] = new[objects.name(SIGNED, 120)]
        elif taken == "signed checkpoint shown":
            stand.store.objects[CHECKPOINT] = new[CHECKPOINT]
        kept = spans if taken == "index" else Spans.open(None)
        with pytest.raises(ProofError, match="MDM-0931") as refused:
            await stand.process(spans=kept).catch_up()
        assert refused.value.diagnosis.expected.startswith("size 120")
        assert refused.value.diagnosis.found == "size 80"
        assert "80 to 119" in refused.value.diagnosis.why

    asyncio.run(play())


def test_two_ledgers_with_one_key_on_one_store_are_found() -> None:
    """Two processes with one log key: the second finds the first one's row, or its tiles, and signs nothing."""

    async def play(many: int) -> None:
        stand = Stand()
        notary = Notary(stand)
        other = Stand(store=stand.store)
        other.signer.sign = stand.signer.sign  # type: ignore[method-assign]
        mine, theirs = stand.process(), other.process()
        await stand.writer.write("01RUNA", 5)
        await mine.catch_up()
        await other.writer.write("01RUNB", many)
        with pytest.raises(ProofError, match=r"MDM-093[234]"):
            await theirs.catch_up()
        assert set(notary.roots) == {5}
        await stand.writer.write("01RUNA", 5)
        assert await mine.catch_up() == 10

    for many in (3, 5, 7, 300):
        asyncio.run(play(many))


@pytest.mark.parametrize("other_first", [False, True])
def test_two_ledgers_that_begin_at_the_same_moment_are_found(other_first: bool) -> None:
    """Both found an empty store. Whoever announces second meets the first one's row before it signs."""

    async def play(a: int, b: int) -> None:
        stand = Stand()
        notary = Notary(stand)
        other = Stand(store=stand.store)
        other.signer.sign = stand.signer.sign  # type: ignore[method-assign]
        pair = [stand.sequencer(), other.sequencer()]
        for one in pair:
            await one.open()
        await stand.writer.write("01RUNA", a)
        await other.writer.write("01RUNB", b)
        first, second = reversed(pair) if other_first else pair
        await first.advance()
        with pytest.raises(ProofError, match=r"MDM-093[234]"):
            await second.advance()
        assert len(notary.roots) == 1

    for a, b in ((3, 5), (5, 3), (4, 4), (300, 299), (2, 600)):
        asyncio.run(play(a, b))


@pytest.mark.parametrize(
    "path",
    [tile_path(0, 0), tile_path(1, 0, 1), entries_path(1, 44), tile_path(0, 1, 44), objects.name(PENDING, 300), objects.name(SIGNED, 300)],
)
@pytest.mark.parametrize("how", ["gone", "changed"])
def test_an_object_that_is_gone_or_changed_stops_the_log_and_is_named(path: str, how: str) -> None:
    async def play() -> None:
        stand = Stand()
        await stand.writer.write("01RUNA", 300)
        await stand.process().catch_up()
        raw = stand.store.objects[path]
        if how == "gone":
            del stand.store.objects[path]
        else:
            stand.store.objects[path] = raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:]
        await stand.writer.write("01RUNA", 1)
        if how == "gone" and path.startswith("signed/"):  # what can be made again from the rest may be missing
            assert await stand.process().catch_up() == 301
        else:
            with pytest.raises(ProofError, match=r"MDM-093[12]|MDM-090[01]"):
                await stand.process().catch_up()

    asyncio.run(play())


def test_what_is_foreign_and_lies_beyond_the_newest_row_is_named() -> None:
    """Tiles that differ from what would be written: somebody else writes here."""

    async def play() -> None:
        stand = Stand()
        await stand.writer.write("01RUNA", 5)
        tlog = stand.process()
        await tlog.catch_up()
        stand.store.objects[tile_path(0, 0, 7)] = b"x" * 32 * 7
        await stand.writer.write("01RUNA", 2)
        with pytest.raises(ProofError, match="MDM-0933") as refused:
            await tlog.catch_up()
        assert refused.value.diagnosis.where == tile_path(0, 0, 7)

    asyncio.run(play())


def test_the_store_of_another_log_is_not_written_to() -> None:
    async def play() -> None:
        stand = Stand()
        await stand.writer.write("01RUNA", 5)
        await stand.process().catch_up()
        other = Stand(store=stand.store, signer=key("mandamus.local/other", 2))
        await other.writer.write("01RUNA", 5)
        with pytest.raises(MandamusError, match=r"MDM-093[12]"):
            await other.process().catch_up()
        seen = Reader(stand.store, "mandamus.local/other")
        with pytest.raises(ProofError, match="another log"):
            objects.unpack(stand.store.objects[objects.name(PENDING, 5)], objects.Pending, "pending/5", seen.origin)

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
