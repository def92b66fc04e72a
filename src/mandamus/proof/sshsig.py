"""SSHSIG (OpenSSH, PROTOCOL.sshsig): what `ssh-keygen -Y sign` and an ssh-agent make, so that people can vote with the key they have.

    blob   "SSHSIG" · version 1 · public key · namespace · "" · "sha512" · signature         each behind its length
    signed "SSHSIG" · namespace · "" · "sha512" · SHA-512(message)
The rule a newcomer would break: the key inside the blob is a hint, as everywhere. Who may sign is said by the trust file; the whole blob
must be the one that this key and this signature make, byte for byte, so that nothing in it can change unnoticed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from mandamus.proof.keys import VKey, verify_raw

NAMESPACE = "mandamus-approval"  # a signature made for another purpose (a commit, a login) is no vote
_MAGIC = b"SSHSIG"
_HASH = b"sha512"
_KIND = b"ssh-ed25519"
_BEGIN, _END = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"


def _text(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "big") + raw


def signed(message: bytes, namespace: str = NAMESPACE) -> bytes:
    """The bytes that the key signs."""
    return _MAGIC + _text(namespace.encode()) + _text(b"") + _text(_HASH) + _text(hashlib.sha512(message).digest())


def blob(public: bytes, signature: bytes, namespace: str = NAMESPACE) -> bytes:
    """The blob of an Ed25519 key (32 bytes) and its signature (64 bytes)."""
    return _head(public, namespace) + _text(_text(_KIND) + _text(signature))


def _head(public: bytes, namespace: str) -> bytes:
    key = _text(_KIND) + _text(public)
    return _MAGIC + (1).to_bytes(4, "big") + _text(key) + _text(namespace.encode()) + _text(b"") + _text(_HASH)


def is_one(signature: bytes) -> bool:
    """Whether it claims to be such a blob. A plain Ed25519 signature has 64 bytes, and none of these."""
    return len(signature) != 64 and signature.startswith(_MAGIC)


def verify(key: VKey, message: bytes, given: bytes, namespace: str = NAMESPACE) -> bool:
    """True only for the blob of this very key, over this message, for this purpose. Never raises."""
    raw = given[-64:]
    return given == blob(key.public, raw, namespace) and verify_raw(key.public, signed(message, namespace), raw)


def dearmoured(text: str) -> bytes:
    """The blob of what `ssh-keygen` prints. Raises ValueError."""
    head, _, rest = text.strip().partition("\n")
    body, _, tail = rest.rpartition("\n")
    if head != _BEGIN or tail != _END:
        raise ValueError("not an SSH signature")
    try:
        return base64.b64decode(body.replace("\n", ""), validate=True)
    except binascii.Error:
        raise ValueError("not an SSH signature: its base64 is broken") from None


def public_key(line: str) -> tuple[bytes, str]:
    """(32 bytes, comment) of a line `ssh-ed25519 BASE64 COMMENT`. Raises ValueError that says which kind of key it is instead."""
    kind, _, rest = line.strip().partition(" ")
    encoded, _, comment = rest.partition(" ")
    if kind != _KIND.decode():
        why = "a security key signs more than the message" if kind.startswith("sk-") else "only ssh-ed25519 keys can vote"
        raise ValueError(f"{kind[:40] or 'nothing'}: {why}")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise ValueError("its base64 is broken") from None
    if raw[:-32] != _text(_KIND) + (32).to_bytes(4, "big") or len(raw) < 32:
        raise ValueError("it holds no Ed25519 key")
    return raw[-32:], comment
