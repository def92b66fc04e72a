"""The growing edge of the tree, in tiles: `Edge.extend(records)` gives the objects that are full now, `Edge.partial()` those that grow.

    edge = await Edge.load(store, size)      # from stored tiles; size 0 needs none
    full = edge.extend(raws)                 # [(path, bytes)]: full tiles and entry bundles, put once and never changed
    rest = edge.partial()                    # what a checkpoint of this size needs besides
    root = edge.root()
Also `Tile`, a stored tile that answers for every subtree within it.

The rule a newcomer would break: no hash of a tile that still grows stands in the tile above it (C2SP tlog-tiles, "Partial Tiles").
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence

from mandamus.errors import ProofError
from mandamus.ports import Store
from mandamus.proof.tree import HASH, HEIGHT, WIDTH, entries_path, leaf_hash, root_of, tile_path

Object = tuple[str, bytes]
_sha256 = hashlib.sha256


class Tile:
    """The hashes of one tile, and of every complete subtree within it, worked out when first asked for."""

    __slots__ = ("_rows", "width")

    def __init__(self, raw: bytes) -> None:
        self._rows = [raw]
        self.width = len(raw) // HASH

    def node(self, height: int, number: int) -> bytes:
        """The subtree of 2^height of its hashes, number `number` from the left. Raises IndexError for one that is not complete."""
        rows = self._rows
        while len(rows) <= height:
            rows.append(_paired(rows[-1]))
        found = rows[height][number * HASH : (number + 1) * HASH]
        if not found:
            raise IndexError(number)
        return found

    def leaf(self, number: int) -> bytes:
        return self.node(0, number)


def _paired(row: bytes) -> bytes:
    return b"".join([_sha256(b"\1" + row[i : i + 2 * HASH]).digest() for i in range(0, len(row) // (2 * HASH) * (2 * HASH), 2 * HASH)])


def bundle(records: Sequence[bytes]) -> bytes:
    """Entries as C2SP writes them: each behind its length as two bytes, the higher first."""
    return b"".join([x for raw in records for x in (len(raw).to_bytes(2, "big"), raw)])


def unbundle(raw: bytes, where: str = "") -> list[bytes]:
    """Raises ProofError for an object that is none."""
    out, at = [], 0
    while at < len(raw):
        end = at + 2 + int.from_bytes(raw[at : at + 2], "big")
        if end > len(raw) or len(raw) - at < 2:
            raise ProofError("an entry bundle of the log is cut short", code="MDM-0932", where=where, fix=COPY)
        out.append(raw[at + 2 : end])
        at = end
    return out


COPY = "put the log's newest whole copy back; what it lacks is written anew from the ledger"


class Edge:
    """The right edge of a tree of `size` leaves: per level the hashes of the tile that grows, and its records for the lowest."""

    def __init__(self) -> None:
        self.size = 0
        self._rows: list[bytearray] = [bytearray()]
        self._records: list[bytes] = []
        self._put: set[str] = set()  # growing tiles that stand in the store already

    @classmethod
    async def load(cls, store: Store, size: int) -> Edge:
        """As stored. Raises ProofError when an object is missing or not of its width, Unavailable."""
        edge = cls()
        edge.size = size
        wanted = [(level, size >> (HEIGHT * level)) for level in range((max(size, 1).bit_length() - 1) // HEIGHT + 1)]
        grows = [(level, n // WIDTH, n % WIDTH) for level, n in wanted]
        tiles = await asyncio.gather(*(read_tile(store, level, index, width) for level, index, width in grows))
        edge._rows = [bytearray(tile) for tile in tiles]
        _, index, width = grows[0]
        edge._records = unbundle(await read_entries(store, index, width), entries_path(index))[:width] if width else []
        if any(leaf_hash(raw) != bytes(edge._rows[0][i * HASH : (i + 1) * HASH]) for i, raw in enumerate(edge._records)):
            raise ProofError("an entry bundle of the log is not what its tile says", code="MDM-0932", where=entries_path(index), fix=COPY)
        edge._put = {path for path, _ in edge._growing()}
        return edge

    def extend(self, records: Sequence[bytes]) -> list[Object]:
        """More leaves. Returns the objects that became full, in the order of their leaves."""
        out: list[Object] = []
        at = 0
        while at < len(records):
            some = records[at : at + WIDTH - len(self._records)]
            at += len(some)
            self._records += some
            self._rows[0] += b"".join([_sha256(b"\0" + raw).digest() for raw in some])
            self.size += len(some)
            if len(self._records) == WIDTH:
                out.append((entries_path(self.size // WIDTH - 1), bundle(self._records)))
                self._records = []
                out += self._carry()
        return out

    def _carry(self) -> list[Object]:
        """Every tile that is full now, and its root one level up."""
        out, level = [], 0
        while len(self._rows[level]) == WIDTH * HASH:
            full = bytes(self._rows[level])
            out.append((tile_path(level, (self.size >> (HEIGHT * level)) // WIDTH - 1), full))
            self._rows[level] = bytearray()
            if level + 1 == len(self._rows):
                self._rows.append(bytearray())
            level += 1
            self._rows[level] += Tile(full).node(HEIGHT, 0)
        return out

    def partial(self) -> list[Object]:
        """The growing tiles and the growing bundle at this size, except those that were put before."""
        return [(path, raw) for path, raw in self._growing() if path not in self._put]

    def put(self, objects: Sequence[Object]) -> None:
        """They stand in the store now."""
        self._put = {path for path, _ in self._growing()} & (self._put | {path for path, _ in objects})

    def _growing(self) -> list[Object]:
        out = []
        if self._records:
            out.append((entries_path(self.size // WIDTH, len(self._records)), bundle(self._records)))
        for level, row in enumerate(self._rows):
            if row:
                out.append((tile_path(level, (self.size >> (HEIGHT * level)) // WIDTH, len(row) // HASH), bytes(row)))
        return out

    def root(self) -> bytes:
        tiles = [Tile(bytes(row)) for row in self._rows]

        def node(height: int, number: int) -> bytes:
            level, within = divmod(height, HEIGHT)
            return tiles[level].node(within, number & ((1 << (HEIGHT - within)) - 1))

        return root_of(self.size, node)


async def read_tile(store: Store, level: int, index: int, width: int) -> bytes:
    """The first `width` hashes of a tile: as it stood then, or cut from the full one. Raises ProofError."""
    return await _read(store, tile_path(level, index, width) if width else "", tile_path(level, index), width * HASH)


async def read_entries(store: Store, index: int, width: int) -> bytes:
    """A bundle of exactly `width` records, or the full one (the caller cuts). Raises ProofError."""
    return await _read(store, entries_path(index, width) if width else "", entries_path(index), 0)


async def _read(store: Store, path: str, full: str, length: int) -> bytes:
    if not path:
        return b""
    found = await store.get(path)
    if found is None and path != full:
        found = await store.get(full)  # partial ones are deleted when the full one stands (C2SP tlog-tiles)
    if found is None or len(found) < length:
        raise ProofError(
            "the log lost an object" if found is None else "an object of the log is too short", code="MDM-0932", where=path, fix=COPY
        )
    return found[:length] if length else found
