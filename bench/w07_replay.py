"""W7: replay. Another process opens the store of a finished run and reads it back: verified and folded where the system can verify.

    python bench/w07_replay.py --turns 100,1000 --json out.json

`wall`, `cpu`: µs per turn of the run, so that systems with different records can be compared. `events_per_s`: each system's own records.
"""

from __future__ import annotations

import asyncio
import hashlib
import pathlib
from typing import TYPE_CHECKING, Any

import proto
from common import Meter, Sample, middle, require_disk
from unit import Options, main

if TYPE_CHECKING:
    from interleave import Row

PEERS = (("langgraph", "lean history"), ("langgraph", "lean+delta recover"), ("dbos", "recover"), ("eventsourcing", "aggregate"))
PEERS_UP_TO = 1000


def ours_prepare(turns: int, folder: str) -> Sample:
    """First process: one finished run of `turns` turns in `folder`."""
    import ours as side

    async def run() -> None:
        env = await side.wiring.open_env(side.uri(folder))
        await side.agent(turns).run("go", ledger=env, run_id="r")
        await side.wiring.close_env(env)

    asyncio.run(run())
    return {}


def ours(turns: int, folder: str) -> Sample:
    """Second process: read, verify (strict bytes, links, legal steps) and fold that run. Per turn wall and cpu; `events_per_s`."""
    import ours as side

    from mandamus.core.run import fold
    from mandamus.proof.chain import walk

    async def read(ledger: Any) -> int:
        walked = walk([raw async for raw in ledger.read("r")], "r")
        assert walked.fault is None, walked.fault
        assert fold(walked.records).life == "sealed"
        return walked.count

    samples = []
    with asyncio.Runner() as r:
        ledger = side.wiring.open_ledger(side.uri(folder))
        for _ in range(5):
            with Meter() as m:
                events = r.run(read(ledger))
            samples.append({**m.per(turns, disk=False), "events_per_s": events / m.wall * 1e6})
        r.run(ledger.close())
    return middle(samples)


def yardstick_prepare(turns: int, folder: str) -> Sample:
    asyncio.run(proto.drive("r", turns, proto.Sqlite(folder + "/x.db")))
    return {}


def yardstick(turns: int, folder: str) -> Sample:
    ledger, samples = proto.Sqlite(folder + "/x.db"), []
    for _ in range(5):
        with Meter() as m:
            events = proto.fold(ledger.read("r"), "r")[0]
        samples.append({**m.per(turns, disk=False), "events_per_s": events / m.wall * 1e6})
    return middle(samples)


def limit(turns: int, folder: str) -> Sample:
    """One SHA-256 over as many bytes: nothing that verifies can be faster."""
    data, samples = pathlib.Path(folder, "bytes").read_bytes(), []
    for _ in range(5):
        with Meter() as m:
            hashlib.sha256(data).digest()
        samples.append(m.per(turns, disk=False))
    return middle(samples)


def limit_prepare(turns: int, folder: str) -> Sample:
    yardstick_prepare(turns, folder)
    pathlib.Path(folder, "bytes").write_bytes(b"".join(raw for raw, _ in proto.Sqlite(folder + "/x.db").read("r")))
    return {}


def measure(o: Options) -> list[Row]:
    from interleave import compare, own, peer

    require_disk()
    rows = []
    for turns in o.turns:
        systems = [own(__file__, "w7", name, turns, prepare="w7_prepare") for name in UNITS["w7"]]
        if o.peers and turns <= PEERS_UP_TO:
            systems += [peer(venv, "w7", variant, turns, prepare="w7_prepare") for venv, variant in PEERS]
        rows += compare("W7", f"{turns} turns", systems, o.rounds, timeout=240)
    return rows


UNITS = {
    "w7": {"ours": ours, "yardstick": yardstick, "one SHA-256": limit},
    "w7_prepare": {"ours": ours_prepare, "yardstick": yardstick_prepare, "one SHA-256": limit_prepare},
}

if __name__ == "__main__":
    main(__doc__, measure, UNITS, turns="100,1000,10000", quick="100", rounds=3)
