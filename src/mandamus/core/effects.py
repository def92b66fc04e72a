"""Two closed lists. Effects, imperative: what the world must do next. Inputs, nouns: what the world answered.

An effect with `leaves` goes out of the process: everything known must be saved before it starts (the barrier). `not_before` is an
instant: the shell does not start the effect earlier. Effects are derived from the folded run, never kept beside it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType

from mandamus.core.accounts import Balance
from mandamus.core.clock import Clock
from mandamus.core.records import Ask, Issued, Layer, MailRef, Reserve, Usage


class Effect(Struct, frozen=True):
    leaves: ClassVar[bool] = False
    not_before: int = 0


class Prepare(Effect, frozen=True, kw_only=True):
    """Compile the prompt of `turn`; on a later `attempt` only read the clock again."""

    turn: int
    attempt: int


class AskModel(Effect, frozen=True, kw_only=True):
    leaves: ClassVar[bool] = True
    turn: int
    attempt: int


class Judge(Effect, frozen=True, kw_only=True):
    """Judge these actions, in order, each seeing the reservations of the earlier ones."""

    actions: tuple[str, ...]
    seq: int


class Execute(Effect, frozen=True, kw_only=True):
    leaves: ClassVar[bool] = True
    action: str
    attempt: int


class Reconcile(Effect, frozen=True, kw_only=True):
    """Ask the other side whether the operation happened."""

    leaves: ClassVar[bool] = True
    action: str
    attempt: int
    tries: int


class Await(Effect, frozen=True, kw_only=True):
    """Until record `seq` has reached a level of evidence. It leaves the process: what is not stored, no log has."""

    leaves: ClassVar[bool] = True
    action: str
    level: Literal["sealed", "witnessed"]
    seq: int


class Seal(Effect, frozen=True, kw_only=True):
    """End the run, then close its chain."""

    ended: bool


# -- inputs ------------------------------------------------------------------------------------------------------------------
class GuardCheck(Struct, frozen=True, kw_only=True):
    """What one guardrail found. `source` is the digest of its code; `finding` is payload."""

    name: str
    point: Literal["before_turn", "input", "tool_result", "output", "after_turn"]
    result: Literal["pass", "annotate", "block"]
    source: str
    finding: Any = None
    usage: Usage | None = None


class Prepared(Struct, frozen=True, kw_only=True):
    """`manifest` lists the items that joined the prompt; `fault` is "context" when it does not fit the window."""

    turn: int
    attempt: int
    clock: Clock
    model: str
    reserves: int
    items: int = 0
    tokens: int = 0
    window: int = 0
    manifest: Any = None
    checks: tuple[GuardCheck, ...] = ()
    fault: str = ""


class Proposal(Struct, frozen=True, kw_only=True):
    """One proposed call, as the contract sees it. `tool` is "?" when there is none of that name; then `fault` says so."""

    tool: str
    args: Any
    kind: Literal["invoke", "handoff"] = "invoke"
    safety: str = "read"
    effect: str = "read"
    data: str = "business"
    pin: str = ""
    fault: str = ""
    repeats: int | None = None
    secret: bytes = b""
    raw: bytes = b""
    subject: str | UnsetType = UNSET  # whose data the arguments are, by pseudonym


class Reply(Struct, frozen=True, kw_only=True):
    """A whole model reply. Without proposals it is the answer: `output` is its typed value, or `bad` says why it has none."""

    turn: int
    attempt: int
    value: Any
    raw: bytes
    model: str
    stop: str
    usage: Usage
    proposals: tuple[Proposal, ...] = ()
    output: Any = None
    bad: str = ""
    checks: tuple[GuardCheck, ...] = ()


class ModelLost(Struct, frozen=True, kw_only=True):
    """A model call without a usable reply. `retry_at`: when to ask again, if it may be."""

    turn: int
    attempt: int
    category: str
    retry_at: int | None = None
    status: int | None = None
    partial: str = ""


class Request(Struct, frozen=True, kw_only=True):
    """An approval request, ready to be recorded. `deadlines_ms` and `quorums` of the chain's tiers, in order."""

    id: str
    chain: str
    digest: str
    card: dict[str, Any]
    card_digest: str
    quorums: tuple[int, ...]
    deadlines_ms: tuple[int, ...]
    policy: str


class Ruling(Struct, frozen=True, kw_only=True):
    """The judgement of one action, all layers combined, with everything that its intent needs if it is an ALLOW."""

    action: str
    about: Literal["start", "outcome"] = "start"
    verdict: Literal["allow", "escalate", "deny", "error"]
    layers: tuple[Layer, ...]
    determining: tuple[str, ...] = ()
    asks: tuple[Ask, ...] = ()
    code: str = ""
    engine: str
    bundle: str
    authority: int
    facts: bytes
    decision: Any
    settle: Literal["", "done", "again", "abandon"] = ""
    terminate: bool = False
    halt: Literal["", "denials", "people"] = ""
    operation: str = ""
    capabilities: tuple[Issued, ...] = ()
    deadline_ms: int = 0
    landing_ms: int = 0
    reserves: tuple[Reserve, ...] = ()
    votes: tuple[int, ...] = ()
    child: str = ""
    request: Request | None = None


class NextTier(Struct, frozen=True, kw_only=True):
    """`carries`: the votes already cast, by people who may vote in this tier too."""

    action: str
    tier: int
    quorum: int
    until: int
    carries: tuple[int, ...] = ()


class Rulings(Struct, frozen=True, kw_only=True):
    """The rulings of a batch, drawn from the run as it stood at `seq`. If the run moved since, they are void.

    `read`: the accounts that facts were read from, as they stood then. An intent is appended only onto these versions. `tiers`: what
    the clock of this judgement ended elsewhere.
    """

    seq: int
    clock: Clock
    rulings: tuple[Ruling, ...]
    read: tuple[Balance, ...] = ()
    tiers: tuple[NextTier, ...] = ()


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of an attempt. `absent`: proved not to have happened; `doubt`: nobody knows; `unclear`: the other side could not say."""

    action: str
    attempt: int
    kind: Literal["done", "failed", "doubt", "absent", "unclear"]
    via: Literal["tool", "reconciled", "child"] = "tool"
    value: Any = None
    raw: bytes = b""
    output: Literal["valid", "invalid", "oversize", "none"] = "none"
    code: str = ""
    cause: Literal["fault", "timeout", "lost", "stopped", "unclear"] = "fault"
    spends: tuple[Reserve, ...] | None = None
    retry_at: int | None = None
    data: str = "business"
    subject: str | UnsetType = UNSET
    checks: tuple[GuardCheck, ...] = ()


class Steps(Struct, frozen=True, kw_only=True):
    """Proposals that come from inside a running tool (`ctx.invoke`, `ctx.handoff`), numbered below their parent."""

    parent: str
    first: int
    proposals: tuple[Proposal, ...]


class Use(Struct, frozen=True, kw_only=True):
    """A capability used during a call; recorded before the tool hears of it."""

    action: str
    capability: str
    result: Literal["granted", "refused"]
    mechanism: str = "in_process"
    value: Any = None


class Mail(Struct, frozen=True, kw_only=True):
    """One message of the mailbox, checked by the shell: who it is from and what it says, or why it is refused.

    `statement` is the signed envelope of a stop or a message, kept so that others can check it later.
    """

    ref: MailRef
    clock: Clock
    kind: Literal["vote", "stop", "message", "refused"]
    principal: str = ""
    reason: str = ""
    value: Any = None
    action: str = ""
    request: str = ""
    about: Literal["start", "outcome"] = "start"
    decision: str = ""
    ballot: str = ""
    veto: bool = False
    mode: Literal["cancel", "halt"] = "cancel"
    card: Any = None
    secret: bytes = b""
    statement: Any = None
    modified: Proposal | None = None


class Time(Struct, frozen=True, kw_only=True):
    """Time went by until something was due. `tiers`: per waiting action whose tier ended, the one that comes next, if any does."""

    clock: Clock
    source: Literal["worker", "ledger"] = "worker"
    tiers: tuple[NextTier, ...] = ()


class Level(Struct, frozen=True, kw_only=True):
    """The answer to Await: everything up to `seq` stands under the checkpoint of `size` leaves and `root` (hex)."""

    level: Literal["sealed", "witnessed"]
    root: str
    seq: int
    size: int


class Closing(Struct, frozen=True, kw_only=True):
    """The answer to Seal: the run may close now."""


class Nothing(Struct, frozen=True, kw_only=True):
    """No answer yet; no fact follows."""


Input = Prepared | Reply | ModelLost | Rulings | Outcome | Steps | Use | Mail | Time | Level | Closing | Nothing
