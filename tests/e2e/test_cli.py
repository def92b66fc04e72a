"""The command line as people, scripts and consoles meet it: one person after the other, and every surrounding a verb can fall into."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mandamus import wiring
from mandamus.cli import agents, asked, read
from mandamus.cli.main import ROWS_MAX
from mandamus.cli.table import ALIASES, NOUNS, VERBS
from mandamus.core.payload import card_digest
from mandamus.errors import MandamusError, Misuse, Refused
from tests.e2e.cli_world import World

ESC = "\x1b"
READERS: tuple[tuple[str, ...], ...] = (
    ("runs",),
    ("top",),
    ("show", "last"),
    ("show", "last", "--events", "-v"),
    ("why", "last/1.1"),
    ("inbox",),
    ("bundle", "last"),
    ("key", "list"),
    ("key", "trust"),
    ("allowance", "list"),
    ("doctor",),
    ("doctor", "payout.py"),
    ("help", "MDM-0330"),
    ("help",),
    ("completion", "zsh"),
    ("replay", "last"),
    ("key", "new", "carol.pem", "--name", "carol"),
    ("run", "payout.py:small", "Pay"),
    ("resume", "last"),
    ("approve", "last", "--key", "alice.pem"),
    ("reject", "last", "--key", "alice.pem"),
    ("settle", "last/1.1", "--done", "--key", "alice.pem"),
    ("cancel", "last", "--key", "alice.pem", "--halt"),
    ("diff", "last", "last"),
    ("fork", "last", "--at", "2"),
    ("verify", "none.bundle", "--trust", ".mandamus/trust"),
    ("schema", "run"),
    ("nonsense",),
    ("manifest", "show", "agent.yaml"),
    ("manifest", "sign", "agent.yaml", "--key", "alice.pem"),
    ("key", "enroll", "--principal", "p-carol"),
    ("allowance", "withdraw", "0"),
    ("ledger", "copy", "sqlite:///.mandamus/run.db", "sqlite:///.mandamus/new.db"),
    ("allowance", "grant", "payout.py", "--tool", "none", "--count", "1"),
    ("export", "none.bundle", "--as", "html"),
    ("key", "rotate", "--role", "bundle"),
    ("key", "revoke", "--principal", "p-nobody"),
    ("key", "sign", "agent.yaml", "--key", "alice.pem", "--yes"),
    ("hold", "place", "--run", "last", "--ground", "legal_claims"),
    ("hold", "list"),
    ("hold", "lift", "0"),
    ("forget", "--run", "last", "--dry-run"),
    ("log", "head"),
    ("log", "query", "--limit", "3"),
    ("log", "prove", "last"),
    ("log", "consistency", "1", "2"),
    ("log", "export", "files"),
    ("log", "compact"),
    ("witness", "status"),
    ("witness", "serve", "--key", "alice.pem", "--log", "nonsense"),
)


@pytest.fixture
def asking(world: World) -> World:
    """Two people, and a run that waits for them; what its model wrote is meant to deceive."""
    world.people()
    world.waiting("payout.py:odd")
    return world


# -- every verb, every surrounding -------------------------------------------------------------------------------------------------
def test_the_list_of_verbs_under_test_is_whole() -> None:
    known = {" ".join(args[:2]) if args[0] in NOUNS else args[0] for args in READERS}
    every = {*VERBS, *(f"{noun} {verb}" for noun, (_, verbs) in NOUNS.items() for verb in verbs)}
    assert every - known <= {"demo", "certify", "init", "worker"}, "these have tests of their own"


@pytest.mark.parametrize("args", READERS, ids=" ".join)
def test_every_verb_speaks_plainly_and_in_json(asking: World, args: tuple[str, ...]) -> None:
    """No traceback, no escape, nothing that hides; with --json one object, or one per line, and nothing else."""
    told = asking(*args)
    both = told.out + told.err
    assert told.code in (0, 1, 2, 3, 4, 5)
    assert not any(x in both for x in ("Traceback", ESC, "\u202e"))
    data = asking(*args, "--json")
    assert data.out.isascii()
    assert data.stream or args in (("allowance", "list"), ("hold", "list")), "an answer, or an error with its code"
    if data.stream and "error" in data.stream[0] and args[0] != "verify":
        assert data.stream[0]["exit_code"] == data.code
        assert data.stream[0]["error"]["code"].startswith("MDM-")
        assert data.err == ""


@pytest.mark.service
@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_consoles_that_cannot_encode_lose_nothing(asking: World, encoding: str) -> None:
    for args in (("show", "last"), ("inbox",), ("show", "last", "--events", "-v"), ("runs",), ("doctor",), ("frobnicate",), ("help",)):
        done = asking.process(*args, env={"PYTHONIOENCODING": encoding, "COLUMNS": "40", "NO_COLOR": "1", "TERM": "dumb"})
        assert b"Traceback" not in done.stderr, done.stderr
        assert done.returncode == (2 if args == ("frobnicate",) else 0), (args, done)
        done.stdout.decode(encoding)
        assert b"\x1b" not in done.stdout + done.stderr


@pytest.mark.service
@pytest.mark.parametrize("args", [("show", "last", "--events"), ("help",), ("runs", "--json"), ("--help",), ("key", "trust")], ids=" ".join)
def test_a_reader_that_goes_away_is_no_error(asking: World, args: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "mandamus", *args], stdout=writer, stderr=subprocess.PIPE, cwd=asking.folder, timeout=60, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_forty_columns_turn_a_table_into_blocks_and_cut_nothing(asking: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = asking("runs", "--json").stream[0]["run"]
    monkeypatch.setenv("COLUMNS", "40")
    rows = asking("runs").out.splitlines()
    assert f"run     {run}" in rows
    assert max(map(len, rows)) <= 40


# -- what must not happen ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "args",
    [("runs",), ("show", "last"), ("inbox",), ("resume", "last"), ("bundle", "last"), ("key", "list"), ("key", "trust")],
    ids=" ".join,
)
def test_reading_never_makes_a_ledger(world: World, args: tuple[str, ...]) -> None:
    told = world(*args)
    assert told.code == 2
    assert "MDM-0010" in told.err
    assert not (world.folder / ".mandamus").exists()


def test_doctor_makes_and_starts_nothing(world: World) -> None:
    before = sorted(p.name for p in world.folder.iterdir())
    told = world("doctor", "payout.py:small", "--json")
    assert told.code == 0
    assert {"start", "policy", "agent"} & {x["check"] for x in told.data["lines"]}
    assert sorted(p.name for p in world.folder.iterdir() if p.name != "__pycache__") == before


def test_doctor_tells_every_reason_why_an_agent_may_not_start_at_once(world: World) -> None:
    (world.folder / "bad.py").write_text(
        "from mandamus import Agent, tool\nfrom mandamus.data import Personal, subject\n"
        "from mandamus.drivers.model_scripted import ScriptedModel\n"
        "DATA = Personal(subject=subject('who'), retention='forever', allowed_lawful_bases=('contract',))\n"
        "@tool(safety='read', effect='read', data=DATA)\nasync def look(who: str) -> str:\n    'Look somebody up.'\n    return who\n"
        "RULES = [{'id': 'all', 'permit': {}}]\n"
        "agent = Agent(name='n', model=ScriptedModel(['x']), tools=[look], policies=RULES, annex_iii='employment')\n"
    )
    told = world("doctor", "bad.py", "--json")
    reasons = " ".join(x["says"] for x in told.data["lines"] if x["state"] == "refused")
    assert told.code == 3
    assert all(code in reasons for code in ("basis_missing", "retention_missing", "purpose_missing", "oversight_missing"))
    started = world("run", "bad.py", "Look", "--json")
    assert started.code == 3
    assert {r["code"] for r in started.data["error"]["reasons"]} >= {"basis_missing", "retention_missing", "purpose_missing"}


def test_doctor_finds_a_key_that_others_can_read(asking: World) -> None:
    (asking.folder / ".mandamus" / "keys" / "log.pem").chmod(0o644)
    told = asking("doctor", "--json")
    assert told.code == 1
    assert any(x["check"] == "keys" and x["state"] == "broken" and "chmod 600" in x["fix"] for x in told.data["lines"])


def test_doctor_finds_a_clock_that_is_behind_the_ledger(asking: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() - 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now)
    assert any(x["check"] == "clock" and x["state"] == "broken" for x in asking("doctor", "--json").data["lines"])


# -- votes -------------------------------------------------------------------------------------------------------------------------
def test_what_is_shown_is_computed_again_before_it_is_signed(asking: World) -> None:
    """A card that was exchanged together with the digest that names it still does not pass: it is held against the arguments."""

    async def check() -> None:
        ledger = wiring.open_ledger(wiring.ledger_uri())
        try:
            trust = wiring.home_of(wiring.ledger_uri()).trust()
            a = await asked.asked(ledger, "last", trust)
            proposal = a.story.records[a.action.seq]
            _, secret = await read.value_and_secret(ledger, proposal, "args")
            for change, what in _exchanged(a):
                card = {**a.card, **change}
                request = msgspec.structs.replace(a.request, card=card_digest(secret, card))
                with pytest.raises(Refused, match=what) as caught:
                    asked._same(a.story, a.action, request, proposal, a.args, secret, card)
                assert caught.value.diagnosis.code == "MDM-0330"
            other = msgspec.structs.replace(a.request, digest="0" * 64)
            with pytest.raises(Refused, match="stored call"):
                asked._same(a.story, a.action, other, proposal, a.args, secret, a.card)
            with pytest.raises(Refused, match="not the one that was asked"):
                asked._same(a.story, a.action, a.request, proposal, a.args, secret, {**a.card, "effect": "Nothing happens."})
        finally:
            await ledger.close()

    asyncio.run(check())


def _exchanged(a: asked.Asked) -> list[tuple[dict[str, Any], str]]:
    fields = a.card["fields"]
    cheaper = [{**f, "value": "1.00 USD"} if f["label"] == "amount" else f for f in fields]
    return [
        ({"fields": cheaper}, "another value of 'amount'"),
        ({"fields": fields[1:]}, "every argument"),
        ({"fields": [*fields, fields[0]]}, "every argument"),
        ({"action": "0" * 64}, "another action"),
        ({"tool": "look_up"}, "another action"),
    ]


def test_an_args_payload_that_was_edited_in_the_file_stops_everything(asking: World) -> None:
    import apsw

    item = asking("inbox", "--json").stream[0]
    db = apsw.Connection(str(asking.folder / ".mandamus" / "run.db"))
    db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)  # the file defends itself; whoever edits it by hand does not mind
    db.execute("UPDATE payload SET bytes = substr(bytes, 1, length(bytes) - 1) WHERE part = 'args'")
    assert db.changes() == 1
    db.close()
    told = asking.approve(item, "alice")
    assert told.code == 1
    assert "MDM-0610" in told.err
    assert asking("inbox").code == 1


def test_json_cannot_approve_without_a_digest(asking: World) -> None:
    told = asking("approve", "last", "--key", "alice.pem", "--json")
    assert (told.code, told.data["error"]["code"]) == (2, "MDM-0015")
    assert asking("inbox", "--json").stream[0]["votes"] == []


def test_a_key_without_a_principal_cannot_vote(asking: World) -> None:
    asking.ok("key", "new", "mallory.pem", "--name", "mallory")
    told = asking.approve(asking("inbox", "--json").stream[0], "mallory")
    assert (told.code, "MDM-0333" in told.err) == (3, True)
    assert asking("cancel", "last", "--key", "mallory.pem").code == 3


def test_two_keys_of_one_person_are_one_voter(asking: World) -> None:
    item = asking("inbox", "--json").stream[0]
    asking.ok("key", "new", "spare.pem", "--name", "alice-spare")
    asking.ok("key", "enroll", "--principal", "p-alice", "--key", "spare.pem")
    assert asking.approve(item, "alice").code == 0
    again = asking.approve(item, "spare")
    assert (again.code, "voted already" in again.err) == (3, True)


def test_who_asked_for_a_run_does_not_approve_it(world: World) -> None:
    world.people()
    assert world("run", "payout.py", "Pay", "--user", "p-alice").code == 4
    told = world.approve(world("inbox", "--json").stream[0], "alice")
    assert (told.code, "MDM-0335" in told.err) == (3, True)


def test_an_expired_request_is_refused_before_anything_is_signed(asking: World, monkeypatch: pytest.MonkeyPatch) -> None:
    item = asking("inbox", "--json").stream[0]
    later = time.time_ns() + 2 * 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)
    told = asking.approve(item, "alice")
    assert (told.code, "MDM-0334" in told.err) == (3, True)
    assert asking("inbox", "--json").stream[0]["expired"] is True


def test_a_principal_is_an_opaque_id(world: World) -> None:
    world.ok("key", "new", "a.pem", "--name", "a")
    for name in ("alice@example.org", "Alice", "p-", "p-Alice", "p-" + "a" * 80, "alice"):
        assert world("key", "enroll", "--principal", name, "--key", "a.pem").code == 2
    assert not (world.folder / ".mandamus").exists()


def test_a_protected_key_asks_for_its_passphrase(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANDAMUS_KEY_PASSPHRASE", "correct horse")
    world.ok("key", "new", "alice.pem", "--name", "alice", "--passphrase")
    world.ok("key", "enroll", "--principal", "p-alice", "--key", "alice.pem")
    monkeypatch.delenv("MANDAMUS_KEY_PASSPHRASE")
    item = world.waiting()
    told = world.approve(item, "alice")
    assert (told.code, "MANDAMUS_KEY_PASSPHRASE" in told.err) == (2, True)
    monkeypatch.setenv("MANDAMUS_KEY_PASSPHRASE", "wrong")
    assert "MDM-0191" in world.approve(item, "alice").err
    monkeypatch.setenv("MANDAMUS_KEY_PASSPHRASE", "correct horse")
    assert world.approve(item, "alice").code == 0


@pytest.mark.service
@pytest.mark.skipif(os.name != "posix", reason="a terminal of its own is made by pty")
@pytest.mark.parametrize(("answer", "code"), [("approve", 0), ("y", 3), ("", 3)])
def test_on_a_terminal_the_card_is_shown_and_the_decision_is_typed(asking: World, answer: str, code: int) -> None:
    text, ended = _on_a_terminal(asking, answer, "approve", "last", "--key", "alice.pem")
    assert ended == code
    card = text.partition("type ")[0]
    assert "cannot be taken back" in card
    assert '"Ac\\u202eme\\x1b[31m \u0410cme"' in card, "what deceives is shown as what it is"
    assert "letters of several scripts" in card
    assert len(asking("inbox", "--json").stream[0]["votes"]) == (code == 0)


def _on_a_terminal(world: World, answer: str, *args: str) -> tuple[str, int]:
    import pty

    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "mandamus", *args], stdin=theirs, stdout=theirs, stderr=theirs, cwd=world.folder, env=env
    ) as child:
        os.close(theirs)
        heard = b""
        while child.poll() is None or select.select([ours], [], [], 0)[0]:
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                heard += os.read(ours, 65536)
            except OSError:
                break
            if heard.endswith(b"leave: "):
                os.write(ours, answer.encode() + b"\n")
        child.wait(30)
    os.close(ours)
    return heard.decode("utf-8", "replace"), child.returncode


# -- runs --------------------------------------------------------------------------------------------------------------------------
def test_the_prompt_may_come_from_a_file(world: World) -> None:
    (world.folder / "prompt.txt").write_text("Zahle die Rechnung, \u00fcbrigens.\n", encoding="utf-8")
    assert world("run", "payout.py:small", "--input", "prompt.txt").code == 0
    assert "Rechnung, \u00fcbrigens." in world("show", "last", "--events", "-v").out
    (world.folder / "bad.txt").write_bytes(b"\xff\xfe")
    assert "MDM-0017" in world("run", "payout.py:small", "--input", "bad.txt").err


def test_follow_tells_each_event_once_and_in_order(world: World) -> None:
    told = world("run", "payout.py:small", "Pay", "--follow", "--json")
    *events, result = told.stream
    assert [x["event"]["seq"] for x in events] == list(range(1, len(events) + 1)), "the genesis is there before anybody can listen"
    assert result["state"] == "completed"


def test_what_an_agent_prints_spoils_no_answer(world: World) -> None:
    told = world("run", "payout.py:small", "Pay", "--json")
    assert told.data["output"] == "paid a little"
    assert "a tool may print" in told.err


def test_resume_finds_the_agent_where_run_found_it_and_says_so_when_it_changed(world: World) -> None:
    world.people()
    world.waiting()
    source = (world.folder / "payout.py").read_text()
    (world.folder / "payout.py").write_text(
        source.replace('name="payout-bot"', 'name="payout-bot"').replace("pay invoices", "pay every invoice")
    )
    sys.modules.pop("payout", None), sys.modules.pop("agent_payout", None)
    told = world("resume", "last")
    assert (told.code, "definition changed" in told.err) == (4, True)
    (world.folder / "payout.py").unlink()
    sys.modules.pop("payout", None), sys.modules.pop("agent_payout", None)
    assert "MDM-0014" in world("resume", "last").err
    assert "MDM-0019" in _other(world).err


def _other(world: World) -> Any:
    imports = "from mandamus import Agent\nfrom mandamus.drivers.model_scripted import ScriptedModel\n"
    made = "agent = Agent(name='o', model=ScriptedModel(['x']), policies=[{'id': 'a', 'permit': {}}])\n"
    (world.folder / "other.py").write_text(imports + made)
    return world("resume", "last", "--agent", "other.py")


def test_where_an_agent_was_found_survives_a_move_of_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / ".mandamus"
    for reference in ("payout.py:agent", "payout.py", "sub/agent.yaml", "package.module:agent"):
        agents.remember(home, "d" * 64, reference)
        found = agents.recalled(home, "d" * 64)
        assert (
            os.path.normpath(found) == (reference if reference.startswith("package") else os.path.normpath(str(tmp_path / reference)))
            or found == reference
        )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import nothing_there\n", "No module named"),
        ("agent = = 1\n", "SyntaxError"),
        ("raise RuntimeError('s3cret')\n", "RuntimeError"),
        ("agent = 1\n", "stand in"),
    ],
)
def test_code_that_fails_is_named_by_its_line_and_never_quoted(world: World, text: str, what: str) -> None:
    (world.folder / "broken.py").write_text("\n" + text)
    told = world("run", "broken.py", "Pay")
    assert told.code == 2
    assert what in told.err
    assert "s3cret" not in told.err
    assert "stand in" in what or "broken.py:2" in told.err


@pytest.mark.service
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_a_first_signal_lets_the_open_action_end_and_a_second_leaves_at_once(world: World, number: int, times: int) -> None:
    source = (world.folder / "payout.py").read_text()
    gate = "import asyncio, pathlib\n    while not pathlib.Path('go').exists():\n        await asyncio.sleep(0.02)\n"
    (world.folder / "payout.py").write_text(source.replace('print("a tool may print; no answer is spoilt by it")', gate))
    args = [sys.executable, "-m", "mandamus", "run", "payout.py:small", "Pay", "--follow"]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=world.folder) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        while "ActionStarted" not in child.stdout.readline():
            assert child.poll() is None
        for _ in range(times):
            child.send_signal(number)
            while times == 2 and "stopping" not in child.stderr.readline():
                assert child.poll() is None
            if times == 2:
                child.send_signal(number)
                break
        if times == 1:
            while "stopping" not in child.stderr.readline():
                assert child.poll() is None
            (world.folder / "go").touch()
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 128 + number
    (world.folder / "go").touch()
    if times == 1:
        assert "mandamus resume" in out
        events = [x["type"] for x in world("show", "last", "--events", "--json").stream]
        assert events[-1] == "ActionEnded", "the open one ended, nothing began behind it"
    assert world("resume", "last").code == 0
    assert [x["type"] for x in world("show", "last", "--events", "--json").stream].count("ActionEnded") == 1


# -- ids, aliases, errors ------------------------------------------------------------------------------------------------------------
def test_ids_may_be_a_beginning_in_either_case_or_last(asking: World) -> None:
    asking("run", "payout.py:small", "Pay")
    first, second = (x["run"] for x in asking("runs", "--json").stream)
    assert asking("show", "last", "--json").data["run_id"] == second
    assert asking("show", first.lower(), "--json").data["run_id"] == first
    assert asking("show", first[:24], "--json").data["run_id"] == first
    assert "MDM-0011" in asking("show", "0").err


def test_the_seeds_words_are_ours(asking: World) -> None:
    for alias, ours in ALIASES.items():
        if ours in ("verify", "reject"):
            continue
        args = ("last",) if ours in ("show", "replay") else ()
        assert asking(*alias.split(), *args).code == asking(*ours.split(), *args).code


def test_every_class_of_error_can_be_read(world: World) -> None:
    """Over the whole tree: a code, a sentence, a place in the exit table."""
    from mandamus.cli.main import fields, text

    def every(kind: type[MandamusError]) -> list[type[MandamusError]]:
        return [kind, *(x for below in kind.__subclasses__() for x in every(below))]

    for kind in every(MandamusError):
        if kind.__module__ == "mandamus.proof.report":
            continue  # made of a finding, which carries the same fields
        error = kind("it\x1b[31m broke", where="f.yaml:1:2", expected="a", found="b", why="c", fix="d")
        rows = text(error).splitlines()
        assert error.exit_code in (1, 2, 3, 5)
        assert error.diagnosis.code.startswith("MDM-0")
        assert rows[0].startswith(error.diagnosis.code)
        assert len(rows) <= ROWS_MAX
        assert ESC not in text(error)
        assert {"code", "what", "where", "expected", "found", "why", "fix", "class"} <= fields(error).keys()


def test_every_code_in_the_source_has_its_page_and_every_page_its_code() -> None:
    import re

    from mandamus.cli.codes import CODES

    source = Path(asked.__file__).parents[1]
    texts = [p.read_text(encoding="utf-8") for p in source.rglob("*.py") if p.parent.name != "_codes"]
    used = {code for text in texts for code in re.findall(r"MDM-[0-9]{4}", text)}
    assert sorted(used - CODES.keys()) == []
    assert sorted(c for c in CODES.keys() - used if c.startswith("MDM")) == []
    assert all(title.strip() and text.strip() for title, text in CODES.values())


def test_a_bug_of_ours_is_a_sentence_and_a_traceback_only_with_debug(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("s3cret")

    monkeypatch.setattr("mandamus.cli.runs._runs", broken)
    told, debug = world("runs"), world("runs", "--debug")
    assert (told.code, "MDM-0001" in told.err, "Traceback" in told.err, "s3cret" in told.err) == (1, True, False, False)
    assert "Traceback" in debug.err


def test_help_of_every_verb_tells_its_exit_codes(world: World) -> None:
    for name in [*VERBS, *(f"{noun} {verb}" for noun, (_, verbs) in NOUNS.items() for verb in verbs)]:
        told = world.ok(*name.split(), "--help")
        assert "xit codes:" in told.out, name
    assert world("--help").out.count("\n") < 60


def test_completion_offers_runs_and_never_fails(asking: World, monkeypatch: pytest.MonkeyPatch) -> None:
    run = asking("runs", "--json").stream[0]["run"]
    monkeypatch.setenv("_MANDAMUS_COMPLETE", "bash_complete")
    for words, place, wanted in (("mandamus sh", "1", "show"), (f"mandamus show {run[:5]}", "2", run), ("mandamus key en", "2", "enroll")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", place)
        assert wanted in asking().out
    monkeypatch.setenv("MANDAMUS_LEDGER", "sqlite:///nowhere/else.db")
    monkeypatch.setenv("COMP_WORDS", "mandamus show 0")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert asking().out.strip() == ""


def test_views_and_bundles_appear_whole(asking: World) -> None:
    told = asking("bundle", "last", "-o", "b/run.bundle")
    assert (told.code, "MDM-0024" in told.err, (asking.folder / "b").exists()) == (2, True, False), "no folder is made by a slip"
    (asking.folder / "b").mkdir()
    assert asking("bundle", "last", "--views", "views", "-o", "b/run.bundle", "--json").code == 4, "the run is not finished"
    assert sorted(p.name for p in (asking.folder / "views").iterdir()) == ["agent_run.json", "decision.json", "tool_trace.json"]
    assert json.loads((asking.folder / "views" / "agent_run.json").read_bytes())["agent"] == "payout-bot"
    assert asking("verify", "b/run.bundle", "--trust", ".mandamus/trust", "--views", "views").code == 4
    (asking.folder / "file").write_text("x")
    assert "MDM-0024" in asking("bundle", "last", "-o", "file/run.bundle").err


def test_a_manifest_is_signed_once_it_binds_and_a_changed_one_is_refused(world: World) -> None:
    world.ok("key", "new", "ci.pem", "--name", "ci")
    assert world("manifest", "sign", "agent.yaml", "--key", "ci.pem").code == 2, "it binds nothing yet"
    binds = world.ok("manifest", "show", "agent.yaml", "--json").data["bindings"]
    text = (world.folder / "agent.yaml").read_text()
    (world.folder / "agent.yaml").write_text(text + f"pins: {json.dumps(binds['pins'])}\npolicy_digest: {binds['policy_digest']}\n")
    line = world.ok("manifest", "sign", "agent.yaml", "--key", "ci.pem", "--json").data["author"]
    assert world.ok("manifest", "show", "agent.yaml", "--json").data["author"] == ""
    assert world("run", "agent.yaml", "Pay", "--json").data["output"] == "nothing to pay"
    world.ok("key", "trust", "--add", line)
    assert world.ok("manifest", "show", "agent.yaml", "--json").data["author"] == "ci"
    (world.folder / "agent.yaml").write_text((world.folder / "agent.yaml").read_text().replace("pay invoices", "pay anybody"))
    told = world("manifest", "show", "agent.yaml")
    assert (told.code, "MDM-0626" in told.err) == (1, True)


def test_certify_counts_the_world_after_every_cut(world: World) -> None:
    told = world("certify", "payout.py:small", "--sqlite", "0", "--json")
    assert (told.code, told.data["ok"]) == (0, True)
    assert world("certify", "nothing.py").code == 2


def test_a_reference_needs_a_file_a_module_or_a_manifest(world: World) -> None:
    for reference in ("", "no:where", "a b:c", "nothing.yaml", ":agent"):
        with pytest.raises(Misuse):
            agents.load(reference)


# -- bad days ------------------------------------------------------------------------------------------------------------------------
def test_several_actions_are_signed_one_by_one_each_with_its_digest(asking: World) -> None:
    second = asking.waiting()
    first = next(x for x in asking("inbox", "--json").stream if x["id"] != second["id"])
    both = ("approve", first["id"], second["id"], "--key", "alice.pem", "--digest", first["digest"])
    assert asking(*both).code == 3, "a digest is missing: nothing is signed, not even the other one"
    assert [x["votes"] for x in asking("inbox", "--json").stream] == [[], []]
    told = asking(*both, "--digest", second["digest"], "--json")
    assert {v["id"] for v in told.data["votes"]} == {first["id"], second["id"]}
    assert asking("inbox", "--json", "--for", "p-alice").stream == []
    assert asking("approve", first["id"], first["id"], "--key", "bob.pem", "--digest", first["digest"]).code == 2


def test_a_run_that_somebody_drives_is_left_alone(asking: World) -> None:
    async def held() -> Any:
        ledger = wiring.open_ledger(wiring.ledger_uri())
        try:
            run = await read.run_id(ledger, "last")
            await ledger.claim("default", 60_000, run=run)
            return await asyncio.to_thread(asking, "resume", "last", "--json")
        finally:
            await ledger.close()

    told = asyncio.run(held())
    assert (told.code, told.data["error"]["code"]) == (5, "MDM-0403")


@pytest.mark.parametrize(
    "args", [("runs",), ("show", "last"), ("inbox",), ("resume", "last"), ("bundle", "last"), ("doctor",)], ids=" ".join
)
@pytest.mark.parametrize("damage", ["text", "cut", "folder"])
def test_a_ledger_that_is_none_is_a_sentence(asking: World, args: tuple[str, ...], damage: str) -> None:
    file = asking.folder / ".mandamus" / "run.db"
    whole = file.read_bytes()
    for beside in [p for p in file.parent.glob("run.db*") if p.is_file()]:
        beside.unlink()
    if damage == "text":
        file.write_text("this is no ledger\n" * 500)
    elif damage == "cut":
        file.write_bytes(whole[: len(whole) // 2 + 100])
    else:
        file.mkdir()
    told = asking(*args)
    assert told.code in (1, 2, 5)
    assert "MDM-0001" not in told.err + told.out, told.err
    assert "MDM-" in told.err + told.out
