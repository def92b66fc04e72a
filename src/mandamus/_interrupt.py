"""Ctrl-C while our own command is being loaded, or is on its way out: it ends like any program, without a traceback.

This is the first module of ours that is imported. The rule a newcomer would break: it does something for the command only; a program
that imports mandamus keeps its handlers. While a verb works, Python's own handler is in place.
"""

from __future__ import annotations

import sys


def ours() -> bool:
    """`mandamus …` or `python -m mandamus …`. Until Python has found the module that -m names, argv[0] is "-m"."""
    first, asked = (sys.argv or [""])[0], sys.orig_argv
    if first == "-m":
        return "-m" in asked and asked[asked.index("-m") + 1 :][:1] == ["mandamus"]
    return first.replace("\\", "/").rpartition("/")[2].removesuffix(".exe") == "mandamus"


def hush() -> None:
    """From now on Ctrl-C ends the process. Whoever ignores it, or handles it himself, goes on to."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def hear() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt again."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if ours():
    hush()
