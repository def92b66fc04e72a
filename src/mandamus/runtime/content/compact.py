"""Compaction of one store of blobs: `await compact(shelf, live, now)`. Small blobs move into segments, segments of which something went
are written anew, and what nobody names any more goes.

`live`: the digests that something names, read just now. A blob that nobody names is only marked at first (`doomed`); a compaction that
begins `grace_ms` later clears it, so a blob that was put and is not yet named by its record lives on. The grace must be longer than any
put can lie before its append.

The rule a newcomer would break: write, read back, then delete. At every step each blob that is not cleared stands somewhere whole;
whoever dies in between leaves a second copy or a mark behind, never a gap.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection

from msgspec import Struct

from mandamus.errors import Conflict, Misuse, ProofError
from mandamus.runtime.content import segments
from mandamus.runtime.content.segments import Codec, digest_of
from mandamus.runtime.content.shelf import Shelf, doomed, places, taken

DAY_MS = 86_400_000
HELD = "compacting"  # the object that says so
SEGMENT = 4 << 20  # content of a segment, about


class Compacted(Struct, frozen=True):
    """What one compaction did. `packed`: blobs that were put into new segments; `marked`: named by nobody since now; `wrong`: what could
    not be read, blobs and segments, and was left as it is."""

    packed: int
    marked: int
    cleared: tuple[str, ...]
    written: tuple[str, ...]
    removed: tuple[str, ...]
    wrong: tuple[str, ...]


async def compact(
    shelf: Shelf, live: Collection[str], now: int, *, holder: str = "", grace_ms: int = DAY_MS, take_over: bool = False
) -> Compacted:
    """One at a time. `now` in microseconds. Raises Conflict when another one is under way, or died: `take_over` when it surely did.

    Raises Refused on a store that deletes nothing, before anything was written to it.
    """
    if shelf.codec is None:
        raise Misuse("nothing here packs segments", code="MDM-0112", where="blobs", fix="pip install 'mandamus[s3]'")
    await shelf.store.delete("compacting.probe")
    if not await shelf.store.put_new(HELD, holder.encode()) and not take_over:
        raise Conflict(
            "this store is being compacted", on="compaction", code="MDM-0927", where=HELD,
            found=ascii((await shelf.store.get(HELD) or b"").decode("utf-8", "replace")[:80]),
            fix="wait for it; if that process died, the same again with taking over",
        )  # fmt: skip
    work = _Work(shelf, shelf.codec, frozenset(live), now)
    await work.survey()
    await work.mark(grace_ms)
    await work.pack()
    await work.clear()
    await shelf.store.delete(HELD)
    return work.told()


class _Work:
    """One compaction, step by step."""

    def __init__(self, shelf: Shelf, codec: Codec, live: frozenset[str], now: int) -> None:
        self._shelf, self._store, self._codec = shelf, shelf.store, codec
        self._live, self._now = live, now
        self._alone: dict[str, list[str]] = {}  # digest -> its paths
        self._segments: dict[str, dict[str, int]] = {}
        self._drop: set[str] = set()
        self._marked = 0
        self._written: dict[str, set[str]] = {}  # segment -> what is in it
        self._gone: set[str] = set()  # segments of which everything that stays was written elsewhere
        self._twice: set[str] = set()  # alone, and whole in a segment that stays
        self._wrong: list[str] = []

    def told(self) -> Compacted:
        packed = sum(len(digests) for digests in self._written.values())
        left = set().union(*(self._segments.get(path.partition("/")[2], {}) for path in self._wrong))
        written, removed = tuple(sorted(self._written)), tuple(sorted(self._gone))
        return Compacted(packed, self._marked, tuple(sorted(self._drop - left)), written, removed, tuple(self._wrong))

    # -- what there is ---------------------------------------------------------------------------------------------------------
    async def survey(self) -> None:
        """And what one that died left behind: announcements (what it cleared is cleared, the marks still stand), indexes of nothing."""
        async for path in self._each("taken/"):
            await self._store.delete(path)
        async for path in self._each("large/", "blob/"):
            self._alone.setdefault(path.rpartition("/")[2], []).append(path)
        self._segments = await self._shelf.indexes()
        named = {path.partition("/")[2] async for path in self._each("index/")}
        for name in sorted(named - self._segments.keys()):
            await self._store.delete(f"index/{name}")
        for name in sorted(self._segments.keys() - named):
            await self._store.put(f"index/{name}", segments.index(self._segments[name]))

    async def mark(self, grace_ms: int) -> None:
        """Marks what nobody names; takes what has been marked for long enough, unless a writer took the mark away meanwhile."""
        here = set(self._alone).union(*self._segments.values())
        old: set[str] = set()
        async for path in self._each("doomed/"):
            digest = path.partition("/")[2]
            if digest not in here or digest in self._live:
                await self._store.delete(path)
            else:
                old.add(digest)
        for digest in sorted(here - self._live):
            if digest not in old:
                self._marked += await self._store.put_new(doomed(digest), str(self._now).encode())
            elif self._now - _since(await self._store.get(doomed(digest)), self._now) >= grace_ms * 1000:
                await self._take(digest)

    async def _take(self, digest: str) -> None:
        await self._store.put_new(taken(digest), b"")
        if await self._store.get(doomed(digest)) is None:
            await self._store.delete(taken(digest))
        else:
            self._drop.add(digest)

    # -- segments --------------------------------------------------------------------------------------------------------------
    async def pack(self) -> None:
        """Everything that stays of small blobs and of segments that are not what they should be, into new segments."""
        small = [d for d, paths in self._alone.items() if d not in self._drop and paths[-1].startswith("blob/")]
        torn = [n for n, lengths in self._segments.items() if not self._drop.isdisjoint(lengths)]
        thin = [n for n, lengths in self._segments.items() if n not in torn and sum(lengths.values()) < SEGMENT // 2]
        if len(thin) + bool(torn) + bool(small) < 2:
            thin = []  # nothing to join it with
        batch: dict[str, bytes] = {}
        async for digest, data in self._kept(small, torn + thin):
            batch[digest] = data
            if sum(map(len, batch.values())) >= SEGMENT:
                await self._write(batch)
                batch = {}
        if batch:
            await self._write(batch)
        self._gone -= set(self._written)

    async def _kept(self, small: list[str], sources: list[str]) -> AsyncIterator[tuple[str, bytes]]:
        done: set[str] = set()
        for name in sources:
            blobs = await self._read(name)
            for digest in sorted(set(blobs) - self._drop - done):
                done.add(digest)
                yield digest, blobs[digest]
        for digest in small:
            if digest in done or await self._stands(digest):
                continue
            data = await self._store.get(places(digest)[1])
            if data is not None and digest_of(data) == digest:
                yield digest, data
            else:
                self._wrong.append(places(digest)[1])
                del self._alone[digest]

    async def _stands(self, digest: str) -> bool:
        """Whether a segment that stays holds it already, read and not only named."""
        for name in [n for n, lengths in self._segments.items() if digest in lengths and n not in self._gone]:
            with contextlib.suppress(ProofError):
                if digest in (await self._shelf.segment(name) or {}):
                    self._twice.add(digest)
                    return True
        return False

    async def _read(self, name: str) -> dict[str, bytes]:
        """What is in a segment. One that is not whole stays where it is, whatever is lost or dropped of it."""
        try:
            blobs = await self._shelf.segment(name)
        except ProofError:
            blobs = None
        if blobs is None or not blobs.keys() >= self._segments[name].keys():
            self._wrong.append(f"segment/{name}")
            return {}
        self._gone.add(name)
        return blobs

    async def _write(self, batch: dict[str, bytes]) -> None:
        name, raw = segments.build(batch, self._codec)
        await self._store.put_new(f"segment/{name}", raw)
        if await self._store.get(f"segment/{name}") != raw:
            raise segments.damaged(name, expected="the bytes that were just written")
        await self._store.put(f"index/{name}", segments.index({d: len(data) for d, data in batch.items()}))
        self._written[name] = set(batch)

    # -- what goes -------------------------------------------------------------------------------------------------------------
    async def clear(self) -> None:
        """Only now. A segment goes before its index: an index of nothing is found again, a segment without one would be taken for new."""
        packed = self._twice.union(*self._written.values())
        for digest, paths in self._alone.items():
            for path in paths:
                if digest in self._drop or (digest in packed and path.startswith("blob/")):
                    await self._store.delete(path)
        for name in sorted(self._gone):
            await self._store.delete(f"segment/{name}")
            await self._store.delete(f"index/{name}")
        for digest in sorted(self._drop):
            await self._store.delete(doomed(digest))
            await self._store.delete(taken(digest))

    async def _each(self, *prefixes: str) -> AsyncIterator[str]:
        """Read to the end before anything is deleted."""
        for prefix in prefixes:
            for path in [path async for path in self._store.list(prefix)]:
                yield path


def _since(raw: bytes | None, now: int) -> int:
    """When the mark was set; one that is no number, or has gone, is as young as can be."""
    return int(raw) if raw is not None and raw.isdigit() else now
