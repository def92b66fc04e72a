"""What is stored, and how it is closed: pure but for randomness. A wrapping key elsewhere closes a period's root, the root closes the keys
of its cells, a cell's key closes the data keys and the subjects that fall into it.

    wrapping key (outside of Postgres) > root of a month > 256 cells of data keys, 16 of subjects > one data key, one subject

A root that nobody can unwrap any more takes everything below it along, wherever old rows still lie. To destroy one data key, its month gets
a new root under a new wrapping key, and its cell a new key: only what is left in the cell is wrapped anew, not the whole month.

The rule a newcomer would break: every piece is bound to its place (`about`). A row that is moved to another owner does not open.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mandamus.core.retention import KeyName
from mandamus.errors import ProofError

SECRET, NONCE = 32, 12
CELLS, SUBJECT_CELLS = 256, 16
FIRST_SUBJECT = CELLS  # numbers of cells from here on are of subjects


def about(what: str, *fields: str | int) -> bytes:
    return json.dumps([f"mandamus/v1/{what}", *fields]).encode()


def close(box: bytes, secret: bytes, place: bytes) -> bytes:
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(box).encrypt(nonce, secret, place)


def opened(box: bytes, stored: bytes, place: bytes) -> bytes:
    """Raises ProofError when it was changed, or moved here."""
    try:
        return AESGCM(box).decrypt(bytes(stored[:NONCE]), bytes(stored[NONCE:]), place)
    except (InvalidTag, ValueError):
        raise ProofError(
            "a wrapped key was changed", code="MDM-0968", why="what it sealed cannot be opened with it",
            fix="restore the newest backup of the key store; the erase list is replayed",
        ) from None  # fmt: skip


def of_root(store: str, name: str, period: str) -> bytes:
    return about("kek", store, name, period)


def of_cell(store: str, period: str, n: int) -> bytes:
    return about("cell", store, period, n)


def of_key(name: KeyName) -> bytes:
    return about("key", name.owner, name.kind, name.period)


def of_subject(pseudonym: str) -> bytes:
    return about("subject", pseudonym)


def cell_of(owner: str) -> int:
    return hashlib.sha256(owner.encode()).digest()[0]


def subject_cell() -> int:
    """Anyone: the number says nothing about the name."""
    return FIRST_SUBJECT + os.urandom(1)[0] % SUBJECT_CELLS


def hashed(plain: bytes) -> bytes:
    return hashlib.sha256(b"mandamus/v1/subject\0" + plain).digest()


def lookup(cell: bytes, name: bytes) -> bytes:
    """By which a subject is found: `name` is the hash of its name, which stands nowhere but closed."""
    return hmac.digest(hmac.digest(cell, b"mandamus/v1/lookup\0", "sha256"), name, "sha256")
