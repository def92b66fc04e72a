"""The tenant log: every record of a ledger is a leaf, in tiles that any client of C2SP tlog-tiles can read."""

from __future__ import annotations

import asyncio
import random

import pytest

from mandamus.drivers.spans_sqlite import Spans
from mandamus.errors import Misuse, ProofError
from mandamus.proof import tlogproof
from mandamus.proof.note import check
from mandamus.proof.tree import entries_path, leaf_hash, tile_path, verify_consistency, verify_inclusion
from mandamus.runtime.tlog import objects
from mandamus.runtime.tlog.objects import PENDING, SIGNED
from mandamus.runtime.tlog.reader import Reader
from mandamus.runtime.tlog.tiles import bundle, unbundle
from tests.core.tlog_stand import ORIGIN, Stand


async def grown(seed: int, rounds: int = 6, appends: int = 40) -> Stand:
    stand, rng = Stand(), random.Random(seed)
    sequencer = stand.sequencer()
    for _ in range(rounds):
        await stand.writer.some(rng, rng.randint(0, appends))
        await sequencer.advance()
    return stand


@pytest.mark.parametrize("seed", range(8))
def test_every_record_is_a_leaf_in_the_order_of_the_feed(seed: int) -> None:
    async def play() -> None:
        stand = await grown(seed)
        reader, tree = Reader(stand.store, ORIGIN), stand.writer.tree
        found = [raw async for _, raw in reader.records(0, tree.size)]
        fed = [f.raw async for f in stand.ledger.feed()]
        assert found == fed
        assert await reader.root(tree.size) == tree.root()

    asyncio.run(play())


def test_each_stored_tile_is_the_one_of_a_tree_in_memory() -> None:
    async def play() -> None:
        stand = await grown(3, rounds=12, appends=300)
        size = stand.writer.tree.size
        assert size > 2 * 256
        for path, raw in stand.store.objects.items():
            if path.startswith("tile/") and "entries" not in path and ".p/" not in path:
                _, level, rest = path.split("/", 2)
                index = int(rest.replace("x", "").replace("/", ""))
                assert raw == stand.writer.tree.tile(int(level), index)[: len(raw)]
        assert len(stand.store.objects[tile_path(0, 0)]) == 8192
        assert unbundle(stand.store.objects[entries_path(0)]) == [f.raw async for f in stand.ledger.feed("", 256)]

    asyncio.run(play())


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 511, 512, 513, 65535, 65536, 65537])
def test_the_growing_edge_is_loaded_again_at_every_kind_of_size(size: int) -> None:
    """Also where a level has just become full, and its growing tile is empty."""
    from mandamus.proof.tree import Tree
    from mandamus.runtime.tlog.tiles import Edge

    async def play() -> None:
        store, edge, tree = Stand().store, Edge(), Tree()
        records = [i.to_bytes(4, "big") for i in range(size)]
        for path, raw in edge.extend(records) + edge.partial():
            store.objects[path] = raw
        tree.extend([leaf_hash(r) for r in records])
        again = await Edge.load(store, size)
        assert again.root() == edge.root() == tree.root()
        assert again.partial() == []
        more = [b"x", *records[:300]]
        assert again.extend(more) == edge.extend(more)
        tree.extend([leaf_hash(r) for r in more])
        assert again.root() == tree.root()

    asyncio.run(play())


def test_a_checkpoint_is_announced_before_it_is_signed_and_signed_before_it_is_shown() -> None:
    """The order pending, stored, signed, published: each step stands before the next begins."""

    async def play() -> None:
        stand = Stand()
        put: list[str] = []
        inner_new, inner_put = stand.store.put_new, stand.store.put

        async def put_new(path: str, raw: bytes) -> bool:
            put.append(path)
            return await inner_new(path, raw)

        async def put_over(path: str, raw: bytes) -> None:
            put.append(path)
            await inner_put(path, raw)

        stand.store.put_new, stand.store.put = put_new, put_over  # type: ignore[method-assign]
        await stand.writer.write("01RUN", 300)
        tlog = stand.process()
        await tlog.catch_up()
        order = [path.split("/")[0] for path in put]
        assert order == ["tile"] * 5 + ["pending", "signed", "checkpoint"]
        assert set(put[:2]) == {entries_path(0), tile_path(0, 0)}

    asyncio.run(play())


def test_the_checkpoint_is_three_lines_signed_by_the_log_key() -> None:
    async def play() -> None:
        stand = Stand()
        await stand.writer.write("01RUN", 3)
        tlog = stand.process()
        assert await tlog.catch_up() == 3
        seen = check(stand.store.objects["checkpoint"], stand.trust, ORIGIN)
        assert (seen.checkpoint.size, seen.checkpoint.root) == (3, stand.writer.tree.root())
        assert stand.store.objects["checkpoint"].split(b"\n\n")[0].count(b"\n") == 2

    asyncio.run(play())


@pytest.mark.parametrize("seed", range(4))
def test_every_record_has_a_proof_and_every_size_contains_every_earlier_one(seed: int) -> None:
    async def play() -> None:
        stand = await grown(seed)
        tlog, tree = stand.process(), stand.writer.tree
        await tlog.catch_up()
        shown = await tlog.checkpoint()
        assert shown is not None
        fed = [f async for f in stand.ledger.feed()]
        for f in fed:
            proof = tlogproof.parse(await tlog.prove(f.run, f.seq))
            assert stand.writer.leaves[proof.index] == (f.run, f.seq)
            assert verify_inclusion(leaf_hash(f.raw), proof.index, tree.size, proof.path, tree.root())
            assert proof.note == shown.note
        known = await objects.sizes(stand.store, SIGNED)
        for old in known:
            for new in known:
                if old <= new:
                    proof_of = await tlog.consistency(old, new)
                    assert verify_consistency(old, new, tree.root(old), tree.root(new), proof_of)
            assert await tlog.extends(old, tree.root(old))
            assert not await tlog.extends(old, bytes(32))
        assert not await tlog.extends(tree.size + 1, tree.root())

    asyncio.run(play())


def test_a_record_that_is_not_there_is_asked_for_in_vain() -> None:
    async def play() -> None:
        stand = Stand()
        await stand.writer.write("01RUN", 3)
        tlog = stand.process()
        with pytest.raises(Misuse, match="MDM-0250"):
            await tlog.prove("01RUN", 3)
        with pytest.raises(Misuse, match="MDM-0937"):
            await tlog.consistency(3, 2)

    asyncio.run(play())


def test_many_who_wait_share_one_checkpoint() -> None:
    """Group commit: whoever waits while a round is under way shares the next one."""

    async def play() -> None:
        stand = Stand()
        tlog = stand.process()
        for n in range(200):
            await stand.writer.write(f"01RUN{n}", 2)
        reached = await asyncio.gather(*(tlog.reach(f"01RUN{n}", 1, "sealed") for n in range(200)))
        assert {r.size for r in reached} == {400}
        assert len(await objects.sizes(stand.store, PENDING)) == 1

    asyncio.run(play())


def test_a_level_is_told_only_when_its_checkpoint_is_stored() -> None:
    async def play() -> None:
        stand = Stand()
        await stand.writer.write("01RUN", 2)
        tlog = stand.process()
        reached = await tlog.reach("01RUN", 1, "sealed")
        stored = stand.store.objects[objects.name(SIGNED, reached.size)]
        assert check(stored, stand.trust, ORIGIN).checkpoint.root.hex() == reached.root
        assert objects.name(objects.KEPT, reached.size) in stand.store.objects, "a record will name it: it is never thinned out"

    asyncio.run(play())


def test_nobody_witnesses_where_no_quorum_is_named() -> None:
    """No silent default quorum: the level cannot be had, and what is missing is said."""
    from mandamus.errors import Unavailable

    async def play() -> None:
        stand = Stand()
        await stand.writer.write("01RUN", 2)
        tlog = stand.process()
        assert tlog.offers("sealed") == ""
        assert "quorum" in tlog.offers("witnessed")
        with pytest.raises(Unavailable, match="MDM-0939"):
            await tlog.reach("01RUN", 1, "witnessed")
        anchor = await tlog.anchor()
        assert (anchor.size, anchor.root) == (0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")

    asyncio.run(play())


def test_the_index_of_leaves_is_thrown_away_and_read_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    async def play() -> None:
        stand = await grown(5)
        one = stand.process()
        await one.catch_up()
        path = tmp_path_factory.mktemp("spans") / "index.db"
        path.write_bytes(b"no database at all, but long enough to look like one" * 40)
        two = stand.process(spans=Spans.open(path))
        await two.catch_up()
        for run, seq in stand.writer.leaves:
            assert one.spans.leaf(run, seq) == two.spans.leaf(run, seq) == stand.writer.leaves.index((run, seq))
            assert two.spans.next(run, stand.writer.tree.size) == max(s for r, s in stand.writer.leaves if r == run) + 1
        await two.close()

    asyncio.run(play())


def test_a_bundle_of_records_is_read_back_or_refused() -> None:
    records = [b"", b"x", b"y" * 65_535]
    assert unbundle(bundle(records)) == records
    for cut in (1, 2, 4, 100):
        with pytest.raises(ProofError, match="MDM-0932"):
            unbundle(bundle([b"z" * 300])[:-cut])


def test_a_ledger_that_was_copied_goes_on_with_the_same_log() -> None:
    """It feeds the same records in another order: those that are leaves already are passed over, and no leaf is lost or doubled."""

    async def play() -> None:
        from mandamus.drivers.ledger_memory import MemoryLedger

        stand = await grown(7)
        await stand.sequencer().advance()
        size, root = stand.writer.tree.size, stand.writer.tree.root()
        copy = MemoryLedger()
        for run in sorted(stand.writer.chains):
            await copy.append(run, None, [raw async for raw in stand.ledger.read(run)])
        run = next(iter(stand.writer.chains))
        more = [x.raw for x in stand.writer.chains[run].next()]
        head = await copy.head(run)
        await copy.append(run, head, more)
        again = stand.process(ledger=copy)
        assert await again.catch_up() == size + 1
        assert await again.extends(size, root)
        third = stand.process(ledger=copy)
        await third.check()
        assert await third.catch_up() == size + 1

    asyncio.run(play())


def test_old_checkpoints_are_thinned_and_those_that_a_record_names_stay() -> None:
    """All of the newest 64, then one an hour, after a week one a day; what is left still proves everything."""
    from mandamus.runtime.tlog import compact

    async def play() -> None:
        stand = Stand()
        tlog = stand.process()
        reached: list[int] = []
        for n in range(300):
            await stand.writer.write("01RUNA", 3)
            stand.now += 600_000_000 if n % 50 else 3 * compact.DAY
            await tlog.catch_up()
            if n in (10, 11, 12, 13, 14):
                reached.append((await tlog.reach("01RUNA", 3 * n, "sealed")).size)
        await compact.tidy(stand.store, [], stand.now)
        left = await objects.sizes(stand.store, SIGNED)
        assert left[-64:] == [3 * n for n in range(237, 301)]
        assert left == await objects.sizes(stand.store, PENDING)
        assert 64 < len(left) < 150
        assert set(reached) <= set(left), "a record names them, also several of one hour"
        later = stand.process()
        await stand.writer.write("01RUNA", 3)
        await later.catch_up()
        assert await later.extends(left[0], stand.writer.tree.root(left[0]))

    asyncio.run(play())


def test_growing_tiles_go_when_the_full_one_stands() -> None:
    async def play() -> None:
        stand = Stand()
        tlog = stand.process()
        for _ in range(70):
            await stand.writer.write("01RUNA", 9)
            await tlog.catch_up()
        growing = [p for p in stand.store.objects if p.startswith((tile_path(0, 0) + ".p/", entries_path(0) + ".p/"))]
        assert growing == [], "the sequencer tidies up now and then"
        assert any(".p/" in p for p in stand.store.objects)
        assert [raw async for _, raw in tlog.reader.records(0, 630)] == [f.raw async for f in stand.ledger.feed()]

    asyncio.run(play())
