"""W2: a durable run on SQLite or Postgres. One tool call per turn: µs, flushes, bytes written and bytes stored per turn.

    python bench/w02_durable.py --store sqlite --turns 100 --flush-us 0,1000 --json out.json
    python bench/w02_durable.py --store postgres --turns 20,200 --json out.json          (w02_postgres.py: commits and log per turn)

`stored` is what the database's files grew by, after it was closed. Refuses a memory disk. Some peers' cost per turn grows with the run: at
1000 turns one of their processes may be stopped by `--cap`, and its row is a lower bound. The slower flush is measured up to 100 turns.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from typing import TYPE_CHECKING, Any

import proto
import w02_postgres
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
LAST = ("RunOpened", "ModelCalled", "ActionStarted", "RunSealed")
BARRIERS = tuple(f'"type":"{name}","v":1}}'.encode() for name in LAST)
"""How the last record of each of our commits ends."""
WARM_UP = 10
SLOW_FLUSH_UP_TO = 100


def ours(turns: int, folder: str) -> Sample:
    """Per turn: `Meter.per` (wall, cpu, written, flushes) and `stored`. The ledger lies in `folder`; Cedar on, tool class keyed, OTel off.

    Warm up with a short run of its own, so that imports and the database's first pages are not timed.
    """
    import ours as side

    with asyncio.Runner() as r:
        env = r.run(side.wiring.open_env(side.uri(folder)))
        r.run(side.agent(WARM_UP).run("go", ledger=env))
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
        r.run(proto.drive("a warm-up", WARM_UP, ledger))
        ledger.c.execute("pragma wal_checkpoint(truncate)")
        before = size_of(folder)
        with Meter() as m:
            r.run(proto.drive("r", turns, ledger))
    payload = ledger.stored()
    ledger.c.close()
    return {**m.per(turns), "stored": (size_of(folder) - before) / turns, "payload": payload / (turns + WARM_UP)}


def our_rows_prepare(turns: int, folder: str) -> Sample:
    """A run of ours, whose rows `our_rows` copies."""
    import ours as side

    asyncio.run(side.finished(turns, folder))
    return {}


def commits_of(path: str) -> list[tuple[list[Any], list[Any], bytes]]:
    """(rows of records, rows of payloads, the head's hash) of each commit of the run in `path`, as its driver stored them."""
    import apsw

    c = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    no = next(c.execute("select no from head where run = 'r'"))[0]
    first, last = no << 33, (no + 1) << 33
    parts: dict[int, list[Any]] = {}
    for row in c.execute("select spot, part, form, bytes from payload where spot >= ? and spot < ?", (first, last)):
        parts.setdefault(row[0] >> 5, []).append(row)
    commits: list[tuple[list[Any], list[Any], bytes]] = [([], [], b"")]
    for spot, body in c.execute("select spot, body from event where spot >= ? and spot < ? order by spot", (first, last)):
        commits[-1][0].append((spot, body))
        commits[-1][1].extend(parts.get(spot >> 5, ()))
        if body.endswith(BARRIERS):
            commits.append(([], [], b""))
    c.close()
    return [(events, payloads, os.urandom(32)) for events, payloads, _ in commits if events]


def our_rows(turns: int, folder: str) -> Sample:
    """Our commits with nothing around them: the same rows of records and payloads, the head moved, the same tables, SQLite and settings."""
    import pathlib

    from mandamus.drivers import _sqlite_file

    commits = commits_of(folder + "/x.db")
    c = _sqlite_file.open_writer(pathlib.Path(folder, "raw.db"))
    cursor = c.cursor()

    def write(some: list[tuple[list[Any], list[Any], bytes]], run: int) -> None:
        cursor.execute("insert into head (no, run, seq, hash, epoch) values (?, ?, 0, x'00', 1)", (run, str(run)))
        for events, payloads, hash in some:
            cursor.execute("begin immediate")
            cursor.execute("select seq, hash from head where no = ?", (run,)).fetchall()
            cursor.executemany("insert into event values (?, ?)", [(run << 40 | spot, body) for spot, body in events])
            cursor.executemany("insert into payload values (?, ?, ?, ?)", [(run << 40 | spot, *rest) for spot, *rest in payloads])
            cursor.execute("update head set seq = seq + ?, hash = ? where no = ?", (len(events), hash, run))
            cursor.execute("commit")

    write(commits[: 2 * WARM_UP], 1)
    c.wal_checkpoint(mode=3)
    before = (pathlib.Path(folder, "raw.db")).stat().st_size
    with Meter() as m:
        write(commits, 2)
    c.close()
    return {**m.per(turns), "stored": (pathlib.Path(folder, "raw.db").stat().st_size - before) / turns, "commits": len(commits) / turns}


def raw_sqlite(turns: int, folder: str) -> Sample:
    """The yardstick's commits with nothing around them: as many rows of as many bytes."""
    c = sqlite3.connect(folder + "/x.db", isolation_level=None)
    c.execute("pragma journal_mode=wal")
    c.execute("pragma synchronous=full")
    c.execute("create table event(run text, seq int, raw blob, hash text, primary key(run, seq)) without rowid")
    name = "h" * 64

    def write(run: str, turns: int) -> None:
        seq = 0
        for _ in range(turns):
            for n in ROWS_OF_A_TURN:
                c.execute("begin immediate")
                c.executemany("insert into event values(?, ?, ?, ?)", [(run, seq + i, RAW, name) for i in range(n)])
                c.execute("commit")
                seq += n

    write("a warm-up", WARM_UP)
    c.execute("pragma wal_checkpoint(truncate)").fetchall()
    before = size_of(folder)
    with Meter() as m:
        write("r", turns)
    c.close()
    return {**m.per(turns), "stored": (size_of(folder) - before) / turns}


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
    if o.store == "postgres":
        return w02_postgres.measure(o)
    rows = []
    for turns in o.turns:
        for flush_us in o.flush_us:
            if flush_us and turns > SLOW_FLUSH_UP_TO:
                continue
            systems = [own(__file__, "w2", name, turns, "w2_prepare" if name == OUR_ROWS else "") for name in UNITS["w2"]]
            if o.peers:
                systems += [peer(venv, "w2", variant, turns) for venv, variant in PEERS]
            label = f"{turns} turns, SQLite" + (f", each flush +{flush_us / 1000:g} ms" if flush_us else "")
            rows += compare("W2", label, systems, o.rounds, flush_us=flush_us, cap=o.cap)
    return rows


OUR_ROWS = "raw SQLite, our rows"
UNITS = {
    "w2": {
        "ours": ours,
        "yardstick": yardstick,
        OUR_ROWS: our_rows,
        "raw SQLite, the yardstick's rows": raw_sqlite,
        "raw flushes": raw_flushes,
    },
    "w2_prepare": {OUR_ROWS: our_rows_prepare},
    "w2pg": w02_postgres.UNITS,
}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="100,1000", quick="10", stores=("sqlite", "postgres"))
