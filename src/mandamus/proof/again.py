"""`--reevaluate`: policy asked again. The recorded facts and the policy's own text must give the verdict that was recorded.

`judge(source, facts)` is an engine that was handed in: proof knows no policy language. It answers None for what it cannot judge. The rule
a newcomer would break: only the layer `policy` is asked again. What people, limits and contracts said is checked where it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct

from mandamus.core.records import ActionJudged, ActionProposed, AnyRecord, RunOpened
from mandamus.proof.report import Broken, Claim, Finding, some
from mandamus.proof.shown import Line


class Again(Struct, frozen=True):
    """What the engine says now. `silent`: no rule spoke, which counts only when nobody else does."""

    verdict: str
    determining: tuple[str, ...] = ()
    silent: bool = False


Judge = Callable[[Mapping[str, Any], Mapping[str, Any]], "Again | None"]
Shown = Callable[[AnyRecord, str], "Line | None"]


def check(records: Sequence[AnyRecord], sources: Mapping[str, Mapping[str, Any]], shown: Shown, judge: Judge) -> Claim:
    """Claim `re-evaluation`. Raises Broken at the first judgement that would be another one."""
    proposed: dict[str, ActionProposed] = {}
    same = failed = 0
    hidden: list[str] = []
    foreign: list[str] = []
    for record in records:
        fact = record.fact
        if isinstance(fact, ActionProposed):
            proposed[fact.action] = fact
        if not isinstance(fact, ActionJudged) or not (layers := [layer for layer in fact.layers if layer.layer == "policy"]):
            continue
        line = shown(record, "facts")
        if line is None or fact.bundle not in sources:
            hidden.append(f"event {record.seq}")
            continue
        _facts_fit(record, fact, proposed[fact.action], records[0].fact, line.value)
        again = judge(sources[fact.bundle], line.value)
        codes = [layer for layer in layers if layer.of == "code"]
        if again is None or codes:
            foreign.append(f"event {record.seq}")
        if any(layer.verdict == "error" for layer in layers):
            failed += 1  # an engine that failed then allowed nothing; that it would answer today is no contradiction
        elif again is not None:
            _same(record, fact, again, {layer.verdict for layer in layers if layer.of != "code"}, bool(codes))
            same += 1
    told = f"{some(same, 'verdict')} of policy, the same again" + (f"; {failed} where the engine had failed" if failed else "")
    if foreign:
        what = f"{told}; not asked again, since they are rules in code or of an engine that is not here: {', '.join(foreign[:5])}"
        return Claim("re-evaluation", "cannot check now", what, 5)
    if hidden:
        what = f"{told}; not asked again, since facts or policy are not shown: {', '.join(hidden[:5])}"
        return Claim("re-evaluation", "not in this bundle", what, 3)
    return Claim("re-evaluation", "proven", told)


def _same(record: AnyRecord, fact: ActionJudged, again: Again, recorded: set[str], others: bool) -> None:
    """`recorded`: what its layer said; nothing when others spoke and it had no rule."""
    expected = set() if again.silent and others else {again.verdict}
    if recorded != expected:
        raise _no(record, "policy, asked again, says something else", ", ".join(expected) or "nothing", ", ".join(recorded) or "nothing")
    unnamed = [rule for rule in again.determining if rule not in fact.determining]
    if fact.verdict == again.verdict and unnamed:
        raise _no(record, "policy, asked again, decides by another rule", ", ".join(again.determining), ", ".join(fact.determining))


def _facts_fit(record: AnyRecord, fact: ActionJudged, proposed: ActionProposed, opened: Any, facts: Any) -> None:
    """The facts are about this action of this run, as other records tell it."""
    assert isinstance(opened, RunOpened)
    try:
        action, principal, context = facts["action"], facts["principal"], facts["context"]
        told = {name: action[name] for name in ("attempt", "effect", "kind", "pin", "safety", "tool")}
        told |= {"agent": principal["agent"], "depth": principal["depth"], "tenant": principal["tenant"]}
        told |= {"environment": context["environment"], "tier": context["tier"]}
    except (KeyError, TypeError):
        raise _no(record, "its facts have another form", "", "") from None
    wanted: dict[str, Any] = {
        "attempt": fact.attempt, "effect": proposed.effect, "kind": proposed.kind, "safety": proposed.safety, "tool": proposed.tool,
        "agent": opened.agent, "depth": opened.depth, "tenant": opened.tenant, "environment": opened.environment, "tier": opened.tier,
        "pin": "" if proposed.pin is UNSET else proposed.pin,
    }  # fmt: skip
    for name, value in wanted.items():
        if told[name] != value:
            raise _no(record, f"policy was told another {name} than the records say", str(value), str(told[name])[:80])


def _no(record: AnyRecord, what: str, expected: str, found: str) -> Broken:
    where: dict[str, Any] = {"chain": "run", "event": record.seq, "type": record.type}
    return Broken(Finding(what, code="MDM-0676", expected=expected, found=found, **where))
