"""Payload lines of a bundle: what a record committed to, shown whole, withheld, or kept as a blob beside it.

The rule a newcomer would break: a value is used only after its commitment was recomputed from the line, and a line stands for
exactly one body part of one record: none may be missing, doubled or added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET, Struct

from mandamus.core.canonical import accept, canon
from mandamus.core.payload import SALT, Payload, commit
from mandamus.core.records import AnyRecord, BodyPart
from mandamus.errors import ProofError
from mandamus.proof.keys import b64, unb64
from mandamus.proof.report import Broken, Finding

LINE_BYTES_MAX = 1 << 20
Key = tuple[str, int, str]  # run, seq, part

_FIELDS = {
    "whole": {"commit", "part", "run", "secret", "seq", "show", "value"},
    "withheld": {"commit", "part", "run", "seq", "show"},
    "blob": {"commit", "name", "part", "run", "seq", "show"},
}


class Line(Struct, frozen=True):
    """A payload line as parsed. `secret` and `value` only when it is shown whole."""

    number: int
    key: Key
    show: str
    commit: str
    secret: bytes = b""
    value: Any = None


def parts_of(records: Sequence[AnyRecord]) -> Iterator[tuple[Key, BodyPart, str]]:
    """Every body part in order: its key, its record's word on it, the record's type."""
    for record in records:
        if record.body is not UNSET:
            for part in record.body:
                yield (record.run, record.seq, part.part), part, record.type


def write(key: Key, part: BodyPart, payload: Payload | None, hidden: bool, blob: str) -> bytes:
    """The line of one body part. Raises ProofError when the payload is gone or is not the one that was committed to."""
    line: dict[str, Any] = {"commit": part.commit, "part": key[2], "run": key[0], "seq": key[1]}
    if hidden:
        return canon(line | {"show": "withheld"})
    if payload is None and blob:
        return canon(line | {"name": blob, "show": "blob"})
    if payload is None:
        raise ProofError(f"payload {key[2]!r} of event {key[1]} is missing", code="MDM-0611", where=f"run {key[0]} (event {key[1]})")
    secret, value = payload.bytes[:SALT], payload.bytes[SALT:]
    if len(secret) != SALT or commit(secret, value) != part.commit:
        raise ProofError(
            f"payload {key[2]!r} of event {key[1]} is not the one its record commits to",
            code="MDM-0610",
            where=f"run {key[0]} (event {key[1]})",
        )
    return canon(line | {"secret": b64(secret), "show": "whole", "value": accept(value)})


def read(raw: bytes, number: int) -> Line:
    """Raises Broken; names the line."""
    try:
        value = accept(raw)
        if type(value) is not dict or value.keys() != _FIELDS.get(value.get("show", ""), set()):
            raise ValueError("its fields are not those of a payload line")
        if type(value["seq"]) is not int or not all(type(value[k]) is str for k in value if k not in ("seq", "value")):
            raise ValueError("a field has another type")
        secret = unb64(value["secret"]) if value["show"] == "whole" else b""
    except (ValueError, TypeError) as error:
        raise Broken(Finding(f"this is no payload line: {str(error)[:120]}", code="MDM-0646", line=number)) from None
    return Line(number, (value["run"], value["seq"], value["part"]), value["show"], value["commit"], secret, value.get("value"))


def match(lines: Sequence[Line], records: Sequence[AnyRecord]) -> dict[Key, Line]:
    """Each line belongs to the body part whose turn it is, and is what that part committed to. Raises Broken."""
    index: dict[Key, Line] = {}
    parts = list(parts_of(records))
    for line, (key, part, kind) in zip(lines, parts):
        chain = "log" if key[0] == "log" else "run"
        if line.key != key or line.commit != part.commit:
            what = f"this line is not payload {key[2]!r} of its record"
            raise Broken(
                Finding(
                    what,
                    code="MDM-0646",
                    chain=chain,
                    event=key[1],
                    type=kind,
                    line=line.number,
                    expected=part.commit,
                    found=line.commit[:80],
                )
            )
        if line.show == "whole":
            found = commit(line.secret, canon(line.value)) if len(line.secret) == SALT else "a salt of another length"
            if found != part.commit:
                what = f"payload {key[2]!r} is not the one its record commits to"
                raise Broken(
                    Finding(
                        what, code="MDM-0610", chain=chain, event=key[1], type=kind, line=line.number, expected=part.commit, found=found
                    )
                )
        index[key] = line
    if len(lines) != len(parts):
        raise Broken(
            Finding("payload lines and body parts do not match", code="MDM-0646", expected=f"{len(parts)} lines", found=str(len(lines)))
        )
    return index
