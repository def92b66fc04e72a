"""Facts that more than one rule writes, not yet sealed: what is proposed, what ends, what is given back.

The rule a newcomer would break: nothing here looks whether its fact is due. Whoever calls it has.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.run import IN_DOUBT, Action, Run
from mandamus.core.seal import Content, Draft


class NotDue(Exception):
    """The answer does not fit the run as it stands. Nothing follows from it."""


def draft(run: Run, fact: r.Fact, *body: Content, turn: int | None = None) -> Draft:
    return Draft(fact, run.turn if turn is None else turn, body)


def proposal(run: Run, p: e.Proposal, id: str, by: Any, parent: str = "", replaces: str = "") -> Draft:
    fact = r.ActionProposed(
        action=id, by=by, call=id, effect=p.effect, fault=p.fault or UNSET, kind=p.kind, parent=parent or UNSET, pin=p.pin or UNSET,
        repeats=UNSET if p.repeats is None else p.repeats, replaces=replaces or UNSET, safety=p.safety, tool=p.tool,
    )  # fmt: skip
    return Draft(fact, run.turn, (Content("args", p.args, p.data, subject=p.subject, secret=p.secret, raw=p.raw),))


def ended(run: Run, action: Action, result: Any, via: Any, spends: tuple[r.Reserve, ...] = (), code: str = "") -> Draft:
    return draft(
        run,
        r.ActionEnded(action=action.id, attempt=action.attempt, code=code or UNSET, output="none", result=result, spends=spends, via=via),
    )


def freed(action: Action) -> tuple[r.Reserve, ...]:
    """Spends that give every reservation back."""
    return tuple(r.Reserve(account=x.account, amount=0) for x in action.reserves)


def cancelled(run: Run, but: set[str], via: Any = "policy") -> list[Draft]:
    """Everything that has not started is cancelled."""
    return [
        draft(run, r.ActionEnded(action=a.id, attempt=a.attempt, output="none", result="cancelled", via=via))
        for a in run.open_actions
        if a.id not in but and a.state not in IN_DOUBT
    ]
