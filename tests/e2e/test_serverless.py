"""One process per wake-up: what comes of a run is the same as in one process, to the semantic hash of every event."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mandamus import wiring
from mandamus.errors import Misuse
from mandamus.runtime import recover
from mandamus.serverless import Handled, handle
from mandamus.testing.people import Crowd
from mandamus.testing.virtual import VirtualTime, home
from tests.crash.stand import PAY, agent_of, pay_tool
from tests.e2e.cli_world import World
from tests.e2e.test_worker import LARGE, TWO, Floor, family, opened

STEP = """
import asyncio, json, sys
from mandamus.cli import agents
from mandamus.serverless import handle
print(json.dumps(asyncio.run(handle(sys.stdin.buffer.read(), agents=[agents.load("payout.py:agent")])).state))
"""


def step(world: World, message: dict[str, Any]) -> str:
    """One wake-up in a process of its own, which then is gone."""
    done = subprocess.run(
        [sys.executable, "-c", STEP], cwd=world.folder, input=json.dumps(message).encode(), capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return str(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.service
def test_one_process_for_each_step_and_the_same_semantic_hashes(world: World) -> None:
    world.people()
    item = world.waiting()
    for who in ("alice", "bob"):
        assert world.approve(item, who).code == 0
    world.ok("resume", "last")
    alone = world.ok("replay", "last", "--json").data

    told = world.ok("run", "payout.py", "Pay the invoice", "--detach", "--json").data
    run = told["run_id"]
    assert step(world, {"run": run}) == "suspended"
    waits = next(x for x in world.ok("inbox", "--json").stream if x["run_id"] == run)
    assert world.approve(waits, "alice").code == 0
    assert step(world, {"run": run}) == "suspended"
    assert world.approve(waits, "bob").code == 0
    assert step(world, {"run": run}) == "completed"
    assert step(world, {"run": run}) == "completed", "the same wake-up twice is one"
    steps = world.ok("replay", run, "--json").data
    assert steps["ok"]
    # Each step is one more owner; what an owner adds stands outside of the comparison.
    assert len(steps["hashes"]) > 15
    assert [x for x in steps["hashes"] if x] == [x for x in alone["hashes"] if x]


async def _mail_and_pools() -> None:
    floor, paid = Floor(), list[str]()
    agent = agent_of(
        pay_tool("keyed", lambda ctx: paid.append("x")), calls=(("pay", {"to": "Acme", "amount": LARGE}),), policies=(PAY, TWO)
    )
    bound = await wiring.bind(agent)
    crowd = Crowd.enrol(floor.home, bound)
    env = await floor.env()
    assert await handle({"pool": "default"}, agents=[agent], ledger=env) == Handled("", "idle")
    await opened(floor, agent, "RUN-1")
    first = await handle(b'{"pool": "default"}', agents=[agent], ledger=env)
    assert (first.run, first.state) == ("RUN-1", "suspended")
    assert list(first.wakes) == ["RUN-1"]
    assert first.wakes["RUN-1"] > floor.time.now(), "when the people are too late"
    s = await recover.read_run(env, bound, "RUN-1")
    (action,) = s.run.open_actions
    for who in sorted(crowd.people)[:2]:
        mail = crowd.vote(s, action, who, "approve").decode()
        last = await handle({"run": "RUN-1", "mail": mail}, agents=[agent], ledger=env)
    assert last == Handled("RUN-1", "completed")
    assert paid == ["x"]
    assert (await floor.head("RUN-1")).owner == ""


def test_a_vote_is_a_wake_up_and_a_timer_finds_what_is_due() -> None:
    asyncio.run(_mail_and_pools())


async def _others() -> None:
    floor, agent, other = Floor(leases=True), agent_of(pay_tool()), agent_of(pay_tool(), name="other")
    await opened(floor, agent, "RUN-1")
    env, second = await floor.env(), await floor.env()
    held = await second.ledger.claim("default", 15_000, run="RUN-1")
    assert held is not None
    busy = await handle({"run": "RUN-1"}, agents=[agent], ledger=env)
    assert busy == Handled("RUN-1", "busy", wakes={"RUN-1": held.lease_until}), "if that owner is dead, its lease runs out then"
    await second.ledger.renew(held, 0)
    unserved = await handle({"run": "RUN-1"}, agents=[other], ledger=env)
    assert unserved.state == "unserved"
    assert unserved.wakes["RUN-1"] > floor.time.now()
    await floor.lost("RUN-1", 1)
    floor.time.advance(minutes=1)
    assert (await handle({"run": "RUN-1"}, agents=[other, agent], ledger=env)).state == "completed"


def test_a_run_that_another_process_drives_is_left_to_it() -> None:
    asyncio.run(_others())


async def _halted() -> None:
    floor, agent = Floor(), agent_of(pay_tool())
    await opened(floor, agent, "RUN-1")
    await floor.lost("RUN-1", 5)
    env = await floor.env()
    assert await handle({"run": "RUN-1"}, agents=[agent], ledger=env) == Handled("RUN-1", "halted", "poison")
    head = await floor.head("RUN-1")
    assert await handle({"run": "RUN-1", "mail": "junk"}, agents=[agent], ledger=env) == Handled("RUN-1", "halted")
    now = await floor.head("RUN-1")
    assert (now.seq, now.owner) == (head.seq, ""), "a wake-up lifts no halt"


def test_a_wake_up_lifts_no_halt() -> None:
    asyncio.run(_halted())


async def _child() -> None:
    floor, paid = Floor(), list[str]()
    agent = family(paid)
    crowd = Crowd.enrol(floor.home, await wiring.bind(agent))
    await opened(floor, agent, "PARENT")
    env = await floor.env()
    assert (await handle({"run": "PARENT"}, agents=[agent], ledger=env)).state == "suspended"
    (child,) = [head async for head in floor.store.runs() if head.run not in ("PARENT", "log")]
    kid = await wiring.bind(agent.children["kid"])
    await crowd.answer(await recover.read_run(env, kid, child.run), lambda _: "approve")
    done = await handle({"run": child.run}, agents=[agent], ledger=env)
    assert (done.state, list(done.wakes)) == ("completed", ["PARENT"]), "it says whom to wake next"
    assert (await handle({"run": "PARENT"}, agents=[agent], ledger=env)).state == "completed"
    assert len(paid) == 1


def test_a_child_that_has_ended_names_the_parent_that_waits_for_it() -> None:
    asyncio.run(_child())


WRONG: list[Any] = [
    b"", b"{}", b"[]", b"\xff", b'{"run": 1}', b'{"run": "A", "pool": "p"}', b'{"pool": "p", "mail": "m"}', b'{"run": "A", "now": 1}',
    {"mail": "m"}, {"run": ""},
]  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_a_wake_up_that_says_nothing_is_refused(message: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misuse, match="MDM-0583"):
        asyncio.run(handle(message, agents=[agent_of(pay_tool())]))
    assert not (tmp_path / ".mandamus").exists()


def test_a_handler_without_an_agent_and_a_run_that_is_not_there_are_refused() -> None:
    async def story() -> None:
        env = await wiring.open_env("memory:", time=VirtualTime(), home=home())
        with pytest.raises(Misuse, match="MDM-0584"):
            await handle({"run": "A"}, agents=[], ledger=env)
        with pytest.raises(Misuse, match="MDM-0250"):
            await handle({"run": "A"}, agents=[agent_of(pay_tool())], ledger=env)

    asyncio.run(story())


@pytest.mark.service
def test_the_example_plays_a_platform(tmp_path: Path) -> None:
    for file in (Path(__file__).parents[2] / "examples" / "workers").glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    done = subprocess.run([sys.executable, "handler.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["completed"] * 3
    words = ["-m", "mandamus", "worker", "agent.py:agent", "--until-idle", "--json"]
    more = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (more.returncode, more.stdout) == (0, ""), "nothing is left for a worker"
