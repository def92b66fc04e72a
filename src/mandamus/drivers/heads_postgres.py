"""Witnessed heads in a table of a Postgres database that is not the ledger's. `MANDAMUS_HEADS=postgres://witness@other-host/db`

Rights that suffice once the table exists: SELECT and INSERT on `mandamus_head`. Rows are only ever inserted.

The rule a newcomer would break: a witness may be slow or away, the ledger may not wait for it. Every call here ends within `PATIENCE_S`,
with an answer or with Unavailable; a connection that failed once is thrown away.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from mandamus.errors import Misuse, Unavailable
from mandamus.ports import Sighting

T = TypeVar("T")
PATIENCE_S = 3.0
_MAKE = """
CREATE TABLE IF NOT EXISTS mandamus_head (
    origin text NOT NULL, chain text NOT NULL, seq bigint NOT NULL, hash text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (origin, chain, seq, hash))
"""
_TELL = "INSERT INTO mandamus_head (origin, chain, seq, hash) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
_SEEN = "SELECT chain, seq, hash FROM mandamus_head WHERE origin = %s AND chain = %s ORDER BY seq DESC, at LIMIT 1"
_ALL = "SELECT DISTINCT ON (chain) chain, seq, hash FROM mandamus_head WHERE origin = %s ORDER BY chain, seq DESC, at"


class PostgresHeads:
    """Implements `ports.Heads` with one connection, opened at the first call."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._db: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self._one = asyncio.Lock()

    @classmethod
    def open(cls, uri: str) -> PostgresHeads:
        """Raises Misuse for a URI that libpq would read as something else than was meant: what it says of it may quote the password."""
        try:
            parts = urlsplit(uri)
            whole = not (parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment)
            int(conninfo_to_dict(uri).get("connect_timeout") or 0)
        except (psycopg.Error, ValueError):
            whole = False
        if not whole:
            raise Misuse(
                "the URI of the witnessed heads cannot be used", code="MDM-0290", where="MANDAMUS_HEADS",
                expected="postgres://USER@HOST:PORT/DATABASE, with %40 for @, %2F for /, %23 for # and %3F for ? in a password",
            )  # fmt: skip
        return cls(uri)

    async def tell(self, origin: str, sightings: Sequence[Sighting]) -> None:
        async def work(db: psycopg.AsyncConnection[tuple[Any, ...]]) -> None:
            async with db.transaction(), db.cursor() as cursor:
                await cursor.execute("SET LOCAL synchronous_commit TO on")
                await cursor.executemany(_TELL, [(origin, s.chain, s.seq, s.hash) for s in sightings])

        await self._ask(work)

    async def seen(self, origin: str, chain: str) -> Sighting | None:
        async def work(db: psycopg.AsyncConnection[tuple[Any, ...]]) -> Sighting | None:
            row = await (await db.execute(_SEEN, (origin, chain))).fetchone()
            return Sighting(*row) if row else None

        return await self._ask(work)

    async def all(self, origin: str) -> AsyncIterator[Sighting]:
        async def work(db: psycopg.AsyncConnection[tuple[Any, ...]]) -> list[Sighting]:
            rows = await (await db.execute(_ALL, (origin,))).fetchall()
            return sorted((Sighting(*row) for row in rows), key=lambda s: s.chain)  # the database may order letters in another way

        for one in await self._ask(work):
            yield one

    async def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            await db.close()

    # -- the connection ----------------------------------------------------------------------------------------------------------
    async def _ask(self, work: Callable[[psycopg.AsyncConnection[tuple[Any, ...]]], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(PATIENCE_S), self._one:
                if self._db is None or self._db.closed:
                    self._db = await self._connect()
                return await work(self._db)
        except (psycopg.Error, OSError, TimeoutError) as error:
            await self.close()
            raise self._silent(error) from None

    async def _connect(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        db = await psycopg.AsyncConnection.connect(self._uri, autocommit=True, prepare_threshold=None)
        try:
            found = await (await db.execute("SELECT to_regclass('mandamus_head')")).fetchone()
            if found is None or found[0] is None:  # asked first: who may only insert cannot make it, and need not
                await db.execute(_MAKE)
        except BaseException:
            await db.close()
            raise
        return db

    def _silent(self, error: BaseException) -> Unavailable:
        at = urlsplit(self._uri)
        said = str(error).strip().splitlines() or [f"no answer within {PATIENCE_S:.0f} s"]
        return Unavailable(
            "the store of witnessed heads does not answer", outcome="unknown", code="MDM-0516",
            where=f"{at.hostname or 'local socket'}{at.path}", found=said[0][:200],
            fix="start it, or name another: MANDAMUS_HEADS=postgres://…",
        )  # fmt: skip
