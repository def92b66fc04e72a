"""Why a run stands still, and what would move it: halts with their remedy, a model that does not answer, votes that were refused.

The rule a newcomer would break: everything here is read from the records; what a provider or a person wrote is never quoted.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from mandamus.cli import read
from mandamus.cli.halts import HALTS
from mandamus.core import records as r
from mandamus.ports import Ledger

_MODEL = {
    "rate_limit": "the provider asks to wait",
    "server": "the provider failed",
    "timeout": "no answer in time",
    "cut": "the answer was cut off",
    "connection": "connection failed",
    "malformed": "an answer that cannot be read",
    "empty": "an empty answer",
    "lost": "the process ended while it was asked",
}
_REFUSED = {
    "not_an_approver": "the voter is not of the chain: mandamus key enroll --principal ... --role ..., then vote again",
    "own_request": "who asked for the run does not approve it",
    "wrong_action": "it was for another action, card or policy: read the card again",
    "wrong_request": "it was for another run or request",
    "not_waiting": "nothing waited for it any more",
    "expired": "it came after the deadline",
    "voted_already": "the voter had voted already",
    "duplicate": "it had come before",
    "forged": "its signature does not hold",
    "malformed": "it is not in the one form of a message",
    "ended": "the run had ended",
    "vetoed": "somebody had vetoed",
}


_CHILD = {
    "people": "which waits for people",
    "level": "which waits for the log and its witnesses",
    "time": "which waits for a time",
    "child": "which waits for one of its own",
    "running": "which nobody drives",
}


def halt(code: str, cause: str) -> tuple[str, str]:
    """(what happened, what to do)."""
    return HALTS.get(code, (f"halted by {cause}", f"mandamus help {code}" if code.startswith("MDM") else "mandamus show RUN --events"))


def rows(story: read.Story, moment: int) -> list[str]:
    """What a person must know of a run that stands: nothing when it moves, or waits for people alone."""
    run = story.run
    if run.life == "halted":
        what, fix = halt(run.code, run.cause)
        return [f"halted: {what}", f"  fix     {fix.replace('RUN', run.id)}"]
    if run.life == "running" and run.stage == "failed":
        return [_model(story, moment)]
    if run.life == "running" and story.head.state in (
        "child",
        "level",
        "people",
        "time",
    ):  # what it says of a run that nobody carries on now
        return [f"{a.id} waits for child run {a.child}, {_below(story, a.child)}: mandamus show {a.child}" for a in read.children(run)]
    return []


def _below(story: read.Story, child: str) -> str:
    """What keeps a child run."""
    state = story.below.get(child, "")
    return _CHILD.get(state, f"which is {state}" if state else "which has not begun")


def _model(story: read.Story, moment: int) -> str:
    """`model: connection failed, 2 tries, next 00:25:27`."""
    failed = [x.fact for x in story.records if isinstance(x.fact, r.ModelFailed) and x.turn == story.run.turn]
    last = failed[-1]
    status = f" (status {last.status})" if last.status is not UNSET else ""
    again = story.run.retry_at
    next_ = f"next {read.when(again)[11:19]} UTC ({read.away(again, moment)})" if again > moment else "next with the resume"
    return f"model: {_MODEL.get(last.category, last.category)}{status}, {len(failed)} {'try' if len(failed) == 1 else 'tries'}, {next_}"


async def refused(ledger: Ledger, story: read.Story, after: int) -> list[dict[str, Any]]:
    """Messages that were refused behind event `after`: of what kind, from whom as far as it is known, and why."""
    out = []
    for record in story.records[after + 1 :]:
        if isinstance(record.fact, r.MessageRefused):
            said = await read.value(ledger, record, "message")
            told = said if isinstance(said, dict) else {}
            out.append({
                "event": record.seq, "kind": str(told.get("kind", "message")), "principal": str(told.get("principal", "")),
                "reason": record.fact.reason,
            })  # fmt: skip
    return out


def refused_row(told: dict[str, Any]) -> str:
    from mandamus.cli.say import shown

    by = f" of {shown(told['principal'])}" if told["principal"] else ""
    return f"refused: the {shown(told['kind'])}{by} ({told['reason']}): {_REFUSED.get(told['reason'], 'it does not count')}"
