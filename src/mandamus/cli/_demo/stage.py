"""The stage: starts actors ahead of their cue, hands each one order, hears its one line, and ends those that are left.

The rule a newcomer would break: every actor is a process of its own, and a killed one is killed by the operating system, without a
chance to tidy up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from mandamus.errors import EngineFault

PATIENCE_S = 60.0
_MODULE = "mandamus.cli._demo.actor"
_NOT_PASSED_ON = ("mandamus_ledger", "python_colors", "pythonstartup")


class Actor:
    """A process that waits for its order."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", _MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_surroundings()
        )  # fmt: skip
        self.pid = self.process.pid

    def tell(self, order: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """The next line. An actor that says nothing for a minute is ended. Raises EngineFault with what it wrote to its end."""
        assert self.process.stdout is not None
        alarm = threading.Timer(PATIENCE_S, self.process.kill)
        alarm.start()
        try:
            line = self.process.stdout.readline()
        finally:
            alarm.cancel()
        said: dict[str, Any] = json.loads(line) if line else {}
        if not said or "error" in said:
            raise self._fault(said.get("error", {}))
        return {**said, "pid": self.pid}

    def kill(self) -> int:
        """SIGKILL, or its like. The exit status that the operating system tells."""
        self.process.kill()
        status = self.process.wait()
        self._close()
        return status

    def end(self) -> None:
        """Let it read the end of its input, and go."""
        try:
            self.process.communicate(timeout=5)
        except (subprocess.TimeoutExpired, ValueError, OSError):
            self.kill()

    def _fault(self, told: dict[str, str]) -> EngineFault:
        self.process.kill()
        assert self.process.stderr is not None
        rows = self.process.stderr.read().strip().splitlines()
        self.process.wait()
        self._close()
        return EngineFault(
            told.get("what", "a process of the demo ended early"), code=told.get("code", "MDM-0803"), where=told.get("where", f"process {self.pid}"),
            found=rows[-1][:200] if rows else "", why=told.get("why", ""), fix="mandamus doctor",
        )  # fmt: skip

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was still to be flushed has no reader
                    pass


class Stage:
    """`play` gives an order to the next actor that is warm. A context manager: nobody outlives it."""

    def __init__(self, folder: Path, cast: int, ahead: int = 2) -> None:
        self.folder, self._to_come = folder, cast
        self._all: list[Actor] = []
        self._warm: list[Actor] = []
        self._fill(ahead)

    def _fill(self, ahead: int) -> None:
        while len(self._warm) < ahead and self._to_come > 0:
            self._to_come -= 1
            actor = Actor()
            self._all.append(actor)
            self._warm.append(actor)

    def begin(self, role: str, **order: Any) -> Actor:
        """Send an actor on; hear it with `hear`."""
        if not self._warm:
            self._to_come = max(self._to_come, 1)
            self._fill(1)
        actor = self._warm.pop(0)
        actor.tell({"role": role, "folder": str(self.folder), **order})
        self._fill(2)
        return actor

    def play(self, role: str, **order: Any) -> dict[str, Any]:
        """A whole part: its one line, after its process has ended."""
        actor = self.begin(role, **order)
        said = actor.hear()
        actor.end()
        return said

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for actor in self._all:
            if actor.process.poll() is None:
                actor.kill()
            else:
                actor._close()


def _surroundings() -> dict[str, str]:
    """What the actors inherit: no proxy, no ledger of somebody else's."""
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and k.lower() not in _NOT_PASSED_ON}
    return env | {"PYTHONUTF8": "1"}
