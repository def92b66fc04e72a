"""The order of records in NATS: one stream for all tenants, and messages of everybody who may write there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from mandamus.core.payload import INLINE_MAX
from mandamus.drivers.ledger_nats import NatsLedger, from_uri
from mandamus.drivers.ledger_nats.layout import Frame, Message, Row, packed
from mandamus.errors import ProofError
from mandamus.ports import Wake
from mandamus.testing.conformance.chains import Chain, turn
from mandamus.testing.conformance.suite import PAST, expect, gather, put, write
from mandamus.testing.nats import Cluster
from tests.servers.needs import needs

pytestmark = pytest.mark.service
_tenants = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    needs("nats", "nats-server")
    with Cluster() as running:
        yield running


def opened(cluster: Cluster) -> NatsLedger:
    return from_uri(cluster.uri(tenant=f"t{next(_tenants)}"))


async def whole(ledger: NatsLedger, runs: int) -> None:
    fed = await gather(ledger.feed())
    assert len({one.run for one in fed}) == runs
    for run in {one.run for one in fed}:
        assert [one.raw for one in fed if one.run == run] == await gather(ledger.read(run))


def test_others_messages_of_the_stream_are_passed_over(cluster: Cluster) -> None:
    """Another tenant's, mail, accounts, large payloads: whatever stands between, only this tenant's records come, in the stream's order."""

    async def main() -> None:
        ours, theirs = opened(cluster), opened(cluster)
        chains = [(ledger, Chain(f"run-{n}")) for n in range(3) for ledger in (ours, theirs)]
        heads = [await put(ledger, None, chain.genesis(input="i"), wake=Wake(PAST, 0)) for ledger, chain in chains]
        for step in range(1, 6):
            for at, (ledger, chain) in enumerate(chains):
                big = "x" * (INLINE_MAX // 4 * (step % 3))
                also = [write("count", step)] if chain.run == "run-1" else []
                heads[at] = await put(ledger, heads[at], chain.next(turn(), note=big, more=big), also=also)
            for ledger in (ours, theirs):
                for n in range(70 if step == 3 else 2):
                    await ledger.send("run-2", f"{step}/{n}".encode())
        for ledger in (ours, theirs):
            await whole(ledger, 3)
            fed = await gather(ledger.feed())
            assert len(fed) == 3 * 6
            for at in (0, 3, 7, 16, 17):
                assert await gather(ledger.feed(fed[at].cursor)) == fed[at + 1 :]
        lost = [one.cursor for one in await gather(theirs.feed())]
        assert (await expect(ProofError, gather(ours.feed(lost[0])))).diagnosis.code == "MDM-0911"
        await ours.close()
        await theirs.close()

    asyncio.run(main())


def test_junk_on_a_runs_subject_stops_nobody_else(cluster: Cluster) -> None:
    """Whoever may write there may write anything: that is no record, and it is passed over in the same way every time."""

    async def main() -> None:
        ledger = opened(cluster)
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        names, wire = ledger._names, ledger._wire
        row = Row(0, b"", 1)
        junk = (b"", b"\xc1", b"{}", packed([1, 2]), packed(Frame(row, (), 0, (b"a", b"b"))))
        for body in junk:
            await wire.put(Message(names.ev("other"), body))
        await wire.put(Message(names.ev("run-1") + ".below", packed(Frame(row, (), 0, (b"a",)))))
        await put(ledger, head, chain.next())
        await put(ledger, None, Chain("run-2").genesis())
        fed = await gather(ledger.feed())
        assert [(one.run, one.seq) for one in fed] == [("run-1", 0), ("run-1", 1), ("run-2", 0)]
        for at, one in enumerate(fed, 1):
            assert await gather(ledger.feed(one.cursor)) == fed[at:]
        await ledger.close()

    asyncio.run(main())


def test_a_place_that_was_asked_for_too_early_is_asked_for_again(cluster: Cluster) -> None:
    """The places of a page are asked for at once: the answer for one may be of before it was stored, that for the next of after."""

    async def main() -> None:
        ledger = opened(cluster)
        heads = [await put(ledger, None, Chain(f"run-{n:02}").genesis()) for n in range(30)]
        whole = await gather(ledger.feed())
        assert [one.run for one in whole] == [head.run for head in heads]
        places = [int(one.cursor.partition(".")[0]) for one in whole]
        get = ledger._wire.get
        for early in places[2:]:
            left = [early]

            async def late(stream: str, left: list[int] = left, **query: Any) -> Any:
                if left and query == {"seq": left[0]}:
                    left.clear()
                    return None
                return await get(stream, **query)

            ledger._wire.get = late  # type: ignore[method-assign]
            assert await gather(ledger.feed()) == whole
        ledger._wire.get = get  # type: ignore[method-assign]
        await ledger.close()

    asyncio.run(main())


def test_a_killed_leader_changes_no_order(cluster: Cluster) -> None:
    async def main() -> None:
        ledger = opened(cluster)
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        for _ in range(10):
            head = await put(ledger, head, chain.next(turn(), turn()))
        reader = from_uri(cluster.uri(tenant=ledger.options.tenant, patience_ms=60_000))
        before = await gather(reader.feed("", 17))
        leader = await asyncio.to_thread(cluster.leader, ledger._names.log)
        leader.kill9()
        try:
            rest = await gather(reader.feed(before[-1].cursor))
        finally:
            leader.start()
            await asyncio.to_thread(cluster.wait_ready)
        assert [one.raw for one in (*before, *rest)] == await gather(reader.read("run-1"))
        assert await gather(reader.feed()) == [*before, *rest]
        for each in (ledger, reader):
            await each.close()

    asyncio.run(main())
