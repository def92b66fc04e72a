"""What the loop needs to know of an agent and its tools: frozen, with a digest. The callables stay in the shell."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mandamus.core.canonical import canon, digest
from mandamus.core.data import AnnexIII, Basis, DataClass, Retention
from mandamus.core.price import Price
from mandamus.core.records import BudgetLimits

Safety = Literal["read", "write", "network", "financial", "privileged"]
EffectClass = Literal["read", "idempotent", "keyed", "reconcilable", "irreversible"]
CONSEQUENTIAL = ("financial", "privileged")


class RetryRule(Struct, frozen=True):
    """`attempts` in all, the first included; wait `backoff_ms` * 2^(n-1) between them."""

    attempts: int = 1
    backoff_ms: int = 200


class ToolSpec(Struct, frozen=True, kw_only=True):
    """The contract of one tool. `pin` is the digest of the whole of it.

    `amount` and `counterparty` name the arguments that policy counts; `control` those that say where an effect goes.
    """

    name: str
    description: str
    safety: Safety
    effect: EffectClass
    data: DataClass
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    amount: str = ""
    counterparty: str = ""
    reconciles: bool = False
    reconciler: str = ""
    forbids: bool = False
    retry: RetryRule = RetryRule()
    timeout_ms: int = 60_000
    key_life_ms: int = 86_400_000
    max_output: int = 64 * 1024 * 1024
    source: str = ""
    agent: str = ""
    pin: str = ""

    @property
    def kind(self) -> Literal["invoke", "handoff"]:
        return "handoff" if self.agent else "invoke"


def pinned(spec: ToolSpec) -> ToolSpec:
    """The spec with its pin: SHA-256 over the JCS of the whole record."""
    whole = msgspec.to_builtins(msgspec.structs.replace(spec, pin=""))
    return msgspec.structs.replace(spec, pin=digest("pin", canon(whole)))


class AgentSpec(Struct, frozen=True, kw_only=True):
    """The agent as data. `digest()` is the `definition` of genesis."""

    name: str
    purpose: str
    lawful_basis: Basis | None
    annex_iii: AnnexIII
    art22_decision: bool
    model: str
    instructions: str
    tools: tuple[ToolSpec, ...]
    output_schema: dict[str, Any]
    budget: BudgetLimits
    guardrails: tuple[tuple[str, str, str], ...] = ()  # point, name, source digest
    plugins: tuple[tuple[str, str, str], ...] = ()  # name, version, digest
    roles: tuple[str, ...] = ()
    retentions: tuple[Retention, ...] = ()
    oversight: str = ""
    environment: str = ""
    timezone: str = "UTC"
    window: int = 128_000
    profile: Literal["none", "gdpr", "ai_act"] = "none"
    price: Price | UnsetType = UNSET

    def digest(self) -> str:
        return digest("definition", canon(msgspec.to_builtins(self)))

    def tool(self, name: str) -> ToolSpec | None:
        return next((t for t in self.tools if t.name == name), None)
