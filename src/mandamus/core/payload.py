"""Payloads and their salted commitments (docs/concepts/record-format.md).

A payload is 32 random bytes S and the JCS bytes of a value. `commit` names it in a record: it cannot be guessed without S, so
forgetting S forgets the value, while every proof holds.
"""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec import Struct

from mandamus.core import fields
from mandamus.core.canonical import accept, canon, digest
from mandamus.errors import EngineFault, Erased, MandamusError, ProofError

SALT = 32
INLINE_MAX = 256 * 1024  # larger ones are blobs, durable before the record
_WHOLE = (2**32 - 1).to_bytes(4, "big")
_CARD = (2**32 - 2).to_bytes(4, "big")
_salt_domain = b"mandamus/v1/salt\0"
_payload_domain = b"mandamus/v1/payload\0"
_sha256 = hashlib.sha256


class Payload(Struct, frozen=True, gc=False):
    """One body part's content as a ledger keeps it: keyed by (run, seq, part).

    `form`: "plain" = S and the value; "sealed" = nonce, then AES-256-GCM of them; "erased" = nothing, its key was destroyed.
    """

    run: str
    seq: int
    part: str
    bytes: bytes
    form: str = "plain"


def commit(secret: bytes, value: bytes) -> str:
    """Hex commitment of canonical `value` bytes under S = `secret` (32 bytes). Raises ValueError on another length."""
    if len(secret) != SALT:
        raise ValueError("S is 32 bytes")
    return commit_whole(secret, value)


def commit_whole(secret: bytes, value: bytes) -> str:
    """The same, for callers who have seen that S is all there."""
    salt = _sha256(_salt_domain + secret + _WHOLE).digest()[:16]
    return _sha256(_payload_domain + salt + value).hexdigest()


def holds(secret: bytes, value: bytes, commitment: str) -> bool:
    """Whether `commitment` is that of these bytes, whole or member by member (core/fields.py): no bytes have both."""
    if len(secret) != SALT:
        return False
    return commit_whole(secret, value) == commitment or _by_fields(secret, value) == commitment


def _by_fields(secret: bytes, value: bytes) -> str:
    try:
        return fields.commit(secret, accept(value))
    except ValueError:
        return ""


def card_digest(secret: bytes, card: dict[str, Any]) -> str:
    """Digest of an approval card, salted by the S of the arguments' payload; `votes` stay outside (docs/concepts/ballot-format.md)."""
    salt = hashlib.sha256(_salt_domain + secret + _CARD).digest()[:16]
    return digest("card", salt, canon({k: v for k, v in card.items() if k != "votes"}))


def opened(payload: Payload, commitment: str) -> Any:
    """The value, after its commitment was recomputed. Raises ProofError when it is another one: nothing may use it then; Erased when it
    was forgotten, EngineFault when its key is not at hand."""
    if payload.form != "plain":
        raise not_open(payload)
    secret, value = payload.bytes[:SALT], payload.bytes[SALT:]
    if not holds(secret, value, commitment):
        raise ProofError(
            f"payload {payload.part!r} of event {payload.seq} is not the one its record commits to",
            code="MDM-0610",
            where=f"run {payload.run} (event {payload.seq})",
            expected=commitment[:12],
            why="somebody changed it beside the log; nothing is done with it",
        )
    try:
        return accept(value)
    except ValueError as error:
        raise ProofError(f"payload {payload.part!r} of event {payload.seq}: {error}", code="MDM-0610") from None


def not_open(payload: Payload) -> MandamusError:
    """Why nothing can be read of it. An erased one is neither changed nor lost: somebody had the right to have it forgotten."""
    what, where = f"payload {payload.part!r} of event {payload.seq}", f"run {payload.run} (event {payload.seq})"
    if payload.form == "erased":
        return Erased(
            f"{what} was erased", code="MDM-0960", where=where, why="its key was destroyed; the record and its proof stand",
            fix="mandamus log query --type Erased tells on which ground; what rests on it cannot go on",
        )  # fmt: skip
    return EngineFault(
        f"{what} is sealed, and its key is not in use here", code="MDM-0969", where=where,
        why="the key store that is named holds no such key, or an erasure has taken it out of use",
        fix="name the key store that this ledger was written with: MANDAMUS_KEYS=sqlite:///FILE",
    )  # fmt: skip
