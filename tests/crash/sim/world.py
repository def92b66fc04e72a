"""The world of a simulation: it does what reaches it, when it reaches it, and forgives nothing. And the agents that act on it.

    bound = await bound_of("full", leases=True)       # built once a process; the tools find their worker by `WORKER`

A request, once sent, is under way by itself: it arrives late, also when its sender is dead. The rule a newcomer would break: nothing
is checked at the end that can be checked at the moment of the effect.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from contextvars import ContextVar
from typing import Any

from mandamus import Absent, Agent, Ctx, Found, Money, Receipt, Retry, tool, wiring
from mandamus.core import records as r
from mandamus.core.messages import ModelFault
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.runtime.env import Bound
from tests.crash.stand import OWN, PLAIN

WORKER: ContextVar[Any] = ContextVar("worker")  # the process that the present task belongs to
LIMIT = 15_000  # minor units a day, for all runs together
TIMEOUT_S = 20  # of a tool, and so the time that a request may be under way


class World:
    """`sent` and `done` by operation id; `forbidden` are the ids that the other side was told to refuse."""

    def __init__(self, sim: Any) -> None:
        self.sim = sim
        self.sent: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.forbidden: set[str] = set()
        self.runs: dict[str, str] = {}  # operation id -> run
        self.under_way: set[asyncio.Task[None]] = set()

    def send(self, ctx: Ctx, name: str, effect: str, late: bool) -> asyncio.Task[None]:
        """The request leaves the process here; what may not leave is found here, and not later."""
        operation, find = ctx.operation_id, self.sim.findings.append
        facts = [r.decode(raw).fact for raw in self.sim.store.durable(ctx.run_id)]
        self.runs[operation] = ctx.run_id
        self.sent[operation] += 1
        if name == "ban":
            find("I13 a denied tool ran")
        if self.sent[operation] > sum(1 for f in facts if isinstance(f, r.ActionStarted) and f.operation == operation):
            find("I7 an effect without a durable intent of its own")
        approved = {f.principal for f in facts if isinstance(f, r.Voted) and f.decision == "approve" and f.about == "start"}
        if name == "wire" and len(approved) < 2:
            find("I13 approval was bypassed")
        if name == "wire" and not _witnessed(facts, operation):
            find("I13 evidence was bypassed")
        delay = self.sim.random.uniform(0.5, 0.9) * TIMEOUT_S if late else self.sim.random.uniform(0.001, 0.02)
        task = asyncio.get_running_loop().create_task(self._arrive(operation, ctx.run_id, effect, delay))
        self.under_way.add(task)
        task.add_done_callback(self._arrived)
        return task

    def _arrived(self, task: asyncio.Task[None]) -> None:
        """Whoever sent it may be gone: then nobody hears what came of it."""
        self.under_way.discard(task)
        if not task.cancelled():
            task.exception()

    async def _arrive(self, operation: str, run: str, effect: str, delay: float) -> None:
        await asyncio.sleep(delay)
        if operation in self.forbidden:
            raise ConnectionError("the other side refuses this id")
        if effect == "keyed" and self.done[operation]:
            return  # the other side keeps the key
        self.done[operation] += 1
        facts = [r.decode(raw).fact for raw in self.sim.store.data.records.get(run, ())]
        settled = sum(1 for f in facts if isinstance(f, r.Voted) and f.decision == "again")
        if self.done[operation] > 1 + (0 if effect == "keyed" else settled):
            self.sim.findings.append(f"I6 {effect}: done twice")


def _witnessed(facts: list[Any], operation: str) -> bool:
    """Whether the proposal of this operation had reached its level before it was allowed."""
    action = next((f.action for f in facts if isinstance(f, r.ActionStarted) and f.operation == operation), "")
    seq = next((n for n, f in enumerate(facts) if isinstance(f, r.ActionProposed) and f.action == action), len(facts))
    started = next((n for n, f in enumerate(facts) if isinstance(f, r.ActionStarted) and f.action == action), 0)
    return any(isinstance(f, r.EvidenceReached) and f.level == "witnessed" and f.seq >= seq for f in facts[:started])


# -- the agents ------------------------------------------------------------------------------------------------------------------
async def _act(ctx: Ctx, name: str, effect: str) -> Receipt:
    worker = WORKER.get()
    try:
        fault, over = await worker.at(f"send {name}", "send"), None
    except asyncio.CancelledError as cancelled:  # waking up, a process hears in any order that it may write and that it is too late
        if worker.sim.random.random() < 0.5:
            raise
        fault, over = "", cancelled
    reply = worker.sim.world.send(ctx, name, effect, fault == "late")
    if over is not None:
        raise over
    await asyncio.shield(reply)
    if await worker.at(f"reply {name}", "reply") == "unavailable":
        raise ConnectionError("the reply was lost")
    return Receipt(id=ctx.operation_id[:8])


class Desk:
    """The other side's list. What is under way is not in it yet."""

    async def find(self, operation_id: str) -> Found | Absent:
        worker = WORKER.get()
        if await worker.at("find", "reply") == "unavailable":
            raise ConnectionError("the other side does not answer")
        done = worker.sim.world.done[operation_id]
        await worker.at("found", "tool")
        return Found({"id": operation_id[:8], "status": "accepted"}) if done else Absent("not in the list")


class Forbidding(Desk):
    """It can be told to refuse an id from now on."""

    async def forbid(self, operation_id: str) -> None:
        worker = WORKER.get()
        if await worker.at("forbid", "reply") == "unavailable":
            raise ConnectionError("the other side does not answer")
        if not worker.sim.world.done[operation_id]:
            worker.sim.world.forbidden.add(operation_id)


_RETRY = Retry(4, backoff_ms=100)


@tool(safety="financial", effect="keyed", data=OWN, retry=_RETRY, timeout=TIMEOUT_S)
async def pay(ctx: Ctx, to: str, amount: Money) -> Receipt:
    """Pay somebody."""
    return await _act(ctx, "pay", "keyed")


@tool(safety="financial", effect="irreversible", data=OWN, timeout=TIMEOUT_S)
async def wire(ctx: Ctx, to: str, amount: Money) -> Receipt:
    """Pay a large sum by wire."""
    return await _act(ctx, "wire", "irreversible")


@tool(safety="write", effect="irreversible", data=PLAIN)
async def ban(ctx: Ctx, who: str) -> Receipt:
    """Never allowed here."""
    return await _act(ctx, "ban", "irreversible")


def _ticket(name: str, reconcile: Any) -> Any:
    @tool(name=name, safety="write", effect="reconcilable", data=PLAIN, reconcile=reconcile, retry=_RETRY, timeout=TIMEOUT_S)
    async def ticket(ctx: Ctx, about: str) -> Receipt:
        """Open a ticket."""
        return await _act(ctx, "ticket", "reconcilable")

    return ticket


_TICKET, _FIRM = _ticket("ticket", Desk()), _ticket("ticket", Forbidding())
_MONEY = {"amount": "6000", "currency": "USD"}
_POLICIES = (
    {"id": "money", "permit": {"safety": "financial"}},
    {"id": "write", "permit": {"safety": "write"}},
    {"id": "no.ban", "toolDenylist": {"tools": ["ban"]}},
    {"id": "two", "needsApproval": {"quorum": 2, "tools": ["wire"]}},
    {"id": "seen", "needsEvidence": {"tools": ["wire"]}},
    {"id": "daily", "maxDailyLimit": {"limit": f"{LIMIT // 100}.00 USD"}},
)
_SCRIPTS: dict[str, list[Any]] = {
    "full": [
        Step(calls=(("pay", {"to": "A", "amount": _MONEY}), ("ticket", {"about": "A"}))),
        Step(calls=(("ban", {"who": "B"}), ("wire", {"to": "C", "amount": {"amount": "3000", "currency": "USD"}}))),
        "done",
    ],
    "small": [Step(calls=(("pay", {"to": "A", "amount": _MONEY}), ("ticket", {"about": "A"}))), "done"],
}


class _Model:
    """The scripted model, at places of whoever asks it."""

    def __init__(self, inner: ScriptedModel) -> None:
        self._inner = inner

    async def generate(self, *asked: Any) -> Any:
        worker = WORKER.get()
        if await worker.at("ask the model", "reply") == "unavailable":
            raise ModelFault("server", "the model does not answer")
        answer = await self._inner.generate(*asked)
        await worker.at("answer of the model", "tool")
        return answer

    async def close(self) -> None: ...


_BOUND: dict[tuple[str, str], Bound] = {}


async def bound_of(script: str, reconciler: str) -> Bound:
    """`reconciler`: "firm" (can be told to refuse an id) or "list" (only says what has arrived)."""
    key = script, reconciler
    if key not in _BOUND:
        model = ScriptedModel(_SCRIPTS[script])
        tools = [pay, wire, _FIRM if reconciler == "firm" else _TICKET, ban]
        agent = Agent(name="sim-bot", purpose="simulate", model=model, tools=tools, policies=_POLICIES)
        _BOUND[key] = dataclasses.replace(await wiring.bind(agent), model=_Model(model))
    return _BOUND[key]
