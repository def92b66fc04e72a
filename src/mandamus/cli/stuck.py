"""Why a run stands still, and what would move it: halts with their remedy, a model that does not answer, votes that were refused.

The rule a newcomer would break: everything here is read from the records; what a provider or a person wrote is never quoted.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from mandamus.cli import read
from mandamus.core import records as r
from mandamus.ports import Ledger

# code of a halt: (what happened, what to do before `mandamus resume`)
HALTS: dict[str, tuple[str, str]] = {
    "model_auth": (
        "the model's provider refused the key, or none was set",
        "set OPENAI_API_KEY or ANTHROPIC_API_KEY, or the variable that the model's address names by key=env:NAME",
    ),
    "model_request": (
        "the model refused the request: its name is wrong, the request does not fit it, or a script has run out of steps",
        "check model= (a script needs a step for every turn)",
    ),
    "model_driver": ("the driver of the model failed", "look at the driver; a provider's error alone never halts so"),
    "retries": ("the budget of retries is used up: model or tools failed again and again", "mend what failed, or Budget(retries=...)"),
    "turns": ("the budget of turns is used up", "Budget(turns=...), as a new run"),
    "tokens": ("the budget of tokens is used up", "Budget(tokens=...), as a new run"),
    "calls": ("the budget of calls is used up", "Budget(calls=...), as a new run"),
    "wall": ("the time of the run is used up", "Budget(wall=...), or --deadline, as a new run"),
    "window": ("the prompt no longer fits the model's window", "a shorter task, window=..., or a new run with --thread"),
    "denied": ("too many actions in a row were denied, or the same one twice", "mandamus why ACTION names the rule; Budget(denials=...)"),
    "hard_block": ("a guardrail blocked", "mandamus show RUN --events names the guardrail"),
    "stop": ("people asked it to stop", "carry it on only if they agree"),
    "halted": ("a person halted it by a vote", "carry it on only if they agree"),
    "rejected": ("a person said no while another action was in the air", "settle what is unknown, then resume"),
    "engine_error": ("a policy engine failed, so nothing was allowed", "mandamus why ACTION tells its error; mandamus doctor AGENT"),
    "engine_fault": ("something that must answer did not", "mend it: mandamus doctor AGENT"),
    "proof": ("evidence does not hold: a stored value is not the one committed to", "keep the ledger as evidence, and tell who runs it"),
}
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
    return []


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
