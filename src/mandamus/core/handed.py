"""What a run hands down of its budget, and what comes back: a handoff reserves in its intent what the child may use at most, the child's
genesis carries exactly that as its limit, and its end spends what it used, with all that stood below it.

The rule a newcomer would break: only what costs is handed down (calls, tokens, money). Turns, retries and denials bound one run's loop;
each run has its own, never larger than its parent's, and nothing of them comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from mandamus.core.accounts import handed, unit_of
from mandamus.core.records import BudgetLimits, Reserve
from mandamus.core.run import NOTHING, Action, Run, reserved_cost

Unit = Literal["calls", "cost", "tokens"]
UNITS: tuple[Unit, ...] = ("calls", "cost", "tokens")


def used(run: Run, unit: Unit) -> int:
    """What the run has used, with all the runs below it that have ended."""
    s, below = run.spent, run.spent.below or NOTHING
    match unit:
        case "calls":
            return s.calls + below.calls
        case "cost":
            return (s.cost or 0) + below.cost
        case "tokens":
            return s.input + s.output + below.tokens


def held(run: Run, unit: Unit) -> int:
    """What open children may still use."""
    account = handed(run.id, unit)
    return sum(x.amount for a in run.actions.values() for x in a.reserves if x.account == account)


def left(run: Run, unit: Unit) -> int | None:
    """What nobody has used or may use yet; None: the run has no such limit."""
    limit: Any = getattr(run.genesis.budget, unit)
    if limit is UNSET:
        return None
    asked = {"calls": 0, "cost": reserved_cost(run), "tokens": run.reserved}[unit]
    return int(limit) - used(run, unit) - held(run, unit) - asked


def reserves(run: Run, action: Action, own: BudgetLimits, tentative: Mapping[str, int]) -> tuple[tuple[Reserve, ...], str]:
    """(what this handoff reserves, the code of the unit of which nothing is left).

    `own` is the child's budget, `tentative` what earlier actions of the batch would reserve. Handoffs that wait side by side share what
    is left, so that the first one does not take it all.
    """
    if action.reserves:
        return (), ""
    sharing = sum(1 for a in run.open_actions if a.kind == "handoff" and not a.child and a.seq >= action.seq)
    out: list[Reserve] = []
    for unit in UNITS:
        free = left(run, unit)
        if free is None:
            continue
        account, most = handed(run.id, unit), getattr(own, unit)
        free -= tentative.get(account, 0)
        if free <= 0:
            return (), f"{unit}_exhausted"
        share = max(1, free // max(1, sharing))
        out.append(Reserve(account=account, amount=share if most is UNSET else min(share, most)))
    return tuple(out), ""


def carved(own: BudgetLimits, parent: Run, action: Action, now: int) -> BudgetLimits:
    """The child's budget: what its parent's intent reserved for it, and no more time, turns or retries than its parent has left."""
    limits = parent.genesis.budget
    given: dict[str, Any] = {unit: x.amount for x in action.reserves if (unit := unit_of(parent.id, x.account))}
    if "cost" in given:
        given["currency"] = limits.currency
    if limits.wall_ms is not UNSET:
        gone = max(0, limits.wall_ms - (now - parent.genesis.clock.now) // 1000)
        given["wall_ms"] = gone if own.wall_ms is UNSET else min(own.wall_ms, gone)
    return msgspec.structs.replace(
        own,
        turns=min(own.turns, max(1, limits.turns - parent.turn)),
        retries=min(own.retries, max(0, limits.retries - parent.spent.retries)),
        denials=min(own.denials, limits.denials),
        **given,
    )


def spends(action: Action, parent: str, child: Run, done: bool) -> tuple[Reserve, ...]:
    """What settles a handoff whose child has ended: what it used; of other accounts all when it is done, nothing when it is not."""
    out = []
    for x in action.reserves:
        unit: Any = unit_of(parent, x.account)
        out.append(Reserve(account=x.account, amount=used(child, unit) if unit else x.amount if done else 0))
    return tuple(out)
