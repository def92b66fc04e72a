"""The simulation (tests/crash/sim.py): every single crash, every kind of fault at spread places, and seeded mixtures of faults.

A failing plan is printed as code that runs it again. MANDAMUS_SIM_SEEDS=3000 makes a night of it.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.crash.sim import FAULTS, Sim

SEEDS = int(os.environ.get("MANDAMUS_SIM_SEEDS", "24"))
PLACES = 66  # a run without faults passes a few less


def survives(seed: int, plan: dict[int, str], steals: bool) -> Sim:
    sim = Sim(seed, plan, steals)
    found = sim.run()
    assert not found, f"Sim({seed}, {plan}, {steals}).run() finds {found}"
    return sim


def mixture(seed: int) -> tuple[dict[int, str], bool]:
    chance = random.Random(seed)
    return {chance.randrange(PLACES * 2): chance.choice(FAULTS) for _ in range(chance.randint(1, 5))}, seed % 2 == 0


def test_without_faults_both_runs_end_and_one_limit_holds_for_both() -> None:
    sim = survives(1, {}, True)
    assert PLACES * 0.8 < sim.step <= PLACES
    assert len(sim.lived) == 2
    assert sorted(sim.done.values()) == [1] * 5, "two payments, two tickets, and one wire: the second would go over the limit"


def test_the_same_seed_gives_the_same_trace() -> None:
    plan = {11: "crash", 30: "stall", 41: "unavailable"}
    assert survives(7, plan, True).trace == survives(7, plan, True).trace


@pytest.mark.parametrize("part", range(4))
def test_a_crash_at_every_single_place(part: int) -> None:
    for place in range(part, PLACES, 4):
        survives(1, {place: "crash"}, place % 2 == 0)


@pytest.mark.parametrize("fault", [f for f in FAULTS if f != "crash"])
def test_each_other_fault_at_places_spread_over_the_run(fault: str) -> None:
    for place in range(FAULTS.index(fault) % 3, PLACES, 5):
        survives(1, {place: fault}, place % 2 == 0)


@pytest.mark.parametrize("part", range(2))
def test_seeded_mixtures_of_faults(part: int) -> None:
    struck = 0
    for seed in range(part, SEEDS, 2):
        plan, steals = mixture(seed)
        sim = survives(seed, plan, steals)
        struck += sum(1 for _, _, fault in sim.trace if fault)
    assert struck > SEEDS // 4, "the plans miss the runs"


def test_a_stalled_owner_comes_back_as_a_zombie_and_is_fenced() -> None:
    """The stall is long enough for a take-over: the fault that the other tests rely on really happens."""
    names = set()
    for place in range(5, 60, 6):
        sim = survives(3, {place: "stall"}, True)
        workers = [name for name, _, _ in sim.trace]
        for name in set(workers):
            first, last = workers.index(name), len(workers) - 1 - workers[::-1].index(name)
            if any(x[0] == name[0] and x != name for x in workers[first:last]):
                names.add(name)
    assert names, "no zombie ever overlapped with its successor"
