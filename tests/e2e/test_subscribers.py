"""Subscribers: what a slow one misses it reads again, a stuck one is left, and neither is waited for by the run."""

from __future__ import annotations

import asyncio
from typing import Any

from mandamus import wiring
from mandamus.core.records import AnyRecord, decode
from mandamus.core.seal import Sealed
from mandamus.errors import Unavailable
from mandamus.runtime.bus import Bus
from mandamus.runtime.env import Env
from mandamus.testing.runner import Runner
from tests.crash.stand import agent_of, pay_tool


async def stored() -> tuple[Env, str, list[AnyRecord]]:
    """A run that is over, and its records."""
    runner = Runner(agent_of(pay_tool()))
    turned = await runner.turn("Pay it")
    env = await runner.env()
    return env, turned.run_id, [decode(raw) async for raw in env.ledger.read(turned.run_id)]


def as_saved(records: list[AnyRecord]) -> list[Sealed]:
    return [Sealed(x, b"", "", ()) for x in records]


def test_who_was_slow_reads_again_what_it_missed_in_order() -> None:
    async def story() -> None:
        env, run, records = await stored()
        heard: list[int] = []
        bus = Bus(env, run, [(lambda record: heard.append(record.seq), None)], room=3)
        for one in as_saved(records[2:]):  # all before the subscriber's task has its first turn: more than there is room for
            bus.publish([one])
        await bus.close()
        assert heard == [x.seq for x in records[2:]]  # nothing twice, nothing of what was before

    asyncio.run(story())


def test_no_more_waits_for_a_subscriber_than_there_is_room_for() -> None:
    async def story() -> None:
        env, run, records = await stored()
        bus = Bus(env, run, [(lambda record: None, None)], room=3)
        bus.publish(as_saved(records))
        (listener,) = bus._listeners
        assert len(listener._newest) == 3
        await bus.close()

    asyncio.run(story())


def test_a_stuck_one_is_let_go_with_the_place_to_read_from_and_holds_up_nobody() -> None:
    async def story() -> None:
        env, run, records = await stored()
        said: list[str] = []
        env.warn = said.append
        heard: list[int] = []

        async def stuck(record: AnyRecord) -> None:
            if record.seq == 4:
                await asyncio.Event().wait()

        bus = Bus(env, run, [(stuck, None), (lambda record: heard.append(record.seq), None)], room=3)
        bus.publish(as_saved(records))
        await bus.close(patience_s=0.05)
        assert heard == [x.seq for x in records]
        assert said == [f"mandamus: a subscriber was left behind: read again from event 4 of run {run}"]

    asyncio.run(story())


def test_a_ledger_that_does_not_answer_ends_the_telling_and_skips_nothing() -> None:
    async def story() -> None:
        env, run, records = await stored()
        said: list[str] = []
        env.warn, heard = said.append, []

        class Gone:
            def read(self, *_: Any) -> Any:
                raise Unavailable("gone", code="MDM-0510")

        env.ledger = Gone()  # type: ignore[assignment]
        bus = Bus(env, run, [(lambda record: heard.append(record.seq), None)], room=3)
        bus.publish(as_saved(records[:1]))
        await asyncio.sleep(0)
        bus.publish(as_saved(records[1:]))
        await bus.close()
        assert heard == [0]
        assert "read again from event 1" in said[0]

    asyncio.run(story())


def test_without_subscribers_nothing_is_started() -> None:
    async def story() -> None:
        env = await wiring.open_env("memory:")
        before = len(asyncio.all_tasks())
        bus = Bus(env, "r", [])
        assert len(asyncio.all_tasks()) == before
        await bus.close()

    asyncio.run(story())
