"""The NATS ledger while servers die: nothing acknowledged is lost, nothing is acknowledged without a quorum, a resend is one record."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from mandamus.core.records import LOG, decode, event_hash
from mandamus.core.seal import Content, Draft, seal
from mandamus.drivers.ledger_nats import NatsLedger, from_uri
from mandamus.drivers.ledger_nats.layout import Message
from mandamus.drivers.ledger_nats.wire import Ack, Silence
from mandamus.errors import Conflict, EngineFault, Misuse, ProofError, Unavailable
from mandamus.ports import AccountCheck, AccountWrite, Head, Wake
from mandamus.testing.conformance.chains import CLAIM, Chain, bodies, log_opened, raws, turn
from mandamus.testing.conformance.suite import FUTURE, PAST, POOL, TTL, expect, gather, head_of, put, write
from mandamus.testing.nats import Cluster, can_separate
from tests.servers.needs import needs

pytestmark = [
    pytest.mark.service,
    # nats-py leaves the stream of a connection that was cut to the garbage collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
_tenants = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    needs("nats", "nats-server")
    with Cluster() as running:
        yield running


def case(uri: str, doing: Callable[[NatsLedger], Awaitable[None]]) -> None:
    """With a ledger that is closed afterwards."""

    async def run() -> None:
        ledger = from_uri(uri)
        try:
            await doing(ledger)
        finally:
            await ledger.close()

    asyncio.run(run())


def uri(cluster: Cluster, **options: Any) -> str:
    return cluster.uri(tenant=f"f{next(_tenants)}", **options)


async def whole(ledger: NatsLedger, run: str, head: Head) -> list[bytes]:
    """Every record up to the head, and the chain holds."""
    records = await gather(ledger.read(run))
    hashes = [event_hash(raw) for raw in records]
    assert [decode(raw).prev for raw in records[1:]] == hashes[:-1]
    assert (len(records) - 1, hashes[-1]) == (head.seq, head.hash)
    return records


# -- a resend is one record --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("accounts", [False, True])
@pytest.mark.parametrize("stored", [False, True])
def test_an_append_whose_answer_is_lost_is_sent_again_and_stored_once(cluster: Cluster, accounts: bool, stored: bool) -> None:
    async def lost(ledger: NatsLedger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(input="i"), also=[write("daily", 1)])
        _lose_answers(ledger, 2, stored=stored)
        also: list[AccountWrite | AccountCheck] = [write("daily", 2), AccountCheck("authority", 0)] if accounts else []
        head = await put(ledger, head, chain.next(turn(), turn(), note="n"), also=also)
        assert await ledger.head("run-1") == head
        assert len(await whole(ledger, "run-1", head)) == 3
        assert len(await gather(ledger.payloads("run-1"))) == 2
        assert len(await gather(ledger.deltas("daily"))) == 1 + accounts
        head = await ledger.append("run-1", head, [], wake=Wake(FUTURE, 0))
        _lose_answers(ledger, 1, stored=stored)
        head = await ledger.append("run-1", head, [], wake=Wake(PAST, 0), also=[write("other", 1)])
        assert (head.seq, head.wake_at) == (2, PAST)
        assert len(await gather(ledger.deltas("other"))) == 1

    case(uri(cluster), lost)


def test_an_append_that_another_one_followed_is_not_called_a_conflict(cluster: Cluster) -> None:
    """Its answer was lost, it was stored, and somebody went on from there: it may have been written, so nothing else may be said."""

    async def followed(ledger: NatsLedger) -> None:
        chain, second = Chain("run-1"), from_uri(place)
        head = await put(ledger, None, chain.genesis())
        sealed, later = chain.next(), chain.next()

        async def go_on() -> None:
            await put(second, await head_of(second, "run-1"), later)
            await second.close()

        _lose_answers(ledger, 1, stored=True, then=go_on)
        unknown = await expect(Unavailable, put(ledger, head, sealed))
        assert unknown.outcome == "unknown"
        assert (await head_of(ledger, "run-1")).seq == 2

    place = uri(cluster)
    case(place, followed)


def test_what_somebody_else_wrote_meanwhile_is_a_conflict(cluster: Cluster) -> None:
    async def overtaken(ledger: NatsLedger) -> None:
        chain, second = Chain("run-1"), from_uri(place)
        head = await put(ledger, None, chain.genesis())
        await put(second, await head_of(second, "run-1"), chain.fork().next(note="theirs"))
        conflict = await expect(Conflict, put(ledger, head, chain.next(note="ours")))
        assert conflict.head == await second.head("run-1")
        await second.close()

    place = uri(cluster)
    case(place, overtaken)


def _lose_answers(ledger: NatsLedger, times: int, *, stored: bool, then: Callable[[], Awaitable[None]] | None = None) -> None:
    """The next requests of the log reach the servers or not, and their answers do not come back."""
    wire = ledger._appends._wire
    send, left = wire.batch, [times]

    async def batch(messages: list[Message], timeout: float = 0) -> Ack:
        if not left[0]:
            return await send(messages, timeout)
        left[0] -= 1
        if stored:
            with contextlib.suppress(Exception):
                await send(messages, timeout)
            if then is not None:
                await then()
        raise Silence("lost on its way", sent=True)

    wire.batch = batch  # type: ignore[method-assign,assignment]


# -- accounts ------------------------------------------------------------------------------------------------------------------
def test_a_revocation_among_64_writers_is_not_starved(cluster: Cluster) -> None:
    """Each writer checks `authority` with each append. What is raised is soon raised, and nothing of the old version follows it."""

    async def revoked(ledger: NatsLedger) -> None:
        others = [from_uri(place) for _ in range(3)]
        log = Chain(LOG, log_opened())
        head = await put(ledger, None, log.genesis(), also=[write("authority", 1)])
        stopped: list[tuple[str, int]] = []

        async def writer(i: int) -> None:
            chain, handle = Chain(f"run-{i}"), (ledger, *others)[i % 4]
            at = await put(handle, None, chain.genesis())
            while True:
                try:
                    at = await put(handle, at, chain.fork().next(), also=[AccountCheck("authority", 1)])
                    chain.at = chain.at.__class__("run-" + str(i), at.seq, at.hash, at.epoch)
                except Conflict as conflict:
                    stopped.append((conflict.on, await _version(handle)))
                    return

        writers = [asyncio.create_task(writer(i)) for i in range(64)]
        while ledger._appends.shared < 256:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        await put(ledger, head, log.next(), also=[write("authority", 2)])
        took = time.monotonic() - began
        await asyncio.wait_for(asyncio.gather(*writers), 60)
        assert stopped == [("account", 2)] * 64
        print(f"the revocation took {took * 1000:.0f} ms among {ledger._appends.shared} shared appends")
        for handle in others:
            await handle.close()

    place = uri(cluster)
    case(place, revoked)


async def _version(ledger: NatsLedger) -> int:
    account = await ledger.account("authority")
    return account.version if account else 0


def test_one_stale_append_does_not_fail_those_who_share_its_batch(cluster: Cluster) -> None:
    async def shared(ledger: NatsLedger) -> None:
        second = from_uri(place)
        chains = [Chain(f"run-{i:02}") for i in range(24)]
        heads = [await put(ledger, None, chain.genesis()) for chain in chains]
        await put(second, heads[7], chains[7].fork().next(note="first"))
        results = await asyncio.gather(
            *(put(ledger, head, chain.next(), also=[AccountCheck("authority", 0)]) for head, chain in zip(heads, chains)),
            return_exceptions=True,
        )
        assert [i for i, result in enumerate(results) if not isinstance(result, Head)] == [7]
        assert isinstance(results[7], Conflict)
        assert ledger._appends.shared > ledger._appends.batches, "they went together"
        await second.close()

    place = uri(cluster)
    case(place, shared)


# -- large and long ------------------------------------------------------------------------------------------------------------
def test_large_appends_and_long_runs_come_back_whole(cluster: Cluster) -> None:
    async def large(ledger: NatsLedger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(input="i" * 200_000))
        sealed = chain.next(*[turn()] * 900, big="x" * 200_000, small="s")
        for _ in range(3):
            sealed += chain.next(note="y" * 250_000, other="z" * 9_000)
        head = await put(ledger, head, sealed)
        for _ in range(70):
            head = await put(ledger, head, chain.next(note="n"))
        written = await whole(ledger, "run-1", head)
        assert written[1:904] == raws(sealed)
        assert await gather(ledger.read("run-1", 500, 905)) == written[501:906]
        payloads = await gather(ledger.payloads("run-1"))
        assert payloads[1:9] == sorted(bodies(sealed), key=lambda p: (p.seq, p.part))
        assert len(payloads) == 1 + 8 + 70
        assert await ledger.payload("run-1", 0, "input") == payloads[0]
        assert await ledger.payload("run-1", 940, "note") == payloads[9 + 940 - 904]

    case(uri(cluster), large)


def test_records_that_were_taken_out_are_missed(cluster: Cluster) -> None:
    """Only who owns the servers can do it. The reader says so, and does not pass over it."""

    async def edited(ledger: NatsLedger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        for _ in range(20):
            head = await put(ledger, head, chain.next(turn(), note="n"))
        get = ledger._wire.get

        gone = 0

        async def without(stream: str, **query: int) -> object:
            return None if query.get("seq") == gone else await get(stream, **query)

        known = await ledger._appends.at.run("run-1")
        assert known is not None
        for place in (known.back[0], known.back[-1]):
            gone = place
            ledger._wire.get = without  # type: ignore[method-assign,assignment]
            with pytest.raises(ProofError, match="MDM-0632"):
                await gather(ledger.read("run-1"))
            ledger._wire.get = get  # type: ignore[method-assign]

    case(uri(cluster), edited)


# -- what was lost beside the log ------------------------------------------------------------------------------------------------
def test_a_run_whose_task_was_lost_is_found_by_the_sweep(cluster: Cluster) -> None:
    async def swept(ledger: NatsLedger) -> None:
        async def nothing(message: Message) -> None:
            return None

        send = ledger._work._send
        ledger._work._send = nothing  # type: ignore[method-assign]
        await put(ledger, None, Chain("run-1").genesis(), wake=Wake(PAST, 0))
        await put(ledger, None, Chain("run-2").genesis(), wake=Wake(FUTURE, 0))
        await ledger.send("run-2", b"hello")
        await put(ledger, None, Chain("run-3").genesis(), wake=Wake(None, 0))
        ledger._work._send = send  # type: ignore[method-assign]
        second = from_uri(place)
        taken = [await second.claim(POOL, TTL) for _ in range(3)]
        assert [head.run if head else None for head in taken] == ["run-1", "run-2", None]
        await second.close()

    place = uri(cluster)
    case(place, swept)


def test_cursors_of_a_copied_run_go_on_behind_those_it_brought(cluster: Cluster) -> None:
    async def copied(ledger: NatsLedger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(), wake=Wake(None, 10**9))
        assert head.mail == 10**9
        await ledger.send("run-1", b"late")
        ((cursor, _, _),) = await gather(ledger.mailbox("run-1", after=10**9))
        assert cursor > 10**9
        head = await put(ledger, await head_of(ledger, "run-1"), chain.next(), wake=Wake(FUTURE, 10**9))
        assert head.wake_at is not None
        assert head.wake_at < FUTURE, "it was not read yet"
        head = await put(ledger, head, chain.next(), wake=Wake(FUTURE, cursor))
        assert (head.wake_at, head.mail) == (FUTURE, cursor)

    case(uri(cluster), copied)


# -- servers die ----------------------------------------------------------------------------------------------------------------
def test_the_leader_dies_during_appends_and_nothing_acknowledged_is_lost(cluster: Cluster) -> None:
    async def killed(ledger: NatsLedger) -> None:
        heads: dict[str, Head] = {}
        dead = asyncio.Event()

        async def writer(i: int) -> None:
            chain, after = Chain(f"run-{i}"), 0
            head = await put(ledger, None, chain.genesis())
            while after < 5:
                heads[chain.run] = head = await put(ledger, head, chain.next(note=f"{i}"), also=[AccountCheck("authority", 0)] * (i % 2))
                after += dead.is_set()

        writers = [asyncio.create_task(writer(i)) for i in range(16)]
        while len(heads) < 16:
            await asyncio.sleep(0.01)
        leader = await asyncio.to_thread(cluster.leader, ledger._names.log)
        leader.kill9()
        dead.set()
        await asyncio.wait_for(asyncio.gather(*writers), 90)
        leader.start()
        for run, head in heads.items():
            assert await ledger.head(run) == head
            await whole(ledger, run, head)

    case(uri(cluster, patience_ms=60_000), killed)
    cluster.wait_ready()


def test_without_a_quorum_nothing_is_acknowledged_and_afterwards_it_goes_on(cluster: Cluster) -> None:
    async def alone(ledger: NatsLedger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        for i in (1, 2):
            cluster.nodes[i].kill9()
        began = time.monotonic()
        sealed = chain.next()
        unavailable = await expect(Unavailable, put(ledger, head, sealed))
        assert time.monotonic() - began < 30, "the error comes, it is not waited for without end"
        assert unavailable.diagnosis.code in ("MDM-0560", "MDM-0561")
        await expect(Unavailable, ledger.claim(POOL, TTL, run="run-1"))
        for i in (1, 2):
            cluster.nodes[i].start()
        cluster.wait_ready()
        for _ in range(100):
            try:
                now = await head_of(ledger, "run-1")
                break
            except Unavailable:
                await asyncio.sleep(0.1)
        head = now if now.hash == sealed[-1].hash else await put(ledger, now, sealed)
        assert head.seq == 1
        await whole(ledger, "run-1", head)

    case(uri(cluster, patience_ms=3_000, timeout_ms=1_000), alone)


def test_a_process_can_begin_while_one_server_is_away(cluster: Cluster) -> None:
    """Two of three are known to flush, and a commit needs two: the third is a note for people, no refusal."""
    where = uri(cluster)
    case(where, lambda ledger: put(ledger, None, Chain("run-1").genesis()))
    leader = cluster.leader(f"{from_uri(where)._names.log}")
    away = next(node for node in cluster.nodes.values() if node is not leader)
    away.kill9()
    try:

        async def goes_on(ledger: NatsLedger) -> None:
            head = await head_of(ledger, "run-1")
            assert head.seq == 0
            await put(ledger, None, Chain("run-2").genesis())
            told = [text for state, text, _ in await ledger.findings() if state == "degraded"]
            assert any("could not be seen now" in text and away.name in text for text in told), told

        case(where, goes_on)
    finally:
        away.start()
        cluster.wait_ready()


def test_without_a_quorum_everything_says_so_in_bounded_time(cluster: Cluster) -> None:
    where = uri(cluster, patience_ms=3_000, timeout_ms=1_000)
    case(where, lambda ledger: put(ledger, None, Chain("run-1").genesis(), wake=Wake(PAST, 0)))
    opened = from_uri(where)
    dead = list(cluster.nodes.values())[1:]

    async def story() -> None:
        assert await opened.head("run-1") is not None
        assert await opened.claim("empty", TTL) is None
        for node in dead:
            node.kill9()
        await asyncio.sleep(8)  # the one that is left has noticed that it leads nobody
        fresh = from_uri(where)
        try:
            async with asyncio.timeout(90):
                for asked in (fresh.head("run-1"), gather(fresh.runs()), opened.head("run-1"), opened.claim(POOL, TTL, run="run-1")):
                    with pytest.raises((Unavailable, EngineFault)):
                        await asked
        finally:
            await fresh.close()
            await opened.close()

    try:
        asyncio.run(story())
    finally:
        for node in dead:
            node.start()
        cluster.wait_ready()


def test_clients_of_an_isolated_leader_go_to_the_others() -> None:
    """It acknowledges nothing, although they reach it; what they append is stored by the others, and by it after the cut."""
    needs("nats", "nats-server")
    if not can_separate():
        pytest.skip("network namespaces cannot be made here")

    async def isolated(ledger: NatsLedger) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis())
        leader = await asyncio.to_thread(apart.leader, ledger._names.log)
        nc = await ledger._wire.client()
        while nc.connected_url is None or nc.connected_url.netloc != leader.client:
            await nc.force_reconnect()
            await asyncio.sleep(0.1)
        apart.cut(leader.i)
        for _ in range(3):
            head = await put(ledger, head, chain.next(note="n"), also=[AccountCheck("authority", 0)])
        assert nc.connected_url.netloc != leader.client
        apart.heal(leader.i)
        assert await ledger.head("run-1") == head
        assert len(await whole(ledger, "run-1", head)) == 4

    with Cluster(namespaces=True) as apart, apart.hub():
        case(apart.uri(patience_ms=60_000, timeout_ms=1_000), isolated)


def test_a_full_log_refuses_and_loses_nothing() -> None:
    async def full(ledger: NatsLedger) -> None:
        chain = Chain("run-1")
        head, told = await put(ledger, None, chain.genesis()), ("", "")
        for _ in range(200):
            try:
                head = await put(ledger, head, chain.fork().next(note="x" * 50_000))
                chain.at = chain.at.__class__("run-1", head.seq, head.hash, head.epoch)
            except Unavailable as unavailable:
                told = unavailable.outcome, unavailable.diagnosis.code
                break
        assert told == ("none", "MDM-0562")
        assert head.seq > 5
        await whole(ledger, "run-1", head)
        assert any("% full" in says for _, says, _ in await ledger.findings())
        sealed = chain.next(*[turn()] * 90)
        refused = await expect(Unavailable, put(ledger, head, sealed + chain.next(note="x" * 50_000), also=[AccountCheck("authority", 0)]))
        assert (refused.outcome, refused.diagnosis.code) == ("none", "MDM-0562")

    needs("nats", "nats-server")
    with Cluster(1) as one:
        case(one.uri(max_bytes=1_000_000), full)


# -- what is refused at opening --------------------------------------------------------------------------------------------------
def test_settings_that_would_lose_records_are_refused(cluster: Cluster) -> None:
    async def opening(code: str, place: str, tier: str = "dev") -> None:
        ledger = from_uri(place, tier=tier)
        try:
            with pytest.raises((EngineFault, Misuse), match=code):
                await ledger.check()
        finally:
            await ledger.close()

    async def all_of_them() -> None:
        ledger = from_uri(cluster.uri("strict"), tier="team")
        await ledger.check()
        assert await ledger.findings() == []
        config = (await ledger._wire.api("STREAM.INFO.STRICT_LOG_0"))["config"]
        await opening("MDM-0565", cluster.uri("strict", monitor=""), "team")
        await opening("MDM-0565", cluster.uri("strict", monitor=cluster.monitor.split(",")[0]))
        await opening("MDM-0565", cluster.uri("strict", monitor="http://127.0.0.1:9"))
        assumed = from_uri(cluster.uri("strict", monitor="", assume_sync_always=1), tier="team")
        assert any("assumed" in says for _, says, _ in await assumed.findings())
        await assumed.close()
        for changes in ({"allow_direct": True}, {"allow_atomic": False}, {"discard": "old"}, {"duplicate_window": 10**9}):
            await ledger._wire.api("STREAM.UPDATE.STRICT_LOG_0", config | changes)
            await opening("MDM-0567", cluster.uri("strict"))
        await ledger._wire.api("STREAM.UPDATE.STRICT_LOG_0", config | {"max_bytes": -1})
        await opening("MDM-0568", cluster.uri("strict"))
        await ledger._wire.api("STREAM.UPDATE.STRICT_LOG_0", config)
        await ledger.check()
        await opening("MDM-0567", cluster.uri("strict", shards=4))
        await opening("MDM-0566", cluster.uri("single", replicas=1), "team")
        bound = cluster.uri("unbound").replace("&max_bytes=", "&timeout_ms=1000#").split("#")[0] + f"&monitor={cluster.monitor}"
        await opening("MDM-0568", bound, "team")
        await opening("MDM-0560", "nats://127.0.0.1:9/mdm?patience_ms=500")
        await ledger.close()

    asyncio.run(all_of_them())


def test_servers_that_flush_now_and_then_are_refused() -> None:
    async def opened(place: str) -> None:
        ledger = from_uri(place)
        try:
            await ledger.check()
        finally:
            await ledger.close()

    needs("nats", "nats-server")
    with Cluster(sync="2m") as lazy:
        with pytest.raises(EngineFault, match="MDM-0565"):
            asyncio.run(opened(lazy.uri(monitor=lazy.monitor)))
        with pytest.raises(EngineFault, match="MDM-0565"):
            asyncio.run(opened(lazy.uri()))
        asyncio.run(opened(lazy.uri("dev", replicas=1)))  # tier dev, one replica: for trying it out


@pytest.mark.parametrize(
    "wrong",
    [
        "nats:///mdm",
        "nats://h:x/mdm",
        "nats://h/UPPER",
        "nats://h/mdm?replica=1",
        "nats://h/mdm?replicas=2",
        "nats://h/mdm?tenant=a.b",
        "nats://h/mdm?max_bytes=1e9",
        "http://h/mdm",
    ],
)
def test_a_uri_that_cannot_be_meant_is_refused(wrong: str) -> None:
    with pytest.raises(Misuse, match="MDM-0563"):
        from_uri(wrong)


def test_plain_payloads_of_people_are_refused_outside_dev(cluster: Cluster) -> None:
    async def refused() -> None:
        ledger = from_uri(cluster.uri("strict2"), tier="team")
        try:
            chain = Chain("run-1")
            head = await put(ledger, None, chain.genesis(input="a business"))
            draft = Draft(turn(), 1, (Content("who", {"text": "a person"}, "personal"),))
            sealed, _ = seal([draft], chain.at, CLAIM, iter([b"s" * 32]))
            await expect(Misuse, put(ledger, head, sealed))
            assert await ledger.head("run-1") == head
        finally:
            await ledger.close()

    asyncio.run(refused())
