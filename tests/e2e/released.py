"""A repository that holds the working tree as one commit, and the release that is made of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mandamus.drivers.sign_file import FileSigner
from mandamus.proof.keys import vkey
from release import build, make

ROOT = Path(__file__).parents[2]
BUILDER = "urn:mandamus:builder:test"
WANTED = ("src", "packages", "release", "verifiers", "pyproject.toml", "requirements.lock", "LICENSE", "README.md", ".gitignore")


class Release(NamedTuple):
    repository: Path
    commit: str
    epoch: int
    folder: Path
    signer: FileSigner


def signer(name: str = "mandamus.local/release") -> FileSigner:
    private = Ed25519PrivateKey.generate()
    return FileSigner(private, vkey(name, private.public_key().public_bytes_raw()))


def repository(folder: Path) -> Path:
    """What would be committed now, as a commit of its own: a test of a release must not depend on what is committed already."""
    names = build.git(ROOT, "ls-files", "-co", "--exclude-standard", "-z", "--", *WANTED).decode().split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    me = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"]
    for words in (["init", "-q"], ["add", "-A"], [*me, "commit", "-q", "-m", "what is here"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)
    return folder


def release(place: Path) -> Release:
    where = repository(place / "repository")
    commit, epoch = build.commit_of(where)
    key = signer()
    make.make(where, commit, epoch, place / "dist", key, BUILDER)
    return Release(where, commit, epoch, place / "dist", key)
