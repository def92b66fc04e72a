"""The log as files for somebody else: what a client of C2SP tlog-tiles asks for, in a folder that any web server can show.

    done = await export(reader, target, shown)                  # all of it, up to that checkpoint
    done = await export(reader, target, shown, first=old)       # records from leaf `old` on; the hashes of everything before
    old, new = await period(reader, since, until)               # the checkpoints that enclose a period
    await carry(store, target)                                  # every object: the log moves with its ledger

The rule a newcomer would break: the checkpoint is written last. Whoever reads the folder meanwhile must find everything that it promises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from mandamus.errors import ProofError
from mandamus.ports import Store
from mandamus.proof.tree import HEIGHT, WIDTH, entries_path, tile_path
from mandamus.runtime.tlog import checks, objects
from mandamus.runtime.tlog.objects import CHECKPOINT, COSIGNED, PENDING, SIGNED, Pending
from mandamus.runtime.tlog.reader import Reader
from mandamus.runtime.tlog.shown import Shown

Part = tuple[str, int, int]  # level or "entries", index, width


class Exported(Struct):
    """How much was written; `there`: objects that the target had already."""

    size: int
    objects: int = 0
    there: int = 0
    bytes: int = 0


def parts(size: int, first: int, floor: int) -> Iterator[Part]:
    """Every tile of a tree of `size`, and the bundles of records from leaf `first` on. Below `floor` records and lowest tiles are gone."""
    for level in range((max(size, 1).bit_length() - 1) // HEIGHT + 1):
        wide = size >> (HEIGHT * level)
        for index in range(-(-wide // WIDTH)):
            width = min(WIDTH, wide - index * WIDTH)
            if level == 0 and (index + 1) * WIDTH > max(first, floor):
                yield "entries", index, width
            if level or (index + 1) * WIDTH > floor:
                yield str(level), index, width


async def export(reader: Reader, target: Store, shown: Shown, first: int = 0, tell: Callable[[int], None] = lambda done: None) -> Exported:
    """Raises ProofError when the target holds another log, Unavailable."""
    minimum = await reader.minimum()
    done = Exported(shown.checkpoint.size)
    for kind, index, width in parts(shown.checkpoint.size, first, minimum.index if minimum else 0):
        path = entries_path(index, width) if kind == "entries" else tile_path(int(kind), index, width)
        raw = await reader.part(kind, index, width)
        if await target.put_new(path, raw):
            done.objects, done.bytes = done.objects + 1, done.bytes + len(raw)
        elif await target.get(path) == raw:
            done.there += 1
        else:
            raise checks.taken(path)
        tell(done.objects + done.there)
    for size in {first, shown.checkpoint.size}:
        for name in (SIGNED, COSIGNED):
            note = await reader.store.get(objects.name(name, size))
            if note is not None:
                await target.put(objects.name(name, size), note)
    await target.put(CHECKPOINT, shown.note)
    return done


async def period(reader: Reader, since: int, until: int) -> tuple[int, int]:
    """(size of the last checkpoint before `since`, of the first from `until` on, or of the newest), in microseconds since 1970.

    A checkpoint's time is its holder's word; its witnesses say theirs in its lines.
    """
    known = await objects.sizes(reader.store, PENDING)
    signed = set(await objects.sizes(reader.store, SIGNED))
    old, new = 0, 0
    for size in known:
        if size not in signed or (at := await when(reader, size)) is None:
            continue
        if at <= since:
            old = size
        new = size
        if at >= until:
            break
    return old, new


async def when(reader: Reader, size: int) -> int | None:
    """When a checkpoint was announced. None: it is not stored."""
    path = objects.name(PENDING, size)
    raw = await reader.store.get(path)
    return objects.unpack(raw, Pending, path, reader.origin).at if raw is not None else None


async def carry(source: Store, target: Store, tell: Callable[[int], None] = lambda done: None) -> int:
    """Every object, those that are put once first: what the target has already must be the same. Returns how many. Raises ProofError."""
    paths = [path async for path in source.list()]
    replaced = (CHECKPOINT, objects.MINIMUM)
    many = 0
    for path in sorted(paths, key=lambda p: (p in replaced, p.startswith((PENDING, SIGNED, COSIGNED)), p)):
        raw = await source.get(path)
        if raw is None:
            continue
        if path in replaced or path.startswith((COSIGNED, objects.ANCHORED)):
            await target.put(path, raw)
        elif not await target.put_new(path, raw) and await target.get(path) != raw:
            raise ProofError(
                "the log at the target is another one", code="MDM-0933", where=path, why="two logs of one name cannot become one",
                fix="name a target without a log",
            )  # fmt: skip
        many += 1
        tell(many)
    return many
