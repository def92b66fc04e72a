"""The wire formats under test, each with its own scripted server, and short ways to ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from mandamus.core.messages import Message, ModelAnswer, ModelFault, Prompt, Settings, ToolView
from mandamus.drivers.model_anthropic import AnthropicModel
from mandamus.drivers.model_openai import OpenAIModel
from tests.servers.scripted_anthropic import ScriptedAnthropic
from tests.servers.scripted_openai import ScriptedOpenAI
from tests.servers.wire import Fault, Step, WireServer

SECRET = "sk-not-to-be-seen-4711"
PAY = ToolView("pay", "Pays.", {"type": "object", "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}}})
ASK = Prompt("You pay bills.", (Message("user", "Pay the bill."),), (PAY,))


class Wire(NamedTuple):
    name: str
    stream: bool

    def server(self, *steps: Step | Fault) -> WireServer:
        return (ScriptedAnthropic if self.name == "anthropic" else ScriptedOpenAI)(list(steps))

    def model(self, url: str, **options: Any) -> AnthropicModel | OpenAIModel:
        options.setdefault("api_key", lambda: SECRET)
        if self.name == "anthropic":
            return AnthropicModel(url, **options)
        return OpenAIModel(url, api="responses" if self.name == "responses" else "chat", **options)

    def __str__(self) -> str:
        return f"{self.name}-{'stream' if self.stream else 'whole'}"


WIRES = [Wire(name, stream) for name in ("chat", "responses", "anthropic") for stream in (False, True)]


def ask(
    wire: Wire,
    server: WireServer,
    prompt: Prompt = ASK,
    *,
    timeout_ms: int = 20_000,
    on_delta: Callable[[str], None] | None = None,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> ModelAnswer:
    async def once() -> ModelAnswer:
        model = wire.model(server.url, **options)
        try:
            return await model.generate(prompt, Settings("m", timeout_ms=timeout_ms, stream=wire.stream, **settings or {}), on_delta)
        finally:
            await model.close()

    return asyncio.run(once())


def fault_of(wire: Wire, server: WireServer, **more: Any) -> ModelFault:
    try:
        got = ask(wire, server, **more)
    except ModelFault as fault:
        return fault
    raise AssertionError(f"no fault, but {got}")
