"""Turn plain data that a person wrote into a Struct, and say exactly where it is wrong.

Pure: the reader of the file brings the places. The rule a newcomer would break: an unknown key is a mistake, never ignored; a
misspelt limit that is dropped in silence is a limit that does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec import inspect as mi

from mandamus.errors import Misuse

Path = tuple[str | int, ...]
T = TypeVar("T")
_step = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")


class Written(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person writes as a mapping. Every Struct inside one is one too: then msgspec alone finds an unknown key, and the search for
    its place is left for when there is one."""


class Places(Protocol):
    """Where a value stands: "policies/rules.yaml:3:5", or what stands for it when there is no file."""

    def where(self, path: Path = (), *, key: bool = False) -> str: ...


class NoFile:
    """Places of data that was written in Python: the name of the source and the path."""

    def __init__(self, name: str, root: Path = ()) -> None:
        self.name, self.root = name, root

    def where(self, path: Path = (), *, key: bool = False) -> str:
        return self.name + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in (*self.root, *path))


class Below:
    """The same places, seen from an inner value."""

    def __init__(self, outer: Places, root: Path) -> None:
        self.outer, self.root = outer, root

    def where(self, path: Path = (), *, key: bool = False) -> str:
        return self.outer.where((*self.root, *path), key=key)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "did you mean X?", or the list of the known when nothing is close."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.6) or get_close_matches(word.lower(), [n for n in names if n.islower()], n=1)
    return f"did you mean {close[0]}?" if close else "known: " + (", ".join(names) or "none")


def shaped(value: Any, kind: type[T], places: Places, *, code: str = "MDM-0720", what: str = "this") -> T:
    """`value` as a `kind`, strictly. Raises Misuse with the place, the expected and, for a key, the nearest known one."""
    if issubclass(kind, Written):
        try:
            return msgspec.convert(value, kind, strict=True)
        except msgspec.ValidationError:
            pass  # said below, with its place: an unknown key first
    _refuse_unknown(value, mi.type_info(kind), (), places, code)
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        text, _, at = str(error).partition(" - at ")
        path = _path(value, kind, str(error), at.strip("`"))
        raise Misuse(f"{what}{_spoken(path)}: {text}", code=code, where=places.where(path), found=_kind_of(value, path)) from None


def one_of(word: str, known: Iterable[str], places: Places, path: Path, *, what: str, code: str = "MDM-0720") -> str:
    """`word`, if it is known. Raises Misuse with the nearest one."""
    names = tuple(known)
    if word not in names:
        raise Misuse(f"unknown {what} {word[:60]!r}", code=code, where=places.where(path), fix=did_you_mean(word, names))
    return word


def _refuse_unknown(value: Any, kind: mi.Type, path: Path, places: Places, code: str) -> None:
    if isinstance(kind, mi.UnionType):
        kind = _member(value, kind)
    if isinstance(kind, mi.StructType) and isinstance(value, dict):
        fields = {f.encode_name: f.type for f in kind.fields}
        tag = {kind.tag_field} if kind.tag_field else set()
        for name, inner in value.items():
            if name not in fields and name not in tag:
                fix = did_you_mean(str(name), fields.keys() | tag)
                raise Misuse(f"unknown key {str(name)[:60]!r}", code=code, where=places.where((*path, name), key=True), fix=fix)
            if name in fields:
                _refuse_unknown(inner, fields[name], (*path, name), places, code)
    elif isinstance(kind, mi.DictType) and isinstance(value, dict):
        for name, inner in value.items():
            _refuse_unknown(inner, kind.value_type, (*path, name), places, code)
    elif isinstance(kind, mi.ListType | mi.VarTupleType) and isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _refuse_unknown(inner, kind.item_type, (*path, index), places, code)


def _member(value: Any, union: mi.UnionType) -> mi.Type:
    """The member of a union that a value of this form can only be; the union itself when several could."""
    wanted: tuple[type, ...] = (mi.StructType, mi.DictType) if isinstance(value, dict) else (mi.ListType, mi.VarTupleType)
    fitting = [t for t in union.types if isinstance(t, wanted)]
    choice = [t for t in fitting if _has_tag(value, t)] or fitting
    return choice[0] if len(choice) == 1 else union


def _has_tag(value: Any, kind: mi.Type) -> bool:
    return isinstance(kind, mi.StructType) and bool(kind.tag_field) and isinstance(value, dict) and value.get(kind.tag_field) == kind.tag


def _path(value: Any, kind: Any, message: str, at: str) -> Path:
    """The path of a msgspec message. It writes `[...]` for a key of a mapping: the key is the one that alone fails the same way."""
    out: Path = ()
    for match in _step.finditer(at.removeprefix("$")):
        if match[2] != "...":
            out = (*out, match[1] if match[1] is not None else int(match[2]))
            continue
        inner = _at(value, out)
        key = next((k for k in inner if _message(_with(value, out, {k: inner[k]}), kind) == message), None)
        if key is None:
            return out
        value, out = _with(value, out, {key: inner[key]}), (*out, key)
    return out


def _message(value: Any, kind: Any) -> str:
    try:
        msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _with(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    step = path[0]
    if isinstance(step, int):
        return [_with(inner, path[1:], new) if i == step else inner for i, inner in enumerate(value)]
    return {**value, step: _with(value[step], path[1:], new)}


def _spoken(path: Path) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)


def _kind_of(value: Any, path: Path) -> str:
    try:
        value = _at(value, path)
    except (KeyError, IndexError, TypeError):
        return ""
    names = {dict: "a mapping", list: "a list", str: "a text", int: "a whole number", float: "a number with a point", bool: "true or false"}
    return names.get(type(value), "nothing" if value is None else type(value).__name__)
