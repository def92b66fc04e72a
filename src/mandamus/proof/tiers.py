"""Whom the rules ask next: where a recorded time ended a tier, the next one was asked at once, and no request ran out before its last.

The rule a newcomer would break: only what the owner recorded can be held against the owner. One that was asleep has no record of the
time, and owes nothing; one that wrote `TimePassed` has seen the clock, and asks in the same append.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mandamus.core.fold import evolve
from mandamus.core.records import ActionJudged, AnyRecord, ApprovalRequested, TimePassed
from mandamus.core.run import EMPTY, Action, Run, ripe
from mandamus.errors import ProofError
from mandamus.proof.chains import Chains
from mandamus.proof.report import Broken, Finding

EXPIRED = "ask.expired"


def check(records: Sequence[AnyRecord], chains: Chains) -> int:
    """How many times a next tier was due and asked. Raises Broken at the first one that was passed over."""
    if not any(isinstance(record.fact, ApprovalRequested) for record in records):
        return 0
    last: dict[str, int] = {}  # policy -> where it judged last
    for record in records:
        if isinstance(record.fact, ActionJudged):
            last[record.fact.bundle] = record.seq
    run, asked = EMPTY, 0
    for record in records:
        fact: Any = record.fact
        if isinstance(fact, TimePassed):
            asked += _passed(run, record, records, chains, last)
        elif isinstance(fact, ActionJudged) and EXPIRED in fact.determining:
            _ran_out(run.actions.get(fact.action), record, chains)
        try:
            run = evolve(run, record)
        except (KeyError, AssertionError, ValueError, TypeError, AttributeError, ProofError):
            return asked  # that the fold cannot follow is found where the seal is checked
    return asked


def _passed(run: Run, record: AnyRecord, records: Sequence[AnyRecord], chains: Chains, last: dict[str, int]) -> int:
    """The requests right behind this time are those of the tiers that begin with it."""
    now, found = record.fact.clock.now, set()  # type: ignore[attr-defined]
    for later in records[record.seq + 1 :]:
        if not isinstance(later.fact, ApprovalRequested):
            break
        found.add((later.fact.request, later.fact.tier))
    count = 0
    for action in run.open_actions:
        q = action.request
        if q is None or ripe(q) or now < q.until or _judged_otherwise(q.policy, record.seq, last):
            continue
        chain = chains.of(q.policy, q.chain)
        if chain is None or q.tier + 1 >= len(chain.tiers):
            continue
        if (q.id, q.tier + 1) not in found:
            what = "the time of a tier was over, and the next one was not asked"
            raise _broken(record, what, f"tier {q.tier + 1} of chain {q.chain}", f"still tier {q.tier}")
        count += 1
    return count


def _judged_otherwise(policy: str, seq: int, last: dict[str, int]) -> bool:
    """Another policy was in force later: its chain of that name may have other tiers."""
    return any(other != policy and at > seq for other, at in last.items())


def _ran_out(action: Action | None, record: AnyRecord, chains: Chains) -> None:
    q = action.request if action is not None else None
    chain = chains.of(q.policy, q.chain) if q is not None else None
    bundle = record.fact.bundle  # type: ignore[attr-defined]
    if q is not None and chain is not None and q.policy == bundle and q.tier + 1 < len(chain.tiers):
        what = "it expired before every tier of its chain was asked"
        raise _broken(record, what, f"{len(chain.tiers)} tiers", f"tier {q.tier} was the last")


def _broken(record: AnyRecord, what: str, expected: str, found: str) -> Broken:
    return Broken(Finding(what, code="MDM-0654", chain="run", event=record.seq, type=record.type, expected=expected, found=found))
