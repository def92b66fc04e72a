"""Pydantic AI with its DBOS integration; the tool is a DBOS step too.

python peer_pydantic_dbos.py [w2|crash [VARIANT]] [--turns N]
"""

from __future__ import annotations

import asyncio
import pathlib
import sys

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import bank
from common import Meter, Sample, serve, size_of

UNLIMITED = UsageLimits(request_limit=None)


@DBOS.step()
async def add_step(a: int, b: int) -> int:
    return a + b


@DBOS.step()
async def pay_step(key: str) -> str:
    return bank.pay(key)


def agent(turns: int, step: str = "add") -> DBOSAgent:
    def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        k = len(messages)
        call = ToolCallPart(step, {"a": k, "b": 1}, tool_call_id=f"c{k}")
        return ModelResponse(parts=[call if k < 2 * turns - 1 else TextPart("done")])

    a = Agent(FunctionModel(scripted), name=f"agent-{step}-{turns}")

    @a.tool_plain
    async def add(a: int, b: int) -> int:
        return await add_step(a, b)

    @a.tool_plain
    async def pay(a: int, b: int) -> str:
        return await pay_step(f"c{a}")

    return DBOSAgent(a)


def launch(folder: str) -> None:
    url = f"sqlite:///{folder}/x.db"
    DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR", "application_version": "1"})
    DBOS.launch()


def w2(turns: int, folder: str) -> Sample:
    warm, timed = agent(10), agent(turns) if turns != 10 else None  # DBOS wants them registered before its launch
    launch(folder)

    async def go() -> Sample:
        await warm.run("go", usage_limits=UNLIMITED)
        before = size_of(folder)
        with Meter() as m:
            r = await (timed or warm).run("go", usage_limits=UNLIMITED)
        assert r.output == "done"
        return {**m.per(turns), "stored": (size_of(folder) - before) / turns}

    return asyncio.run(go())


def crash(turns: int, folder: str) -> Sample:
    a = agent(turns, "pay")

    async def go() -> str:
        launch(folder)
        if await DBOS.get_workflow_status_async("w") is not None:
            return (await (await DBOS.retrieve_workflow_async("w")).get_result()).output
        with SetWorkflowID("w"):
            return (await a.run("go", usage_limits=UNLIMITED)).output

    return {"ended": int(asyncio.run(go()) == "done")}


UNITS = {"w2": {"agent": w2}, "crash": {"agent": crash}}

if __name__ == "__main__":
    serve("pydantic-ai+dbos", UNITS, "each step's output durable after the step; steps at-least-once; recovers by itself; no intent record")
