"""The small closed structs inside facts: who, how much, which. Field for field they are bytes of records (docs/concepts/record-format.md).

The rule a newcomer would break: a released one never changes, no more than the fact that it stands in. Fields stand in sorted order;
an optional one is absent, never null.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mandamus.core.canonical import INT_MAX

Int = Annotated[int, msgspec.Meta(ge=-INT_MAX, le=INT_MAX)]  # beyond it two JSON readers differ; the decoder refuses it


class Part(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """Base of the small closed structs inside facts."""


class Actor(Part, frozen=True, kw_only=True):
    agent: str
    principal: str
    runtime: str


class Anchor(Part, frozen=True, kw_only=True):
    """The newest witnessed checkpoint when the run began; without a witness: size 0, root SHA-256("")."""

    root: str
    size: Int


class Ask(Part, frozen=True, kw_only=True):
    """What an escalation waits for. `people`: `chain` and `quorum` of distinct verified principals. `log`: `chain` is the level that the
    proposal must reach, "sealed" or "witnessed", nobody is counted, and `within` (milliseconds) is how long it may take."""

    chain: str
    quorum: Int
    to: Literal["people", "log"] = "people"
    within: Int | UnsetType = UNSET


class BodyPart(Part, frozen=True, kw_only=True, rename={"class_": "class"}):
    """One payload of a record, by its salted commitment."""

    class_: str
    commit: str
    media: str
    part: str
    subject: str | UnsetType = UNSET


class BudgetLimits(Part, frozen=True, kw_only=True):
    """Limits of one run. Tokens and calls are counts; cost is micro-units of `currency`; wall is milliseconds."""

    calls: Int | UnsetType = UNSET
    cost: Int | UnsetType = UNSET
    currency: str | UnsetType = UNSET
    denials: Int = 3
    retries: Int = 5
    tokens: Int | UnsetType = UNSET
    turns: Int = 20
    wall_ms: Int | UnsetType = UNSET


class Grant(Part, frozen=True, kw_only=True):
    """What a parent left to its child: tools by name. Absent at the top."""

    tools: tuple[str, ...]


class Issued(Part, frozen=True, kw_only=True):
    """A capability as issued for one attempt, and what enforces it."""

    capability: str
    mechanism: str


class Layer(Part, frozen=True, kw_only=True):
    """One layer's answer. Order of force: error > deny > escalate > transform > allow."""

    layer: str
    of: str | UnsetType = UNSET
    verdict: str


class MailRef(Part, frozen=True, kw_only=True):
    """Which message of the mailbox a fact came from."""

    cursor: Int
    key: str


class NamedKey(Part, frozen=True, kw_only=True):
    key: str
    principal: str | UnsetType = UNSET
    role: str


class Parent(Part, frozen=True, kw_only=True):
    hash: str
    kind: Literal["handoff", "fork", "thread"]
    run: str
    seq: Int


class Register(Part, frozen=True, kw_only=True):
    number: Int
    prev: str


class Reserve(Part, frozen=True, kw_only=True):
    """Reserved on, or spent from, an account: an integer in the account's unit."""

    account: str
    amount: Int


class Usage(Part, frozen=True, kw_only=True):
    """Tokens of one model call. `estimated` is true when the provider named none and they were counted here."""

    cache_read: Int = 0
    cache_write: Int = 0
    estimated: bool = False
    input: Int = 0
    output: Int = 0
    reasoning: Int = 0

    @property
    def total(self) -> int:
        return self.input + self.output


class User(Part, frozen=True, kw_only=True):
    """On whose behalf the run acts; from a login or the `user` option, never from the prompt."""

    principal: str
    roles: tuple[str, ...] = ()
