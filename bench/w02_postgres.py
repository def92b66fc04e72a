"""W2 on Postgres: what `w02_durable.py --store postgres` measures. The same agent and the same turns as on SQLite.

`commits` counts transactions that write, `wal` bytes of write-ahead log, both by the server's own positions (pg.py); `bytes` is what the
run stored, records and payloads, so that log and content can be held against each other. All clients of a round speak TCP over the
loopback to one server; each gets an empty database.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pg
import proto
from common import Meter, Sample

if TYPE_CHECKING:
    from interleave import Row
    from unit import Options

PEERS = (
    ("langgraph", "langgraph_async", "react sync"),
    ("langgraph", "langgraph_async", "react async"),
    ("langgraph", "langgraph_async", "lean+delta sync"),
    ("dbos", "dbos", "workflow"),
)
WARM_UP = 10
TABLES = """
create table head (run text primary key, seq bigint not null, hash bytea not null, epoch bigint not null) with (fillfactor = 50);
create table event (run text, seq bigint, body bytea not null, primary key (run, seq));
create table payload (run text, seq bigint, part text, form text not null, bytes bytea not null, primary key (run, seq, part));
"""
APPEND = """
with h as (update head set seq = seq + %(n)s, hash = %(hash)s where run = %(run)s and seq = %(after)s and epoch = 1 returning run),
     p as (insert into payload select h.run, x.* from h,
           unnest(%(at)s::bigint[], %(parts)s::text[], %(forms)s::text[], %(bytes)s::bytea[]) x)
insert into event select h.run, x.* from h, unnest(%(seqs)s::bigint[], %(bodies)s::bytea[]) x returning seq
"""
YARDSTICK = "create table event (run text, seq bigint, raw bytea not null, hash text not null, primary key (run, seq))"
WRITE = "insert into event select * from unnest(%s::text[], %s::bigint[], %s::bytea[], %s::text[])"


async def stored(ledger: Any, run: str) -> int:
    """Bytes of the run's records and payloads."""
    records = sum([len(raw) async for raw in ledger.read(run)])
    return records + sum([len(part.bytes) async for part in ledger.payloads(run)])


def ours(turns: int, folder: str) -> Sample:
    import ours as side

    with asyncio.Runner() as r:
        env = r.run(side.opened(folder, pg.dsn()))
        r.run(side.agent(WARM_UP).run("go", ledger=env))
        bot = r.run(side.ready(turns))
        with pg.Counted(pg.dsn()) as c, Meter() as m:
            r.run(bot.run("go", ledger=env, run_id="r"))
        content = r.run(stored(env.ledger, "r")) / turns
        r.run(side.wiring.close_env(env))
    return {**m.per(turns, disk=False), **c.per(turns), "bytes": content, "wal_x": c.wal / turns / content}


class Postgres:
    """The yardstick's ledger: one statement and one transaction a barrier, nothing else."""

    def __init__(self, where: str) -> None:
        import psycopg

        self.c: Any = psycopg.connect(where, autocommit=True)
        self.c.execute(YARDSTICK)

    async def commit(self, log: proto.Log) -> None:
        self.write(log.take())

    def write(self, rows: list[proto.Stored]) -> None:
        runs, seqs, raws, hashes = zip(*rows, strict=True)
        self.c.execute(WRITE, [list(runs), list(seqs), list(raws), list(hashes)], prepare=True)

    def stored(self, run: str) -> int:
        return int(self.c.execute("select sum(length(raw) + length(hash) + 8) from event where run = %s", [run]).fetchone()[0])


def yardstick(turns: int, folder: str) -> Sample:
    ledger = Postgres(pg.dsn())
    with asyncio.Runner() as r:
        r.run(proto.drive("a warm-up", WARM_UP, ledger))
        with pg.Counted(pg.dsn()) as c, Meter() as m:
            r.run(proto.drive("r", turns, ledger))
    content = ledger.stored("r") / turns
    ledger.c.close()
    return {**m.per(turns, disk=False), **c.per(turns), "bytes": content, "wal_x": c.wal / turns / content}


def statements(commits: list[Any], run: str) -> list[dict[str, Any]]:
    """Each commit of ours as the parameters of one statement."""
    out: list[dict[str, Any]] = []
    seq = -1
    for events, payloads, hash in commits:
        first, seqs = seq, [spot >> 5 & 0xFFFFFFF for spot, _ in events]
        at, parts, forms, content = ([*column] for column in zip(*payloads, strict=True)) if payloads else ([], [], [], [])
        out.append(
            {"run": run, "n": len(events), "hash": hash, "after": first, "seqs": seqs, "bodies": [body for _, body in events],
             "at": [spot >> 5 & 0xFFFFFFF for spot in at], "parts": parts, "forms": forms, "bytes": content}
        )  # fmt: skip
        seq = first + len(events)
    return out


def our_rows(turns: int, folder: str) -> Sample:
    """Our commits with nothing around them: the same records and payloads, the head compared and moved, one statement each."""
    import ours as side
    import psycopg
    import w02_durable

    asyncio.run(side.finished(turns, folder))
    commits = w02_durable.commits_of(folder + "/x.db")
    c: Any = psycopg.connect(pg.dsn(), autocommit=True)
    c.execute(TABLES)
    c.execute("insert into head values ('r', -1, '', 1), ('a warm-up', -1, '', 1)")

    def write(some: list[dict[str, Any]]) -> None:
        for values in some:
            assert c.execute(APPEND, values, prepare=True).rowcount == values["n"]

    write(statements(commits[: 2 * WARM_UP], "a warm-up"))
    ready = statements(commits, "r")
    with pg.Counted(pg.dsn()) as counted, Meter() as m:
        write(ready)
    c.close()
    content = sum(len(b) for values in ready for b in (*values["bodies"], *values["bytes"])) / turns
    return {**m.per(turns, disk=False), **counted.per(turns), "bytes": content, "wal_x": counted.wal / turns / content}


def raw_commits(turns: int, folder: str) -> Sample:
    """Two transactions a turn that write one row each."""
    import psycopg

    c: Any = psycopg.connect(pg.dsn(), autocommit=True)
    c.execute("create table one (n bigint, body bytea)")
    with pg.Counted(pg.dsn()) as counted, Meter() as m:
        for n in range(2 * turns):
            c.execute("insert into one values (%s, %s)", [n, b"x" * 600], prepare=True)
    c.close()
    return {**m.per(turns, disk=False), **counted.per(turns)}


def measure(o: Options) -> list[Row]:
    import functools

    import servers
    from interleave import compare, own, peer

    rows = []
    with servers.postgres() as server:
        place = functools.partial(servers.database, server)
        for turns in o.turns:
            systems = [own("w02_durable.py", "w2pg", name, turns, place=place, version=servers.version(server)) for name in UNITS]
            if o.peers:
                systems += [peer(venv, "w2pg", variant, turns, script=script, place=place) for venv, script, variant in PEERS]
            rows += compare("W2pg", f"{turns} turns", systems, o.rounds, cap=o.cap)
    return rows


UNITS = {"ours": ours, "yardstick": yardstick, "raw Postgres, our rows": our_rows, "raw commits": raw_commits}
