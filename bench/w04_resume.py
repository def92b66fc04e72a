"""W4: a run asks for approval and its process ends; another process gives the approval and finishes the run.

    python bench/w04_resume.py --turns 10,1000 --json out.json

`wall`, `cpu` (µs): from the first line after the imports to the answer. `process_ms`: the whole second process, interpreter and imports
included.
"""

from __future__ import annotations

import asyncio
import pathlib
from typing import TYPE_CHECKING

import proto
from common import Meter, Sample, require_disk
from unit import Options, main

if TYPE_CHECKING:
    from interleave import Row

PEERS = (("langgraph", "react"), ("openai_agents", "run state"), ("pydantic_ai", "deferred"), ("dbos", "recv"))
PEERS_UP_TO = 100


def ours_suspend(turns: int, folder: str) -> Sample:
    """First process: `turns - 2` turns with a tool, then a tool that needs approval. Durable in `folder`; the vote lies beside it."""
    import ours as side

    asyncio.run(side.suspend(turns, folder))
    return {}


def ours(turns: int, folder: str) -> Sample:
    """Second process: opens `folder`, parses the policies, hands the vote in, runs to the answer. Imports are not timed."""
    import ours as side

    from mandamus.drivers import ledger_sqlite, policy_cedar, policy_python, sign_file, yaml_strict  # noqa: F401
    from mandamus.runtime import drive, handoff, recover, start  # noqa: F401

    said = (pathlib.Path(folder) / "vote").read_bytes()
    with Meter() as m:
        asyncio.run(side.resume(turns, folder, said))
    return m.per(1)


def yardstick_suspend(turns: int, folder: str) -> Sample:
    assert asyncio.run(proto.drive("r", turns, proto.Sqlite(folder + "/x.db"), last="pay")) == "suspended"
    return {}


def yardstick(turns: int, folder: str) -> Sample:
    with Meter() as m:
        ledger = proto.Sqlite(folder + "/x.db")
        seq, prev, history, pending = proto.fold(ledger.read("r"), "r")
        assert pending is not None
        log, call = proto.Log("r", seq, prev), pending["id"]
        log.add("ApprovalGiven", {"by": "x", "id": call})
        log.add("ActionStarted", {"id": call, "key": f"r/{call}"})
        ledger.write(log.take())
        log.add("ActionEnded", {"id": call, "output": pending["args"]["a"]})
        log.add("TurnStarted", {"turn": turns - 1})
        log.add("ModelCalled", {"turn": turns - 1})
        ledger.write(log.take())
        log.add("RunCompleted", {"output": asyncio.run(proto.model([*history, {}], turns))["content"]})
        ledger.write(log.take())
    return m.per(1)


def measure(o: Options) -> list[Row]:
    from interleave import compare, own, peer

    require_disk()
    rows = []
    for turns in o.turns:
        systems = [own(__file__, "w4", name, turns, prepare="w4_suspend") for name in UNITS["w4"]]
        if o.peers and turns <= PEERS_UP_TO:
            systems += [peer(venv, "w4", variant, turns, prepare="w4_suspend") for venv, variant in PEERS]
        rows += compare("W4", f"approval after {turns - 2} tool turns", systems, o.rounds, ratios=("wall", "process_ms"))
    return rows


UNITS = {"w4": {"ours": ours, "yardstick": yardstick}, "w4_suspend": {"ours": ours_suspend, "yardstick": yardstick_suspend}}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="10,1000", quick="10")
