"""Everything in one go: peers' venvs, limits, all units, the crash matrix, random kills; one JSON in results/, and the README's tables.

    python bench/run.py                        the full bench; stopped, it goes on where it was
    python bench/run.py --quick --no-peers     smallest sizes, nothing to install; prints the tables and keeps nothing
    python bench/run.py --units w2,kills       some units, or one step of them: w2-1000
    python bench/run.py --again --units w4     once more, although it was measured
    python bench/run.py --plan                 what would be run, what is done, and how long the rest takes

A step that is done is not repeated: its result lies in `.build/parts` under the commit (and what differs from it), and is used again while
neither the code nor the step's options changed. Every run keeps all that is there for this commit, whatever `--units` names.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import common
import interleave
import report


class Step(NamedTuple):
    """One child. `seconds` on a quiet machine of two cores with peers, until a measurement of this machine is there."""

    name: str
    file: str
    seconds: int
    options: tuple[str, ...] = ()
    peers: bool = True
    quick: bool = True  # part of a quick run that names no units


STEPS = (
    Step("limits", "limits.py", 30, peers=False),
    Step("w1", "w01_step.py", 240),
    Step("w2-100", "w02_durable.py", 200, ("--turns", "100")),
    Step("w2-slow", "w02_durable.py", 300, ("--turns", "100", "--flush-us", "1000")),
    Step("w2-1000", "w02_durable.py", 1000, ("--turns", "1000")),
    Step("w2pg-20", "w02_durable.py", 90, ("--store", "postgres", "--turns", "20")),
    Step("w2pg-200", "w02_durable.py", 120, ("--store", "postgres", "--turns", "200", "--rounds", "3"), quick=False),
    Step("w3-sqlite", "w03_many.py", 150),
    Step("w3-postgres", "w03_many.py", 120, ("--store", "postgres")),
    Step("w3-stored-sqlite", "w03_stored.py", 60, peers=False),
    Step("w3-stored-postgres", "w03_stored.py", 180, ("--store", "postgres"), peers=False, quick=False),
    Step("w3-stored-nats", "w03_stored.py", 60, ("--store", "nats", "--turns", "10000"), peers=False, quick=False),
    Step("w4-10", "w04_resume.py", 200, ("--turns", "10")),
    Step("w4-1000", "w04_resume.py", 60, ("--turns", "1000")),
    Step("w5", "w05_import.py", 90),
    Step("w7-10000", "w07_replay.py", 240, ("--turns", "1250")),
    Step("w7-100000", "w07_replay.py", 240, ("--turns", "12500")),
    Step("w9", "w09_log.py", 150, peers=False),
    Step("w12-nats", "w12_cluster.py", 150, ("--store", "nats"), peers=False),
    Step("w12-postgres", "w12_cluster.py", 90, ("--store", "postgres", "--rounds", "3"), peers=False, quick=False),
    Step("w12-workers-postgres", "w12_workers.py", 90, ("--store", "postgres")),
    Step("w12-workers-nats", "w12_workers.py", 90, ("--store", "nats"), peers=False, quick=False),
    Step("crash", "crash.py", 150),
    Step("kills", "kills.py", 600),
)
BUILD = common.BENCH / ".build"
TIMES = BUILD / "times.json"


def command(step: Step, a: argparse.Namespace) -> list[str]:
    options = without(step.options, "--turns", "--rounds") if a.quick else list(step.options)
    options += ["--rounds", str(a.rounds)] if a.rounds and step.name.startswith("w") else []
    options += ["--no-peers"] if step.peers and not a.peers else []
    return [sys.executable, str(common.BENCH / step.file), *options]


def without(options: Sequence[str], *names: str) -> list[str]:
    """A quick run has sizes of its own."""
    pairs = [options[i : i + 2] for i in range(0, len(options), 2)]
    return [part for pair in pairs if pair[0] not in names for part in pair]


def chosen(asked: str, quick: bool = False) -> list[Step]:
    """The steps that `--units` names, by unit or by step. Exits on a name that is none."""
    names = asked.split(",") if asked else []
    known = {s.name for s in STEPS} | {unit(s) for s in STEPS}
    if unknown := sorted(set(names) - known):
        sys.exit(f"no unit {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [s for s in STEPS if s.name in names or unit(s) in names or (not names and (s.quick or not quick))]


def unit(step: Step) -> str:
    return step.name.partition("-")[0]


def folder(quick: bool) -> pathlib.Path:
    """Where this code's parts lie: by commit and by what the tree has on top of it, so that no figure outlives its code."""
    git = ["git", "-C", str(common.BENCH.parent)]
    changed = subprocess.run([*git, "diff", "HEAD", "--", "src", "bench/*.py", "bench/peers"], capture_output=True, check=False).stdout
    more = "-" + hashlib.sha256(changed).hexdigest()[:8] if changed else ""
    return BUILD / "parts" / (common.machine()["commit"].rstrip("+") + more + ("-quick" if quick else ""))


def done(path: pathlib.Path, asked: list[str]) -> bool:
    """Was just this measured before? A part is written whole or not at all."""
    return path.exists() and json.loads(path.read_text()).get("command") == asked[1:]


def measure(step: Step, asked: list[str], path: pathlib.Path, quick: bool) -> bool:
    """Runs one step; its part is there afterwards, or False."""
    out = path.with_suffix(".new")
    out.unlink(missing_ok=True)
    begun = time.monotonic()
    env = {**os.environ, **({"BENCH_QUICK": "1"} if quick else {})}
    code = subprocess.run([*asked, "--json", str(out)], env=env, stdout=subprocess.DEVNULL, check=False).returncode
    if code or not out.exists():
        return False
    part = {"command": asked[1:], "seconds": round(time.monotonic() - begun), **json.loads(out.read_text())}
    out.write_text(json.dumps(part, indent=1) + "\n")
    out.replace(path)
    if not quick and "--no-peers" not in asked:
        TIMES.write_text(json.dumps({**times(), step.name: part["seconds"]}, indent=1) + "\n")
    return True


def times() -> dict[str, int]:
    return json.loads(TIMES.read_text()) if TIMES.exists() else {}


def minutes(steps: list[Step]) -> str:
    known = times()
    return f"{sum(known.get(s.name, s.seconds) for s in steps) / 60:.0f} min"


def parts(where: pathlib.Path) -> list[dict[str, Any]]:
    """All that is measured for this code, each with the machine and the load of its own time."""
    found = [json.loads((where / f"{s.name}.json").read_text()) for s in STEPS if (where / f"{s.name}.json").exists()]
    return [{k: v for k, v in part.items() if k != "command"} for part in found]


def kept(where: pathlib.Path, quick: bool) -> pathlib.Path:
    """Writes the result file and says where."""
    machine = common.machine()
    slug = re.sub(r"\W+", "-", f"{machine['cpu']}-{machine['cores']}-cores").lower()
    file = BUILD / "quick.json" if quick else common.BENCH / "results" / f"{machine['at'][:10]}-{machine['commit'].rstrip('+')}-{slug}.json"
    file.write_text(json.dumps({"parts": parts(where)}, indent=1) + "\n")
    return file


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="smallest sizes; the result is not kept")
    p.add_argument("--no-peers", dest="peers", action="store_false")
    p.add_argument("--units", default="", help="comma-separated: " + ", ".join(dict.fromkeys(map(unit, STEPS))))
    p.add_argument("--rounds", type=int, help="interleaved rounds of every unit (default 5)")
    p.add_argument("--again", action="store_true", help="also what is done")
    p.add_argument("--plan", action="store_true", help="run nothing")
    a = p.parse_args()
    where, steps = folder(a.quick), chosen(a.units, a.quick)
    where.mkdir(parents=True, exist_ok=True)
    todo = [s for s in steps if a.again or not done(where / f"{s.name}.json", command(s, a))]
    if a.plan:
        known = times()
        for s in steps:
            print(f"{s.name:12} {f'about {known.get(s.name, s.seconds)} s' if s in todo else 'done'}")
        return print(f"{len(todo)} of {len(steps)} to do, about {minutes(todo)}")
    if a.peers and todo:
        subprocess.run([sys.executable, str(common.BENCH / "peers" / "make.py")], check=False)
    failed = []
    for n, step in enumerate(todo):
        interleave.progress(f"[{n + 1}/{len(todo)}] {step.name}: about {minutes([step])} of {minutes(todo[n:])} left")
        if not measure(step, command(step, a), where / f"{step.name}.json", a.quick):
            failed.append(step.name)
            interleave.progress(f"{step.name}: no result")
    file = kept(where, a.quick)
    print(report.tables([file]))
    if not a.quick:
        report.main([])
        print(f"kept in {file.relative_to(common.BENCH.parent)}", file=sys.stderr)
    if failed:
        sys.exit(f"no result: {', '.join(failed)}; the same command runs only these")


if __name__ == "__main__":
    main()
