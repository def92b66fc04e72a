"""One line in `wiring.LEDGERS` is all that a new kind of ledger needs: runs, verbs and errors know it by that."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest

from mandamus import Agent, Misuse, wiring
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.drivers.model_scripted import ScriptedModel
from tests.e2e.cli_world import World

STORES: list[MemoryLedger] = []


def far(uri: str, clock: Callable[[], int] | None = None) -> MemoryLedger:
    """A server elsewhere: each URI that is opened is another handle on the same store."""
    assert uri == "far://host/books"
    return MemoryLedger(clock, beside=STORES[-1])


class Vault(SqliteLedger):
    """A kind of file."""


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    STORES.append(MemoryLedger())
    monkeypatch.setitem(wiring.LEDGERS, "far", wiring.Store(f"{__name__}:far", "far://HOST/NAME"))
    monkeypatch.setitem(wiring.LEDGERS, "vault", wiring.Store(f"{__name__}:Vault.open", "vault:///FILE", file=True))
    return world


def test_a_ledger_without_a_file_is_one_line(world: World) -> None:
    at = ("--ledger", "far://host/books")
    assert world("run", "payout.py:small", "Pay", *at).code == 0
    assert [x["state"] for x in world.ok("runs", "--json", *at).stream] == ["completed"]
    assert world.ok("show", "last", "--json", *at).data["state"] == "completed"
    assert (world.folder / ".mandamus" / "trust").exists(), "its keys must be there tomorrow"
    doctor = {x["check"]: x for x in world("doctor", "--json", *at).data["lines"]}
    assert doctor["ledger"]["state"] == "ok", doctor["ledger"]
    assert "far://host/books" in doctor["ledger"]["says"]
    assert "flush" not in doctor, "its disk is not here"


def test_a_ledger_in_another_kind_of_file_is_one_line(world: World) -> None:
    agent: Agent[Any] = Agent(name="desk", model=ScriptedModel(["done"]))
    result = agent.run_sync("Go", ledger="vault:///kept/books.v")
    assert result.state == "completed"
    assert (world.folder / "kept" / "books.v").exists()
    assert list((world.folder / "kept").rglob("trust")), "its keys stand beside the file"
    ledger = wiring.open_ledger("vault:///kept/books.v")
    assert type(ledger) is Vault
    asyncio.run(ledger.close())
    assert world("runs", "--ledger", "vault:///none.v").code == 2


def test_an_unknown_scheme_is_told_every_known_form(world: World) -> None:
    with pytest.raises(Misuse, match=re.escape("far://HOST/NAME or vault:///FILE")) as refused:
        wiring.home_of("mongo://host")
    for known in ("sqlite:///", "memory:", "postgres://", "nats://"):
        assert known in refused.value.diagnosis.expected
    assert refused.value.diagnosis.code == "MDM-0111"
    with pytest.raises(Misuse, match="vault:///FILE") as refused:
        wiring.ledger_file("vault:books.v")
    assert "sqlite" not in (refused.value.diagnosis.expected or "")


def test_a_key_that_the_log_names_is_never_made_again(world: World) -> None:
    """A worker's machine holds the log key and the trust file. What the administrator must sign is not signed by a new stranger."""
    at = ("--ledger", "far://host/books")
    assert world("run", "payout.py:small", "Pay", *at).code == 0
    kept = world.folder / ".mandamus" / "keys" / "administrator.pem"
    away = kept.rename(kept.with_suffix(".away"))
    assert world("run", "payout.py:small", "Pay", *at).code == 0, "it signs nothing here"
    text = (world.folder / "payout.py").read_text()
    (world.folder / "stricter.py").write_text(text.replace("10000.00 USD", "9000.00 USD"))
    refused = world("run", "stricter.py:small", "Pay", *at)
    assert refused.code == 2
    assert "MDM-0242" in refused.err
    assert not kept.exists()
    away.rename(kept)
    assert world("run", "stricter.py:small", "Pay", *at).code == 0


def test_a_ledger_that_cannot_be_used_is_closed_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Told(MemoryLedger):
        async def close(self) -> None:
            closed.append("closed")
            await super().close()

    monkeypatch.setattr(wiring, "open_ledger", lambda *_, **__: Told())
    monkeypatch.setenv("MANDAMUS_LEASE_MS", "soon")
    with pytest.raises(Misuse, match="MDM-0136"):
        asyncio.run(wiring.open_env("far://host/books"))
    assert closed == ["closed"]
