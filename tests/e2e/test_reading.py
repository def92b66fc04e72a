"""Reading a stored run and opening its ledger: what is believed, and what is not even touched."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from mandamus import Agent, Ctx, ProofError, tool, wiring
from mandamus.core import records as r
from mandamus.core.records import decode
from mandamus.data import Business, none
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.drivers.sign_file import FileSigner
from mandamus.runtime import recover
from mandamus.runtime.session import Session
from tests.samples import Chain


@tool(safety="write", effect="keyed", data=Business(subject=none("numbers"), retention="books"))
async def add(ctx: Ctx, a: int, b: int) -> int:
    """Add."""
    return a + b


def adder() -> Agent[str]:
    model = ScriptedModel([Step(calls=(("add", {"a": 1, "b": 1}),)), "done"])
    return Agent(name="adder", model=model, tools=[add], policies=[{"id": "add", "permit": {"tool": "add"}}])


async def stored(uri: str) -> None:
    env = await wiring.open_env(uri)
    await adder().run("go", ledger=env, run_id="r")
    await wiring.close_env(env)


async def read(env: Any, run: str) -> Any:
    return await recover.read_run(env, await wiring.bind(adder()), run)


@pytest.mark.parametrize("page", [1, 3, 256])
def test_the_run_that_is_read_is_the_one_that_was_driven(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(recover, "PAGE", page)
        ledger = MemoryLedger()
        env = await wiring.open_env("memory:", ledger=ledger)
        await adder().run("go", ledger=env, run_id="r")
        head, s = await ledger.head("r"), await read(env, "r")
        assert head is not None
        assert (s.run.life, s.run.seq, s.run.head, s.position.hash) == ("sealed", head.seq, head.hash, head.hash)

    asyncio.run(story())


def test_nobody_goes_on_with_a_run_that_the_rules_cannot_have_made() -> None:
    """Every hash fits, every fact folds: and yet a reply stands there that nobody asked for."""

    async def story() -> None:
        ledger = MemoryLedger()
        env = await wiring.open_env("memory:", ledger=ledger)
        await adder().run("go", ledger=env, run_id="r")
        opened = decode([raw async for raw in ledger.read("r", upto=0)].pop())
        replied = r.ModelReplied(attempt=1, calls=0, model="m", stop="end", usage=r.Usage())
        forged = Chain("forged")
        forged.add(opened.fact)
        forged.add(replied, turn=1, reply={"calls": [], "text": "pay"})
        await ledger.append("forged", None, forged.raws, payloads=forged.payloads)
        with pytest.raises(ProofError) as refused:
            await read(env, "forged")
        d = refused.value.diagnosis
        assert (d.code, d.where) == ("MDM-0643", "run forged (event 1 ModelReplied)")
        assert "no model call is open" in d.what

    asyncio.run(story())


@pytest.mark.parametrize("page", [2, 256])
def test_a_stored_record_that_was_changed_is_named(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(recover, "PAGE", page)
        ledger = MemoryLedger()
        env = await wiring.open_env("memory:", ledger=ledger)
        await adder().run("go", ledger=env, run_id="r")
        rows = ledger._store.records["r"]
        rows[4] = rows[4].replace(b'"at":"2', b'"at":"3', 1)
        with pytest.raises(ProofError) as refused:
            await read(env, "r")
        assert refused.value.diagnosis.code == "MDM-0641"
        assert "event 5" in refused.value.diagnosis.where, "the one behind it does not name it"
        del rows[4:]
        with pytest.raises(ProofError) as cut:
            await read(env, "r")
        assert cut.value.diagnosis.code == "MDM-0642"

    asyncio.run(story())


def test_a_ledger_that_was_begun_is_opened_with_the_log_key_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other keys are named when chain `log` begins; later each is read when something is signed with it."""
    uri = f"sqlite:///{tmp_path / 'run.db'}"
    asyncio.run(stored(uri))
    opened: list[str] = []
    really = FileSigner.open

    def noted(path: Any, passphrase: bytes | None = None) -> FileSigner:
        opened.append(Path(path).stem)
        return really(path, passphrase)

    async def story() -> None:
        env = await wiring.open_env(uri)
        assert opened == ["log"]
        env.home.signer("administrator")
        assert opened == ["log", "administrator"]
        await wiring.close_env(env)

    monkeypatch.setattr(FileSigner, "open", noted)
    asyncio.run(story())


def test_a_run_that_is_over_is_let_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A circle would keep each session, and the prompt it holds, until a full collection, which then stops another run."""
    made: list[weakref.ref[Session]] = []
    begin = Session.__init__

    def noted(self: Session, *args: Any) -> None:
        made.append(weakref.ref(self))
        begin(self, *args)

    async def story() -> None:
        env = await wiring.open_env("memory:")
        await adder().run("go", ledger=env, run_id="r")
        assert [one() for one in made] == [None]

    monkeypatch.setattr(Session, "__init__", noted)
    gc.disable()
    try:
        asyncio.run(story())
    finally:
        gc.enable()
