"""W4: a run asks for approval and its process ends; another process gives the approval and finishes the run.

    python bench/w04_resume.py --turns 10,1000 --json out.json

Two tables for each length, because they answer different questions:

    first resume    what a process that has done nothing yet pays: it opens its store, builds its agent, uses every decoder, policy and key
                    for the first time, and resumes. `wall`, `cpu` (µs) begin after the imports; `process_ms` is the whole process
    next resume     what a worker pays that has resumed another run before: its store is open and its agent built; the resume alone

All systems are measured alike in each: what one system's first use includes, the others' does too. `flushes`: durable commits inside.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import proto
from common import Meter, Sample, require_disk
from unit import Options, main

if TYPE_CHECKING:
    from interleave import Row

PEERS = (("langgraph", "react"), ("openai_agents", "run state"), ("pydantic_ai", "deferred"), ("dbos", "recv"))
PEERS_UP_TO = 100
ONE, TWO = ("next",), ("first", "next")


def ours_suspend(turns: int, folder: str) -> Sample:
    """First process: `turns - 2` turns with a tool, then a tool that needs approval. Durable in `folder`; the vote lies beside it."""
    import ours as side

    asyncio.run(side.suspend(turns, folder, ONE))
    return {}


def ours_suspend_two(turns: int, folder: str) -> Sample:
    import ours as side

    asyncio.run(side.suspend(turns, folder, TWO))
    return {}


def ours(turns: int, folder: str) -> Sample:
    """Second process: opens `folder`, parses the policies, hands the vote in, runs to the answer. Imports are not timed."""
    import ours as side

    side.preload()
    with asyncio.Runner() as r:
        with Meter() as m:
            env = r.run(side.resume(turns, folder, "next"))
        r.run(side.wiring.close_env(env))  # the yardstick closes nothing
    return m.per(1)


def ours_warm(turns: int, folder: str) -> Sample:
    """The same process has resumed a run of the same length before: the ledger is open, the policies are parsed."""
    import ours as side

    side.preload()
    with asyncio.Runner() as r:
        env = r.run(side.wiring.open_env(side.uri(folder)))
        bot = side.suspending(turns)
        bot._bound = r.run(side.wiring.bind(bot))
        r.run(side.answered(bot, env, "first", side.voted(folder, "first")))
        with Meter() as m:
            r.run(side.answered(bot, env, "next", side.voted(folder, "next")))
        r.run(side.wiring.close_env(env))
    return m.per(1)


def yardstick_suspend(turns: int, folder: str) -> Sample:
    assert asyncio.run(proto.drive("next", turns, proto.Sqlite(folder + "/x.db"), last="pay")) == "suspended"
    return {}


def yardstick_suspend_two(turns: int, folder: str) -> Sample:
    ledger = proto.Sqlite(folder + "/x.db")
    for run in TWO:
        assert asyncio.run(proto.drive(run, turns, ledger, last="pay")) == "suspended"
    return {}


def finished(turns: int, ledger: proto.Sqlite, run: str) -> None:
    """The yardstick's resume: fold, the vote and the intent, the outcome and the next question, the answer. Three commits."""
    seq, prev, history, pending = proto.fold(ledger.read(run), run)
    assert pending is not None
    log, call = proto.Log(run, seq, prev), pending["id"]
    log.add("ApprovalGiven", {"by": "x", "id": call})
    log.add("ActionStarted", {"id": call, "key": f"{run}/{call}"})
    ledger.write(log.take())
    log.add("ActionEnded", {"id": call, "output": pending["args"]["a"]})
    log.add("TurnStarted", {"turn": turns - 1})
    log.add("ModelCalled", {"turn": turns - 1})
    ledger.write(log.take())
    log.add("RunCompleted", {"output": asyncio.run(proto.model([*history, {}], turns))["content"]})
    ledger.write(log.take())


def yardstick(turns: int, folder: str) -> Sample:
    """Its codec is made inside the clock, as ours is."""
    with Meter() as m:
        proto.encode, proto.decode = msgspec.json.Encoder(order="sorted").encode, msgspec.json.Decoder(proto.Event).decode
        finished(turns, proto.Sqlite(folder + "/x.db"), "next")
    return m.per(1)


def yardstick_warm(turns: int, folder: str) -> Sample:
    ledger = proto.Sqlite(folder + "/x.db")
    finished(turns, ledger, "first")
    with Meter() as m:
        finished(turns, ledger, "next")
    return m.per(1)


def alone(row: Row, ratios: tuple[str, ...]) -> Row:
    """Without the cost of a whole process, where that process did more than is asked."""
    if "process_ms" not in ratios:
        row["figures"] = {k: v for k, v in row.get("figures", {}).items() if not k.startswith("process")}
    return row


def measure(o: Options) -> list[Row]:
    from interleave import compare, own, peer

    require_disk()
    rows = []
    for turns in o.turns:
        for unit, state, suffix in (("w4", "first", ""), ("w4_warm", "next", " warm")):
            systems = [own(__file__, unit, name, turns, prepare=unit + "_suspend") for name in UNITS[unit]]
            if o.peers and turns <= PEERS_UP_TO:
                systems += [peer(venv, "w4", variant + suffix, turns, prepare="w4_suspend") for venv, variant in PEERS]
            label = f"approval after {turns - 2} tool turns, {state} resume of the process"
            ratios = ("wall", "process_ms") if state == "first" else ("wall",)
            rows += [alone(row, ratios) for row in compare("W4", label, systems, o.rounds, ratios=ratios, cap=o.cap)]
    return rows


UNITS = {
    "w4": {"ours": ours, "yardstick": yardstick},
    "w4_suspend": {"ours": ours_suspend, "yardstick": yardstick_suspend},
    "w4_warm": {"ours": ours_warm, "yardstick": yardstick_warm},
    "w4_warm_suspend": {"ours": ours_suspend_two, "yardstick": yardstick_suspend_two},
}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="10,1000", quick="10")
