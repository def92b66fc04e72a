"""A public log of Rekor v2's shape, on a free port: hashedrekord 0.0.2 entries, a tree, signed checkpoints (after sigstore/rekor-tiles).

As the real one it checks the digest's signature before it takes an entry, and answers with the entry, its place and a checkpoint.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_der_public_key

from mandamus.core.canonical import canon
from mandamus.drivers.anchor_rekor import RekorAnchor
from mandamus.proof.note import Checkpoint, sign_line, write
from mandamus.proof.tree import Tree, leaf_hash
from mandamus.server.http import Reply, Server, serve
from tests.servers.witnesses import key

ORIGIN = "log2026.rekor.example"
Twist = Callable[[dict[str, Any]], Any]


class Rekor:
    """`twist` changes an answer before it is sent: a public log that lies."""

    def __init__(self) -> None:
        self.signer, self.tree, self.entries = key(ORIGIN), Tree(), list[bytes]()
        self.twist: Twist = lambda answer: answer
        self.status = 201
        for n in range(300):  # entries of other people
            self._append(canon({"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": {"n": n}}))
        self.server: Server | None = None

    def _append(self, entry: bytes) -> int:
        self.entries.append(entry)
        self.tree.extend([leaf_hash(entry)])
        return len(self.entries) - 1

    async def answer(self, method: str, path: str, body: bytes) -> Reply:
        if (method, path) != ("POST", "/api/v2/log/entries"):
            return Reply(404)
        if self.status != 201:
            return Reply(self.status, b'{"code": 13}', "application/json")
        asked = json.loads(body)["hashedRekordRequestV002"]
        if not signed(asked):
            return Reply(400, b'{"code": 3, "message": "invalid signature"}', "application/json")
        data = {"algorithm": "SHA2_256", "digest": asked["digest"]}
        spec = {"hashedRekordV002": {"data": data, "signature": asked["signature"]}}
        entry = canon({"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": spec})
        index = self._append(entry)
        self._append(b'{"somebody":"else"}')
        return Reply(201, json.dumps(self.twist(self.told(index))).encode(), "application/json")

    def told(self, index: int) -> dict[str, Any]:
        text = Checkpoint(ORIGIN, self.tree.size, self.tree.root()).text
        note = write(text, [sign_line(text, self.signer.key, self.signer.sign)]).decode()
        return {
            "logIndex": str(index), "logId": {"keyId": "AAAA"}, "kindVersion": {"kind": "hashedrekord", "version": "0.0.2"},
            "integratedTime": "0", "inclusionPromise": None,
            "inclusionProof": {
                "logIndex": str(index), "rootHash": "AAAA", "treeSize": str(self.tree.size),
                "hashes": [base64.b64encode(h).decode() for h in self.tree.inclusion(index)], "checkpoint": {"envelope": note},
            },
            "canonicalizedBody": base64.b64encode(self.entries[index]).decode(),
        }  # fmt: skip

    def client(self, options: str = "?residency=eu") -> RekorAnchor:
        assert self.server is not None
        return RekorAnchor.open(f"rekor+http://127.0.0.1:{self.server.port}{options}#{self.signer.vkey}")


def signed(asked: dict[str, Any]) -> bool:
    verifier = asked["signature"]["verifier"]
    public = load_der_public_key(base64.b64decode(verifier["publicKey"]["rawBytes"]))
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert verifier["keyDetails"] == "PKIX_ECDSA_P256_SHA_256"
    try:
        prehashed = ec.ECDSA(utils.Prehashed(SHA256()))
        public.verify(base64.b64decode(asked["signature"]["content"]), base64.b64decode(asked["digest"]), prehashed)
    except InvalidSignature:
        return False
    return True


@asynccontextmanager
async def rekor() -> AsyncIterator[Rekor]:
    one = Rekor()
    one.server = await serve(one.answer, "127.0.0.1", 0)
    try:
        yield one
    finally:
        await one.server.close()
