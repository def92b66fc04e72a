"""A user's file is imported in one way, whoever asks for it: agent.yaml, the command line, the crash certifier."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mandamus import Misuse
from mandamus.cli import agents
from mandamus.drivers import code_import
from mandamus.testing.certify import find

AGENT = "from mandamus import Agent\nagent = Agent(name={!r}, model='openai:x')\n"


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("desk_x", "json_", "agent_file")):
            sys.modules.pop(name)


def folder(tmp_path: Path, name: str, file: str = "desk_x.py") -> Path:
    (tmp_path / name).mkdir()
    (tmp_path / name / file).write_text(AGENT.format(name))
    return tmp_path / name


def test_everybody_gets_the_same_object_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = folder(tmp_path, "one")
    monkeypatch.chdir(at)
    by_path = agents.load("desk_x.py:agent")
    assert agents.load(str(at / "desk_x.py")) is by_path
    assert agents.load("desk_x:agent") is find("desk_x:agent")[0] is by_path
    assert code_import.resolve("desk_x:agent", at, "agent.yaml:3")[0] is by_path


def test_the_certifier_reads_a_file_anew_each_time(tmp_path: Path) -> None:
    """What an earlier certification left in a module's variables is no part of the world of the next one."""
    target = str(folder(tmp_path, "one") / "desk_x.py")
    assert find(target)[0] is not find(target)[0]


def test_a_file_of_the_same_name_elsewhere_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for name in ("one", "two", "three"):
        monkeypatch.chdir(folder(tmp_path, name))
        for reference in ("desk_x.py", "desk_x:agent"):
            names += [agents.load(reference).spec.name, find(reference)[0].spec.name]  # type: ignore[union-attr]
    assert names == ["one"] * 4 + ["two"] * 4 + ["three"] * 4


def test_a_module_of_the_library_keeps_its_place(tmp_path: Path) -> None:
    import json

    at = folder(tmp_path, "one", "json.py")
    assert agents.load(str(at / "json.py")).spec.name == "one"
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("text", "shown"),
    [("raise ValueError('s3cret')\n", "ValueError"), ("import sys\nsys.exit('s3cret')\n", "SystemExit"), ("x = (\n", "SyntaxError")],
)
def test_code_that_fails_is_named_by_its_line_in_all_three_ways(tmp_path: Path, text: str, shown: str) -> None:
    (tmp_path / "desk_x.py").write_text(text)
    line = f"desk_x.py:{1 if 'import' not in text else 2}"
    for ask in (agents.load, find, lambda place: code_import.resolve("desk_x:agent", Path(place).parent, "agent.yaml:3")):
        with pytest.raises(Misuse) as refused:
            ask(str(tmp_path / "desk_x.py"))
        said = str(refused.value)
        assert shown in said
        assert line in said
        assert "s3cret" not in said
    assert "desk_x" not in sys.modules


def test_what_a_module_imports_and_is_not_there_is_not_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "desk_x.py").write_text("import no_such_thing_here\n")
    for reference in ("desk_x.py", "desk_x:agent"):
        with pytest.raises(Misuse, match="no_such_thing_here") as refused:
            agents.load(reference)
        assert refused.value.diagnosis.code == "MDM-0016"
    for missing in ("no_such_thing_here:agent", "not a name:agent", ":agent"):
        with pytest.raises(Misuse) as refused:
            agents.load(missing)
        assert refused.value.diagnosis.code == "MDM-0014"
        with pytest.raises(Misuse) as refused:
            find(missing)
        assert refused.value.diagnosis.code == "MDM-0283"


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("a.py", ("a.py", "")), ("a.py:agent", ("a.py", "agent")), ("pkg.app:agent", ("pkg.app", "agent")), 
        ("C:\\x\\a.py", ("C:\\x\\a.py", "")),
        ("C:/x/a.py:agent", ("C:/x/a.py", "agent")),
    ],
)  # fmt: skip
def test_a_reference_is_divided_at_its_last_colon(reference: str, said: tuple[str, str]) -> None:
    assert code_import.split(reference) == said
