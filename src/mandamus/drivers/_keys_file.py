"""Opens the file of a key store, or says why not; one transaction; the scrubbing that leaves no byte of what was deleted.

    file = KeysFile("keystore.db", wrap="", origin="log/one")
    with file.writing() as db: ...
    file.scrub([b"the very bytes that were deleted"])

Write-ahead log, synchronous=FULL, secure_delete=ON, mode 0600.

The rule a newcomer would break: secure_delete zeroes what is deleted where it stands now. A page that was rebuilt before may still hold
it, and the log holds every page that was written: so the log is truncated, the file is looked through, and written anew where something
is found.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import apsw

from mandamus.errors import EngineFault, MandamusError, Misuse, Unavailable

APPLICATION = 0x4D444D4B  # "MDMK" in the file's header
VERSION = 1
BUSY_MS = 5_000
SCRUB_S = 20.0
LOOKED_FOR_MAX = 256  # pieces whose bytes are looked for one by one; of more, the file is written anew
SECRET = 32
MEMORY = ":memory:"


class KeysFile:
    """One connection, opened at its first use. `wrap`: the name of the key that wraps what is stored here."""

    def __init__(self, path: str, wrap: str) -> None:
        self.path, self._wrap = path, wrap
        self.origin = ""  # of a file that is not made yet
        self._connection: apsw.Connection | None = None
        self._closed = False

    @property
    def exists(self) -> bool:
        return self._connection is not None or self.path == MEMORY or Path(self.path).exists()

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Empty when nobody has made the file yet."""
        if not self.exists:
            return []
        try:
            return self.db().execute(sql, values).fetchall()
        except apsw.Error as error:
            raise self.fault(error) from None

    def one(self, sql: str, *values: object) -> Any:
        """The first value of the first row, or None."""
        found = self.rows(sql, *values)
        return found[0][0] if found else None

    @contextmanager
    def writing(self) -> Iterator[apsw.Connection]:
        """One transaction; durable when the block has ended."""
        db = self.db()
        try:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        except apsw.Error as error:
            raise self.fault(error) from None

    def changed(self) -> int:
        """Another number whenever another connection has written."""
        try:
            return int(self.db().pragma("data_version"))
        except apsw.Error as error:
            raise self.fault(error) from None

    def lock(self, handle: int) -> bool:
        """Whether this process holds the lock of the open file now. Death gives it back."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- leaving nothing -------------------------------------------------------------------------------------------------------
    def scrub(self, deleted: list[bytes]) -> None:
        """Nothing of these bytes is in a file afterwards. Without any (an earlier try deleted them, and died): the file is written anew."""
        self._truncate()
        if not deleted or len(deleted) > LOOKED_FOR_MAX or self._still_there(deleted):
            self._patiently(lambda: self.db().execute("VACUUM"))
            self._truncate()
            if self._still_there(deleted[:LOOKED_FOR_MAX]):
                raise EngineFault(
                    "bytes of a destroyed key are still in the key store", code="MDM-0965", where=self.path,
                    why="who reads the file could still open what was to be forgotten", fix="mandamus forget --resume; then doctor",
                )  # fmt: skip

    def _still_there(self, deleted: Iterable[bytes]) -> bool:
        if self.path == MEMORY:
            return False
        log = Path(f"{self.path}-wal")
        image = self.db().serialize("main")
        return any(one in image for one in deleted) or (log.exists() and log.stat().st_size > 0)

    def _truncate(self) -> None:
        if self.path != MEMORY:
            self._patiently(lambda: self.db().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE))

    def _patiently(self, work: Callable[[], object]) -> None:
        """Another process may just be reading; it is waited for."""
        deadline = time.monotonic() + SCRUB_S
        while True:
            try:
                work()
                return
            except (apsw.BusyError, apsw.LockedError) as error:
                if time.monotonic() > deadline:
                    raise self.fault(error) from None
                time.sleep(0.02)
            except apsw.Error as error:
                raise self.fault(error) from None

    # -- opening ---------------------------------------------------------------------------------------------------------------
    def db(self) -> apsw.Connection:
        if self._closed:
            raise Misuse("the key store is closed", code="MDM-0135", fix="open it again")
        if self._connection is None:
            try:
                self._connection = self._open()
            except apsw.Error as error:
                raise self.fault(error) from None
        return self._connection

    def _open(self) -> apsw.Connection:
        if self.path != MEMORY:
            _private(Path(self.path))
        db = apsw.Connection(self.path)
        try:
            db.set_busy_timeout(BUSY_MS)
            db.pragma("secure_delete", True)
            db.pragma("temp_store", "MEMORY")
            db.pragma("synchronous", "FULL")
            deadline = time.monotonic() + SCRUB_S
            while self.path != MEMORY and db.pragma("journal_mode") != "wal":
                try:
                    db.pragma("journal_mode", "wal")
                except apsw.BusyError:  # another process is making the same file
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)
            self._make_tables(db)
            self._right_key(db)
        except BaseException:
            db.close()
            raise
        return db

    def _make_tables(self, db: apsw.Connection) -> None:
        version = db.pragma("user_version")
        if version > VERSION or (version and db.pragma("application_id") != APPLICATION):
            raise self._foreign("it is none of ours, or a newer one")
        if version == VERSION:
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            if db.pragma("user_version") == 0:
                if db.execute("SELECT count(*) FROM sqlite_schema").get:
                    raise self._foreign("it belongs to another program")
                db.execute(resources.files("mandamus.drivers").joinpath("sql", "keys.sql").read_text("utf-8"))
                db.execute("INSERT INTO meta VALUES ('index', ?), ('wrap', ?)", (os.urandom(SECRET), self._wrap.encode()))
                db.pragma("application_id", APPLICATION)
                db.pragma("user_version", VERSION)
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
        if self.origin:
            db.execute("INSERT OR IGNORE INTO meta VALUES ('origin', ?)", (self.origin.encode(),))

    def _right_key(self, db: apsw.Connection) -> None:
        stored = bytes(db.execute("SELECT value FROM meta WHERE name = 'wrap'").get).decode()
        if stored != self._wrap:
            raise Misuse(
                "the keys of this store are wrapped by another key", code="MDM-0964", where=self.path, expected=stored or "none",
                found=self._wrap or "none", fix="MANDAMUS_KEK=FILE, the one that it was made with" if stored else "unset MANDAMUS_KEK",
            )  # fmt: skip

    # -- diagnoses -------------------------------------------------------------------------------------------------------------
    def fault(self, error: Exception) -> MandamusError:
        if isinstance(error, apsw.NotADBError | apsw.CorruptError):
            return self._foreign(str(error)[:200])
        return Unavailable(
            "the key store cannot be used", outcome="none", code="MDM-0966", where=self.path, found=str(error)[:200],
            why="without its keys nothing is sealed, and nothing is opened", fix="give this user the right to write to it; free some space",
        )  # fmt: skip

    def _foreign(self, why: str) -> Misuse:
        fix = "name another: MANDAMUS_KEYS=sqlite:///FILE"
        return Misuse("this file is no key store", code="MDM-0961", where=self.path, found=why, fix=fix)


def _private(path: Path) -> None:
    """Nobody else may read it. SQLite gives its log and its index the mode of the file itself."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        _flush(path.parent)
    except FileExistsError:
        mode = path.stat().st_mode & 0o777
        if os.name == "posix" and mode & 0o077:
            raise Misuse(
                "others can read the key store", code="MDM-0967", where=str(path), expected="mode 0600", found=f"mode {mode:04o}",
                why="who read it can open what will have been forgotten", fix=f"chmod 600 {path}",
            ) from None  # fmt: skip
    except OSError as error:
        raise EngineFault(
            "the key store cannot be made", code="MDM-0966", where=str(path), found=os.strerror(error.errno or 0),
            fix="give this user the right to write to that folder, or name another: MANDAMUS_KEYS",
        ) from None  # fmt: skip


def _flush(folder: Path) -> None:
    """Its name is durable before a key in it seals anything."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
