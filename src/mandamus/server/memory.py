"""What a witness has cosigned, in one SQLite file: per origin the newest checkpoint. `take` compares, writes and flushes in one go.

    memory = Memory.open("witness.db", vkey, new=True)
    memory.take(asked, now_s)     # (status, the checkpoint that is known now); on 200 it is on the disk before this returns

Several threads and processes may use one file: the transaction that reads is the one that writes. The rule a newcomer would break: a
witness that lost this file has seen nothing, and would cosign any past; so an absent one is never made by the way, and whoever has lost
it makes a new key.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
from msgspec import Struct

from mandamus.errors import EngineFault, Misuse
from mandamus.proof.note import Checkpoint
from mandamus.proof.witnessing import GOOD, Asked, judge

APPLICATION = 0x4D445731  # "MDW1" in the file's header
BUSY_MS = 10_000
_MAKE = """
CREATE TABLE witness (one INTEGER PRIMARY KEY CHECK (one = 1), vkey TEXT NOT NULL) STRICT;
CREATE TABLE log (origin TEXT PRIMARY KEY, size INTEGER NOT NULL, root BLOB NOT NULL, note BLOB NOT NULL, at INTEGER NOT NULL) STRICT;
CREATE TRIGGER log_grows BEFORE UPDATE ON log
    WHEN NEW.origin <> OLD.origin OR NEW.size < OLD.size OR (NEW.size = OLD.size AND NEW.root <> OLD.root)
    BEGIN SELECT RAISE(ABORT, 'a witness never goes back'); END;
CREATE TRIGGER log_stays BEFORE DELETE ON log BEGIN SELECT RAISE(ABORT, 'a witness never forgets'); END;
"""
_KNOWN = "SELECT size, root FROM log WHERE origin = ?"
_TAKE = """
INSERT INTO log (origin, size, root, note, at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (origin) DO UPDATE SET size = ?2, root = ?3, note = ?4, at = ?5
"""


class Row(Struct, frozen=True):
    """One log: its newest cosigned checkpoint (`note`: as the log sent it) and when that was, in seconds since 1970."""

    checkpoint: Checkpoint
    note: bytes
    at: int


class Memory:
    """Made by `Memory.open`."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db, self._one = db, threading.Lock()

    @classmethod
    def open(cls, path: str | Path, vkey: str, *, new: bool = False) -> Memory:
        """`new`: it must not be there yet. Raises Misuse: absent, there already, another witness's, or no such file; EngineFault."""
        target = Path(path)
        if new == target.exists():
            raise _exists(target) if new else _absent(target)
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if new else 0)
        try:
            db = apsw.Connection(str(target), flags)
            try:
                _prepare(db, target, vkey, new)
            except BaseException:
                db.close()
                raise
        except apsw.Error as error:
            raise _fault(target, error) from None
        return cls(db)

    def take(self, asked: Asked, now: int) -> tuple[int, Checkpoint | None]:
        """(status, what is known now). On GOOD the new checkpoint is durable. Raises EngineFault: nothing may be signed."""
        with self._one:
            try:
                self._db.execute("BEGIN IMMEDIATE")  # no other thread or process reads what this one is about to change
                try:
                    known = self._known(asked.checkpoint.origin)
                    status = judge(asked, known)
                    if status == GOOD:
                        known = asked.checkpoint
                        self._db.execute(_TAKE, (known.origin, known.size, known.root, asked.note, now))
                    self._db.execute("COMMIT")
                except BaseException:
                    self._db.execute("ROLLBACK")
                    raise
            except apsw.Error as error:
                raise _fault(Path(self._db.filename), error) from None
        return status, known

    def rows(self) -> Iterator[Row]:
        with self._one:
            found = list(self._db.execute("SELECT origin, size, root, note, at FROM log ORDER BY origin"))
        for origin, size, root, note, at in found:
            yield Row(Checkpoint(origin, size, root), note, at)

    def close(self) -> None:
        with self._one:
            self._db.close()

    def _known(self, origin: str) -> Checkpoint | None:
        row = self._db.execute(_KNOWN, (origin,)).fetchone()
        return Checkpoint(origin, row[0], row[1]) if row else None


def _prepare(db: apsw.Connection, path: Path, vkey: str, new: bool) -> None:
    db.set_busy_timeout(BUSY_MS)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")  # WAL with NORMAL loses acknowledged commits in a power cut
    if new:
        db.execute("BEGIN IMMEDIATE")
        db.execute(_MAKE)
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute("INSERT INTO witness VALUES (1, ?)", (vkey,))
        db.execute("COMMIT")
    application = db.execute("PRAGMA application_id").fetchone()
    if application is None or application[0] != APPLICATION:
        raise Misuse("this file is no memory of a witness", code="MDM-0947", where=str(path), fix="name the file that was made with --init")
    row = db.execute("SELECT vkey FROM witness").fetchone()
    if row is None or row[0] != vkey:
        raise Misuse(
            "this memory is another witness's", code="MDM-0947", where=str(path), expected=vkey, found=str(row[0]) if row else "",
            why="what one witness saw says nothing for another key", fix="--key FILE of that witness, or another --db",
        )  # fmt: skip


def _absent(path: Path) -> Misuse:
    return Misuse(
        "the witness's memory is not there", code="MDM-0947", where=str(path),
        why="a witness that has forgotten what it saw would cosign any past",
        fix="--init, if this key has never cosigned; if it has, and the file is lost, make a new key",
    )  # fmt: skip


def _exists(path: Path) -> Misuse:
    return Misuse("there is a file of that name already", code="MDM-0947", where=str(path), fix="leave --init out, or name another --db")


def _fault(path: Path, error: apsw.Error) -> EngineFault:
    return EngineFault(
        "the witness's memory cannot be used", code="MDM-0948", where=str(path), found=f"{type(error).__name__}: {error}"[:200],
        why="nothing is cosigned that is not on the disk", fix="look after the disk and the file's rights, then start it again",
    )  # fmt: skip
