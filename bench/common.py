"""Shared by every script of this folder, peers included: meters, JSON lines, scratch folders on a real disk, facts about the machine.

Standard library only, because it is imported in every peer's venv; and what a measured process does not need is imported late, because
whole processes are measured too. Settings (environment):

    BENCH_DATA       where databases go (default: `.data` beside this file); a real disk, or W2 refuses to report
    BENCH_QUICK=1    smallest sizes
    BENCH_RUNS       how many runs are driven at once in W3 (200; 20 when quick)
    BENCH_CAP=1      set by `interleave` for a system that may be cut off: say when the timed part began
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Sample = dict[str, Any]
Work = Callable[[int, str], Sample]
"""One measurement: (turns, folder) -> figures by name. `wall` and `cpu` are µs per turn unless the unit says otherwise."""

BENCH = pathlib.Path(__file__).resolve().parent
DATA = pathlib.Path(os.environ.get("BENCH_DATA") or BENCH / ".data")
QUICK = bool(os.environ.get("BENCH_QUICK"))
RUNS = int(os.environ.get("BENCH_RUNS") or (20 if QUICK else 200))
CAPPED = bool(os.environ.get("BENCH_CAP"))
MEMORY_DISKS = ("tmpfs", "ramfs")


class NotMeasured(Exception):
    """A row that has no figure, and why. Never a failure of the bench."""


def emit(**fields: Any) -> None:
    """One JSON object on one line."""
    print(json.dumps(fields), flush=True)


class Meter:
    """`with Meter() as m: work()`, then `m.per(units)`: wall and CPU in µs, bytes written, flushes, all per unit.

    Report wall and CPU together: neighbours move wall by 30x and CPU by about 15 %. Bytes and flushes do not depend on the machine.
    """

    def __enter__(self) -> Meter:
        if CAPPED:
            emit(began=time.perf_counter(), cpu=time.process_time())
        self._written, self._flushes = written(), flushes()
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = (time.perf_counter() - self._wall) * 1e6
        self.cpu = (time.process_time() - self._cpu) * 1e6
        self.written, self.flushes = written() - self._written, flushes() - self._flushes

    def per(self, units: int, *, disk: bool = True) -> Sample:
        figures: Sample = {"wall": self.wall / units, "cpu": self.cpu / units}
        if disk:
            figures["written"] = self.written / units
            if shimmed():
                figures["flushes"] = self.flushes / units
        return figures


def rates(events: int, m: Meter) -> Sample:
    """How many records a second: of wall time, and of CPU time, which is what a core does."""
    return {"events": events, "events_per_s": events / m.wall * 1e6, "events_per_cpu_s": events / m.cpu * 1e6}


def middle(samples: Sequence[Sample]) -> Sample:
    """The median of every figure that all samples have."""
    import statistics

    return {key: statistics.median(s[key] for s in samples) for key in samples[0]}


def repeat(work: Callable[[], object], units: int, times: int) -> Sample:
    """Median cost of `work` over `times` repetitions, after one that warms up. For work that touches no disk."""
    work()
    samples = []
    for _ in range(times):
        with Meter() as m:
            work()
        samples.append(m.per(units, disk=False))
    return middle(samples)


def calls(work: Callable[[], object], units: int) -> float:
    """Calls of Python and C functions per unit in this thread. Independent of the machine."""
    n = 0

    def seen(_frame: object, event: str, _arg: object) -> None:
        nonlocal n
        n += event in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return n / units


def written() -> int:
    """Bytes this process has handed to write(); 0 where the system does not tell."""
    try:
        with open("/proc/self/io") as f:
            return int(next(line for line in f if line.startswith("wchar")).split()[1])
    except OSError:
        return 0


def shimmed() -> bool:
    """Is this process under the flush shim?"""
    return hasattr(ctypes.CDLL(None), "shim_flushes")


def flushes() -> int:
    """fsync and fdatasync calls of this process so far; 0 when not under the shim."""
    if not shimmed():
        return 0
    counter = ctypes.CDLL(None).shim_flushes
    counter.restype = ctypes.c_ulong
    return int(counter())


@contextlib.contextmanager
def scratch(tag: str) -> Iterator[str]:
    """A folder on the disk that is measured, removed afterwards."""
    import shutil
    import tempfile

    DATA.mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=tag + "-", dir=DATA)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep(path: pathlib.Path, data: bytes) -> None:
    """What a caller stores for a framework that leaves it to him: whole or not at all, and on the disk."""
    beside = path.with_suffix(".new")
    with open(beside, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    beside.replace(path)


def size_of(folder: str) -> int:
    """Bytes of all files below `folder`."""
    return sum(p.stat().st_size for p in pathlib.Path(folder).rglob("*") if p.is_file())


def disk(folder: pathlib.Path | None = None) -> str:
    """The file system under a folder (default: the scratch folders'), for example `ext4`; `unknown` where the system does not tell."""
    DATA.mkdir(parents=True, exist_ok=True)
    here, best, kind = str((folder or DATA).resolve()) + "/", "", "unknown"
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
            _, mount, found = line.split()[:3]
            if here.startswith(mount.rstrip("/") + "/") and len(mount) >= len(best):
                best, kind = mount, found
    return kind


def require_disk() -> None:
    """Durable figures on a memory disk are worthless: refuses to take them."""
    if disk() in MEMORY_DISKS:
        raise NotMeasured(f"scratch folders are on {disk()}, where a flush is free; point BENCH_DATA at a real disk")


def machine() -> Sample:
    """What a reader needs to judge the figures."""
    import platform
    import subprocess

    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration):
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    git = subprocess.run(["git", "-C", str(BENCH), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    code = [":/src", ":/bench/*.py", ":/bench/peers"]
    clean = subprocess.run(["git", "-C", str(BENCH), "diff", "--quiet", "HEAD", "--", *code], capture_output=True, check=False)
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": (git.stdout.strip() or "none") + ("+" if clean.returncode == 1 else ""),
        "cores": os.cpu_count(),
        "cpu": model,
        "disk": disk(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def serve(
    system: str,
    units: Mapping[str, Mapping[str, Work]],
    guarantee: str | Mapping[str, str] = "",
    argv: Sequence[str] | None = None,
) -> None:
    """The main function of every measured process: `script.py [UNIT [VARIANT]] [--turns N] [--folder F]` prints one JSON line per figure.

    `units` maps a unit to its variants. Without a unit all that stand alone are run, small: that is how a peer is tried by hand.
    `_lives` makes it a nursery of lives instead (lives.py).
    """
    import argparse

    if argv is None and sys.argv[1:] == ["_lives"]:
        import lives

        return lives.nursery(lambda life: serve(system, units, guarantee, life))
    p = argparse.ArgumentParser()
    p.add_argument("unit", nargs="?", choices=list(units))
    p.add_argument("variant", nargs="?")
    p.add_argument("--turns", type=int, default=10)
    p.add_argument("--folder")
    asked = p.parse_args(argv)
    for unit in [asked.unit] if asked.unit else [u for u in units if u in ("w1", "w2")]:
        for variant, work in units[unit].items():
            if asked.variant not in (None, variant):
                continue
            promise = guarantee if isinstance(guarantee, str) else guarantee.get(f"{unit} {variant}", guarantee.get(variant, ""))
            fields = {"system": system, "unit": unit, "variant": variant, "turns": asked.turns, "guarantee": promise}
            try:
                with contextlib.ExitStack() as stack:
                    figures = work(asked.turns, asked.folder or stack.enter_context(scratch(unit)))
            except NotMeasured as why:
                figures = {"note": str(why)}
            if unit == "crash" and shimmed():
                figures = {**figures, "flushes": flushes()}
            emit(**fields, **figures)
    sys.stdout.flush()
    if "threading" in sys.modules and sys.modules["threading"].active_count() > 1:
        os._exit(0)  # a peer's helper threads may not hold the round up
