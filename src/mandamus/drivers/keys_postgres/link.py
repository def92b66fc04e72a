"""Connections to the Postgres that keeps keys: `async with link.transaction() as db: await db.run("touch", subject=…, run=…)`.

Statements stand in sql/keys_postgres.sql, under names. The rule a newcomer would break: a key that was acknowledged and is then lost takes
with it what was sealed under it. Commits are flushed, also where the server is configured otherwise, and one that comes with a warning (no
standby has it) is not believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from mandamus.errors import EngineFault, MandamusError, Misuse, Unavailable

try:
    import psycopg
    from psycopg import errors, pq
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:  # an extra: most key stores are files
    raise Misuse(
        "the Postgres driver is not installed", code="MDM-0112", found=str(error), fix="pip install 'mandamus[postgres]'"
    ) from None

FORM = "postgres://USER@HOST:PORT/DATABASE?schema=mandamus_keys"
LENT_MAX = 8  # connections of one process, those that wait for `alone` aside
ANSWER_S = 30.0
LONG_S = 900.0  # for an erasure that wraps many keys anew
_FLUSHED = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') <> 'remote_apply'"
_schema = re.compile(r"[a-z_][a-z0-9_]{0,40}").fullmatch
_named = re.compile(r"^-- (\w+)(?::[^\n]*)? --\n(.*?)(?=\n-- \w+(?::[^\n]*)? --\n|\Z)", re.MULTILINE | re.DOTALL).findall


class Address:
    """A key store's URI, taken apart. Raises Misuse; the URI is quoted nowhere, since a password may stand in it."""

    def __init__(self, uri: str) -> None:
        try:
            parts = urlsplit(uri)
            asked = parse_qsl(parts.query, keep_blank_values=True)
            rest = urlencode([(name, value) for name, value in asked if name != "schema"])
            self.conninfo = urlunsplit(("postgresql", parts.netloc, parts.path, rest, ""))
            known = conninfo_to_dict(self.conninfo)
            whole = not (parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment)
        except (psycopg.Error, ValueError):
            whole = False
        if not whole:
            raise Misuse(
                "the URI of the key store cannot be used", code="MDM-0961", where="MANDAMUS_KEYS", expected=f"{FORM}, with %40 for @"
            )
        self.schema = dict(asked).get("schema", "mandamus_keys")
        if not _schema(self.schema):
            raise Misuse("the key store's schema is no plain name", code="MDM-0961", where="MANDAMUS_KEYS", found=self.schema[:40])
        self.where = f"{known.get('host', 'localhost')}:{known.get('port', '5432')}/{known.get('dbname', '')}"
        self.place = f"postgres://{self.where}?schema={self.schema}"


class Db:
    """A connection that is lent out. `run` does a statement by its name."""

    def __init__(self, raw: psycopg.AsyncConnection[tuple[Any, ...]], schema: str) -> None:
        self.raw, self._schema, self.warning = raw, schema, ""
        raw.add_notice_handler(self._heard)

    async def run(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        cursor = await self.raw.execute(_sql(name, self._schema), values or None)
        return await cursor.fetchall() if cursor.description else []

    async def make(self, store: str) -> None:
        """All tables at once; they hold nothing but the store's own name."""
        await self.raw.execute(_sql("tables", self._schema).replace(b"%(store)s", f"'{store}'".encode()))
        await self.raw.execute(_sql("rights", self._schema))

    async def one(self, name: str, /, **values: Any) -> Any:
        """The first value of the first row, or None."""
        found = await self.run(name, **values)
        return found[0][0] if found else None

    async def hold(self, what: str, *, shared: bool = False) -> None:
        """A lock of this store until the transaction ends, or its process."""
        await self.raw.execute(f"SELECT pg_advisory_xact_lock{'_shared' if shared else ''}(%s)".encode(), (self._lock(what),))

    async def try_hold(self, what: str) -> bool:
        found = await (await self.raw.execute("SELECT pg_try_advisory_xact_lock(%s)", (self._lock(what),))).fetchone()
        return bool(found and found[0])

    def _lock(self, what: str) -> int:
        return int.from_bytes(hashlib.sha256(f"mandamus/keys/{self._schema}/{what}".encode()).digest()[:8], "big", signed=True)

    def _heard(self, said: errors.Diagnostic) -> None:
        if said.severity_nonlocalized in ("WARNING", None):
            self.warning = said.message_primary or "a warning without words"


class Link:
    """Connections belong to the event loop that they were made in; in another one they are made anew."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[Db] = []
        self._turns, self._making = asyncio.Semaphore(LENT_MAX), asyncio.Lock()
        self._closed = False

    @asynccontextmanager
    async def lent(self, patience_s: float = ANSWER_S) -> AsyncIterator[Db]:
        """A connection whose statements commit one by one. One that somebody left in the middle of something is thrown away."""
        self._here()
        db: Db | None = None
        try:
            async with self._turns, asyncio.timeout(patience_s):
                db = await self._alive() or await self._connect()
                db.warning = ""
                yield db
                if db.warning:
                    raise self._half(db.warning)
                self._idle.append(db)
                db = None
        except (psycopg.Error, OSError, TimeoutError) as error:
            raise self.fault(error) from None
        finally:
            if db is not None:
                await _thrown_away(db)

    @asynccontextmanager
    async def transaction(self, patience_s: float = ANSWER_S) -> AsyncIterator[Db]:
        async with self.lent(patience_s) as db, db.raw.transaction():
            yield db

    async def ask(self, name: str, /, **values: Any) -> list[tuple[Any, ...]]:
        """Reads. Asked again once, when the connection turns out to be dead all the same."""
        for last in (False, True):
            fresh = not self._idle
            try:
                async with self.lent() as db:
                    return await db.run(name, **values)
            except Unavailable:
                if last or fresh:
                    raise
                await self.drop()
        raise AssertionError("the last fault is raised")

    async def close(self) -> None:
        self._closed = True
        await self.drop()

    async def drop(self) -> None:
        self._here()
        idle, self._idle = self._idle, []
        for db in idle:
            await _thrown_away(db)

    async def _alive(self) -> Db | None:
        """One at hand whose server has not hung up. Nothing is sent on one that has, so nobody wonders what became of it."""
        while self._idle:
            db = self._idle.pop()
            if not _hung_up(db):
                return db
            await _thrown_away(db)
        return None

    def one_by_one(self) -> asyncio.Lock:
        """Of all tasks of this process one makes what all of them need."""
        self._here()
        return self._making

    async def own(self) -> Db:
        """One that is not lent; the caller closes it."""
        try:
            return await self._connect()
        except (psycopg.Error, OSError) as error:
            raise self.fault(error) from None

    def _here(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            for db in self._idle:
                db.raw.pgconn.finish()
            self._idle, self._loop = [], asyncio.get_running_loop()
            self._turns, self._making = asyncio.Semaphore(LENT_MAX), asyncio.Lock()

    async def _connect(self) -> Db:
        if self._closed:
            raise Misuse("the key store is closed", code="MDM-0135", fix="open it again")
        raw = await psycopg.AsyncConnection.connect(
            self.address.conninfo, autocommit=True, prepare_threshold=None, connect_timeout=10, application_name="mandamus keys",
            target_session_attrs="read-write", keepalives_idle=10, keepalives_interval=5, keepalives_count=3,
        )  # fmt: skip
        try:
            await raw.execute(
                "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') <> 'remote_apply'"
            )
            await raw.execute("SET idle_in_transaction_session_timeout = 0")
        except BaseException:
            await raw.close()
            raise
        return Db(raw, self.address.schema)

    # -- diagnoses -------------------------------------------------------------------------------------------------------------
    def fault(self, error: BaseException) -> MandamusError:
        said = (str(error).strip().splitlines() or ["no answer in time"])[0][:200]
        if isinstance(error, errors.InsufficientPrivilege):
            return EngineFault(
                "this login may not do that in the key store", code="MDM-0966", where=self.address.place, found=said,
                fix="let the owner of the schema use it first, then GRANT this login what it needs: docs/how-to/forget.md",
            )  # fmt: skip
        return Unavailable(
            "the key store does not answer", outcome="unknown", code="MDM-0966", where=self.address.place, found=said,
            why="without its keys nothing is sealed, and nothing is opened", fix="see that its server runs and accepts this login",
        )  # fmt: skip

    def _half(self, said: str) -> Unavailable:
        return Unavailable(
            "the key store committed, but not as safely as it is configured to", outcome="unknown", code="MDM-0966",
            where=self.address.place, found=said[:200], why="a key that no standby has is lost with this server",
            fix="bring the synchronous standby back",
        )  # fmt: skip


@cache
def _sql(name: str, schema: str) -> bytes:
    return _statements()[name].replace("@", f"{schema}.").encode()


@cache
def _statements() -> dict[str, str]:
    return dict(_named(resources.files("mandamus.drivers").joinpath("sql", "keys_postgres.sql").read_text("utf-8")))


def _hung_up(db: Db) -> bool:
    """Between statements a server says nothing unless it goes; what can be read then is its farewell."""
    if db.raw.closed or db.raw.pgconn.status != pq.ConnStatus.OK:
        return True
    poll = select.poll()
    poll.register(db.raw.pgconn.socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


async def _thrown_away(db: Db) -> None:
    with contextlib.suppress(psycopg.Error, OSError):
        await db.raw.close()
