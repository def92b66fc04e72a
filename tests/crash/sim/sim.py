"""One simulated life: two runs on one store and one daily limit, workers that come and go, people who vote, and a plan of faults.

    sim = Sim(seed=7, plan={11: "crash", 30: "ghost"}, leases=True)
    assert sim.run() == []

Real are the loop, the recovery, the mail, the keeper of leases and the memory ledger. The rule a newcomer would break: everything
that is drawn by lot comes from the seed, and nothing from the order of a set or from a real clock: same seed, same trace.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from mandamus import wiring
from mandamus.core import records as r
from mandamus.core.records import LOG
from mandamus.core.run import ENDED, state_digest
from mandamus.core.seal import Draft
from mandamus.errors import Conflict, EngineFault, Misuse, ProofError, Unavailable
from mandamus.runtime import drive, lease, recover
from mandamus.runtime import worker as pool
from mandamus.runtime.carry import Served
from mandamus.runtime.env import Bound, Env
from mandamus.runtime.log import TAKEN_BACK
from mandamus.testing.people import Crowd
from mandamus.testing.power import PowerCut
from tests.crash.sim import checks
from tests.crash.sim.clock import SimTime, VirtualLoop
from tests.crash.sim.faults import Plan
from tests.crash.sim.store import Store
from tests.crash.sim.worker import SimLedger, SimLog, Worker
from tests.crash.sim.world import WORKER, World, bound_of

PATIENCE_S = 6 * 3600.0  # virtual; a run that has not ended by then never will
PLACES_MAX = 20_000
STUCK = f"{PLACES_MAX} places and no end"
LOOK_S = 5.0
_HOMES: dict[tuple[str, str], tuple[Any, Crowd]] = {}


@dataclass
class Sim:
    """`leases`: ownership runs out by time alone, as on a server; else only death drops it, as on a file.

    `pool`: two workers take what is due; else somebody starts one worker after the other for each run. `script`: "full" or "small"
    (one run, two calls). `settles` False: a driver that believes what it sees after an unknown outcome, which the port forbids.
    `fickle`: also what an administrator writes on chain `log` may be seen and taken back.
    """

    seed: int
    plan: Plan = field(default_factory=dict)
    leases: bool = True
    pool: bool = False
    script: str = "full"
    reconciler: str = "list"
    settles: bool = True
    fickle: bool = False
    trace: list[tuple[str, str, str]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    lived: dict[str, str] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """Returns what was found to be wrong, without repetition."""
        self.random, self.time = random.Random(self.seed), SimTime(self.seed)
        self.told: dict[str, set[str]] = defaultdict(set)
        self.mail: list[tuple[str, bytes]] = []
        self.pools: list[Env] = []
        self.stale = False  # the administrator has seen what a failover took back
        self._tasks: set[asyncio.Task[Any]] = set()
        boot = lease._boot
        try:
            with asyncio.Runner(loop_factory=VirtualLoop) as runner:
                loop = runner.get_loop()
                loop.set_exception_handler(self._unheard)
                lease._boot = loop.time
                runner.run(self._main())
        finally:
            lease._boot = boot
        return sorted(set(self.findings))

    def __str__(self) -> str:
        said = f", leases={self.leases}, pool={self.pool}, script={self.script!r}, reconciler={self.reconciler!r}"
        return f"Sim({self.seed}, {self.plan}{said}{'' if self.settles else ', settles=False'})"

    def _unheard(self, loop: Any, context: dict[str, Any]) -> None:
        """An exception that nobody took. A dead process takes none."""
        if not isinstance(context.get("exception"), PowerCut | Conflict | Unavailable | None):
            self.findings.append(f"an exception that nobody took: {context['exception']!r}"[:300])

    async def _main(self) -> None:
        self.main = asyncio.current_task()
        try:
            await self._life()
        except asyncio.CancelledError:
            self.findings.append(f"I8 {STUCK}")

    async def _life(self) -> None:
        self.bound: Bound = await bound_of(self.script, self.reconciler)
        self.home, self.crowd = _home(self.script, self.reconciler, self.bound)
        self.store, self.world = Store(self.time.now, self.leases), World(self)
        self.store.cut = self._power_cut
        self.admin = await self._env(self.store.ledger, "admin", self.time)
        self.runs = [f"01SIM{n}{self.time.entropy(10).hex().upper()}" for n in range(1 if self.script == "small" else 2)]
        self.over = asyncio.Event()
        life = [self._keep_pool()] if self.pool else [self._supervise(run) for run in self.runs]
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*life)
        except TimeoutError:
            self.findings.append("I8 a run does not end")
        self.over.set()
        await self._quiet()
        for run in self.runs:
            if await self.store.ledger.head(run) is not None:
                await checks.ended(self, run)
        checks.accounts(self)

    async def _quiet(self) -> None:
        """Zombies come back, requests arrive: only then is it over."""
        while pending := [t for t in (*self._tasks, *self.world.under_way) if not t.done()]:
            done, _ = await asyncio.wait(pending, timeout=900)
            if not done:
                self.findings.append("I8 a process does not end")
                return

    async def _env(self, ledger: Any, name: str, time: SimTime) -> Env:
        env = await wiring.open_env("memory:", time=time, ledger=ledger, home=self.home, worker=name)
        env.tlog = SimLog(ledger.worker) if isinstance(ledger, SimLedger) else None
        return env

    # -- what workers tell the simulation ------------------------------------------------------------------------------------------
    def pass_by(self, worker: str, label: str, kind: str) -> str:
        if len(self.trace) > PLACES_MAX:
            self.main.cancel(STUCK)
            raise PowerCut(STUCK)
        fault = self.plan.get(len(self.trace), "")
        self.trace.append((worker, label, fault))
        self.places.append(kind)
        return fault

    def farewell(self, last: Coroutine[Any, Any, Any]) -> None:
        """What goes on although nobody waits for it."""
        task = asyncio.get_running_loop().create_task(last)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def written(self, run: str, raws: Any) -> None:
        checks.written(self, [r.decode(raw).fact for raw in raws])

    def acknowledged(self, run: str, head: Any) -> None:
        self.told[run].add(head.hash)

    async def deliver_again(self) -> None:
        """Every message once more, and to the other run as well."""
        heads = list(self.store.data.heads)
        for run, message in list(self.mail):
            for to in (run, *(x for x in heads if x not in (run, LOG))):
                await self._by_people(self.store.ledger.send, to, message)

    def wake(self, run: str) -> None:
        if run:
            self._start(self._work(run, f"w{len(self.workers)}"))

    async def change_authority(self) -> None:
        fact = r.PolicyChanged(agent="x", clock=self.admin.clock("UTC"), new="b" * 64, old="a" * 64)
        await self._by_people(self._raise_authority, fact)

    async def _raise_authority(self, fact: Any) -> None:
        if self.fickle and self.random.random() < 0.5:  # the administrator's own write may be one that is seen and does not last
            self.store.doubt(True, self.random.uniform(0.2, 5.0))
        await self.admin.log.append([Draft(fact, 0)], raises=True)

    async def _by_people(self, act: Any, *given: Any) -> bool:
        """People's own tools wait until a write lasts, too; what failed they do again later, or not at all."""
        try:
            await self.store.acknowledged()
            if self.stale:
                self.admin, self.stale = await self._env(self.store.ledger, "admin", self.time), False
            await act(*given)
        except (Unavailable, Misuse):
            return False
        except ProofError:  # the administrator's own tool had folded what is gone: it is started anew
            self.stale = True
            return False
        return True

    def _power_cut(self) -> None:
        """On a file, what takes back a write is the loss of the machine: nobody on it lives on."""
        self.stale = True
        if not self.leases:
            for worker in self.workers:
                worker.die()

    # -- workers -------------------------------------------------------------------------------------------------------------------
    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _supervise(self, run: str) -> None:
        """Something starts workers for as long as the run is not over; people look in from time to time."""
        n, nap = 0, LOOK_S
        while not await self._people(run):
            passed = len(self.trace)
            await asyncio.wait([self._start(self._work(run, f"{run[5]}{n}"))], timeout=20)
            n, nap = n + 1, LOOK_S if len(self.trace) > passed + 10 else min(60.0, nap * 2)
            if not await self._people(run):
                await asyncio.sleep(nap)

    async def _keep_pool(self) -> None:
        """Two processes take what is due; one that dies is replaced."""
        opening = [self._open(run) for run in self.runs]
        looking = asyncio.create_task(self._look())
        keeping = [asyncio.create_task(self._keep_one(letter)) for letter in "ab"]
        await asyncio.gather(*opening, looking)
        self.over.set()
        for env in self.pools:
            env.leaving = True
        await asyncio.gather(*keeping)

    async def _open(self, run: str) -> None:
        """Whoever wants the run opens it, and again until it is there."""
        n = 0
        while await self.store.ledger.head(run) is None or self.store.doubtful:
            await self._start(self._work(run, f"o{run[5]}{n}", drives=False))
            await asyncio.sleep(1)
            n += 1

    async def _look(self) -> None:
        waiting, nap = list(self.runs), LOOK_S
        while waiting:
            passed = len(self.trace)
            await asyncio.sleep(nap)
            nap = LOOK_S if len(self.trace) > passed + 10 else min(60.0, nap * 2)
            waiting = [run for run in waiting if not await self._people(run, nap=False)]

    async def _keep_one(self, name: str) -> None:
        n = 0
        while not self.over.is_set():
            await asyncio.wait([self._start(self._serve(f"{name}{n}"))])
            await asyncio.sleep(2)
            n += 1

    async def _serve(self, name: str) -> None:
        """A worker of the pool, the real one: it claims what is due, sweeps, and says that it lives."""
        process = Worker(self, name)
        WORKER.set(process)
        try:
            env = await self._env(SimLedger(process), name, process.time)
            served = {self.bound.definition: Served(self._start_bound, self._driven)}
            self.pools.append(env)
            env.leaving = self.over.is_set()
            await pool.Worker(env, served, slots=2).work()
        except (PowerCut, EngineFault):
            return
        finally:
            process.die()

    async def _start_bound(self, env: Env, run: str, key: str, opened: r.RunOpened) -> Bound:
        WORKER.get().run = run
        return self.bound

    async def _driven(self, s: Any) -> Any:
        await self._carry(s)
        return SimpleNamespace(state=s.run.life, cause="")

    async def _work(self, run: str, name: str, drives: bool = True) -> None:
        """A process for one run: open it, or take it over."""
        worker = Worker(self, name)
        WORKER.set(worker)
        worker.run = run
        try:
            env = await self._env(SimLedger(worker), name, worker.time)
            if await self.store.ledger.head(run) is None:
                s = await recover.open_run(env, self.bound, "Pay what is due.", run_id=run)
            else:
                s = await recover.take_over(env, self.bound, run)
            if drives:
                await self._carry(s)
            else:
                await recover.give_back(s)
        except ProofError as error:
            if error.diagnosis.code != TAKEN_BACK:
                raise
            return  # what this process had read of chain `log` was taken back by a failover: it ends, and the next one reads anew
        except (PowerCut, Conflict, EngineFault, Misuse):
            return
        finally:
            worker.die()

    async def _carry(self, s: Any) -> None:
        try:
            await drive.drive(s)
        finally:
            await recover.give_back(s)
        if s.run.life in ENDED:
            self.lived[s.run.id] = state_digest(s.run)

    async def _people(self, run: str, nap: bool = True) -> bool:
        """Over? Else whoever is asked answers, and what is far in time comes nearer."""
        if self.store.doubtful:
            return False
        head = await self.store.ledger.head(run)
        if head is None:
            return False
        last = r.decode(self.store.data.records[run][-1]).fact
        if isinstance(last, r.RunSealed) or head.state == "halted":
            return True
        if head.state == "people":
            await self._by_people(self._answer, run)
        if nap and head.wake_at is not None and head.wake_at > self.time.now():
            await asyncio.sleep(min(60.0, (head.wake_at - self.time.now()) / 1e6))
        return False

    async def _answer(self, run: str) -> None:
        s = await recover.read_run(self.admin, self.bound, run)
        box = len(self.store.data.mail.get(run, ()))
        await self.crowd.answer(s, lambda a: self._known(a) if a.request and a.request.about == "outcome" else "approve")
        self.mail += [(run, m) for _, _, m in self.store.data.mail.get(run, ())[box:]]

    def _known(self, action: Any) -> str:
        """What whoever looks at the other side finds. What was told to refuse an id will never do it."""
        if self.world.done[action.operation]:
            return "done"
        return "abandon" if action.operation in self.world.forbidden else "again"


def _home(script: str, reconciler: str, bound: Bound) -> tuple[Any, Crowd]:
    """Keys are made once a process: making them is most of the time of a run, and no part of what is tested."""
    key = script, reconciler
    if key not in _HOMES:
        home = wiring.Home(None)
        home.trust()
        _HOMES[key] = home, Crowd.enrol(home, bound)
    return _HOMES[key]
