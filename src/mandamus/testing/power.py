"""A power switch for tests: it counts the places where a process can die, and dies at the one that was named.

A ledger, a model and tools are wrapped so that each asks the switch before it acts and after it acted, before anybody hears of it.
The rule a newcomer would break: `PowerCut` is no Exception, and after it nothing of that process does anything more: what runs in
its `finally` blocks finds every wire dead.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from msgspec import Struct

from mandamus.core.messages import ModelAnswer, Prompt, Settings
from mandamus.ports import Head, Ledger, Model
from mandamus.runtime.env import Bound
from mandamus.tool import Tool

TUESDAY = 1_700_560_800_000_000  # 2023-11-21 10:00 UTC: a working day, in working hours


class PowerCut(BaseException):
    """The process is gone. Not an Exception: nothing that handles errors may handle it."""


class Power:
    """Counts places. `cuts[0]` is the number of the first place (from 0) at which it goes; each later number counts from the cut before.

    `trace` names the places passed, over all processes of a life; `next()` is the switch of the next process.
    """

    def __init__(self, cuts: tuple[int, ...] = (), trace: list[str] | None = None, base: int = 0) -> None:
        self.cuts, self.on, self.base = cuts, True, base
        self.trace: list[str] = [] if trace is None else trace

    def place(self, name: str) -> None:
        if not self.on:
            raise PowerCut(name)
        self.trace.append(name)
        if self.cuts and len(self.trace) - self.base > self.cuts[0]:
            self.on = False
            raise PowerCut(name)

    def next(self) -> Power:
        if self.on:
            return Power(self.cuts, self.trace, self.base)
        return Power(self.cuts[1:], self.trace, len(self.trace))


class StepTime:
    """Virtual time: each look at the clock is a millisecond, sleeping jumps, randomness comes from a seed."""

    def __init__(self, seed: int = 0, at: int = TUESDAY) -> None:
        self.instant, self._random = at, random.Random(seed)

    def now(self) -> int:
        self.instant += 1_000
        return self.instant

    def entropy(self, n: int) -> bytes:
        return self._random.randbytes(n)

    async def sleep_until(self, instant: int) -> None:
        self.instant = max(self.instant, instant)


class PowerLedger:
    """A ledger on the switch: dead before a write, or after it before the writer hears. Everything else is handed through."""

    def __init__(self, inner: Ledger, power: Power) -> None:
        self._inner, self.power = inner, power

    async def append(self, run: str, after: Head | None, records: Any, **more: Any) -> Head:
        self.power.place("before a write")
        more.pop("seals", None)  # here nothing is believed: each append is read in full
        head = await self._inner.append(run, after, records, **more)
        self.power.place("after a write")
        return head

    async def claim(self, pool: str, ttl_ms: int, *, run: str | None = None) -> Head | None:
        self.power.place("before a claim")
        head = await self._inner.claim(pool, ttl_ms, run=run)
        self.power.place("after a claim")
        return head

    async def renew(self, head: Head, ttl_ms: int) -> Head:
        self.power.place("before a renewal")
        return await self._inner.renew(head, ttl_ms)

    def __getattr__(self, name: str) -> Any:
        if not self.power.on:
            raise PowerCut(name)
        return getattr(self._inner, name)


class PowerModel:
    """A model on the switch: dead before it is asked, or after it answered before the answer is heard."""

    def __init__(self, inner: Model, power: Power) -> None:
        self._inner, self._power = inner, power

    async def generate(self, prompt: Prompt, settings: Settings, on_delta: Callable[[str], None] | None = None) -> ModelAnswer:
        self._power.place("before a model call")
        answer = await self._inner.generate(prompt, settings, on_delta)
        self._power.place("after a model call")
        return answer

    async def close(self) -> None:
        await self._inner.close()


class Call(Struct, frozen=True):
    """One deed as the world saw it."""

    tool: str
    operation: str
    value: Any


class World:
    """Counts deeds by operation id, at the tools. It forgives nothing: a deed that is done twice stands here twice."""

    def __init__(self) -> None:
        self.deeds: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()
        self.calls: list[Call] = []
        self.differing: set[str] = set()

    def done(self, tool: str, operation: str, value: Any) -> None:
        self.deeds[operation] += 1
        self.calls.append(Call(tool, operation, value))


def wired(bound: Bound, power: Power, world: World, *, twice: bool = False) -> Bound:
    """The agent with its model and tools on the switch and its deeds counted. `twice`: idempotent tools are run twice and compared."""
    tools = {name: _on_switch(tool, power, world, twice) if tool.spec.kind == "invoke" else tool for name, tool in bound.tools.items()}
    children = {name: wired(child, power, world, twice=twice) for name, child in bound.children.items()}
    return replace(bound, tools=tools, children=children, model=PowerModel(bound.model, power))


def _on_switch(tool: Tool, power: Power, world: World, twice: bool) -> Tool:
    again = twice and tool.spec.effect == "idempotent"
    wrap = _async_call if tool.is_async else _sync_call
    reconcile = None if tool.reconcile is None else _Asked(tool.reconcile, power, tool.name)
    return Tool(tool.spec, wrap(tool, power, world, again), tool.arguments, tool.result, True, reconcile, tool.said_effect, tool.agent)


def _async_call(tool: Tool, power: Power, world: World, again: bool) -> Callable[..., Any]:
    @functools.wraps(tool.fn)
    async def call(ctx: Any, **arguments: Any) -> Any:
        given = (ctx,) if tool.takes_ctx else ()
        power.place(f"before {tool.name}")
        world.begun[ctx.operation_id] += 1
        value = await tool.fn(*given, **arguments)
        if again and await tool.fn(*given, **arguments) != value:
            world.differing.add(tool.name)
        world.done(tool.name, ctx.operation_id, value)
        power.place(f"after {tool.name}")
        return value

    return call


def _sync_call(tool: Tool, power: Power, world: World, again: bool) -> Callable[..., Any]:
    @functools.wraps(tool.fn)
    def call(ctx: Any, **arguments: Any) -> Any:
        given = (ctx,) if tool.takes_ctx else ()
        power.place(f"before {tool.name}")
        world.begun[ctx.operation_id] += 1
        value = tool.fn(*given, **arguments)
        if again and tool.fn(*given, **arguments) != value:
            world.differing.add(tool.name)
        world.done(tool.name, ctx.operation_id, value)
        power.place(f"after {tool.name}")
        return value

    return call


class _Asked:
    """A reconciler on the switch. `forbid` is there only when the tool's own has it: it stands in the pin."""

    def __init__(self, inner: Any, power: Power, tool: str) -> None:
        self._inner, self._power, self._tool = inner, power, tool

    async def find(self, operation_id: str) -> Any:
        self._power.place(f"before asking about {self._tool}")
        found = await self._inner.find(operation_id)
        self._power.place(f"after asking about {self._tool}")
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
