"""Rules in code: what they may answer, and what every other answer is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import force_setattr, replace

from mandamus.core.facts import FactEnvelope
from mandamus.core.records import Ask
from mandamus.core.verdicts import Verdict, allow, deny, escalate
from mandamus.drivers.policy_python import PythonRules, Rule, always, rule
from mandamus.errors import EngineFault, Misuse
from mandamus.ports import PolicyEngine
from tests.core.policy_world import facts, judged


@rule("no-friday", "No payment on Fridays")
def no_friday(facts: FactEnvelope) -> Verdict | None:
    return deny("it is Friday") if facts.clock.weekday == "friday" and facts.action.safety == "financial" else None


@rule("treasury-pays")
def treasury_pays(facts: FactEnvelope) -> str | None:
    return "allow" if "treasury" in facts.principal.roles else None


@rule("two")
def two(facts: FactEnvelope) -> Verdict | None:
    return None if "treasury" in facts.people.met else escalate("treasury", 2, "two treasurers")


@rule("three")
def three(facts: FactEnvelope) -> Verdict | None:
    return None if "treasury" in facts.people.met else escalate("treasury", 3)


def fixed(answer: Any, name: str = "fixed") -> Rule:
    return Rule(name, "", lambda facts: answer, "0" * 64)


MONDAY = replace(facts().clock, weekday="monday", date="2026-11-23")


def test_a_rule_denies_with_its_words() -> None:
    judgement = judged(PythonRules.of([no_friday, treasury_pays]), facts())
    assert (judgement.verdict, judgement.reason) == ("deny", "forbidden")
    assert [(d.id, d.name, d.reason, d.verdict) for d in judgement.determining] == [
        ("no-friday", "No payment on Fridays", "it is Friday", "deny"),
    ]


def test_no_opinion_is_no_permit() -> None:
    judgement = judged(PythonRules.of([no_friday]), facts(at=MONDAY))
    assert (judgement.verdict, judgement.reason, judgement.determining) == ("deny", "no_match", ())
    assert judged(PythonRules.of([]), facts()).reason == "no_match"


def test_a_rule_may_give_the_permit() -> None:
    assert judged(PythonRules.of([no_friday, treasury_pays]), facts(at=MONDAY)).verdict == "allow"


def test_escalations_join_and_end_when_they_are_met() -> None:
    engine = PythonRules.of([two, three, treasury_pays])
    assert judged(engine, facts()).asks == (Ask(chain="treasury", quorum=3),)
    assert judged(engine, facts(met=("treasury",))).verdict == "allow"


def test_strongest_answer_wins_in_any_order() -> None:
    rules = [fixed("allow", "a"), fixed(escalate(), "e"), fixed(deny(halt=True), "d")]
    for order in (rules, rules[::-1]):
        judgement = judged(PythonRules.of(order), facts())
        assert (judgement.verdict, judgement.on_deny, judgement.asks) == ("deny", "halt", ())


def test_a_plain_escalate_asks_the_default_chain() -> None:
    assert judged(PythonRules.of([fixed("escalate")]), facts()).asks == (Ask(chain="default", quorum=1),)


@pytest.mark.parametrize(
    "answer",
    [
        True,
        False,
        1,
        "ALLOW",
        "",
        [],
        ("allow",),
        b"allow",
        object(),
        Exception(),
        Verdict(verdict="deny", asks=(Ask(chain="c", quorum=1),)),
    ],
    ids=lambda v: type(v).__name__,
)
def test_any_other_answer_is_an_error(answer: Any) -> None:
    judgement = judged(PythonRules.of([fixed("allow", "a"), fixed(answer, "x")]), facts())
    assert (judgement.verdict, judgement.determining) == ("error", ())
    assert judgement.errors[0].startswith("rule x answered ")


def test_a_forged_verdict_is_an_error() -> None:
    class Sub(Verdict, frozen=True):
        pass

    odd = [allow(), escalate(), escalate(quorum=0), Sub(verdict="allow")]
    force_setattr(odd[0], "verdict", "permit")
    force_setattr(odd[1], "asks", ())
    for answer in odd:
        assert judged(PythonRules.of([fixed(answer)]), facts()).verdict == "error"


def test_an_exception_is_an_error_that_quotes_nothing() -> None:
    @rule("bad")
    def bad(facts: FactEnvelope) -> None:
        raise ValueError(facts.args["to"])

    judgement = judged(PythonRules.of([bad, treasury_pays]), facts())
    assert (judgement.verdict, judgement.errors) == ("error", ("rule bad raised ValueError",))


def test_an_answer_after_the_deadline_is_an_error() -> None:
    for elapsed, verdict in ((50_000_000, "allow"), (50_000_001, "error")):
        ticks = iter((1_000, 1_000 + elapsed))
        assert judged(PythonRules.of([treasury_pays], now=lambda ticks=ticks: next(ticks)), facts()).verdict == verdict


@pytest.mark.parametrize("where", ["args", "amount", "sums", "struct"])
def test_no_rule_can_change_what_the_next_one_sees(where: str) -> None:
    def meddle(facts: Any) -> Any:
        if where == "args":
            facts.args["to"] = "evil"
        elif where == "amount":
            facts.args["amount"]["amount"] = "1"
        elif where == "sums":
            facts.sums["x"] = 0
        else:
            facts.action.safety = "read"

    question = facts(sums={"x": 1})
    assert judged(PythonRules.of([Rule("m", "", meddle, "0" * 64)]), question).verdict == "error"
    assert question == facts(sums={"x": 1})


def test_bad_facts_are_an_error_before_any_rule_is_asked() -> None:
    asked: list[Any] = []
    engine = PythonRules.of([Rule("spy", "", lambda facts: asked.append(facts), "0" * 64)])
    assert judged(engine, replace(facts(), run=None)).verdict == "error"
    assert asked == []


def test_the_digest_is_of_the_source() -> None:
    def made(text: str) -> str:
        names: dict[str, Any] = {"rule": rule}
        import linecache

        linecache.cache["<rule>"] = (len(text), None, text.splitlines(keepends=True), "<rule>")
        exec(compile(text, "<rule>", "exec"), names)
        return PythonRules.of([names["f"]]).digest()

    one = '@rule("f")\ndef f(facts):\n    return None\n'
    assert made(one) == made(one)
    assert made(one) != made(one.replace("None", '"allow"'))
    assert made(one) != made(one.replace('rule("f")', 'rule("f", "named")'))
    assert PythonRules.of([no_friday, two]).digest() == PythonRules.of([two, no_friday]).digest()


def test_check_sees_a_rule_that_is_not_the_one_that_was_digested() -> None:
    asyncio.run(PythonRules.of([no_friday]).check())
    with pytest.raises(EngineFault):
        asyncio.run(PythonRules.of([replace(no_friday, source_digest="0" * 64)]).check())


def test_what_is_no_rule_is_refused() -> None:
    captured = "friday"

    async def later(facts: Any) -> None: ...

    def captures(facts: Any) -> Any:
        return "deny" if facts.clock.weekday == captured else None

    for fn, what in ((later, "plain function"), (captures, "may not capture"), (len, "plain function")):
        with pytest.raises(Misuse, match=what):
            rule("x")(fn)
    with pytest.raises(Misuse, match="not an id"):
        rule("ask.rejected")
    with pytest.raises(Misuse, match="is there twice"):
        PythonRules.of([two, two])
    with pytest.raises(Misuse, match="not a rule"):
        PythonRules.of([lambda facts: None])  # type: ignore[list-item]


def test_a_fixed_engine_for_tests_and_measurements() -> None:
    for verdict in ("allow", "deny", "escalate"):
        engine: PolicyEngine = PythonRules.of([always(verdict)])
        assert isinstance(engine, PolicyEngine)
        assert judged(engine, facts()).verdict == verdict
    assert len({PythonRules.of([always(v)]).digest() for v in ("allow", "deny", "escalate")}) == 3


def test_priority_is_accepted_and_orders_nothing() -> None:
    high = rule("high", priority=99)(treasury_pays.fn)
    assert judged(PythonRules.of([high, no_friday]), facts()).verdict == "deny"


def test_rules_in_code_need_no_cedar() -> None:
    code = "import sys; import mandamus.drivers.policy_python; sys.exit('cedarpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
