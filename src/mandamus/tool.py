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
from math import isfinite
from typing import Any

import msgspec
from msgspec import Struct

from mandamus._arguments import checked
from mandamus.core.data import DataClass, SubjectRef, name_of
from mandamus.core.definition import CONSEQUENTIAL, EffectClass, RetryRule, Safety, ToolSpec, pinned
from mandamus.core.money import Money
from mandamus.core.schema import closed_schema
from mandamus.errors import Misuse

SAFETIES = typing.get_args(Safety)
EFFECTS = typing.get_args(EffectClass)


class Found(Struct, frozen=True):
    """The operation happened; `outcome` is what the tool would have returned."""

    outcome: Any


class Absent(Struct, frozen=True):
    """The operation did not happen, by a strongly consistent read at the other side. `evidence` says how that is known."""

    evidence: str = ""


class Unclear(Struct, frozen=True):
    """The other side cannot say."""

    reason: str = ""


class Receipt(Struct, frozen=True):
    """What a payment answers: the other side's own reference."""

    id: str
    status: str = "accepted"


def Retry(attempts: int = 1, backoff_ms: int = 200) -> RetryRule:
    """`attempts` in all, the first included; between them `backoff_ms` milliseconds, doubled each time. Raises Misuse."""
    if type(attempts) is not int or type(backoff_ms) is not int or attempts < 1 or backoff_ms < 0:
        raise Misuse("retry: attempts >= 1 and backoff_ms >= 0, whole numbers", code="MDM-0213")
    return RetryRule(attempts, backoff_ms)


class Tool:
    """A function under its contract. Frozen; `spec` is data, `fn` stays in this process."""

    __slots__ = ("agent", "arguments", "fn", "is_async", "reconcile", "result", "said_effect", "spec", "takes_ctx")
    agent: Any
    arguments: type[Struct]
    fn: Callable[..., Any]
    is_async: bool
    reconcile: Any
    result: Any
    said_effect: bool
    spec: ToolSpec
    takes_ctx: bool

    def __init__(
        self, spec: ToolSpec, fn: Callable[..., Any], arguments: type[Struct], result: Any, takes_ctx: bool, reconcile: Any = None,
        said_effect: bool = True, agent: Any = None,
    ) -> None:  # fmt: skip
        values = {
            "agent": agent, "arguments": arguments, "fn": fn, "is_async": _is_async(fn), "reconcile": reconcile, "result": result,
            "said_effect": said_effect, "spec": spec, "takes_ctx": takes_ctx,
        }  # fmt: skip
        for field, value in values.items():
            object.__setattr__(self, field, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise Misuse(
            f"a tool is frozen: {name!r} cannot be set",
            code="MDM-0218",
            why="its pin would no longer be true",
            fix="make another with @tool(...)",
        )

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

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
        value = self.values(args)
        return msgspec.to_builtins(value), value

    def values(self, args: dict[str, Any]) -> Struct:
        return msgspec.convert(args, self.arguments, strict=True)


def tool(
    *,
    safety: Safety,
    data: DataClass,
    effect: EffectClass | None = None,
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
    type when there is one), `counterparty` the argument that says where it goes. `timeout` and `key_life` are seconds, or "30s", "24h";
    `max_output` is bytes of JSON. Raises Misuse with the field and the fix.
    """

    def make(fn: Callable[..., Any]) -> Tool:
        label = name or str(getattr(fn, "__name__", ""))
        _callable(fn, label)
        arguments, result, takes_ctx, moneys = _signature(fn, label)
        chosen: EffectClass = effect or "irreversible"
        _legal(label, safety, chosen, data, arguments, bool(description or fn.__doc__))
        _reconciler(label, chosen, reconcile)
        spec = ToolSpec(
            name=label,
            description=inspect.cleandoc(description or fn.__doc__ or ""),
            safety=safety,
            effect=chosen,
            data=data,
            input_schema=_schema(label, "an argument", arguments),
            output_schema={} if result is Any else _schema(label, "the result", result),
            amount=_amount(label, amount, moneys, arguments),
            counterparty=_argument(label, "counterparty", counterparty or _guess(arguments), arguments),
            reconciles=reconcile is not None,
            reconciler=source_digest(type(reconcile) if reconcile is not None else None),
            forbids=hasattr(reconcile, "forbid"),
            retry=_retry(label, retry),
            timeout_ms=milliseconds(timeout, f"tool {label!r}: timeout"),
            key_life_ms=milliseconds(key_life, f"tool {label!r}: key_life"),
            max_output=_size(label, max_output),
            source=source_digest(fn),
        )
        return Tool(pinned(spec), fn, arguments, result, takes_ctx, reconcile, effect is not None)

    return make


if not typing.TYPE_CHECKING:  # a type checker says so by itself, and must see the signature
    tool = checked("@tool", 'put @tool(safety="read", data=Public()) above the function')(tool)


def milliseconds(text: str | float, field: str) -> int:
    """ "30s", "5m", "1h", "250ms", or a number of seconds. Raises Misuse for what is no duration, or none at all."""
    span = 0.0
    if isinstance(text, int | float) and not isinstance(text, bool) and isfinite(text):
        span = text * 1000
    elif match := re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)", str(text).strip()):
        span = float(match[1]) * {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[match[2]]
    if not 1 <= span <= 10**14:
        raise Misuse(f"{field}: {str(text)[:40]!r} is no duration", code="MDM-0212", expected='such as "30s", "5m", "1h"')
    return int(span)


def source_digest(thing: Any) -> str:
    """Digest of a function's or class's source text; "" when there is none to read. It names code, it does not prove what ran."""
    if thing is None:
        return ""
    try:
        return hashlib.sha256(inspect.getsource(thing).encode()).hexdigest()
    except (OSError, TypeError):
        return hashlib.sha256(f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', thing)}".encode()).hexdigest()


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 - an object may be a tool too


def _callable(fn: Any, label: str) -> None:
    if not callable(fn) or inspect.isclass(fn):
        raise Misuse(f"tool {label!r}: a tool is a function", code="MDM-0210", found=type(fn).__name__, fix="put @tool(...) above a def")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise Misuse(
            f"tool {label!r}: a generator has no one result", code="MDM-0210", fix="return the whole; ctx.progress(...) tells who watches"
        )


def _signature(fn: Callable[..., Any], label: str) -> tuple[type[Struct], Any, bool, tuple[str, ...]]:
    """(arguments as a closed type, result type, does it take ctx, which arguments are Money)."""
    try:
        hints = typing.get_type_hints(fn if inspect.isroutine(fn) else type(fn).__call__, include_extras=True)
    except (NameError, TypeError) as error:
        raise Misuse(f"tool {label!r}: {error}", code="MDM-0210", fix="import the type at module level") from None
    fields: list[Any] = []
    takes_ctx = False
    for i, p in enumerate(inspect.signature(fn).parameters.values()):
        if i == 0 and p.name == "ctx":
            takes_ctx = True
            continue
        fields.append(_field(p, hints, label))
    try:
        arguments = msgspec.defstruct(f"{label}_arguments", fields, frozen=True, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise Misuse(f"tool {label!r}: {error}", code="MDM-0210", fix="a default is a value that cannot change") from None
    result = hints.get("return", Any)
    if typing.get_origin(result) is Awaitable:
        result = typing.get_args(result)[0]
    return arguments, result, takes_ctx, tuple(f[0] for f in fields if f[1] is Money)


def _field(p: inspect.Parameter, hints: dict[str, Any], label: str) -> tuple[Any, ...]:
    what = f"tool {label!r}: argument {p.name!r}"
    if p.name == "ctx":
        raise Misuse(f"{what} is not the first", code="MDM-0210", fix="write ctx: Ctx before every other argument")
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or p.name not in hints:
        raise Misuse(f"{what} has no type", code="MDM-0210", fix=f"write {p.name}: str (or another type) in its signature")
    if p.kind is p.POSITIONAL_ONLY:
        raise Misuse(
            f"{what} is positional only", code="MDM-0210", why="a model names its arguments", fix="take the / out of the signature"
        )
    return (p.name, hints[p.name]) if p.default is p.empty else (p.name, hints[p.name], p.default)


def _schema(label: str, what: str, kind: Any) -> dict[str, Any]:
    try:
        return closed_schema(kind)
    except (TypeError, ValueError, RecursionError) as error:
        raise Misuse(
            f"tool {label!r}: {what} has no JSON form: {error}",
            code="MDM-0211",
            fix="use str, int, bool, Money, lists, dicts or a Struct of them",
        ) from None


def _retry(label: str, retry: Any) -> RetryRule:
    if retry is not None and not isinstance(retry, RetryRule):
        raise Misuse(f"tool {label!r}: retry", code="MDM-0213", expected="Retry(3, backoff_ms=200)", found=type(retry).__name__)
    return retry or RetryRule()


def _size(label: str, n: Any) -> int:
    if type(n) is not int or n < 1:
        raise Misuse(f"tool {label!r}: max_output", code="MDM-0214", expected="a number of bytes, 1 or more")
    return n


def _amount(label: str, named: str, moneys: tuple[str, ...], arguments: type[Struct]) -> str:
    """The Money argument that policy counts. With two of them nobody may guess."""
    if named:
        _argument(label, "amount", named, arguments)
        if named not in moneys:
            raise Misuse(f"tool {label!r}: amount={named!r} is no Money", code="MDM-0214", expected="an argument of type Money")
        return named
    if len(moneys) > 1:
        raise Misuse(
            f"tool {label!r}: {len(moneys)} arguments are Money",
            code="MDM-0214",
            why="limits count one of them",
            fix=f"amount={moneys[0]!r}, or another",
        )
    return moneys[0] if moneys else ""


def _guess(arguments: type[Struct]) -> str:
    return next((f for f in arguments.__struct_fields__ if f in ("to", "counterparty", "recipient", "payee")), "")


def _argument(label: str, field: str, name: str, arguments: type[Struct]) -> str:
    if name and name not in arguments.__struct_fields__:
        raise Misuse(
            f"tool {label!r}: {field}={name!r} is none of its arguments", code="MDM-0214", expected=", ".join(arguments.__struct_fields__)
        )
    return name


def _legal(label: str, safety: str, effect: str, data: Any, arguments: type[Struct], described: bool) -> None:
    where = f"tool {label!r}"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", label):
        raise Misuse(f"{where}: a name is 1 to 64 letters, digits, _ and -", code="MDM-0215", fix='name="…" in @tool(...)')
    if safety not in SAFETIES:
        raise Misuse(f"{where}: safety", code="MDM-0201", expected=" ".join(SAFETIES), found=repr(safety)[:40])
    if effect not in EFFECTS:
        raise Misuse(f"{where}: effect", code="MDM-0202", expected=" ".join(EFFECTS), found=repr(effect)[:40])
    if not isinstance(data, DataClass):
        fix = 'data=Business(subject=none("…"), retention="standard")'
        raise Misuse(f"{where}: data", code="MDM-0203", expected="a class of mandamus.data", found=type(data).__name__, fix=fix)
    if safety in CONSEQUENTIAL and effect in ("read", "idempotent"):
        what = f"{where}: a {safety} tool cannot have effect {effect!r}"
        raise Misuse(what, code="MDM-0204", expected="keyed, reconcilable or irreversible", why="a repeat would be a second deed")
    if safety == "write" and effect == "read":
        raise Misuse(f'{where}: safety "write" and effect "read" contradict', code="MDM-0205", fix='safety="read", or another effect')
    if not described:
        raise Misuse(f"{where}: no description", code="MDM-0207", fix="write a docstring: the approver and the model read it")
    ref = getattr(data, "subject", None)
    if isinstance(ref, SubjectRef) and ref.argument not in arguments.__struct_fields__:
        raise Misuse(
            f"{where}: subject({ref.argument!r}) is none of its arguments", code="MDM-0208", expected=", ".join(arguments.__struct_fields__)
        )


def _reconciler(label: str, effect: str, reconcile: Any) -> None:
    """It is awaited, and it is an object: a class, or a find that answers at once, would be unclear for ever."""
    if reconcile is None and effect != "reconcilable":
        return
    if inspect.isclass(reconcile) or not _is_async(getattr(reconcile, "find", None)):
        fix = "reconcile=YourReconciler() with async def find(self, operation_id)"
        raise Misuse(f"tool {label!r}: {effect} without a reconciler that can be asked", code="MDM-0206", fix=fix)
    if hasattr(reconcile, "forbid") and not _is_async(reconcile.forbid):
        raise Misuse(f"tool {label!r}: forbid is not async", code="MDM-0206", fix="async def forbid(self, operation_id)")
