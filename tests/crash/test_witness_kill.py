"""`mandamus witness serve` killed with signal 9 at random moments, while two clients show it two logs under one key.

What it ever answered is one growing log, and after each death it knows at least what it answered last. The seed of a round is printed.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from mandamus.drivers.witness_http import HttpWitness
from mandamus.errors import Conflict, ProofError, Unavailable
from mandamus.proof.tree import verify_consistency
from tests.e2e.test_witness_cli import Process, serving
from tests.servers.witnesses import ORIGIN, Log, key_file

pytestmark = pytest.mark.service
LEAVES = 4_000


class Answers:
    """Everything that was cosigned, in the order in which it was heard: (size, root)."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, bytes]] = []

    @property
    def newest(self) -> int:
        return max((size for size, _ in self.heard), default=0)


async def shows(uri: str, log: Log, answers: Answers, chance: random.Random) -> None:
    """One of the two: grow from where the witness says it stands, until it dies."""
    one, old = HttpWitness.open(uri), 0
    try:
        while True:
            new = min(old + chance.randrange(1, 9), LEAVES)
            try:
                await one.add(ORIGIN, old, log.tree.consistency(old, new) if old else (), log.note(new))
                answers.heard.append((new, log.tree.root(new)))
                old = new
            except Conflict as other:
                old = other.size
            except ProofError as refused:  # the other log was first
                if refused.diagnosis.code != "MDM-0952":
                    raise
                await asyncio.sleep(0.002)
    except Unavailable:
        pass
    finally:
        await one.close()


async def until_killed(one: Process, logs: list[Log], answers: Answers, chance: random.Random) -> None:
    async def kill() -> None:
        before = len(answers.heard)
        while len(answers.heard) == before:
            await asyncio.sleep(0.001)
        await asyncio.sleep(chance.random() * 0.05)
        one.child.kill()

    await asyncio.gather(kill(), *(shows(one.uri, log, answers, random.Random(chance.random())) for log in logs))


def play(folder: Path, rounds: int, seed: int) -> None:
    print(f"seed {seed}")
    chance, answers = random.Random(seed), Answers()
    log = Log().grow(LEAVES)
    logs = [log, Log(signer=log.signer, leaves="forked").grow(LEAVES)]
    key_file(folder / "w.pem", "w1.example")
    args = ("--key", "w.pem", "--db", "w.db", "--log", log.signer.vkey)
    for n in range(rounds):
        with serving(folder, *args, init=n == 0) as one:
            knows = asyncio.run(known(one.uri, logs[0])) if n else 0
            assert knows >= answers.newest, f"round {n}: it forgot what it cosigned"
            asyncio.run(until_killed(one, logs, answers, chance))
    growing(answers, logs)


async def known(uri: str, log: Log) -> int:
    one = HttpWitness.open(uri)
    try:
        await one.add(ORIGIN, 0, (), log.note(0))
    except Conflict as other:
        return other.size
    finally:
        await one.close()
    return 0


def growing(answers: Answers, logs: list[Log]) -> None:
    """All of them are sizes of one and the same log: each proves that it begins with the one before."""
    mine = next(log for log in logs if log.tree.root(answers.heard[0][0]) == answers.heard[0][1])
    sizes = sorted(set(answers.heard))
    for (old, before), (new, after) in itertools.pairwise(sizes):
        assert verify_consistency(old, new, before, after, mine.tree.consistency(old, new))
    assert len(sizes) == len({size for size, _ in sizes}), "one size was cosigned with two roots"


def test_it_forgets_nothing_and_never_cosigns_a_second_log(tmp_path: Path) -> None:
    play(tmp_path, 8, 20)


@pytest.mark.slow
def test_the_same_at_two_hundred_moments(tmp_path: Path) -> None:
    play(tmp_path, 200, random.SystemRandom().randrange(1 << 32))
