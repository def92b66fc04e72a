"""Random kill points: a run that pays nine times is killed anywhere, again and again, and taken over until it ends. What did the bank see?

    python bench/kills.py [PART OF A NAME] [--trials 100] [--peer-trials 30] [--seed 1] [--json out.json]

A trial kills one to three lives in a row with SIGKILL, each at a point drawn from the seed: an instant of the life (uniform over what it
takes undisturbed, from the first line after the imports to its exit), or its n-th flush, right before it or right after. Then lives
follow, undisturbed, until the run ends or waits for people. What is counted is what the bank was told, not what the system says:

    duplicated     payments beyond one for each of the nine
    unaccounted    payments that were intended, are not in the bank, and that nobody lists as unknown
    asked          payments listed as unknown, for people to settle (in the bank or not: that is what they find out)

The same trials for all: same seed, same kinds of kills, each over its own life. SIGKILL takes the process, not what the kernel has in its
cache: a power cut can only lose more, of those who do not flush.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random

import bank
import common
import crash
import interleave
from interleave import Row
from lives import Kill, Nursery

TURNS = 10
WANTED = TURNS - 1
LIVES_MAX = 12
KILLS_MAX = 3
SAMPLES = 3


def undisturbed(nursery: Nursery, case: crash.Case, kind: str) -> tuple[float, int]:
    """(seconds, flushes) of a life that nobody kills. Raises NotMeasured when it does not pay nine times."""
    ms, flushes = [], []
    for _ in range(SAMPLES):
        with common.scratch("kills") as folder, bank.opened(folder, kind) as port:
            said = nursery.live(case.variant, TURNS, folder, {"BENCH_BANK": port})
            paid = len(bank.paid(port))
        if "note" in said or not said.get("ended") or (paid != WANTED and case.variant != RUNS_TWICE):
            raise common.NotMeasured("not measured: " + str(said.get("note") or said.get("errors") or f"{paid} payments undisturbed"))
        ms.append(said["ms"])
        flushes.append(said.get("flushes", 0))
    return min(ms) / 1e3, min(flushes)


RUNS_TWICE = "effect before interrupt()"
"""LangGraph's node with an effect before `interrupt()` pays twice without any crash: that is its row's point."""


def trial(nursery: Nursery, case: crash.Case, kind: str, dice: random.Random, life: tuple[float, int]) -> common.Sample:
    """One run, killed and taken over until nothing more happens by itself."""
    kills = [Kill.drawn(dice, *life) for _ in range(dice.randint(1, KILLS_MAX))]
    struck, said = 0, common.Sample()
    with common.scratch("kills") as folder, bank.opened(folder, kind) as port:
        for n in range(LIVES_MAX):
            kill = kills[n] if n < len(kills) else None
            said = nursery.live(case.variant, TURNS, folder, {"BENCH_BANK": port}, kill)
            struck += said["code"] == -9 and kill is not None
            if crash.over(said) and n >= len(kills) - 1:
                break
            crash.rest(said)
        paid = bank.paid(port)
    return {**accounts(paid, said), "kills": struck, "end": int(crash.over(said)), "errors": said["errors"]}


def accounts(paid: list[str], said: common.Sample) -> common.Sample:
    """Payments against intentions. A system that keeps no list of intentions was asked for nine, and is held to them."""
    made, listed = set(paid), set(said.get("unknown", ()))
    intended = said.get("intended", WANTED)
    missing = max(0, intended - len(made | listed))
    return {
        "paid": len(paid),
        "duplicated": max(len(paid) - len(made), len(paid) - WANTED, 0),
        "unaccounted": missing,
        "asked": len(listed),
    }


def row_of(case: crash.Case, kind: str, trials: int, seed: int) -> Row:
    row = crash.bare_row("kills", case, kind)
    if "note" in row:
        return row
    try:
        with crash.nursery(case) as nursery:
            life = undisturbed(nursery, case, kind)
            runs = [trial(nursery, case, kind, random.Random(f"{seed} {n}"), life) for n in range(trials)]
    except common.NotMeasured as why:
        return {**row, "note": str(why)}
    sums = {key: sum(r[key] for r in runs) for key in ("paid", "duplicated", "unaccounted", "asked", "kills")}
    hit = sum(r["duplicated"] + r["unaccounted"] > 0 for r in runs)
    row |= {"n": trials, "seed": seed, "life_ms": round(life[0] * 1e3, 1), "life_flushes": life[1], **sums, "trials_hit": hit}
    stuck = [r for r in runs if not r["end"]]
    return {**row, "stuck": len(stuck), "stuck_why": stuck[0]["errors"][-120:] if stuck else ""}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("part", nargs="?", default="", help="only rows whose name contains this")
    p.add_argument("--bank", choices=["blind", "askable", "keyed"], help="another kind of bank than the row's own")
    p.add_argument("--trials", type=int, default=5 if common.QUICK else 100, help="runs of each of ours")
    p.add_argument("--peer-trials", type=int, default=2 if common.QUICK else 30, help="runs of each peer")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--no-peers", dest="peers", action="store_false")
    p.add_argument("--json", type=pathlib.Path)
    a = p.parse_args()
    machine, rows = common.machine(), []
    for case in crash.OURS + (crash.PEERS if a.peers else ()):
        if a.part.lower() in case.system.lower():
            interleave.progress(f"kills: {case.system}")
            rows.append(row_of(case, a.bank or case.bank, a.peer_trials if case.venv else a.trials, a.seed))
            common.emit(**rows[-1])
    if a.json:
        a.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
