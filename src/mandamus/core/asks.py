"""What an escalation waits for: people of a chain, or the log. `united(asks)` joins what several rules ask; `level(...)` asks the log.

The rule a newcomer would break: a level is a name among the chains (`facts.people.met` has it once it is reached), so no chain of people
may be called so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mandamus.core.records import Ask

LEVELS = ("sealed", "witnessed")  # what the log can make of a record, the weaker first
WITHIN_MS = 3_600_000
WITHIN_MAX_MS = 31_536_000_000  # a year
QUORUM_MAX = 1_000_000


def level(name: str, within_ms: int = WITHIN_MS) -> Ask:
    """The proposal must have reached this level of evidence, and not later than so many milliseconds from the judgement that asks."""
    return Ask(chain=name, quorum=0, to="log", within=within_ms)


def sound(ask: Any) -> bool:
    """Whether it asks for what can be recorded and met. Structs do not check what they are built with."""
    if type(ask) is not Ask or type(ask.quorum) is not int or type(ask.chain) is not str:
        return False
    if ask.to == "people":
        return 1 <= ask.quorum <= QUORUM_MAX and not ask.within and ask.chain not in LEVELS
    return str(ask.to) == "log" and ask.chain in LEVELS and ask.quorum == 0 and type(ask.within) is int and 0 < ask.within <= WITHIN_MAX_MS


def united(asks: Iterable[Ask]) -> tuple[Ask, ...]:
    """Per chain the largest quorum; of levels the strongest, and the shortest time for it."""
    quorums: dict[str, int] = {}
    strongest: Ask | None = None
    for ask in asks:
        if ask.to == "people":
            quorums[ask.chain] = max(quorums.get(ask.chain, 0), ask.quorum)
        elif strongest is None:
            strongest = ask
        else:
            name = max(strongest.chain, ask.chain, key=LEVELS.index)
            strongest = level(name, min(strongest.within or 0, ask.within or 0))
    return (*(Ask(chain=chain, quorum=quorum) for chain, quorum in sorted(quorums.items())), *([] if strongest is None else [strongest]))


def answered(asks: Iterable[Ask]) -> set[str]:
    """The names that stand in `met` when all of them are met: what is witnessed is sealed too."""
    names = {ask.chain for ask in asks}
    return names | set(LEVELS[: LEVELS.index("witnessed")]) if "witnessed" in names else names
