"""Reads stored chains to carry them elsewhere: page by page, each record checked, with its payloads, without an agent.

    async for record, raw in checked(ledger, head): ...
    chain = await survey(ledger, head)

The rule a newcomer would break: what is read is what `head` said, and no further; the last record must be the one that the row names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from msgspec import UNSET, Struct

from mandamus.core import records as r
from mandamus.core.accounts import Delta
from mandamus.core.canonical import digest
from mandamus.core.fold import evolve
from mandamus.core.payload import Payload
from mandamus.core.records import event_hash
from mandamus.core.run import EMPTY, Run
from mandamus.errors import ProofError
from mandamus.ports import Head, Ledger
from mandamus.proof.chain import Walk, further
from mandamus.proof.life import Life

T = TypeVar("T")
PAGE = 256


class Chain(Struct):
    """What one look at a stored run told: how long it is, whose accounts it moved, which runs it cannot do without."""

    head: Head
    sealed: bool
    acting: bool
    accounts: set[str]
    relatives: set[str]


@asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Whoever stops reading half way gives back what the driver holds for it."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


async def checked(ledger: Ledger, head: Head, walked: Walk | None = None) -> AsyncIterator[tuple[r.AnyRecord, bytes]]:
    """The records of a chain up to `head`, each checked against the one before. Raises ProofError for one that does not hold."""
    walked = walked or Walk([], Life(head.seq + 1), run=head.run)
    page: list[bytes] = []
    async with closing(ledger.read(head.run, upto=head.seq)) as stream:
        async for raw in stream:
            page.append(raw)
            if len(page) == PAGE:
                for one in _believed(walked, page):
                    yield one
                page = []
    for one in _believed(walked, page):
        yield one
    if walked.head != head.hash or walked.count != head.seq + 1:
        raise ProofError(
            f"the last event of run {head.run} is not the one its head names", code="MDM-0642", expected=head.hash[:12],
            found=walked.head[:12], why="the end of the chain was cut or changed",
        )  # fmt: skip


def _believed(walked: Walk, page: list[bytes]) -> list[tuple[r.AnyRecord, bytes]]:
    records: list[r.AnyRecord] = []
    further(walked, page, each=lambda record, hash: records.append(record))
    if (f := walked.fault) is not None:
        raise ProofError(
            f"event {f.event} cannot stand where it stands: {f.what}", code=f.code, where=f"run {walked.run}", expected=f.expected[:12],
            found=f.found[:12], why="what is broken is not carried anywhere", fix="keep the ledger as evidence; mandamus doctor",
        )  # fmt: skip
    return list(zip(records, page, strict=True))


async def folded(ledger: Ledger, head: Head) -> Run:
    now = EMPTY
    async for record, raw in checked(ledger, head):
        now = evolve(now, record, event_hash(raw))
    return now


async def survey(ledger: Ledger, head: Head) -> Chain:
    walked = Walk([], Life(head.seq + 1), run=head.run)
    found = Chain(head, False, False, set(), set())
    async for record, _ in checked(ledger, head, walked):
        match record.fact:
            case r.RunOpened() as fact if fact.parent is not UNSET:
                found.relatives.add(fact.parent.run)
            case r.ActionStarted() as fact:
                found.accounts |= {x.account for x in fact.reserves}
                found.relatives |= {fact.child} if fact.child else set()
            case r.ActionEnded() as fact:
                found.accounts |= {x.account for x in fact.spends}
            case _:
                pass
    found.sealed = walked.life.sealed
    found.acting = any(state in ("started", "doubted") for state in walked.life.actions.values())
    return found


async def with_payloads(ledger: Ledger, head: Head, after: int) -> AsyncIterator[tuple[r.AnyRecord, bytes, list[Payload]]]:
    """Each record with its payloads, those up to `after` without them: both come in the order of their places."""
    waiting: Payload | None = None
    async with closing(ledger.payloads(head.run, after)) as values:
        waiting = await anext(values, None)
        async for record, raw in checked(ledger, head):
            mine: list[Payload] = []
            while waiting is not None and waiting.seq <= record.seq:
                mine.append(waiting)
                waiting = await anext(values, None)
            yield record, raw, mine


async def equal(left: AsyncIterator[object], right: AsyncIterator[object]) -> bool:
    """Whether both give the same, to the end."""
    async with closing(left) as ours, closing(right) as theirs:
        async for one in ours:
            if one != await anext(theirs, None):
                return False
        return await anext(theirs, None) is None


def linked(id: str, lines: Sequence[bytes], deltas: Sequence[Delta]) -> list[str]:
    hashes: list[str] = []
    for n, (raw, delta) in enumerate(zip(lines, deltas, strict=True), 1):
        if (delta.account, delta.version, delta.prev) != (id, n, hashes[-1] if hashes else ""):
            raise ProofError(f"delta {n} does not follow the one before it", code="MDM-0657", where=f"account {id}", why="it was changed")
        hashes.append(digest("delta", raw))
    return hashes
