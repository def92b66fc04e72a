"""One life of a run with power cuts in it: drive, die, come back as another worker, ask people where they are needed, to the end.

The rule a newcomer would break: each session starts from the ledger alone. Nothing of the dead one is handed over but the store,
the keys and the world.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mandamus import wiring
from mandamus.core.rules import wakes
from mandamus.core.run import ENDED, Action, ripe
from mandamus.errors import EngineFault
from mandamus.ports import Ledger
from mandamus.runtime import drive, recover
from mandamus.runtime.env import Bound, Env
from mandamus.runtime.session import Session
from mandamus.testing.people import Crowd
from mandamus.testing.power import Power, PowerCut, PowerLedger, StepTime, World, wired

SESSIONS_MAX = 60


@dataclass
class Life:
    """What became of it. `stuck` says in words why it did not end; "" when it did."""

    run: str
    trace: list[str] = field(default_factory=list)
    cut: str = ""
    sessions: int = 0
    votes: int = 0
    halts: int = 0
    stuck: str = ""
    end: str = ""
    records: list[bytes] = field(default_factory=list)


class Stage:
    """Where lives take place: an agent, its people, its keys, one store per life. `open` gives another handle on the store."""

    def __init__(self, bound: Bound, open: Callable[[Callable[[], int]], Ledger], *, seed: int = 0, home: Any = None) -> None:
        self.bound, self.open = bound, open
        self.time, self.world = StepTime(seed), World()
        self.home = home or wiring.Home(None)
        self.home.trust()
        self.crowd = Crowd.enrol(self.home, bound)

    async def env(self, power: Power, worker: str) -> Env:
        handle = PowerLedger(self.open(self.time.now), power)
        return await wiring.open_env("memory:", time=self.time, ledger=handle, home=self.home, worker=worker)


async def live(stage: Stage, prompt: str, cuts: tuple[int, ...] = (), *, run: str = "", twice: bool = False) -> Life:
    """`cuts` as `Power` counts them, over all sessions of the life."""
    life, power = Life(run or _name(stage.time)), Power(cuts)
    life.trace = power.trace
    for n in range(SESSIONS_MAX):
        power, life.sessions = power.next(), n + 1
        try:
            if await _session(stage, life, power, prompt, f"worker-{n + 1}", twice):
                return life
        except PowerCut as cut:
            life.cut = life.cut or str(cut)
        except EngineFault as fault:
            life.stuck = f"{type(fault).__name__}: {fault.diagnosis.what}"
            return life
    life.stuck = f"not ended after {SESSIONS_MAX} sessions"
    return life


def _name(time: StepTime) -> str:
    return "01" + time.entropy(12).hex().upper()


async def _session(stage: Stage, life: Life, power: Power, prompt: str, worker: str, twice: bool) -> bool:
    """One process: True when there is nothing left to do for anybody."""
    off = Power()
    env = await stage.env(off, worker)
    ledger = env.ledger
    assert isinstance(ledger, PowerLedger)
    try:
        bound = wired(stage.bound, power, stage.world, twice=twice)
        exists = await env.ledger.head(life.run) is not None
        ledger.power = power
        s = await (recover.take_over(env, bound, life.run) if exists else recover.open_run(env, bound, prompt, run_id=life.run))
        await drive.drive(s)
        await recover.give_back(s)
        ledger.power = off
        return await _between(stage, life, s)
    finally:
        ledger.power = off
        await wiring.close_env(env)


async def _between(stage: Stage, life: Life, s: Session) -> bool:
    """The run stands still. Over, or whose turn is it: people, time, or somebody who has seen why it was halted?"""
    run = s.run
    life.end = run.end if run.life in ENDED else run.life
    if run.life in ENDED:
        life.records = [raw async for raw in s.env.ledger.read(run.id)]
        return True
    if run.life == "halted":
        life.halts += 1
        if life.halts > 3:
            life.stuck = f"halted ({run.cause}: {run.code})"
            life.records = [raw async for raw in s.env.ledger.read(run.id)]
        return bool(life.stuck)
    if any(a.request and not ripe(a.request) for a in run.open_actions):
        life.votes += await stage.crowd.answer(s, lambda action: truthful(stage.world, action))
        return False
    at, _ = wakes(run)
    if at is not None:
        await stage.time.sleep_until(at)
    return False


def truthful(world: World, action: Action) -> str:
    """What people say: yes to a start; about an unknown outcome, what the world shows them."""
    if action.request is not None and action.request.about == "outcome":
        return "done" if world.deeds[action.operation] else "again"
    return "approve"
