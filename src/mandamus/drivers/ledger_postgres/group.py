"""Group commit: appends that are ready together are one transaction. `await Group(link, locks).write(Job(...))`.

A run that is alone is written by its own task, at once: one statement, one round trip. As soon as several runs append, what becomes
ready in one turn of the event loop goes out together, at most `GROUP_MAX`; while `OUT_MAX` groups are on their way, others gather. There
is no timer that anybody waits for. Of those that touch an account which one of them writes, each is decided in the order in which it
came, so that a process may count on from what it has just handed in.

In a group each statement sees what those before it did, as if they came one after the other: one that finds its run or an account
elsewhere writes nothing, and fails alone. Whatever else the server refuses undoes the whole group, and then each goes by itself, so that
the fault is told to the one whose fault it is. An unknown outcome is unknown for each.

The rule a newcomer would break: locks are taken in one order by everybody, or two groups wait for each other. Heads are locked by the
names of their runs, openings come behind them, and the locks of accounts are taken before all that as soon as there is more than one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mandamus.drivers.ledger_postgres.binary import Rows, Statement
from mandamus.drivers.ledger_postgres.link import Fault, Link
from mandamus.drivers.ledger_postgres.wire import Question

GROUP_MAX = 64
OUT_MAX = 2  # groups on their way: the server works on one while the next is made
SLOW_S = 0.1  # a group that takes longer waits for a lock or a standby: nobody waits for it in turn

Locks = tuple[tuple[int, bool], ...]  # (key, whether alone)


class Job(NamedTuple):
    run: str
    question: Question
    locks: Locks
    opens: bool

    @property
    def keys(self) -> list[int]:
        """Of the accounts that it checks or writes."""
        return [key for key, _ in self.locks]

    @property
    def written(self) -> list[int]:
        return [key for key, alone in self.locks if alone]


class _Waiting(NamedTuple):
    job: Job
    rows: asyncio.Future[Rows]


class Group:
    """One of a ledger's handle; in one event loop at a time."""

    def __init__(self, link: Link, lock: Statement) -> None:
        self._link, self._lock = link, lock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last = ""
        self._begin()

    async def write(self, job: Job) -> Rows:
        """The rows of its statement, committed. Raises what `Link.write` raises."""
        if self._loop is not asyncio.get_running_loop():
            self._begin()
            self._loop = asyncio.get_running_loop()
        alone, self._last = job.run == self._last, job.run
        if alone and not self._out and not self._waiting:
            return await self._by_itself(job)
        one = _Waiting(job, self._loop.create_future())
        self._waiting.append(one)
        self._next()
        try:
            return await one.rows
        except asyncio.CancelledError:
            if one in self._waiting:
                self._waiting.remove(one)
            raise

    async def quiet(self, run: str) -> None:
        """No append of this run is under way any more, also none whose caller has left."""
        tasks = [task for task, group in self._tasks.items() if any(one.job.run == run for one in group)]
        if tasks and self._loop is asyncio.get_running_loop():
            await asyncio.wait(tasks)

    def _begin(self) -> None:
        self._waiting: deque[_Waiting] = deque()
        self._out: dict[object, list[Job]] = {}  # groups on their way
        self._slow: dict[object, list[Job]] = {}  # those of them that are not waited for any more
        self._tasks: dict[asyncio.Task[None], list[_Waiting]] = {}
        self._called = False

    async def _by_itself(self, job: Job) -> Rows:
        token = object()
        self._out[token] = [job]
        try:
            return await self._link.write_encoded(job.question)
        finally:
            self._returned(token)

    # -- groups --------------------------------------------------------------------------------------------------------------
    def _next(self) -> None:
        """When whoever is ready in this turn of the loop has joined."""
        if self._waiting and not self._called and len(self._out) < OUT_MAX and self._loop is not None:
            self._called = True
            self._loop.call_soon(self._leave)

    def _leave(self) -> None:
        self._called = False
        assert self._loop is not None
        group, token = self._chosen(), object()
        if not group:
            return  # they were cancelled, or wait for a group that writes their account
        self._out[token] = [one.job for one in group]
        task = self._loop.create_task(self._carry(group, token))
        self._tasks[task] = group
        task.add_done_callback(self._tasks.pop)
        self._next()

    def _chosen(self) -> list[_Waiting]:
        """Nobody overtakes one that came before and has an account with it in common that either writes."""
        group: list[_Waiting] = []
        written, touched = _keys(job for jobs in (*self._out.values(), *self._slow.values()) for job in jobs)
        opened, left = set[int](), deque[_Waiting]()  # of openings in one group each stays behind the one before it
        while self._waiting and len(group) < GROUP_MAX:
            one = self._waiting.popleft()
            keys, writes = set(one.job.keys), set(one.job.written)
            if keys & written or writes & touched or (keys & opened and not one.job.opens):
                left.append(one)
                written |= keys
            else:
                group.append(one)
                if one.job.opens:
                    opened |= writes
                else:
                    written |= writes
        left.extend(self._waiting)
        self._waiting = left
        return group

    def _late(self, token: object) -> None:
        self._slow[token] = self._out.pop(token)
        self._next()

    def _returned(self, token: object) -> None:
        self._out.pop(token, None)
        self._slow.pop(token, None)
        self._next()

    async def _carry(self, group: list[_Waiting], token: object) -> None:
        assert self._loop is not None
        slow = self._loop.call_later(SLOW_S, self._late, token)
        try:
            if len(group) == 1:
                await self._alone(group[0])
            else:
                await self._together(group)
        finally:
            slow.cancel()
            self._returned(token)

    async def _together(self, group: list[_Waiting]) -> None:
        group.sort(key=lambda one: (one.job.opens, "" if one.job.opens else one.job.run))
        first = self._locked([one.job for one in group])
        try:
            answers = await self._link.ask([*first, *(one.job.question for one in group)])
        except Fault:  # nothing was written, and one of them is to blame, or another process stood in the way
            free = [one for one in group if not one.job.written]
            await asyncio.gather(*map(self._alone, free), self._in_turn([one for one in group if one.job.written]))
        except asyncio.CancelledError:
            for one in group:
                one.rows.cancel()
            raise
        except Exception as fault:
            for one in group:
                _fail(one, _like(fault))
        else:
            for one, rows in zip(group, answers[len(first) :], strict=True):
                if not one.rows.done():
                    one.rows.set_result(rows)

    async def _in_turn(self, group: list[_Waiting]) -> None:
        for one in group:
            await self._alone(one)

    async def _alone(self, one: _Waiting) -> None:
        try:
            rows = await self._link.write_encoded(one.job.question)
        except asyncio.CancelledError:
            one.rows.cancel()
            raise
        except Exception as fault:
            _fail(one, fault)
        else:
            if not one.rows.done():
                one.rows.set_result(rows)

    def _locked(self, jobs: Sequence[Job]) -> list[Question]:
        keys: dict[int, bool] = {}
        for job in jobs:
            for key, alone in job.locks:
                keys[key] = keys.get(key, False) or alone
        if len(keys) < 2:
            return []
        ordered = sorted(keys)
        return [(self._lock, self._lock.encode({"locks": ordered, "alone": [keys[key] for key in ordered]}))]


def _keys(jobs: Iterable[Job]) -> tuple[set[int], set[int]]:
    """Of accounts that are written, and of those that are touched at all."""
    written, touched = set[int](), set[int]()
    for job in jobs:
        written.update(job.written)
        touched.update(job.keys)
    return written, touched


def _fail(one: _Waiting, fault: Exception) -> None:
    if not one.rows.done():
        one.rows.set_exception(fault)


def _like(fault: Exception) -> Exception:
    """One for each who waits: an exception that is raised in several tasks gathers the traces of all."""
    twin = type(fault).__new__(type(fault), *fault.args)
    twin.__dict__.update(fault.__dict__)
    return twin
