"""kill -9 at any moment of an erasure: whoever carries it on finishes it; in between nothing is called erased that can still be read."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mandamus.proof.verify import verify
from mandamus.runtime import evidence
from mandamus.runtime.forgetting import forget
from tests.e2e.clinic import PATIENT, WORD, Clinic

FORGETS = """
import asyncio, sys
from pathlib import Path
from tests.e2e.clinic import Clinic
async def main():
    async with Clinic(Path(sys.argv[1])) as clinic:
        print("begins", flush=True)
        await clinic.forget()
        print("done", flush=True)
asyncio.run(main())
"""
ROUNDS = 12


def forgets(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", FORGETS, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def killed_after(folder: Path, seconds: float) -> None:
    worker = forgets(folder)
    assert worker.stdout is not None
    assert worker.stdout.readline() == "begins\n"
    time.sleep(seconds)
    worker.send_signal(signal.SIGKILL)
    worker.wait(timeout=30)
    worker.stdout.close()


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_whoever_carries_on_finishes_it(tmp_path: Path, seed: int) -> None:
    async def before() -> tuple[list[str], list[bytes]]:
        async with Clinic(tmp_path) as clinic:
            runs = [(await clinic.treat()).run_id for _ in range(5)]
            return runs, await clinic.deks()

    async def after(runs: list[str], deks: list[bytes]) -> None:
        async with Clinic(tmp_path) as clinic:
            told = {c for x in await clinic.log("Erased") for c in x.fact.commits}  # type: ignore[attr-defined]
            forms = {form for run in runs for form in await clinic.forms(run)}
            assert len(forms) == 1, "all of it or nothing"
            assert not told or forms == {"erased"}, "nothing is told that can still be read"
            reports = await forget.resume(clinic.env)
            if not reports and not told:  # it died before it was asked for
                await clinic.forget()
            assert {form for run in runs for form in await clinic.forms(run)} == {"erased"}
            gone = [key for key in deks if key not in await clinic.deks()]
            assert len(gone) == 2 + 2 * len(runs)
            assert clinic.where(WORD.encode(), *gone) == []
            assert await forget.resume(clinic.env) == []
            for run in runs:
                proof = verify(await evidence.build(clinic.env, run, {}, ""), clinic.env.trust())
                assert (proof.ok, proof.exit_code) == (True, 3)

    runs, deks = asyncio.run(before())
    killed_after(tmp_path, random.Random(seed).uniform(0, 0.03))
    asyncio.run(after(runs, deks))


def test_of_two_that_forget_at_once_one_does_it(tmp_path: Path) -> None:
    async def before() -> None:
        async with Clinic(tmp_path) as clinic:
            await clinic.treat()

    async def after() -> None:
        async with Clinic(tmp_path) as clinic:
            await forget.resume(clinic.env)
            told = [c for x in await clinic.log("Erased") for c in x.fact.commits]  # type: ignore[attr-defined]
            assert len(told) == len(set(told)) == 10
            assert (await forget.survey(clinic.env, subject=PATIENT)).keys == ()

    asyncio.run(before())
    workers = [forgets(tmp_path) for _ in range(2)]
    for worker in workers:
        worker.communicate(timeout=60)
    assert {worker.returncode for worker in workers} == {0}
    asyncio.run(after())
