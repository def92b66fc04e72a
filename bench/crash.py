"""The crash matrix: an effect, then a crash, then the documented resume. How often did the effect happen?

    python bench/crash.py [PART OF A NAME] [--bank blind] [--json out.json]

The bank (`bank.py`) is a process of its own that forgives nothing; it counts.

    post   one payment is wanted; the process dies right after the bank has answered, before anything can be recorded      right: 1
    pre    one payment is wanted; the process dies right before it calls the bank                                          right: 1
    nine   nine payments are wanted; the process dies right after the fifth                                                right: 9

More than right is money paid twice. Less, when the system says so and waits for people, is safe but needs them ("halts"). Each cell is run
several times; a cell whose runs differ shows its range. Peers' documents promise at-least-once for steps and nodes, and LangGraph's advise
against an effect before `interrupt()`: the matrix shows what that means. Every life is a process of its own (lives.py). Random places to
die: kills.py.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import bank
import common
import interleave
from interleave import Row
from lives import Nursery

COLUMNS = {"post": (2, "post", 1), "pre": (2, "pre", 1), "nine": (10, "post", 5)}
"""name: (turns, where it dies, at which payment). A run of n turns wants n - 1 payments."""
RESUMES = 3
TIMES = 3
"""Runs of a cell."""


class Case(NamedTuple):
    """One row. `bank` is the weakest kind of other side that the row needs, see bank.py."""

    system: str
    venv: str
    variant: str
    bank: str = "blind"


PEERS = (
    Case("LangGraph react, durability=sync", "langgraph", "react sync"),
    Case("LangGraph react, default durability", "langgraph", "react default"),
    Case("LangGraph lean graph + DeltaChannel, sync", "langgraph", "lean+delta sync"),
    Case("LangGraph, effect before interrupt()", "langgraph", "effect before interrupt()"),
    Case("OpenAI Agents, SQLiteSession", "openai_agents", "session"),
    Case("OpenAI Agents, approved RunState", "openai_agents", "run state"),
    Case("Pydantic AI, deferred calls", "pydantic_ai", "deferred"),
    Case("DBOS step", "dbos", "step"),
    Case("Pydantic AI + DBOS", "pydantic_dbos", "agent"),
)
OURS = (
    Case("mandamus, reconcilable tool", "", "reconcilable", "askable"),
    Case("mandamus, keyed tool", "", "keyed", "keyed"),
    Case("mandamus, irreversible tool", "", "irreversible", "blind"),
)


def ours(tool_class: str, turns: int, folder: str) -> common.Sample:
    """One process's life: starts the run in `folder`, or resumes it when it is there.

    The run is `turns - 1` calls of a tool that does `bank.pay(operation id)`, then the answer. `tool_class` is reconcilable (may ask
    `bank.find`), keyed or irreversible. Returns `ended` (1 at the answer), `people` (1 when it waits for them), `intended` (how many
    payments were begun) and `unknown`, the numbers of those that are listed as in doubt or unknown. `bank.pay` dies by itself where
    the matrix wants it.
    """
    import asyncio

    import ours as side

    return asyncio.run(side.live(tool_class, turns, folder))


def nursery(case: Case) -> Nursery:
    """Where this system's lives come from."""
    own = (sys.executable, str(pathlib.Path(__file__).resolve()))
    peer = (str(interleave.python_of(case.venv)), str(common.BENCH / "peers" / f"peer_{case.venv}.py"))
    return Nursery(peer if case.venv else own, interleave.environment())


def over(said: common.Sample) -> bool:
    """Nothing more happens by itself: the answer is there, people are asked, or it cannot be measured."""
    return "note" in said or bool(said.get("ended")) or bool(said.get("people"))


def rest(said: common.Sample) -> None:
    """Where a run waits for an instant, a worker comes back then; so do we."""
    time.sleep(min(said.get("wake_ms", 0), 5_000) / 1e3)


def cell(nursery: Nursery, case: Case, column: str, kind: str) -> common.Sample:
    """One crash and its resume, with a bank of its own: payments, and how the system came to its end."""
    turns, mode, at = COLUMNS[column]
    with common.scratch("crash") as folder, bank.opened(folder, kind) as port:
        env = {"BENCH_BANK": port, "CRASH_MODE": "", "CRASH_AT": str(at)}
        said = nursery.live(case.variant, turns, folder, {**env, "CRASH_MODE": mode})
        for _ in range(RESUMES):
            if over(said):
                break
            rest(said)
            said = nursery.live(case.variant, turns, folder, env)
        paid = len(bank.paid(port))
    if "note" in said:
        return {"note": said["note"]}
    end = "halts" if said.get("unknown") else "ends" if said.get("ended") else "fails: " + said["errors"][-120:]
    return {"paid": paid, "unknown": len(said.get("unknown", ())), "end": end}


def bare_row(unit: str, case: Case, kind: str) -> Row:
    row: Row = {"unit": unit, "label": f"{kind} bank", "system": case.system, "role": "peer" if case.venv else "ours"}
    if case.venv:
        row["version"] = interleave.versions(case.venv)
        if not interleave.python_of(case.venv).exists():
            row["note"] = "not measured: not installed"
    return row


def row_of(case: Case, kind: str, times: int, columns: Sequence[str]) -> Row:
    row = bare_row("crash", case, kind)
    if "note" in row:
        return row
    with nursery(case) as started:
        for column in columns:
            runs = []
            for _ in range(times):
                runs.append(cell(started, case, column, kind))
                if "note" in runs[-1]:
                    return {**row, "note": runs[-1]["note"]}
            wanted = COLUMNS[column][0] - 1
            paid, unknown = [r["paid"] for r in runs], [r["unknown"] for r in runs]
            row[column] = {"wanted": wanted, "paid": paid, "unknown": unknown, "end": runs[-1]["end"]}
    return row


def serve_ours() -> None:
    """A nursery of ours. Imports what a run needs before the first life is born, as a peer's script does."""
    import ours as side

    side.preload()
    variants = {case.variant: (lambda turns, folder, v=case.variant: ours(v, turns, folder)) for case in OURS}
    common.serve("mandamus", {"crash": variants})


def main() -> None:
    if sys.argv[1:2] == ["_lives"]:
        return serve_ours()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("part", nargs="?", default="", help="only rows whose name contains this")
    p.add_argument("--bank", choices=["blind", "askable", "keyed"], help="another kind of bank than the row's own")
    p.add_argument("--times", type=int, default=1 if common.QUICK else TIMES, help="runs of a cell")
    p.add_argument("--columns", default=",".join(COLUMNS))
    p.add_argument("--no-peers", dest="peers", action="store_false")
    p.add_argument("--json", type=pathlib.Path)
    a = p.parse_args()
    machine, rows = common.machine(), []
    for case in OURS + (PEERS if a.peers else ()):
        if a.part.lower() in case.system.lower():
            rows.append(row_of(case, a.bank or case.bank, a.times, a.columns.split(",")))
            common.emit(**rows[-1])
    if a.json:
        a.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
