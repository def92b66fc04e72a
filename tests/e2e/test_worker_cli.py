"""`run --detach`, `worker` and `top`: a run is opened here, carried there, and seen from anywhere."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

from mandamus import wiring
from mandamus.runtime.worker import Worker
from tests.e2e.cli_world import World
from tests.e2e.test_worker import Gate


def test_a_run_is_opened_here_and_carried_there(world: World) -> None:
    told = world.ok("run", "payout.py:small", "Pay", "--detach", "--json").data
    assert (told["pool"], told["prio"], told["repeated"]) == ("default", 0, False)
    assert told["next"] == "mandamus worker payout.py:small"
    assert "waits in pool default for a worker" in world.ok("show", "last").out
    assert [(x["state"], x["waits_for"]) for x in world.ok("runs", "--json").stream] == [("suspended", "worker")]
    done = world.ok("worker", "payout.py:small", "--until-idle", "--json").stream
    assert [(x["run_id"], x["state"]) for x in done] == [(told["run_id"], "completed")]
    assert "a tool may print" not in json.dumps(done)
    assert [(x["state"], x["waits_for"]) for x in world.ok("runs", "--json").stream] == [("completed", "")]


def test_a_detached_run_is_opened_once_for_one_key(world: World) -> None:
    first = world.ok("run", "payout.py:small", "Pay", "--detach", "--pool", "p", "--prio", "5", "--idempotency-key", "k", "--json").data
    again = world.ok("run", "payout.py:small", "Pay", "--detach", "--idempotency-key", "k", "--json").data
    assert (again["run_id"], again["repeated"], again["pool"], again["prio"]) == (first["run_id"], True, "p", 5)
    assert world("run", "payout.py:small", "Pay more", "--detach", "--idempotency-key", "k").code == 2
    assert len(world.ok("runs", "--json").stream) == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "payout.py:small", "Pay", "--pool", "p"), "MDM-0581"),
        (("run", "payout.py:small", "Pay", "--prio", "1"), "MDM-0581"),
        (("run", "payout.py:small", "Pay", "--detach", "--follow"), "MDM-0581"),
        (("run", "payout.py:small", "Pay", "--detach", "--pool", "a b"), "MDM-0580"),
        (("run", "payout.py:small", "Pay", "--detach", "--ledger", "memory:"), "MDM-0582"),
        (("worker", "payout.py:small", "--pool", "a.b"), "MDM-0580"),
        (("worker", "payout.py:small", "--ledger", "memory:"), "MDM-0582"),
        (("worker", "payout.py:small", "--slots", "0"), "MDM-0003"),
        (("worker",), "MDM-0003"),
        (("run", "payout.py:small", "Pay", "--detach", "--prio", "10"), "MDM-0003"),
    ],
)
def test_what_cannot_be_placed_is_refused_before_anything_is_opened(world: World, words: tuple[str, ...], code: str) -> None:
    told = world(*words)
    assert (told.code, code in told.err) == (2, True), told
    assert not (world.folder / ".mandamus" / "run.db").exists()


def test_top_counts_what_is_due_claimed_and_waiting(world: World) -> None:
    world.people()
    world.waiting()
    for pool in ("default", "gpu", "gpu"):
        world.ok("run", "payout.py:small", "Pay", "--detach", "--pool", pool)
    said = world.ok("top", "--json").data
    assert said["runs"] == {"people": 1, "worker": 3}
    assert [(p["pool"], p["due"], p["claimed"], p["waits"], p["workers"]) for p in said["pools"]] == [
        ("default", 1, 0, 1, 0),
        ("gpu", 2, 0, 0, 0),
    ]
    assert said["oldest_due"] == world.ok("runs", "--json").stream[1]["run"]
    told = world.ok("top", "--once").out
    assert "nobody serves pool default: mandamus worker AGENT\n" in told
    assert "nobody serves pool gpu: mandamus worker AGENT --pool gpu\n" in told


def test_a_machine_without_the_ledgers_keys_looks_and_makes_none(world: World) -> None:
    world.ok("run", "payout.py:small", "Pay", "--detach")
    home = world.folder / ".mandamus"
    (home / "keys").rename(world.folder / "theirs")
    (home / "trust").rename(world.folder / "their-trust")
    for words in (("doctor", "--quick"), ("inbox",), ("top",), ("key", "list"), ("allowance", "list")):
        world.ok(*words)
    assert "drives nothing of it" in world.ok("doctor", "--quick").out
    told = world("worker", "payout.py:small", "--until-idle")
    assert (told.code, "MDM-0242" in told.err) == (2, True), told
    assert not (home / "keys").exists()
    assert not (home / "trust").exists()


def test_doctor_tells_a_log_key_that_is_another_ledgers(world: World) -> None:
    world.ok("run", "payout.py:small", "Pay", "--detach")
    world.ok("run", "payout.py:small", "Pay", "--detach", "--ledger", "sqlite:///other/run.db")
    ours, theirs = (world.folder / name / "keys" / "log.pem" for name in (".mandamus", "other/.mandamus"))
    ours.write_bytes(theirs.read_bytes())
    told = world("doctor", "--quick")
    assert (told.code, "MDM-0240 this ledger belongs to" in told.out) == (1, True), told


async def _seen_by_top(world: World) -> None:
    env, gate = await wiring.open_env(), Gate()
    try:
        agent = gate.agent()
        await agent.open("Pay.", ledger=env)
        env.worker = "worker-1"
        worker = Worker(env, agent.served(), pool="default", slots=3, version="0.1", duties=())
        work = asyncio.create_task(worker.work(until_idle=True))
        await asyncio.wait_for(gate.entered.wait(), 60)
        await worker._say()
        said = (await asyncio.to_thread(world.ok, "top", "--json")).data
        assert [(w["id"], w["busy"], w["slots"], w["agents"]) for w in said["workers"]] == [("worker-1", 1, 3, [agent.spec.digest()])]
        assert [(p["due"], p["claimed"], p["workers"], p["slots"]) for p in said["pools"]] == [(0, 1, 1, 3)]
        shown = (await asyncio.to_thread(world.ok, "top")).out
        assert "worker-1  default  1/3" in shown
        gate.go.set()
        await work
        assert (await asyncio.to_thread(world.ok, "top", "--json")).data["workers"] == []
    finally:
        await wiring.close_env(env)


def test_top_shows_who_works(world: World) -> None:
    asyncio.run(_seen_by_top(world))


@pytest.mark.service
@pytest.mark.skipif(os.name != "posix", reason="a pseudo-terminal is POSIX")
def test_on_a_terminal_top_looks_again_and_again(world: World) -> None:
    import pty

    world.ok("run", "payout.py:small", "Pay", "--detach")
    outer, inner = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "mandamus", "top"], cwd=world.folder, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    try:
        text = b""
        while text.count(b"\x1b[H\x1b[2J") < 2:
            text += os.read(outer, 4096)
        assert b"1 waiting for a worker" in text
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()
        os.close(outer)
