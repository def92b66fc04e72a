"""The key store in its file: what it keeps, what it destroys, and that no byte of a destroyed key is left in any of its files."""

from __future__ import annotations

import asyncio
import datetime
import os
import subprocess
import sys
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import apsw
import pytest

from mandamus.core.clock import first_day
from mandamus.core.retention import KeyName, Plan, until
from mandamus.drivers.keys_sqlite import SqliteKeys
from mandamus.drivers.wrap_file import FileWrap
from mandamus.errors import Erased, Misuse, ProofError
from mandamus.ports import Erasing

MONTH = "2026-11"


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()]


def anywhere(folder: Path, needles: Iterable[bytes]) -> bool:
    found = files(folder)
    return any(needle in raw for needle in needles for raw in found)


def content(run: str) -> KeyName:
    return KeyName(f"run/{run}", "content", MONTH)


async def filled(keys: SqliteKeys, runs: int = 40) -> dict[str, bytes]:
    """Many runs with a key each, so that pages split and are rebuilt."""
    made = {}
    for n in range(runs):
        await keys.begin(f"R{n}", Plan())
        made[f"R{n}"] = await keys.key(content(f"R{n}"), until=0)
    return made


# -- names and runs ------------------------------------------------------------------------------------------------------------
def test_a_subject_has_one_pseudonym_and_the_store_never_holds_its_name(tmp_path: Path) -> None:
    async def story() -> None:
        keys = SqliteKeys(tmp_path / "keystore.db")
        assert await keys.pseudonym("Zebra-Patient", make=False) == ""
        assert not list(tmp_path.iterdir()), "asking makes no file"
        name = await keys.pseudonym("Zebra-Patient")
        assert len(name) == 32
        assert await SqliteKeys(tmp_path / "keystore.db").pseudonym(" Zebra-Patient ") == name
        assert await keys.pseudonym("another") != name
        assert not anywhere(tmp_path, [b"Zebra-Patient"])

    run(story())


def test_a_subject_that_was_destroyed_comes_back_under_another_name(tmp_path: Path) -> None:
    async def story() -> None:
        keys = SqliteKeys(tmp_path / "keystore.db")
        name = await keys.pseudonym("alice")
        await keys.destroy("e1", [KeyName(f"subject/{name}")], name)
        assert await keys.pseudonym("alice", make=False) == ""
        assert await keys.pseudonym("alice") != name

    run(story())


def test_a_family_is_found_from_any_of_its_members(tmp_path: Path) -> None:
    async def story() -> None:
        keys = SqliteKeys(tmp_path / "keystore.db")
        name = await keys.pseudonym("alice")
        await keys.begin("TOP", Plan())
        await keys.begin("CHILD", Plan(), "TOP", [name])
        await keys.begin("LATER", Plan(), "TOP")
        await keys.begin("STRANGER", Plan())
        await keys.begin("OF-PLAIN", Plan(), "A-PLAIN-RUN")
        assert await keys.runs_of(name) == ("CHILD", "LATER", "TOP")
        assert await keys.family("LATER") == ("CHILD", "LATER", "TOP")
        assert await keys.family("OF-PLAIN") == ("OF-PLAIN",)
        assert await keys.family("NEVER") == ()
        assert await keys.subjects_of(["CHILD", "STRANGER"]) == (name,)

    run(story())


def test_the_keys_of_one_log_open_nothing_of_another(tmp_path: Path) -> None:
    async def story() -> None:
        keys = SqliteKeys(tmp_path / "keystore.db")
        await keys.bind("log/one")
        await keys.key(content("R"), until=0)
        await SqliteKeys(tmp_path / "keystore.db").bind("log/one")
        with pytest.raises(Misuse, match="another log"):
            await SqliteKeys(tmp_path / "keystore.db").bind("log/two")

    run(story())


# -- destroying ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wrapped", [False, True])
def test_no_byte_of_a_destroyed_key_is_left_in_any_file(tmp_path: Path, wrapped: bool) -> None:
    async def story() -> None:
        keys = SqliteKeys(tmp_path / "keystore.db", FileWrap(os.urandom(32)) if wrapped else None)
        name = await keys.pseudonym("alice")
        made = await filled(keys)
        mine = await keys.key(KeyName(f"subject/{name}", "personal", MONTH), until=0)
        db = apsw.Connection(str(tmp_path / "keystore.db"))
        stored = [row[0] for row in db.execute("SELECT key FROM dek WHERE owner IN (?, 'run/R7')", (f"subject/{name}",))]
        stored += [row[0] for row in db.execute("SELECT key FROM subject")]
        db.close()
        assert len(stored) == 3
        assert anywhere(tmp_path, stored), "they were there before"
        assert wrapped != anywhere(tmp_path, [mine, made["R7"]])
        await keys.destroy("e1", [KeyName(f"subject/{name}"), KeyName("run/R7")], name)
        assert not anywhere(tmp_path, [*stored, mine, made["R7"]])
        assert (tmp_path / "keystore.db-wal").stat().st_size == 0
        assert await keys.key(content("R8")) == made["R8"], "nobody else's key went"
        await keys.close()
        assert not anywhere(tmp_path, [*stored, mine, made["R7"]])

    run(story())


def test_what_a_rebuilt_page_left_behind_is_found_and_written_over(tmp_path: Path) -> None:
    """Without secure_delete the bytes stay where they were: the search finds them, and the file is written anew."""

    async def story() -> None:
        keys = SqliteKeys(tmp_path / "keystore.db")
        made = await filled(keys)
        keys._file.db().pragma("secure_delete", False)
        await keys.destroy("e1", [KeyName("run/R3")])
        assert not anywhere(tmp_path, [made["R3"]])
        assert await keys.key(content("R4")) == made["R4"]

    run(story())


def test_another_process_stops_using_a_key_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        one, other = SqliteKeys(tmp_path / "keystore.db"), SqliteKeys(tmp_path / "keystore.db")
        made = await filled(one, 3)
        assert await other.key(content("R1")) == made["R1"], "in its memory from here on"
        await one.destroy("e1", [KeyName("run/R1")])
        assert await other.key(content("R1")) == b""
        assert await other.fate(content("R1")) == "erased"
        with pytest.raises(Erased, match="forgotten"):
            await other.key(content("R1"), until=0)

    run(story())


def test_keys_that_are_out_of_use_come_back_only_when_they_are_given_back(tmp_path: Path) -> None:
    async def story() -> None:
        keys = SqliteKeys(tmp_path / "keystore.db")
        made = await filled(keys, 2)
        selectors = (KeyName("run/R1"),)
        await keys.hear(Erasing("e1", "", selectors, ("R1",), "off"))
        assert (await keys.key(content("R1")), await keys.fate(content("R1"))) == (b"", "off")
        with pytest.raises(Erased):
            await keys.key(content("R1"), until=0)
        await keys.hear(Erasing("e2", "", selectors, ("R1",), "off"))
        await keys.hear(Erasing("e2", "", selectors, ("R1",), "asked"))
        assert await keys.key(content("R1")) == b"", "the first one still wants it"
        await keys.hear(Erasing("e1", "", selectors, ("R1",), "asked"))
        assert await keys.key(content("R1")) == made["R1"]
        assert [e.state for e in await keys.erasings()] == ["asked", "asked"]

    run(story())


def test_a_key_has_its_days_from_the_end_of_its_month() -> None:
    assert until("2026-11", 30) - until("2026-12", 30) == -31 * 86_400_000_000
    assert (until("2026-12", 1), until("2026-11", 0), until("-", 9)) == (1_798_848_000_000_000, 0, 0)


def test_the_first_day_of_every_month_is_what_the_calendar_says() -> None:
    for year in (1970, 1999, 2000, 2023, 2024, 2100, 2254):
        for month in range(1, 13):
            assert first_day(year, month) == (datetime.date(year, month, 1) - datetime.date(1970, 1, 1)).days


def test_expired_keys_are_listed_until_somebody_takes_them(tmp_path: Path) -> None:
    async def story() -> None:
        keys = SqliteKeys(tmp_path / "keystore.db")
        assert await keys.expired(10**18) == ()
        await keys.key(content("OLD"), until=5)
        await keys.key(content("NEW"), until=50)
        await keys.key(content("EVER"), until=0)
        assert await keys.expired(10) == (content("OLD"),)
        await keys.hear(Erasing("e1", "", (content("OLD"),), ("OLD",), "off"))
        assert await keys.expired(10) == ()

    run(story())


# -- crashes -------------------------------------------------------------------------------------------------------------------
DYING = """
import asyncio, os, sys
from mandamus.core.clock import first_day
from mandamus.core.retention import KeyName
from mandamus.drivers import keys_sqlite
async def main():
    keys = keys_sqlite.SqliteKeys(sys.argv[1])
    keys_sqlite.KeysFile.scrub = lambda self, deleted: os.kill(os.getpid(), 9)
    await keys.destroy("e1", [KeyName("run/R5")])
asyncio.run(main())
"""


def test_a_death_between_deleting_and_scrubbing_is_made_good_by_whoever_destroys_again(tmp_path: Path) -> None:
    async def story() -> None:
        keys = SqliteKeys(tmp_path / "keystore.db")
        made = await filled(keys, 8)
        await keys.hear(Erasing("e1", "", (KeyName("run/R5"),), ("R5",), "asked"))
        await keys.close()
        dead = subprocess.run([sys.executable, "-c", DYING, str(tmp_path / "keystore.db")], timeout=60, check=False)
        assert dead.returncode == -9
        assert anywhere(tmp_path, [made["R5"]]), "its bytes still lie in the write-ahead log"
        again = SqliteKeys(tmp_path / "keystore.db")
        assert [e.state for e in await again.erasings()] == ["destroyed"]
        assert await again.key(content("R5")) == b""
        await again.destroy("e1", [KeyName("run/R5")])
        assert not anywhere(tmp_path, [made["R5"]])
        assert await again.key(content("R4")) == made["R4"]

    run(story())


WRITING = """
import asyncio, sys
from mandamus.core.clock import first_day
from mandamus.core.retention import KeyName, Plan
from mandamus.drivers.keys_sqlite import SqliteKeys
async def main():
    keys = SqliteKeys(sys.argv[1])
    for n in range(30):
        await keys.begin(f"{sys.argv[2]}-{n}", Plan())
        await keys.key(KeyName("run/shared", "content", f"{n}"), until=0)
        if n % 10 == 9:
            await keys.destroy(f"e-{sys.argv[2]}-{n}", [KeyName(f"run/{sys.argv[2]}-{n}")])
    print(" ".join([(await keys.key(KeyName("run/shared", "content", f"{n}"))).hex() for n in range(30)]))
asyncio.run(main())
"""


def test_several_processes_share_one_file(tmp_path: Path) -> None:
    """They make it together, agree on every key that two of them ask for at once, and destroy while others write."""
    command = [sys.executable, "-c", WRITING, str(tmp_path / "keystore.db")]
    workers = [subprocess.Popen([*command, f"W{n}"], stdout=subprocess.PIPE, text=True) for n in range(3)]
    said = [worker.communicate(timeout=120)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert len(set(said)) == 1
    assert len(set(said[0].split())) == 30


# -- what it refuses -----------------------------------------------------------------------------------------------------------
def test_a_store_that_others_can_read_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "keystore.db"
        await SqliteKeys(path).key(content("R"), until=0)
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)
        with pytest.raises(Misuse, match="others can read"):
            await SqliteKeys(path).key(content("R"))

    run(story())


def test_a_store_opens_only_under_the_key_that_wraps_it(tmp_path: Path) -> None:
    async def story() -> None:
        path, kek = tmp_path / "keystore.db", os.urandom(32)
        key = await SqliteKeys(path, FileWrap(kek)).key(content("R"), until=0)
        assert await SqliteKeys(path, FileWrap(kek)).key(content("R")) == key
        for wrong in (None, FileWrap(os.urandom(32))):
            with pytest.raises(Misuse, match="wrapped by another key"):
                await SqliteKeys(path, wrong).key(content("R"))
        db = apsw.Connection(str(path))
        db.execute("UPDATE dek SET owner = 'run/S'")  # a key that is moved to another owner
        db.close()
        with pytest.raises(ProofError, match="changed"):
            await SqliteKeys(path, FileWrap(kek)).key(content("S"))

    run(story())


@pytest.mark.parametrize(("text", "mode"), [("00" * 32, 0o644), ("00" * 31, 0o600), ("no hex", 0o600)])
def test_a_key_encryption_key_that_cannot_be_one_is_refused(tmp_path: Path, text: str, mode: int) -> None:
    path = tmp_path / "kek"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(Misuse, match="key-encryption key"):
        FileWrap.open(path)


def test_another_programs_file_is_no_key_store(tmp_path: Path) -> None:
    path = tmp_path / "keystore.db"
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE theirs (x)")
    db.close()
    path.chmod(0o600)
    with pytest.raises(Misuse, match="no key store"):
        run(SqliteKeys(path).key(content("R"), until=0))
