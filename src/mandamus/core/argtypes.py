"""What policy may know of a tool's arguments: a closed type, read from the tool's input schema.

Text, whole numbers, truth values, lists of one type and closed records have a type. What an engine without floats, unions and
free objects cannot type is *hidden*: known by name, checked to be plain JSON, and shown to no rule. The rule a newcomer would
break: a key that the schema does not name is a fault, never dropped.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from mandamus.core.canonical import INT_MAX

_DEPTH_MAX = 16
_PLAIN_DEPTH_MAX = 56  # canonical JSON takes 64 containers; the arguments stand in the envelope


class Scalar(Struct, frozen=True):
    """`String` holds numbers with a point too: they arrive as their canonical text."""

    of: Literal["String", "Long", "Boolean"]


class Many(Struct, frozen=True):
    of: ArgType


class Field(Struct, frozen=True):
    """`type` None: hidden from rules."""

    type: ArgType | None
    required: bool


class RecordType(Struct, frozen=True):
    fields: dict[str, Field]


ArgType = Scalar | Many | RecordType
_scalars: dict[str, Scalar] = {
    "string": Scalar("String"),
    "integer": Scalar("Long"),
    "number": Scalar("String"),
    "boolean": Scalar("Boolean"),
}
_EXACT: dict[str, type] = {"String": str, "Long": int, "Boolean": bool}
_by_python: dict[type, str] = {str: "string", int: "integer", bool: "boolean"}


def argument_types(schema: dict[str, Any]) -> RecordType:
    """The closed record of a tool's arguments. A schema that is no object has no arguments."""
    found, _ = _typed(schema, schema.get("$defs", {}), 0)
    return found if isinstance(found, RecordType) else RecordType({})


def hidden(record: RecordType, prefix: str = "") -> list[str]:
    """Paths of the arguments that no rule can see."""
    out: list[str] = []
    for name, field in record.fields.items():
        if field.type is None:
            out.append(prefix + name)
        elif isinstance(field.type, RecordType):
            out += hidden(field.type, f"{prefix}{name}.")
    return out


def misfit(value: Any, kind: ArgType | None, at: str) -> str:
    """The place of the first fault and what it is; "" when the value fits. Never quotes a value."""
    if kind is None:
        return _not_plain(value, at, 0)
    if isinstance(kind, Scalar):
        return _misfit_scalar(value, kind, at)
    if isinstance(kind, Many):
        if type(value) is not list and type(value) is not tuple:
            return f"{at} is not a list"
        return next((fault for i, item in enumerate(value) if (fault := misfit(item, kind.of, f"{at}[{i}]"))), "")
    return _misfit_record(value, kind, at)


def _misfit_scalar(value: Any, kind: Scalar, at: str) -> str:
    if type(value) is not _EXACT[kind.of]:
        return f"{at} is {type(value).__name__}, not {kind.of}"
    return f"{at} is beyond 2^53-1" if type(value) is int and not -INT_MAX <= value <= INT_MAX else ""


def _misfit_record(value: Any, kind: RecordType, at: str) -> str:
    if type(value) is not dict:
        return f"{at} is not a record"
    fields = kind.fields
    for name, inner in value.items():
        if name not in fields:
            return f"{at} has a key that the tool's schema does not name"
        known = fields[name].type
        if type(known) is Scalar and type(inner) is _EXACT[known.of] and (type(inner) is not int or -INT_MAX <= inner <= INT_MAX):
            continue  # what fits needs no words
        if fault := misfit(inner, known, f"{at}.{name}"):
            return fault
    for name, field in fields.items():
        if field.required and name not in value:
            return f"{at}.{name} is missing"
    return ""


def _not_plain(value: Any, at: str, depth: int) -> str:
    kind = type(value)
    if depth > _PLAIN_DEPTH_MAX:
        return f"{at} is nested too deep"
    if kind is dict:
        if any(type(key) is not str for key in value):
            return f"{at} has a key that is no text"
        return next((fault for inner in value.values() if (fault := _not_plain(inner, at, depth + 1))), "")
    if kind is list or kind is tuple:
        return next((fault for inner in value if (fault := _not_plain(inner, at, depth + 1))), "")
    if kind is int:
        return "" if -INT_MAX <= value <= INT_MAX else f"{at} is beyond 2^53-1"
    return "" if kind is str or kind is bool else f"{at} holds {kind.__name__}"


def _typed(schema: Any, defs: dict[str, Any], depth: int) -> tuple[ArgType | None, bool]:
    """(type or None when it is hidden, may it be null)."""
    if not isinstance(schema, dict) or depth > _DEPTH_MAX:
        return None, False
    if isinstance(ref := schema.get("$ref"), str):
        return _typed(defs.get(ref.removeprefix("#/$defs/")), defs, depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return _typed_choice(schema[word], defs, depth)
    word = schema.get("type", _type_of_values(schema))
    if isinstance(word, list):
        rest = [w for w in word if w != "null"]
        found = _typed({**schema, "type": rest[0]}, defs, depth + 1)[0] if len(rest) == 1 else None
        return found, "null" in word
    if word == "object":
        return _typed_object(schema, defs, depth), False
    if word == "array":
        return _typed_array(schema, defs, depth), False
    return _scalars.get(str(word)), word == "null"


def _typed_choice(members: list[Any], defs: dict[str, Any], depth: int) -> tuple[ArgType | None, bool]:
    rest = [m for m in members if not (isinstance(m, dict) and m.get("type") == "null")]
    found, null = _typed(rest[0], defs, depth + 1) if len(rest) == 1 else (None, False)
    return found, null or len(rest) < len(members)


def _typed_object(schema: dict[str, Any], defs: dict[str, Any], depth: int) -> ArgType | None:
    extra = schema.get("additionalProperties", False)
    properties = schema.get("properties", {})
    if (extra is not False and extra is not None) or ("properties" not in schema and "additionalProperties" not in schema):
        return None
    required = set(schema.get("required", ()))
    fields = {}
    for name, inner in properties.items():
        found, null = _typed(inner, defs, depth + 1)
        # Null is absent in the facts. A name of Cedar's own escapes would be read as one, so no rule sees it.
        fields[name] = Field(None if name.startswith("__") else found, name in required and not null)
    return RecordType(fields)


def _typed_array(schema: dict[str, Any], defs: dict[str, Any], depth: int) -> ArgType | None:
    if "prefixItems" in schema or "items" not in schema:
        return None
    found, null = _typed(schema["items"], defs, depth + 1)
    partly = isinstance(found, RecordType) and bool(hidden(found))
    return None if found is None or null or partly else Many(found)


def _type_of_values(schema: dict[str, Any]) -> str:
    """The type of an `enum` or `const` that names none."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    kinds = {_by_python.get(type(v), "") for v in values}
    return kinds.pop() if len(kinds) == 1 else ""
