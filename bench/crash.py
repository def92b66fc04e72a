"""The crash matrix: an effect, then a crash, then the documented resume. How often did the effect happen?

    python bench/crash.py [PART OF A NAME] [--bank blind] [--json out.json]

The bank (`bank.py`) is a process of its own that forgives nothing; it counts.

    post   one payment is wanted; the process dies right after the bank has answered, before anything can be recorded      right: 1
    pre    one payment is wanted; the process dies right before it calls the bank                                          right: 1
    nine   nine payments are wanted; the process dies right after the fifth                                                right: 9

More than right is money paid twice. Less, when the system says so and waits for people, is safe but needs them ("halts"). Each cell is run
several times; a cell whose runs differ shows its range. Peers' documents promise at-least-once for steps and nodes, and LangGraph's advise
against an effect before `interrupt()`: the matrix shows what that means.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
from typing import NamedTuple

import common
import interleave
from interleave import Row

COLUMNS = {"post": (2, "post", 1), "pre": (2, "pre", 1), "nine": (10, "post", 5)}
"""name: (turns, where it dies, at which payment). A run of n turns wants n - 1 payments."""
RESUMES = 3


class Case(NamedTuple):
    """One row. `bank` is the weakest kind of other side that the row needs, see bank.py."""

    system: str
    venv: str
    variant: str
    bank: str = "blind"


PEERS = (
    Case("LangGraph react, durability=sync", "langgraph", "react sync"),
    Case("LangGraph react, default durability", "langgraph", "react default"),
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
    `bank.find`), keyed or irreversible. Returns `ended` (1 at the answer) and `unknown`, the number of payments that are listed as unknown
    and left to people. `bank.pay` dies by itself where the matrix wants it.
    """
    import asyncio

    import ours as side

    return asyncio.run(side.live(tool_class, turns, folder))


def life(case: Case, turns: int, folder: str, env: dict[str, str]) -> common.Sample:
    """One process, from its start to its end or its death."""
    tail = ("crash", case.variant, "--turns", str(turns), "--folder", folder)
    start = (str(interleave.python_of(case.venv)), str(common.BENCH / "peers" / f"peer_{case.venv}.py"))
    if not case.venv:
        start = (sys.executable, str(pathlib.Path(__file__).resolve()), "_child")
    code, out, errors, _ = interleave.run([*start, *tail], env, 60)
    said = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {"code": code, **(said[-1] if said else {}), "errors": errors.strip()[-300:]}


def cell(case: Case, column: str, kind: str) -> common.Sample:
    """One crash and its resume, with a bank of its own: payments, and how the system came to its end."""
    turns, mode, at = COLUMNS[column]
    with common.scratch("crash") as folder:
        command = (sys.executable, str(common.BENCH / "bank.py"), folder, kind)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as bank:
            port = bank.stdout.readline().strip()
            env = interleave.environment(extra={"BENCH_BANK": port})
            said = life(case, turns, folder, {**env, "CRASH_MODE": mode, "CRASH_AT": str(at)})
            for _ in range(RESUMES):
                if "note" in said or "ended" in said:
                    break
                said = life(case, turns, folder, env)
            os.environ["BENCH_BANK"] = port
            import bank as teller

            paid = len(teller.ask("all").split())
            bank.stdin.close()
    if "note" in said:
        return {"note": said["note"]}
    end = "halts" if said.get("unknown") else "ends" if said.get("ended") else "fails: " + said["errors"][-120:]
    return {"paid": paid, "unknown": said.get("unknown", 0), "end": end}


def row_of(case: Case, kind: str, times: int, columns: list[str]) -> Row:
    row: Row = {"unit": "crash", "label": f"{kind} bank", "system": case.system, "role": "peer" if case.venv else "ours"}
    if case.venv:
        row["version"] = interleave.versions(case.venv)
        if not interleave.python_of(case.venv).exists():
            return {**row, "note": "not measured: not installed"}
    for column in columns:
        runs = []
        for _ in range(times):
            runs.append(cell(case, column, kind))
            if "note" in runs[-1]:
                return {**row, "note": runs[-1]["note"]}
        wanted = COLUMNS[column][0] - 1
        row[column] = {"wanted": wanted, "paid": [r["paid"] for r in runs], "unknown": [r["unknown"] for r in runs], "end": runs[-1]["end"]}
    return row


def main() -> None:
    if sys.argv[1:2] == ["_child"]:
        variants = {case.variant: (lambda turns, folder, v=case.variant: ours(v, turns, folder)) for case in OURS}
        return common.serve("mandamus", {"crash": variants}, argv=sys.argv[2:])
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("part", nargs="?", default="", help="only rows whose name contains this")
    p.add_argument("--bank", choices=["blind", "askable", "keyed"], help="another kind of bank than the row's own")
    p.add_argument("--times", type=int, default=1 if common.QUICK else 3, help="runs of a cell")
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
