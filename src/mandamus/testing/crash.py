"""Crash an agent everywhere: a power cut at every place of a run, then another worker, then count what stands in the world.

    report = crash_everywhere(agent, "Pay the invoice")        # or a factory of agents
    assert report.ok, report.text()

Places are before and after every write, claim and model call, and inside every effect: before a tool's deed, after it before its
return, around every reconciler's answer. The rule a newcomer would break: the log is what is judged, and the world is what it is
judged by; a bank that forgives repeats would hide every fault of this kind.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field, structs, to_builtins

from mandamus import wiring
from mandamus.agent import Agent
from mandamus.core import records as r
from mandamus.errors import Misuse
from mandamus.ports import Ledger
from mandamus.runtime import start
from mandamus.runtime.env import Bound
from mandamus.testing.life import Life, Stage, live
from mandamus.testing.power import Power, World

AGAIN = ("read", "idempotent")  # may be repeated
PLACES_MAX = 2_000


class Row(Struct, frozen=True, kw_only=True):
    """One tool. `deeds` it did without a cut; the other numbers count over all lives."""

    tool: str
    effect: str
    deeds: int = 0
    in_doubt: int = 0
    duplicated: int = 0
    lost: int = 0
    unaccounted: int = 0
    unknown: int = 0
    differing: bool = False

    @property
    def ok(self) -> bool:
        faultless = not (self.duplicated or self.lost or self.unaccounted or self.differing)
        return faultless and (self.effect == "irreversible" or not self.unknown)

    @property
    def verdict(self) -> str:
        if self.differing:
            return "NOT IDEMPOTENT: a second call answered differently"
        if not self.ok:
            return "FAILED"
        if not self.deeds:
            return "never ran"
        if self.effect in AGAIN:
            return "repeated at will"
        return "exactly once" if not self.unknown else "once, or people are asked"


class Report(Struct, frozen=True, kw_only=True):
    """What the cuts did. `ok`: 0 duplicated, 0 lost, 0 unaccounted, every run reached its end, and something was tried."""

    agent: str
    ledgers: tuple[str, ...]
    places: dict[str, int]
    lives: int
    seed: int
    rows: tuple[Row, ...]
    stuck: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return self.lives > 1 and not self.stuck and all(row.ok for row in self.rows)

    def row(self, tool: str) -> Row:
        return next(row for row in self.rows if row.tool == tool)

    def as_dict(self) -> dict[str, Any]:
        rows = [{**to_builtins(row), "verdict": row.verdict, "ok": row.ok} for row in self.rows]
        return {**to_builtins(self), "rows": rows, "ok": self.ok}

    def text(self) -> str:
        """A table for people."""
        heads = ("tool", "class", "places", "in doubt", "duplicated", "lost", "unaccounted", "unknown", "verdict")
        cells = [heads] + [
            (
                x.tool,
                x.effect,
                str(sum(self.places.values())),
                str(x.in_doubt),
                str(x.duplicated),
                str(x.lost),
                str(x.unaccounted),
                str(x.unknown),
                x.verdict,
            )
            for x in self.rows
        ]
        widths = [max(len(row[n]) for row in cells) for n in range(len(heads))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
        where = ", ".join(self.ledgers)
        tail = f"{self.lives} lives of {self.agent!r} on {where}: " + ("nothing twice, nothing unaccounted" if self.ok else "NOT SAFE")
        return "\n".join([*lines, *(f"stuck: {x}" for x in self.stuck[:5]), tail])


Made = Agent[Any] | Callable[[], Agent[Any]]


def crash_everywhere(agent: Made, prompt: str = "Do your task.", *, sqlite: int = 24, pairs: int = 0, seed: int = 0) -> Report:
    """Every place once in memory, then up to `sqlite` places on a file, then up to `pairs` seeded runs that are cut twice.

    `agent` has a scripted model (or another that needs no network); a factory makes a fresh one for each life. Raises Misuse for an
    agent that would ask a provider, RunRefused for one that may not start.
    """
    return asyncio.run(crash_everywhere_async(agent, prompt, sqlite=sqlite, pairs=pairs, seed=seed))


async def crash_everywhere_async(agent: Made, prompt: str = "Do your task.", *, sqlite: int = 24, pairs: int = 0, seed: int = 0) -> Report:
    search = await _Search.begin(agent, prompt, seed)
    places = await search.everywhere()
    if pairs:
        await search.twice(places, pairs)
    if sqlite:
        await search.on_files(places, sqlite)
    return search.report()


class _Search:
    """The lives of one agent, and the count of what they did."""

    def __init__(self, agent: Made, prompt: str, seed: int) -> None:
        self.make: Callable[[], Agent[Any]] = (lambda: agent) if isinstance(agent, Agent) else agent
        self.prompt, self.seed = prompt, seed
        self.bound: tuple[Agent[Any], Bound] | None = None
        self.rows: dict[str, Row] = {}
        self.places: dict[str, int] = {}
        self.lives, self.stuck, self.ledgers, self.name = 0, [], ["memory"], ""  # type: ignore[var-annotated]
        self.expected: dict[str, str] = {}
        self.trace: list[str] = []
        self.end = ""

    @classmethod
    async def begin(cls, agent: Made, prompt: str, seed: int) -> _Search:
        """The life without a cut: what the agent does when nothing happens to it."""
        search = cls(agent, prompt, seed)
        stage, life = await search.one((), twice=True)
        if life.stuck:
            raise Misuse(f"the run does not end by itself: {life.stuck}", code="MDM-0280", fix="certify an agent whose script ends")
        told = _told(life.records)
        search.name, search.end = stage.bound.spec.name, life.end
        search.trace = list(life.trace)
        search.expected = {id: t.tool for id, t in told.items() if t.result == "done"}
        for tool in (t for b in _family(stage.bound) for t in b.tools.values()):
            deeds = sum(1 for t in told.values() if t.tool == tool.name and t.result == "done")
            differing = tool.name in stage.world.differing
            search.rows[tool.name] = Row(tool=tool.name, effect=tool.spec.effect, deeds=deeds, differing=differing)
        return search

    async def one(self, cuts: tuple[int, ...], *, twice: bool = False, file: Path | None = None) -> tuple[Stage, Life]:
        self.lives += 1
        bound = await self._bound()
        stage = Stage(bound, _opener(file), seed=hash((self.seed, self.lives)) & 0xFFFFFFFF)
        if self.lives == 1:
            env = await stage.env(Power(), "start")
            await start.may_start(env, bound)
            await wiring.close_env(env)
        return stage, await live(stage, self.prompt, cuts, twice=twice)

    async def _bound(self) -> Bound:
        """Made once for one agent; a function that makes a new one each time gets a new one each time."""
        agent = self.make()
        if self.bound is None or self.bound[0] is not agent:
            self.bound = (agent, await _bound(agent))
        return self.bound[1]

    async def everywhere(self) -> int:
        for cut in range(PLACES_MAX):
            stage, life = await self.one((cut,))
            if not life.cut:
                return cut
            self.places[life.cut] = self.places.get(life.cut, 0) + 1
            self.count(stage, life, f"place {cut} ({life.cut})")
        raise Misuse(f"the run has more than {PLACES_MAX} places", code="MDM-0281", fix="certify a shorter script")

    async def twice(self, places: int, pairs: int) -> None:
        """The recovery itself is cut as well: each step of it must bear being repeated."""
        chance = random.Random(self.seed)
        for _ in range(pairs):
            first, second = chance.randrange(places), chance.randrange(places)
            stage, life = await self.one((first, second))
            self.count(stage, life, f"places {first}, {second} (seed {self.seed})")

    async def on_files(self, places: int, most: int) -> None:
        """The same on SQLite, at evenly spread places, those inside effects first."""
        inside = [n for n, name in enumerate(self.trace) if not name.endswith((" write", " claim", " renewal", " model call"))]
        step = max(1, places // max(1, most - len(inside)))
        chosen = sorted({*inside[:most], *range(0, places, step)})[: max(most, len(inside[:most]))]
        with tempfile.TemporaryDirectory(prefix="mandamus-certify-") as folder:
            for cut in chosen:
                stage, life = await self.one((cut,), file=Path(folder) / f"{cut}.db")
                self.count(stage, life, f"place {cut} on a file ({life.cut})")
        self.ledgers.append("sqlite")

    # -- counting ------------------------------------------------------------------------------------------------------------
    def count(self, stage: Stage, life: Life, where: str) -> None:
        if life.stuck:
            self.stuck.append(f"{where}: {life.stuck}")
        elif life.end != self.end:
            self.stuck.append(f"{where}: ended {life.end}, and without a cut {self.end}")
        told = _told(life.records)
        for id, tool in self.expected.items():
            if id not in told:
                self._add(tool, lost=1)
        for each in told.values():
            if each.tool in self.rows:
                self._judge(each, stage.world)

    def _judge(self, told: _Told, world: World) -> None:
        """One action of the log against the world."""
        row = self.rows[told.tool]
        deeds = [world.deeds[op] for op in told.operations]
        found: dict[str, int] = {"in_doubt": int(told.doubted), "unknown": int(told.unknown)}
        if row.effect in ("reconcilable", "irreversible"):
            found["duplicated"] = max(0, sum(deeds) - 1)
        elif row.effect == "keyed":
            found["duplicated"] = max(0, sum(1 for n in deeds if n) - 1)
        handoff = not told.operations or told.kind == "handoff"
        if told.result == "done" and told.via != "people" and not any(deeds) and not handoff:
            found["lost"] = 1
        if told.result not in ("done", "unknown", "settled") and any(deeds) and row.effect not in AGAIN:
            found["unaccounted"] = 1
        self._add(told.tool, **found)

    def _add(self, tool: str, **more: int) -> None:
        row = self.rows[tool]
        self.rows[tool] = structs.replace(row, **{k: getattr(row, k) + v for k, v in more.items()})

    def report(self) -> Report:
        return Report(
            agent=self.name, ledgers=tuple(self.ledgers), places=self.places, lives=self.lives, seed=self.seed,
            rows=tuple(self.rows.values()), stuck=tuple(self.stuck),
        )  # fmt: skip


class _Told(Struct):
    """What the log says of one action."""

    tool: str
    kind: str
    operations: list[str] = field(default_factory=list)
    result: str = ""
    via: str = ""
    unknown: bool = False
    doubted: bool = False


def _told(records: list[bytes]) -> dict[str, _Told]:
    out: dict[str, _Told] = {}
    for raw in records:
        match r.decode(raw).fact:
            case r.ActionProposed() as f:
                out[f.action] = _Told(f.tool, f.kind)
            case r.ActionStarted() as f:
                told = out[f.action]
                told.operations += [] if f.operation in told.operations else [f.operation]
                told.result = "started"
            case r.ActionDoubted() as f:
                out[f.action].doubted = True
            case r.RunOwned():
                for told in out.values():
                    told.doubted = told.doubted or told.result == "started"
            case r.ActionEnded() as f:
                told = out[f.action]
                told.unknown = told.unknown or (f.result == "unknown" and f.via != "people")
                told.result = "settled" if f.result == "unknown" and f.via == "people" else f.result
                told.via = f.via
            case _:
                pass
    return out


def _family(bound: Bound) -> Iterator[Bound]:
    yield bound
    for child in bound.children.values():
        yield from _family(child)


async def _bound(agent: Agent[Any]) -> Bound:
    model = agent.model
    if isinstance(model, str) and not model.startswith("scripted:"):
        raise Misuse(
            "this agent asks a provider", code="MDM-0282", found=model.partition(":")[0], expected="a scripted model",
            why="a crash test runs the agent hundreds of times and must see the same script each time",
            fix="model=ScriptedModel([...]) or scripted:FILE.json",
        )  # fmt: skip
    return await wiring.bind(agent)


def _opener(file: Path | None) -> Callable[[Callable[[], int]], Ledger]:
    """Another handle on one store each time: in memory beside the first one, or the same file opened again."""
    if file is not None:
        return lambda clock: wiring.open_ledger(f"sqlite:///{file}", clock)
    import importlib

    memory = importlib.import_module("mandamus.drivers.ledger_memory")
    root: list[Any] = []

    def open(clock: Callable[[], int]) -> Ledger:
        root.append(memory.MemoryLedger(clock, beside=root[0] if root else None))
        return root[-1]  # type: ignore[no-any-return]

    return open


__all__ = ["Report", "Row", "crash_everywhere", "crash_everywhere_async"]
