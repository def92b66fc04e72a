"""Handoff: a child run with a chain of its own, an attenuated grant and a carved budget.

Its id comes from the operation id and stands in the parent's intent: after a crash, opening it again adopts it. What it answers is
read from its own sealed chain, never believed from a message. What it may use was reserved by that intent (core/handed.py), and what it
used is spent with its answer. The rule a newcomer would break: a run that lies under that id is ours only if its genesis says what we
would have said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.accounts import narrowed
from mandamus.core.handed import UNITS, carved, spends
from mandamus.core.run import ENDED, Action, Run
from mandamus.errors import Conflict
from mandamus.runtime import guard, recover
from mandamus.runtime.env import Bound
from mandamus.runtime.session import Session
from mandamus.tool import Tool

if TYPE_CHECKING:
    from mandamus.runtime.batch import Batch

DEPTH_MAX = 4
DRIVEN, AGAIN_US = "MDM-0403", 5_000_000


async def perform(s: Session, action: Action, tool: Tool, args: dict[str, Any], effect: e.Execute) -> e.Input:
    bound = s.bound.children[tool.spec.agent]
    if s.run.genesis.depth + 1 > DEPTH_MAX:
        return e.Outcome(action=action.id, attempt=action.attempt, kind="failed", code="too_deep", via="child")
    try:
        child = await _open(s, bound, action, args["task"])
    except Conflict as busy:
        if busy.diagnosis.code != DRIVEN:
            raise
        s.parked[effect] = s.env.time.now() + AGAIN_US  # a worker carries it as a run of its own; when it has ended, it wakes this one
        return e.Nothing()
    if child is None:
        return e.Outcome(action=action.id, attempt=action.attempt, kind="failed", code="foreign_child", via="child")
    try:
        assert s.carry is not None
        child.carry = s.carry
        await s.carry(child)
        return await _result(s, child, action, effect)
    finally:
        await recover.give_back(child)


async def _open(s: Session, bound: Bound, action: Action, task: str) -> Session | None:
    """The child run, new or adopted. None: a run that is not this child lies under its id."""
    g = s.run.genesis
    parent = r.Parent(hash=s.run.head, kind="handoff", run=s.run.id, seq=s.run.seq)
    grant = r.Grant(tools=tuple(t.name for t in bound.spec.tools if _may(s.run, t.name)))
    budget = carved(bound.spec.budget, s.run, action, s.clock().now)
    within = replace(bound, spec=msgspec.structs.replace(bound.spec, budget=budget))
    user = None if g.user is UNSET else g.user
    try:
        return await recover.open_run(
            s.env, within, task, run_id=action.child, user=user, depth=g.depth + 1, grant=grant, parent=parent, **_place(s)
        )
    except Conflict:
        head = await s.env.ledger.head(action.child)
        if head is None:
            raise
        child = await recover.read_run(s.env, bound, action.child)
        if not _ours(s.run, action, child.run.genesis, bound, grant) or await child.value(0, "input") != task:
            return None
    return await recover.take_over(s.env, bound, action.child)


def _place(s: Session) -> dict[str, Any]:
    """A child stands in the pool of its parent: whoever serves the one can serve the other."""
    return {"pool": s.head.pool, "prio": s.head.prio} if s.head is not None else {}


def _ours(run: Run, action: Action, genesis: r.RunOpened, bound: Bound, grant: r.Grant) -> bool:
    """Whether this genesis names this run as its parent, the same agent and user, no more than it may have and what it was reserved."""
    parent, mine = genesis.parent, run.genesis
    named = parent is not UNSET and parent.kind == "handoff" and parent.run == run.id and parent.seq <= run.seq
    same = (genesis.agent, genesis.user, genesis.tenant, genesis.origin) == (bound.spec.name, mine.user, mine.tenant, mine.origin)
    granted = genesis.grant is not UNSET and set(genesis.grant.tools) <= set(grant.tools)
    given = carved(genesis.budget, run, action, genesis.clock.now)
    within = all(getattr(genesis.budget, unit) == getattr(given, unit) for unit in UNITS)
    return named and same and granted and within and genesis.depth == mine.depth + 1


def _may(run: Run, tool: str) -> bool:
    grant = run.genesis.grant
    return grant is UNSET or tool in grant.tools


def child_id(operation: str) -> str:
    """The child's run id comes from the operation id, so that opening it again adopts it."""
    return operation[:26].upper()


# -- what stops a child --------------------------------------------------------------------------------------------------------
async def stopped(b: Batch) -> bool:
    """Whether a run above this one was halted or stopped. The versions that say so are checked again with the intent."""
    above, run = b.run.genesis.parent, b.run.id
    while above is not UNSET and above.kind == "handoff" and above.run != run:
        version = (await b.balance(narrowed(above.run))).version
        if version and _over((await recover.read_run(b.s.env, b.s.bound, above.run)).run):
            return True
        run = above.run
        above = await _parent(b.s, run)
    return False


def _over(run: Run) -> bool:
    return run.life == "halted" or run.life in ENDED or run.stage == "stopping"


async def _parent(s: Session, run: str) -> Any:
    async for raw in s.env.ledger.read(run, upto=0):
        return r.decode(raw).fact.parent  # type: ignore[attr-defined]
    return UNSET


async def _result(s: Session, child: Session, action: Action, effect: e.Execute) -> e.Input:
    run, done = child.run, child.run.end == "completed"
    if run.life != "sealed":
        s.parked[effect] = child.head.wake_at if child.head is not None else None  # it waits, and so does this action
        return e.Nothing()
    ended: dict[str, Any] = {"action": action.id, "attempt": action.attempt, "via": "child"}
    ended["spends"] = spends(action, s.run.id, run, done)
    if not done:
        return e.Outcome(kind="failed", code=f"child_{run.end}", **ended)
    reply = await child.value(run.answer, "reply")
    checks = await guard.tool_result(s, action.tool, reply["text"])  # to the parent it is a tool's result like any other
    return e.Outcome(kind="done", value=reply["text"], output="valid", checks=checks, **ended)
