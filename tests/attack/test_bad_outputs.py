"""What a tool may answer: whatever comes back, the effect that happened is recorded as done, and nothing is lost or half-written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mandamus import Agent, Ctx, tool, wiring
from mandamus.core.records import AnyRecord, decode
from mandamus.data import Business, none
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.runtime.env import SystemTime
from mandamus.testing.virtual import VirtualTime, home

DATA = Business(subject=none("test"), retention="standard")
ANSWER: list[Callable[[], Any]] = []


@tool(safety="write", effect="keyed", data=DATA)
async def act(ctx: Ctx) -> Any:
    """Do something and answer."""
    return ANSWER[-1]()


@tool(safety="write", effect="keyed", data=DATA)
async def number(ctx: Ctx) -> int:
    """Do something and answer a number."""
    return ANSWER[-1]()  # type: ignore[no-any-return]


def deep() -> Any:
    value: Any = 0
    for _ in range(500):
        value = [value]
    return value


def around() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


async def carried(name: str, answer: Callable[[], Any]) -> tuple[Any, list[AnyRecord], list[str]]:
    ANSWER.append(answer)
    seen: list[str] = []

    def told(prompt: Any) -> str:
        seen.extend(m.text for m in prompt.messages if m.role == "tool")
        return "done"

    env = await wiring.open_env("memory:", time=VirtualTime(), home=home())
    agent: Agent[Any] = Agent(
        name="a", model=ScriptedModel([Step(calls=((name, {}),)), told]), tools=[act, number], policies=[{"id": "p", "permit": {}}]
    )
    result = await agent.run("go", ledger=env)
    return result, [decode(raw) async for raw in env.ledger.read(result.run_id)], seen


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (lambda: float("nan"), "invalid"),
        (lambda: float("inf"), "invalid"),
        (lambda: 2**53, "invalid"),
        (lambda: -(2**60), "invalid"),
        (lambda: "\ud800", "invalid"),
        (lambda: {"a": "\udfff"}, "invalid"),
        (lambda: {1, 2}, "valid"),
        (lambda: object(), "invalid"),
        (deep, "invalid"),
        (around, "invalid"),
        (lambda: {1: "a"}, "invalid"),
        (lambda: "x" * 300_000, "oversize"),
        (lambda: None, "valid"),
    ],
    ids=["nan", "inf", "2^53", "-2^60", "surrogate", "inner surrogate", "set", "object", "deep", "cycle", "int key", "300 kB", "none"],
)
def test_an_effect_that_happened_is_done_whatever_it_answers(answer: Callable[[], Any], output: str) -> None:
    result, records, _ = asyncio.run(carried("act", answer))
    ended = [r.fact for r in records if r.type == "ActionEnded"]
    assert [(e.result, e.output) for e in ended] == [("done", output)]  # type: ignore[attr-defined]
    assert result.state == "completed"
    assert records[-1].type == "RunSealed"


def test_a_hundred_megabytes_do_not_reach_the_log() -> None:
    result, records, seen = asyncio.run(carried("act", lambda: "x" * 100_000_000))
    ended = next(r for r in records if r.type == "ActionEnded")
    assert ended.fact.output == "oversize"  # type: ignore[attr-defined]
    assert not ended.body
    assert result.state == "completed"
    assert "could not be read" in seen[0]


def test_an_answer_of_the_wrong_type_is_invalid_and_never_failed() -> None:
    _, records, seen = asyncio.run(carried("number", lambda: "not a number"))
    ended = next(r.fact for r in records if r.type == "ActionEnded")
    assert (ended.result, ended.output) == ("done", "invalid")  # type: ignore[attr-defined]
    assert len(seen) == 1


def test_the_clock_never_goes_backwards_in_a_chain() -> None:
    class Backwards(VirtualTime):
        def now(self) -> int:
            self._now -= 5_000_000
            return self._now

    async def tell() -> list[int]:
        env = await wiring.open_env("memory:", time=Backwards(), home=home())
        agent: Agent[Any] = Agent(
            name="a", model=ScriptedModel([Step(calls=(("act", {}),)), "done"]), tools=[act], policies=[{"id": "p", "permit": {}}]
        )
        ANSWER.append(lambda: 1)
        result = await agent.run("go", ledger=env)
        assert result.state == "completed"
        return [r.fact.clock.now async for r in agent.events(result.run_id, ledger=env) if hasattr(r.fact, "clock")]  # type: ignore[attr-defined]

    clocks = asyncio.run(tell())
    assert len(clocks) > 2
    assert clocks == sorted(clocks)


def test_the_system_clock_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemTime()
    first = clock.now()
    monkeypatch.setattr("mandamus.runtime.env.time.time_ns", lambda: 0)
    assert clock.now() == first
