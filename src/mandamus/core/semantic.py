"""What a record *means*, apart from when and where it was written: `semantic_hash(record, values)`. Replay and golden traces compare it.

It is computed when read and never stored: it holds unsalted digests of payloads, and a stored one would leak them.
The rule a newcomer would break: a field is left out only if it stands in a table below, with the reason. The docs print the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from mandamus.core.canonical import canon, digest
from mandamus.core.records import FACTS, Record
from mandamus.errors import ProofError

# -- what is left out ---------------------------------------------------------------------------------------------------------
ENVELOPE: dict[str, str] = {
    "at": "clock",
    "causes": "ids of other events",
    "epoch": "how often the run was taken over",
    "prev": "a hash over everything left out here",
    "run": "id",
    "seq": "position: housekeeping moves it",
    "v": "form, not meaning",
}
LEFT_OUT: dict[str, dict[str, str]] = {
    "RunOpened": {
        "anchor": "position elsewhere", "clock": "clock", "isolation": "wiring", "nonce": "nonce", "origin": "id of the log",
        "parent": "position elsewhere", "register": "position elsewhere", "tier": "wiring",
    },
    "StopRequested": {"clock": "clock", "mail": "position elsewhere"},
    "RunSealed": {"count": "position", "head": "a hash over what is left out", "state": "a hash over what is left out"},
    "TurnStarted": {"clock": "clock"},
    "ModelCalled": {"attempt": "attempt"},
    "ModelReplied": {"attempt": "attempt"},
    "ModelFailed": {"attempt": "attempt", "retry_at": "clock"},
    "ActionProposed": {"repeats": "position"},
    "ActionJudged": {"attempt": "attempt", "authority": "version of an account"},
    "ActionStarted": {
        "attempt": "attempt", "child": "id", "deadline": "duration", "landing": "duration",
        "operation": "id: a hash over salted commitments", "reserves": "movement of accounts",
    },
    "ActionDoubted": {"attempt": "attempt", "retry_at": "clock"},
    "ActionEnded": {"attempt": "attempt", "retry_at": "clock", "spends": "movement of accounts"},
    "ApprovalRequested": {
        "card": "a hash over salted commitments", "digest": "a hash over salted commitments", "expires": "clock", "request": "id",
        "until": "clock",
    },
    "Voted": {"ballot": "a hash over ids", "clock": "clock", "mail": "position elsewhere", "request": "id"},
    "VoteWithdrawn": {"ballot": "a hash over ids", "clock": "clock", "mail": "position elsewhere"},
    "MessageReceived": {"clock": "clock", "mail": "position elsewhere"},
    "MessageRefused": {"mail": "position elsewhere"},
    "LogOpened": {"clock": "clock", "nonce": "nonce", "origin": "id of the log"},
    "RunRefused": {"clock": "clock", "register": "position elsewhere", "run": "id"},
    "PolicyChanged": {"clock": "clock"},
    "KeyChanged": {"clock": "clock"},
    "HoldPlaced": {"clock": "clock", "hold": "id", "run": "id", "subject": "id"},
    "HoldLifted": {"clock": "clock", "hold": "id"},
    "ErasureRequested": {"after": "clock", "clock": "clock", "erasure": "id", "subject": "id"},
    "ErasureBlocked": {"clock": "clock", "erasure": "id", "hold": "id", "run": "id"},
    "Erased": {"clock": "clock", "commits": "salted commitments", "erasure": "id", "subject": "id"},
    "Exported": {"clock": "clock"},
}  # fmt: skip
# Of these only the value is left out: that they are there changes what follows.
PRESENCE: dict[str, tuple[str, ...]] = {
    "ModelFailed": ("retry_at",), "ActionProposed": ("repeats",), "ActionStarted": ("child",), "ActionDoubted": ("retry_at",),
    "ActionEnded": ("retry_at",),
}  # fmt: skip
# Of these only the number counts: they are positions.
COUNTED: dict[str, tuple[str, ...]] = {"ActionStarted": ("votes",), "ApprovalRequested": ("carries",)}
PARTS_LEFT_OUT: dict[str, str] = {
    "ballot": "signatures over ids; what was decided stands in the fact",
    "statement": "signatures over ids",
}
VALUES_LEFT_OUT: dict[str, dict[str, str]] = {
    "card": {"action": "a hash over salted commitments", "expires": "clock", "request": "id"},
    "decision": {"eval_micros": "duration"},
    "fault": {"where": "a line of somebody's code"},
    "facts": {"action.attempt": "attempt", "clock": "clock", "context.tier": "wiring"},
    "manifest": {"*.1": "positions"},
    "reply": {"calls.*.id": "ids of the provider"},
}
MEASURED = ("clock.read", "random.read")  # capabilities whose value is a clock or a random number


def semantic_hash(record: Record[Any], values: Mapping[str, Any]) -> str | None:
    """Hex digest, or None for housekeeping. `values`: part → value, of every part of the body. Raises ProofError when one is missing."""
    if type(record.fact).housekeeping:
        return None
    return digest("semantic", canon(meaning(record, values, digested=True)))


def meaning(record: Record[Any], values: Mapping[str, Any], *, digested: bool = False) -> dict[str, Any]:
    """The record without what is left out, as plain data. `digested`: payloads as their unsalted digests, else as they are."""
    out: dict[str, Any] = {"fact": _fact(record.fact), "turn": record.turn, "type": record.type}
    if record.actor is not UNSET:
        out["actor"] = msgspec.to_builtins(record.actor)
    if record.body is not UNSET:
        out["body"] = [_part(record, part, values, digested) for part in record.body]
    return out


def _fact(fact: Any) -> dict[str, Any]:
    name = type(fact).__name__
    plain: dict[str, Any] = msgspec.to_builtins(fact)
    for field in LEFT_OUT.get(name, ()):
        if plain.pop(field, None) is not None and field in PRESENCE.get(name, ()):
            plain[field] = True
    for field in COUNTED.get(name, ()):
        plain[field] = len(plain[field])
    return plain


def _part(record: Record[Any], part: Any, values: Mapping[str, Any], digested: bool) -> dict[str, Any]:
    out: dict[str, Any] = {"class": part.class_, "media": part.media, "part": part.part}
    if part.subject is not UNSET:
        out["subject"] = True  # that it is about somebody; who, is an id
    if part.part in PARTS_LEFT_OUT or (part.part == "value" and getattr(record.fact, "capability", "") in MEASURED):
        return out
    if part.part not in values:
        raise ProofError(
            f"payload {part.part!r} of event {record.seq} is gone", code="MDM-0611", where=f"run {record.run} (event {record.seq})",
            why="what an event means cannot be compared without its payloads",
        )  # fmt: skip
    value = _without(values[part.part], VALUES_LEFT_OUT.get(part.part, {}))
    out["value"] = digest("semantic", canon(value)) if digested else value
    return out


def _without(value: Any, paths: Mapping[str, str]) -> Any:
    for path in paths:
        value = _drop(value, path.split("."))
    return value


def _drop(value: Any, path: list[str]) -> Any:
    """A copy without what the path names; `*` stands for every item of a list, a number for one position."""
    head, *rest = path
    if head == "*" and isinstance(value, list | tuple):
        return [_drop(item, rest) for item in value]
    if isinstance(value, list | tuple) and head.isdigit():
        return [item for n, item in enumerate(value) if n != int(head)]
    if isinstance(value, dict) and head in value:
        kept = {k: v for k, v in value.items() if k != head}
        return {**kept, head: _drop(value[head], rest)} if rest else kept
    return value


# -- for people ---------------------------------------------------------------------------------------------------------------
def differences(a: Any, b: Any, path: str = "", same: Callable[[Any, Any], bool] = lambda x, y: bool(x == y)) -> list[tuple[str, Any, Any]]:
    """Where two meanings differ: (path, left, right), leaves only, in order. A part's value is named by its part."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [*a, *(k for k in b if k not in a)]
        return [d for k in keys for d in differences(a.get(k), b.get(k), f"{path}.{k}" if path else str(k), same)]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for n, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{path}.{_name(x, n)}", same)]
    return [] if same(a, b) else [(path, a, b)]


def _name(item: Any, n: int) -> str:
    return str(item["part"]) if isinstance(item, dict) and "part" in item else str(n)


def table() -> str:
    """The tables as Markdown, for the reference page on events."""
    rows = ["| event | left out | why |", "|---|---|---|"]
    rows += [f"| every event | `{field}` | {why} |" for field, why in ENVELOPE.items()]
    for name, fact in FACTS.items():
        if fact.housekeeping:
            rows.append(f"| {name} | the whole event | housekeeping |")
        for field, why in LEFT_OUT.get(name, {}).items():
            kept = " (that it is there counts)" if field in PRESENCE.get(name, ()) else ""
            rows.append(f"| {name} | `{field}` | {why}{kept} |")
        rows += [f"| {name} | `{field}` | positions (their number counts) |" for field in COUNTED.get(name, ())]
    rows += [f"| any, payload `{part}` | the value | {why} |" for part, why in PARTS_LEFT_OUT.items()]
    rows += [f"| any, payload `{part}` | `{path}` | {why} |" for part, paths in VALUES_LEFT_OUT.items() for path, why in paths.items()]
    rows.append(f"| CapabilityChecked, payload `value` | the value of {' and '.join(MEASURED)} | clock, random number |")
    return "\n".join(rows) + "\n"
