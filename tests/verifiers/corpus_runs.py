"""Cases made by the real runtime: every kind of run that the stories tell, forks, children, and a ledger file with its log."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from mandamus import wiring
from mandamus.core.records import LOG, decode
from mandamus.proof import views
from mandamus.runtime import evidence
from mandamus.testing.virtual import VirtualTime
from tests.e2e.stories import STORIES, World, agent, pay
from tests.verifiers.corpus import Builder, Case
from tests.verifiers.single import text_of


def made() -> list[Case]:
    b = Builder("runs")
    asyncio.run(_stories(b))
    asyncio.run(_forks(b))
    asyncio.run(_on_a_file(b))
    return b.made


def expected(records: list[bytes]) -> int:
    """Sealed runs are proven; others are open, or somebody has still to say what happened."""
    last = decode(records[-1])
    if last.type == "RunSealed":
        return 0
    unknown = {r.fact.action for raw in records if (r := decode(raw)).type == "ActionEnded" and r.fact.result == "unknown"}  # type: ignore[attr-defined]
    settled = {r.fact.action for raw in records if (r := decode(raw)).type in ("ActionEnded", "ActionStarted") and _settles(r.fact)}  # type: ignore[attr-defined]
    return 5 if unknown - settled else 4


def _settles(fact: Any) -> bool:
    return getattr(fact, "via", "") == "people" or getattr(fact, "attempt", 0) > 1


async def _bundles(env: Any, runs: list[str]) -> AsyncIterator[tuple[bytes, list[bytes], dict[str, bytes]]]:
    for run in runs:
        records = [raw async for raw in env.ledger.read(run)]
        values = {(p.run, p.seq, p.part): _value(p) async for p in env.ledger.payloads(run)}
        made_ = views.render([decode(raw) for raw in records], values)
        yield await evidence.build(env, run, {}, ""), records, made_


def _value(payload: Any) -> Any:
    from mandamus.core.canonical import accept

    return accept(payload.bytes[32:])


async def _stories(b: Builder) -> None:
    for name, tell in STORIES.items():
        told = await tell(World())
        env = await told.env()
        runs = [head.run async for head in env.ledger.runs() if head.run != LOG]
        number = 0
        async for raw, records, made_ in _bundles(env, sorted(runs)):
            number += 1
            b.honest(f"{name}_{number}", raw, expected(records), trust=text_of(env.trust()), views=made_, now=None)


async def _forks(b: Builder) -> None:
    for name, kind in (("one_payment", "ActionEnded"), ("plain_answer", "ModelReplied")):
        told = await STORIES[name](World())
        assert told.result is not None
        at = next(x.seq for x in told.events if x.type == kind)
        forked = await told.fork(at)
        env = await told.env()
        raw = await evidence.build(env, forked.run_id, {}, "")
        codes = (0, 3, 4)  # votes that its parent rests on stand in the parent's bundle
        b.made.append(Case(f"runs/fork_of_{name}", raw, codes, trust=text_of(env.trust()), now=None))


async def _on_a_file(b: Builder) -> None:
    """A ledger file keeps a log of its own: each run's bundle carries proofs, under checkpoints that nobody else saw."""
    with tempfile.TemporaryDirectory() as folder:
        env = await wiring.open_env(f"sqlite:///{Path(folder) / 'run.db'}", time=VirtualTime())
        try:
            bot = agent(World(), pay(), "Paid.")
            first = await bot.run("Pay Acme", ledger=env)
            second = await agent(World(), "Hello.").run("Say hello", ledger=env)
            for name, result in (("payment", first), ("answer", second)):
                raw = await evidence.build(env, result.run_id, {}, "")
                trust = text_of(env.trust())
                b.honest(f"file_{name}", raw, 0, trust=trust, now=None)
                lonely = trust.replace("quorum none\n", "")
                b.attack(5, f"file_{name}_that_nobody_witnessed", raw, 3, trust=_demanding(lonely), now=None)
        finally:
            await wiring.close_env(env)


def _demanding(trust: str) -> str:
    from tests.samples import W1

    return f"{trust}witness w {W1.key}\nquorum w\n"
