"""The ledger in one SQLite file: WAL, synchronous=FULL, several processes, compare-and-append on the run's head.

    ledger = SqliteLedger.open("run.db")
    head = await ledger.append(run, None, [genesis], payloads=[...], wake=Wake(now, 0))

Safety is `BEGIN IMMEDIATE` -> compare head -> insert -> COMMIT; any process may append. Ownership is a kernel lock beside the file
(`_sqlite_own`) and serves liveness: it is dropped at death, so taking a run over needs no wait.

The rule a newcomer would break: after a failed write the connection is finished. It is closed, the file is opened again and its log
copied and flushed; until then nothing is answered, because what such a connection shows may not be on the disk.

Layout, measured per one-tool turn (9 records of 400 B, 6 payloads of 300 B, two commits, checkpoint included; 200 turns of one run):

    primary key (run text, seq) WITHOUT ROWID            7,045 B stored   88 KB written
    the same with the run as an integer                  6,840 B          88 KB
    rowid table with a unique index (run, seq)           7,004 B          70 KB
    **one integer `spot` as rowid, 4,096 B pages**       6,144 B          40 KB
    the same, 2,048 B pages / 1,024 B pages              6,707 / 6,738 B  33 / 24 KB

WITHOUT ROWID also sends every value over about 1 KB to overflow pages (1,500 B payloads: 32.7 KB stored a turn against 16.4 KB).
No hash is stored beside a record: it is recomputed by whoever reads, and the chain carries it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from mandamus.core import feed
from mandamus.core.admit import admit, refuse_name
from mandamus.core.payload import INLINE_MAX, Payload
from mandamus.core.seal import Sealed
from mandamus.drivers import _sqlite_file as file
from mandamus.drivers import _sqlite_tables as tables
from mandamus.drivers._sqlite_group import GroupCommit, Job, Rest
from mandamus.drivers._sqlite_own import Ownership
from mandamus.drivers._sqlite_run import run_all
from mandamus.errors import Conflict, MandamusError, Misuse, Unavailable
from mandamus.ports import Account, AccountCheck, AccountWrite, Fed, Head, Node, Wake

_sql = file.queries()
_node = msgspec.json.Decoder(Node).decode
HINT_MS = 200
FEED_PAGE = 256
_SEQ = (1 << 28) - 1


def _now() -> int:
    return time.time_ns() // 1000


class SqliteLedger:
    """Implements `ports.Ledger`. One object serves any number of runs, tasks and threads of this process."""

    def __init__(self, path: Path, clock: Callable[[], int], vfs: str) -> None:
        self._path, self._clock, self._vfs = path, clock, vfs
        self._own = Ownership(path)
        self._holder = f"{_me()} {os.urandom(4).hex()}"
        self._reading = threading.RLock()
        self._writer: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None
        self._flushes = True  # what `synchronous` stands at
        self._settled = False  # what an earlier process wrote, and may not have flushed, is on the disk
        self._finished = False  # a write failed: nothing is believed before the file was opened again
        self._closed = False
        self._log_pages = 0
        self._group = GroupCommit(self._commit, self._begin_group, self._after_commit)
        self._connect()

    @classmethod
    def open(cls, path: str | Path, clock: Callable[[], int] = _now, *, vfs: str = "") -> SqliteLedger:
        """Makes the file when there is none. Raises Misuse, EngineFault, ProofError, Unavailable: unsafe settings are an error."""
        return cls(Path(path).absolute(), clock, vfs)

    @property
    def locks(self) -> bool:
        return True

    @property
    def in_order(self) -> bool:
        return True

    @property
    def commits(self) -> tuple[int, int]:
        """(inline, by the writer thread) since opening."""
        return self._group.inline, self._group.groups

    # -- records -------------------------------------------------------------------------------------------------------------
    async def head(self, run: str) -> Head | None:
        rows = await self._fetch(_sql["head"], (run,))
        return tables.head_of(rows[0]) if rows else None

    async def append(
        self,
        run: str,
        after: Head | None,
        records: Sequence[bytes],
        *,
        payloads: Sequence[Payload] = (),
        also: Sequence[AccountWrite | AccountCheck] = (),
        wake: Wake | None = None,
        seals: Sequence[Sealed] = (),
    ) -> Head:
        """A lone append commits here and now; several at once share a commit, in the order in which they came.

        No records: accounts or the wake-up alone.
        """
        if not (records or also or wake):
            raise Misuse("nothing to append", code="MDM-0123", where=f"run {run[:64]}")
        new = admit(run, (after.seq, after.hash, after.epoch) if after else None, records, payloads, seals)

        def work() -> Head:
            return tables.append(self._cursor, run, after, new, records, payloads, also, wake, self._clock())

        head: Head = await self._submit(work, lone=self._own.only(run))
        return head

    async def read(self, run: str, after: int = -1, upto: int | None = None) -> AsyncIterator[bytes]:
        place = await self._place(run)
        if place is None:
            return
        no, last = place
        last = last if upto is None else min(last, upto)
        seq = max(after, -1)
        while seq < last:
            rows = await self._fetch(_sql["events"], (tables.spot(no, seq + 1) - 1, tables.spot(no, last)))
            if not rows:
                tables.dense(run, seq + 1, -1)
            for where, body in rows:
                seq += 1
                if where >> 5 & _SEQ != seq:
                    tables.dense(run, seq, where >> 5 & _SEQ)
                yield body

    async def payload(self, run: str, seq: int, part: str) -> Payload | None:
        place = await self._place(run)
        if place is None or not 0 <= seq <= place[1]:
            return None
        rows = await self._fetch(_sql["payload"], (tables.spot(place[0], seq), tables.spot(place[0], seq, 31), part))
        return Payload(run, seq, part, rows[0][0], rows[0][1]) if rows else None

    async def payloads(self, run: str, after: int = -1, parts: Sequence[str] = ()) -> AsyncIterator[Payload]:
        place = await self._place(run)
        if place is None:
            return
        no, last = place
        where, end = tables.spot(no, max(after, -1) + 1) - 1, tables.spot(no, last, 31)
        sql, named = (_sql["payloads_named"], (json.dumps(list(parts)),)) if parts else (_sql["payloads"], ())
        while rows := await self._fetch(sql, (where, end, *named)):
            for where, part, value, form in rows:
                yield Payload(run, where >> 5 & _SEQ, part, value, form)

    async def feed(self, after: str = "", limit: int | None = None) -> AsyncIterator[Fed]:
        """The first that is given out of a file costs one flush: its last writer may have died before his own."""
        leaf, left = await self._leaf(after) if after else 0, limit
        while asked := FEED_PAGE if left is None else min(left, FEED_PAGE):
            page = await self._fetch(_sql["feed"], (leaf, asked))
            if page and not self._settled:
                await self._submit(lambda: tables.settle(self._cursor))
                self._settled = True
            for row in page:
                leaf += 1
                yield tables.fed(leaf, row)
            if len(page) < asked:
                return
            left = None if left is None else left - asked

    async def _leaf(self, after: str) -> int:
        (leaf,) = feed.read(after, 1)
        rows = await self._fetch(_sql["feed"], (leaf - 1, 1))
        feed.stands(after, rows[0][3] if rows and rows[0][0] == leaf else None)
        return leaf

    # -- accounts ------------------------------------------------------------------------------------------------------------
    async def account(self, id: str) -> Account | None:
        rows = await self._fetch(_sql["account"], (id,))
        return Account(*rows[0]) if rows else None

    async def deltas(self, id: str) -> AsyncIterator[bytes]:
        version = 0
        while rows := await self._fetch(_sql["deltas"], (id, version)):
            for _, body in rows:
                yield body
            version = rows[-1][0]

    async def runs(self, after: str | None = None, state: str | None = None) -> AsyncIterator[Head]:
        last = after or ""
        while rows := await self._fetch(_sql["runs"], (last, state)):
            for row in rows:
                last = row[1]
                yield tables.head_of(row)

    # -- mail ----------------------------------------------------------------------------------------------------------------
    async def send(self, run: str, message: bytes) -> str:
        if len(message) > INLINE_MAX:
            raise Misuse(f"a message of {len(message)} bytes is too large", code="MDM-0134", expected=f"at most {INLINE_MAX}")
        key: str = await self._submit(lambda: tables.send(self._cursor, run, message, self._clock()))
        return key

    async def mailbox(self, run: str, after: int = 0) -> AsyncIterator[tuple[int, str, bytes]]:
        cursor = after
        while rows := await self._fetch(_sql["messages"], (run, cursor)):
            for cursor, key, body in rows:
                yield cursor, key.hex(), body

    # -- ownership -----------------------------------------------------------------------------------------------------------
    async def claim(self, pool: str, ttl_ms: int, *, run: str | None = None) -> Head | None:
        """A run without a live owner is free at once, whatever `lease_until` says."""
        if run is not None:
            if await self.head(run) is None:
                return None
            if not self._lock(run):
                raise await self._owned(run)
            return await self._lease(run, ttl_ms, None)
        now = self._clock()
        async for due in self._due(pool, now):
            if self._lock(due) and (head := await self._lease(due, ttl_ms, now)) is not None:
                return head
        return None

    async def renew(self, head: Head, ttl_ms: int) -> Head:
        """Raises Conflict when this ledger does not hold the run. Giving back (0) leaves the wake-up as the last append set it."""
        if not self._own.holds(head.run):
            raise Conflict(
                "the run is not claimed by this ledger",
                on="run",
                head=await self.head(head.run),
                code="MDM-0403",
                where=f"run {head.run}",
                fix="claim it first",
            )
        owner, until, tries = (_me(), self._clock() + ttl_ms * 1000, None) if ttl_ms else ("", 0, head.tries)
        try:
            moved: Head | None = await self._submit(lambda: tables.move_lease(self._cursor, head.run, owner, until, tries), durable=False)
        finally:
            if ttl_ms == 0:
                self._own.give_back(head.run)
        assert moved is not None, "a run that was claimed cannot vanish: heads are never deleted"
        return moved

    # -- workers -------------------------------------------------------------------------------------------------------------
    async def hint(self, pool: str, timeout_ms: int) -> None:
        """A file tells nobody that it changed: this only waits, and not for long."""
        self._refuse_closed()
        await asyncio.sleep(min(timeout_ms, HINT_MS) / 1000)

    async def duty(self, name: str, ttl_ms: int) -> int | None:
        refuse_name(name)
        epoch: int | None = await self._submit(lambda: tables.take_duty(self._cursor, name, self._holder, self._clock(), ttl_ms))
        return epoch

    async def beat(self, node: Node, ttl_ms: int) -> None:
        def work() -> None:
            now = self._clock()
            self._cursor.execute(_sql["gone"], (node.id, now))
            if ttl_ms:
                self._cursor.execute(_sql["beat"], (node.id, msgspec.json.encode(node), now, now + ttl_ms * 1000))

        await self._submit(work, durable=False)

    async def nodes(self) -> AsyncIterator[Node]:
        for body, seen in await self._fetch(_sql["nodes"], (self._clock(),)):
            yield msgspec.structs.replace(_node(body), seen=seen)

    async def check(self) -> None:
        """Settings and every page of the file, for `doctor`. Slow on large files. Raises EngineFault or ProofError."""

        def work() -> None:
            assert self._writer is not None
            file.check_settings(self._writer, self._path)
            file.check_pages(self._writer, self._path)
            file.check_guards(self._writer, self._path)

        await self._submit(work)

    async def close(self) -> None:
        """Everything that waits is committed first; locks are given back. Twice is once."""
        if self._closed:
            return
        self._closed = True
        self._group.close()
        self._own.give_all_back()
        with self._reading:
            for db in (self._reader, self._writer):
                if db is not None:
                    file.close(db)
            self._reader = self._writer = None

    def _lock(self, run: str) -> bool:
        try:
            return self._own.take(run)
        except OSError as error:
            raise Unavailable(
                "the lock that says who drives a run cannot be taken",
                outcome="none",
                code="MDM-0515",
                where=f"{self._path}.own",
                found=os.strerror(error.errno or 0),
                fix="make that folder writable, on a local disk",
            ) from None

    async def _lease(self, run: str, ttl_ms: int, due_by: int | None) -> Head | None:
        """Not flushed: power that takes the row takes its owner too. `tries` may then be one short, nothing else."""
        until = self._clock() + ttl_ms * 1000
        head: Head | None = None
        try:
            head = await self._submit(lambda: tables.take_lease(self._cursor, run, _me(), until, due_by), durable=False)
        finally:
            if head is None:
                self._own.give_back(run)
        return head

    async def _due(self, pool: str, now: int) -> AsyncIterator[str]:
        for (prio,) in await self._fetch(_sql["prios"], (pool,)):
            instant, no = -(2**63), 0
            while rows := await self._fetch(_sql["due"], (pool, prio, now, instant, no)):
                for _, _, run in rows:
                    yield run
                instant, no, _ = rows[-1]

    async def _owned(self, run: str) -> Conflict:
        holder = self._own.holder(run)
        return Conflict(
            f"the run is driven by {holder}" + (", this process" if holder == _me() else ""),
            on="run",
            head=await self.head(run),
            code="MDM-0403",
            where=f"run {run}",
            found=holder,
            why="a run has one driver at a time; nothing was written",
            fix=f"wait until it is given back, or end that process; then mandamus resume {run}",
        )

    # -- the connections -----------------------------------------------------------------------------------------------------
    def _connect(self) -> None:
        writer = file.open_writer(self._path, self._vfs)
        try:
            reader = file.open_reader(self._path, self._vfs)
        except BaseException:
            writer.close()
            raise
        writer.set_wal_hook(self._note_log)
        self._writer, self._reader, self._cursor, self._flushes = writer, reader, writer.cursor(), True

    def _note_log(self, _db: apsw.Connection, _schema: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _finish(self) -> None:
        """After a failed write. What waits in the page cache proves nothing, and flushing it again would not either."""
        with self._reading:
            self._finished = True
            file.discard(self._reader)
            file.discard(self._writer)
            self._writer = self._reader = None

    def _reconnect(self) -> None:
        """Raises while the file cannot be opened or made whole; the next caller tries again."""
        with self._reading:
            self._connect()
            assert self._writer is not None
            try:
                file.make_whole(self._writer, self._path)
            except BaseException:
                self._finish()
                raise
            self._finished, self._log_pages = False, 0

    # -- writing -------------------------------------------------------------------------------------------------------------
    async def _submit(self, work: Callable[[], Any], *, durable: bool = True, lone: bool = False) -> Any:
        self._refuse_closed()
        return await self._group.submit(work, durable=durable, lone=lone)

    def _commit(self, jobs: list[Job]) -> None:
        """All jobs in one transaction. Runs in a caller's task or in the writer thread, never in both at once."""
        try:
            if self._finished:
                self._reconnect()
        except MandamusError as error:
            for job in jobs:
                job.error = error
            return
        try:
            flush = self._perform(jobs)
        except apsw.BusyError as error:
            return self._failed(jobs, error, "none")
        flush()

    def _begin_group(self, jobs: list[Job]) -> Rest | None:
        """The same without waiting: what is left is the flush. None: the file must be opened again, or another process writes."""
        if self._finished or self._writer is None:
            return None
        self._writer.set_busy_timeout(0)
        try:
            return self._perform(jobs)
        except apsw.BusyError:
            return None
        finally:
            if self._writer is not None:
                self._writer.set_busy_timeout(file.BUSY_MS)

    def _perform(self, jobs: list[Job]) -> Rest:
        """Everything up to the flush, which is the answer. Raises BusyError when another process writes and nothing was begun."""
        assert self._writer is not None
        try:
            self._begin(jobs[0].durable or any(job.durable for job in jobs))
            some = run_all(self._writer, self._cursor, jobs, self._path)
        except apsw.Error as error:
            if isinstance(error, apsw.BusyError) and not self._writer.in_transaction:
                raise
            self._failed(jobs, error, "none")
            return _nothing
        except BaseException:  # Ctrl-C between two statements: nothing of a half transaction stays
            self._finish()
            raise
        return functools.partial(self._conclude, jobs, some)

    def _conclude(self, jobs: list[Job], some: bool) -> None:
        outcome = "unknown" if some else "none"  # from here the log may hold the commit, whatever SQLite says
        try:
            self._cursor.execute("COMMIT" if some else "ROLLBACK")
        except apsw.Error as error:
            self._failed(jobs, error, outcome)
        except BaseException:
            self._finish()
            raise

    def _failed(self, jobs: list[Job], error: apsw.Error, outcome: str) -> None:
        """Another process that keeps the file locked is no fault of this connection; everything else finishes it."""
        if not isinstance(error, apsw.BusyError) or outcome == "unknown" or (self._writer is not None and self._writer.in_transaction):
            self._finish()
        for job in jobs:  # one that failed by itself keeps its own error: of it nothing was written for certain
            job.error = job.error or file.translate(error, self._path, outcome)

    def _begin(self, durable: bool) -> None:
        if durable is not self._flushes:
            self._cursor.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._flushes = durable
        self._cursor.execute("BEGIN IMMEDIATE")

    def _after_commit(self) -> None:
        """The checkpoint, ours instead of SQLite's: a failed flush in it must not pass unnoticed and be retried."""
        if self._log_pages < file.CHECKPOINT_PAGES or self._writer is None:
            return
        try:
            self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._log_pages = 0
        except apsw.BusyError:
            pass  # another process is at it
        except apsw.Error:
            self._finish()  # the commit itself stands, in the log

    # -- reading -------------------------------------------------------------------------------------------------------------
    async def _fetch(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        """A page of rows, read to its end: an open statement would hold back checkpoints."""
        while True:
            self._refuse_closed()
            if self._finished:
                await self._submit(_nothing, durable=False)
            with self._reading:
                if self._reader is not None:
                    try:
                        return self._reader.execute(sql, values).fetchall()
                    except apsw.Error as error:
                        raise file.translate(error, self._path) from None

    async def _place(self, run: str) -> tuple[int, int] | None:
        rows = await self._fetch(_sql["head"], (run,))
        return (rows[0][0], rows[0][2]) if rows else None

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Misuse("the ledger is closed", code="MDM-0135", where=str(self._path), fix="open it again")


def _nothing() -> None:
    """A commit of nothing: enough to have the file opened again."""


def _me() -> str:
    return f"pid {os.getpid()}"
