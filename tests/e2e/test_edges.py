"""What a person meets at the edges: a ledger edited by hand, a file that is no bundle, a folder to certify, a fix that can be typed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from mandamus import wiring
from mandamus.cli.codes import CODES
from mandamus.cli.main import root
from tests.e2e.cli_world import World

ROOT = Path(__file__).parents[2]


@pytest.fixture
def two(world: World) -> World:
    """Two runs that are done."""
    for prompt in ("Pay", "Pay again"):
        world.ok("run", "payout.py:small", prompt)
    return world


# -- doctor --------------------------------------------------------------------------------------------------------------------
def by_hand(world: World, *statements: str) -> None:
    """As somebody with a database shell does it: the file's own guards do not mind."""
    import apsw

    db = apsw.Connection(str(world.folder / ".mandamus" / "run.db"))
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    for statement in statements:
        db.execute(statement)
    assert db.changes() >= 1
    db.close()


OF_FIRST = "(SELECT no FROM head WHERE run <> 'log' ORDER BY run LIMIT 1)"
EDITS = {
    "a value in a record": (
        "UPDATE event SET body = CAST(replace(CAST(body AS TEXT), '\"turn\":1', '\"turn\":2') AS BLOB) "
        f"WHERE spot >> 33 = {OF_FIRST} AND spot >> 5 & 268435455 = 3",
        "(event ", "MDM-06",
    ),
    "a digest in a record": (
        "UPDATE event SET body = CAST(substr(CAST(body AS TEXT), 1, instr(CAST(body AS TEXT), '\"prev\":\"') + 7) || "
        "CASE substr(CAST(body AS TEXT), instr(CAST(body AS TEXT), '\"prev\":\"') + 8, 1) WHEN '0' THEN '1' ELSE '0' END || "
        "substr(CAST(body AS TEXT), instr(CAST(body AS TEXT), '\"prev\":\"') + 9) AS BLOB) "
        f"WHERE spot >> 33 = {OF_FIRST} AND spot >> 5 & 268435455 = 5",
        "(event 5)", "MDM-0641",
    ),
    "the type of a record": (
        "UPDATE event SET body = CAST(replace(CAST(body AS TEXT), 'ActionEnded', 'ActionEndex') AS BLOB) "
        f"WHERE spot >> 33 = {OF_FIRST} AND CAST(body AS TEXT) LIKE '%ActionEnded%'",
        "(event 8)", "MDM-0602",
    ),
    "a payload": (
        "UPDATE payload SET bytes = CAST(substr(bytes, 1, 32) || '\"Pay Mallory\"' AS BLOB) "
        f"WHERE spot >> 33 = {OF_FIRST} AND part = 'input'",
        "(event 0)", "MDM-0610",
    ),
    "a payload taken away": (f"DELETE FROM payload WHERE spot >> 33 = {OF_FIRST} AND part = 'input'", "(event 0)", "MDM-0611"),
    "a record taken away": (f"DELETE FROM event WHERE spot >> 33 = {OF_FIRST} AND spot >> 5 & 268435455 = 4", "", "MDM-0632"),
    "the head row": (f"UPDATE head SET hash = zeroblob(32) WHERE no = {OF_FIRST}", "", "MDM-06"),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_doctor_names_the_run_and_the_event_of_an_edit_by_hand(two: World, edit: str) -> None:
    statement, event, code = EDITS[edit]
    first, second = (row["run"] for row in two.ok("runs", "--json").stream)
    assert two("doctor").code == 0
    by_hand(two, statement)
    told = two("doctor", "--json")
    (line,) = [x for x in told.data["lines"] if x["check"] == "chains"]
    assert (told.code, line["state"]) == (1, "broken")
    assert f"run {first}" in line["says"]
    assert event in line["says"]
    assert code in line["says"]
    assert second not in line["says"], "what holds is not accused"
    assert "evidence" in line["fix"]
    assert two("show", second).code == 0
    assert two("doctor", "--quick").code == 0, "it did not look, and says so"
    assert any("not walked" in x["says"] for x in two("doctor", "--quick", "--json").data["lines"])


def test_doctor_misses_a_guard_that_was_taken_away(two: World) -> None:
    import apsw

    db = apsw.Connection(str(two.folder / ".mandamus" / "run.db"))
    db.execute("DROP TRIGGER event_never_changes")
    db.close()
    told = two("doctor")
    assert (told.code, "lost its guard event_never_changes" in told.out) == (1, True)


def test_doctor_says_what_it_left_out(two: World) -> None:
    told = two("doctor", "--walk", "20", "--json")
    lines = [x for x in told.data["lines"] if x["check"] == "chains"]
    assert [x["state"] for x in lines] == ["ok", "degraded"]
    assert "chain of 3 not walked" in lines[1]["says"]
    assert lines[1]["fix"] == "mandamus doctor --walk 0"
    assert [x["state"] for x in two("doctor", "--walk", "0", "--json").data["lines"] if x["check"] == "chains"] == ["ok"]


def test_progress_is_told_beside_the_answer_and_only_when_it_takes_long(two: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from mandamus.cli import progress

    assert "chains: " not in two("doctor").err
    monkeypatch.setattr(progress, "LINES_S", 0.0)
    told = two("doctor", "--json")
    assert "chains: " in told.err
    assert "a second" in told.err
    assert told.data["exit_code"] == 0, "the answer is still one object"
    assert "chains: " not in two("doctor", "-q").err


# -- verify and bundle -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("content", [b"", b"no bundle\n", b'{"a":1}\n', b'{"a": 1}\n', b"\x7fELF\x00\x01" * 999, b"[1,2]"])
def test_a_file_that_is_no_bundle_gets_our_words(two: World, content: bytes) -> None:
    (two.folder / "x").write_bytes(content)
    told = two("verify", "x", "--trust", ".mandamus/trust")
    assert told.code == (1 if content else 2)
    assert told.out.startswith("NOT PROVEN")
    assert "mandamus bundle" in told.out
    assert not any(word in told.out for word in ("Expecting", "char 0", "decode", "column"))


def test_quiet_is_the_verdict_and_what_is_broken(two: World) -> None:
    two.ok("bundle", "last", "-o", "run.bundle")
    trust = ("--trust", ".mandamus/trust")
    assert len(two.ok("verify", "run.bundle", *trust).out.splitlines()) > 10
    assert len(two.ok("verify", "run.bundle", *trust, "-q").out.splitlines()) == 2
    raw = (two.folder / "run.bundle").read_bytes()
    (two.folder / "bad.bundle").write_bytes(raw.replace(b'"epoch":1', b'"epoch":2', 1))
    told = two("verify", "--quiet", "bad.bundle", *trust)
    assert (told.code, told.out.startswith("NOT PROVEN"), "event " in told.out) == (1, True, True)


def test_no_line_of_a_finding_is_empty(two: World) -> None:
    two.ok("bundle", "last", "-o", "run.bundle")
    raw = (two.folder / "run.bundle").read_bytes()
    for position in range(0, len(raw), 997):
        (two.folder / "bad.bundle").write_bytes(raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :])
        told = two("verify", "bad.bundle", "--trust", ".mandamus/trust")
        assert told.code == 1
        assert not [row for row in told.out.splitlines() if row.split()[1:] in ([], ["-"])], told.out


def test_a_bundle_of_an_open_run_says_that_it_is_open(world: World) -> None:
    world.people()
    world.waiting()
    told = world("bundle", "last", "-o", "run.bundle")
    assert (told.code, "the run is not finished" in told.out) == (4, True)
    assert world("bundle", "last", "-o", "run.bundle", "--json").data["state"] == "open"


# -- certify -----------------------------------------------------------------------------------------------------------------------
def test_a_folder_is_certified_with_one_verdict(world: World) -> None:
    told = world.ok("certify", str(ROOT / "examples" / "effects"), "--sqlite", "0", "--json")
    assert told.data["ok"] is True
    assert {Path(x["target"].partition(":")[0]).stem for x in told.data["reports"]} == {
        "idempotent", "irreversible", "keyed", "read", "reconcilable",
    }  # fmt: skip


TWICE = '''
from mandamus import Agent, tool
from mandamus.data import Public
from mandamus.drivers.model_scripted import ScriptedModel, Step

@tool(safety="write", effect="{effect}", data=Public())
def {name}(to: str) -> str:
    """Send a letter."""
    return "sent"

agent = Agent(name="{name}-bot", model=ScriptedModel([Step(calls=(("{name}", {{"to": "Acme"}}),)), "done"]), tools=[{name}],
              policies=[{{"id": "w", "permit": {{"safety": "write"}}}}])
'''


def test_a_folder_without_agents_names_what_it_holds(world: World) -> None:
    folder = world.folder / "desk"
    folder.mkdir()
    assert world("certify", "desk").code == 2
    (folder / "tools.py").write_text(TWICE.partition("\nagent = ")[0].format(effect="idempotent", name="send"))
    told = world("certify", "desk")
    assert (told.code, "MDM-0283" in told.err, "tools.py" in told.err) == (2, True, True)
    (folder / "agent_file.py").write_text(TWICE.format(effect="irreversible", name="post"))
    told = world.ok("certify", "desk", "--sqlite", "0")
    assert "not certified: desk/tools.py (it holds tools, and no agent that calls them)" in told.out
    assert told.out.rstrip().endswith("1 agent of this folder: nothing twice, nothing unaccounted")


def test_a_folder_with_agent_yaml_is_that_agent(world: World) -> None:
    told = world("certify", str(ROOT / "examples" / "minimal"), "--sqlite", "0", "--json")
    assert [Path(x["target"]).name for x in told.data["reports"]] == ["agent.yaml"]


# -- fixes that can be typed ---------------------------------------------------------------------------------------------------------
def test_the_fix_of_a_missing_key_makes_it(world: World) -> None:
    told = world("approve", "last", "--key", "my keys/alice.pem")
    command = told.err.partition("fix       ")[2].partition(" makes")[0]
    assert "MDM-0190" in told.err
    world.ok(*shlex.split(command.replace("NAME", "alice"))[1:])
    assert (world.folder / "my keys" / "alice.pem").is_file()


def test_every_command_that_a_page_names_exists() -> None:
    """Each `mandamus VERB` in a page of `help CODE`, and each option behind it."""
    import re

    import click

    group, seen = root(), 0
    for code, (_, text) in CODES.items():
        for words in re.findall(r"(?:`|: |, )mandamus ([a-z][^`;]*)", text):
            first, *rest = words.split()
            command = group.get_command(click.Context(group), first.rstrip(".,"))
            if isinstance(command, click.Group):
                command = command.get_command(click.Context(command), rest.pop(0).rstrip(".,"))
            assert command is not None, (code, words)
            known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
            given = {x.rstrip(".,:)") for word in rest if word.startswith("--") for x in word.split("|")}
            assert given <= known | {"--help"}, (code, words, given - known)
            seen += 1
    assert seen > 40


# -- a ledger in a folder of the user's own --------------------------------------------------------------------------------------------
def test_a_ledger_elsewhere_keeps_its_things_in_a_folder_of_its_own(world: World) -> None:
    """The user's policies/ and keys/ lie in the same folder as run.db, and stay as they are."""
    (world.folder / "policies").mkdir()
    (world.folder / "trust").write_text("mine\n")
    world.ok("run", "payout.py:small", "Pay", "--ledger", "sqlite:///run.db")
    assert not list((world.folder / "policies").iterdir())
    assert (world.folder / "trust").read_text() == "mine\n"
    assert not (world.folder / "keys").exists()
    assert (world.folder / ".mandamus" / "keys" / "log.pem").is_file()
    world.ok("bundle", "last", "-o", "run.bundle", "--ledger", "sqlite:///run.db")
    world.ok("verify", "run.bundle", "--trust", ".mandamus/trust")


def test_a_folder_that_an_earlier_version_made_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "log.pem").write_text("a key of then")
    assert wiring.home_of(f"sqlite:///{tmp_path}/run.db").folder == tmp_path
    assert wiring.home_of(f"sqlite:///{tmp_path}/new/run.db").folder == tmp_path / "new" / ".mandamus"
    assert wiring.home_of(f"sqlite:///{tmp_path}/.mandamus/run.db").folder == tmp_path / ".mandamus"
