"""One connection, spoken to by libpq's pipeline: `await Wire(connection, prepares=True).ask([(statement, parameters), ...])`.

All of one `ask` is one round trip and one transaction: the server runs the statements one after the other, each sees what those before
it did, and commits at the end. An error undoes them all. Parameters go out as they were encoded, and a statement is prepared when it is
met first; the reader stays registered with the event loop, so that an answer costs one wake-up and nothing else.

The rule a newcomer would break: rows are no success. The commit comes after them, and may still be refused; only the end of the
pipeline says that it stands.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, pq

from mandamus.drivers.ledger_postgres.binary import Reader, Rows, Statement, decode, reader

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

Question = tuple[Statement, list[bytes | None]]
_GOOD = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Wire:
    """`at_rest` False: somebody asks, or left without hearing the answer; then it is of no use any more."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], prepares: bool) -> None:
        self.connection, self.at_rest = connection, True
        self._pq, self._prepares = connection.pgconn, prepares
        self._loop, self._fd = asyncio.get_running_loop(), connection.pgconn.socket
        self._known: set[bytes] = set()  # statements that the server has prepared for this connection
        self._expected: deque[tuple[bool, Statement]] = deque()  # the results to come: whether one only prepares, and what
        self._readers: dict[bytes, Reader] = {}
        self._rows: list[Rows] = []
        self._fault: psycopg.Error | None = None
        self._answer: asyncio.Future[list[Rows]] | None = None
        self._pq.enter_pipeline_mode()
        self.open()

    def open(self) -> None:
        """It is ours: what comes is read as soon as it comes."""
        self._loop.add_reader(self._fd, self._readable)
        self._listens = True

    async def ask(self, questions: Sequence[Question], seconds: float) -> list[Rows]:
        """The rows of each. Raises psycopg's errors: of what the server refused, or of a connection that broke; TimeoutError."""
        answer: asyncio.Future[list[Rows]] = self._loop.create_future()
        self.at_rest, self._answer, self._fault, self._rows = False, answer, None, []
        self._expected.clear()
        self._send(questions)
        late = self._loop.call_later(seconds, _too_late, answer)
        try:
            return await answer
        finally:
            late.cancel()
            self._answer = None

    async def drained(self, seconds: float) -> None:
        """What was asked has come to its end, whatever it was; or the connection is of no use any more."""
        if not self.at_rest and self._pq.status == pq.ConnStatus.OK:
            self._answer = self._loop.create_future()
            await asyncio.wait([self._answer], timeout=seconds)
            self._answer.cancel()

    def close(self) -> None:
        """Before the connection is closed, or goes to somebody who speaks to it otherwise.

        Once: a socket that broke is closed, and its number may be that of another connection by now, which would hear nothing any more.
        """
        listens, self._listens = self._listens, False
        if listens and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)

    # -- out -----------------------------------------------------------------------------------------------------------------
    def _send(self, questions: Sequence[Question]) -> None:
        ours, expected, meant = self._pq, self._expected, set[bytes]()
        for statement, parameters in questions:
            if not self._prepares:
                ours.send_query_params(statement.sql, parameters, statement.types, statement.formats, pq.Format.BINARY)
            else:
                if statement.name not in self._known and statement.name not in meant:
                    ours.send_prepare(statement.name, statement.sql, statement.types)
                    meant.add(statement.name)
                    expected.append((True, statement))
                ours.send_query_prepared(statement.name, parameters, statement.formats, pq.Format.BINARY)
            expected.append((False, statement))
        ours.pipeline_sync()
        if ours.flush():
            self._loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        try:
            if not self._pq.flush():
                self._loop.remove_writer(self._fd)
        except psycopg.Error as error:
            self._broke(error)

    # -- in ------------------------------------------------------------------------------------------------------------------
    def _readable(self) -> None:
        try:
            self._pq.consume_input()
            while not self.at_rest and not self._pq.is_busy():
                result = self._pq.get_result()
                if result is not None:
                    self._take(result)
                elif self._pq.status != pq.ConnStatus.OK:
                    raise self._fault or psycopg.OperationalError("the connection is lost")
        except psycopg.Error as error:
            self._broke(error)

    def _take(self, result: PGresult) -> None:
        status = result.status
        if status in _GOOD:
            prepares, statement = self._expected.popleft()
            if prepares:
                self._known.add(statement.name)
            else:
                columns = self._readers.get(statement.name)
                if columns is None:
                    columns = self._readers[statement.name] = reader(result)
                self._rows.append(decode(result, columns))
        elif status == pq.ExecStatus.PIPELINE_SYNC:
            self._end()
        elif self._fault is None and status != pq.ExecStatus.PIPELINE_ABORTED:
            self._fault = errors.error_from_result(result)

    def _end(self) -> None:
        self.at_rest = True
        if self._answer is None or self._answer.done():
            return
        if self._fault is None:
            self._answer.set_result(self._rows)
        else:
            self._answer.set_exception(self._fault)
            self._answer.exception()

    def _broke(self, error: psycopg.Error) -> None:
        """The server's own last words say more than that the connection is gone."""
        self.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._fault or error)
            self._answer.exception()  # whoever only waited for the end does not ask for it


def _too_late(answer: asyncio.Future[list[Rows]]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())
