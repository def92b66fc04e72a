"""`bundle --withhold` and `--only`: a word that names nothing is refused. What somebody meant to hide would be shown."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli_world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    before = Path.cwd()
    os.chdir(tmp_path)
    made = World(tmp_path)
    made.ok("run", "payout.py:small", "Pay a little")
    yield made
    os.chdir(before)


@pytest.mark.parametrize("words", [("99/input",), ("0/inptu",), ("*/nothing",), ("log/999/statement",), ("0/input", "1/inputt")])
def test_a_place_that_is_none_hides_nothing_and_says_so(world: World, words: tuple[str, ...]) -> None:
    told = world("bundle", "last", "-o", "b", *(part for word in words for part in ("--withhold", word)))
    assert (told.code, "names no payload of this run" in told.err) == (2, True)
    assert not Path("b").exists()
    told = world("bundle", "last", "-o", "b", *(part for word in words for part in ("--only", word + "=x")))
    assert (told.code, Path("b").exists()) == (2, False)


def test_a_place_that_is_one_is_hidden(world: World) -> None:
    world.ok("bundle", "last", "-o", "b", "--withhold", "0/input", "--withhold", "*/reply")
    told = world("verify", "b", "--trust", ".mandamus/trust", "--json")
    assert told.code == 3
    assert "input of event 0 (withheld)" in told.out
    assert b"Pay a little" not in Path("b").read_bytes()


def test_an_erasure_that_was_kept_back_has_its_receipt_when_it_is_carried_out(world: World) -> None:
    world.ok("hold", "place", "--run", "last", "--ground", "legal_claims")
    assert world("forget", "--run", "last", "--yes", "--receipt", "early.json").code == 4
    assert not Path("early.json").exists()
    hold = world("hold", "list", "--json").stream[-1]["hold"]
    world.ok("hold", "lift", hold)
    told = world.ok("forget", "--resume", "--receipt", "receipt.json")
    assert "receipt.json" in told.out
    assert b'"signatures"' in Path("receipt.json").read_bytes()
