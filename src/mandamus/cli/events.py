"""One event as one line, or one object: what `show --events` and `--follow` print, under our names or the specification's.

The rule a newcomer would break: a record holds no text of anybody, so a line of facts is safe to print; payloads are not, and pass
`shown`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from mandamus.core import records as r
from mandamus.core.money import Money
from mandamus.core.records import AnyRecord

SPECIFIED = {
    "RunOpened": "run_started",
    "TurnStarted": "turn_started",
    "ContextCompiled": "context_compiled",
    "ActionProposed": "tool_proposed",
    "ActionJudged": "policy_decision",
    "ApprovalRequested": "approval_requested",
    "ActionEnded": "tool_executed",
    "MemoryWritten": "memory_written",
    "SnapshotTaken": "checkpoint_saved",
    "CapabilityChecked": "capability_check_result",
}
_QUIET = (
    "clock",
    "mail",
    "nonce",
    "signature",
    "policy",
    "definition",
    "manifest",
    "origin",
    "register",
    "anchor",
    "budget",
    "layers",
    "bundle",
    "pin",
    "call",
)


def name_of(record: AnyRecord, spec: bool = False) -> str:
    """Our type, or the specification's word for it where it has one."""
    if not spec:
        return record.type
    if isinstance(record.fact, r.RunEnded) and record.fact.state == "failed":
        return "run_failed"
    return SPECIFIED.get(record.type, record.type)


def event_object(record: AnyRecord, *, spec: bool = False, hash: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {
        "at": record.at,
        "fact": msgspec.to_builtins(record.fact),
        "seq": record.seq,
        "turn": record.turn,
        "type": name_of(record, spec),
    }
    if hash:
        out["hash"] = hash
    return out


def event_line(record: AnyRecord, *, spec: bool = False) -> str:
    return f"{record.seq:>4}  {name_of(record, spec):<18} {summary(record.fact)}".rstrip()


def summary(fact: r.Fact) -> str:
    """What a person wants to know of a fact, in a few words."""
    match fact:
        case r.RunOpened():
            return f"{fact.agent}, tier {fact.tier}, {fact.isolation}"
        case r.RunOwned():
            return f"taken over by {fact.worker}"
        case r.ActionProposed():
            return f"{fact.action} {fact.tool} ({fact.safety}, {fact.effect}) by {fact.by}"
        case r.ActionJudged():
            code = f" {fact.code}" if fact.code else ""
            return f"{fact.action} {fact.verdict.upper()}{code}" + (f"  {', '.join(fact.determining)}" if fact.determining else "")
        case r.ActionStarted():
            votes = f", votes of events {', '.join(map(str, fact.votes))}" if fact.votes else ""
            return f"{fact.action} attempt {fact.attempt}, operation {fact.operation[:12]}{votes}"
        case r.ActionEnded():
            return f"{fact.action} {fact.result} ({fact.via})" + (f" {fact.code}" if fact.code else "")
        case r.ActionDoubted():
            return f"{fact.action} in doubt: {fact.cause}"
        case r.ApprovalRequested():
            return f"{fact.action} asks chain {fact.chain}: {fact.quorum} vote{'s' if fact.quorum != 1 else ''}, {fact.about}"
        case r.Voted():
            return f"{fact.action or 'standing'} {fact.decision} by {fact.principal}"
        case r.ModelPriced(price=p):
            read, write = (Money(str(x), p.currency, 6) for x in (p.input, p.output))
            return f"{read} in, {write} out, for a million tokens"
        case r.ModelReplied():
            return f"{fact.model}: {fact.calls} call{'s' if fact.calls != 1 else ''}, {fact.usage.total} tokens"
        case _:
            return _rest(fact)


def _rest(fact: r.Fact) -> str:
    """Every other type by its own fields, without the bookkeeping."""
    pairs = ((f, getattr(fact, f)) for f in fact.__struct_fields__ if f not in _QUIET)
    return " ".join(f"{name}={value}" for name, value in pairs if value is not UNSET and isinstance(value, str | int) and value != "")
