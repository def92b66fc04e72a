"""Many seeds, or one again: `python tests/crash/simulate.py --seeds 50000 [--from N] [--jobs 2]`, `--seed N`, `--pairs`, `--singles`.

Each seed is one life with its own mixture of faults, ownership, workers and agent. A seed that finds something is printed with the
command that replays it, and the exit code is 1. The rule a newcomer would break: a seed means the same life only for the same code;
what a seed found belongs into a test by name.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.crash.sim import Sim, mixture, pairs, singles, storm  # noqa: E402

CHUNK = 25
SHOWN = 10
MODES = [{"leases": leases, "pool": pool} for leases in (True, False) for pool in (False, True)]
_places: dict[tuple[bool, str], list[str]] = {}


class Batch(NamedTuple):
    """What came of some lives: how many, in how many a fault struck, how many faults, and of those that found something how to replay."""

    lives: int
    faulted: int
    struck: Counter[str]
    found: list[tuple[str, str, list[str]]]


def places(pool: bool, script: str) -> list[str]:
    """The kinds of the places that a life without faults passes."""
    if (pool, script) not in _places:
        sim = Sim(1, {}, pool=pool, script=script)
        assert not sim.run(), "without any fault something is found"
        _places[pool, script] = sim.places
    return _places[pool, script]


def life(seed: int) -> Sim:
    """What seed N stands for."""
    chance = random.Random(f"life {seed}")
    pool, script = chance.random() < 0.3, chance.choice(("small", "full", "full"))
    plan = storm(seed) if chance.random() < 0.1 else mixture(seed, len(places(pool, script)))
    return Sim(seed, plan, chance.random() < 0.6, pool, script, chance.choice(("list", "firm")))


def every_single(script: str = "small") -> Iterator[Sim]:
    """Every fault at every place, whoever owns and however workers come."""
    for mode in MODES:
        for n, plan in enumerate(singles(places(mode["pool"], script))):
            yield Sim(1, plan, script=script, reconciler=("list", "firm")[n % 2], **mode)


def every_pair() -> Iterator[Sim]:
    """Every two harsh faults in a run of two calls, with leases and with locks."""
    for leases in (True, False):
        for n, plan in enumerate(pairs(places(False, "small"))):
            yield Sim(1, plan, leases, script="small", reconciler=("list", "firm")[n % 2])


def lived(sims: Iterable[tuple[str, Sim]]) -> Batch:
    struck, found, lives, faulted = Counter[str](), [], 0, 0
    for replay, sim in sims:
        try:
            findings = sim.run()
        except Exception as error:
            findings = [f"{type(error).__name__}: {error}"[:300]]
        faults = [fault for _, _, fault in sim.trace if fault]
        lives, faulted = lives + 1, faulted + bool(faults)
        struck.update(faults)
        if findings:
            found.append((replay, str(sim), findings))
    return Batch(lives, faulted, struck, found)


def seeds(numbers: Iterable[int]) -> Batch:
    return lived((f"python tests/crash/simulate.py --seed {n}", life(n)) for n in numbers)


def walk(which: str, numbers: Iterable[int]) -> Batch:
    """The n-th lives of an exhaustive walk."""
    wanted, source = set(numbers), {"singles": every_single, "pairs": every_pair}[which]
    chosen = itertools.islice(source(), max(wanted) + 1)
    return lived((f"python tests/crash/simulate.py --{which} --only {n}", sim) for n, sim in enumerate(chosen) if n in wanted)


def many(work: list[tuple[Any, ...]], jobs: int, say: bool = True) -> Batch:
    """`work`: (function, its arguments) a chunk; each chunk in one of `jobs` processes. Progress goes to stderr."""
    began, all_of_it = time.perf_counter(), Batch(0, 0, Counter(), [])
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        for n, done in enumerate(concurrent.futures.as_completed([pool.submit(*one) for one in work]), 1):
            one = done.result()
            all_of_it = Batch(*(a + b for a, b in zip(all_of_it, one, strict=True)))  # type: ignore[operator]
            for replay, sim, findings in one.found[:SHOWN]:
                print(f"FOUND {'; '.join(findings)}\n  {sim}\n  {replay}", flush=True)
            if say and (n % 20 == 0 or n == len(work)):
                rate = all_of_it.lives / (time.perf_counter() - began)
                print(f"{all_of_it.lives} lives, {rate:.0f} a second, {len(all_of_it.found)} found something", file=sys.stderr, flush=True)
    return all_of_it


def main(argv: list[str] | None = None) -> int:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--seeds", type=int, default=3000)
    arguments.add_argument("--from", dest="first", type=int, default=0)
    arguments.add_argument("--seed", type=int, help="this one again, with its trace")
    arguments.add_argument("--pairs", action="store_true", help="every two harsh faults in a run of two calls")
    arguments.add_argument("--singles", action="store_true", help="every fault at every place")
    arguments.add_argument("--only", type=int, help="the n-th life of --pairs or --singles, with its trace")
    arguments.add_argument("--jobs", type=int, default=2)
    given = arguments.parse_args(argv)
    which = "pairs" if given.pairs else "singles" if given.singles else ""
    if given.seed is not None or given.only is not None:
        sim = life(given.seed) if given.seed is not None else _nth(which, given.only)
        return _replay(sim)
    began = time.perf_counter()
    if which:
        total = sum(1 for _ in {"singles": every_single, "pairs": every_pair}[which]())
        work: list[tuple[Any, ...]] = [(walk, which, range(n, min(n + CHUNK * 8, total))) for n in range(0, total, CHUNK * 8)]
    else:
        last = given.first + given.seeds
        work = [(seeds, range(n, min(n + CHUNK, last))) for n in range(given.first, last, CHUNK)]
    done, took = many(work, given.jobs), time.perf_counter() - began
    print(f"{done.lives} lives, {done.faulted} of them with faults ({sum(done.struck.values())} in all), {took:.0f} s, "
          f"{done.faulted / took:.0f} faulted lives a second in {given.jobs} processes")  # fmt: skip
    print("  ".join(f"{fault} {n}" for fault, n in sorted(done.struck.items())))
    print(f"{len(done.found)} of them found something")
    return 1 if done.found or not done.faulted else 0


def _nth(which: str, n: int) -> Sim:
    return next(itertools.islice({"singles": every_single, "pairs": every_pair}[which](), n, None))


def _replay(sim: Sim) -> int:
    found = sim.run()
    for place, (worker, label, fault) in enumerate(sim.trace):
        print(f"{place:5}  {worker:4}  {label}{'  <-- ' + fault if fault else ''}")
    print(sim)
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
