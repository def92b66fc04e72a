"""The sealing around a ledger: a ledger like any other to whoever uses it, and nothing in plain behind it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mandamus.drivers.keys_sqlite import SqliteKeys
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.ports import Ledger
from mandamus.runtime.sealing import SealedLedger, nonces
from mandamus.testing.conformance.ledger import LedgerSuite, names, run

ORIGIN = "mandamus.local/test"


def everything(folder: Path) -> Callable[[], Ledger]:
    store = MemoryLedger()
    return lambda: SealedLedger(MemoryLedger(beside=store), SqliteKeys(folder / "keystore.db"), everything=True, origin=ORIGIN)


def nothing(folder: Path) -> Callable[[], Ledger]:
    """Put on, and no run of it announced."""
    return lambda: SealedLedger(SqliteLedger.open(folder / "ledger.db"), SqliteKeys(folder / "keystore.db"))


@pytest.mark.parametrize("driver", [everything, nothing])
@pytest.mark.parametrize("name", names(LedgerSuite))
def test_ledger(name: str, driver: Callable[[Path], Callable[[], Ledger]], tmp_path: Path) -> None:
    run(LedgerSuite, name, driver(tmp_path))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_never_draws_thenonces_of_its_parent() -> None:
    """One nonce twice under one key opens both payloads to whoever has the two."""
    drawn = nonces()
    before = [next(drawn) for _ in range(3)]
    out, into = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - in the other process
        os.write(into, b"".join(next(drawn) for _ in range(300)))
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as told:
        theirs = told.read()
    os.waitpid(child, 0)
    ours = [next(drawn) for _ in range(300)]
    others = [theirs[i : i + 12] for i in range(0, len(theirs), 12)]
    assert len(others) == 300
    assert len({*before, *ours, *others}) == 603
