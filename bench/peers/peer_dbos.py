"""DBOS alone: a workflow with a model step and a tool step per turn. On SQLite it uses the rollback journal: four flushes per step.

python peer_dbos.py [w2|w2pg|w3|w3pg|w4|w7|w12|crash [VARIANT]] [--turns N]       (w2pg, w3pg, w12: BENCH_POSTGRES_DB=postgres://...)
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import sys
import time
from typing import Any

from dbos import DBOS, SetWorkflowID

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import bank
import pg
from common import RUNS, Meter, Sample, rates, serve, size_of


def scripted(k: int, turns: int) -> dict[str, Any]:
    if k < turns - 1:
        return {"role": "assistant", "call": {"id": f"c{k}", "name": "add", "args": {"a": k, "b": 1}}}
    return {"role": "assistant", "content": "done"}


POLL_S = 0.02
"""Its own default is a second, in which nothing is done: a shorter one is its best case."""


@DBOS.step()
def model_step(k: int, turns: int) -> dict[str, Any]:
    return scripted(k, turns)


@DBOS.step()
def add(a: int, b: int) -> int:
    return a + b


@DBOS.step()
def pay(key: str) -> str:
    return bank.pay(key)


@DBOS.workflow()
def workflow(turns: int) -> str:
    history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for k in range(turns):
        m = model_step(k, turns)
        history.append(m)
        if "call" in m:
            history.append({"role": "tool", "content": add(**m["call"]["args"])})
    return history[-1]["content"]


@DBOS.step()
async def model_step_async(k: int, turns: int) -> dict[str, Any]:
    return scripted(k, turns)


@DBOS.step()
async def add_async(a: int, b: int) -> int:
    return a + b


@DBOS.workflow()
async def workflow_async(turns: int) -> str:
    history: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for k in range(turns):
        m = await model_step_async(k, turns)
        history.append(m)
        if "call" in m:
            history.append({"role": "tool", "content": await add_async(**m["call"]["args"])})
    return history[-1]["content"]


@DBOS.workflow()
def dies_at_the_end(turns: int) -> str:
    for k in range(turns):
        model_step(k, turns + 2)
        add(1, 2)
    if os.environ.get("DIE"):
        os._exit(0)
    return "done"


@DBOS.workflow()
def asks(turns: int) -> str:
    for k in range(turns - 2):
        model_step(k, turns)
        add(1, 2)
    model_step(turns - 2, turns)
    DBOS.set_event("asked", True)
    assert DBOS.recv("approval", timeout_seconds=600)
    add(1, 2)
    return model_step(turns - 1, turns)["content"]


@DBOS.workflow()
def pays(turns: int) -> str:
    for k in range(turns - 1):
        model_step(k, turns)
        pay(f"c{k}")
    return model_step(turns - 1, turns)["content"]


def launch(folder: str, url: str = "") -> None:
    url = url or f"sqlite:///{folder}/x.db"
    DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR", "application_version": "1"})
    DBOS.launch()


def w2(turns: int, folder: str) -> Sample:
    launch(folder)
    workflow(10)
    before = size_of(folder)
    with Meter() as m:
        assert workflow(turns) == "done"
    return {**m.per(turns), "stored": (size_of(folder) - before) / turns}


def on_postgres() -> str:
    """The same database for its own tables; its driver wants the longer scheme."""
    return pg.dsn().replace("postgres://", "postgresql://", 1)


def w2pg(turns: int, folder: str) -> Sample:
    launch(folder, on_postgres())
    workflow(10)
    with pg.Counted(pg.dsn()) as c, Meter() as m:
        assert workflow(turns) == "done"
    return {**m.per(turns, disk=False), **c.per(turns)}


async def at_once(turns: int, runs: int) -> None:
    assert set(await asyncio.gather(*[workflow_async(turns) for _ in range(runs)])) == {"done"}


def w3(turns: int, folder: str) -> Sample:
    async def run() -> Meter:
        launch(folder)
        await at_once(turns, 10)
        with Meter() as m:
            await at_once(turns, RUNS)
        return m

    m = asyncio.run(run())
    return {**m.per(turns * RUNS), "turns_per_s": turns * RUNS / m.wall * 1e6}


def w3pg(turns: int, folder: str) -> Sample:
    async def run() -> tuple[Meter, pg.Counted]:
        launch(folder, on_postgres())
        await at_once(turns, 10)
        with pg.Counted(pg.dsn()) as c, Meter() as m:
            await at_once(turns, RUNS)
        return m, c

    m, c = asyncio.run(run())
    return {**m.per(turns * RUNS, disk=False), **c.per(turns * RUNS), "turns_per_s": turns * RUNS / m.wall * 1e6}


def w12(turns: int, folder: str) -> Sample:
    """Tasks from a durable queue: all are enqueued, taken by this process, and their results read back."""
    launch(folder, on_postgres())
    work = DBOS.register_queue("bench", polling_interval_sec=POLL_S)
    work.enqueue(workflow, turns).get_result(polling_interval_sec=POLL_S)
    with pg.Counted(pg.dsn()) as c, Meter() as m:
        tasks = [work.enqueue(workflow, turns) for _ in range(RUNS)]
        assert {task.get_result(polling_interval_sec=POLL_S) for task in tasks} == {"done"}
    return {**m.per(RUNS, disk=False), **c.per(RUNS), "tasks_per_s": RUNS / m.wall * 1e6}


def w4_suspend(names: tuple[str, ...]) -> Any:
    def suspend(turns: int, folder: str) -> Sample:
        launch(folder)
        for name in names:
            with SetWorkflowID(name):
                DBOS.start_workflow(asks, turns)
            assert DBOS.get_event(name, "asked", timeout_seconds=60)
        time.sleep(0.2)
        return {}

    return suspend


def approved(name: str) -> None:
    DBOS.send(name, True, "approval")
    assert DBOS.retrieve_workflow(name).get_result() == "done"


def w4(turns: int, folder: str) -> Sample:
    with Meter() as m:
        launch(folder)
        approved("a1")
    return m.per(1)


def w4_warm(turns: int, folder: str) -> Sample:
    launch(folder)
    approved("a0")
    with Meter() as m:
        approved("a1")
    return m.per(1)


def w7_prepare(turns: int, folder: str) -> Sample:
    os.environ["DIE"] = "1"
    launch(folder)
    with SetWorkflowID("c1"):
        DBOS.start_workflow(dies_at_the_end, turns).get_result()
    return {}


def w7(turns: int, folder: str) -> Sample:
    with Meter() as m:
        launch(folder)
        DBOS.retrieve_workflow("c1").get_result()
    return {**m.per(turns, disk=False), **rates(2 * turns, m)}


def crash(turns: int, folder: str) -> Sample:
    """Launching recovers what was pending."""
    launch(folder)
    if DBOS.get_workflow_status("w") is not None:
        return {"ended": int(DBOS.retrieve_workflow("w").get_result() == "done")}
    with SetWorkflowID("w"):
        return {"ended": int(pays(turns) == "done")}


UNITS = {
    "w2": {"workflow": w2},
    "w2pg": {"workflow": w2pg},
    "w3": {"workflow": w3},
    "w3pg": {"workflow": w3pg},
    "w12": {"queue": w12},
    "w4_suspend": {"recv": w4_suspend(("a1",)), "recv warm": w4_suspend(("a0", "a1"))},
    "w4": {"recv": w4, "recv warm": w4_warm},
    "w7_prepare": {"recover": w7_prepare},
    "w7": {"recover": w7},
    "crash": {"step": crash},
}
STEPS = "each step's output durable after the step; steps at-least-once; recovers by itself; no intent record"
READS = "reads step outputs, its launch included; verifies nothing"
GUARANTEE = {"workflow": STEPS, "recv": STEPS, "recv warm": STEPS, "recover": READS, "step": STEPS, "queue": STEPS}

if __name__ == "__main__":
    serve("dbos", UNITS, GUARANTEE)
