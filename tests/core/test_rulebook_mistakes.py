"""A rule that is written wrongly is refused with its place and the nearest right word, never dropped."""

from __future__ import annotations

from typing import Any

import pytest

from mandamus.core.rulebook import Source, compiled
from mandamus.core.strict import NoFile
from mandamus.errors import Diagnosis, Misuse
from tests.core.policy_world import NAMES

LIMIT = {"limit": "1.00 USD"}


def refused(document: Any) -> Diagnosis:
    with pytest.raises(Misuse) as caught:
        compiled([Source(document, NoFile("policies"))], NAMES)
    return caught.value.diagnosis


MISTAKES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"id": "a", "maxDailyLimt": LIMIT}, "unknown kind of rule", ".rules[0].maxDailyLimt", "did you mean maxDailyLimit?"),
    ({"rule": "maxdailylimit", "params": LIMIT}, "unknown kind of rule", ".rules[0].rule", "did you mean maxDailyLimit?"),
    ({"id": "a", "maxAmount": {"limt": "1.00 USD"}}, "unknown key 'limt'", ".rules[0].maxAmount.limt", "did you mean limit?"),
    ({"rule": "maxAmount", "params": {"limit": "1.00 USD", "tool": "pay"}}, "unknown key 'tool'", ".params.tool", "did you mean tools?"),
    ({"rule": "maxAmount", "params": LIMIT, "reson": "x"}, "unknown key 'reson'", ".rules[0].reson", ""),
    ({"id": "a", "maxAmount": LIMIT, "permit": {}}, "two kinds in one rule", ".rules[0]", ""),
    ({"id": "a"}, "no kind of rule", ".rules[0]", ""),
    ({"id": "a", "maxAmount": {}}, "missing required field `limit`", ".rules[0].maxAmount", ""),
    ({"id": "a", "maxAmount": {"limit": 1000}}, "Expected `str`, got `int`", ".maxAmount.limit", ""),
    ({"id": "a", "maxAmount": {"limit": "1000.00"}}, "write it as 1000.00 USD", ".maxAmount.limit", ""),
    ({"id": "a", "maxAmount": {"limit": "1000.001 USD"}}, "USD has 2 decimals", ".maxAmount.limit", ""),
    ({"id": "a", "maxAmount": {"limit": "1.00 EUR", "currency": "USD"}}, "EUR is not the currency USD", ".maxAmount.limit", ""),
    ({"id": "a", "maxAmount": {"limit": "90071992547409.92 USD"}}, "does not fit", ".maxAmount.limit", ""),
    ({"id": "a", "permit": {"maxAmount": "-1 USD"}}, "amount", ".permit.maxAmount", ""),
    ({"id": "a", "permit": {"role": []}}, "role is empty", ".permit.role", "leave the key out"),
    ({"id": "a", "toolAllowlist": {"tools": []}}, "tools is empty", ".toolAllowlist.tools", "leave the key out"),
    ({"id": "a", "permit": {"safety": "finacial"}}, "unknown safety class", ".permit.safety", "did you mean financial?"),
    ({"id": "a", "permit": {"tool": "pya"}}, "names no tool", ".permit.tool", "did you mean pay?"),
    ({"id": "a", "toolDenylist": {"tools": ["pay", "wirre"]}}, "names no tool", ".toolDenylist.tools", "did you mean wire?"),
    ({"id": "a", "dualApproval": {"chain": "tresury"}}, "no chain", ".dualApproval.chain", "did you mean treasury?"),
    ({"id": "a", "dualApproval": {"quorum": 0}}, "quorum", ".dualApproval.quorum", ""),
    ({"id": "a", "needsApproval": {"chain": "treasury", "roles": "x"}}, "either chain or roles", ".needsApproval.roles", ""),
    ({"id": "a", "noWritesOn": {"weekdays": "fryday"}}, "unknown weekday", ".noWritesOn.weekdays", "did you mean friday?"),
    ({"id": "a", "noWritesOn": {"dates": ["25.12.2026"]}}, "not a date", ".noWritesOn.dates[0]", ""),
    ({"id": "a", "noWritesOn": {}}, "names no day", ".noWritesOn", ""),
    ({"id": "a", "workingHours": {"from": "8", "to": "18:00"}}, "not a time of day", ".workingHours.from", ""),
    ({"id": "a", "workingHours": {"from": "08:00", "to": "08:00"}}, "the same time", ".workingHours.to", ""),
    ({"id": "a", "stepBudget": {}}, "names no budget", ".stepBudget", ""),
    ({"id": "a", "stepBudget": {"turns": -1}}, "a whole number", ".stepBudget.turns", ""),
    ({"id": "ask.rejected", "permit": {}}, "not an id", ".rules[0].id", ""),
    ({"id": "a b", "permit": {}}, "not an id", ".rules[0].id", ""),
    ({"id": 7, "permit": {}}, "not an id", ".rules[0].id", ""),
    ({"id": "a", "permit": {}, "on_deny": "stop"}, "Invalid enum value", ".rules[0].on_deny", ""),
    ({"id": "a", "permit": "all"}, "Expected `object`", ".rules[0].permit", ""),
]


@pytest.mark.parametrize(("rule", "what", "where", "fix"), MISTAKES, ids=lambda x: x[:24] if isinstance(x, str) else None)
def test_rule(rule: dict[str, Any], what: str, where: str, fix: str) -> None:
    chains = {"treasury": {"tiers": [{"quorum": 1}]}}
    told = refused({"rules": [rule], "chains": chains})
    assert what in told.what
    assert told.where.endswith(where)
    assert fix in told.fix
    assert told.code.startswith("MDM-07")


def tier(**more: Any) -> dict[str, Any]:
    return {"chains": {"c": {"tiers": [{"quorum": 1, **more}]}}}


@pytest.mark.parametrize(
    ("document", "what", "where"),
    [
        ({"rule": []}, "unknown key 'rule'", ".rule"),
        ({"rules": {}}, "Expected `array`", ".rules"),
        ([], "Expected `object`", "policies"),
        ({"rules": ["permit"]}, "Expected `object`", ".rules[0]"),
        ({"rules": [{"id": "a", "permit": {}}, {"id": "a", "permit": {}}]}, "rule 'a' is there twice", ".rules[1].id"),
        ({"chains": {"c": {"tiers": []}}}, "has no tier", ".chains.c.tiers"),
        ({"chains": {"c d": {"tiers": [{"quorum": 1}]}}}, "not an id", ".chains.c d"),
        (tier(quorum=0), "quorum", ".tiers[0].quorum"),
        (tier(deadline="soon"), "not a length of time", ".tiers[0].deadline"),
        (tier(deadline="0m"), "not a length of time", ".tiers[0].deadline"),
        (tier(deadline=60), "Expected `str`", ".tiers[0].deadline"),
        (tier(sod=["boss"]), "Invalid enum value", ".tiers[0].sod[0]"),
        (tier(veot="x"), "unknown key 'veot'", ".tiers[0].veot"),
        (tier(quorum=2, of=["ann", "ann"]), "fewer people than the quorum", ".tiers[0].quorum"),
        ({"on_deny": "stop"}, "Invalid enum value", ".on_deny"),
    ],
)
def test_document(document: Any, what: str, where: str) -> None:
    told = refused(document)
    assert what in told.what
    assert told.where.endswith(where)


def test_the_list_of_known_kinds_is_told() -> None:
    told = refused({"rules": [{"id": "a", "rateLimit": {}}]})
    assert "maxDailyLimit" in told.expected
    assert "sanctioned" not in told.expected


def test_rules_without_an_id_are_named_after_their_kind() -> None:
    limit = {"rule": "maxAmount", "params": LIMIT}
    book = compiled([Source({"rules": [limit, {"id": "maxAmount.3", "permit": {}}, limit, limit]}, NoFile("x"))])
    assert sorted({name for name, _, _ in book.policies}) == ["maxAmount", "maxAmount.2", "maxAmount.3", "maxAmount.4"]


def test_two_documents_may_not_share_a_name() -> None:
    one = Source({"rules": [{"id": "a", "permit": {}}], "chains": {"c": {"tiers": [{"quorum": 1}]}}}, NoFile("one"))
    for other in ({"rules": [{"id": "a", "permit": {}}]}, {"chains": {"c": {"tiers": [{"quorum": 1}]}}}):
        with pytest.raises(Misuse, match="is there twice"):
            compiled([one, Source(other, NoFile("two"))])


def test_a_chain_is_read_whole() -> None:
    tiers = [
        {"quorum": 2, "of": "ann", "roles": ["treasurer"], "veto": "role:cfo", "deadline": "30m", "sod": ["author"]},
        {"quorum": 1, "roles": "cfo", "deadline": "2d"},
    ]
    chain = compiled([Source({"chains": {"c": {"tiers": tiers, "on_reject": "terminate"}}}, NoFile("x"))]).chains["c"]
    assert [(t.quorum, t.of, t.veto, t.deadline_ms, t.sod) for t in chain.tiers] == [
        (2, ("ann", "role:treasurer"), ("role:cfo",), 1_800_000, ("author",)),
        (1, ("role:cfo",), (), 172_800_000, ("requester", "author")),
    ]
    assert (chain.on_reject, chain.total_ms) == ("terminate", 174_600_000)
