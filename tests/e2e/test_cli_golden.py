"""Golden transcripts: commands and exactly what they print. `--golden-update` writes them anew; read the difference like code."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli_world import World, steady

FOLDER = Path(__file__).parent.parent / "golden" / "cli"
SCRIPTS = sorted(FOLDER.glob("*.txt"))


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("COLUMNS", "120")
    return world


@pytest.mark.parametrize("script", SCRIPTS, ids=[p.stem for p in SCRIPTS])
def test_a_transcript_is_what_is_printed(script: Path, world: World, request: pytest.FixtureRequest) -> None:
    wanted = script.read_text(encoding="utf-8")
    found = play(world, wanted)
    if request.config.getoption("--golden-update", default=False):
        script.write_text(found, encoding="utf-8")
    assert found == script.read_text(encoding="utf-8")


def play(world: World, script: str) -> str:
    """The `#` and `$` lines of a script, with what each command says; what `{digest}`, `{allowance}`, `{hold}` are now is filled in."""
    rows: list[str] = []
    for line in script.splitlines():
        if line.startswith("#"):
            rows.append(line)
        if line.startswith("$ mandamus"):
            told = world(*shlex.split(_filled(world, line[len("$ mandamus") :])))
            rows += [line, *_marked(told.out, "  "), *_marked(told.err, "! "), f"= {told.code}", ""]
    return "\n".join(rows) + "\n"


def _marked(text: str, mark: str) -> list[str]:
    plain = steady(text)
    return [(mark + row).rstrip() for row in plain.split("\n")] if plain else []


def _filled(world: World, line: str) -> str:
    known: dict[str, Any] = {}
    if "{digest}" in line:
        known["digest"] = world("inbox", "--json").stream[-1]["digest"]
    if "{allowance}" in line:
        known["allowance"] = world("allowance", "list", "--json").stream[-1]["name"]
    if "{hold}" in line:
        known["hold"] = world("hold", "list", "--json").stream[-1]["hold"]
    return line.format(**known) if known else line


def test_every_verb_has_a_transcript() -> None:
    from mandamus.cli.table import NOUNS, VERBS

    played = "\n".join(p.read_text(encoding="utf-8") for p in SCRIPTS)
    elsewhere = {"demo", "certify", "init"}  # they have tests of their own; a transcript would only be slow
    verbs = [v for v in VERBS if v not in elsewhere] + [f"{noun} {v}" for noun, (_, verbs) in NOUNS.items() for v in verbs]
    assert [v for v in verbs if f"$ mandamus {v}" not in played] == []
