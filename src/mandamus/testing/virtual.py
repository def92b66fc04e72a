"""Time and keys for tests: a clock that moves only when somebody sleeps, entropy from a seed, keys made from names.

The same seed gives the same instants, ids, salts and signatures, so that a scripted run gives the same bytes anywhere. The rule a
newcomer would break: everybody can make these keys again; a ledger that matters never meets them.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

START = 1_767_603_600_000_000  # 2026-01-05T09:00:00Z, a Monday


class VirtualTime:
    """Implements `ports.Time`."""

    def __init__(self, start: int = START, seed: str = "0") -> None:
        self._now, self._seed, self._drawn = start, seed, 0

    def now(self) -> int:
        return self._now

    def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Let time pass. Never backwards."""
        self._now += max(0, round((seconds + 60 * minutes + 3600 * hours + 86_400 * days) * 1_000_000))

    def entropy(self, n: int) -> bytes:
        self._drawn += 1
        return hashlib.shake_256(f"{self._seed}/{self._drawn}".encode()).digest(n)

    async def sleep_until(self, instant: int) -> None:
        self._now = max(self._now, instant)
        await asyncio.sleep(0)


def signer(name: str, seed: str = "0") -> Any:
    """An Ed25519 `FileSigner` whose key follows from its name and the seed."""
    from mandamus.drivers.sign_file import FileSigner
    from mandamus.proof.keys import vkey

    private, public = _key(name, seed)
    return FileSigner(private, vkey(name, public))


def home(seed: str = "0") -> Any:
    """The keys and the trust file of a ledger in memory, made from a seed."""
    from mandamus.drivers.sign_file import FileSigner
    from mandamus.proof.keys import vkey
    from mandamus.wiring import ROLES, Home

    made = Home(None)
    for role in ROLES:
        private, public = _key(f"mandamus.local/{role}", seed)
        name = "mandamus.local/" + hashlib.sha256(public).hexdigest()[:16] if role == "log" else f"mandamus.local/{role}"
        made.keys[role] = FileSigner(private, vkey(name, public))
    return made


def _key(name: str, seed: str) -> tuple[Any, bytes]:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"mandamus test key/{seed}/{name}".encode()).digest())
    return private, private.public_key().public_bytes_raw()
