"""Bad days of a ledger and of a clock, as the person at the command line meets them: a sentence, nothing half-written, nothing paid twice.

The drivers' own tests show each fault alone; here a whole run meets it, and is carried on once the fault is gone. The bank is a file
beside the ledger that gets a line per payment and forgives nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from mandamus import _files
from mandamus.drivers import _sqlite_file
from mandamus.errors import EngineFault
from mandamus.runtime.env import SystemTime
from tests.e2e.approving import Desk
from tests.e2e.cli_world import Told, World

AGENT = '''
import os, pathlib, time
from mandamus import Absent, Agent, Ctx, Found, Money, Receipt, tool
from mandamus.data import Confidential, none
from mandamus.drivers.model_scripted import ScriptedModel, Step

OWN = Confidential(subject=none("own account"), retention="books")
HERE = pathlib.Path(__file__).parent

class Books:
    async def find(self, operation_id: str) -> Found | Absent:
        book = HERE / "book"
        done = book.exists() and operation_id in book.read_text()
        return Found(Receipt(id="tx")) if done else Absent("not in the book")

@tool(safety="financial", effect="reconcilable", reconcile=Books(), data=OWN, timeout="5s")
def send_payment(ctx: Ctx, to: str, amount: Money) -> Receipt:
    """Transfer corporate funds."""
    with open(HERE / "book", "a") as book:
        book.write(ctx.operation_id + "\\n")
    while (HERE / "hold").exists():
        time.sleep(0.02)
    return Receipt(id="tx")

def paying(minor):
    step = Step(calls=(("send_payment", {"to": "Acme", "amount": {"amount": minor, "currency": "USD"}}),))
    rules = [{"id": "pay", "permit": {"safety": "financial"}}, {"id": "large", "rule": "dualApproval", "params": {"over": "10000.00 USD"}}]
    return Agent(name="payout-bot", purpose="pay invoices", model=ScriptedModel([step, "paid"]), tools=[send_payment], policies=rules)

small, large = paying("5000"), paying("5000000")

@tool(safety="write", effect="keyed", data=OWN)
def export(ctx: Ctx) -> str:
    """Answers more than any log can hold."""
    return "x" * 100_000_000

loud = Agent(
    name="export-bot", purpose="export", model=ScriptedModel([Step(calls=(("export", {}),)), "exported"]), tools=[export],
    policies=[{"id": "write", "permit": {"safety": "write"}}],
)
'''
RUN = ("run", "payout.py:small", "Pay")
READING = (("runs",), ("show", "last"), ("inbox",), ("why", "last"), ("bundle", "last", "-o", "-"))
WRITING = (RUN, ("resume", "last"), ("cancel", "last", "--key", "alice.pem"))
PR_CAPBSET_DROP, OVERRIDES_RIGHTS, READS_ALL = 24, 1, 2


class Place(World):
    """A ledger with one finished run, and one that two people have approved."""

    @property
    def ledger(self) -> Path:
        return self.folder / ".mandamus" / "run.db"

    @property
    def paid(self) -> list[str]:
        book = self.folder / "book"
        return book.read_text().splitlines() if book.exists() else []

    def bytes(self) -> dict[str, bytes]:
        """The ledger's files; what SQLite keeps beside it for readers says nothing."""
        return {p.name: p.read_bytes() for p in self.ledger.parent.glob("run.db*") if p.is_file() and p.suffix != ".db-shm"}

    def proven(self, run: str = "last") -> None:
        self.ok("bundle", run, "-o", "run.bundle")
        self.ok("verify", "run.bundle", "--trust", ".mandamus/trust")


def a_sentence(told: Told, code: str, *, exits: int = 5) -> None:
    assert (told.code, code in told.err, "Traceback" in told.err) == (exits, True, False), told


@pytest.fixture(name="original", scope="module")
def _original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    here, folder = Path.cwd(), tmp_path_factory.mktemp("bad-days") / "original"
    folder.mkdir()
    os.chdir(folder)
    try:
        place = Place(folder)
        (folder / "payout.py").write_text(AGENT, encoding="utf-8")
        place.people()
        place.ok(*RUN)
        item = place.waiting("payout.py:large")
        for who in ("alice", "bob"):
            assert place.approve(item, who).code == 0
        yield folder
    finally:
        os.chdir(here)


@pytest.fixture(name="place")
def _place(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    folder = tmp_path / "place"
    shutil.copytree(original, folder)
    monkeypatch.chdir(folder)
    made: Place = Place.__new__(Place)
    made.folder = folder
    return made


def in_a_process(place: Place, *args: str, before: Callable[[], None] | None = None) -> Told:
    done = place.process(*args, preexec_fn=before)
    return Told(done.returncode, done.stdout.decode(), done.stderr.decode())


def bound_by_rights() -> None:
    """Rights of a file do not bind the superuser, unless the program that is started next is kept from overriding them."""
    for capability in (OVERRIDES_RIGHTS, READS_ALL) if os.getuid() == 0 else ():
        if ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            os._exit(77)


# -- the ledger ----------------------------------------------------------------------------------------------------------------
@pytest.mark.service
@pytest.mark.skipif(os.name != "posix", reason="limits of a process")
@pytest.mark.parametrize("room", [0, 12, 14, 16, 18, 24])
def test_a_disk_that_fills_in_the_middle_of_a_run(place: Place, room: int) -> None:
    """`room` pages are left for the write-ahead log. A payment that was booked stands in the ledger as intended, or was not made."""
    size = room * 4120
    told = in_a_process(place, "resume", "last", before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    assert told.code in (0, 5)
    assert "Traceback" not in told.err
    assert "MDM-0001" not in told.err
    assert told.code == 0 or "MDM-05" in told.err + told.out, told
    assert told.code == 5 or room > 16, "little room is too little"
    assert told.code == 0 or room < 24, "and much is enough"
    assert len(place.paid) <= 2
    place.ok("resume", "last")
    assert len(place.paid) == len(set(place.paid)) == 2, "one of the first run, one of this"
    place.proven()


FULL = """
mount -t tmpfs -o size=$1 tmpfs "$2" || exit 77
cp -a . "$2" && cd "$2"
"$3" -m mandamus resume last >"$4/out" 2>"$4/err"
echo $? >"$4/code"
mount -o remount,size=64m "$2"
cp -a . "$4/after"
"""


@pytest.mark.service
@pytest.mark.skipif(shutil.which("unshare") is None, reason="a file system of one's own needs unshare")
@pytest.mark.parametrize("room", [0, 9, 16, 28, 40, 60, 160])
def test_a_file_system_that_is_full(place: Place, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one, of a few pages more than the files that are there: also the bank beside the ledger has no room."""
    disk, says = tmp_path / "disk", tmp_path / "says"
    disk.mkdir()
    says.mkdir()
    pages = sum(-(-p.stat().st_size // 4096) for p in place.folder.rglob("*") if p.is_file())
    words = [str((pages + room) * 4096), str(disk), sys.executable, str(says)]
    who = [] if os.getuid() == 0 else ["-r"]
    done = subprocess.run(["unshare", *who, "-m", "sh", "-c", FULL, "sh", *words], cwd=place.folder, capture_output=True, check=False)
    if not (says / "code").exists():
        pytest.skip(f"no file system may be mounted here: {done.stderr.decode()[-80:]}")
    told = Told(int((says / "code").read_text()), (says / "out").read_text(), (says / "err").read_text())
    if told.code:
        a_sentence(told, "MDM-05")
        assert "disk" in told.err
        assert "\n  fix  " in told.err
    assert told.code or room >= 24, "little room is too little"
    assert told.code == 0 or room < 120, "and much is enough"
    monkeypatch.chdir(says / "after")
    place.folder = says / "after"
    place.ok("resume", "last")
    assert len(place.paid) == len(set(place.paid)) == 2
    place.proven()


@pytest.mark.skipif(os.name != "posix", reason="limits of a process")
def test_a_full_disk_leaves_the_trust_file_whole(place: Place) -> None:
    """One that was emptied before it is written would have lost its approvers, and with them every vote."""
    home = place.folder / ".mandamus"
    before = (home / "trust").read_bytes(), sorted(home.iterdir())
    code = "import pathlib; from mandamus import wiring; wiring.Home(pathlib.Path('.mandamus')).add_trust('role auditor p-alice')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place.folder, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )  # fmt: skip
    assert "MDM-0512" in done.stderr
    assert ((home / "trust").read_bytes(), sorted(home.iterdir())) == before


def test_a_run_whose_notes_have_no_room_is_not_begun(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        a_sentence(place(*RUN), "MDM-0512")
    assert len(place.paid) == 1
    assert len(place.ok("runs", "--json").stream) == 2
    place.ok(*RUN)
    place.proven()


def test_a_ledger_where_no_folder_can_be_made(place: Place) -> None:
    a_sentence(place(*RUN, "--ledger", "sqlite:///payout.py/below/run.db"), "MDM-0524")
    assert len(place.paid) == 1


@pytest.mark.parametrize("fault", [(errno.EROFS, "MDM-0522"), (errno.EIO, "MDM-0513")])
def test_a_file_beside_the_ledger_says_what_keeps_it(tmp_path: Path, fault: tuple[int, str], monkeypatch: pytest.MonkeyPatch) -> None:
    file, link = tmp_path / "trust.of.us", tmp_path / "trust"
    file.write_bytes(b"one\n")
    file.chmod(0o640)
    link.symlink_to(file)
    _files.write(link, b"one\ntwo\n")
    assert (file.read_bytes(), file.stat().st_mode & 0o777, link.is_symlink()) == (b"one\ntwo\n", 0o640, True)

    def fails(*_: object) -> None:
        raise OSError(fault[0], "no")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(EngineFault, match=fault[1]):
        _files.write(link, b"three\n")
    assert {p.name for p in tmp_path.iterdir()} == {"trust", "trust.of.us"}
    assert file.read_bytes() == b"one\ntwo\n"


@pytest.mark.service
@pytest.mark.skipif(os.name != "posix", reason="rights of a file")
@pytest.mark.parametrize("args", [*WRITING, *READING], ids=lambda args: args[0])
def test_a_ledger_that_may_only_be_read(place: Place, args: tuple[str, ...]) -> None:
    """Somebody else's file: whoever may not write is told so, and nothing is changed or paid."""
    before = place.bytes()
    modes = {file: file.stat().st_mode for file in place.folder.rglob("*")}
    for file, mode in modes.items():
        file.chmod(mode & 0o555)
    told = in_a_process(place, *args, before=bound_by_rights)
    for file, mode in modes.items():
        file.chmod(mode)
    if told.code == 77:
        pytest.skip("the superuser of this machine cannot give up its rights")
    a_sentence(told, "MDM-0522")
    assert place.bytes() == before
    assert len(place.paid) == 1


@pytest.mark.parametrize("args", WRITING, ids=lambda args: args[0])
def test_a_ledger_that_somebody_has_locked(place: Place, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sqlite_file, "BUSY_MS", 30)
    with apsw.Connection(str(place.ledger)) as other:
        other.execute("UPDATE head SET mail = mail")
        told = place(*args)
        a_sentence(told, "MDM-0511")
        assert len(place.paid) == 1
    place.ok("resume", "last")
    assert len(place.paid) == 2


@pytest.mark.parametrize("args", [*WRITING, *READING, ("doctor",)], ids=lambda args: args[0])
def test_a_ledger_of_a_newer_version(place: Place, args: tuple[str, ...]) -> None:
    other = apsw.Connection(str(place.ledger))
    other.pragma("user_version", 99)
    other.close()
    before = place.bytes()
    told = place(*args)
    assert "MDM-0526" in told.err + told.out
    assert (told.code, place.bytes() == before, len(place.paid)) == (1 if args == ("doctor",) else 5, True, 1)


@pytest.mark.parametrize("args", [("resume", "last"), ("bundle", "last"), ("show", "last")], ids=lambda args: args[0])
def test_a_record_that_was_edited_by_hand(place: Place, args: tuple[str, ...]) -> None:
    other = apsw.Connection(str(place.ledger))
    other.execute("DROP TRIGGER event_never_changes")
    proposal = "SELECT spot, body FROM event WHERE instr(body, CAST('ActionProposed' AS BLOB)) ORDER BY spot DESC LIMIT 1"
    ((spot, body),) = other.execute(proposal).fetchall()
    other.execute("UPDATE event SET body = ? WHERE spot = ?", (body.replace(b'"financial"', b'"read"'), spot))
    other.close()
    told = place(*args)
    assert (told.code, "MDM-06" in told.err, "Traceback" in told.err) == (1, True, False), told
    assert len(place.paid) == 1


@pytest.mark.service
def test_processes_that_resume_the_same_run(place: Place) -> None:
    """The first one holds the run in the middle of its payment; the others are told so, and one that comes later tells the result."""
    (place.folder / "hold").touch()
    argv = [sys.executable, "-m", "mandamus", "resume", "last"]
    racers = [subprocess.Popen(argv, cwd=place.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    try:
        while len(place.paid) < 2:
            assert any(racer.poll() is None for racer in racers)
            time.sleep(0.02)
        while sum(racer.poll() is None for racer in racers) > 1:
            time.sleep(0.02)
    finally:
        (place.folder / "hold").unlink()
        ends = [(*racer.communicate(timeout=60), racer.returncode) for racer in racers]
    assert sorted(code for _, _, code in ends) == [0, 5, 5, 5], ends
    assert all("MDM-0403" in err for _, err, code in ends if code == 5), ends
    place.ok("resume", "last")
    assert len(place.paid) == len(set(place.paid)) == 2
    place.proven()


def test_a_tool_that_answers_a_hundred_megabytes(place: Place) -> None:
    """It was done and cannot be told: the ledger holds that, and nothing of the answer."""
    before = sum(map(len, place.bytes().values()))
    told = place.ok("run", "payout.py:loud", "Export")
    assert "1.1  export  done" in told.out
    assert sum(map(len, place.bytes().values())) - before < 100_000
    place.proven()


# -- the clock -----------------------------------------------------------------------------------------------------------------
def test_a_clock_that_was_set_back_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never goes backwards, and it does not stand still until the day is made up for: a deadline would never come."""
    clock = SystemTime()
    before = clock.now()
    monkeypatch.setattr("mandamus.runtime.env.time.time_ns", lambda: 0)
    ticks = iter([7_000_000_000, 7_000_500_000, 9_000_000_000])
    monkeypatch.setattr("mandamus.runtime.env.time.monotonic_ns", lambda: next(ticks))
    assert [clock.now() - before for _ in range(3)] == [0, 500, 2_000_000]
    monkeypatch.setattr("mandamus.runtime.env.time.time_ns", lambda: (before + 5_000_000) * 1000)
    assert clock.now() - before == 5_000_000, "the machine's clock is right again"
    monkeypatch.setattr("mandamus.runtime.env.time.time_ns", lambda: 0)
    monkeypatch.setattr("mandamus.runtime.env.time.monotonic_ns", lambda: 1)
    assert clock.now() - before == 5_000_000, "set back again, it goes on from here"


@pytest.mark.parametrize("hours", [0, 30])
def test_a_run_resumed_on_a_machine_whose_clock_is_behind(hours: int) -> None:
    """Its votes count, or have expired, by the newest time that the chain knows."""

    async def story() -> None:
        desk = await Desk.open()
        await desk.ask()
        if hours:  # the approval expires, and that is on record
            desk.time.advance(hours=hours)
            await desk.resume()
        await desk.vote("p-alice")
        await desk.vote("p-bob")
        desk.time._now -= 25 * 3_600_000_000
        result = await desk.resume()
        assert (result.state, len(desk.paid)) == ("completed", 0 if hours else 1)
        clocks = [r.fact.clock.now for r in await desk.records() if hasattr(r.fact, "clock")]
        assert clocks == sorted(clocks)

    asyncio.run(story())
