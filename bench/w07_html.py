"""W7, in a browser: `verify.html` in headless Chromium checks the bundle of a finished run, chosen as a file, from disk, offline.

    python bench/w07_html.py [--turns 12500] [--rounds 5] [--json out.json]

A turn of ours is eight records and six payloads: 12,500 turns are 100,000 events. `wall_s`: from the button to the drawn report; `cpu_s`:
of the page's process, all its threads; `first`: the round before anything was compiled. Beside it the library's time over the same bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import glob
import json
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

import ours as side  # noqa: E402

from tests.verifiers.chromium import Chromium, Page  # noqa: E402


async def bundled(turns: int, folder: pathlib.Path) -> None:
    """The bundle and the trust file of one finished run, with its log, as files."""
    from mandamus.runtime import evidence

    env = await side.wiring.open_env(side.uri(str(folder)))
    await side.agent(turns).run("go", ledger=env, run_id="r")
    (folder / "bundle").write_bytes(await evidence.build(env, "r", {}, ""))
    await side.wiring.close_env(env)
    (trust,) = folder.glob("**/trust")
    (folder / "roots").write_bytes(trust.read_bytes())


def by_library(folder: pathlib.Path) -> tuple[float, Any]:
    from mandamus.proof import verify
    from mandamus.proof.trust import Trust

    raw, roots = (folder / "bundle").read_bytes(), Trust.parse((folder / "roots").read_bytes())
    begun = time.perf_counter()
    report = verify(raw, roots)
    return time.perf_counter() - begun, report


def cpu_of(group: int) -> float:
    """Seconds of CPU of the page's processes: the renderers of this browser."""
    total = 0.0
    for path in glob.glob("/proc/[0-9]*"):
        try:
            fields = pathlib.Path(path, "stat").read_text().rsplit(")", 1)[1].split()
            renders = "--type=renderer" in pathlib.Path(path, "cmdline").read_text()
        except OSError:
            continue
        if renders and int(fields[2]) == group:
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def checked(page: Page, group: int) -> tuple[float, float, int]:
    """(wall, CPU, exit code) of one press of the button."""
    cpu, begun = cpu_of(group), time.perf_counter()
    page.evaluate("document.getElementById('check').click()")
    while page.evaluate("document.getElementById('check').disabled || document.getElementById('result').hidden"):
        time.sleep(0.05)
    return time.perf_counter() - begun, cpu_of(group) - cpu, page.evaluate("mandamusReport.exit_code")


def measured(turns: int, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, Chromium() as browser:
        folder = pathlib.Path(name)
        asyncio.run(bundled(turns, folder))
        seconds, report = by_library(folder)
        page = browser.open(ROOT / "verifiers" / "verify.html")
        page.choose("#bundle", folder / "bundle")
        page.choose("#trust", folder / "roots")
        found = [checked(page, browser.process.pid) for _ in range(rounds)]
        assert {code for _, _, code in found} == {report.exit_code}, (found, report)
        wall, cpu = (round(statistics.median(column), 2) for column in list(zip(*found))[:2])
        return {
            "events": report.events, "bytes": (folder / "bundle").stat().st_size, "exit_code": report.exit_code, "rounds": rounds,
            "wall_s": wall, "cpu_s": cpu,
            "first": {"wall_s": round(found[0][0], 2), "cpu_s": round(found[0][1], 2)},
            "library_s": round(seconds, 2), "load": round(os.getloadavg()[0], 1), "goal_s": 3,
        }  # fmt: skip


def command(doc: str | None, turns: int, measure: Callable[[int, int], dict[str, Any]]) -> None:
    """One row as JSON, printed and, where asked, kept."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=turns)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    asked = parser.parse_args()
    row = json.dumps(measure(asked.turns, asked.rounds))
    print(row)
    if asked.json:
        asked.json.write_text(row + "\n")


if __name__ == "__main__":
    command(__doc__, 12_500, measured)
