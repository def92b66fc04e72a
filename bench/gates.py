"""The gates: counts that do not depend on the machine, each against its limit in `gates.toml`. Exit 1 when one is missed.

    python bench/gates.py

Flushes, commits, bytes, calls, policy parses, imported modules; no times. Flushes need the shim and are left out, with a word, where it
does not compile; so is Postgres where no server can be started, unless CI=true: then that is a miss.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping

import common
import interleave

LOADED = "import mandamus, sys, json; print(json.dumps(sorted(m for m in {names!r} if m in sys.modules)))"


def measured(file: str, unit: str, turns: int, place: Mapping[str, str] | None = None, variant: str = "ours") -> common.Sample:
    """One unit of ours in a process of its own, under the flush shim."""
    command = (sys.executable, str(common.BENCH / file), "_child", unit, variant, "--turns", str(turns))
    return said(command, place)


def said(command: tuple[str, ...], place: Mapping[str, str] | None = None) -> common.Sample:
    code, out, errors, _ = interleave.run(command, interleave.environment(extra=place), 60)
    if code:
        sys.exit(f"{' '.join(command[1:])}: {errors.strip()[-500:]}")
    return json.loads(out.strip().splitlines()[-1])


def parses(turns: int) -> tuple[int, int]:
    """(policy and schema parses, commits) while a durable run is judged and saved."""
    import ours as side

    async def run(folder: str) -> tuple[int, int]:
        env = await side.wiring.open_env(side.uri(folder))
        bot = await side.ready(turns)
        engine = bot._bound.engines[0][1]
        before, saved = engine.parses, sum(env.ledger.commits)
        await bot.run("go", ledger=env)
        made, commits = engine.parses - before, sum(env.ledger.commits) - saved
        await side.wiring.close_env(env)
        return made, commits

    with common.scratch("gates") as folder:
        return asyncio.run(run(folder))


def on_postgres(turns: tuple[int, ...]) -> list[common.Sample]:
    import servers

    with servers.postgres() as server:
        samples = []
        for n in turns:
            with servers.database(server) as place:
                samples.append(measured("w02_durable.py", "w2pg", n, place))
    return samples


def postgres(gates: common.Sample) -> Iterator[tuple[str, float, float]]:
    """Nothing where no server can be started."""
    few, many = 20, 200
    try:
        durable, longer = on_postgres((few, many))
    except common.NotMeasured as why:
        print(f"Postgres is not measured: {why}")
        if os.environ.get("CI") == "true":
            yield "postgres.not_measured", 1, 0
        return
    each = (longer["commits"] * many - durable["commits"] * few) / (many - few)
    yield "postgres.commits", each, gates["commits"]
    yield "postgres.commits_ends", durable["commits"] * few - each * few, gates["commits_ends"]
    yield "postgres.wal_x", max(durable["wal_x"], longer["wal_x"]), gates["wal_x"]
    yield "postgres.wal_growth", longer["wal"] / durable["wal"], gates["wal_growth"]


def logged(gates: common.Sample) -> Iterator[tuple[str, float, float]]:
    """What the transparency log adds to one run of 100 turns, its last signature included."""
    without, beside = (measured("w09_log.py", "w9_run", 100, variant=name) for name in ("ours, no log", "ours"))
    if "flushes" in beside:
        yield "log.flushes", beside["flushes"] - without["flushes"], gates["flushes"]
    yield "log.stored_x", beside["log_x"], gates["stored_x"]


def found(gates: common.Sample) -> Iterator[tuple[str, float, float]]:
    """(gate, what was counted, its limit)."""
    step, short, long = (measured("w01_step.py", "w1", n)["calls"] for n in (100, 30, 300))
    yield "step.calls", step, gates["step"]["calls"]
    yield "step.calls_growth", long / short, gates["step"]["calls_growth"]
    durable, longer = (measured("w02_durable.py", "w2", n) for n in (100, 300))
    if "flushes" in durable:
        yield "durable.flushes", durable["flushes"], gates["durable"]["flushes"]
    yield "durable.written_kb", durable["written"] / 1000, gates["durable"]["written_kb"]
    yield "durable.stored_kb", durable["stored"] / 1000, gates["durable"]["stored_kb"]
    yield "durable.written_growth", longer["written"] / durable["written"], gates["durable"]["written_growth"]
    yield from logged(gates["log"])
    yield from postgres(gates["postgres"])
    parsed, commits = parses(100)
    yield "durable.commits", commits / 100, gates["durable"]["commits"]
    yield "policy.parses", parsed, gates["policy"]["parses"]
    once = said((sys.executable, str(common.BENCH / "import_once.py"), "import mandamus"))
    yield "import.modules", once["modules"], gates["import"]["modules"]
    yield "import.peak_mb", once["peak_mb"], gates["import"]["peak_mb"]
    unwanted = said((sys.executable, "-c", LOADED.format(names=gates["import"]["unwanted"])))
    for name in unwanted:
        print(f"  import mandamus loads {name}")
    yield "import.unwanted", len(unwanted), 0


def main() -> None:
    gates = tomllib.loads((common.BENCH / "gates.toml").read_text())
    missed = 0
    for name, value, limit in found(gates):
        missed += value > limit
        print(f"{'ok  ' if value <= limit else 'MISS'} {name:24} {value:10.2f}   limit {limit:g}", flush=True)
    if not interleave.shim():
        print("flushes are not counted here: the shim needs Linux and a C compiler")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
