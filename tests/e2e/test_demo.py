"""`mandamus demo` as a person runs it: real processes, a real SIGKILL, one payment, a proof that holds and a byte that breaks it."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mandamus.cli import shapes
from mandamus.proof.keys import COSIGNER
from tests.servers.witnesses import key

ENV = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")} | {"PYTHONUTF8": "1"}
STEPS = ["ask", "judge", "approve", "crash", "resume", "prove", "tamper"]


def mandamus(*args: str, cwd: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "mandamus", *args], cwd=cwd, env=ENV, text=True, capture_output=True, timeout=120, **more)


class Played:
    def __init__(self, folder: Path) -> None:
        self.cwd = folder
        self.done = mandamus("demo", "--json", cwd=folder)
        self.told = self.done.stderr
        self.data: dict[str, Any] = json.loads(self.done.stdout.splitlines()[-1])
        msgspec.convert(self.data, shapes.Told, strict=True)  # what `mandamus schema demo` publishes
        self.steps = {s["name"]: s for s in self.data["steps"]}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("demo"))


def payments(folder: Path) -> list[tuple[str, str]]:
    with sqlite3.connect(folder / "bank.db") as db:
        rows = db.execute("SELECT operation, amount FROM payment ORDER BY id").fetchall()
    db.close()
    return rows


# -- what it promises ------------------------------------------------------------------------------------------------------------
def test_it_ends_well_and_the_last_line_is_the_contract(played: Played) -> None:
    assert played.done.returncode == 0, played.told
    assert {"run_id", "bundle", "trust", "payments", "plain_loop_payments", "steps"} <= played.data.keys()
    assert [s["name"] for s in played.data["steps"]] == STEPS
    assert [s["n"] for s in played.data["steps"]] == [1, 2, 3, 4, 5, 6, 7]


def test_the_bank_saw_one_payment_and_two_from_the_plain_loop(played: Played) -> None:
    assert (played.data["payments"], played.data["plain_loop_payments"]) == (1, 2)
    booked = payments(played.cwd / "mandamus-demo")
    assert [bool(operation) for operation, _ in booked] == [True, False, False]
    assert {json.loads(amount) for _, amount in booked} == {"50,000.00 USD"}


def test_every_part_was_played_by_a_process_of_its_own(played: Played) -> None:
    pids = [
        played.steps["ask"]["pid"], played.steps["approve"]["alice"], played.steps["approve"]["bob"], played.steps["crash"]["pid"],
        played.steps["resume"]["pid"],
    ]  # fmt: skip
    assert len(set(pids)) == len(pids)
    assert played.steps["judge"]["pid"] == played.steps["ask"]["pid"]
    assert played.steps["crash"]["status"] == -signal.SIGKILL
    assert (played.steps["crash"]["booked"], played.steps["crash"]["last"]) == (1, "ActionStarted")


def test_two_people_were_asked_and_one_person_with_two_keys_is_one(played: Played) -> None:
    assert played.steps["judge"]["verdict"] == "escalate"
    assert played.steps["approve"]["again"] == "voted_already"
    assert (played.steps["approve"]["after_alice"], played.steps["approve"]["after_bob"], played.steps["approve"]["verdict"]) == (
        1,
        2,
        "allow",
    )


def test_the_resumed_process_found_the_payment_and_adopted_it(played: Played) -> None:
    assert (played.steps["resume"]["via"], played.steps["resume"]["result"], played.steps["resume"]["state"]) == (
        "reconciled",
        "done",
        "completed",
    )


def test_the_text_says_what_the_data_says(played: Played) -> None:
    s, told = played.steps, played.told
    assert told.startswith("offline - no key - nothing leaves this machine - folder ./mandamus-demo\n")
    assert f"suspended at event {s['judge']['event']}; process {s['ask']['pid']} ends" in told
    assert f"process {s['crash']['pid']}" in told
    assert f"process {s['resume']['pid']}" in told
    assert f"{s['resume']['folded']} events folded; send_payment IN DOUBT" in told
    assert f"PROVEN  {s['prove']['events']} events" in told
    assert f"event {s['tamper']['event']} ActionStarted: hash is not the one event {s['tamper']['event'] + 1} names" in told
    assert s["tamper"]["expected"][:8] in told
    assert s["tamper"]["attested"] in told


def test_piped_text_is_plain(played: Played) -> None:
    assert "\x1b" not in played.told + played.done.stdout
    assert (played.told + played.done.stdout).isascii()


def test_the_bundle_proves_itself_to_the_verifier_alone(played: Played) -> None:
    good = mandamus("verify", played.data["bundle"], "--trust", played.data["trust"], cwd=played.cwd)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "PROVEN" in good.stdout
    assert f"{played.steps['prove']['events']} events" in good.stdout


def test_a_witness_of_its_own_process_cosigned_the_log(played: Played) -> None:
    """The trust file demands it: without the cosignature the verifier says so, and the proof section holds run and chain `log`."""
    proved = played.steps["prove"]
    others = {played.steps["ask"]["pid"], played.steps["crash"]["pid"], played.steps["resume"]["pid"], proved["witness_pid"]}
    assert len(others) == 4
    assert (proved["witness"], proved["proofs"]) == ("witness.demo/w1", 2)
    assert f"cosigned the log at size {proved['size']}" in played.told
    args = ("verify", played.data["bundle"], "--trust")
    told = json.loads(mandamus(*args, played.data["trust"], "--json", cwd=played.cwd).stdout)
    said = {c["name"]: (c["outcome"], c["says"]) for c in told["claims"]}
    assert said["checkpoint"][0] == "proven"
    assert f"size {proved['size']}" in said["checkpoint"][1]
    assert "witness.demo/w1" in said["checkpoint"][1]
    assert said["inclusion"][0] == "proven"
    text = Path(played.cwd, played.data["trust"]).read_text()
    line = next(x for x in text.splitlines() if x.startswith("witness "))
    other = key("witness.demo/w1", COSIGNER).vkey
    (played.cwd / "other.trust").write_text(text.replace(line, f"witness witness.demo/w1 {other}"))
    told = json.loads(mandamus(*args, "other.trust", "--json", cwd=played.cwd).stdout)
    assert told["exit_code"] == 3, "valid, but fewer witnesses than were asked"


def test_the_changed_byte_is_one_and_the_verifier_names_the_event(played: Played) -> None:
    assert played.steps["tamper"]["bytes"] == 1
    bad = mandamus("verify", played.steps["tamper"]["bundle"], "--trust", played.data["trust"], cwd=played.cwd)
    assert bad.returncode == 1
    assert f"event {played.steps['tamper']['event']} ActionStarted" in bad.stdout + bad.stderr


def test_it_says_what_to_do_next_and_that_works(played: Played) -> None:
    command = played.told.strip().splitlines()[-1].rpartition("| mandamus ")[2].split()
    assert mandamus(*command, cwd=played.cwd).returncode == 0


# -- its folder ------------------------------------------------------------------------------------------------------------------
def test_it_empties_only_its_own_folder(played: Played, tmp_path: Path) -> None:
    mine = tmp_path / "again"
    shutil.copytree(played.cwd / "mandamus-demo", mine)
    (mine / "old.txt").write_text("from the time before")
    assert mandamus("demo", "--dir", str(mine), cwd=tmp_path).returncode == 0
    assert not (mine / "old.txt").exists()


@pytest.mark.parametrize("kind", ["folder", "empty", "file", "link"])
def test_another_folder_is_refused_and_left_as_it_is(kind: str, played: Played, tmp_path: Path) -> None:
    other = tmp_path / "other"
    if kind == "file":
        other.write_text("mine")
    elif kind == "link":
        shutil.copytree(played.cwd / "mandamus-demo", tmp_path / "real")
        other.symlink_to(tmp_path / "real")
    else:
        other.mkdir()
    if kind == "folder":
        (other / "letter.txt").write_text("mine")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    done = mandamus("demo", "--dir", str(other), cwd=tmp_path)
    assert done.returncode == 2
    assert "MDM-0801" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = mandamus("demo", "--dir", str(tmp_path / "file" / "below"), cwd=tmp_path)
    assert done.returncode == 2
    assert "MDM-0802" in done.stderr


# -- no socket but loopback ------------------------------------------------------------------------------------------------------
_GUARDED = """
import socket, sys
from mandamus.cli._demo import guard
guard.install(nothing=sys.argv[1] == "nothing")
door = socket.create_server(("127.0.0.1", 0)) if sys.argv[1] != "nothing" else None
tries = {
    "connect": lambda: socket.create_connection(("192.0.2.1", 80), timeout=1),
    "connect6": lambda: socket.create_connection(("2001:db8::1", 80), timeout=1),
    "bind": lambda: socket.create_server(("0.0.0.0", 0)),
    "bind all": lambda: socket.create_server(("", 0)),
    "name": lambda: socket.getaddrinfo("example.org", 80),
    "reverse": lambda: socket.gethostbyaddr("192.0.2.1"),
    "datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53)),
    "loopback": lambda: socket.create_connection(("127.0.0.1", door.getsockname()[1] if door else 9)),
}
for name, attempt in tries.items():
    try:
        attempt()
        print(name, "= went out")
    except OSError as error:
        print(name, "= refused" if "stays on this machine" in str(error) else f"= {error!r}")
"""


@pytest.mark.parametrize(("mode", "loopback"), [("loopback", "went out"), ("nothing", "refused")])
def test_the_guard_refuses_every_address_but_loopback(mode: str, loopback: str) -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _GUARDED, mode], env=ENV, text=True, capture_output=True, timeout=60)
    said = dict(line.split(" = ") for line in done.stdout.splitlines())
    assert said.pop("loopback") == loopback, done.stderr
    assert set(said.values()) == {"refused"}
    assert len(said) == 7


_LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh14s", b"lo", 0x1 | 0x40, b""))
os.execv(sys.executable, [sys.executable, "-m", "mandamus", *sys.argv[1:]])
"""


def test_it_runs_where_there_is_no_network_at_all(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    alone = [unshare or "", "--map-root-user", "--net"]
    if unshare is None or subprocess.run([*alone, "true"], capture_output=True).returncode != 0:
        pytest.skip("no network namespace can be made on this machine: only the socket guard was tested")
    command = [*alone, sys.executable, "-c", _LOOPBACK_UP, "demo", "--json", "--dir", str(tmp_path / "d")]
    done = subprocess.run(command, cwd=tmp_path, env=ENV, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["payments"] == 1


def test_a_proxy_in_the_surroundings_is_not_asked(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mandamus", "demo", "--dir", "d"], cwd=tmp_path, text=True, capture_output=True, timeout=120,
        env=ENV | {"http_proxy": "http://192.0.2.1:3128", "ALL_PROXY": "http://192.0.2.1:3128"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# -- a person at the terminal ----------------------------------------------------------------------------------------------------
def _hears_ctrl_c() -> None:
    """Whoever runs the tests in the background of a shell has Ctrl-C ignored, and a child would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """The demo on a terminal of its own, and what a person types."""

    def __init__(self, cwd: Path, *args: str, env: dict[str, str] | None = None) -> None:
        self._end, inner = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mandamus", "demo", *args],
            cwd=cwd,
            env=ENV | {"TERM": "xterm"} | (env or {}),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=_hears_ctrl_c,
        )
        os.close(inner)
        self.seen = ""

    def until(self, text: str) -> None:
        """Read on until `text` comes after what was read before."""
        start, end = len(self.seen), time.monotonic() + 90
        while text not in self.seen[start:]:
            assert self._read(end), f"{text!r} never came:\n{self.seen}"

    def types(self, text: str) -> None:
        os.write(self._end, text.encode())

    def rest(self) -> int:
        """Everything to the end, and the exit code."""
        end = time.monotonic() + 90
        while self._read(end):
            pass
        os.close(self._end)
        return self.process.wait(90)

    def _read(self, end: float) -> bool:
        """False when the other side is closed. A process that neither speaks nor ends is ended."""
        ready, _, _ = select.select([self._end], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            os.killpg(self.process.pid, signal.SIGKILL)
            pytest.fail(f"nothing came for too long; so far:\n{self.seen}")
        try:
            chunk = os.read(self._end, 4096)
        except OSError:  # the other side is closed
            return False
        self.seen += chunk.decode("utf-8", "replace")
        return bool(chunk)


def test_step_by_step_a_person_signs_as_alice(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "--step", "--dir", "d")
    for name in STEPS:
        terminal.until(f"[Enter] {name}")
        terminal.types("\n")
        if name == "approve":
            terminal.until("sign?")
            terminal.types("y\n")
    assert terminal.rest() == 0, terminal.seen
    assert "50,000.00 USD" in terminal.seen
    assert "Acme Suppliers" in terminal.seen
    assert "\x1b[31mNOT PROVEN\x1b[0m" in terminal.seen
    assert len(payments(tmp_path / "d")) == 3


def test_who_does_not_sign_pays_nothing(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "--step", "--dir", "d")
    for name in ("ask", "judge", "approve"):
        terminal.until(f"[Enter] {name}")
        terminal.types("\n")
    terminal.until("sign?")
    terminal.types("\n")
    assert terminal.rest() == 3
    assert "MDM-0805" in terminal.seen
    assert payments(tmp_path / "d") == []


def test_step_without_a_terminal_asks_nobody(tmp_path: Path) -> None:
    done = mandamus("demo", "--step", "--dir", "d", cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert done.returncode == 0
    assert "[Enter]" not in done.stdout


def test_ctrl_c_ends_the_demo_and_every_process_of_it(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "--step", "--dir", "d")
    terminal.until("[Enter] ask")
    terminal.types("\n")
    terminal.until("[Enter] judge")
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.rest() == 130
    assert "Traceback" not in terminal.seen
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.killpg(terminal.process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a process of the demo outlived it")


# -- the plain loop --------------------------------------------------------------------------------------------------------------
def test_the_plain_loop_is_no_strawman(tmp_path: Path) -> None:
    """Without a crash it pays once; cut before the payment it pays once; only the cut behind the payment pays twice."""
    from mandamus.cli._demo import plain

    def run(file: Path, cut: str = "") -> list[str]:
        booked: list[str] = []

        def pay(to: str, amount: str) -> str:
            if cut == "before" and not file.with_suffix(".cut").exists():
                file.with_suffix(".cut").touch()
                raise InterruptedError
            booked.append(to)
            if cut == "behind" and len(booked) == 1:
                raise InterruptedError
            return "bank-1"

        for _ in range(2):
            try:
                plain.loop(file, "pay", plain.script("Acme", "1"), {"send_payment": pay})
            except InterruptedError:
                continue
        return booked

    assert len(run(tmp_path / "a.json")) == 1
    assert len(run(tmp_path / "b.json", "before")) == 1
    assert len(run(tmp_path / "c.json", "behind")) == 2
