"""All records of a tenant in the order of its stream, for the log: `async for one in fed(wire, names, after, limit): ...`.

One message is one append, and a message has its place for ever; so a cursor is a message's place and a record's seq. Everything is read by
position from the leader, many at a time: what it shows was stored by a majority.

The rule a newcomer would break: what is read ends at the first place that is empty. The places were asked for at the same time, and what
stands behind an empty one may have been stored a moment later than what will stand in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from mandamus.core import feed
from mandamus.drivers.ledger_nats import layout, strand
from mandamus.drivers.ledger_nats.layout import Frame, Names
from mandamus.drivers.ledger_nats.wire import Stored, Wire, answered
from mandamus.errors import ProofError
from mandamus.ports import Fed

AT_ONCE = 64


async def fed(wire: Wire, names: Names, after: str, limit: int | None) -> AsyncIterator[Fed]:
    """Raises Misuse for what is no cursor, ProofError when its record is not there, Unavailable."""
    at, seq = await _behind(wire, names, after) if after else (0, -1)
    left = -1 if limit is None else limit
    async for one in _messages(wire, names, at - 1 if at else 0):
        for record in _records(names, one):
            if one.seq == at and record.seq <= seq:
                continue
            if left == 0:
                return
            left -= 1
            yield record


async def _behind(wire: Wire, names: Names, after: str) -> tuple[int, int]:
    at, seq = feed.read(after, 2)
    async with answered("the record that was read last"):
        stored = await wire.get(names.log, seq=at) if at else None
    found = [one.raw for one in _records(names, stored) if one.seq == seq] if stored else []
    feed.stands(after, found[0] if found else None)
    return at, seq


async def _messages(wire: Wire, names: Names, after: int) -> AsyncIterator[Stored]:
    """Those of runs. Where one stands the next mostly stands too: behind one that was found, as many places are asked for as pays."""
    at, width = after, 1
    while True:
        async with answered("the order of records"):
            first = await wire.get(names.log, seq=at + 1, next_by_subj=names.events)
            if first is None:
                return
            page = [first, *await asyncio.gather(*(wire.get(names.log, seq=first.seq + n) for n in range(1, width)))]
        end = page.index(None) if None in page else width
        ours = [one for one in page[:end] if one is not None and one.subject.startswith(names.run_root)]
        for one in ours:
            yield one
        at, width = first.seq + end - 1, min(2 * width, AT_ONCE) if 2 * len(ours) >= end else 1


def _records(names: Names, stored: Stored) -> list[Fed]:
    """What somebody else wrote there, who may write there, is no append: its run is at an end, and the others go on."""
    run = stored.subject.removeprefix(names.run_root)
    try:
        frame: Frame = strand.read(stored.subject, stored, layout.frame_of)
    except ProofError:
        return []
    first = frame.row.seq - len(frame.records) + 1
    if "." in run or first < 0:
        return []
    return [Fed(feed.cursor(f"{stored.seq}.{seq}", raw), run, seq, raw) for seq, raw in enumerate(frame.records, first)]
