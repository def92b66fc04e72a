"""A log as files: `Tiles(read).node(size)` reads the hashes of a tree of that size out of its C2SP tiles.

`read(path)` answers the file of that name, or None. The rule a newcomer would break: tiles are whoever serves them's word. What is made
of them counts only where it leads to a root that somebody signed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mandamus.errors import Unavailable
from mandamus.proof.tree import HASH, HEIGHT, WIDTH, Node, entries_path, node_hash, tile_path

Read = Callable[[str], "bytes | None"]


class Tiles:
    """The folder's own `size` (its checkpoint's) says how wide its last tiles are; 0 where nobody knows."""

    def __init__(self, read: Read, size: int = 0) -> None:
        self.read, self.size = read, size
        self.kept: dict[tuple[int, int], bytes] = {}

    def node(self, size: int) -> Node:
        """Hashes of complete subtrees of a tree of `size`. Raises Unavailable when a tile is not there."""

        def node(height: int, number: int) -> bytes:
            level, above = divmod(height, HEIGHT)
            if above:
                return node_hash(node(height - 1, 2 * number), node(height - 1, 2 * number + 1))
            tile = self._tile(level, number // WIDTH, size)
            at = number % WIDTH * HASH
            if len(tile) < at + HASH:
                raise _absent(tile_path(level, number // WIDTH))
            return tile[at : at + HASH]

        return node

    def _tile(self, level: int, index: int, size: int) -> bytes:
        if (kept := self.kept.get((level, index))) is not None:
            return kept
        for width in self._widths(level, index, size):
            raw = self.read(tile_path(level, index, width))
            if raw is not None and len(raw) == width * HASH:
                self.kept[level, index] = raw
                return raw
        raise _absent(tile_path(level, index))

    def _widths(self, level: int, index: int, size: int) -> list[int]:
        """The whole tile, the one of the folder's own size, the one of this size: the widest first, since it holds the others."""
        wide = {WIDTH} | {(n >> HEIGHT * level) - index * WIDTH for n in (self.size, size)}
        return sorted((w for w in wide if 0 < w <= WIDTH), reverse=True)

    def entries(self, low: int, high: int) -> Iterator[bytes]:
        """The records of leaves `low` to `high`, in order. Raises Unavailable when a bundle of them is not there or is torn."""
        for index in range(low // WIDTH, -(-high // WIDTH)):
            first = index * WIDTH
            for number, raw in enumerate(self._bundle(index, high), first):
                if low <= number < high:
                    yield raw

    def _bundle(self, index: int, high: int) -> list[bytes]:
        for width in self._widths(0, index, high):
            raw = self.read(entries_path(index, width))
            if raw is not None:
                return _cut(raw, entries_path(index, width), width)
        raise _absent(entries_path(index))


def _cut(raw: bytes, path: str, width: int) -> list[bytes]:
    out, at = [], 0
    while at < len(raw):
        end = at + 2 + int.from_bytes(raw[at : at + 2], "big")
        out.append(raw[at + 2 : end])
        at = end
    if at != len(raw) or len(out) != width:
        raise _absent(path)
    return out


def _absent(path: str) -> Unavailable:
    return Unavailable("the log's files do not hold this tile", code="MDM-0679", where=path, fix="--log DIR: a whole copy (log export)")
