"""What the tests of the verbs begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cli_world import World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A folder with an agent in it, entered; nothing of the surroundings names another ledger."""
    monkeypatch.chdir(tmp_path)
    for name in ("MANDAMUS_LEDGER", "MANDAMUS_LOG", "MANDAMUS_WITNESSES"):
        monkeypatch.delenv(name, raising=False)
    return World(tmp_path)
