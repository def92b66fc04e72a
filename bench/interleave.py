"""Fair ratios: rounds A B C, A B C, each system in its own process and venv, ratios taken inside a round, then their median and range.

Two runs apart differ by 30x in wall time (neighbours' flushes); inside a round the machine is the same for all. Every unit `wNN_*.py`
lists its systems and calls `compare`. Children run under the flush shim where it compiles; `flush_us=1000` makes every flush cost 1 ms
more, which is the steadiest timing there is (spread 3-10 %).
"""

from __future__ import annotations

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
from collections.abc import Mapping, Sequence
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
TEXT = ("system", "unit", "variant", "guarantee", "note", "turns")


@dataclasses.dataclass(frozen=True)
class System:
    """One column of a round. `{folder}` in a command is a fresh scratch folder, one for `prepare` (not timed) and `command` (timed)."""

    name: str
    role: str
    """ours, yardstick, limit or peer."""
    command: tuple[str, ...]
    prepare: tuple[str, ...] = ()
    version: str = ""


def own(file: str, unit: str, variant: str, turns: int = 10, prepare: str = "") -> System:
    """Ours, the yardstick or a limit: a variant of the unit's own file, in the python that runs the bench."""
    roles = {"ours": "ours", "yardstick": "yardstick"}
    base = (sys.executable, str(pathlib.Path(file).resolve()), "_child")
    tail = (variant, "--turns", str(turns), "--folder", "{folder}")
    name = "mandamus" if variant == "ours" else variant
    return System(name, roles.get(variant, "limit"), (*base, unit, *tail), (*base, prepare, *tail) if prepare else ())


def peer(venv: str, unit: str, variant: str, turns: int = 10, prepare: str = "", script: str = "") -> System:
    """A peer: `peers/peer_<script or venv>.py` in its own venv."""
    base = (str(python_of(venv)), str(BENCH / "peers" / f"peer_{script or venv}.py"))
    tail = (variant, "--turns", str(turns), "--folder", "{folder}")
    return System(f"{title(venv)} {variant}", "peer", (*base, unit, *tail), (*base, prepare, *tail) if prepare else (), versions(venv))


def title(venv: str) -> str:
    """A peer's name in the tables."""
    return {"pydantic_dbos": "pydantic-ai + dbos"}.get(venv, venv.replace("_", "-"))


def python_of(venv: str) -> pathlib.Path:
    return BENCH / ".venvs" / venv / "bin" / "python"


def versions(venv: str) -> str:
    """The exact pins of a peer's venv."""
    return ", ".join(tomllib.loads((BENCH / "peers" / "venvs.toml").read_text())[venv]["install"]).replace("==", " ")


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
    """What every child runs with: tracing off, the shim in place."""
    env = {**os.environ, **QUIET, **(extra or {})}
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


def once(system: System, env: Mapping[str, str], timeout: float = 120) -> Sample:
    """One measurement in a process of its own. `note` instead of figures when there is none."""
    if not pathlib.Path(system.command[0]).exists():
        return {"note": "not measured: not installed"}
    with scratch("round") as folder:
        for command, timed in ((system.prepare, False), (system.command, True)):
            if not command:
                continue
            filled = [part.replace("{folder}", folder) for part in command]
            code, out, errors, cost = run(filled, env, timeout)
            if timed:
                lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
                if code == 0 and lines:
                    return {**cost, **lines[-1]}
                said = (errors.strip().splitlines() or ["no output"])[-1][-200:]
                return {"note": "not measured: " + (f"stopped after {timeout:g} s" if code == -9 else said)}
    return {"note": "not measured: nothing to run"}


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
    timeout: float = 120,
) -> list[Row]:
    """Measures all systems interleaved; prints and returns one row for each.

    `x_limit`, `x_yardstick` and `x_ours` say how many times a system costs what the first limit, the yardstick, or ours, cost in the same
    round.
    """
    env, seen = environment(flush_us), {s.name: [] for s in systems}
    dead: dict[str, Sample] = {}
    for _ in range(rounds):
        for s in systems:
            if s.name in dead:
                continue
            sample = once(s, env, timeout)
            if "note" in sample:
                dead[s.name] = sample
            seen[s.name].append(sample)
    bases: dict[str, list[Sample]] = {}
    for role in ("limit", "yardstick", "ours"):
        for s in systems:
            if s.role == role and s.name not in dead:
                bases.setdefault("x_" + role, seen[s.name])
    rows = []
    for s in systems:
        samples = seen[s.name]
        row: Row = {"unit": unit, "label": label, "system": s.name, "role": s.role, "version": s.version, "flush_us": flush_us}
        row |= {k: v for k, v in samples[-1].items() if k in TEXT and k not in ("system", "unit", "variant")}
        if s.name not in dead:
            names = [k for k, v in samples[0].items() if k not in TEXT and isinstance(v, (int, float))]
            row |= {"n": len(samples), "figures": {k: spread([x[k] for x in samples]) for k in names}}
            for name, base in bases.items():
                row[name] = {k: spread([a[k] / b[k] for a, b in zip(samples, base, strict=False)]) for k in ratios if base[0].get(k)}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows
