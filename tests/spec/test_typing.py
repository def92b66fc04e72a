"""Programs that a type checker must refuse, each line beside a twin that passes: the data classes, before anything runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "typing"
PROGRAMS = sorted(FOLDER.glob("*.py"))
Place = tuple[str, int]


def _marked() -> set[Place]:
    return {(p.name, n) for p in PROGRAMS for n, line in enumerate(p.read_text().splitlines(), 1) if "# refused:" in line}


def test_every_refusal_has_a_twin() -> None:
    """Beside each refused line stands a call of the same thing that is not refused, so that a name that is gone would be noticed."""
    for program in PROGRAMS:
        lines = program.read_text().splitlines()
        refused = [line for line in lines if "# refused:" in line]
        assert len(refused) >= 8
        for line in refused:
            head = re.split(r"[(\s=]", line.strip())[0].rsplit(".", 1)[0]
            twins = [x for x in lines if head in x and "# refused:" not in x]
            assert twins, line


def test_mypy_refuses_exactly_these_lines(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-incremental",
        "--cache-dir",
        str(tmp_path),
        "--config-file",
        "",
        "--no-error-summary",
    ]
    quiet = ["--disable-error-code", "type-arg", "--hide-error-context", "--no-pretty", "--follow-imports", "silent"]
    done = subprocess.run([*command, *quiet, *map(str, PROGRAMS)], capture_output=True, text=True, cwd=ROOT, check=False)
    found = {(Path(m[1]).name, int(m[2])) for m in re.finditer(r"^(.*?):(\d+): error:", done.stdout, re.M)}
    assert done.stderr == ""
    assert found == _marked(), done.stdout


@pytest.mark.skipif(shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright_refuses_exactly_these_lines() -> None:
    done = subprocess.run(["pyright", "--outputjson", *map(str, PROGRAMS)], capture_output=True, text=True, cwd=ROOT, check=False)
    errors = [d for d in json.loads(done.stdout)["generalDiagnostics"] if d["severity"] == "error"]
    assert {(Path(d["file"]).name, d["range"]["start"]["line"] + 1) for d in errors} == _marked()
