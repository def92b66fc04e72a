"""Who may do what on the NATS ledger: the rights of deploy/nats/accounts.conf are enough for a worker, and no more. TLS, keys, accounts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]
import pytest

from mandamus.drivers.ledger_nats import NatsLedger, from_uri
from mandamus.drivers.ledger_nats.layout import Message
from mandamus.drivers.ledger_nats.wire import Refusal, Silence
from mandamus.errors import EngineFault, Unavailable
from mandamus.ports import AccountCheck, Node, Wake
from mandamus.testing.conformance.chains import Chain, turn
from mandamus.testing.conformance.suite import PAST, POOL, TTL, expect, gather, head_of, put, write
from mandamus.testing.nats import Cluster
from tests.servers import deployed
from tests.servers.needs import needs

pytestmark = pytest.mark.service
API = "LEDGER.API"


def accounts(worker: str) -> str:
    """The deployed rights, for users with passwords; and a ledger of somebody else."""
    other = "  OTHER { jetstream: enabled, users: [{ user: stranger, password: op-other }] }\n"
    return deployed.accounts("user: operator, password: op-acme", {"acme": ["user: worker, password: w-acme", f"nkey: {worker}"]}, other)


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's seed of our own making, on disk as an operator hands it out."""
    path = tmp_path_factory.mktemp("nkey") / "worker.nk"
    path.write_bytes(nkeys.encode_seed(b"w" * 32, nkeys.PREFIX_BYTE_USER))
    return path


@pytest.fixture(scope="module")
def cluster(seed: Path) -> Iterator[Cluster]:
    needs("nats", "nkeys", "nats-server")
    worker = nkeys.from_seed(seed.read_bytes()).public_key.decode()
    with Cluster(1, tls=True, accounts=accounts(worker)) as running:
        for login, tenant in (("operator:op-acme", "acme"), ("stranger:op-other", "other")):
            during(running.uri(login=login, tenant=tenant), _open)
        yield running


def during(uri: str, doing: Callable[[NatsLedger], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        ledger = from_uri(uri)
        try:
            await doing(ledger)
        finally:
            await ledger.close()

    asyncio.run(run())


async def _open(ledger: NatsLedger) -> None:
    await ledger.check()


async def _works(ledger: NatsLedger, run: str) -> None:
    """Everything that a worker does."""
    chain = Chain(run)
    head = await put(ledger, None, chain.genesis(input="i" * 20_000), wake=Wake(PAST, 0), also=[write(f"account/{run}", 1)])
    await ledger.send(run, b"hello")
    claimed = await ledger.claim(POOL, TTL)
    assert claimed is not None
    assert claimed.run == run
    head = await put(ledger, claimed, chain.next(turn(), note="n"), also=[AccountCheck(f"account/{run}", 1)])
    await ledger.renew(head, TTL)
    assert len(await gather(ledger.read(run))) == 2
    assert await gather(ledger.payloads(run)) != []
    ((cursor, _, text),) = await gather(ledger.mailbox(run))
    assert text == b"hello"
    await ledger.append(run, head, [], wake=Wake(None, cursor, "completed"))
    assert (await ledger.renew(await head_of(ledger, run), 0)).owner == ""
    assert await ledger.duty("sweeper", TTL) is not None
    assert await ledger.duty("sweeper", 0) is None
    await ledger.beat(Node("worker-1", POOL, 1, 0, "0.1"), TTL)
    assert [node.id for node in await gather(ledger.nodes())] == ["worker-1"]
    assert run in [one.run for one in await gather(ledger.runs())]
    await ledger.hint(POOL, 10)
    assert await ledger.claim(POOL, TTL) is None


def test_the_deployed_rights_are_enough_for_a_worker(cluster: Cluster, seed: Path) -> None:
    during(cluster.uri(login="worker:w-acme", tenant="acme", api=API), lambda ledger: _works(ledger, "run-1"))
    during(cluster.uri(nkey=seed, tenant="acme", api=API), lambda ledger: _works(ledger, "run-2"))


def test_a_worker_may_not_touch_the_streams(cluster: Cluster) -> None:
    async def tried(ledger: NatsLedger) -> None:
        await ledger.check()
        wire = ledger._wire
        config = (await wire.api("STREAM.INFO.MDM_LOG_0"))["config"]
        for stream in ("MDM_LOG_0", "KV_MDM_LEASE_0", "MDM_TASK_0"):
            for verb, body in (
                ("STREAM.DELETE", None),
                ("STREAM.PURGE", None),
                ("STREAM.UPDATE", config),
                ("STREAM.MSG.DELETE", {"seq": 1}),
            ):
                with pytest.raises(Silence, match=r"(?i)permissions violation"):
                    await wire.api(f"{verb}.{stream}", body)
        with pytest.raises(Silence, match=r"(?i)permissions violation"):
            await wire.api("STREAM.CREATE.MINE", {"name": "MINE", "subjects": ["mine"]})

    place = cluster.uri(login="worker:w-acme", tenant="acme", api=API, timeout_ms=300, patience_ms=300)
    during(place, tried)
    during(cluster.uri(login="operator:op-acme", tenant="acme"), _unchanged)


async def _unchanged(ledger: NatsLedger) -> None:
    """Not even the operator purges or deletes."""
    await ledger.check()
    for verb, body in (("STREAM.PURGE", None), ("STREAM.MSG.DELETE", {"seq": 1})):
        with pytest.raises(Refusal):
            await ledger._wire.api(f"{verb}.MDM_LOG_0", body)


def test_a_worker_publishes_for_its_tenant_on_its_shard_only(cluster: Cluster) -> None:
    async def tried(ledger: NatsLedger) -> None:
        await ledger.check()
        for subject in (
            "mdm.0.ev.globex.run-1",
            "mdm.1.ev.acme.run-1",
            "mdm.0.task.globex.default.0.run-1",
            "$KV.MDM_LEASE_0.lease.globex.run-1",
        ):
            with pytest.raises(Silence):
                await ledger._wire.put(Message(subject, b"x"))
        heard: list[str] = []
        await ledger._wire.listen("mdm.0.>", lambda message: heard.append(message.subject))
        await put(ledger, None, Chain("run-9").genesis(), wake=Wake(PAST, 0))
        assert heard == [], "nor does it hear more than its bells"
        assert "mdm.0.>" in ledger._wire.denied

    during(cluster.uri(login="worker:w-acme", tenant="acme", api=API, timeout_ms=300, patience_ms=300), tried)


def test_an_account_does_not_see_the_other_ones_runs(cluster: Cluster) -> None:
    async def other(ledger: NatsLedger) -> None:
        await put(ledger, None, Chain("run-secret").genesis(input="secret"))

    async def mine(ledger: NatsLedger) -> None:
        assert await ledger.head("run-secret") is None
        assert "run-secret" not in [head.run for head in await gather(ledger.runs())]
        assert await ledger._wire.get("MDM_LOG_0", last_by_subj="mdm.0.ev.other.run-secret") is None

    during(cluster.uri(login="stranger:op-other", tenant="other"), other)
    during(cluster.uri(login="worker:w-acme", tenant="acme", api=API), mine)


def test_who_is_not_known_does_not_come_in(cluster: Cluster, tmp_path: Path) -> None:
    async def tried(ledger: NatsLedger) -> None:
        unavailable = await expect(Unavailable, ledger.head("run-1"))
        assert unavailable.diagnosis.code == "MDM-0560"

    foreign = tmp_path / "foreign.nk"
    foreign.write_bytes(nkeys.encode_seed(b"f" * 32, nkeys.PREFIX_BYTE_USER))
    quick: dict[str, Any] = {"tenant": "acme", "patience_ms": 1_000, "timeout_ms": 500}
    logins: tuple[dict[str, Any], ...] = ({"login": "worker:wrong"}, {"login": ""}, {"nkey": foreign})
    for login in logins:
        during(cluster.uri(**login, **quick), tried)
    other = tmp_path / "other.pem"
    with Cluster(1, tls=True) as stranger:
        other.write_bytes(stranger.authority.read_bytes())
    during(cluster.uri(login="worker:w-acme", tls_ca=other, **quick), tried)


def test_a_password_is_told_nowhere(cluster: Cluster) -> None:
    ledger = from_uri(cluster.uri(login="worker:very-secret", tenant="acme", patience_ms=500, timeout_ms=500))

    async def failing() -> str:
        try:
            return str(await expect(Unavailable, ledger.head("run-1")))
        finally:
            await ledger.close()

    assert "very-secret" not in asyncio.run(failing()) + ledger.options.uri


def test_a_worker_cannot_make_what_is_missing(cluster: Cluster) -> None:
    async def tried(ledger: NatsLedger) -> None:
        with pytest.raises(EngineFault, match="MDM-0569"):
            await ledger.check()

    during(cluster.uri("absent", login="worker:w-acme", tenant="acme", api=API, timeout_ms=300, patience_ms=300), tried)
