"""Builds one venv per peer under `bench/.venvs`, from the exact pins of `venvs.toml`.

    python bench/peers/make.py [NAME ...]

Uses `uv` when it is on PATH, else `venv` and pip. A peer that does not install is reported and skipped: its rows then say "not measured".
A venv is built again only when its pins changed.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
VENVS = HERE.parent / ".venvs"


def pins() -> dict[str, list[str]]:
    """Requirements by the name of the venv."""
    return {name: table["install"] for name, table in tomllib.loads((HERE / "venvs.toml").read_text()).items()}


def steps(venv: pathlib.Path, wanted: list[str]) -> list[list[str]]:
    """The commands that make `venv`."""
    python = str(venv / "bin" / "python")
    if uv := shutil.which("uv"):
        return [[uv, "venv", "-q", "--clear", "-p", sys.executable, str(venv)], [uv, "pip", "install", "-q", "-p", python, *wanted]]
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wanted]
    return [[sys.executable, "-m", "venv", "--clear", str(venv)], install]


def build(name: str, wanted: list[str]) -> bool:
    """Makes one venv. The stamp holds the pins it was made from, and is written last."""
    venv, stamp = VENVS / name, VENVS / f"{name}.pins"
    text = "\n".join(wanted) + "\n"
    if stamp.exists() and stamp.read_text() == text and (venv / "bin" / "python").exists():
        print(f"{name}: ready")
        return True
    VENVS.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    for command in steps(venv, wanted):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(venv, ignore_errors=True)
            print(f"{name}: not installed\n  " + "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-3:]))
            return False
    stamp.write_text(text)
    print(f"{name}: installed")
    return True


def main(names: list[str]) -> None:
    known = pins()
    for name in names or known:
        build(name, known[name])


if __name__ == "__main__":
    main(sys.argv[1:])
