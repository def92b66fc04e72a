"""Ids and amounts in a final answer that no recorded outcome carries: `unbacked(text, outcomes) -> ("tx-99", "50000.00 USD")`.

A model may say "paid, reference tx-99" whatever happened. What it names is compared with what tools really answered, and with the
arguments of the calls that are done. The rule a newcomer would break: this annotates and never blocks; a sentence can lie in words
that hold no number at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from mandamus.core.canonical import canon
from mandamus.core.money import exponent

FOUND_MAX = 20
NAMED_MAX = 200
_number = r"(?<![0-9.,])(?:[0-9]{1,3}(?:,[0-9]{3}){1,12}|[0-9]{1,40})(?:\.[0-9]{1,18})?"
_amount = re.compile(rf"(?:\b([A-Z]{{3,5}})|([€$£¥]))\s?({_number})|({_number})\s?(?:([A-Z]{{3,5}})\b|([€$£¥]))")
_id = re.compile(r"(?<![\w./:-])(?=[\w./:-]*[0-9])[A-Za-z][\w./:-]{2,79}(?<![./:-])|(?<![\w.,-])[0-9]{6,40}(?![\w,-])")
_plain = re.compile(_number)
_scale = re.compile(r'"decimals":[0-9]+')  # how an amount is written is no number that anybody named


def unbacked(text: str, outcomes: Iterable[Any]) -> tuple[str, ...]:
    """What the text names and no outcome carries, as written, each once, at most twenty."""
    named = candidates(text)
    if not named:
        return ()
    words, numbers = _carried(outcomes)
    out = [shown for shown, number in named.items() if (number not in numbers if number else not _said(shown, words))]
    return tuple(out[:FOUND_MAX])


def candidates(text: str) -> dict[str, str]:
    """As written -> the number it is, "" for an id. Empty for a text that names neither, which is most of them."""
    if not any(c.isdigit() for c in text):
        return {}
    out: dict[str, str] = {}
    spans = []
    for match in islice(_amount.finditer(text), NAMED_MAX):
        out[match[0]] = _same(match[3] or match[4])
        spans.append(match.span())
    for match in islice(_id.finditer(text), NAMED_MAX):
        if not any(a <= match.start() < b for a, b in spans):
            out[match[0]] = ""
    return out


def _said(id: str, words: str) -> bool:
    """As a whole word: tx-1 is not said by tx-11."""
    return re.search(rf"(?<!\w){re.escape(id)}(?!\w)", words) is not None


def _carried(outcomes: Iterable[Any]) -> tuple[str, set[str]]:
    """Every text of the outcomes, and every number in them; money also as people write it."""
    texts: list[str] = []
    numbers: set[str] = set()
    for outcome in outcomes:
        texts.append(outcome if isinstance(outcome, str) else canon(outcome).decode())
        numbers |= set(_money(outcome))
    words = "\n".join(texts)
    return words, numbers | {_same(m) for m in _plain.findall(_scale.sub("", words))}


def _money(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        amount, currency = value.get("amount"), value.get("currency")
        if isinstance(amount, str) and amount.isdigit() and isinstance(currency, str):
            decimals = value.get("decimals", exponent(currency))
            if isinstance(decimals, int) and 0 <= decimals <= 18:
                whole = amount.rjust(decimals + 1, "0")
                yield _same(f"{whole[: len(whole) - decimals]}.{whole[len(whole) - decimals :]}")
        for inner in value.values():
            yield from _money(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _money(inner)


def _same(number: str) -> str:
    """One text for one number: 50,000.00 and 50000 are the same."""
    whole, _, fraction = number.replace(",", "").partition(".")
    rest = fraction.rstrip("0")
    return (whole.lstrip("0") or "0") + (f".{rest}" if rest else "")
