"""Closed JSON schemas of typed values: references resolved in place, `additionalProperties` false, no titles."""

from __future__ import annotations

from typing import Any

import msgspec


def closed_schema(kind: Any) -> dict[str, Any]:
    """JSON Schema 2020-12 of a type, self-contained. Raises TypeError for a type without JSON form."""
    schema = msgspec.json.schema(kind)
    return _resolved(schema, schema.get("$defs", {}), 0)  # type: ignore[no-any-return]


def _resolved(node: Any, defs: dict[str, Any], depth: int) -> Any:
    if depth > 32:
        raise TypeError("a schema that contains itself cannot be a tool's")
    if isinstance(node, list):
        return [_resolved(x, defs, depth + 1) for x in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _resolved(defs[node["$ref"].rsplit("/", 1)[1]], defs, depth + 1)
    return {
        k: _named(v, defs, depth + 1) if k == "properties" else _resolved(v, defs, depth + 1)
        for k, v in node.items()
        if k not in ("$defs", "title")
    }


def _named(properties: dict[str, Any], defs: dict[str, Any], depth: int) -> dict[str, Any]:
    """Names of properties are the user's words, not the schema's: an argument may be called `title`."""
    return {name: _resolved(node, defs, depth + 1) for name, node in properties.items()}
