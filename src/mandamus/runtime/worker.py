"""A worker: claims due runs of one pool, carries each to its next wait, gives it back. `await Worker(env, served, slots=4).work()`.

    env = await wiring.open_env("sqlite:///.mandamus/run.db")
    worker = Worker(env, agent.served(), pool="default", slots=4, tell=print)
    await worker.work()                 # until env.leaving is set; then what has its intent still ends

Any number of them stand on one ledger, in any number of processes and machines, and none knows another: who drives a run is said by
the run's own row, and who may write it by compare-and-append. The rule a newcomer would break: a worker claims no more than it has free
slots for. A claim is a lease, and a run that is claimed and not driven is one that nobody drives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from mandamus.errors import Conflict, MandamusError, Unavailable
from mandamus.ports import AT_REST, Head, Node
from mandamus.runtime import sweeper
from mandamus.runtime.carry import Carried, Delays, Served, carry, put_back
from mandamus.runtime.env import Env, ulid
from mandamus.runtime.sweeper import Duty

POLL_S = 0.25  # how soon it hears that it shall go
HINT_MS = 1_000
IDLE_S = 0.02
SUSPECT = 2  # a run that two owners were lost with is carried alone
BEAT_S, FORGOTTEN_MS = 5.0, 15_000
RETRY_S = (0.5, 30.0)
ALONE_US = 2_000_000
MOVED = "MDM-0405"


def name(env: Env) -> str:
    """Of this process among all workers; it stands in the records of its takeovers, so it is no host's name."""
    return f"pid-{os.getpid()}-{ulid(env.time)[-6:].lower()}"


class Worker:
    """`served`: how to carry runs, by the digest of their definition. `tell` hears what came of each claim."""

    def __init__(
        self, env: Env, served: Mapping[str, Served], *, pool: str = "default", slots: int = 4, version: str = "",
        tell: Callable[[Carried], None] = lambda told: None, duties: Sequence[Duty] = sweeper.DUTIES,
    ) -> None:  # fmt: skip
        self.env, self.pool, self.slots, self.version = env, pool, slots, version
        self._served, self._tell, self._duties = served, tell, duties
        self._running: set[asyncio.Task[None]] = set()
        self._delays = Delays()
        self._said: set[str] = set()
        self._lost = 0  # how often in a row the ledger did not answer

    async def work(self, *, until_idle: bool = False) -> None:
        """Until `env.leaving`; with `until_idle` until nothing is due. What it has begun has ended or was given back when this returns."""
        chores = [asyncio.create_task(self._beat()), asyncio.create_task(sweeper.keep(self.env, self._duties))]
        try:
            await self._claims(until_idle)
            await self._say(draining=True)
            await self._rest()
        finally:
            for task in [*chores, *self._running]:
                task.cancel()
            await asyncio.gather(*chores, *self._running, return_exceptions=True)
            await self._say(ttl_ms=0)

    async def _claims(self, until_idle: bool) -> None:
        while not self.env.leaving:
            if len(self._running) >= self.slots:
                await self._one_rests()
                continue
            held = await self._claim()
            if held is not None:
                await self._begin(held)
            elif until_idle and not self._running and not self._lost:
                return
            else:
                await self._listen()

    async def _claim(self) -> Head | None:
        """A ledger that does not answer is asked again, less and less often, and that is said once."""
        try:
            held = await self.env.ledger.claim(self.pool, self.env.lease_ms)
        except Unavailable as gone:
            if not self._lost:
                self.env.warn(f"mandamus: the ledger does not answer ({gone.diagnosis.what}); asked again until it does")
            self._lost += 1
            await self._pause(min(RETRY_S[0] * 2 ** min(self._lost - 1, 16), RETRY_S[1]))
            return None
        if self._lost:
            self._lost = 0
            self.env.warn("mandamus: the ledger answers again")
        return held

    async def _begin(self, held: Head) -> None:
        if self.env.leaving:
            await self._give_back(held, 0)
        elif held.tries <= SUSPECT:
            task = asyncio.create_task(self._carry(held))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        elif self._running:  # others would be lost along with it, and in the end be taken for poison too
            await self._give_back(held, ALONE_US)
            await self._rest()
            await self._alone(held.run)
        else:
            await self._carry(held)

    async def _alone(self, run: str) -> None:
        """It was put off for the others' sake, and stands behind all that is due: where that never ends, its turn would never come."""
        held = None
        with contextlib.suppress(Conflict, Unavailable):  # another worker carries it; or the next claim says what is wrong
            held = None if self.env.leaving else await self.env.ledger.claim(self.pool, self.env.lease_ms, run=run)
        if held is None:
            return
        soon = self.env.time.now() + ALONE_US
        if held.state in AT_REST or held.wake_at is None or held.wake_at > soon:
            await self._give_back(held, 0)
        else:
            await self._carry(held)

    async def _carry(self, held: Head) -> None:
        told = await carry(self.env, self._served, held, self._delays)
        self._once(told)
        if told.state != "fenced":
            self._tell(told)

    def _once(self, told: Carried) -> None:
        """What a person must mend is said once for each agent or run, however often it is met."""
        match told.state:
            case "unserved":
                key = told.definition
                text = f"run {told.run} is of another agent than those served here ({told.agent}, definition {told.definition[:12]})"
            case "fenced" if told.cause == MOVED:
                key, text = MOVED, f"run {told.run}: {told.text}; what was moved is carried on there"
            case "refused" | "failed":
                key, text = f"{told.run} {told.cause}", f"run {told.run}: {told.text}"
            case "halted" if told.cause == "poison":
                key, text = told.run, f"run {told.run} is parked: its owners were lost again and again; mandamus show {told.run}"
            case _:
                return
        if key not in self._said:
            self._said.add(key)
            self.env.warn(f"mandamus: {text}")

    async def _give_back(self, held: Head, later_us: int) -> None:
        with contextlib.suppress(Conflict, Unavailable):
            if later_us:
                await put_back(self.env, held, later_us)
            else:
                await self.env.ledger.renew(structs.replace(held, tries=held.tries - 1), 0)

    # -- waiting -----------------------------------------------------------------------------------------------------------------
    async def _listen(self) -> None:
        """Until something may be due, a slot rests or it shall go. Never shorter than a moment: a hint may be about a run that is owned."""
        if self._lost:
            return
        hint = asyncio.create_task(self._hint())
        wanted = {hint, *self._running}
        try:
            await asyncio.sleep(IDLE_S)
            while not self.env.leaving and not any(task.done() for task in wanted):
                await asyncio.wait(wanted, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hint.cancel()
            await asyncio.gather(hint, return_exceptions=True)

    async def _hint(self) -> None:
        with contextlib.suppress(Unavailable):  # the next claim says so
            await self.env.ledger.hint(self.pool, HINT_MS)

    async def _one_rests(self) -> None:
        await asyncio.wait(self._running, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)

    async def _rest(self) -> None:
        """Until nothing is carried here any more."""
        while self._running:
            await self._one_rests()

    async def _pause(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self.env.leaving and (left := until - loop.time()) > 0:
            await asyncio.sleep(min(POLL_S, left))

    # -- who lives ---------------------------------------------------------------------------------------------------------------
    async def _beat(self) -> None:
        while True:
            await self._say(draining=self.env.leaving)
            await asyncio.sleep(BEAT_S)

    async def _say(self, *, draining: bool = False, ttl_ms: int = FORGOTTEN_MS) -> None:
        node = Node(self.env.worker, self.pool, self.slots, len(self._running), self.version, tuple(sorted(self._served)), draining)
        with contextlib.suppress(MandamusError):  # nothing rests on it
            await self.env.ledger.beat(node, ttl_ms)
