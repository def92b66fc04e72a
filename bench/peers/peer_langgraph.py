"""LangGraph: the prebuilt ReAct agent (what users pick), a lean graph made by hand, and the lean graph with DeltaChannel (beta, its best).

python peer_langgraph.py [w1|w2|w4|w7|crash [VARIANT]] [--turns N]
"""

from __future__ import annotations

import operator
import pathlib
import sys
import warnings
from collections.abc import Callable

warnings.filterwarnings("ignore")
from typing import Annotated, Any, TypedDict  # noqa: E402

from langchain_core.language_models import BaseChatModel  # noqa: E402
from langchain_core.messages import AIMessage, HumanMessage  # noqa: E402
from langchain_core.outputs import ChatGeneration, ChatResult  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langgraph.channels.delta import DeltaChannel  # noqa: E402
from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: E402
from langgraph.graph import END, START, StateGraph  # noqa: E402
from langgraph.prebuilt import create_react_agent  # noqa: E402
from langgraph.types import Command, interrupt  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import bank  # noqa: E402
from common import Meter, Sample, calls, middle, rates, repeat, serve, size_of  # noqa: E402

REACT_IN = {"messages": [HumanMessage("go")]}
LEAN_IN = {"log": [{"kind": "user", "content": "go"}]}


class Scripted(BaseChatModel):
    """One call of `step` per turn, of `last` in the last turn but one, then the answer."""

    turns: int = 10
    step: str = "add"
    last: str = "add"

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Scripted:
        return self

    def _generate(self, messages: list, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        k, calls_at = len(messages), 2 * (self.turns - 1)
        name = self.last if k == calls_at - 1 else self.step
        calling = AIMessage(content="", tool_calls=[{"name": name, "args": {"a": k, "b": 1}, "id": f"c{k}"}])
        return ChatResult(generations=[ChatGeneration(message=calling if k < calls_at + 1 else AIMessage(content="done"))])


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def ask(a: int, b: int) -> int:
    """Needs a person."""
    return a + b if interrupt({"approve": [a, b]}) else -1


@tool
def pay(a: int, b: int) -> str:
    """Pay; the key is stable, because the call is in the checkpoint."""
    return bank.pay(f"c{a}")


@tool
def pay_then_ask(a: int, b: int) -> str:
    """Pay, then wait for a person in the same node."""
    said = bank.pay(f"c{a}")
    interrupt("seen?")
    return said


def react(turns: int, saver: Any = None, step: str = "add", last: str = "add") -> Any:
    return create_react_agent(Scripted(turns=turns, step=step, last=last), [add, ask, pay, pay_then_ask], checkpointer=saver)


def extend(state: list | None, writes: list) -> list:
    return [*(state or []), *(x for w in writes for x in w)]


class Plain(TypedDict):
    log: Annotated[list, operator.add]


class Delta(TypedDict):
    log: Annotated[list, DeltaChannel(extend)]


def sum_of(call: dict) -> int:
    return call["args"]["a"] + call["args"]["b"]


def lean(turns: int, saver: Any = None, state: type = Plain, act: Callable[[dict], Any] = sum_of) -> Any:
    def model(s: dict) -> dict:
        k = len(s["log"])
        if k < 2 * (turns - 1) + 1:
            return {"log": [{"kind": "assistant", "call": {"id": f"c{k}", "name": "add", "args": {"a": k, "b": 1}}}]}
        return {"log": [{"kind": "assistant", "content": "done"}]}

    def tools(s: dict) -> dict:
        c = s["log"][-1]["call"]
        return {"log": [{"kind": "tool", "id": c["id"], "content": act(c)}]}

    g = StateGraph(state)
    g.add_node("model", model)
    g.add_node("tools", tools)
    g.add_edge(START, "model")
    g.add_edge("tools", "model")
    g.add_conditional_edges("model", lambda s: "tools" if "call" in s["log"][-1] else END)
    return g.compile(checkpointer=saver)


def delta(turns: int, saver: Any = None) -> Any:
    return lean(turns, saver, Delta)


def config(thread: str, turns: int) -> dict:
    return {"configurable": {"thread_id": thread}, "recursion_limit": 4 * turns + 10}


def in_memory(make: Any, given: dict) -> Any:
    def w1(turns: int, folder: str) -> Sample:
        g, runs = make(turns), max(1, 30 // turns)

        def work(n: int = runs) -> None:
            for _ in range(n):
                g.invoke(given, config("0", turns))

        return {**repeat(work, turns * runs, 3), "calls": calls(lambda: work(1), turns)}

    return w1


def durable(make: Any, given: dict, durability: str) -> Any:
    def w2(turns: int, folder: str) -> Sample:
        with SqliteSaver.from_conn_string(folder + "/x.db") as saver:
            make(10, saver).invoke(given, config("warm", 10), durability=durability)
            g = make(turns, saver)
            saver.conn.execute("pragma wal_checkpoint(truncate)")
            before = size_of(folder)
            with Meter() as m:
                r = g.invoke(given, config("1", turns), durability=durability)
            assert len(r.get("messages") or r.get("log")) == 2 * turns
        return {**m.per(turns), "stored": (size_of(folder) - before) / turns}

    return w2


def w4_suspend(threads: str) -> Any:
    def suspend(turns: int, folder: str) -> Sample:
        with SqliteSaver.from_conn_string(folder + "/x.db") as saver:
            for thread in threads:
                assert "__interrupt__" in react(turns, saver, last="ask").invoke(REACT_IN, config(thread, turns), durability="sync")
        return {}

    return suspend


def answered(g: Any, thread: str, turns: int) -> None:
    r = g.invoke(Command(resume=True), config(thread, turns), durability="sync")
    assert r["messages"][-1].content == "done"


def w4(turns: int, folder: str) -> Sample:
    with Meter() as m, SqliteSaver.from_conn_string(folder + "/x.db") as saver:
        answered(react(turns, saver, last="ask"), "1", turns)
    return m.per(1)


def w4_warm(turns: int, folder: str) -> Sample:
    with SqliteSaver.from_conn_string(folder + "/x.db") as saver:
        g = react(turns, saver, last="ask")
        answered(g, "0", turns)
        with Meter() as m:
            answered(g, "1", turns)
    return m.per(1)


def w7_prepare(make: Any) -> Any:
    def prepare(turns: int, folder: str) -> Sample:
        with SqliteSaver.from_conn_string(folder + "/x.db") as saver:
            make(turns, saver).invoke(LEAN_IN, config("1", turns), durability="sync")
        return {}

    return prepare


def history(turns: int, folder: str) -> Sample:
    """Every checkpoint of the run, as its audit trail."""
    samples = []
    with SqliteSaver.from_conn_string(folder + "/x.db") as saver:
        g = lean(turns, saver)
        for _ in range(3 if turns <= 100 else 1):
            with Meter() as m:
                snapshots = sum(1 for _ in g.get_state_history(config("1", turns)))
            samples.append({**m.per(turns, disk=False), **rates(snapshots, m)})
    return middle(samples)


def recover(turns: int, folder: str) -> Sample:
    """Only the last state, folded from its deltas; nothing is verified."""
    samples = []
    with SqliteSaver.from_conn_string(folder + "/x.db") as saver:
        g = delta(turns, saver)
        for _ in range(3):
            with Meter() as m:
                assert len(g.get_state(config("1", turns)).values["log"]) == 2 * turns
            samples.append(m.per(turns, disk=False))
    return middle(samples)


def said(values: Any) -> str:
    """The last message of either graph."""
    last = (values.get("messages") or values.get("log") or [""])[-1]
    return str(last.get("content", "") if isinstance(last, dict) else getattr(last, "content", ""))


def gone_on(g: Any, at: dict, begin: dict, **options: Any) -> Sample:
    """Begins, goes on, or finds the run ended by a life that died right after."""
    state = g.get_state(at)
    if said(state.values) != "done":
        values = g.invoke(begin if state.created_at is None else None, at, **options)
        return {"ended": int(said(values) == "done")}
    return {"ended": 1}


def crash(durability: str | None) -> Any:
    def work(turns: int, folder: str) -> Sample:
        with SqliteSaver.from_conn_string(folder + "/x.db") as saver:
            g, options = react(turns, saver, step="pay", last="pay"), {"durability": durability} if durability else {}
            return gone_on(g, config("1", turns), REACT_IN, **options)

    return work


def crash_delta(turns: int, folder: str) -> Sample:
    with SqliteSaver.from_conn_string(folder + "/x.db") as saver:
        g = lean(turns, saver, Delta, lambda call: bank.pay(call["id"]))
        return gone_on(g, config("1", turns), LEAN_IN, durability="sync")


def crash_approval(turns: int, folder: str) -> Sample:
    """The effect stands before an `interrupt()` in the same node: approving runs the node again, without any crash."""
    with SqliteSaver.from_conn_string(folder + "/x.db") as saver:
        g, at = react(turns, saver, step="pay_then_ask", last="pay_then_ask"), config("1", turns)
        state = g.get_state(at)
        if said(state.values) == "done":
            return {"ended": 1}
        given: Any = REACT_IN if state.created_at is None else Command(resume=True) if state.interrupts else None
        r = g.invoke(given, at, durability="sync")
        while "__interrupt__" in r:
            r = g.invoke(Command(resume=True), at, durability="sync")
    return {"ended": int(said(r) == "done")}


UNITS = {
    "w1": {"react": in_memory(react, REACT_IN), "lean": in_memory(lean, LEAN_IN)},
    "w2": {
        "react sync": durable(react, REACT_IN, "sync"),
        "react async": durable(react, REACT_IN, "async"),
        "lean sync": durable(lean, LEAN_IN, "sync"),
        "lean+delta sync": durable(delta, LEAN_IN, "sync"),
    },
    "w4_suspend": {"react": w4_suspend("1"), "react warm": w4_suspend("01")},
    "w4": {"react": w4, "react warm": w4_warm},
    "w7_prepare": {"lean history": w7_prepare(lean), "lean+delta recover": w7_prepare(delta)},
    "w7": {"lean history": history, "lean+delta recover": recover},
    "crash": {
        "react sync": crash("sync"),
        "react default": crash(None),
        "lean+delta sync": crash_delta,
        "effect before interrupt()": crash_approval,
    },
}
SNAPSHOT = "state durable per superstep; nodes at-least-once; no intent record"
GUARANTEE = {
    "w1 react": "nothing is durable",
    "w1 lean": "nothing is durable",
    "react": SNAPSHOT,
    "react warm": SNAPSHOT,
    "react sync": SNAPSHOT,
    "react async": "state written behind the next superstep (its default); nodes at-least-once; no intent record",
    "react default": "state written behind the next superstep (durability=async); nodes at-least-once; no intent record",
    "lean sync": SNAPSHOT,
    "lean+delta sync": "deltas durable per superstep (beta); nodes at-least-once; no intent record",
    "lean history": "reads every snapshot; verifies nothing",
    "lean+delta recover": "reads the last state (beta); verifies nothing",
    "effect before interrupt()": SNAPSHOT,
}

if __name__ == "__main__":
    serve("langgraph", UNITS, GUARANTEE)
