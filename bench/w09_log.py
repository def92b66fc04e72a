"""W9: the transparency log. Leaves a second, what an inclusion proof costs, and what the log adds to many runs at once.

    python bench/w09_log.py --json out.json

    append    `events_per_cpu_s`: records taken into tiles and bundles, root included, in memory; beside it one SHA-256 over the same bytes
    prove     `wall`: µs for an inclusion proof out of stored tiles that are in memory, of a log of `leaves` leaves
    many      W3 (200 runs at once, ten turns each, SQLite) with the log carried on beside it up to its last signature, against without
    run       one run of 100 turns, its last signature included: what it costs beyond the same without a log

The rule a newcomer would break: "with the log" ends when everything is signed, not when the runs have ended; else its last checkpoint
would be free.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from typing import TYPE_CHECKING, Any

from common import QUICK, RUNS, Meter, Sample, rates, require_disk, size_of
from unit import Options, main

if TYPE_CHECKING:
    from interleave import Row

RECORD = b'{"at":"2026-11-22T10:00:00.000000Z",' + b"x" * 404  # as large as ours are in the middle
LEAVES = 10_000 if QUICK else 1_000_000
APPENDED = 20_000 if QUICK else 200_000
PROOFS = 20_000
WARM_UP = 10


# -- append ------------------------------------------------------------------------------------------------------------------------
def taken(turns: int, folder: str) -> Sample:
    from mandamus.runtime.tlog.tiles import Edge

    records = [b"%08d" % n + RECORD for n in range(turns)]
    edge = Edge()
    with Meter() as m:
        for at in range(0, turns, 4096):
            edge.extend(records[at : at + 4096])
        edge.partial()
        edge.root()
    return {**m.per(turns, disk=False), **rates(turns, m)}


def hashed(turns: int, folder: str) -> Sample:
    data = b"".join(b"%08d" % n + RECORD for n in range(turns))
    with Meter() as m:
        hashlib.sha256(data).digest()
    return {**m.per(turns, disk=False), **rates(turns, m)}


# -- prove -------------------------------------------------------------------------------------------------------------------------
def proved(turns: int, folder: str) -> Sample:
    """`turns` leaves; every tile was read once before."""
    from mandamus.drivers.store_memory import MemoryStore
    from mandamus.proof.tree import leaf_hash, verify_inclusion
    from mandamus.runtime.tlog.reader import Reader
    from mandamus.runtime.tlog.tiles import Edge

    async def fill(store: Any) -> bytes:
        edge = Edge()
        for at in range(0, turns, 4096):
            for path, raw in edge.extend([b"%d" % n for n in range(at, min(turns, at + 4096))]):
                store.objects[path] = raw
        for path, raw in edge.partial():
            store.objects[path] = raw
        return edge.root()

    with asyncio.Runner() as r:
        store = MemoryStore()
        root = r.run(fill(store))
        reader = Reader(store, "bench", tiles_max=turns // 256 + 64)
        picks = [random.Random(1).randrange(turns) for _ in range(PROOFS)]

        async def work() -> list[list[bytes]]:
            return [await reader.inclusion(n, turns) for n in picks]

        r.run(work())
        with Meter() as m:
            proofs = r.run(work())
    assert all(verify_inclusion(leaf_hash(b"%d" % n), n, turns, p, root) for n, p in zip(picks[:500], proofs))
    return {**m.per(PROOFS, disk=False), "leaves": turns, "hashes": len(proofs[0])}


# -- many runs, and one ------------------------------------------------------------------------------------------------------------
def many(turns: int, folder: str, *, log: bool) -> Sample:
    import ours as side

    with asyncio.Runner() as r:
        env = r.run(side.wiring.open_env(side.uri(folder), log=f"folder://{folder}/log" if log else ""))
        bot = r.run(side.ready(turns))
        r.run(_all([bot.run("go", ledger=env) for _ in range(WARM_UP)]))
        r.run(side.drained(env))
        if log:
            r.run(env.tlog.catch_up())
        with Meter() as m:
            r.run(_all([bot.run("go", ledger=env) for _ in range(RUNS)]))
            if log:
                r.run(env.tlog.catch_up())
        r.run(side.wiring.close_env(env))
    return {**m.per(turns * RUNS), "turns_per_s": turns * RUNS / m.wall * 1e6}


async def _all(work: list[Any]) -> None:
    await asyncio.gather(*work)


def logged(turns: int, folder: str) -> Sample:
    return many(turns, folder, log=True)


def unlogged(turns: int, folder: str) -> Sample:
    return many(turns, folder, log=False)


def one(turns: int, folder: str, *, log: bool) -> Sample:
    """`flushes` of the whole run, not of a turn; `log_kb`: what the log stores for each turn, `log_x`: for each byte of records.

    One checkpoint, at the end: how many there are in between depends on how long the run takes.
    """
    import ours as side

    with asyncio.Runner() as r:
        env = r.run(side.wiring.open_env(side.uri(folder), log=f"folder://{folder}/log" if log else ""))
        r.run(side.agent(WARM_UP).run("go", ledger=env))
        bot = r.run(side.ready(turns))
        if log:
            env.tlog.pace(every=1 << 30, within_s=1e9)
            r.run(env.tlog.catch_up())
        before = size_of(f"{folder}/log") if log else 0
        with Meter() as m:
            result = r.run(bot.run("go", ledger=env))
            if log:
                r.run(env.tlog.catch_up())
        records = sum(r.run(_lengths(env, result.run_id)))
        r.run(side.wiring.close_env(env))
    stored = size_of(f"{folder}/log") - before if log else 0
    return {**m.per(1), "log_kb": stored / turns / 1000, "log_x": stored / records}


async def _lengths(env: Any, run: str) -> list[int]:
    return [len(raw) async for raw in env.ledger.read(run)]


def with_log(turns: int, folder: str) -> Sample:
    return one(turns, folder, log=True)


def without_log(turns: int, folder: str) -> Sample:
    return one(turns, folder, log=False)


def measure(o: Options) -> list[Row]:
    from interleave import compare, own

    require_disk()
    rows = []
    for what, size in (("append", APPENDED), ("prove", LEAVES)):
        systems = [own(__file__, f"w9_{what}", name, size) for name in UNITS[f"w9_{what}"]]
        rows += compare("W9", f"{what}, {size:,} leaves", systems, o.rounds, ratios=("cpu",), cap=o.cap)
    for turns in o.turns:
        systems = [own(__file__, "w9_many", name, turns) for name in UNITS["w9_many"]]
        rows += compare("W9", f"{RUNS} runs of {turns} turns at once, SQLite", systems, o.rounds, cap=o.cap)
    systems = [own(__file__, "w9_run", name, 100) for name in UNITS["w9_run"]]
    return rows + compare("W9", "one run of 100 turns, SQLite", systems, o.rounds, cap=o.cap)


UNITS = {
    "w9_append": {"ours": taken, "one SHA-256": hashed},
    "w9_prove": {"ours": proved},
    "w9_many": {"ours": logged, "ours, no log": unlogged},
    "w9_run": {"ours": with_log, "ours, no log": without_log},
}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="10", quick="10", rounds=5)
