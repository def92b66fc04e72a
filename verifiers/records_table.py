"""The closed table of record types as plain JSON: `records_table.py --write` makes records.json from core/records.py, `--check` compares.

    {"envelope": [FIELD...], "facts": {NAME: [FIELD...]}, "parts": {NAME: [FIELD...]}}
    FIELD = [name, optional, KIND], in the order of the bytes
    KIND  = "text" | "flag" | ["whole", least, most] | ["one of", WORD...] | ["many", KIND] | ["part", NAME] | "fact"

The verifiers that share no code with the library read this table and nothing else of it. The rule a newcomer would break: an *optional*
field may be absent; one with a default may not, since records are stored as they are encoded, whole.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec import inspect as mi

from mandamus.core.records import FACTS, Record

FILE = Path(__file__).with_name("records.json")


def table() -> dict[str, Any]:
    """All types of fact, the envelope, and the small parts that stand in them."""
    parts: dict[str, Any] = {}
    facts = {name: _fields(kind, parts) for name, kind in sorted(FACTS.items())}
    envelope = _fields(Record, parts)
    return {"envelope": envelope, "facts": facts, "parts": dict(sorted(parts.items()))}


def text() -> str:
    """One type a line, so that a change is read like code."""
    whole = table()
    rows = [f' "envelope": {json.dumps(whole["envelope"])}']
    for group in ("facts", "parts"):
        inner = ",\n".join(f'  "{name}": {json.dumps(fields)}' for name, fields in whole[group].items())
        rows.append(f' "{group}": {{\n{inner}\n }}')
    return "{\n" + ",\n".join(rows) + "\n}\n"


def _fields(struct: type[Struct], parts: dict[str, Any]) -> list[Any]:
    info = mi.type_info(struct)
    assert isinstance(info, mi.StructType)
    optional = {f.encode_name for f in msgspec.structs.fields(struct) if f.default is UNSET}
    fields = [[f.encode_name, f.encode_name in optional, _kind(f.type, parts, struct is Record and f.name == "fact")] for f in info.fields]
    assert [name for name, _, _ in fields] == sorted(name for name, _, _ in fields), f"{struct.__name__} is not in sorted order"
    return fields


def _kind(t: mi.Type, parts: dict[str, Any], fact: bool = False) -> Any:
    if fact:
        return "fact"
    if isinstance(t, mi.UnionType):
        (inner,) = [x for x in t.types if not (isinstance(x, mi.CustomType) and x.cls is UnsetType)]
        return _kind(inner, parts)
    if isinstance(t, mi.StrType):
        return "text"
    if isinstance(t, mi.BoolType):
        return "flag"
    if isinstance(t, mi.IntType):
        return ["whole", t.ge, t.le]
    if isinstance(t, mi.LiteralType):
        return ["one of", *t.values]
    if isinstance(t, mi.VarTupleType):
        return ["many", _kind(t.item_type, parts)]
    if isinstance(t, mi.StructType):
        name = t.cls.__name__
        if name not in parts:
            parts[name] = _fields(t.cls, parts)
        return ["part", name]
    raise TypeError(f"no verifier could read a field of type {t}")


def main(argv: list[str]) -> int:
    if argv == ["--write"]:
        FILE.write_text(text(), encoding="ascii")
        return 0
    if argv == ["--check"]:
        if FILE.read_text(encoding="ascii") == text():
            return 0
        print("records.json is not the table of core/records.py: python verifiers/records_table.py --write", file=sys.stderr)
        return 1
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
