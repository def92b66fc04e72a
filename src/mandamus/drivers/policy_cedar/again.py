"""Cedar asked again, from a bundle alone: `judge(source, facts)` for `mandamus verify --reevaluate`.

Everything it needs stands in the recorded policy: its text, its schema, its chains. It types the whole context, where the running engine
types only what its policies read, so that an error of that shortcut would show here. The rule a newcomer would break: no tool of today is
looked at, and no file; else the answer would be about another policy than the one that judged.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import cedarpy

from mandamus.core.canonical import canon, parse
from mandamus.core.rulebook import Source, compiled
from mandamus.core.strict import NoFile
from mandamus.drivers.policy_cedar import binding
from mandamus.drivers.policy_cedar.sources import noted
from mandamus.proof.again import Again

POLICIES, RULES, SCHEMA = "policy/policies.cedar", "policy/rules.json", "policy/schema.json"
TOOL = ("data", "effect", "kind", "pin", "safety")
AGENT = ("annex_iii", "basis", "depth", "purpose", "tenant")


def judge(source: Mapping[str, Any], facts: Mapping[str, Any]) -> Again | None:
    """None for a policy that is not Cedar's, or whose text does not parse any more."""
    if not all(type(source.get(name)) is str for name in (POLICIES, RULES, SCHEMA)):
        return None
    try:
        asked = _loaded(source[POLICIES], source[RULES], source[SCHEMA])
    except Exception:  # whatever a parser raises for a text that it does not take
        return None
    try:
        return asked.decide(facts)
    except Exception:  # the running engine says the same of a fault of the binding
        return Again("error")


@functools.lru_cache(maxsize=8)
def _loaded(policies: str, rules: str, schema: str) -> _Policy:
    return _Policy(policies, rules, schema)


class _Policy:
    def __init__(self, policies: str, rules: str, schema: str) -> None:
        book = compiled([Source(document, NoFile("bundle")) for document in parse(rules.encode())])
        notes = noted([("bundle", policies)], dict(book.chains))
        self.notes = {f"policy{n}": note for n, note in enumerate(notes)}
        self.policies = cedarpy.PolicySet.from_str(policies)
        self.schema = cedarpy.Schema.from_json_str(schema)
        self.actions: dict[str, Any] = json.loads(schema)[""]["actions"]

    def decide(self, facts: Mapping[str, Any]) -> Again:
        tool, principal = facts["action"]["tool"], facts["principal"]
        request = {
            "principal": {"type": "Agent", "id": principal["agent"]},
            "action": {"type": "Action", "id": tool},
            "resource": {"type": "Tool", "id": tool},
            "context": canon(_cut(facts, self.actions[tool]["appliesTo"]["context"])).decode(),
        }
        entities = binding.entities(json.dumps(_entities(facts)), self.schema)
        answer = binding.ask(request, self.policies, entities, self.schema)
        if answer.diagnostics.errors or answer.decision == "NoDecision":
            return Again("error")
        notes = [self.notes[name] for name in answer.diagnostics.reason]
        rules = tuple(sorted(note.id for note in notes))
        if answer.decision == "Allow":
            return Again("allow", rules)
        escalates = bool(notes) and all(note.verdict == "escalate" for note in notes)
        return Again("escalate" if escalates else "deny", rules, silent=not notes)


def _cut(value: Any, shape: Any) -> Any:
    """What the schema has a type for: arguments of a type that Cedar does not know are in no context."""
    if type(value) is dict and shape.get("type") == "Record":
        return {name: _cut(value[name], inner) for name, inner in shape["attributes"].items() if name in value}
    return value


def _entities(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The agent with its roles, and the tool, as the facts say."""
    action, principal = facts["action"], facts["principal"]
    roles = [{"type": "Role", "id": role} for role in dict.fromkeys(principal["roles"])]
    agent = {name: principal[name] for name in AGENT}
    tool = {name: action[name] for name in TOOL} | {"name": action["tool"]}
    return [
        *({"uid": role, "attrs": {}, "parents": []} for role in roles),
        {"uid": {"type": "Agent", "id": principal["agent"]}, "attrs": agent, "parents": roles},
        {"uid": {"type": "Tool", "id": action["tool"]}, "attrs": tool, "parents": []},
    ]
