"""Answers about bundles, exports and certificates."""

from __future__ import annotations

from typing import Any

from mandamus.cli._shapes import Closed
from mandamus.proof.report import Claim
from mandamus.proof.witnessed import Seen


class Bundled(Closed):
    bundle: str
    bytes: int
    events: int
    run_id: str
    state: str
    trust: str
    views: list[str]


class Verified(Closed, kw_only=True):
    verdict: str
    exit_code: int
    run: str = ""
    state: str = ""
    events: int = 0
    head: str = ""
    checkpoint: Seen | None = None
    claims: list[Claim] = []
    broken: dict[str, Any] = {}
    attested: str = ""
    sample: list[str] = []


class ExportedFile(Closed):
    """`numbers`: the first and the last of the register, of a period; `leaves`: how many records it holds."""

    bytes: int
    export: str
    form: str
    leaves: int
    numbers: list[int]
    run_id: str


class Certified(Closed):
    agent: str
    ledgers: list[str]
    places: dict[str, int]
    lives: int
    seed: int
    rows: list[dict[str, Any]]
    stuck: list[str]
    ok: bool
    target: str = ""


class CertifiedFolder(Closed):
    ok: bool
    reports: list[Certified]
    skipped: dict[str, str]
