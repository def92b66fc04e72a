"""How far the log is behind the ledger: `await lag(ledger, reader, spans, at_most)`. A number that `doctor`, `top` and `log head` show.

The rule a newcomer would break: a ledger that was copied feeds records that are leaves already, and a cursor of its source means nothing to
it. So what is behind a row is asked for with both in mind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from mandamus.errors import Misuse, ProofError
from mandamus.ports import Fed, Ledger
from mandamus.runtime.tlog import checks, objects
from mandamus.runtime.tlog.objects import PENDING, SIGNED, Pending
from mandamus.runtime.tlog.reader import Reader
from mandamus.runtime.tlog.spans import Spans, follow


async def newest_row(reader: Reader) -> Pending | None:
    """What was announced last."""
    stored = await reader.newest(PENDING)
    return objects.unpack(stored[1], Pending, objects.name(PENDING, stored[0]), reader.origin) if stored else None


async def behind(ledger: Ledger, row: Pending | None, limit: int) -> AsyncIterator[Fed]:
    """What the ledger feeds behind a row; all of it, when the row was written on another ledger, of which this one is a copy."""
    after = row.cursor if row else ""
    try:
        async for fed in ledger.feed(after, limit):
            yield fed
        return
    except (Misuse, ProofError) as other:
        if other.diagnosis.code not in (checks.FOREIGN, checks.GONE):
            raise
    async for fed in ledger.feed():
        yield fed


async def lag(ledger: Ledger, reader: Reader, spans: Spans, at_most: int) -> int:
    """How many records of the ledger lie under no signed checkpoint yet, counted as far as `at_most`."""
    row, signed = await newest_row(reader), await reader.newest(SIGNED)
    size = row.size if row else 0
    await follow(spans, reader, size)
    many = size - (signed[0] if signed else 0)
    async for fed in behind(ledger, row, at_most):
        if many >= at_most:
            return at_most
        many += spans.next(fed.run, size) <= fed.seq
    return many
