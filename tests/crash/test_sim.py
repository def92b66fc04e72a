"""The simulation (tests/crash/sim): every fault at every place, two at once, and seeded mixtures; a sample here, all of it by `make sim`.

A life that finds something is printed as code that runs it again. What a seed found once stands in tests/crash/test_named.py by name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mandamus.core import records as r
from tests.crash import simulate
from tests.crash.sim import FAULTS, Sim

ROOT = Path(__file__).resolve().parents[2]
MODES = [(leases, pool) for leases in (True, False) for pool in (False, True)]
SEEDS = int(os.environ.get("MANDAMUS_SIM_SEEDS", "160"))


def survives(sim: Sim) -> Sim:
    found = sim.run()
    assert not found, f"{sim}.run() finds {found}"
    return sim


def clean(done: simulate.Batch) -> simulate.Batch:
    assert done.found == []
    return done


def places(sim: Sim, label: str) -> list[int]:
    sim.run()
    return [n for n, (_, said, _) in enumerate(sim.trace) if said == label]


def facts(sim: Sim, *kinds: type[r.Fact]) -> list[Any]:
    found = [r.decode(raw) for run in sim.runs for raw in sim.store.durable(run)]
    return [x.fact for x in found if isinstance(x.fact, kinds)]


@pytest.mark.parametrize(("leases", "pool"), MODES)
def test_without_faults_both_runs_end_and_one_limit_holds_for_both(leases: bool, pool: bool) -> None:
    sim = survives(Sim(1, {}, leases, pool))
    assert len(sim.lived) == 2
    assert sorted(sim.world.done.values()) == [1] * 5, "two payments, two tickets, and one wire: the second would go over the limit"


def test_the_same_seed_gives_the_same_trace_in_whatever_process() -> None:
    """Also where the strings of a set come in another order."""
    script = "from tests.crash.simulate import life; s = life(11); s.run(); print(s.trace)"
    said = set()
    for seed in ("0", "1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=True)
        said.add(done.stdout)
    assert len(said) == 1
    assert len(said.pop()) > 1000
    assert simulate.life(11).run() == simulate.life(11).run()


@pytest.mark.parametrize("part", range(4))
def test_single_faults_at_places_spread_over_the_run(part: int) -> None:
    """One in nine of them here."""
    total = sum(1 for _ in simulate.every_single())
    done = clean(simulate.walk("singles", range(part * 9, total, 36)))
    assert set(done.struck) >= set(FAULTS) - {"late"}, "only where something is sent"
    assert done.faulted == done.lives


@pytest.mark.parametrize("leases", [True, False])
def test_a_request_that_is_under_way_when_its_sender_dies_is_never_followed_by_a_second_deed(leases: bool) -> None:
    for place in [*places(Sim(2, {}, leases), "send ticket"), *places(Sim(2, {}, leases), "send wire")]:
        for behind in range(1, 9):
            sim = survives(Sim(2, {place: "late", place + behind: "crash"}, leases))
            assert [fault for _, _, fault in sim.trace if fault] == ["late", "crash"]


@pytest.mark.parametrize("fault", ["crash", "stall"])
@pytest.mark.parametrize("leases", [True, False])
def test_a_crash_and_a_stall_at_every_other_place_of_two_runs(fault: str, leases: bool) -> None:
    base = survives(Sim(1, {}, leases))
    for place in range(leases, len(base.trace), 2):
        survives(Sim(1, {place: fault}, leases, reconciler=("list", "firm")[place % 2]))


@pytest.mark.parametrize("part", range(2))
def test_seeded_mixtures_of_faults(part: int) -> None:
    done = clean(simulate.seeds(range(part, SEEDS, 2)))
    assert done.faulted > done.lives // 2, "the plans miss the runs"


@pytest.mark.slow
def test_every_single_fault_at_every_place() -> None:
    assert simulate.main(["--singles"]) == 0


@pytest.mark.slow
def test_three_thousand_seeds() -> None:
    assert simulate.main(["--seeds", "3000"]) == 0


@pytest.mark.parametrize("fault", ["unavailable", "ghost"])
def test_an_append_of_unknown_outcome_is_neither_lost_nor_believed(fault: str) -> None:
    """Not done, done, done later, or seen and taken back: whatever it was, the next effect stands on what lasts."""
    for seed in range(8):
        for place in places(Sim(seed, {}, script="small"), "append"):
            survives(Sim(seed, {place: fault}, script="small"))


@pytest.mark.parametrize("leases", [True, False])
def test_a_stall_between_the_lease_and_the_send_of_something_that_is_only_asked_about(leases: bool) -> None:
    """The zombie sends when its successor has long asked and heard "absent": on a lease that is no proof, whatever was waited for."""
    late = 0
    for seed in range(12):
        for place in places(Sim(seed, {}, leases), "send ticket")[:1]:
            sim = survives(Sim(seed, {place: "stall"}, leases))
            late += max(sim.world.sent.values()) > 1 or any(f.result == "unknown" for f in facts(sim, r.ActionEnded))
    assert late, "no send was ever in doubt"


# -- the simulation itself: what it relies on happens, and what it looks for it would find ----------------------------------------
def test_a_stalled_owner_loses_its_run_by_time_alone_and_comes_back_as_a_zombie() -> None:
    """Between its falling asleep and its next word another worker writes the run."""
    zombies = 0
    for place in places(Sim(3, {}, script="small"), "send pay"):
        sim = survives(Sim(3, {place: "stall"}, script="small"))
        name, behind = sim.trace[place][0], sim.trace[place + 1 :]
        back = next((n for n, (who, _, _) in enumerate(behind) if who == name), 0)
        zombies += any(label == "appended" for _, label, _ in behind[:back])
    assert zombies, "nobody took the run of a sleeping owner, or it never came back"


def test_on_a_file_a_stalled_owner_keeps_its_run() -> None:
    for place in places(Sim(3, {}, leases=False, script="small"), "send pay"):
        assert not facts(survives(Sim(3, {place: "stall"}, leases=False, script="small")), r.RunOwned)


@pytest.mark.parametrize("label", ["ask the model", "reply pay"])
def test_a_living_owner_keeps_its_run_however_long_an_answer_takes(label: str) -> None:
    """Its lease is renewed meanwhile; without that the run would go from hand to hand. The tool's own deadline may strike before."""
    base = facts(survives(Sim(5, {}, pool=True, script="small")), r.RunOwned)
    for place in places(Sim(5, {}, pool=True, script="small"), label):
        sim = survives(Sim(5, {place: "slow"}, pool=True, script="small"))
        assert sim.trace[place][2] == "slow"
        assert len(facts(sim, r.RunOwned)) == len(base)


def test_an_append_that_is_seen_and_lost_is_found_where_a_driver_believes_what_it_sees() -> None:
    """The sync-standby trap. With a driver that keeps the port's promise the same lives find nothing."""
    found = Counter[str]()
    for seed in range(12):
        for place in places(Sim(seed, {}, script="small"), "append")[1:4]:
            survives(Sim(seed, {place: "ghost"}, script="small"))
            found.update(Sim(seed, {place: "ghost"}, script="small", settles=False).run())
    assert any(finding.startswith("I7") for finding in found), f"nobody acted on what was lost: {found}"


def test_a_seed_is_replayed_by_the_command_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    seed = next(n for n in range(50) if len(simulate.life(n).plan) > 2)
    assert simulate.main(["--seed", str(seed)]) == 0
    first = capsys.readouterr().out
    assert "<-- " in first
    assert simulate.main(["--seed", str(seed)]) == 0
    assert capsys.readouterr().out == first


def test_what_was_found_is_printed_with_its_command_and_ends_with_exit_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "places", lambda pool, script: ["write"] * 20)
    monkeypatch.setattr(Sim, "run", lambda sim: ["I1 told so"] if sim.seed == 7 else [])
    monkeypatch.setattr(simulate, "many", lambda work, jobs: simulate.seeds(n for _, numbers in work for n in numbers))
    done = simulate.seeds(range(10))
    assert [replay for replay, _, _ in done.found] == ["python tests/crash/simulate.py --seed 7"]
    assert simulate.main(["--seeds", "10"]) == 1
    assert "1 of them found something" in capsys.readouterr().out


def test_an_administrators_append_that_is_seen_and_lost_halts_no_run() -> None:
    for seed in range(8):
        survives(Sim(seed, dict.fromkeys(range(seed, 600, 9), "authority"), pool=seed % 2 == 0, fickle=True))
