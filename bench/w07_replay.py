"""W7: replay. Another process opens the store of a finished run and reads it back: verified and folded where the system can verify.

    python bench/w07_replay.py --turns 1250,12500 --json out.json

`wall`, `cpu`: µs per turn of the run, so that systems with different records can be compared. `events`: each system's own records;
`events_per_s` of wall time, `events_per_cpu_s` of CPU. A turn of ours is eight records: 1250 turns are 10,000, 12,500 are 100,000.

    mandamus                  read from the ledger, verify (strict bytes, links, legal steps), fold
    mandamus, verify alone    `proof.chain.walk` over the same bytes, already read: what a bundle's verifier does with a chain
"""

from __future__ import annotations

import asyncio
import hashlib
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import proto
from common import Meter, Sample, middle, rates, require_disk
from unit import Options, main

if TYPE_CHECKING:
    from interleave import Row

PEERS = (("langgraph", "lean history"), ("langgraph", "lean+delta recover"), ("dbos", "recover"), ("eventsourcing", "aggregate"))
LONG_RUN_PEERS = (("eventsourcing", "aggregate"),)
"""Beyond PEERS_UP_TO turns the others' runs take minutes to make, and their cost per turn grows or stands as it was."""
PEERS_UP_TO = 1250
REPEATS = 5


def read_back(turns: int, once: Callable[[], int]) -> Sample:
    """Median of some reads in one process. `once` returns how many records it read."""
    samples = []
    for _ in range(REPEATS):
        with Meter() as m:
            events = once()
        samples.append({**m.per(turns, disk=False), **rates(events, m)})
    return middle(samples)


def ours_prepare(turns: int, folder: str) -> Sample:
    """First process: one finished run of `turns` turns in `folder`."""
    import ours as side

    asyncio.run(side.finished(turns, folder))
    return {}


def ours(turns: int, folder: str) -> Sample:
    """Second process: read, verify and fold that run, in one pass, as a takeover does."""
    import ours as side

    from mandamus.core.fold import EMPTY, evolve
    from mandamus.core.records import AnyRecord
    from mandamus.proof.chain import walk

    with asyncio.Runner() as r:
        ledger = side.wiring.open_ledger(side.uri(folder))

        def once() -> int:
            run = EMPTY

            def believe(record: AnyRecord, hash: str) -> None:
                nonlocal run
                run = evolve(run, record, hash)

            walked = walk(r.run(stored(ledger)), "r", keep=False, each=believe)
            assert walked.fault is None, walked.fault
            assert run.life == "sealed"
            return walked.count

        figures = read_back(turns, once)
        r.run(ledger.close())
    return figures


def verify_alone(turns: int, folder: str) -> Sample:
    """The chain alone, without the fold and without reading."""
    import ours as side

    from mandamus.proof.chain import walk

    with asyncio.Runner() as r:
        ledger = side.wiring.open_ledger(side.uri(folder))
        raws = r.run(stored(ledger))
        r.run(ledger.close())

    def once() -> int:
        walked = walk(raws, "r", keep=False)
        assert walked.fault is None, walked.fault
        return walked.count

    return read_back(turns, once)


async def stored(ledger: Any) -> list[bytes]:
    return [raw async for raw in ledger.read("r")]


def yardstick_prepare(turns: int, folder: str) -> Sample:
    asyncio.run(proto.drive("r", turns, proto.Sqlite(folder + "/x.db")))
    return {}


def yardstick(turns: int, folder: str) -> Sample:
    ledger = proto.Sqlite(folder + "/x.db")
    return read_back(turns, lambda: proto.fold(ledger.read("r"), "r")[0])


def limit(turns: int, folder: str) -> Sample:
    """One SHA-256 over as many bytes as ours stores in records: nothing that verifies them can be faster."""
    data = pathlib.Path(folder, "bytes").read_bytes()

    def once() -> int:
        hashlib.sha256(data).digest()
        return int(pathlib.Path(folder, "count").read_text())

    return read_back(turns, once)


def limit_prepare(turns: int, folder: str) -> Sample:
    import ours as side

    ours_prepare(turns, folder)
    with asyncio.Runner() as r:
        ledger = side.wiring.open_ledger(side.uri(folder))
        raws = r.run(stored(ledger))
        r.run(ledger.close())
    pathlib.Path(folder, "bytes").write_bytes(b"".join(raws))
    pathlib.Path(folder, "count").write_text(str(len(raws)))
    return {}


def measure(o: Options) -> list[Row]:
    from interleave import compare, own, peer

    require_disk()
    rows = []
    for turns in o.turns:
        systems = [own(__file__, "w7", name, turns, prepare="w7_prepare") for name in UNITS["w7"]]
        peers = PEERS if turns <= PEERS_UP_TO else LONG_RUN_PEERS
        systems += [peer(venv, "w7", variant, turns, prepare="w7_prepare") for venv, variant in peers if o.peers]
        rows += compare("W7", f"{turns} turns", systems, o.rounds, ratios=("wall", "cpu", "events_per_cpu_s"), cap=o.cap)
    return rows


UNITS = {
    "w7": {"ours": ours, "ours, verify alone": verify_alone, "yardstick": yardstick, "one SHA-256": limit},
    "w7_prepare": {
        "ours": ours_prepare,
        "ours, verify alone": ours_prepare,
        "yardstick": yardstick_prepare,
        "one SHA-256": limit_prepare,
    },
}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="1250,12500", quick="100")
