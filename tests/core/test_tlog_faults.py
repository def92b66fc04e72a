"""What an old backup, a second writer or a changed object does to the log: it stops, signs nothing, and says which and why."""

from __future__ import annotations

import asyncio

import pytest

from mandamus.core.records import event_hash
from mandamus.core.seal import Position
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.spans_sqlite import Spans
from mandamus.errors import MandamusError, ProofError
from mandamus.proof.tree import entries_path, tile_path
from mandamus.runtime.tlog import objects
from mandamus.runtime.tlog.objects import CHECKPOINT, PENDING, SIGNED
from mandamus.runtime.tlog.reader import Reader
from mandamus.testing.conformance.chains import Chain, replied
from tests.core.tlog_stand import Notary, Stand, key


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
    return [x.raw for x in chain.next(replied())]


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


def test_a_row_of_another_tree_at_the_size_that_is_announced_stops_it() -> None:
    """unique(origin, size): whoever finds another root there signs nothing."""
    import msgspec

    async def play() -> None:
        stand = Stand()
        notary = Notary(stand)
        await stand.writer.write("01RUNA", 3)
        tlog = stand.process()
        await tlog.catch_up()
        row = objects.unpack(stand.store.objects[objects.name(PENDING, 3)], objects.Pending, "pending", tlog.origin)
        foreign = msgspec.structs.replace(row, size=5, root="ab" * 32)
        stand.store.objects[objects.name(PENDING, 5)] = objects.pack(foreign)
        await stand.writer.write("01RUNA", 2)
        with pytest.raises(ProofError, match="MDM-0933") as refused:
            await tlog.catch_up()
        assert refused.value.diagnosis.where == objects.name(PENDING, 5)
        assert set(notary.roots) == {3}

    asyncio.run(play())


def test_a_ledger_of_the_same_length_with_another_record_is_refused() -> None:
    async def play() -> None:
        stand = await _signed(1)
        other = MemoryLedger()
        for run, was in stand.ledger._store.records.items():
            await other.append(run, None, was[:50])
        await other.append("01RUNB", await other.head("01RUNB"), _other(stand, "01RUNB"))
        for _ in range(9):
            raw = other._store.records["01RUNB"][-1]
            chain = Chain("01RUNB", stand.writer.chains["01RUNB"].first)
            chain.at = Position("01RUNB", len(other._store.records["01RUNB"]) - 1, event_hash(raw), 1)
            await other.append("01RUNB", await other.head("01RUNB"), [x.raw for x in chain.next()])
        with pytest.raises(ProofError, match="MDM-0934") as refused:
            await stand.process(ledger=other).check()
        assert "run 01RUNB (event 50)" in refused.value.diagnosis.where

    asyncio.run(play())
