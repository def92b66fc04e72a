"""OpenAI Agents SDK with SQLiteSession, and with RunState for approvals. Tracing off: its exporter wants the network.

python peer_openai_agents.py [w1|w2|w4|crash [VARIANT]] [--turns N]
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import sys
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, RunState, SQLiteSession, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import bank
from common import Meter, Sample, calls, keep, repeat, serve, size_of

set_tracing_disabled(True)


class Scripted(Model):
    """One call of `step` per turn, of `last` in the last turn but one, then the answer."""

    def __init__(self, turns: int, step: str = "add", last: str = "add") -> None:
        self.turns, self.step, self.last = turns, step, last

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        k, calls_at = 1 if isinstance(input, str) else len(input), 2 * (self.turns - 1)
        out: Any
        if k < calls_at + 1:
            name, args = self.last if k == calls_at - 1 else self.step, json.dumps({"a": k, "b": 1})
            out = ResponseFunctionToolCall(type="function_call", call_id=f"c{k}", name=name, arguments=args)
        else:
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            out = ResponseOutputMessage(id=f"m{k}", type="message", role="assistant", status="completed", content=[text])
        return ModelResponse(output=[out], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


@function_tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@function_tool(needs_approval=True)
async def ask(a: int, b: int) -> int:
    """Needs a person."""
    return a + b


@function_tool(failure_error_function=None)
async def pay(a: int, b: int) -> str:
    """Pay."""
    return bank.pay(f"c{a}")


@function_tool(needs_approval=True, failure_error_function=None)
async def pay_approved(a: int, b: int) -> str:
    """Pay when a person agrees."""
    return bank.pay(f"c{a}")


def agent(turns: int, step: str = "add", last: str = "add") -> Agent:
    return Agent(name="x", instructions="i", model=Scripted(turns, step, last), tools=[add, ask, pay, pay_approved])


def w1(turns: int, folder: str) -> Sample:
    a, runs = agent(turns), max(1, 30 // turns)

    async def some(n: int) -> None:
        for _ in range(n):
            await Runner.run(a, "go", max_turns=2 * turns)

    with asyncio.Runner() as r:
        return {**repeat(lambda: r.run(some(runs)), turns * runs, 3), "calls": calls(lambda: r.run(some(1)), turns)}


def w2(turns: int, folder: str) -> Sample:
    with asyncio.Runner() as r:
        warm = SQLiteSession("warm", folder + "/x.db")
        r.run(Runner.run(agent(10), "go", session=warm, max_turns=20))
        warm.close()
        session, before = SQLiteSession("s", folder + "/x.db"), size_of(folder)
        with Meter() as m:
            r.run(Runner.run(agent(turns), "go", session=session, max_turns=2 * turns))
        assert len(r.run(session.get_items())) == 2 * turns
        session.close()
    return {**m.per(turns), "stored": (size_of(folder) - before) / turns}


def w4_suspend(turns: int, folder: str) -> Sample:
    r = asyncio.run(Runner.run(agent(turns, last="ask"), "go", max_turns=2 * turns))
    assert r.interruptions
    pathlib.Path(folder, "state.json").write_text(json.dumps(r.to_state().to_json()))
    return {}


async def approved(a: Agent, turns: int, folder: str) -> None:
    state = await RunState.from_json(a, json.loads(pathlib.Path(folder, "state.json").read_text()))
    for pending in state.get_interruptions():
        state.approve(pending)
    assert (await Runner.run(a, state, max_turns=2 * turns)).final_output == "done"


def w4(turns: int, folder: str) -> Sample:
    with Meter() as m:
        asyncio.run(approved(agent(turns, last="ask"), turns, folder))
    return m.per(1)


def w4_warm(turns: int, folder: str) -> Sample:
    """The state is a file that stays as it was: the same run can be approved twice."""
    a = agent(turns, last="ask")
    with asyncio.Runner() as r:
        r.run(approved(a, turns, folder))
        with Meter() as m:
            r.run(approved(a, turns, folder))
    return m.per(1)


def crash_session(turns: int, folder: str) -> Sample:
    """The session keeps the conversation; a new process runs on with it."""
    session = SQLiteSession("s", folder + "/x.db")
    begun = bool(asyncio.run(session.get_items()))
    r = asyncio.run(Runner.run(agent(turns, "pay", "pay"), [] if begun else "go", session=session, max_turns=4 * turns))
    return {"ended": int(r.final_output == "done")}


def crash_state(turns: int, folder: str) -> Sample:
    """Every payment is approved; the approved RunState is saved before it is run, and resumed from after the crash."""
    at, answer = pathlib.Path(folder, "state.json"), pathlib.Path(folder, "answer")
    if answer.exists():
        return {"ended": 1}

    async def go() -> Any:
        a = agent(turns, "pay_approved", "pay_approved")
        r = await Runner.run(a, await RunState.from_string(a, at.read_text()) if at.exists() else "go", max_turns=4 * turns)
        while r.interruptions:
            state = r.to_state()
            for pending in r.interruptions:
                state.approve(pending)
            keep(at, state.to_string().encode())
            r = await Runner.run(a, state, max_turns=4 * turns)
        return r.final_output

    said = asyncio.run(go())
    keep(answer, said.encode())
    return {"ended": int(said == "done")}


UNITS = {
    "w1": {"run": w1},
    "w2": {"session": w2},
    "w4_suspend": {"run state": w4_suspend, "run state warm": w4_suspend},
    "w4": {"run state": w4, "run state warm": w4_warm},
    "crash": {"session": crash_session, "run state": crash_state},
}
STORED = "pending approval as JSON that the caller stores; no intent record"
GUARANTEE = {
    "run": "nothing is durable",
    "session": "conversation items durable after each turn; no run to resume; no intent record",
    "run state": STORED,
    "run state warm": STORED,
}

if __name__ == "__main__":
    serve("openai-agents", UNITS, GUARANTEE)
