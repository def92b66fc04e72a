"""The agent completes, and may do nothing that no rule permits."""

import asyncio
from pathlib import Path

from tools import tell_time

from mandamus import Agent
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.testing import Runner

HERE = Path(__file__).parent


def verdicts(who: Agent) -> list[str]:
    runner = Runner(who)
    assert asyncio.run(runner.turn("What time is it?")).state == "completed"
    return [e.fact.verdict for e in runner.events if e.type == "ActionJudged"]


def test_it_tells_the_time() -> None:
    assert verdicts(Agent.load(HERE / "agent.yaml")) == ["allow"]


def test_without_its_rule_it_may_not() -> None:
    model = ScriptedModel([Step(calls=(("tell_time", {}),)), "I may not."])
    assert verdicts(Agent(name="clock-bot", model=model, tools=[tell_time])) == ["deny"]
