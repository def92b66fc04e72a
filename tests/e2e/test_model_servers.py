"""A governed run over real HTTP: scripted servers of three wire formats with every fault, and a small real llama.cpp model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from mandamus import Agent, Budget, Ctx, RunResult, tool, wiring
from mandamus.core.records import AnyRecord, decode
from mandamus.data import Business, none
from mandamus.drivers.model_anthropic import AnthropicModel
from mandamus.drivers.model_openai import OpenAIModel
from tests.servers.bigram import bigram_server, wheel
from tests.servers.scripted_anthropic import ScriptedAnthropic
from tests.servers.scripted_openai import ScriptedOpenAI
from tests.servers.wire import Fault, Step, WireServer

pytestmark = pytest.mark.service
BUSY = Fault("status", status=429, headers={"retry-after": "0"})
REFUND = Step(calls=(("refund", {"order": "A1", "amount": 3}),))


@tool(safety="write", effect="keyed", data=Business(subject=none("orders"), retention="standard"))
async def refund(ctx: Ctx, order: str, amount: int) -> str:
    """Refund an order."""
    return f"refunded {amount} for {order}"


WIRES: dict[str, tuple[type[WireServer], Callable[[str], Any]]] = {
    "chat": (ScriptedOpenAI, lambda url: OpenAIModel(url, api="chat", api_key=lambda: "k")),
    "responses": (ScriptedOpenAI, lambda url: OpenAIModel(url, api="responses", api_key=lambda: "k")),
    "anthropic": (ScriptedAnthropic, lambda url: AnthropicModel(url, api_key=lambda: "k")),
}


def governed(model: Any, **more: Any) -> Agent[Any]:
    return Agent(name="desk", model=model, tools=[refund], policies=[{"id": "p", "permit": {"tool": "refund"}}], **more)


async def carried(agent: Agent[Any]) -> tuple[RunResult[Any], list[AnyRecord]]:
    env = await wiring.open_env("memory:")
    result = await agent.run("refund order A1", ledger=env)
    records = [decode(raw) async for raw in env.ledger.read(result.run_id)]
    await agent.model.close()
    return result, records


def types(records: list[AnyRecord]) -> list[str]:
    return [r.type for r in records]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", WIRES)
def test_a_run_calls_its_tool_over_http(wire: str, stream: bool) -> None:
    server, model = WIRES[wire]
    with server([REFUND, Step("done")]) as s:
        result, records = asyncio.run(carried(governed(model(s.url), stream=stream)))
        assert (result.state, result.output) == ("completed", "done")
        assert types(records).count("ActionEnded") == 1
        assert len(s.log) == 2 == types(records).count("ModelCalled"), "one wire request for each recorded call"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("fault", [BUSY, Fault("status", status=500), Fault("cut"), Fault("gone")], ids=["429", "500", "cut", "gone"])
@pytest.mark.parametrize("wire", WIRES)
def test_the_loop_asks_again_and_records_each_failure(wire: str, fault: Fault, stream: bool) -> None:
    server, model = WIRES[wire]
    with server([Step(fault=fault), REFUND, Step("done")]) as s:
        result, records = asyncio.run(carried(governed(model(s.url), stream=stream)))
        assert result.state == "completed"
        failed = [r for r in records if r.type == "ModelFailed"]
        assert len(failed) == 1
        assert failed[0].fact.retry_at  # type: ignore[attr-defined]
        assert len(s.log) == 3 == types(records).count("ModelCalled")


@pytest.mark.parametrize(
    ("fault", "state", "cause"),
    [(Fault("status", status=401), "halted", "engine"), (Fault("status", status=400), "halted", "engine")],
    ids=["auth", "bad_request"],
)
@pytest.mark.parametrize("wire", WIRES)
def test_what_cannot_help_is_never_asked_again(wire: str, fault: Fault, state: str, cause: str) -> None:
    server, model = WIRES[wire]
    with server([Step(fault=fault)] * 3) as s:
        result, _ = asyncio.run(carried(governed(model(s.url))))
        assert (result.state, result.cause, len(s.log)) == (state, cause, 1)


def test_a_refusal_ends_the_run() -> None:
    with ScriptedOpenAI([Step(refusal="no")]) as s:
        result, records = asyncio.run(carried(governed(OpenAIModel(s.url, api_key=lambda: "k"))))
        assert (result.state, result.cause) == ("failed", "model_refusal")
        assert len(s.log) == 1
        assert types(records)[-1] == "RunSealed"


def test_a_server_that_never_recovers_spends_the_retries_and_halts() -> None:
    with ScriptedOpenAI([Step(fault=BUSY)] * 9) as s:
        agent = governed(OpenAIModel(s.url, api_key=lambda: "k"), budget=Budget(retries=2))
        result, records = asyncio.run(carried(agent))
        assert (result.state, result.cause) == ("halted", "budget")
        assert types(records).count("ModelFailed") == len(s.log) == 3


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (Step(calls=(("refund", '{"order": "A1", "order": "B2", "amount": 3}'),)), "invalid_arguments"),
        (Step(calls=(("refund", '{"order": "A1"'),)), "invalid_arguments"),
        (Step(calls=(("refund", {"order": "A1", "amount": "three"}),)), "invalid_arguments"),
        (Step(calls=(("refund", {"order": "A1", "amount": 3, "to": "me"}),)), "invalid_arguments"),
        (Step(calls=(("wire_everything", {"to": "me"}),)), "unknown_tool"),
    ],
    ids=["duplicate key", "cut json", "wrong type", "extra argument", "unknown tool"],
)
def test_a_malformed_call_is_denied_by_the_contract_and_told_to_the_model(step: Step, code: str) -> None:
    with ScriptedOpenAI([step, Step("I see")]) as s:
        result, records = asyncio.run(carried(governed(OpenAIModel(s.url, api_key=lambda: "k"))))
        judged = next(r for r in records if r.type == "ActionJudged").fact
        assert (judged.verdict, judged.code) == ("deny", code)  # type: ignore[attr-defined]
        assert result.state == "completed"
        assert "ActionStarted" not in types(records)
        told = [m for m in s.log[-1].body["messages"] if m["role"] == "tool"]
        assert len(told) == 1
        assert "denied" in told[0]["content"]


def test_two_calls_of_one_id_run_once() -> None:
    step = Step(calls=(("refund", {"order": "A1", "amount": 3}), ("refund", {"order": "B2", "amount": 4})), ids=("same", "same"))
    with ScriptedOpenAI([step, Step("done")]) as s:
        result, records = asyncio.run(carried(governed(OpenAIModel(s.url, api_key=lambda: "k"))))
        assert result.state == "completed"
        assert types(records).count("ActionProposed") == 2
        assert types(records).count("ActionStarted") == 1


def test_a_real_model_that_is_not_scripted_is_held_by_budget_and_policy() -> None:
    """llama.cpp over a hand-made model: valid calls with absurd arguments, without end; only budgets and policy stop it."""
    wheel("xllamacpp")
    with bigram_server() as url:
        agent = governed(
            OpenAIModel(url + "/v1", api_key=lambda: "k"), budget=Budget(turns=4, denials=50, retries=3), timeout="60s", max_output=120
        )
        result, records = asyncio.run(carried(agent))
    assert result.state in ("halted", "completed", "failed")
    assert 1 <= types(records).count("TurnStarted") <= 4
    for before, after in pairwise(records):
        if after.type == "ActionStarted":
            assert before.type == "ActionJudged"
            assert before.fact.verdict == "allow"  # type: ignore[attr-defined]
