"""Many runs that begin at once, in one process and in several: each is numbered once in the register, and none is told to try again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mandamus import Agent, Ctx, tool, wiring
from mandamus.core.accounts import REGISTER
from mandamus.core.records import RunOpened, decode
from mandamus.data import Public
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.model_scripted import ScriptedModel

RUNS = 24
PERMITS = ({"id": "looks", "permit": {"tool": "look"}},)


@tool(safety="read", effect="read", data=Public())
async def look(ctx: Ctx) -> str:
    """Never called."""
    return ""


def agent() -> Agent[str]:
    return Agent(name="many", purpose="many", model=ScriptedModel(["done"]), tools=[look], policies=PERMITS)


async def numbers(ledger: MemoryLedger | object, runs: list[str]) -> list[int]:
    found = []
    for run in runs:
        async for raw in ledger.read(run, upto=0):  # type: ignore[attr-defined]
            fact = decode(raw).fact
            assert isinstance(fact, RunOpened)
            found.append(fact.register.number)
    return sorted(found)


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_runs_that_begin_at_once_are_numbered_in_turn(store: str, processes: int, tmp_path: Path) -> None:
    async def whole() -> None:
        first = MemoryLedger() if store == "memory" else None
        home = wiring.Home(None if store == "memory" else tmp_path / ".mandamus")
        envs = []
        for n in range(processes):
            ledger = MemoryLedger(beside=first) if first and n else first
            uri = "memory:" if store == "memory" else f"sqlite:///{tmp_path / 'run.db'}"
            envs.append(await wiring.open_env(uri, ledger=ledger, home=home))
        bots = [agent() for _ in envs]
        results = await asyncio.gather(*[bots[n % processes].run("go", ledger=envs[n % processes]) for n in range(RUNS)])
        assert {result.state for result in results} == {"completed"}
        assert await numbers(envs[0].ledger, [result.run_id for result in results]) == list(range(1, RUNS + 1))
        register = await envs[0].ledger.account(REGISTER)
        assert register is not None
        assert register.version == RUNS
        for env in envs:
            await wiring.close_env(env)

    asyncio.run(whole())
