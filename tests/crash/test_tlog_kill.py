"""A real SIGKILL at random moments, while one process appends, writes tiles, announces, signs and has it cosigned, and the next goes on.

Our bar: no acknowledged record lost; no checkpoint ever signed, stored or not, that is no beginning of the log; whatever was told to be
reached is stored. Twenty moments here, two hundred in `make slow`; the seed of each is printed.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.drivers.sign_file import FileSigner
from mandamus.drivers.store_folder import FolderStore
from mandamus.proof.note import check, parse_checkpoint
from mandamus.proof.tree import Tree, leaf_hash
from mandamus.proof.trust import Trust
from mandamus.runtime.tlog import objects
from mandamus.runtime.tlog.objects import COSIGNED
from mandamus.runtime.tlog.reader import Reader
from mandamus.runtime.tlog.spans import named
from tests.core.tlog_stand import ORIGIN
from tests.servers.witnesses import Standing, clock, standing

WORKER = Path(__file__).with_name("log_worker.py")
pytestmark = [pytest.mark.service, pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")]


class Said:
    """What the processes said before they were killed."""

    def __init__(self) -> None:
        self.acks: list[tuple[str, int]] = []
        self.reached: list[tuple[int, str]] = []
        self.warned: list[str] = []

    def hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "ack":
            run, seq = rest.split()
            self.acks.append((run, int(seq)))
        elif word == "reached":
            size, root = rest.split()
            self.reached.append((int(size), root))
        elif word == "warn":
            self.warned.append(rest)


async def life(folder: Path, seed: int, witnesses: list[Standing], said: Said, *, kill: bool) -> None:
    """One process, killed at a moment that the seed names, or left to end well."""
    command = [sys.executable, str(WORKER), str(folder), str(seed), *(w.uri for w in witnesses)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stderr is not None
    rng = random.Random(seed)
    starts = kill and rng.random() < 0.2  # some die while they look at what the one before has left

    async def hear() -> None:
        assert process.stdout is not None
        async for raw in process.stdout:
            said.hear(raw.decode().strip())
            if raw == b"ready\n" and not starts:
                ready.set()

    ready = asyncio.Event()
    heard, errors = asyncio.create_task(hear()), asyncio.create_task(process.stderr.read())
    if starts:
        await asyncio.sleep(rng.uniform(0.15, 0.6))
    else:
        ended = asyncio.create_task(process.wait())
        await asyncio.wait([asyncio.create_task(ready.wait()), ended], return_when=asyncio.FIRST_COMPLETED)
        assert ready.is_set(), (await errors).decode()
        ended.cancel()
        await asyncio.sleep(rng.uniform(0.0, 0.9) if kill else 1.5)
    if kill:
        process.send_signal(signal.SIGKILL)
    else:
        process.stdin.close()
    async with asyncio.timeout(60):
        code = await process.wait()
        await heard
    process.stdin.close()
    text = (await errors).decode()
    assert code == (-signal.SIGKILL if kill else 0), (seed, code, text)


async def proved(folder: Path, trust: Trust, said: Said) -> int:
    """The log against the ledger, and everything that was signed or told against the log."""
    ledger = SqliteLedger.open(folder / "run.db")
    fed = [f async for f in ledger.feed()]
    await ledger.close()
    there = {(f.run, f.seq) for f in fed}
    assert [ack for ack in said.acks if ack not in there] == [], "an acknowledged record is lost"
    reader = Reader(FolderStore.open(folder / "log"), ORIGIN)
    size = (await objects.sizes(reader.store, objects.SIGNED))[-1]
    leaves = [raw async for _, raw in reader.records(0, size)]
    assert leaves == [f.raw for f in fed], "the log is the whole ledger, in the order of its feed"
    assert len({(n.run, n.seq) for n in map(named, leaves)}) == size, "no record is two leaves"
    tree = Tree()
    tree.extend([leaf_hash(raw) for raw in leaves])
    assert await reader.root(size) == tree.root()
    texts = (folder / "signed.txt").read_text().split("\n\n")
    signed = [parse_checkpoint(text + "\n") for text in texts if text]
    for point in signed:
        assert tree.root(point.size) == point.root, f"signed at size {point.size}, and no beginning of the log"
    for at, root in said.reached:
        shown = check((await reader.store.get(objects.name(COSIGNED, at))) or b"", trust, ORIGIN, now=clock())
        assert shown.met
        assert shown.checkpoint.root.hex() == root == tree.root(at).hex()
    return len(signed)


def killed(folder: Path, rounds: int, first: int) -> None:
    async def play() -> None:
        signer = FileSigner.create(folder / "log.pem", ORIGIN)
        said, signed = Said(), 0
        async with AsyncExitStack() as stack:
            seen = [await stack.enter_async_context(standing(folder, signer, name=f"w{n}.example")) for n in range(2)]
            lines = [f"log {signer.vkey}", *(f"witness {w.core.key.name} {w.core.key}" for w in seen)]
            text = "\n".join([*lines, "group both all w0.example w1.example", "quorum both"]) + "\n"
            (folder / "trust").write_text(text)
            for seed in range(first, first + rounds):
                print("seed", seed, flush=True)
                await life(folder, seed, seen, said, kill=True)
                if seed % 20 == 19:
                    await life(folder, 1_000_000 + seed, seen, said, kill=False)
                    signed = await proved(folder, Trust.parse(text), said)
            await life(folder, 2_000_000 + first, seen, said, kill=False)
            signed = await proved(folder, Trust.parse(text), said)
        print(f"{rounds} kills: {len(said.acks)} records acknowledged, {signed} checkpoints signed, {len(said.reached)} levels told")
        assert said.warned == []
        assert signed > rounds // 2
        assert said.reached

    asyncio.run(play())


def test_killed_at_twenty_moments(tmp_path: Path) -> None:
    """No acknowledged event lost, no checkpoint ever signed that is inconsistent with an earlier one."""
    killed(tmp_path, 20, first=0)


@pytest.mark.slow
def test_killed_at_two_hundred_moments(tmp_path: Path) -> None:
    killed(tmp_path, int(os.environ.get("KILLS", "200")), first=1_000)
