"""A process for the kill tests of the log: `python log_worker.py FOLDER SEED WITNESS...`

Appends true records of three new runs to a SQLite ledger, says `ack RUN SEQ` for each that the ledger acknowledged, and carries the log on
as `mandamus run` does, only faster: tiles, pending rows, signatures, cosignatures of the witnesses. Every text that its log key signs is
first written into `signed.txt`, also one that is then never stored. It stops when its input is closed; it is there to be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from pathlib import Path

from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.drivers.sign_file import FileSigner
from mandamus.drivers.spans_sqlite import Spans
from mandamus.drivers.store_folder import FolderStore
from mandamus.drivers.witness_http import HttpWitness
from mandamus.errors import Unavailable
from mandamus.ports import Head
from mandamus.proof.trust import Trust
from mandamus.runtime.tlog.service import TenantLog
from mandamus.testing.conformance.chains import Chain, opened, raws, turn

FOLDER, SEED, WITNESSES = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
EVERY, WITHIN_S = 8, 0.01


class Told:
    """The log's key; whatever it signs is told before anybody gets the signature."""

    def __init__(self, signer: FileSigner) -> None:
        self.vkey, self._sign = signer.vkey, signer.sign
        self._file = os.open(FOLDER / "signed.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def sign(self, message: bytes) -> bytes:
        os.write(self._file, message + b"\n")
        return self._sign(message)


async def write(ledger: SqliteLedger, rng: random.Random, n: int) -> None:
    chain = Chain(f"01K{SEED:08d}{n:015d}", opened(f"n-{SEED}-{n}"))
    head: Head | None = None
    made = raws(chain.genesis())
    while True:
        head = await ledger.append(chain.run, head, made)
        for seq in range(head.seq - len(made) + 1, head.seq + 1):
            os.write(1, f"ack {chain.run} {seq}\n".encode())
        made = raws(chain.seal([turn()] * rng.randint(1, 5)))
        await asyncio.sleep(rng.random() / 100)


async def wait(tlog: TenantLog, rng: random.Random) -> None:
    """Somebody whose effect waits for evidence."""
    while True:
        with contextlib.suppress(Unavailable):
            run = f"01K{SEED:08d}{rng.randrange(3):015d}"
            told = await tlog.reach(run, 0, "witnessed")
            os.write(1, f"reached {told.size} {told.root}\n".encode())
        await asyncio.sleep(rng.random() / 50)


async def main() -> None:
    rng = random.Random(SEED)
    ledger = SqliteLedger.open(FOLDER / "run.db")
    signer = Told(FileSigner.open(FOLDER / "log.pem"))
    store, spans = FolderStore.open(FOLDER / "log"), Spans.open(FOLDER / "index.db")
    trust = Trust.parse((FOLDER / "trust").read_bytes())
    tlog = TenantLog(
        ledger, store, spans, signer, lambda: trust, lambda: time.time_ns() // 1000, witnesses=[HttpWitness.open(w) for w in WITNESSES],
        every=EVERY, within_s=WITHIN_S, tick_s=WITHIN_S, warn=lambda text: print("warn", text, flush=True),
    )  # fmt: skip
    await tlog.begin()
    os.write(1, b"ready\n")
    work = [asyncio.create_task(write(ledger, rng, n)) for n in range(3)] + [asyncio.create_task(wait(tlog, rng))]
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait([*work, stop], return_when=asyncio.FIRST_COMPLETED)
    for task in work:
        task.cancel()
    for ended in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
    await tlog.close()
    await ledger.close()


asyncio.run(main())
