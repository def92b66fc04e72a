"""LangGraph on Postgres, and with many runs at once: PostgresSaver, AsyncPostgresSaver, AsyncSqliteSaver.

python peer_langgraph_async.py w2pg|w3|w3pg [VARIANT] [--turns N]       (w2pg and w3pg: BENCH_POSTGRES_DB=postgres://...)

Nothing here runs in a thread: models, nodes and tools are coroutines wherever the run is asynchronous.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import sys
import warnings
from collections.abc import AsyncIterator
from typing import Any

warnings.filterwarnings("ignore")
from langchain_core.outputs import ChatResult  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langgraph.checkpoint.postgres import PostgresSaver  # noqa: E402
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver  # noqa: E402
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # noqa: E402
from langgraph.graph import END, START, StateGraph  # noqa: E402
from langgraph.prebuilt import create_react_agent  # noqa: E402
from psycopg.rows import dict_row  # noqa: E402
from psycopg_pool import AsyncConnectionPool  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import peer_langgraph as base  # noqa: E402
import pg  # noqa: E402
from common import RUNS, Meter, Sample, serve  # noqa: E402


class Scripted(base.Scripted):
    async def _agenerate(self, messages: list, stop: Any = None, run_manager: Any = None, **more: Any) -> ChatResult:
        return self._generate(messages, stop, run_manager, **more)


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def react(turns: int, saver: Any) -> Any:
    return create_react_agent(Scripted(turns=turns), [add], checkpointer=saver)


def delta(turns: int, saver: Any) -> Any:
    async def model(s: dict) -> dict:
        k = len(s["log"])
        if k < 2 * (turns - 1) + 1:
            return {"log": [{"kind": "assistant", "call": {"id": f"c{k}", "name": "add", "args": {"a": k, "b": 1}}}]}
        return {"log": [{"kind": "assistant", "content": "done"}]}

    async def tools(s: dict) -> dict:
        c = s["log"][-1]["call"]
        return {"log": [{"kind": "tool", "id": c["id"], "content": base.sum_of(c)}]}

    g = StateGraph(base.Delta)
    g.add_node("model", model)
    g.add_node("tools", tools)
    g.add_edge(START, "model")
    g.add_edge("tools", "model")
    g.add_conditional_edges("model", lambda s: "tools" if "call" in s["log"][-1] else END)
    return g.compile(checkpointer=saver)


def alone(make: Any, given: dict, durability: str) -> Any:
    """One run after a short one, on a connection as `PostgresSaver.from_conn_string` makes it (its pipeline mode costs the same)."""

    def w2(turns: int, folder: str) -> Sample:
        with PostgresSaver.from_conn_string(pg.dsn()) as saver:
            saver.setup()
            make(10, saver).invoke(given, base.config("warm", 10), durability=durability)
            g = make(turns, saver)
            with pg.Counted(pg.dsn()) as c, Meter() as m:
                r = g.invoke(given, base.config("1", turns), durability=durability)
            assert len(r.get("messages") or r.get("log")) == 2 * turns
        return {**m.per(turns, disk=False), **c.per(turns)}

    return w2


async def at_once(g: Any, given: dict, turns: int, durability: str, first: int, runs: int) -> None:
    made = await asyncio.gather(
        *[g.ainvoke(given, base.config(str(first + n), turns), durability=durability) for n in range(runs)],
    )
    assert all(len(r.get("messages") or r.get("log")) == 2 * turns for r in made)


def many(make: Any, given: dict, durability: str) -> Any:
    def w3(turns: int, folder: str) -> Sample:
        async def run() -> Meter:
            async with AsyncSqliteSaver.from_conn_string(folder + "/x.db") as saver:
                g = make(turns, saver)
                await at_once(g, given, turns, durability, 0, 10)
                with Meter() as m:
                    await at_once(g, given, turns, durability, 1000, RUNS)
                return m

        m = asyncio.run(run())
        return {**m.per(turns * RUNS), "turns_per_s": turns * RUNS / m.wall * 1e6}

    return w3


@contextlib.asynccontextmanager
async def pooled() -> AsyncIterator[Any]:
    """A saver on a pool: with one connection all runs would wait for each other."""
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(pg.dsn(), min_size=pg.POOL, max_size=pg.POOL, kwargs=options, open=False) as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        yield saver


def many_pg(make: Any, given: dict, durability: str) -> Any:
    def w3(turns: int, folder: str) -> Sample:
        async def run() -> tuple[Meter, pg.Counted]:
            async with pooled() as saver:
                g = make(turns, saver)
                await at_once(g, given, turns, durability, 0, 10)
                with pg.Counted(pg.dsn()) as c, Meter() as m:
                    await at_once(g, given, turns, durability, 1000, RUNS)
                return m, c

        m, c = asyncio.run(run())
        return {**m.per(turns * RUNS, disk=False), **c.per(turns * RUNS), "turns_per_s": turns * RUNS / m.wall * 1e6}

    return w3


UNITS = {
    "w2pg": {
        "react sync": alone(base.react, base.REACT_IN, "sync"),
        "react async": alone(base.react, base.REACT_IN, "async"),
        "lean+delta sync": alone(base.delta, base.LEAN_IN, "sync"),
    },
    "w3": {"react async": many(react, base.REACT_IN, "async"), "lean+delta sync": many(delta, base.LEAN_IN, "sync")},
    "w3pg": {"react async": many_pg(react, base.REACT_IN, "async"), "lean+delta sync": many_pg(delta, base.LEAN_IN, "sync")},
}

if __name__ == "__main__":
    serve("langgraph", UNITS, base.GUARANTEE)
