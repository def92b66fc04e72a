"""W7, the verifiers in Python: what the library and `mandamus-verify.py` check in a second of CPU, over one bundle of a finished run.

    python bench/w07_single.py [--turns 1250] [--rounds 5] [--json out.json]

`walk`: the records alone (strict decoding, canonical bytes, hashes, lifecycle); `all`: every claim of the bundle, payloads included. Events
a second of CPU, in thousands, the median of the rounds, which take turns.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from w07_html import bundled, command  # noqa: E402

from tests.verifiers.single import SINGLE, by_single  # noqa: E402


def ways(raw: bytes, roots: str) -> dict[str, Callable[[], Any]]:
    from mandamus.proof import bundle, verify
    from mandamus.proof.chain import walk
    from mandamus.proof.trust import Trust

    records = bundle.read(raw).sections["record"]
    return {
        "library, walk": lambda: walk(records, "r"),
        "library, all": lambda: verify(raw, Trust.parse(roots)),
        "single file, walk": lambda: SINGLE.Walk(records, "r"),
        "single file, all": lambda: by_single(raw, roots),
    }


def measured(turns: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        asyncio.run(bundled(turns, folder))
        raw, roots = (folder / "bundle").read_bytes(), (folder / "roots").read_text()
    events = raw.count(b'"epoch":')
    took: dict[str, list[float]] = {}
    for _ in range(rounds):
        for label, way in ways(raw, roots).items():
            begun = time.process_time()
            way()
            took.setdefault(label, []).append(time.process_time() - begun)
    rates = {label: round(events / statistics.median(seconds) / 1000, 1) for label, seconds in took.items()}
    return {"events": events, "bytes": len(raw), "rounds": rounds, "k_events_per_cpu_s": rates, "load": round(os.getloadavg()[0], 1)}


if __name__ == "__main__":
    command(__doc__, 1_250, measured)
