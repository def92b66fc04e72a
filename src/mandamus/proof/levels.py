"""Levels of evidence: what policy wanted sealed or witnessed before its effect, was so, and the bundle shows the checkpoint.

The rule a newcomer would break: that a level was reached is, in the chain, the word of the run's owner. What carries it is the proof of
that very event under that very checkpoint, with the signatures that the trust file asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mandamus.core.asks import LEVELS
from mandamus.core.records import ActionJudged, ActionProposed, ActionStarted, AnyRecord, EvidenceReached
from mandamus.proof.report import Broken, Claim, Finding, some
from mandamus.proof.shown import Line

Shown = Callable[[AnyRecord, str], "Line | None"]
Met = Mapping[int, bool]  # the position of an EvidenceReached whose checkpoint is shown -> whether the quorum cosigned it


def any_of(records: Sequence[AnyRecord]) -> bool:
    """Whether policy ever asked the log, or the log ever answered."""
    return any(isinstance(r.fact, EvidenceReached) or (isinstance(r.fact, ActionJudged) and _asked(r.fact)) for r in records)


def check(records: Sequence[AnyRecord], shown: Shown, proven: Met, needed: bool, quorum: bool) -> Claim:
    """Claim `levels`. `needed`: a checkpoint that is not shown lowers the verdict. `quorum`: the trust file says who must have witnessed
    it. Raises Broken at an intent that came too early."""
    walk = _Walk(shown)
    reached: list[AnyRecord] = []
    for record in records:
        walk.note(record)
        if isinstance(record.fact, EvidenceReached):
            reached.append(record)
    absent = [f"event {record.seq}" for record in reached if record.seq not in proven]
    below = [f"event {r.seq}" for r in reached if r.fact.level == "witnessed" and not proven.get(r.seq, True)]  # type: ignore[attr-defined]
    told = f"{some(walk.intents, 'intent')} with the evidence that policy asked for"
    if below:
        return Claim("levels", "not in this bundle", f"{told}; not the quorum of the trust file: {', '.join(below[:5])}", 3)
    if absent:
        return Claim("levels", "not in this bundle", f"{told}; the checkpoint is not shown: {', '.join(absent[:5])}", 3 if needed else 0)
    if not quorum and any(record.fact.level == "witnessed" for record in reached):  # type: ignore[attr-defined]
        return Claim("levels", "cannot check now", f"{told}; the trust file demands no quorum, so it does not say who are witnesses", 0)
    return Claim("levels", "proven", f"{told}; {some(len(reached), 'checkpoint')} shown")


class _Walk:
    def __init__(self, shown: Shown) -> None:
        self.shown = shown
        self.proposed: dict[str, int] = {}
        self.asked: dict[str, set[tuple[str, str]]] = {}  # action -> (level, the policy that asked)
        self.policy: dict[str, str] = {}
        self.upto = dict.fromkeys(LEVELS, -1)
        self.intents = 0

    def note(self, record: AnyRecord) -> None:
        fact = record.fact
        if isinstance(fact, ActionProposed):
            self.proposed[fact.action] = record.seq
        elif isinstance(fact, EvidenceReached):
            for level in LEVELS[: LEVELS.index(fact.level) + 1]:
                self.upto[level] = max(self.upto[level], fact.seq)
        elif isinstance(fact, ActionJudged):
            self._judged(record, fact)
        elif isinstance(fact, ActionStarted):
            self._started(record, fact)

    def _judged(self, record: AnyRecord, fact: ActionJudged) -> None:
        self.policy[fact.action] = fact.bundle
        self.asked.setdefault(fact.action, set()).update((level, fact.bundle) for level in _asked(fact))
        line = self.shown(record, "facts")
        for level in LEVELS:
            if level in _met(line) and not self._has(fact.action, level):
                raise _early(record, f"policy was told that action {fact.action[:40]} is {level}")

    def _started(self, record: AnyRecord, fact: ActionStarted) -> None:
        """Asked for by the policy whose ALLOW it stands on."""
        asked = [level for level, policy in sorted(self.asked.get(fact.action, ())) if policy == self.policy.get(fact.action)]
        for level in asked:
            if not self._has(fact.action, level):
                raise _early(record, f"policy wanted action {fact.action[:40]} to be {level} before it starts")
        self.intents += bool(asked)

    def _has(self, action: str, level: str) -> bool:
        return self.upto[level] >= self.proposed.get(action, 0)


def _asked(fact: ActionJudged) -> list[str]:
    return [ask.chain for ask in fact.asks or () if ask.to == "log" and ask.chain in LEVELS]


def _met(line: Line | None) -> list[Any]:
    people: Any = line.value.get("people") if line is not None and type(line.value) is dict else None
    met = people.get("met") if type(people) is dict else None
    return met if type(met) is list else []


def _early(record: AnyRecord, what: str) -> Broken:
    return Broken(Finding(f"{what}, and no record before it says so", code="MDM-0673", chain="run", event=record.seq, type=record.type))
