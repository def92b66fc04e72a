"""DSSE envelopes, strict: canonical JSON, standard base64, every signature by a key that was given, each key once.

The rule a newcomer would break: bytes are verified first and parsed afterwards, and `keyid` never decides which key is used. It must
equal the id of the key that verified, so that no byte of an envelope can change unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from mandamus.core.canonical import accept, canon
from mandamus.errors import ProofError
from mandamus.proof import sshsig
from mandamus.proof.keys import ED25519, VKey, b64, unb64, verify

SIGNATURES_MAX = 32
ENVELOPE_BYTES_MAX = 1 << 20
Sign = Callable[[bytes], bytes]


class Envelope(Struct, frozen=True):
    """As parsed, not as believed."""

    payload_type: str
    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]  # (keyid, signature)


class Verified(Struct, frozen=True):
    """`payload` may be parsed now; `keys` signed it, each once, in the envelope's order."""

    payload: bytes
    keys: tuple[VKey, ...]


def pae(payload_type: str, payload: bytes) -> bytes:
    """Pre-authentication encoding: lengths stand before what they count, so nothing can move across the boundary."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def sign(payload_type: str, payload: bytes, signers: Sequence[tuple[str, Sign]]) -> bytes:
    """Envelope bytes. `signers` are (keyid, sign) pairs; the keyid is the id of the vkey."""
    message = pae(payload_type, payload)
    signatures = [{"keyid": keyid, "sig": b64(signer(message))} for keyid, signer in signers]
    return canon({"payload": b64(payload), "payloadType": payload_type, "signatures": signatures})


def read(raw: bytes) -> Envelope:
    """The parts of an envelope. Raises ProofError when it is not exactly in the one form."""
    if len(raw) > ENVELOPE_BYTES_MAX:
        raise _malformed(f"it has {len(raw)} bytes")
    try:
        value = accept(raw)
        return _shape(value)
    except (ValueError, TypeError, KeyError) as error:
        raise _malformed(str(error)) from None


def _shape(value: Any) -> Envelope:
    if type(value) is not dict or set(value) != {"payload", "payloadType", "signatures"}:
        raise ValueError("its fields are not payload, payloadType and signatures")
    signatures = value["signatures"]
    if type(value["payload"]) is not str or type(value["payloadType"]) is not str or type(signatures) is not list:
        raise ValueError("a field has another type")
    if not 1 <= len(signatures) <= SIGNATURES_MAX:
        raise ValueError(f"it has {len(signatures)} signatures, not 1 to {SIGNATURES_MAX}")
    return Envelope(value["payloadType"], unb64(value["payload"]), tuple(_signature(s) for s in signatures))


def _signature(value: Any) -> tuple[str, bytes]:
    if type(value) is not dict or set(value) != {"keyid", "sig"} or type(value["keyid"]) is not str or type(value["sig"]) is not str:
        raise ValueError("a signature is not {keyid, sig}")
    return value["keyid"], unb64(value["sig"])


def check(raw: bytes, payload_type: str, keys: Sequence[VKey], threshold: int = 1, *, ssh: bool = False) -> Verified:
    """The payload, once `threshold` different keys of `keys` have signed it and no signature is anybody else's. Raises ProofError.

    `ssh`: a signature may also be one that `ssh-keygen -Y sign` made (proof/sshsig.py), as people's are.
    """
    envelope = read(raw)
    if envelope.payload_type != payload_type:
        raise ProofError("the envelope is of another type", code="MDM-0622", expected=payload_type, found=envelope.payload_type[:80])
    message = pae(envelope.payload_type, envelope.payload)
    signed = tuple(_who(keyid, signature, message, keys, ssh) for keyid, signature in envelope.signatures)
    distinct = len({key.public for key in signed})
    if distinct != len(signed):
        raise ProofError("one key signed twice", code="MDM-0623", why="a key counts once, whatever it calls itself")
    if threshold < 1 or distinct < threshold:
        raise ProofError("too few signatures", code="MDM-0624", expected=f"{threshold} different keys", found=str(distinct))
    return Verified(envelope.payload, signed)


def _who(keyid: str, signature: bytes, message: bytes, keys: Sequence[VKey], ssh: bool) -> VKey:
    by_ssh = ssh and sshsig.is_one(signature)
    for key in keys:
        if key.id == keyid and (sshsig.verify if by_ssh and key.kind == ED25519 else verify)(key, message, signature):
            return key
    known = any(key.id == keyid for key in keys)
    raise ProofError(
        "a signature does not hold" if known else "a signature is by a key that is not trusted for this",
        code="MDM-0621" if known else "MDM-0625",
        expected="a signature by " + (", ".join(f"{key.name}+{key.id}" for key in keys[:4]) or "a key of the trust file"),
        found=f"keyid {keyid[:16]!r}",
    )


def _malformed(why: str) -> ProofError:
    return ProofError(f"this is no canonical DSSE envelope: {why}", code="MDM-0620")
