"""What a newcomer stumbles over: roles, keys, halts and slips of the pen, each told with its cause and its way out."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from mandamus import Agent, tool, wiring
from mandamus.cli import read
from mandamus.cli.halts import HALTS
from mandamus.data import Public
from mandamus.errors import Misuse
from tests.e2e.cli_world import World

MADE = """
from mandamus.drivers.model_scripted import Fault
from payout import *
LATER = Fault("connection", retry_after_ms=3_600_000)
ROLES = [{"id": "pay", "permit": {"safety": "financial"}}, {"id": "two", "needsApproval": {"chain": "money"}}]
CHAINS = {"rules": ROLES, "chains": {"money": {"tiers": [{"quorum": 1, "roles": ["treasurer"], "veto": ["p-vera"]}]}}}
agent = made(pay(5000000), "paid", policies=[CHAINS])
short = made(pay(5000), name="short")
typed = Agent(name="typed", model="openai:gpt-4o", policies=[{"id": "a", "permit": {}}])
@tool(safety="read", effect="read", data=OWN)
def number() -> int:
    '''A number.'''
    return "five"
wrong = Agent(name="wrong", purpose="count", model=ScriptedModel([Step(calls=(("number", {}),)), "done"]), tools=[number],
              policies=[{"id": "a", "permit": {"tools": "number"}}])
down = Agent(name="down", model=ScriptedModel([Step(faults=(LATER,))]), policies=[{"id": "a", "permit": {}}])
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    for name in ("MANDAMUS_LEDGER", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "payout", raising=False)  # asks.py imports it by name: this folder's, not an earlier test's
    made = World(tmp_path)
    (tmp_path / "asks.py").write_text(MADE, encoding="utf-8")
    return made


@pytest.fixture
def asking(world: World) -> World:
    """A run that waits for one treasurer; Bob was enrolled with a slip of the pen, Vera holds a veto."""
    assert world("run", "asks.py:agent", "Pay").code == 4
    for name, role in (("bob", ("--role", "tresurer")), ("vera", ())):
        world.ok("key", "new", f"{name}.pem", "--name", name)
        world.ok("key", "enroll", "--principal", f"p-{name}", *role, "--key", f"{name}.pem")
    return world


# -- roles -------------------------------------------------------------------------------------------------------------------------
def test_a_vote_without_the_role_is_not_signed_and_the_fix_lets_it_count(asking: World) -> None:
    item = asking.ok("inbox", "--json").stream[0]
    assert item["asks"] == ["role:treasurer"]
    told = asking.approve(item, "bob")
    assert told.code == 3
    assert "p-bob has not role treasurer" in told.err
    assert "key enroll --principal p-bob --role treasurer" in told.err
    assert asking.ok("inbox", "--json").stream[0]["votes"] == []
    asking.ok("key", "enroll", "--principal", "p-bob", "--role", "treasurer", "--key", "bob.pem")
    assert "mail " not in asking.ok("show", "last").out
    assert asking.approve(item, "bob").code == 0
    shown = asking.ok("show", "last").out
    assert "lie unread in its mailbox" in shown, "a vote that its owner has not read is none yet, and not lost either"
    assert shown.index("mandamus resume") < shown.index("mandamus approve")
    assert asking.ok("show", "last", "--json").data["unread"]
    assert asking("resume", "last").code == 0
    assert "unread" not in asking.ok("show", "last").out


def test_the_holder_of_a_veto_may_say_no_and_nothing_else(asking: World) -> None:
    item = asking.ok("inbox", "--json").stream[0]
    told = asking.approve(item, "vera")
    assert (told.code, "MDM-0339" in told.err, "mandamus reject" in told.err) == (3, True, True)
    assert asking("reject", item["id"], "--key", "vera.pem", "--digest", item["digest"]).code == 0
    assert asking("resume", "last").code == 3


def _lose_the_policy(world: World) -> Path:
    """Somebody without the policy texts votes: the command line cannot know better, and the run's owner refuses."""
    policies = world.folder / ".mandamus" / "policies"
    return policies.rename(world.folder / "elsewhere")


def test_a_refused_vote_is_told_by_resume_counts_for_nothing_and_may_be_sent_again(asking: World) -> None:
    item = asking.ok("inbox", "--json").stream[0]
    kept = _lose_the_policy(asking)
    assert asking.approve(item, "bob").code == 0
    kept.rename(asking.folder / ".mandamus" / "policies")
    waits = asking.ok("inbox", "--json").stream[0]
    assert (waits["missing"], waits["votes"][0]["wrong"]) == (1, "role")
    assert "p-bob approve, will be refused" in asking.ok("inbox").out
    told = asking("resume", "last")
    assert told.code == 4
    assert "refused: the vote of p-bob (not_an_approver)" in told.out
    assert "of role treasurer" in told.out
    again = asking("resume", "last", "--json").data
    assert again["refused"] == [], "told once"
    asking.ok("key", "enroll", "--principal", "p-bob", "--role", "treasurer", "--key", "bob.pem")
    assert asking.approve(item, "bob").code == 0
    assert asking("resume", "last").code == 0, "the same vote, sent again, is a new message"


def test_a_changed_policy_text_is_not_believed(asking: World) -> None:
    for file in (asking.folder / ".mandamus" / "policies").iterdir():
        file.write_text(file.read_text().replace("treasurer", "tresurer"))
    assert asking.ok("inbox", "--json").stream[0]["asks"] is None
    for file in (asking.folder / ".mandamus" / "policies").iterdir():
        file.write_text("[")
    assert asking.ok("inbox", "--json").stream[0]["asks"] is None


def test_a_role_that_no_chain_names_is_warned_about(asking: World) -> None:
    asking.ok("key", "new", "eve.pem", "--name", "eve")
    told = asking.ok("key", "enroll", "--principal", "p-eve", "--role", "treasurers", "--key", "eve.pem")
    assert "no approval chain here names role treasurers: did you mean treasurer?" in told.err
    doctor = asking("doctor").out
    assert "nobody has role treasurer" in doctor
    assert "no chain here names role tresurer: did you mean treasurer?" in doctor


# -- halts ---------------------------------------------------------------------------------------------------------------------------
def test_a_missing_key_is_named_by_run_show_help_and_doctor(world: World) -> None:
    for told in (world("run", "asks.py:typed", "Hi"), world("show", "last")):
        assert "the model's provider refused the key, or none was set" in told.out
        assert "OPENAI_API_KEY" in told.out
    doctor = world("doctor", "asks.py:typed")
    assert (doctor.code, "OPENAI_API_KEY is not set" in doctor.out) == (1, True)


def test_doctor_is_content_once_the_key_is_set(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-s3cret")
    told = world("doctor", "asks.py:typed")
    assert "OPENAI_API_KEY is set" in told.out
    assert "s3cret" not in told.out


def test_a_script_that_has_run_out_says_so(world: World) -> None:
    told = world("run", "asks.py:short", "Pay")
    assert told.code == 5
    assert "a script has run out of steps" in told.out


def test_a_model_that_does_not_answer_is_told_with_its_next_try(world: World) -> None:
    for told in (world("run", "asks.py:down", "Hi"), world("show", "last")):
        assert "model: connection failed, 1 try, next " in told.out
        assert "suspended" in told.out.splitlines()[0]


@pytest.mark.parametrize("code", sorted(HALTS))
def test_every_halt_has_a_page(world: World, code: str) -> None:
    assert "To go on: " in world.ok("help", code).out


def test_an_output_that_breaks_its_contract_is_told(world: World) -> None:
    told = world("run", "asks.py:wrong", "Count")
    assert "1.1  number  done, output invalid" in told.out
    assert "done, output invalid" in world.ok("show", "last").out
    assert world("run", "asks.py:wrong", "Count", "--json").data["invalid"] == ["1.1"]


# -- slips of the pen ------------------------------------------------------------------------------------------------------------------
def test_a_user_is_an_opaque_id_here_too(world: World) -> None:
    told = world("run", "asks.py:agent", "Pay", "--user", "Alice")
    assert (told.code, "MDM-0020" in told.err) == (2, True)
    assert not (world.folder / ".mandamus").exists()


def _nothing() -> None:
    """Nothing."""


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tool(safety="read"), "data="),  # type: ignore[call-arg]
        (lambda: tool(_nothing), "safety=, data="),  # type: ignore[call-arg,misc]
        (lambda: tool(_nothing, safety="read", data=Public()), "keywords only"),  # type: ignore[misc]
        (lambda: tool(safety="read", data=Public(), efect="read"), "did you mean effect"),  # type: ignore[call-arg]
        (lambda: Agent(name="a", modl="x"), "did you mean model"),  # type: ignore[call-arg]
        (lambda: Agent(name="a"), "model="),  # type: ignore[call-arg]
        (lambda: Agent("a", model="openai:x"), "name="),  # type: ignore[misc]
    ],
)
def test_an_argument_that_is_missing_or_unknown_is_named(make: object, says: str) -> None:
    with pytest.raises(Misuse, match="MDM-0232") as caught:
        make()  # type: ignore[operator]
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("from mandamus import Agent\nagent = Agent(name='a', modl='x')\n", "MDM-0232", "slip.py:2"),
        ("def f(a):\n    pass\nf()\n", "MDM-0016", "missing 1 required positional argument"),
        ("raise TypeError('s3cret')\n", "MDM-0016", "TypeError"),
        ("import sys\nsys.exit(3)\n", "MDM-0016", "SystemExit"),
    ],
)
def test_what_fails_while_it_is_read_is_named_by_its_line(world: World, text: str, code: str, says: str) -> None:
    (world.folder / "slip.py").write_text(text)
    told = world("run", "slip.py", "Hi")
    assert (told.code, code in told.err, says in told.err, "s3cret" in told.err) == (2, True, True, False)


LEAVES = """import sys
from payout import *
@tool(safety="read", effect="read", data=OWN)
async def leave() -> str:
    '''Leave.'''
    sys.exit(3)
agent = Agent(name="l", model=ScriptedModel([Step(calls=(("leave", {}),)), "done"]), tools=[leave], policies=[{"id": "a", "permit": {}}])
"""


@pytest.mark.service
def test_code_that_ends_the_process_is_a_sentence(world: World) -> None:
    (world.folder / "leaves.py").write_text(LEAVES.replace('name="l",', 'name="l", purpose="leave",'))
    done = world.process("run", "leaves.py", "Hi")
    assert (done.returncode, b"MDM-0027" in done.stderr) == (1, True)


def test_a_file_that_is_no_key_is_not_made_private(world: World) -> None:
    world("run", "payout.py", "Pay")
    told = world("approve", "last", "--key", "agent.yaml")
    assert (told.code, "this is no key file" in told.err, "chmod" in told.err) == (2, True, False)


def test_a_word_that_begins_an_alias_and_an_unknown_state(world: World) -> None:
    assert "audit verify or audit replay" in world("audit").err
    assert world("runs", "--state", "foo").code == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a full device")
@pytest.mark.service
def test_an_output_that_is_full_is_a_sentence(world: World) -> None:
    import subprocess
    import sys

    world("run", "payout.py:small", "Pay")
    for more in ((), ("--json",)):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([sys.executable, "-m", "mandamus", "runs", *more], stdout=full, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 2
        assert (b"MDM-0026" in done.stderr) == (not more)
        assert b"Traceback" not in done.stderr


def test_commands_to_type_next_find_the_ledger(world: World) -> None:
    where = ("--ledger", "sqlite:///other place.db")
    for told in (world("run", "payout.py", "Pay", *where), world("inbox", *where), world("show", "last", *where)):
        assert "--key FILE --ledger 'sqlite:///other place.db'" in told.out


def test_a_setting_of_another_form_is_shown_how_it_is_written(world: World) -> None:
    (world.folder / "form.py").write_text(
        "from payout import *\nagent = made('x', policies=[{'id': 'd', 'maxDailyLimit': {'limit': 100}}])\n"
        "hours = made('x', policies=[{'id': 'd', 'workingHours': {'from': 9}}])\n"
    )
    assert 'maxDailyLimit: {limit: "1000.00 USD"}' in world("run", "form.py:agent", "Hi").err
    assert 'workingHours: {from: "08:30", to: "17:00"}' in world("run", "form.py:hours", "Hi").err


# -- who drives --------------------------------------------------------------------------------------------------------------------
def test_a_driver_is_believed_by_its_lock_and_not_by_its_row(asking: World) -> None:
    async def held(living: bool) -> list[str]:
        ledger = wiring.open_ledger(wiring.ledger_uri())
        try:
            run = await read.run_id(ledger, "last")
            await ledger.claim("default", 60_000, run=run)
            if not living:
                getattr(ledger, "inner", ledger)._own.give_all_back()  # below what seals
            shown = await asyncio.to_thread(asking, "show", "last")
            listed = await asyncio.to_thread(asking, "runs", "--json")
            return [shown.out, listed.stream[0]["state"], listed.stream[0]["owner"]]
        finally:
            await ledger.close()

    words, state, owner = asyncio.run(held(living=True))
    assert (state, owner) == ("running", f"pid {os.getpid()}")
    assert "mandamus resume" not in words
    words, state, owner = asyncio.run(held(living=False))
    assert (state, owner) == ("suspended", "")
    assert "pid" not in words
