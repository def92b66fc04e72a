"""What model use costs, and what a run hands down: whole numbers, rounded up call by call."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandamus.core.accounts import handed, unit_of
from mandamus.core.price import Price, at_most, priced
from mandamus.core.records import Usage

PLAIN = Price(currency="USD", input=2_500_000, output=10_000_000)
CACHED = Price(cache_read=250_000, cache_write=3_125_000, currency="USD", input=2_500_000, output=10_000_000)


def of(price: Price, u: Usage) -> int:
    return priced(price, u.input, u.output, u.cache_read, u.cache_write)


COUNTS = st.integers(0, 2_000_000)


@pytest.mark.parametrize(
    ("price", "usage", "cost"),
    [
        (PLAIN, Usage(input=1_000_000), 2_500_000),
        (PLAIN, Usage(input=1000, output=1000), 12_500),
        (PLAIN, Usage(input=1), 3),  # two and a half millionths
        (PLAIN, Usage(input=1000, cache_read=900), 2_500),
        (CACHED, Usage(input=1000, cache_read=900), 475),
        (CACHED, Usage(input=1000, cache_write=1000), 3_125),
        (CACHED, Usage(input=10, cache_read=900), 225),  # a provider that counts its cache beside the rest
        (PLAIN, Usage(), 0),
    ],
)
def test_a_reply_costs_what_its_usage_says(price: Price, usage: Usage, cost: int) -> None:
    assert of(price, usage) == cost


@given(COUNTS, COUNTS, COUNTS)
def test_what_is_reserved_is_never_less_than_what_such_a_reply_costs(read: int, fresh: int, output: int) -> None:
    for price in (PLAIN, CACHED):
        for cached in ({"cache_read": read}, {"cache_write": read}):
            usage = Usage(input=read + fresh, output=output, **cached)
            assert of(price, usage) <= at_most(price, read + fresh, output)


def test_the_account_of_one_run_is_not_that_of_another() -> None:
    assert unit_of("A", handed("A", "calls")) == "calls"
    assert unit_of("A", handed("AB", "calls")) == ""
    assert unit_of("A", "limit/default/day/-/A") == ""
