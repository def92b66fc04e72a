"""`python signal_worker.py NOTE STEP SIGNAL[,SIGNAL…] ARG…`: the command line, that sends itself signals while it works.

The first signal comes at the STEP-th step, each further one forty steps later. A step is the beginning or the end of a call that code
of mandamus makes or is (Python or C, any thread), as the interpreter's profile hook reports them: so a place in the program and no
moment on a clock. NOTE is a file that gets a line per signal, and at a natural end how many steps there were. STEP 0: no signal.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from pathlib import Path
from typing import Any

SPACE = 40
BEFORE = (f"{os.sep}mandamus{os.sep}__init__.py", "_interrupt.py")  # before the first is done, a traceback is Python's


class Steps:
    """Counts, and sends what is due."""

    def __init__(self, note: str, first: int, signals: list[signal.Signals]) -> None:
        self.note, self.count = note, 0
        self.due = {first + n * SPACE: number for n, number in enumerate(signals)} if first else {}
        self.ours: dict[str, bool] = {}

    def __call__(self, frame: Any, event: str, arg: Any) -> None:
        file = frame.f_code.co_filename
        ours = self.ours.get(file)
        if ours is None:
            ours = self.ours[file] = f"{os.sep}mandamus{os.sep}" in file and not file.endswith(BEFORE)
        if ours:
            self.count += 1
            number = self.due.pop(self.count, None)
            if number is not None:
                self.say(f"{number.name} at {Path(file).name}:{frame.f_lineno} {frame.f_code.co_name} {event}")
                os.kill(os.getpid(), number)

    def say(self, text: str) -> None:
        with open(self.note, "a", encoding="utf-8") as file:
            file.write(text + "\n")


def main() -> None:
    note, first, names, *args = sys.argv[1:]
    steps = Steps(note, int(first), [signal.Signals[name] for name in names.split(",")])
    sys.orig_argv = [sys.executable, "-m", "mandamus", *args]
    sys.argv = ["-m", *args]
    threading.setprofile(steps)
    sys.setprofile(steps)
    try:
        runpy.run_module("mandamus", run_name="__main__", alter_sys=True)
    finally:
        sys.setprofile(None)
        steps.say(f"ended after {steps.count}")


if __name__ == "__main__":
    main()
