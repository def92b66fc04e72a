"""The OpenAI driver against a real llama.cpp server whose model is noise under a grammar: nobody wrote these replies for the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from mandamus.core.messages import Call, Message, ModelAnswer, ModelFault, Prompt, Settings, ToolView
from mandamus.drivers.model_openai import Api, OpenAIModel
from tests.servers.bigram import bigram_server, wheel

pytestmark = pytest.mark.service

FIELDS = {"order": {"type": "string", "maxLength": 8}, "amount": {"type": "integer"}}
SCHEMA = {"type": "object", "properties": FIELDS, "required": ["order", "amount"], "additionalProperties": False}
REFUND = ToolView("refund", "Refunds an order.", SCHEMA)
GO = Prompt("Refund orders.", (Message("user", "go"),), (REFUND,))
SEEDS = range(4)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with bigram_server() as address:
        yield address


def ask(url: str, prompt: Prompt, api: Api = "chat", *, seed: int, stream: bool, on_delta: Any = None, **extra: Any) -> ModelAnswer:
    async def once() -> ModelAnswer:
        model = OpenAIModel(url, api=api, extra=extra | {"seed": seed})
        try:
            settings = Settings("bigram", max_output=160, temperature=1.0, seed=seed, stream=stream, timeout_ms=60_000)
            return await model.generate(prompt, settings, on_delta)
        finally:
            await model.close()

    return asyncio.run(once())


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_forced_call_is_parsed(url: str, api: Api, stream: bool, seed: int) -> None:
    """The grammar keeps the schema, so every call that was not cut off at the length limit fits it."""
    got = ask(url, GO, api, seed=seed, stream=stream, tool_choice="required")
    assert got.calls
    complete = [c for c in got.calls if not c.fault]
    assert len(complete) >= len(got.calls) - 1
    assert complete
    for call in complete:
        assert call.name == "refund"
        assert set(call.arguments) == {"order", "amount"}
        assert isinstance(call.arguments["order"], str)
        assert type(call.arguments["amount"]) is int
    assert got.usage is not None
    assert 0 < got.usage.output <= 160


def test_the_seed_decides(url: str) -> None:
    def said(seed: int, stream: bool) -> list[tuple[str, dict[str, Any]]]:
        got = ask(url, GO, seed=seed, stream=stream, tool_choice="required")
        return [(c.name, c.arguments) for c in got.calls]

    assert said(1, False) == said(1, True)
    assert said(1, False) != said(2, False)


@pytest.mark.parametrize("seed", SEEDS)
def test_streamed_text_is_the_answer(url: str, seed: int) -> None:
    seen: list[str] = []
    got = ask(url, Prompt("", (Message("user", "go"),)), seed=seed, stream=True, on_delta=seen.append)
    assert got.text
    assert "".join(seen) == got.text
    assert len(seen) > 1


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_conversation_with_calls_and_results_is_taken(url: str, api: Api) -> None:
    call = Call("x", "refund", {"order": "A1", "amount": 5})
    talk = (*GO.messages, Message("assistant", "", (call,)), Message("tool", "refunded", call_id="x", data=True))
    got = ask(url, Prompt("Refund orders.", talk, GO.tools), api, seed=1, stream=False, tool_choice="required")
    assert got.calls


def test_a_typed_answer(url: str) -> None:
    got = ask(url, Prompt("", (Message("user", "go"),), (), SCHEMA), seed=1, stream=False)
    assert set(json.loads(got.text)) == {"order", "amount"}


def test_an_error_of_the_real_server_is_a_fault(url: str) -> None:
    with pytest.raises(ModelFault) as caught:
        ask(url, GO, seed=1, stream=False, temperature="hot")
    assert caught.value.category in ("bad_request", "server")
    assert caught.value.status in (400, 500)


def test_a_missing_wheel_skips_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no_such_wheel is missing"):
        wheel("no_such_wheel")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no_such_wheel is missing"):
        wheel("no_such_wheel")
