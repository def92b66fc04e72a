"""Fair ratios: rounds A B C, A B C, each system in its own process and venv, ratios taken inside a round, then their median and range.

Two runs apart differ by 30x in wall time (neighbours' flushes); inside a round the machine is the same for all. Every unit `wNN_*.py`
lists its systems and calls `compare`. Children run under the flush shim where it compiles; `flush_us=1000` makes every flush cost 1 ms
more, which is the steadiest timing there is (spread 3-10 %).

The rule a newcomer would break: a system that is cut off after `cap` seconds has no figure but a lower bound, and is shown as one. What it
had spent when it was stopped is divided by all the turns that it was asked for, so the bound never flatters us.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from common import BENCH, Sample, scratch

Row = dict[str, Any]
QUIET = {
    "PYTHONWARNINGS": "ignore",
    "OTEL_SDK_DISABLED": "true",
    "ENABLE_INSTRUMENTATION": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
}
Place = Callable[[], AbstractContextManager[Mapping[str, str]]]
TEXT = ("system", "unit", "variant", "guarantee", "note", "turns", "cut")


@contextlib.contextmanager
def nowhere() -> Iterator[Mapping[str, str]]:
    """What a system needs that needs no server."""
    yield {}


@dataclasses.dataclass(frozen=True)
class System:
    """One column of a round. `{folder}` in a command is a fresh scratch folder, one for `prepare` (not timed) and `command` (timed).

    `place` is entered for each measurement and answers what the child finds in its environment: a database of its own, a server's address.
    """

    name: str
    role: str
    """ours, yardstick, limit or peer."""
    command: tuple[str, ...]
    prepare: tuple[str, ...] = ()
    version: str = ""
    turns: int = 1
    place: Place = nowhere


def own(file: str, unit: str, variant: str, turns: int = 10, prepare: str = "", place: Place = nowhere, version: str = "") -> System:
    """Ours, the yardstick or a limit: a variant of the unit's own file, in the python that runs the bench."""
    roles = {"ours": "ours", "yardstick": "yardstick"}
    word, _, rest = variant.partition(", ")
    base = (sys.executable, str(BENCH / pathlib.Path(file).name), "_child")
    tail = (variant, "--turns", str(turns), "--folder", "{folder}")
    name = "mandamus" + (f", {rest}" if rest else "") if word == "ours" else variant
    before = (*base, prepare, *tail) if prepare else ()
    return System(name, roles.get(word, "limit"), (*base, unit, *tail), before, version, turns, place)


def peer(venv: str, unit: str, variant: str, turns: int = 10, prepare: str = "", script: str = "", place: Place = nowhere) -> System:
    """A peer: `peers/peer_<script or venv>.py` in its own venv."""
    base = (str(python_of(venv)), str(BENCH / "peers" / f"peer_{script or venv}.py"))
    tail = (variant, "--turns", str(turns), "--folder", "{folder}")
    before = (*base, prepare, *tail) if prepare else ()
    return System(f"{title(venv)} {variant}", "peer", (*base, unit, *tail), before, versions(venv), turns, place)


def title(venv: str) -> str:
    """A peer's name in the tables."""
    return {"pydantic_dbos": "pydantic-ai + dbos"}.get(venv, venv.replace("_", "-"))


def python_of(venv: str) -> pathlib.Path:
    return BENCH / ".venvs" / venv / "bin" / "python"


def versions(venv: str) -> str:
    """The exact pins of a peer's venv."""
    return ", ".join(tomllib.loads((BENCH / "peers" / "venvs.toml").read_text())[venv]["install"]).replace("==", " ")


def progress(text: str) -> None:
    """To people, not to the results."""
    print(time.strftime("%H:%M:%S ") + text, file=sys.stderr, flush=True)


@functools.cache
def shim() -> str:
    """The flush shim, compiled on demand; empty where it cannot be (no compiler, no LD_PRELOAD): flushes are then not counted."""
    compiler, target = shutil.which("cc"), BENCH / ".build" / "flush_shim.so"
    source = BENCH / "flush_shim.c"
    if not compiler or sys.platform != "linux":
        return ""
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        target.parent.mkdir(exist_ok=True)
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(target), str(source), "-ldl"]
        made = subprocess.run(command, capture_output=True, check=False)
        if made.returncode:
            return ""
    return str(target)


def environment(flush_us: int = 0, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What every child runs with: tracing off, the shim in place. Ours without its transparency log: what that adds, W9 measures."""
    env = {**os.environ, "MANDAMUS_LOG": "none", **QUIET, **(extra or {})}
    if shim():
        env |= {"LD_PRELOAD": shim(), "FLUSH_US": str(flush_us)}
    return env


def run(command: Sequence[str], env: Mapping[str, str], timeout: float) -> tuple[int, str, str, Sample]:
    """Runs to the end: exit code, output, errors, and what the whole process cost."""
    t = time.perf_counter()
    p = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    late = threading.Timer(timeout, p.kill)
    late.start()
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.append(p.stderr.read()))
    reader.start()
    out = p.stdout.read()
    _, status, used = os.wait4(p.pid, 0)
    spent = (time.perf_counter() - t) * 1e3
    p.returncode = os.waitstatus_to_exitcode(status)
    late.cancel()
    reader.join()
    p.stdout.close()
    p.stderr.close()
    return p.returncode, out, errors[0], {"process_ms": spent, "process_cpu_ms": (used.ru_utime + used.ru_stime) * 1e3}


def filled(command: Sequence[str], folder: str) -> list[str]:
    return [part.replace("{folder}", folder) for part in command]


def bound(out: list[Sample], ended: float, cost: Sample, turns: int, cap: float) -> Sample | None:
    """What a process that was stopped at `ended` cost at least, per turn asked for. None when its timed part had not begun."""
    began = next((line for line in reversed(out) if "began" in line), None)
    if began is None:
        return None
    cpu = cost["process_cpu_ms"] * 1e3 - began["cpu"] * 1e6
    return {"wall": (ended - began["began"]) * 1e6 / turns, "cpu": cpu / turns, "cut": f"stopped after {cap:g} s", "turns": turns}


def once(system: System, env: Mapping[str, str], cap: float = 120, store: str = "") -> Sample:
    """One measurement in a process of its own, in a fresh copy of `store` if there is one. `note` instead of figures when there is none."""
    if not pathlib.Path(system.command[0]).exists():
        return {"note": "not measured: not installed"}
    with scratch("round") as folder, system.place() as place:
        if store:
            shutil.copytree(store, folder, dirs_exist_ok=True)
        code, out, errors, cost = run(filled(system.command, folder), {**env, **place, "BENCH_CAP": "1"}, cap)
        ended = time.perf_counter()
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
    figures = [line for line in lines if "began" not in line]
    if code == 0 and figures:
        return {**cost, **figures[-1]}
    if code == -9 and (least := bound(lines, ended, cost, system.turns, cap)):
        return least
    return {"note": "not measured: " + (f"stopped after {cap:g} s" if code == -9 else last_line(errors))}


def last_line(errors: str) -> str:
    return (errors.strip().splitlines() or ["no output"])[-1][-200:]


def prepared(system: System, env: Mapping[str, str], folder: str, cap: float) -> Sample | None:
    """Makes the store that every round gets a copy of. Not timed. A note when it cannot be made."""
    if not system.prepare or not pathlib.Path(system.command[0]).exists():
        return None
    code, _, errors, _ = run(filled(system.prepare, folder), env, cap)
    return {"note": "not measured: its store: " + (f"stopped after {cap:g} s" if code == -9 else last_line(errors))} if code else None


def spread(values: Sequence[float]) -> dict[str, float]:
    """A figure without its range is not a figure."""
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


def compare(
    unit: str,
    label: str,
    systems: Sequence[System],
    rounds: int,
    *,
    flush_us: int = 0,
    ratios: Sequence[str] = ("wall", "cpu"),
    cap: float = 120,
) -> list[Row]:
    """Measures all systems interleaved; prints and returns one row for each.

    `x_limit`, `x_yardstick` and `x_ours` say how many times a system costs what the first limit, the yardstick, or ours, cost in the same
    round. What is slower than `cap` seconds is measured once, as a lower bound (`cut`).
    """
    seen = measured(f"{unit} {label}", systems, rounds, environment(flush_us), cap)
    good = {name: usable(samples) for name, samples in seen.items()}
    bases: dict[str, dict[int, Sample]] = {}
    for role in ("limit", "yardstick", "ours"):
        for s in systems:
            if s.role == role and good[s.name]:
                bases.setdefault("x_" + role, good[s.name])
    rows = []
    for s in systems:
        row: Row = {"unit": unit, "label": label, "system": s.name, "role": s.role, "version": s.version, "flush_us": flush_us}
        last = list((good[s.name] or seen[s.name]).values())[-1]
        rows.append(row | row_of(last, good[s.name], bases, ratios))
        print(json.dumps(rows[-1]), flush=True)
    return rows


def usable(samples: Mapping[int, Sample]) -> dict[int, Sample]:
    """Whole measurements; only where there is none, the lower bound. Leaving a slow round out flatters the system that was slow."""
    found = {n: x for n, x in samples.items() if "note" not in x}
    return {n: x for n, x in found.items() if "cut" not in x} or found


def measured(what: str, systems: Sequence[System], rounds: int, env: Mapping[str, str], cap: float) -> dict[str, dict[int, Sample]]:
    """Samples by system and round. A system that has no figure, or was cut off, is not run again."""
    seen: dict[str, dict[int, Sample]] = {s.name: {} for s in systems}
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        stores: dict[str, str] = {}
        for n in range(rounds):
            for s in systems:
                if any("note" in x or "cut" in x for x in seen[s.name].values()):
                    continue
                if s.prepare and s.name not in stores:
                    stores[s.name] = stack.enter_context(scratch("store"))
                    if failed := prepared(s, env, stores[s.name], 3 * cap):
                        seen[s.name][n] = failed
                        continue
                seen[s.name][n] = once(s, env, cap, stores.get(s.name, ""))
            spent = time.monotonic() - begun
            left = f", about {spent / (n + 1) * (rounds - n - 1):.0f} s left" if n + 1 < rounds else ""
            progress(f"{what}: round {n + 1} of {rounds} after {spent:.0f} s{left}")
    return seen


def row_of(last: Sample, good: Mapping[int, Sample], bases: Mapping[str, Mapping[int, Sample]], ratios: Sequence[str]) -> Row:
    """The part of a row that was measured: figures, ratios inside each round, or why there are none."""
    row: Row = {k: v for k, v in last.items() if k in TEXT and k not in ("system", "unit", "variant")}
    if not good:
        return row
    samples = list(good.values())
    names = [k for k, v in samples[0].items() if k not in TEXT and isinstance(v, (int, float)) and all(k in x for x in samples)]
    row |= {"n": len(samples), "figures": {k: spread([x[k] for x in samples]) for k in names}}
    for name, base in bases.items():
        pairs = [(x, base[n]) for n, x in good.items() if n in base]
        row[name] = {k: spread([x[k] / y[k] for x, y in pairs]) for k in ratios if k in names and pairs and all(y.get(k) for _, y in pairs)}
    return row
