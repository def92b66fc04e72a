"""A witness of checkpoints over HTTP (C2SP tlog-witness): POST /add-checkpoint; GET / says who it is and what it has seen.

    memory = Memory.open("witness.db", signer.vkey)
    witness = Witness(signer, memory, logs_of([log_vkey]))
    server = await serve(witness.answer, "127.0.0.1", 7380, LIMITS)

The rule a newcomer would break: the cosignature is made after `Memory.take` has returned, never before or beside it, and an error of
the memory is a 500 without a signature.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mandamus.errors import EngineFault, Misuse
from mandamus.ports import Signer
from mandamus.proof.keys import COSIGNER, COSIGNERS, ED25519, VKey, b64, parse_vkey
from mandamus.proof.note import cosign_line
from mandamus.proof.witnessing import ANOTHER_SIZE, GOOD, REQUEST_BYTES_MAX, SAYS, SIZE_TYPE, Logs, Turned, read_request
from mandamus.server.http import Limits, Reply
from mandamus.server.memory import Memory

LIMITS = Limits(body_bytes=REQUEST_BYTES_MAX)
PATH = "/add-checkpoint"
Tell = Callable[[dict[str, Any]], None]


def cosigner(signer: Signer) -> VKey:
    """The key of a witness. Raises Misuse for one of another role: its signatures would mean something else."""
    key = parse_vkey(signer.vkey)
    if key.kind not in COSIGNERS:
        raise Misuse(
            "this is no cosigner's key", code="MDM-0946", where=key.name, expected="0x04 or 0x06", found=f"0x{key.kind:02x}",
            why="a key that signs logs or bundles must not cosign them", fix="mandamus key new FILE --name NAME --kind cosigner",
        )  # fmt: skip
    return key


class Cosigner:
    """A key of a token as a witness's key: a token keeps no word of what its keys are for, so whoever names it here says so."""

    def __init__(self, signer: Signer) -> None:
        key = parse_vkey(signer.vkey)
        self.vkey = str(VKey(key.name, COSIGNER, key.public)) if key.kind == ED25519 else signer.vkey
        self.sign = signer.sign


class Witness:
    """`answer` for the HTTP server. `tell` hears of each request what came of it: origin, sizes, status; never a body."""

    def __init__(
        self, signer: Signer, memory: Memory, logs: Logs, *, now: Callable[[], int] | None = None, tell: Tell | None = None
    ) -> None:
        self.key, self._sign = cosigner(signer), signer.sign
        self._memory, self.logs = memory, logs
        self._now = now or (lambda: int(time.time()))
        self._tell = tell or (lambda said: None)
        self._writer = ThreadPoolExecutor(1, "witness")  # one flush at a time; sockets are served meanwhile

    async def answer(self, method: str, path: str, body: bytes) -> Reply:
        if path == PATH:
            return await self._add(body) if method == "POST" else Reply(405, b"POST it\n")
        if path == "/" and method in ("GET", "HEAD"):
            return Reply(200, self._page().encode() if method == "GET" else b"")
        return Reply(404, b"no such page\n")

    def close(self) -> None:
        """Waits for what is being written."""
        self._writer.shutdown()
        self._memory.close()

    async def _add(self, body: bytes) -> Reply:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._writer, self._added, body)
        except EngineFault as fault:
            self._tell({"event": "fault", "code": fault.diagnosis.code, "what": fault.diagnosis.what, "found": fault.diagnosis.found})
            return Reply(500, b"nothing was cosigned\n")

    def _added(self, body: bytes) -> Reply:
        asked = read_request(body, self.logs)
        if isinstance(asked, Turned):
            self._tell({"event": "turned", "status": asked.status, "why": asked.why})
            return Reply(asked.status, SAYS[asked.status].encode())
        at = self._now()
        status, known = self._memory.take(asked, at)
        said = {"event": "asked", "origin": asked.checkpoint.origin, "old": asked.old, "size": asked.checkpoint.size, "status": status}
        self._tell({**said, "known": known.size if known else 0})
        if status == ANOTHER_SIZE:
            return Reply(status, f"{known.size if known else 0}\n".encode(), SIZE_TYPE)
        if status != GOOD:
            return Reply(status, SAYS[status].encode())
        return Reply(GOOD, cosign_line(asked.checkpoint.text, self.key, self._sign, at).encode())

    def _page(self) -> str:
        rows = [f"{row.checkpoint.origin}\n  size {row.checkpoint.size}, root {b64(row.checkpoint.root)}\n" for row in self._memory.rows()]
        return f"witness {self.key}\n\n" + "".join(rows)
