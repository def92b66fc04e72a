"""`witness serve` as a process of its own, and `witness status` against it: the whole way over real sockets and files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mandamus.cli import shapes
from mandamus.drivers.witness_http import HttpWitness
from mandamus.errors import Conflict
from tests.e2e.cli_world import World
from tests.e2e.test_shapes import fitting
from tests.servers.rekor import rekor
from tests.servers.softhsm import Token
from tests.servers.witnesses import ORIGIN, Log, key_file

pytestmark = pytest.mark.service


class Process:
    """One `mandamus witness serve --json`."""

    def __init__(self, folder: Path, *args: str, init: bool = True) -> None:
        command = [sys.executable, "-m", "mandamus", "witness", "serve", "--json", "--listen", "127.0.0.1:0", *args]
        self.child = subprocess.Popen(
            [*command, *(["--init"] if init else [])], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("MANDAMUS_")},
        )  # fmt: skip
        self.first = self.line()
        self.uri = f"witness+http://{self.first['address']}#{self.first['vkey']}"

    def line(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        text = self.child.stdout.readline()
        if not text:
            raise AssertionError(self.child.communicate()[1])
        told: dict[str, Any] = json.loads(text)
        assert fitting("witness serve", told, "witness serve") == "Served"
        return told

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.child.send_signal(number)
        out, err = self.child.communicate(timeout=30)
        return self.child.returncode, out + err


@contextlib.contextmanager
def serving(folder: Path, *args: str, init: bool = True) -> Iterator[Process]:
    one = Process(folder, *args, init=init)
    try:
        yield one
    finally:
        if one.child.poll() is None:
            one.child.kill()
        one.child.communicate()


async def added(uri: str, log: Log, old: int, size: int) -> bytes:
    one = HttpWitness.open(uri)
    try:
        return await one.add(ORIGIN, old, log.tree.consistency(old, size) if old else (), log.note(size))
    finally:
        await one.close()


def test_it_serves_remembers_over_kill_9_and_ends_clean(tmp_path: Path) -> None:
    """What it answered is on the disk: killed at once afterwards, it still knows the size; SIGTERM and Ctrl-C end it with 0."""
    log = Log().grow(100)
    key_file(tmp_path / "w.pem", "w1.example")
    args = ("--key", "w.pem", "--db", "w.db", "--log", log.signer.vkey)
    with serving(tmp_path, *args) as one:
        assert one.first["event"] == "listening"
        assert one.first["logs"] == [ORIGIN]
        asyncio.run(added(one.uri, log, 0, 40))
        said = one.line()
        assert (said["event"], said["status"], said["size"], said["known"]) == ("asked", 200, 40, 40)
        one.child.kill()
        one.child.wait(30)
    with serving(tmp_path, *args, init=False) as one:
        with pytest.raises(Conflict) as told:
            asyncio.run(added(one.uri, log, 0, 100))
        assert told.value.size == 40
        asyncio.run(added(one.uri, log, 40, 100))
        code, rest = one.end()
        assert code == 0, rest
        assert json.loads(rest.splitlines()[-1])["event"] == "ended"
    with serving(tmp_path, *args, init=False) as one:
        assert one.end(signal.SIGINT)[0] == 0


def test_its_key_may_lie_in_a_token(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real SoftHSM2: the key is made in the token, cannot leave it, and its line verifies like any other; a P-256 key cosigns nothing."""
    for name in ("SOFTHSM2_CONF", "HSM_PIN"):  # given back at the end: the library of this process may have another token open
        monkeypatch.setenv(name, "")
    token, log = Token(), Log().grow(9)
    for key, kind in (("witness", "ed25519"), ("witness-p256", "p256")):
        made = world.process("key", "new", token.uri(key), "--kind", kind, "--name", "hsm.example")
        assert made.returncode == 0, made
    args = ("--db", "w.db", "--log", log.signer.vkey, "--key")
    with serving(tmp_path, *args, token.uri("witness") + "&name=hsm.example/w1") as one:
        assert one.first["vkey"].startswith("hsm.example/w1+")
        asyncio.run(added(one.uri, log, 0, 9))
        assert one.end()[0] == 0
    told = world.process("witness", "serve", "--json", *args, token.uri("witness-p256") + "&name=hsm.example/w1")
    assert (told.returncode, json.loads(told.stdout)["error"]["code"]) == (2, "MDM-0946"), told


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--key", "log.pem", "--init"), "MDM-0946"),
        (("--key", "w.pem"), "MDM-0947"),
        (("--key", "w.pem", "--init", "--listen", "nowhere"), "MDM-0958"),
        (("--key", "w.pem", "--init", "--listen", "192.0.2.1:1"), "MDM-0958"),
        (("--init",), "MDM-0021"),
        (("--key", "none.pem", "--init"), "MDM-0190"),
    ],
)
def test_what_it_refuses_to_start_with(world: World, args: tuple[str, ...], code: str) -> None:
    key_file(world.folder / "w.pem", "w1.example")
    key_file(world.folder / "log.pem", ORIGIN, kind=0x01)
    vkey = (world.folder / "log.pem").read_text().splitlines()[0].removeprefix("# vkey ")
    told = world("witness", "serve", "--db", "w.db", "--log", vkey, *args, "--json")
    assert (told.code, told.data["error"]["code"]) == (2, code), told


def test_status_says_who_knows_what(world: World) -> None:
    """Sizes that witnesses know, lag, whether the quorum cosigned the newest checkpoint; one that is away is named, not hidden."""
    ran = world.process("run", "payout.py:small", "Pay the invoice", "--json")
    assert ran.returncode == 0, ran
    vkey = world.ok("key", "trust").out.splitlines()[0].removeprefix("log ")
    key_file(world.folder / "w.pem", "w1.example")
    with serving(world.folder, "--key", "w.pem", "--db", "w.db", "--log", vkey) as one:
        trust = world.folder / ".mandamus" / "trust"
        text = trust.read_text().replace("quorum none", f"witness w1.example {one.first['vkey']}\nquorum w1.example")
        trust.write_text(text)
        there = {"MANDAMUS_WITNESSES": one.uri}
        ran = world.process("run", "payout.py:small", "Pay the invoice", "--json", env=there)
        assert ran.returncode == 0, ran
        told = world.process("witness", "status", "--json", env=there)
        found = json.loads(told.stdout)
        assert fitting("witness status", found, "") == shapes.WitnessStatus.__name__
        row = found["witnesses"][0]
        assert (row["name"], row["trusted"], row["fault"]) == ("w1.example", True, "")
        assert found["met"]
        assert told.returncode == 0
        assert row["lag"] == 0
        assert found["size"] == found["witnessed"] == row["knows"] > 0
        one.end()
        told = world.process("witness", "status", "--json", env=there)
        assert json.loads(told.stdout)["witnesses"][0]["fault"].startswith("MDM-0954")
        assert "w1.example" in world.process("witness", "status", env=there).stdout.decode()


def believed(world: World, *lines: str) -> None:
    """These lines in place of `quorum none`."""
    trust = world.folder / ".mandamus" / "trust"
    trust.write_text(trust.read_text().replace("quorum none", "\n".join(lines)))


def test_a_restored_backup_is_refused_by_name_and_sizes(world: World) -> None:
    """Attack 49: ledger, log and keys come back from a copy; the witness knows more, and both sizes are told."""
    assert world.process("run", "payout.py:small", "Pay the invoice").returncode == 0
    vkey = world.ok("key", "trust").out.splitlines()[0].removeprefix("log ")
    key_file(world.folder / "w.pem", "w1.example")
    with serving(world.folder, "--key", "w.pem", "--db", "w.db", "--log", vkey) as one:
        believed(world, f"witness w1.example {one.first['vkey']}", "quorum w1.example")
        there = {"MANDAMUS_WITNESSES": one.uri}
        shutil.copytree(world.folder / ".mandamus", world.folder / "backup")
        assert world.process("run", "payout.py:small", "Pay the invoice", env=there).returncode == 0
        assert world.process("witness", "status", env=there).returncode == 0
        shutil.rmtree(world.folder / ".mandamus")
        shutil.copytree(world.folder / "backup", world.folder / ".mandamus")
        told = world.process("witness", "status", "--json", env=there)
        error = json.loads(told.stdout)["error"]
        assert (told.returncode, error["code"]) == (1, "MDM-0951"), told
        assert "as the witness w1.example cosigned" in error["expected"]
        assert int(error["found"].split()[0]) < int(error["expected"].split()[0])


def test_a_public_anchor_becomes_a_proof_line_that_verifies(world: World) -> None:
    """The checkpoint is an entry of a Rekor-shaped log; the bundle carries the proof, and the verifier believes it by the `anchor` line."""
    assert world.process("run", "payout.py:small", "Pay the invoice").returncode == 0
    vkey = world.ok("key", "trust").out.splitlines()[0].removeprefix("log ")
    key_file(world.folder / "w.pem", "w1.example")

    async def main(one: Process) -> dict[str, Any]:
        async with rekor() as public:
            assert public.server is not None
            believed(
                world,
                f"witness w1.example {one.first['vkey']}",
                "quorum w1.example",
                f"anchor {public.signer.key.name} {public.signer.vkey}",
            )
            anchor = f"rekor+http://127.0.0.1:{public.server.port}?residency=eu#{public.signer.vkey}"
            there = {"MANDAMUS_WITNESSES": f"{one.uri} {anchor}", "MANDAMUS_RESIDENCY": "any"}
            for args in (("run", "payout.py:small", "Pay the invoice"), ("bundle", "last", "-o", "run.bundle")):
                done = await asyncio.to_thread(world.process, *args, env=there)
                assert done.returncode == 0, done
            refused = await asyncio.to_thread(world.process, "witness", "status", env=there | {"MANDAMUS_RESIDENCY": "eu"})
            assert refused.returncode == 2, "the witness declares no residency"
        done = await asyncio.to_thread(world.process, "verify", "run.bundle", "--trust", ".mandamus/trust", "--json")
        assert done.returncode == 0, done
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    with serving(world.folder, "--key", "w.pem", "--db", "w.db", "--log", vkey) as one:
        told = asyncio.run(main(one))
    said = {c["name"]: (c["outcome"], c["says"]) for c in told["claims"]}
    assert said["anchors"][0] == "proven", said
    assert "log2026.rekor.example" in said["anchors"][1]
    assert "w1.example" in said["checkpoint"][1]
