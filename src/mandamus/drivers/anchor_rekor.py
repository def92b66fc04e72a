"""Port `Witness`, by a public log: `rekor+https://HOST[:PORT][/PREFIX][?residency=eu&timeout=30]#VKEY` (Rekor v2, hashedrekord 0.0.2)

    anchor = RekorAnchor.open("rekor+https://log2026-1.rekor.example?residency=eu#log2026-1.rekor.example+3f9a1c02+AQ…")
    proof = await anchor.add(origin, 0, (), note)      # a tlog-proof: one more proof line of a bundle; trust line: anchor NAME VKEY

What leaves the house is the SHA-256 of a checkpoint's three lines, never a record, a root or a name. VKEY is the public log's own Ed25519
key. The rule a newcomer would break: the entry that comes back is compared with what was sent, and its place is proven, before it is
believed; and the key that signs the request is thrown away, since the log demands a signature that says nothing here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mandamus.drivers._signed_http import Place, Remote
from mandamus.errors import ProofError, Refused
from mandamus.proof.keys import ED25519, VKey, b64, unb64
from mandamus.proof.note import parse_checkpoint, parse_note, seen
from mandamus.proof.tlogproof import parse, write
from mandamus.proof.tree import leaf_hash, verify_inclusion
from mandamus.proof.witnessed import is_entry_over

PATH = "/api/v2/log/entries"
TIMEOUT_S = 30.0  # it answers when a checkpoint over the new entry is published


class _Envelope(Struct):
    envelope: str


class _Inclusion(Struct):
    checkpoint: _Envelope
    hashes: list[str] = []


class _Entry(Struct, rename="camel"):
    """What is read of a TransparencyLogEntry. Its tree size, root and times are unsigned copies, so they are not even read."""

    canonicalized_body: str
    inclusion_proof: _Inclusion
    log_index: str | int = 0


class RekorAnchor(Remote):
    """Implements `ports.Witness`. `anchors`: its answer is a proof of inclusion, which counts for no quorum."""

    anchors = True

    @classmethod
    def open(cls, uri: str) -> RekorAnchor:
        """Raises Misuse."""
        return cls(Place.parse(uri, "rekor", (ED25519,), TIMEOUT_S))

    async def add(self, origin: str, old: int, proof: Sequence[bytes], note: bytes) -> bytes:
        """The tlog-proof of our checkpoint's entry. Raises Refused, ProofError, Unavailable."""
        text = parse_note(note).text.encode()
        status, _, body = await self._post(PATH, _request(text), "application/json")
        if status == 429 or status >= 500:
            raise self._silent(f"HTTP {status}")
        if status not in (200, 201):
            raise Refused(
                f"the public log {self.name} does not take the checkpoint", code="MDM-0953", where=self.place.base, found=f"HTTP {status}",
                fix="its address must be that of a Rekor v2 log which takes hashedrekord entries",
            )  # fmt: skip
        return self._checked(body, text)

    def _checked(self, body: bytes, text: bytes) -> bytes:
        try:
            entry = msgspec.json.decode(body, type=_Entry)
            index = int(entry.log_index)
            path = [unb64(h) for h in entry.inclusion_proof.hashes]
            raw = write(index, path, entry.inclusion_proof.checkpoint.envelope.encode(), unb64(entry.canonicalized_body))
        except (msgspec.MsgspecError, ValueError) as error:
            raise self._no(f"its answer is no log entry ({type(error).__name__})") from None
        verify(raw, self.key, text)
        return raw

    def _no(self, what: str) -> ProofError:
        return _no(what, self.name)


def verify(raw: bytes, key: VKey, text: bytes) -> None:
    """That the tlog-proof `raw` shows an entry over our checkpoint `text` in the log of `key`. Raises ProofError."""
    proof = parse(raw)
    note = parse_note(proof.note)
    head = parse_checkpoint(note.text)
    if head.origin != key.name or not seen(note, [key]):
        raise _no("its key did not sign the checkpoint above the entry", head.origin)
    if not is_entry_over(proof.extra, text):
        raise _no("the entry is about something else than our checkpoint", head.origin)
    if not verify_inclusion(leaf_hash(proof.extra), proof.index, head.size, proof.path, head.root):
        raise _no("the entry is not where it is said to be", f"{head.origin}, entry {proof.index}")


def _request(text: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    once = ec.generate_private_key(ec.SECP256R1())
    public = once.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    verifier: dict[str, Any] = {"keyDetails": "PKIX_ECDSA_P256_SHA_256", "publicKey": {"rawBytes": b64(public)}}
    signature = {"content": b64(once.sign(text, ec.ECDSA(SHA256()))), "verifier": verifier}
    return msgspec.json.encode({"hashedRekordRequestV002": {"digest": b64(hashlib.sha256(text).digest()), "signature": signature}})


def _no(what: str, where: str) -> ProofError:
    return ProofError(f"the public anchor proves nothing: {what}", code="MDM-0956", where=where)
