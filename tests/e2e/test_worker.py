"""Workers: what they claim, carry, leave to others, park and give back; and the duties that one of them does for all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mandamus import Agent, Ctx, tool, wiring
from mandamus.core.canonical import accept
from mandamus.core.records import decode
from mandamus.data import Business, none
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.errors import Conflict, Unavailable
from mandamus.ports import AccountWrite, Head, Wake
from mandamus.runtime import drive, owed, recover
from mandamus.runtime.carry import Carried, Delays, carry
from mandamus.runtime.env import Env
from mandamus.runtime.sweeper import Duty, Sweeper, keep
from mandamus.runtime.worker import Worker
from mandamus.testing.people import Crowd
from mandamus.testing.virtual import VirtualTime, home
from tests.crash.stand import PAY, agent_of, pay_tool

PLAIN = Business(subject=none("test data"), retention="standard")


class Floor:
    """A store in memory, and workers on it, each with a handle of its own as another process would have."""

    def __init__(self, *, leases: bool = False, time: VirtualTime | None = None) -> None:
        self.time = time or VirtualTime()
        self.store, self.home = MemoryLedger(self.time.now, leases=leases), home()
        self.told: list[Carried] = []
        self.said: list[str] = []

    async def env(self, around: Callable[[MemoryLedger], Any] = lambda ledger: ledger) -> Env:
        ledger = around(MemoryLedger(self.time.now, beside=self.store))
        return await wiring.open_env("memory:", time=self.time, ledger=ledger, home=self.home, warn=self.said.append)

    async def worker(self, *agents: Agent[Any], env: Env | None = None, **more: Any) -> Worker:
        served = {digest: one for agent in agents for digest, one in agent.served().items()}
        return Worker(env or await self.env(), served, tell=self.told.append, **{"duties": (), **more})

    async def carried(self, *agents: Agent[Any], **more: Any) -> list[tuple[str, str]]:
        """What one worker does until nothing is due, as (run, state)."""
        before = len(self.told)
        await (await self.worker(*agents, **more)).work(until_idle=True)
        return [(told.run, told.state) for told in self.told[before:]]

    async def head(self, run: str) -> Head:
        head = await self.store.head(run)
        assert head is not None
        return head

    async def types(self, run: str) -> list[str]:
        return [decode(raw).type async for raw in self.store.read(run)]

    async def lost(self, run: str, times: int) -> None:
        """So many owners claim it and die."""
        for _ in range(times):
            handle = MemoryLedger(self.time.now, beside=self.store)
            assert await handle.claim("default", 1_000, run=run) is not None
            await handle.close()


def paying(paid: list[str], **more: Any) -> Agent[Any]:
    return agent_of(pay_tool("keyed", lambda ctx: paid.append(ctx.operation_id)), **more)


async def opened(floor: Floor, agent: Agent[Any], *runs: str, **more: Any) -> None:
    env = await floor.env()
    for run in runs:
        await agent.open("Pay.", ledger=env, run_id=run, **more)
    await env.ledger.close()


# -- whose turn it is ----------------------------------------------------------------------------------------------------------
async def _a_detached_run() -> None:
    floor, paid = Floor(), list[str]()
    agent = paying(paid)
    await opened(floor, agent, "RUN-1")
    assert (await floor.types("RUN-1"), paid) == (["RunOpened"], [])
    assert await floor.carried(agent) == [("RUN-1", "completed")]
    head = await floor.head("RUN-1")
    assert (len(paid), head.owner, head.state, head.epoch) == (1, "", "completed", 2)


def test_a_detached_run_is_carried_by_a_worker_that_owns_it_first() -> None:
    asyncio.run(_a_detached_run())


async def _pools_and_priorities() -> None:
    floor, agent = Floor(), agent_of(pay_tool())
    await opened(floor, agent, "RUN-1", "RUN-2")
    await opened(floor, agent, "RUN-3", prio=7)
    await opened(floor, agent, "RUN-4", prio=3)
    await opened(floor, agent, "RUN-5", pool="gpu", prio=9)
    done = await floor.carried(agent, slots=1)
    assert [run for run, _ in done] == ["RUN-3", "RUN-4", "RUN-1", "RUN-2"]
    assert (await floor.head("RUN-5")).epoch == 1
    assert await floor.carried(agent, pool="gpu") == [("RUN-5", "completed")]


def test_the_highest_priority_goes_first_and_another_pool_is_left_alone() -> None:
    asyncio.run(_pools_and_priorities())


async def _unserved() -> None:
    floor, agent, other = Floor(), agent_of(pay_tool()), agent_of(pay_tool(), name="other")
    await opened(floor, agent, "RUN-1", "RUN-2")
    for n in range(8):
        assert {state for _, state in await floor.carried(other)} == {"unserved"}
        head = await floor.head("RUN-1")
        assert (head.tries, head.owner, head.seq) == (0, "", 0), "it is no try, and nothing was written"
        assert head.wake_at is not None
        assert head.wake_at > floor.time.now()
        floor.time.advance(minutes=n + 1)
    worker = await floor.worker(other)
    await worker.work(until_idle=True)
    told = [text for text in floor.said if "another agent" in text]
    assert len(told) == 9, "each worker says it once for an agent, not once for a run"
    floor.time.advance(minutes=5)
    assert sorted(await floor.carried(agent)) == [("RUN-1", "completed"), ("RUN-2", "completed")]


def test_a_run_of_another_agent_is_left_to_another_worker_and_never_taken_for_poison() -> None:
    asyncio.run(_unserved())


async def _mail_does_not_hold_an_unserved_run_at_the_door() -> None:
    floor, agent, other = Floor(), agent_of(pay_tool()), agent_of(pay_tool(), name="other")
    await opened(floor, agent, "RUN-1")
    await floor.store.send("RUN-1", b"junk")
    assert await floor.carried(other) == [("RUN-1", "unserved")]
    await floor.store.send("RUN-1", b"more junk")
    assert (await floor.head("RUN-1")).wake_at == floor.time.now(), "what comes later wakes it at once"
    assert await floor.carried(agent) == [("RUN-1", "completed")]
    assert (await floor.types("RUN-1")).count("MessageRefused") == 2, "and what lay there was not lost"


def test_mail_neither_holds_an_unserved_run_at_the_door_nor_is_lost() -> None:
    asyncio.run(_mail_does_not_hold_an_unserved_run_at_the_door())


# -- poison --------------------------------------------------------------------------------------------------------------------
async def _poison() -> None:
    floor, paid = Floor(), list[str]()
    agent = paying(paid)
    await opened(floor, agent, "RUN-1", "RUN-2")
    await floor.lost("RUN-1", 5)
    assert sorted(await floor.carried(agent)) == [("RUN-1", "halted"), ("RUN-2", "completed")]
    assert len(paid) == 1, "nothing of it is driven"
    assert await floor.types("RUN-1") == ["RunOpened", "RunOwned", "RunHalted"]
    head = await floor.head("RUN-1")
    assert (head.state, head.owner, head.wake_at, head.epoch) == ("halted", "", None, 2)
    assert any("RUN-1 is parked" in text for text in floor.said)
    await floor.store.send("RUN-1", b"wake up")
    assert await floor.carried(agent) == [], "mail lifts no halt"
    env = await floor.env()
    assert (await agent.resume("RUN-1", ledger=env)).state == "completed"
    assert len(paid) == 2


def test_a_run_whose_owners_died_five_times_is_parked_and_others_go_on() -> None:
    asyncio.run(_poison())


async def _one_less_is_no_poison() -> None:
    floor, agent = Floor(), agent_of(pay_tool())
    await opened(floor, agent, "RUN-1")
    await floor.lost("RUN-1", 4)
    assert await floor.carried(agent) == [("RUN-1", "completed")]


def test_one_try_less_is_carried() -> None:
    asyncio.run(_one_less_is_no_poison())


async def _waiting_is_no_poison() -> None:
    """Each vote and each piece of junk is a claim that ends at a wait: none of them counts."""
    floor = Floor()
    agent = agent_of(pay_tool(), calls=(("pay", {"to": "Acme", "amount": LARGE}),), policies=(PAY, TWO))
    await opened(floor, agent, "RUN-1")
    assert await floor.carried(agent) == [("RUN-1", "suspended")]
    for n in range(9):
        await floor.store.send("RUN-1", f"junk {n}".encode())
        assert await floor.carried(agent) == [("RUN-1", "suspended")]
        assert (await floor.head("RUN-1")).tries == 0
    assert "RunHalted" not in await floor.types("RUN-1")


def test_a_run_that_is_woken_in_vain_however_often_is_no_poison() -> None:
    asyncio.run(_waiting_is_no_poison())


async def _suspects_are_carried_alone() -> None:
    floor, inside, most = Floor(), 0, list[int]()

    @tool(safety="read", effect="read", data=PLAIN)
    async def look(ctx: Ctx) -> str:
        """Look."""
        nonlocal inside
        inside += 1
        most.append(inside)
        await asyncio.sleep(0.01)
        inside -= 1
        return "seen"

    agent = agent_of(look, calls=(("look", {}),), policies=({"id": "look", "permit": {"safety": "read"}},))
    runs = [f"RUN-{n}" for n in range(6)]
    await opened(floor, agent, *runs)
    for run in runs:
        await floor.lost(run, 2)
    assert sorted(await floor.carried(agent, slots=6)) == [(run, "completed") for run in runs]
    assert set(most) == {1}


def test_runs_that_were_lost_with_their_owners_are_carried_one_at_a_time() -> None:
    """What kills the process takes only itself along, so that in the end only it is parked."""
    asyncio.run(_suspects_are_carried_alone())


# -- slots, leaving, faults ----------------------------------------------------------------------------------------------------
class Gate:
    """A tool that stays inside until it is let go."""

    def __init__(self) -> None:
        self.inside, self.most, self.go, self.entered = 0, 0, asyncio.Event(), asyncio.Event()

    def agent(self, calls: int = 1) -> Agent[Any]:
        async def deed(ctx: Ctx) -> None:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.entered.set()
            await self.go.wait()
            self.inside -= 1

        step = Step(calls=(("pay", {"to": "Acme", "amount": {"amount": "500", "currency": "USD"}}),))
        model = ScriptedModel([*[step] * calls, "done"])
        return Agent(name="payout-bot", purpose="pay invoices", model=model, tools=[pay_tool("keyed", deed)], policies=[PAY])


async def _no_more_than_its_slots() -> None:
    floor, gate = Floor(), Gate()
    agent = gate.agent()
    await opened(floor, agent, *(f"RUN-{n}" for n in range(7)))
    worker = await floor.worker(agent, slots=3)
    work = asyncio.create_task(worker.work(until_idle=True))
    while gate.inside < 3:
        await asyncio.sleep(0)
    claimed = [head.run async for head in floor.store.runs() if head.owner]
    assert len(claimed) == 3, "what it has no slot for is left to others"
    gate.go.set()
    await work
    assert (gate.most, len(floor.told)) == (3, 7)


def test_a_worker_claims_no_more_than_its_free_slots() -> None:
    asyncio.run(_no_more_than_its_slots())


async def _leaving() -> None:
    floor, gate = Floor(), Gate()
    agent = gate.agent(calls=2)
    await opened(floor, agent, "RUN-1", "RUN-2")
    env = await floor.env()
    worker = await floor.worker(agent, env=env, slots=1)
    work = asyncio.create_task(worker.work())
    await gate.entered.wait()
    env.leaving = True
    await asyncio.sleep(0.05)
    assert not work.done(), "what has its intent is still carried out"
    gate.go.set()
    await asyncio.wait_for(work, 30)
    types = await floor.types("RUN-1")
    assert (types.count("ActionStarted"), types.count("ActionEnded"), types.count("TurnStarted")) == (1, 1, 1)
    head, other = await floor.head("RUN-1"), await floor.head("RUN-2")
    assert (head.owner, head.tries, head.wake_at == 0, other.epoch) == ("", 0, True, 1)
    assert [node.id async for node in floor.store.nodes()] == [], "it said goodbye"
    gate.entered.clear()
    assert sorted(await floor.carried(agent)) == [("RUN-1", "completed"), ("RUN-2", "completed")]


def test_a_worker_that_shall_go_ends_what_it_has_begun_and_begins_nothing() -> None:
    asyncio.run(_leaving())


class Away:
    """A ledger that does not answer for a while, whatever it is asked."""

    def __init__(self, ledger: MemoryLedger, times: int) -> None:
        self._ledger, self.times = ledger, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def claim(self, pool: str, ttl_ms: int, *, run: str | None = None) -> Head | None:
        if self.times:
            self.times -= 1
            raise Unavailable("nobody is there", outcome="none")
        return await self._ledger.claim(pool, ttl_ms, run=run)


async def _away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mandamus.runtime.worker.RETRY_S", (0.001, 0.002))
    floor, agent = Floor(), agent_of(pay_tool())
    await opened(floor, agent, "RUN-1")
    env = await floor.env(lambda ledger: Away(ledger, 5))
    assert await floor.carried(agent, env=env) == [("RUN-1", "completed")]
    assert len([text for text in floor.said if "does not answer" in text]) == 1
    assert len([text for text in floor.said if "answers again" in text]) == 1


def test_a_ledger_that_is_away_is_asked_again_and_that_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_away(monkeypatch))


async def _fenced() -> None:
    floor, gate = Floor(leases=True), Gate()
    agent = gate.agent()
    await opened(floor, agent, "RUN-1", "RUN-2")
    worker = await floor.worker(agent, slots=2)
    work = asyncio.create_task(worker.work(until_idle=True))
    while gate.inside < 2:
        await asyncio.sleep(0)
    floor.time.advance(minutes=1)  # its leases run out while it sleeps
    other = await floor.env()
    bound = await wiring.bind(agent)
    taken = await recover.take_over(other, bound, "RUN-1")
    gate.go.set()
    await work
    assert [(told.run, told.state) for told in floor.told] == [("RUN-2", "completed")], "of a run that is another's nothing is said"
    assert (await floor.head("RUN-1")).hash == taken.run.head, "and nothing is written"
    await recover.give_back(taken)


def test_a_run_that_another_owner_took_ends_silently_and_the_others_go_on() -> None:
    asyncio.run(_fenced())


async def _one_breaks() -> None:
    """A bug in whatever carries one run: it is put off, the count of its tries stands, the others end."""
    floor, agent, broken = Floor(), agent_of(pay_tool()), agent_of(pay_tool(), name="broken")
    await opened(floor, agent, "RUN-1")
    await opened(floor, broken, "RUN-2")
    served = {**agent.served(), **broken.served()}
    fine = served[broken.spec.digest()]

    async def bug(session: Any) -> Any:
        await recover.give_back(session)
        raise RuntimeError("a bug")

    served[broken.spec.digest()] = fine._replace(drive=bug)
    env = await floor.env()
    await Worker(env, served, tell=floor.told.append, duties=()).work(until_idle=True)
    assert sorted((told.run, told.state, told.cause) for told in floor.told) == [
        ("RUN-1", "completed", ""),
        ("RUN-2", "failed", "RuntimeError"),
    ]
    head = await floor.head("RUN-2")
    assert (head.owner, head.tries) == ("", 1)
    assert head.wake_at is not None
    assert head.wake_at > floor.time.now()
    assert any("a bug" in text for text in floor.said)
    for _ in range(6):
        floor.time.advance(hours=1)
        await Worker(env, served, tell=floor.told.append, duties=()).work(until_idle=True)
    assert (floor.told[-1].state, floor.told[-1].cause) == ("halted", "poison")


def test_a_fault_of_one_run_is_told_and_the_others_go_on() -> None:
    asyncio.run(_one_breaks())


async def _refused() -> None:
    """An agent that may not start today: the refusal stands on chain log once for each look, and the looks become rare."""
    floor = Floor()
    agent = agent_of(pay_tool())
    await opened(floor, agent, "RUN-1")
    served = agent.served()
    start = served[agent.spec.digest()].start

    async def tried(env: Env, run: str, checkpoint: str, opened: Any) -> Any:
        env.tier = "cloud"
        try:
            return await start(env, run, checkpoint, opened)
        finally:
            env.tier = "dev"

    served[agent.spec.digest()] = served[agent.spec.digest()]._replace(start=tried)
    env, delays, waits = await floor.env(), Delays(), []
    for _ in range(4):
        held = await env.ledger.claim("default", 1_000)
        assert held is not None
        told = await carry(env, served, held, delays)
        assert (told.state, told.cause.split()[0]) == ("refused", "isolation_missing")
        assert told.wake_at is not None
        waits.append((told.wake_at - floor.time.now()) // 1_000_000)
        floor.time.advance(seconds=waits[-1] + 1)
    assert waits == [30, 60, 120, 240]
    assert (await floor.head("RUN-1")).owner == ""


def test_a_run_whose_agent_may_not_run_today_is_looked_at_less_and_less_often() -> None:
    asyncio.run(_refused())


# -- children ------------------------------------------------------------------------------------------------------------------
SMALL, MEDIUM, LARGE = ({"amount": minor, "currency": "USD"} for minor in ("500", "5000", "5000000"))
TWO = {"id": "two", "dualApproval": {"over": "10.00 USD", "quorum": 2}}


def family(paid: list[str]) -> Agent[Any]:
    """A parent that hands one payment to a child, which must ask two people."""
    pay = pay_tool("keyed", lambda ctx: paid.append(ctx.operation_id))
    kid = agent_of(pay, calls=(("pay", {"to": "Acme", "amount": LARGE}),), name="kid", then=("kid done",), policies=(PAY, TWO))
    model = ScriptedModel([Step(calls=(("handoff_kid", {"task": "pay it"}),)), "all done"])
    rules = [{"id": "hand", "permit": {"tool": "handoff_kid"}}]
    return Agent(name="parent", purpose="pay invoices", model=model, policies=rules, handoffs=[kid])


async def _child() -> None:
    floor, paid = Floor(), list[str]()
    agent = family(paid)
    crowd = Crowd.enrol(floor.home, await wiring.bind(agent))
    await opened(floor, agent, "PARENT", pool="pays", prio=4)
    assert await floor.carried(agent, pool="pays") == [("PARENT", "suspended")]
    (child,) = [head async for head in floor.store.runs() if head.run not in ("PARENT", "log")]
    assert (child.pool, child.prio, child.state) == ("pays", 4, "people"), "a child stands where its parent stands"
    assert (await floor.head("PARENT")).state == "child"
    env = await floor.env()
    assert await crowd.answer(await recover.read_run(env, await wiring.bind(agent.children["kid"]), child.run), lambda _: "approve") == 2
    done = await floor.carried(agent, pool="pays")
    assert done == [(child.run, "completed"), ("PARENT", "completed")], "the child is carried for itself, and wakes its parent"
    assert len(paid) == 1


def test_a_child_run_is_carried_by_any_worker_and_wakes_its_parent() -> None:
    asyncio.run(_child())


async def _busy_child() -> None:
    """Another worker drives the child: its parent waits for it, which is no fault and no try."""
    floor, paid = Floor(), list[str]()
    agent = family(paid)
    await opened(floor, agent, "PARENT")
    assert await floor.carried(agent) == [("PARENT", "suspended")]
    (child,) = [head async for head in floor.store.runs() if head.run not in ("PARENT", "log")]
    other = await floor.env()
    taken = await recover.take_over(other, await wiring.bind(agent.children["kid"]), child.run)
    for _ in range(8):
        await floor.store.send("PARENT", f"junk {floor.time.now()}".encode())
        assert await floor.carried(agent) == [("PARENT", "suspended")]
        head = await floor.head("PARENT")
        assert (head.state, head.tries, head.wake_at) == ("child", 0, floor.time.now() + 5_000_000)
        floor.time.advance(seconds=1)
    await recover.give_back(taken)


def test_a_parent_waits_while_another_worker_drives_its_child() -> None:
    asyncio.run(_busy_child())


# -- sweeper and duties --------------------------------------------------------------------------------------------------------
class Busy:
    """A ledger on which an account has just moved, whenever a settlement comes."""

    def __init__(self, inner: MemoryLedger) -> None:
        self._inner, self.busy = inner, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, run: str, after: Any, rows: Any, *, also: Any = (), **more: Any) -> Any:
        settles = [x for x in also if isinstance(x, AccountWrite) and accept(x.delta)["change"]["spent"]]
        if settles and self.busy:
            raise Conflict("it moved", on="account", account=settles[0].id)
        return await self._inner.append(run, after, rows, also=also, **more)


def paying_twice() -> Agent[Any]:
    steps = [Step(calls=(("pay", {"to": "Acme", "amount": amount}),)) for amount in (SMALL, MEDIUM)]
    rules = [PAY, TWO, {"id": "day", "maxDailyLimit": {"limit": "100.00 USD"}}]
    return Agent(name="payout-bot", purpose="pay invoices", model=ScriptedModel([*steps, "done"]), tools=[pay_tool()], policies=rules)


async def owing(floor: Floor) -> Agent[Any]:
    """A run that waits for people, and whose first payment was left without its settlement."""
    agent = paying_twice()
    await opened(floor, agent, "RUN-1")
    assert await floor.carried(agent, env=await floor.env(Busy)) == [("RUN-1", "suspended")]
    assert await stands(floor) == (500, 0)
    return agent


async def stands(floor: Floor) -> tuple[int, int]:
    id = next(id for id in floor.store._store.accounts if id.startswith("limit/"))
    account = await floor.store.account(id)
    assert account is not None
    return account.reserved, account.spent


async def _due_soon() -> None:
    floor = Floor()
    agent = await owing(floor)
    head = await floor.head("RUN-1")
    assert (head.state, head.wake_at) == ("people", floor.time.now() + owed.SOON_US)
    floor.time.advance(seconds=3)
    assert await floor.carried(agent) == [("RUN-1", "suspended")]
    assert await stands(floor) == (0, 500)
    head = await floor.head("RUN-1")
    assert head.wake_at is not None
    assert head.wake_at > floor.time.now() + 60_000_000, "it waits for people again, and for nothing else"


def test_a_settlement_that_an_outcome_left_behind_is_made_soon() -> None:
    asyncio.run(_due_soon())


async def _swept() -> None:
    floor = Floor()
    agent = await owing(floor)
    head = await floor.head("RUN-1")
    await floor.store.append("RUN-1", head, [], wake=Wake(None, head.mail, "people"))  # as if its owner had died before it said so
    floor.time.advance(minutes=5)
    assert await floor.carried(agent) == []
    sweep, env = Sweeper(), await floor.env()
    await sweep(env)
    assert (await floor.head("RUN-1")).seq == head.seq, "it only wakes: whoever settles owns the run first"
    assert await floor.carried(agent) == [("RUN-1", "suspended")]
    assert await stands(floor) == (0, 500)
    settled = await floor.head("RUN-1")
    assert settled.epoch == head.epoch + 1
    for again in (sweep, Sweeper()):
        await again(env)
        assert await floor.head("RUN-1") == settled, "what owes nothing is left alone"


def test_the_sweeper_wakes_a_run_that_owes_a_settlement_nobody_remembers() -> None:
    asyncio.run(_swept())


class Between:
    """A ledger on which somebody does something just before the first record is written."""

    def __init__(self, inner: MemoryLedger, deed: Callable[[], Awaitable[None]]) -> None:
        self._inner, self._deed, self._done = inner, deed, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, run: str, after: Any, rows: Any, **more: Any) -> Any:
        if rows and not self._done:
            self._done = True
            await self._deed()
        return await self._inner.append(run, after, rows, **more)


async def _settled_once() -> None:
    floor = Floor(leases=True)
    agent = paying_twice()
    bound = await wiring.bind(agent)
    slow = await floor.env(Busy)
    old = await recover.open_run(slow, bound, "Pay.", run_id="RUN-1")
    await drive.drive(old)
    assert old.books.owed
    slow.ledger.busy = False  # type: ignore[attr-defined]
    floor.time.advance(minutes=1)  # its lease has run out, and it does not know
    new = await floor.env(lambda ledger: Between(ledger, lambda: owed.settle(old)))
    await recover.give_back(await recover.take_over(new, bound, "RUN-1"))
    assert await stands(floor) == (0, 500)


def test_an_earlier_owner_that_is_only_slow_settles_nothing_a_second_time() -> None:
    asyncio.run(_settled_once())


async def _one_duty_for_all() -> None:
    floor, done = Floor(), list[str]()

    def duty(who: str) -> Duty:
        async def work(env: Env) -> None:
            done.append(who)

        return Duty("count", 0.01, lambda: work)

    first, second = await floor.env(), await floor.env()
    one = asyncio.create_task(keep(first, [duty("one")]))
    while not done:
        await asyncio.sleep(0)
    two = asyncio.create_task(keep(second, [duty("two")]))
    while len(done) < 5:
        await asyncio.sleep(0.001)
    assert set(done) == {"one"}
    one.cancel()
    await asyncio.gather(one, return_exceptions=True)
    while "two" not in done:
        await asyncio.sleep(0.001)
    two.cancel()
    await asyncio.gather(two, return_exceptions=True)
    assert await first.ledger.duty("count", 1_000) == 3, "each new holder has a higher epoch"


def test_a_duty_is_done_by_one_worker_and_by_the_next_when_that_one_goes() -> None:
    asyncio.run(_one_duty_for_all())
