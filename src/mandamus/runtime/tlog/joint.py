"""Many callers, one round at a time: whoever asks while a round is under way shares the next one, because the one under way may have
begun before what he waits for. This is how many runs that wait for a checkpoint share it.

    round = Joint(work)
    await round()           # a round of `work` that began after this call

The rule a newcomer would break: a caller that is cancelled takes nobody along; the round goes on for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Joint(Generic[T]):
    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._under_way: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        loop = asyncio.get_running_loop()
        if self._next is None or self._next.get_loop() is not loop:
            before = self._under_way
            if before is not None and before.get_loop() is not loop:
                before = None  # it died with its loop
            self._next = asyncio.create_task(self._after(before))
            self._next.add_done_callback(_heard)
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._under_way, self._next = self._next, None
        return await self._work()

    async def stop(self) -> None:
        """What is under way, or about to be, is cancelled."""
        loop = asyncio.get_running_loop()
        tasks = [t for t in (self._under_way, self._next) if t is not None and t.get_loop() is loop and not t.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _heard(task: asyncio.Task[T]) -> None:
    """Its callers may all have gone."""
    if not task.cancelled():
        task.exception()
