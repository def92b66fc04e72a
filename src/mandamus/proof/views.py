"""Three views for people and for other tools, made of records and payloads: agent_run.json, decision.json, tool_trace.json.

The rule a newcomer would break: a view is never evidence. It is made anew from the chain whenever somebody wants to rely on it, so it is
a pure function, and its bytes are canonical.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from mandamus.core.canonical import canon
from mandamus.core.records import (
    ActionEnded,
    ActionJudged,
    ActionProposed,
    ActionStarted,
    AnyRecord,
    ModelCalled,
    ModelReplied,
    RunEnded,
    RunOpened,
    Voted,
)

Values = Mapping[tuple[str, int, str], Any]


def render(records: Sequence[AnyRecord], values: Values) -> dict[str, bytes]:
    """File name -> bytes. `values`: payloads by (run, seq, part); one that is not shown appears by its commitment."""
    made = {
        "agent_run.json": agent_run(records, values),
        "decision.json": decisions(records, values),
        "tool_trace.json": tool_trace(records, values),
    }
    return {name: canon(value) + b"\n" for name, value in made.items()}


def agent_run(records: Sequence[AnyRecord], values: Values) -> dict[str, Any]:
    """The session: who ran what, under which policy, how it ended, what it used."""
    opened: Any = records[0].fact
    assert isinstance(opened, RunOpened)
    ended = next((r.fact for r in records if isinstance(r.fact, RunEnded)), None)
    replies = [r.fact for r in records if isinstance(r.fact, ModelReplied)]
    return {
        "agent": opened.agent,
        "claimed_begin": records[0].at,
        "claimed_end": records[-1].at,
        "definition": opened.definition,
        "events": len(records),
        "input": _part(records[0], "input", values),
        "manifest": opened.manifest,
        "model_calls": sum(isinstance(r.fact, ModelCalled) for r in records),
        "models": sorted({reply.model for reply in replies}),
        "origin": opened.origin,
        "output": next((_part(r, "output", values) for r in records if isinstance(r.fact, RunEnded)), None),
        "policy": opened.policy,
        "run": records[0].run,
        "state": ended.state if ended else "open",
        "tenant": opened.tenant,
        "tier": opened.tier,
        "tokens": {"input": sum(reply.usage.input for reply in replies), "output": sum(reply.usage.output for reply in replies)},
        "turns": max(record.turn for record in records),
        "view": "mandamus.agent_run/1",
    }


def decisions(records: Sequence[AnyRecord], values: Values) -> dict[str, Any]:
    """Every judgement: engine, policy, what was asked, what decided."""
    out = []
    for record in records:
        fact = record.fact
        if isinstance(fact, ActionJudged):
            plain = msgspec.to_builtins(fact)
            out.append(
                {
                    "action": fact.action,
                    "attempt": fact.attempt,
                    "decision": _part(record, "decision", values),
                    "engine": fact.engine,
                    "event": record.seq,
                    "facts": _commit(record, "facts"),
                    "policy": fact.bundle,
                    "result": fact.verdict,
                    "rule_trace": {"determining": plain["determining"], "layers": plain["layers"]},
                    "asks": plain.get("asks", []),
                    "code": plain.get("code"),
                }
            )
    return {"decisions": out, "run": records[0].run, "view": "mandamus.decision/1"}


def tool_trace(records: Sequence[AnyRecord], values: Values) -> dict[str, Any]:
    """Every proposed action: input, attempts, votes, outcome."""
    actions: dict[str, dict[str, Any]] = {}
    for record in records:
        fact: Any = record.fact
        if isinstance(fact, ActionProposed):
            actions[fact.action] = _proposal(record, fact, values)
        elif isinstance(fact, ActionStarted):
            attempt = {"attempt": fact.attempt, "event": record.seq, "operation": fact.operation, "votes": list(fact.votes)}
            actions[fact.action]["attempts"].append(attempt)
        elif isinstance(fact, Voted) and fact.action is not UNSET:
            vote = {"decision": fact.decision, "event": record.seq, "principal": fact.principal}
            actions[fact.action]["votes"].append(vote)
        elif isinstance(fact, ActionEnded):
            outcome = {"event": record.seq, "output": _part(record, "output", values), "result": fact.result, "via": fact.via}
            actions[fact.action]["outcomes"].append(outcome)
    return {"actions": list(actions.values()), "run": records[0].run, "view": "mandamus.tool_trace/1"}


def _proposal(record: AnyRecord, fact: ActionProposed, values: Values) -> dict[str, Any]:
    return {
        "action": fact.action, "attempts": [], "effect": fact.effect, "event": record.seq, "input": _part(record, "args", values),
        "outcomes": [], "pin": None if fact.pin is UNSET else fact.pin, "safety": fact.safety, "tool": fact.tool, "votes": [],
    }  # fmt: skip


def _part(record: AnyRecord, part: str, values: Values) -> Any:
    """The value where it is shown, its commitment where it is not, null where there is none."""
    key = (record.run, record.seq, part)
    if key in values:
        return values[key]
    commitment = _commit(record, part)
    return None if commitment is None else {"commit": commitment}


def _commit(record: AnyRecord, part: str) -> str | None:
    return next((p.commit for p in record.body or () if p.part == part), None)
