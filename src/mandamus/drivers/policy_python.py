"""Rules in code: `@rule(id, name)` functions of the frozen facts, and the engine that asks them.

A rule answers "allow", "deny", "escalate", a `Verdict`, or None for no opinion. An exception, an answer of another type or an answer
after 50 ms is the verdict `error`. The rule a newcomer would break: constants belong inside the function; its source is what the
digest covers, and a value that it captures is refused.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from textwrap import dedent
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from mandamus.core.asks import sound, united
from mandamus.core.canonical import canon, digest
from mandamus.core.definition import ToolSpec
from mandamus.core.envelope import Contracts
from mandamus.core.facts import Chain, Determining, FactEnvelope, Judgement, RuleBook
from mandamus.core.rulebook import rule_id
from mandamus.core.verdicts import Verdict, allow, deny, escalate
from mandamus.errors import EngineFault, Misuse

ENGINE = "python/1"
NO_MATCH = "no_match"
DEADLINE_NS = 50_000_000
Answer = Verdict | Literal["allow", "deny", "escalate"] | None
RuleFunction = Callable[[FactEnvelope], Any]
_PLAIN: dict[str, Callable[[], Verdict]] = {"allow": allow, "deny": deny, "escalate": escalate}


class Rule(Struct, frozen=True):
    """One rule in code. Call it like the function it was made from."""

    id: str
    name: str
    fn: RuleFunction
    source_digest: str

    def __call__(self, facts: FactEnvelope) -> Any:
        return self.fn(facts)


def rule(id: str, name: str = "", *, priority: int = 0) -> Callable[[RuleFunction], Rule]:
    """`@rule("no-friday", "No payment on Fridays") def f(facts) -> Verdict | None`. `priority` orders display only, never a verdict.

    Raises Misuse for a coroutine, a function that captures variables, or one whose source cannot be read.
    """
    del priority
    rule_id(id)

    def made(fn: RuleFunction) -> Rule:
        return Rule(id, name, fn, _source_digest(id, fn))

    return made


def always(verdict: Literal["allow", "deny", "escalate"], id: str = "always") -> Rule:
    """A rule with one answer, for tests and measurements."""
    answer = _PLAIN[verdict]()
    return Rule(id, f"always {verdict}", lambda facts: answer, digest("policy", canon({"always": verdict})))


class PythonRules:
    """Made by `of`. What no rule allows is `deny` for the reason `no_match`, which a permit of another engine may supply."""

    def __init__(self, rules: Sequence[Rule], contracts: Contracts, chains: dict[str, Chain], now: Callable[[], int]) -> None:
        self._rules = tuple(rules)
        self._contracts = contracts
        self._now = now
        source = {r.id: {"name": r.name, "source": r.source_digest} for r in self._rules}
        sha = digest("policy", canon({"engine": "python", "rules": source}))
        texts = {"policy/rules.python.json": canon(source).decode()} | {r.id: r.name for r in self._rules}
        self._book = RuleBook(digest=sha, chains=chains, texts=texts)

    @classmethod
    def of(
        cls,
        rules: Sequence[Rule],
        *,
        tools: Sequence[ToolSpec] | None = None,
        limits: frozenset[str] | None = None,
        chains: dict[str, Chain] | None = None,
        now: Callable[[], int] = time.perf_counter_ns,
    ) -> PythonRules:
        """The engine of these rules. With `tools` and `limits` the facts are closed as for Cedar. Raises Misuse for an id there twice."""
        seen: set[str] = set()
        for each in rules:
            if not isinstance(each, Rule):
                raise Misuse("not a rule", code="MDM-0750", found=type(each).__name__, fix='@rule("no-friday", "No payment on Fridays")')
            if each.id in seen:
                raise Misuse(f"rule {each.id!r} is there twice", code="MDM-0722", why="its id is what records name")
            seen.add(each.id)
        return cls(rules, Contracts(tools, limits), chains or {}, now)

    @property
    def book(self) -> RuleBook:
        return self._book

    def digest(self) -> str:
        return self._book.digest

    async def check(self) -> None:
        """Raises EngineFault when the source of a rule is another one than when it was made."""
        for each in self._rules:
            if inspect.isfunction(each.fn) and each.fn.__name__ != "<lambda>" and _source_digest(each.id, each.fn) != each.source_digest:
                raise EngineFault(f"the source of rule {each.id!r} changed", code="MDM-0521", why="its digest stands in records")

    async def decide(self, facts: FactEnvelope) -> Judgement:
        """All rules are asked; error > deny > escalate > allow. Never raises for a bad question."""
        fault = self._contracts.fault(facts)
        if fault:
            return self._error(fault)
        view = msgspec.structs.replace(facts, args=_frozen(facts.args), sums=_frozen(facts.sums))
        said, errors = [], []
        for each in self._rules:
            answer = self._asked(each, view)
            if isinstance(answer, str):
                errors.append(answer)
            elif answer is not None:
                said.append((each, answer))
        return self._error(*errors) if errors else self._combined(said)

    def _asked(self, each: Rule, view: FactEnvelope) -> Verdict | str | None:
        """The rule's verdict, None, or the text of its fault. Its message may quote facts, so only the kind of fault is kept."""
        began = self._now()
        try:
            answer = each.fn(view)
        except Exception as error:
            return f"rule {each.id} raised {type(error).__name__}"
        if self._now() - began > DEADLINE_NS:
            return f"rule {each.id} took longer than 50 ms"
        if answer is None or _is_verdict(answer):
            return answer  # type: ignore[no-any-return]
        if type(answer) is str and answer in _PLAIN:
            return _PLAIN[answer]()
        return f"rule {each.id} answered {type(answer).__name__}"

    def _combined(self, said: Sequence[tuple[Rule, Verdict]]) -> Judgement:
        for verdict in ("deny", "escalate", "allow"):
            these = [(r, v) for r, v in said if v.verdict == verdict]
            if these:
                told = tuple(Determining(id=r.id, name=r.name, reason=v.reason, verdict=v.verdict) for r, v in these)
                halts = any(v.on_deny == "halt" for _, v in these)
                return Judgement(
                    verdict=these[0][1].verdict,
                    determining=tuple(sorted(told, key=lambda d: d.id)),
                    asks=united(a for _, v in these for a in v.asks) if verdict == "escalate" else (),
                    reason={"deny": "forbidden", "escalate": "needs_approval", "allow": ""}[verdict],
                    on_deny="halt" if halts else "feedback",
                    engine=ENGINE,
                    policy=self._book.digest,
                )
        return Judgement(verdict="deny", reason=NO_MATCH, engine=ENGINE, policy=self._book.digest)

    def _error(self, *errors: str) -> Judgement:
        return Judgement(verdict="error", errors=errors, reason="engine_error", engine=ENGINE, policy=self._book.digest)


def _is_verdict(answer: Any) -> bool:
    """A Verdict whose fields are what they say: Structs do not check what they are built with."""
    if type(answer) is not Verdict or answer.verdict not in ("allow", "deny", "escalate") or type(answer.reason) is not str:
        return False
    fits = type(answer.asks) is tuple and all(sound(a) for a in answer.asks)
    return fits and bool(answer.asks) == (answer.verdict == "escalate")


def _frozen(value: Any) -> Any:
    """Nothing that a rule could change: the next rule sees the same facts."""
    if type(value) is dict:
        return MappingProxyType({k: _frozen(v) for k, v in value.items()})
    return tuple(_frozen(v) for v in value) if type(value) is list else value


def _source_digest(id: str, fn: RuleFunction) -> str:
    if inspect.iscoroutinefunction(fn) or not inspect.isfunction(fn):
        raise Misuse("a rule is a plain function of the facts", code="MDM-0750", where=f"rule {id}", why="it is pure: nothing to await")
    if fn.__closure__:
        names = ", ".join(fn.__code__.co_freevars)
        raise Misuse(
            "a rule may not capture variables", code="MDM-0751", where=f"rule {id}", found=names, fix="write the constant in the function"
        )
    try:
        return digest("policy", dedent(inspect.getsource(fn)).encode())
    except (OSError, TypeError):
        raise Misuse("the source of a rule cannot be read", code="MDM-0751", where=f"rule {id}", fix="put it in a module") from None
