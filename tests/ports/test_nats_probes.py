"""What the NATS ledger relies on, asked of a real cluster: a server upgrade that answers otherwise must be noticed here."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mandamus.drivers.ledger_nats import check
from mandamus.drivers.ledger_nats import wire as wires
from mandamus.drivers.ledger_nats.layout import Count, Message, Names
from mandamus.drivers.ledger_nats.lease import Free, Leases, Lost
from mandamus.drivers.ledger_nats.uri import options
from mandamus.drivers.ledger_nats.wire import Refusal, Wire
from mandamus.testing.nats import Cluster
from tests.servers.needs import needs

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    needs("nats", "nats-server")
    with Cluster() as running:
        yield running


@contextlib.asynccontextmanager
async def stream(cluster: Cluster, name: str) -> AsyncIterator[tuple[Wire, Names]]:
    """The streams of a ledger of that name, as the driver makes them, and a connection."""
    o = options(cluster.uri(name))
    wire = Wire(o)
    try:
        await check.prepare(wire, o)
        yield wire, Names(name, 0, o.tenant)
    finally:
        await wire.close()


async def refused(code: int, doing: Any) -> None:
    with pytest.raises(Refusal) as refusal:
        await doing
    assert refusal.value.code == code, refusal.value


def test_an_append_expects_the_last_message_of_its_subject(cluster: Cluster) -> None:
    async def probe() -> None:
        async with stream(cluster, "a") as (wire, names):
            one = await wire.put(Message(names.ev("r1"), b"0", 0))
            await wire.put(Message(names.ev("r2"), b"0", 0))
            two = await wire.put(Message(names.ev("r1"), b"1", one.seq, id="r1:1"))
            await refused(wires.STALE, wire.put(Message(names.ev("r1"), b"x", one.seq)))
            again = await wire.put(Message(names.ev("r1"), b"1", one.seq, id="r1:1"))
            assert (again.seq, again.duplicate) == (two.seq, True), "a blind resend is told the old place, stale as its expectation is"

    asyncio.run(probe())


def test_a_batch_is_one_or_nothing_and_in_a_row(cluster: Cluster) -> None:
    async def probe() -> None:
        async with stream(cluster, "b") as (wire, names):
            r1, r2, bud = names.ev("r1"), names.ev("r2"), names.account("a")
            three = await wire.batch([Message(r1, b"0", 0, id="i"), Message(r1, b"1"), Message(bud, b"d", 0)])
            assert await seqs(wire, names, r1, bud) == [three.seq - 1, three.seq]
            await refused(wires.STALE, wire.batch([Message(r1, b"x", three.seq - 1), Message(r2, b"y", 7)]))
            await refused(wires.DUPLICATE, wire.batch([Message(r1, b"0", 0, id="i"), Message(r1, b"1")]))
            assert await seqs(wire, names, r1, r2) == [three.seq - 1, 0]
            many = [Message(names.ev(f"m{i}"), b"x" * 600, 0) for i in range(900)]
            last = await wire.batch(many)
            assert await seqs(wire, names, names.ev("m0"), names.ev("m899")) == [last.seq - 899, last.seq]
            await refused(10199, wire.batch([Message(names.ev(f"n{i}"), b"x", 0) for i in range(1001)]))

    asyncio.run(probe())


def test_a_check_is_an_expectation_on_another_subject(cluster: Cluster) -> None:
    """At three replicas, with several checks in a batch, of accounts that are there and that are not."""

    async def probe() -> None:
        async with stream(cluster, "c") as (wire, names):
            a, b, none = (names.account(id) for id in "abn")
            at = [(await wire.put(Message(subject, b"d", 0))).seq for subject in (a, b)]

            def checks(*expected: int) -> list[Message]:
                return [Message(names.gate, b"", seq, on) for on, seq in zip((a, b, none), expected)]

            done = await wire.batch([Message(names.ev("r"), b"0", 0), *checks(at[0], at[1], 0)])
            place = done.seq - 3
            for stale in ((at[0] + 1, at[1], 0), (at[0], at[1] - 1, 0), (at[0], at[1], 5)):
                await refused(wires.STALE, wire.batch([Message(names.ev("r"), b"1", place), *checks(*stale)]))
            assert await seqs(wire, names, names.ev("r")) == [place]
            await wire.put(Message(a, b"revoked", at[0]))
            await refused(wires.STALE, wire.batch([Message(names.ev("r"), b"1", place), *checks(at[0])]))

    asyncio.run(probe())


def test_one_check_of_an_account_is_under_way_at_a_time(cluster: Cluster) -> None:
    """Why appends share batches. 10164 must stay another answer than 10071: it says nothing of who was first."""

    async def probe() -> None:
        async with stream(cluster, "d") as (wire, names):
            at = (await wire.put(Message(names.account("a"), b"d", 0))).seq

            async def one(i: int) -> int:
                try:
                    await wire.batch([Message(names.ev(f"r{i}"), b"0", 0), Message(names.gate, b"", at, names.account("a"))])
                except Refusal as refusal:
                    return refusal.code
                return 0

            codes: set[int] = set()
            for n in range(20):
                codes |= set(await asyncio.gather(*(one(n * 32 + i) for i in range(32))))
                if wires.BUSY in codes:
                    break
            assert codes == {0, wires.BUSY}

    asyncio.run(probe())


def test_nothing_leaves_the_log(cluster: Cluster) -> None:
    async def probe() -> None:
        async with stream(cluster, "e") as (wire, names):
            seq = (await wire.put(Message(names.ev("r"), b"0", 0))).seq
            await refused(10057, wire.api(f"STREAM.MSG.DELETE.{names.log}", {"seq": seq}))
            await refused(10110, wire.api(f"STREAM.PURGE.{names.log}"))
            config = (await wire.api(f"STREAM.INFO.{names.log}"))["config"]
            for change in ({"deny_delete": False}, {"deny_purge": False}):
                await refused(10052, wire.api(f"STREAM.UPDATE.{names.log}", config | change))
            with pytest.raises(Refusal):  # a record that would run out
                await wire.put(Message(names.ev("r"), b"1", headers=(("Nats-TTL", "1s"),)))
            with pytest.raises(Refusal):  # or take the others with it
                await wire.put(Message(names.ev("r"), b"1", headers=(("Nats-Rollup", "sub"),)))
            assert await seqs(wire, names, names.ev("r")) == [seq]

    asyncio.run(probe())


def test_a_lease_that_ran_out_leaves_its_place_empty(cluster: Cluster) -> None:
    async def probe() -> None:
        async with stream(cluster, "f") as (wire, names):
            one, two = (Leases(wire, names, lambda: 0) for _ in range(2))
            held = await one.take(("lease", "tries"), "r", Free(0), Count(1), 1_000)
            held = await one.renew(held, 1_000)
            while not isinstance(free := await two.look("lease", "r"), Free):
                await asyncio.sleep(0.1)
            assert free.at == 0, "no marker: a stream that has them must take roll-ups"
            taken = await two.take(("lease", "tries"), "r", free, Count(2), 1_000)
            assert taken.at > held.at
            await refused(wires.STALE, wire.put(Message(names.key("lease", "r"), b"{}", 0)))
            with pytest.raises(Lost):  # who saw it free at the same moment
                await one.take(("lease", "tries"), "r", free, Count(2), 1_000)
            with pytest.raises(Lost):  # and who held it before
                await one.renew(held, 1_000)
            assert (await two.count("tries", "r")).n == 2

    asyncio.run(probe())


def test_a_schedule_becomes_a_task_of_the_same_stream(cluster: Cluster) -> None:
    """Moved by another one on its subject, taken away by a message that is none, and told to whoever listens."""

    async def probe() -> None:
        async with stream(cluster, "g") as (wire, names):
            told: list[str] = []
            await wire.listen(names.tasks("p").replace(".task.", ".bell.", 1), lambda message: told.append(message.subject))
            consumer = names.consumer("p", 0)
            config = {"durable_name": consumer, "ack_policy": "explicit", "filter_subject": names.tasks("p", 0)}
            await wire.api(f"CONSUMER.CREATE.{names.task}.{consumer}.{names.tasks('p', 0)}", {"stream_name": names.task, "config": config})
            now = time.time()

            async def arm(run: str, seconds: float) -> None:
                stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now + seconds)) + ".500Z"
                headers = (("Nats-Schedule", f"@at {stamp}"), ("Nats-Schedule-Target", names.tasks("p", 0, run)))
                await wire.put(Message(names.wake(run), b"17", headers=headers))

            await arm("moved", 1)
            await arm("moved", 3)
            await arm("gone", 1)
            await wire.put(Message(names.wake("gone"), b"", headers=(("Nats-TTL", "1s"),)))
            await arm("late", -100)
            runs: list[str] = []
            while len(runs) < 2 and time.time() < now + 30:
                for task in await wire.fetch(names.task, consumer, 1, 1_000):
                    runs.append(task.run)
                    assert task.at == 17
                    await wire.ask(task.reply, b"+ACK")
            assert runs == ["late", "moved"]
            assert time.time() >= now + 2, "moved, not fired at its first instant"
            assert [subject.rpartition(".")[2] for subject in told] == ["late", "moved"]
            assert await wire.fetch(names.task, consumer, 1, 1_500) == []
            assert (await wire.api(f"STREAM.INFO.{names.task}"))["state"]["messages"] == 0, "nothing is left behind"

    asyncio.run(probe())


def test_mail_is_told_before_the_append_that_came_after_it_is_acknowledged(cluster: Cluster) -> None:
    """From whichever servers the two write, while the leader stays."""

    async def probe() -> None:
        async with contextlib.AsyncExitStack() as stack:
            pairs = [await stack.enter_async_context(stream(cluster, "h")) for _ in range(2)]
            (sender, names), (owner, _) = pairs
            seen: list[int] = []
            told = await owner.listen(f"{names.post}.*.*", lambda message: seen.append(int((message.headers or {})["Nats-Sequence"])))
            for i in range(300):
                sent = (await sender.put(Message(names.mailbox("r", f"k{i}"), b"m", 0))).seq
                await owner.put(Message(names.ev("r"), b"x"))
                while told.pending_msgs:
                    await asyncio.sleep(0)
                assert seen[-1:] == [sent]

    asyncio.run(probe())


def test_the_newest_of_many_subjects_is_found_by_the_leader(cluster: Cluster) -> None:
    async def probe() -> None:
        async with stream(cluster, "i") as (wire, names):
            sent = [(await wire.put(Message(names.mailbox("r", key), key.encode(), 0))).seq for key in ("x", "y", "z")]
            await wire.put(Message(names.mailbox("other", "x"), b"", 0))
            box = names.mailbox("r")
            newest = await wire.get(names.log, last_by_subj=box)
            assert newest is not None
            assert (newest.seq, newest.data) == (sent[2], b"z")
            found = await wire.get(names.log, seq=sent[0] + 1, next_by_subj=box)
            assert found is not None
            assert found.seq == sent[1]
            assert await wire.get(names.log, seq=sent[2] + 1, next_by_subj=box) is None
            assert await wire.subjects(names.log, box) == [names.mailbox("r", key) for key in ("x", "y", "z")]

    asyncio.run(probe())


def test_the_servers_say_that_they_flush_always(cluster: Cluster) -> None:
    """And that they do not: the interval that they print is two minutes either way."""
    told = [node.http("/varz")["jetstream"]["config"] for node in cluster.nodes.values()]
    assert [config["sync_always"] for config in told] == [True] * 3
    with Cluster(1, sync="2m") as lazy:
        config = lazy.nodes[1].http("/varz")["jetstream"]["config"]
    assert not config.get("sync_always", False)
    assert config["sync_interval"] == told[0]["sync_interval"]


async def seqs(wire: Wire, names: Names, *subjects: str) -> list[int]:
    found = [await wire.get(names.log, last_by_subj=subject) for subject in subjects]
    return [stored.seq if stored else 0 for stored in found]
