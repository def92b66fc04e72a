"""What model use costs, in integer micro-units of one currency: `priced(...)` of a reply, `at_most(...)` of a call to come.

The user names the price; nothing here knows a provider. The rule a newcomer would break: every call is rounded up by itself, so that the
sum of the calls is the cost of the run, in every process and on every replay.
"""

from typing import Annotated

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mandamus.core.canonical import INT_MAX

PER = 1_000_000  # a price is that of a million tokens
Micro = Annotated[int, msgspec.Meta(ge=0, le=INT_MAX)]


class Price(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """What a million tokens cost, in micro-units of `currency`. A cache price that is absent is that of `input`."""

    cache_read: Micro | UnsetType = UNSET
    cache_write: Micro | UnsetType = UNSET
    currency: str
    input: Micro
    output: Micro


def priced(price: Price, input: int, output: int, cache_read: int = 0, cache_write: int = 0) -> int:
    """Micro-units of one reply. Cached tokens are parts of `input`; where they have no price of their own they cost as much."""
    fresh = max(0, input - cache_read - cache_write)
    read = price.input if price.cache_read is UNSET else price.cache_read
    write = price.input if price.cache_write is UNSET else price.cache_write
    return _up(fresh * price.input + cache_read * read + cache_write * write + output * price.output)


def at_most(price: Price, input: int, output: int) -> int:
    """Micro-units that a call may cost: its prompt at the dearest input price, and all the output it may have."""
    dearest = max(price.input, price.cache_read or 0, price.cache_write or 0)
    return _up(input * dearest + output * price.output)


def _up(amount: int) -> int:
    return -(-amount // PER)
