"""The other answers."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from mandamus.cli._shapes import Closed


class Line(Closed):
    check: str
    fix: str
    says: str
    state: str


class Looked(Closed):
    exit_code: int
    lines: list[Line]


class Help(Closed):
    code: str
    text: str
    title: str


class Codes(Closed):
    codes: dict[str, str]


class Completion(Closed):
    script: str
    shell: str


class Made(Closed):
    template: str
    dir: str
    files: list[str]
    written: bool


class Told(Closed):
    """`demo`, on its last line."""

    run_id: str
    bundle: str
    trust: str
    payments: int
    plain_loop_payments: int
    verdict: str
    seconds: float
    tier: str
    steps: list[dict[str, Any]]


class Granted(Closed):
    allowance: str
    principal: str
    standing: dict[str, Any]
    policy: str


class Withdrawn(Closed):
    allowance: str
    principal: str
    state: str


class Moved(Closed):
    """`ledger copy`; with `dry_run` what it would do. `there`: runs that the target had already."""

    deltas: int
    dry_run: bool
    events: int
    messages: int
    runs: list[str]
    source: str
    target: str
    there: list[str]


class Bound(Closed):
    author: str
    bindings: dict[str, Any]
    bound: dict[str, bool]
    digest: str
    file: str
    name: str
    signed: bool
    signer: str


class Signed(Closed):
    author: str
    file: str
    signature: str


class Schemas(Closed):
    verbs: list[str]


class Schema(Struct):
    """A JSON Schema."""

    title: str
