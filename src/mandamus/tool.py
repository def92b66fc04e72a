"""What an agent may ask for: `@tool(...)` makes a typed contract out of a function; its pin is the digest of the whole contract.

A tool gets `ctx` and its validated arguments, never sibling tools and never a model. `safety` and `data` are required; `effect`
defaults to "irreversible", which is said once when the agent starts.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import typing
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from mandamus.core.data import DataClass, NoSubject, SubjectRef, name_of
from mandamus.core.definition import CONSEQUENTIAL, Effect, RetryRule, Safety, ToolSpec, pinned
from mandamus.core.money import Money
from mandamus.core.schema import closed_schema
from mandamus.errors import Misuse

SAFETIES = typing.get_args(Safety)
EFFECTS = typing.get_args(Effect)


class Found(Struct, frozen=True):
    """The operation happened; `outcome` is what the tool would have returned."""

    outcome: Any


class Absent(Struct, frozen=True):
    """The operation did not happen, by a strongly consistent read at the other side. `evidence` says how that is known."""

    evidence: str = ""


class Unclear(Struct, frozen=True):
    """The other side cannot say."""

    reason: str = ""


Finding = Found | Absent | Unclear


class Reconciler(Protocol):
    """Asks the other side about one operation of one tool. `forbid`, when there is one, makes it refuse the id from now on."""

    async def find(self, operation_id: str) -> Finding: ...


class Receipt(Struct, frozen=True):
    """What a payment answers: the other side's own reference."""

    id: str
    status: str = "accepted"


def Retry(attempts: int = 1, backoff_ms: int = 200) -> RetryRule:  # noqa: N802 - a value's constructor, as API.md spells it
    """`attempts` in all, the first included."""
    if attempts < 1 or backoff_ms < 0:
        raise Misuse("retry: attempts >= 1 and backoff_ms >= 0", code="MDM-0213")
    return RetryRule(attempts, backoff_ms)


class Tool:
    """A function under its contract. Frozen; `spec` is data, `fn` stays in this process."""

    __slots__ = ("agent", "arguments", "fn", "is_async", "reconcile", "result", "said_effect", "spec", "takes_ctx")

    def __init__(
        self, spec: ToolSpec, fn: Callable[..., Any], arguments: type[Struct], result: Any, takes_ctx: bool, reconcile: Any = None, said_effect: bool = True, agent: Any = None
    ) -> None:
        self.spec, self.fn, self.arguments, self.result = spec, fn, arguments, result
        self.takes_ctx, self.reconcile, self.said_effect, self.agent = takes_ctx, reconcile, said_effect, agent
        self.is_async = inspect.iscoroutinefunction(fn)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pin(self) -> str:
        return self.spec.pin

    def __repr__(self) -> str:
        return f"Tool({self.spec.name}, {self.spec.safety}, {self.spec.effect}, {name_of(self.spec.data)})"

    @classmethod
    def of(cls, fn: Callable[..., Any], **contract: Any) -> Tool:
        """For functions that you do not own; the same arguments as `@tool`."""
        return tool(**contract)(fn)

    def validate(self, args: dict[str, Any]) -> tuple[dict[str, Any], Struct]:
        """(arguments as plain JSON, arguments as values). Raises msgspec.ValidationError, which names the field."""
        value = msgspec.convert(args, self.arguments, strict=True)
        return msgspec.to_builtins(value), value


def tool(
    *,
    safety: Safety,
    data: DataClass,
    effect: Effect | None = None,
    name: str = "",
    description: str = "",
    retry: RetryRule | None = None,
    timeout: str | float = "60s",
    reconcile: Any = None,
    amount: str = "",
    counterparty: str = "",
    key_life: str | float = "24h",
    max_output: int = 64 * 1024 * 1024,
) -> Callable[[Callable[..., Any]], Tool]:
    """`@tool(safety="financial", effect="keyed", data=Confidential(...))` above a typed function.

    Name, description, input and output come from the function. `amount` names the Money argument that policy counts (found by its
    type when there is one), `counterparty` the argument that says where it goes. Raises Misuse with the field and the fix.
    """

    def make(fn: Callable[..., Any]) -> Tool:
        label = name or fn.__name__
        arguments, result, takes_ctx, money = _signature(fn, label)
        chosen: Effect = effect or "irreversible"
        _legal(label, safety, chosen, data, arguments, reconcile, bool(description or fn.__doc__))
        spec = ToolSpec(
            name=label, description=inspect.cleandoc(description or fn.__doc__ or ""), safety=safety, effect=chosen, data=data,
            input_schema=closed_schema(arguments), output_schema={} if result is Any else closed_schema(result),
            amount=_argument(label, "amount", amount or money, arguments), counterparty=_argument(label, "counterparty", counterparty or _guess(arguments), arguments),
            reconciles=reconcile is not None, reconciler=source_digest(type(reconcile) if reconcile is not None else None),
            forbids=hasattr(reconcile, "forbid"), retry=retry or RetryRule(), timeout_ms=milliseconds(timeout, "timeout"),
            key_life_ms=milliseconds(key_life, "key_life"), max_output=max_output, source=source_digest(fn),
        )  # fmt: skip
        return Tool(pinned(spec), fn, arguments, result, takes_ctx, reconcile, effect is not None)

    return make


def milliseconds(text: str | float, field: str) -> int:
    """"30s", "5m", "1h", "250ms", or a number of seconds."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return int(text * 1000)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", str(text).strip())
    if not match:
        raise Misuse(f"{field}: {text!r} is no duration", code="MDM-0212", expected='such as "30s", "5m", "1h"')
    return int(float(match[1]) * {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[match[2]])


def source_digest(thing: Any) -> str:
    """Digest of a function's or class's source text; "" when there is none to read. It names code, it does not prove what ran."""
    if thing is None:
        return ""
    try:
        return hashlib.sha256(inspect.getsource(thing).encode()).hexdigest()
    except (OSError, TypeError):
        return hashlib.sha256(f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', thing)}".encode()).hexdigest()


def _signature(fn: Callable[..., Any], label: str) -> tuple[type[Struct], Any, bool, str]:
    try:
        hints = typing.get_type_hints(fn, include_extras=True)
    except NameError as error:
        raise Misuse(f"tool {label!r}: {error}", code="MDM-0210", fix="import the type at module level") from None
    fields: list[Any] = []
    takes_ctx, money = False, ""
    for i, p in enumerate(inspect.signature(fn).parameters.values()):
        if i == 0 and p.name == "ctx":
            takes_ctx = True
            continue
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or p.name not in hints:
            raise Misuse(f"tool {label!r}: argument {p.name!r} has no type", code="MDM-0210", fix=f"write {p.name}: str (or another type) in its signature")
        fields.append((p.name, hints[p.name]) if p.default is p.empty else (p.name, hints[p.name], p.default))
        if hints[p.name] is Money and not money:
            money = p.name
    arguments = msgspec.defstruct(f"{label}_arguments", fields, frozen=True, kw_only=True, forbid_unknown_fields=True)
    result = hints.get("return", Any)
    if typing.get_origin(result) is Awaitable:
        result = typing.get_args(result)[0]
    return arguments, result, takes_ctx, money


def _guess(arguments: type[Struct]) -> str:
    return next((f for f in arguments.__struct_fields__ if f in ("to", "counterparty", "recipient", "payee")), "")


def _argument(label: str, field: str, name: str, arguments: type[Struct]) -> str:
    if name and name not in arguments.__struct_fields__:
        raise Misuse(f"tool {label!r}: {field}={name!r} is none of its arguments", code="MDM-0214", expected=", ".join(arguments.__struct_fields__))
    return name


def _legal(label: str, safety: str, effect: str, data: Any, arguments: type[Struct], reconcile: Any, described: bool) -> None:
    where = f"tool {label!r}"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", label):
        raise Misuse(f"{where}: a name is 1 to 64 letters, digits, _ and -", code="MDM-0215")
    if safety not in SAFETIES:
        raise Misuse(f"{where}: safety", code="MDM-0201", expected=" ".join(SAFETIES), found=repr(safety))
    if effect not in EFFECTS:
        raise Misuse(f"{where}: effect", code="MDM-0202", expected=" ".join(EFFECTS), found=repr(effect))
    if not isinstance(data, DataClass):
        raise Misuse(f"{where}: data", code="MDM-0203", expected="a class of mandamus.data", found=type(data).__name__, fix='data=Business(subject=none("…"), retention="standard")')
    if safety in CONSEQUENTIAL and effect in ("read", "idempotent"):
        raise Misuse(f"{where}: a {safety} tool cannot have effect {effect!r}", code="MDM-0204", expected="keyed, reconcilable or irreversible", why="a repeat would be a second deed")
    if safety == "write" and effect == "read":
        raise Misuse(f'{where}: safety "write" and effect "read" contradict', code="MDM-0205", fix='safety="read", or another effect')
    if effect == "reconcilable" and not hasattr(reconcile, "find"):
        raise Misuse(f"{where}: reconcilable without a reconciler", code="MDM-0206", fix="reconcile=YourReconciler() with async find(operation_id)")
    if not described:
        raise Misuse(f"{where}: no description", code="MDM-0207", fix="write a docstring: the approver and the model read it")
    ref = getattr(data, "subject", None)
    if isinstance(ref, SubjectRef) and ref.argument not in arguments.__struct_fields__:
        raise Misuse(f"{where}: subject({ref.argument!r}) is none of its arguments", code="MDM-0208", expected=", ".join(arguments.__struct_fields__))
    assert ref is None or isinstance(ref, SubjectRef | NoSubject)
