"""Canonical bytes are RFC 8785: equal to the foreign vectors, to another implementation, and to the pure reference, on any value."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from mandamus.core import canonical
from mandamus.core.canonical import DEPTH_MAX, INT_MAX, accept, canon, canon_pure, es6_number, parse
from mandamus.core.clock import Clock
from mandamus.core.records import Record, TurnStarted, decode, encode
from mandamus.errors import ProofError
from tests.samples import story

VECTORS = Path(__file__).parent.parent / "data" / "vectors" / "jcs"
NAMES = sorted(path.name for path in (VECTORS / "input").glob("*.json"))

numbers = st.integers(-INT_MAX, INT_MAX) | st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: abs(x) <= INT_MAX)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5), max_leaves=25)


@pytest.mark.parametrize("name", NAMES)
def test_foreign_vectors(name: str) -> None:
    given_, wanted = (VECTORS / "input" / name).read_bytes(), (VECTORS / "output" / name).read_bytes().rstrip(b"\n")
    value = json.loads(given_)
    if name == "values.json":  # 333333333.33333329 and 1E30 stand there; the latter is beyond 2^53-1, which this profile refuses
        with pytest.raises(ValueError):
            canon(value)
        value["numbers"] = [n for n in value["numbers"] if abs(n) <= INT_MAX]
        wanted = rfc8785.dumps(value)
    assert canon(value) == canon_pure(value) == wanted


def test_there_are_six_foreign_vectors() -> None:
    assert len(NAMES) == 6


@given(values)
def test_equal_to_another_implementation(value: Any) -> None:
    assert canon(value) == canon_pure(value) == rfc8785.dumps(value)


@given(values)
def test_what_was_written_is_accepted_and_is_the_same(value: Any) -> None:
    raw = canon(value)
    assert canon(accept(raw)) == raw


@given(values)
def test_nothing_installed_gives_the_same_bytes(value: Any) -> None:
    """The auditor's environment has no orjson."""
    fast, canonical.orjson = canonical.orjson, None  # type: ignore[assignment]
    try:
        alone = canon(value)
    finally:
        canonical.orjson = fast
    assert alone == canon(value)


@given(st.integers(0, 2**64 - 1))
def test_numbers_print_as_ecmascript_prints_them(bits: int) -> None:
    x = struct.unpack(">d", struct.pack(">Q", bits))[0]
    if math.isnan(x) or math.isinf(x):
        with pytest.raises(ValueError):
            es6_number(x)
    else:
        assert es6_number(x) == rfc8785.dumps(x).decode() if abs(x) <= INT_MAX else float(es6_number(x)) == x


@given(st.binary(max_size=60))
def test_foreign_bytes_are_accepted_only_in_their_one_form(raw: bytes) -> None:
    try:
        value = accept(raw)
    except ValueError:
        return
    assert canon_pure(value) == raw


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


BAD: list[Any] = [
    float("nan"),
    float("inf"),
    -float("inf"),
    INT_MAX + 1,
    -INT_MAX - 1,
    1e16,
    "\ud800",
    {"\ud800": 1},
    {1: 2},
    {"a": {2}},
    {"a": 1j},
    b"x",
    nested(DEPTH_MAX + 1),
    [nested(DEPTH_MAX)],
]


@pytest.mark.parametrize("value", BAD, ids=[f"{n}" for n in range(len(BAD))])
def test_bad_values_are_refused_by_both_paths(value: Any) -> None:
    for write in (canon, canon_pure):
        with pytest.raises((ValueError, TypeError)):
            write(value)


def test_the_deepest_allowed_value_passes() -> None:
    value = nested(DEPTH_MAX)
    assert accept(canon(value)) == value


TEXTS = [
    b'{"a":1,"a":1}',
    b'{"b":1,"a":1}',
    b'{"a": 1}',
    b'{"a":1.0}',
    b'{"a":-0}',
    b'{"a":1e0}',
    b'{"\\u0061":1}',
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"9007199254740992",
    b"-9007199254740992",
    b"123456789012345678901234567890",
    b"\xef\xbb\xbf1",
    b"1\n",
    b" 1",
    b'"\\ud800"',
    b'"\xed\xa0\x80"',
    b"\xff",
    b"",
    b"[1,]",
    b"{'a':1}",
    b"[" * 100_000,
    b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1),
    b'{"a":' * 100_000,
    b"01",
    b'"\x01"',
]


@pytest.mark.parametrize("raw", TEXTS, ids=[f"{n}" for n in range(len(TEXTS))])
def test_bytes_that_two_readers_could_read_differently(raw: bytes) -> None:
    with pytest.raises(ValueError):
        accept(raw)


def test_records_are_canonical_json() -> None:
    """A closed struct with sorted fields, typed encoding: the same bytes as JCS of what it says."""
    for raw in story().chain.raws:
        assert canon_pure(parse(raw)) == raw == encode(decode(raw))
        assert raw.isascii()


@given(st.integers(-INT_MAX, INT_MAX), st.text(st.characters(codec="ascii"), max_size=20))
def test_any_record_that_is_ascii_reads_back(number: int, text: str) -> None:
    fact = TurnStarted(clock=Clock(now=number, offset=0, tz=text))
    raw = encode(Record(at=text, epoch=1, fact=fact, prev="", run=text, seq=number, turn=0, type="TurnStarted"))
    assert canon_pure(parse(raw)) == raw == encode(decode(raw))


@pytest.mark.parametrize("number", [INT_MAX + 1, -INT_MAX - 1, 2**64])
def test_a_record_with_a_number_that_readers_round_is_refused(number: int) -> None:
    fact = TurnStarted(clock=Clock(now=number, offset=0, tz="UTC"))
    with pytest.raises(ProofError):
        decode(encode(Record(at="", epoch=1, fact=fact, prev="", run="r", seq=1, turn=0, type="TurnStarted")))
    fact = TurnStarted(clock=Clock(now=0, offset=0, tz="UTC"))
    with pytest.raises(ProofError):
        decode(encode(Record(at="", epoch=number, fact=fact, prev="", run="r", seq=1, turn=0, type="TurnStarted")))
