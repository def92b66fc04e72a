"""The same story gives the same bytes: records, payloads, bundles and prompts, under any hash seed, time zone, locale and Python.

Clock and entropy are the story's own; whatever else could differ between two processes must not reach the log.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ZONES = ("UTC", "Pacific/Kiritimati", "America/St_Johns")
LOCALES = ("C", "C.UTF-8", "tr_TR.UTF-8")


def told(python: str = sys.executable, *, seed: str = "0", tz: str = "UTC", locale: str = "C", path: str = "") -> dict[str, Any]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LC_", "LANG", "MANDAMUS", "PYTHON"))}
    env |= {"PYTHONHASHSEED": seed, "TZ": tz, "LC_ALL": locale, "PYTHONPATH": os.pathsep.join(x for x in (str(ROOT / "src"), path) if x)}
    done = subprocess.run(
        [python, "-m", "tests.e2e.byte_story"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    return made


@cache
def reference() -> str:
    return json.dumps(told())


def everywhere(seeds: Iterable[int]) -> set[str]:
    """What is told under these hash seeds, each in another zone and locale."""
    with ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 2)) as pool:
        jobs = [pool.submit(told, seed=str(n), tz=ZONES[n % 3], locale=LOCALES[n // 3 % 3]) for n in seeds]
        return {json.dumps(job.result()) for job in jobs}


def test_another_hash_seed_zone_and_locale() -> None:
    assert everywhere([5]) == {reference()}


@pytest.mark.service
def test_twenty_hash_seeds_three_zones_three_locales() -> None:
    assert everywhere(range(20)) == {reference()}


def test_the_story_says_something() -> None:
    assert len(set(json.loads(reference()).values())) == 4


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_another_python(version: str) -> None:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        pytest.skip("this is the Python that runs the tests")
    python = os.environ.get(f"PYTHON{version.replace('.', '')}") or shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"there is no python{version} here")
    probe = "import msgspec, orjson, cryptography, cedarpy, apsw, httpx, ruamel.yaml"
    found = subprocess.run([python, "-c", probe], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    if found.returncode:
        pytest.skip(f"python{version} lacks what mandamus needs: {found.stderr.strip().splitlines()[-1][:80]}")
    assert json.dumps(told(python)) == reference()
