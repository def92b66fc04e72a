"""The Merkle tree of the log (RFC 6962) in the layout of C2SP tlog-tiles: hashes, roots, proofs, and who checks them.

A leaf is SHA-256(0x00 || record), a node SHA-256(0x01 || left || right), so neither can be taken for the other. Whoever makes a proof
says how a complete subtree is read (`node(height, number)`: the hash over the 2^height leaves from number * 2^height on), from memory
(`Tree`) or from stored tiles. The rule a newcomer would break: `verify_*` answer True or False and believe nothing; where a size, an
index or a root came from is for their caller to know.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

_sha256 = hashlib.sha256
HASH = 32
HEIGHT = 8  # of a tile: 256 hashes
WIDTH = 1 << HEIGHT
EMPTY_ROOT = _sha256(b"").digest()
Node = Callable[[int, int], bytes]


def leaf_hash(record: bytes) -> bytes:
    return _sha256(b"\0" + record).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return _sha256(b"\1" + left + right).digest()


# -- roots and proofs, from complete subtrees --------------------------------------------------------------------------------
def root_of(size: int, node: Node) -> bytes:
    """The root over the first `size` leaves."""
    return _range(0, size, node) if size else EMPTY_ROOT


def inclusion_of(index: int, size: int, node: Node) -> list[bytes]:
    """RFC 6962, 2.1.1: the hashes beside the way from leaf `index` to the root of `size`, from the leaf up. Raises ValueError."""
    if not 0 <= index < size:
        raise ValueError(f"leaf {index} is not in a tree of {size}")
    low, high, out = 0, size, []
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            out.append(_range(middle, high, node))
            high = middle
        else:
            out.append(_range(low, middle, node))
            low = middle
    return out[::-1]


def consistency_of(old: int, new: int, node: Node) -> list[bytes]:
    """RFC 6962, 2.1.2: that the tree of `new` leaves begins with the one of `old`. Empty for old 0 or new. Raises ValueError."""
    if not 0 <= old <= new:
        raise ValueError(f"a tree of {new} does not contain one of {old}")
    low, high, whole, out = 0, new, True, []
    while old and old != high:
        middle = low + _split(high - low)
        if old <= middle:
            out.append(_range(middle, high, node))
            high = middle
        else:
            out.append(_range(low, middle, node))
            low, whole = middle, False
    if old and not whole:
        out.append(_range(low, high, node))
    return out[::-1]


def _range(low: int, high: int, node: Node) -> bytes:
    """The hash over leaves [low, high): a complete subtree, or a left one that is complete and what is right of it."""
    out = b""
    for height, number in reversed(_complete(low, high)):
        out = node_hash(node(height, number), out) if out else node(height, number)
    return out


def _complete(low: int, high: int) -> list[tuple[int, int]]:
    """The largest complete subtrees that cover [low, high), from the left. `low` stands where the first of them may begin."""
    out = []
    while low < high:
        height = (high - low).bit_length() - 1
        out.append((height, low >> height))
        low += 1 << height
    return out


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)


# -- checking ----------------------------------------------------------------------------------------------------------------
def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether `leaf` (a leaf's hash) is number `index` of the `size` leaves under `root`."""
    if not 0 <= index < size or len(leaf) != HASH or any(len(p) != HASH for p in proof):
        return False
    at, last, out = index, size - 1, leaf
    for p in proof:
        if not last:
            return False
        if at & 1 or at == last:
            out = node_hash(p, out)
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            out = node_hash(out, p)
        at, last = at >> 1, last >> 1
    return not last and out == root


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether the tree of `new` leaves begins with that of `old`. False for old 0: an empty tree proves nothing, and whoever began with
    one must say so himself."""
    if not 0 < old <= new or any(len(p) != HASH for p in proof):
        return False
    if old == new:
        return old_root == new_root and not proof
    if not proof:
        return False
    path = [old_root, *proof] if old & (old - 1) == 0 else list(proof)
    at, last = old - 1, new - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    before = after = path[0]
    for p in path[1:]:
        if not last:
            return False
        if at & 1 or at == last:
            before, after = node_hash(p, before), node_hash(p, after)
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            after = node_hash(after, p)
        at, last = at >> 1, last >> 1
    return not last and before == old_root and after == new_root


# -- names of tiles ----------------------------------------------------------------------------------------------------------
def tile_path(level: int, index: int, width: int = WIDTH) -> str:
    """`tile/0/x001/x234/067`, and `.p/W` behind it for a tile that holds only W hashes yet (C2SP tlog-tiles)."""
    return _path(f"tile/{level}", index, width)


def entries_path(index: int, width: int = WIDTH) -> str:
    """Where the records of leaves `index` * 256 and following lie, each behind its length as two bytes."""
    return _path("tile/entries", index, width)


def _path(stem: str, index: int, width: int) -> str:
    if index < 0 or not 0 < width <= WIDTH:
        raise ValueError(f"there is no tile {index} of {width} hashes")
    parts = [f"{index % 1000:03d}"]
    while index := index // 1000:
        parts.append(f"x{index % 1000:03d}")
    return "/".join((stem, *reversed(parts))) + (f".p/{width}" if width < WIDTH else "")


# -- in memory ---------------------------------------------------------------------------------------------------------------
class Tree:
    """All hashes of a growing tree: `levels[h]` holds those of the complete subtrees of height h, side by side."""

    def __init__(self) -> None:
        self.levels: list[bytearray] = [bytearray()]
        self.size = 0

    def extend(self, leaves: Sequence[bytes]) -> None:
        """More leaves, as their hashes; level by level, which costs less than one by one. Raises ValueError."""
        if any(len(leaf) != HASH for leaf in leaves):
            raise ValueError("a leaf's hash has 32 bytes")
        self.levels[0] += b"".join(leaves)
        self.size += len(leaves)
        height, sha256 = 0, _sha256
        while len(below := self.levels[height]) >= 2 * HASH:
            height += 1
            if height == len(self.levels):
                self.levels.append(bytearray())
            above = self.levels[height]
            pairs = bytes(below[2 * len(above) : len(below) // (2 * HASH) * (2 * HASH)])
            above += b"".join([sha256(b"\1" + pairs[i : i + 2 * HASH]).digest() for i in range(0, len(pairs), 2 * HASH)])

    def node(self, height: int, number: int) -> bytes:
        return bytes(self.levels[height][number * HASH : (number + 1) * HASH])

    def tile(self, level: int, index: int) -> bytes:
        """The hashes of one tile, 8,192 bytes or fewer while it grows."""
        height = HEIGHT * level
        if height >= len(self.levels):
            return b""
        return bytes(self.levels[height][index * WIDTH * HASH : (index + 1) * WIDTH * HASH])

    def root(self, size: int | None = None) -> bytes:
        return root_of(self._upto(size), self.node)

    def inclusion(self, index: int, size: int | None = None) -> list[bytes]:
        return inclusion_of(index, self._upto(size), self.node)

    def consistency(self, old: int, new: int | None = None) -> list[bytes]:
        return consistency_of(old, self._upto(new), self.node)

    def _upto(self, size: int | None) -> int:
        if size is None:
            return self.size
        if not 0 <= size <= self.size:
            raise ValueError(f"the tree has {self.size} leaves, not {size}")
        return size
