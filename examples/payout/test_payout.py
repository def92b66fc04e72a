"""What this agent may do, as a table; what its story is, as a golden trace; and that the bank sees one payment."""

import asyncio
from pathlib import Path

import pytest
from agent import PROMPT, agent
from bank import get_balance, send_payment, statement

from mandamus import Agent
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.testing import Runner, assert_trace

POLICIES = str(Path(__file__).with_name("policies"))


@pytest.fixture(autouse=True)
def bank_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYOUT_BANK", str(tmp_path / "bank.jsonl"))


def runner_of(who: Agent) -> Runner:
    runner = Runner(who)
    runner.approver("p-alice", "treasurer")
    runner.approver("p-bob", "treasurer")
    return runner


# amount in cents, what policy says, payments
TABLE = [
    ("100", "allow", 1),
    ("1000000", "allow", 1),
    ("1000001", "escalate", 0),
    ("10000000", "escalate", 0),
    ("10000001", "deny", 0),
]


@pytest.mark.parametrize(("amount", "verdict", "payments"), TABLE)
def test_the_policy_table(amount: str, verdict: str, payments: int) -> None:
    pay = ("send_payment", {"to": "Acme", "amount": {"amount": amount, "currency": "USD", "decimals": 2}})
    model = ScriptedModel([Step(calls=(pay,)), "done"])
    runner = runner_of(Agent(name="table", model=model, tools=[get_balance, send_payment], policies=[POLICIES]))
    asyncio.run(runner.turn("pay"))
    assert next(e.fact.verdict for e in runner.events if e.type == "ActionJudged") == verdict
    assert len(statement()) == payments


def test_the_story() -> None:
    async def story() -> None:
        runner = runner_of(agent)
        assert (await runner.turn(PROMPT)).state == "suspended"
        assert (await runner.approve("p-alice")).state == "suspended"
        assert (await runner.approve("p-bob")).state == "completed"
        assert_trace(runner.events, "payout")

    asyncio.run(story())
    assert len(statement()) == 1
