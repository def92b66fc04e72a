"""Tells subscribers what was committed: each record once, in order, in a bounded task of its own for each of them.

The rule a newcomer would break: nobody waits for a subscriber. One that is slow keeps the newest records only; when its turn comes
it reads what it missed again from the ledger, from the event behind the last one that it heard. One that raises touches nobody.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mandamus.core.records import AnyRecord, decode
from mandamus.core.seal import Sealed
from mandamus.errors import MandamusError
from mandamus.runtime.env import Env

ROOM = 1_000
PATIENCE_S = 5.0

Subscriber = tuple[Callable[[AnyRecord], Any], frozenset[str] | None]


class Bus:
    """The subscribers of one run, for as long as this process drives it."""

    def __init__(self, env: Env, run: str, subscribers: Sequence[Subscriber], *, room: int = ROOM) -> None:
        self._env = env
        self._listeners = [_Listener(env, run, fn, types, room) for fn, types in subscribers]

    def publish(self, sealed: Sequence[Sealed]) -> None:
        records = [one.record for one in sealed]
        for listener in self._listeners:
            listener.hear(records)

    async def close(self, patience_s: float = PATIENCE_S) -> None:
        """Gives those that are behind this long, then lets go of them and says from where they may read again."""
        for listener in self._listeners:
            listener.end()
        if self._listeners:
            await asyncio.wait([x.task for x in self._listeners], timeout=patience_s)
        for listener in self._listeners:
            if not listener.task.done():
                listener.task.cancel()
                self._env.warn(listener.left())


class _Listener:
    """One subscriber: the newest records that it has not heard yet, and the number of the next one that it must hear."""

    def __init__(self, env: Env, run: str, fn: Callable[[AnyRecord], Any], types: frozenset[str] | None, room: int) -> None:
        self._env, self._run, self._fn, self._types = env, run, fn, types
        self._newest: deque[AnyRecord] = deque(maxlen=room)
        self._next: int | None = None
        self._bell, self._over = asyncio.Event(), False
        self.task = asyncio.create_task(self._deliver())

    def hear(self, records: Sequence[AnyRecord]) -> None:
        if self._next is None and records:
            self._next = records[0].seq
        self._newest.extend(records)
        self._bell.set()

    def end(self) -> None:
        self._over = True
        self._bell.set()

    def left(self) -> str:
        return f"mandamus: a subscriber was left behind: read again from event {self._next} of run {self._run}"

    async def _deliver(self) -> None:
        while self._newest or not self._over:
            if not self._newest:
                self._bell.clear()
                await self._bell.wait()
                continue
            record = self._newest.popleft()
            try:
                await self._missed(record.seq)
            except MandamusError:  # the ledger does not answer, and nothing is skipped
                self._env.warn(self.left())
                return
            await self._tell(record)

    async def _missed(self, before: int) -> None:
        if self._next is None or self._next >= before:
            return
        async for raw in self._env.ledger.read(self._run, self._next - 1, before - 1):
            await self._tell(decode(raw))

    async def _tell(self, record: AnyRecord) -> None:
        if self._types is None or record.type in self._types:
            try:
                answer = self._fn(record)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:  # a subscriber's fault is its own
                pass
        self._next = record.seq + 1
