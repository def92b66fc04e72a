"""A seeded simulation of the real loop and the real recovery: virtual time, workers that die, stall and come back, a store that lies.

Two runs share one store and one daily limit. At every place where something waits, the plan may strike: crash (the process is gone),
stall (it goes on 60 seconds later, after somebody else took over), unavailable (a write whose outcome is unknown, done or not), clock
(an hour off), mail (everything in the mailbox is sent again), authority (an administrator changes something). The
invariants are checked at the effect and at the end. Same seed, same trace.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from mandamus import Absent, Agent, Ctx, Found, Money, Receipt, Retry, tool, wiring
from mandamus.core import records as r
from mandamus.core.records import LOG
from mandamus.core.rules import wakes
from mandamus.core.run import ENDED, state_digest
from mandamus.core.seal import Draft
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.errors import Conflict, EngineFault, Unavailable
from mandamus.runtime import drive, recover
from mandamus.runtime.env import Bound, Env
from mandamus.testing.people import Crowd
from mandamus.testing.power import TUESDAY, PowerCut
from tests.crash.stand import OWN, PLAIN

FAULTS = ("crash", "stall", "unavailable", "clock", "mail", "authority")
LIMIT = 15_000  # minor units a day, for both runs together
HOUR = 3_600_000_000


_BOUND: dict[bool, Bound] = {}  # the policy is compiled once; tools and model are made anew for each worker


class _Jump(selectors.SelectSelector):
    """Nobody waits: when nothing is ready, the clock jumps to whatever comes next."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("everybody waits for somebody else")
        self.loop.virtual += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        jump = _Jump()
        super().__init__(jump)
        self.virtual, jump.loop = 0.0, self

    def time(self) -> float:
        return getattr(self, "virtual", 0.0)


class SimTime:
    """The machine's clock: virtual, and wrong by `skew` when the plan says so."""

    def __init__(self, seed: int) -> None:
        self.skew, self._random = 0, random.Random(seed)

    def now(self) -> int:
        return TUESDAY + self.skew + int(asyncio.get_running_loop().time() * 1e6)

    def entropy(self, n: int) -> bytes:
        return self._random.randbytes(n)

    async def sleep_until(self, instant: int) -> None:
        await asyncio.sleep(max(0, instant - self.now()) / 1e6)


class Worker:
    """One process. Dead, it reaches nothing."""

    def __init__(self, sim: Sim, name: str) -> None:
        self.sim, self.name, self.dead = sim, name, False
        self.handle = MemoryLedger(sim.time.now, beside=sim.store)

    async def at(self, label: str) -> str:
        """A place where something waits. Returns the fault that the caller must act on."""
        sim = self.sim
        if self.dead:
            raise PowerCut(label)
        fault, sim.step = sim.plan.get(sim.step, ""), sim.step + 1
        sim.trace.append((self.name, label, fault))
        if fault == "crash":
            self.dead = True
            await self.handle.close()
            raise PowerCut(label)
        if fault == "stall":
            if sim.steals:
                for run in [x for x, holder in sim.store._store.locks.items() if holder is self.handle]:
                    del sim.store._store.locks[run]
            await asyncio.sleep(60)
        if fault == "clock":
            sim.time.skew += sim.random.choice((-HOUR, HOUR))
        if fault == "mail":
            await sim.again()
        if fault == "authority":
            await sim.admin.log.append(
                [Draft(r.PolicyChanged(agent="x", clock=sim.admin.clock("UTC"), new="b" * 64, old="a" * 64), 0)], raises=True
            )
        await asyncio.sleep(sim.random.uniform(0.001, 0.05))
        if self.dead:
            raise PowerCut(label)
        return fault


class SimLedger:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def append(self, run: str, after: Any, records: Any, **more: Any) -> Any:
        fault = await self._worker.at("write")
        if fault == "unavailable" and self._worker.sim.random.random() < 0.5:
            raise Unavailable("the store does not answer")
        head = await self._worker.handle.append(run, after, records, **more)
        self._worker.sim.written(run, [r.decode(raw).fact for raw in records])
        if fault == "unavailable":
            raise Unavailable("the store does not answer")
        await self._worker.at("written")
        return head

    async def claim(self, pool: str, ttl_ms: int, *, run: str | None = None) -> Any:
        await self._worker.at("claim")
        return await self._worker.handle.claim(pool, ttl_ms, run=run)

    async def head(self, run: str) -> Any:
        await self._worker.at("head")
        return await self._worker.handle.head(run)

    def __getattr__(self, name: str) -> Any:
        if self._worker.dead:
            raise PowerCut(name)
        return getattr(self._worker.handle, name)


@dataclass
class Sim:
    """`steals`: a stalled owner loses its lease (as with leases on a server); else its lock holds as long as it lives (as on a file)."""

    seed: int
    plan: dict[int, str]
    steals: bool = True
    step: int = 0
    trace: list[tuple[str, str, str]] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    forbidden: set[str] = field(default_factory=set)
    mail: list[tuple[str, bytes]] = field(default_factory=list)
    lived: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random, self.time = random.Random(self.seed), SimTime(self.seed)
        self.store = MemoryLedger(self.time.now)
        self.home = wiring.Home(None)
        self.home.trust()
        self.current: Worker | None = None

    def run(self) -> list[str]:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(self._main())
        return sorted(set(self.findings))

    async def _main(self) -> None:
        if self.steals not in _BOUND:
            _BOUND[self.steals] = await wiring.bind(_agent(self))
        self.bound = _BOUND[self.steals]
        self.crowd = Crowd.enrol(self.home, self.bound)
        self.admin = await self._env(MemoryLedger(self.time.now, beside=self.store), "admin")
        runs = [f"01SIM{n}{self.time.entropy(10).hex().upper()}" for n in range(2)]
        await asyncio.gather(*(self._supervise(run) for run in runs))
        for run in runs:
            await self._check(run)

    async def _env(self, ledger: Any, name: str) -> Env:
        return await wiring.open_env("memory:", time=self.time, ledger=ledger, home=self.home, worker=name)

    # -- workers ---------------------------------------------------------------------------------------------------------------
    async def _supervise(self, run: str) -> None:
        """Something starts workers for as long as the run is not over; people look in from time to time."""
        zombies: list[asyncio.Task[None]] = []
        for n in range(60):
            task = asyncio.create_task(self._work(run, f"{run[5]}{n}"))
            await asyncio.wait([task], timeout=20)
            zombies.append(task)
            if await self._people(run):
                break
            await asyncio.sleep(5)
        else:
            self.findings.append(f"I8 run {run[5]} does not end")
        await asyncio.wait(zombies, timeout=300)

    async def _work(self, run: str, name: str) -> None:
        worker = Worker(self, name)
        try:
            env = await self._env(SimLedger(worker), name)
            bound = _led(self.bound, self, worker)
            if await self.store.head(run) is None:
                s = await recover.open_run(env, bound, "Pay what is due.", run_id=run)
            else:
                s = await recover.take_over(env, bound, run)
            try:
                await drive.drive(s)
            finally:
                await recover.give_back(s)
            if s.run.life in ENDED:
                self.lived[run] = state_digest(s.run)
        except (PowerCut, Conflict, EngineFault):
            return
        finally:
            if not worker.dead:
                await worker.handle.close()

    async def _people(self, run: str) -> bool:
        """Over? Else whoever is asked answers, and what is far in time comes nearer."""
        if await self.store.head(run) is None:
            return False
        s = await recover.read_run(self.admin, self.bound, run)
        if s.run.life == "sealed":
            return True
        box = len(self.store._store.mail.get(run, ()))
        if run not in self.store._store.locks:
            await self.crowd.answer(
                s, lambda a: ("done" if self.done[a.operation] else "again") if a.request and a.request.about == "outcome" else "approve"
            )
        self.mail += [(run, m) for _, _, m in self.store._store.mail.get(run, ())[box:]]
        at, _ = wakes(s.run)
        if at is not None and at > self.time.now():
            await asyncio.sleep(min(60.0, (at - self.time.now()) / 1e6))
        return False

    async def again(self) -> None:
        """Every message once more, and to the other run as well."""
        for run, message in list(self.mail):
            await self.store.send(run, message)
            for other in list(self.store._store.heads):
                if other not in (run, LOG):
                    await self.store.send(other, message)

    # -- invariants ------------------------------------------------------------------------------------------------------------
    def written(self, run: str, facts: list[r.Fact]) -> None:
        for before, fact in zip([None, *facts], facts, strict=False):
            if isinstance(fact, r.ActionStarted):
                judged = (
                    isinstance(before, r.ActionJudged)
                    and before.verdict == "allow"
                    and (before.action, before.attempt) == (fact.action, fact.attempt)
                )
                if not judged:
                    self.findings.append("I16 an attempt does not stand behind its ALLOW")
                authority = self.store._store.accounts.get("authority")
                if isinstance(before, r.ActionJudged) and before.authority != (authority.version if authority else 0):
                    self.findings.append("I16 an attempt on an authority that is gone")
        for account in self.store._store.accounts.values():
            if account.id.startswith("limit/") and account.reserved + account.spent > LIMIT:
                self.findings.append("I14 a limit was exceeded")

    def deed(self, ctx: Ctx, name: str, effect: str) -> None:
        """Checked at the moment of the effect: a check at the end would miss nearly all of it."""
        if name == "ban":
            self.findings.append("I13 a denied tool ran")
        facts = [r.decode(raw).fact for raw in self.store._store.records.get(ctx.run_id, ())]
        starts = [f for f in facts if isinstance(f, r.ActionStarted) and f.operation == ctx.operation_id]
        self.sent[ctx.operation_id] += 1
        if self.sent[ctx.operation_id] > len(starts):
            self.findings.append("I7 an effect without a committed intent of its own")
        approved = {f.principal for f in facts if isinstance(f, r.Voted) and f.decision == "approve" and f.about == "start"}
        if name == "wire" and len(approved) < 2:
            self.findings.append("I13 approval was bypassed")
        if effect == "keyed" and self.done[ctx.operation_id]:
            return  # the other side keeps the key
        self.done[ctx.operation_id] += 1
        settled = sum(1 for f in facts if isinstance(f, r.Voted) and f.decision == "again")
        if self.done[ctx.operation_id] > 1 + (settled if effect == "irreversible" else 0):
            self.findings.append(f"I6 {effect}: done twice")

    async def _check(self, run: str) -> None:
        s = await recover.read_run(self.admin, self.bound, run)  # I1: every hash, every seq
        records = [r.decode(raw) async for raw in self.store.read(run)]
        if run in self.lived and self.lived[run] != state_digest(s.run):
            self.findings.append("I11 the fold of the log is not the live state")
        epoch, started, ended, ops = 1, Counter[Any](), Counter[Any](), {}
        for x in records:
            if isinstance(x.fact, r.RunOwned) and x.epoch != epoch + 1:
                self.findings.append("I2 an epoch did not rise by one")
            epoch = x.epoch if isinstance(x.fact, r.RunOwned) else epoch
            if x.epoch != epoch:
                self.findings.append("I3 an event by a fenced owner")
            if isinstance(x.fact, r.ActionStarted):
                started[x.fact.action, x.fact.attempt] += 1
                if ops.setdefault(x.fact.action, x.fact.operation) != x.fact.operation:
                    self.findings.append("I6 an action with two operation ids")
            if isinstance(x.fact, r.ActionEnded):
                ended[x.fact.action, x.fact.attempt, x.fact.result, x.fact.via == "people"] += 1
                if x.fact.result in ("done", "failed") and not started[x.fact.action, x.fact.attempt]:
                    self.findings.append("I5 an outcome without an intent")
        if any(n > 1 for n in (*started.values(), *ended.values())):
            self.findings.append("I4 the same fact twice")
        self._compare(records, ops)

    def _compare(self, records: list[r.AnyRecord], ops: dict[str, str]) -> None:
        """I9: what the log says was done is in the world; what is in the world, the log says or does not know."""
        results = {x.fact.action: x.fact for x in records if isinstance(x.fact, r.ActionEnded)}
        for action, operation in ops.items():
            last = results.get(action)
            done = self.done[operation]
            if last is not None and last.result == "done" and not done:
                self.findings.append("I9 the log says done, the world knows nothing")
            if done and (last is None or last.result not in ("done", "unknown")):
                self.findings.append(f"I9 done in the world, {last.result if last else 'nothing'} in the log")


# -- the agent -------------------------------------------------------------------------------------------------------------------
def _led(bound: Bound, sim: Sim, worker: Worker) -> Bound:
    """Tools and model that wait at places of this worker."""
    import dataclasses

    class Model:
        async def generate(self, *asked: Any) -> Any:
            await worker.at("ask the model")
            return await bound.model.generate(*asked)

        async def close(self) -> None: ...

    agent = _agent(sim, worker)
    return dataclasses.replace(bound, tools=agent.tools, model=Model())


def _agent(sim: Sim, worker: Worker | None = None) -> Agent[Any]:
    async def place(name: str) -> None:
        if worker is not None:
            await worker.at(name)

    async def act(ctx: Ctx, name: str, effect: str) -> Receipt:
        await place(f"send {name}")
        if effect == "reconcilable" and ctx.operation_id in sim.forbidden:
            raise ConnectionError("the other side refuses this id")
        sim.deed(ctx, name, effect)
        await place(f"reply {name}")
        return Receipt(id=ctx.operation_id[:8])

    class Desk:
        async def find(self, operation_id: str) -> Found | Absent:
            await place("find")
            found = Found({"id": operation_id[:8], "status": "accepted"}) if sim.done[operation_id] else Absent("not in the list")
            await place("found")
            return found

    class Forbidding(Desk):
        async def forbid(self, operation_id: str) -> None:
            await place("forbid")
            if not sim.done[operation_id]:
                sim.forbidden.add(operation_id)

    retry = Retry(4, backoff_ms=100)

    @tool(safety="financial", effect="keyed", data=OWN, retry=retry)
    async def pay(ctx: Ctx, to: str, amount: Money) -> Receipt:
        """Pay somebody."""
        return await act(ctx, "pay", "keyed")

    @tool(safety="financial", effect="irreversible", data=OWN)
    async def wire(ctx: Ctx, to: str, amount: Money) -> Receipt:
        """Pay a large sum by wire."""
        return await act(ctx, "wire", "irreversible")

    @tool(safety="write", effect="reconcilable", data=PLAIN, reconcile=Forbidding() if sim.steals else Desk(), retry=retry)
    async def ticket(ctx: Ctx, about: str) -> Receipt:
        """Open a ticket."""
        return await act(ctx, "ticket", "reconcilable")

    @tool(safety="write", effect="irreversible", data=PLAIN)
    async def ban(ctx: Ctx, who: str) -> Receipt:
        """Never allowed here."""
        return await act(ctx, "ban", "irreversible")

    money = {"amount": "6000", "currency": "USD"}
    script = [
        Step(calls=(("pay", {"to": "A", "amount": money}), ("ticket", {"about": "A"}))),
        Step(calls=(("ban", {"who": "B"}), ("wire", {"to": "C", "amount": {"amount": "3000", "currency": "USD"}}))),
        "done",
    ]
    policies = [
        {"id": "money", "permit": {"safety": "financial"}},
        {"id": "write", "permit": {"safety": "write"}},
        {"id": "no.ban", "toolDenylist": {"tools": ["ban"]}},
        {"id": "two", "needsApproval": {"quorum": 2, "tools": ["wire"]}},
        {"id": "daily", "maxDailyLimit": {"limit": f"{LIMIT // 100}.00 USD"}},
    ]
    return Agent(name="sim-bot", purpose="simulate", model=ScriptedModel(script), tools=[pay, wire, ticket, ban], policies=policies)
