"""What was revealed must not be written: the plain values of secrets that tools of this process have asked for, and their masks.

The rule a newcomer would break: a tool's output, its reasons, its notes and what it asks of other tools are all payload, and outputs are
shown to the model (law 8). An effect that happened cannot be refused, so its output is masked; what has not happened yet is refused.
"""

from __future__ import annotations

from typing import Any

from mandamus.errors import Misuse

SHORTEST = 4  # characters; a shorter value would mask half of every text, and is no secret
_revealed: dict[str, str] = {}  # plain value -> what stands in its place


def revealed(name: str, value: str) -> str:
    """`value`, which from now on is written as `SecretRef(name)`."""
    if len(value) >= SHORTEST:
        _revealed[value] = f"SecretRef({name})"
    return value


def masked(value: Any) -> Any:
    """The same plain data with every revealed secret by its name; the very same object when it holds none."""
    return _masked(value) if _revealed and _holds(value) else value


def refuse(value: Any, where: str) -> None:
    """Raises Misuse when plain data that would be recorded holds a revealed secret."""
    if _revealed and _holds(value):
        raise Misuse(
            "a secret in plain would be recorded", code="MDM-0233", where=where, expected="ctx.secrets[NAME], revealed where it is used",
            why="arguments and notes are written into the ledger (law 8)", fix="let the tool that needs it read its own ctx.secrets",
        )  # fmt: skip


def _holds(value: Any) -> bool:
    if isinstance(value, str):
        return any(secret in value for secret in _revealed)
    if isinstance(value, dict):
        return any(_holds(k) or _holds(v) for k, v in value.items())
    return isinstance(value, list | tuple) and any(_holds(x) for x in value)


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        for secret in sorted(_revealed, key=len, reverse=True):
            value = value.replace(secret, _revealed[secret])
        return value
    if isinstance(value, dict):
        return {_masked(k): _masked(v) for k, v in value.items()}
    return [_masked(x) for x in value] if isinstance(value, list | tuple) else value
