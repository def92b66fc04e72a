"""JSON Schemas for editors: agent.yaml and rules.yaml. `python -m mandamus.schemas` writes them again from the Structs that read them.

The rule a newcomer would break: these files are generated; what is allowed is said once, by the Structs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from mandamus import manifest
from mandamus.core.rulebook import Document
from mandamus.core.rulekinds import KINDS

HERE = Path(__file__).parent
_BESIDE = {"id": {"type": "string"}, "name": {"type": "string"}, "reason": {"type": "string"}, "tenant": {"type": "string"}}
_ON_DENY = {"enum": ["feedback", "halt"]}


def agent() -> dict[str, Any]:
    """Of agent.yaml."""
    return manifest.schema()


def rules() -> dict[str, Any]:
    """Of rules.yaml: a rule is {id, KIND: settings} or {id, rule: KIND, params: settings}."""
    (document, *kinds), defs = msgspec.json.schema_components(
        [Document, *(kind for kind, _ in KINDS.values())], ref_template="#/$defs/{name}"
    )
    for part in defs.values():
        part.setdefault("additionalProperties", False)
    forms = [form for word, kind in zip(KINDS, kinds, strict=True) for form in _forms(word, kind)]
    defs["Document"]["properties"]["rules"] = {"type": "array", "items": {"oneOf": forms}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "mandamus rules.yaml", **document, "$defs": defs}


def _forms(word: str, settings: dict[str, Any]) -> list[dict[str, Any]]:
    beside = _BESIDE | {"on_deny": _ON_DENY}
    return [
        {"type": "object", "properties": beside | {word: settings}, "required": [word], "additionalProperties": False},
        {
            "type": "object",
            "properties": beside | {"rule": {"const": word}, "params": settings},
            "required": ["rule"],
            "additionalProperties": False,
        },
    ]


FILES = {"agent.schema.json": agent, "rules.schema.json": rules}


def text(name: str) -> str:
    """What the file of that name must hold."""
    return json.dumps(FILES[name](), indent=2, sort_keys=True) + "\n"


def write(folder: Path = HERE) -> None:
    for name in FILES:
        (folder / name).write_text(text(name), encoding="utf-8")
