"""Handoff: a child run with a chain of its own, an attenuated grant and a carved budget (ARCHITECTURE, section 4).

Its id comes from the operation id and stands in the parent's intent: after a crash, opening it again adopts it. What it answers is
read from its own sealed chain, never believed from a message. The rule a newcomer would break: a run that lies under that id is ours
only if its genesis says what we would have said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.accounts import narrowed
from mandamus.core.digests import operation_id
from mandamus.core.run import ENDED, Action, Run
from mandamus.errors import Conflict
from mandamus.runtime import recover
from mandamus.runtime.env import Bound
from mandamus.runtime.session import Session
from mandamus.tool import Tool

if TYPE_CHECKING:
    from mandamus.runtime.batch import Batch

DEPTH_MAX = 4


async def perform(s: Session, action: Action, tool: Tool, args: dict[str, Any], effect: e.Execute) -> e.Input:
    bound = s.bound.children[tool.spec.agent]
    if s.run.genesis.depth + 1 > DEPTH_MAX:
        return e.Outcome(action=action.id, attempt=action.attempt, kind="failed", code="too_deep", via="child")
    child = await _open(s, bound, action, args["task"])
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
    carved = await _carved(s, bound)
    user = None if g.user is UNSET else g.user
    try:
        return await recover.open_run(s.env, carved, task, run_id=action.child, user=user, depth=g.depth + 1, grant=grant, parent=parent)
    except Conflict:
        head = await s.env.ledger.head(action.child)
        if head is None:
            raise
        child = await recover.read_run(s.env, bound, action.child)
        if not _ours(s.run, child.run.genesis, bound, grant) or await child.value(0, "input") != task:
            return None
    return await recover.take_over(s.env, bound, action.child)


def _ours(run: Run, genesis: r.RunOpened, bound: Bound, grant: r.Grant) -> bool:
    """Whether this genesis names this run as its parent, the same agent and user, and no more than it may have."""
    parent, mine = genesis.parent, run.genesis
    named = parent is not UNSET and parent.kind == "handoff" and parent.run == run.id and parent.seq <= run.seq
    same = (genesis.agent, genesis.user, genesis.tenant, genesis.origin) == (bound.spec.name, mine.user, mine.tenant, mine.origin)
    granted = genesis.grant is not UNSET and set(genesis.grant.tools) <= set(grant.tools)
    return named and same and granted and genesis.depth == mine.depth + 1


def _may(run: Run, tool: str) -> bool:
    grant = run.genesis.grant
    return grant is UNSET or tool in grant.tools


# -- what a child may use ------------------------------------------------------------------------------------------------------
async def _carved(s: Session, bound: Bound) -> Bound:
    """The agent with what is left of its parent's budget, where that is less than its own."""
    used = await _used(s)
    left, own = s.run.genesis.budget, bound.spec.budget
    gone = (s.clock().now - s.run.genesis.clock.now) // 1000
    budget = msgspec.structs.replace(
        own,
        calls=_less(own.calls, left.calls, used["calls"]),
        tokens=_less(own.tokens, left.tokens, used["tokens"]),
        wall_ms=_less(own.wall_ms, left.wall_ms, gone),
        turns=min(own.turns, max(1, left.turns - s.run.turn)),
        retries=min(own.retries, max(0, left.retries - s.run.spent.retries)),
        denials=min(own.denials, left.denials),
    )
    return replace(bound, spec=msgspec.structs.replace(bound.spec, budget=budget))


def _less(own: Any, limit: Any, used: int) -> Any:
    """The smaller of the child's own limit and what is left of its parent's; UNSET is no limit."""
    if limit is UNSET:
        return own
    left = max(0, limit - used)
    return left if own is UNSET else min(own, left)


async def _used(s: Session) -> dict[str, int]:
    """What a run has used, with all the runs below it that it handed tasks to."""
    spent = s.run.spent
    out = {"calls": spent.calls, "tokens": spent.input + spent.output + s.run.reserved}
    handed = [(x.tool, id, x.seq) for id, x in s.past.items()] + [(a.tool, a.id, a.seq) for a in s.run.actions.values()]
    for name, id, seq in handed:
        tool = s.bound.tools.get(name)
        if tool is None or tool.spec.kind != "handoff" or (seq, "args") not in s.commits:
            continue
        run = child_id(operation_id(args=s.commits[seq, "args"], call=id, run=s.run.id, tool=name))
        if await s.env.ledger.head(run) is not None:
            below = await _used(await recover.read_run(s.env, s.bound.children[tool.spec.agent], run))
            out = {k: out[k] + below[k] for k in out}
    return out


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
    run = child.run
    if run.life == "sealed" and run.end == "completed":
        reply = await child.value(run.answer, "reply")
        return e.Outcome(action=action.id, attempt=action.attempt, kind="done", via="child", value=reply["text"], output="valid")
    if run.life == "sealed":
        return e.Outcome(action=action.id, attempt=action.attempt, kind="failed", code=f"child_{run.end}", via="child")
    s.parked.add(effect)  # the child waits, and so does this action, until the next owner looks
    return e.Nothing()
