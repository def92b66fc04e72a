"""Public keys as one line of text, `name+id+base64(type || key)` (C2SP signed-note), and the only place where signatures are checked.

The rule a newcomer would break: a library's `verify` alone is not enough. Verifiers disagree on keys and R values of small order or
with a non-canonical y, and a small-order key verifies anything. So both are guarded here, at parsing and at every verification.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from mandamus.errors import Misuse

ED25519, P256, COSIGNER = 0x01, 0x02, 0x04  # C2SP: signature, ECDSA signature, cosignature with a time
COSIGNER_PQ = 0x06  # a cosignature by ML-DSA-44, which holds against a quantum computer
COSIGNERS = (COSIGNER, COSIGNER_PQ)
ML_DSA_KEY, ML_DSA_SIGNATURE = 1312, 2420
_P = 2**255 - 19
_Y = (1 << 255) - 1
_name = re.compile(r"[!-*,-~]{1,200}")  # printable ASCII without space and "+": look-alike letters have no place in a key's name

# The y of the eight points of small order. With canonical y this set is complete: RFC 8032 encodes a point by y and the sign of x.
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER = frozenset((0, 1, _P - 1, _ORDER_8, _P - _ORDER_8))


class VKey(Struct, frozen=True):
    """A verification key: who (`name`), how (`kind`, bound to the key and never read from a header) and its bytes: 32 of an Ed25519 key,
    65 (0x04, x, y) of a P-256 one, 1,312 of an ML-DSA-44 one."""

    name: str
    kind: int
    public: bytes

    @property
    def id(self) -> str:
        """Eight hex digits: SHA-256(name || LF || kind || key), first four bytes. A hint for people, never an identity."""
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public).hexdigest()[:8]

    def __str__(self) -> str:
        return f"{self.name}+{self.id}+{b64(bytes([self.kind]) + self.public)}"


def named(line: str) -> str:
    """`name+id` of a public line, as people are shown it."""
    return "+".join(line.split("+", 2)[:2])


def vkey(name: str, public: bytes, kind: int = ED25519) -> VKey:
    """The key of this name. Raises Misuse when the name or the key cannot be one."""
    if not _name.fullmatch(name):
        raise _bad("its name is not 1 to 200 printable ASCII characters without space and +", "choose another name")
    if kind not in (ED25519, P256, *COSIGNERS):
        raise _bad(f"signature type 0x{kind:02x} is not known", "use an Ed25519 key")
    if kind == P256 and _p256_checker(public) is None:
        raise _bad("it is not a point of the curve P-256, uncompressed", "copy the whole line again")
    if kind == COSIGNER_PQ and _ml_dsa_checker(public) is None:
        raise _bad(
            "it is no ML-DSA-44 key, or the cryptography library here knows none", "upgrade cryptography, or use an Ed25519 cosigner"
        )
    if kind in (ED25519, COSIGNER) and not point_ok(public):
        raise _bad("it is not a strong Ed25519 key", "make a new key; nobody may trust this one")
    return VKey(name, kind, public)


def parse_vkey(text: str) -> VKey:
    """`parse_vkey("name+3f9a1c02+AbC…=")`. Raises Misuse, which says what is wrong with it."""
    name, _, rest = text.partition("+")
    key_id, _, encoded = rest.partition("+")
    if not (name and key_id and encoded):
        raise _bad("it is not name+id+key", "copy the whole line that `mandamus key` printed")
    try:
        raw = unb64(encoded)
    except ValueError as error:
        raise _bad(str(error), "copy the whole line that `mandamus key` printed") from None
    key = vkey(name, raw[1:], raw[0] if raw else 0)
    if key.id != key_id:
        raise _bad(
            "its id does not belong to the key", "copy the whole line again; a character is wrong", expected=key.id, found=key_id[:16]
        )
    return key


def _bad(what: str, fix: str, expected: str = "", found: str = "") -> Misuse:
    return Misuse(f"this is not a usable key: {what}", code="MDM-0180", expected=expected, found=found, fix=fix)


def point_ok(encoded: bytes) -> bool:
    """The guard: 32 bytes, canonical y, not of small order. That it lies on the curve is checked by the library or the equation."""
    if len(encoded) != 32:
        return False
    y = int.from_bytes(encoded, "little") & _Y
    return y < _P and y not in _SMALL_ORDER


def verify(key: VKey, message: bytes, signature: bytes) -> bool:
    """True only for a signature on which strict verifiers agree. Never raises. A P-256 signature is r and s, 32 bytes each, over SHA-256;
    (r, n - s) verifies too, so a signature is never an identity."""
    if key.kind == P256:
        check = _p256_checker(key.public)
        return len(signature) == 64 and check is not None and check(signature, message)
    if key.kind == COSIGNER_PQ:
        check = _ml_dsa_checker(key.public)
        return len(signature) == ML_DSA_SIGNATURE and check is not None and check(signature, message)
    return verify_raw(key.public, message, signature)


def verify_raw(public: bytes, message: bytes, signature: bytes) -> bool:
    if len(signature) != 64 or not point_ok(signature[:32]):
        return False
    check = _checker(public)
    return check is not None and check(signature, message)


def _holds(verify: Callable[[bytes, bytes], None], signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature  # heavy; most programs that import this module verify nothing

    try:
        verify(signature, message)
    except InvalidSignature:
        return False
    return True


@functools.lru_cache(maxsize=512)
def _checker(public: bytes) -> Callable[[bytes, bytes], bool] | None:
    """None for a key that the guard or the library refuses."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not point_ok(public):
        return None
    try:
        loaded: Any = Ed25519PublicKey.from_public_bytes(public)
    except ValueError:
        return None

    return functools.partial(_holds, loaded.verify)


@functools.lru_cache(maxsize=64)
def _p256_checker(public: bytes) -> Callable[[bytes, bytes], bool] | None:
    """None for bytes that are no point of the curve."""
    from cryptography.hazmat.primitives.asymmetric import ec, utils
    from cryptography.hazmat.primitives.hashes import SHA256

    if len(public) != 65 or public[0] != 4:
        return None
    try:
        loaded = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public)
    except ValueError:
        return None

    def der(signature: bytes, message: bytes) -> None:
        r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
        loaded.verify(utils.encode_dss_signature(r, s), message, ec.ECDSA(SHA256()))

    return functools.partial(_holds, der)


@functools.lru_cache(maxsize=64)
def _ml_dsa_checker(public: bytes) -> Callable[[bytes, bytes], bool] | None:
    """None for bytes that are no key, and where the library is too old or was built without it."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

        loaded: Any = MLDSA44PublicKey.from_public_bytes(public)
    except (ImportError, ValueError, UnsupportedAlgorithm):
        return None

    return functools.partial(_holds, loaded.verify)


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def unb64(text: str) -> bytes:
    """Strict: standard alphabet, padded, zero trailing bits. Raises ValueError."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not standard base64") from None
    if b64(raw) != text:
        raise ValueError("base64 with dirty trailing bits")
    return raw
