"""What a run uses and what it waits for, as `runs`, `show` and `verify` tell it: money beside tokens, a child beside people."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mandamus.cli import shapes
from tests.e2e.cli_world import AGENT, World

MORE = """
from mandamus import Budget, Price

priced = Agent(name="counter", model=ScriptedModel(["done"]), price=Price(input="1000.00 USD", output="2000.00 USD"),
               max_output=10, budget=Budget(cost="5.00 USD", tokens=9000))
boss = Agent(name="boss", purpose="p", model=ScriptedModel([Step(calls=(("handoff_payout-bot", {"task": "pay"}),)), "done"]),
             policies=[{"id": "h", "permit": {"tool": "handoff_payout_bot"}}], handoffs=[agent], budget=Budget(calls=9))
"""


@pytest.fixture
def world(world: World, tmp_path: Path) -> World:
    (tmp_path / "payout.py").write_text(AGENT + MORE.replace("handoff_payout-bot", "handoff_payout_bot"), encoding="utf-8")
    return world


def test_money_is_shown_beside_tokens_and_its_bundle_is_proved(world: World) -> None:
    world.ok("run", "payout.py:priced", "Go")
    shown = world.ok("show", "last").out
    assert "15 tokens, 0 calls, 0.020000 USD of 5.000000 USD" in shown
    assert world.ok("show", "last", "--json").data["spent"]["cost"] == 20_000
    assert "1,000.000000 USD in, 2,000.000000 USD out" in world.ok("show", "last", "--events").out
    world.ok("bundle", "last", "-o", "b.bundle")
    assert "within what the genesis allows" in world.ok("verify", "b.bundle", "--trust", ".mandamus/trust").out


def test_a_run_that_waits_for_a_child_says_so_and_for_whom(world: World) -> None:
    world.people()
    assert world("run", "payout.py:boss", "Pay").code == 4
    rows = {row["agent"]: row for row in world.ok("runs", "--json").stream}
    assert (rows["boss"]["state"], rows["boss"]["waits_for"]) == ("suspended", "child")
    child = rows["payout-bot"]["run"]
    assert rows["boss"] in world.ok("runs", "--state", "suspended", "--json").stream
    told = world.ok("show", rows["boss"]["run"], "--json").data
    assert (told["state"], told["turn_of"]) == ("suspended", "waits for a child run")
    assert told["why"] == [f"1.1 waits for child run {child}, which waits for people: mandamus show {child}"]
    assert "waits for a child run" in world.ok("show", rows["boss"]["run"]).out
    item = world.ok("inbox", "--json").stream[0]
    for who in ("alice", "bob"):
        assert world.approve(item, who).code == 0
    world.ok("resume", rows["boss"]["run"], "--agent", "payout.py:boss")
    shown = world.ok("show", rows["boss"]["run"]).out
    assert " tokens, 1 call, children 1 call\n" in shown, "tokens of children are counted where the budget limits them, and nowhere else"
    msgspec.convert(world.ok("show", rows["boss"]["run"], "--json").data, shapes.Shown, strict=True)
