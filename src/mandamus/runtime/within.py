"""`await within(seconds, work)`: a deadline that costs nothing when the answer comes at once.

An embedded engine or a tool of plain Python answers without waiting for anything; a timer for it would be set and taken back in
vain. Raises TimeoutError as `asyncio.timeout` does. The rule a newcomer would break: everything runs in the caller's own task, so
whoever cancels it reaches the work.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Awaitable[T]) -> T:
    deadline, steps = asyncio.get_running_loop().time() + seconds, work.__await__()
    try:
        waits_for = next(steps)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    async with asyncio.timeout_at(deadline):
        return await resumed(steps, waits_for)


@types.coroutine
def resumed(steps: Generator[Any, Any, T], waits_for: Any, context: contextvars.Context | None = None) -> Generator[Any, Any, T]:
    """The rest of what was begun by hand and now waits for `waits_for`, each step of it in `context`."""
    run: Callable[..., Any] = context.run if context is not None else _plainly
    while True:
        try:
            try:
                heard = yield waits_for
            except BaseException as error:  # a cancellation belongs to the work
                waits_for = run(steps.throw, error)
            else:
                waits_for = run(steps.send, heard)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def asked_to_go() -> bool:
    """Whether this task itself was cancelled. Else a CancelledError is only one more thing that somebody's code raised."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _plainly(step: Callable[[Any], Any], given: Any) -> Any:
    return step(given)
