"""What a user gives a run to use: `Budget`, and the `Price` of the model that its money is counted by.

The rule a newcomer would break: a limit that cannot be counted is refused when it is written. Money without a price would bound nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from mandamus.core import price as prices
from mandamus.core import records as r
from mandamus.core.canonical import INT_MAX
from mandamus.core.money import Money
from mandamus.errors import Misuse
from mandamus.tool import milliseconds

MICRO = 6  # decimals in which model use is counted


class Price(Struct, frozen=True, kw_only=True):
    """What a million tokens of the agent's model cost: `Price(input="2.50 USD", output="10.00 USD")`. A cache price left out is `input`."""

    input: str
    output: str
    cache_read: str | None = None
    cache_write: str | None = None

    def recorded(self) -> prices.Price:
        """In millionths. Raises Misuse: no amounts, or two currencies."""
        named = {n: getattr(self, n) for n in ("input", "output", "cache_read", "cache_write")}
        counted = {n: _micro("price", text) for n, text in named.items() if text is not None or n in ("input", "output")}
        currencies = sorted({m.currency for m in counted.values()})
        if len(currencies) != 1:
            raise Misuse("agent: price", code="MDM-0216", expected="one currency", found=", ".join(currencies))
        return prices.Price(currency=currencies[0], **{name: int(m.amount) for name, m in counted.items()})


class Budget(Struct, frozen=True, kw_only=True):
    """Limits of one run. `wall` such as "10m"; `cost` such as "5.00 USD": what its models cost, counted by the agent's price.

    `turns`: how often the model is asked; `retries`: how often again, after a fault or a bad answer; `calls` of tools; `tokens` in and out;
    `denials` in a row. None is no limit.
    What children use of tokens, calls and cost is used of their parent's. What tools pay is bounded by policy: give limits there.
    """

    turns: int = 20
    tokens: int | None = None
    calls: int | None = None
    retries: int = 5
    denials: int = 3
    wall: str | None = None
    cost: str | None = None

    def limits(self) -> r.BudgetLimits:
        for name, least in (("turns", 1), ("tokens", 1), ("calls", 0), ("retries", 0), ("denials", 1)):
            value = getattr(self, name)
            if value is None and name in ("tokens", "calls"):
                continue
            if type(value) is not int or value < least:
                raise Misuse(f"budget: {name}", code="MDM-0216", expected=f"a whole number, {least} or more", found=repr(value)[:40])
        cost = None if self.cost is None else _micro("cost", self.cost)
        if cost is not None and cost.amount == "0":
            raise Misuse("budget: cost", code="MDM-0216", expected="more than nothing", found=str(self.cost)[:40])
        return r.BudgetLimits(
            calls=UNSET if self.calls is None else self.calls, cost=UNSET if cost is None else int(cost.amount),
            currency=UNSET if cost is None else cost.currency, denials=self.denials, retries=self.retries,
            tokens=UNSET if self.tokens is None else self.tokens, turns=self.turns,
            wall_ms=UNSET if self.wall is None else milliseconds(self.wall, "budget: wall"),
        )  # fmt: skip


def priced(limits: r.BudgetLimits, price: Price | None, below: Iterable[Any]) -> prices.Price | UnsetType:
    """The price of a run whose agents below are these. Raises Misuse where money could not be counted: no price, another currency."""
    if price is not None and not isinstance(price, Price):
        raise Misuse("agent: price", code="MDM-0216", expected='Price(input="2.50 USD", output="10.00 USD")', found=type(price).__name__)
    own = UNSET if price is None else price.recorded()
    if limits.cost is not UNSET:
        _counted("this agent", limits, own)
        for agent in _family(below):
            _counted(repr(agent.spec.name), limits, agent.spec.price)
    return own


def _family(below: Iterable[Any]) -> Iterator[Any]:
    for agent in below:
        yield agent
        yield from _family(agent.children.values())


def _counted(who: str, limits: r.BudgetLimits, price: prices.Price | UnsetType) -> None:
    if price is UNSET or price.currency != limits.currency:
        raise Misuse(
            f"budget: cost: {who} has no price in {limits.currency}", code="MDM-0216", expected=f"a price in {limits.currency}",
            found="none" if price is UNSET else price.currency,
            why="the budget of money bounds it, and nobody could count what it uses",
            fix='Agent(price=Price(input="2.50 USD", output="10.00 USD")), for a million tokens',
        )  # fmt: skip


def _micro(field: str, text: object) -> Money:
    """Money in millionths. Raises Misuse."""
    amount, _, currency = text.strip().partition(" ") if isinstance(text, str) else ("", "", "")
    try:
        money = Money.of(amount, currency.strip(), MICRO)
        if int(money.amount) > INT_MAX:
            raise ValueError("too much")
    except ValueError:
        where = "budget: cost" if field == "cost" else "agent: price"
        raise Misuse(where, code="MDM-0216", expected='an amount such as "5.00 USD"', found=repr(text)[:40]) from None
    return money
