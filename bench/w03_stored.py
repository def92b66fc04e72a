"""W3, the next run: what opening, claiming and carrying one more run costs when 1e2, 1e3, 1e4, 1e5 runs are stored already.

    python bench/w03_stored.py --store sqlite --turns 100000 --json out.json
    python bench/w03_stored.py --store postgres ...      python bench/w03_stored.py --store nats --turns 10000

`--turns` is the largest number of stored runs here. They are runs of three records and a payload, appended directly; a tenth of them waits
for mail. One process holds two stores of a kind: one grows, the other keeps a hundred runs. At each size the next run is taken of the
one and of the other in turn, and `x_small` holds them against each other.

The rule a newcomer would break: a size measured now and a size measured a minute ago differ by what the disk did meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import nats_raw
import pg
from common import NotMeasured, Sample, emit, require_disk
from unit import Options, main

if TYPE_CHECKING:
    from interleave import Row

SMALL = 100
WARM_UP = 10
NEXT = 40
"""Runs that are opened, claimed and carried at each size, in each store."""
TURNS = 2
AT_ONCE = 256
STEPS = ("open", "claim", "carry")
POOL = "bench"
CAP_S = 900
TITLES = {"nats": "JetStream", "postgres": "Postgres", "sqlite": "SQLite"}


async def fill(ledger: Any, first: int, upto: int) -> None:
    """Stored runs number `first` to `upto`."""
    from mandamus.ports import Wake
    from mandamus.testing.conformance.chains import Chain, bodies, ended, raws

    async def one(n: int) -> None:
        chain = Chain(f"stored-{n:07}")
        sealed = [*chain.genesis(input="go"), *chain.next(), *chain.next(ended(), output="3")]
        wake = Wake(None, 0, "suspended" if n % 10 == 0 else "completed")
        await ledger.append(chain.run, None, raws(sealed), payloads=bodies(sealed), wake=wake)

    for start in range(first, upto, AT_ONCE):
        await asyncio.gather(*[one(n) for n in range(start, min(start + AT_ONCE, upto))])


class Store:
    """One of the two. `next_run` opens, claims and carries one more run: µs of each step."""

    def __init__(self, runner: asyncio.Runner, folder: str, where: str) -> None:
        import ours as side

        from mandamus.runtime.carry import Delays, carry

        self.run, self.close, self.stored = runner.run, side.wiring.close_env, 0
        self.env: Any = runner.run(side.opened(folder, where))
        self.bot: Any = runner.run(side.ready(TURNS))
        self.carry = functools.partial(carry, self.env, self.bot.served(), delays=Delays())

    def fill(self, upto: int) -> None:
        self.run(fill(self.env.ledger, self.stored, upto))
        self.stored = upto

    def next_run(self) -> list[float]:
        times = [time.perf_counter()]

        async def whole() -> None:
            await self.bot.open("go", pool=POOL, ledger=self.env)
            times.append(time.perf_counter())
            held = await self.env.ledger.claim(POOL, self.env.lease_ms)
            times.append(time.perf_counter())
            told = await self.carry(held)
            times.append(time.perf_counter())
            assert told.state == "completed", told

        self.run(whole())
        return [(after - before) * 1e6 for before, after in itertools.pairwise(times)] + [(times[-1] - times[0]) * 1e6]


def medians(runs: list[list[float]]) -> dict[str, float]:
    return dict(zip((*STEPS, "wall"), map(statistics.median, zip(*runs, strict=True)), strict=True))


def growing(places: tuple[str, str], sizes: tuple[int, ...], folder: str) -> Sample:
    """Both stores in this process; a line of figures as soon as a size is measured."""
    out: Sample = {}
    with asyncio.Runner() as runner:
        small, large = (Store(runner, str(pathlib.Path(folder, name)), at) for name, at in zip(("small", "large"), places, strict=True))
        small.fill(SMALL)
        for _ in range(WARM_UP):
            small.next_run(), large.next_run()
        for size in sizes:
            begun = time.perf_counter()
            large.fill(size)
            filled = time.perf_counter() - begun
            of_small, of_large = zip(*[(small.next_run(), large.next_run()) for _ in range(NEXT)], strict=True)
            figures, beside = medians(list(of_large)), medians(list(of_small))
            emit(stored=size, fill_s=round(filled, 1), small=beside, **figures)
            out |= {f"{size} {name}": value for name, value in figures.items()}
            out |= {f"{size} x {name}": value / beside[name] for name, value in figures.items()}
        for store in (small, large):
            runner.run(store.close(store.env))
    return out


def sized(where: Callable[[], tuple[str, str]]) -> Callable[[int, str], Sample]:
    """`turns` is the largest size; all powers of ten from a hundred up are measured on the way."""
    return lambda turns, folder: growing(where(), tuple(10**n for n in range(2, 7) if 10**n <= turns), folder)


def on_nats() -> tuple[str, str]:
    """Two ledgers of the cluster."""
    large = nats_raw.uri()
    return large.replace("/bench-", "/small-", 1), large


def measure(o: Options) -> list[Row]:
    """One row for each size, from the rounds' processes."""
    import servers
    from interleave import compare, own

    require_disk()
    with servers.of(o.store, autovacuum="on", autovacuum_naptime="5s") as (place, version):
        system = own(__file__, "w3_stored", o.store, max(o.turns), place=place, version=version)
        (made,) = compare("W3-stored", TITLES[o.store], [system], o.rounds, ratios=(), cap=CAP_S)
    return split(made)


def split(made: Row) -> list[Row]:
    """The process says all sizes at once; the table has a row for each."""
    if "figures" not in made:
        raise NotMeasured(made.get("note", "no figures"))
    by_size: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    for name, spread in made["figures"].items():
        size, _, figure = name.partition(" ")
        if size.isdigit():
            figures, ratios = by_size.setdefault(int(size), ({}, {}))
            (ratios if figure.startswith("x ") else figures)[figure.removeprefix("x ")] = spread
    common = {k: v for k, v in made.items() if k not in ("figures", "turns")}
    return [
        {**common, "system": f"{size:,} runs stored", "role": "ours", "turns": size, "figures": figures, "x_small": ratios}
        for size, (figures, ratios) in sorted(by_size.items())
    ]


UNITS = {
    "w3_stored": {
        "sqlite": sized(lambda: ("", "")),
        "postgres": sized(lambda: (pg.dsn() + "?schema=small", pg.dsn())),
        "nats": sized(on_nats),
    }
}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="100000", quick="1000", rounds=2, stores=("sqlite", "postgres", "nats"))
