"""Many runs that begin at once, in one process and in several: each is numbered once in the register, and none is told to try again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from mandamus import Agent, Ctx, tool, wiring
from mandamus.core.accounts import REGISTER, Delta
from mandamus.core.canonical import digest
from mandamus.core.records import RunOpened, decode
from mandamus.data import Public
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.model_scripted import ScriptedModel
from mandamus.errors import Conflict
from mandamus.ports import Ledger

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
        assert len(await _register(envs[0].ledger)) == RUNS
        for env in envs:
            await wiring.close_env(env)

    asyncio.run(whole())


async def _register(ledger: Ledger) -> list[Delta]:
    """The register's chain, each delta held against the one before it."""
    deltas, prev = [], ""
    async for raw in ledger.deltas(REGISTER):
        delta = msgspec.json.decode(raw, type=Delta)
        assert (delta.version, delta.prev) == (len(deltas) + 1, prev)
        deltas.append(delta)
        prev = digest("delta", raw)
    return deltas


def test_openings_share_their_commits(tmp_path: Path) -> None:
    """In one file each counts on from the one before it, though none of them is stored yet."""

    async def whole() -> None:
        env = await wiring.open_env(f"sqlite:///{tmp_path / 'run.db'}", home=wiring.Home(tmp_path / ".mandamus"))
        bot = agent()
        await bot.open("go", ledger=env)
        before = sum(env.ledger.commits)  # type: ignore[attr-defined]
        opened = await asyncio.gather(*[bot.open("go", ledger=env) for _ in range(RUNS)])
        assert sum(env.ledger.commits) - before <= 2  # type: ignore[attr-defined]
        assert [delta.run for delta in (await _register(env.ledger))[1:]] == opened
        assert env.line is None
        await wiring.close_env(env)

    asyncio.run(whole())


def test_when_one_opening_is_refused_those_behind_it_are_opened_all_the_same(tmp_path: Path) -> None:
    """By a name that is taken, by a person who gave up, and by another ledger of the same file that was faster."""

    async def whole() -> None:
        uri, home = f"sqlite:///{tmp_path / 'run.db'}", wiring.Home(tmp_path / ".mandamus")
        env, other = await wiring.open_env(uri, home=home), await wiring.open_env(uri, home=home)
        bot, second = agent(), agent()
        await bot.open("go", ledger=env, run_id="taken")
        await second.open("go", ledger=other)
        names = ["", "", "taken", "", "given-up", "", "", "taken", ""]
        tasks = [asyncio.ensure_future(bot.open("go", ledger=env, run_id=name or None)) for name in names]
        tasks += [asyncio.ensure_future(second.open("go", ledger=other)) for _ in names]
        await asyncio.sleep(0)
        tasks[names.index("given-up")].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        refused = {n: type(x) for n, x in enumerate(found) if isinstance(x, BaseException)}
        assert refused == {2: Conflict, 4: asyncio.CancelledError, 7: Conflict}
        opened = [x for x in found if isinstance(x, str)]
        assert sorted(delta.run for delta in (await _register(env.ledger))[2:]) == sorted(opened)
        assert await numbers(env.ledger, opened) == list(range(3, 3 + len(opened)))
        assert (env.line, other.line) == (None, None)
        for one in (env, other):
            await wiring.close_env(one)

    asyncio.run(whole())
