"""The corpus: bundles, the trust file to read each with, and the exit code that every verifier must answer. `cases()` is all of it.

Honest bundles must raise no alarm; attacks are numbered as in the project's list of attacks and must be caught, also where the attacker
holds the bundle key (`insider`). The rule a newcomer would break: a case says what is right, not what a verifier happens to answer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.samples import TRUST_TEXT

CLOCK = 1_795_007_200  # two hours into the samples' day, in seconds since 1970

# Attacks that no verifier can see in one bundle, and where they are tested instead.
ELSEWHERE = {
    49: "a log that signs two trees: tests of the sequencer and of a restored backup",
    50: "a race between two requests: tests of the witness",
    51: "an effect that nobody logged: comparison with the provider's records",
    53: "guessing at commitments: tests of payloads",
    61: "a run left out of a period: tests of the population proof",
}
NUMBERS = set(range(1, 68)) - {5, 6, *ELSEWHERE} | {5, 6}


@dataclass(frozen=True)
class Case:
    """`codes`: the exit codes that are right (one, but for what depends on the reader). `last`: origin -> (size, root) seen before."""

    name: str
    bundle: bytes
    codes: tuple[int, ...]
    attack: int = 0
    trust: str | None = TRUST_TEXT
    views: Mapping[str, bytes] = field(default_factory=dict)
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    last: Mapping[str, tuple[int, str]] | None = None
    now: int | None = CLOCK
    max_age: int | None = None


Maker = Callable[[], Iterator[Case]]


class Builder:
    """Collects cases; `number` of an attack is the leading number of its name."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.made: list[Case] = []

    def honest(self, name: str, bundle: bytes, code: int = 0, **more: Any) -> None:
        self.made.append(Case(f"{self.group}/{name}", bundle, (code,), **more))

    def attack(self, number: int, name: str, bundle: bytes, *codes: int, **more: Any) -> None:
        self.made.append(Case(f"{self.group}/{number:02}_{name}", bundle, codes or (1,), attack=number, **more))


@functools.cache
def cases() -> tuple[Case, ...]:
    """Everything, each name once."""
    from tests.verifiers import corpus_chain, corpus_log, corpus_more, corpus_odd, corpus_people, corpus_runs, corpus_shown

    made: list[Case] = []
    for module in (corpus_chain, corpus_shown, corpus_people, corpus_log, corpus_odd, corpus_more, corpus_runs):
        made += module.made()
    names = [case.name for case in made]
    assert len(set(names)) == len(names), [name for name in names if names.count(name) > 1]
    return tuple(made)
