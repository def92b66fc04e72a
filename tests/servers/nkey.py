"""`seed, public = nkey(b"worker")`: a user's nkey as NATS writes it, always the same for the same name. For tests only."""

from __future__ import annotations

import base64
import hashlib

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SEED, USER = 18 << 3, 20 << 3


def nkey(name: bytes) -> tuple[str, str]:
    raw = hashlib.sha256(b"test nkey " + name).digest()
    public = Ed25519PrivateKey.from_private_bytes(raw).public_key().public_bytes_raw()
    return _encoded(bytes([SEED | USER >> 5, (USER & 31) << 3]) + raw), _encoded(bytes([USER]) + public)


def _encoded(raw: bytes) -> str:
    """Base32 with the CRC-16 (XMODEM) behind it, low byte first."""
    crc = 0
    for byte in raw:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return base64.b32encode(raw + crc.to_bytes(2, "little")).decode().rstrip("=")
