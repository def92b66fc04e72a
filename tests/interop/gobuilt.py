"""The Go side: our small program over two foreign libraries, and a foreign witness, built once from pinned versions.

Go 1.24, or the modules, are not there: skipped with the reason, also in CI, which shows interop where Go exists. What does not compile, or
does not agree, is a failure everywhere.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mandamus.proof.keys import COSIGNER, VKey, vkey
from tests.servers.needs import needs

SOURCE = Path(__file__).parent / "go"
GO = (1, 24)
WITNESS = "filippo.io/torchwood/cmd/litewitness"


def built(folder: Path) -> tuple[Path, Path]:
    """(our program, the foreign witness). Go keeps what it compiled, so a second time costs little."""
    if shutil.which("go") is None:
        pytest.skip("not installed here: go")
    found = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, timeout=60).stdout.strip()
    version = tuple(int(n) for n in re.findall(r"\d+", found)[:2])
    if version < GO:
        pytest.skip(f"Go is too old here: {found}, not {GO[0]}.{GO[1]}")
    for what, name in ((".", "interop"), (WITNESS, "litewitness")):
        made = subprocess.run(
            ["go", "build", "-mod=readonly", "-o", str(folder / name), what], cwd=SOURCE, capture_output=True, text=True, timeout=900
        )
        if made.returncode:
            away = any(word in made.stderr for word in ("proxy.golang.org", "dial tcp", "no such host"))
            if not away:
                pytest.fail(made.stderr)
            pytest.skip(f"the Go modules cannot be fetched here: {made.stderr.strip().splitlines()[-1][:200]}")
    return folder / "interop", folder / "litewitness"


class Go:
    """`go(op="note", …)` gives the answer of the libraries."""

    def __init__(self, program: Path) -> None:
        self.child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, **question: Any) -> dict[str, Any]:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(json.dumps(_plain(question)) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        assert line, "the Go program ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self.child.communicate(timeout=20)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


@contextlib.contextmanager
def litewitness(program: Path, folder: Path, name: str, logs: list[str]) -> Iterator[str]:
    """A running litewitness that knows these logs: its URI for our client. Its key is in an ssh-agent of its own."""
    needs("ssh-agent", "ssh-add", "ssh-keygen")
    place = Path("/tmp") / f"lw-{os.getpid()}-{time.monotonic_ns() % 10**9}"  # the path of a socket may be 108 bytes long
    place.mkdir(mode=0o700)
    agent = witness = None
    try:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / "key"], check=True, timeout=30)
        agent = subprocess.Popen(["ssh-agent", "-D", "-a", place / "agent"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _until((place / "agent").exists)
        environ = {**os.environ, "SSH_AUTH_SOCK": str(place / "agent")}
        subprocess.run(["ssh-add", "-q", place / "key"], env=environ, check=True, timeout=30)
        print_ = subprocess.run(["ssh-keygen", "-l", "-f", place / "key.pub"], capture_output=True, text=True, check=True, timeout=30)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [program, "-name", name, "-db", folder / "lite.db", "-ssh-agent", place / "agent", "-listen", f"127.0.0.1:{port}"]
        command += ["-key", print_.stdout.split()[1]]
        witness = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _until(lambda: _answers(port))
        _know(folder / "lite.db", logs)
        yield f"witness+http://127.0.0.1:{port}#{_key(place / 'key.pub', name)}"
    finally:
        for child in (witness, agent):
            if child is not None:
                child.terminate()
                child.wait(30)
        shutil.rmtree(place)


def _key(public: Path, name: str) -> VKey:
    return vkey(name, base64.b64decode(public.read_text().split()[1])[-32:], COSIGNER)


def _know(database: Path, logs: list[str]) -> None:
    """What its own tool does: a row for each log and key."""
    with contextlib.closing(sqlite3.connect(database, timeout=20)) as db, db:
        for log in logs:
            origin = log.partition("+")[0]
            empty = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
            db.execute("INSERT INTO log VALUES (?, 0, ?)", (origin, empty))
            db.execute("INSERT INTO key VALUES (?, ?)", (origin, log))


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _until(holds: Any) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, "it does not start"
        time.sleep(0.02)
