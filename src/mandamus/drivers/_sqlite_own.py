"""Who drives a run: a kernel lock on `<ledger>.own/<run>`, dropped by the kernel when its process dies.

The rule a newcomer would break: a lock file is never unlinked. A new file of the same name is another inode, and two processes
could each hold "the" lock.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path


class Ownership:
    """The locks that one opened ledger holds."""

    def __init__(self, ledger: Path) -> None:
        self._folder = Path(f"{ledger}.own")
        self._held: dict[str, int] = {}
        _all.add(self)

    def take(self, run: str) -> bool:
        """True when the lock is ours now; False when somebody holds it, another claim of this process included."""
        if run in self._held:
            return False
        handle = self._open(run)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_size:  # its last holder died
                os.ftruncate(handle, 0)
            os.pwrite(handle, f"pid {os.getpid()}\n".encode("ascii"), 0)
        except BlockingIOError:
            os.close(handle)
            return False
        except BaseException:
            os.close(handle)
            raise
        self._held[run] = handle
        return True

    def _open(self, run: str) -> int:
        path, flags = f"{self._folder}/{run}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o644)
        except FileNotFoundError:
            self._folder.mkdir(exist_ok=True)
            return os.open(path, flags, 0o644)

    def holds(self, run: str) -> bool:
        return run in self._held

    def only(self, run: str) -> bool:
        """Whether this is the one run that is driven here."""
        return len(self._held) == 1 and run in self._held

    def give_back(self, run: str) -> None:
        handle = self._held.pop(run, None)
        if handle is not None:
            os.ftruncate(handle, 0)
            os.close(handle)

    def give_all_back(self) -> None:
        for run in list(self._held):
            self.give_back(run)

    def holder(self, run: str) -> str:
        """What the holder wrote: "pid 4121"; in the instant before it wrote, "another process"."""
        try:
            return (self._folder / run).read_text("ascii", "replace").strip()[:40] or "another process"
        except OSError:
            return "another process"

    def forget(self) -> None:
        """In a forked child: its copies would keep the parent's locks alive after the parent's death."""
        for handle in self._held.values():
            os.close(handle)
        self._held.clear()


def held_by(ledger: Path, run: str) -> str:
    """Who drives a run now: what the holder of its lock wrote, or "" when nobody holds it. Asked of the lock, since a pid may be stale."""
    try:
        handle = os.open(Path(f"{ledger}.own") / run, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return ""
    except BlockingIOError:
        return os.pread(handle, 40, 0).decode("ascii", "replace").strip() or "another process"
    finally:
        os.close(handle)


_all: weakref.WeakSet[Ownership] = weakref.WeakSet()


def _after_fork() -> None:
    for ownership in list(_all):
        ownership.forget()


os.register_at_fork(after_in_child=_after_fork)
