"""Which record may stand where: the life of a run and of its actions, as a table of rules by type.

The rule a newcomer would break: an intent stands directly behind its own ALLOW, for every attempt. A rule answers with a sentence
when the record may not stand there, and with "" when it may. Types without a rule may stand anywhere in a chain of their kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from mandamus.core.records import FACTS, LOG, AnyRecord
from mandamus.core.run import ACTIONS, CLOSED, ends_by_no


class Life:
    """What the rules remember of one chain. `actions` maps an action to a state of the table in core/run.py; `final` holds what is over."""

    __slots__ = (
        "actions", "attempts", "calls", "children", "count", "effects", "ended", "erasures", "final", "holds", "refused", "sealed",
    )  # fmt: skip

    def __init__(self, count: int) -> None:
        self.count = count
        self.actions: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        self.calls = False
        self.children: set[str] = set()
        self.effects: dict[str, str] = {}
        self.final: set[str] = set()
        self.ended = ""
        self.erasures: dict[str, int] = {}  # not before this instant
        self.holds: dict[str, Any] = {}  # in force; None when lifted
        self.refused = False  # by a person's no that ends the run
        self.sealed = False

    @property
    def in_flight(self) -> bool:
        return self.calls or any(state in ("started", "doubted") for state in self.actions.values())

    @property
    def unsettled(self) -> tuple[str, ...]:
        """Actions whose outcome nobody knows and nobody has settled."""
        return tuple(action for action, state in self.actions.items() if state == "unknown")

    def move(self, action: str, state: str) -> str:
        """ "" when the table allows it; the action stands there now."""
        before = self.actions.get(action)
        if before is None:
            return f"action {action[:40]} was never proposed"
        if state not in ACTIONS[before] or action in self.final:
            over = f"action {action[:40]} is {before}, it cannot be {state} any more"
            flying = f"an attempt is still in flight, it cannot be {state}"
            return over if before in CLOSED else flying if before == "started" else f"what is {before} cannot be {state}"
        self.actions[action] = state
        return ""


Rule = Callable[[Life, AnyRecord, "AnyRecord | None"], str]


def _opens(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    return "" if previous is None else "a chain has one genesis"


def _owned(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    if previous is None or record.epoch != previous.epoch + 1:
        return "a new owner raises the epoch by one"
    for action, state in life.actions.items():
        if state == "started" and action not in life.children:  # a child's own chain answers, not doubt
            life.actions[action] = "doubted"
    return ""


def _priced(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    return "" if record.seq == 1 else "a price stands right behind the genesis"


def _called(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    life.calls = True
    if life.refused:
        return "a model is called after a person's no had ended the run"
    return "" if not life.ended else "a model is called after the run ended"


def _answered(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    open_, life.calls = life.calls, False
    fact: Any = record.fact
    if record.type == "ModelFailed" and fact.category == "bad_output":  # says that the reply before it was of no use
        return ""
    return "" if open_ else "no model call is open"


def _proposed(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    fact: Any = record.fact
    if fact.action in life.actions:
        return f"action {fact.action[:40]} is proposed twice"
    life.actions[fact.action], life.effects[fact.action] = "proposed", fact.effect
    return "" if not life.ended else "an action is proposed after the run ended"


def _judged(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    """What is in doubt stays so while it is judged; anything else is judged or denied."""
    fact: Any = record.fact
    if life.actions.get(fact.action) in ("doubted", "unknown"):
        return ""
    return life.move(fact.action, "denied" if fact.verdict == "deny" else "judged")


def _started(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    fact: Any = record.fact
    before: Any = previous.fact if previous is not None and previous.type == "ActionJudged" else None
    if before is None or before.verdict != "allow" or before.action != fact.action or before.attempt != fact.attempt:
        return "an intent without the ALLOW of this action and attempt directly before it"
    if life.actions.get(fact.action) == "started" or fact.attempt <= life.attempts.get(fact.action, 0):
        return "this attempt was started before, or an earlier one is still in flight"
    if life.actions.get(fact.action) == "doubted" and life.effects[fact.action] == "irreversible":
        return "what cannot be taken back is tried again while nobody knows whether it happened"
    if what := life.move(fact.action, "started"):
        return what
    if fact.child is not UNSET:
        life.children.add(fact.action)
    life.attempts[fact.action] = fact.attempt
    if life.refused:
        return "an action starts after a person's no had ended the run"
    return "" if not life.ended else "an action starts after the run ended"


def _doubted(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    fact: Any = record.fact
    if life.actions.get(fact.action) not in ("started", "doubted"):
        return "only a started action can be doubted"
    return life.move(fact.action, "doubted")


def _action_ended(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    """A failure without a time for the next attempt is the last word."""
    fact: Any = record.fact
    before = life.actions.get(fact.action)
    if fact.result == "done" and before in ("proposed", "judged"):
        return "an action that never started is done"
    if fact.result == "cancelled" and before == "doubted" and life.effects[fact.action] == "irreversible":
        return "nobody knows whether it happened, and it is called cancelled"
    what = life.move(fact.action, "settled" if fact.result == "unknown" and fact.via == "people" else fact.result)
    if not what and fact.result == "failed" and fact.retry_at is UNSET:
        life.final.add(fact.action)
    return what


def _halted(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    fact: Any = record.fact
    life.refused = life.refused or ends_by_no(fact)
    return ""


def _run_ended(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    fact: Any = record.fact
    if life.ended:
        return "a run ends once"
    life.ended = fact.state
    return ""


def _sealed(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    fact: Any = record.fact
    life.sealed = True
    if record.seq != life.count - 1:
        return "a record stands behind the seal"
    if not life.ended or fact.closed != life.ended:
        return "the seal does not say how the run ended"
    if fact.head != record.prev or fact.count != record.seq:
        return "the seal counts other records than those before it"
    if life.in_flight or life.unsettled:
        return "sealed while an action is in flight or unsettled"
    return ""


def _voted(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    fact: Any = record.fact
    if (record.run == LOG) != (fact.scope == "standing"):
        return "a standing vote belongs to chain log, any other to its run"
    if (fact.scope == "standing") != (fact.action is UNSET):
        return "only a standing vote names no action"
    return "" if record.run == LOG or fact.action in life.actions else f"action {fact.action[:40]} was never proposed"


def _reached(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    """A checkpoint holds what was written before it was heard of, and a log has more leaves than its newest record of one run says."""
    fact: Any = record.fact
    if not 0 <= fact.seq < record.seq:
        return "evidence was reached for an event that is not there yet"
    return "" if fact.size > fact.seq else "a checkpoint of fewer leaves than the run has events"


# -- chain log: what is forgotten, and what is kept ---------------------------------------------------------------------------
def _hold_placed(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    fact: Any = record.fact
    if fact.hold in life.holds:
        return f"hold {fact.hold[:40]} is placed twice"
    life.holds[fact.hold] = fact
    return ""


def _hold_lifted(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    fact: Any = record.fact
    if life.holds.get(fact.hold) is None:
        return f"hold {fact.hold[:40]} is not in force"
    life.holds[fact.hold] = None
    return ""


def _erasure_requested(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    fact: Any = record.fact
    if fact.erasure in life.erasures:
        return f"erasure {fact.erasure[:40]} is requested twice"
    life.erasures[fact.erasure] = fact.after
    return ""


def _erasure_blocked(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    fact: Any = record.fact
    if fact.erasure not in life.erasures:
        return f"erasure {fact.erasure[:40]} was never requested"
    if fact.hold is not UNSET and life.holds.get(fact.hold) is None:
        return f"hold {fact.hold[:40]}, which is said to keep it, is not in force"
    return ""


def _erased(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    """Asked for first, not before its time, and not while a hold on this subject, or on everything, is in force."""
    fact: Any = record.fact
    if fact.erasure not in life.erasures:
        return "something was destroyed that nobody had asked to erase"
    if fact.clock.now < life.erasures[fact.erasure]:
        return "it was destroyed before its time"
    for hold in life.holds.values():
        if hold is not None and hold.run is UNSET and (hold.subject is UNSET or hold.subject == fact.subject):
            return f"it was destroyed while hold {hold.hold[:40]} was in force"
    return ""


def _only_log(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    return f"{record.type} belongs to chain log"


def _only_run(life: Life, record: AnyRecord, previous: AnyRecord | None) -> str:
    return f"{record.type} belongs to a run, not to chain log"


_KEPT = ("HoldPlaced", "HoldLifted", "ErasureRequested", "ErasureBlocked", "Erased", "Exported")  # what is forgotten, kept and given away
RUN_RULES: dict[str, Rule] = {
    "RunOpened": _opens,
    "RunOwned": _owned,
    "RunEnded": _run_ended,
    "RunHalted": _halted,
    "RunSealed": _sealed,
    "ModelCalled": _called,
    "ModelPriced": _priced,
    "ModelReplied": _answered,
    "ModelFailed": _answered,
    "ActionProposed": _proposed,
    "ActionJudged": _judged,
    "ActionStarted": _started,
    "ActionDoubted": _doubted,
    "ActionEnded": _action_ended,
    "Voted": _voted,
    "EvidenceReached": _reached,
    "LogOpened": _only_log,
    "RunRefused": _only_log,
    "PolicyChanged": _only_log,
    "KeyChanged": _only_log,
    **dict.fromkeys(_KEPT, _only_log),
    "VoteWithdrawn": _only_log,
}
_IN_LOG: dict[str, Rule | None] = {
    "LogOpened": _opens,
    "Voted": _voted,
    "RunRefused": None,
    "PolicyChanged": None,
    "KeyChanged": None,
    "HoldPlaced": _hold_placed,
    "HoldLifted": _hold_lifted,
    "ErasureRequested": _erasure_requested,
    "ErasureBlocked": _erasure_blocked,
    "Erased": _erased,
    "Exported": None,
    "StopRequested": None,
    "VoteWithdrawn": None,
}
LOG_RULES: dict[str, Rule] = {name: rule for name in FACTS if (rule := _IN_LOG.get(name, _only_run)) is not None}
