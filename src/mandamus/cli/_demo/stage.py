"""The stage: one process per part, forked from a warm one where the system can fork; each gets an order and answers in its own time.

The rule a newcomer would break: a killed actor is killed by the operating system, without a chance to tidy up, and nobody outlives
the play.
"""

from __future__ import annotations

import json
import multiprocessing
import os
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
        self._programs: dict[str, subprocess.Popen[str]] = {}
        self._before: dict[str, str | None] = {}

    def open(self, log: str) -> tuple[str, dict[str, Any]]:
        """The bank and the witness of the log are programs of their own, started together: (the bank's address, what the witness says)."""
        self._start("bank", "--file", str(self._folder / scene.BANK_FILE))
        self._start("witness", "--folder", str(self._folder / scene.WITNESS_FOLDER), "--log", log)
        return str(self._said("bank")["url"]), {**self._said("witness"), "pid": self._programs["witness"].pid}

    def _start(self, name: str, *args: str) -> None:
        command = [sys.executable, "-m", f"mandamus.cli._demo.{name}", *args]
        self._programs[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _said(self, name: str) -> dict[str, Any]:
        out = self._programs[name].stdout
        assert out is not None
        line = out.readline()
        if not line:
            raise EngineFault(f"the {name} did not open", code="MDM-0803", fix="mandamus doctor")
        said: dict[str, Any] = json.loads(line)
        return said

    def surround(self, names: dict[str, str]) -> None:
        """What every part finds in its environment, as long as the stage stands."""
        self._before |= {name: os.environ.get(name) for name in names}
        os.environ.update(names)

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
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for program in self._programs.values():
            program.kill()
            program.communicate()
