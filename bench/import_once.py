"""W5's child: executes the statement it is given and tells what that took. Imports nothing itself before the statement.

    python bench/import_once.py STATEMENT [DISTRIBUTION ...]

With distributions: also how many packages they need and how large those are, in a process that is not timed.
"""

import sys

exec(sys.argv[1])
before = set(sys.modules)

import json  # noqa: E402

UNWANTED = ("opentelemetry", "httpx", "textual")


def peak_mb() -> float:
    """This process's own peak; what wait4 tells would include the parent's."""
    try:
        with open("/proc/self/status") as f:
            return int(next(line for line in f if line.startswith("VmHWM")).split()[1]) / 1024
    except OSError:
        return 0.0


def closure(names: list[str]) -> tuple[int, float]:
    """Installed distributions that `names` need without extras, and their megabytes."""
    import importlib.metadata
    import re

    todo, found, size = list(names), set(), 0
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        try:
            dist = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform or python
        if name not in found:
            found.add(name)
            size += sum(p.stat().st_size for f in dist.files or () if (p := f.locate()).is_file())
            todo += [re.match(r"[\w.-]+", r)[0] for r in dist.requires or () if "extra ==" not in r]
    return len(found), size / 1e6


figures = {"peak_mb": peak_mb(), "modules": len(before), "unwanted": sum(m in before for m in UNWANTED)}
if sys.argv[2:]:
    figures["packages"], figures["site_mb"] = closure(sys.argv[2:])
print(json.dumps(figures))
