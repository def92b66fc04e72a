"""The content store: verified on read, mended from a replica, packed into segments that are read through and verified."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mandamus.drivers.store_folder import FolderStore
from mandamus.drivers.store_memory import MemoryStore
from mandamus.errors import Conflict, Misuse, ProofError, Refused, Unavailable
from mandamus.ports import Store
from mandamus.runtime.content.blobs import Blobs
from mandamus.runtime.content.compact import DAY_MS, HELD, compact
from mandamus.runtime.content.segments import build, read
from mandamus.runtime.content.shelf import SMALL, Shelf, places
from tests.servers.needs import needs

DAY = DAY_MS * 1000
PACKING = "backports" if sys.version_info < (3, 14) else "compression"
NOW = 1_700_000_000_000_000


def zstd() -> Any:
    from mandamus.drivers.pack_zstd import Zstd

    return Zstd()


def story(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **more: Any) -> None:
        needs(PACKING)
        asyncio.run(test(*args, **more))

    return run


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Away(MemoryStore):
    """A store that can be switched off."""

    away = False

    async def get(self, path: str) -> bytes | None:
        self._asked()
        return await super().get(path)

    async def put_new(self, path: str, data: bytes) -> bool:
        self._asked()
        return await super().put_new(path, data)

    def _asked(self) -> None:
        if self.away:
            raise Unavailable("a store does not answer", outcome="none", code="MDM-0918")


def three() -> tuple[list[Away], Blobs]:
    stores = [Away(), Away(), Away()]
    return stores, Blobs(*[Shelf(store, zstd()) for store in stores])


def spoil(store: MemoryStore, digest: str, data: bytes | None = b"other") -> None:
    for path in places(digest):
        if path in store.objects:
            if data is None:
                del store.objects[path]
            else:
                store.objects[path] = data


# -- one, and its replicas -----------------------------------------------------------------------------------------------------
@story
async def test_a_blob_is_named_by_what_it_is() -> None:
    stores, blobs = three()
    for data in (b"", b"x", b"y" * (SMALL + 1), bytes(range(256)) * 4096):
        kept = await blobs.put(data)
        assert (kept.digest, kept.missing) == (sha(data), ())
        found = await blobs.get(kept.digest)
        assert (found.data, found.wrong, found.absent, found.silent, found.repaired) == (data, (), (), (), ())
        assert await blobs.put(data) == kept
    assert all(len(store.objects) == 4 for store in stores)


@story
async def test_a_wrong_copy_is_never_read_and_is_mended() -> None:
    """The good replica repairs the others, and the answer says which."""
    stores, blobs = three()
    digest = (await blobs.put(b"the contract")).digest
    spoil(stores[0], digest)
    spoil(stores[1], digest, None)
    found = await blobs.get(digest)
    assert (found.data, found.wrong, found.absent, found.repaired) == (b"the contract", (0,), (1,), (0, 1))
    assert [sha(store.objects[places(digest)[1]]) for store in stores] == [digest] * 3
    assert (await blobs.get(digest)).repaired == ()


@story
async def test_a_wrong_hash_names_both_digests() -> None:
    stores, blobs = three()
    digest = (await blobs.put(b"the contract")).digest
    for store in stores:
        spoil(store, digest)
    with pytest.raises(ProofError) as broken:
        await blobs.get(digest)
    told = broken.value.diagnosis
    assert (told.code, told.expected, told.found) == ("MDM-0922", digest, sha(b"other"))


@story
async def test_a_blob_of_nobody_is_a_broken_proof_and_a_silent_store_is_none() -> None:
    """Missing everywhere is said only when everybody answered."""
    stores, blobs = three()
    with pytest.raises(ProofError) as missing:
        await blobs.get("0" * 64)
    assert missing.value.diagnosis.code == "MDM-0923"
    stores[2].away = True
    with pytest.raises(Unavailable):
        await blobs.get("0" * 64)
    for bad in ("", "0" * 63, "../" + "0" * 61, "A" * 64):
        with pytest.raises(Misuse):
            await blobs.get(bad)


@story
async def test_a_replica_that_is_away_is_named_and_filled_later() -> None:
    stores, blobs = three()
    stores[1].away = True
    kept = await blobs.put(b"x")
    assert kept.missing == (1,)
    spoil(stores[0], kept.digest)
    found = await blobs.get(kept.digest)
    assert (found.data, found.wrong, found.silent, found.repaired) == (b"x", (0,), (1,), (0,))
    stores[1].away = False
    assert (await blobs.mend(kept.digest)).repaired == (1,)
    assert (await blobs.mend(kept.digest)).repaired == ()
    stores[0].away = True
    with pytest.raises(Unavailable):
        await blobs.put(b"y")


@story
async def test_a_put_does_not_trust_what_stands_there() -> None:
    """Put if absent, but a copy that is damaged is no copy."""
    store = MemoryStore()
    blobs = Blobs(Shelf(store))
    store.objects[places(sha(b"x"))[1]] = b"planted"
    await blobs.put(b"x")
    assert (await blobs.get(sha(b"x"))).data == b"x"


# -- segments ------------------------------------------------------------------------------------------------------------------
def several(n: int, more: str = "") -> dict[str, bytes]:
    made = [f'{{"document":{k},"text":"{more}{"lorem ipsum " * (k % 40)}"}}'.encode() for k in range(n)]
    return {sha(data): data for data in made}


async def filled(store: Store, blobs: dict[str, bytes]) -> Shelf:
    shelf = Shelf(store, zstd())
    for digest, data in blobs.items():
        await shelf.put(digest, data)
    return shelf


async def holds(store: Store, blobs: dict[str, bytes]) -> None:
    fresh = Shelf(store, zstd())
    for digest, data in blobs.items():
        assert await fresh.get(digest) == data


@pytest.mark.parametrize("driver", [lambda _: MemoryStore(), FolderStore.open])
@story
async def test_small_blobs_are_packed_and_read_through(tmp_path: Path, driver: Callable[[Path], Store]) -> None:
    store, blobs, large = driver(tmp_path), several(200), b"z" * (SMALL + 1)
    shelf = await filled(store, blobs | {sha(large): large})
    done = await compact(shelf, [*blobs, sha(large)], NOW)
    assert (done.packed, done.marked, done.cleared, done.wrong) == (200, 0, (), ())
    assert len(done.written) == 1
    paths = [path async for path in store.list()]
    assert sorted(path.partition("/")[0] for path in paths) == ["index", "large", "segment"]
    size = len(await store.get(f"segment/{done.written[0]}") or b"")
    assert size < sum(map(len, blobs.values())) / 4
    await holds(store, blobs | {sha(large): large})
    again = await compact(shelf, [*blobs, sha(large)], NOW)
    assert (again.packed, again.written, again.removed) == (0, (), ())


@story
async def test_a_reader_that_knew_the_old_segments_finds_the_new_ones() -> None:
    store, first, second = MemoryStore(), several(30), several(30, "more ")
    reader = Shelf(store, zstd())
    shelf = await filled(store, first)
    await compact(shelf, first, NOW)
    for digest, data in first.items():
        assert await reader.get(digest) == data
    await filled(store, second)
    done = await compact(shelf, first | second, NOW)
    assert len(done.removed) == 1
    for digest, data in (second | first).items():
        assert await reader.get(digest) == data


@story
async def test_a_segment_that_was_changed_is_refused_and_the_replica_answers() -> None:
    stores = [MemoryStore(), MemoryStore()]
    blobs = several(20)
    for store in stores:
        await compact(await filled(store, blobs), blobs, NOW)
    path = next(p for p in stores[0].objects if p.startswith("segment/"))
    raw = stores[0].objects[path]
    for bad in (raw[:-1], raw + b"\0", raw[:20] + bytes([raw[20] ^ 1]) + raw[21:], b""):
        stores[0].objects[path] = bad
        with pytest.raises(ProofError) as broken:
            await Shelf(stores[0], zstd()).get(next(iter(blobs)))
        told = broken.value.diagnosis
        assert (told.code, told.expected, told.found) == ("MDM-0924", path[8:], sha(bad))
    found = await Blobs(Shelf(stores[0], zstd()), Shelf(stores[1], zstd())).get(next(iter(blobs)))
    assert (found.wrong, found.repaired) == ((0,), (0,))
    assert await Shelf(stores[0], zstd()).get(next(iter(blobs))) == found.data


@story
async def test_a_segment_whose_inside_lies() -> None:
    """Its own name is right, but a blob in it is not: that one is not there; the others are."""
    codec = zstd()
    good, bad = b"good", b"bad"
    name, raw = build({sha(good): good, "0" * 64: bad}, codec)
    assert read(raw, name, codec) == {sha(good): good}


@story
async def test_a_bomb_is_not_unpacked() -> None:
    codec = zstd()
    bomb = codec.pack(b"\0" * (80 << 20))
    assert len(bomb) < 20_000
    with pytest.raises(ProofError):
        read(bomb, sha(bomb), codec)
    with pytest.raises(ValueError, match="one whole frame"):
        codec.unpack(codec.pack(b"x") + b"rest", 100)
    with pytest.raises(ValueError, match="zstd"):
        codec.unpack(b"no frame at all", 100)


@pytest.mark.parametrize("wrong", [None, b"", b"{}", b'{"blobs":[["00",1]],"v":1}', b"\xff"])
@story
async def test_an_index_is_a_hint(wrong: bytes | None) -> None:
    """Gone, unreadable or lying: a blob that is in a segment is found all the same, or at least never another one."""
    store, blobs = MemoryStore(), several(10)
    await compact(await filled(store, blobs), blobs, NOW)
    path = next(p for p in store.objects if p.startswith("index/"))
    if wrong is None:
        del store.objects[path]
    else:
        store.objects[path] = wrong
    await holds(store, blobs)
    await compact(Shelf(store, zstd()), blobs, NOW)
    await holds(store, blobs)


# -- what nobody names -----------------------------------------------------------------------------------------------------------
@story
async def test_a_dead_blob_goes_after_the_grace_and_not_before() -> None:
    store, blobs = MemoryStore(), several(40)
    shelf = await filled(store, blobs)
    await compact(shelf, blobs, NOW)
    dead, live = dict(list(blobs.items())[:10]), dict(list(blobs.items())[10:])
    assert (await compact(shelf, live, NOW)).marked == 10
    early = await compact(shelf, live, NOW + DAY - 1)
    assert (early.marked, early.cleared, early.written) == (0, (), ())
    await holds(store, blobs)
    late = await compact(shelf, live, NOW + DAY)
    assert set(late.cleared) == set(dead)
    await holds(store, live)
    assert [await Shelf(store, zstd()).get(digest) for digest in dead] == [None] * 10
    assert sorted({path.partition("/")[0] for path in store.objects}) == ["index", "segment"]


@story
async def test_what_is_named_again_or_put_again_lives() -> None:
    store, blobs = MemoryStore(), several(3)
    shelf = await filled(store, blobs)
    named, put, dead = blobs
    await compact(shelf, (), NOW)
    await shelf.put(put, blobs[put])
    assert set((await compact(shelf, [named], NOW + DAY)).cleared) == {dead}
    await holds(store, {named: blobs[named], put: blobs[put]})
    assert (await compact(shelf, [named], NOW + 2 * DAY)).cleared == (put,)


@story
async def test_one_compaction_at_a_time() -> None:
    store = MemoryStore()
    shelf = await filled(store, several(3))
    store.objects[HELD] = b"pid 1"
    with pytest.raises(Conflict) as held:
        await compact(shelf, (), NOW)
    assert "pid 1" in held.value.diagnosis.found
    assert (await compact(shelf, (), NOW, take_over=True)).marked == 3
    assert HELD not in store.objects


@story
async def test_a_blob_that_is_being_cleared_is_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that meets a compaction which died in the middle does not say "it is there"."""
    from mandamus.runtime.content import shelf as module

    monkeypatch.setattr(module, "_PAUSE_S", 0)
    store, (digest, data) = MemoryStore(), next(iter(several(1).items()))
    shelf = await filled(store, {digest: data})
    store.objects[f"taken/{digest}"] = b""
    with pytest.raises(Unavailable) as refused:
        await shelf.put(digest, data)
    assert refused.value.diagnosis.code == "MDM-0925"
    await compact(shelf, (), NOW, take_over=True)
    await shelf.put(digest, data)


@story
async def test_what_cannot_be_read_is_left_and_named() -> None:
    store, blobs = MemoryStore(), several(20)
    shelf = await filled(store, blobs)
    await compact(shelf, blobs, NOW)
    segment = next(p for p in store.objects if p.startswith("segment/"))
    store.objects[segment] += b"x"
    wrong = places("a" * 64)[1]
    store.objects[wrong] = b"nothing like it"
    await compact(Shelf(store, zstd()), (), NOW)
    done = await compact(Shelf(store, zstd()), ["a" * 64], NOW + DAY)
    assert set(done.wrong) == {segment, wrong}
    assert done.cleared == ()
    assert {segment, wrong} <= set(store.objects)


@story
async def test_a_store_that_keeps_everything_is_not_compacted() -> None:
    class Locked(MemoryStore):
        async def delete(self, path: str) -> None:
            raise Refused("this store deletes nothing", code="MDM-0921")

    store = Locked()
    shelf = await filled(store, several(3))
    before = dict(store.objects)
    with pytest.raises(Refused):
        await compact(shelf, (), NOW)
    assert store.objects == before


@story
async def test_without_zstd_blobs_are_read_and_segments_are_refused() -> None:
    store, blobs = MemoryStore(), several(3)
    await compact(await filled(store, blobs), blobs, NOW)
    plain = Shelf(store)
    await plain.put(sha(b"x"), b"x")
    assert await plain.get(sha(b"x")) == b"x"
    for doing in (plain.get(next(iter(blobs))), compact(plain, (), NOW)):
        with pytest.raises(Misuse) as refused:
            await doing
        assert "mandamus[s3]" in refused.value.diagnosis.fix
