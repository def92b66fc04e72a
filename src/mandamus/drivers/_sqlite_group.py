"""Group commit: whatever waits at once goes into one transaction; what comes alone is committed where it stands.

`submit(work)` answers when `work` is committed. A lone job runs inline, because a thread costs more than its commit; when several
wait, one writer thread takes up to 256 of them. There is no timer: the flush that is under way is the window in which others gather.

The rule a newcomer would break: a job is either withdrawn before it was taken, or its outcome stands. Cancelling the caller in
between says nothing about the disk.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

GROUP_MAX = 256
IDLE_SECONDS = 1.0  # then the thread ends; the next group starts another


class Job:
    """One piece of work for the writer. `durable` False: may be lost with the power, never half done."""

    __slots__ = ("done", "durable", "error", "future", "loop", "value", "work")

    def __init__(self, work: Callable[[], Any], durable: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.work, self.durable, self.loop = work, durable, loop
        self.future: asyncio.Future[Any] | None = None
        self.value: Any = None  # set before the commit, shown only after it
        self.error: Exception | None = None
        self.done = False


class GroupCommit:
    """`commit(jobs)` runs them in one transaction and sets each one's value or error. It is never entered twice at a time."""

    def __init__(self, commit: Callable[[list[Job]], None]) -> None:
        self._commit = commit
        self._lock = threading.RLock()
        self._state = threading.Condition(self._lock)
        self._waiting: deque[Job] = deque()
        self._busy = False
        self._thread: threading.Thread | None = None
        self._closed = False
        self.inline = self.groups = 0

    async def submit(self, work: Callable[[], Any], *, durable: bool = True, lone: bool = False) -> Any:
        """`lone`: the caller is the only one who drives anything here, so nobody is waited for."""
        job = Job(work, durable, asyncio.get_running_loop())
        with self._lock:
            self._waiting.append(job)
        if not lone:
            try:
                await asyncio.sleep(0)  # whoever else is ready joins now; 2 us, where a needless flush costs 50 or 5,000
            except asyncio.CancelledError:
                self._withdraw(job)
                raise
        if self._take_alone(job):
            self._run([job])
            self.inline += 1
            return _answer(job)
        return await self._wait_for_thread(job)

    def close(self) -> None:
        """After everything that waits was committed."""
        with self._state:
            self._closed = True
            if self._waiting and self._thread is None:
                self._start_thread()
            self._state.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _take_alone(self, job: Job) -> bool:
        with self._lock:
            if self._busy or len(self._waiting) != 1 or self._waiting[0] is not job:
                return False
            self._waiting.popleft()
            self._busy = True
            return True

    async def _wait_for_thread(self, job: Job) -> Any:
        with self._state:
            if job.done:  # the thread was faster
                return _answer(job)
            job.future = job.loop.create_future()
            if self._thread is None:
                self._start_thread()
            self._state.notify()
        try:
            await job.future
        except asyncio.CancelledError:
            self._withdraw(job)
            raise
        return _answer(job)

    def _withdraw(self, job: Job) -> None:
        with self._state:
            if job in self._waiting:
                self._waiting.remove(job)

    def _run(self, jobs: list[Job]) -> None:
        """The lock is free meanwhile; `_busy` keeps everybody else out."""
        try:
            self._commit(jobs)
        finally:
            with self._lock:
                self._busy = False
                if self._waiting:
                    if self._thread is None:
                        self._start_thread()
                    self._state.notify()

    # -- the thread ----------------------------------------------------------------------------------------------------------
    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._work, name="mandamus-ledger", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (jobs := self._next_group()) is not None:
            try:
                self._run(jobs)
            except Exception as error:  # a fault of ours must reach the callers, not end the thread in silence
                for job in jobs:
                    job.error = job.error or error
            self.groups += 1
            self._tell(jobs)

    def _next_group(self) -> list[Job] | None:
        with self._state:
            idle = self._closed
            while self._busy or not self._waiting:
                if idle and not self._busy:
                    self._thread = None
                    return None
                idle = not self._state.wait(IDLE_SECONDS) or self._closed
            self._busy = True
            return [self._waiting.popleft() for _ in range(min(GROUP_MAX, len(self._waiting)))]

    def _tell(self, jobs: list[Job]) -> None:
        """One wake-up per event loop, not one per job."""
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[Any]]] = {}
        with self._state:
            for job in jobs:
                job.done = True
                if job.future is not None:
                    by_loop.setdefault(job.loop, []).append(job.future)
        for loop, futures in by_loop.items():
            try:
                loop.call_soon_threadsafe(_wake, futures)
            except RuntimeError:
                pass  # that loop is closed: nobody waits there any more


def _wake(futures: list[asyncio.Future[Any]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _answer(job: Job) -> Any:
    if job.error is not None:
        raise job.error
    return job.value
