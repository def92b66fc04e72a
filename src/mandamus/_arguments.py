"""The keyword arguments of the calls that users write: one that is missing or unknown is a Misuse that names it.

The rule a newcomer would break: type checkers see the signature of the function itself; this stands around it at run time only.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mandamus.errors import Misuse


def checked(what: str, example: str, receiver: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`checked("Agent", 'Agent(name=..., model=...)', receiver=True)` around a function of keywords. `receiver`: it has a self."""

    def around(fn: Callable[..., Any]) -> Callable[..., Any]:
        params = {p.name: p for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY}
        needed = frozenset(name for name, p in params.items() if p.default is p.empty)

        @functools.wraps(fn)
        def call(*args: Any, **given: Any) -> Any:
            if given.keys() <= params.keys() and needed <= given.keys() and len(args) == receiver:
                return fn(*args, **given)
            raise _refused(what, example, args[receiver:], given, params, needed)

        return call

    return around


def _refused(what: str, example: str, args: Any, given: Any, params: Any, needed: Any) -> Misuse:
    unknown = [name for name in given if name not in params]
    if unknown:
        from mandamus.core.strict import did_you_mean

        return Misuse(f"{what} has no argument {unknown[0][:60]!r}", code="MDM-0232", fix=did_you_mean(unknown[0], params))
    missing = ", ".join(f"{name}=" for name in params if name in needed and name not in given)
    if missing:
        return Misuse(f"{what}: missing argument: {missing}", code="MDM-0232", fix=example)
    return Misuse(f"{what} takes keywords only", code="MDM-0232", found=type(args[0]).__name__, fix=example)
