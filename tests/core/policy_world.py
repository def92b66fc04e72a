"""A small world of tools and well-formed facts for the tests of policy."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET

from mandamus.core.clock import LocalTime
from mandamus.core.data import Business, Confidential, name_of, none
from mandamus.core.definition import ToolSpec, pinned
from mandamus.core.facts import (
    ActionFacts,
    AmountFacts,
    ContextFacts,
    FactEnvelope,
    Judgement,
    PeopleFacts,
    PrincipalFacts,
    RunFacts,
    UserFacts,
)
from mandamus.core.money import Money
from mandamus.drivers.policy_cedar import CedarEngine
from mandamus.ports import PolicyEngine


def schema(kind: Any) -> dict[str, Any]:
    return msgspec.json.schema(kind)


class Pay(msgspec.Struct):
    to: str
    amount: Money
    memo: str | None = None


class Look(msgspec.Struct):
    key: str


class Mail(msgspec.Struct):
    to: str
    copies: int


def tool(name: str, safety: Any, effect: Any, kind: Any, **more: Any) -> ToolSpec:
    data = (
        Confidential(subject=none("own"), retention="books") if safety == "financial" else Business(subject=none("own"), retention="books")
    )
    spec = ToolSpec(
        name=name, description=name, safety=safety, effect=effect, data=data, input_schema=schema(kind), output_schema={}, **more
    )
    return pinned(spec)


PAY = tool("pay", "financial", "keyed", Pay, amount="amount", counterparty="to")
WIRE = tool("wire", "financial", "irreversible", Pay, amount="amount", counterparty="to")
CLOSE = tool("close_account", "financial", "irreversible", Look)
LOOK = tool("look", "read", "read", Look)
WRITE = tool("write", "write", "idempotent", Look)
MAIL = tool("mail", "network", "keyed", Mail)
ADMIN = tool("admin", "privileged", "keyed", Look)
ASK = tool("ask_helper", "network", "keyed", Look, agent="helper")
TOOLS = (PAY, WIRE, CLOSE, LOOK, WRITE, MAIL, ADMIN, ASK)
NAMES = frozenset(t.name for t in TOOLS)
ANYTHING = {"id": "any", "permit": {}}
FRIDAY = LocalTime("2026-11-20", 10, 0, "UTC", "friday")


def facts(
    spec: ToolSpec = PAY,
    *,
    minor: int = 50_000,
    currency: str = "USD",
    to: str = "acme",
    roles: tuple[str, ...] = ("treasury",),
    tenant: str = "t",
    at: LocalTime = FRIDAY,
    met: tuple[str, ...] = (),
    allowed: tuple[str, ...] = (),
    sums: dict[str, int] | None = None,
    turn: int = 1,
    calls: int = 0,
    args: dict[str, Any] | None = None,
) -> FactEnvelope:
    if args is None:
        money = {"amount": str(minor), "currency": currency, "decimals": 2}
        args = {"to": to, "amount": money} if spec.amount else {"to": to, "copies": 1} if spec is MAIL else {"key": "k"}
    return FactEnvelope(
        action=ActionFacts(
            attempt=1,
            data=name_of(spec.data),
            effect=spec.effect,
            kind=spec.kind,
            pin=spec.pin,
            repeats=False,
            safety=spec.safety,
            tool=spec.name,
        ),
        amount=AmountFacts(counterparty=to, currency=currency, minor=minor) if spec.amount else UNSET,
        args=args,
        clock=at,
        context=ContextFacts(environment="test", tier="dev", user=UserFacts()),
        people=PeopleFacts(approved=len(met), met=met, allowed=allowed),
        principal=PrincipalFacts(agent="payout", annex_iii="none", basis="", depth=0, purpose="pay", roles=roles, tenant=tenant),
        run=RunFacts(calls=calls, denials=0, tokens=0, turn=turn),
        sums=sums or {},
    )


def judged(engine: PolicyEngine, question: FactEnvelope) -> Judgement:
    return asyncio.run(engine.decide(question))


def cedar(*rules: dict[str, Any], tools: tuple[ToolSpec, ...] = TOOLS) -> CedarEngine:
    return CedarEngine.load(list(rules), tools)
