"""The fact envelope: the closed, typed question that every policy engine gets, and what policy consists of.

Facts are computed, recorded and never looked up again: replay and re-evaluation read the recorded bytes.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from mandamus.core.clock import LocalTime
from mandamus.core.records import Ask


class _Group(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class PrincipalFacts(_Group, kw_only=True, frozen=True):
    agent: str
    annex_iii: str
    basis: str
    depth: int
    purpose: str
    roles: tuple[str, ...]
    tenant: str


class ActionFacts(_Group, kw_only=True, frozen=True):
    attempt: int
    data: str
    effect: str
    kind: str
    pin: str
    repeats: bool
    safety: str
    tool: str


class AmountFacts(_Group, kw_only=True, frozen=True):
    """Present when the tool takes Money. `minor` counts 10^-exponent(currency), rounded up (core.money.minor)."""

    counterparty: str = ""
    currency: str
    minor: int


class UserFacts(_Group, kw_only=True, frozen=True):
    principal: str = ""
    roles: tuple[str, ...] = ()


class ContextFacts(_Group, kw_only=True, frozen=True):
    environment: str
    tier: str
    user: UserFacts


class PeopleFacts(_Group, kw_only=True, frozen=True):
    """Votes that count: verified, unexpired, for this action digest, distinct principals, unconsumed elsewhere.

    `met` names the chains whose quorum is reached; `allowed`, for each standing vote that covers this call, the chain in which it is
    one vote. Which allowances those are, the intent's reservations say.
    """

    allowed: tuple[str, ...] = ()
    approved: int = 0
    met: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


class RunFacts(_Group, kw_only=True, frozen=True):
    calls: int
    denials: int
    tokens: int
    turn: int


class FactEnvelope(_Group, kw_only=True, frozen=True):
    """`args`: the validated arguments; floats as their canonical text, null absent, integers beyond 2^53-1 as digit strings.

    `sums`: per limit of the rule book, spent + reserved in the current window, before this action.
    """

    action: ActionFacts
    amount: AmountFacts | UnsetType = UNSET
    args: dict[str, Any]
    clock: LocalTime
    context: ContextFacts
    people: PeopleFacts
    principal: PrincipalFacts
    run: RunFacts
    sums: dict[str, int]


class Determining(Struct, frozen=True, kw_only=True):
    """One rule that decided. `reason` is shown to people, never to the model."""

    id: str
    name: str = ""
    reason: str = ""
    verdict: str


class Judgement(Struct, frozen=True, kw_only=True):
    """An engine's answer for the layer *policy*. `asks` only with `escalate`; `errors` non-empty only with `error`."""

    verdict: Literal["allow", "escalate", "deny", "error"]
    determining: tuple[Determining, ...] = ()
    asks: tuple[Ask, ...] = ()
    reason: str = ""
    errors: tuple[str, ...] = ()
    on_deny: Literal["feedback", "halt"] = "feedback"
    engine: str = ""
    policy: str = ""


class Limit(Struct, frozen=True, kw_only=True):
    """A counted limit. Unit: minor units of `currency`, or calls when it is empty. `window`: calendar day in the agent's zone, or run."""

    id: str
    limit: int
    currency: str = ""
    window: Literal["day", "run"] = "day"
    per: Literal["agent", "tenant", "counterparty"] = "agent"
    safety: tuple[str, ...] = ("financial",)
    tools: tuple[str, ...] = ()


class Tier(Struct, frozen=True, kw_only=True):
    """One step of an approval chain. `of`: principals or `role:NAME`; `sod` names who may not vote."""

    quorum: int
    of: tuple[str, ...] = ()
    veto: tuple[str, ...] = ()
    deadline_ms: int = 3_600_000
    sod: tuple[Literal["requester", "author"], ...] = ("requester", "author")


class Chain(Struct, frozen=True, kw_only=True):
    """Tiers in order: when one's deadline passes, the next may vote; after the last the request is *expired*, a verdict by rule."""

    id: str
    tiers: tuple[Tier, ...]
    on_reject: Literal["", "feedback", "terminate"] = ""

    @property
    def total_ms(self) -> int:
        return sum(t.deadline_ms for t in self.tiers)


class RuleBook(Struct, frozen=True, kw_only=True):
    """What the loop must know of a policy besides asking it: limits to reserve on, chains to ask, its digest and its texts."""

    digest: str
    limits: tuple[Limit, ...] = ()
    chains: dict[str, Chain] = {}
    on_deny: Literal["feedback", "halt"] = "feedback"
    texts: dict[str, str] = {}
    default: Literal["deny", "allow"] = "deny"
    covered: tuple[str, ...] = ()


DEFAULT_CHAIN = Chain(id="default", tiers=(Tier(quorum=1),))
