"""LISTEN on a connection of its own: `Bell.wait(pool, timeout_ms)` returns when a run of that pool may have become due, `ring` says so.

The rule a newcomer would break: a notification is a hint. It is lost with the connection, with a failover, and behind a pooler of
transactions there is none at all; whoever waits looks anyway, and nothing but speed may rest on this.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from mandamus.drivers.ledger_postgres.link import Connection, Fault
from mandamus.errors import MandamusError

POLL_S = 1.0  # how long one waits at most where nothing can be heard, and before the next try to listen


class Bell:
    """`connect` gives the connection to listen on; None: there is none, and waiting is sleeping. `notify` tells all processes."""

    def __init__(self, channel: str, connect: Callable[[], Awaitable[Connection]] | None, notify: Callable[[str], Awaitable[None]]) -> None:
        self._channel, self._connect, self._notify = channel, connect, notify
        self._told: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._rung: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._task: asyncio.Task[None] | None = None
        self._listening = False

    async def wait(self, pool: str, timeout_ms: int) -> None:
        """At the latest after the timeout. What rang since the last time counts."""
        self._start()
        event = self._rung[pool]
        limit = timeout_ms / 1000
        try:
            await asyncio.wait_for(event.wait(), limit if self._listening else min(limit, POLL_S))
        except TimeoutError:
            return
        event.clear()

    def ring(self, pool: str) -> None:
        """Nobody waits for it. What becomes due while the pool is being told is said once more, once for all."""
        loop, telling = asyncio.get_running_loop(), self._told.get(pool)
        if telling is not None and not telling.done() and telling.get_loop() is loop:
            self._again.add(pool)
        else:
            self._told[pool] = loop.create_task(self._tell(pool))

    async def _tell(self, pool: str) -> None:
        await self._notify(pool)
        while pool in self._again:
            self._again.discard(pool)
            await self._notify(pool)

    async def close(self) -> None:
        """What was rung is told first."""
        loop = asyncio.get_running_loop()
        if telling := [task for task in self._told.values() if not task.done() and task.get_loop() is loop]:
            await asyncio.wait(telling)
        task, self._task = self._task, None
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _start(self) -> None:
        task = self._task
        if self._connect is not None and (task is None or task.done() or task.get_loop() is not asyncio.get_running_loop()):
            if task is not None and task.get_loop() is not asyncio.get_running_loop():
                self._rung.clear()  # events belong to their loop
            self._task = asyncio.get_running_loop().create_task(self._listen(self._connect))

    async def _listen(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        """Until it is cancelled. Whoever waits is woken when listening begins and when it ends: something may have been missed."""
        while True:
            try:
                await self._hear(await connect())
            except (Fault, MandamusError, OSError):
                pass  # the poll goes on
            self._listening = False
            self._ring_all()
            await asyncio.sleep(POLL_S)

    async def _hear(self, connection: Any) -> None:
        try:
            await connection.execute(f"LISTEN {self._channel}".encode())
            self._listening = True
            self._ring_all()
            async for said in connection.notifies():
                if said.payload in self._rung:  # anybody in this database may say anything on any channel
                    self._rung[said.payload].set()
        finally:
            await connection.close()

    def _ring_all(self) -> None:
        for event in self._rung.values():
            event.set()
