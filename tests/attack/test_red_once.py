"""Attempts to have a deed done twice, or reserved for nothing: clocks, threads, stops, and appends that end a run."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mandamus import Absent, Conflict, Ctx, Found, Money, Receipt, escalate, rule, tool
from mandamus.core import records as r
from mandamus.core.rules import RECONCILE_TRIES
from mandamus.ports import AccountWrite
from mandamus.runtime import threads
from mandamus.testing.people import stop
from mandamus.testing.power import Power, PowerCut, PowerLedger
from tests.crash.stand import OWN, PAY, PLAIN, SMALL, Retry, Stand, agent_of, pay_tool, waiting

HOUR = 3_600_000_000
LIMIT = {"id": "day", "maxDailyLimit": {"limit": "1000.00 USD", "currency": "USD"}}


def told(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        asyncio.run(asyncio.wait_for(story(), 30))

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


class Books:
    """The other side: what it has booked, and a list that is asked."""

    def __init__(self) -> None:
        self.booked: list[str] = []
        self.asked = 0

    async def find(self, operation: str) -> Found | Absent:
        self.asked += 1
        return Found(Receipt(id="tx")) if operation in self.booked else Absent("not in the books")


async def died(stand: Stand, run: str = "") -> str:
    """A process dies just before the deed: the first one, or one that took `run` over. Returns the run's id."""
    power = Power()
    reached = power.place

    def cut(name: str) -> None:
        if name == "before pay":
            power.cuts, power.base = (0,), len(power.trace)
        reached(name)

    power.place = cut  # type: ignore[method-assign]
    stand.power = power
    env = await stand.worker("worker", lambda inner: PowerLedger(inner, power))
    s = await (stand.take(run, env) if run else stand.open(env))
    with pytest.raises(PowerCut):
        await stand.carry(s)
    await stand.handle.close()
    stand.power = Power()
    return s.run.id


# -- the old attempt may still land ----------------------------------------------------------------------------------------------
@told
async def test_absent_is_believed_only_when_the_landing_time_is_over() -> None:
    books = Books()
    stand = await Stand.of(agent_of(pay_tool("reconcilable", reconcile=books, timeout="30s")))
    run = await died(stand)
    s = await stand.resume(run)
    assert books.asked == 1, "the other side is asked at once: found would be believed"
    assert len(await stand.facts(run, r.ActionStarted)) == 1
    owned = next(f for f in await stand.facts(run, r.RunOwned))
    assert s.run.actions["1.1"].lands == owned.clock.now + 30_000_000
    await stand.time.sleep_until(s.run.actions["1.1"].lands)
    s = await stand.resume(run)
    assert s.run.end == "completed", "the second takeover does not begin the wait anew"
    assert len(await stand.facts(run, r.ActionStarted)) == 2


@told
async def test_a_thread_of_an_async_tool_keeps_it_from_being_believed_absent() -> None:
    """`asyncio.to_thread` outlives the cancelled call; the landing time alone would be too short."""
    books, late = Books(), threading.Event()

    @tool(safety="financial", effect="reconcilable", data=OWN, reconcile=books, timeout="50ms")
    async def pay(ctx: Ctx, to: str, amount: Money) -> Receipt:
        """Transfer corporate funds from a thread."""

        def send() -> None:
            late.wait(10)
            books.booked.append(ctx.operation_id)

        await asyncio.to_thread(send)
        return Receipt(id="tx")

    stand = await Stand.of(agent_of(pay))
    try:
        s = await stand.run()
        assert len(await stand.facts(s.run.id, r.ActionStarted)) == 1
        assert books.asked == RECONCILE_TRIES
        with pytest.raises(Conflict):
            await stand.take(s.run.id)
    finally:
        late.set()
    while s.env.lingering:
        await asyncio.sleep(0.01)
    assert len(books.booked) == 1


# -- keys have a life -----------------------------------------------------------------------------------------------------------
@told
async def test_a_key_lives_from_its_first_use() -> None:
    stand = await Stand.of(agent_of(pay_tool("keyed", key_life="24h")))
    run = await died(stand)
    await stand.time.sleep_until(stand.time.now() + 20 * HOUR)
    await died(stand, run)
    await stand.time.sleep_until(stand.time.now() + 20 * HOUR)
    s = await stand.resume(run)
    assert len(await stand.facts(run, r.ActionStarted)) == 2
    request = waiting(s).request
    assert request is not None
    assert request.about == "outcome", "40 hours after its first use nobody knows what the key still means"


@told
async def test_the_age_of_a_key_is_read_from_the_clock_of_now() -> None:
    def lost(ctx: Any) -> None:
        raise RuntimeError("the reply is lost")

    stand = await Stand.of(agent_of(pay_tool("keyed", lost, key_life="5s", retry=Retry(3, backoff_ms=30_000))))
    s = await stand.run()
    await stand.time.sleep_until(stand.time.now() + 31_000_000)
    await stand.resume(s.run.id)
    assert len(await stand.facts(s.run.id, r.ActionStarted)) == 1


# -- a stop is a stop -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("effect", "ends"), [("keyed", "unknown"), ("idempotent", "unknown"), ("read", "cancelled")])
def test_nothing_is_sent_behind_a_signed_cancel(effect: str, ends: str) -> None:
    async def story() -> None:
        @tool(safety="read" if effect == "read" else "write", effect=effect, data=PLAIN)  # type: ignore[arg-type]
        async def pay(ctx: Ctx, to: str, amount: Money) -> str:
            """Do it."""
            return "done"

        stand = await Stand.of(agent_of(pay, policies=({"id": "p", "permit": {"tool": "pay"}},)))
        run = await died(stand)
        name = next(iter(stand.crowd.people))
        await stand.ledger.send(run, stop(await stand.worker("front"), run, stand.crowd.people[name]))
        await stand.resume(run)
        assert len(await stand.facts(run, r.ActionStarted)) == 1
        assert [f.result for f in await stand.facts(run, r.ActionEnded)] == [ends]

    asyncio.run(story())


# -- an append that ends the run commits no intent ----------------------------------------------------------------------------
@rule("people.b", "people are asked for what goes to B")
def ask_for_b(facts: Any) -> Any:
    return escalate(chain="default") if facts.args.get("to") == "B" and not facts.people.met else None


@told
async def test_a_rejection_leaves_nothing_reserved() -> None:
    calls = tuple(("pay", {"to": to, "amount": SMALL}) for to in ("A", "B"))
    stand = await Stand.of(agent_of(pay_tool(), calls=calls, policies=({"rules": [PAY, LIMIT]}, ask_for_b)))
    s = await stand.run()
    await stand.vote(s, "reject", people=1)
    s = await stand.resume(s.run.id)
    assert s.run.end == "failed"
    assert not await stand.facts(s.run.id, r.ActionStarted)
    assert all(a.reserved == 0 for a in stand.ledger._store.accounts.values())


@told
async def test_an_intent_is_not_committed_by_the_append_that_halts_the_run() -> None:
    """It would never be carried out, and people would be asked whether it happened."""
    other = tool(safety="financial", effect="irreversible", data=OWN, name="forbidden")(pay_tool().fn)
    calls = tuple((name, {"to": "A", "amount": SMALL}) for name in ("pay", "forbidden"))
    rules = [{"id": "pay", "permit": {"tool": "pay"}}, {"id": "no", "toolDenylist": {"tools": ["forbidden"]}, "on_deny": "halt"}]
    stand = await Stand.of(agent_of(pay_tool("irreversible"), other, calls=calls, policies=({"rules": rules},)))
    s = await stand.run()
    assert s.run.life == "halted"
    assert not await stand.facts(s.run.id, r.ActionStarted)


# -- a tool is not the loop -----------------------------------------------------------------------------------------------------
@told
async def test_a_cancelled_error_of_one_tool_cuts_no_other_off() -> None:
    done: list[str] = []

    @tool(safety="write", effect="irreversible", data=PLAIN)
    async def slow(x: int) -> str:
        """Takes its time."""
        await asyncio.sleep(0.1)
        done.append("slow")
        return "ok"

    @tool(safety="write", effect="irreversible", data=PLAIN)
    async def broken(x: int) -> str:
        """A library's own cancellation escapes."""
        raise asyncio.CancelledError

    calls = (("slow", {"x": 1}), ("broken", {"x": 1}))
    stand = await Stand.of(agent_of(slow, broken, calls=calls, policies=({"id": "p", "permit": {"safety": "write"}},)))
    s = await stand.run()
    assert done == ["slow"]
    assert {f.action: f.result for f in await stand.facts(s.run.id, r.ActionEnded)} == {"1.1": "done", "1.2": "unknown"}


@told
async def test_a_settlement_under_contention_is_carried_by_a_later_append() -> None:
    class Busy:
        left = 4

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        async def append(self, run: str, after: Any, records: Any, **more: Any) -> Any:
            settles = any(isinstance(r.decode(raw).fact, r.ActionEnded) for raw in records)
            if settles and any(isinstance(x, AccountWrite) for x in more.get("also", ())) and self.left:
                self.left -= 1
                raise Conflict("the account moved", on="account", head=after)
            return await self.inner.append(run, after, records, **more)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    stand = await Stand.of(agent_of(pay_tool(), policies=({"rules": [PAY, LIMIT]},)))
    s = await stand.run(env=await stand.worker("worker", Busy))
    assert s.run.end == "completed"
    accounts = [a for a in stand.ledger._store.accounts.values() if a.id.startswith("limit")]
    assert [(a.reserved, a.spent) for a in accounts] == [(0, int(SMALL["amount"]))]


def test_a_sync_tool_that_hangs_does_not_keep_the_interpreter() -> None:
    code = """
import asyncio, time
from mandamus import tool
from mandamus.core import records as r
from tests.crash.stand import PLAIN, Stand, agent_of
@tool(safety="read", effect="read", data=PLAIN, timeout="100ms")
def stuck() -> str:
    "Never answers."
    time.sleep(3600)
async def go():
    stand = await Stand.of(agent_of(stuck, calls=(("stuck", {}),), policies=({"id": "p", "permit": {"safety": "read"}},)))
    print((await stand.run()).run.life)
asyncio.run(go())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "sealed"


@told
async def test_again_behind_expired_approvals_asks_for_approvals() -> None:
    asks = {"id": "people", "needsApproval": {"quorum": 1}}
    stand = await Stand.of(agent_of(pay_tool("irreversible"), policies=({"rules": [PAY, asks]},)))
    s = await stand.run()
    await stand.vote(s, people=1)
    await died(stand, s.run.id)
    await stand.time.sleep_until(stand.time.now() + 2 * HOUR)
    s = await stand.resume(s.run.id)
    for decision, about in (("again", "start"), ("approve", "")):
        await stand.vote(s, decision, people=1)
        s = await stand.resume(s.run.id)
        assert [a.request.about for a in s.run.open_actions if a.request] == ([about] if about else [])
    assert s.run.end == "completed"
    assert [f.attempt for f in await stand.facts(s.run.id, r.ActionStarted)] == [1, 2]


def test_a_handoff_whose_child_waits_for_people_suspends() -> None:
    """In a process of its own: a loop that spins cannot be cancelled."""
    code = """
import asyncio
from mandamus import Agent
from mandamus.drivers.model_scripted import ScriptedModel, Step
from tests.crash.stand import PAY, Stand, agent_of, pay_tool
child = agent_of(pay_tool(), policies=({"rules": [PAY, {"id": "p", "needsApproval": {"quorum": 1}}]},), name="payer")
boss = Agent(name="boss", purpose="p", model=ScriptedModel([Step(calls=(("handoff_payer", {"task": "pay"}),)), "done"]),
             policies=[{"id": "h", "permit": {"tool": "handoff_payer"}}], handoffs=[child])
async def go():
    stand = await Stand.of(boss)
    s = await stand.run()
    print(s.run.life, s.run.actions["1.1"].state)
asyncio.run(go())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == ["running", "started"]


def test_tools_that_hang_leave_room_for_the_next_one() -> None:
    """More calls than there are threads hang and are given up; the next call still gets a thread at once."""
    workers, end = threads.Workers(2), threading.Event()
    try:
        hung = [workers.submit(end.wait) for _ in range(2)]
        while not all(f.running() for f in hung):
            time.sleep(0.01)
        waiting = workers.submit(lambda: 1)
        for future in hung:
            workers.abandon(future)
        assert workers.submit(lambda: 2).result(timeout=10) == 2
        assert waiting.result(timeout=10) == 1
    finally:
        end.set()
