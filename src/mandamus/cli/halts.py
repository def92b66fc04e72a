"""What the code of a halt means, and what to do before `mandamus resume`. Data: `help CODE`, `show` and `run` tell it.

The rule a newcomer would break: a fix is something that a person can do; RUN in it is replaced by the run's id.
"""

from __future__ import annotations

# code of a halt: (what happened, what to do before `mandamus resume`)
HALTS: dict[str, tuple[str, str]] = {
    "model_auth": (
        "the model's provider refused the key, or none was set",
        "set OPENAI_API_KEY or ANTHROPIC_API_KEY, or the variable that the model's address names by key=env:NAME",
    ),
    "model_request": (
        "the model refused the request: its name is wrong, the request does not fit it, or a script has run out of steps",
        "check model= (a script needs a step for every turn); a run of agent.yaml keeps its model: mandamus fork RUN --at 0 --model URI",
    ),
    "model_driver": ("the driver of the model failed", "look at the driver; a provider's error alone never halts so"),
    "retries": (
        "the budget of retries is used up: model or tools failed again and again",
        "mend what failed; Budget(retries=...) counts for later runs",
    ),
    "turns": ("the budget of turns is used up", "Budget(turns=...), as a new run"),
    "tokens": ("the budget of tokens is used up", "Budget(tokens=...), as a new run"),
    "calls": ("the budget of calls is used up", "Budget(calls=...), as a new run"),
    "cost": ("the budget of money is used up", "Budget(cost=...), as a new run"),
    "wall": ("the time of the run is used up", "Budget(wall=...), or --deadline, as a new run"),
    "window": ("the prompt no longer fits the model's window", "a shorter task, window=..., or a new run with --thread"),
    "denied": (
        "too many actions in a row were denied, or the same one twice",
        "mandamus why ACTION names the rule; Budget(denials=...) counts for later runs",
    ),
    "hard_block": ("a guardrail blocked", "mandamus show RUN --events names the guardrail"),
    "stop": ("people asked it to stop", "carry it on only if they agree"),
    "halted": ("a person halted it by a vote", "carry it on only if they agree"),
    "rejected": (
        "a person said no while another action was in the air",
        "settle what is unknown; a resume then ends the run, which does nothing new any more",
    ),
    "engine_error": ("a policy engine failed, so nothing was allowed", "mandamus why ACTION tells its error; mandamus doctor AGENT"),
    "no_evidence": (
        "policy asks for evidence that cannot be had here: the ledger has no log, or nobody witnesses it",
        "name a log by MANDAMUS_LOG and witnesses by MANDAMUS_WITNESSES, with their lines in the trust file; mandamus why ACTION says "
        "which",
    ),
    "engine_fault": ("something that must answer did not", "mend it: mandamus doctor AGENT"),
    "poison": (
        "its owners died or were lost five times in a row, before it got any further",
        "find what ends the process: the last event of mandamus show RUN --events is what it was doing; mend that",
    ),
    "proof": ("evidence does not hold: a stored value is not the one committed to", "keep the ledger as evidence, and tell who runs it"),
}
