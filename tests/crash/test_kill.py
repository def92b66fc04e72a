"""A real SIGKILL, a real bank in a process of its own that forgives nothing, another process that resumes.

Our bar: 1 and 1 for keyed and reconcilable; 1 and 0, both listed as unknown, where the effect can neither be keyed nor asked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mandamus.testing.bank import Bank, bank_process

WORKER = Path(__file__).with_name("pay_worker.py")
RUN = "01KILLED000000000000000000"
pytestmark = pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")


def worker(mode: str, effect: str, folder: Path, bank: Bank, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(WORKER), mode, effect, f"sqlite:///{folder}/run.db", bank.url, RUN, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def killed(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def resumed(effect: str, folder: Path, bank: Bank) -> dict[str, Any]:
    process = worker("resume", effect, folder, bank)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    said: dict[str, Any] = json.loads(out.splitlines()[-1])
    return said


@pytest.mark.parametrize(
    ("effect", "moment", "payments", "state"),
    [
        ("keyed", "after", 1, "completed"),
        ("keyed", "before", 1, "completed"),
        ("reconcilable", "after", 1, "completed"),
        ("reconcilable", "before", 1, "completed"),
        ("irreversible", "after", 1, "suspended"),
        ("irreversible", "before", 0, "suspended"),
    ],
)
def test_killed_around_the_payment(effect: str, moment: str, payments: int, state: str, tmp_path: Path) -> None:
    with bank_process(honour_keys=effect == "keyed") as bank:
        if moment == "after":
            bank.behave("hold")  # it books, and its answer never comes
            process = worker("start", effect, tmp_path, bank)
            while not bank.payments():
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
        else:
            process = worker("start", effect, tmp_path, bank, "wait")
            assert process.stdout is not None
            assert process.stdout.readline() == "about to pay\n"
        killed(process)
        said = resumed(effect, tmp_path, bank)
        assert len(bank.payments()) == payments
        assert said["state"] == state
        assert said["waiting"] == (["outcome"] if state == "suspended" else [])
        resumed(effect, tmp_path, bank)
        assert len(bank.payments()) == payments, "resuming once more does nothing more"


def test_the_bank_forgives_nothing_and_says_so() -> None:
    """The test of the test: without keys, two equal requests are two payments."""
    with bank_process() as bank:
        assert bank.pay("Acme", 1, operation="o", key="k") != bank.pay("Acme", 1, operation="o", key="k")
        bank.forbid("p")
        with pytest.raises(Exception, match="nothing was booked"):
            bank.pay("Acme", 1, operation="p")
        bank.behave("cut")
        with pytest.raises(OSError):
            bank.pay("Acme", 2, operation="q")
        assert [p["operation"] for p in bank.payments()] == ["o", "o", "q"]
    with bank_process(honour_keys=True) as bank:
        assert bank.pay("Acme", 1, key="k") == bank.pay("Acme", 1, key="k")
        assert len(bank.payments()) == 1
