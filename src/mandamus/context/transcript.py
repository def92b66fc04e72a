"""The transcript: a view that folds records into what a prompt is made of, by reference to payloads.

`evolve(view, record)` appends items; nothing is ever rewritten, so a prompt grows by its tail only. The shell joins the texts.
Text of a tool is marked as data: it is shown to the model inside a data-only block and never as an instruction. The words of that
block are the wire formats' (drivers/_wire.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import UNSET, Struct

from mandamus.core import records as r
from mandamus.core.records import Record

Kind = Literal["user", "reply", "output", "note"]


class Item(Struct, frozen=True, gc=False):
    """One joined thing: the payload `part` of record `seq`, or, with `note`, a fixed sentence of ours.

    `call` names the action that is answered; of a reply it is the turn.
    """

    kind: Kind
    seq: int
    part: str = ""
    call: str = ""
    note: str = ""


class Transcript:
    """Mutable and append-only; `mark` and `rewind` undo what was never saved."""

    __slots__ = ("calls", "compiled", "items", "later", "results")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.calls: list[tuple[str, str]] = []  # of the open turn, in order: as the model called it, as it stands after a modification
        self.results: dict[str, Item] = {}
        self.compiled = 0  # how many items the newest recorded compile had joined
        self.later: list[Item] = []  # messages that came while calls were open: providers want results right behind calls

    def mark(self) -> Mark:
        return len(self.items), list(self.calls), dict(self.results), list(self.later), self.compiled

    def rewind(self, mark: Mark) -> None:
        del self.items[mark[0] :]
        self.calls, self.results, self.later, self.compiled = list(mark[1]), dict(mark[2]), list(mark[3]), mark[4]

    def evolve(self, record: Record[Any]) -> None:
        kind = type(record.fact)
        if kind in STEPS:
            STEPS[kind](self, record, record.fact)

    def close_turn(self) -> None:
        """Answers stand in the order of the calls, whatever the order in which they came."""
        for call, now in self.calls:
            if item := self.results.get(now):
                self.items.append(Item(item.kind, item.seq, item.part, call, item.note))
        self.items += self.later
        self.calls, self.results, self.later = [], {}, []


Mark = tuple[int, list[tuple[str, str]], dict[str, Item], list[Item], int]


def _opened(t: Transcript, record: Record[Any], fact: r.RunOpened) -> None:
    t.items.append(Item("user", record.seq, "input"))


def _message(t: Transcript, record: Record[Any], fact: r.MessageReceived) -> None:
    (t.later if t.calls else t.items).append(Item("user", record.seq, "text"))


def _reply(t: Transcript, record: Record[Any], fact: r.ModelReplied) -> None:
    t.items.append(Item("reply", record.seq, "reply", str(record.turn)))


def _checked(t: Transcript, record: Record[Any], fact: r.GuardrailChecked) -> None:
    """What a guardrail blocked stays in the log; a run that is resumed never shows it to the model or gives it out."""
    if fact.result != "block":
        return
    if fact.point == "output":
        t.items.append(Item("note", record.seq, note="withheld"))
    elif fact.point == "tool_result" and fact.action is not UNSET:
        t.results[fact.action] = Item("note", record.seq, call=fact.action, note="done:withheld")


def _failed(t: Transcript, record: Record[Any], fact: r.ModelFailed) -> None:
    if fact.category == "bad_output":
        t.items.append(Item("note", record.seq, note="bad_output"))


def _proposed(t: Transcript, record: Record[Any], fact: r.ActionProposed) -> None:
    if fact.by == "model":
        t.calls.append((fact.action, fact.action))
    elif fact.by == "person":
        t.calls = [(call, fact.action if now == fact.replaces else now) for call, now in t.calls]


def _judged(t: Transcript, record: Record[Any], fact: r.ActionJudged) -> None:
    if fact.verdict == "deny":
        t.results[fact.action] = Item("note", record.seq, call=fact.action, note=f"denied:{fact.code or 'policy'}")


def _turn(t: Transcript, record: Record[Any], fact: r.TurnStarted) -> None:
    t.close_turn()


def _compiled(t: Transcript, record: Record[Any], fact: r.ContextCompiled) -> None:
    t.compiled = len(t.items)


def _ended(t: Transcript, record: Record[Any], fact: r.ActionEnded) -> None:
    t.results[fact.action] = _result(record, fact)


def _result(record: Record[Any], fact: r.ActionEnded) -> Item:
    if fact.result == "done" and fact.output in ("valid", "invalid") and record.body:
        return Item("output", record.seq, "output", fact.action)
    note = {"done": f"done:{fact.output}", "failed": f"failed:{fact.code or 'not_done'}", "unknown": "unknown", "cancelled": "cancelled"}[
        fact.result
    ]
    return Item("note", record.seq, call=fact.action, note=note)


STEPS: dict[type, Callable[[Transcript, Record[Any], Any], None]] = {
    r.RunOpened: _opened,
    r.ContextCompiled: _compiled,
    r.MessageReceived: _message,
    r.ModelReplied: _reply,
    r.GuardrailChecked: _checked,
    r.ModelFailed: _failed,
    r.ActionProposed: _proposed,
    r.ActionJudged: _judged,
    r.ActionEnded: _ended,
    r.TurnStarted: _turn,
}
"""The facts that a prompt tells of; every other one leaves the transcript as it is."""
