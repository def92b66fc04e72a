"""Names and contents of the log's objects besides its tiles. `N` is a size in 20 digits, so that names sort as sizes do.

    pending/N     what is about to be signed, put once: canonical JSON of `Pending`
    signed/N      the checkpoint of that size with the log's own line, put once
    cosigned/N    the same with the lines of witnesses that are the quorum of the trust file
    anchored/N    what public logs answered to it: canonical JSON, name to base64
    kept/N        empty: a record names this checkpoint, it is never thinned out
    checkpoint    the one that everybody is shown; only ever replaced by a larger one
    minimum       below which leaf records may be gone: canonical JSON of `Minimum`
    pruned/N      what was pruned then, run by run: canonical JSON of `Pruned`

The rule a newcomer would break: `pending/N` decides. Whoever finds another root in it than his own stops and signs nothing more.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from mandamus.core.canonical import canon
from mandamus.errors import ProofError
from mandamus.ports import Store

PENDING, SIGNED, COSIGNED, ANCHORED, KEPT, PRUNED = "pending/", "signed/", "cosigned/", "anchored/", "kept/", "pruned/"
CHECKPOINT, MINIMUM = "checkpoint", "minimum"


class Pending(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`root` in hex; `cursor` continues the ledger's feed behind leaf size - 1, `before` gives that leaf's record as the next; `at`:
    when (microseconds since 1970, by the holder's clock); `epoch` of the duty, 0 where nobody else could hold it."""

    at: int
    before: str
    cursor: str
    epoch: int
    holder: str
    origin: str
    root: str
    size: int


class Minimum(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The C2SP minimum index, and by which written rule it was raised."""

    at: int
    ground: str
    index: int
    origin: str
    retention: str


class Gone(Struct, frozen=True, forbid_unknown_fields=True):
    """`count` records of a run from `seq` on were the leaves from `leaf` on."""

    count: int
    leaf: int
    run: str
    seq: int


class Pruned(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The record of one pruning: leaves [first, size) lost their records, and these were they."""

    at: int
    first: int
    gone: tuple[Gone, ...]
    ground: str
    origin: str
    retention: str
    size: int


T = TypeVar("T", Pending, Minimum, Pruned)


def name(kind: str, size: int) -> str:
    return f"{kind}{size:020d}"


def size_of(path: str) -> int:
    """Of `pending/00000000000000000256`. Raises ProofError for a name that is none."""
    digits = path.rpartition("/")[2]
    if len(digits) != 20 or not digits.isascii() or not digits.isdigit():
        raise ProofError("an object of the log has a name that the log gives to none", code="MDM-0932", where=path[:80])
    return int(digits)


def pack(value: Pending | Minimum | Pruned) -> bytes:
    return canon(msgspec.to_builtins(value))


def unpack(raw: bytes, kind: type[T], path: str, origin: str) -> T:
    """Raises ProofError unless it is exactly what `pack` writes, and of this log."""
    try:
        found = msgspec.json.decode(raw, type=kind)
        if pack(found) != raw:
            raise ValueError("it is not canonical")
    except (msgspec.DecodeError, ValueError) as error:
        raise ProofError("an object of the log cannot be read", code="MDM-0932", where=path, found=str(error)[:80]) from None
    if found.origin != origin:
        raise ProofError(
            "this is the store of another log", code="MDM-0931", where=path, expected=origin, found=found.origin[:80],
            why="one tree has one origin and one key", fix="name another folder or prefix by MANDAMUS_LOG",
        )  # fmt: skip
    return found


async def sizes(store: Store, kind: str) -> list[int]:
    """The sizes of one kind, smallest first."""
    return [size_of(path) async for path in store.list(kind)]
