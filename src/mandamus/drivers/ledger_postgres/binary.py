"""Parameters and rows in Postgres's binary form: `Statement.of(sql, name).encode(values)`, `decode(result, reader(result))`.

A statement's text names its parameters as `%(run)s`. Each name has one type wherever it stands, so that a statement is prepared once and
never again for other values. The rule a newcomer would break: a type is declared to the server, not guessed from a value. An integer
that went out as eight bytes for a parameter the server takes for four is no error on some servers, only another number.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

BOOL, BYTEA, INT8, INT4, TEXT = 16, 17, 20, 23, 25
BOOLS, BYTEAS, TEXTS, INT8S = 1000, 1001, 1009, 1016
_TYPES = {
    TEXT: "run state pool owner part id name me channel behind",
    INT8: "place seq epoch at cursor prio count after_seq after_epoch no after last ttl tries",
    BYTEA: "hash after_hash key body",
    BOOL: "progress wakes ended",
    TEXTS: "ids hashes p_part p_form a_id a_hash d_id d_run parts",
    INT8S: "versions locks p_seq a_version a_reserved a_spent d_version d_seq",
    BYTEAS: "bodies p_bytes d_body",
    BOOLS: "alone",
}
TYPE = {name: oid for oid, names in _TYPES.items() for name in names.split()}

Row = tuple[Any, ...]
Rows = list[Row]
_parameter = re.compile(r"%\((\w+)\)[sb]")
_int8, _length = struct.Struct("!q"), struct.Struct("!i").pack
_array = struct.Struct("!iiiii").pack  # dimensions, whether there are nulls, type of the items, their number, the first one's index


class Statement(NamedTuple):
    """`name` is what a connection prepares it under."""

    name: bytes
    sql: bytes
    parameters: tuple[str, ...]
    types: tuple[int, ...]
    formats: tuple[int, ...]

    @classmethod
    def of(cls, sql: str, name: str) -> Statement:
        names: list[str] = []

        def numbered(found: re.Match[str]) -> str:
            if found[1] not in names:
                names.append(found[1])
            return f"${names.index(found[1]) + 1}"

        text = _parameter.sub(numbered, sql).encode()
        return cls(name.encode(), text, tuple(names), tuple(TYPE[n] for n in names), (1,) * len(names))

    def encode(self, values: Mapping[str, Any]) -> list[bytes | None]:
        return [None if (value := values[name]) is None else _ENCODE[type](value) for name, type in zip(self.parameters, self.types)]


Reader = list[tuple[int, Callable[[bytes], Any]]]


def reader(result: PGresult) -> Reader:
    """How rows of a statement are read: the same for all its results."""
    return [(k, _DECODE[result.ftype(k)]) for k in range(result.nfields)]


def decode(result: PGresult, columns: Reader) -> Rows:
    """All rows of a result in binary form."""
    get = result.get_value
    return [
        tuple([None if (raw := get(n, k)) is None else read(raw) for k, read in columns]) for n in range(result.ntuples)
    ]  # fmt: skip


# -- values ------------------------------------------------------------------------------------------------------------------
def _itself(value: bytes) -> bytes:
    return value


def _truth(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def _array_of(type: int, encode: Callable[[Any], bytes]) -> Callable[[Sequence[Any]], bytes]:
    none = struct.pack("!iii", 0, 0, type)

    def encoded(items: Sequence[Any]) -> bytes:
        if not items:
            return none
        raws = [encode(item) for item in items]
        return b"".join([_array(1, 0, type, len(raws), 1), *[part for raw in raws for part in (_length(len(raw)), raw)]])

    return encoded


def _again(encode: Callable[[Sequence[Any]], bytes]) -> Callable[[Sequence[Any]], bytes]:
    """For short lists of words, most of which come again and again."""
    known = functools.lru_cache(512)(encode)
    return lambda items: known(tuple(items))


_ENCODE: dict[int, Callable[[Any], bytes]] = {TEXT: str.encode, INT8: _int8.pack, BYTEA: _itself, BOOL: _truth}
_ENCODE[TEXTS], _ENCODE[INT8S] = _again(_array_of(TEXT, str.encode)), _array_of(INT8, _int8.pack)
_ENCODE[BYTEAS], _ENCODE[BOOLS] = _array_of(BYTEA, _itself), _again(_array_of(BOOL, _truth))


def _big(raw: bytes) -> int:
    return int.from_bytes(raw, "big", signed=True)


def _words(raw: bytes) -> str:
    return str(raw, "utf-8")


VOID = 2278  # what pg_notify answers
_DECODE: dict[int, Callable[[bytes], Any]] = {
    INT8: _big, INT4: _big, TEXT: _words, BYTEA: bytes, BOOL: b"\1".__eq__, VOID: bytes
}  # fmt: skip
