"""Cedar as text and as schema: quoting, the generated schema, and which facts the policies read.

Pure: nothing here asks Cedar. The rule a newcomer would break: the schema is closed; a context that carries more than the action's
type says is a fault of the facts, so the type and the facts are cut by the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import UNSET

from mandamus.core.argtypes import ArgType, Many, RecordType, Scalar
from mandamus.core.envelope import Contract
from mandamus.core.facts import FactEnvelope

GROUPS = ("invoke", "handoff")
_short = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"', "\0": "\\0"}

Plan = dict[str, Any]  # name -> Plan of a record, or None for a value that is taken as it stands
Reads = set[tuple[tuple[str, ...], bool]]  # path below `context`, and whether its value is read (else only its presence)
_L, _S, _B, _SS = Scalar("Long"), Scalar("String"), Scalar("Boolean"), Many(Scalar("String"))


def quoted(text: str) -> str:
    """A Cedar string literal. Everything that is not printable ASCII is an escape, so ids stay normalised."""
    return '"' + "".join(_short.get(c) or (c if " " <= c <= "~" else f"\\u{{{ord(c):x}}}") for c in text) + '"'


def string_set(values: Iterable[str]) -> str:
    return "[" + ", ".join(quoted(v) for v in values) + "]"


# -- the type of a question ------------------------------------------------------------------------------------------------------
def _record(**fields: ArgType) -> dict[str, Any]:
    return {name: (kind, True) for name, kind in fields.items()}


_USER = _record(principal=_S, roles=_SS)
_FIXED: dict[str, Any] = {
    "action": (_record(attempt=_L, data=_S, effect=_S, kind=_S, pin=_S, repeats=_B, safety=_S, tool=_S), True),
    "clock": (_record(date=_S, hour=_L, minute=_L, tz=_S, weekday=_S), True),
    "context": ({**_record(environment=_S, tier=_S), "user": (_USER, True)}, True),
    "people": (_record(allowed=_SS, approved=_L, met=_SS, roles=_SS), True),
    "principal": (_record(agent=_S, annex_iii=_S, basis=_S, depth=_L, purpose=_S, roles=_SS, tenant=_S), True),
    "run": (_record(calls=_L, denials=_L, tokens=_L, turn=_L), True),
}
AGENT = _record(annex_iii=_S, basis=_S, depth=_L, purpose=_S, tenant=_S)
TOOL = _record(data=_S, effect=_S, kind=_S, name=_S, pin=_S, safety=_S)


def question(contract: Contract | None, limits: Sequence[str]) -> dict[str, Any]:
    """The context of one action: name -> (type or fields, required). None: the bare group, which takes no arguments."""
    fields = dict(_FIXED)
    fields["args"] = (_fields(contract.args) if contract else {}, True)
    fields["sums"] = (dict.fromkeys(limits, (_L, True)), True)
    if contract and contract.amount != "never":
        fields["amount"] = (_record(counterparty=_S, currency=_S, minor=_L), contract.amount == "always")
    return fields


def _fields(record: RecordType) -> dict[str, Any]:
    """A record's visible fields; one that has hidden fields keeps the others."""
    visible = {n: f for n, f in record.fields.items() if f.type is not None}
    return {n: (_fields(f.type) if isinstance(f.type, RecordType) else f.type, f.required) for n, f in visible.items()}


def cut(fields: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Only what the plan reads."""
    out: dict[str, Any] = {}
    for name, inner in plan.items():
        if name in fields:
            kind, required = fields[name]
            out[name] = (kind if inner is None else cut(kind, inner), required)
    return out


def as_plan(fields: dict[str, Any]) -> Plan:
    """The plan that reads every visible field."""
    return {name: as_plan(kind) if isinstance(kind, dict) else None for name, (kind, _) in fields.items()}


# -- the schema ------------------------------------------------------------------------------------------------------------------
def schema_of(tools: dict[str, Contract], contexts: dict[str, dict[str, Any]], bare: dict[str, Any]) -> dict[str, Any]:
    """Cedar's JSON schema. A group without a member takes requests itself, so that a policy about it still has a type."""
    filled = {c.kind for c in tools.values()}
    actions: dict[str, Any] = {g: ({} if g in filled else _action(None, bare)) for g in GROUPS}
    actions |= {name: _action(c.kind, contexts[name]) for name, c in tools.items()}
    entities = {
        "Agent": {"memberOfTypes": ["Role"], "shape": _type(AGENT)},
        "Role": {},
        "Tool": {"shape": _type(TOOL)},
    }
    return {"": {"actions": actions, "entityTypes": entities}}


def _action(group: str | None, context: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"appliesTo": {"context": _type(context), "principalTypes": ["Agent"], "resourceTypes": ["Tool"]}}
    return out | ({"memberOf": [{"id": group}]} if group else {})


def _type(kind: Any) -> dict[str, Any]:
    if isinstance(kind, Scalar):
        return {"type": kind.of}
    if isinstance(kind, Many):
        return {"element": _type(kind.of), "type": "Set"}
    fields = _fields(kind) if isinstance(kind, RecordType) else kind
    attributes = {name: {**_type(inner), "required": required} for name, (inner, required) in fields.items()}
    return {"additionalAttributes": False, "attributes": attributes, "type": "Record"}


# -- what the policies read ------------------------------------------------------------------------------------------------------
def read_by(body: Any, reads: Reads) -> None:
    """Add to `reads` every path of `context` that a condition in Cedar's JSON form reads."""
    if isinstance(body, list):
        for inner in body:
            read_by(inner, reads)
    elif isinstance(body, dict):
        path = _context_path(body)
        if path is not None:
            reads.add((path, "has" not in body))
            return
        for inner in body.values():
            read_by(inner, reads)


def _context_path(body: dict[str, Any]) -> tuple[str, ...] | None:
    """("amount", "minor") for `context.amount.minor` and for `context.amount has minor`; () for `context` itself."""
    if body == {"Var": "context"}:
        return ()
    for word in (".", "has"):
        if len(body) == 1 and isinstance(inner := body.get(word), dict) and isinstance(attribute := inner.get("attr"), str):
            left = _context_path(inner["left"])
            return None if left is None else (*left, attribute)
    return None


def plan_of(reads: Reads, whole: Plan) -> Plan:
    """The paths that were read, as a plan: a value is taken with all below it, a test for presence takes no more than the name."""
    if ((), True) in reads:
        return whole
    plan: Plan = {}
    for path, value in sorted(reads):
        _reach(plan, whole, path, value)
    return plan


def _reach(plan: Plan, whole: Plan, path: tuple[str, ...], value: bool) -> None:
    name, rest = path[0], path[1:]
    if name not in whole:
        return
    below = whole[name]
    if below is None or (value and not rest):
        plan[name] = below
    elif rest:
        _reach(plan.setdefault(name, {}), below, rest, value)
    else:
        plan.setdefault(name, {})


def picked(facts: FactEnvelope, plan: Plan) -> dict[str, Any]:
    """The facts that the plan reads, ready for JSON."""
    out: dict[str, Any] = {}
    for name, inner in plan.items():
        value = getattr(facts, name)
        if value is not UNSET:
            out[name] = value if inner is None else _picked(value, inner)
    return out


def _picked(value: Any, plan: Plan) -> dict[str, Any]:
    if type(value) is dict:
        return {n: value[n] if inner is None else _picked(value[n], inner) for n, inner in plan.items() if n in value}
    return {n: getattr(value, n) if inner is None else _picked(getattr(value, n), inner) for n, inner in plan.items()}
