"""Facts and records: what can be written into a ledger, and the exact bytes of it (docs/concepts/record-format.md).

A *fact* is a closed Struct, one per type, past tense. A *record* is a fact in its envelope; its canonical bytes are stored,
hashed as stored, and believed on read only if they re-encode to themselves. Fields stand in sorted order, which makes typed
encoding canonical; optional fields are absent, never null. What facts are made of (core/parts.py) bears its names here too.

The rule a newcomer would break: a fact never holds text written by a model, a tool or a person, and never an unsalted digest of
one. Such text is payload, named by its salted commitment in `body`. A type, once released, never changes: add a new one.
"""

import hashlib
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mandamus.core.canonical import canon, digest
from mandamus.core.clock import Clock
from mandamus.core.parts import Actor as Actor
from mandamus.core.parts import Anchor as Anchor
from mandamus.core.parts import Ask as Ask
from mandamus.core.parts import BodyPart as BodyPart
from mandamus.core.parts import BudgetLimits as BudgetLimits
from mandamus.core.parts import Grant as Grant
from mandamus.core.parts import Int as Int
from mandamus.core.parts import Issued as Issued
from mandamus.core.parts import Layer as Layer
from mandamus.core.parts import MailRef as MailRef
from mandamus.core.parts import NamedKey as NamedKey
from mandamus.core.parts import Parent as Parent
from mandamus.core.parts import Register as Register
from mandamus.core.parts import Reserve as Reserve
from mandamus.core.parts import Usage as Usage
from mandamus.core.parts import User as User
from mandamus.core.price import Price
from mandamus.errors import ProofError

RECORD_BYTES_MAX = 65_535  # C2SP entry bundles carry uint16 lengths


class Fact(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Base of all facts. Housekeeping facts stand outside replay comparison."""

    housekeeping: ClassVar[bool] = False


# -- run ---------------------------------------------------------------------------------------------------------------------
class RunOpened(Fact, frozen=True, kw_only=True):
    """Genesis, seq 0. body: `input`."""

    agent: str
    anchor: Anchor
    budget: BudgetLimits
    clock: Clock
    default: Literal["deny", "allow"] = "deny"
    definition: str
    depth: Int = 0
    environment: str = ""
    grant: Grant | UnsetType = UNSET
    isolation: str
    manifest: str
    nonce: str
    origin: str
    parent: Parent | UnsetType = UNSET
    plugins: tuple[str, ...] = ()
    policy: str
    profile: str
    register: Register
    tenant: str
    tier: str
    trusted_code: tuple[str, ...] = ()
    user: User | UnsetType = UNSET


class RunOwned(Fact, frozen=True, kw_only=True):
    """A worker took the run over: epoch + 1, signed by the log key of its runtime. Every started action is doubted by it."""

    housekeeping: ClassVar[bool] = True
    clock: Clock
    nonce: str
    signature: str
    worker: str


class StopRequested(Fact, frozen=True, kw_only=True):
    """By mail to one run, or on chain `log` for an agent or a tenant. body: `statement`, the envelope of whoever stops."""

    agent: str | UnsetType = UNSET
    clock: Clock
    mail: MailRef | UnsetType = UNSET
    mode: Literal["cancel", "halt"]
    principal: str
    tenant: str | UnsetType = UNSET


class RunHalted(Fact, frozen=True, kw_only=True):
    """Resumable. `cause` says whose turn it is; `code` names the finding, never free text."""

    action: str | UnsetType = UNSET
    cause: Literal["engine", "guardrail", "budget", "denials", "context", "poison", "people"]
    code: str


class RunEnded(Fact, frozen=True, kw_only=True):
    """body: `output` of a completed run."""

    code: str | UnsetType = UNSET
    state: Literal["completed", "failed", "cancelled"]


class RunSealed(Fact, frozen=True, kw_only=True):
    """The last record. `head` = hash of the record before it, `count` = records before it, `state` = digest of the fold there."""

    closed: Literal["completed", "failed", "cancelled"]
    count: Int
    head: str
    state: str


# -- turn --------------------------------------------------------------------------------------------------------------------
class TurnStarted(Fact, frozen=True, kw_only=True):
    clock: Clock


class ContextCompiled(Fact, frozen=True, kw_only=True):
    """body: `manifest`, the context items that joined the prompt since the last compile."""

    items: Int
    tokens: Int
    window: Int


class GuardrailChecked(Fact, frozen=True, kw_only=True):
    """body, when there is anything to tell: `finding`."""

    action: str | UnsetType = UNSET
    name: str
    point: Literal["before_turn", "input", "tool_result", "output", "after_turn"]
    result: Literal["pass", "annotate", "block"]
    source: str
    usage: Usage | UnsetType = UNSET


class ModelCalled(Fact, frozen=True, kw_only=True):
    """The intent of a model call. `reserves` is a count of tokens."""

    attempt: Int
    model: str
    reserves: Int


class ModelPriced(Fact, frozen=True, kw_only=True):
    """What the run's model costs, as its user says. Stands right behind the genesis, or nowhere: the run has no price then."""

    price: Price


class ModelReplied(Fact, frozen=True, kw_only=True):
    """body: `reply`, verbatim as parsed."""

    attempt: Int
    calls: Int
    model: str
    stop: str
    usage: Usage


class ModelFailed(Fact, frozen=True, kw_only=True):
    """`retry_at` (instant) stands there when the loop will ask again."""

    attempt: Int
    category: Literal[
        "rate_limit", "server", "timeout", "connection", "cut", "malformed", "empty", "auth", "bad_request", "refusal", "bad_output",
        "lost", "fault",
    ]  # fmt: skip
    retry_at: Int | UnsetType = UNSET
    status: Int | UnsetType = UNSET


# -- action ------------------------------------------------------------------------------------------------------------------
class ActionProposed(Fact, frozen=True, kw_only=True):
    """`action` is its id in the run, turn.n; `tool` is a name of the definition, or "?" when the model named none of it. body: `args`."""

    action: str
    by: Literal["model", "tool", "person"]
    call: str
    effect: str
    fault: str | UnsetType = UNSET
    kind: Literal["invoke", "handoff"]
    parent: str | UnsetType = UNSET
    pin: str | UnsetType = UNSET
    repeats: Int | UnsetType = UNSET
    replaces: str | UnsetType = UNSET
    safety: str
    tool: str


class ActionJudged(Fact, frozen=True, kw_only=True):
    """One judgement, all layers. body: `facts` (what was asked) and `decision` (what was answered)."""

    action: str
    asks: tuple[Ask, ...] | UnsetType = UNSET
    attempt: Int
    authority: Int
    bundle: str
    code: str | UnsetType = UNSET
    determining: tuple[str, ...]
    engine: str
    layers: tuple[Layer, ...]
    verdict: Literal["allow", "escalate", "deny", "error"]


class ActionStarted(Fact, frozen=True, kw_only=True):
    """**The intent.** Stands right after its ALLOW. `deadline` and `landing` are milliseconds counted from this commit."""

    action: str
    attempt: Int
    capabilities: tuple[Issued, ...]
    child: str | UnsetType = UNSET
    deadline: Int
    effect: str
    landing: Int
    operation: str
    reserves: tuple[Reserve, ...] = ()
    votes: tuple[Int, ...] = ()


class CapabilityChecked(Fact, frozen=True, kw_only=True):
    """One use during the call. body: `value` of a clock or a random number."""

    action: str
    capability: str
    mechanism: str
    result: Literal["granted", "refused"]
    use: Int


class ActionDoubted(Fact, frozen=True, kw_only=True):
    """Nobody knows whether it happened. `retry_at` (instant): not asked or tried again before. body: `fault`, what the tool raised."""

    action: str
    attempt: Int
    cause: Literal["fault", "timeout", "lost", "stopped", "unclear"]
    retry_at: Int | UnsetType = UNSET


class ActionEnded(Fact, frozen=True, kw_only=True):
    """body: `output`, when there is one. `spends` settles every reservation of the action."""

    action: str
    attempt: Int
    code: str | UnsetType = UNSET
    output: Literal["valid", "invalid", "oversize", "none"]
    result: Literal["done", "failed", "unknown", "cancelled"]
    retry_at: Int | UnsetType = UNSET
    spends: tuple[Reserve, ...] = ()
    via: Literal["tool", "reconciled", "people", "policy", "child", "stop"]


# -- waiting -----------------------------------------------------------------------------------------------------------------
class ApprovalRequested(Fact, frozen=True, kw_only=True):
    """`digest` = action digest, `card` = card digest, `until` = this tier's deadline, `expires` = the whole chain's. body: `card`.

    A later tier is the same request again; `carries` names the votes (seqs) that count in it too.
    """

    about: Literal["start", "outcome"]
    action: str
    card: str
    carries: tuple[Int, ...] = ()
    chain: str
    digest: str
    expires: Int
    policy: str
    quorum: Int
    request: str
    tier: Int
    until: Int


class Voted(Fact, frozen=True, kw_only=True):
    """body: `ballot` (the DSSE envelope). A standing vote stands on chain `log` and names no action."""

    about: Literal["start", "outcome"]
    action: str | UnsetType = UNSET
    ballot: str
    clock: Clock
    decision: Literal["approve", "reject", "modify", "halt", "done", "again", "abandon"]
    mail: MailRef | UnsetType = UNSET
    principal: str
    request: str | UnsetType = UNSET
    scope: Literal["once", "standing"]
    veto: bool = False


class VoteWithdrawn(Fact, frozen=True, kw_only=True):
    ballot: str
    clock: Clock
    mail: MailRef | UnsetType = UNSET
    principal: str


class MessageReceived(Fact, frozen=True, kw_only=True):
    """body: `text`, in the words of the user, and `statement`, the envelope of whoever vouches for them."""

    clock: Clock
    mail: MailRef
    principal: str


class MessageRefused(Fact, frozen=True, kw_only=True):
    """An incident when the reason is `forged`. body: `message`, as it came; of a flood of junk, how many there were and why."""

    mail: MailRef
    reason: Literal[
        "forged", "malformed", "not_waiting", "wrong_request", "wrong_action", "expired", "not_an_approver", "voted_already", "own_request",
        "duplicate", "ended", "vetoed",
    ]  # fmt: skip


class TimePassed(Fact, frozen=True, kw_only=True):
    housekeeping: ClassVar[bool] = True
    clock: Clock
    source: Literal["worker", "ledger"]


class EvidenceReached(Fact, frozen=True, kw_only=True):
    """Everything of the run up to `seq` stands under a checkpoint of `size` leaves and `root` (hex) that is signed, or cosigned too."""

    housekeeping: ClassVar[bool] = True
    level: Literal["sealed", "witnessed"]
    root: str
    seq: Int
    size: Int


# -- chain `log` -------------------------------------------------------------------------------------------------------------
class LogOpened(Fact, frozen=True, kw_only=True):
    """First record of the administrative chain. `quorum` of the administrator keys must sign what widens authority."""

    clock: Clock
    keys: tuple[NamedKey, ...]
    nonce: str
    origin: str
    quorum: Int


class RunRefused(Fact, frozen=True, kw_only=True):
    """A start (it takes a register number) or a resume (`run`, which stays where it was) was refused. body: `diagnosis`."""

    agent: str
    clock: Clock
    codes: tuple[str, ...]
    register: Register | UnsetType = UNSET
    run: str | UnsetType = UNSET


class PolicyChanged(Fact, frozen=True, kw_only=True):
    """Widens authority: body `statement` is a DSSE by the administrators."""

    agent: str
    clock: Clock
    new: str
    old: str


class KeyChanged(Fact, frozen=True, kw_only=True):
    """`new` alone enrols, both rotate, `old` alone revokes (narrowing: no statement needed). body: `statement`."""

    clock: Clock
    new: str | UnsetType = UNSET
    old: str | UnsetType = UNSET
    principal: str
    role: str


class HoldPlaced(Fact, frozen=True, kw_only=True):
    """Legal hold `hold`: what it names (a subject, by pseudonym, or a run; neither: everything) is not destroyed. body: `reason`."""

    clock: Clock
    ground: str
    hold: str
    principal: str
    run: str | UnsetType = UNSET
    subject: str | UnsetType = UNSET


class HoldLifted(Fact, frozen=True, kw_only=True):
    """Lets destroy what could not be: body `statement` is a DSSE by the administrators."""

    clock: Clock
    hold: str
    principal: str


class ErasureRequested(Fact, frozen=True, kw_only=True):
    """Nothing is destroyed before this. `after` (instant): not earlier; until then the keys are out of use, and can come back."""

    after: Int
    clock: Clock
    erasure: str
    ground: str
    principal: str
    subject: str | UnsetType = UNSET


class ErasureBlocked(Fact, frozen=True, kw_only=True):
    """What keeps it (GDPR 17(3)): a hold, a legal floor, an action whose outcome is open. It runs by itself when that is over."""

    clock: Clock
    erasure: str
    ground: Literal["hold", "floor", "open_action"]
    hold: str | UnsetType = UNSET
    run: str | UnsetType = UNSET


class Erased(Fact, frozen=True, kw_only=True):
    """The keys of these commitments are destroyed. A large erasure is told in several records."""

    clock: Clock
    commits: tuple[str, ...]
    erasure: str
    ground: str
    principal: str
    subject: str | UnsetType = UNSET


class Exported(Fact, frozen=True, kw_only=True):
    """Evidence was given away. body: `scope`, what was asked for and the digest of what was given."""

    clock: Clock
    kind: str
    principal: str


FACTS: dict[str, type[Fact]] = {
    t.__name__: t
    for t in (
        RunOpened, RunOwned, StopRequested, RunHalted, RunEnded, RunSealed,
        TurnStarted, ContextCompiled, GuardrailChecked, ModelCalled, ModelPriced, ModelReplied, ModelFailed,
        ActionProposed, ActionJudged, ActionStarted, CapabilityChecked, ActionDoubted, ActionEnded,
        ApprovalRequested, Voted, VoteWithdrawn, EvidenceReached, MessageReceived, MessageRefused, TimePassed,
        LogOpened, RunRefused, PolicyChanged, KeyChanged, HoldPlaced, HoldLifted, ErasureRequested, ErasureBlocked, Erased, Exported,
    )
}  # fmt: skip

F = TypeVar("F", bound=Fact, covariant=True)


# -- the envelope ------------------------------------------------------------------------------------------------------------
class Record(Struct, Generic[F], frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """One leaf. `prev` is the hash of seq-1, for genesis `genesis_prev`; `at` is a claim, ignored by replay."""

    actor: Actor | UnsetType = UNSET
    at: str
    body: tuple[BodyPart, ...] | UnsetType = UNSET
    causes: tuple[str, ...] | UnsetType = UNSET
    epoch: Int
    fact: F
    prev: str
    run: str
    seq: Int
    turn: Int
    type: str
    v: Int = 1


# Said once here: msgspec works a generic's annotations out anew for each of its forms, and every type of fact is one.
Record.__annotations__.update(get_type_hints(Record, include_extras=True))
AnyRecord = Record[Fact]
encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
EVENT = b"mandamus/v1/event\0"
_TAIL = b'","v":1}'
NEWEST = "again with the newest mandamus; if this is the newest, somebody changed the record: keep the file as evidence"


class _Readers(dict[bytes, tuple[str, Callable[[bytes], Record[Any]]]]):
    """The name and the typed decoder of a record by its last 20 bytes, made when first met.

    Twelve letters tell all types apart, but a name may be longer: whoever reads compares the whole of it.
    """

    def __missing__(self, end: bytes) -> tuple[str, Callable[[bytes], Record[Any]]]:
        name = _NAMES[end]
        fact = FACTS[name]
        self[end] = made = name, msgspec.json.Decoder(Record[fact]).decode  # type: ignore[valid-type]
        return made


END = 20
_NAMES = {(b'"type":"' + name.encode() + _TAIL)[-END:]: name for name in FACTS}
assert len(_NAMES) == len(FACTS), "two types of fact end alike: END must be longer"
READERS = _Readers()


def decode(raw: bytes) -> AnyRecord:
    """The record in canonical bytes. Raises ProofError when they are not canonical, not closed, or of an unknown type or version.

    `type` and `v` close every canonical record, so the decoder is chosen by the tail; re-encoding makes the choice safe.
    """
    try:
        name, read = READERS[raw[-END:]]
        record = read(raw)
    except (KeyError, msgspec.DecodeError, UnicodeError):
        raise _unreadable(raw) from None
    if encode(record) != raw or record.type != name or not raw.isascii():
        raise _unreadable(raw)
    return record


def _unreadable(raw: bytes) -> ProofError:
    """Why these bytes are no record."""
    start = raw.rfind(b'"type":"')
    if start < 0 or not raw.endswith(_TAIL):
        if _newer(raw):
            return ProofError("record has a version newer than this verifier", code="MDM-0602", fix=NEWEST)
        return ProofError("record does not end in its type and version", code="MDM-0601")
    name = raw[start + 8 : -len(_TAIL)].decode("ascii", "replace")
    if name not in FACTS:
        return ProofError(
            f"record type {name[:40]!r} is not known", code="MDM-0602", why="a newer mandamus wrote it, or somebody changed the record",
            fix=NEWEST,
        )  # fmt: skip
    try:
        READERS[raw[-END:]][1](raw)
    except (msgspec.DecodeError, UnicodeError) as error:
        return ProofError(f"record does not parse: {error}", code="MDM-0601")
    return ProofError("record is not in canonical form", code="MDM-0601", why="two readers could read it differently")


def _newer(raw: bytes) -> bool:
    """True for a well-formed record of a version that this code does not know yet; version 0 and below never existed."""
    tail = raw[raw.rfind(b',"v":') + 5 : -1] if raw.endswith(b"}") else b""
    return tail.isdigit() and not tail.startswith(b"0") and tail != b"1"  # no number is made of it: it may have any length


def event_hash(raw: bytes) -> str:
    """The name of an event, and what the next one calls `prev`."""
    return hashlib.sha256(EVENT + raw).hexdigest()


def genesis_prev(run: str, opened: RunOpened | LogOpened) -> str:
    """`prev` of seq 0. Chain `log` has no manifest and no anchor; its fields are empty there."""
    if isinstance(opened, LogOpened):
        manifest, anchor = "", {"root": EMPTY_ROOT, "size": 0}
    else:
        manifest, anchor = opened.manifest, {"root": opened.anchor.root, "size": opened.anchor.size}
    return digest("genesis", canon({"anchor": anchor, "manifest": manifest, "nonce": opened.nonce, "origin": opened.origin, "run": run}))


EMPTY_ROOT = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
LOG = "log"
