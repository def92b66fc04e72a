"""The treasury kit: the scenario from balance to bundle, its refusals, and what it does when a control does not answer."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import Any

import pytest

from mandamus import Absent, Agent, Found, Misuse, Money
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.kits import treasury
from mandamus.kits.treasury import HmacEvidenceSigner, NoopSanctionScreener, Order, Screening, TransferReceipt
from mandamus.testing.runner import Runner

USD = {"USD": Money("10000000000", "USD", 6)}  # 10,000.00 USD, in six decimals
PAY = {"to": "Acme Suppliers", "amount": {"amount": "5000000", "currency": "USD", "decimals": 2}}
SECRET = b"a-shared-secret-of-at-least-32-bytes"


class Chain:
    """An executor that counts, and can be asked."""

    def __init__(self) -> None:
        self.paid: dict[str, Order] = {}

    async def transfer(self, order: Order, key: str) -> TransferReceipt:
        self.paid[key] = order
        return TransferReceipt(ref="0xabc123", key=key, chain="ethereum", confirmed_at=1)


class AskableChain(Chain):
    async def find(self, operation_id: str) -> Found | Absent:
        known = self.paid.get(operation_id)
        return Found(TransferReceipt(ref="0xabc123", key=operation_id)) if known else Absent("the node's own index")


class List:
    """A screener with an answer per party; what it does not know is a fault."""

    def __init__(self, **answers: str) -> None:
        self.answers, self.asked = answers, 0

    async def screen(self, party: str) -> Screening:
        self.asked += 1
        return Screening(result=self.answers[party.split()[0]], list_id="un-1267", list_version="2026-11")  # type: ignore[arg-type]


def balance() -> dict[str, Any]:
    return {"amount": "1000000000000", "currency": "USD", "decimals": 6}


def made(**changes: Any) -> treasury.Kit:
    given: dict[str, Any] = {"sanctions": NoopSanctionScreener(), "balance": balance, "transfer": Chain(), "dual_approval": USD}
    return treasury.kit("ops-suite-01", "payout-bot", **(given | changes))


def agent_of(kit: treasury.Kit, *steps: Any) -> Agent[str]:
    return Agent(name="Treasury Payout Agent", purpose="pay invoices", model=ScriptedModel(steps), tools=kit.tools, plugins=[kit.plugin])


def runner_of(agent: Agent[str]) -> Runner:
    runner = Runner(agent)
    for person in ("p-alice", "p-bob"):
        runner.approver(person)
    return runner


SCENARIO = (
    Step(calls=(("get_balance", {}),)),
    Step(calls=(("screen_counterparty", {"party": "Acme Suppliers"}),)),
    Step(calls=(("send_payment", PAY),)),
    "Acme has been paid.",
)


def test_the_seeds_scenario_balance_screening_two_people_one_payment_and_a_bundle() -> None:
    async def story() -> None:
        executor = Chain()
        kit = made(transfer=executor, evidence_signer=HmacEvidenceSigner("key-01", SECRET), sanctions=List(Acme="clear"))
        runner = runner_of(agent_of(kit, *SCENARIO))
        first = await runner.turn("Pay 50,000 USD to Acme Suppliers")
        assert (first.state, len(first.waiting), first.waiting[0].needed) == ("suspended", 1, 2)
        assert not executor.paid
        one = await runner.approve("p-alice")
        assert (one.state, one.waiting[0].needed) == ("suspended", 1)
        assert not executor.paid
        done = await runner.approve("p-bob")
        assert (done.state, done.output) == ("completed", "Acme has been paid.")
        assert [order.to for order in executor.paid.values()] == ["Acme Suppliers"]
        assert len(base64.b64decode(done.evidence_bundle.signature)) == 64
        output = next(e.values["output"] for e in runner.events if e.type == "ActionEnded" and "receipt" in str(e.values.get("output")))
        assert output["tag"]["label"] == "not evidence"
        assert output["screening"]["list_id"] == "un-1267"

    asyncio.run(story())


def test_below_the_threshold_nobody_is_asked_and_just_above_it_two_are() -> None:
    async def state(minor: str) -> str:
        pay = {"to": "Acme", "amount": {"amount": minor, "currency": "USD", "decimals": 2}}
        runner = runner_of(agent_of(made(), Step(calls=(("send_payment", pay),)), "done"))
        return (await runner.turn("pay")).state

    assert asyncio.run(state("1000000")) == "completed"
    assert asyncio.run(state("1000001")) == "suspended"


def test_a_currency_without_a_threshold_is_never_cheaper_than_one_with() -> None:
    async def story() -> None:
        pay = {"to": "Acme", "amount": {"amount": "1", "currency": "CHF", "decimals": 2}}
        runner = runner_of(agent_of(made(), Step(calls=(("send_payment", pay),)), "done"))
        assert (await runner.turn("pay")).state == "suspended"

    asyncio.run(story())


def test_a_payment_whose_answer_is_lost_is_asked_for_and_made_once() -> None:
    class Cut(AskableChain):
        async def transfer(self, order: Order, key: str) -> TransferReceipt:
            await super().transfer(order, key)
            raise ConnectionResetError

    async def story() -> None:
        executor = Cut()
        pay = {"to": "Acme", "amount": {"amount": "100", "currency": "USD", "decimals": 2}}
        runner = runner_of(agent_of(made(transfer=executor), Step(calls=(("send_payment", pay),)), "done"))
        assert (await runner.turn("pay")).state == "completed"
        assert len(executor.paid) == 1
        ended = next(e for e in runner.events if e.type == "ActionEnded")
        assert (ended.fact.result, ended.fact.via, ended.fact.output) == ("done", "reconciled", "valid")

    asyncio.run(story())


@pytest.mark.parametrize("answer", ["possible", "hit", "fault"])
def test_whoever_is_not_clear_at_the_moment_of_payment_gets_nothing(answer: str) -> None:
    async def story() -> None:
        executor = Chain()
        screener = List() if answer == "fault" else List(Acme=answer)
        pay = {"to": "Acme", "amount": {"amount": "100", "currency": "USD", "decimals": 2}}
        runner = runner_of(agent_of(made(sanctions=screener, transfer=executor), Step(calls=(("send_payment", pay),)), "it did not happen"))
        assert (await runner.turn("pay")).state == "completed"
        assert screener.asked >= 1
        assert not executor.paid

    asyncio.run(story())


def test_zero_is_no_payment() -> None:
    async def story() -> None:
        executor = Chain()
        pay = {"to": "Acme", "amount": {"amount": "0", "currency": "USD", "decimals": 2}}
        await runner_of(agent_of(made(transfer=executor), Step(calls=(("send_payment", pay),)), "no")).turn("pay")
        assert not executor.paid

    asyncio.run(story())


def test_the_effect_class_is_what_the_executor_can_do() -> None:
    by_name = {t.name: t for t in made().tools}
    assert by_name["send_payment"].spec.effect == "keyed"
    assert {t.name: t.spec.effect for t in made(transfer=AskableChain()).tools}["send_payment"] == "reconcilable"
    assert (by_name["get_balance"].spec.effect, by_name["screen_counterparty"].spec.effect) == ("read", "read")
    assert by_name["send_payment"].spec.safety == "financial"


def test_a_shared_key_tag_is_labelled_and_checks() -> None:
    signer = HmacEvidenceSigner("key-01", SECRET)
    order = Order(app_id="a", agent_id="b", to="Acme", amount=Money.of("1.00", "USD"))
    assert treasury.Tag(key_id="key-01", tag=signer.tag(order)).label == "not evidence"
    assert signer.tag(order) == HmacEvidenceSigner("key-02", SECRET).tag(order)
    assert SECRET.decode() not in repr(signer)


def test_what_is_weak_is_said_in_dev_and_refused_elsewhere() -> None:
    assert len(made(evidence_signer=HmacEvidenceSigner("k", SECRET)).notes) == 2
    assert made(sanctions=List()).notes == ()
    with pytest.raises(Misuse) as told:
        made(tier="cloud")
    assert told.value.diagnosis.code == "MDM-0812"
    with pytest.raises(Misuse):
        made(sanctions=List(), evidence_signer=HmacEvidenceSigner("k", SECRET), tier="sovereign")
    assert made(sanctions=List(), tier="cloud").tools


def test_a_weak_kit_that_is_run_in_another_tier_is_denied_by_its_own_rule() -> None:
    """The kit cannot know where it will run; the recorded facts do."""
    rules = [x for x in made().plugin.policies if callable(x)]
    assert [x.id for x in rules] == ["treasury.dev-only"]
    answers = [rules[0](SimpleNamespace(context=SimpleNamespace(tier=tier))) for tier in ("dev", "cloud")]
    assert answers[0] is None
    assert (answers[1].verdict, answers[1].on_deny) == ("deny", "halt")
    assert not [x for x in made(sanctions=List()).plugin.policies if callable(x)]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"idempotency": object()}, "MDM-0810"),
        ({"dual_approval": {}}, "MDM-0813"),
        ({"dual_approval": {"EUR": Money.of("1.00", "USD")}}, "MDM-0813"),
        ({"dual_approval": {"USD": Money("10000000001", "USD", 6)}}, "MDM-0813"),
        ({"transfer": "0xabc"}, "MDM-0814"),
        ({"balance": 12}, "MDM-0814"),
        ({"sanctions": None}, "MDM-0814"),
    ],
)
def test_a_kit_that_cannot_work_cannot_be_made(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(Misuse) as told:
        made(**changes)
    assert told.value.diagnosis.code == code


def test_a_short_secret_is_refused_and_not_quoted() -> None:
    with pytest.raises(Misuse) as told:
        HmacEvidenceSigner("k", b"hunter2")
    assert "hunter2" not in str(told.value)
