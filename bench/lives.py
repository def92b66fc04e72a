"""Lives of a process that may be killed: one start pays for the imports, every life is a fork of it and a process of its own.

    with Nursery(command, env) as nursery:
        said = nursery.live("react sync", 10, folder, env={"BENCH_BANK": port}, kill=Kill(after_s=0.02))

Kills need a hundred deaths of each system, and a peer's imports take seconds. What is forked has imported and nothing else: no thread
runs, no file is open, no run has begun (`Nursery` refuses otherwise). The rule a newcomer would break: nothing may happen in the nursery
that a life could inherit; a life that knew what an earlier one did would recover from memory, not from its store.

Standard library only: the lower half runs in every peer's venv.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

LIFE_S = 60
"""A life that takes longer is ended and counts as one that did not come to its end."""


class Kill(NamedTuple):
    """SIGKILL: after so many seconds of the life, or at its n-th flush, before or after that flush. Neither: it lives."""

    after_s: float = 0
    flush: int = 0
    late: bool = False

    @classmethod
    def drawn(cls, dice: random.Random, seconds: float, flushes: int) -> Kill:
        """A random point of a life that, undisturbed, takes so long and flushes so often."""
        if flushes and dice.random() < 0.5:
            return cls(flush=dice.randint(1, flushes), late=dice.random() < 0.5)
        return cls(after_s=dice.uniform(0, seconds))


class Nursery:
    """The parent's side. `live` starts one life and waits for its end or its death."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen([*command, "_lives"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ready = self._said()
        if ready.get("threads") != 1:
            self._process.kill()
            raise RuntimeError(f"{command[-1]}: {ready.get('threads', 'no')} threads after the imports; a fork would lose them")

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def live(self, variant: str, turns: int, folder: str, env: Mapping[str, str], kill: Kill | None = None) -> dict[str, Any]:
        """`code` (negative: the signal), `ms`, `flushes` where they are counted, `errors`, and what the life said of itself."""
        asked = {"argv": ["crash", variant, "--turns", str(turns), "--folder", folder], "folder": folder, "env": dict(env)}
        self._process.stdin.write(json.dumps({**asked, "kill": kill or Kill()}) + "\n")
        self._process.stdin.flush()
        return self._said()

    def _said(self) -> dict[str, Any]:
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"{self._process.args[1]}: the nursery itself ended with {self._process.wait()}")


def nursery(work: Callable[[list[str]], object]) -> None:
    """The child's side: one life per line of the input. `work` gets the arguments of the life's command line."""
    with open("/proc/self/status") as f:
        threads = next(int(line.split()[1]) for line in f if line.startswith("Threads"))
    print(json.dumps({"threads": threads}), flush=True)
    while line := sys.stdin.readline():
        print(json.dumps(_life(json.loads(line), work)), flush=True)


def _life(asked: dict[str, Any], work: Callable[[list[str]], object]) -> dict[str, Any]:
    heard, said = os.pipe()
    errors = pathlib.Path(asked["folder"], "errors")
    begun = time.perf_counter()
    child = os.fork()
    if child == 0:
        _be(asked, work, said, errors)
    os.close(said)
    kill = Kill(*asked["kill"])
    watched = os.pidfd_open(child)
    if not select.select([watched], [], [], kill.after_s or LIFE_S)[0]:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    spent = (time.perf_counter() - begun) * 1e3
    os.close(watched)
    with open(heard) as f:
        lines = [json.loads(line) for line in f.read().splitlines() if line.startswith("{") and line.endswith("}")]
    last = errors.read_text(errors="replace").strip()[-300:] if errors.exists() else ""
    return {"code": code, "ms": spent, "errors": last, **(lines[-1] if lines else {})}


def _be(asked: dict[str, Any], work: Callable[[list[str]], object], said: int, errors: pathlib.Path) -> None:
    """The life itself. Never returns: what stands above it on the stack belongs to the nursery."""
    code = 1
    try:
        os.dup2(said, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
        os.environ.update(asked["env"])
        kill = Kill(*asked["kill"])
        if kill.flush:
            ctypes.CDLL(None).shim_kill(ctypes.c_ulong(kill.flush), ctypes.c_int(kill.late))
        work(asked["argv"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
