"""What every driver of the port `Model` must do, ours and yours. Use:

    from mandamus.testing.conformance.model import ModelSuite, names, run

    @pytest.mark.parametrize("name", names(ModelSuite))
    def test_my_model(name):
        run(ModelSuite, name, lambda script: my_model_behind_a_server_that_plays(script))

`make(script)` is a context manager that gives a model whose n-th turn is the n-th step of `script`, in the form of
`drivers.model_scripted.steps_of`: text, or {"text", "calls": [[tool, arguments]], "faults": [category], "usage"}. A fault comes
before its step, one per request.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from mandamus.core.canonical import canon
from mandamus.core.messages import Message, ModelAnswer, ModelFault, Prompt, Settings, ToolView
from mandamus.ports import Model

Make = Callable[[list[Any]], AbstractContextManager[Model]]
CATEGORIES = ("rate_limit", "server", "timeout", "connection", "cut", "malformed", "empty", "auth", "bad_request", "refusal")

_TOOL = ToolView("pay", "Pays a bill.", {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]})
_PROMPT = Prompt("You pay bills.", (Message("user", "Pay the bill."),), (_TOOL,))
_TEXT = "Paid: 5 €, to “Acme”.\nThat is all 😀"


def names(suite: type[ModelSuite]) -> list[str]:
    """The names of its tests, for `parametrize`."""
    return sorted(name for name, _ in inspect.getmembers(suite, inspect.iscoroutinefunction) if name.startswith("test_"))


def run(suite: type[ModelSuite], name: str, make: Make) -> None:
    """One test of the suite, each in an event loop of its own."""
    asyncio.run(getattr(suite(make), name)())


class ModelSuite:
    """One test per promise of the port."""

    def __init__(self, make: Make) -> None:
        self.make = make

    async def test_text_comes_back_exactly(self) -> None:
        answer = await self._one(_TEXT)
        assert (answer.text, answer.calls, answer.stop) == (_TEXT, (), "end")

    async def test_calls_keep_order_names_and_arguments(self) -> None:
        calls = [["pay", {"amount": 5}], ["pay", {"amount": -(2**53) + 1, "to": "Ä 😀"}], ["no such tool", {"deep": [[{"a": None}]]}]]
        answer = await self._one({"calls": calls})
        assert [[c.name, c.arguments] for c in answer.calls] == calls
        assert [c.fault for c in answer.calls] == [""] * 3
        assert answer.stop == "calls"

    async def test_calls_can_be_told_apart(self) -> None:
        answer = await self._one({"calls": [["pay", {"amount": 5}], ["pay", {"amount": 5}]]})
        first, second = answer.calls
        assert first.id != second.id
        assert first.id
        assert second.id

    async def test_arguments_that_are_no_strict_json_carry_a_fault_and_nothing_else(self) -> None:
        for text in ('{"amount": 1, "amount": 2}', '{"amount": NaN}', '{"amount": 9007199254740993}', '{"to": "\\ud800"}', "[5]"):
            answer = await self._one({"calls": [["pay", text]]})
            (call,) = answer.calls
            assert call.name == "pay"
            assert call.fault, f"believed {text}"
            assert call.arguments == {}

    async def test_every_answer_can_be_recorded(self) -> None:
        answer = await self._one({"text": _TEXT, "calls": [["pay", {"amount": 5, "rate": 0.1}]]})
        assert canon([answer.text, answer.model, [[c.id, c.name, c.arguments] for c in answer.calls]])

    async def test_usage_is_what_the_provider_counted(self) -> None:
        answer = await self._one({"text": "ok", "usage": {"input": 12, "output": 3}})
        assert answer.usage is not None
        assert (answer.usage.input, answer.usage.output, answer.usage.estimated) == (12, 3, False)

    async def test_usage_that_was_not_counted_is_none(self) -> None:
        answer = await self._one({"text": "ok", "usage": None})
        assert answer.usage is None

    async def test_deltas_of_a_stream_are_its_text(self) -> None:
        seen: list[str] = []
        answer = await self._one({"text": _TEXT, "calls": [["pay", {"amount": 5}]]}, stream=True, on_delta=seen.append)
        assert "".join(seen) == answer.text == _TEXT
        assert [c.arguments for c in answer.calls] == [{"amount": 5}]

    async def test_a_listener_that_raises_costs_no_reply(self) -> None:
        def listener(piece: str) -> None:
            raise RuntimeError("the screen is gone")

        answer = await self._one(_TEXT, stream=True, on_delta=listener)
        assert answer.text == _TEXT

    async def test_a_fault_is_a_model_fault_and_is_not_retried(self) -> None:
        for category in CATEGORIES:
            for stream in (False, True):
                with self.make([{"text": "ok", "faults": [category]}]) as model:
                    fault = await self._fault(model, stream)
                    assert fault.category == category, f"{category} became {fault.category}"
                    answer = await model.generate(_PROMPT, Settings("m", stream=stream))
                    assert answer.text == "ok"
                    await model.close()

    async def test_an_answer_belongs_to_its_turn(self) -> None:
        with self.make(["one", "two"]) as model:
            first = await model.generate(_PROMPT, Settings("m"))
            said = (*_PROMPT.messages, Message("assistant", first.text), Message("user", "go on"))
            second = await model.generate(Prompt("", said), Settings("m"))
            await model.close()
        assert (first.text, second.text) == ("one", "two")

    async def test_a_closed_model_may_be_closed_and_asked_again(self) -> None:
        with self.make(["ok"]) as model:
            await model.close()
            await model.close()
            answer = await model.generate(_PROMPT, Settings("m"))
            await model.close()
        assert answer.text == "ok"

    async def _one(self, step: Any, *, stream: bool = False, on_delta: Callable[[str], None] | None = None) -> ModelAnswer:
        with self.make([step]) as model:
            try:
                return await model.generate(_PROMPT, Settings("m", stream=stream), on_delta)
            finally:
                await model.close()

    async def _fault(self, model: Model, stream: bool) -> ModelFault:
        try:
            answer = await model.generate(_PROMPT, Settings("m", stream=stream, timeout_ms=500))
        except ModelFault as fault:
            return fault
        raise AssertionError(f"no fault but an answer of {len(answer.text)} characters")
