"""The stage: one process per part, forked from a warm one where the system can fork; each gets an order and answers in its own time.

The rule a newcomer would break: a killed actor is killed by the operating system, without a chance to tidy up, and nobody outlives
the play.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from mandamus.cli._demo import actor, scene
from mandamus.errors import EngineFault

PATIENCE_S = 60.0
_processes: Any = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn")


class Part:
    """A role that is being played in a process of its own."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._line, theirs = _processes.Pipe()
        self._process = _processes.Process(target=actor.play, args=(theirs, order), daemon=True)
        self._process.start()
        theirs.close()
        self.pid = int(self._process.pid)

    def tell(self, word: dict[str, Any]) -> None:
        self._line.send(word)

    def hear(self) -> dict[str, Any]:
        """The next thing it says. Raises EngineFault when it says nothing for a minute, ended early, or tells of a fault."""
        try:
            said = self._line.recv() if self._line.poll(PATIENCE_S) else {"error": {"what": "a process of the demo does not answer"}}
        except EOFError:
            said = {"error": {"what": "a process of the demo ended early"}}
        if "error" in said:
            told = said["error"]
            where = told.get("where", f"process {self.pid}")
            raise EngineFault(told["what"], code=told.get("code", "MDM-0803"), where=where, why=told.get("why", ""), fix="mandamus doctor")
        return {**said, "pid": self.pid}

    def last(self) -> dict[str, Any]:
        """The last thing it says, after which its process has ended."""
        said = self.hear()
        self._process.join(PATIENCE_S)
        return said

    def kill(self) -> int:
        """SIGKILL. The exit status that the operating system tells."""
        self._process.kill()
        self._process.join()
        return int(self._process.exitcode)

    @property
    def alive(self) -> bool:
        return bool(self._process.is_alive())


class Stage:
    """`begin` sends an actor on, `play` is a whole part. A context manager: nobody outlives it."""

    def __init__(self, folder: Path, uri: str) -> None:
        self._folder, self._uri = folder, uri
        self._parts: list[Part] = []
        self._bank: subprocess.Popen[str] | None = None

    def bank(self) -> str:
        """The bank is a program of its own. Its address."""
        command = [sys.executable, "-m", "mandamus.cli._demo.bank", "--file", str(self._folder / scene.BANK_FILE)]
        self._bank = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._bank.stdout is not None
        line = self._bank.stdout.readline()
        if not line:
            raise EngineFault("the bank did not open", code="MDM-0803", fix="mandamus doctor")
        return str(json.loads(line)["url"])

    def begin(self, role: str, **order: Any) -> Part:
        part = Part({"role": role, "folder": str(self._folder), "ledger": self._uri, **order})
        self._parts.append(part)
        return part

    def play(self, role: str, **order: Any) -> dict[str, Any]:
        return self.begin(role, **order).last()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for part in self._parts:
            if part.alive:
                part.kill()
        if self._bank is not None:
            self._bank.kill()
            self._bank.communicate()
