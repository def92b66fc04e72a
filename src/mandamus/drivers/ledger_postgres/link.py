"""Connections to one Postgres, and what its errors mean: `Link.fetch` reads, `Link.write` commits one statement, `Link.ask` several.

    link = Link(Address.of("postgres://worker@db:5432/books?schema=mandamus"), "host pid 4121 9f3c")
    rows = await link.write(statement, values)

A write ends in one of three ways: acknowledged at full level; refused, which is known to have changed nothing; or unknown, because the
connection went away before the answer. The rule a newcomer would break: a commit can be "acknowledged" and yet be nowhere but here.
When somebody cancels the wait for the synchronous standby, Postgres answers success with a warning. A warning is an unknown outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection, errors, pq
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from mandamus.drivers.ledger_postgres.address import Address
from mandamus.drivers.ledger_postgres.binary import Rows, Statement
from mandamus.drivers.ledger_postgres.wire import Question, Wire
from mandamus.errors import EngineFault, MandamusError, Misuse, ProofError, Unavailable

Fault = psycopg.Error  # what its statements raise, for our files beside this one: they import psycopg only through here
UniqueViolation = errors.UniqueViolation
InsufficientPrivilege = errors.InsufficientPrivilege

logging.getLogger("psycopg").addHandler(logging.NullHandler())  # its pool tells failed attempts to the log; ours become errors

CANCEL_S = 5
ANSWER_S = 30  # for a statement; a commit that waits for its standby longer has an unknown outcome
TRIES = 5
_LEAVING = ("08", "57P")  # classes of errors that end the connection, whatever became of the statement


class Connection(AsyncConnection[tuple[Any, ...]]):
    """One that remembers whether the server warned during the last statement, and how it is spoken to while it is lent out."""

    warning = ""
    wire: Wire | None = None


class Link:
    """`vet(connection)` is asked about each new connection before anything else uses it, and raises when the server is unfit.

    `prepare(connection)` is asked once, about the first one.
    """

    def __init__(self, address: Address, name: str) -> None:
        self.address, self._name = address, name
        self.vet: Callable[[Connection], Awaitable[None]] = _no_question
        self.prepare: Callable[[Connection], Awaitable[None]] = _no_question
        self._pool: AsyncConnectionPool[Connection] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._prepared = False
        self._fault: MandamusError | None = None  # why the last new connection was not taken
        self._free: list[Connection] = []  # of the pool, at hand without asking it
        self._asking = 0  # how many wait for the pool: then it gets back what becomes free
        self._leaving: set[asyncio.Task[None]] = set()

    # -- statements ----------------------------------------------------------------------------------------------------------
    async def fetch(self, statement: Statement, values: Mapping[str, Any]) -> Rows:
        """Reads. A connection that turns out to be dead is no answer: the next one is asked."""
        for left in reversed(range(TRIES)):
            try:
                return await self._once((statement, self.encoded(statement, values)))
            except Unavailable as lost:
                if lost.outcome == "none" or not left:
                    raise Unavailable(lost.diagnosis.what, outcome="none", **_rest(lost)) from None
        raise AssertionError("the last fault is raised")

    async def write(self, statement: Statement, values: Mapping[str, Any]) -> Rows:
        """Commits. Raises Unavailable with what is known of the outcome, Misuse, EngineFault, ProofError; `UniqueViolation` as it is."""
        return await self.write_encoded((statement, self.encoded(statement, values)))

    async def write_encoded(self, question: Question) -> Rows:
        for _ in range(TRIES):
            try:
                return await self._once(question)
            except (errors.SerializationFailure, errors.DeadlockDetected):
                continue  # rolled back whole: the same statement again is the same question
        raise Unavailable(
            "Postgres undid the write again and again",
            outcome="none",
            code="MDM-0553",
            where=self.address.where,
            why="other writers stood in its way each time",
            fix="try again",
        )

    async def ask(self, questions: Sequence[Question]) -> list[Rows]:
        """The rows of each, committed together. Raises `Fault` when the server refused one of them: then nothing was written; Unavailable
        with what is known of the outcome."""
        connection = await self._borrow()
        connection.warning = ""
        wire = connection.wire
        assert wire is not None, "what is lent out has its wire"
        try:
            rows = await wire.ask(questions, ANSWER_S)
        except TimeoutError:
            raise self._silent() from None
        except psycopg.Error as error:
            fault = translate(error, self.address.where)
            if isinstance(fault, Unavailable) and fault.outcome == "unknown":
                raise fault from None
            raise
        finally:
            await self._give_back(connection)
        if connection.warning:
            raise self._half_committed(connection.warning)
        return rows

    def encoded(self, statement: Statement, values: Mapping[str, Any]) -> list[bytes | None]:
        """Raises Misuse for what no column holds."""
        try:
            return statement.encode(values)
        except (struct.error, UnicodeError) as error:
            raise Misuse("Postgres cannot store this value", code="MDM-0124", where=self.address.where, found=str(error)[:200]) from None

    async def _once(self, question: Question) -> Rows:
        try:
            return (await self.ask((question,)))[0]
        except (errors.SerializationFailure, errors.DeadlockDetected, UniqueViolation):
            raise
        except psycopg.Error as error:
            raise translate(error, self.address.where) from None

    # -- connections ---------------------------------------------------------------------------------------------------------
    async def connect(self, conninfo: str = "") -> Connection:
        """One outside of the pool; the caller closes it. Raises Unavailable."""
        try:
            return await Connection.connect(conninfo or self.address.conninfo, **self._options())
        except (psycopg.Error, OSError) as error:
            raise unreachable(self.address.where, error) from None

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        for connection in self._free:
            await _closed(connection, None)
        self._free.clear()
        if pool is not None and self._loop is asyncio.get_running_loop():
            await self.quiet()
            await pool.close()

    async def _borrow(self) -> Connection:
        pool = self._pool
        if pool is None or self._loop is not asyncio.get_running_loop():
            pool = await self._open()
        deadline = asyncio.get_running_loop().time() + self.address.patience
        while True:
            connection = self._free.pop() if self._free else await self._from_pool(pool, deadline)
            if not _hung_up(connection):
                return connection
            await self._drop(connection)  # nothing was sent on it: this is no unknown outcome

    async def _from_pool(self, pool: AsyncConnectionPool[Connection], deadline: float) -> Connection:
        self._asking += 1
        try:
            connection = await pool.getconn(max(0.1, deadline - asyncio.get_running_loop().time()))
        except PoolTimeout as error:
            raise self._fault or unreachable(self.address.where, error) from None
        finally:
            self._asking -= 1
        if connection.wire is not None:
            connection.wire.open()
        elif not _hung_up(connection):
            connection.wire = Wire(connection, prepares=not self.address.pooled)
        return connection

    async def _give_back(self, connection: Connection) -> None:
        wire = connection.wire
        if wire is None or not wire.at_rest or self._pool is None:
            await self._drop(connection)
        elif self._asking:
            wire.close()
            await self._pool.putconn(connection)
        else:
            self._free.append(connection)

    async def _drop(self, connection: Connection) -> None:
        """Closed, and the pool makes another. A statement that nobody waits for any more is called off first, behind the caller's back."""
        wire = connection.wire
        if wire is not None and not wire.at_rest and not connection.closed:
            task = asyncio.get_running_loop().create_task(_called_off(connection, wire, self._pool))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        else:
            await _closed(connection, self._pool)

    async def quiet(self) -> None:
        """No statement is under way any more whose answer nobody waits for."""
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _open(self) -> AsyncConnectionPool[Connection]:
        """At the first await, and again in another event loop: connections belong to the loop that they were made in."""
        async with self._opening:
            if self._pool is not None and self._loop is asyncio.get_running_loop():
                return self._pool
            if not self._prepared:
                first = await self.connect()
                try:
                    await self._configure(first)
                    await self.prepare(first)
                except psycopg.Error as error:
                    raise translate(error, self.address.where) from None
                finally:
                    await first.close()
                self._prepared = True
            for stale in self._free:  # of another event loop, which has ended
                stale.pgconn.finish()
            self._free.clear()
            self._leaving.clear()
            pool = AsyncConnectionPool(
                self.address.conninfo,
                connection_class=Connection,
                kwargs=self._options(),
                min_size=1,
                max_size=self.address.connections,
                open=False,
                configure=self._configure,
                name=self._name,
                timeout=self.address.patience,
                reconnect_timeout=2,  # then the next who asks begins anew, without waiting out a long pause
            )
            await pool.open()
            self._pool, self._loop = pool, asyncio.get_running_loop()
            return pool

    async def _configure(self, connection: Connection) -> None:
        def heard(said: errors.Diagnostic) -> None:
            if said.severity_nonlocalized in ("WARNING", None):
                connection.warning = said.message_primary or "a warning without words"

        connection.add_notice_handler(heard)
        try:
            await self.vet(connection)
            self._fault = None
        except MandamusError as fault:
            self._fault = fault
            raise

    def _options(self) -> dict[str, Any]:
        return {
            "autocommit": True,
            "prepare_threshold": None,
            "application_name": self._name,
            "connect_timeout": max(2, self.address.patience // 2),
            "target_session_attrs": "read-write",  # a replica may be behind: heads come from the primary
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        }

    # -- diagnoses -----------------------------------------------------------------------------------------------------------
    def _silent(self) -> Unavailable:
        return Unavailable(
            f"Postgres did not answer within {ANSWER_S} s",
            outcome="unknown",
            code="MDM-0541",
            where=self.address.where,
            why="a commit waits for its synchronous standby, or somebody holds a lock",
            fix="look at pg_stat_activity and pg_stat_replication; then mandamus resume RUN",
        )

    def _half_committed(self, said: str) -> Unavailable:
        return Unavailable(
            "Postgres committed, but not as safely as it is configured to",
            outcome="unknown",
            code="MDM-0542",
            where=self.address.where,
            found=said[:200],
            why="a commit that no standby has is lost with this server",
            fix="bring the synchronous standby back; then mandamus resume RUN",
        )


def translate(error: psycopg.Error, where: str) -> MandamusError:
    """Of a statement that was sent. What the server refused in words was rolled back; everything else is unknown."""
    state, said = error.sqlstate or "", str(error).strip().partition("\n")[0][:300]
    severity = error.diag.severity_nonlocalized
    ours = isinstance(error, psycopg.DataError | psycopg.NotSupportedError | psycopg.ProgrammingError)  # said before anything was sent
    if (not state and not ours) or state.startswith(_LEAVING) or severity in ("FATAL", "PANIC"):
        return Unavailable(
            "the connection to Postgres was lost before it answered",
            outcome="unknown",
            code="MDM-0541",
            where=where,
            found=said,
            fix="see that the server runs; then mandamus resume RUN",
        )
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return Unavailable(
            "Postgres takes no writes", outcome="none", code="MDM-0544", where=where, found=said, fix="connect to the primary"
        )
    if isinstance(error, errors.DiskFull):
        return Unavailable("the disk is full", outcome="none", code="MDM-0512", where=where, found=said, fix="free some space, then resume")
    if isinstance(error, errors.InsufficientPrivilege):
        return EngineFault(
            "this login may not do that in Postgres", code="MDM-0549", where=where, found=said, fix="GRANT the schema's role to it"
        )
    if isinstance(error, errors.UndefinedTable | errors.UndefinedColumn | errors.UndefinedFunction | errors.InvalidSchemaName):
        return EngineFault(
            "the ledger's tables are not there", code="MDM-0546", where=where, found=said, fix="run the migrations as the schema's owner"
        )
    if isinstance(error, psycopg.IntegrityError):
        return ProofError(
            "the ledger's tables contradict each other",
            code="MDM-0631",
            where=where,
            found=said,
            why="a row stands where the head says that there is none: the tables were edited, or restored in part",
            fix="keep the database as evidence; restore a whole backup, or begin another schema",
        )
    if isinstance(error, psycopg.DataError):
        return Misuse("Postgres cannot store this value", code="MDM-0124", where=where, found=said)
    return Unavailable("Postgres refused a statement", outcome="none", code="MDM-0552", where=where, found=said, fix="read its log")


def unreachable(where: str, error: Exception) -> Unavailable:
    return Unavailable(
        "Postgres does not answer",
        outcome="none",
        code="MDM-0540",
        where=where,
        found=str(error).strip().partition("\n")[0][:300],
        fix="see that the server runs, accepts this login, and is a primary",
    )


def _hung_up(connection: Connection) -> bool:
    """Between statements a server says nothing unless it goes; what can be read then is its farewell."""
    if connection.closed or connection.pgconn.status != pq.ConnStatus.OK:
        return True
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))


async def _closed(connection: Connection, pool: AsyncConnectionPool[Connection] | None) -> None:
    if connection.wire is not None:
        connection.wire.close()
    await connection.close()
    if pool is not None:
        await pool.putconn(connection)


async def _called_off(connection: Connection, wire: Wire, pool: AsyncConnectionPool[Connection] | None) -> None:
    try:
        with contextlib.suppress(psycopg.Error, OSError):  # it ends by itself, or with its server
            await connection.cancel_safe(timeout=CANCEL_S)
        await wire.drained(CANCEL_S)
    finally:
        await _closed(connection, pool)


def _rest(fault: Unavailable) -> dict[str, str]:
    d = fault.diagnosis
    return {"code": d.code, "where": d.where, "expected": d.expected, "found": d.found, "why": d.why, "fix": d.fix}


async def _no_question(connection: Connection) -> None:
    """Nothing is asked."""
