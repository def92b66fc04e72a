"""Everything in one go: peers' venvs, limits, all units, the crash matrix; one JSON in results/, and the README's tables.

python bench/run.py                        the full bench
python bench/run.py --quick --no-peers     smallest sizes, nothing to install; prints the tables and keeps nothing
python bench/run.py --units w2,crash
python bench/run.py --collect              runs nothing: keeps what the units last wrote
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys

import common
import report

UNITS = {"limits": "limits.py", "w1": "w01_step.py", "w2": "w02_durable.py", "w4": "w04_resume.py", "w5": "w05_import.py",
         "w7": "w07_replay.py", "crash": "crash.py"}  # fmt: skip
WITH_PEERS = [u for u in UNITS if u != "limits"]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="smallest sizes; the result is not kept")
    p.add_argument("--no-peers", dest="peers", action="store_false")
    p.add_argument("--collect", action="store_true", help="run nothing, keep what the units last wrote")
    p.add_argument("--units", default=",".join(UNITS))
    a = p.parse_args()
    if a.peers and not a.collect:
        subprocess.run([sys.executable, str(common.BENCH / "peers" / "make.py")], check=False)
    machine, parts, env = common.machine(), [], {**os.environ, **({"BENCH_QUICK": "1"} if a.quick else {})}
    build = common.BENCH / ".build"
    build.mkdir(exist_ok=True)
    for name in a.units.split(","):
        out = build / f"{name}.json"
        options = ["--no-peers"] if not a.peers and name in WITH_PEERS else []
        options += ["--flush-us", "0,1000"] if name == "w2" and not a.quick else []
        if not a.collect:
            out.unlink(missing_ok=True)
            subprocess.run([sys.executable, str(common.BENCH / UNITS[name]), "--json", str(out), *options], env=env, check=False)
        if out.exists():
            parts.append(json.loads(out.read_text()))  # each with the machine, the load and the commit it was measured at
    slug = re.sub(r"\W+", "-", f"{machine['cpu']}-{machine['cores']}-cores").lower()
    kept = common.BENCH / "results" / f"{machine['at'][:10]}-{machine['commit']}-{slug}.json"
    result = build / "quick.json" if a.quick else kept
    result.write_text(json.dumps({"parts": parts}, indent=1) + "\n")
    print(report.tables([result]))
    if not a.quick:
        report.main([])


if __name__ == "__main__":
    main()
