"""The closed check of a fact envelope, before any engine is asked.

Exact keys, exact types, known words, no float, no integer beyond 2^53-1, nothing that has no canonical bytes. Engines skip a rule
whose evaluation fails, so a fact that is missing or ill-typed would switch off the rule that needs it. The rule a newcomer would
break: a fault here is the verdict `error`, never `deny` and never a default value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mandamus.core.argtypes import RecordType, argument_types, misfit
from mandamus.core.canonical import INT_MAX
from mandamus.core.clock import WEEKDAYS, LocalTime
from mandamus.core.data import name_of
from mandamus.core.definition import ToolSpec
from mandamus.core.facts import ActionFacts, AmountFacts, ContextFacts, FactEnvelope, PeopleFacts, PrincipalFacts, RunFacts, UserFacts

_date = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])").fullmatch
_EXACT: dict[Any, Callable[[Any], bool]] = {
    str: lambda v: type(v) is str,
    int: lambda v: type(v) is int and 0 <= v <= INT_MAX,
    bool: lambda v: type(v) is bool,
    tuple[str, ...]: lambda v: type(v) is tuple and all(type(x) is str for x in v),
}


class _Shape:
    """The exact form of one group. `fits` costs a microsecond; which fact it is that does not fit is looked for only then."""

    def __init__(self, group: type[Struct]) -> None:
        fields = [f for f in msgspec.structs.fields(group) if f.type in _EXACT]
        self.group = group
        self.kinds = tuple((f.name, tuple if f.type == tuple[str, ...] else f.type) for f in fields)
        self.checks = tuple((f.name, _EXACT[f.type]) for f in fields)
        self._types = tuple(kind for _, kind in self.kinds)
        self._values = attrgetter(*(f.name for f in fields))
        self._ints = tuple(i for i, t in enumerate(self._types) if t is int)
        self._tuples = tuple(i for i, t in enumerate(self._types) if t is tuple)

    def fits(self, value: Any) -> bool:
        if type(value) is not self.group:
            return False
        values = self._values(value)
        if tuple(map(type, values)) != self._types:
            return False
        for i in self._ints:
            if not 0 <= values[i] <= INT_MAX:
                return False
        for i in self._tuples:
            for x in values[i]:
                if type(x) is not str:
                    return False
        return True


_GROUPS = tuple(
    (name, _Shape(group))
    for name, group in (
        ("action", ActionFacts),
        ("clock", LocalTime),
        ("context", ContextFacts),
        ("people", PeopleFacts),
        ("principal", PrincipalFacts),
        ("run", RunFacts),
    )
)
_groups = attrgetter(*(name for name, _ in _GROUPS))
_USER, _AMOUNT = _Shape(UserFacts), _Shape(AmountFacts)
_WORDS = ("data", "effect", "kind", "pin", "safety")
_words = attrgetter(*_WORDS)


class Contract(Struct, frozen=True):
    """What the facts of one tool must say: its words, the type of its arguments, whether an amount must, may or must not be there."""

    kind: str
    safety: str
    effect: str
    data: str
    pin: str
    args: RecordType
    amount: str  # "always", "maybe", "never"

    @classmethod
    def of(cls, spec: ToolSpec) -> Contract:
        args = argument_types(spec.input_schema)
        counted = args.fields.get(spec.amount) if spec.amount else None
        amount = "never" if not spec.amount else "always" if counted is not None and counted.required else "maybe"
        return cls(spec.kind, spec.safety, spec.effect, name_of(spec.data), spec.pin, args, amount)


class Contracts:
    """`Contracts(tools, limits).fault(facts)` is "" or the first fault, in words that name the fact and never quote it.

    Without `tools` (an engine that was told of none) arguments are only checked to be plain; without `limits`, sums likewise.
    """

    def __init__(self, tools: Sequence[ToolSpec] | None = None, limits: frozenset[str] | None = None) -> None:
        self.contracts = None if tools is None else {t.name: Contract.of(t) for t in tools}
        self.limits = limits

    def fault(self, facts: FactEnvelope) -> str:
        fault = _fault_of_groups(facts) or _fault_of_words(facts)
        return fault or self._fault_of_sums(facts) or self._fault_of_tool(facts) or _fault_of_bytes(facts)

    def _fault_of_sums(self, facts: FactEnvelope) -> str:
        sums = facts.sums
        if type(sums) is not dict:
            return "fact sums is not a record"
        if sums and any(type(k) is not str or not _EXACT[int](v) for k, v in sums.items()):
            return "fact sums holds something that is no whole number within 2^53-1"
        if self.limits is not None and sums.keys() != self.limits:
            missing = ", ".join(sorted(self.limits - sums.keys()))
            return f"fact sums lacks {missing}" if missing else "fact sums has a limit that this policy does not know"
        return ""

    def _fault_of_tool(self, facts: FactEnvelope) -> str:
        if self.contracts is None:
            return misfit(facts.args, None, "args") if type(facts.args) is dict else "args is not a record"
        contract = self.contracts.get(facts.action.tool)
        if contract is None:
            return "fact action.tool names no tool that this policy was loaded with"
        if _words(facts.action) != _words(contract):
            other = next(w for w in _WORDS if getattr(facts.action, w) != getattr(contract, w))
            return f"fact action.{other} is not the one of the tool that this policy was loaded with"
        if contract.amount == ("never" if facts.amount is not UNSET else "always"):
            return "fact amount is missing" if facts.amount is UNSET else "fact amount is there, but the tool counts none"
        return misfit(facts.args, contract.args, "args")


class _AllGroups:
    """All groups at once, for facts that are as they should be. Says no for anything else; the words are found one group at a time."""

    def __init__(self) -> None:
        shapes = (*_GROUPS, ("context.user", _USER))
        kinds = {f"{name}.{field}": kind for name, shape in shapes for field, kind in shape.kinds}
        self._groups = attrgetter(*(name for name, _ in shapes))
        self._group_types = tuple(shape.group for _, shape in shapes)
        self._values, self._types = attrgetter(*kinds), tuple(kinds.values())
        self._ints = itemgetter(*(i for i, kind in enumerate(self._types) if kind is int))
        self._tuples = itemgetter(*(i for i, kind in enumerate(self._types) if kind is tuple))

    def fit(self, facts: FactEnvelope) -> bool:
        if tuple(map(type, self._groups(facts))) != self._group_types:
            return False
        values = self._values(facts)
        if tuple(map(type, values)) != self._types:
            return False
        ints = self._ints(values)
        if min(ints) < 0 or max(ints) > INT_MAX:
            return False
        for texts in self._tuples(values):
            for text in texts:
                if type(text) is not str:
                    return False
        return True


_ALL = _AllGroups()


def _fault_of_groups(facts: FactEnvelope) -> str:
    if type(facts) is not FactEnvelope:
        return "the facts are no FactEnvelope"
    try:
        if _ALL.fit(facts) and (facts.amount is UNSET or _AMOUNT.fits(facts.amount)):
            return ""
    except AttributeError:  # a group that is missing, or of another type
        pass
    for (name, shape), value in zip(_GROUPS, _groups(facts), strict=True):
        if not shape.fits(value):
            return _misfit(value, shape, name)
    if not _USER.fits(facts.context.user):
        return _misfit(facts.context.user, _USER, "context.user")
    return "" if facts.amount is UNSET or _AMOUNT.fits(facts.amount) else _misfit(facts.amount, _AMOUNT, "amount")


def _misfit(value: Any, shape: _Shape, name: str) -> str:
    """Words for a group that does not fit."""
    if type(value) is not shape.group:
        return f"fact {name} is missing or of another form"
    field = next(field for field, exact in shape.checks if not exact(getattr(value, field)))
    return f"fact {name}.{field} is {type(getattr(value, field)).__name__}, or out of range"


def _fault_of_words(facts: FactEnvelope) -> str:
    """Words that rules compare: one that is misspelt would match no rule."""
    clock = facts.clock
    if clock.weekday not in WEEKDAYS or clock.hour > 23 or clock.minute > 59 or not _date(clock.date):
        return "fact clock is no time of day"
    return "" if facts.action.attempt >= 1 and facts.action.tool else "fact action has no tool or no attempt"


def _fault_of_bytes(facts: FactEnvelope) -> str:
    """What canonical JSON would refuse and the checks before could not see: a text with a lone surrogate."""
    try:
        msgspec.json.encode(facts)
    except (ValueError, TypeError, RecursionError):
        return "the facts have no canonical bytes"
    return ""
