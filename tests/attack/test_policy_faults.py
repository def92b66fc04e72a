"""Engines fail open: every fault of a fact or a policy must be the verdict `error`, in every adapter."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from mandamus.core.facts import FactEnvelope, Judgement
from mandamus.drivers.policy_cedar import CedarEngine
from mandamus.drivers.policy_python import PythonRules, rule
from mandamus.ports import PolicyEngine
from mandamus.testing.conformance.policy import LIMIT, LIMITS, TOOLS, Row, battery, damaged, payment

DAILY = {"id": LIMIT, "maxDailyLimit": {"limit": "50000.00 USD"}}
PERMIT = {"id": "pay", "permit": {"role": "treasury", "safety": "financial"}}
# Types, and overflows when it is evaluated: Cedar would skip it and allow.
OVERFLOWS = (
    '@id("big") forbid (principal, action == Action::"send_payment", resource) when { context.amount.minor * 9223372036854775807 > 0 };'
)


class Cedar:
    name = "cedar"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def sound(self) -> PolicyEngine:
        return CedarEngine.load([PERMIT, DAILY], TOOLS)

    def failing(self) -> PolicyEngine:
        (self.folder / "big.cedar").write_text(OVERFLOWS)
        return CedarEngine.load([PERMIT, DAILY, self.folder / "big.cedar"], TOOLS)

    def broken(self) -> PolicyEngine:
        (self.folder / "broken.cedar").write_text(
            '@id("x") forbid (principal, action == Action::"send_payment", resource) when { context.amuont.minor > 1 };'
        )
        return CedarEngine.load([PERMIT, self.folder / "broken.cedar"], TOOLS)


@rule("pay.daily", "Daily limit")
def over_the_limit(facts: FactEnvelope) -> str | None:
    return "deny" if facts.sums["pay.daily"] + facts.amount.minor > 5_000_000 else None


@rule("fails")
def fails(facts: FactEnvelope) -> str | None:
    return "deny" if facts.args["nowhere"] else None


class Python:
    name = "python"

    def sound(self) -> PolicyEngine:
        return PythonRules.of([over_the_limit], tools=TOOLS, limits=LIMITS)

    def failing(self) -> PolicyEngine:
        return PythonRules.of([over_the_limit, fails], tools=TOOLS, limits=LIMITS)

    def broken(self) -> PolicyEngine:
        return PythonRules.of([over_the_limit, over_the_limit], tools=TOOLS, limits=LIMITS)


@pytest.fixture(params=["cedar", "python"])
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> list[Row]:
    return asyncio.run(battery(Cedar(tmp_path) if request.param == "cedar" else Python()))


def test_every_fault_is_an_error_and_nothing_else_is(rows: list[Row]) -> None:
    assert [row for row in rows if not row.ok] == []


def test_the_battery_holds_every_fault_of_the_list(rows: list[Row]) -> None:
    """F1 to F10, and for the facts one row at least for each of the forty and more facts."""
    count = Counter(row.fault.split()[0] for row in rows)
    assert set(count) == {f"F{n}" for n in range(11)}
    assert count["F1"] >= 40
    assert count["F3"] >= 40
    assert min(count["F5"], count["F6"], count["F7"]) >= 20


def test_the_battery_finds_an_engine_that_trusts_its_facts() -> None:
    """The battery is worth something only if a careless engine fails it."""

    class Careless:
        name = "careless"
        book = PythonRules.of([]).book

        def sound(self) -> PolicyEngine:
            return self

        failing = broken = sound

        def digest(self) -> str:
            return ""

        async def check(self) -> None: ...

        async def decide(self, facts: FactEnvelope) -> Judgement:
            spent = getattr(facts, "sums", {}).get(LIMIT, 0) if isinstance(getattr(facts, "sums", None), dict) else 0
            return Judgement(verdict="deny" if isinstance(spent, int) and spent > 5_000_000 else "allow")

    found = [row for row in asyncio.run(battery(Careless())) if not row.ok]
    assert {row.fault.split()[0] for row in found} == {f"F{n}" for n in range(1, 11)}
    assert any(row.verdict == "allow" for row in found)


def test_the_undamaged_question_is_told_apart_from_every_damaged_one() -> None:
    assert all(repr(facts) != repr(payment()) for _, _, facts in damaged(payment()))


def test_a_forbid_that_fails_is_named_and_no_fact_is_quoted(tmp_path: Path) -> None:
    judgement = asyncio.run(Cedar(tmp_path).failing().decide(payment()))
    assert judgement.verdict == "error"
    assert judgement.errors == ("policy big failed when it was evaluated",)
    assert judgement.determining == ()


def test_no_error_text_quotes_a_fact(tmp_path: Path) -> None:
    engines = [Cedar(tmp_path).sound(), Python().sound()]
    for _, _, facts in damaged(payment()):
        for engine in engines:
            told = " ".join(asyncio.run(engine.decide(facts)).errors)
            assert "acme" not in told
            assert "4999999" not in told
