"""The order of records in a SQLite file: older files, older programs, edited tables, and a writer that died before his flush."""

from __future__ import annotations

import asyncio
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from mandamus.core.records import event_hash
from mandamus.drivers import _sqlite_file as file
from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.errors import ProofError
from mandamus.ports import Fed
from mandamus.testing.conformance.chains import Chain, turn
from mandamus.testing.conformance.suite import expect, gather, put

_vfs_numbers = count(1)


class Watched(apsw.VFS):
    """The real file system. `flushed` are the files that were flushed; `at_flush(name)` is called before each time."""

    def __init__(self) -> None:
        self.flushed: list[str] = []
        self.at_flush = lambda name: None
        self.vfs_name = f"watched{next(_vfs_numbers)}"
        super().__init__(self.vfs_name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _WatchedFile(self, name, flags)


class _WatchedFile(apsw.VFSFile):
    def __init__(self, vfs: Watched, name: Any, flags: list[int]) -> None:
        self.vfs, self.file_name = vfs, Path(name.filename() if isinstance(name, apsw.URIFilename) else name or "temporary").name
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:
        self.vfs.at_flush(self.file_name)
        super().xSync(flags)
        self.vfs.flushed.append(self.file_name)


async def fed(path: Path) -> list[Fed]:
    ledger = SqliteLedger.open(path)
    try:
        return await gather(ledger.feed())
    finally:
        await ledger.close()


# -- older files and programs ------------------------------------------------------------------------------------------------
def test_a_file_of_an_older_version_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its older program, which still has it open, goes on: what it writes is read too."""
    known = file.migrations()

    async def main() -> None:
        monkeypatch.setattr(file, "migrations", lambda: known[:2])
        older, chains = SqliteLedger.open(tmp_path / "l.db"), [Chain(f"run-{n}") for n in range(3)]
        heads = [await put(older, None, chain.genesis()) for chain in chains]
        heads = [await put(older, head, chain.next(turn(), turn(), note="n")) for head, chain in zip(heads, chains)]
        monkeypatch.undo()
        newer = SqliteLedger.open(tmp_path / "l.db")
        before = await gather(newer.feed())
        assert [(one.run, one.seq) for one in before] == [(f"run-{n}", seq) for n in range(3) for seq in range(3)]
        await put(older, heads[1], chains[1].next())
        await put(newer, heads[0], chains[0].next())
        after = await gather(newer.feed(before[-1].cursor))
        assert [(one.run, one.seq) for one in after] == [("run-1", 3), ("run-0", 3)]
        await newer.check()
        for ledger in (older, newer):
            await ledger.close()

    asyncio.run(main())


# -- edited files ------------------------------------------------------------------------------------------------------------
def made(path: Path) -> None:
    async def main() -> None:
        ledger, chain = SqliteLedger.open(path), Chain("run-1")
        await put(ledger, await put(ledger, None, chain.genesis()), chain.next(turn(), turn()))
        await ledger.close()

    asyncio.run(main())


@pytest.mark.parametrize("text", ["UPDATE feed SET spot = spot + 32", "DELETE FROM feed", "REPLACE INTO feed VALUES (1, 7)"])
def test_the_order_is_never_changed(tmp_path: Path, text: str) -> None:
    made(tmp_path / "l.db")
    db = apsw.Connection(str(tmp_path / "l.db"))
    db.pragma("recursive_triggers", True)
    with pytest.raises(apsw.ConstraintError, match="never changed"):
        db.execute(text)
    db.close()


@pytest.mark.parametrize(
    ("guard", "text"),
    [
        ("event_never_leaves", "DELETE FROM event WHERE spot = (SELECT max(spot) FROM event)"),
        ("event_never_leaves", "DELETE FROM event"),
        ("feed_never_leaves", "DELETE FROM feed WHERE leaf = 2"),
        ("feed_never_changes", "UPDATE feed SET spot = 1 << 40 WHERE leaf = 2"),
    ],
)
def test_what_is_missing_in_the_order_is_noticed(tmp_path: Path, guard: str, text: str) -> None:
    made(tmp_path / "l.db")
    db = apsw.Connection(str(tmp_path / "l.db"))
    db.execute(f"DROP TRIGGER {guard}")
    db.execute(text)
    db.close()
    torn = asyncio.run(expect(ProofError, fed(tmp_path / "l.db")))
    assert torn.diagnosis.code == "MDM-0632"


# -- flushes -----------------------------------------------------------------------------------------------------------------
def test_what_a_dead_writer_had_not_flushed_is_flushed_before_it_is_read(tmp_path: Path) -> None:
    """Killed between write and flush, he leaves a commit that everybody sees and that the next power cut may take back."""
    killed = tmp_path / "killed"

    async def write() -> None:
        vfs = Watched()
        ledger, chain = SqliteLedger.open(tmp_path / "l.db", vfs=vfs.vfs_name), Chain("run-1")
        head = await put(ledger, None, chain.genesis())

        def kill(name: str) -> None:
            """The files as they are in the kernel's memory at this moment."""
            if not killed.exists():
                killed.mkdir()
                for each in ("l.db", "l.db-wal"):
                    shutil.copy(tmp_path / each, killed / each)

        vfs.at_flush = kill
        await put(ledger, head, chain.next())
        vfs.at_flush = lambda name: None
        await ledger.close()

    async def read() -> None:
        vfs = Watched()
        ledger = SqliteLedger.open(killed / "l.db", vfs=vfs.vfs_name)
        head = await ledger.head("run-1")
        assert head is not None
        assert head.seq == 1, "the commit is visible"
        assert not vfs.flushed, "and it may still be in memory only"
        found = []
        async for one in ledger.feed():
            assert "l.db-wal" in vfs.flushed
            found.append(event_hash(one.raw))
        assert found[-1] == head.hash
        flushes = len(vfs.flushed)
        assert len(await gather(ledger.feed())) == len(found)
        assert len(vfs.flushed) == flushes, "once for a file that was opened"
        await ledger.close()

    asyncio.run(write())
    asyncio.run(read())
