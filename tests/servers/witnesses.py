"""Real witnesses for tests: keys, a small log that signs, and the witness server in this process on a free port."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mandamus.drivers.sign_file import FileSigner
from mandamus.drivers.witness_http import HttpWitness
from mandamus.proof.keys import COSIGNER, ED25519, vkey
from mandamus.proof.note import Checkpoint, sign_line, write
from mandamus.proof.tree import Tree, leaf_hash
from mandamus.proof.trust import Trust
from mandamus.proof.witnessing import logs_of
from mandamus.server.http import Limits, Server, serve
from mandamus.server.memory import Memory
from mandamus.server.witness import LIMITS, Witness

ORIGIN = "log.example/tenant-a"


def key(name: str, kind: int = ED25519) -> FileSigner:
    private = Ed25519PrivateKey.generate()
    return FileSigner(private, vkey(name, private.public_key().public_bytes_raw(), kind))


class Log:
    """A log in memory that signs its heads. `History` of `runtime.witnesses`."""

    def __init__(self, origin: str = ORIGIN, signer: FileSigner | None = None, leaves: str = "record") -> None:
        self.signer, self.tree, self.leaves = signer or key(origin), Tree(), leaves
        self.origin = origin

    def grow(self, size: int) -> Log:
        self.tree.extend([leaf_hash(f"{self.leaves} {n}".encode()) for n in range(self.tree.size, size)])
        return self

    def note(self, size: int | None = None) -> bytes:
        size = self.tree.size if size is None else size
        text = Checkpoint(self.origin, size, self.tree.root(size)).text
        return write(text, [sign_line(text, self.signer.key, self.signer.sign)])

    async def size(self) -> int:
        return self.tree.size

    async def consistency(self, old: int, new: int) -> Sequence[bytes]:
        return self.tree.consistency(old, new)


class Standing:
    """One witness that answers."""

    def __init__(self, server: Server, core: Witness, path: Path) -> None:
        self.server, self.core, self.path = server, core, path

    @property
    def uri(self) -> str:
        return f"witness+http://127.0.0.1:{self.server.port}#{self.core.key}"

    def client(self, now: Callable[[], int] | None = None) -> HttpWitness:
        one = HttpWitness.open(self.uri)
        return HttpWitness(one.place, now) if now else one


@asynccontextmanager
async def standing(
    folder: Path,
    *logs: FileSigner,
    name: str = "w1.example",
    now: Callable[[], int] | None = None,
    limits: Limits = LIMITS,
    signer: FileSigner | None = None,
) -> AsyncIterator[Standing]:
    signer = signer or key(name, COSIGNER)
    path = folder / f"{signer.key.name}.db"
    core = Witness(signer, Memory.open(path, signer.vkey, new=True), logs_of([log.vkey for log in logs]), now=now)
    server = await serve(core.answer, "127.0.0.1", 0, limits)
    try:
        yield Standing(server, core, path)
    finally:
        await server.close()
        core.close()


def trust(log: Log, *witnesses: Standing, quorum: int | None = None) -> Trust:
    lines = [f"log {log.signer.vkey}", *(f"witness {w.core.key.name} {w.core.key}" for w in witnesses)]
    names = " ".join(w.core.key.name for w in witnesses)
    group = [f"group q {quorum} {names}", "quorum q"] if quorum else ["quorum none"]
    return Trust.parse("\n".join([*lines, *group]) + "\n")


def clock() -> int:
    return int(time.time())


def key_file(path: Path, name: str, kind: int = COSIGNER) -> FileSigner:
    """A key file of this kind, as `mandamus key new --kind` writes one."""
    return FileSigner.create(path, name, kind=kind)
