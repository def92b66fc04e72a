"""W5: what an import costs. Whole processes: CPU, wall, peak memory, modules; and what the package brings with it.

    python bench/w05_import.py --rounds 5 --json out.json

`process_ms`, `process_cpu_ms`: the interpreter's start and end included (see the row "bare python"). `unwanted`: how many of OpenTelemetry,
httpx and textual were loaded.

`import mandamus` loads what is used when it is used, and peers load nearly all at once: compare them with "all that a run needs", which
imports the loop, the SQLite ledger, Cedar, the YAML reader and the signer as well. "--help" is the command line up to its first page.
"""

from __future__ import annotations

import json
import sys

import interleave
from common import BENCH, Sample, Work
from unit import Options, main

PEERS = {  # venv: (statement, distributions)
    "langgraph": (
        "from langgraph.prebuilt import create_react_agent; from langgraph.checkpoint.sqlite import SqliteSaver",
        ("langgraph", "langgraph-checkpoint-sqlite"),
    ),
    "openai_agents": ("from agents import Agent, Runner, SQLiteSession", ("openai-agents",)),
    "pydantic_ai": ("from pydantic_ai import Agent", ("pydantic-ai-slim",)),
    "dbos": ("from dbos import DBOS", ("dbos",)),
    "pydantic_dbos": ("from pydantic_ai.durable_exec.dbos import DBOSAgent", ("pydantic-ai-slim", "dbos")),
    "agent_framework": ("from agent_framework import Agent", ("agent-framework-core",)),
    "eventsourcing": ("from eventsourcing.application import Application", ("eventsourcing",)),
}


OURS = {
    "mandamus": "import mandamus",
    "mandamus, all that a run needs": (
        "import mandamus; from mandamus import Agent, tool, wiring; "
        "from mandamus.drivers import ledger_sqlite, model_scripted, policy_cedar, policy_python, sign_file, yaml_strict; "
        "from mandamus.runtime import drive, handoff, recover, start"
    ),
    "mandamus --help": (
        "import sys, os; out, sys.stdout = sys.stdout, open(os.devnull, 'w'); sys.argv = ['mandamus', '--help']; "
        "from mandamus.cli.main import main; assert main(['--help']) == 0; sys.stdout = out"
    ),
}


def importing(name: str, role: str, python: str, statement: str) -> interleave.System:
    return interleave.System(name, role, (python, str(BENCH / "import_once.py"), statement))


def footprint(python: str, statement: str, distributions: tuple[str, ...]) -> Sample:
    """Packages and megabytes; in a process of its own, because counting costs more than importing."""
    code, out, _, _ = interleave.run((python, str(BENCH / "import_once.py"), statement, *distributions), interleave.environment(), 60)
    return {k: v for k, v in json.loads(out).items() if k in ("packages", "site_mb")} if code == 0 else {}


def measure(o: Options) -> list[interleave.Row]:
    here, sizes = sys.executable, {"mandamus": (sys.executable, OURS["mandamus"], ("mandamus",))}
    systems = [
        importing("bare python", "limit", here, "pass"),
        importing("yardstick", "yardstick", here, "import msgspec, sqlite3, hashlib, asyncio"),
        *(importing(name, "ours", here, statement) for name, statement in OURS.items()),
    ]
    for venv, (statement, distributions) in PEERS.items() if o.peers else ():
        name, python = interleave.title(venv), str(interleave.python_of(venv))
        systems.append(importing(name, "peer", python, statement))
        if interleave.python_of(venv).exists():
            sizes[name] = (python, statement, distributions)
    footprints = {name: footprint(*what) for name, what in sizes.items()}  # also warms the page cache
    rows = interleave.compare("W5", "import", systems, o.rounds, ratios=("process_cpu_ms", "process_ms", "peak_mb"), cap=o.cap)
    for row in rows:
        row.update(footprints.get(row["system"], {}))
    return rows


UNITS: dict[str, dict[str, Work]] = {"w5": {}}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="1", quick="1")
