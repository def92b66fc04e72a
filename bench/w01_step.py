"""W1: an agent step in memory. Scripted model, one tool call per turn: µs per turn, its growth with the run's length, calls per turn.

python bench/w01_step.py --turns 10,100,1000 --json out.json
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import proto
from common import Sample, calls, repeat
from unit import Options, main

if TYPE_CHECKING:
    from interleave import Row

PEERS = (("langgraph", "react"), ("langgraph", "lean"), ("openai_agents", "run"), ("pydantic_ai", "run"), ("agent_framework", "run"))
SHORT = 10
PEERS_UP_TO = 100
"""Some peers' cost per turn grows with the run: 1000 turns of them say nothing that 100 do not."""


def ours(turns: int, folder: str) -> Sample:
    """Per turn: wall and cpu (µs), calls. Cedar on; the ledger in memory. `folder` is not used."""
    import ours as side

    return stepped(turns, side.agent)


def fixed(turns: int, folder: str) -> Sample:
    """The same with an engine that always says allow: what the loop, the records and the chain cost without Cedar."""
    import ours as side

    from mandamus.drivers.policy_python import always

    return stepped(turns, lambda n: side.agent(n, policies=[always("allow")]))


def stepped(turns: int, make: Callable[[int], Any]) -> Sample:
    import ours as side

    with asyncio.Runner() as r:
        env = r.run(side.wiring.open_env("memory:"))

        def work(turns: int, runs: int) -> Callable[[], None]:
            bot = make(turns)

            async def some() -> None:
                for _ in range(runs):
                    assert (await bot.run("go", ledger=env)).output == "done"

            return lambda: r.run(some())

        return grown(turns, work)


def grown(turns: int, work: Callable[[int, int], Callable[[], None]]) -> Sample:
    """The cost of a turn; for a long run also how many times that of a run of ten, taken in the same process."""
    runs = max(1, 200 // turns)
    figures, one = repeat(work(turns, runs), turns * runs, 5), work(turns, 1)
    one()
    figures["calls"] = calls(one, turns)
    if turns > SHORT:
        figures["growth"] = figures["cpu"] / repeat(work(SHORT, 20), 20 * SHORT, 5)["cpu"]
    return figures


def yardstick(turns: int, folder: str) -> Sample:
    with asyncio.Runner() as r:

        def work(turns: int, runs: int) -> Callable[[], None]:
            async def some() -> None:
                for _ in range(runs):
                    await proto.drive("r", turns, proto.Memory())

            return lambda: r.run(some())

        return grown(turns, work)


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
        rows += compare("W1", f"{turns} turns, memory", systems, o.rounds, cap=o.cap)
    return rows


UNITS = {"w1": {"ours": ours, "ours, fixed verdict": fixed, "yardstick": yardstick, "encode and hash": limit}}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="10,100,1000", quick="10")
