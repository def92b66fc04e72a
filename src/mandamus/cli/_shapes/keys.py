"""Answers about keys and the trust file."""

from __future__ import annotations

from typing import Any

from mandamus.cli._shapes import Closed


class NewKey(Closed):
    file: str
    id: str
    name: str
    vkey: str


class Enrolled(Closed):
    id: str
    principal: str
    roles: list[str]
    trust: str
    vkey: str


class Trusted(Closed):
    digest: str
    file: str
    lines: list[str]


class Key(Closed, kw_only=True):
    kind: str
    vkey: str
    file: str = ""
    mode: str = ""
    role: str = ""
    principal: str = ""
    roles: list[str] = []
    state: str = ""


class Rotated(Closed):
    """`old` signs nothing any more."""

    new: str
    old: str
    role: str
    trust: str


class Revoked(Closed):
    """The public lines of the keys that are out of force."""

    revoked: list[str]


class Statement(Closed):
    """`statement`: what the administrators sign, as it stands in the file."""

    file: str
    id: str
    statement: dict[str, Any]
