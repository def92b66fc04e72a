"""Payload lines of a bundle: what a record committed to, shown whole, in part, as it is stored, beside the bundle, or not at all.

The rule a newcomer would break: a value is used only after its commitment was recomputed from the line, and a line stands for
exactly one body part of one record: none may be missing, doubled or added. What was erased is told so by a record, or it is missing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct

from mandamus.core import fields
from mandamus.core.canonical import accept, canon
from mandamus.core.payload import SALT, Payload, commit, holds
from mandamus.core.records import LOG, AnyRecord, BodyPart, Erased, HoldLifted, HoldPlaced
from mandamus.errors import ProofError
from mandamus.proof.keys import b64, unb64
from mandamus.proof.report import Broken, Finding

LINE_BYTES_MAX = 1 << 20
CIPHER_BYTES_MIN = 12 + SALT + 1 + 16  # nonce, S and the shortest value, tag
Key = tuple[str, int, str]  # run, seq, part
Hide = Callable[[Key], "bool | Collection[str]"]  # True: withheld; names: only these members are shown; False: whole
KNOWN = ("whole", "fields")  # of these something can be used

_BASE = {"commit", "part", "run", "seq", "show"}
_FIELDS = {
    "whole": _BASE | {"secret", "value"},
    "fields": _BASE | {"fields", "hidden"},
    "blob": _BASE | {"name"},
    "cipher": _BASE | {"cipher"},
    "withheld": _BASE,
    "erased": _BASE,
}
_hex = re.compile("[0-9a-f]{64}")


class Line(Struct, frozen=True):
    """A payload line as parsed. `secret` and `value` when it is shown whole; `show` is "whole" too once its blob was looked at.

    `members`: those that are shown of a payload of fields; `hidden`: the digests of the others. `name`: of the blob.
    """

    number: int
    key: Key
    show: str
    commit: str
    secret: bytes = b""
    value: Any = None
    members: tuple[fields.Shown, ...] = ()
    hidden: tuple[bytes, ...] = ()
    name: str = ""


def parts_of(records: Sequence[AnyRecord]) -> Iterator[tuple[Key, BodyPart, str]]:
    """Every body part in order: its key, its record's word on it, the record's type."""
    for record in records:
        if record.body is not UNSET:
            for part in record.body:
                yield (record.run, record.seq, part.part), part, record.type


# -- writing -----------------------------------------------------------------------------------------------------------------
def write(key: Key, part: BodyPart, payload: Payload | None, hide: bool | Collection[str], blob: str, erased: bool = False) -> bytes:
    """The line of one body part. Raises ProofError when the payload is gone or is not the one that was committed to."""
    line: dict[str, Any] = {"commit": part.commit, "part": key[2], "run": key[0], "seq": key[1]}
    if erased and (payload is None or payload.form == "erased"):
        return canon(line | {"show": "erased"})
    if hide is True:
        return canon(line | {"show": "withheld"})
    if payload is None and blob:
        return canon(line | {"name": blob, "show": "blob"})
    if payload is None or payload.form == "erased":
        raise ProofError(f"payload {key[2]!r} of event {key[1]} is missing", code="MDM-0611", where=f"run {key[0]} (event {key[1]})")
    if payload.form == "sealed":
        return canon(line | {"cipher": b64(payload.bytes), "show": "cipher"})
    secret, value = payload.bytes[:SALT], payload.bytes[SALT:]
    if not holds(secret, value, part.commit):
        raise ProofError(
            f"payload {key[2]!r} of event {key[1]} is not the one its record commits to",
            code="MDM-0610",
            where=f"run {key[0]} (event {key[1]})",
        )
    if hide is False or part.media != fields.MEDIA:  # what was committed to whole is shown whole, or not at all
        return canon(line | ({"secret": b64(secret), "show": "whole", "value": accept(value)} if hide is False else {"show": "withheld"}))
    return _in_part(line, secret, accept(value), hide)


def _in_part(line: dict[str, Any], secret: bytes, value: dict[str, Any], names: Collection[str]) -> bytes:
    members, hidden = fields.disclosed(secret, value, names)
    if not hidden:
        return canon(line | {"secret": b64(secret), "show": "whole", "value": value})
    told = [[i, b64(own), name, member] for i, own, name, member in members]
    return canon(line | {"fields": told, "hidden": [d.hex() for d in hidden], "show": "fields"})


# -- reading -----------------------------------------------------------------------------------------------------------------
def read(raw: bytes, number: int) -> Line:
    """Raises Broken; names the line."""
    try:
        return _line(accept(raw), number)
    except (ValueError, TypeError) as error:
        raise Broken(Finding(f"this is no payload line: {str(error)[:120]}", code="MDM-0646", line=number)) from None


def _line(value: Any, number: int) -> Line:
    if type(value) is not dict or type(show := value.get("show")) is not str or value.keys() != _FIELDS.get(show, set()):
        raise ValueError("its fields are not those of a payload line")
    if type(value["seq"]) is not int or not all(type(value[k]) is str for k in value if k not in ("seq", "value", "fields", "hidden")):
        raise ValueError("a field has another type")
    line = Line(number, (value["run"], value["seq"], value["part"]), show, value["commit"])
    match show:
        case "whole":
            return _with(line, secret=unb64(value["secret"]), value=value["value"])
        case "fields":
            return _with(line, members=_members(value["fields"]), hidden=_digests(value["hidden"]))
        case "blob" if not _hex.fullmatch(value["name"]):
            raise ValueError("a blob's name is its SHA-256 in hex")
        case "blob":
            return _with(line, name=value["name"])
        case "cipher" if len(unb64(value["cipher"])) < CIPHER_BYTES_MIN:
            raise ValueError("the ciphertext is too short to be one")
    return line


def _with(line: Line, **more: Any) -> Line:
    return Line(line.number, line.key, line.show, line.commit, **more)


def _members(told: Any) -> tuple[fields.Shown, ...]:
    out = []
    for entry in told if type(told) is list else ():
        if type(entry) is not list or [type(x) for x in entry[:3]] != [int, str, str] or len(entry) != 4:
            raise ValueError("a member is not [number, salt, name, value]")
        out.append((entry[0], unb64(entry[1]), entry[2], entry[3]))
    numbers = [member[0] for member in out]
    if type(told) is not list or numbers != sorted(set(numbers)) or any(not 0 <= n < fields.FIELDS_MAX for n in numbers):
        raise ValueError("the members do not stand in their order")
    if len({member[2] for member in out}) != len(out):
        raise ValueError("two members have one name")
    return tuple(out)


def _digests(told: Any) -> tuple[bytes, ...]:
    if type(told) is not list or not told or any(type(d) is not str or not _hex.fullmatch(d) for d in told):
        raise ValueError("what is hidden is not a list of digests")
    if told != sorted(set(told)):
        raise ValueError("the hidden digests do not stand in their order")
    return tuple(bytes.fromhex(d) for d in told)


# -- holding against the records ---------------------------------------------------------------------------------------------
def match(lines: Sequence[Line], records: Sequence[AnyRecord], blobs: Mapping[str, bytes] | None = None) -> dict[Key, Line]:
    """Each line belongs to the body part whose turn it is, and is what that part committed to. `blobs`: the files beside the bundle, by
    name. Raises Broken."""
    index: dict[Key, Line] = {}
    parts = list(parts_of(records))
    for line, (key, part, kind) in zip(lines, parts):
        chain = "log" if key[0] == LOG else "run"
        where: dict[str, Any] = {"chain": chain, "event": key[1], "type": kind, "line": line.number}
        if line.key != key or line.commit != part.commit:
            what = f"this line is not payload {key[2]!r} of its record"
            raise Broken(Finding(what, code="MDM-0646", expected=part.commit, found=line.commit[:80], **where))
        if blobs is not None and line.show == "blob" and line.name in blobs:
            line = _blob(line, blobs[line.name], where)
        found = _commitment(line, part)
        if found != part.commit:
            what = f"payload {key[2]!r} is not the one its record commits to"
            raise Broken(Finding(what, code="MDM-0610", expected=part.commit, found=found, **where))
        index[key] = line
    if len(lines) != len(parts):
        raise Broken(
            Finding("payload lines and body parts do not match", code="MDM-0646", expected=f"{len(parts)} lines", found=str(len(lines)))
        )
    return index


def _commitment(line: Line, part: BodyPart) -> str:
    """Recomputed from what is shown, in the way that the record's media type says; where nothing is shown, what the record says."""
    try:
        if line.show == "whole" and part.media == fields.MEDIA:
            return fields.commit(line.secret, line.value) if len(line.secret) == SALT else "a salt of another length"
        if line.show == "whole":
            return commit(line.secret, canon(line.value))
        if line.show == "fields":
            return _of_members(line, part)
    except ValueError as error:
        return "a salt of another length" if len(line.secret) != SALT else str(error)
    return part.commit


def _of_members(line: Line, part: BodyPart) -> str:
    count = len(line.members) + len(line.hidden)
    if part.media != fields.MEDIA or count > fields.FIELDS_MAX or any(member[0] >= count for member in line.members):
        return "members of what has none, or too many"
    own = [fields.field_digest(salt, name, value) for _, salt, name, value in line.members]
    return fields.commit_of([*own, *line.hidden])


def _blob(line: Line, raw: bytes, where: dict[str, Any]) -> Line:
    """What lies beside the bundle: S and the canonical value. It stands as if it had been shown whole."""
    found = hashlib.sha256(raw).hexdigest()
    if found != line.name:
        raise Broken(
            Finding("the file beside the bundle is not the one it names", code="MDM-0610", expected=line.name, found=found, **where)
        )
    try:
        value = accept(raw[SALT:])
    except ValueError:
        raise Broken(Finding("the file beside the bundle holds no canonical value", code="MDM-0610", **where)) from None
    return Line(line.number, line.key, "whole", line.commit, raw[:SALT], value, name=line.name)


def check_erased(lines: Sequence[Line], log: Sequence[AnyRecord], run: str) -> int:
    """How many payloads were erased. Raises Broken for one that is gone without a record, or there although a record says it is gone."""
    gone: dict[str, AnyRecord] = {}
    held: set[str] = set()
    kept: dict[str, AnyRecord] = {}
    for record in log:
        fact = record.fact
        if isinstance(fact, HoldPlaced) and fact.run == run:
            held.add(fact.hold)
        elif isinstance(fact, HoldLifted):
            held.discard(fact.hold)
        elif isinstance(fact, Erased):
            gone.update(dict.fromkeys(fact.commits, record))
            kept.update(dict.fromkeys(fact.commits if held else (), record))
    for line in lines:
        erased = line.show == "erased"
        chain = "log" if line.key[0] == LOG else "run"
        if erased and line.commit not in gone:
            what = f"payload {line.key[2]!r} is missing, and no record says that it was erased"
            raise Broken(Finding(what, code="MDM-0662", chain=chain, event=line.key[1], line=line.number))
        if line.show in KNOWN and line.commit in gone:
            what = f"payload {line.key[2]!r} is shown, although log event {gone[line.commit].seq} says that it was erased"
            raise Broken(Finding(what, code="MDM-0662", chain=chain, event=line.key[1], line=line.number))
        if line.key[0] == run and line.commit in kept:
            what = f"payload {line.key[2]!r} of event {line.key[1]} was erased while the run was under a legal hold"
            raise Broken(Finding(what, code="MDM-0672", chain=LOG, event=kept[line.commit].seq, type="Erased", line=line.number))
    return sum(line.show == "erased" for line in lines)
