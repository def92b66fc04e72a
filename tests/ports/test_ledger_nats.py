"""The ledger suite on a real cluster: three nodes, three replicas, sync always. Each case is a tenant of its own. Then a whole agent."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from mandamus import Agent, Budget, Ctx, tool, wiring
from mandamus.core.records import RunOwned, decode
from mandamus.data import Business, none
from mandamus.drivers.ledger_nats import NatsLedger, from_uri
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.testing.conformance.ledger import SealedOnlySuite, names, run
from mandamus.testing.conformance.suite import POOL, TTL, gather, head_of
from mandamus.testing.nats import Cluster
from tests.servers.needs import needs

pytestmark = pytest.mark.service
_tenants = itertools.count(1)
NUMBERS = Business(subject=none("numbers"), retention="books")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    needs("nats", "nats-server")
    with Cluster() as running:
        yield running


@pytest.mark.parametrize("name", names(SealedOnlySuite))
def test_nats(name: str, cluster: Cluster) -> None:
    uri = cluster.uri(tenant=f"t{next(_tenants)}")
    run(SealedOnlySuite, name, lambda: from_uri(uri, sealed_only=True))


@tool(safety="write", effect="keyed", data=NUMBERS)
async def add(ctx: Ctx, a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def adder(turns: int) -> Agent[str]:
    steps = [Step(calls=(("add", {"a": n, "b": 1}),)) for n in range(turns - 1)]
    policies = ({"id": "tools", "permit": {"tool": "add"}},)
    return Agent(
        name="adder",
        purpose="add",
        model=ScriptedModel([*steps, "done"]),
        tools=[add],
        policies=policies,
        budget=Budget(turns=turns + 5, calls=turns + 5),
        window=10**9,
    )


def test_an_agent_runs_on_it_in_two_round_trips_a_turn(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        uri = cluster.uri(tenant=f"t{next(_tenants)}")
        env = await wiring.open_env(uri)
        ledger = getattr(env.ledger, "inner", env.ledger)  # below what seals
        assert isinstance(ledger, NatsLedger)
        result = await adder(20).run("go", ledger=env, run_id="run-1")
        assert (result.state, result.output) == ("completed", "done")
        known = await ledger._appends.at.run("run-1", fresh=True)
        assert known is not None
        messages = 1 + len([frame async for frame in ledger._frames("run-1", known, -1, known.row.seq)])
        assert messages <= 2 * 20 + 6, "two appends a turn; the opening and the end"
        records = [decode(raw) for raw in await gather(ledger.read("run-1"))]
        assert sum(isinstance(record.fact, RunOwned) for record in records) <= 1
        head = await head_of(ledger, "run-1")
        assert (head.owner, head.state, head.seq) == ("", "completed", len(records) - 1)
        assert await ledger.claim(POOL, TTL) is None
        await wiring.close_env(env)

    asyncio.run(main())
