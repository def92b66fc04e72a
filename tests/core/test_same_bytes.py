"""Every shortcut of the hot path gives exactly what the general way gives. Speed is measured elsewhere (bench/gates.py)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandamus.core.admit import admit
from mandamus.core.canonical import INT_MAX, accept, canon, canon_own, canon_pure, parse
from mandamus.core.clock import Clock, local, rfc3339
from mandamus.core.payload import SALT
from mandamus.core.records import ModelFailed
from mandamus.core.rules import due, wakes
from mandamus.core.run import EMPTY
from mandamus.core.seal import Content, Draft, Position, seal
from mandamus.errors import MandamusError
from mandamus.runtime.env import salts
from mandamus.testing.virtual import VirtualTime

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-INT_MAX, INT_MAX) | texts,
    lambda x: st.lists(x, max_size=4) | st.dictionaries(texts, x, max_size=4),
)
numbers = st.recursive(plain | st.floats(-1e15, 1e15), lambda x: st.lists(x, max_size=4) | st.dictionaries(texts, x, max_size=4))


@given(plain)
def test_our_own_values_have_the_bytes_of_any_value(value: Any) -> None:
    assert canon_own(value) == canon(value) == canon_pure(value)


@given(numbers)
def test_what_is_canonical_is_accepted_as_the_strict_parser_reads_it(value: Any) -> None:
    raw = canon(value)
    assert accept(raw) == parse(raw)
    assert canon(accept(raw)) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a":1,"a":1}', b"1.0", b"-0", b"-0.0", b"12345678901234567890", b"9007199254740993", b"NaN", b'"\\ud800"', b'{"b":1,"a":2}',
        b" 1", b"1e5", b'"\\u0041"', b"[" * 70 + b"]" * 70, b"{}{}", b"\xff", b'"\xed\xa0\x80"', b"1E400", b'"\\/"', b"",
    ],
)  # fmt: skip
def test_what_is_not_canonical_is_refused_whichever_parser_sees_it_first(raw: bytes) -> None:
    with pytest.raises(ValueError):
        accept(raw)


@given(st.integers(0, INT_MAX), st.integers(-1440, 1440))
def test_the_minute_that_is_remembered_is_the_minute_that_is_computed(now: int, offset: int) -> None:
    seen = local(now, offset, "X")
    minutes = (now + offset * 60_000_000) // 60_000_000
    assert (seen.hour, seen.minute) == (minutes // 60 % 24, minutes % 60)
    assert Clock(now, 0, "UTC").local().date == rfc3339(now)[:10]


def test_salts_are_all_different_and_whole() -> None:
    drawn = list(itertools.islice(salts(VirtualTime()), 100))
    assert len(set(drawn)) == 100
    assert {len(x) for x in drawn} == {SALT}


def test_an_older_secret_must_be_whole() -> None:
    draft = Draft(ModelFailed(attempt=1, category="cut"), 1, (Content("partial", "x", secret=b"short"),))
    with pytest.raises(ValueError, match="32 bytes"):
        seal([draft], Position("r", 3, "0" * 64, 1), rfc3339(0), salts(VirtualTime()))


def test_two_parts_of_one_name_are_refused_wherever_they_stand() -> None:
    twice = Draft(ModelFailed(attempt=1, category="cut"), 1, (Content("partial", "x"), Content("partial", "y")))
    once = Draft(ModelFailed(attempt=1, category="cut"), 1, (Content("partial", "z"),))
    for drafts in ([twice, once], [once, twice]):
        sealed, _ = seal(drafts, Position("r", 3, "0" * 64, 1), rfc3339(0), salts(VirtualTime()))
        with pytest.raises(MandamusError, match="different names"):
            admit("r", (3, "0" * 64, 1), [x.raw for x in sealed], [p for x in sealed for p in x.payloads])


def test_what_was_asked_already_is_not_asked_again() -> None:
    assert wakes(EMPTY, due(EMPTY)) == wakes(EMPTY)
