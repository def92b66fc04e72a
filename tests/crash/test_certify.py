"""The certifier: safe agents pass, unsafe ones are found out, and what is no agent is refused with the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mandamus import Absent, Agent, Misuse, tool
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.testing.certify import certify
from mandamus.testing.crash import crash_everywhere
from tests.crash.stand import LARGE, PLAIN, SMALL, agent_of, pay_tool

EXAMPLES = Path(__file__).parents[2] / "examples" / "effects"
VERDICTS = {
    "read": "repeated at will",
    "idempotent": "repeated at will",
    "keyed": "exactly once",
    "reconcilable": "exactly once",
    "irreversible": "once, or people are asked",
}


@pytest.mark.parametrize("effect", VERDICTS)
def test_the_example_of_each_effect_class_is_certified(effect: str) -> None:
    report = certify(EXAMPLES / f"{effect}.py", pairs=40, sqlite=12)
    assert report.ok, report.text()
    (row,) = report.rows
    assert (row.effect, row.verdict) == (effect, VERDICTS[effect])
    assert row.deeds > 0
    assert row.in_doubt > 0, "no cut struck while the tool was at work"
    assert (row.duplicated, row.lost, row.unaccounted) == (0, 0, 0)
    assert bool(row.unknown) == (effect == "irreversible")
    assert report.ledgers == ("memory", "sqlite")
    assert {"before a write", "after a write", "before a model call"} <= set(report.places)
    assert any(place.startswith("after ") and place.endswith(row.tool) for place in report.places)


def test_a_run_that_waits_for_two_people_is_certified_with_their_votes() -> None:
    policies: Any = ({"id": "pay", "permit": {"safety": "financial"}}, {"id": "two", "dualApproval": {"over": "10.00 USD", "quorum": 2}})
    report = crash_everywhere(
        lambda: agent_of(pay_tool(), calls=(("pay", {"to": "A", "amount": LARGE}),), policies=policies), sqlite=0, pairs=60
    )
    assert report.ok, report.text()
    assert report.row("pay").verdict == "exactly once"


def test_a_reconciler_that_lies_is_found_out() -> None:
    """It says "absent" of what happened: the payment is made twice, and the report says so."""

    class Liar:
        async def find(self, operation_id: str) -> Absent:
            return Absent()

    report = crash_everywhere(lambda: agent_of(pay_tool("reconcilable", reconcile=Liar())), sqlite=0)
    assert not report.ok
    assert report.row("pay").duplicated > 0
    assert report.row("pay").verdict == "FAILED"
    assert "NOT SAFE" in report.text()


def test_a_tool_that_is_not_idempotent_is_found_out() -> None:
    count: list[int] = []

    @tool(safety="write", effect="idempotent", data=PLAIN)
    def add(n: int) -> int:
        """Add to a counter."""
        count.append(n)
        return len(count)

    agent = Agent(
        name="counter",
        model=ScriptedModel([Step(calls=(("add", {"n": 1}),)), "ok"]),
        tools=[add],
        policies=[{"permit": {"safety": "write"}}],
    )
    report = crash_everywhere(agent, sqlite=0)
    assert not report.ok
    assert report.row("add").verdict.startswith("NOT IDEMPOTENT")


def test_a_report_is_data_too() -> None:
    report = crash_everywhere(agent_of(pay_tool(), calls=(("pay", {"to": "A", "amount": SMALL}),)), sqlite=0)
    told = report.as_dict()
    assert told["ok"] is True
    assert told["rows"][0]["verdict"] == "exactly once"
    assert told["lives"] == sum(report.places.values()) + 2


@pytest.mark.parametrize(
    ("text", "target", "code"),
    [
        (None, "nowhere.py", "MDM-0283"),
        ("x = 1\n", "f.py", "MDM-0285"),
        ("raise ValueError('no')\n", "f.py", "MDM-0284"),
        ("agent = 3\n", "f.py:agent", "MDM-0285"),
        ("from mandamus import Agent\na = Agent(name='a', model='openai:x')\n", "f.py", "MDM-0282"),
        ("from mandamus import Agent\na = Agent(name='a', model='openai:x')\nb = Agent(name='b', model='openai:x')\n", "f.py", "MDM-0285"),
        (None, "no_such_module_here:agent", "MDM-0283"),
    ],
)
def test_what_cannot_be_certified_is_refused_with_its_reason(text: str | None, target: str, code: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "f.py").write_text(text)
    with pytest.raises(Misuse) as refused:
        certify(str(tmp_path / target) if ".py" in target else target)
    assert refused.value.diagnosis.code == code


def test_a_script_that_does_not_end_is_refused() -> None:
    agent = agent_of(pay_tool(), then=())
    with pytest.raises(Misuse) as refused:
        crash_everywhere(agent, sqlite=0)
    assert refused.value.diagnosis.code == "MDM-0280"
