"""What is SQLite's alone: settings, group commit, flushes, bytes, the lock beside the file."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest

from mandamus.core.seal import Sealed
from mandamus.drivers import _sqlite_file as file
from mandamus.drivers._sqlite_group import FULL, GROUP_MAX, GroupCommit, Job
from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.errors import Conflict, EngineFault, Misuse, ProofError
from mandamus.ports import Head, Ledger, Wake
from mandamus.testing.conformance.chains import Chain, turn
from mandamus.testing.conformance.suite import gather, put


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


# -- opening -----------------------------------------------------------------------------------------------------------------
def test_the_driver_is_a_ledger(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = SqliteLedger.open(str(tmp_path / "ledger.db"))
        assert isinstance(ledger, Ledger)
        await ledger.close()
        await ledger.close()

    play(story())


def test_the_settings_are_the_safe_ones(tmp_path: Path) -> None:
    db = file.open_writer(tmp_path / "ledger.db")
    found = {
        name: db.pragma(name) for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "page_size", "recursive_triggers")
    }
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 5000,
        "page_size": 4096,
        "recursive_triggers": 1,
    }
    tables = db.execute(
        "SELECT name, strict FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    assert tables
    assert all(strict for _, strict in tables)
    db.close()


@pytest.mark.parametrize(
    ("name", "value"), [("synchronous", "NORMAL"), ("synchronous", "OFF"), ("foreign_keys", "OFF"), ("user_version", 0)]
)
def test_a_setting_that_does_not_hold_is_refused(tmp_path: Path, name: str, value: object) -> None:
    db = file.open_writer(tmp_path / "ledger.db")
    db.pragma(name, value)
    with pytest.raises(EngineFault) as error:
        file.check_settings(db, tmp_path / "ledger.db")
    assert error.value.diagnosis.code == "MDM-0523"
    assert name in str(error.value)
    db.close()


def test_another_journal_mode_is_set_right_and_kept(tmp_path: Path) -> None:
    """A copy tool left the file in rollback mode: opening makes it WAL again; where that cannot be, it is refused."""
    path = tmp_path / "ledger.db"
    file.open_writer(path).close()
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "delete")
    db.close()
    again = file.open_writer(path)
    assert again.pragma("journal_mode") == "wal"
    again.close()


def test_places_that_cannot_be_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="MDM-0130") as missing:
        SqliteLedger.open(tmp_path / "none" / "ledger.db")
    assert "mkdir" in missing.value.diagnosis.fix
    with pytest.raises(Misuse, match="MDM-0130"):
        SqliteLedger.open(tmp_path)


MOUNTS = r"""22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 22 0:40 / /home/x rw - nfs4 server:/x rw
31 22 0:41 / /home/x/local rw shared:1 - xfs /dev/sdb rw
32 22 0:42 / /mnt/with\040space rw - cifs //server/share rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/run.db", "ext4"),
        ("/home/x/run.db", "nfs4"),
        ("/home/xy/run.db", "ext4"),
        ("/home/x/local/a/run.db", "xfs"),
        ("/mnt/with space/r", "cifs"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert file.file_system(Path(path), MOUNTS) == kind
    assert file.file_system(Path(path), "") == ""


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "file_system", lambda path, mounts: "nfs4")
    with pytest.raises(EngineFault, match="MDM-0525"):
        SqliteLedger.open(tmp_path / "ledger.db")
    assert not (tmp_path / "ledger.db").exists()


def test_a_closed_ledger_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        ledger, chain = SqliteLedger.open(tmp_path / "ledger.db"), Chain("run-1")
        await ledger.close()
        for call in (ledger.head("run-1"), put(ledger, None, chain.genesis()), ledger.claim("p", 1), ledger.send("run-1", b"x")):
            with pytest.raises(Misuse, match="MDM-0135"):
                await call

    play(story())


def test_reopening_finds_everything(tmp_path: Path) -> None:
    async def story() -> None:
        ledger, chain = SqliteLedger.open(tmp_path / "ledger.db"), Chain("run-1")
        head = await put(ledger, None, chain.genesis(input="i"), wake=Wake(5, 0, "running"))
        await ledger.close()
        again = SqliteLedger.open(tmp_path / "ledger.db")
        assert await again.head("run-1") == head
        assert (await put(again, head, chain.next())).seq == 1
        await again.check()
        await again.close()

    play(story())


def test_people_can_read_the_file(tmp_path: Path) -> None:
    async def story() -> None:
        ledger, chain = SqliteLedger.open(tmp_path / "ledger.db"), Chain("run-1")
        sealed = chain.genesis(input="i") + chain.next()
        await put(ledger, None, sealed)
        shell = apsw.Connection(str(tmp_path / "ledger.db"))
        assert shell.execute("SELECT run, seq, record FROM records").fetchall() == [
            ("run-1", i, one.raw.decode()) for i, one in enumerate(sealed)
        ]
        assert shell.execute("SELECT run, seq, part FROM payloads").fetchall() == [("run-1", 0, "input")]
        shell.close()
        await ledger.close()

    play(story())


def test_migrations_are_numbered_without_a_gap() -> None:
    assert file.migrations()
    assert all("CREATE" in sql for sql in file.migrations()[:1])
    assert {"head", "add_event", "due"} <= set(file.queries())
    assert all(sql and not sql.startswith("--") for sql in file.queries().values())


# -- inline and group commit -------------------------------------------------------------------------------------------------
def test_a_lone_run_commits_inline(tmp_path: Path) -> None:
    async def story() -> None:
        ledger, chain = SqliteLedger.open(tmp_path / "ledger.db"), Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        for _ in range(9):
            head = await put(ledger, head, chain.next())
        assert ledger.commits == (10, 0)
        await ledger.close()

    play(story())


def test_many_runs_share_a_commit(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = SqliteLedger.open(tmp_path / "ledger.db")
        chains = [Chain(f"run-{i:03}") for i in range(GROUP_MAX + 44)]
        await asyncio.gather(*(put(ledger, None, chain.genesis()) for chain in chains))
        inline, groups = ledger.commits
        assert inline == 0
        assert 2 <= groups <= 1 + len(chains) // FULL, "256 at most in one transaction; whoever comes while it is flushed is in the next"
        assert len(await gather(ledger.runs())) == len(chains)
        await ledger.close()

    play(story())


def test_in_a_group_each_failure_is_its_own(tmp_path: Path) -> None:
    """One Conflict, one mistake of the caller and one fault of ours, among appends that stand."""

    async def story() -> None:
        ledger = SqliteLedger.open(tmp_path / "ledger.db")
        chains = [Chain(f"run-{i}") for i in range(6)]
        heads = list(await asyncio.gather(*(put(ledger, None, chain.genesis()) for chain in chains)))
        heads[1] = Head("run-1", 0, "0" * 64, 1)
        chains[1].at = type(chains[1].at)("run-1", 0, "0" * 64, 1)
        calls: list[Coroutine[Any, Any, Any]] = [put(ledger, head, chain.next(note="n")) for head, chain in zip(heads, chains)]
        calls += [ledger.send("run-none", b"x"), ledger._submit(lambda: 1 // 0)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [Head, Conflict, Head, Head, Head, Head, Misuse, ZeroDivisionError]
        assert [head.seq for head in await gather(ledger.runs())] == [1, 0, 1, 1, 1, 1]
        assert len(await gather(ledger.payloads("run-1"))) == 0
        assert ledger.commits[1] >= 2
        await ledger.close()

    play(story())


def test_a_half_written_append_is_undone_alone(tmp_path: Path) -> None:
    """It fails after its head was moved, because a record stands where the head, set back by hand, says that there is none."""

    async def story() -> None:
        ledger = SqliteLedger.open(tmp_path / "ledger.db")
        chains = [Chain(f"run-{i}") for i in range(4)]
        heads = await asyncio.gather(*(put(ledger, None, chain.genesis()) for chain in chains))
        fork = chains[1].fork()
        await put(ledger, heads[1], chains[1].next())
        hand = apsw.Connection(str(tmp_path / "ledger.db"))
        hand.execute("UPDATE head SET seq = 0, hash = ? WHERE run = 'run-1'", (bytes.fromhex(heads[1].hash),))
        hand.close()
        chains[1] = fork
        calls = (put(ledger, head, chain.next(note="n")) for head, chain in zip(heads, chains))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [Head, ProofError, Head, Head]
        assert [head.seq for head in await gather(ledger.runs())] == [1, 0, 1, 1]
        await ledger.close()

    play(story())


def test_nobody_is_answered_before_the_commit() -> None:
    """Not even a caller who comes to ask while the writer thread stands between his work and the flush."""
    worked, flush = threading.Event(), threading.Event()

    def commit(jobs: list[Job]) -> None:
        for job in jobs:
            job.value = job.work()
        worked.set()
        assert flush.wait(20)

    async def hold_the_loop() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        assert worked.wait(20)

    async def story() -> None:
        group = GroupCommit(commit)
        first, _, second = tasks = [
            asyncio.ensure_future(each) for each in (group.submit(lambda: 1), hold_the_loop(), group.submit(lambda: 2))
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        assert worked.is_set()
        assert not first.done()
        assert not second.done()
        flush.set()
        assert await asyncio.gather(*tasks) == [1, None, 2]
        await asyncio.to_thread(group.close)

    play(story())


def test_threads_with_their_own_loops_share_a_ledger(tmp_path: Path) -> None:
    """Tools that run in threads may open child runs there."""
    ledger = SqliteLedger.open(tmp_path / "ledger.db")
    faults: list[BaseException] = []

    async def story(name: str) -> None:
        chain = Chain(name)
        head = await put(ledger, None, chain.genesis())
        for _ in range(25):
            head = await put(ledger, head, chain.next(turn(), turn(), note="n"))
        assert await ledger.head(name) == head

    def work(name: str) -> None:
        try:
            asyncio.run(story(name))
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(f"run-{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []

    async def look() -> None:
        assert [head.seq for head in await gather(ledger.runs())] == [50] * 4
        await ledger.close()

    play(look())


def test_a_job_that_was_cancelled_in_time_was_never_taken() -> None:
    taken: list[int] = []

    def commit(jobs: list[Job]) -> None:
        taken.append(len(jobs))
        for job in jobs:
            job.value = job.work()

    async def story() -> None:
        group = GroupCommit(commit)
        task = asyncio.ensure_future(group.submit(lambda: 1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert taken == []
        assert await group.submit(lambda: 2) == 2
        assert taken == [1]
        group.close()

    play(story())


def test_closing_commits_what_waits() -> None:
    done: list[int] = []

    def commit(jobs: list[Job]) -> None:
        for job in jobs:
            job.value = job.work()

    async def story() -> None:
        group = GroupCommit(commit)
        tasks = [asyncio.ensure_future(group.submit(lambda i=i: done.append(i) or i)) for i in range(20)]
        await asyncio.sleep(0)
        await asyncio.to_thread(group.close)
        assert await asyncio.gather(*tasks) == list(range(20))
        assert done == list(range(20))

    play(story())


# -- counts ------------------------------------------------------------------------------------------------------------------
class Counting(apsw.VFS):
    def __init__(self) -> None:
        self.flushes = self.written = 0
        super().__init__("counting", "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return CountingFile(self, name, flags)


class CountingFile(apsw.VFSFile):
    def __init__(self, counts: Counting, name: Any, flags: list[int]) -> None:
        self.counts = counts
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self.counts.written += len(data)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self.counts.flushes += 1
        super().xSync(flags)


def one_turn(chain: Chain) -> tuple[list[Sealed], list[Sealed]]:
    """Two commits, nine records of about 400 B, six payloads of about 300 B."""
    text = "x" * 257
    before = [one for i in range(5) for one in chain.next(**({"args": text} if i < 3 else {}))]
    return before, [one for i in range(4) for one in chain.next(**({"reply": text} if i < 3 else {}))]


def test_flushes_and_bytes_of_a_turn(tmp_path: Path) -> None:
    """Counts, not times: they hold on every machine (bench/gates.toml)."""

    async def story() -> None:
        counts = Counting()
        path = tmp_path / "ledger.db"
        ledger, chain = SqliteLedger.open(path, vfs="counting"), Chain("01JABCDEFGHJKMNPQRSTVWXYZ0")
        head = await put(ledger, None, chain.genesis(), wake=Wake(0, 0))
        turns, size, counts.flushes, counts.written = 150, path.stat().st_size, 0, 0
        for _ in range(turns):
            for sealed in one_turn(chain):
                head = await put(ledger, head, sealed, wake=Wake(0, 0))
        assert 340 <= len(sealed[0].raw) <= 420
        assert 290 <= len(sealed[0].payloads[0].bytes) <= 310
        flushes = counts.flushes
        await ledger.close()
        assert 2.0 <= flushes / turns <= 2.1
        assert counts.written / turns <= 70_000
        assert (path.stat().st_size - size) / turns <= 6_500

    play(story())
    gc.collect()


def test_claiming_and_giving_back_flush_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        counts = Counting()
        ledger, chain = SqliteLedger.open(tmp_path / "ledger.db", vfs="counting"), Chain("run-1")
        head = await put(ledger, None, chain.genesis(), wake=Wake(0, 0))
        counts.flushes = 0
        claimed = await ledger.claim("default", 1000)
        assert claimed is not None
        await ledger.renew(claimed, 5000)
        await ledger.renew(claimed, 0)
        assert counts.flushes == 0
        await put(ledger, head, chain.next())
        assert counts.flushes == 1, "the next append flushes as ever"
        await ledger.close()

    play(story())
    gc.collect()


# -- the lock beside the file ------------------------------------------------------------------------------------------------
def test_a_lock_file_names_its_owner_and_stays(tmp_path: Path) -> None:
    async def story() -> None:
        ledger, chain = SqliteLedger.open(tmp_path / "ledger.db"), Chain("run-1")
        await put(ledger, None, chain.genesis())
        head = await ledger.claim("default", 1000, run="run-1")
        assert head is not None
        lock = tmp_path / "ledger.db.own" / "run-1"
        inode = lock.stat().st_ino
        assert lock.read_text() == f"pid {os.getpid()}\n"
        await ledger.renew(head, 0)
        assert await ledger.claim("default", 1000, run="run-1") is not None
        await ledger.close()
        assert lock.stat().st_ino == inode

    play(story())


@pytest.mark.parametrize("later", [None, 2**52])
def test_a_run_that_another_worker_finished_meanwhile_is_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: int | None
) -> None:
    """It was due when the list was read; when the lock was free, its wake-up was gone, or had moved."""

    async def story() -> None:
        ledger, other, chain = SqliteLedger.open(tmp_path / "ledger.db"), apsw.Connection(str(tmp_path / "ledger.db")), Chain("run-1")
        await put(ledger, None, chain.genesis(), wake=Wake(1, 0))
        take = ledger._own.take

        def late(run: str) -> bool:
            other.execute("UPDATE head SET wake_at = ?", (later,))
            return take(run)

        monkeypatch.setattr(ledger._own, "take", late)
        assert await ledger.claim("default", 1000) is None
        assert not ledger._own.holds("run-1")
        head = await ledger.head("run-1")
        assert head is not None
        assert (head.owner, head.tries) == ("", 0)
        other.close()
        await ledger.close()

    play(story())


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Its copies of the handles are closed; else the run would stay owned after its owner's death."""

    async def story() -> None:
        ledger, chain = SqliteLedger.open(tmp_path / "ledger.db"), Chain("run-1")
        await put(ledger, None, chain.genesis())
        assert await ledger.claim("default", 1000, run="run-1") is not None
        lock = str((tmp_path / "ledger.db.own" / "run-1").resolve())
        end_read, end_write = os.pipe()
        child = os.fork()
        if child == 0:
            open_here = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
            os.write(end_write, b"kept" if lock in open_here else b"gone")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(end_read, 4) == b"gone"
        os.close(end_read)
        os.close(end_write)
        with pytest.raises(Conflict, match="this process"):
            await SqliteLedger.claim(ledger, "pool", 1000, run="run-1")
        await ledger.close()

    play(story())
