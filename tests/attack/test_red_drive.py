"""Attacks on the drive and its deputy: cancellation from all sides, tools that outlive their call, stops that nobody waits for.

What an effect came to is never lost for the sake of something that broke beside it, and nobody waits for a drive that is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mandamus import Agent, Ctx, tool
from mandamus.core import records as r
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.errors import EngineFault, Refused, Unavailable
from mandamus.runtime import drive, recover
from tests.attack.red_votes import agent, env_of, facts, stop
from tests.attack.test_budgets import boss, hands
from tests.attack.test_red_votes import story
from tests.crash.stand import PLAIN, Around, Stand, agent_of, lost, pay_tool

WRITE = [{"id": "w", "permit": {"safety": "write"}}]


def leaf(deed: Callable[[Ctx, int], Any]) -> Any:
    @tool(safety="write", effect="keyed", data=PLAIN)
    async def leaf(ctx: Ctx, i: int) -> int:
        """A leaf."""
        await deed(ctx, i)
        return i

    return leaf


def leaves(n: int) -> list[Step]:
    return [Step(calls=(("leaf", {"i": i}),)) for i in range(n)]


@story
async def test_a_run_that_never_waits_hears_a_stop() -> None:
    env = await env_of("p-alice")
    done: list[int] = []

    async def deed(ctx: Ctx, i: int) -> None:
        done.append(i)
        if i == 0:
            await stop(env, ctx.run_id, "p-alice", "cancel")

    result = await agent([leaf(deed)], WRITE, *leaves(5)).run("x", ledger=env)
    assert (result.state, done) == ("cancelled", [0])
    assert len(await facts(env, result.run_id, "StopRequested")) == 1


@story
async def test_what_a_tool_left_behind_is_told_that_its_call_is_over() -> None:
    """A task that goes on after its tool, and after the whole run, neither hangs nor finds the run half gone."""
    env = await env_of()
    behind: list[asyncio.Task[None]] = []
    go = asyncio.Event()

    async def deed(ctx: Ctx, i: int) -> None:
        async def at_once() -> None:
            for _ in range(20):
                await ctx.note("late", 1)

        async def much_later() -> None:
            await go.wait()
            await ctx.note("late", 1)

        async def invokes() -> None:
            await go.wait()
            await ctx.invoke("leaf", {"i": 9})

        behind.extend(asyncio.create_task(x()) for x in (at_once, much_later, invokes))

    result = await agent([leaf(deed)], WRITE, *leaves(1)).run("x", ledger=env)
    assert result.state == "completed"
    go.set()
    async with asyncio.timeout(10):
        told = await asyncio.gather(*behind, return_exceptions=True)
    assert [type(x) for x in told] == [Refused] * 3
    assert all("this call is over" in str(x) for x in told)


@story
async def test_a_tool_that_cleans_up_through_a_ledger_that_is_gone_is_not_waited_for() -> None:
    told: list[str] = []

    async def deed(ctx: Ctx) -> None:
        try:
            await ctx.note("step", 1)
        finally:
            try:
                await ctx.note("cleaned up", 1)
            except Refused as refused:
                told.append(refused.diagnosis.code)
                raise

    stand = await Stand.of(agent_of(pay_tool(deed=deed)))
    s = await stand.open(await stand.worker("worker-1", lost))
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable):
            await drive.drive(s)
    assert told == ["MDM-0321"]


@pytest.mark.parametrize("turns", range(8))
def test_what_came_back_is_recorded_though_something_broke_beside_it(turns: int) -> None:
    """A payment comes back while the judgement of something else breaks: its outcome is known, and is kept."""

    @story
    async def told() -> None:
        back: list[str] = []
        broken = asyncio.Event()

        async def deed(ctx: Ctx) -> None:
            beside = asyncio.create_task(ctx.invoke("other", {}))
            await broken.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            beside.cancel()
            back.append(ctx.operation_id)

        @tool(safety="read", effect="read", data=PLAIN)
        async def other() -> int:
            """Never runs."""
            return 1

        async def breaks(facts: list[r.Fact]) -> None:
            if any(isinstance(f, r.ActionProposed) and f.tool == "other" for f in facts):
                broken.set()
                raise EngineFault("a page cannot be read", code="MDM-0524")

        stand = await Stand.of(agent_of(pay_tool("irreversible", deed=deed), other))
        env = await stand.worker("worker-1", lambda inner: Around(inner, breaks))
        s = await stand.open(env)
        with pytest.raises(EngineFault):
            await drive.drive(s)
        ended = [f.result for x in s.unsaved if isinstance(f := x.record.fact, r.ActionEnded)]
        ended += [f.result for f in await stand.facts(s.run.id, r.ActionEnded)]
        assert len(back) == len(ended)

    told()


@story
async def test_whoever_cancels_while_the_process_is_asked_to_go_is_heard_too() -> None:
    begun = asyncio.Event()

    async def slow(prompt: Any) -> str:
        begun.set()
        await asyncio.sleep(60)
        return "too late"

    stand = await Stand.of(Agent(name="slow", purpose="wait", model=ScriptedModel([slow])))
    s = await stand.open()
    driven = asyncio.create_task(drive.drive(s))
    await begun.wait()
    s.env.leaving = True
    s.ring()
    deputy = next(t for t in asyncio.all_tasks() if t.get_coro().__name__ == "_stand_in")  # type: ignore[union-attr]
    deputy.add_done_callback(lambda _: driven.cancel())
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await driven
    assert driven.cancelled()


@story
async def test_a_model_that_cancels_itself_is_a_broken_model_and_cancels_nobody() -> None:
    async def broken(prompt: Any) -> str:
        await asyncio.sleep(0)
        raise asyncio.CancelledError

    stand = await Stand.of(Agent(name="broken", purpose="break", model=ScriptedModel([broken])))
    s = await stand.run()
    assert (s.run.life, s.run.code) == ("halted", "model_driver")


@pytest.mark.parametrize("often", [1, 40])
def test_whenever_a_caller_cancels_the_next_owner_finishes(often: int) -> None:
    """A child's tool with tasks, a thread, a deadline and calls of its own, cut off at one step of the event loop after the other."""

    async def cut(after: int) -> bool:
        env, before = await env_of(), asyncio.all_tasks()

        async def deed(ctx: Ctx, i: int) -> None:
            try:
                async with asyncio.timeout(20), asyncio.TaskGroup() as group:
                    group.create_task(ctx.note("a", 1))
                    group.create_task(asyncio.sleep(0))
                if i == 0:
                    await ctx.invoke("leaf", {"i": 7})
                await asyncio.to_thread(int)
            finally:
                await ctx.note("end", 1)

        kid = agent([leaf(deed)], WRITE, Step(calls=(("leaf", {"i": 0}), ("leaf", {"i": 1}))), name="kid")
        top = boss(hands("kid"), children=(kid,))
        driven = asyncio.create_task(top.run("x", ledger=env, run_id="TOP"))
        for _ in range(after):
            await asyncio.sleep(0)
        over = driven.done()
        for _ in range(often):
            driven.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([driven], timeout=10)
        assert not over or driven.result().state == "completed"
        while env.lingering:
            await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == before
        if await env.ledger.head("TOP") is not None:
            assert (await top.resume("TOP", ledger=env)).state == "completed"
        return over

    @story
    async def told() -> None:
        after = 1
        while not await cut(after):
            after += 2
        assert after > 20

    told()


# -- threads, and runs that are given back -------------------------------------------------------------------------------------
@story
async def test_a_thread_of_a_thousand_runs_is_recalled() -> None:
    env = await env_of()
    bound = await agent([], [])._start(env)
    above: dict[str, Any] = {}
    for n in range(1_100):
        s = await recover.open_run(env, bound, f"word {n}", **above)
        above = {"parent": r.Parent(hash=s.run.head, kind="thread", run=s.run.id, seq=s.run.seq)}
        await recover.give_back(s)
    await recover.recall(s)
    assert [m.text for m in s.messages] == [f"word {n}" for n in range(1_099)]


class Forgets:
    """A ledger that cannot read what lies behind the genesis of `run`."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.run = inner, ""

    def read(self, run: str, after: int = -1, upto: int | None = None) -> Any:
        if run == self.run and upto != 0:
            raise Unavailable("the ledger does not answer", outcome="none")
        return self._inner.read(run, after, upto)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@story
async def test_a_run_whose_thread_cannot_be_read_is_given_back() -> None:
    env = await env_of()
    env.ledger = ledger = Forgets(env.ledger)
    bot = agent([], [], "done", "done")
    first = await bot.run("x", ledger=env)
    ledger.run = first.run_id
    with pytest.raises(Unavailable):
        await bot.run("y", ledger=env, thread=first.run_id, run_id="SECOND")
    assert await ledger.head("SECOND") is not None
    ledger.run = ""
    assert (await bot.resume("SECOND", ledger=env)).state == "completed"


@story
async def test_whoever_is_cancelled_while_he_gives_a_run_back_has_given_it_back() -> None:
    env = await env_of()
    bound = await agent([], [])._start(env)
    top = await recover.open_run(env, bound, "x")
    above = r.Parent(hash=top.run.head, kind="handoff", run=top.run.id, seq=0)
    child = await recover.open_run(env, bound, "y", parent=above, depth=1, grant=r.Grant(tools=()))
    await drive.drive(child)
    asked, head = asyncio.Event(), env.ledger.head

    async def slow(run: str) -> Any:
        if run == top.run.id:
            asked.set()
            await asyncio.sleep(60)
        return await head(run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(env.ledger, "head", slow)
        given = asyncio.create_task(recover.give_back(child))
        await asked.wait()
        given.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given
    assert await env.ledger.claim("default", 1, run=child.run.id) is not None
