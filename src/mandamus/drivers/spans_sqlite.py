"""Which leaves of the log are a run's, in a SQLite file that may be lost: `Spans.open(path)`, or `Spans.open(None)` in memory.

    spans.add(size, root, [("01J…", 0, 4711, 3)])      # run, its first seq, its first leaf, how many in a row
    spans.leaf("01J…", 2) == 4713
    spans.next("01J…", size) == 3                      # how many records of the run are leaves of a tree of that size

The rule a newcomer would break: nothing here is evidence. `size` and `root` say of which tree it speaks; whoever opens it holds them
against the log, and clears it when they are not of that tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from mandamus.errors import Unavailable

Span = tuple[str, int, int, int]  # run, first seq, first leaf, count
BUSY_MS = 5_000
_FORM = "1"
_TABLES = """
create table if not exists span (run text not null, seq integer not null, leaf integer not null, count integer not null,
    primary key (run, seq)) without rowid;
create table if not exists state (one integer primary key check (one = 1), form text, size integer, root blob);
insert or ignore into state values (1, '', 0, x'');
"""


class Spans:
    """A handle on it; several processes may have one each."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    @classmethod
    def open(cls, path: Path | None) -> Spans:
        """A file that is damaged, or of another form, is begun anew."""
        if path is None:
            return cls(_prepared(apsw.Connection(":memory:")))
        with _told(str(path)):
            try:
                return cls(_prepared(apsw.Connection(str(path))))
            except (apsw.CorruptError, apsw.NotADBError, apsw.FormatError):
                for end in ("", "-wal", "-shm"):
                    path.with_name(path.name + end).unlink(missing_ok=True)
                return cls(_prepared(apsw.Connection(str(path))))

    def _rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with _told(self._db.filename):
            return self._db.execute(sql, tuple(values)).fetchall()

    @property
    def state(self) -> tuple[int, bytes]:
        """(size, root) of the tree that it speaks of."""
        ((size, root),) = self._rows("select size, root from state")
        return int(size), bytes(root)

    def clear(self) -> None:
        with _told(self._db.filename), self._db:
            self._db.execute("delete from span")
            self._db.execute("update state set size = 0, root = x''")

    def add(self, before: int, size: int, root: bytes, spans: Sequence[Span]) -> bool:
        """All of it, when it speaks of `before` leaves now. False: somebody else has gone on meanwhile, and nothing was added."""
        with _told(self._db.filename):
            self._db.execute("begin immediate")
            try:
                fits = self.state[0] == before
                if fits:
                    self._db.executemany("insert into span values (?, ?, ?, ?)", spans)
                    self._db.execute("update state set size = ?, root = ?", (size, root))
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:  # a disk that is full has rolled back by itself
                    self._db.execute("rollback")
                raise
        return fits

    def next(self, run: str, below: int) -> int:
        """How many records of the run are among the leaves [0, below); they are its first ones."""
        rows = self._rows("select seq, leaf, count from span where run = ? and leaf < ? order by seq desc limit 1", (run, below))
        for seq, leaf, count in rows:
            return int(seq) + min(int(count), below - int(leaf))
        return 0

    def leaf(self, run: str, seq: int) -> int | None:
        """The leaf of one record. None: it is not in the log, as far as this knows."""
        row = self._rows("select seq, leaf, count from span where run = ? and seq <= ? order by seq desc limit 1", (run, seq))
        for first, leaf, count in row:
            return int(leaf) + seq - int(first) if seq < int(first) + int(count) else None
        return None

    def of(self, run: str) -> list[Span]:
        return [(str(a), int(b), int(c), int(d)) for a, b, c, d in self._rows("select * from span where run = ? order by seq", (run,))]

    def below(self, first: int, size: int) -> Iterator[Span]:
        """The spans of leaves [first, size), cut to them, in the order of their leaves."""
        rows = self._rows("select run, seq, leaf, count from span where leaf < ? and leaf + count > ? order by leaf", (size, first))
        for run, seq, leaf, count in rows:
            low, high = max(leaf, first), min(leaf + count, size)
            yield str(run), int(seq + low - leaf), int(low), int(high - low)

    def runs(self, below: int) -> Iterator[tuple[str, int]]:
        """(run, how many of its records are among the leaves [0, below)), by name."""
        rows = "select run, max(seq + min(count, ?1 - leaf)) from span where leaf < ?1 group by run order by run"
        for run, many in self._rows(rows, (below,)):
            yield str(run), int(many)

    def close(self) -> None:
        self._db.close()


@contextmanager
def _told(path: str) -> Iterator[None]:
    """What is wrong with the disk, in our words. Nothing is lost: all of it is read from the log again."""
    try:
        yield
    except (apsw.FullError, apsw.IOError, apsw.ReadOnlyError, apsw.CantOpenError, apsw.BusyError) as error:
        full = isinstance(error, apsw.FullError)
        what = "the disk is full" if full else "the log's index on this disk failed"
        raise Unavailable(
            what, outcome="none", code="MDM-0512" if full else "MDM-0513", where=path, found=type(error).__name__,
            fix="free some space, then resume" if full else "check the disk, then resume",
        ) from None  # fmt: skip


def _prepared(db: apsw.Connection) -> apsw.Connection:
    db.set_busy_timeout(BUSY_MS)
    db.pragma("journal_mode", "WAL")
    db.pragma("synchronous", "NORMAL")  # a power cut may take the last rows; they are read from the log again
    db.execute(_TABLES)
    form = next(iter(db.execute("select form from state")))[0]
    if form != _FORM:
        with db:
            db.execute("delete from span")
            db.execute("update state set form = ?, size = 0, root = x''", (_FORM,))
    return db
