"""Pydantic AI alone: nothing is durable, the caller stores the message history.

python peer_pydantic_ai.py [w1|w4|crash [VARIANT]] [--turns N]
"""

from __future__ import annotations

import asyncio
import pathlib
import sys

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import bank
from common import Meter, Sample, calls, repeat, serve

UNLIMITED = UsageLimits(request_limit=None)


def agent(turns: int, step: str = "add", last: str = "add") -> Agent:
    """One call of `step` per turn, of `last` in the last turn but one, then the answer."""

    async def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        k, calls_at = len(messages), 2 * (turns - 1)
        name = last if k == calls_at - 1 else step
        call = ToolCallPart(name, {"a": k, "b": 1}, tool_call_id=f"c{k}")
        return ModelResponse(parts=[call if k < calls_at + 1 else TextPart("done")])

    a = Agent(FunctionModel(scripted), output_type=[str, DeferredToolRequests] if "ask" in step + last else str)

    @a.tool_plain
    async def add(a: int, b: int) -> int:
        return a + b

    @a.tool_plain(requires_approval=True)
    def ask(a: int, b: int) -> int:
        return a + b

    @a.tool_plain(requires_approval=True)
    def ask_pay(a: int, b: int) -> str:
        return bank.pay(f"c{a}")

    return a


def w1(turns: int, folder: str) -> Sample:
    a, runs = agent(turns), max(1, 30 // turns)

    async def some(n: int) -> None:
        for _ in range(n):
            await a.run("go", usage_limits=UNLIMITED)

    with asyncio.Runner() as r:
        return {**repeat(lambda: r.run(some(runs)), turns * runs, 3), "calls": calls(lambda: r.run(some(1)), turns)}


def approve(history: list[ModelMessage]) -> DeferredToolResults:
    results = DeferredToolResults()
    for part in history[-1].parts:
        results.approvals[part.tool_call_id] = True
    return results


def w4_suspend(turns: int, folder: str) -> Sample:
    r = agent(turns, last="ask").run_sync("go", usage_limits=UNLIMITED)
    assert isinstance(r.output, DeferredToolRequests)
    pathlib.Path(folder, "history.json").write_bytes(ModelMessagesTypeAdapter.dump_json(r.all_messages()))
    return {}


def w4(turns: int, folder: str) -> Sample:
    with Meter() as m:
        history = ModelMessagesTypeAdapter.validate_json(pathlib.Path(folder, "history.json").read_bytes())
        a = agent(turns, last="ask")
        r = a.run_sync(message_history=history, deferred_tool_results=approve(history), usage_limits=UNLIMITED)
        assert r.output == "done"
    return m.per(1)


def crash(turns: int, folder: str) -> Sample:
    """Every payment is a deferred call; the history is saved at each, and resumed from after the crash."""
    at, a = pathlib.Path(folder, "history.json"), agent(turns, "ask_pay", "ask_pay")
    if not at.exists():
        r = a.run_sync("go", usage_limits=UNLIMITED)
        at.write_bytes(ModelMessagesTypeAdapter.dump_json(r.all_messages()))
    while True:
        history = ModelMessagesTypeAdapter.validate_json(at.read_bytes())
        r = a.run_sync(message_history=history, deferred_tool_results=approve(history), usage_limits=UNLIMITED)
        if not isinstance(r.output, DeferredToolRequests):
            return {"ended": int(r.output == "done")}
        at.write_bytes(ModelMessagesTypeAdapter.dump_json(r.all_messages()))


UNITS = {"w1": {"run": w1}, "w4_suspend": {"deferred": w4_suspend}, "w4": {"deferred": w4}, "crash": {"deferred": crash}}
GUARANTEE = {"run": "nothing is durable", "deferred": "message history that the caller stores; no intent record"}

if __name__ == "__main__":
    serve("pydantic-ai", UNITS, GUARANTEE)
