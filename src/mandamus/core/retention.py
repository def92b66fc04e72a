"""How long what a run wrote is kept, and under which key: `plan_of(specs)`, `key_name(...)`, `until(...)`. Pure.

A run whose agent touches data that somebody may ask to forget has a plan; without one, nothing of it is sealed on a file. Every payload of
such a run is sealed under a key of its own kind and month:

    a part that names a data subject     subject/PSEUDONYM   its data class      content days of that class
    ballots, decisions, statements       run/ID              decision            decision days, never under the floor of the profile
    everything else                      run/ID              content             the shortest content days of the agent's tools

The rule a newcomer would break: what a model says about a person is derived from that person's data. It has the shortest life of all that
it may quote, and is forgotten with each person that the run touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mandamus.core.clock import first_day
from mandamus.core.data import BUILTIN_RETENTIONS, Business, name_of
from mandamus.core.definition import AgentSpec, ToolSpec

FLOORS: dict[str, int] = {"none": 0, "gdpr": 0, "ai_act": 183}  # days; AI Act 19 and 26(6): at least six months
DECISIONS = frozenset(("ballot", "decision", "statement"))
SENSITIVE = frozenset(("personal", "special_category", "confidential"))
DAY_US = 86_400_000_000


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """Days, 0 = no clock. `classes`: by data class, of what names a subject; `floor`: what the profile demands of decisions."""

    classes: dict[str, int] = {}
    content: int = 0
    decision: int = 0
    floor: int = 0


class KeyName(Struct, frozen=True):
    """One data key: whose (`run/ID`, `subject/PSEUDONYM`), of which kind, of which month ("2026-11"). Left blank: all of them."""

    owner: str
    kind: str = ""
    period: str = ""


class Part(Struct, frozen=True, gc=False, rename={"class_": "class"}):
    class_: str
    commit: str
    part: str
    subject: str | UnsetType = UNSET


class Header(Struct, frozen=True, gc=False):
    """What of a record says how its payloads are sealed. The whole of it is decoded by whoever believes a record."""

    at: str
    seq: int
    body: tuple[Part, ...] = ()

    def part(self, name: str) -> Part | None:
        for one in self.body:
            if one.part == name:
                return one
        return None


header = msgspec.json.Decoder(Header).decode


def sensitive(spec: AgentSpec) -> bool:
    """Whether somebody may ask to forget what this agent handles."""
    return any(name_of(tool.data) in SENSITIVE or _named(tool) for tool in spec.tools)


def _named(tool: ToolSpec) -> bool:
    return isinstance(tool.data, Business) and hasattr(tool.data.subject, "argument")


def plan_of(specs: Iterable[AgentSpec]) -> Plan:
    """Of an agent and all that it may hand a task to: a child's answer is the parent's output."""
    days: dict[str, list[int]] = {}
    decision: list[int] = []
    floor = 0
    for spec in specs:
        known = {**BUILTIN_RETENTIONS, **{r.id: r for r in spec.retentions}}
        floor = max(floor, FLOORS[spec.profile])
        for tool in spec.tools:
            if tool.data.retention in known:
                days.setdefault(name_of(tool.data), []).append(known[tool.data.retention].content_days)
                decision.append(known[tool.data.retention].decision_days)
    shortest = {name: min(found) for name, found in days.items()}
    kept = [n for name, n in shortest.items() if name in SENSITIVE] or list(shortest.values())
    return Plan(shortest, min(kept, default=0), max([floor, *decision]) if decision else 0, floor)


def key_name(run: str, part: Part, at: str) -> KeyName:
    """Under which key a body part is sealed. `at` = its record's claim of time."""
    if part.subject is not UNSET:
        return KeyName(f"subject/{part.subject}", part.class_, at[:7])
    return KeyName(f"run/{run}", "decision" if part.part in DECISIONS else "content", at[:7])


def mail_key(run: str) -> KeyName:
    """Messages to a run have one key, whatever the month: sending one again must be the same message."""
    return KeyName(f"run/{run}", "mail", "-")


def days_of(plan: Plan, name: KeyName) -> int:
    if name.owner.startswith("subject/"):
        return plan.classes.get(name.kind, plan.content)
    return plan.decision if name.kind == "decision" else plan.content


def until(period: str, days: int) -> int:
    """The instant at which a key of this month has had its days; 0 = never."""
    if not days or period == "-":
        return 0
    year, month = int(period[:4]), int(period[5:7])
    return (first_day(year + month // 12, month % 12 + 1) + days) * DAY_US


def covers(selector: KeyName, name: KeyName) -> bool:
    return (
        selector.owner == name.owner
        and (not selector.kind or selector.kind == name.kind)
        and (not selector.period or selector.period == name.period)
    )


def encode_plan(plan: Plan) -> bytes:
    return msgspec.json.encode(plan, order="sorted")


def decode_plan(raw: bytes) -> Plan:
    return msgspec.json.decode(raw, type=Plan)


def below_floor(spec: AgentSpec) -> tuple[Mapping[str, str], ...]:
    """Policies of this agent that let go of records or decisions before its profile allows it."""
    floor = FLOORS[spec.profile]
    known = {**BUILTIN_RETENTIONS, **{r.id: r for r in spec.retentions}}
    used = {tool.data.retention for tool in spec.tools if tool.data.retention in known}
    return tuple(
        {"id": id, "found": f"{min(known[id].hash_days, known[id].decision_days)} days", "floor": f"{floor} days"}
        for id in sorted(used)
        if min(known[id].hash_days, known[id].decision_days) < floor
    )
