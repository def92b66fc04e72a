"""Every fault that a cluster of three can meet, under many writers: nothing acknowledged is lost, nothing is acknowledged without a quorum.

As root the nodes stand in network namespaces and can be cut apart; else they stand on the loopback, the faults of the network are left
out, and the test says so.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mandamus.drivers.ledger_nats import from_uri
from mandamus.drivers.ledger_nats.layout import Names
from mandamus.testing.nats import Cluster, Node, can_separate
from tests.chaos.writers import Crew
from tests.servers.needs import needs

pytestmark = [
    pytest.mark.service,
    pytest.mark.slow,
    # nats-py leaves the stream of a connection that was cut to the garbage collector
    pytest.mark.filterwarnings("ignore:.*StreamWriter:pytest.PytestUnraisableExceptionWarning"),
]
WANTED = int(os.environ.get("CHAOS_APPENDS", "100000"))
WRITERS, HANDLES = 96, 4
AFTER = 300  # appends that must come after each fault


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    needs("nats", "nats-server")
    with Cluster(namespaces=can_separate()) as made, made.hub():
        yield made


class Faults:
    """One fault each: it strikes, what must hold meanwhile is checked, it is healed, and the writers go on."""

    def __init__(self, cluster: Cluster, crew: Crew) -> None:
        self.cluster, self.crew = cluster, crew
        self.stream = Names("chaos", 0, "default").log
        self.told: list[str] = []

    async def strike(self, name: str) -> None:
        before, began = self.crew.appends, time.monotonic()
        await getattr(self, name)()
        await asyncio.to_thread(self.cluster.wait_ready)
        healed = time.monotonic()
        await self.crew.more(AFTER, 120)
        back, whole = time.monotonic() - healed, healed - began
        print(name, flush=True)
        self.told.append(f"{name}: {self.crew.appends - before} acknowledged; {whole:.1f} s of fault, {back:.1f} s until {AFTER} more")

    async def _nothing(self, why: str, seconds: float = 3.0, settle: float = 2.5) -> None:
        """Answers that were on their way are heard first."""
        await asyncio.sleep(settle)
        before = self.crew.appends
        await asyncio.sleep(seconds)
        assert self.crew.appends == before, why

    async def _leader(self) -> Node:
        return await asyncio.to_thread(self.cluster.leader, self.stream)

    async def leader_killed(self) -> None:
        node = await self._leader()
        await asyncio.to_thread(node.kill9)
        await self.crew.more(AFTER, 60)
        await asyncio.to_thread(node.start)

    async def follower_killed(self) -> None:
        leader = await self._leader()
        node = next(one for one in self.cluster.nodes.values() if one is not leader)
        await asyncio.to_thread(node.kill9)
        await self.crew.more(AFTER, 60)
        await asyncio.to_thread(node.start)

    async def follower_wiped(self) -> None:
        """Its disk is lost: it comes back empty and is filled by the others while the writers go on."""
        leader = await self._leader()
        node = next(one for one in self.cluster.nodes.values() if one is not leader)
        await asyncio.to_thread(node.kill9)
        await asyncio.to_thread(node.wipe)
        await asyncio.to_thread(node.start)
        await self.crew.more(AFTER, 60)

    async def leader_paused(self) -> None:
        node = await self._leader()
        node.pause()
        await self.crew.more(AFTER, 90)
        node.resume()

    async def quorum_lost(self) -> None:
        leader = await self._leader()
        others = [one for one in self.cluster.nodes.values() if one is not leader]
        for node in others:
            await asyncio.to_thread(node.kill9)
        await self._nothing("without a quorum nothing is acknowledged")
        for node in others:
            await asyncio.to_thread(node.start)

    async def all_killed(self) -> None:
        for node in self.cluster.nodes.values():
            await asyncio.to_thread(node.kill9)
        await self._nothing("nobody is there", settle=0.5, seconds=1.0)
        for node in self.cluster.nodes.values():
            await asyncio.to_thread(node.start)

    # -- of the network ------------------------------------------------------------------------------------------------------
    async def leader_isolated(self) -> None:
        """Cut from its peers while clients still reach it: what it takes there must never be acknowledged."""
        node = await self._leader()
        self.cluster.cut(node.i)
        await self.crew.more(AFTER, 90)
        await asyncio.sleep(3)
        self.cluster.heal(node.i)

    async def all_apart(self) -> None:
        for i in self.cluster.nodes:
            self.cluster.cut(i)
        await self._nothing("three that are alone are no quorum")
        for i in self.cluster.nodes:
            self.cluster.heal(i)

    async def leader_unreachable(self) -> None:
        """Its clients are cut off, its peers are not."""
        node = await self._leader()
        self.cluster.cut(node.i, "c")
        await asyncio.sleep(4)
        self.cluster.heal(node.i, "c")


ANYWHERE = ["leader_killed", "follower_killed", "leader_paused", "quorum_lost", "all_killed"]
OF_THE_NETWORK = ["leader_isolated", "leader_unreachable", "all_apart"]


def test_nothing_acknowledged_is_lost_whatever_happens_to_the_cluster(cluster: Cluster) -> None:
    names = ANYWHERE + (OF_THE_NETWORK if cluster.namespaces else [])

    async def story() -> tuple[Any, Faults]:
        # little patience in the driver: the writers themselves must meet unknown outcomes
        crew = Crew(lambda: from_uri(cluster.uri("chaos", patience_ms=2_000)), writers=WRITERS, handles=HANDLES)
        async with crew:
            faults = Faults(cluster, crew)
            await crew.more(AFTER, 60)
            for name in names:
                await faults.strike(name)
            await faults.strike("leader_killed")
            await faults.strike("follower_wiped")  # the last: while a copy is being filled, another fault may leave no quorum
            await crew.at_least(WANTED, 600)
        reader = from_uri(cluster.uri("chaos"))
        try:
            return await crew.verify(reader), faults
        finally:
            await reader.close()

    report, faults = asyncio.run(story())
    print(*faults.told, sep="\n")
    if not cluster.namespaces:
        print("no network namespaces here: partitions were not tested")
    print(f"{report.appends} acknowledged appends, {report.records} records, {report.resent} resent, faults {len(report.faults)}")
    assert report.faults == []
    assert report.appends >= WANTED
    assert report.resent > 0, "the faults met nobody"
    _replicas_are_equal(cluster, faults.stream)


def _replicas_are_equal(cluster: Cluster, stream: str) -> None:
    """What each node says of its own copy. A follower may still be catching up."""
    for _ in range(100):
        states = [node.stream_state(stream) for node in cluster.nodes.values()]
        seen = {(s["messages"], s["bytes"], s["first_seq"], s["last_seq"]) for s in states if s}
        if len(seen) == 1 and all(states):
            return
        time.sleep(0.2)
    raise AssertionError(f"the replicas differ: {seen}")
