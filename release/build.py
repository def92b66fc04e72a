"""Reproducible wheels: `wheels(checkout, out, epoch)` builds both distributions of a checkout; `export(repository, commit, folder)`
makes a checkout that holds the commit and nothing else.

The rule a newcomer would break: a release is built from a commit, never from a working tree. What is not committed cannot be named by a
provenance, and would be in the wheel all the same.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGES = (".", "packages/mandamus-verify")
BESIDE = ("verifiers/mandamus-verify.py", "verifiers/verify.html")  # single files for auditors, released as they are


def git(repository: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(repository), *words], check=True, capture_output=True).stdout


def commit_of(repository: Path, name: str = "HEAD") -> tuple[str, int]:
    """(commit, its date in seconds)."""
    commit, date = git(repository, "log", "-1", "--format=%H %ct", name).decode().split()
    return commit, int(date)


def export(repository: Path, commit: str, folder: Path) -> Path:
    raw = git(repository, "archive", "--format=tar", commit)
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def wheels(checkout: Path, out: Path, epoch: int) -> list[Path]:
    """Both wheels of a checkout. Nothing of the surroundings gets in: no cache, no time but the commit's, no user's settings."""
    out.mkdir(parents=True, exist_ok=True)
    clean = {"PATH": os.environ.get("PATH", ""), "SOURCE_DATE_EPOCH": str(epoch), "HATCH_BUILD_CLEAN": "0", "TMPDIR": str(out)}
    for package in PACKAGES:
        words = [sys.executable, "-I", "-m", "hatchling", "build", "-t", "wheel", "-d", str(out.resolve())]
        done = subprocess.run(words, cwd=checkout / package, env=clean, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"{package} cannot be built:\n{done.stdout}{done.stderr}")
    return sorted(out.glob("*.whl"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def same(first: list[Path], second: list[Path]) -> str:
    """ "" when both builds gave the same files, else the first one that differs."""
    if [path.name for path in first] != [path.name for path in second]:
        return f"{[path.name for path in first]} and {[path.name for path in second]}"
    return next((one.name for one, other in zip(first, second, strict=True) if sha256(one) != sha256(other)), "")
