"""One corpus, every verifier: the right exit code, and the same word on each claim. A disagreement is a defect of one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mandamus.errors import Misuse
from mandamus.proof import verify
from mandamus.proof.continuity import Head
from mandamus.proof.trust import Trust
from mandamus.proof.verify import Beside
from tests.verifiers.corpus import ELSEWHERE, NUMBERS, Case, cases
from tests.verifiers.single import SCRIPT, SINGLE, by_single, said

GROUPS = ("chain", "log", "more", "odd", "people", "runs", "shown")


def beside(case: Case) -> Beside:
    last = None if case.last is None else {origin: Head(root, size) for origin, (size, root) in case.last.items()}
    return Beside(views=case.views, blobs=case.blobs, now=case.now, max_age=case.max_age, last=last)


def library(case: Case) -> dict[str, Any]:
    """What the library says; a trust file that it refuses is exit code 2."""
    try:
        trust = None if case.trust is None else Trust.parse(case.trust)
    except Misuse:
        return {"exit_code": 2}
    return said(verify(case.bundle, trust, beside(case)))


def single(case: Case) -> dict[str, Any]:
    try:
        return said(by_single(case.bundle, case.trust, beside(case)))
    except SINGLE.Usage:
        return {"exit_code": 2}


def differences(group: str) -> list[str]:
    """Each case that somebody answers wrongly, or otherwise than the other."""
    out = []
    for case in cases():
        if not case.name.startswith(group + "/"):
            continue
        one, other = library(case), single(case)
        if one["exit_code"] not in case.codes or other["exit_code"] not in case.codes:
            out.append(f"{case.name}: {case.codes} is right, library {one['exit_code']}, single file {other['exit_code']}")
        elif one["exit_code"] != 2 and one != other:
            out.append(f"{case.name}: {one} against {other}")
    return out


@pytest.mark.parametrize("group", GROUPS)
def test_the_library_and_the_single_file_agree(group: str) -> None:
    """The same exit code, verdict, state and outcome of each claim, and the right one."""
    assert differences(group) == []


def test_the_corpus_has_every_attack_that_a_verifier_can_see() -> None:
    """Each number of the list is in the corpus, or is said to be tested elsewhere. Honest bundles are there in number."""
    numbers = {case.attack for case in cases()}
    assert numbers - {0} == NUMBERS
    assert not numbers & set(ELSEWHERE)
    honest = [case for case in cases() if not case.attack]
    assert len(honest) > 80
    assert {code for case in honest for code in case.codes} == {0, 3, 4, 5}
    assert {case.name.split("/")[0] for case in cases()} == set(GROUPS)


def test_a_forgery_never_passes() -> None:
    """No attack is PROVEN by anybody, but for those few that change nothing that anybody relies on (said so in the corpus)."""
    harmless = {case.name for case in cases() if case.attack and 0 in case.codes}
    assert harmless == {"chain/07_section_key_emptied", "chain/43_the_other_signature_of_the_same"}


def as_files(case: Case, folder: Path) -> list[str]:
    """The arguments for a process. The clock is the machine's own, so only cases without one are run so."""
    (folder / "bundle").write_bytes(case.bundle)
    args = [str(folder / "bundle"), "--json"]
    if case.trust is not None:
        (folder / "trust").write_text(case.trust, encoding="utf-8")
        args += ["--trust", str(folder / "trust")]
    for name, files in (("views", case.views), ("blobs", case.blobs)):
        if files:
            (folder / name).mkdir()
            for file, raw in files.items():
                (folder / name / file).write_bytes(raw)
            args += [f"--{name}", str(folder / name)]
    return args


def test_both_commands_as_processes(tmp_path: Path) -> None:
    """A sample with each exit code, as an auditor runs it: `python mandamus-verify.py`, isolated from every installed package."""
    sample: dict[int, list[Case]] = {}
    for case in cases():
        if case.last is None and case.max_age is None and not case.name.startswith("log/") and len(case.codes) == 1:
            sample.setdefault(case.codes[0], []).append(case)
    assert sorted(sample) == [0, 1, 2, 3, 4, 5]
    for code, found in sample.items():
        for case in found[:: max(1, len(found) // 3)][:3]:
            folder = tmp_path / case.name.replace("/", "_")
            folder.mkdir()
            args = as_files(case, folder)
            alone = subprocess.run([sys.executable, "-I", "-S", str(SCRIPT), *args], capture_output=True, check=False, timeout=120)
            ours = subprocess.run([sys.executable, "-m", "mandamus", "verify", *args], capture_output=True, check=False, timeout=120)
            assert (alone.returncode, ours.returncode) == (code, code), (case.name, alone.stderr, ours.stderr)
            assert json.loads(alone.stdout)["exit_code"] == json.loads(ours.stdout)["exit_code"] == code
            assert alone.stderr == b""
