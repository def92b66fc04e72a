"""Port `KeyStore`, in an SQLite file of its own beside the ledger: several processes of one host, made at the first key.

    keys = SqliteKeys("keystore.db")                       # or SqliteKeys(path, FileWrap.open("kek")): keys are stored wrapped
    name = await keys.pseudonym("patient-17")
    await keys.destroy(erasure, [KeyName(f"subject/{name}")], name)

What makes destroying final stands in drivers/_keys_file.py.

The rule a newcomer would break: a key is durable before anything is sealed under it, and destroyed before anybody is told so. And a backup
of this file brings back what was erased: whoever restores one is met by the erase list of chain `log` (runtime/erased.py).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import apsw

from mandamus.core.retention import KeyName, Plan, covers, decode_plan, encode_plan
from mandamus.drivers._keys_file import MEMORY, SECRET, KeysFile
from mandamus.errors import Erased, Misuse
from mandamus.ports import Erasing, Wrap

_ABOUT = "mandamus/v1/key"
_ONE = "(owner, kind, period) = (?, ?, ?)"
_KIN = "SELECT other FROM kin WHERE one = ?1 UNION SELECT one FROM kin WHERE other = ?1"


class SqliteKeys:
    """Implements `ports.KeyStore`. No file is made before there is a key to keep; `path` ":memory:" keeps them for this process."""

    def __init__(self, path: str | Path, wrap: Wrap | None = None) -> None:
        self.path = str(path)
        self._wrap = wrap
        self._file = KeysFile(self.path, wrap.name if wrap else "")
        self._batch: list[tuple[Callable[[apsw.Connection], object], asyncio.Future[None]]] = []
        self._changes = 0  # of our own, which the file does not count

    @property
    def place(self) -> str:
        return self.path if self.path == MEMORY else f"sqlite:///{Path(self.path).resolve()}"

    # -- the log and its runs ------------------------------------------------------------------------------------------------
    async def bind(self, origin: str) -> None:
        self._file.origin = origin
        if not self._file.exists:
            return
        bound = self._file.one("SELECT value FROM meta WHERE name = 'origin'")
        if bound is None:
            with self._file.writing() as db:
                db.execute("INSERT OR IGNORE INTO meta VALUES ('origin', ?)", (origin.encode(),))
        elif bound != origin.encode():
            raise Misuse(
                "these are the keys of another log", code="MDM-0962", where=self.path, expected=origin, found=bytes(bound).decode(),
                why="a person who is forgotten in one log would lose what another one holds, without a record there",
                fix="MANDAMUS_KEYS=sqlite:///another-file.db",
            )  # fmt: skip

    async def pseudonym(self, subject: str, *, make: bool = True) -> str:
        if make:
            self._file.db()
        index = self._file.one("SELECT value FROM meta WHERE name = 'index'")
        if index is None:
            return ""
        plain = unicodedata.normalize("NFC", subject).strip().encode("utf-8", "replace")
        lookup = hmac.digest(bytes(index), plain, "sha256")
        found = self._file.one("SELECT pseudonym FROM subject WHERE lookup = ?", lookup)
        if found or not make:
            return str(found or "")
        key = os.urandom(SECRET)
        made = hmac.digest(key, plain, "sha256").hex()[:32]
        with self._file.writing() as db:
            stored = self._wrapped(key, KeyName("subject", made))
            db.execute("INSERT OR IGNORE INTO subject (lookup, pseudonym, key) VALUES (?, ?, ?)", (lookup, made, stored))
        return str(self._file.one("SELECT pseudonym FROM subject WHERE lookup = ?", lookup))

    async def begin(
        self, run: str, plan: Plan, parent: str = "", subjects: Sequence[str] = (), keys: Mapping[KeyName, int] = {}
    ) -> None:  # fmt: skip
        def write(db: apsw.Connection) -> None:
            db.execute("INSERT OR IGNORE INTO run VALUES (?, ?)", (run, encode_plan(plan)))
            if parent:
                db.execute("INSERT OR IGNORE INTO kin VALUES (?, ?)", (run, parent))
            db.executemany("INSERT OR IGNORE INTO touched VALUES (?, ?)", [(one, run) for one in subjects])
            for name, until in keys.items():
                self._insert(db, name, until)

        await self._together(write)

    async def plan(self, run: str) -> Plan | None:
        found = self._file.one("SELECT plan FROM run WHERE run = ?", run)
        return None if found is None else decode_plan(bytes(found))

    async def touch(self, run: str, subject: str) -> None:
        if self._file.one("SELECT 1 FROM touched WHERE pseudonym = ? AND run = ?", subject, run) is None:
            await self._together(lambda db: db.execute("INSERT OR IGNORE INTO touched VALUES (?, ?)", (subject, run)))

    async def _together(self, work: Callable[[apsw.Connection], object]) -> None:
        """In one commit with what other runs of this process have to write just now: each commit waits for the disk."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._batch.append((work, done))
        if len(self._batch) == 1:
            loop.call_soon(self._commit)
        await done

    def _commit(self) -> None:
        batch, self._batch = self._batch, []
        fault: BaseException | None = None
        try:
            with self._file.writing() as db:
                for work, _ in batch:
                    work(db)
        except Exception as error:
            fault = error
        for _, done in batch:
            if done.done():  # whoever waited has gone
                continue
            if fault is None:
                done.set_result(None)
            else:
                done.set_exception(fault)

    async def runs_of(self, subject: str) -> tuple[str, ...]:
        return self._families([row[0] for row in self._file.rows("SELECT run FROM touched WHERE pseudonym = ?", subject)])

    async def family(self, run: str) -> tuple[str, ...]:
        return self._families([run])

    def _families(self, left: list[str]) -> tuple[str, ...]:
        found: set[str] = set()
        while left:
            run = left.pop()
            if run not in found and self._file.one("SELECT 1 FROM run WHERE run = ?", run) is not None:
                found.add(run)
                left += [row[0] for row in self._file.rows(_KIN, run)]
        return tuple(sorted(found))

    async def subjects_of(self, runs: Sequence[str]) -> tuple[str, ...]:
        asked = "SELECT DISTINCT pseudonym FROM touched WHERE run IN (SELECT value FROM json_each(?)) ORDER BY 1"
        return tuple(row[0] for row in self._file.rows(asked, json.dumps(list(runs))))

    async def sealed(self) -> tuple[str, ...]:
        return tuple(row[0] for row in self._file.rows("SELECT run FROM run ORDER BY run"))

    # -- keys ----------------------------------------------------------------------------------------------------------------
    async def key(self, name: KeyName, *, until: int | None = None) -> bytes:
        found = self._find(name)
        return self._make(name, until) if not found and until is not None else found

    async def version(self, old_ms: int = 0) -> object:
        """Also another process's writing counts, whatever it wrote."""
        return (self._file.changed(), self._changes) if self._file.exists else None

    async def fate(self, name: KeyName) -> str:
        if any(covers(KeyName(*row), name) for row in self._file.rows("SELECT owner, kind, period FROM gone WHERE owner = ?", name.owner)):
            return "erased"
        return "off" if self._file.one(f"SELECT 1 FROM dek WHERE {_ONE} AND off IS NOT NULL", *_row(name)) else ""

    async def expired(self, now: int) -> tuple[KeyName, ...]:
        due = "SELECT owner, kind, period FROM dek WHERE until > 0 AND until <= ? AND off IS NULL ORDER BY 1, 2, 3"
        return tuple(KeyName(*row) for row in self._file.rows(due, now))

    def _find(self, name: KeyName) -> bytes:
        found = self._file.one(f"SELECT key FROM dek WHERE {_ONE} AND off IS NULL", *_row(name))
        return b"" if found is None else self._unwrapped(bytes(found), name)

    def _make(self, name: KeyName, until: int) -> bytes:
        with self._file.writing() as db:
            gone = any(covers(KeyName(*r), name) for r in db.execute("SELECT owner, kind, period FROM gone WHERE owner = ?", (name.owner,)))
            if gone or db.execute(f"SELECT 1 FROM dek WHERE {_ONE} AND off IS NOT NULL", _row(name)).get:
                raise Erased(
                    "what would be written here is being forgotten, or was", code="MDM-0963", where=name.owner,
                    why="a key that is to be destroyed takes nothing new", fix="begin a new run",
                )  # fmt: skip
            self._insert(db, name, until)
        return self._find(name)

    def _insert(self, db: apsw.Connection, name: KeyName, until: int) -> None:
        """Of two processes that make one at once, both get the first one's."""
        stored = self._wrapped(os.urandom(SECRET), name)
        db.execute("INSERT OR IGNORE INTO dek (owner, kind, period, key, until) VALUES (?, ?, ?, ?, ?)", (*_row(name), stored, until))

    # -- erasing -------------------------------------------------------------------------------------------------------------
    async def erasings(self) -> tuple[Erasing, ...]:
        return tuple(_erasing(*row) for row in self._file.rows("SELECT id, subject, keys, runs, state FROM erasing ORDER BY id"))

    async def hear(self, erasing: Erasing) -> None:
        self._changes += 1
        keys, runs = ((), ()) if erasing.state == "done" else (erasing.keys, erasing.runs)
        with self._file.writing() as db:
            db.execute("UPDATE dek SET off = NULL WHERE off = ?", (erasing.id,))
            for selector in keys if erasing.state == "off" else ():
                db.execute(f"UPDATE dek SET off = ? WHERE off IS NULL AND {_where(selector)}", (erasing.id, *_values(selector)))
            row = (erasing.id, erasing.subject, _packed(_row(k) for k in keys), _packed(runs), erasing.state)
            db.execute("INSERT OR REPLACE INTO erasing VALUES (?, ?, ?, ?, ?)", row)

    async def destroy(self, id: str, keys: Sequence[KeyName], subject: str = "", *, whole: bool = True) -> int:
        self._changes += 1
        deleted: list[bytes] = []
        with self._file.writing() as db:
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
        self._file.scrub(deleted)
        return 0

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        if self.path == MEMORY:
            yield
            return
        self._file.db()  # the folder is there
        with open(f"{self.path}.lock", "ab") as file:
            while not self._file.lock(file.fileno()):
                await asyncio.sleep(0.02)
            yield

    # -- what was given away -------------------------------------------------------------------------------------------------
    async def hand_out(self, path: str, run: str, kind: str) -> None:
        with self._file.writing() as db:
            db.execute("INSERT OR REPLACE INTO handed VALUES (?, ?, ?)", (path, run, kind))

    async def handed_out(self, runs: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
        asked = "SELECT path, run, kind FROM handed WHERE run IN (SELECT value FROM json_each(?)) ORDER BY path"
        return tuple((row[0], row[1], row[2]) for row in self._file.rows(asked, json.dumps(list(runs))))

    async def took_back(self, path: str) -> None:
        with self._file.writing() as db:
            db.execute("DELETE FROM handed WHERE path = ?", (path,))

    async def close(self) -> None:
        self._file.close()

    # -- wrapping ------------------------------------------------------------------------------------------------------------
    def _wrapped(self, key: bytes, name: KeyName) -> bytes:
        return self._wrap.wrap(key, _about(name)) if self._wrap else key

    def _unwrapped(self, stored: bytes, name: KeyName) -> bytes:
        return self._wrap.unwrap(stored, _about(name)) if self._wrap else stored


def _about(name: KeyName) -> bytes:
    """What a wrapped key is bound to: moved to another owner, it does not unwrap."""
    return json.dumps([_ABOUT, *_row(name)]).encode()


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
