"""DBOS alone: a workflow with a model step and a tool step per turn. On SQLite it uses the rollback journal: four flushes per step.

python peer_dbos.py [w2|w4|w7|crash [VARIANT]] [--turns N]
"""

from __future__ import annotations

import os
import pathlib
import sys
import time
from typing import Any

from dbos import DBOS, SetWorkflowID

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import bank
from common import Meter, Sample, rates, serve, size_of


@DBOS.step()
def model_step(k: int, turns: int) -> dict[str, Any]:
    if k < turns - 1:
        return {"role": "assistant", "call": {"id": f"c{k}", "name": "add", "args": {"a": k, "b": 1}}}
    return {"role": "assistant", "content": "done"}


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


def launch(folder: str) -> None:
    url = f"sqlite:///{folder}/x.db"
    DBOS(config={"name": "bench", "system_database_url": url, "run_admin_server": False, "log_level": "ERROR", "application_version": "1"})
    DBOS.launch()


def w2(turns: int, folder: str) -> Sample:
    launch(folder)
    workflow(10)
    before = size_of(folder)
    with Meter() as m:
        assert workflow(turns) == "done"
    return {**m.per(turns), "stored": (size_of(folder) - before) / turns}


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
    "w4_suspend": {"recv": w4_suspend(("a1",)), "recv warm": w4_suspend(("a0", "a1"))},
    "w4": {"recv": w4, "recv warm": w4_warm},
    "w7_prepare": {"recover": w7_prepare},
    "w7": {"recover": w7},
    "crash": {"step": crash},
}
STEPS = "each step's output durable after the step; steps at-least-once; recovers by itself; no intent record"
READS = "reads step outputs, its launch included; verifies nothing"
GUARANTEE = {"workflow": STEPS, "recv": STEPS, "recv warm": STEPS, "recover": READS, "step": STEPS}

if __name__ == "__main__":
    serve("dbos", UNITS, GUARANTEE)
