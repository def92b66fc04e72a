"""Answers about what people are asked and sign."""

from __future__ import annotations

from typing import Any

from mandamus.cli._shapes import Closed


class Asking(Closed, kw_only=True):
    """What waits for people: `inbox`, and the part of a vote that tells where it stands now."""

    about: str
    asks: list[str] | None
    card: dict[str, Any]
    chain: str
    digest: str
    expires: int
    id: str
    missing: int
    quorum: int
    run_id: str
    tool: str
    votes: list[dict[str, Any]]
    expired: bool = False


class Unreadable(Closed):
    """`inbox`: a run that cannot be shown."""

    error: dict[str, str]
    run_id: str


class Vote(Closed, kw_only=True):
    """One vote of `approve`, `reject`, `settle`. One that was `repeated` tells only which it was."""

    ballot: str
    decision: str
    digest: str
    id: str
    next: str
    principal: str
    repeated: bool
    run_id: str
    decided: bool = False
    about: str = ""
    asks: list[str] | None = None
    card: dict[str, Any] = {}
    chain: str = ""
    expires: int = 0
    missing: int = 0
    quorum: int = 0
    tool: str = ""
    votes: list[dict[str, Any]] = []


class Voted(Closed):
    dry_run: bool
    votes: list[Vote]


class Cancelled(Closed):
    dry_run: bool
    mode: str
    next: str
    owner: str
    principal: str
    repeated: bool
    run_id: str
