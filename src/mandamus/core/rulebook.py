"""Thin rules to Cedar: documents in, one rule book out. The kinds themselves are in core/rulekinds.py.

Pure: the files were read by somebody else, who also knows the places. The rule a newcomer would break: rules have no order and no
priority; permits add up, any forbid wins, so compiling two documents together means the same as both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from mandamus.core.asks import LEVELS
from mandamus.core.facts import DEFAULT_CHAIN, Chain, Limit, Tier
from mandamus.core.rulekinds import KINDS, MONEY_SETTING, Asking, Compiled, Rule, bound, many
from mandamus.core.strict import Below, Path, Places, Written, did_you_mean, one_of, shaped
from mandamus.errors import Misuse

_id = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}").fullmatch
_span = re.compile(r"([1-9][0-9]{0,8})(s|m|h|d)").fullmatch
_unit = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
# How the settings of a kind are written, for people who wrote another form.
EXAMPLES = {
    "dualApproval": '{over: "10000.00 USD"}',
    "maxAmount": '{limit: "1000.00 USD"}',
    "maxDailyLimit": '{limit: "1000.00 USD"}',
    "needsApproval": "{tools: [wire], roles: [treasurer], quorum: 2}",
    "noWritesOn": "{weekdays: [saturday, sunday]}",
    "permit": "{safety: financial}",
    "recipientAllowlist": "{recipients: [Acme]}",
    "stepBudget": "{turns: 20}",
    "toolAllowlist": "{tools: [send_payment]}",
    "toolDenylist": "{tools: [wire]}",
    "workingHours": '{from: "08:30", to: "17:00"}',
}
_RESERVED = ("ask.", "default.", "no_match")
_BESIDE = ("id", "name", "on_deny", "reason", "tenant")
OnDeny = Literal["feedback", "halt"]


class Source(Struct, frozen=True):
    """A document of rules as plain data: `rules: [...]`, `chains: {...}`, `on_deny`, and where each value stands."""

    document: Any
    places: Any


class TierText(Written, frozen=True, kw_only=True):
    """A tier as it is written: `roles: [treasurer]` means `of: ["role:treasurer"]`; the deadline is text such as 30m."""

    quorum: int
    of: str | tuple[str, ...] = ()
    roles: str | tuple[str, ...] = ()
    veto: str | tuple[str, ...] = ()
    deadline: str = "1h"
    sod: tuple[Literal["requester", "author"], ...] = ("requester", "author")


class ChainText(Written, frozen=True, kw_only=True):
    tiers: tuple[TierText, ...]
    on_reject: Literal["", "feedback", "terminate"] = ""


class Document(Written, frozen=True, kw_only=True):
    rules: tuple[dict[str, Any], ...] = ()
    chains: dict[str, ChainText] = {}
    on_deny: OnDeny | None = None


class Book(Struct, frozen=True, kw_only=True):
    """What documents compile to. `policies`: (rule id, where it stands, Cedar text) in the order written; `source`: for the digest."""

    policies: tuple[tuple[str, str, str], ...]
    limits: tuple[Limit, ...]
    chains: dict[str, Chain]
    on_deny: OnDeny
    source: tuple[Any, ...]
    asks: tuple[Asking, ...] = ()

    @property
    def cedar(self) -> str:
        return "\n".join(text for _, _, text in self.policies)


def compiled(sources: Sequence[Source], tools: Iterable[str] | None = None) -> Book:
    """The rule book of several documents. Raises Misuse: unknown kind, key or tool, an id or chain twice, a setting out of range.

    With `tools`, a rule that names another tool is refused.
    """
    rules: list[Rule] = []
    chains: dict[str, Chain] = {}
    on_deny: OnDeny = "feedback"
    for source in sources:
        document = shaped(source.document, Document, source.places, code="MDM-0720", what="rules")
        for i, entry in enumerate(document.rules):
            rules.append(_rule(entry, Below(source.places, ("rules", i)), {r.id for r in rules}))
        for name, text in document.chains.items():
            _once(name, chains, "chain", source.places, ("chains", name))
            chains[name] = _chain(name, text, Below(source.places, ("chains", name)))
        on_deny = "halt" if "halt" in (on_deny, document.on_deny) else "feedback"
    if tools is not None:
        _know_tools(rules, frozenset(tools))
    return _book(_with_currencies(rules), chains, on_deny, tuple(s.document for s in sources))


def _book(rules: list[Rule], chains: dict[str, Chain], on_deny: OnDeny, source: tuple[Any, ...]) -> Book:
    policies: list[tuple[str, str, str]] = []
    limits: list[Limit] = []
    asks: list[Asking] = []
    for rule in rules:
        made: Compiled = KINDS[rule.kind][1](rule)
        for chain in made.chains:
            _once(chain.id, chains, "chain", rule.places, ())
            chains[chain.id] = chain
        policies += [(rule.id, rule.places.outer.where(rule.places.root), text) for text in made.policies]
        limits += made.limits
        asks += made.asks
    for rule in rules:
        _know_chain(rule, chains)
    return Book(policies=tuple(policies), limits=tuple(limits), chains=chains, on_deny=on_deny, source=source, asks=tuple(asks))


# -- one rule --------------------------------------------------------------------------------------------------------------------
def _rule(entry: dict[str, Any], places: Below, taken: set[str]) -> Rule:
    """Both spellings: {"id": ..., kind: {...}} and {"rule": kind, "params": {...}}."""
    kind, inner = ("", ()) if "rule" not in entry else (str(entry["rule"]), ("params",))
    rest = [key for key in entry if key not in _BESIDE and key not in ("rule", "params")]
    if kind:
        if rest:
            raise Misuse(f"unknown key {rest[0][:60]!r} beside rule and params", code="MDM-0720", where=places.where((rest[0],), key=True))
        one_of(kind, KINDS, places, ("rule",), what="kind of rule")
        params = entry.get("params", {})
    else:
        kind, params = _spelt_kind(entry, rest, places)
        inner = (kind,)
    params = {} if params is None else params
    _refuse_empty(params, Below(places, inner))
    settings = _settings(params, kind, Below(places, inner))
    beside = {key: entry[key] for key in _BESIDE if key in entry and key != "id"}
    told = shaped(beside, _Beside, places, code="MDM-0720", what=kind)
    name = _rule_id(entry, kind, places, taken)
    fields = {f: getattr(told, f) for f in told.__struct_fields__}
    return Rule(id=name, kind=kind, settings=settings, places=Below(places.outer, (*places.root, *inner)), **fields)


def _settings(params: Any, kind: str, places: Below) -> Any:
    """Its settings, or a Misuse that shows how they are written."""
    try:
        return shaped(params, KINDS[kind][0], places, code="MDM-0720", what=kind)
    except Misuse as error:
        d, example = error.diagnosis, EXAMPLES.get(kind, "")
        if d.fix or not example:
            raise
        raise Misuse(d.what, code=d.code, where=d.where, expected=d.expected, found=d.found, why=d.why, fix=f"{kind}: {example}") from None


def _refuse_empty(params: Any, places: Places) -> None:
    """An empty list reads like "none" and would mean "any"."""
    for key, value in params.items() if isinstance(params, dict) else ():
        if value in ([], (), ""):
            raise Misuse(f"{key} is empty", code="MDM-0721", where=places.where((key,)), fix="leave the key out, or name at least one")


class _Beside(Written, frozen=True, kw_only=True):
    name: str = ""
    on_deny: Literal["", "feedback", "halt"] = ""
    reason: str = ""
    tenant: str = ""


def _spelt_kind(entry: dict[str, Any], rest: list[str], places: Below) -> tuple[str, Any]:
    unknown = [key for key in rest if key not in KINDS]
    if unknown:
        words = (*KINDS, *_BESIDE)
        raise Misuse(
            f"unknown kind of rule or key {unknown[0][:60]!r}",
            code="MDM-0720",
            where=places.where((unknown[0],), key=True),
            expected="one of " + ", ".join(KINDS),
            fix=did_you_mean(unknown[0], words),
        )
    if len(rest) != 1:
        what = "no kind of rule" if not rest else "two kinds in one rule: " + " and ".join(rest)
        raise Misuse(what, code="MDM-0720", where=places.where(), expected="one of " + ", ".join(KINDS))
    return rest[0], entry[rest[0]]


def _rule_id(entry: dict[str, Any], kind: str, places: Places, taken: set[str]) -> str:
    """As written; a rule without an id is named after its kind."""
    if "id" not in entry:
        return next(n for i in range(1, len(taken) + 2) if (n := kind if i == 1 else f"{kind}.{i}") not in taken)
    name = rule_id(entry["id"], places, ("id",))
    _once(name, taken, "rule", places, ("id",))
    return name


def rule_id(name: Any, places: Places | None = None, path: Path = ()) -> str:
    """`name`, if it can name a rule in records. Raises Misuse."""
    if not isinstance(name, str) or not _id(name) or name.startswith(_RESERVED):
        why = "names that begin with ask. or default. are the runtime's own"
        where = places.where(path) if places else ""
        raise Misuse("not an id of a rule", code="MDM-0720", where=where, expected="letters, digits, . _ -, at most 64", why=why)
    return name


def _once(name: str, taken: Iterable[str], what: str, places: Places, path: Path) -> None:
    if name in taken:
        raise Misuse(f"{what} {name[:60]!r} is there twice", code="MDM-0722", where=places.where(path), why="its id is what records name")
    if not _id(name):
        raise Misuse(f"{what}: not an id", code="MDM-0720", where=places.where(path), expected="letters, digits, . _ -, at most 64")


def _know_tools(rules: list[Rule], tools: frozenset[str]) -> None:
    for rule in rules:
        for key in ("tools", "tool"):
            for name in many(getattr(rule.settings, key, ())):
                if name not in tools:
                    fix = did_you_mean(name, tools)
                    raise Misuse(
                        f"rule {rule.id!r} names no tool of this agent",
                        code="MDM-0723",
                        where=rule.places.where((key,)),
                        found=name[:60],
                        fix=fix,
                    )


def _know_chain(rule: Rule, chains: dict[str, Chain]) -> None:
    """The chain that a rule asks stands in `chains`. `default` is made when nobody declared it: anyone who may approve."""
    if rule.kind not in ("dualApproval", "needsApproval") or (rule.kind == "needsApproval" and many(rule.settings.roles)):
        return
    name = rule.settings.chain or DEFAULT_CHAIN.id
    if name not in chains and name != DEFAULT_CHAIN.id:
        raise Misuse(f"no chain {name[:60]!r}", code="MDM-0724", where=rule.places.where(("chain",)), fix=did_you_mean(name, chains))
    chains.setdefault(name, DEFAULT_CHAIN)


def _with_currencies(rules: list[Rule]) -> list[Rule]:
    """Each rule about money learns which currencies its equals know: same kind, same tenant, same scope."""
    known: dict[tuple[Any, ...], set[str]] = {}
    for rule in rules:
        if (currency := _currency(rule)) is not None:
            known.setdefault(_scope_of(rule), set()).add(currency)
    return [msgspec.structs.replace(r, currencies=tuple(sorted(known.get(_scope_of(r), ())))) for r in rules]


def _scope_of(rule: Rule) -> tuple[Any, ...]:
    settings = rule.settings
    return (
        rule.kind,
        rule.tenant,
        tuple(sorted(many(getattr(settings, "safety", ())))),
        tuple(sorted(many(getattr(settings, "tools", ())))),
    )


def _currency(rule: Rule) -> str | None:
    key = MONEY_SETTING.get(rule.kind)
    return bound(rule, key).currency if key and getattr(rule.settings, key) else None


# -- one chain -------------------------------------------------------------------------------------------------------------------
def _chain(name: str, text: ChainText, places: Below) -> Chain:
    if name in LEVELS:
        why = "it is a level of evidence, and stands among the chains that were met"
        raise Misuse(f"chain: {name!r} is no name for people", code="MDM-0724", where=places.where(()), why=why, fix="choose another name")
    if not text.tiers:
        raise Misuse(f"chain {name!r} has no tier", code="MDM-0724", where=places.where(("tiers",)), why="nobody could ever approve")
    return Chain(id=name, tiers=tuple(_tier(t, Below(places, ("tiers", i))) for i, t in enumerate(text.tiers)), on_reject=text.on_reject)


def _tier(text: TierText, places: Places) -> Tier:
    of = (*many(text.of), *(f"role:{r}" for r in many(text.roles)))
    people = [p for p in of if not p.startswith("role:")]
    if not 1 <= text.quorum <= 100:
        raise Misuse("quorum: 1 to 100 people", code="MDM-0724", where=places.where(("quorum",)), found=str(text.quorum))
    if of and len(people) == len(of) and len(set(people)) < text.quorum:
        raise Misuse("fewer people than the quorum", code="MDM-0724", where=places.where(("quorum",)), why="nobody could ever approve")
    return Tier(quorum=text.quorum, of=of, veto=many(text.veto), deadline_ms=span_ms(text.deadline, places, ("deadline",)), sod=text.sod)


def span_ms(text: str, places: Places, path: Path) -> int:
    """Milliseconds of "90s", "30m", "1h" or "2d". Raises Misuse; nothing and zero are no deadlines."""
    match = _span(text)
    if match is None:
        raise Misuse(
            "not a length of time", code="MDM-0724", where=places.where(path), expected="90s, 30m, 1h or 2d", found=repr(text[:20])
        )
    return int(match[1]) * _unit[match[2]]
