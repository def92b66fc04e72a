"""The table of thin-rule kinds: what a person may write, and the Cedar that each kind means (docs/reference/rules-yaml.md).

One function per kind, from its settings to policies, limits and chains. The rule a newcomer would break: what a rule cannot count
or compare is denied (another currency, no amount, a clock of another zone), never left to slip under it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from mandamus.core.canonical import INT_MAX
from mandamus.core.cedartext import GROUPS, quoted, string_set
from mandamus.core.clock import WEEKDAYS
from mandamus.core.facts import Chain, Limit, Tier
from mandamus.core.money import Money, minor
from mandamus.core.strict import Path, Places, Written, one_of
from mandamus.errors import Misuse

SAFETY = ("read", "write", "network", "financial", "privileged")
Some = str | tuple[str, ...]
Standing = Literal["vote", "enough"]  # what an allowance is to a rule that asks people: one vote of its approver, or all of them
_time = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00").fullmatch
_span = re.compile(r"[1-9][0-9]{0,4}[smhd]").fullmatch
_day = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])").fullmatch


class Kind(Written, frozen=True, kw_only=True, rename="camel"):
    """The settings of one kind. Keys are written as in docs/reference/rules-yaml.md: maxAmount."""


class Permit(Kind, frozen=True, kw_only=True):
    role: Some = ()
    safety: Some = ()
    tool: Some = ()
    tools: Some = ()
    max_amount: str = ""


class ToolList(Kind, frozen=True, kw_only=True):
    tools: Some


class MaxAmount(Kind, frozen=True, kw_only=True):
    limit: str
    currency: str = ""
    safety: Some = ()
    tools: Some = ()


class MaxDailyLimit(Kind, frozen=True, kw_only=True):
    limit: str
    currency: str = ""
    per: Literal["agent", "tenant", "counterparty"] = "agent"
    safety: Some = ()
    tools: Some = ()


class DualApproval(Kind, frozen=True, kw_only=True):
    over: str = ""
    chain: str = "default"
    quorum: int = 2
    safety: Some = ()
    tools: Some = ()
    standing: Standing = "vote"


class NeedsApproval(Kind, frozen=True, kw_only=True):
    quorum: int = 1
    chain: str = ""
    roles: Some = ()
    safety: Some = ()
    tools: Some = ()
    standing: Standing = "vote"


class NeedsEvidence(Kind, frozen=True, kw_only=True):
    level: Literal["sealed", "witnessed"] = "witnessed"
    over: str = ""
    within: str = "1h"
    safety: Some = ()
    tools: Some = ()


class NoWritesOn(Kind, frozen=True, kw_only=True):
    weekdays: Some = ()
    dates: Some = ()
    tz: str = ""
    safety: Some = ()
    tools: Some = ()


class WorkingHours(Kind, frozen=True, kw_only=True):
    from_: str = msgspec.field(name="from")
    to: str
    weekdays: Some = ()
    tz: str = ""
    safety: Some = ()
    tools: Some = ()


class RecipientAllowlist(Kind, frozen=True, kw_only=True):
    recipients: Some
    argument: str = ""
    safety: Some = ()
    tools: Some = ()


class StepBudget(Kind, frozen=True, kw_only=True):
    turns: int = 0
    calls: int = 0


class Rule(Struct, frozen=True, kw_only=True):
    """One rule as it was written. `currencies`: those that rules of the same kind and scope know between them."""

    id: str
    kind: str
    settings: Any
    places: Any
    name: str = ""
    reason: str = ""
    tenant: str = ""
    on_deny: Literal["", "feedback", "halt"] = ""
    currencies: tuple[str, ...] = ()


class Asking(Struct, frozen=True, kw_only=True):
    """Whom a rule asks, about which calls. `over`: (currency, minor units) above which it asks; `enough`: one allowance answers it."""

    chain: str
    quorum: int
    enough: bool
    safety: tuple[str, ...]
    tools: tuple[str, ...]
    tenant: str
    over: tuple[str, int] | None = None
    currencies: tuple[str, ...] = ()

    def applies(self, tool: str, safety: str, tenant: str, amount: tuple[str, int] | None) -> bool:
        """As its Cedar says it. `amount`: (currency, minor units) of the call, or None when it moves no money."""
        if (self.tools and tool not in self.tools) or (self.safety and safety not in self.safety) or self.tenant not in ("", tenant):
            return False
        if self.over is None or amount is None or amount[0] not in self.currencies:
            return True
        return amount[0] == self.over[0] and amount[1] > self.over[1]


class Compiled(Struct, frozen=True, kw_only=True):
    policies: tuple[str, ...]
    limits: tuple[Limit, ...] = ()
    chains: tuple[Chain, ...] = ()
    asks: tuple[Asking, ...] = ()


# -- words -----------------------------------------------------------------------------------------------------------------------
def many(some: Some) -> tuple[str, ...]:
    return (some,) if isinstance(some, str) else some


def bound(rule: Rule, key: str) -> Money:
    """The money that a setting names: "1000.00 USD", or "1000.00" with `currency`. Raises Misuse."""
    text, currency = getattr(rule.settings, key), getattr(rule.settings, "currency", "")
    path = (msgspec.structs.fields(type(rule.settings))[_index(rule, key)].encode_name,)
    try:
        money = Money.of(text, currency) if currency and " " not in text.strip() else Money.parse(text)
        if currency and money.currency != currency:
            raise ValueError(f"{money.currency} is not the currency {currency} beside it")
        minor(money)
    except ValueError as error:
        raise Misuse(str(error), code="MDM-0721", where=rule.places.where(path), fix=f'{path[0]}: "1000.00 USD"') from None
    return money


def _index(rule: Rule, key: str) -> int:
    return rule.settings.__struct_fields__.index(key)  # type: ignore[no-any-return]


def days(rule: Rule) -> tuple[str, ...]:
    """Weekdays in full; three letters are enough."""
    out = []
    for i, word in enumerate(many(rule.settings.weekdays)):
        low = word.lower()
        full = next((d for d in WEEKDAYS if low in (d, d[:3])), low)
        path: Path = ("weekdays",) if isinstance(rule.settings.weekdays, str) else ("weekdays", i)
        out.append(one_of(full, WEEKDAYS, rule.places, path, what="weekday", code="MDM-0721"))
    return tuple(out)


def minutes(rule: Rule, key: str, text: str) -> int:
    if not _time(text):
        raise Misuse(
            f"{key}: not a time of day", code="MDM-0721", where=rule.places.where((key,)), expected='"08:30"', found=repr(text[:20])
        )
    return int(text[:2]) * 60 + int(text[3:])


def tools_of(settings: Any) -> tuple[str, ...]:
    """Named by `tools`, or by `tool` where that is a setting too: both are read, so none of them can be forgotten."""
    return tuple(dict.fromkeys((*many(getattr(settings, "tools", ())), *many(getattr(settings, "tool", ())))))


# -- Cedar -----------------------------------------------------------------------------------------------------------------------
def policy(rule: Rule, effect: str, *when: str, part: str = "", reason: str, principal: str = "principal", **notes: str) -> str:
    """One policy in the layout that Cedar's own formatter gives. `part` tells the policies of one rule apart."""
    head = {"id": rule.id + (f".{part}" if part else ""), "name": rule.name, **notes, "reason": rule.reason or reason}
    head |= {"on_deny": rule.on_deny} if effect == "forbid" and notes.get("verdict") != "escalate" else {}
    lines = [f"@{key}({quoted(value)})" for key, value in head.items() if value]
    tools = tools_of(rule.settings)
    actions = tools or GROUPS
    scope = (
        f"action == Action::{quoted(tools[0])}" if len(tools) == 1 else f"action in [{', '.join('Action::' + quoted(t) for t in actions)}]"
    )
    conditions = [*_scope(rule, "financial" if rule.kind in _MONEY else ""), *(w for w in when if w)]
    lines += [f"{effect} (", f"  {principal},", f"  {scope},", "  resource", ")"]
    if conditions:
        lines += ["when", "{", "  " + " &&\n  ".join(conditions), "}"]
    return "\n".join(lines) + ";\n"


def _scope(rule: Rule, default: str) -> list[str]:
    """Conditions on the tenant and the safety class. A rule about money without tools or classes is about `financial`."""
    safety = many(getattr(rule.settings, "safety", ()))
    named = tools_of(rule.settings)
    for i, word in enumerate(safety):
        path: Path = ("safety",) if isinstance(rule.settings.safety, str) else ("safety", i)
        one_of(word, SAFETY, rule.places, path, what="safety class", code="MDM-0721")
    safety = safety or ((default,) if default and not named else ())
    out = [f"principal.tenant == {quoted(rule.tenant)}"] if rule.tenant else []
    return out + ([f"{string_set(safety)}.contains(resource.safety)"] if safety else [])


def _known(rule: Rule) -> str:
    return f"{string_set(rule.currencies)}.contains(context.amount.currency)"


def _over(currency: str, comparison: str) -> str:
    return f"context has amount && context.amount.currency == {quoted(currency)} && {comparison}"


def _uncounted(rule: Rule) -> str:
    return policy(
        rule,
        "forbid",
        f"!(context has amount && {_known(rule)})",
        part="uncounted",
        reason=f"no amount in {' or '.join(rule.currencies)}: the limit cannot be counted",
    )


def _unmet(chain: str, standing: Standing) -> str:
    """True until the people have spoken. An allowance is one vote among them, counted in `met`, unless the rule calls it enough."""
    met = f"context.people.met.contains({quoted(chain)})"
    return f"!({met} || context.people.allowed.contains({quoted(chain)}))" if standing == "enough" else f"!{met}"


def _zone(rule: Rule) -> list[str]:
    if not rule.settings.tz:
        return []
    when = (f"context.clock.tz != {quoted(rule.settings.tz)}", *_touches(rule))
    return [policy(rule, "forbid", *when, part="zone", reason=f"the recorded clock is not one of {rule.settings.tz}")]


def _touches(rule: Rule) -> list[str]:
    """Rules about time are about what changes something, unless they name tools or classes."""
    return [] if many(rule.settings.safety) or many(rule.settings.tools) else ['resource.effect != "read"']


# -- the kinds -------------------------------------------------------------------------------------------------------------------
def _permit(rule: Rule) -> Compiled:
    s, limit = rule.settings, ""
    if s.max_amount:
        money = bound(rule, "max_amount")
        limit = _over(money.currency, f"context.amount.minor <= {minor(money)}")
    roles = many(s.role)
    who = f"principal in Role::{quoted(roles[0])}" if len(roles) == 1 else "principal"
    several = f"principal in [{', '.join('Role::' + quoted(r) for r in roles)}]" if len(roles) > 1 else ""
    return Compiled(policies=(policy(rule, "permit", several, limit, principal=who, reason=""),))


def _allowlist(rule: Rule) -> Compiled:
    outside = msgspec.structs.replace(rule, settings=StepBudget())  # every tool, not the listed ones
    listed = policy(rule, "permit", reason="the tool is on the list")
    fence = policy(
        outside,
        "forbid",
        f"!{string_set(many(rule.settings.tools))}.contains(resource.name)",
        part="others",
        reason="the tool is not on the list",
    )
    return Compiled(policies=(listed, fence))


def _denylist(rule: Rule) -> Compiled:
    return Compiled(policies=(policy(rule, "forbid", reason="the tool is on the deny list"),))


def _max_amount(rule: Rule) -> Compiled:
    money = bound(rule, "limit")
    over = policy(rule, "forbid", _over(money.currency, f"context.amount.minor > {minor(money)}"), reason=f"more than {money}")
    return Compiled(policies=(over, _uncounted(rule)))


def _daily(rule: Rule) -> Compiled:
    money, s = bound(rule, "limit"), rule.settings
    spent = f"context.sums[{quoted(rule.id)}] + context.amount.minor > {minor(money)}"
    tools = many(s.tools)
    safety = many(s.safety) or (() if tools else ("financial",))
    limit = Limit(id=rule.id, limit=minor(money), currency=money.currency, window="day", per=s.per, safety=safety, tools=tools)
    over = policy(rule, "forbid", _over(money.currency, spent), reason=f"more than {money} a day for each {s.per}")
    unnamed = (_unnamed(rule),) if s.per == "counterparty" else ()
    return Compiled(policies=(over, _uncounted(rule), *unnamed), limits=(limit,))


def _unnamed(rule: Rule) -> str:
    nobody = 'context has amount && context.amount.counterparty == ""'
    return policy(rule, "forbid", nobody, part="unnamed", reason="no counterparty: the limit cannot be counted")


def _dual(rule: Rule) -> Compiled:
    s, (over, words, above) = rule.settings, _above(rule)
    return Compiled(policies=(_ask(rule, s.chain, words, over),), asks=(_asking(rule, s.chain, above),))


def _above(rule: Rule) -> tuple[str, str, tuple[str, int] | None]:
    """(condition, words, (currency, minor units)) of `over`. An amount that cannot be compared is above it."""
    if not rule.settings.over:
        return "", "", None
    money = bound(rule, "over")
    big = f"context.amount.currency == {quoted(money.currency)} && context.amount.minor > {minor(money)}"
    return f"!(context has amount && {_known(rule)} && !({big}))", f"more than {money}: ", (money.currency, minor(money))


def _evidence(rule: Rule) -> Compiled:
    """Asked of the log, not of people: it is met by a record of the run, which whoever verifies holds against its checkpoint."""
    s, (over, words, _) = rule.settings, _above(rule)
    if not _span(s.within):
        raise Misuse("within: not a length of time", code="MDM-0721", where=rule.places.where(("within",)), expected="90s, 30m, 1h or 2d")
    notes = {"verdict": "escalate", "evidence": f"{s.level} within {s.within}"}
    unmet = f"!context.people.met.contains({quoted(s.level)})"
    return Compiled(policies=(policy(rule, "forbid", over, unmet, reason=f"{words}only when {s.level}", **notes),))


def _needs(rule: Rule) -> Compiled:
    s, roles = rule.settings, many(rule.settings.roles)
    if s.chain and roles:
        raise Misuse("either chain or roles", code="MDM-0721", where=rule.places.where(("roles",)), why="a chain says itself who may vote")
    made = Chain(id=rule.id, tiers=(Tier(quorum=_quorum(rule), of=tuple(f"role:{r}" for r in roles)),)) if roles else None
    chain = made.id if made else s.chain or "default"
    return Compiled(policies=(_ask(rule, chain, ""),), chains=(made,) if made else (), asks=(_asking(rule, chain),))


def _ask(rule: Rule, chain: str, words: str, *when: str) -> str:
    unmet = _unmet(chain, rule.settings.standing)
    notes = {"verdict": "escalate", "approvals": str(_quorum(rule)), "chain": chain}
    reason = f"{words}{_quorum(rule)} approval{'s' if _quorum(rule) > 1 else ''} from {chain}"
    return policy(rule, "forbid", *when, unmet, reason=reason, **notes)


def _asking(rule: Rule, chain: str, over: tuple[str, int] | None = None) -> Asking:
    s, tools = rule.settings, tools_of(rule.settings)
    safety = many(s.safety) or (("financial",) if rule.kind in _MONEY and not tools else ())
    return Asking(
        chain=chain, quorum=_quorum(rule), enough=s.standing == "enough", safety=safety, tools=tools, tenant=rule.tenant, over=over,
        currencies=rule.currencies,
    )  # fmt: skip


def _quorum(rule: Rule) -> int:
    quorum: int = rule.settings.quorum
    if not 1 <= quorum <= 100:
        raise Misuse("quorum: 1 to 100 people", code="MDM-0721", where=rule.places.where(("quorum",)), found=str(quorum))
    return quorum


def _no_writes(rule: Rule) -> Compiled:
    s, days_off, dates = rule.settings, days(rule), many(rule.settings.dates)
    for i, date in enumerate(dates):
        if not _day(date):
            raise Misuse("not a date", code="MDM-0721", where=rule.places.where(("dates", i)), expected="2026-12-25", found=repr(date[:20]))
    either = [f"{string_set(days_off)}.contains(context.clock.weekday)"] if days_off else []
    either += [f"{string_set(dates)}.contains(context.clock.date)"] if dates else []
    if not either:
        raise Misuse(
            "noWritesOn names no day", code="MDM-0721", where=rule.places.where(), fix="weekdays: [friday], or dates: [2026-12-25]"
        )
    today = either[0] if len(either) == 1 else f"({' || '.join(either)})"
    _no_empty_zone(s.tz, rule.places)
    return Compiled(
        policies=(policy(rule, "forbid", today, *_touches(rule), reason=f"closed on {', '.join((*days_off, *dates))}"), *_zone(rule))
    )


def _no_empty_zone(tz: str, places: Places) -> None:
    if tz != tz.strip():
        raise Misuse("tz: a zone such as Europe/Paris", code="MDM-0721", where=places.where(("tz",)))


def _hours(rule: Rule) -> Compiled:
    s = rule.settings
    start, end = minutes(rule, "from", s.from_), minutes(rule, "to", s.to)
    if start == end:
        raise Misuse("from and to are the same time", code="MDM-0721", where=rule.places.where(("to",)))
    now = "context.clock.hour * 60 + context.clock.minute"
    word = "||" if start < end else "&&"  # over midnight: closed between `to` and `from`
    outside = [f"({now} < {start} {word} {now} >= {end})"]
    open_days = days(rule)
    if open_days:
        outside = [f"({outside[0]} || !{string_set(open_days)}.contains(context.clock.weekday))"]
    return Compiled(policies=(policy(rule, "forbid", *outside, *_touches(rule), reason=f"outside {s.from_} to {s.to}"), *_zone(rule)))


def _recipients(rule: Rule) -> Compiled:
    s = rule.settings
    has, value = ("context has amount", "context.amount.counterparty")
    if s.argument:
        has, value = f"context.args has {quoted(s.argument)}", f"context.args[{quoted(s.argument)}]"
    inside = f"!({has} && {string_set(many(s.recipients))}.contains({value}))"
    return Compiled(policies=(policy(rule, "forbid", inside, reason="the recipient is not on the list"),))


def _steps(rule: Rule) -> Compiled:
    s = rule.settings
    for key in ("turns", "calls"):
        if not 0 <= getattr(s, key) <= INT_MAX:
            raise Misuse(f"{key}: a whole number", code="MDM-0721", where=rule.places.where((key,)))
    either = [f"context.run.turn > {s.turns}"] if s.turns else []
    either += [f"context.run.calls >= {s.calls}"] if s.calls else []
    if not either:
        raise Misuse("stepBudget names no budget", code="MDM-0721", where=rule.places.where(), fix="turns: 20, or calls: 50")
    return Compiled(policies=(policy(rule, "forbid", f"({' || '.join(either)})", reason="the run has used its steps"),))


KINDS: dict[str, tuple[type[Kind], Callable[[Rule], Compiled]]] = {
    "dualApproval": (DualApproval, _dual),
    "maxAmount": (MaxAmount, _max_amount),
    "maxDailyLimit": (MaxDailyLimit, _daily),
    "needsApproval": (NeedsApproval, _needs),
    "needsEvidence": (NeedsEvidence, _evidence),
    "noWritesOn": (NoWritesOn, _no_writes),
    "permit": (Permit, _permit),
    "recipientAllowlist": (RecipientAllowlist, _recipients),
    "stepBudget": (StepBudget, _steps),
    "toolAllowlist": (ToolList, _allowlist),
    "toolDenylist": (ToolList, _denylist),
    "workingHours": (WorkingHours, _hours),
}
_MONEY = frozenset({"maxAmount", "maxDailyLimit", "dualApproval", "needsEvidence", "recipientAllowlist"})
# The setting that names money, of the kinds whose rules know currencies together.
MONEY_SETTING = {"maxAmount": "limit", "maxDailyLimit": "limit", "dualApproval": "over", "needsEvidence": "over"}
