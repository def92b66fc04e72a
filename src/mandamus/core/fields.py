"""Payloads whose members can be shown one by one: `commit(S, value)`, and `disclosed(S, value, names)` for whom only some are meant.

Each member has a digest under a salt of its own; the commitment is the digest of these digests in ascending order, so that a list says
nothing about the members that are not shown. The rule a newcomer would break: who shows a member shows its salt and never S, which
would open all others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any

from mandamus.core.canonical import canon

MEDIA = "application/vnd.mandamus.fields+json"
FIELDS_MAX = 32
SALT_BYTES = 16
GUARDED = frozenset({"personal", "confidential", "special_category"})  # classes of data (core/data.py)
_salt_domain = b"mandamus/v1/salt\0"
_field_domain = b"mandamus/v1/field\0"
_fields_domain = b"mandamus/v1/fields\0"
_sha256 = hashlib.sha256

Shown = tuple[int, bytes, str, Any]  # number, salt, name, value


def fits(value: Any) -> bool:
    """An object of 1 to 32 members; anything else is committed to whole."""
    return type(value) is dict and 1 <= len(value) <= FIELDS_MAX


def media_of(value: Any) -> str:
    """Of what a tool gives back about a person, or in confidence (`GUARDED`): it can be shown member by member, where it has members."""
    return MEDIA if fits(value) else "application/json"


def salt(secret: bytes, number: int) -> bytes:
    return _sha256(_salt_domain + secret + number.to_bytes(4, "big")).digest()[:SALT_BYTES]


def field_digest(own: bytes, name: str, value: Any) -> bytes:
    """Of one member under its salt `own`. Raises ValueError on another length: salt and name must not shift."""
    if len(own) != SALT_BYTES:
        raise ValueError(f"a salt is {SALT_BYTES} bytes")
    return _sha256(_field_domain + own + canon([name, value])).digest()


def commit_of(digests: Sequence[bytes]) -> str:
    return _sha256(_fields_domain + b"".join(sorted(digests))).hexdigest()


def commit(secret: bytes, value: Any) -> str:
    """Hex commitment of an object. Raises ValueError for what has no members or too many."""
    if not fits(value):
        raise ValueError(f"only an object of 1 to {FIELDS_MAX} members can be shown member by member")
    return commit_of([field_digest(salt(secret, i), name, value[name]) for i, name in enumerate(_ordered(value))])


def disclosed(secret: bytes, value: dict[str, Any], names: Collection[str]) -> tuple[list[Shown], list[bytes]]:
    """The members `names` as they may be shown, and the digests of the others in ascending order."""
    shown: list[Shown] = []
    hidden: list[bytes] = []
    for i, name in enumerate(_ordered(value)):
        own = salt(secret, i)
        if name in names:
            shown.append((i, own, name, value[name]))
        else:
            hidden.append(field_digest(own, name, value[name]))
    return shown, sorted(hidden)


def _ordered(value: dict[str, Any]) -> list[str]:
    """Canonical order of names: by UTF-16 code units, as JCS sorts them (RFC 8785, 3.2.3)."""
    return sorted(value, key=lambda name: name.encode("utf-16-be"))
