"""One store of blobs: each under its SHA-256, alone or packed into a segment. `Shelf(store, codec)`; several make `runtime.blobs.Blobs`.

    blob/ab/abcd…    one of at most 64 KiB, until it is packed     large/ab/abcd…   one that stays alone
    segment/…        many in one object, index/… what is in it (runtime/content/segments.py)
    doomed/abcd…     nobody names it any more, since when          taken/abcd…      it is being cleared (runtime/content/compact.py)

The rule a newcomer would break: "it is there already" must hold longer than the answer takes. Clearing first announces itself (`taken`),
then looks at the mark again (`doomed`), then deletes. A writer first takes the mark away, then looks for the announcement, then writes.
Whoever is second sees the other one, so what a writer was promised is never what is cleared.
"""

from __future__ import annotations

import asyncio
import contextlib

from mandamus.errors import Misuse, ProofError, Unavailable
from mandamus.ports import Store
from mandamus.runtime.content import segments
from mandamus.runtime.content.segments import Codec, digest_of

SMALL = 64 * 1024  # what is larger stays alone: its place tells its size without reading it
_LOOKS = 40
_PAUSE_S = 0.05  # between looks at a blob that is being cleared


class Shelf:
    """`codec` None: segments cannot be read here."""

    def __init__(self, store: Store, codec: Codec | None = None) -> None:
        self.store, self.codec = store, codec
        self._where: dict[str, str] = {}  # digest -> segment; a hint
        self._indexes: dict[str, dict[str, int]] = {}  # of the segments that are known here; a segment never changes
        self._open: tuple[str, dict[str, bytes]] = ("", {})  # the segment that was read last

    async def put(self, digest: str, data: bytes) -> None:
        """Durable when it returns, and not among what is cleared. A copy that is damaged is replaced."""
        path = loose(digest, len(data))
        for _ in range(_LOOKS):
            if await self._spared(digest) and (await self.store.put_new(path, data) or await self._mended(path, data)):
                return
            await asyncio.sleep(_PAUSE_S)
        raise Unavailable(
            "a blob is being cleared and does not come to rest", outcome="none", code="MDM-0925", where=path,
            why="a compaction took it and has not ended", fix="wait for it, or carry on the one that died; then again",
        )  # fmt: skip

    async def get(self, digest: str) -> bytes | None:
        """The blob, its hash recomputed. None: it is not here. Raises ProofError naming both digests when all that is here is another."""
        wrong = ""
        for path in places(digest):
            data = await self.store.get(path)
            if data is not None and (found := digest_of(data)) == digest:
                return data
            wrong = wrong if data is None else found
        packed = await self._packed(digest)
        if packed is not None:
            return packed
        if wrong:
            raise ProofError(
                "a blob is not the one that its name says", code="MDM-0922", where=f"blob {digest}", expected=digest, found=wrong,
                why="somebody changed it, or the disk did; nothing is done with it",
            )  # fmt: skip
        return None

    # -- writing ---------------------------------------------------------------------------------------------------------------
    async def _spared(self, digest: str) -> bool:
        """Nobody clears it now, nor will by a mark that was set before: the order of these steps, and that of the write, is the promise."""
        if await self.store.get(doomed(digest)) is not None:
            await self.store.delete(doomed(digest))
        return await self.store.get(taken(digest)) is None

    async def _mended(self, path: str, data: bytes) -> bool:
        """What is there is read before it is believed; False when it has been packed meanwhile."""
        there = await self.store.get(path)
        if there is not None and there != data:
            await self.store.put(path, data)
        return there is not None

    # -- segments --------------------------------------------------------------------------------------------------------------
    async def _packed(self, digest: str) -> bytes | None:
        """From the segment that the index names. While segments move, one look may see neither the old nor the new one: two cannot.

        When no index names it, every segment is asked: a blob that is only badly indexed is not lost.
        """
        for look in range(_LOOKS):
            name = self._where.get(digest)
            blobs = await self.segment(name) if name else None
            if name and blobs is not None:
                self._open = (name, blobs)
                if digest in blobs:
                    return blobs[digest]
            if look >= 2 and blobs is None and not name:
                break
            await self._look()
        return await self._searched(digest)

    async def _searched(self, digest: str) -> bytes | None:
        for name in await self._names():
            with contextlib.suppress(ProofError):
                if digest in (blobs := await self.segment(name) or {}):
                    self._open = (name, blobs)
                    return blobs[digest]
        return None

    async def segment(self, name: str) -> dict[str, bytes] | None:
        """What is in it. None: it has gone. Raises ProofError when it is damaged, Misuse when nothing here can unpack it."""
        if self._open[0] == name:
            return self._open[1]
        raw = await self.store.get(f"segment/{name}")
        if raw is None:
            return None
        if self.codec is None:
            raise Misuse("nothing here unpacks segments", code="MDM-0112", where=f"segment/{name}", fix="pip install 'mandamus[s3]'")
        return segments.read(raw, name, self.codec)

    async def _look(self) -> None:
        self._where = {}
        for name, lengths in (await self.indexes()).items():
            self._where |= dict.fromkeys(lengths, name)

    async def indexes(self) -> dict[str, dict[str, int]]:
        """Segment -> what is in it, with lengths. One that has no index yet, or one that cannot be read, is asked itself."""
        known: dict[str, dict[str, int]] = {}
        for name in await self._names():
            known[name] = (
                self._indexes.get(name) or segments.indexed(await self.store.get(f"index/{name}") or b"") or await self._asked(name)
            )
        self._indexes = known
        return dict(known)

    async def _names(self) -> list[str]:
        return [path.partition("/")[2] async for path in self.store.list("segment/")]

    async def _asked(self, name: str) -> dict[str, int]:
        try:
            return {digest: len(data) for digest, data in (await self.segment(name) or {}).items()}
        except ProofError:
            return {}


def places(digest: str) -> tuple[str, str]:
    return f"large/{digest[:2]}/{digest}", f"blob/{digest[:2]}/{digest}"


def loose(digest: str, size: int) -> str:
    return places(digest)[size <= SMALL]


def doomed(digest: str) -> str:
    return f"doomed/{digest}"


def taken(digest: str) -> str:
    return f"taken/{digest}"
