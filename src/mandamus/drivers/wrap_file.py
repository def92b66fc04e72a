"""Port `Wrap`, by a key-encryption key in a file: 32 random bytes as 64 hex digits, mode 0600. `MANDAMUS_KEK=kek.hex`

    wrap = FileWrap.open("kek.hex")
    SqliteKeys("keystore.db", wrap)

The rule a newcomer would break: the file is kept elsewhere than the key store, and in no backup beside it; else it wraps nothing.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mandamus.errors import Misuse, ProofError

NONCE = 12


class FileWrap:
    """Implements `ports.Wrap`: nonce, then AES-256-GCM of the key with `about` as associated data."""

    def __init__(self, key: bytes) -> None:
        self._box = AESGCM(key)
        self._name = "file:" + hashlib.sha256(b"mandamus/v1/kek\0" + key).hexdigest()[:16]

    @classmethod
    def open(cls, path: str | Path) -> FileWrap:
        """Raises Misuse for a file that is missing, open to others, or no key."""
        target = Path(path)
        try:
            mode = stat.S_IMODE(target.stat().st_mode)
            text = target.read_text("ascii").strip()
            key = bytes.fromhex(text)
        except (OSError, ValueError) as error:
            why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "it holds no 64 hex digits"
            raise _unusable(target, why) from None
        if os.name == "posix" and mode & 0o077:
            raise _unusable(target, f"others can read it (mode {mode:04o}): chmod 600 {target}")
        if len(key) != 32:
            raise _unusable(target, "it holds no 64 hex digits")
        return cls(key)

    @property
    def name(self) -> str:
        return self._name

    def wrap(self, key: bytes, about: bytes) -> bytes:
        nonce = os.urandom(NONCE)
        return nonce + self._box.encrypt(nonce, key, about)

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes:
        try:
            return self._box.decrypt(wrapped[:NONCE], wrapped[NONCE:], about)
        except (InvalidTag, ValueError):
            raise ProofError(
                "a wrapped key was changed", code="MDM-0968", why="what it sealed cannot be opened with it",
                fix="restore the key store from a backup that was made since; the erase list is replayed",
            ) from None  # fmt: skip


def _unusable(path: Path, why: str) -> Misuse:
    return Misuse(
        "the key-encryption key cannot be used", code="MDM-0964", where=str(path), found=why,
        fix="umask 077; openssl rand -hex 32 > kek.hex; MANDAMUS_KEK=kek.hex",
    )  # fmt: skip
