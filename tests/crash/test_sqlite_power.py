"""Power cuts, full disks and damaged files. After each of them no acknowledged append is missing and no half of one is visible.

Killing a process proves nothing about power: the kernel still writes its pages. So a VFS notes every write and flush, and each moment
between two of them is rebuilt as the disk could look then: what was flushed, plus none, all, or a torn part of what was not.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

from mandamus.core.records import decode, event_hash
from mandamus.drivers import _sqlite_file as file
from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.errors import Conflict, EngineFault, MandamusError, Misuse, ProofError, Unavailable
from mandamus.ports import Head, Wake
from mandamus.testing.conformance.chains import Chain, ended, turn
from mandamus.testing.conformance.suite import gather, put, write

_vfs_numbers = count(1)
Op = tuple[str, str, int, bytes]  # kind, file, offset or size, data


class Disk(apsw.VFS):
    """The real file system, with every write and flush noted, and one of them failing when `fail_at` says so."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.fail_at, self.failure = -1, apsw.IOError
        self.vfs_name = f"disk{next(_vfs_numbers)}"
        super().__init__(self.vfs_name, "")

    def note(self, kind: str, name: str, offset: int = 0, data: bytes = b"") -> None:
        if len(self.ops) == self.fail_at:
            self.fail_at = -1
            raise self.failure("made to fail")
        self.ops.append((kind, Path(name).name, offset, data))

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return DiskFile(self, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        self.note("delete", name)
        super().xDelete(name, sync)
        if sync:
            self.note("folder", name)


class DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self.disk, self.file_name = disk, name.filename() if isinstance(name, apsw.URIFilename) else name or "temporary"
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self.disk.note("write", self.file_name, offset, bytes(data))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:
        self.disk.note("truncate", self.file_name, size)
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:
        self.disk.note("flush", self.file_name)
        super().xSync(flags)


class Story:
    """Two runs, accounts, mail and claims; notes after which operation of the disk each promise was given."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.promises: list[tuple[int, str, int, str]] = []  # position, run, seq, hash
        self.mail: list[tuple[int, bytes]] = []
        self.ends: dict[str, set[int]] = {"run-1": {-1}, "run-2": {-1}}

    async def tell(self, ledger: SqliteLedger) -> None:
        chains, heads, version = [Chain("run-1"), Chain("run-2")], {}, 0
        for step in range(6):
            for chain in chains:
                version += 1
                sealed = chain.next(turn(), ended(), a="x" * 900, b="y" * 300) if step else chain.genesis(input="i")
                self.ends[chain.run].add(sealed[-1].record.seq)
                heads[chain.run] = head = await put(
                    ledger, heads.get(chain.run), sealed, also=[write("count", version)], wake=Wake(step, 0, "running")
                )
                self.promises.append((len(self.disk.ops), chain.run, head.seq, head.hash))
            message = b"m%d" % step
            await ledger.send("run-1", message)
            self.mail.append((len(self.disk.ops), message))
            claimed = await ledger.claim("default", 1000, run="run-2")
            assert claimed is not None
            await ledger.renew(claimed, 0)


def disk_after(ops: list[Op], cut: int, keep: Callable[[Op], bytes | None]) -> dict[str, bytearray]:
    """File contents when the power goes before operation `cut`. `keep` says what of an unflushed write reached the plate."""
    files: dict[str, bytearray] = {}
    flushed = {name: i for i, (kind, name, _, _) in enumerate(ops[:cut]) if kind == "flush"}  # the last one of each
    named = max((i for i, op in enumerate(ops[:cut]) if op[0] == "folder"), default=-1)
    for i, (kind, name, offset, data) in enumerate(ops[:cut]):
        content = files.setdefault(name, bytearray())
        safe = i < named if kind == "delete" else i < flushed.get(name, -1)
        kept: bytes | None = data if safe else keep(ops[i])
        if kind in ("flush", "folder") or kept is None:
            continue
        if kind == "write":
            content.extend(b"\0" * (offset + len(kept) - len(content)))
            content[offset : offset + len(kept)] = kept
        elif kind == "truncate":
            del content[offset:]
        else:
            files[name] = bytearray()
    return {name: content for name, content in files.items() if content or name == "ledger.db"}


def plates(seed: int) -> Iterator[Callable[[Op], bytes | None]]:
    """Nothing unflushed arrived; all of it; some of it, torn between sectors."""
    yield lambda op: None
    yield lambda op: op[3]
    for n in range(2):
        dice = random.Random(f"{seed}/{n}")
        yield lambda op, dice=dice: op[3][: dice.randrange(0, len(op[3]) + 512, 512)] if dice.random() < 0.6 else None


async def look(path: Path, story: Story, cut: int) -> None:
    """What a new process finds."""
    ledger = SqliteLedger.open(path)
    try:
        appends = 0
        for run, ends in story.ends.items():
            head = await ledger.head(run)
            seq = head.seq if head else -1
            assert seq in ends, f"half an append of {run} is visible: event {seq}"
            appends += sorted(ends).index(seq)
            acked = [(s, h) for position, name, s, h in story.promises if name == run and position <= cut]
            assert not acked or seq >= acked[-1][0], f"acknowledged events of {run} are missing behind {seq}"
            hashes = await whole(ledger, run, head)
            assert all(hashes[s] == h for s, h in acked)
        count = await ledger.account("count")
        assert (count.version if count else 0) == appends == len(await gather(ledger.deltas("count")))
        mail = [body for _, _, body in await gather(ledger.mailbox("run-1"))]
        assert set(mail) >= {message for position, message in story.mail if position <= cut}
    finally:
        await ledger.close()


async def whole(ledger: SqliteLedger, run: str, head: Head | None) -> list[str]:
    """The run's hashes, after chain and payloads were checked."""
    records = await gather(ledger.read(run))
    hashes = [event_hash(raw) for raw in records]
    parsed = [decode(raw) for raw in records]
    assert [record.prev for record in parsed[1:]] == hashes[:-1]
    wanted = [(record.seq, part.part) for record in parsed if isinstance(record.body, tuple) for part in record.body]
    assert [(p.seq, p.part) for p in await gather(ledger.payloads(run))] == sorted(wanted)
    assert head is None or head.hash == hashes[-1]
    return hashes


@pytest.mark.law("1")
def test_a_power_cut_at_every_write_and_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "CHECKPOINT_PAGES", 16)  # several checkpoints, and the log begun again
    disk = Disk()
    story, folder = Story(disk), tmp_path / "live"
    folder.mkdir()
    flush_folder = file.flush_folder
    monkeypatch.setattr(file, "flush_folder", lambda folder: (flush_folder(folder), disk.note("folder", "ledger.db")))

    async def live() -> None:
        ledger = SqliteLedger.open(folder / "ledger.db", vfs=disk.vfs_name)
        await story.tell(ledger)
        await ledger.close()

    asyncio.run(live())
    kinds = {(op[0], Path(op[1]).suffix) for op in disk.ops}
    assert {("write", ".db"), ("flush", ".db"), ("write", ".db-wal"), ("flush", ".db-wal")} <= kinds

    memory = Path("/dev/shm")  # where flushing costs nothing: it is the rebuilt disk that is tested now, not this one
    place = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else tmp_path))

    async def every_cut() -> None:
        seen: set[tuple[int, bytes]] = set()
        for cut in range(len(disk.ops) + 1):
            promised = sum(position <= cut for position, *_ in (*story.promises, *story.mail))
            for n, keep in enumerate(plates(cut)):
                files = disk_after(disk.ops, cut, keep)
                looks = promised, hashlib.sha256(b"".join(name.encode() + content for name, content in sorted(files.items()))).digest()
                if looks in seen:
                    continue
                seen.add(looks)
                for name, content in files.items():
                    (place / name).write_bytes(content)
                try:
                    await look(place / "ledger.db", story, cut)
                except (AssertionError, MandamusError) as error:
                    raise AssertionError(f"cut before operation {cut} of {len(disk.ops)}, plate {n}: {error}") from error
                for left in place.iterdir():
                    left.unlink()
        assert len(seen) > len(disk.ops)

    try:
        asyncio.run(every_cut())
    finally:
        shutil.rmtree(place)


def test_a_failed_write_or_flush_at_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O error is final for the connection. The next call opens the file again; "none" is only said when nothing was written."""
    monkeypatch.setattr(file, "CHECKPOINT_PAGES", 6)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # where SQLite drops the error of a callback, apsw reports it here
    outcomes: list[str] = []

    async def one(folder: Path, at: int, failure: type[apsw.Error]) -> bool:
        disk = Disk()
        ledger = SqliteLedger.open(folder / "ledger.db", vfs=disk.vfs_name)
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        disk.ops.clear()
        disk.fail_at, disk.failure = at, failure
        for _ in range(4):
            sealed = chain.next(turn(), turn(), note="n" * 500)
            outcome = ""
            try:
                head = await put(ledger, head, sealed)
            except Unavailable as error:
                outcome = error.outcome
            if outcome:
                outcomes.append(outcome)
                now = await ledger.head("run-1")
                assert now is not None
                assert now == head if outcome == "none" else now.hash in (head.hash, sealed[-1].hash)
                head = now if now.hash == sealed[-1].hash else await put(ledger, head, sealed)  # the same bytes again
        assert head.seq == 8
        assert await ledger.head("run-1") == head
        await whole(ledger, "run-1", head)
        reached = disk.fail_at == -1
        await ledger.close()
        again = SqliteLedger.open(folder / "ledger.db")
        assert await again.head("run-1") == head
        await again.check()
        await again.close()
        return reached

    for failure in (apsw.IOError, apsw.FullError):
        for at in range(200):
            folder = tmp_path / f"{failure.__name__}-{at}"
            folder.mkdir()
            if not asyncio.run(one(folder, at, failure)):
                break
        assert 20 < at < 199
    assert "unknown" in outcomes


def test_after_a_failed_write_nothing_is_answered_before_the_file_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an unflushed log shows proves nothing: the head is told only after a checkpoint that was flushed."""

    async def story() -> None:
        disk = Disk()
        ledger = SqliteLedger.open(tmp_path / "ledger.db", vfs=disk.vfs_name)
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        disk.fail_at = len(disk.ops) + next(i for i, op in enumerate(await probe(chain)) if op[0] == "flush")
        with pytest.raises(Unavailable) as failed:
            await put(ledger, head, chain.next())
        assert failed.value.outcome == "unknown"
        holder = apsw.Connection(str(tmp_path / "ledger.db"))
        holder.execute("BEGIN")
        holder.execute("SELECT count(*) FROM event").fetchall()
        monkeypatch.setattr(file, "BUSY_MS", 50)
        with pytest.raises(Unavailable) as still:
            await ledger.head("run-1")
        assert still.value.outcome == "none"
        assert still.value.diagnosis.code == "MDM-0514"
        holder.execute("COMMIT")
        holder.close()
        assert (await ledger.head("run-1")) is not None
        await ledger.close()

    async def probe(chain: Chain) -> list[Op]:
        """The operations of one such append, on another disk."""
        disk, twin = Disk(), Chain(chain.run)
        (tmp_path / "twin").mkdir()
        ledger = SqliteLedger.open(tmp_path / "twin" / "ledger.db", vfs=disk.vfs_name)
        head = await put(ledger, None, twin.genesis())
        disk.ops.clear()
        await put(ledger, head, twin.next())
        ops = list(disk.ops)
        await ledger.close()
        return ops

    asyncio.run(story())


# -- files that must be refused ----------------------------------------------------------------------------------------------
def made(path: Path, appends: int = 30) -> Head:
    """A closed ledger with one run."""

    async def make() -> Head:
        ledger, chain = SqliteLedger.open(path), Chain("run-1")
        head = await put(ledger, None, chain.genesis(input="i"))
        for _ in range(appends):
            head = await put(ledger, head, chain.next(note="n" * 600))
        await ledger.close()
        return head

    return asyncio.run(make())


async def read_through(path: Path) -> None:
    ledger = SqliteLedger.open(path)
    try:
        for head in await gather(ledger.runs()):
            await whole(ledger, head.run, head)
    finally:
        await ledger.close()


@pytest.mark.parametrize("size", [1, 100, 4095, 4096, 8192, 20000])
def test_a_truncated_file_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "ledger.db"
    made(path)
    os.truncate(path, size)
    with pytest.raises(ProofError) as error:
        asyncio.run(read_through(path))
    assert error.value.diagnosis.code == "MDM-0683"
    assert "backup" in error.value.diagnosis.fix
    assert path.stat().st_size == size, "evidence is left as it is"


def test_a_file_cut_to_nothing_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    made(path)

    async def claim() -> None:
        ledger = SqliteLedger.open(path)
        await ledger.claim("default", 1000, run="run-1")
        await ledger.close()

    asyncio.run(claim())
    os.truncate(path, 0)
    with pytest.raises(ProofError) as error:
        SqliteLedger.open(path)
    assert error.value.diagnosis.code == "MDM-0683"


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_text("dear diary, " * 1000)
    with pytest.raises(ProofError) as error:
        SqliteLedger.open(path)
    assert error.value.diagnosis.code == "MDM-0683"
    assert path.read_text() == "dear diary, " * 1000


def test_overwritten_pages_are_found_by_the_check(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    made(path)
    content = bytearray(path.read_bytes())
    for page in range(5, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    path.write_bytes(content)

    async def check() -> None:
        ledger = SqliteLedger.open(path)
        try:
            await ledger.check()
        finally:
            await ledger.close()

    with pytest.raises(ProofError):
        asyncio.run(check())


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    theirs = apsw.Connection(str(path))
    theirs.execute("CREATE TABLE customers(name)")
    theirs.close()
    before = path.read_bytes()
    with pytest.raises(Misuse) as error:
        SqliteLedger.open(path)
    assert error.value.diagnosis.code == "MDM-0131"
    assert path.read_bytes() == before


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    made(path)
    newer = apsw.Connection(str(path))
    newer.pragma("user_version", 99)
    newer.close()
    with pytest.raises(EngineFault) as error:
        SqliteLedger.open(path)
    assert error.value.diagnosis.code == "MDM-0526"
    assert "99" in error.value.diagnosis.found
    assert str(len(file.migrations())) in error.value.diagnosis.expected


def test_a_hand_edited_record_breaks_the_chain(tmp_path: Path) -> None:
    """The triggers refuse the edit; whoever drops them is found by decoding and by the chain."""
    path = tmp_path / "ledger.db"
    made(path, 3)
    hand = apsw.Connection(str(path))
    edits = (
        "UPDATE event SET body = body",
        "DELETE FROM event",
        "UPDATE payload SET bytes = bytes",
        "DELETE FROM payload",
        "DELETE FROM head",
    )
    for edit in edits:
        with pytest.raises(apsw.ConstraintError, match="never"):
            hand.execute(edit)
    hand.execute("DROP TRIGGER event_never_changes")
    ((spot, body),) = hand.execute("SELECT spot, body FROM event ORDER BY spot LIMIT 1 OFFSET 1").fetchall()
    hand.execute("UPDATE event SET body = ? WHERE spot = ?", (body.replace(b'"turn":1', b'"turn":7'), spot))
    hand.close()
    with pytest.raises(AssertionError):
        asyncio.run(read_through(path))


def test_a_missing_record_is_noticed_when_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    made(path, 5)
    hand = apsw.Connection(str(path))
    hand.execute("DROP TRIGGER event_never_leaves")
    hand.execute("DELETE FROM event WHERE spot = (SELECT max(spot) FROM event)")
    hand.close()
    with pytest.raises(ProofError) as error:
        asyncio.run(read_through(path))
    assert error.value.diagnosis.code == "MDM-0632"
    hand = apsw.Connection(str(path))
    hand.execute("DELETE FROM event WHERE spot = (SELECT min(spot) FROM event)")
    hand.close()
    with pytest.raises(ProofError):
        asyncio.run(read_through(path))


def test_a_head_behind_its_records_is_noticed_when_written(tmp_path: Path) -> None:
    """A head that was set back by hand finds a record where it wants to write one."""
    path = tmp_path / "ledger.db"

    async def story() -> None:
        ledger, chain = SqliteLedger.open(path), Chain("run-1")
        first = await put(ledger, None, chain.genesis())
        fork = chain.fork()
        await put(ledger, first, chain.next(note="true"))
        hand = apsw.Connection(str(path))
        hand.execute("UPDATE head SET seq = 0, hash = ?", (bytes.fromhex(first.hash),))
        hand.close()
        with pytest.raises(ProofError) as error:
            await put(ledger, first, fork.next(note="false"))
        assert error.value.diagnosis.code == "MDM-0631"
        assert len(await gather(ledger.payloads("run-1"))) == 0, "what lies behind the head is not shown"
        await ledger.close()

    asyncio.run(story())


# -- other processes ---------------------------------------------------------------------------------------------------------
def child(code: str, *args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), *args], capture_output=True, text=True, timeout=60, **more)


def test_a_locked_file_is_unavailable_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "BUSY_MS", 30)
    path = tmp_path / "ledger.db"

    async def story() -> None:
        ledger, chain = SqliteLedger.open(path), Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        sealed = chain.next(note="n")
        with subprocess.Popen([sys.executable, "-c", LOCKER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as locker:
            assert locker.stdout is not None
            assert locker.stdout.readline() == b"locked\n"
            with pytest.raises(Unavailable) as error:
                await put(ledger, head, sealed)
            assert error.value.outcome == "none"
            assert error.value.diagnosis.code == "MDM-0511"
            assert await ledger.head("run-1") == head, "reading needs no lock"
            locker.communicate(b"\n")
        assert (await put(ledger, head, sealed)).seq == 1
        await ledger.close()

    asyncio.run(story())


LOCKER = """
import apsw, sys
db = apsw.Connection(sys.argv[1])
db.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
db.execute("ROLLBACK")
"""

OWNER = """
import asyncio, sys
from mandamus.drivers.ledger_sqlite import SqliteLedger
async def main():
    ledger = SqliteLedger.open(sys.argv[1])
    head = await ledger.claim("default", 60000, run="run-1")
    print(head.owner, flush=True)
    sys.stdin.readline()
asyncio.run(main())
"""


def test_the_kernel_drops_a_dead_owners_lock(tmp_path: Path) -> None:
    """While it lives, a claim names its pid; after SIGKILL the run is free at once, whatever the lease says."""
    path = tmp_path / "ledger.db"
    head = made(path, 2)

    async def story() -> None:
        ledger = SqliteLedger.open(path)
        with subprocess.Popen([sys.executable, "-c", OWNER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"pid %d\n" % owner.pid
            with pytest.raises(Conflict, match=f"pid {owner.pid}"):
                await ledger.claim("default", 1000, run="run-1")
            owner.kill()
        taken = await ledger.claim("default", 1000, run="run-1")
        assert taken is not None
        assert (taken.seq, taken.hash, taken.owner, taken.tries) == (head.seq, head.hash, f"pid {os.getpid()}", 2)
        await ledger.close()

    asyncio.run(story())
    assert (tmp_path / "ledger.db.own" / "run-1").exists(), "a lock file is never unlinked"


def test_two_processes_write_one_file(tmp_path: Path) -> None:
    """Each opens and extends its own runs, both make the file, and both race for one account."""
    code = """
    import asyncio, sys
    from mandamus.drivers.ledger_sqlite import SqliteLedger
    from mandamus.errors import Conflict
    from mandamus.testing.conformance.chains import Chain
    from mandamus.testing.conformance.suite import put, write
    async def main():
        ledger, won = SqliteLedger.open(sys.argv[1]), 0
        for r in range(5):
            chain = Chain(f"{sys.argv[2]}-{r}")
            head = await put(ledger, None, chain.genesis())
            for _ in range(10):
                sealed = chain.next(note="n")
                while True:
                    account = await ledger.account("count")
                    try:
                        head = await put(ledger, head, sealed, also=[write("count", (account.version if account else 0) + 1)])
                        break
                    except Conflict as conflict:
                        assert conflict.on == "account", conflict
        await ledger.close()
    asyncio.run(main())
    """
    path = tmp_path / "ledger.db"
    workers = [subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(path), name], stderr=subprocess.PIPE) for name in "ab"]
    assert [(worker.communicate(timeout=60)[1], worker.returncode) for worker in workers] == [(b"", 0), (b"", 0)]

    async def look() -> None:
        ledger = SqliteLedger.open(path)
        heads = await gather(ledger.runs())
        assert [head.seq for head in heads] == [10] * 10
        for head in heads:
            await whole(ledger, head.run, head)
        account = await ledger.account("count")
        assert account is not None
        assert account.version == 100
        await ledger.close()

    asyncio.run(look())


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the full disk: appends are refused, and what was acknowledged is there when there is room again."""
    code = """
    import asyncio, resource, sys
    from mandamus.drivers.ledger_sqlite import SqliteLedger
    from mandamus.errors import Unavailable
    from mandamus.testing.conformance.chains import Chain
    from mandamus.testing.conformance.suite import put
    async def main():
        ledger, chain = SqliteLedger.open(sys.argv[1]), Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        refused = 0
        while refused < 3:
            sealed = chain.next(note="n" * 5000)
            try:
                head = await put(ledger, head, sealed)
            except Unavailable as error:
                refused += 1
                print("refused", error.outcome, error.diagnosis.code)
                chain.at = type(chain.at)("run-1", head.seq, head.hash, 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        now = await ledger.head("run-1")
        assert now.hash in (head.hash, sealed[-1].hash), (now, head)
        print(now.seq, head.seq)
        await ledger.close()
    asyncio.run(main())
    """
    path = tmp_path / "ledger.db"
    result = child(code, str(path))
    assert result.returncode == 0, result.stderr
    *refusals, last = result.stdout.split("\n")[:-1]
    assert len(refusals) == 3
    seen, acknowledged = map(int, last.split())
    assert seen >= acknowledged > 10

    async def look() -> None:
        ledger = SqliteLedger.open(path)
        head = await ledger.head("run-1")
        assert head is not None
        assert head.seq == seen
        await whole(ledger, "run-1", head)
        await ledger.check()
        await ledger.close()

    asyncio.run(look())


READ_ONLY = """
import os, sys
from mandamus.drivers import _sqlite_file
from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.errors import EngineFault
_sqlite_file.migrations()
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)  # rights do not bind the superuser
try:
    SqliteLedger.open(sys.argv[1])
except EngineFault as error:
    print(error.diagnosis.code, error.diagnosis.fix)
"""


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o777), (0o444, 0o555)])
def test_a_read_only_file_is_refused(tmp_path: Path, file_mode: int, folder_mode: int) -> None:
    path = tmp_path / "place" / "ledger.db"
    path.parent.mkdir()
    made(path, 2)
    for parent in path.parents[1:]:
        if parent.owner() == path.owner() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    path.chmod(file_mode)
    path.parent.chmod(folder_mode)
    try:
        result = child(READ_ONLY, str(path))
    finally:
        path.parent.chmod(0o777)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("MDM-0522"), result.stdout
    assert "right to write" in result.stdout
