"""The same story without mandamus: a plain agent loop that saves its conversation after every step, and runs again after a crash.

It is written as such loops are: the tool is called, then the answer is saved. The rule a newcomer would break: no handicap; the loop
is neither slower nor more careless than what a README shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Message = dict[str, Any]


def loop(file: Path, prompt: str, model: Callable[[list[Message]], Message], tools: dict[str, Callable[..., str]]) -> str:
    """Carry the conversation in `file` to its end; a conversation that is there already is continued where it stopped."""
    messages: list[Message] = json.loads(file.read_text()) if file.exists() else [{"role": "user", "content": prompt}]
    while True:
        last = messages[-1]
        if last["role"] == "assistant" and "call" not in last:
            return str(last["content"])
        if last["role"] == "assistant":
            name, arguments = last["call"]
            messages.append({"role": "tool", "content": tools[name](**arguments)})
        else:
            messages.append(model(messages))
        file.write_text(json.dumps(messages))


def script(to: str, amount: str) -> Callable[[list[Message]], Message]:
    """The same model as in the story: pay, then say so."""

    def model(messages: list[Message]) -> Message:
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": f"Done: {to} has been paid."}
        return {"role": "assistant", "content": "", "call": ["send_payment", {"to": to, "amount": amount}]}

    return model
