"""Attacks on the NATS ledger by somebody with a worker's rights, by somebody who wrote junk, and by an operator's careless streams."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.client import Client

from mandamus.drivers.ledger_nats import NatsLedger, check, from_uri, layout
from mandamus.drivers.ledger_nats.layout import Delta, Frame, Message, Names, Row
from mandamus.drivers.ledger_nats.uri import options
from mandamus.drivers.ledger_nats.wire import Refusal
from mandamus.errors import EngineFault, Misuse, ProofError
from mandamus.ports import Wake
from mandamus.testing.conformance.chains import Chain
from mandamus.testing.conformance.suite import PAST, POOL, TTL, expect, gather, head_of, put, write
from mandamus.testing.nats import Cluster
from tests.servers import deployed
from tests.servers.needs import needs

pytestmark = pytest.mark.service
API = "LEDGER.API"
STREAMS = ("MDM_LOG_0", "KV_MDM_LEASE_0", "KV_MDM_NODE_0", "MDM_TASK_0")
FLAT = '  FLAT { jetstream: enabled, users: [{ user: flat, password: flat, permissions { publish: ["$JS.API.CONSUMER.MSG.NEXT.>"] } },'
FLAT += " { user: maker, password: maker }] }\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The rights of deploy/nats for two tenants; and an account whose workers live beside the streams, as they must not."""
    needs("nats", "nats-server")
    workers = {tenant: [f"user: {tenant}, password: {tenant}"] for tenant in ("acme", "globex")}
    with Cluster(1, accounts=deployed.accounts("user: op, password: op", workers, FLAT)) as running:
        yield running


@pytest.fixture(scope="module")
def plain() -> Iterator[Cluster]:
    """No accounts: whoever comes may write what he likes."""
    needs("nats", "nats-server")
    with Cluster(1) as running:
        yield running


def told(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 120))


@asynccontextmanager
async def opened(*uris: str) -> AsyncIterator[list[NatsLedger]]:
    ledgers = [from_uri(uri) for uri in uris]
    try:
        yield ledgers
    finally:
        for ledger in ledgers:
            await ledger.close()


@asynccontextmanager
async def raw(cluster: Cluster, who: str) -> AsyncIterator[Client]:
    """A client that is no ledger."""

    async def heard(error: Exception) -> None:
        pass  # what is not permitted

    client = Client()
    inbox = f"_INBOX_{who}".encode()
    await client.connect(f"nats://{cluster.servers[0]}", user=who, password=who, inbox_prefix=inbox, error_cb=heard)
    try:
        yield client
    finally:
        await client.close()


async def asked(client: Client, subject: str, body: Any = None) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    return json.loads((await client.request(subject, data, timeout=5)).data)


async def standing(client: Client) -> dict[str, Any]:
    """What every stream holds; None: it is gone."""
    found = {}
    for name in STREAMS:
        state = (await asked(client, f"$JS.API.STREAM.INFO.{name}")).get("state")
        found[name] = state and (state["messages"], state["last_seq"])
    return found


def queue(name: str, filter: str, **more: Any) -> dict[str, Any]:
    return {"stream_name": "MDM_TASK_0", "config": {"name": name, "filter_subject": filter, "ack_policy": "explicit", **more}}


# -- a worker's rights -------------------------------------------------------------------------------------------------------------
def test_no_answer_reaches_what_its_asker_may_not(cluster: Cluster) -> None:
    """A server holds no permission against the subject that a request names for its answer."""
    targets = (
        *(f"{api}.STREAM.{verb}.{name}" for api in ("$JS.API", API) for verb in ("DELETE", "PURGE") for name in STREAMS),
        *("mdm.0.ev.globex.run-1", "mdm.0.mailbox.globex.run-1.x", "mdm.0.bud.globex.day"),
        *("$KV.MDM_LEASE_0.lease.globex.run-1", "$KV.MDM_LEASE_0.epoch.globex.sweeper", "$KV.MDM_NODE_0.globex.w"),
    )

    async def story() -> None:
        places = (cluster.uri(login="op:op", tenant="globex"), cluster.uri(login="globex:globex", tenant="globex", api=API))
        async with opened(*places) as (operator, victim), raw(cluster, "acme") as evil, raw(cluster, "op") as op:
            await operator.check()
            await put(victim, None, Chain("run-1").genesis(), wake=Wake(PAST, 0), also=[write("day", 1)])
            claimed = await victim.claim(POOL, 600_000)
            assert claimed is not None
            assert await victim.duty("sweeper", 600_000) == 1
            subject = "mdm.0.task.acme.p.0.r"
            assert "error" not in await asked(evil, f"{API}.CONSUMER.CREATE.MDM_TASK_0.mine.{subject}", queue("mine", subject))
            config = (await asked(op, "$JS.API.STREAM.INFO.MDM_LOG_0"))["config"]
            await asked(evil, subject, config | {"max_age": 2 * 10**9, "duplicate_window": 10**9})
            await asyncio.sleep(0.5)
            before = await standing(op)
            for target in targets:
                for tried, body in (
                    (f"{API}.CONSUMER.MSG.NEXT.MDM_TASK_0.mine", b'{"batch":2,"expires":100000000}'),
                    (f"{API}.STREAM.MSG.GET.MDM_LOG_0", b'{"seq":1}'),
                    (f"{API}.STREAM.INFO.MDM_LOG_0", b""),
                    (subject.replace(".task.", ".nothing."), b"{}"),
                ):
                    await evil.publish(tried, body, reply=target)
                await evil.flush()
                await asyncio.sleep(0.15)
            name = hashlib.sha256(b"pushed").hexdigest()[:8]
            for i, target in enumerate(targets):  # a queue that delivers by itself, to a place of its maker's choice
                one = f"mdm.0.task.acme.q.{i}.r"
                made = queue(f"{name}{i}", one, deliver_subject=target)
                await asked(evil, f"{API}.CONSUMER.CREATE.MDM_TASK_0.{name}{i}.{one}", made)
            await asyncio.sleep(0.5)
            assert await standing(op) == before
            head = await head_of(victim, "run-1")
            assert (head.owner, head.hash) == (claimed.owner, claimed.hash)

    told(story())


def test_the_trick_works_on_a_worker_beside_the_streams(cluster: Cluster) -> None:
    """So the test above would see it."""

    async def story() -> None:
        async with raw(cluster, "flat") as evil, raw(cluster, "maker") as maker:
            await asked(maker, "$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
            config = {"stream_name": "S", "config": {"durable_name": "mine", "name": "mine", "ack_policy": "explicit"}}
            await asked(maker, "$JS.API.CONSUMER.CREATE.S.mine", config)
            ask = b'{"batch":1,"expires":100000000}'  # of an empty queue: what comes back is empty, and so is a request to delete
            await evil.publish("$JS.API.CONSUMER.MSG.NEXT.S.mine", ask, reply="$JS.API.STREAM.DELETE.S")
            await evil.flush()
            for _ in range(100):
                if "error" in await asked(maker, "$JS.API.STREAM.INFO.S"):
                    return
                await asyncio.sleep(0.05)
            pytest.fail("the stream is still there")

    told(story())


def test_no_message_rolls_up_the_leases_of_others(cluster: Cluster) -> None:
    async def story() -> None:
        places = (cluster.uri(login="op:op", tenant="acme"), cluster.uri(login="globex:globex", tenant="globex", api=API))
        async with opened(*places, cluster.uri(login="acme:acme", tenant="acme", api=API)) as (operator, victim, evil):
            await operator.check()
            epoch = await victim.duty("heads", 600_000)
            assert epoch == 1
            await evil.check()
            for kind in ("all", "sub"):
                for subject in ("$KV.MDM_LEASE_0.lease.acme.x", "$KV.MDM_NODE_0.acme.x", "mdm.0.ev.acme.x"):
                    with pytest.raises(Refusal):
                        await evil._wire.put(Message(subject, b"x", headers=(("Nats-Rollup", kind),)))
            assert await victim.duty("heads", 600_000) == epoch

    told(story())


# -- junk --------------------------------------------------------------------------------------------------------------------------
def _row(**other: Any) -> Row:
    return Row(**({"seq": 0, "hash": b"h" * 32, "epoch": 1, "at": 0} | other))


JUNK: dict[str, bytes] = {
    "text": b"junk",
    "nothing": b"",
    "another form": layout.packed({"seq": 1}),
    "a place beyond any stream": layout.packed(Frame(_row(cursor=2**64 - 1), (), 0, ())),
    "a shift below none": layout.packed(Frame(_row(shift=-(2**63)), (), 0, ())),
    "a thousand million predecessors": layout.packed(Frame(_row(), (), 10**9, ())),
    "deep": b"\x91" * 100_000,
}


@pytest.mark.parametrize("junk", JUNK)
def test_junk_ends_one_run_and_no_worker(junk: str, plain: Cluster) -> None:
    async def story() -> None:
        tenant = "j" + hashlib.sha256(junk.encode()).hexdigest()[:8]
        async with opened(plain.uri(tenant=tenant), plain.uri(tenant=tenant)) as (one, two):
            for run in ("run-a", "run-b"):
                await put(one, None, Chain(run).genesis(), wake=Wake(PAST, 0))
            names = two._names
            await one._wire.put(Message(names.ev("run-a"), JUNK[junk]))
            await one._wire.put(Message(names.account("day"), JUNK[junk]))
            await one._wire.put(Message(names.worker("w"), JUNK[junk]))
            await one._wire.put(Message(names.tasks("default", 0).replace(".0.*", ".high.run-a"), JUNK[junk]))
            await one._wire.put(Message(names.tasks("default", 0, "run-a"), b"9" * 5000))
            for doing in (two.head("run-a"), two.claim(POOL, TTL, run="run-a"), gather(two.read("run-a")), gather(two.payloads("run-a"))):
                assert (await expect(ProofError, doing)).diagnosis.code == "MDM-0632"
            for doing in (two.account("day"), gather(two.deltas("day"))):
                assert (await expect(ProofError, doing)).diagnosis.code == "MDM-0632"
            claimed = [await two.claim(POOL, TTL) for _ in range(4)]
            assert {head.run for head in claimed if head is not None} == {"run-b"}, "the run that holds is carried, the other passed over"
            await two._work.sweep()
            seen: list[str] = []

            async def listed() -> None:
                async for head in two.runs():
                    seen.append(head.run)

            assert "run-a" in str(await expect(ProofError, listed()))
            assert seen == ["run-b"], "and all others are listed first"
            assert [head.run async for head in two.runs(state="open")] == ["run-b"]
            assert await gather(two.nodes()) == []

    told(story())


def test_what_is_no_lease_holds_nothing(plain: Cluster) -> None:
    async def story() -> None:
        async with opened(plain.uri(tenant="leases")) as (ledger,):
            await put(ledger, None, Chain("run-a").genesis(), wake=Wake(PAST, 0))
            for kind in ("lease", "tries"):
                await ledger._wire.put(Message(ledger._names.key(kind, "run-a"), b"junk"))
            claimed = await ledger.claim(POOL, TTL)
            assert claimed is not None
            assert (claimed.run, claimed.tries, bool(claimed.owner)) == ("run-a", 1, True)
            await ledger._wire.put(Message(ledger._names.key("epoch", "sweeper"), b"junk"))
            await expect(ProofError, ledger.duty("sweeper", TTL))  # an epoch that began again would be another owner's

    told(story())


def test_mail_bears_the_key_of_what_it_says(plain: Cluster) -> None:
    async def story() -> None:
        async with opened(plain.uri(tenant="mail")) as (ledger,):
            await put(ledger, None, Chain("run-a").genesis(), wake=Wake(None, 0))
            vote, other = b"the vote", b"something else"
            key = hashlib.sha256(vote).hexdigest()
            await ledger._wire.put(Message(ledger._names.mailbox("run-a", key), other))
            ((_, found, text),) = await gather(ledger.mailbox("run-a"))
            assert (found, text) == (hashlib.sha256(other).hexdigest(), other)
            await expect(ProofError, ledger.send("run-a", vote))  # its place is taken: it must not pass for sent
            assert await ledger.send("run-a", other) == hashlib.sha256(other).hexdigest()
            assert await ledger.send("run-a", other) == hashlib.sha256(other).hexdigest()

    told(story())


def test_a_way_back_that_turns_ends(plain: Cluster) -> None:
    """Positions are what an earlier writer said: one that leads forwards again would be followed for ever."""

    async def story() -> None:
        async with opened(plain.uri(tenant="turns")) as (ledger,):
            await put(ledger, None, Chain("run-a").genesis(), wake=Wake(None, 0))
            (at,) = [known.at for known in [await ledger._appends.at.run("run-a")] if known]
            for back in ((at, at + 1), (at, at), (at + 1,), (at + 100,)):
                await ledger._wire.put(Message(ledger._names.ev("run-a"), layout.packed(Frame(_row(seq=9), back, 0, (b"{}",)))))
                assert (await expect(ProofError, gather(ledger.read("run-a")))).diagnosis.code == "MDM-0632"
            delta = Delta(2, "h", 0, 0, "run-a", 0, b"{}", (2**40,), 0)
            await ledger._wire.put(Message(ledger._names.account("day"), layout.packed(delta)))
            await expect(ProofError, gather(ledger.deltas("day")))

    told(story())


# -- streams that somebody made beforehand -------------------------------------------------------------------------------------------
MADE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("log", {"max_msgs_per_subject": 5}),
    ("log", {"allow_msg_ttl": True}),
    ("log", {"sources": [{"name": "OTHER"}]}),
    ("log", {"subject_transform": {"src": "zz.>", "dest": "yy.>"}}),
    ("log", {"max_msg_size": 1000}),
    ("log", {"max_consumers": 5}),
    ("log", {"first_seq": 1000}),
    ("log", {"discard_new_per_subject": True, "max_msgs_per_subject": 9}),
    ("log", {"republish": {"src": ">", "dest": "elsewhere.>"}}),
    ("log", {"no_ack": True}),
    (
        "log",
        {"subjects": [], "mirror": {"name": "OTHER"}, "deny_delete": False, "deny_purge": False, "allow_atomic": False, "republish": None},
    ),
    ("log", {"max_age": 3600 * 10**9}),
    ("lease", {"allow_rollup_hdrs": True}),
    ("lease", {"subject_delete_marker_ttl": 60 * 10**9}),
    ("lease", {"republish": {"src": ">", "dest": "elsewhere.>"}}),
    ("node", {"allow_rollup_hdrs": True}),
    ("task", {"max_msg_size": 10}),
    ("task", {"republish": {"src": ">", "dest": "elsewhere.>"}}),
)


@pytest.mark.parametrize(("which", "other"), MADE, ids=lambda value: value if isinstance(value, str) else next(iter(value)))
def test_a_stream_that_does_more_is_refused(which: str, other: dict[str, Any], plain: Cluster) -> None:
    async def story() -> None:
        name = "p" + hashlib.sha256(f"{which}{other}".encode()).hexdigest()[:8]
        uri = plain.uri(name)
        names = Names(name, 0, "default")
        wanted = check.configs(options(uri), names)[getattr(names, which)]
        async with opened(plain.uri("maker"), uri) as (maker, ledger):
            made = {key: value for key, value in (wanted | other).items() if value is not None}
            await maker._wire.api(f"STREAM.CREATE.{made['name']}", made)
            fault = await expect(EngineFault, ledger.check())
            for stream in (names.log, names.lease, names.node, names.task):  # a server has room for some ledgers only
                with contextlib.suppress(Refusal):
                    await maker._wire.api(f"STREAM.DELETE.{stream}")
            assert (fault.diagnosis.code, fault.diagnosis.where) == ("MDM-0567", made["name"])

    told(story())


def test_a_stream_as_it_is_printed_is_taken(plain: Cluster) -> None:
    async def story() -> None:
        uri = plain.uri("printed")
        async with opened(plain.uri("maker"), uri) as (maker, ledger):
            for config in check.configs(options(uri), Names("printed", 0, "default")).values():
                await maker._wire.api(f"STREAM.CREATE.{config['name']}", config)
            assert (await ledger.check())["stream"] == "PRINTED_LOG_0"

    told(story())


# -- passwords ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "uri",
    [
        "nats://u:hunter2/x@h:4222/mdm",
        "nats://u:hunter2?x@h:4222/mdm",
        "nats://u:hunter2/x?y@h:4222/mdm",
        "nats://u:a@hunter2@h:4222/mdm?wrong=1",
        "nats://u:hunter2@h:port/mdm",
        "nats://u:x?shards=hunter2@h:4222/mdm",
        "nats://u:a/b@hunter2\n@h:4222/mdm?wrong=1",
    ],
)
def test_a_password_with_odd_signs_is_told_nowhere(uri: str) -> None:
    with pytest.raises(Misuse) as told:
        options(uri)
    assert told.value.diagnosis.code == "MDM-0563"
    assert "hunter2" not in str(told.value)


def test_an_address_without_a_password_is_told_what_is_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    wrong: tuple[tuple[str, str], ...] = (("nats://h:4222/mdm?replica=3", "replica"), ("nats://h:port/mdm", "h:port"))
    for uri, word in wrong:
        with pytest.raises(Misuse, match=word):
            options(uri)
    bad: Callable[[str], str] = lambda api: f"nats://h:4222/mdm?api={api}"  # noqa: E731
    assert options(bad("LEDGER.API")).api == "LEDGER.API"
    for api in ("", "a..b", "a.*", ">", "a b", "a."):
        with pytest.raises(Misuse, match="api=PREFIX"):
            options(bad(api))
