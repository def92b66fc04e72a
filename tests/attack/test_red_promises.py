"""Attacks by drivers: models and policy engines of somebody else that break what their port promises.

What they say goes into records that are read for years. Whatever it is, the run can be read, verified and resumed afterwards.
"""

from __future__ import annotations

from typing import Any

import pytest

from mandamus import Agent
from mandamus.core.facts import Determining, Judgement
from mandamus.core.messages import Call, ModelAnswer, ModelFault
from mandamus.core.records import Ask, ModelReplied, Usage, decode
from tests.attack.red_votes import Engine, agent, env_of, payer, pays
from tests.attack.test_red_votes import story

HUGE = 2**60
ANSWERS: dict[str, tuple[Any, str]] = {
    "a count that is a float": (ModelAnswer("x", usage=Usage(input=1.5)), "completed"),  # type: ignore[arg-type]
    "a negative count": (ModelAnswer("x", usage=Usage(input=-500_000)), "completed"),
    "a huge count": (ModelAnswer("x", usage=Usage(output=HUGE)), "completed"),
    "counts of another type": (ModelAnswer("x", usage={"input": 1}), "completed"),  # type: ignore[arg-type]
    "a reason to stop that is none": (ModelAnswer("x", stop=3), "completed"),  # type: ignore[arg-type]
    "another reason to stop": (ModelAnswer("x", stop="because"), "completed"),  # type: ignore[arg-type]
    "bytes": (ModelAnswer(b"x"), "halted"),  # type: ignore[arg-type]
    "no text": (ModelAnswer(None), "halted"),  # type: ignore[arg-type]
    "calls that are none": (ModelAnswer("", calls=({"name": "x"},)), "halted"),  # type: ignore[arg-type]
    "a call whose name is a number": (ModelAnswer("", calls=(Call("1", 5, {}),)), "halted"),  # type: ignore[arg-type]
    "plain text": ("x", "halted"),
    "nothing": (None, "halted"),
    "a fault of an unknown kind": (ModelFault("nonsense", "x"), "halted"),
    "a fault of the loop": (ModelFault("lost", "x"), "halted"),
    "a fault that is no text": (ModelFault([], "x"), "halted"),  # type: ignore[arg-type]
    "a status in words": (ModelFault("server", "x", status="500"), "completed"),  # type: ignore[arg-type]
    "a huge status": (ModelFault("server", "x", status=HUGE), "completed"),
    "a wait that is a float": (ModelFault("server", "x", retry_after_ms=1.5), "completed"),  # type: ignore[arg-type]
    "a wait before now": (ModelFault("server", "x", retry_after_ms=-(10**9)), "completed"),
    "a wait beyond all time": (ModelFault("server", "x", retry_after_ms=10**18), "suspended"),
    "a part that is no text": (ModelFault("cut", "x", partial=b"\xff"), "completed"),  # type: ignore[arg-type]
}


class Model:
    """Answers as it is told, once; then as promised."""

    def __init__(self, first: Any) -> None:
        self.first, self.asked = first, 0

    async def generate(self, prompt: Any, settings: Any, on_delta: Any = None) -> Any:
        self.asked += 1
        if self.asked > 1:
            return ModelAnswer("end")
        if isinstance(self.first, Exception):
            raise self.first
        return self.first

    async def close(self) -> None:
        """There is nothing to give back."""


@pytest.mark.parametrize("how", list(ANSWERS))
def test_a_model_that_breaks_its_promise_leaves_a_run_that_can_be_read(how: str) -> None:
    given, state = ANSWERS[how]

    @story
    async def attack() -> None:
        env = await env_of()
        result = await Agent(name="b", purpose="talk", model=Model(given)).run("x", ledger=env)
        facts = [decode(raw).fact async for raw in env.ledger.read(result.run_id)]
        assert result.state == state
        for fact in facts:
            if isinstance(fact, ModelReplied):
                assert fact.usage.input > 0, "what is not believed is estimated: a negative count would be a gift"
                assert fact.usage.total < 10_000
                assert fact.stop in ("end", "other")

    attack()


def rule(**said: Any) -> Determining:
    return Determining(**({"id": "r", "verdict": "allow"} | said))


JUDGEMENTS: dict[str, Judgement] = {
    "an engine without a name": Judgement(verdict="allow", engine=7),  # type: ignore[arg-type]
    "a rule that is a number": Judgement(verdict="allow", determining=(rule(id=5),)),
    "half a character": Judgement(verdict="allow", determining=(rule(reason="\ud800"),)),
    "a rule longer than a record": Judgement(verdict="allow", determining=(rule(id="x" * 70_000),)),
    "more rules than a record holds": Judgement(verdict="allow", determining=tuple(rule(id=f"rule{n}") for n in range(9_000))),
    "no rules at all": Judgement(verdict="allow", determining=None),  # type: ignore[arg-type]
    "half a person": Judgement(verdict="escalate", asks=(Ask(chain="default", quorum=1.5),)),  # type: ignore[arg-type]
    "nobody": Judgement(verdict="escalate", asks=(Ask(chain="default", quorum=0),)),
    "more people than there are": Judgement(verdict="escalate", asks=(Ask(chain="default", quorum=2**70),)),
    "errors in one text": Judgement(verdict="error", errors="broken"),  # type: ignore[arg-type]
    "errors that are numbers": Judgement(verdict="error", errors=(5,)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("how", list(JUDGEMENTS))
def test_an_engine_that_breaks_its_promise_halts_the_run_and_starts_nothing(how: str) -> None:
    async def says(facts: Any) -> Judgement:
        return JUDGEMENTS[how]

    @story
    async def attack() -> None:
        env = await env_of()
        paid: list[str] = []
        result = await agent([payer(paid)], [Engine(says)], pays("acme")).run("x", ledger=env)
        facts = [decode(raw).fact async for raw in env.ledger.read(result.run_id)]
        assert (result.state, result.cause, paid) == ("halted", "engine", [])
        assert type(facts[-1]).__name__ == "RunHalted"

    attack()
