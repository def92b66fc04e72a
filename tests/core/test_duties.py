"""Start refusals, one duty after the other: refused with this code, and the smallest fix makes it start."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mandamus import Agent, tool
from mandamus.core.data import Retention
from mandamus.core.definition import AgentSpec, ToolSpec, pinned
from mandamus.core.duties import Reason, changed, needs_approval, reasons
from mandamus.core.facts import Chain, RuleBook, Tier
from mandamus.core.records import Anchor, BudgetLimits, Clock, Register, RunOpened
from mandamus.data import Business, Confidential, Personal, Public, SpecialCategory, none, subject
from mandamus.drivers.model_scripted import ScriptedModel

MODEL = ScriptedModel(["done"])
REVIEW = Chain(id="review", tiers=(Tier(quorum=1, of=("role:reviewer",)),))
PEOPLE: dict[str, Any] = {"approvers": ["p-ann"], "roles": {"reviewer": ("p-ann",)}}


async def look(who: str) -> str:
    """Look somebody up."""
    return who


PERSONAL = Personal(allowed_lawful_bases=("contract", "consent"), retention="standard", subject=subject("who"))
HEALTH = SpecialCategory(
    allowed_lawful_bases=("consent",), art9_basis="explicit_consent", retention="short", subject=subject("who"),
)  # fmt: skip


def made(data: Any, safety: Any = "read", **changes: Any) -> AgentSpec:
    """An agent with one tool that touches `data`."""
    contract = tool(safety=safety, data=data, effect="read" if safety == "read" else "keyed")(look)
    return Agent(**{"name": "desk", "purpose": "answer", "model": MODEL, "tools": [contract]} | changes).spec


def found(
    spec: AgentSpec, *, tier: str = "dev", chains: Any = (), default: Any = "deny", author: str = "", **people: Any
) -> tuple[Reason, ...]:
    book = RuleBook(digest="0" * 64, chains={c.id: c for c in chains}, default=default)
    return reasons(spec, book, tier=tier, isolation="in_process", author=author, **(PEOPLE | people))


def codes(*args: Any, **kwargs: Any) -> list[str]:
    return [r.code for r in found(*args, **kwargs)]


def bent(spec: AgentSpec, **changes: Any) -> AgentSpec:
    """The agent after somebody went round the types."""
    data = msgspec.structs.replace(spec.tools[0].data, **changes)
    return msgspec.structs.replace(spec, tools=(msgspec.structs.replace(spec.tools[0], data=data),))


def test_ai_act_19_retention_floor() -> None:
    """Records and decisions under the profile ai_act: 183 days. The smallest fix starts; without the profile no floor is asked for."""
    for hash_days, decision_days in ((90, 180), (180, 183), (90, 183)):
        low = Retention(id="low", content_days=30, hash_days=hash_days, decision_days=decision_days)
        data = msgspec.structs.replace(PERSONAL, retention="low")
        spec = made(data, retentions=[low], lawful_basis="contract", profile="ai_act")
        [reason] = found(spec)
        assert (reason.code, reason.articles) == ("retention_floor", "AI Act 19, 26(6)")
        assert codes(msgspec.structs.replace(spec, profile="gdpr")) == []
        high = Retention(id="low", content_days=30, hash_days=183, decision_days=183)
        assert codes(made(data, retentions=[high], lawful_basis="contract", profile="ai_act")) == []


def test_a_retention_that_nothing_uses_has_no_floor() -> None:
    unused = Retention(id="unused", content_days=1, hash_days=1, decision_days=1)
    assert codes(made(PERSONAL, retentions=[unused], lawful_basis="contract", profile="ai_act")) == []


# -- rows --------------------------------------------------------------------------------------------------------------------
def test_gdpr_6_basis_missing() -> None:
    assert codes(made(PERSONAL)) == ["basis_missing"]
    assert codes(made(PERSONAL, lawful_basis="contract")) == []


def test_gdpr_6_basis_mismatch() -> None:
    assert codes(made(PERSONAL, lawful_basis="vital_interests")) == ["basis_mismatch"]
    assert codes(made(PERSONAL, lawful_basis="consent")) == []


def test_gdpr_6_retention_narrows_the_bases() -> None:
    kept = Retention(id="mine", content_days=30, hash_days=30, decision_days=30, allowed_bases=("consent",))
    data = Personal(allowed_lawful_bases=("contract", "consent"), retention="mine", subject=subject("who"))
    assert codes(made(data, lawful_basis="contract", retentions=[kept])) == ["basis_mismatch"]
    assert codes(made(data, lawful_basis="consent", retentions=[kept])) == []


def test_gdpr_6_personal_data_inside_confidential_data() -> None:
    data = Confidential(retention="standard", subject=subject("who"), allowed_lawful_bases=("contract",))
    assert codes(made(data)) == ["basis_missing"]
    assert codes(made(data, lawful_basis="contract")) == []
    plain = Confidential(retention="standard", subject=none("own accounts"))
    assert codes(made(plain)) == []


def test_gdpr_5_1_b_purpose_missing() -> None:
    assert codes(made(PERSONAL, lawful_basis="contract", purpose=" ")) == ["purpose_missing"]
    assert codes(made(PERSONAL, lawful_basis="contract", purpose="answer")) == []


def test_gdpr_9_art9_missing() -> None:
    spec = made(HEALTH, lawful_basis="consent")
    assert codes(bent(spec, art9_basis="")) == ["art9_missing"]
    assert codes(spec) == []


def test_gdpr_17_subject_missing() -> None:
    spec = made(Business(retention="standard", subject=none("a price list")))
    assert codes(bent(spec, subject=None)) == ["subject_missing"]
    assert codes(spec) == []


def test_gdpr_17_a_reason_is_no_subject_of_personal_data() -> None:
    data = Confidential(retention="standard", subject=none("nobody"), allowed_lawful_bases=("contract",))
    assert codes(made(data, lawful_basis="contract")) == ["subject_missing"]


def test_gdpr_5_1_e_retention_missing() -> None:
    data = Business(retention="for ever", subject=none("a price list"))
    assert codes(made(data)) == ["retention_missing"]
    own = Retention(id="for ever", content_days=1, hash_days=1, decision_days=1)
    assert codes(made(data, retentions=[own])) == []
    assert codes(made(Public())) == []
    assert codes(made(Public(retention="nowhere"))) == ["retention_missing"]


def test_ai_act_14_oversight_missing() -> None:
    assert codes(made(Public(), annex_iii="employment")) == ["oversight_missing"]
    assert codes(made(Public(), annex_iii="employment", oversight="review")) == ["oversight_missing"]
    spec = made(Public(), annex_iii="employment", oversight="review")
    assert codes(spec, chains=[REVIEW], approvers=[]) == ["oversight_missing"]
    assert codes(spec, chains=[REVIEW], roles={"reviewer": ("p-bob",)}) == ["oversight_missing"]
    assert codes(spec, chains=[REVIEW]) == []


def test_gdpr_22_art22_unguarded() -> None:
    spec = made(Public(), "write", art22_decision=True, oversight="review")
    assert codes(spec) == ["art22_unguarded"]
    assert codes(spec, chains=[REVIEW], approvers=[]) == ["art22_unguarded"]
    assert codes(spec, chains=[REVIEW]) == []


def test_gdpr_22_a_decision_that_is_only_said() -> None:
    assert codes(made(Public(), "read", art22_decision=True, oversight="review"), chains=[REVIEW]) == ["art22_unguarded"]


def test_gdpr_22_every_deed_waits_for_people() -> None:
    spec = made(Public(), "write", art22_decision=True, oversight="review")
    assert needs_approval(spec, spec.tools[0])
    assert not needs_approval(msgspec.structs.replace(spec, art22_decision=False), spec.tools[0])
    assert not needs_approval(spec, made(Public(), "read").tools[0])


def test_dev_default() -> None:
    spec = made(Business(retention="standard", subject=none("own")), "financial")
    assert codes(spec, default="allow") == ["dev_default"]
    assert codes(spec) == []
    assert codes(made(Public()), default="allow") == []


def test_isolation_and_manifest_in_other_tiers() -> None:
    assert codes(made(Public()), tier="cloud") == ["isolation_missing", "manifest_unsigned"]
    assert codes(made(Public()), tier="sovereign", default="allow") == ["isolation_missing", "manifest_unsigned", "dev_default"]
    assert codes(made(Public()), tier="cloud", author="ann") == ["isolation_missing"]
    assert codes(made(Public())) == []


def test_noop_control() -> None:
    nobody = Chain(id="nobody", tiers=(Tier(quorum=0),))
    assert codes(made(Public()), chains=[nobody]) == ["noop_control"]
    assert codes(made(Public()), chains=[REVIEW]) == []
    oneself = Chain(id="review", tiers=(Tier(quorum=1, sod=("author",)),))
    assert codes(made(Public(), annex_iii="employment", oversight="review"), chains=[oneself]) == ["noop_control"]


# -- all of them -------------------------------------------------------------------------------------------------------------
def test_every_reason_is_found_at_once_and_says_how_to_mend_it() -> None:
    data = Personal(allowed_lawful_bases=("contract",), retention="nowhere", subject=subject("who"))
    spec = made(data, purpose="", annex_iii="justice", art22_decision=True)
    every = found(spec, tier="cloud", default="allow", chains=[Chain(id="nobody", tiers=(Tier(quorum=0),))])
    assert {r.code for r in every} == {
        "retention_missing",
        "basis_missing",
        "purpose_missing",
        "oversight_missing",
        "art22_unguarded",
        "noop_control",
        "isolation_missing",
        "manifest_unsigned",
        "dev_default",
    }
    assert all(r.what and r.fix for r in every)
    law = {"retention_missing", "basis_missing", "purpose_missing", "oversight_missing", "art22_unguarded", "noop_control"}
    assert all(r.articles for r in every if r.code in law)


@pytest.mark.parametrize("change", [{"annex_iii": "employment"}, {"art22_decision": True}])
def test_a_run_of_consequence_is_not_carried_on_by_another_agent(change: dict[str, Any]) -> None:
    before, after = made(Public(), **change), made(Public(), instructions="be strict", **change)
    assert [r.code for r in changed(after, _genesis(before))] == ["definition_changed"]
    assert changed(before, _genesis(before)) == ()
    assert changed(after, None) == ()
    assert changed(made(Public(), instructions="be strict"), _genesis(made(Public()))) == ()


def _genesis(spec: AgentSpec) -> RunOpened:
    return RunOpened(
        agent=spec.name, anchor=Anchor(root="", size=0), budget=BudgetLimits(), clock=Clock(0, 0, "UTC"), definition=spec.digest(),
        isolation="in_process", manifest="", nonce="", origin="", policy="", profile="none", register=Register(number=1, prev=""),
        tenant="default", tier="dev",
    )  # fmt: skip


def test_no_start_refusal_depends_on_the_order_of_tools() -> None:
    one, two = made(PERSONAL).tools[0], made(HEALTH).tools[0]
    other: ToolSpec = pinned(msgspec.structs.replace(two, name="look2"))
    spec = made(PERSONAL)
    there = msgspec.structs.replace(spec, tools=(one, other))
    back = msgspec.structs.replace(spec, tools=(other, one))
    assert sorted(r.what for r in found(there)) == sorted(r.what for r in found(back))
