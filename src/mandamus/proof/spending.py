"""What a run used against what its genesis allows: no model was called and no task handed down beyond the budget.

The rule a newcomer would break: a call is held against what was known when it was decided, at the beginning of its turn; what guardrails
used in between counts for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from mandamus.core.accounts import handed
from mandamus.core.fold import evolve
from mandamus.core.handed import UNITS, left, used
from mandamus.core.price import at_most
from mandamus.core.records import ActionStarted, AnyRecord, ModelCalled, ModelPriced, RunOpened, TurnStarted
from mandamus.core.run import EMPTY, Run
from mandamus.errors import ProofError
from mandamus.proof.report import Broken, Finding


def any_of(records: Sequence[AnyRecord]) -> bool:
    """Whether anything but turns, retries and time was limited."""
    opened: Any = records[0].fact if records else None
    return isinstance(opened, RunOpened) and any(getattr(opened.budget, unit) is not UNSET for unit in UNITS)


def check(records: Sequence[AnyRecord]) -> tuple[int, int]:
    """(model calls, handoffs) that stood within the budget. Raises Broken at the first that did not."""
    run = decided = EMPTY
    calls = handoffs = 0
    for record in records:
        fact = record.fact
        match fact:
            case TurnStarted():
                decided = run
            case ModelCalled():
                _call(decided if fact.attempt == 1 else run, run, record, fact)
                calls += 1
            case ActionStarted() if fact.child:
                _handoff(run, record, fact)
                handoffs += 1
            case ModelPriced() if run.genesis.budget.currency not in (UNSET, fact.price.currency):
                raise _beyond(record, "the price is in another currency than the budget", run.genesis.budget.currency, fact.price.currency)
            case _:
                pass
        run = _after(run, record)
    return calls, handoffs


def _after(run: Run, record: AnyRecord) -> Run:
    try:
        return evolve(run, record)
    except (KeyError, AssertionError, ValueError, TypeError, AttributeError, ProofError):
        what = "the records are not ones that a run can make"
        raise Broken(Finding(what, code="MDM-0643", chain="run", event=record.seq, type=record.type)) from None


def _call(decided: Run, now: Run, record: AnyRecord, fact: ModelCalled) -> None:
    limits, prompt = now.genesis.budget, now.compiled or 0
    cost = 0 if now.price is UNSET else at_most(now.price, prompt, fact.reserves - prompt)
    asked = {"calls": 1, "cost": cost, "tokens": fact.reserves}
    for unit in UNITS:
        limit: Any = getattr(limits, unit)
        if limit is not UNSET and used(decided, unit) + asked[unit] > limit:
            raise _beyond(record, f"the model is called beyond the budget of {unit}", limit, used(decided, unit) + asked[unit])
    if limits.cost is not UNSET and now.price is UNSET:
        raise _beyond(record, "the budget of money has no price to be counted by", "ModelPriced", "nothing")


def _handoff(run: Run, record: AnyRecord, fact: ActionStarted) -> None:
    """Each unit that is limited is reserved. A fork tells again what its parent reserved."""
    parent = run.genesis.parent
    told = parent is not UNSET and parent.kind == "fork" and not fact.reserves
    amounts = {x.account: x.amount for x in (*run.actions[fact.action].reserves, *fact.reserves)}
    for unit in UNITS:
        free = left(run, unit)
        if free is None or told or run.actions[fact.action].reserves:
            continue
        amount = amounts.get(handed(run.id, unit))
        if amount is None or amount > free:
            raise _beyond(record, f"a task is handed down beyond the budget of {unit}", free, "nothing" if amount is None else amount)


def _beyond(record: AnyRecord, what: str, expected: object, found: object) -> Broken:
    return Broken(
        Finding(what, code="MDM-0657", chain="run", event=record.seq, type=record.type, expected=str(expected), found=str(found)[:80])
    )
