"""A stand for tests of the log: a ledger in memory with true chains, a store in memory, a real key; processes come and go on it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mandamus.core.records import LOG
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.sign_file import FileSigner
from mandamus.drivers.spans_sqlite import Spans
from mandamus.drivers.store_memory import MemoryStore
from mandamus.ports import Head
from mandamus.proof.keys import vkey
from mandamus.proof.note import parse_checkpoint
from mandamus.proof.tree import Tree, leaf_hash
from mandamus.proof.trust import Trust
from mandamus.runtime.tlog.reader import Reader
from mandamus.runtime.tlog.sequencer import Sequencer
from mandamus.runtime.tlog.service import TenantLog
from mandamus.testing.conformance.chains import Chain, log_opened, opened, raws, turn
from mandamus.testing.power import Power

ORIGIN = "mandamus.local/suite"


def key(name: str = ORIGIN, seed: int = 1) -> FileSigner:
    private = Ed25519PrivateKey.from_private_bytes(random.Random(seed).randbytes(32))
    return FileSigner(private, vkey(name, private.public_key().public_bytes_raw()))


class Writer:
    """Runs on one ledger, written in whatever order; `tree` is the log as it must come out."""

    def __init__(self, ledger: Any) -> None:
        self.ledger = ledger
        self.chains: dict[str, Chain] = {}
        self.heads: dict[str, Head | None] = {}
        self.tree, self.leaves = Tree(), list[tuple[str, int]]()

    async def write(self, run: str, many: int = 1) -> None:
        if run not in self.chains:
            self.chains[run] = Chain(run, log_opened() if run == LOG else opened(f"n-{run}"))
            self.heads[run] = None
            made = raws(self.chains[run].genesis())
        else:
            made = []
        made += raws(self.chains[run].seal([turn()] * (many - len(made)))) if many > len(made) else []
        self.heads[run] = await self.ledger.append(run, self.heads[run], made)
        first = len([1 for name, _ in self.leaves if name == run])
        self.leaves += [(run, first + i) for i in range(len(made))]
        self.tree.extend([leaf_hash(raw) for raw in made])

    async def some(self, rng: random.Random, appends: int, runs: int = 7) -> None:
        for _ in range(appends):
            await self.write(f"01RUN{rng.randrange(runs):021d}", rng.randint(1, 4))


class Stand:
    """One ledger, one store, one key. `process()` is another process on them."""

    def __init__(self, ledger: Any = None, store: Any = None, signer: FileSigner | None = None) -> None:
        self.ledger = ledger or MemoryLedger()
        self.store = store if store is not None else MemoryStore()
        self.signer = signer or key()
        self.writer = Writer(self.ledger)
        self.spans: Spans | None = None
        self.trust = Trust.parse(f"log {self.signer.vkey}\nquorum none\n")
        self.now = 1_700_000_000_000_000

    def tick(self) -> int:
        self.now += 1_000
        return self.now

    def sequencer(self, *, ledger: Any = None, store: Any = None, spans: Any = None) -> Sequencer:
        reader = Reader(store or self.store, ORIGIN)
        return Sequencer(ledger or self.ledger, reader, spans or Spans.open(None), self.signer.key, self.signer.sign, self.tick)

    def process(self, **more: Any) -> TenantLog:
        told = {"store": self.store, "ledger": self.ledger, "spans": None} | more
        ledger, store, spans = (told.pop(name) for name in ("ledger", "store", "spans"))
        return TenantLog(ledger, store, spans or Spans.open(None), self.signer, lambda: self.trust, self.tick, **told)


class CutStore:
    """A store on a power switch: the process is gone before a write, or after it before anybody hears of it. Reading goes on."""

    def __init__(self, inner: MemoryStore, power: Power) -> None:
        self.inner, self.power = inner, power
        self.signed: list[tuple[int, bytes]] = []  # whatever left the key, also what was never stored

    async def get(self, path: str) -> bytes | None:
        return await self.inner.get(path)

    def list(self, prefix: str = "") -> AsyncIterator[str]:
        return self.inner.list(prefix)

    async def put_new(self, path: str, raw: bytes) -> bool:
        self.power.place(f"before {path}")
        done = await self.inner.put_new(path, raw)
        self.power.place(f"after {path}")
        return done

    async def put(self, path: str, raw: bytes) -> None:
        self.power.place(f"before {path}")
        await self.inner.put(path, raw)
        self.power.place(f"after {path}")

    async def delete(self, path: str) -> None:
        self.power.place(f"before {path}")
        await self.inner.delete(path)
        self.power.place(f"after {path}")

    async def close(self) -> None:
        return None


class Notary:
    """Wraps the log's key: keeps every checkpoint that was ever signed, stored or not. No two of one size may differ."""

    def __init__(self, stand: Stand) -> None:
        self.roots: dict[int, bytes] = {}
        inner = stand.signer.sign

        def sign(message: bytes) -> bytes:
            point = parse_checkpoint(message.decode())
            assert self.roots.setdefault(point.size, point.root) == point.root, "two roots of one size were signed"
            return inner(message)

        stand.signer.sign = sign  # type: ignore[method-assign]
