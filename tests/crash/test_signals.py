"""Ctrl-C, SIGTERM and SIGKILL at any moment: a real process at a hundred places, and whatever comes of it, one payment (UX, goal 16).

The places are steps of the program, spread evenly from its first import to its last word; no clock is asked. Behind each signal
another process carries the run on, and its bundle is verified.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mandamus import _interrupt
from mandamus.testing.bank import Bank, bank_process
from tests.e2e.cli_world import World

WORKER = Path(__file__).with_name("signal_worker.py")
AGENT = '''
import os
from mandamus import Absent, Agent, Ctx, Found, Money, Receipt, tool
from mandamus.data import Confidential, none
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.testing.bank import Bank

OWN = Confidential(subject=none("own account"), retention="books")
bank = Bank(os.environ["TEST_BANK"])

class AskTheBank:
    async def find(self, operation_id: str) -> Found | Absent:
        booked = [x for x in bank.payments(operation_id) if int(x["id"].partition("-")[2]) > int(os.environ.get("TEST_BANK_BEFORE", "0"))]
        return Found(Receipt(id=booked[0]["id"])) if booked else Absent("the bank lists no payment of this operation")

@tool(safety="financial", effect="reconcilable", reconcile=AskTheBank(), data=OWN, timeout="500ms")
def send_payment(ctx: Ctx, to: str, amount: Money) -> Receipt:
    """Transfer corporate funds."""
    return Receipt(id=bank.pay(to, str(amount), operation=ctx.operation_id))

def paying(minor):
    step = Step(calls=(("send_payment", {"to": "Acme", "amount": {"amount": minor, "currency": "USD"}}),))
    rules = [{"id": "pay", "permit": {"safety": "financial"}}, {"id": "large", "rule": "dualApproval", "params": {"over": "10000.00 USD"}}]
    return Agent(name="payout-bot", purpose="pay invoices", model=ScriptedModel([step, "paid"]), tools=[send_payment], policies=rules)

small, large = paying("5000"), paying("5000000")
'''

# What a process may end with: it was done before, it stopped where people are asked, or the signal's own code (a shell shows 128 + n).
ENDS = {
    "SIGINT": {0, 4, 130, -2},
    "SIGINT,SIGINT": {0, 4, 130, -2},
    "SIGTERM": {0, 4, 143, -15},
    "SIGKILL": {-9},
}
PLACES, PARTS = 100, 4
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


@dataclass
class Scene:
    """A folder as it stands before the signal: the command that gets it, and how many steps that takes undisturbed."""

    folder: Path
    command: tuple[str, ...]
    steps: int = 0


@dataclass
class Stage:
    """Both halves of a payment: a run that pays at once, and one that two people have approved and that is resumed."""

    bank: Bank
    scenes: dict[str, Scene]
    work: Path

    def signalled(self, name: str, step: int, signals: str) -> list[str]:
        """What was not as it must be."""
        scene = self.scenes[name]
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(scene.folder, self.work)
        before = len(self.bank.payments())
        os.environ["TEST_BANK_BEFORE"] = str(before)  # the folder is a copy: an earlier scene had the same run, and the same operation
        done, note = self.process(scene.command, step, signals)
        said = done.stdout + done.stderr
        ended = done.returncode in ENDS[signals] or (done.returncode == 5 and "doubted" in said)  # the bank was slow as well
        wrong = [] if ended else [f"exit code {done.returncode}: {said}"]
        if signals.partition(",")[0] not in note:
            wrong.append("the signal was not sent")
        if "stopping" in said and done.returncode == 130 and "," not in signals and "mandamus resume " not in said:
            wrong.append(f"it does not say how to go on: {said}")
        if "Traceback" in said or "Exception ignored" in said:
            wrong.append(said)
        wrong += self.carried_on(scene.command)
        if len(self.bank.payments()) != before + 1:
            wrong.append(f"{len(self.bank.payments()) - before} payments")
        return [f"{name} {signals} at step {step} of {scene.steps} ({note}): {x}" for x in wrong]

    def process(self, command: tuple[str, ...], step: int, signals: str) -> tuple[subprocess.CompletedProcess[str], str]:
        note = self.work.with_suffix(".note")
        note.unlink(missing_ok=True)
        argv = [sys.executable, str(WORKER), str(note), str(step), signals, *command]
        done = subprocess.run(argv, cwd=self.work, capture_output=True, text=True, timeout=120, check=False)
        return done, note.read_text() if note.exists() else ""

    def carried_on(self, command: tuple[str, ...]) -> list[str]:
        """This process takes over what is there, or begins, and shows the proof."""
        os.chdir(self.work)
        world = World.__new__(World)
        runs = [x["run"] for x in world.ok("runs", "--json").stream]
        told = world("resume", runs[-1]) if runs else world(*command)
        for _ in range(3):  # a bank that is slow leaves doubt, which the next attempt settles
            told = world("resume", "last") if told.code else told
        if told.code:
            return [f"resumed, it ends with {told.code}: {told.out} {told.err}"]
        run = world.ok("show", "last", "--json").data["run_id"]
        world.ok("bundle", run, "-o", "run.bundle")
        told = world("verify", "run.bundle", "--trust", ".mandamus/trust")
        return [] if told.code == 0 else [told.out]


@pytest.fixture(name="stage", scope="module")
def _stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    here = Path.cwd()
    base = tmp_path_factory.mktemp("signals")
    with bank_process() as bank, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_BANK", bank.url)
        patch.setenv("TEST_BANK_BEFORE", "0")
        for name in [x for x in os.environ if x.startswith("MANDAMUS_")]:
            patch.delenv(name)
        stage = Stage(bank, {}, base / "work")
        try:
            for name in ("run", "resume"):
                stage.scenes[name] = scene(stage, base / name, approved=name == "resume")
            yield stage
        finally:
            os.chdir(here)


def scene(stage: Stage, folder: Path, approved: bool) -> Scene:
    folder.mkdir()
    os.chdir(folder)
    world = World(folder)
    (folder / "payout.py").write_text(AGENT, encoding="utf-8")
    world.people()
    out = Scene(folder, ("run", "payout.py:small", "Pay"))
    if approved:
        item = world.waiting("payout.py:large")
        for who in ("alice", "bob"):
            assert world.approve(item, who).code == 0
        out.command = ("resume", item["run_id"])
    shutil.copytree(folder, stage.work)
    done, note = stage.process(out.command, 0, "SIGINT")
    assert done.returncode == 0, done
    out.steps = int(note.split()[-1])
    shutil.rmtree(stage.work)
    return out


def wrong(stage: Stage, signals: str, places: range) -> list[str]:
    """Every other place is one of the run, every other one of the resume; the signals have places of their own each."""
    out = []
    for place in places:
        name = ("run", "resume")[place % 2]
        at = (place + list(ENDS).index(signals) / len(ENDS)) / PLACES
        out += stage.signalled(name, 1 + int(at * stage.scenes[name].steps * 0.995), signals)
    return out


@pytest.mark.service
@pytest.mark.parametrize("step", [1, 100, 250, 400])
def test_ctrl_c_while_the_command_is_being_loaded(stage: Stage, step: int) -> None:
    assert stage.signalled("run", step, "SIGINT") == []


@pytest.mark.parametrize(
    ("argv", "first", "ours"),
    [
        (["python", "-m", "mandamus", "runs"], "-m", True),
        (["python", "-W", "error", "-m", "mandamus"], "-m", True),
        (["python", "/opt/app/bin/mandamus", "runs"], "/opt/app/bin/mandamus", True),
        (["python", "C:\\app\\mandamus.exe"], "C:\\app\\mandamus.exe", True),
        (["python", "-m", "pytest", "-m", "mandamus"], "-m", False),
        (["python", "app.py", "-m", "mandamus"], "app.py", False),
        (["python", "-c", "import mandamus"], "-c", False),
        (["python"], "", False),
    ],
)
def test_a_program_that_imports_mandamus_keeps_its_handlers(
    argv: list[str], first: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", argv)
    monkeypatch.setattr(sys, "argv", [first])
    assert _interrupt.ours() is ours


@pytest.mark.service
@pytest.mark.parametrize("signals", ENDS)
def test_a_signal_at_a_few_places(stage: Stage, signals: str) -> None:
    assert wrong(stage, signals, range(7, PLACES, 31)) == []


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("signals", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_a_signal_at_a_hundred_places(stage: Stage, signals: str, part: int) -> None:
    assert wrong(stage, signals, range(part, PLACES, PARTS)) == []


@pytest.mark.slow
@pytest.mark.service
def test_two_signals_leave_at_once_and_lose_nothing(stage: Stage) -> None:
    assert wrong(stage, "SIGINT,SIGINT", range(0, PLACES, 4)) == []
