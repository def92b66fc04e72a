"""The listing of the Python surface runs, word for word, against a real model server; and the seeds' names are the same things."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mandamus
from mandamus import aliases, wiring
from mandamus.drivers.model_openai import OpenAIModel
from mandamus.proof import chain
from mandamus.runtime.recover import read_run
from mandamus.testing import people
from tests.servers.scripted_openai import ScriptedOpenAI
from tests.servers.wire import Step

LISTING = (Path(__file__).parent / "API.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
RULES = """
chains: {two: {tiers: [{quorum: 2}]}}
rules:
  - {id: pay, permit: {safety: financial, maxAmount: "1000000.00 USD"}}
  - {id: pay.large, dualApproval: {over: "100.00 USD", quorum: 2, chain: two}}
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedOpenAI]:
    """A folder as the listing expects it: policies/, app.py, and a server of ours behind openai:gpt-4o."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "rules.yaml").write_text(RULES)
    (tmp_path / "app.py").write_text("def make_deps():\n    return {}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MANDAMUS_LEDGER", raising=False)
    payment = {"to": "Acme", "amount": {"amount": "50000", "currency": "USD"}}
    with ScriptedOpenAI([Step(calls=(("send_payment", payment),)), Step("paid")]) as server:
        monkeypatch.setattr(wiring, "model", lambda uri: (OpenAIModel(server.url), uri.partition(":")[2]))
        yield server


async def _votes(agent: Any, run: str) -> list[bytes]:
    """Two people are enrolled, look at what waits and sign it."""
    env = await wiring.open_env()
    try:
        keys = [people.signer(f"api/{name}") for name in ("alice", "bob")]
        for key in keys:
            env.home.add_trust(f"approver p-{key.key.name[4:]} {key.vkey}")
        session = await read_run(env, agent._bound, run)
        action = next(a for a in session.run.open_actions if a.request)
        return [people.vote(session, action, key, "approve") for key in keys]
    finally:
        await wiring.close_env(env)


async def _statements(space: dict[str, Any]) -> list[str]:
    """One after the other; between `run` and `resume` two people vote. Returns the states that `result` went through."""
    states = []
    for statement in ast.parse(LISTING).body:
        code = compile(ast.Module([statement], []), "API.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        answer = eval(code, space)
        if inspect.iscoroutine(answer):
            await answer
        if "result" in space and space["result"].state not in states:
            states.append(space["result"].state)
            if states == ["suspended"]:
                space["vote_a"], space["vote_b"] = await _votes(space["agent"], space["result"].run_id)
    await space["agent"].close()
    return states


def test_the_listing_runs_word_for_word(world: ScriptedOpenAI) -> None:
    space: dict[str, Any] = {"__name__": "listing"}
    assert asyncio.run(_statements(space)) == ["suspended", "completed"]
    result = space["result"]
    assert result.output == "paid"
    assert [(a.tool, a.state) for a in result.actions] == [("send_payment", "done")]
    assert (result.waiting, result.thread, result.tokens_used) == ((), result.run_id, 36)
    assert space["event"].type == "RunSealed"
    assert len(space["send_payment"].pin) == 64
    assert len(world.log) == 2


def test_the_seeds_names_are_the_same_things() -> None:
    assert mandamus.create_tool is mandamus.define_tool is mandamus.tool
    assert mandamus.create_agent is mandamus.define_agent is mandamus.Agent
    assert mandamus.register_rule is mandamus.rule
    assert mandamus.verify_chain is chain.verify_chain
    assert isinstance(mandamus.resume_from_checkpoint, types.FunctionType)
    assert set(aliases.__all__) <= set(mandamus.__all__)


def test_every_public_name_is_there() -> None:
    for name in mandamus.__all__:
        assert getattr(mandamus, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        mandamus.no_such_name  # noqa: B018 - the look-up is the test


def loaded(code: str) -> set[str]:
    """The modules that a fresh process has after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('LOADED', *sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rpartition("LOADED")[2].split())


def test_the_names_come_at_first_use() -> None:
    """Neither the package nor a page of help loads what an agent needs."""
    heavy = {"asyncio", "msgspec", "orjson", "cryptography", "mandamus.agent", "mandamus.core.records", "mandamus.tool"}
    assert not loaded("import mandamus") & heavy
    assert not loaded("from mandamus.cli.main import main; main(['--help'])") & heavy
    assert {"mandamus.agent", "mandamus.tool"} <= loaded("from mandamus import Agent, tool")


FIRST = ("import mandamus.tool", "from mandamus.tool import Tool", "import mandamus.agent", "import mandamus; mandamus.tool")


@pytest.mark.parametrize("first", FIRST)
def test_tool_is_the_decorator_whatever_was_imported_first(first: str) -> None:
    """The module of that name is imported by nearly everything, and Python would put it in the decorator's place."""
    check = "assert mandamus.tool is sys.modules['mandamus.tool'].tool; from mandamus import tool; assert callable(tool)"
    loaded(f"{first}\nimport mandamus, sys; {check}")


def test_every_public_name_is_there_and_no_other() -> None:
    assert set(mandamus.__all__) == set(mandamus._LATER)
    assert set(mandamus.__all__) <= set(dir(mandamus))
    assert all(getattr(mandamus, name) is getattr(importlib.import_module(module), name) for name, module in mandamus._LATER.items())
    with pytest.raises(AttributeError, match="no attribute 'agnet'"):
        _ = mandamus.agnet
