"""Whoever has the log's objects and nothing else: `Reader(store, origin)`. Roots, proofs, checkpoints and records, as they are stored.

    reader = Reader(store, origin)
    note = await reader.newest(SIGNED)                      # (size, bytes), or None
    path = await reader.inclusion(index, size)
    async for leaf, raw in reader.records(0, size): ...

The rule a newcomer would break: what is read here is not believed, it is computed with. A proof is held against the root of the
checkpoint that it is given out with, so that a store that lies is met here and not at the auditor's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from mandamus.errors import Misuse, ProofError, Refused, Unavailable
from mandamus.ports import Store
from mandamus.proof import tree
from mandamus.proof.tree import HEIGHT, WIDTH, Node, entries_path
from mandamus.runtime.tlog import objects
from mandamus.runtime.tlog.objects import MINIMUM, Minimum
from mandamus.runtime.tlog.tiles import Tile, bundle, read_entries, read_tile, unbundle

T = TypeVar("T")
TILES_MAX = 1_024  # in memory: 16 KiB each with what is worked out from them
AT_ONCE = 16
Place = tuple[int, int, int]  # level, index, width


class _Missing(Exception):
    def __init__(self, place: Place) -> None:
        self.place = place


class Reader:
    """Reads one log. Tiles are kept: they never change."""

    def __init__(self, store: Store, origin: str, tiles_max: int = TILES_MAX) -> None:
        self.store, self.origin = store, origin
        self._tiles: OrderedDict[tuple[int, int], Tile] = OrderedDict()
        self._tiles_max = tiles_max
        self._last: tuple[tuple[int, int], list[bytes]] = ((-1, 0), [])  # runs that act together lie in one bundle

    # -- checkpoints -----------------------------------------------------------------------------------------------------------
    async def newest(self, kind: str) -> tuple[int, bytes] | None:
        """Size and bytes of the largest object of a kind; one that is thinned out between the two looks is no end."""
        for _ in range(3):
            known = await objects.sizes(self.store, kind)
            if not known:
                return None
            raw = await self.store.get(objects.name(kind, known[-1]))
            if raw is not None:
                return known[-1], raw
        raise Unavailable("the log's store gives back no object that it lists", outcome="none", code="MDM-0938", where=kind)

    async def minimum(self) -> Minimum | None:
        """The written rule by which leaf records may be gone. None: nothing was ever pruned."""
        raw = await self.store.get(MINIMUM)
        return objects.unpack(raw, Minimum, MINIMUM, self.origin) if raw is not None else None

    # -- the tree --------------------------------------------------------------------------------------------------------------
    async def root(self, size: int) -> bytes:
        return await self.computed(size, lambda node: tree.root_of(size, node))

    async def inclusion(self, index: int, size: int) -> list[bytes]:
        return await self.computed(size, lambda node: tree.inclusion_of(index, size, node))

    async def consistency(self, old: int, new: int) -> list[bytes]:
        if not 0 <= old <= new:
            raise Misuse(f"a tree of {new} does not contain one of {old}", code="MDM-0937", fix="mandamus log head says how large it is")
        return await self.computed(new, lambda node: tree.consistency_of(old, new, node))

    async def leaf(self, index: int, size: int) -> bytes:
        """The hash of one leaf."""
        return await self.computed(size, lambda node: node(0, index))

    async def computed(self, size: int, work: Callable[[Node], T]) -> T:
        """What is in memory first; when something is missing, all that is needed is found out and fetched at once."""
        if size < 0:
            raise Misuse("a tree has no size below zero", code="MDM-0937")
        try:
            return work(self._node(size))
        except _Missing:
            pass
        wanted: dict[Place, None] = {}

        def note(height: int, number: int) -> bytes:
            wanted[_place(size, height, number)] = None
            return bytes(tree.HASH)

        work(note)
        held = await self._fetch([p for p in wanted if not self._has(p)])
        return work(self._node(size, held))

    def _node(self, size: int, held: dict[Place, Tile] | None = None) -> Node:
        tiles = self._tiles

        def node(height: int, number: int) -> bytes:
            level, within = height >> 3, height & 7  # tiles are eight levels high
            tile, local = tiles.get((level, number >> (HEIGHT - within))), number & (255 >> within)
            if tile is None or (local + 1) << within > tile.width:
                place = _place(size, height, number)
                tile = held.get(place) if held else None
                if tile is None:
                    raise _Missing(place)
            return tile.node(within, local)

        return node

    def _has(self, place: Place) -> bool:
        tile = self._tiles.get(place[:2])
        if tile is not None:
            self._tiles.move_to_end(place[:2])
        return tile is not None and tile.width >= place[2]

    async def _fetch(self, places: list[Place]) -> dict[Place, Tile]:
        gate, out = asyncio.Semaphore(AT_ONCE), dict[Place, Tile]()

        async def one(place: Place) -> None:
            async with gate:
                out[place] = await self._tile(place)

        await asyncio.gather(*(one(place) for place in places))
        for (level, index, _), tile in out.items():
            self._tiles[level, index] = tile
            self._tiles.move_to_end((level, index))
        while len(self._tiles) > self._tiles_max:
            self._tiles.popitem(last=False)
        return out

    async def _tile(self, place: Place) -> Tile:
        level, index, width = place
        try:
            return Tile(await read_tile(self.store, level, index, width))
        except ProofError:
            if level == 0 and (index + 1) * WIDTH <= await self._floor():
                raise await self._pruned(index * WIDTH) from None
            wide = await self._widest(level, index)
            if wide <= width:
                raise
            return Tile(await read_tile(self.store, level, index, wide))  # nothing was ever signed at the size that is asked for

    async def _widest(self, level: int, index: int) -> int:
        """How far a tile has grown by the newest tree that was announced."""
        size = max(await objects.sizes(self.store, objects.PENDING), default=0)
        return min(WIDTH, (size >> (HEIGHT * level)) - index * WIDTH)

    # -- records ---------------------------------------------------------------------------------------------------------------
    async def records(self, first: int, upto: int, size: int | None = None) -> AsyncIterator[tuple[int, bytes]]:
        """(leaf, record) of leaves [first, upto) of a tree of `size` (else `upto`), by bundles. Raises ProofError, Refused for what was
        pruned."""
        for index in range(first // WIDTH, -(-upto // WIDTH)):
            raws = await self._bundle(index, size or upto)
            for leaf, raw in enumerate(raws, index * WIDTH):
                if first <= leaf < upto:
                    yield leaf, raw

    async def record(self, index: int, size: int) -> bytes:
        raws = await self._bundle(index // WIDTH, size)
        return raws[index % WIDTH]

    async def _bundle(self, index: int, size: int) -> list[bytes]:
        width = min(WIDTH, size - index * WIDTH)
        if self._last[0] == (index, width):
            return self._last[1]
        try:
            raws = unbundle(await read_entries(self.store, index, width), entries_path(index, width))
        except ProofError:
            if (index + 1) * WIDTH <= await self._floor():
                raise await self._pruned(index * WIDTH) from None
            raise
        if len(raws) < width:
            raise ProofError("an entry bundle of the log is too short", code="MDM-0932", where=entries_path(index, width))
        self._last = ((index, width), raws[:width])
        return self._last[1]

    async def part(self, kind: str, index: int, width: int) -> bytes:
        """A tile of a level, or with kind "entries" a bundle, exactly so wide: what a client that knows a checkpoint asks for."""
        if kind != "entries":
            return await read_tile(self.store, int(kind), index, width)
        raw = await read_entries(self.store, index, width)
        return raw if width == WIDTH else bundle(unbundle(raw)[:width])

    async def _floor(self) -> int:
        found = await self.minimum()
        return found.index if found else 0

    async def _pruned(self, leaf: int) -> Refused:
        rule = await self.minimum()
        assert rule is not None, "asked only of leaves below it"
        return Refused(
            "pruned, with record: what proved this leaf is gone by a written rule", code="MDM-0936", where=f"leaf {leaf}",
            expected=f"a leaf from {rule.index} on", found=f"retention {rule.retention}: {rule.ground}",
            fix="a bundle that was made before still verifies; the object pruned/ names what was taken away",
        )  # fmt: skip


def _place(size: int, height: int, number: int) -> Place:
    """Where the subtree stands: which tile, and how wide that tile is in a tree of `size`."""
    level, within = divmod(height, HEIGHT)
    index = number >> (HEIGHT - within)
    return level, index, min(WIDTH, (size >> (HEIGHT * level)) - index * WIDTH)
