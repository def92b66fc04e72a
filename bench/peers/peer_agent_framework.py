"""Microsoft Agent Framework: its lightest agent loop, function calls over a scripted chat client; telemetry off. Nothing is durable.

python peer_agent_framework.py [w1 [VARIANT]] [--turns N]
"""

from __future__ import annotations

import asyncio
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from agent_framework import Agent, BaseChatClient, ChatResponse, Content, FunctionInvocationLayer, Message, tool

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from common import Sample, calls, repeat, serve


class Scripted(FunctionInvocationLayer, BaseChatClient):
    """One call of `add` per turn, then the answer."""

    def __init__(self, turns: int) -> None:
        super().__init__(function_invocation_configuration={"max_iterations": 2 * turns})
        self.turns = turns

    async def _inner_get_response(self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **_: Any) -> ChatResponse:
        k = len(messages)
        if k < 2 * (self.turns - 1) + 1:
            contents = [Content.from_function_call(f"c{k}", "add", arguments={"a": k, "b": 1})]
        else:
            contents = [Content.from_text("done")]
        return ChatResponse(messages=[Message(role="assistant", contents=contents)])


@tool(approval_mode="never_require")
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def w1(turns: int, folder: str) -> Sample:
    a, runs = Agent(client=Scripted(turns), tools=[add]), max(1, 30 // turns)

    async def some(n: int) -> None:
        for _ in range(n):
            r = await a.run("go")
            assert len(r.messages) == 2 * turns - 1

    with asyncio.Runner() as r:
        return {**repeat(lambda: r.run(some(runs)), turns * runs, 3), "calls": calls(lambda: r.run(some(1)), turns)}


UNITS = {"w1": {"run": w1}}

if __name__ == "__main__":
    serve("agent-framework", UNITS, "nothing is durable")
