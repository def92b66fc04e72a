"""Reading a strand, the messages of one subject, from its last one: by position, from the leader, many at a time, oldest first.

    async for at, frame in forward(wire, stream, subject, last, decode, reached): ...

Each message names where its predecessors stand. First one in every sixteen is fetched, backwards, until `reached` says that it is far
enough; then all of them, forwards. What is remembered meanwhile are positions.

The rule a newcomer would break: a position is what an earlier writer said. What is found there must be on this subject and older, and
whoever reads records holds them against the chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import msgspec

from mandamus.drivers.ledger_nats import layout
from mandamus.drivers.ledger_nats.layout import Delta, Frame
from mandamus.drivers.ledger_nats.wire import Stored, Wire, answered
from mandamus.errors import ProofError

AT_ONCE = 64
M = TypeVar("M", Frame, Delta)
R = TypeVar("R")


async def forward(
    wire: Wire, stream: str, subject: str, last: Stored, decode: Callable[[bytes], M], reached: Callable[[M], bool]
) -> AsyncIterator[tuple[int, M]]:
    """`reached(message)`: nothing older is wanted."""
    message = read(subject, last, decode)
    pages: list[tuple[int, ...]] = [(last.seq,)]
    page: tuple[int, ...]
    while not reached(message) and (page := layout.strand(pages[-1][-1], message)):
        for newer, older in zip((pages[-1][-1], *page), page):
            if not 0 < older < newer:  # or the way back would have no end
                raise missing(subject, newer, older)
        pages.append(page)
        (message,) = await _fetched(wire, stream, subject, [page[-1]], decode)
    places = [at for page in reversed(pages) for at in reversed(page)]
    for i in range(0, len(places), AT_ONCE):
        some = places[i : i + AT_ONCE]
        for at, found in zip(some, await _fetched(wire, stream, subject, some, decode)):
            yield at, found


async def _fetched(wire: Wire, stream: str, subject: str, places: list[int], decode: Callable[[bytes], M]) -> list[M]:
    async with answered(subject):
        stored = await asyncio.gather(*(wire.get(stream, seq=at) for at in places))
    return [_decoded(subject, at, one, decode) for at, one in zip(places, stored)]


def _decoded(subject: str, at: int, stored: Stored | None, decode: Callable[[bytes], M]) -> M:
    if stored is None or stored.subject != subject:
        raise missing(subject, at, -1)
    return read(subject, stored, decode)


def read(where: str, stored: Stored, decode: Callable[[bytes], R]) -> R:
    """Whoever may write to a subject may write anything there: what is no message of ours ends one run, not its reader."""
    try:
        return decode(stored.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProofError(
            "a message of the ledger cannot be read",
            code="MDM-0632",
            where=f"{where} ({stored.seq})"[:200],
            expected="what the ledger writes there",
            found=str(error)[:100],
            why="somebody who may write to this subject wrote something else",
            fix="keep the stream as evidence, look who may write there; the other runs go on",
        ) from None


def missing(where: str, expected: int, found: int) -> ProofError:
    return ProofError(
        "records are missing from the ledger",
        code="MDM-0632",
        where=where if where.startswith(("run ", "account ")) else f"run {where}",
        expected=f"event {expected}",
        found=f"event {found}" if found >= 0 else "nothing",
        why="the stream was edited or restored in part",
        fix="keep the stream as evidence; restore a whole backup, or begin another ledger: --ledger nats://HOST/NEW",
    )
