"""The agent as a function that is called with one wake-up at a time, and a platform in thirty lines that calls it: `python handler.py`.

A real platform brings the queue and the timers. It may deliver a wake-up twice, or late; the ledger does not mind.
"""

import asyncio
import heapq
import time
from typing import Any

from agent import agent

from mandamus.serverless import Handled, handle

LEDGER = "sqlite:///.mandamus/run.db"


async def on_wake_up(message: dict[str, Any]) -> Handled:
    """What is deployed. Nothing of it outlives the call."""
    return await handle(message, agents=[agent], ledger=LEDGER)


async def platform(first: list[str]) -> list[Handled]:
    """Calls it now for each of these runs, and later as often as it asks for."""
    due = [(0, run) for run in first]
    heard = []
    while due:
        at, run = heapq.heappop(due)
        await asyncio.sleep(max(0.0, at / 1e6 - time.time()))
        handled = await on_wake_up({"run": run})
        heard.append(handled)
        for next_run, instant in handled.wakes.items():
            heapq.heappush(due, (instant, next_run))
    return heard


async def main() -> None:
    runs = [await agent.open(f"Pay invoice {n}.", ledger=LEDGER) for n in (4711, 4712, 4713)]
    for handled in await platform(runs):
        print(handled.run, handled.state)


if __name__ == "__main__":
    asyncio.run(main())
