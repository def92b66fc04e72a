"""Opens one ledger file, or says why not: settings, version, file system, damage. Translates SQLite's errors at the edge.

The rule a newcomer would break: nothing here reads the file through Python's own open(). Closing such a handle drops the POSIX locks
that SQLite holds on the same file in this process (sqlite.org/howtocorrupt.html, section 2.2).
"""

from __future__ import annotations

import functools
import os
import re
import time
from importlib import resources
from pathlib import Path

import apsw

from mandamus.errors import EngineFault, MandamusError, Misuse, ProofError, Unavailable

APPLICATION = 0x4D444D31  # "MDM1" in the file's header
PAGE_BYTES = 4096
BUSY_MS = 5_000
CHECKPOINT_PAGES = 4_000  # of the write-ahead log: 200 runs write the same 500 pages again and again, and each checkpoint copies them
CACHE_KIB = 16_384  # the pages that 200 runs write at once; what did not fit would be written to the log before its commit, and read again
NETWORK = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "ncpfs",
        "beegfs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.rclone",
    )
)
_query_name = re.compile(r"^-- (\w+) --$", re.MULTILINE)


@functools.cache
def queries() -> dict[str, str]:
    """The named statements of `sql/ledger.sql`."""
    pieces = _query_name.split(_sql("ledger.sql"))
    return {name: _without_comments(text) for name, text in zip(pieces[1::2], pieces[2::2])}


@functools.cache
def migrations() -> list[str]:
    """SQL of version 1, 2, ... in order."""
    names = sorted(
        entry.name for entry in resources.files("mandamus.drivers").joinpath("sql").iterdir() if entry.name.startswith("ledger_")
    )
    for version, name in enumerate(names, 1):
        assert name.startswith(f"ledger_{version:04}_"), name
    return [_sql(name) for name in names]


def open_writer(path: Path, vfs: str = "") -> apsw.Connection:
    """A connection with our settings, its tables made or brought up to date. Raises EngineFault, ProofError, Misuse, Unavailable."""
    _refuse_place(path)
    try:
        db = _connect(path, vfs, create=True)
    except apsw.Error as error:
        raise translate(error, path) from None
    try:
        _check_version(db, path)
        _settle(db, path)
        _migrate(db, path)
        return db
    except apsw.Error as error:
        db.close()
        raise translate(error, path) from None
    except BaseException:
        db.close()
        raise


def open_reader(path: Path, vfs: str = "") -> apsw.Connection:
    """A second connection, so that reading never waits for a commit. It cannot write."""
    try:
        db = _connect(path, vfs, create=False)
        db.pragma("query_only", True)
        return db
    except apsw.Error as error:
        raise translate(error, path) from None


def make_whole(db: apsw.Connection, path: Path) -> None:
    """After a failed write: copy all that the log shows into the file and flush it. Only then is a visible record a durable one."""
    try:
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.Error as error:
        fault = translate(error, path)
        raise Unavailable(
            "the ledger cannot yet prove that what it shows is on the disk",
            outcome="none",
            code="MDM-0514",
            where=str(path),
            found=fault.diagnosis.what,
            why="an earlier write failed half way",
            fix=fault.diagnosis.fix or "end other processes that use the file, then try again",
        ) from None


def discard(db: apsw.Connection | None) -> None:
    """Close a connection whose write failed, without the checkpoint of a normal close: that is `make_whole`'s, on a fresh one."""
    if db is not None:
        try:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            db.close(True)
        except apsw.Error:
            pass  # it is of no further use either way


def close(db: apsw.Connection) -> None:
    """The last one to close also copies the log into the file. When that fails, the log stays, and with it every record."""
    try:
        db.close()
    except apsw.Error:
        discard(db)


def check_settings(db: apsw.Connection, path: Path) -> None:
    """Read the settings back: a build, a hook or another process may have refused them silently."""
    wanted = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "application_id": APPLICATION, "user_version": len(migrations())}
    for name, value in wanted.items():
        found = db.pragma(name)
        if found != value:
            raise EngineFault(
                f"the ledger file does not keep the setting {name}",
                code="MDM-0523",
                where=str(path),
                expected=str(value),
                found=str(found),
                why="an acknowledged record could be lost with the power",
                fix="keep the file on a local disk, and let no other program change its settings",
            )


def check_pages(db: apsw.Connection, path: Path) -> None:
    """Every page and index of the file. Slow on large files. Raises ProofError."""
    try:
        found = db.execute("PRAGMA quick_check(1)").get
    except apsw.Error as error:
        raise translate(error, path) from None
    if found != "ok":
        raise _damaged(path, "its pages contradict each other")


def check_guards(db: apsw.Connection, path: Path) -> None:
    """The triggers that keep records from being edited are all there. Raises ProofError with the name of one that is gone."""
    asked = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"
    fresh = apsw.Connection(":memory:")
    for step in migrations():
        fresh.execute(step)
    there = set(db.execute(asked))
    gone = next((name for name, sql in fresh.execute(asked) if (name, sql) not in there), None)
    fresh.close()
    if gone is not None:
        raise ProofError(
            f"the ledger file has lost its guard {gone}",
            code="MDM-0631",
            where=str(path),
            why="somebody took it away to edit the file; the lines below tell which chains still hold",
            fix="keep the file as evidence; restore a whole backup, or begin another: --ledger sqlite:///NEW.db",
        )


def file_system(path: Path, mountinfo: str) -> str:
    """The type of the file system that holds `path`, by the text of /proc/self/mountinfo; "" when it cannot be told."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), fields[4])
        inside = point == "/" or path.as_posix() == point or path.as_posix().startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split(" ")[0]
    return kind


def translate(error: apsw.Error, path: Path, outcome: str = "none") -> MandamusError:
    """SQLite's exception as ours. `outcome` is what is known of a write that was under way."""
    where, found = str(path), str(error)
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return Unavailable(
            "another process keeps the ledger file locked",
            outcome=outcome,
            code="MDM-0511",
            where=where,
            expected=f"free within {BUSY_MS // 1000} s",
            fix="end the program that holds it (a database shell with an open transaction?)",
        )
    if isinstance(error, apsw.FullError):
        return Unavailable(
            "the disk is full", outcome=outcome, code="MDM-0512", where=where, found=found, fix="free some space, then resume"
        )
    if isinstance(error, (apsw.NotADBError, apsw.CorruptError)):
        return _damaged(path, found)
    if isinstance(error, (apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError)):
        return _read_only(path)
    if isinstance(error, apsw.CantOpenError):
        return EngineFault(
            "the ledger file cannot be opened", code="MDM-0524", where=where, found=found, fix="check that the folder may be written to"
        )
    if isinstance(error, apsw.ConstraintError):
        return ProofError(
            "the ledger's tables contradict each other",
            code="MDM-0631",
            where=where,
            found=found,
            why="a row stands where the head says that there is none: the file was edited, or restored in part",
            fix="keep the file as evidence; restore a whole backup, or begin another: --ledger sqlite:///NEW.db",
        )
    return Unavailable(
        "the ledger file failed", outcome=outcome, code="MDM-0513", where=where, found=found, fix="check the disk, then resume"
    )


def _connect(path: Path, vfs: str, *, create: bool) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    db = apsw.Connection(str(path), flags=flags, vfs=vfs or None)
    db.set_busy_timeout(BUSY_MS)
    return db


def _refuse_place(path: Path) -> None:
    if not path.parent.is_dir():
        raise Misuse("the ledger's folder does not exist", code="MDM-0130", where=str(path.parent), fix=f"mkdir -p {path.parent}")
    if path.is_dir():
        raise Misuse("the ledger is one file, this is a folder", code="MDM-0130", where=str(path))
    own, size = Path(f"{path}.own"), path.stat().st_size if path.exists() else None
    if size == 0 and own.is_dir() and any(own.iterdir()):
        raise _damaged(path, "0 bytes, beside locks of earlier runs")
    if size is not None and 0 < size < 512:  # SQLite takes one byte for an empty file
        raise _damaged(path, f"{size} bytes")
    try:
        kind = file_system(path.resolve(), Path("/proc/self/mountinfo").read_text("utf-8", "replace"))
    except OSError:
        return  # not Linux, or no /proc: it cannot be told
    if kind in NETWORK:
        raise EngineFault(
            f"a ledger file cannot lie on a network file system ({kind})",
            code="MDM-0525",
            where=str(path),
            why="locks and flushes do not hold there as SQLite needs them",
            fix="move it to a local disk, or use Postgres",
        )


def _check_version(db: apsw.Connection, path: Path) -> None:
    """First look into the file, before any setting is written to it."""
    if db.readonly("main"):
        raise _read_only(path)
    version, known = db.pragma("user_version"), len(migrations())
    foreign = db.pragma("application_id") != APPLICATION and db.execute("SELECT count(*) FROM sqlite_schema").get != 0
    if foreign:
        raise Misuse(
            "this SQLite file belongs to another program",
            code="MDM-0131",
            where=str(path),
            fix="name another file; a ledger makes its own",
        )
    if version > known:
        raise EngineFault(
            "the ledger file is of a newer version",
            code="MDM-0526",
            where=str(path),
            expected=f"version {known} or older",
            found=f"version {version}",
            why="what this version does not know it could break",
            fix="install the newer mandamus that wrote it",
        )


def _settle(db: apsw.Connection, path: Path) -> None:
    db.pragma("page_size", PAGE_BYTES)  # of a new file only
    db.pragma("synchronous", "FULL")
    db.pragma("cache_size", -CACHE_KIB)
    db.pragma("foreign_keys", True)
    db.pragma("recursive_triggers", True)  # else REPLACE deletes without asking the triggers
    db.pragma("wal_autocheckpoint", 0)  # ours runs after the answer, and notices a failed flush
    deadline = time.monotonic() + BUSY_MS / 1000
    while db.pragma("journal_mode") != "wal":
        try:
            db.pragma("journal_mode", "wal")
        except apsw.BusyError:  # SQLite does not wait here; another process is making the same file
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _migrate(db: apsw.Connection, path: Path) -> None:
    steps = migrations()
    if db.pragma("user_version") < len(steps):
        db.execute("BEGIN IMMEDIATE")
        try:
            _check_version(db, path)  # another process may have been faster, even with a newer program
            for version in range(db.pragma("user_version"), len(steps)):
                db.execute(steps[version])
            db.pragma("application_id", APPLICATION)
            db.pragma("user_version", len(steps))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        flush_folder(path.parent)
    check_settings(db, path)


def flush_folder(folder: Path) -> None:
    """Makes names durable. Else the power may take a new file's name, or give a deleted rollback journal back, which undoes the file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _damaged(path: Path, found: str) -> ProofError:
    return ProofError(
        "the file is no ledger, or a damaged one",
        code="MDM-0683",
        where=str(path),
        found=found,
        why="records may be missing; nothing is repaired by guessing",
        fix="keep the file as evidence; restore a whole backup, or begin another: --ledger sqlite:///NEW.db",
    )


def _read_only(path: Path) -> EngineFault:
    return EngineFault(
        "the ledger file is read-only",
        code="MDM-0522",
        where=str(path),
        why="without a durable record there is no effect",
        fix=f"give {_user()} the right to write to the file and to its folder",
    )


def _user() -> str:
    return f"user {os.getuid()}" if hasattr(os, "getuid") else "this user"


def _sql(name: str) -> str:
    return resources.files("mandamus.drivers").joinpath("sql", name).read_text("utf-8")


def _without_comments(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("--"))
