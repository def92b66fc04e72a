"""Group commit: whatever waits at once goes into one transaction; what comes alone is committed where it stands.

`submit(work)` answers when `work` is committed. A group closes when the event loop has nobody left who could join, or when it is full
enough to be worth a flush. Its work is done in the loop, because a thread would fight for the interpreter at every row; its flush is
done by a writer thread, and meanwhile the loop carries on those who are not in it. Whoever comes alone is flushed inline: a thread costs
more than that.

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
FULL = 64  # so many share a flush well; half of 200 runs go on while the other half is flushed
GATHER_SECONDS = 0.01  # a loop that is never idle closes a group all the same
IDLE_SECONDS = 1.0  # then the thread ends; the next group starts another

Rest = Callable[[], None]


class Job:
    """One piece of work for the writer. `durable` False: may be lost with the power, never half done."""

    __slots__ = ("durable", "error", "future", "loop", "value", "work")

    def __init__(self, work: Callable[[], Any], durable: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.work, self.durable, self.loop = work, durable, loop
        self.future: asyncio.Future[None] | None = None
        self.value: Any = None  # set before the commit, shown only after it
        self.error: Exception | None = None


class GroupCommit:
    """`commit(jobs)` runs them in one transaction and sets each one's value or error. It is never entered twice at a time.

    `begin(jobs)`: the same up to the flush, and never waits for anybody; what is left is its answer. None: it could not even begin.
    `after()`: what is to be done when everybody was told, and before anybody else is at it.
    """

    def __init__(
        self,
        commit: Callable[[list[Job]], None],
        begin: Callable[[list[Job]], Rest | None] = lambda jobs: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._commit, self._begin, self._after = commit, begin, after
        self._lock = threading.RLock()
        self._state = threading.Condition(self._lock)
        self._waiting: deque[Job] = deque()
        self._came = 0  # jobs that ever waited: a loop in which it stands still is idle
        self._gatherer: asyncio.AbstractEventLoop | None = None  # the loop that looks whether somebody else joins
        self._ready = False  # those who wait are complete; they go when the file is free
        self._busy = False
        self._order: tuple[list[Job], Rest | None] | None = None  # for the thread
        self._thread: threading.Thread | None = None
        self._closed = False
        self.inline = self.groups = 0

    async def submit(self, work: Callable[[], Any], *, durable: bool = True, lone: bool = False) -> Any:
        """`lone`: the caller is the only one who drives anything here, so nobody is waited for."""
        loop = asyncio.get_running_loop()
        job = Job(work, durable, loop)
        if lone and self._free():
            self._run_here([job])
            return _answer(job)
        job.future = loop.create_future()
        if self._join(job):
            self._go()
        try:
            await job.future
        except asyncio.CancelledError:
            self._withdraw(job)
            raise
        return _answer(job)

    def close(self) -> None:
        """After everything that waits was committed."""
        with self._lock:
            self._closed = True
            if self._waiting:
                self._need_thread()
            self._state.notify_all()
            self._state.wait_for(lambda: not (self._busy or self._waiting))
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- gathering -----------------------------------------------------------------------------------------------------------
    def _free(self) -> bool:
        with self._lock:
            if self._busy or self._waiting:
                return False
            self._busy = True
            return True

    def _join(self, job: Job) -> bool:
        """True: those who wait are enough, and the file is free."""
        with self._lock:
            self._waiting.append(job)
            self._came += 1
            if not self._busy and len(self._waiting) >= FULL:
                return True
            if self._gatherer is not job.loop:
                self._gatherer = job.loop
                job.loop.call_soon(self._gather, job.loop, self._came, job.loop.time() + GATHER_SECONDS)
            return False

    def _gather(self, loop: asyncio.AbstractEventLoop, came: int, until: float) -> None:
        """One turn of the event loop later: whoever was ready has joined, unless somebody joined just now."""
        with self._lock:
            if self._waiting and self._came != came and loop.time() < until:
                loop.call_soon(self._gather, loop, self._came, until)
                return
            self._gatherer = None
            self._ready = bool(self._waiting)
        self._go()

    def _withdraw(self, job: Job) -> None:
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)

    # -- committing ----------------------------------------------------------------------------------------------------------
    def _go(self) -> None:
        """Commit those who wait, in the thread of an event loop. Nothing is done while somebody else is at it: he hands on."""
        with self._lock:
            jobs = self._take()
        if len(jobs) == 1:
            self._run_here(jobs)
        elif jobs:
            self._hand_over(jobs, self._begun(jobs))

    def _take(self) -> list[Job]:
        """The next group; the file is ours when it is not empty."""
        jobs: list[Job] = []
        while not self._busy and self._waiting and len(jobs) < GROUP_MAX:
            job = self._waiting.popleft()
            if job.future is None or not job.future.cancelled():
                jobs.append(job)
        if jobs:
            self._busy, self._ready = True, self._ready and bool(self._waiting)
        return jobs

    def _run_here(self, jobs: list[Job]) -> None:
        try:
            self._commit(jobs)
            self._after()
        except Exception as error:  # a fault of ours must reach the caller, who may be another task
            _blame(jobs, error)
        finally:
            self.inline += 1
            self._release()
        if jobs[0].loop is asyncio.get_running_loop():
            _wake([job.future for job in jobs if job.future is not None])
        else:
            _tell(jobs)

    def _begun(self, jobs: list[Job]) -> Rest | None:
        try:
            return self._begin(jobs)
        except Exception as error:
            _blame(jobs, error)
            return _nothing
        except BaseException:
            self._release()
            raise

    def _hand_over(self, jobs: list[Job], rest: Rest | None) -> None:
        with self._lock:
            self._order = jobs, rest
            self._need_thread()
            self._state.notify_all()

    def _release(self) -> None:
        """The file is free; whoever waits and is complete goes next."""
        with self._lock:
            self._busy = False
            complete = self._ready or len(self._waiting) >= FULL
            loops = {job.loop for job in self._waiting} if complete else set()
            self._state.notify_all()
        for loop in loops:
            try:
                loop.call_soon_threadsafe(self._go)
            except RuntimeError:  # that loop is closed: nobody waits there any more, but it was not withdrawn either
                self._go_in_thread()

    def _go_in_thread(self) -> None:
        with self._lock:
            jobs = self._take()
        if jobs:
            self._hand_over(jobs, None)

    # -- the thread ----------------------------------------------------------------------------------------------------------
    def _need_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="mandamus-ledger", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        try:
            self._serve()
        except BaseException:  # a fault of ours: it is shown by the interpreter, and the next group starts another thread
            with self._lock:
                self._thread = None
            raise

    def _serve(self) -> None:
        while (order := self._next_order()) is not None:
            jobs, rest = order
            try:
                if rest is None:
                    self._commit(jobs)
                else:
                    rest()
            except Exception as error:  # must reach the callers, not end the thread in silence
                _blame(jobs, error)
            self.groups += 1
            _tell(jobs)
            try:
                self._after()
            finally:
                self._release()

    def _next_order(self) -> tuple[list[Job], Rest | None] | None:
        with self._lock:
            idle = self._closed
            while self._order is None:
                if self._closed and (jobs := self._take()):
                    return jobs, None
                if idle and not self._busy:
                    self._thread = None
                    self._state.notify_all()
                    return None
                idle = not self._state.wait(IDLE_SECONDS) or self._closed
            order, self._order = self._order, None
            return order


def _tell(jobs: list[Job]) -> None:
    """One wake-up per event loop, not one per job."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for job in jobs:
        if job.future is not None:
            by_loop.setdefault(job.loop, []).append(job.future)
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_wake, futures)
        except RuntimeError:
            pass  # that loop is closed: nobody waits there any more


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _blame(jobs: list[Job], error: Exception) -> None:
    for job in jobs:
        job.error = job.error or error


def _answer(job: Job) -> Any:
    if job.error is not None:
        raise job.error
    return job.value


def _nothing() -> None:
    """Every job knows already what became of it."""
