"""What a run is: its states, the tables of their moves, and the questions that its state alone answers. `core/fold.py` makes it.

The tables below say every legal move of a run and of an action; the diagrams in the docs are drawn from them. The rule a newcomer would
break: nothing else is state, and no rule lives here. A run holds its open turn only and refers to the past, so it stays flat however
long it gets.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, json, structs

from mandamus.core import records as r
from mandamus.core.canonical import digest
from mandamus.core.clock import Clock
from mandamus.core.consumed import NOTHING_READ, Consumed
from mandamus.core.price import Price, at_most
from mandamus.core.records import Reserve

LIVES = {
    "new": ("running",),
    "running": ("halted", "completed", "failed", "cancelled"),
    "halted": ("running", "cancelled"),
    "completed": ("sealed",),
    "failed": ("sealed",),
    "cancelled": ("sealed",),
    "sealed": (),
}
ACTIONS = {
    "proposed": ("judged", "denied", "cancelled"),
    "judged": ("started", "denied", "judged", "cancelled"),
    "started": ("doubted", "done", "failed"),
    "doubted": ("started", "done", "failed", "unknown", "cancelled", "doubted"),
    "unknown": ("started", "done", "settled"),
    "done": (),
    "failed": ("judged", "denied", "cancelled"),
    "denied": (),
    "cancelled": (),
    "settled": (),
}
ENDED = ("completed", "failed", "cancelled", "sealed")
CLOSED = ("done", "failed", "denied", "cancelled", "settled")
IN_DOUBT = ("started", "doubted", "unknown")


class Granted(Struct, frozen=True, gc=False):
    """A chain whose quorum was reached, with the votes that reached it (seqs). `asked`, `by`: instants of the request and its end."""

    chain: str
    votes: tuple[int, ...]
    tier: int = 0
    asked: int = 0
    by: int = 0


class Vote(Struct, frozen=True, gc=False):
    """A counted ballot, by reference: `seq` is its record."""

    principal: str
    decision: str
    seq: int
    veto: bool = False


class Waiting(Struct, frozen=True, gc=False):
    """An open request to people. `asked` is when, `until` ends the tier, `expires` the chain (instants)."""

    id: str
    about: str
    chain: str
    digest: str
    card: str
    policy: str
    quorum: int
    tier: int
    until: int
    expires: int
    seq: int
    asked: int = 0
    votes: tuple[Vote, ...] = ()
    over: bool = False


class Awaiting(Struct, frozen=True, gc=False):
    """What the log must have made of a proposal before it may start: its `level`, and until when (instant)."""

    level: str
    until: int


class Action(Struct, frozen=True, gc=False):
    """One proposed call. `seq` is its proposal (payload `args`, commitment `args`), `out` the record that holds its output.

    `author`: whoever wrote its arguments in place of others. `withheld`: a guardrail blocked its output. `clock`: the first use of its
    operation id. `landing` (ms): how long a send of the last attempt may be under way; `lands`: the instant when none can be any more,
    counted from the first takeover since.
    """

    id: str
    call: str
    tool: str
    kind: str
    safety: str
    effect: str
    by: str
    seq: int
    args: str
    pin: str = ""
    parent: str = ""
    fault: str = ""
    repeats: int | None = None
    state: str = "proposed"
    verdict: str = ""
    code: str = ""
    attempt: int = 0
    absent: bool = False
    doubts: int = 0
    cause: str = ""
    retry_at: int = 0
    operation: str = ""
    child: str = ""
    reserves: tuple[Reserve, ...] = ()
    request: Waiting | None = None
    granted: tuple[Granted, ...] = ()
    uses: int = 0
    out: int = -1
    clock: int = 0
    author: str = ""
    withheld: bool = False
    landing: int = 0
    lands: int = 0
    awaits: Awaiting | UnsetType = UNSET

    @property
    def closed(self) -> bool:
        return self.state in CLOSED and not self.retry_at


class Below(Struct, frozen=True, gc=False):
    """What children that have ended used of this run's budget, in the units that it limits."""

    calls: int = 0
    cost: int = 0
    tokens: int = 0


NOTHING = Below()


class Spent(Struct, frozen=True, gc=False):
    """What the run has used of its own budget. `cost` in micro-units, where the run has a price."""

    calls: int = 0
    input: int = 0
    output: int = 0
    retries: int = 0
    denials: int = 0
    bad: int = 0
    below: Below | UnsetType = UNSET
    cost: int | UnsetType = UNSET


class Run(Struct, frozen=True, gc=False):
    """`stage`: ready (a turn is due) · asking · failed (ask again) · acting · answered · stopping. `sealed`, `witnessed`: the last record
    that is known to have reached that level of evidence."""

    id: str = ""
    seq: int = -1
    head: str = ""
    epoch: int = 0
    life: str = "new"
    stage: str = "ready"
    opened: r.RunOpened | None = None
    clock: Clock | None = None
    turn: int = 0
    attempt: int = 0
    retry_at: int = 0
    cursor: int = 0
    keys: Consumed = NOTHING_READ
    actions: dict[str, Action] = {}
    spent: Spent = Spent()
    denied: tuple[int, ...] = ()
    reserved: int = 0
    cause: str = ""
    code: str = ""
    end: str = ""
    answer: int = -1
    heard: int = 0
    compiled: int | UnsetType = UNSET
    price: Price | UnsetType = UNSET
    sealed: int | UnsetType = UNSET
    witnessed: int | UnsetType = UNSET

    @property
    def genesis(self) -> r.RunOpened:
        assert self.opened is not None, "the run has not been opened"
        return self.opened

    @property
    def open_actions(self) -> list[Action]:
        return [a for a in self.actions.values() if a.retry_at or a.state not in CLOSED]


EMPTY = Run()


def levels(run: Run, seq: int) -> tuple[str, ...]:
    """Which levels of evidence record `seq` is known to have reached. What is witnessed is sealed too."""
    witnessed = run.witnessed is not UNSET and seq <= run.witnessed
    if witnessed or (run.sealed is not UNSET and seq <= run.sealed):
        return ("sealed", "witnessed") if witnessed else ("sealed",)
    return ()


def late(run: Run, action: Action) -> bool:
    """Its proposal has not reached the level in time: the action is judged again with that as a fact."""
    a = action.awaits
    return a is not UNSET and a.level not in levels(run, action.seq) and run.clock is not None and run.clock.now >= a.until


def awaiting(run: Run, action: Action) -> bool:
    """The log is still to make something of its proposal, and has time for it."""
    a = action.awaits
    return a is not UNSET and a.level not in levels(run, action.seq) and not late(run, action)


def ripe(request: Waiting) -> bool:
    """The ask is met, or can no longer be met: the action is judged again with that as a fact."""
    return request.over or decision_of(request) != ""


def decision_of(request: Waiting) -> str:
    """approve, reject, done, again, abandon — or "" while it is open. One reject or veto decides; else the quorum of distinct people."""
    for vote in request.votes:
        if vote.decision == "reject" or vote.veto:
            return "reject"
    for decision in ("approve", "done", "again", "abandon"):
        people = {v.principal for v in request.votes if v.decision == decision}
        if len(people) >= request.quorum:
            return decision
    return ""


def ends_by_no(fact: r.RunHalted) -> bool:
    """A person said no, and meant the run: once nothing is in the air any more, it can only fail."""
    return fact.cause == "people" and fact.code == "rejected"


def reserved_cost(run: Run) -> int:
    """What the model call under way may cost."""
    if run.price is UNSET or not run.reserved:
        return 0
    prompt = run.compiled or 0
    return at_most(run.price, prompt, run.reserved - prompt)


def state_digest(run: Run) -> str:
    """Digest of the fold, for seals and snapshots. The head's hash stays outside: it is named beside it."""
    return digest("state", json.encode(structs.replace(run, head="", keys=tuple(run.keys)), order="deterministic"))
