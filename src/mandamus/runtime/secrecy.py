"""What was revealed must not be written: the plain values of secrets that tools of this process have asked for, and their masks.

The rule a newcomer would break: a tool's output, its reasons, its notes and what it asks of other tools are all payload, and outputs are
shown to the model (law 8). An effect that happened cannot be refused, so its output is masked; what has not happened yet is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mandamus.errors import Misuse

SHORTEST = 4  # characters; a shorter value would mask half of every text, and is no secret
_BYTES = (bytes, bytearray, memoryview)
_revealed: dict[str, str] = {}  # plain value -> what stands in its place; replaced, never changed: threads of tools read it meanwhile


def revealed(name: str, value: str) -> str:
    """`value`, which from now on is written as `SecretRef(name)`, also without the line end that a file left behind it."""
    global _revealed
    for said in {value, value.strip()}:
        if len(said) >= SHORTEST:
            _revealed = {**_revealed, said: f"SecretRef({name})"}
    return value


def built(value: Any) -> Any:
    """What a tool returned as plain data, masked, bytes too: in base64 a secret would be there for everybody, and found by nobody."""
    if not _revealed:
        return msgspec.to_builtins(value)
    return msgspec.to_builtins(masked(msgspec.to_builtins(value, builtin_types=_BYTES)))


def masked(value: Any) -> Any:
    """The same plain data with every revealed secret by its name; the very same object when it holds none."""
    return _masked(value) if _revealed and _holds(value) else value


def refuse(value: Any, where: str) -> None:
    """Raises Misuse when what would be recorded holds a revealed secret."""
    if _revealed and _holds(_opened(value)):
        raise Misuse(
            "a secret in plain would be recorded", code="MDM-0233", where=where, expected="ctx.secrets[NAME], revealed where it is used",
            why="arguments and notes are written into the ledger (law 8)", fix="let the tool that needs it read its own ctx.secrets",
        )  # fmt: skip


def _opened(value: Any) -> Any:
    """Structs, sets and the like as plain data; what has no such form is recorded by nobody."""
    try:
        return msgspec.to_builtins(value, builtin_types=_BYTES)
    except (TypeError, ValueError, RecursionError):
        return value


def _holds(value: Any) -> bool:
    if isinstance(value, str):
        return any(secret in value for secret in _revealed)
    if isinstance(value, _BYTES):
        return any(secret.encode() in bytes(value) for secret in _revealed)
    if type(value) is int:
        return str(value) in _revealed
    if isinstance(value, dict):
        return any(_holds(k) or _holds(v) for k, v in value.items())
    return isinstance(value, list | tuple) and any(_holds(x) for x in value)


def _masked(value: Any) -> Any:
    if isinstance(value, str):
        for secret, name in sorted(_revealed.items(), key=lambda x: -len(x[0])):
            value = value.replace(secret, name)
        return value
    if isinstance(value, _BYTES):
        return _masked(bytes(value).decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    if type(value) is int:
        return _revealed.get(str(value), value)
    if isinstance(value, dict):
        return {_masked(k): _masked(v) for k, v in value.items()}
    return [_masked(x) for x in value] if isinstance(value, list | tuple) else value
