"""Answers about runs and those who carry them."""

from __future__ import annotations

from typing import Any

from mandamus.cli._shapes import Closed
from mandamus.result import ActionView, WaitingFor
from mandamus.runtime.diff import Parting
from mandamus.runtime.replay import Divergence


class Ended(Closed):
    """`run`, `resume`, `fork`: how far a run was carried."""

    actions: list[ActionView]
    cause: str
    checkpoint_id: str
    cost: dict[str, Any] | None
    exit_code: int
    invalid: list[str]
    output: Any
    refused: list[dict[str, Any]]
    run_id: str
    state: str
    thread: str
    tokens_used: int
    waiting: list[WaitingFor]


class Rehearsed(Closed):
    """`run --dry-run`."""

    agent: str
    definition: str
    dry_run: bool
    ledger: str
    manifest: str
    model: str
    policy: str
    tools: dict[str, dict[str, str]]


class Opened(Closed):
    """`run --detach`: a run that waits for a worker. `next`: a worker that takes it."""

    detached: bool
    next: str
    pool: str
    prio: int
    repeated: bool
    run_id: str


class Carried(Closed):
    """`worker`: one a line, what came of each claim. `state`: as in `run`, or unserved refused failed unavailable."""

    agent: str
    cause: str
    run_id: str
    state: str
    wake_at: int | None


class Pool(Closed):
    """One pool of `top`. `due`: wants a worker now; `claimed`: a worker has it; `waits`: for people, a time or a child."""

    claimed: int
    due: int
    oldest_due_s: int
    pool: str
    slots: int
    waits: int
    workers: int


class AWorker(Closed):
    """One worker of `top`."""

    agents: list[str]
    busy: int
    draining: bool
    id: str
    pool: str
    seen_s: int
    slots: int
    version: str


class Parked(Closed):
    """One halted run of `top`."""

    cause: str
    code: str
    run_id: str


class Top(Closed):
    """`log_waits`: records that lie under no signed checkpoint; null where there is no log."""

    at: str
    halted: list[Parked]
    log_waits: int | None
    oldest_due: str
    pools: list[Pool]
    runs: dict[str, int]
    workers: list[AWorker]


class Event(Closed):
    """`show --events`; with -v the payloads too, with --as the specification's names."""

    at: str
    fact: dict[str, Any]
    hash: str
    seq: int
    turn: int
    type: str
    payloads: dict[str, Any] = {}


class Followed(Closed):
    """`--follow`: one a line, before the answer itself."""

    event: dict[str, Any]


class Row(Closed):
    """`runs`."""

    agent: str
    events: int
    number: int
    opened: str
    owner: str
    run: str
    state: str
    waits_for: str


class Doing(Closed):
    """One open action of `show`."""

    action: str
    code: str
    effect: str
    safety: str
    state: str
    tool: str
    waiting: dict[str, Any] = {}


class Shown(Closed):
    """`show`."""

    actions: list[Doing]
    agent: str
    cause: str
    events: int
    head: str
    isolation: str
    owner: str
    policy: str
    run_id: str
    spent: dict[str, int | dict[str, int]]
    state: str
    tenant: str
    tier: str
    turn: int
    turn_of: str
    unread: bool
    why: list[str]


class Judged(Closed):
    """One judgement of `why`."""

    asks: list[dict[str, Any]]
    attempt: int
    authority: int
    code: str
    decision: Any
    engine: str
    event: int
    facts: Any
    layers: list[dict[str, Any]]
    policy: str
    verdict: str


class Why(Closed):
    action: str
    args: Any
    events: list[dict[str, Any]]
    judgements: list[Judged]
    run_id: str


class Replayed(Closed):
    run: str
    events: int
    compared: int
    sealed: bool
    hashes: list[str]
    divergences: list[Divergence]
    ok: bool


class Diffed(Closed):
    left: str
    right: str
    same: int
    only_left: int
    only_right: int
    first: Parting | None
    proposal: Parting | None
    lines: list[str]
    equal: bool
