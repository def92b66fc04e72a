"""Where a run's records stand in the log: a projection, read from the log itself whenever it is behind, and begun anew when it is lost.

The rules a newcomer would break: it may lag, and it may be deleted at any moment; it may not be wrong. So it names the tree it speaks of,
and `follow` throws it away when that is not a beginning of the stored one. And another process may have carried it beyond the tree that
one stands on: whoever asks says of how many leaves he speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from mandamus.errors import ProofError, Refused
from mandamus.proof.tree import leaf_hash
from mandamus.runtime.tlog import objects
from mandamus.runtime.tlog.objects import PRUNED, Pruned
from mandamus.runtime.tlog.reader import Reader

Span = tuple[str, int, int, int]  # run, first seq, first leaf, count
CHUNK = 16_384


class Spans(Protocol):
    """What a store of the projection can (drivers/spans_sqlite.py)."""

    @property
    def state(self) -> tuple[int, bytes]: ...
    def clear(self) -> None: ...
    def add(self, before: int, size: int, root: bytes, spans: Sequence[Span]) -> bool: ...
    def next(self, run: str, below: int) -> int: ...
    def leaf(self, run: str, seq: int) -> int | None: ...
    def of(self, run: str) -> list[Span]: ...
    def below(self, first: int, size: int) -> Iterator[Span]: ...
    def runs(self, below: int) -> Iterator[tuple[str, int]]: ...
    def close(self) -> None: ...


class Named(Struct, gc=False):
    """The two fields of a record that say which one it is; the others are passed over."""

    run: str
    seq: int


named = msgspec.json.Decoder(Named).decode


def spans_of(records: Iterable[tuple[int, str, int]]) -> list[Span]:
    """(leaf, run, seq), in the order of the leaves, as spans."""
    out: list[Span] = []
    for leaf, run, seq in records:
        if out and out[-1][0] == run and out[-1][1] + out[-1][3] == seq:
            out[-1] = (run, out[-1][1], out[-1][2], out[-1][3] + 1)
        else:
            out.append((run, seq, leaf, 1))
    return out


async def follow(spans: Spans, reader: Reader, size: int, tell: Callable[[int], None] = lambda done: None) -> None:
    """Up to `size` leaves, from the stored records. Raises ProofError for a record that is not its leaf; `tell` hears how far it is.

    One that speaks of a larger tree is left as it is: another process has gone on.
    """
    at, root = spans.state
    if 0 < at <= size and await _root(reader, at) != root:
        spans.clear()
        at = 0
    if at == 0 and size:
        at = await _from_pruned(spans, reader)
    while at < size:
        upto = min(size, at + CHUNK)
        found = [(leaf, raw) async for leaf, raw in reader.records(at, upto, size)]
        for leaf, raw in found:
            if leaf_hash(raw) != await reader.leaf(leaf, size):
                raise ProofError("a record of the log is not its leaf", code="MDM-0932", where=f"leaf {leaf}")
        rows = [(leaf, named(raw)) for leaf, raw in found]
        if not spans.add(at, upto, await reader.root(upto), spans_of((leaf, n.run, n.seq) for leaf, n in rows)):
            at = spans.state[0]  # another process reads it too
            continue
        at = upto
        tell(at)


async def _root(reader: Reader, size: int) -> bytes:
    """Of a tree within what was pruned nothing can be computed: such a projection is begun anew."""
    try:
        return await reader.root(size)
    except Refused:
        return b""


async def _from_pruned(spans: Spans, reader: Reader) -> int:
    """Where records are gone, the records of the pruning say what they were."""
    at = 0
    for size in await objects.sizes(reader.store, PRUNED):
        path = objects.name(PRUNED, size)
        raw = await reader.store.get(path)
        if raw is None:
            continue
        was = objects.unpack(raw, Pruned, path, reader.origin)
        if was.first != at or not spans.add(at, was.size, await reader.root(was.size), [(g.run, g.seq, g.leaf, g.count) for g in was.gone]):
            break
        at = was.size
    return at
