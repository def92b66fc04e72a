"""Thin rules: each kind has a golden Cedar text and a truth table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect as mi
from msgspec.structs import replace

from mandamus.core.clock import LocalTime
from mandamus.core.facts import Limit
from mandamus.core.rulebook import ChainText, Document, Source, TierText, compiled
from mandamus.core.rulekinds import KINDS
from mandamus.core.strict import NoFile, Written
from mandamus.errors import Misuse
from tests.core.policy_world import ADMIN, ANYTHING, ASK, CLOSE, FRIDAY, LOOK, MAIL, PAY, WIRE, WRITE, cedar, facts, judged

GOLDEN = Path(__file__).parent.parent / "golden" / "rules"
CHAINS = {"treasury": {"tiers": [{"quorum": 2, "roles": ["treasurer"]}]}}
SATURDAY = LocalTime("2026-11-21", 10, 0, "UTC", "saturday")


def at(hour: int, minute: int = 0, tz: str = "UTC") -> LocalTime:
    return LocalTime("2026-11-20", hour, minute, tz, "friday")


def kind(name: str, **settings: Any) -> dict[str, Any]:
    return {"id": "r", name: settings}


EXAMPLES: dict[str, dict[str, Any]] = {
    "permit": kind("permit", role="treasury", safety=["read", "financial"], tool="pay", maxAmount="1000.00 USD"),
    "toolAllowlist": kind("toolAllowlist", tools=["look", "pay"]),
    "toolDenylist": kind("toolDenylist", tools=["wire"]),
    "maxAmount": kind("maxAmount", limit="1000.00 USD"),
    "maxDailyLimit": kind("maxDailyLimit", limit="1000.00", currency="USD", per="tenant"),
    "dualApproval": kind("dualApproval", over="1000.00 USD"),
    "needsApproval": kind("needsApproval", quorum=2, roles=["officer"], safety="privileged"),
    "needsEvidence": kind("needsEvidence", level="witnessed", over="1000.00 USD", within="30m"),
    "noWritesOn": kind("noWritesOn", weekdays=["Fri"], dates=["2026-12-25"], tz="Europe/Paris"),
    "workingHours": {**kind("workingHours", **{"from": "08:00", "to": "18:30", "weekdays": ["monday", "friday"]}), "tenant": "t"},
    "recipientAllowlist": kind("recipientAllowlist", recipients=["acme", "bürger"]),
    "stepBudget": {**kind("stepBudget", turns=20, calls=50), "on_deny": "halt", "name": "Steps", "reason": "too many"},
}


def test_every_kind_has_an_example() -> None:
    assert EXAMPLES.keys() == KINDS.keys()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_golden(name: str) -> None:
    text = compiled([Source({"rules": [EXAMPLES[name]]}, NoFile("policies"))]).cedar
    file = GOLDEN / f"{name}.cedar"
    if os.environ.get("GOLDEN_UPDATE"):
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")


# rule, then (facts, verdict) with everything else permitted
TABLE: list[tuple[dict[str, Any], list[tuple[Any, str]]]] = [
    (
        kind("toolDenylist", tools=["wire", "ask_helper"]),
        [(facts(PAY), "allow"), (facts(WIRE), "deny"), (facts(ASK), "deny"), (facts(LOOK), "allow")],
    ),
    (kind("toolAllowlist", tools=["pay"]), [(facts(PAY), "allow"), (facts(WIRE), "deny"), (facts(ASK), "deny")]),
    (
        kind("maxAmount", limit="500.00 USD"),
        [
            (facts(minor=50_000), "allow"),
            (facts(minor=50_001), "deny"),
            (facts(minor=1, currency="EUR"), "deny"),
            (facts(CLOSE), "deny"),
            (facts(LOOK), "allow"),
        ],
    ),
    (
        kind("maxAmount", limit="500.00 USD", tools="wire"),
        [(facts(PAY, minor=9**9), "allow"), (facts(WIRE, minor=50_001), "deny"), (facts(CLOSE), "allow")],
    ),
    (
        kind("dualApproval", over="500.00 USD"),
        [
            (facts(minor=50_000), "allow"),
            (facts(minor=50_001), "escalate"),
            (facts(minor=1, currency="EUR"), "escalate"),
            (facts(CLOSE), "escalate"),
            (facts(minor=50_001, met=("default",)), "allow"),
            (facts(minor=50_001, met=("other",)), "escalate"),
            (facts(minor=50_001, allowed=("default",)), "escalate"),
            (facts(LOOK), "allow"),
        ],
    ),
    (
        kind("dualApproval", over="500.00 USD", standing="enough"),
        [
            (facts(minor=50_001, allowed=("default",)), "allow"),
            (facts(minor=50_001, allowed=("other",)), "escalate"),
            (facts(minor=50_001, met=("default",)), "allow"),
            (facts(minor=50_001), "escalate"),
        ],
    ),
    (kind("dualApproval"), [(facts(minor=0), "escalate"), (facts(WRITE), "allow")]),
    (
        kind("needsApproval", roles="officer", safety=["privileged", "write"]),
        [
            (facts(ADMIN), "escalate"),
            (facts(ADMIN, met=("r",)), "allow"),
            (facts(WRITE, allowed=("r",)), "escalate"),
            (facts(LOOK), "allow"),
        ],
    ),
    (
        kind("noWritesOn", weekdays=["friday"], dates=["2026-12-24"]),
        [
            (facts(WRITE), "deny"),
            (facts(PAY), "deny"),
            (facts(LOOK), "allow"),
            (facts(WRITE, at=SATURDAY), "allow"),
            (facts(WRITE, at=LocalTime("2026-12-24", 1, 1, "UTC", "thursday")), "deny"),
        ],
    ),
    (
        kind("noWritesOn", weekdays=["sunday"], tz="Europe/Paris"),
        [(facts(WRITE), "deny"), (facts(WRITE, at=at(10, tz="Europe/Paris")), "allow"), (facts(LOOK), "allow")],
    ),
    (
        kind("workingHours", **{"from": "08:00", "to": "18:30"}),
        [
            (facts(at=at(7, 59)), "deny"),
            (facts(at=at(8)), "allow"),
            (facts(at=at(18, 29)), "allow"),
            (facts(at=at(18, 30)), "deny"),
            (facts(LOOK, at=at(3)), "allow"),
        ],
    ),
    (
        kind("workingHours", **{"from": "22:00", "to": "06:00", "safety": "financial"}),
        [(facts(at=at(23)), "allow"), (facts(at=at(5, 59)), "allow"), (facts(at=at(6)), "deny"), (facts(WRITE, at=at(12)), "allow")],
    ),
    (
        kind("workingHours", **{"from": "00:00", "to": "24:00", "weekdays": ["mon"]}),
        [(facts(), "deny"), (facts(at=LocalTime("2026-11-23", 0, 0, "UTC", "monday")), "allow")],
    ),
    (
        kind("recipientAllowlist", recipients=["acme"]),
        [(facts(to="acme"), "allow"), (facts(to="evil"), "deny"), (facts(CLOSE), "deny"), (facts(MAIL, to="evil"), "allow")],
    ),
    (
        kind("recipientAllowlist", recipients=["acme"], argument="to", tools="mail"),
        [(facts(MAIL, to="acme"), "allow"), (facts(MAIL, to="evil"), "deny"), (facts(to="evil"), "allow")],
    ),
    (
        kind("stepBudget", turns=3, calls=5),
        [(facts(turn=3, calls=4), "allow"), (facts(turn=4), "deny"), (facts(calls=5), "deny")],
    ),
    (
        {**kind("toolDenylist", tools="pay"), "tenant": "other"},
        [(facts(), "allow"), (facts(tenant="other"), "deny")],
    ),
]


@pytest.mark.parametrize(("rule", "rows"), TABLE, ids=lambda x: next(k for k in x if k in KINDS) if isinstance(x, dict) else "")
def test_truth_table(rule: dict[str, Any], rows: list[tuple[Any, str]]) -> None:
    engine = cedar(rule) if "toolAllowlist" in rule else cedar(ANYTHING, rule)
    assert [judged(engine, question).verdict for question, _ in rows] == [verdict for _, verdict in rows]


def test_permit_is_needed_and_permits_add_up() -> None:
    small = {"id": "small", "permit": {"role": "treasury", "safety": "financial", "maxAmount": "500.00 USD"}}
    engine = cedar(small, {"id": "chief", "permit": {"role": ["chief", "board"]}})
    cases = [
        (facts(), "allow", "small"),
        (facts(minor=50_001), "deny", ""),
        (facts(currency="EUR"), "deny", ""),
        (facts(CLOSE), "deny", ""),
        (facts(LOOK), "deny", ""),
        (facts(roles=()), "deny", ""),
        (facts(LOOK, roles=("board",)), "allow", "chief"),
        (facts(ASK, roles=("chief",)), "allow", "chief"),
    ]
    for question, verdict, rule in cases:
        judgement = judged(engine, question)
        assert judgement.verdict == verdict
        assert [d.id for d in judgement.determining] == ([rule] if rule else [])
        assert judgement.reason == ("" if rule else "no_match")


def test_daily_limit_counts_what_was_spent_and_names_the_account() -> None:
    engine = cedar(ANYTHING, {"rule": "maxDailyLimit", "params": {"limit": "1000.00 USD"}})
    assert engine.book.limits == (Limit(id="maxDailyLimit", limit=100_000, currency="USD"),)
    for spent, minor, verdict in [(0, 100_000, "allow"), (1, 100_000, "deny"), (100_000, 0, "allow"), (2**53 - 1, 2**53 - 1, "deny")]:
        assert judged(engine, facts(minor=minor, sums={"maxDailyLimit": spent})).verdict == verdict


def test_a_limit_per_counterparty_denies_who_names_none() -> None:
    engine = cedar(ANYTHING, {"id": "each", "maxDailyLimit": {"limit": "10.00 USD", "per": "counterparty"}})
    assert engine.book.limits == (Limit(id="each", limit=1000, currency="USD", per="counterparty"),)
    for to, spent, verdict, rule in [
        ("acme", 0, "allow", "any"),
        ("acme", 1, "deny", "each"),
        ("", 0, "deny", "each.unnamed"),
    ]:
        told = judged(engine, facts(minor=1000, to=to, sums={"each": spent}))
        assert (told.verdict, [d.id for d in told.determining]) == (verdict, [rule])


def test_a_currency_that_no_limit_knows_does_not_slip_under_it() -> None:
    usd, eur = {"id": "usd", "maxDailyLimit": {"limit": "10.00 USD"}}, {"id": "eur", "maxDailyLimit": {"limit": "20.00 EUR"}}
    alone, both = cedar(ANYTHING, usd), cedar(ANYTHING, usd, eur)
    told = judged(alone, facts(minor=1, currency="EUR", sums={"usd": 0}))
    assert (told.verdict, [d.id for d in told.determining]) == ("deny", ["usd.uncounted"])
    none_spent = {"usd": 0, "eur": 0}
    for currency, minor, verdict in [
        ("EUR", 2000, "allow"),
        ("EUR", 2001, "deny"),
        ("USD", 1000, "allow"),
        ("USD", 1001, "deny"),
        ("JPY", 1, "deny"),
    ]:
        assert judged(both, facts(minor=minor, currency=currency, sums=none_spent)).verdict == verdict


def test_a_currency_known_in_another_scope_is_not_known_here() -> None:
    engine = cedar(
        ANYTHING,
        {"id": "a", "maxAmount": {"limit": "10.00 USD", "tools": "pay"}},
        {"id": "b", "maxAmount": {"limit": "20.00 EUR", "tools": "wire"}},
    )
    assert judged(engine, facts(PAY, minor=1, currency="EUR")).verdict == "deny"
    assert judged(engine, facts(WIRE, minor=1, currency="EUR")).verdict == "allow"


def test_a_vote_never_overrides_a_deny() -> None:
    engine = cedar(ANYTHING, kind("dualApproval", over="1.00 USD"), {"id": "max", "maxAmount": {"limit": "500.00 USD"}})
    assert judged(engine, facts(minor=50_000)).verdict == "escalate"
    assert judged(engine, facts(minor=50_001)).verdict == "deny"
    assert judged(engine, facts(minor=50_001, met=("default",))).verdict == "deny"


def test_escalations_join_largest_quorum_and_all_chains() -> None:
    rules = [
        {"id": "a", "dualApproval": {"quorum": 2}},
        {"id": "b", "needsApproval": {"quorum": 3, "chain": "default", "safety": "financial"}},
        {"id": "c", "needsApproval": {"roles": "legal", "tools": "pay"}},
    ]
    judgement = judged(cedar(ANYTHING, *rules), facts())
    assert [(a.chain, a.quorum) for a in judgement.asks] == [("c", 1), ("default", 3)]
    assert judged(cedar(ANYTHING, *rules), facts(met=("c", "default"))).verdict == "allow"


def test_a_missing_permit_hides_behind_an_escalation_until_all_is_met() -> None:
    """The caller asks hypothetically: with every ask met the same facts are denied, so nobody need be bothered."""
    engine = cedar(kind("dualApproval"))
    assert judged(engine, facts()).verdict == "escalate"
    hypothetical = judged(engine, facts(met=("default",)))
    assert (hypothetical.verdict, hypothetical.reason) == ("deny", "no_match")


def test_order_means_nothing() -> None:
    rules = [
        ANYTHING,
        kind("dualApproval", over="1.00 USD"),
        {"id": "max", "maxAmount": {"limit": "500.00 USD"}},
        {"id": "no", "toolDenylist": {"tools": "wire"}},
    ]
    one, two = cedar(*rules), cedar(*reversed(rules))
    for question in (facts(), facts(minor=60_000), facts(WIRE), facts(LOOK), facts(at=SATURDAY)):
        a, b = judged(one, question), judged(two, question)
        assert replace(a, policy="") == replace(b, policy="")


def test_on_deny_halts_where_the_rule_says_so() -> None:
    engine = cedar(ANYTHING, {**kind("toolDenylist", tools="wire"), "on_deny": "halt"}, {"id": "soft", "toolDenylist": {"tools": "pay"}})
    assert judged(engine, facts(WIRE)).on_deny == "halt"
    assert judged(engine, facts(PAY)).on_deny == "feedback"


def test_proposed_on_thursday_voted_on_friday() -> None:
    engine = cedar(ANYTHING, kind("dualApproval"), {"id": "friday", "noWritesOn": {"weekdays": "friday"}})
    thursday = LocalTime("2026-11-19", 23, 50, "UTC", "thursday")
    assert judged(engine, facts(at=thursday)).verdict == "escalate"
    assert judged(engine, facts(at=FRIDAY, met=("default",))).verdict == "deny"


def test_whatever_a_person_writes_knows_its_keys() -> None:
    """What is read in one go refuses an unknown key by itself: a form inside it that did not would drop a limit in silence."""

    def forms(kind: mi.Type) -> Iterator[type]:
        if isinstance(kind, mi.StructType):
            yield kind.cls
        inner = [*getattr(kind, "types", ()), *(f.type for f in getattr(kind, "fields", ()))]
        inner += [x for name in ("item_type", "key_type", "value_type") if isinstance(x := getattr(kind, name, None), mi.Type)]
        for one in inner:
            yield from forms(one)

    found = {form for written in every_form(Written) for form in forms(mi.type_info(written))}
    assert {Document, ChainText, TierText, *(settings for settings, _ in KINDS.values())} <= found
    assert [form for form in found if not issubclass(form, Written) or not form.__struct_config__.forbid_unknown_fields] == []


def every_form(base: type) -> list[type]:
    return [form for direct in base.__subclasses__() for form in (direct, *every_form(direct))]


def test_sound_rules_are_read_without_looking_for_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for the place of a mistake costs more than everything else that opening an agent does to its rules."""
    searched: list[Any] = []
    search = mi.type_info

    def counted(form: Any) -> mi.Type:
        searched.append(form)
        return search(form)

    monkeypatch.setattr(mi, "type_info", counted)
    book = {"rules": [ANYTHING, kind("needsApproval", chain="treasury"), {**kind("maxAmount", limit="1.00 USD"), "id": "m"}]}
    assert len(compiled([Source(book | {"chains": CHAINS}, NoFile("rules"))]).policies) == 4
    assert searched == []
    with pytest.raises(Misuse, match="unknown key 'quorun'"):
        compiled([Source({"rules": [kind("needsApproval", quorun=2)]}, NoFile("rules"))])
    assert searched != []
