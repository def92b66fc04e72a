"""How far a long piece of work is: a line that moves on a terminal, one line in five seconds elsewhere, on stderr.

The rule a newcomer would break: nothing is said of work that takes less than 400 ms, and nothing of it ever stands in the answer.
"""

from __future__ import annotations

import sys
import time

from mandamus.cli.common import Cli
from mandamus.cli.say import say

QUIET_S, MOVES_S, LINES_S = 0.4, 0.2, 5.0


class Progress:
    """`at(done)` as often as one likes; `end()` leaves the terminal as it was."""

    def __init__(self, cli: Cli, what: str, total: int) -> None:
        self._what, self._total, self._off = what, max(total, 1), cli.quiet
        self._moves = bool(getattr(sys.stderr, "isatty", lambda: False)())
        self._began = time.monotonic()
        self._next = self._began + (QUIET_S if self._moves else LINES_S)
        self._shown = False

    def at(self, done: int) -> None:
        now = time.monotonic()
        if self._off or now < self._next:
            return
        self._next = now + (MOVES_S if self._moves else LINES_S)
        text = self._text(done, now - self._began)
        if self._moves:
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
            self._shown = True
        else:
            say(text, sys.stderr)

    def _text(self, done: int, took: float) -> str:
        rate = done / took if took else 0.0
        left = f", {max(0, self._total - done) / rate:.0f} s left" if rate else ""
        return f"{self._what}: {done} of {self._total} ({100 * done // self._total} %), {rate:.0f} a second{left}"

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
