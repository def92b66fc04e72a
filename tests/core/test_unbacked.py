"""Ids and amounts of an answer against what outcomes carry: what is carried is never reported, and no text is too long to read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandamus.core.money import Money
from mandamus.core.unbacked import FOUND_MAX, candidates, unbacked

ids = st.from_regex(r"[a-z]{2,6}-[0-9]{1,6}", fullmatch=True)
amounts = st.integers(0, 10**12)


@given(st.lists(ids, min_size=1, max_size=5, unique=True))
def test_an_id_is_backed_by_an_outcome_that_holds_it_as_a_word(names: list[str]) -> None:
    text = "done: " + " and ".join(names)
    assert unbacked(text, [{"ids": names}]) == ()
    assert unbacked(text, [" ".join(names)]) == ()
    assert unbacked(text, []) == tuple(names)
    assert unbacked(text, [{"ids": [n + "7" for n in names]}]) == tuple(n for n in names if n not in [m + "7" for m in names])


@given(amounts, st.sampled_from(["USD", "JPY", "BHD"]))
def test_money_is_the_same_however_it_is_written(minor: int, currency: str) -> None:
    decimals = {"USD": 2, "JPY": 0, "BHD": 3}[currency]
    carried = [{"amount": {"amount": str(minor), "currency": currency, "decimals": decimals}}]
    whole, fraction = divmod(minor, 10**decimals)
    part = f".{fraction:0{decimals}d}" if decimals else ""
    for text in (
        f"{whole}{part} {currency}",
        f"{whole:,}{part} {currency}",
        f"{currency} {whole}{part}",
        str(Money(str(minor), currency, decimals)),
    ):
        assert candidates(text), text
        assert unbacked(f"I paid {text}.", carried) == ()
    assert unbacked(f"I paid {whole + 1}{part} {currency}.", carried) == (f"{whole + 1}{part} {currency}",)


@given(st.text(max_size=200), st.lists(st.none() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=20), max_size=4))
def test_any_text_is_read(text: str, outcomes: list[Any]) -> None:
    assert set(unbacked(text, outcomes)) <= set(candidates(text))
    assert unbacked(text, [*outcomes, text]) == ()


@pytest.mark.parametrize("text", ["", "All done.", "It is 5 o'clock on 2026-11-21.", "See step 2.", "Q3 was good."])
def test_plain_words_name_nothing(text: str) -> None:
    assert candidates(text) == {}


def test_a_flood_is_cut() -> None:
    text = " ".join(f"id-{n}" for n in range(5_000)) + "1" * 200_000
    assert len(unbacked(text, [])) == FOUND_MAX
