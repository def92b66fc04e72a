"""W1: an agent step in memory. Scripted model, one tool call per turn: µs per turn, its growth with the run's length, calls per turn.

python bench/w01_step.py --turns 10,100,1000 --json out.json
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import proto
from common import Sample, calls, repeat
from unit import Options, main

if TYPE_CHECKING:
    from interleave import Row

PEERS = (("langgraph", "react"), ("langgraph", "lean"), ("openai_agents", "run"), ("pydantic_ai", "run"), ("agent_framework", "run"))
PEERS_UP_TO = 100
"""Some peers' cost per turn grows with the run: 1000 turns of them say nothing that 100 do not."""


def ours(turns: int, folder: str) -> Sample:
    """Per turn: wall and cpu (µs), calls. Cedar on; the ledger in memory. `folder` is not used."""
    import ours as side

    runs = max(1, 200 // turns)
    with asyncio.Runner() as r:
        env = r.run(side.wiring.open_env("memory:"))
        bot = side.agent(turns)

        async def some(n: int) -> None:
            for _ in range(n):
                await bot.run("go", ledger=env)

        figures = repeat(lambda: r.run(some(runs)), turns * runs, 5)
        return {**figures, "calls": calls(lambda: r.run(some(1)), turns)}


def yardstick(turns: int, folder: str) -> Sample:
    runs = max(1, 200 // turns)

    async def some(n: int) -> None:
        for _ in range(n):
            await proto.drive("r", turns, proto.Memory())

    with asyncio.Runner() as r:
        figures = repeat(lambda: r.run(some(runs)), turns * runs, 5)
        return {**figures, "calls": calls(lambda: r.run(some(1)), turns)}


def limit(turns: int, folder: str) -> Sample:
    """Encode and hash nine events of the yardstick's size, nothing else."""
    body = {"args": {"a": 1, "b": 1}, "id": "c1", "tool": "add"}
    event = proto.Event(1_763_756_830_123_456, body, "a" * 64, "r", 12345, "ActionProposed")

    def work() -> None:
        for _ in range(9 * turns):
            proto.digest(proto.encode(event))

    return repeat(work, turns, 5)


def measure(o: Options) -> list[Row]:
    from interleave import compare, own, peer

    rows = []
    for turns in o.turns:
        systems = [own(__file__, "w1", name, turns) for name in UNITS["w1"]]
        if o.peers and turns <= PEERS_UP_TO:
            systems += [peer(venv, "w1", variant, turns) for venv, variant in PEERS]
        rows += compare("W1", f"{turns} turns, memory", systems, o.rounds)
    return rows


UNITS = {"w1": {"ours": ours, "yardstick": yardstick, "encode and hash": limit}}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="10,100,1000", quick="10")
