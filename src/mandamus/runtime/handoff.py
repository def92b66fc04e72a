"""Handoff: a child run with a chain of its own, an attenuated grant and a carved budget (ARCHITECTURE, section 4).

Its id comes from the operation id and stands in the parent's intent: after a crash, opening it again adopts it. What it answers is
read from its own sealed chain, never believed from a message.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.run import Action, Run
from mandamus.errors import Conflict
from mandamus.runtime import recover
from mandamus.runtime.session import Session
from mandamus.tool import Tool

DEPTH_MAX = 4


async def perform(s: Session, action: Action, tool: Tool, args: dict[str, Any], effect: e.Execute) -> e.Input:
    bound = s.bound.children[tool.spec.agent]
    if s.run.genesis.depth + 1 > DEPTH_MAX:
        return e.Outcome(action=action.id, attempt=action.attempt, kind="failed", code="too_deep", via="child")
    parent = r.Parent(hash=s.run.head, kind="handoff", run=s.run.id, seq=s.run.seq)
    grant = r.Grant(tools=tuple(t.name for t in bound.spec.tools if _may(s.run, t.name)))
    try:
        child = await recover.open_run(
            s.env, bound, args["task"], run_id=action.child, depth=s.run.genesis.depth + 1, grant=grant, parent=parent
        )
    except Conflict:
        child = await recover.take_over(s.env, bound, action.child)
    try:
        assert s.carry is not None
        child.carry = s.carry
        await s.carry(child)
        return await _result(s, child, action, effect)
    finally:
        await recover.give_back(child)


def _may(run: Run, tool: str) -> bool:
    grant = run.genesis.grant
    return grant is UNSET or tool in grant.tools


async def _result(s: Session, child: Session, action: Action, effect: e.Execute) -> e.Input:
    run = child.run
    if run.life == "sealed" and run.end == "completed":
        reply = await child.value(run.answer, "reply")
        return e.Outcome(action=action.id, attempt=action.attempt, kind="done", via="child", value=reply["text"], output="valid")
    if run.life == "sealed":
        return e.Outcome(action=action.id, attempt=action.attempt, kind="failed", code=f"child_{run.end}", via="child")
    s.parked.add(effect)  # the child waits, and so does this action, until the next owner looks
    return e.Nothing()
