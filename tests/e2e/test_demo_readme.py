"""The README's transcript and tables are those of a real run, and its code runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_figures_of_the_readme_are_those_of_a_run() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "readme.py")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks) == 1
    assert 15 <= len(blocks[0].splitlines()) <= 22
    env = {k: v for k, v in os.environ.items() if k != "MANDAMUS_LEDGER"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", blocks[0]], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
