"""A taken-over run joins its prompt in one pass over the stored payloads, each held against its commitment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from mandamus import Agent, Budget, Ctx, ProofError, tool, wiring
from mandamus.data import Business, none
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.runtime import prepare, recover
from mandamus.runtime.session import PRELOAD_MIN

TURNS = PRELOAD_MIN + 4


@tool(safety="write", effect="keyed", data=Business(subject=none("numbers"), retention="books"))
async def add(ctx: Ctx, a: int, b: int) -> int:
    """Add."""
    return a + b


async def _ran() -> tuple[Any, MemoryLedger, Any]:
    """A finished run with more payloads than are read one by one."""
    ledger = MemoryLedger()
    env = await wiring.open_env("memory:", ledger=ledger)
    steps = [Step(calls=(("add", {"a": k, "b": 1}),)) for k in range(TURNS)]
    agent: Agent[str] = Agent(
        name="adder",
        model=ScriptedModel([*steps, "done"]),
        tools=[add],
        policies=[{"id": "add", "permit": {"tool": "add"}}],
        budget=Budget(turns=99, calls=99),
    )
    await agent.run("go", ledger=env, run_id="r")
    return env, ledger, await wiring.bind(agent)


async def _joined(env: Any, bound: Any) -> Any:
    s = await recover.read_run(env, bound, "r")
    s.transcript.close_turn()
    await prepare.join(s, s.transcript.items)
    return s


def test_the_prompt_is_the_one_that_single_reads_give(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        env, _, bound = await _ran()
        at_once = (await _joined(env, bound)).messages
        monkeypatch.setattr("mandamus.runtime.session.PRELOAD_MIN", 10**9)
        assert at_once == (await _joined(env, bound)).messages
        assert len(at_once) == 2 * TURNS + 2

    asyncio.run(story())


def test_one_pass_reads_no_payload_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        env, ledger, bound = await _ran()
        single: list[tuple[int, str]] = []
        read = ledger.payload

        async def counted(run: str, seq: int, part: str) -> Any:
            single.append((seq, part))
            return await read(run, seq, part)

        monkeypatch.setattr(ledger, "payload", counted)
        await _joined(env, bound)
        assert single == []

    asyncio.run(story())


def test_only_the_parts_of_the_prompt_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts, decisions and cards are two thirds of what a run stores, and no prompt holds them."""

    async def story() -> None:
        env, ledger, bound = await _ran()
        kept = {p.part for p in [p async for p in ledger.payloads("r")]}
        handed: list[str] = []
        read = ledger.payloads

        async def counted(*args: Any, **more: Any) -> Any:
            async for p in read(*args, **more):
                handed.append(p.part)
                yield p

        monkeypatch.setattr(ledger, "payloads", counted)
        await _joined(env, bound)
        assert set(handed) == {"input", "reply", "output"} < kept
        assert len(handed) == 2 * TURNS + 2

    asyncio.run(story())


@pytest.mark.parametrize("part", ["reply", "output"])
def test_a_payload_changed_beside_the_log_stops_it(part: str) -> None:
    async def story() -> None:
        env, ledger, bound = await _ran()
        kept = ledger._store.payloads["r"]
        key = next(k for k in sorted(kept) if k[1] == part)
        kept[key] = structs.replace(kept[key], bytes=kept[key].bytes[:-1] + b" ")
        with pytest.raises(ProofError, match="is not the one"):
            await _joined(env, bound)

    asyncio.run(story())


@pytest.mark.parametrize("part", ["reply", "output"])
def test_a_payload_that_is_gone_stops_it(part: str) -> None:
    async def story() -> None:
        env, ledger, bound = await _ran()
        kept = ledger._store.payloads["r"]
        del kept[next(k for k in sorted(kept) if k[1] == part)]
        with pytest.raises(ProofError, match="is gone"):
            await _joined(env, bound)

    asyncio.run(story())
