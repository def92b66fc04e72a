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
from common import Meter, Sample, calls, keep, repeat, serve

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


def approved(a: Agent, folder: str) -> None:
    history = ModelMessagesTypeAdapter.validate_json(pathlib.Path(folder, "history.json").read_bytes())
    r = a.run_sync(message_history=history, deferred_tool_results=approve(history), usage_limits=UNLIMITED)
    assert r.output == "done"


def w4(turns: int, folder: str) -> Sample:
    with Meter() as m:
        approved(agent(turns, last="ask"), folder)
    return m.per(1)


def w4_warm(turns: int, folder: str) -> Sample:
    """The history is a file that stays as it was: the same run can be approved twice."""
    a = agent(turns, last="ask")
    approved(a, folder)
    with Meter() as m:
        approved(a, folder)
    return m.per(1)


def crash(turns: int, folder: str) -> Sample:
    """Every payment is a deferred call; the history is saved at each, and resumed from after the crash."""
    at, answer, a = pathlib.Path(folder, "history.json"), pathlib.Path(folder, "answer"), agent(turns, "ask_pay", "ask_pay")
    if answer.exists():
        return {"ended": 1}
    if not at.exists():
        r = a.run_sync("go", usage_limits=UNLIMITED)
        keep(at, ModelMessagesTypeAdapter.dump_json(r.all_messages()))
    while True:
        history = ModelMessagesTypeAdapter.validate_json(at.read_bytes())
        r = a.run_sync(message_history=history, deferred_tool_results=approve(history), usage_limits=UNLIMITED)
        if not isinstance(r.output, DeferredToolRequests):
            keep(answer, str(r.output).encode())
            return {"ended": int(r.output == "done")}
        keep(at, ModelMessagesTypeAdapter.dump_json(r.all_messages()))


HISTORY = "message history that the caller stores; no intent record"
UNITS = {
    "w1": {"run": w1},
    "w4_suspend": {"deferred": w4_suspend, "deferred warm": w4_suspend},
    "w4": {"deferred": w4, "deferred warm": w4_warm},
    "crash": {"deferred": crash},
}
GUARANTEE = {"run": "nothing is durable", "deferred": HISTORY, "deferred warm": HISTORY}

if __name__ == "__main__":
    serve("pydantic-ai", UNITS, GUARANTEE)
