"""W12: a governed append against the raw engine's, at 1, 8 and 64 writers, and a task from its message to its observed result.

    python bench/w12_cluster.py --store nats --json out.json
    python bench/w12_cluster.py --store postgres --json out.json

*Append*: each writer has a run of its own. Ours seals a record (canonical bytes, hash, link) and hands it to the ledger with the head
that it expects; raw writes the same bytes with the expected sequence, by the plain client. *Task*, one in flight: a message is sent, a
waiting worker hears of it, takes it, commits the result and gives it back, and the sender reads the result from the authority; raw
does so with the engine's own queue. Sender and worker are two clients in one process: that it is done is told for nothing in both.

The rule a newcomer would break: replicas that share one disk flatter a cluster. Ratios hold, absolute figures do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import nats_raw
import pg
from common import QUICK, Meter, Sample, Work, require_disk
from unit import Options, main

if TYPE_CHECKING:
    from interleave import Row

WRITERS = (1, 8, 64)
APPENDS = 256 if QUICK else 2048
TASKS = 20 if QUICK else 200
POOL = "bench"
LEASE_MS = 15_000
TABLES = """
create table head (run text primary key, seq bigint not null) with (fillfactor = 50);
create table event (run text, seq bigint, body bytea not null, primary key (run, seq));
create table task (id bigint primary key, done boolean not null default false);
create index on task (id) where not done;
create table result (id bigint primary key, body bytea not null);
"""
APPEND = """
with h as (update head set seq = seq + 1 where run = %(run)s and seq = %(after)s returning run)
insert into event select h.run, %(after)s + 1, %(body)s from h
"""
SEND = "with t as (insert into task (id) values (%(id)s) returning 1) select pg_notify('task', '') from t"
TAKE = "update task set done = true where id = (select id from task where not done order by id for update skip locked limit 1) returning id"


class Laps:
    """The time of each lap beside that of the whole."""

    def __init__(self) -> None:
        self.times: list[float] = []

    @contextlib.contextmanager
    def lap(self) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self.times.append((time.perf_counter() - begun) * 1e6)

    def figures(self, m: Meter) -> Sample:
        times, n = sorted(self.times), len(self.times)
        return {**m.per(n, disk=False), "p50": times[n // 2], "p99": times[min(n - 1, n * 99 // 100)], "per_s": n / m.wall * 1e6}


# -- append ------------------------------------------------------------------------------------------------------------------------
def records(run: str, n: int) -> list[bytes]:
    """As a run would hold them: what raw writes."""
    from mandamus.testing.conformance.chains import Chain, replied

    chain = Chain(run)
    chain.genesis()
    return [chain.next(replied())[0].raw for _ in range(n)]


def governed(where: Callable[[], str], writers: int) -> Work:
    def append(turns: int, folder: str) -> Sample:
        from mandamus.ports import Wake
        from mandamus.testing.conformance.chains import Chain, raws, replied
        from mandamus.wiring import open_ledger

        each = APPENDS // writers

        async def writer(ledger: Any, run: str, n: int, laps: Laps) -> None:
            chain = Chain(run)
            head = await ledger.append(run, None, raws(chain.genesis()), wake=Wake(None, 0, "running"))
            for _ in range(n):
                with laps.lap():
                    sealed = chain.next(replied())
                    head = await ledger.append(run, head, raws(sealed), seals=sealed)

        async def run() -> Sample:
            opened, laps = open_ledger(where()), Laps()
            ledger: Any = getattr(opened, "inner", opened)  # the driver: there is no payload to seal
            await asyncio.gather(*[writer(ledger, f"warm-{n}", 4, Laps()) for n in range(writers)])
            with Meter() as m:
                await asyncio.gather(*[writer(ledger, f"run-{n}", each, laps) for n in range(writers)])
            await ledger.close()
            return {**laps.figures(m), "bytes": len(records("run-0", 1)[0])}

        return asyncio.run(run())

    return append


def raw_nats(writers: int) -> Work:
    def append(turns: int, folder: str) -> Sample:
        each = APPENDS // writers

        async def writer(js: Any, subject: str, bodies: Sequence[bytes], laps: Laps) -> None:
            last = 0
            for body in bodies:
                with laps.lap():
                    last = await nats_raw.publish(js, subject, body, last)

        async def run() -> Sample:
            async with nats_raw.connection() as client:
                log = {"deny_delete": True, "deny_purge": True, "allow_atomic": True, "allow_direct": False, "duplicate_window": 120}
                js, laps = await nats_raw.stream(client, "RAW", ["raw.>"], discard="new", max_bytes=1 << 30, **log), Laps()
                bodies = [records(f"run-{n}", each) for n in range(writers)]
                await asyncio.gather(*[writer(js, f"raw.warm-{n}", bodies[n][:4], Laps()) for n in range(writers)])
                with Meter() as m:
                    await asyncio.gather(*[writer(js, f"raw.run-{n}", bodies[n], laps) for n in range(writers)])
                await js.delete_stream("RAW")
                return {**laps.figures(m), "bytes": len(bodies[0][0])}

        return asyncio.run(run())

    return append


@contextlib.asynccontextmanager
async def connections(n: int) -> AsyncIterator[asyncio.Queue[Any]]:
    """Postgres connections to take and give back, and the raw tables."""
    import psycopg

    pool: asyncio.Queue[Any] = asyncio.Queue()
    made = [await psycopg.AsyncConnection.connect(pg.dsn(), autocommit=True) for _ in range(n)]
    await made[0].execute(TABLES)
    for c in made:
        pool.put_nowait(c)
    try:
        yield pool
    finally:
        for c in made:
            await c.close()


def raw_postgres(writers: int) -> Work:
    def append(turns: int, folder: str) -> Sample:
        each = APPENDS // writers

        async def writer(pool: asyncio.Queue[Any], run: str, bodies: Sequence[bytes], laps: Laps) -> None:
            c = await pool.get()
            await c.execute("insert into head values (%s, -1)", [run])
            pool.put_nowait(c)
            for after, body in enumerate(bodies):
                with laps.lap():
                    c = await pool.get()
                    done = await c.execute(APPEND, {"run": run, "after": after - 1, "body": body}, prepare=True)
                    pool.put_nowait(c)
                    assert done.rowcount == 1

        async def run() -> Sample:
            async with connections(min(writers, pg.POOL)) as pool:
                laps, bodies = Laps(), [records(f"run-{n}", each) for n in range(writers)]
                await asyncio.gather(*[writer(pool, f"warm-{n}", bodies[n][:4], Laps()) for n in range(writers)])
                with Meter() as m:
                    await asyncio.gather(*[writer(pool, f"run-{n}", bodies[n], laps) for n in range(writers)])
            return {**laps.figures(m), "bytes": len(bodies[0][0])}

        return asyncio.run(run())

    return append


# -- a task, end to end ------------------------------------------------------------------------------------------------------------
async def one_by_one(send: Callable[[int], Awaitable[None]], worker: Awaitable[None], done: asyncio.Queue[None], see: Any) -> Sample:
    """Tasks in turn: each is sent, worked on by `worker`, and seen, before the next one."""
    working, laps = asyncio.ensure_future(worker), Laps()

    async def whole(n: int) -> None:
        await send(n)
        told = asyncio.ensure_future(done.get())
        await asyncio.wait([told, working], return_when=asyncio.FIRST_COMPLETED)
        if not told.done():
            await working  # says why it has ended
        await see(n)

    for n in range(3):
        await whole(n)
    with Meter() as m:
        for n in range(3, TASKS + 3):
            with laps.lap():
                await whole(n)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    return laps.figures(m)


def governed_task(where: Callable[[], str]) -> Work:
    def task(turns: int, folder: str) -> Sample:
        from mandamus.ports import Wake
        from mandamus.testing.conformance.chains import Chain, raws, replied
        from mandamus.wiring import open_ledger

        chains = [Chain(f"run-{n}") for n in range(TASKS + 3)]
        heads: dict[str, Any] = {}

        async def run() -> Sample:
            sender, other, done = open_ledger(where()), open_ledger(where()), asyncio.Queue[None]()
            for chain in chains:
                await sender.append(chain.run, None, raws(chain.genesis()), wake=Wake(None, 0, "suspended", POOL))

            async def work() -> None:
                while True:
                    held = await other.claim(POOL, LEASE_MS)
                    if held is None:
                        await other.hint(POOL, 1_000)
                        continue
                    sealed = chains[int(held.run.partition("-")[2])].next(replied())
                    held = await other.append(held.run, held, raws(sealed), seals=sealed, wake=Wake(None, held.mail, "suspended"))
                    heads[held.run] = await other.renew(held, 0)
                    done.put_nowait(None)

            async def send(n: int) -> None:
                await sender.send(f"run-{n}", b"message %d" % n)

            async def see(n: int) -> None:
                head = await sender.head(f"run-{n}")
                assert head is not None
                assert head.seq == heads[head.run].seq == 1

            figures = await one_by_one(send, work(), done, see)
            await sender.close()
            await other.close()
            return figures

        return asyncio.run(run())

    return task


def raw_nats_task(turns: int, folder: str) -> Sample:
    """A work queue, a result with its expectation, an acknowledgement, and the result read from the stream's leader."""
    import nats.errors
    import nats.js.api as api

    async def run() -> Sample:
        async with nats_raw.connection() as client, nats_raw.connection() as other:
            js = await nats_raw.stream(client, "RAWQ", ["rawq.>"], retention="workqueue")
            await nats_raw.stream(client, "RAWR", ["rawr.>"], allow_direct=False)
            await js.add_consumer("RAWQ", api.ConsumerConfig(durable_name="w", ack_policy="explicit", ack_wait=30))
            theirs, done = other.jetstream(), asyncio.Queue[None]()
            taken = await theirs.pull_subscribe_bind("w", "RAWQ")

            async def work() -> None:
                while True:
                    try:
                        (message,) = await taken.fetch(1, timeout=1)
                    except nats.errors.TimeoutError:
                        continue
                    await nats_raw.publish(theirs, "rawr" + message.subject[4:], records("run-0", 1)[0], 0)
                    await message.ack()
                    done.put_nowait(None)

            async def send(n: int) -> None:
                await js.publish(f"rawq.{n}", b"message %d" % n)

            async def see(n: int) -> None:
                await js.get_last_msg("RAWR", f"rawr.{n}", direct=False)

            figures = await one_by_one(send, work(), done, see)
            await js.delete_stream("RAWQ")
            await js.delete_stream("RAWR")
            return figures

    return asyncio.run(run())


def raw_postgres_task(turns: int, folder: str) -> Sample:
    """A table, SKIP LOCKED and NOTIFY: the task taken in one transaction, its result written in another."""

    async def run() -> Sample:
        async with connections(3) as pool:
            client, other, bell = [await pool.get() for _ in range(3)]
            await bell.execute("listen task")
            rung, done = asyncio.Event(), asyncio.Queue[None]()

            async def listen() -> None:
                async for _ in bell.notifies():
                    rung.set()

            async def work() -> None:
                ears = asyncio.create_task(listen())
                try:
                    while True:
                        row = await (await other.execute(TAKE, prepare=True)).fetchone()
                        if row is None:
                            await rung.wait()
                            rung.clear()
                            continue
                        await other.execute("insert into result values (%s, %s)", [row[0], b"x" * 300], prepare=True)
                        done.put_nowait(None)
                finally:
                    ears.cancel()
                    await asyncio.gather(ears, return_exceptions=True)

            async def send(n: int) -> None:
                await client.execute(SEND, {"id": n}, prepare=True)

            async def see(n: int) -> None:
                found = await client.execute("select 1 from result where id = %s", [n], prepare=True)
                assert await found.fetchone()

            return await one_by_one(send, work(), done, see)

    return asyncio.run(run())


# -- the unit ----------------------------------------------------------------------------------------------------------------------
def measure(o: Options) -> list[Row]:
    import servers
    from interleave import compare, own

    require_disk()
    rows, raw = [], {"nats": "raw JetStream", "postgres": "raw Postgres"}[o.store]
    title = raw.removeprefix("raw ")
    with servers.of(o.store) as (place, version):

        def pair(kind: str, label: str) -> list[Row]:
            systems = [own(__file__, f"w12_{kind}", name, place=place, version=version) for name in UNITS[f"w12_{kind}"]]
            return compare("W12", f"{label}, {title}", systems, o.rounds, ratios=("wall", "p50"), cap=o.cap)

        for n in WRITERS:
            rows += pair(f"{o.store}_{n}", f"append, {n} writer{'s' if n > 1 else ''}")
        rows += pair(f"{o.store}_task", "task end to end, one in flight")
    return rows


def appends(store: str, where: Callable[[], str], raw: Callable[[int], Work]) -> dict[str, dict[str, Work]]:
    return {f"w12_{store}_{n}": {"raw append": raw(n), "ours": governed(where, n)} for n in WRITERS}


UNITS = {
    **appends("nats", nats_raw.uri, raw_nats),
    **appends("postgres", pg.dsn, raw_postgres),
    "w12_nats_task": {"raw task": raw_nats_task, "ours": governed_task(nats_raw.uri)},
    "w12_postgres_task": {"raw task": raw_postgres_task, "ours": governed_task(pg.dsn)},
}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="1", quick="1", stores=("nats", "postgres"))
