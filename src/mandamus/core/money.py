"""Money: a digit string of minor units, a currency and its decimals. No floats anywhere.

`Money.of("50000.00", "USD")`, `Money.parse("50000.00 USD")`; policy compares `minor(money)`, an integer.
"""

from __future__ import annotations

import re

from msgspec import Struct

from mandamus.core.canonical import INT_MAX

# ISO 4217 minor units that are not 2, as of 2026. Anything that is no ISO code keeps its own decimals, at most 6.
_EXPONENTS = {
    "BHD": 3, "CLP": 0, "IQD": 3, "ISK": 0, "JOD": 3, "JPY": 0, "KRW": 0, "KWD": 3, "LYD": 3, "OMR": 3, "PYG": 0, "TND": 3, "UGX": 0,
    "VND": 0, "XAF": 0, "XOF": 0,
}  # fmt: skip
_ISO_TWO = frozenset((
    "AED", "AUD", "BRL", "CAD", "CHF", "CNY", "CZK", "DKK", "EGP", "EUR", "GBP", "HKD", "HUF", "ILS", "INR", "MXN", "NOK", "NZD", "PLN",
    "RON", "SAR", "SEK", "SGD", "THB", "TRY", "USD", "ZAR",
))  # fmt: skip
_text = re.compile(r"(-?)([0-9]{1,30})(?:\.([0-9]{1,18}))?")


class Money(Struct, frozen=True, forbid_unknown_fields=True):
    """`amount` is a string of digits, in units of 10^-decimals of the currency. Raises ValueError when it is not."""

    amount: str
    currency: str
    decimals: int = 2

    def __post_init__(self) -> None:
        if not re.fullmatch(r"0|[1-9][0-9]{0,38}", self.amount):
            raise ValueError(f"amount: digits without sign, point or leading zero, not {self.amount[:40]!r}")
        if not re.fullmatch(r"[A-Z][A-Z0-9]{2,9}", self.currency):
            raise ValueError(f"currency: 3 to 10 capitals, not {self.currency[:12]!r}")
        if not 0 <= self.decimals <= 18:
            raise ValueError("decimals: 0 to 18")

    @classmethod
    def of(cls, amount: str, currency: str, decimals: int | None = None) -> Money:
        """From a decimal text such as "50000.00". Raises ValueError when it has more decimals than the currency."""
        places = exponent(currency) if decimals is None else decimals
        match = _text.fullmatch(amount.replace(",", "").strip())
        if not match or match[1]:
            raise ValueError(f"amount {amount[:40]!r}: write it as 50000.00")
        fraction = match[3] or ""
        if len(fraction) > places:
            raise ValueError(f"amount {amount[:40]!r}: {currency} has {places} decimals")
        return cls((match[2] + fraction.ljust(places, "0")).lstrip("0") or "0", currency, places)

    @classmethod
    def parse(cls, text: str) -> Money:
        """From "1000.00 USD". Raises ValueError when it is written in another way."""
        amount, _, currency = text.strip().partition(" ")
        if not currency:
            raise ValueError(f"money {text[:40]!r}: write it as 1000.00 USD")
        return cls.of(amount, currency.strip())

    def __str__(self) -> str:
        digits = self.amount.rjust(self.decimals + 1, "0")
        whole, fraction = (digits[: -self.decimals], digits[-self.decimals :]) if self.decimals else (digits, "")
        return f"{int(whole):,}{'.' + fraction if fraction else ''} {self.currency}"


def exponent(currency: str) -> int:
    """Decimals in which policy counts this currency."""
    return _EXPONENTS.get(currency, 2 if currency in _ISO_TWO else 6)


def minor(money: Money) -> int:
    """The amount as policy sees it, in 10^-exponent(currency); finer amounts are rounded up. Raises ValueError beyond 2^53-1."""
    places = exponent(money.currency)
    value = int(money.amount)
    if money.decimals <= places:
        value *= int(10 ** (places - money.decimals))
    else:
        value = -(-value // int(10 ** (money.decimals - places)))
    if value > INT_MAX:
        raise ValueError(f"amount in {money.currency} does not fit 2^53-1 policy units")
    return value
