"""The ledger suite, on every driver here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.ports import Ledger
from mandamus.testing.conformance.ledger import LedgerSuite, SealedSuite, names, run


def memory(_: Path) -> Callable[[], Ledger]:
    store = MemoryLedger()
    return lambda: MemoryLedger(beside=store)


def leases(_: Path) -> Callable[[], Ledger]:
    store = MemoryLedger(leases=True)
    return lambda: MemoryLedger(beside=store)


def sqlite(folder: Path) -> Callable[[], Ledger]:
    return lambda: SqliteLedger.open(folder / "ledger.db")


@pytest.mark.parametrize("driver", [memory, leases, sqlite])
@pytest.mark.parametrize("name", names(LedgerSuite))
def test_ledger(name: str, driver: Callable[[Path], Callable[[], Ledger]], tmp_path: Path) -> None:
    run(LedgerSuite, name, driver(tmp_path))


@pytest.mark.parametrize("driver", [memory, sqlite])
@pytest.mark.parametrize("name", names(SealedSuite))
def test_sealed_payloads(name: str, driver: Callable[[Path], Callable[[], Ledger]], tmp_path: Path) -> None:
    run(SealedSuite, name, driver(tmp_path))


def test_the_suite_has_its_cases() -> None:
    assert len(names(LedgerSuite)) >= 40
