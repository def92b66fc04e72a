"""W3: many runs at once in one process, ten turns each: turns a second, CPU, flushes or commits a turn.

    python bench/w03_many.py --store sqlite --json out.json
    python bench/w03_many.py --store postgres --json out.json

`wall` is the time of all turns of all runs, divided by their number; a run's own turns take longer. BENCH_RUNS says how many runs (200).
The rule a newcomer would break: an opened run counts from its opening to its seal, so all of a run's costs are in its turns.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

import pg
import proto
import w02_durable
import w02_postgres
from common import RUNS, Meter, Sample, require_disk
from unit import Options, main

if TYPE_CHECKING:
    from interleave import Row

PEERS = (
    ("langgraph", "langgraph_async", "react async"),
    ("langgraph", "langgraph_async", "lean+delta sync"),
    ("dbos", "dbos", "workflow"),
)
WARM_UP = 10


def figures(m: Meter, turns: int, counted: pg.Counted | None = None) -> Sample:
    n = turns * RUNS
    return {**m.per(n, disk=counted is None), **(counted.per(n) if counted else {}), "turns_per_s": n / m.wall * 1e6}


async def all_at_once(work: Sequence[Awaitable[Any]]) -> None:
    await asyncio.gather(*work)


# -- SQLite ------------------------------------------------------------------------------------------------------------------------
def ours(turns: int, folder: str) -> Sample:
    import ours as side

    with asyncio.Runner() as r:
        env = r.run(side.opened(folder))
        bot = r.run(side.ready(turns))
        r.run(all_at_once([bot.run("go", ledger=env) for _ in range(WARM_UP)]))
        r.run(side.drained(env))
        with Meter() as m:
            r.run(all_at_once([bot.run("go", ledger=env) for _ in range(RUNS)]))
        r.run(side.wiring.close_env(env))
    return figures(m, turns)


class Grouped:
    """The yardstick's ledger for many: whoever waits when a commit begins is in it. No thread, no timer."""

    def __init__(self, under: proto.Sqlite | w02_postgres.Postgres) -> None:
        self.under, self.waiting = under, list[proto.Stored]()
        self.next: asyncio.Task[None] | None = None

    async def commit(self, log: proto.Log) -> None:
        self.waiting += log.take()
        if self.next is None:
            self.next = asyncio.create_task(self._write())
        await self.next

    async def _write(self) -> None:
        await asyncio.sleep(0)
        self.next, rows, self.waiting = None, self.waiting, []
        self.under.write(rows)


def yardstick(turns: int, folder: str) -> Sample:
    ledger = Grouped(proto.Sqlite(folder + "/x.db"))
    with asyncio.Runner() as r:
        r.run(proto.drive("a warm-up", WARM_UP, ledger))
        ledger.under.c.execute("pragma wal_checkpoint(truncate)")
        with Meter() as m:
            r.run(all_at_once([proto.drive(f"r{n}", turns, ledger) for n in range(RUNS)]))
    ledger.under.c.close()
    return figures(m, turns)


def our_rows(turns: int, folder: str) -> Sample:
    """Our commits of as many runs with nothing around them: the same step of all of them in one transaction."""
    import pathlib

    import ours as side

    from mandamus.drivers import _sqlite_file

    asyncio.run(side.finished(turns, folder))
    commits = w02_durable.commits_of(folder + "/x.db")
    c = _sqlite_file.open_writer(pathlib.Path(folder, "raw.db"))
    cursor = c.cursor()
    cursor.executemany("insert into head (no, run, seq, hash, epoch) values (?, ?, 0, x'00', 1)", [(n, str(n)) for n in range(1, RUNS + 1)])
    with Meter() as m:
        for events, payloads, hash in commits:
            cursor.execute("begin immediate")
            for no in range(1, RUNS + 1):
                cursor.execute("select seq, hash from head where no = ?", (no,)).fetchall()
                cursor.executemany("insert into event values (?, ?)", [(no << 40 | spot, body) for spot, body in events])
                cursor.executemany("insert into payload values (?, ?, ?, ?)", [(no << 40 | spot, *rest) for spot, *rest in payloads])
                cursor.execute("update head set seq = seq + ?, hash = ? where no = ?", (len(events), hash, no))
            cursor.execute("commit")
    c.close()
    return figures(m, turns)


# -- Postgres ----------------------------------------------------------------------------------------------------------------------
def ours_pg(turns: int, folder: str) -> Sample:
    import ours as side

    with asyncio.Runner() as r:
        env = r.run(side.opened(folder, pg.dsn() + f"?connections={pg.POOL}"))
        bot = r.run(side.ready(turns))
        r.run(all_at_once([bot.run("go", ledger=env) for _ in range(WARM_UP)]))
        with pg.Counted(pg.dsn()) as c, Meter() as m:
            r.run(all_at_once([bot.run("go", ledger=env) for _ in range(RUNS)]))
        r.run(side.wiring.close_env(env))
    return figures(m, turns, c)


def yardstick_pg(turns: int, folder: str) -> Sample:
    under = w02_postgres.Postgres(pg.dsn())
    ledger = Grouped(under)
    with asyncio.Runner() as r:
        r.run(proto.drive("a warm-up", WARM_UP, ledger))
        with pg.Counted(pg.dsn()) as c, Meter() as m:
            r.run(all_at_once([proto.drive(f"r{n}", turns, ledger) for n in range(RUNS)]))
    under.c.close()
    return figures(m, turns, c)


def our_rows_pg(turns: int, folder: str) -> Sample:
    """Our commits of as many runs with nothing around them: one statement each, over as many connections as ours has."""
    import ours as side
    import psycopg

    asyncio.run(side.finished(turns, folder))
    statements = functools.partial(w02_postgres.statements, w02_durable.commits_of(folder + "/x.db"))

    async def run() -> tuple[Meter, pg.Counted]:
        pool: asyncio.Queue[Any] = asyncio.Queue()
        for _ in range(pg.POOL):
            pool.put_nowait(await psycopg.AsyncConnection.connect(pg.dsn(), autocommit=True))
        c = await pool.get()
        await c.execute(w02_postgres.TABLES)
        await c.cursor().executemany("insert into head values (%s, -1, '', 1)", [(f"r{n}",) for n in range(RUNS)])
        pool.put_nowait(c)

        async def write(work: list[dict[str, Any]]) -> None:
            for values in work:
                c = await pool.get()
                await c.execute(w02_postgres.APPEND, values, prepare=True)
                pool.put_nowait(c)

        work = [statements(f"r{n}") for n in range(RUNS)]
        with pg.Counted(pg.dsn()) as counted, Meter() as m:
            await all_at_once([write(each) for each in work])
        while not pool.empty():
            await pool.get_nowait().close()
        return m, counted

    m, counted = asyncio.run(run())
    return figures(m, turns, counted)


# -- the unit ----------------------------------------------------------------------------------------------------------------------
def measure(o: Options) -> list[Row]:
    from interleave import compare, own, peer

    require_disk()
    if o.store == "postgres":
        return on_postgres(o)
    rows = []
    for turns in o.turns:
        systems = [own(__file__, "w3", name, turns) for name in UNITS["w3"]]
        if o.peers:
            systems += [peer(venv, "w3", variant, turns, script=script) for venv, script, variant in PEERS]
        rows += compare("W3", f"{RUNS} runs of {turns} turns at once, SQLite", systems, o.rounds, cap=o.cap)
    return rows


def on_postgres(o: Options) -> list[Row]:
    import servers
    from interleave import compare, own, peer

    rows = []
    with servers.postgres() as server:
        place, version = functools.partial(servers.database, server), servers.version(server)
        for turns in o.turns:
            systems = [own(__file__, "w3pg", name, turns, place=place, version=version) for name in UNITS["w3pg"]]
            if o.peers:
                systems += [peer(venv, "w3pg", variant, turns, script=script, place=place) for venv, script, variant in PEERS]
            rows += compare("W3", f"{RUNS} runs of {turns} turns at once, Postgres", systems, o.rounds, cap=o.cap)
    return rows


UNITS = {
    "w3": {"ours": ours, "yardstick": yardstick, "raw SQLite, our rows, all runs in each commit": our_rows},
    "w3pg": {"ours": ours_pg, "yardstick": yardstick_pg, "raw Postgres, our rows": our_rows_pg},
}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="10", quick="5", rounds=3, stores=("sqlite", "postgres"))
