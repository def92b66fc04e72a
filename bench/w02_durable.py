"""W2: a durable run on SQLite. One tool call per turn: µs, flushes, bytes written and bytes stored per turn.

    python bench/w02_durable.py --store sqlite --turns 100 --flush-us 0,1000 --json out.json

`stored` is what the database's files grew by, after it was closed. Refuses a memory disk.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from typing import TYPE_CHECKING

import proto
from common import Meter, Sample, require_disk, size_of
from unit import Options, main

if TYPE_CHECKING:
    from interleave import Row

PEERS = (
    ("langgraph", "react sync"),
    ("langgraph", "react async"),
    ("langgraph", "lean+delta sync"),
    ("openai_agents", "session"),
    ("dbos", "workflow"),
    ("pydantic_dbos", "agent"),
)
RAW = b"x" * 290
ROWS_OF_A_TURN = (5, 4)
"""Nine records of about 290 B in two commits: what the yardstick hands to SQLite."""


def ours(turns: int, folder: str) -> Sample:
    """Per turn: `Meter.per` (wall, cpu, written, flushes) and `stored`. The ledger lies in `folder`; Cedar on, tool class keyed, OTel off.

    Warm up with a short run of its own, so that imports and the database's first pages are not timed.
    """
    import ours as side

    with asyncio.Runner() as r:
        env = r.run(side.wiring.open_env(side.uri(folder)))
        r.run(side.agent(10).run("go", ledger=env))
        bot = r.run(side.ready(turns))
        r.run(side.drained(env))
        before = size_of(folder)
        with Meter() as m:
            r.run(bot.run("go", ledger=env))
        r.run(side.wiring.close_env(env))
    return {**m.per(turns), "stored": (size_of(folder) - before) / turns}


def yardstick(turns: int, folder: str) -> Sample:
    ledger = proto.Sqlite(folder + "/x.db")
    with asyncio.Runner() as r:
        r.run(proto.drive("a warm-up", 10, ledger))
        ledger.c.execute("pragma wal_checkpoint(truncate)")
        before = size_of(folder)
        with Meter() as m:
            r.run(proto.drive("r", turns, ledger))
    payload = ledger.stored()
    ledger.c.close()
    return {**m.per(turns), "stored": (size_of(folder) - before) / turns, "payload": payload / (turns + 10)}


def raw_sqlite(turns: int, folder: str) -> Sample:
    """The same commits of the same bytes, and nothing else."""
    c = sqlite3.connect(folder + "/x.db", isolation_level=None)
    c.execute("pragma journal_mode=wal")
    c.execute("pragma synchronous=full")
    c.execute("create table event(run text, seq int, raw blob, hash text, primary key(run, seq)) without rowid")
    seq, name = 0, "h" * 64
    with Meter() as m:
        for _ in range(turns):
            for n in ROWS_OF_A_TURN:
                c.execute("begin immediate")
                c.executemany("insert into event values('r', ?, ?, ?)", [(seq + i, RAW, name) for i in range(n)])
                c.execute("commit")
                seq += n
    c.close()
    return {**m.per(turns), "stored": size_of(folder) / turns}


def raw_flushes(turns: int, folder: str) -> Sample:
    """Two appends of 4 KB, each with fdatasync."""
    fd = os.open(folder + "/f", os.O_CREAT | os.O_RDWR)
    with Meter() as m:
        for _ in range(2 * turns):
            os.write(fd, b"x" * 4096)
            os.fdatasync(fd)
    os.close(fd)
    return m.per(turns)


def measure(o: Options) -> list[Row]:
    from interleave import compare, own, peer

    require_disk()
    rows = []
    for turns in o.turns:
        for flush_us in o.flush_us:
            systems = [own(__file__, "w2", name, turns) for name in UNITS["w2"]]
            if o.peers:
                systems += [peer(venv, "w2", variant, turns) for venv, variant in PEERS]
            label = f"{turns} turns, SQLite" + (f", each flush +{flush_us / 1000:g} ms" if flush_us else "")
            rounds = o.rounds if turns < 1000 else min(o.rounds, 2)
            rows += compare("W2", label, systems, rounds, flush_us=flush_us, timeout=240)
    return rows


UNITS = {"w2": {"ours": ours, "yardstick": yardstick, "raw SQLite": raw_sqlite, "raw flushes": raw_flushes}}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="100,1000", quick="10")
