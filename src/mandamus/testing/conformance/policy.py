"""The fault battery of policy engines: a good question is damaged in every way; nothing but `error` will do.

from mandamus.testing.conformance.policy import battery

class MyEngine:
    name = "mine"
    def sound(self): return MyPolicy(...)     # judges `payment()` under `TOOLS` and `LIMITS`
    def failing(self): return MyPolicy(...)   # the same, with a forbid that fails when it is evaluated
    def broken(self): return MyPolicy(...)    # built from a policy that cannot be read: raises Misuse or EngineFault

rows = await battery(MyEngine())
assert all(row.ok for row in rows), [row for row in rows if not row.ok]

The rule a newcomer would break: `deny` is not good enough. A fault that is told as a verdict of the rules hides that they were not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, Struct, defstruct
from msgspec.structs import replace

from mandamus.core.clock import LocalTime
from mandamus.core.data import Confidential, none
from mandamus.core.definition import ToolSpec, pinned
from mandamus.core.facts import ActionFacts, AmountFacts, ContextFacts, FactEnvelope, PeopleFacts, PrincipalFacts, RunFacts, UserFacts
from mandamus.errors import EngineFault, Misuse
from mandamus.ports import PolicyEngine

_MONEY = {
    "type": "object",
    "properties": {"amount": {"type": "string"}, "currency": {"type": "string"}, "decimals": {"type": "integer"}},
    "required": ["amount", "currency", "decimals"],
}
TOOL = pinned(
    ToolSpec(
        name="send_payment",
        description="Transfer corporate funds.",
        safety="financial",
        effect="keyed",
        data=Confidential(subject=none("own account"), retention="books"),
        input_schema={
            "type": "object",
            "properties": {"to": {"type": "string"}, "amount": _MONEY, "urgent": {"type": "boolean"}, "copies": {"type": "integer"}},
            "required": ["to", "amount", "urgent", "copies"],
        },
        output_schema={"type": "object"},
        amount="amount",
        counterparty="to",
    )
)
TOOLS = (TOOL,)
LIMIT = "pay.daily"
LIMITS = frozenset((LIMIT,))


class Subject(Protocol):
    """An engine under test. Its sound policy answers `payment()` with a verdict that is not `error`."""

    @property
    def name(self) -> str: ...

    def sound(self) -> PolicyEngine: ...

    def failing(self) -> PolicyEngine: ...

    def broken(self) -> PolicyEngine: ...


class Row(Struct, frozen=True):
    """One cell of the table: which fault, done to which fact, and what the engine made of it."""

    fault: str
    damage: str
    verdict: str

    @property
    def ok(self) -> bool:
        return self.verdict == ("answered" if self.fault == "F0 none" else "error")


def payment() -> FactEnvelope:
    """A well-formed question: 500.00 USD to acme, 49,999.99 USD spent today."""
    return FactEnvelope(
        action=ActionFacts(
            attempt=1, data="confidential", effect="keyed", kind="invoke", pin=TOOL.pin, repeats=False, safety="financial", tool=TOOL.name
        ),
        amount=AmountFacts(counterparty="acme", currency="USD", minor=50_000),
        args={"to": "acme", "amount": {"amount": "50000", "currency": "USD", "decimals": 2}, "urgent": False, "copies": 1},
        clock=LocalTime("2026-11-20", 10, 30, "UTC", "friday"),
        context=ContextFacts(environment="test", tier="dev", user=UserFacts(principal="u-1", roles=("clerk",))),
        people=PeopleFacts(),
        principal=PrincipalFacts(
            agent="payout", annex_iii="none", basis="", depth=0, purpose="pay invoices", roles=("treasury",), tenant="suite"
        ),
        run=RunFacts(calls=0, denials=0, tokens=100, turn=1),
        sums={LIMIT: 4_999_999},
    )


async def battery(subject: Subject) -> list[Row]:
    """F1 to F10, every fact in turn. The first row is the undamaged question, which must be answered."""
    engine = subject.sound()
    before = (await engine.decide(payment())).verdict
    rows = [Row("F0 none", "nothing", "error" if before == "error" else "answered")]
    for fault, damage, facts in damaged(payment()):
        rows.append(Row(fault, damage, await _verdict(engine, facts)))
    rows.append(Row("F9 a forbid that errors", "policy", await _verdict(subject.failing(), payment())))
    rows.append(Row("F10 policy does not parse or validate", "policy", await _broken(subject)))
    after = (await engine.decide(payment())).verdict  # a fault leaves nothing behind
    return [*rows, Row("F0 none", "nothing, afterwards", "answered" if after == before != "error" else "error")]


async def _verdict(engine: PolicyEngine, facts: Any) -> str:
    try:
        return (await engine.decide(facts)).verdict
    except Exception as error:
        return f"raised {type(error).__name__}"


async def _broken(subject: Subject) -> str:
    try:
        engine = subject.broken()
        await engine.check()
    except (Misuse, EngineFault):
        return "error"
    return await _verdict(engine, payment())


# -- damage ----------------------------------------------------------------------------------------------------------------------
def damaged(facts: FactEnvelope) -> Iterator[tuple[str, str, Any]]:
    """(fault, which fact, the damaged facts), for every fact of the envelope, of the arguments and of the sums."""
    for path, value in _leaves(facts):
        where = ".".join(path)
        for fault, bad in _bad_values(value):
            yield fault, where, _with(facts, path, _to(bad))
        yield "F1 fact missing", where, _with(facts, path, None)
        yield "F4 misspelt", where, _with(facts, path, None, path[-1] + "s")
    for group in _groups(facts):
        yield "F1 fact missing", ".".join(group), _with(facts, group, lambda _: UNSET)
        yield "F2 wrong type", ".".join(group), _with(facts, group, lambda v: "a text")
        yield "F3 null", ".".join(group), _with(facts, group, lambda _: None)
        yield "F8 extra fact", ".".join(group), _with(facts, (*group, "shadow"), lambda _: True)
    yield "F8 extra fact", "the envelope", _lookalike(facts, "shadow", True)
    yield "F1 fact missing", "the envelope", msgspec.to_builtins(facts)


def _bad_values(value: Any) -> Iterator[tuple[str, Any]]:
    yield "F3 null", None
    if type(value) is int:
        yield "F2 wrong type", str(value)
        yield "F2 wrong type", True
        yield "F5 float", float(value)
        yield "F5 float", float("nan")
        yield "F6 overflow", 2**63 - 1
        yield "F6 overflow", -(2**63)
        yield "F7 beyond 2^53", 2**53
        yield "F7 beyond 2^53", 2**53 + 1
    elif type(value) is bool:
        yield "F2 wrong type", int(value)
        yield "F2 wrong type", str(value)
    elif type(value) is str:
        yield "F2 wrong type", 7
        yield "F2 wrong type", value.encode()
        yield "F2 wrong type", "\ud800"  # no canonical bytes
        yield "F5 float", 1.5
    elif type(value) is tuple:
        yield "F2 wrong type", "treasury"
        yield "F2 wrong type", (1,)
        yield "F2 wrong type", {"treasury"}


def _groups(facts: FactEnvelope) -> list[tuple[str, ...]]:
    names: list[tuple[str, ...]] = [(name,) for name in facts.__struct_fields__]
    return [*names, ("context", "user"), ("args", "amount")]


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Struct):
        for name in value.__struct_fields__:
            yield from _leaves(getattr(value, name), (*path, name))
    elif type(value) is dict:
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    else:
        yield path, value


_Change = Callable[[Any], Any] | None


def _to(value: Any) -> Callable[[Any], Any]:
    return lambda _: value


def _with(value: Any, path: tuple[str, ...], change: _Change, rename: str = "") -> Any:
    """A copy with one fact changed, added, taken out (`change` None) or put under another name."""
    name, rest = path[0], path[1:]
    if type(value) is dict:
        return _with_key(value, name, rest, change, rename)
    if rest:
        return replace(value, **{name: _with(getattr(value, name), rest, change, rename)})
    if change is not None and name in value.__struct_fields__:
        return replace(value, **{name: change(getattr(value, name))})
    if change is not None:
        return _lookalike(value, name, change(None))
    return _lookalike(value, rename, getattr(value, name), without=name)


def _with_key(value: dict[str, Any], name: str, rest: tuple[str, ...], change: _Change, rename: str) -> dict[str, Any]:
    if rest:
        return {**value, name: _with(value[name], rest, change, rename)}
    if change is not None:
        return {**value, name: change(value.get(name))}
    kept = {k: v for k, v in value.items() if k != name}
    return {**kept, rename: value[name]} if rename else kept


def _lookalike(value: Struct, extra: str, held: Any, without: str = "") -> Any:
    """A Struct of the same name with one field more or less: what a careless builder of facts would make."""
    fields = {n: getattr(value, n) for n in value.__struct_fields__ if n != without} | ({extra: held} if extra else {})
    made = defstruct(type(value).__name__, [(n, Any) for n in fields], frozen=True)
    return made(**fields)
