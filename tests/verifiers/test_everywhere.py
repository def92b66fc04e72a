"""Whatever the tests of attacks hand to the library's verifier, the single file reads it in the same way."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITES = (
    "bundle_attacks", "bundle_bytes", "bundle_log", "bundle_seen", "bundle_shown", "budgets", "red_evidence_bundle",
    "red_lending", "red_proof", "red_standing",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITES)
def test_every_bundle_of_the_tests_of_attacks(name: str) -> None:
    args = ["-q", "-p", "no:cacheprovider", "-p", "tests.verifiers.everywhere", f"tests/attack/test_{name}.py"]
    done = subprocess.run([sys.executable, "-m", "pytest", *args], cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:]
    asked = re.search(r"(\d+) bundles were read by both", done.stdout)
    assert asked is not None
    assert int(asked[1]) > 0
