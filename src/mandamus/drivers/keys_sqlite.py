"""Port `KeyStore`, in an SQLite file of its own beside the ledger: several processes of one host, made at the first key.

    keys = SqliteKeys("keystore.db")                       # or SqliteKeys(path, FileWrap.open("kek")): keys are stored wrapped
    name = await keys.pseudonym("patient-17")
    await keys.destroy(erasure, [KeyName(f"subject/{name}")], name)

Write-ahead log, synchronous=FULL, secure_delete=ON. Destroying deletes, then truncates the log, then looks through every page of the file
for the very bytes that were deleted; where one is left behind by a page that was rebuilt, the file is written anew (VACUUM).

The rule a newcomer would break: a key is durable before anything is sealed under it, and destroyed before anybody is told so. And a backup
of this file brings back what was erased: whoever restores one is met by the erase list of chain `log` (runtime/sealing.py).
"""

from __future__ import annotations

import asyncio
import fcntl
import hmac
import json
import os
import time
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import apsw

from mandamus.core.retention import KeyName, Plan, covers, decode_plan, encode_plan
from mandamus.errors import EngineFault, Erased, Misuse, Unavailable
from mandamus.ports import Erasing, Wrap

APPLICATION = 0x4D444D4B  # "MDMK" in the file's header
VERSION = 1
BUSY_MS = 5_000
SCRUB_S = 20.0
LOOKED_FOR_MAX = 256  # keys whose bytes are looked for one by one; of more, the file is written anew
KEY = 32
_ABOUT = "mandamus/v1/key"
_KIN = "SELECT other FROM kin WHERE one = ?1 UNION SELECT one FROM kin WHERE other = ?1"


class SqliteKeys:
    """Implements `ports.KeyStore`. No file is made before there is a key to keep; `path` ":memory:" keeps them for this process."""

    def __init__(self, path: str | Path, wrap: Wrap | None = None) -> None:
        self.path = str(path)
        self._wrap = wrap
        self._connection: apsw.Connection | None = None
        self._changes = 0  # of our own, which data_version does not count
        self._closed = False
        self._origin = ""  # of a store that has no file yet

    @property
    def place(self) -> str:
        return self.path if self.path == ":memory:" else f"sqlite:///{Path(self.path).resolve()}"

    # -- the log and its runs ------------------------------------------------------------------------------------------------
    async def bind(self, origin: str) -> None:
        db = self._there()
        bound = None if db is None else _one(db, "SELECT value FROM meta WHERE name = 'origin'")
        if bound is None:
            self._origin = origin
            if db is not None:
                with self._writing() as db:
                    db.execute("INSERT OR IGNORE INTO meta VALUES ('origin', ?)", (origin.encode(),))
        elif bound != origin.encode():
            raise Misuse(
                "these are the keys of another log", code="MDM-0962", where=self.path, expected=origin, found=bytes(bound).decode(),
                why="a person who is forgotten in one log would lose what another one holds, without a record there",
                fix="MANDAMUS_KEYS=sqlite:///another-file.db",
            )  # fmt: skip

    async def pseudonym(self, subject: str, *, make: bool = True) -> str:
        db = self._db() if make else self._there()
        if db is None:
            return ""
        plain = unicodedata.normalize("NFC", subject).strip().encode("utf-8", "replace")
        lookup = hmac.digest(bytes(_one(db, "SELECT value FROM meta WHERE name = 'index'")), plain, "sha256")
        found = _one(db, "SELECT pseudonym FROM subject WHERE lookup = ?", lookup)
        if found or not make:
            return str(found or "")
        key = os.urandom(KEY)
        made = hmac.digest(key, plain, "sha256").hex()[:32]
        with self._writing() as db:
            stored = self._wrapped(key, KeyName("subject", made))
            db.execute("INSERT OR IGNORE INTO subject (lookup, pseudonym, key) VALUES (?, ?, ?)", (lookup, made, stored))
        return str(_one(self._db(), "SELECT pseudonym FROM subject WHERE lookup = ?", lookup))

    async def begin(
        self, run: str, plan: Plan, parent: str = "", subjects: Sequence[str] = (), keys: Mapping[KeyName, int] = {}
    ) -> None:  # fmt: skip
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO run VALUES (?, ?)", (run, encode_plan(plan)))
            if parent:
                db.execute("INSERT OR IGNORE INTO kin VALUES (?, ?)", (run, parent))
            db.executemany("INSERT OR IGNORE INTO touched VALUES (?, ?)", [(one, run) for one in subjects])
            for name, until in keys.items():
                self._insert(db, name, until)

    async def plan(self, run: str) -> Plan | None:
        db = self._there()
        found = None if db is None else _one(db, "SELECT plan FROM run WHERE run = ?", run)
        return decode_plan(bytes(found)) if found else None

    async def touch(self, run: str, subject: str) -> None:
        if _one(self._db(), "SELECT 1 FROM touched WHERE pseudonym = ? AND run = ?", subject, run):
            return
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO touched VALUES (?, ?)", (subject, run))

    async def runs_of(self, subject: str) -> tuple[str, ...]:
        db = self._there()
        if db is None:
            return ()
        return _families(db, [row[0] for row in db.execute("SELECT run FROM touched WHERE pseudonym = ?", (subject,))])

    async def family(self, run: str) -> tuple[str, ...]:
        db = self._there()
        return () if db is None else _families(db, [run])

    async def subjects_of(self, runs: Sequence[str]) -> tuple[str, ...]:
        db = self._there()
        if db is None:
            return ()
        asked = "SELECT DISTINCT pseudonym FROM touched WHERE run IN (SELECT value FROM json_each(?)) ORDER BY 1"
        return tuple(row[0] for row in db.execute(asked, (json.dumps(list(runs)),)))

    async def sealed(self) -> tuple[str, ...]:
        db = self._there()
        return () if db is None else tuple(row[0] for row in db.execute("SELECT run FROM run ORDER BY run"))

    # -- keys ----------------------------------------------------------------------------------------------------------------
    async def key(self, name: KeyName, *, until: int | None = None) -> bytes:
        db = self._there() if until is None else self._db()
        if db is None:
            return b""
        found = self._find(db, name)
        return self._make(name, until) if not found and until is not None else found

    def version(self) -> object:
        """Also another process's writing counts, whatever it wrote."""
        db = self._there()
        return None if db is None else (db.pragma("data_version"), self._changes)

    async def fate(self, name: KeyName) -> str:
        db = self._there()
        if db is None:
            return ""
        gone = db.execute("SELECT owner, kind, period FROM gone WHERE owner = ?", (name.owner,))
        if any(covers(KeyName(*row), name) for row in gone):
            return "erased"
        off = db.execute("SELECT 1 FROM dek WHERE (owner, kind, period) = (?, ?, ?) AND off IS NOT NULL", _row(name)).get
        return "off" if off else ""

    async def expired(self, now: int) -> tuple[KeyName, ...]:
        db = self._there()
        if db is None:
            return ()
        rows = db.execute("SELECT owner, kind, period FROM dek WHERE until > 0 AND until <= ? AND off IS NULL ORDER BY 1, 2, 3", (now,))
        return tuple(KeyName(*row) for row in rows)

    def _find(self, db: apsw.Connection, name: KeyName) -> bytes:
        row = db.execute("SELECT key FROM dek WHERE (owner, kind, period) = (?, ?, ?) AND off IS NULL", _row(name)).get
        return self._unwrapped(bytes(row), name) if row else b""

    def _make(self, name: KeyName, until: int) -> bytes:
        with self._writing() as db:
            gone = any(covers(KeyName(*r), name) for r in db.execute("SELECT owner, kind, period FROM gone WHERE owner = ?", (name.owner,)))
            off = db.execute("SELECT 1 FROM dek WHERE (owner, kind, period) = (?, ?, ?) AND off IS NOT NULL", _row(name)).get
            if gone or off:
                raise Erased(
                    "what would be written here is being forgotten, or was", code="MDM-0963", where=name.owner,
                    why="a key that is to be destroyed takes nothing new", fix="begin a new run",
                )  # fmt: skip
            self._insert(db, name, until)
        return self._find(self._db(), name)

    def _insert(self, db: apsw.Connection, name: KeyName, until: int) -> None:
        """Of two processes that make one at once, both get the first one's."""
        stored = self._wrapped(os.urandom(KEY), name)
        db.execute("INSERT OR IGNORE INTO dek (owner, kind, period, key, until) VALUES (?, ?, ?, ?, ?)", (*_row(name), stored, until))

    # -- erasing -------------------------------------------------------------------------------------------------------------
    async def erasings(self) -> tuple[Erasing, ...]:
        db = self._there()
        if db is None:
            return ()
        return tuple(_erasing(*row) for row in db.execute("SELECT id, subject, keys, runs, state FROM erasing ORDER BY id"))

    async def hear(self, erasing: Erasing) -> None:
        self._changes += 1
        done = erasing.state == "done"
        keys, runs = ((), ()) if done else (erasing.keys, erasing.runs)
        with self._writing() as db:
            db.execute("UPDATE dek SET off = NULL WHERE off = ?", (erasing.id,))
            for selector in keys if erasing.state == "off" else ():
                db.execute(f"UPDATE dek SET off = ? WHERE off IS NULL AND {_where(selector)}", (erasing.id, *_values(selector)))
            row = (erasing.id, erasing.subject, _packed(_row(k) for k in keys), _packed(runs), erasing.state)
            db.execute("INSERT OR REPLACE INTO erasing VALUES (?, ?, ?, ?, ?)", row)

    async def destroy(self, id: str, keys: Sequence[KeyName], subject: str = "", *, whole: bool = True) -> None:
        self._changes += 1
        deleted: list[bytes] = []
        with self._writing() as db:
            for selector in keys:
                where, values = _where(selector), _values(selector)
                deleted += [bytes(row[0]) for row in db.execute(f"SELECT key FROM dek WHERE {where}", values)]
                db.execute(f"DELETE FROM dek WHERE {where}", values)
                db.execute("INSERT OR IGNORE INTO gone VALUES (?, ?, ?, ?)", (*_row(selector), id))
            if subject:
                deleted += [bytes(row[0]) for row in db.execute("SELECT key FROM subject WHERE pseudonym = ?", (subject,))]
                db.execute("DELETE FROM subject WHERE pseudonym = ?", (subject,))
                db.execute("DELETE FROM touched WHERE pseudonym = ?", (subject,))
            if whole:
                db.execute("UPDATE erasing SET state = 'destroyed' WHERE id = ?", (id,))
        self._scrub(deleted)

    def _scrub(self, deleted: list[bytes]) -> None:
        """Nothing of these bytes is in a file afterwards. Without any (an earlier try deleted them, and died): the file is written anew."""
        self._truncate()
        if not deleted or len(deleted) > LOOKED_FOR_MAX or self._still_there(deleted):
            self._busy_loop(lambda: self._db().execute("VACUUM"))
            self._truncate()
            if self._still_there(deleted[:LOOKED_FOR_MAX]):
                raise EngineFault(
                    "bytes of a destroyed key are still in the key store", code="MDM-0965", where=self.path,
                    why="who reads the file could still open what was to be forgotten", fix="mandamus forget --resume; then doctor",
                )  # fmt: skip

    def _still_there(self, deleted: Iterable[bytes]) -> bool:
        if self.path == ":memory:":
            return False
        image = self._db().serialize("main")
        return any(one in image for one in deleted) or self._log_bytes() > 0

    def _log_bytes(self) -> int:
        log = Path(f"{self.path}-wal")
        return log.stat().st_size if log.exists() else 0

    def _truncate(self) -> None:
        if self.path != ":memory:":
            self._busy_loop(lambda: self._db().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE))

    def _busy_loop(self, work: Callable[[], object]) -> None:
        """Another process may just be reading; it is waited for."""
        deadline = time.monotonic() + SCRUB_S
        while True:
            try:
                work()
                return
            except (apsw.BusyError, apsw.LockedError) as error:
                if time.monotonic() > deadline:
                    raise self._silent(error) from None
                time.sleep(0.02)
            except apsw.Error as error:
                raise self._silent(error) from None

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        if self.path == ":memory:":
            yield
            return
        self._db()  # the folder is there
        with open(f"{self.path}.lock", "ab") as file:
            while not _locked(file.fileno()):
                await asyncio.sleep(0.02)
            yield

    # -- what was given away -------------------------------------------------------------------------------------------------
    async def hand_out(self, path: str, run: str, kind: str) -> None:
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO handed VALUES (?, ?, ?)", (path, run, kind))

    async def handed_out(self, runs: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
        db = self._there()
        if db is None:
            return ()
        asked = "SELECT path, run, kind FROM handed WHERE run IN (SELECT value FROM json_each(?)) ORDER BY path"
        return tuple((row[0], row[1], row[2]) for row in db.execute(asked, (json.dumps(list(runs)),)))

    async def took_back(self, path: str) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM handed WHERE path = ?", (path,))

    async def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- the file ------------------------------------------------------------------------------------------------------------
    def _there(self) -> apsw.Connection | None:
        """The store, unless nobody has made it yet."""
        return self._db() if self._connection is not None or self.path == ":memory:" or Path(self.path).exists() else None

    def _db(self) -> apsw.Connection:
        if self._closed:
            raise Misuse("the key store is closed", code="MDM-0135", fix="open it again")
        if self._connection is None:
            try:
                self._connection = self._open()
            except apsw.Error as error:
                raise self._silent(error) from None
        return self._connection

    def _open(self) -> apsw.Connection:
        if self.path != ":memory:":
            _private(Path(self.path))
        db = apsw.Connection(self.path)
        try:
            db.set_busy_timeout(BUSY_MS)
            db.pragma("secure_delete", True)
            db.pragma("temp_store", "MEMORY")
            db.pragma("synchronous", "FULL")
            deadline = time.monotonic() + SCRUB_S
            while self.path != ":memory:" and db.pragma("journal_mode") != "wal":
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
            raise _foreign(self.path, "it is none of ours, or a newer one")
        if version == VERSION:
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            if db.pragma("user_version") == 0:
                if db.execute("SELECT count(*) FROM sqlite_schema").get:
                    raise _foreign(self.path, "it belongs to another program")
                db.execute(resources.files("mandamus.drivers").joinpath("sql", "keys.sql").read_text("utf-8"))
                db.execute("INSERT INTO meta VALUES ('index', ?), ('wrap', ?)", (os.urandom(KEY), self._wrap_name.encode()))
                db.pragma("application_id", APPLICATION)
                db.pragma("user_version", VERSION)
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise
        if self._origin:
            db.execute("INSERT OR IGNORE INTO meta VALUES ('origin', ?)", (self._origin.encode(),))

    @property
    def _wrap_name(self) -> str:
        return self._wrap.name if self._wrap else ""

    def _right_key(self, db: apsw.Connection) -> None:
        stored = bytes(_one(db, "SELECT value FROM meta WHERE name = 'wrap'")).decode()
        if stored != self._wrap_name:
            raise Misuse(
                "the keys of this store are wrapped by another key", code="MDM-0964", where=self.path, expected=stored or "none",
                found=self._wrap_name or "none", fix="MANDAMUS_KEK=FILE, the one that it was made with" if stored else "unset MANDAMUS_KEK",
            )  # fmt: skip

    @contextmanager
    def _writing(self) -> Iterator[apsw.Connection]:
        """One transaction; durable when the block has ended."""
        db = self._db()
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
            raise self._silent(error) from None

    def _wrapped(self, key: bytes, name: KeyName) -> bytes:
        return self._wrap.wrap(key, _about(name)) if self._wrap else key

    def _unwrapped(self, stored: bytes, name: KeyName) -> bytes:
        return self._wrap.unwrap(stored, _about(name)) if self._wrap else stored

    def _silent(self, error: Exception) -> Unavailable:
        return Unavailable(
            "the key store cannot be used", outcome="none", code="MDM-0966", where=self.path, found=str(error)[:200],
            why="without its keys nothing is sealed, and nothing is opened", fix="give this user the right to write to it; free some space",
        )  # fmt: skip


def _foreign(path: str, why: str) -> Misuse:
    return Misuse("this file is no key store", code="MDM-0961", where=path, found=why, fix="name another: MANDAMUS_KEYS=sqlite:///FILE")


def _private(path: Path) -> None:
    """Nobody else may read it. SQLite gives its log and its index the mode of the file itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
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


def _one(db: apsw.Connection, sql: str, *values: object) -> Any:
    return db.execute(sql, values).get


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _families(db: apsw.Connection, left: list[str]) -> tuple[str, ...]:
    found: set[str] = set()
    while left:
        run = left.pop()
        if run not in found and db.execute("SELECT 1 FROM run WHERE run = ?", (run,)).get:
            found.add(run)
            left += [row[0] for row in db.execute(_KIN, (run,))]
    return tuple(sorted(found))


def _row(name: KeyName) -> tuple[str, str, str]:
    return name.owner, name.kind, name.period


def _where(selector: KeyName) -> str:
    return "owner = ?" + (" AND kind = ?" if selector.kind else "") + (" AND period = ?" if selector.period else "")


def _values(selector: KeyName) -> tuple[str, ...]:
    return (selector.owner, *((selector.kind,) if selector.kind else ()), *((selector.period,) if selector.period else ()))


def _packed(values: Iterable[object]) -> bytes:
    return json.dumps(list(values)).encode()


def _erasing(id: str, subject: str, keys: bytes, runs: bytes, state: str) -> Erasing:
    return Erasing(id, subject, tuple(KeyName(*k) for k in json.loads(keys)), tuple(json.loads(runs)), state)


def _about(name: KeyName) -> bytes:
    return json.dumps([_ABOUT, *_row(name)]).encode()
