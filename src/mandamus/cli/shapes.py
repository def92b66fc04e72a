"""What `--json` answers, verb by verb, as types: `mandamus schema VERB` prints the JSON Schema that is made of them.

The rule a newcomer would break: a published field keeps its name and its meaning; fields are added, never taken away. A test holds what
every verb really prints against this page.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from mandamus.cli.allowance import Stands
from mandamus.cli.forget import Forgot
from mandamus.cli.hold import Held
from mandamus.proof.report import Claim
from mandamus.proof.witnessed import Seen
from mandamus.result import ActionView, WaitingFor
from mandamus.runtime.diff import Parting
from mandamus.runtime.replay import Divergence


class Closed(Struct, forbid_unknown_fields=True):
    """Nothing stands in an answer that is not named here."""


class Diagnosed(Closed):
    """`class`: whose fault it is. `fix`: a command, or the text to write."""

    code: str
    what: str
    class_: str = msgspec.field(name="class", default="")
    where: str = ""
    expected: str = ""
    found: str = ""
    why: str = ""
    fix: str = ""
    reasons: list[dict[str, str]] = []


class Failed(Closed):
    """The answer of every verb that raised."""

    error: Diagnosed
    exit_code: int
    verdict: str = ""


# -- runs --------------------------------------------------------------------------------------------------------------------
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
    at: str
    halted: list[Parked]
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


# -- people ------------------------------------------------------------------------------------------------------------------
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


# -- proof -------------------------------------------------------------------------------------------------------------------
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


# -- the rest ----------------------------------------------------------------------------------------------------------------
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


class LogHead(Closed):
    """`lag`: records of the ledger under no signed checkpoint; `witnessed`: the newest size that the quorum cosigned; `minimum`: leaf
    records below it were pruned."""

    at: str
    lag: int
    minimum: int
    origin: str
    quorum: str
    root: str
    size: int
    store: str
    witnessed: int
    witnesses: list[str]


class Leaf(Closed):
    """`log query`: one a line."""

    at: str
    event: int
    leaf: int
    record: dict[str, Any]
    run_id: str
    type: str


class LogProved(Closed):
    """`level`: sealed or witnessed, of the checkpoint in the proof."""

    bytes: int
    event: int
    file: str
    leaf: int
    level: str
    run_id: str
    size: int


class LogConsistent(Closed):
    """Hashes in hex. `signed`: which of the two sizes have a stored checkpoint."""

    new: int
    new_root: str
    old: int
    old_root: str
    proof: list[str]
    signed: list[int]


class LogExported(Closed):
    """`first`: records from this leaf on; `there`: objects that the folder had already."""

    bytes: int
    first: int
    folder: str
    level: str
    objects: int
    size: int
    there: int


class LogCompacted(Closed):
    """Leaves [first, minimum) lost their records in the log; `runs`: whose they were."""

    dry_run: bool
    first: int
    minimum: int
    objects: int
    retention: str
    runs: list[str]
    tidied: int


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


class Served(Closed, kw_only=True):
    """`witness serve`: one a line. `event`: listening, asked, turned, fault or ended; `status`: what was answered (HTTP)."""

    at: str
    event: str
    address: str = ""
    code: str = ""
    found: str = ""
    known: int = 0
    logs: list[str] = []
    old: int = 0
    origin: str = ""
    size: int = 0
    status: int = 0
    vkey: str = ""
    what: str = ""
    why: str = ""


class WitnessRow(Closed):
    """`knows`: the size it cosigned last, null with `fault` when it did not say; `trusted`: the trust file names its key."""

    anchor: bool
    fault: str
    knows: int | None
    lag: int | None
    name: str
    residency: str
    trusted: bool


class WitnessStatus(Closed):
    """`size`: of the newest signed checkpoint; `witnessed`: of the newest that the quorum cosigned."""

    met: bool
    origin: str
    quorum: str
    size: int
    witnessed: int
    witnesses: list[WitnessRow]


class Schemas(Closed):
    verbs: list[str]


class Schema(Struct):
    """A JSON Schema."""

    title: str


# verb: what one line of its answer may be. Every verb may answer Failed.
SHAPES: dict[str, tuple[type, ...]] = {
    "demo": (Told,), "init": (Made,), "run": (Ended, Rehearsed, Followed, Opened),
    "worker": (Carried,), "top": (Top,), "resume": (Ended, Followed), "cancel": (Cancelled,),
    "runs": (Row,), "show": (Shown, Event), "why": (Why,), "replay": (Replayed,), "fork": (Ended,), "diff": (Diffed,),
    "inbox": (Asking, Unreadable), "approve": (Voted,), "reject": (Voted,), "settle": (Voted,), "bundle": (Bundled,),
    "verify": (Verified,), "export": (ExportedFile,), "certify": (Certified, CertifiedFolder), "doctor": (Looked,), "help": (Help, Codes),
    "forget": (Forgot,), "hold place": (Held,), "hold lift": (Held,), "hold list": (Held,),
    "completion": (Completion,), "allowance grant": (Granted,), "allowance list": (Stands,), "allowance withdraw": (Withdrawn,),
    "key new": (NewKey,), "key enroll": (Enrolled,), "key trust": (Trusted,), "key list": (Key,), "ledger copy": (Moved,),
    "witness serve": (Served,), "witness status": (WitnessStatus,),
    "log head": (LogHead,), "log query": (Leaf,), "log prove": (LogProved,), "log consistency": (LogConsistent,),
    "log export": (LogExported,), "log compact": (LogCompacted,), "manifest show": (Bound,),
    "manifest sign": (Signed,), "schema": (Schemas, Schema),
}  # fmt: skip
# verbs that answer one object a line
STREAMS = ("runs", "worker", "log query", "witness serve", "inbox", "key list", "allowance list", "hold list")


def schema(verb: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one line of `mandamus VERB --json`."""
    kinds = (*SHAPES[verb], Failed)
    parts, defs = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    title = f"mandamus {verb} --json" + (", one object a line" if verb in STREAMS else "")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "anyOf": list(parts), "title": title, "$defs": defs}
