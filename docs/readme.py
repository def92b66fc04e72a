"""The figures of README.md: `python docs/readme.py` checks them, `--write` makes them anew from a real run and from bench/results.

Between markers stand the transcript of `mandamus demo` and the crash table. The rule a newcomer would break: nothing between markers
is written by hand. Process ids, digests and times differ from run to run and are not compared; everything else is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
_CHANGING = (
    (re.compile(r"\b[0-9a-f]{8}\.\.\."), "DIGEST..."),
    (re.compile(r"\bprocess \d+ *"), "process N "),
    (re.compile(r"[0-9.]+ s\b"), "T s"),
)


def played() -> tuple[str, dict[str, Any]]:
    """(transcript, what --json says) of one run of the demo."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mandamus", "demo", "--json"]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=120)
    return done.stderr.strip(), json.loads(done.stdout.splitlines()[-1])


def crash_rows(demo: dict[str, Any]) -> list[tuple[str, str]]:
    """(system, payments made where one was wanted). Newest measurement of each; the demo's own two stand in for ours until then."""
    found: dict[str, tuple[str, str]] = {}
    for file in sorted((ROOT / "bench" / "results").glob("*.json")):
        result = json.loads(file.read_text())
        for part in result.get("parts", [result]):
            for row in part["rows"]:
                if row["unit"] == "crash" and "post" in row:
                    at = part["machine"]["at"]
                    if found.get(row["system"], ("", ""))[0] <= at:
                        found[row["system"]] = (at, _cell(row["post"]))
    rows = [(name, text) for name, (_, text) in found.items()]
    ours = [r for r in rows if r[0].startswith("mandamus")]
    if not ours:
        ours = [("mandamus, reconcilable tool (the demo)", str(demo["payments"]))]
    plain = [("a plain loop (the demo)", str(demo["plain_loop_payments"]))]
    return [*ours, *plain, *(r for r in rows if not r[0].startswith("mandamus"))]


def _cell(cell: dict[str, Any]) -> str:
    paid = "–".join(str(n) for n in sorted(set(cell["paid"])))
    return paid + (f" + {max(cell['unknown'])} unknown, for people to settle" if max(cell["unknown"]) else "")


def parts() -> dict[str, str]:
    transcript, demo = played()
    table = ["| crash after the effect, then the documented resume | payments |", "|---|---|"]
    table += [f"| {'**' + name + '**' if name.startswith('mandamus') else name} | {paid} |" for name, paid in crash_rows(demo)]
    return {"demo": f"```text\n{transcript}\n```", "crash": "\n".join(table)}


def placed(text: str, made: dict[str, str]) -> str:
    """The page with its generated parts. Raises ValueError when a marker is missing."""
    for name, part in made.items():
        before, marker, rest = text.partition(f"<!-- {name}: ")
        old, end, behind = rest.partition(f"<!-- /{name} -->")
        if not marker or not end:
            raise ValueError(f"README.md has no marker {name}")
        text = before + marker + old.partition("\n")[0] + "\n" + part + "\n" + end + behind
    return text


def comparable(text: str) -> str:
    for pattern, word in _CHANGING:
        text = pattern.sub(word, text)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help="rewrite what stands between the markers")
    asked = parser.parse_args()
    stands = README.read_text(encoding="utf-8")
    made = placed(stands, parts())
    if asked.write:
        README.write_text(made, encoding="utf-8")
    elif comparable(made) != comparable(stands):
        print("README.md: its figures are not those of this run; look, then run python docs/readme.py --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
