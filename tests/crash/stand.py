"""A stand for tests about power, ownership and people: one store in memory, real keys, workers that come and go, a world that counts.

`Stand.worker()` is another process on the same store; `open`, `resume` and `drive` are the real ones. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mandamus import Agent, Ctx, Money, Receipt, Retry, tool, wiring
from mandamus.core import records as r
from mandamus.core.run import Action
from mandamus.data import Business, Confidential, none
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.errors import Unavailable
from mandamus.runtime import drive, recover
from mandamus.runtime.env import Bound, Env
from mandamus.runtime.session import Session
from mandamus.testing.people import Crowd
from mandamus.testing.power import TUESDAY, Power, StepTime, World, wired

OWN = Confidential(subject=none("own account"), retention="books")
PLAIN = Business(subject=none("test data"), retention="standard")
PAY = {"id": "pay", "permit": {"safety": "financial"}}
TWO = {"id": "two", "dualApproval": {"over": "10.00 USD", "quorum": 2}}
LARGE = {"amount": "5000000", "currency": "USD"}
SMALL = {"amount": "500", "currency": "USD"}


def pay_tool(effect: str = "keyed", deed: Callable[[Ctx], Any] | None = None, **contract: Any) -> Any:
    """A payment of any effect class. `deed(ctx)` is what happens in the world; what it raises, the tool raises."""

    async def pay(ctx: Ctx, to: str, amount: Money) -> Receipt:
        """Transfer corporate funds."""
        if deed is not None:
            done = deed(ctx)
            if hasattr(done, "__await__"):
                await done
        return Receipt(id=f"tx-{ctx.operation_id[:8]}")

    return tool(safety="financial", effect=effect, data=OWN, **contract)(pay)  # type: ignore[arg-type]


def agent_of(
    *tools: Any, calls: tuple[Any, ...] = (), policies: tuple[Any, ...] = (PAY,), then: tuple[Any, ...] = ("done",), **more: Any
) -> Agent[Any]:
    """One turn that calls everything, then an answer."""
    asked = calls or ((tools[0].name, {"to": "Acme", "amount": SMALL}),)
    options: dict[str, Any] = {"name": "payout-bot", "purpose": "pay invoices"} | more
    return Agent(model=ScriptedModel([Step(calls=tuple(asked)), *then]), tools=tools, policies=policies, **options)


class Stand:
    """`world` counts deeds by operation id; `crowd` are the people of the agent's policies."""

    def __init__(self, bound: Bound, time: StepTime, ledger: MemoryLedger) -> None:
        self.bound, self.time, self.ledger = bound, time, ledger
        self.home, self.world, self.power = wiring.Home(None), World(), Power()
        self.home.trust()
        self.crowd = Crowd.enrol(self.home, bound)

    @classmethod
    async def of(cls, agent: Agent[Any], *, at: int = TUESDAY, seed: int = 0) -> Stand:
        time = StepTime(seed, at)
        return cls(await wiring.bind(agent), time, MemoryLedger(time.now))

    async def worker(self, name: str = "worker", around: Callable[[MemoryLedger], Any] | None = None) -> Env:
        """Another process: a handle of its own on the store, maybe with something around it."""
        handle = MemoryLedger(self.time.now, beside=self.ledger)
        self.handle = handle
        ledger = around(handle) if around else handle
        return await wiring.open_env("memory:", time=self.time, ledger=ledger, home=self.home, worker=name)

    def counted(self, bound: Bound | None = None) -> Bound:
        return wired(bound or self.bound, self.power, self.world)

    async def open(self, env: Env | None = None, *, prompt: str = "Pay.", bound: Bound | None = None, **more: Any) -> Session:
        return await recover.open_run(env or await self.worker("worker-1"), self.counted(bound), prompt, **more)

    async def run(self, **more: Any) -> Session:
        """Open and drive as far as it goes; the run is given back."""
        return await self.carry(await self.open(**more))

    async def carry(self, s: Session) -> Session:
        try:
            await drive.drive(s)
        finally:
            await recover.give_back(s)
        return s

    async def take(self, run: str, env: Env | None = None, *, bound: Bound | None = None) -> Session:
        return await recover.take_over(env or await self.worker("worker-2"), self.counted(bound), run)

    async def resume(self, run: str, env: Env | None = None, *, bound: Bound | None = None) -> Session:
        return await self.carry(await self.take(run, env, bound=bound))

    async def vote(self, s: Session, decision: str = "approve", people: int = 2, **changes: Any) -> None:
        """The first people of the crowd vote on the first action that waits."""
        action = waiting(s)
        for name in list(self.crowd.people)[:people]:
            await self.ledger.send(s.run.id, self.crowd.vote(s, action, name, decision, **changes))

    async def records(self, run: str) -> list[r.AnyRecord]:
        return [r.decode(raw) async for raw in self.ledger.read(run)]

    async def facts(self, run: str, *kinds: type[r.Fact]) -> list[Any]:
        return [x.fact for x in await self.records(run) if not kinds or isinstance(x.fact, kinds)]

    @property
    def deeds(self) -> int:
        return sum(self.world.deeds.values())


def waiting(s: Session) -> Action:
    return next(a for a in s.run.open_actions if a.request is not None)


def rules_file(folder: Path, text: str) -> str:
    path = folder / "rules.yaml"
    path.write_text(text)
    return str(path)


class Around:
    """A ledger with a hook before each append: `before(records)` is awaited with the decoded facts."""

    def __init__(self, inner: Any, before: Callable[[list[r.Fact]], Any]) -> None:
        self._inner, self._before = inner, before

    async def append(self, run: str, after: Any, records: Any, **more: Any) -> Any:
        await self._before([r.decode(raw).fact for raw in records])
        return await self._inner.append(run, after, records, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def lost(inner: Any) -> Around:
    """A ledger that is gone as soon as a tool asks for something."""

    async def gone(facts: list[r.Fact]) -> None:
        if any(isinstance(f, r.CapabilityChecked) for f in facts):
            raise Unavailable("the ledger does not answer", outcome="none")

    return Around(inner, gone)


__all__ = [
    "LARGE",
    "OWN",
    "PAY",
    "PLAIN",
    "SMALL",
    "TUESDAY",
    "TWO",
    "Around",
    "Retry",
    "Stand",
    "agent_of",
    "lost",
    "pay_tool",
    "rules_file",
    "waiting",
]
