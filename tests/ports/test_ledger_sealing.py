"""The sealing around a ledger: a ledger like any other to whoever uses it, and nothing in plain behind it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mandamus.core.payload import Payload, opened
from mandamus.core.retention import KeyName, Plan
from mandamus.drivers.keys_sqlite import SqliteKeys
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.errors import EngineFault, Erased, Misuse, ProofError
from mandamus.ports import Ledger
from mandamus.runtime.sealing import BLOB, MAIL, SealedLedger, associated
from mandamus.testing.conformance.chains import Chain
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
