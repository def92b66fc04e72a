"""One effect runs in the task of the drive, and a deputy drives while it waits (ADR 0018).

There is one drive at a time, and no task is left behind.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import run

import pytest

from mandamus import Agent, Budget, Ctx, tool, wiring
from mandamus.core import records as r
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.errors import Unavailable
from mandamus.runtime import drive, recover
from tests.crash.stand import PLAIN, Around, Stand, agent_of, lost, pay_tool


async def no_task_is_left() -> None:
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_what_a_waiting_tool_asks_for_is_recorded_while_it_waits() -> None:
    async def story() -> None:
        known: list[str] = []

        async def deed(ctx: Ctx) -> None:
            await asyncio.sleep(0)
            await ctx.note("step", 1)
            known.extend(type(f).__name__ for f in await stand.facts(ctx.run_id))
            await ctx.random(4)

        stand = await Stand.of(agent_of(pay_tool(deed=deed)))
        s = await stand.run()
        assert known[-2:] == ["ActionStarted", "CapabilityChecked"], "saved before the tool heard of it"
        assert s.run.life == "sealed"
        assert len(await stand.facts(s.run.id, r.CapabilityChecked)) == 2
        await no_task_is_left()

    run(story())


def test_a_deputy_that_loses_the_ledger_ends_the_effect_and_the_drive() -> None:
    async def story() -> None:
        seen: list[str] = []

        async def deed(ctx: Ctx) -> None:
            try:
                await ctx.note("step", 1)
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        stand = await Stand.of(agent_of(pay_tool(deed=deed)))
        s = await stand.open(await stand.worker("worker-1", lost))
        with pytest.raises(Unavailable):
            await drive.drive(s)
        assert seen == ["cancelled"]
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0, "the caller's own task was not asked to go"
        await no_task_is_left()

    run(story())


def test_an_append_of_the_deputy_is_waited_for_when_the_tool_ends_meanwhile() -> None:
    async def story() -> None:
        writing = asyncio.Event()
        notes: list[asyncio.Task[None]] = []

        async def slowly(facts: list[r.Fact]) -> None:
            if any(isinstance(f, r.CapabilityChecked) for f in facts):
                writing.set()
                await asyncio.sleep(0.02)

        async def deed(ctx: Ctx) -> None:
            notes.append(asyncio.create_task(ctx.note("step", 1)))
            await writing.wait()

        stand = await Stand.of(agent_of(pay_tool(deed=deed)))
        async with asyncio.timeout(30):
            s = await stand.run(env=await stand.worker("worker-1", lambda inner: Around(inner, slowly)))
        assert s.run.life == "sealed"
        assert [type(f).__name__ for f in await stand.facts(s.run.id, r.CapabilityChecked, r.ActionEnded)] == [
            "CapabilityChecked",
            "ActionEnded",
        ]
        await notes[0]
        await no_task_is_left()

    run(story())


def test_whoever_cancels_the_caller_cancels_the_tool_and_the_next_owner_finds_doubt() -> None:
    async def story() -> None:
        begun = asyncio.Event()
        times: list[str] = []

        async def deed(ctx: Ctx) -> None:
            times.append(ctx.operation_id)
            begun.set()
            if len(times) == 1:
                await asyncio.sleep(60)

        stand = await Stand.of(agent_of(pay_tool(deed=deed)))
        s = await stand.open()
        driven = asyncio.create_task(stand.carry(s))
        await begun.wait()
        driven.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driven
        await no_task_is_left()
        assert await stand.facts(s.run.id, r.ActionEnded) == []
        again = await stand.resume(s.run.id)
        assert again.run.life == "sealed"
        assert len(times) == 2
        assert len(set(times)) == 1, "the same operation id"

    run(story())


def test_what_a_tool_sets_in_its_context_stays_there() -> None:
    mine: contextvars.ContextVar[int] = contextvars.ContextVar("mine", default=0)

    async def story() -> None:
        async def deed(ctx: Ctx) -> None:
            mine.set(mine.get() + 1)
            await asyncio.sleep(0)
            assert mine.get() == 1
            mine.set(7)

        stand = await Stand.of(agent_of(pay_tool(deed=deed)))
        assert (await stand.run()).run.life == "sealed"
        assert mine.get() == 0

    run(story())


def test_a_run_that_never_waits_lets_others_have_their_turn() -> None:
    @tool(safety="read", effect="read", data=PLAIN)
    async def look(n: int) -> int:
        """Look."""
        return n

    async def story() -> None:
        turns = 40
        model = ScriptedModel([*(Step(calls=(("look", {"n": k}),)) for k in range(turns)), "done"])
        agent = Agent(
            name="looker",
            purpose="look",
            model=model,
            tools=[look],
            policies=[{"id": "p", "permit": {"tool": "look"}}],
            budget=Budget(turns=99, calls=99),
        )
        env = await wiring.open_env("memory:")
        heard: list[int] = []

        async def other() -> None:
            while True:
                heard.append(1)
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        await asyncio.sleep(0)
        before = len(heard)
        await agent.run("go", ledger=env)
        assert len(heard) - before >= turns // 16
        beside.cancel()
        await wiring.close_env(env)

    run(story())


def test_a_takeover_meanwhile_ends_the_effect_of_the_fenced_owner() -> None:
    """The deputy's own append is refused: the tool behind it must not go on as if nothing had happened."""

    async def story() -> None:
        ended: list[str] = []

        async def deed(ctx: Ctx) -> None:
            if ended:
                return
            try:
                await recover.give_back(first)  # as if its lease had run out
                await stand.take(ctx.run_id)
                await ctx.note("late", 1)
            finally:
                ended.append("ended")

        stand = await Stand.of(agent_of(pay_tool(deed=deed)))
        first = await stand.open()
        with pytest.raises(Exception, match=r"took the run over|not where|another"):
            await drive.drive(first)
        assert ended == ["ended"]
        assert await stand.facts(first.run.id, r.CapabilityChecked) == []
        await no_task_is_left()

    run(story())
