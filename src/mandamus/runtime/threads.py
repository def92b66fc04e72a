"""Threads for sync tools, and the knowledge of which calls still have one: a thread cannot be cancelled, only waited for.

The rule a newcomer would break: a call that timed out or was cancelled may have left a thread behind, also an async one
(`asyncio.to_thread`). Nobody else may own the run, and nothing is believed absent, before that thread has ended.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

WORKERS_MAX = 16
QUIET_S = 0.05

_Call = tuple[str, str]
_calling: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("calling", default=None)
_alive: Counter[_Call] = Counter()  # threads per (run, operation)
_counting = threading.Lock()
_ready: weakref.ref[asyncio.AbstractEventLoop] | None = None  # the loop that was prepared last


class call:
    """Around a tool's call: the threads that it asks the event loop for are counted as its own."""

    __slots__ = ("_key", "_token")

    def __init__(self, run: str, operation: str) -> None:
        self._key = run, operation

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        if _ready is None or loop is not _ready():
            _prepare(loop)
        self._token = _calling.set(self._key)

    def __exit__(self, *_: object) -> None:
        _calling.reset(self._token)


def _prepare(loop: asyncio.AbstractEventLoop) -> None:
    """Its threads are counted from now on. A program that brought its own executor keeps it."""
    global _ready
    if getattr(loop, "_default_executor", None) is None:
        loop.set_default_executor(_Counted(thread_name_prefix="asyncio"))
    _ready = weakref.ref(loop)


def busy(run: str, operation: str = "") -> bool:
    """Whether a thread of a call of this run (or of one operation of it) still lives in this process."""
    with _counting:
        return any(run == r and operation in ("", o) for r, o in _alive)


def _count(future: concurrent.futures.Future[Any]) -> None:
    """Until `future` is done, which for a thread means: until it has ended, whoever still waits for it."""
    key = _calling.get()
    if key is None:
        return
    with _counting:
        _alive[key] += 1
    future.add_done_callback(lambda _: _uncount(key))


def _uncount(key: _Call) -> None:
    with _counting:
        _alive[key] -= 1
        if not _alive[key]:
            del _alive[key]


class _Counted(concurrent.futures.ThreadPoolExecutor):
    """The event loop's own threads, for `asyncio.to_thread` and `run_in_executor(None, …)`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        _count(future)
        return future


def close_when_quiet(runs: Iterable[str], close: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Close in a thread when the calls of these runs are over. False: they are. At its end the process takes thread and locks along."""
    waited = tuple(runs)
    if not any(busy(run) for run in waited):
        return False

    def work() -> None:
        while any(busy(run) for run in waited):
            time.sleep(QUIET_S)
        asyncio.run(close())

    threading.Thread(target=work, name="close", daemon=True).start()
    return True


class Workers:
    """Daemon threads, made as they are needed: one that hangs keeps neither the interpreter nor the others waiting."""

    def __init__(self, most: int = WORKERS_MAX) -> None:
        self._most, self._count, self._idle, self._pending = most, 0, 0, 0
        self._lock = threading.Lock()
        self._given_up: weakref.WeakSet[concurrent.futures.Future[Any]] = weakref.WeakSet()
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], concurrent.futures.Future[Any]]] = queue.SimpleQueue()

    def submit(self, work: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._lock:
            self._jobs.put((work, future))
            self._pending += 1
            _count(future)
            if self._idle < self._pending and self._count < self._most:
                self._count += 1
                threading.Thread(target=self._work, name=f"tool-{self._count}", daemon=True).start()
        return future

    def abandon(self, future: concurrent.futures.Future[Any]) -> None:
        """Nobody waits for this work any more. Its thread may hang for ever: it leaves the set, so that others have room."""
        with self._lock:
            if future.running() and future not in self._given_up:
                self._given_up.add(future)
                self._count -= 1

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            work, future = self._jobs.get()
            with self._lock:
                self._idle, self._pending = self._idle - 1, self._pending - 1
            _run(work, future)
            with self._lock:
                if future in self._given_up:
                    return
            del work, future


def _run(work: Callable[[], Any], future: concurrent.futures.Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return  # given up before it began
    try:
        result = work()
    except BaseException as error:  # the caller hears of it, whatever it is; the thread goes on
        future.set_exception(error)
    else:
        future.set_result(result)
