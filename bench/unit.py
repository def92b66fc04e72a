"""The command line that every unit file has.

python bench/wNN_name.py [--turns 10,100] [--rounds 5] [--quick] [--no-peers] [--json out.json]
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import common

if TYPE_CHECKING:
    from interleave import Row


class Options(NamedTuple):
    """What was asked on the command line."""

    turns: tuple[int, ...]
    rounds: int
    peers: bool
    quick: bool
    flush_us: tuple[int, ...]
    cap: float
    store: str = "sqlite"


Measure = Callable[[Options], "list[Row]"]


def main(
    doc: str | None,
    measure: Measure,
    units: Mapping[str, Mapping[str, common.Work]],
    *,
    turns: str,
    quick: str,
    rounds: int = 5,
    stores: Sequence[str] = ("sqlite",),
) -> None:
    """Runs the unit, or one child of it. `turns` and `quick` are the sizes for a full and a quick run."""
    if sys.argv[1:2] == ["_child"]:
        return common.serve("mandamus bench", units, argv=sys.argv[2:])
    import argparse

    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--turns", help=f"sizes, for example 10,100 (default {turns}; quick {quick})")
    p.add_argument("--rounds", type=int, help=f"interleaved rounds (default {rounds}; quick 2)")
    p.add_argument("--quick", action="store_true", default=common.QUICK, help="smallest sizes")
    p.add_argument("--no-peers", dest="peers", action="store_false", help="ours, the yardstick and the limits only")
    p.add_argument("--flush-us", default="0", help="each flush takes this much longer, for example 0,1000 (W2)")
    p.add_argument("--cap", type=float, default=120, help="seconds; a process that takes longer gives a lower bound")
    p.add_argument("--store", choices=stores, default=stores[0], help="the database, or what it runs on")
    p.add_argument("--json", type=pathlib.Path, help="also write machine and rows here")
    a = p.parse_args()
    sizes = tuple(int(x) for x in (a.turns or (quick if a.quick else turns)).split(","))
    shimmed = tuple(int(x) for x in a.flush_us.split(","))
    options = Options(sizes, a.rounds or (2 if a.quick else rounds), a.peers, a.quick, shimmed, a.cap, a.store)
    machine = common.machine()
    common.emit(machine=machine)
    try:
        rows = measure(options)
    except common.NotMeasured as why:
        sys.exit(str(why))
    if a.json:
        a.json.parent.mkdir(parents=True, exist_ok=True)
        a.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
