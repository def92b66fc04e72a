"""Small true chains for the suites: sealed by `core.seal`, so that a driver meets exactly the bytes it will meet in earnest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from mandamus.core.clock import Clock
from mandamus.core.payload import Payload
from mandamus.core.records import (
    EMPTY_ROOT,
    ActionEnded,
    Anchor,
    BudgetLimits,
    Fact,
    LogOpened,
    ModelReplied,
    Register,
    RunOpened,
    RunOwned,
    TurnStarted,
    Usage,
    genesis_prev,
)
from mandamus.core.seal import Content, Draft, Position, Sealed, seal

CLOCK = Clock(1_700_000_000_000_000, 0, "UTC")
CLAIM = "2023-11-14T22:13:20.000000Z"


def opened(nonce: str = "n-1") -> RunOpened:
    return RunOpened(
        agent="suite",
        anchor=Anchor(root=EMPTY_ROOT, size=0),
        budget=BudgetLimits(),
        clock=CLOCK,
        definition="d" * 64,
        isolation="in_process",
        manifest="m" * 64,
        nonce=nonce,
        origin="mandamus.local/suite",
        policy="p" * 64,
        profile="none",
        register=Register(number=1, prev=""),
        tenant="suite",
        tier="dev",
    )


def log_opened() -> LogOpened:
    return LogOpened(clock=CLOCK, keys=(), nonce="n-log", origin="mandamus.local/suite", quorum=1)


def turn() -> TurnStarted:
    return TurnStarted(clock=CLOCK)


def owned(nonce: str) -> RunOwned:
    return RunOwned(clock=CLOCK, nonce=nonce, signature="s", worker="w")


def replied() -> ModelReplied:
    return ModelReplied(attempt=1, calls=0, model="scripted", stop="stop", usage=Usage())


def ended() -> ActionEnded:
    return ActionEnded(action="1.1", attempt=1, output="none", result="done", via="tool")


class Chain:
    """Seals one run's records in order. `genesis()`, then `next(fact, ...)`: the position moves with every call."""

    def __init__(self, run: str, genesis: RunOpened | LogOpened | None = None) -> None:
        self.run, self.first = run, genesis or opened()
        self.at = Position(run, -1, genesis_prev(run, self.first), 1)
        self._salts = _salts(run)

    def genesis(self, **parts: str) -> list[Sealed]:
        return self.seal([self.first], **parts)

    def next(self, *facts: Fact, **parts: str) -> list[Sealed]:
        """`parts` are body parts (name=value) of the first fact."""
        return self.seal(facts or (turn(),), **parts)

    def seal(self, facts: Sequence[Fact], **parts: str) -> list[Sealed]:
        body = tuple(Content(name, {"text": value}) for name, value in parts.items())
        drafts = [Draft(fact, 1, body if i == 0 else ()) for i, fact in enumerate(facts)]
        sealed, self.at = seal(drafts, self.at, CLAIM, self._salts)
        return sealed

    def take_over(self, nonce: str) -> list[Sealed]:
        """The next owner's first record: epoch + 1."""
        self.at = Position(self.run, self.at.seq, self.at.hash, self.at.epoch + 1)
        return self.seal([owned(nonce)])

    def fork(self) -> Chain:
        """A second writer at the same place."""
        other = Chain(self.run, self.first)
        other.at = self.at
        other._salts = _salts(self.run + "'")
        return other


def raws(sealed: Sequence[Sealed]) -> list[bytes]:
    return [one.raw for one in sealed]


def bodies(sealed: Sequence[Sealed]) -> list[Payload]:
    return [payload for one in sealed for payload in one.payloads]


def _salts(seed: str) -> Iterator[bytes]:
    n = 0
    while True:
        n += 1
        yield hashlib.sha256(f"{seed}/{n}".encode()).digest()
