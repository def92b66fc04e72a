"""The pytest plugin, used as a user would: in a project of its own, by another pytest."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from mandamus import Misuse
from mandamus.drivers.model_scripted import Step
from mandamus.testing import Runner, VirtualTime, assert_trace
from mandamus.testing._place import HERE
from mandamus.testing.golden import Event
from mandamus.testing.virtual import home, signer
from tests.e2e.stories import World, agent, pay

USERS_TEST = '''
from mandamus import Agent, Ctx, tool
from mandamus.data import Public
from mandamus.drivers.model_scripted import Step
from mandamus.testing import Runner, assert_trace


@tool(safety="read", effect="read", data=Public())
async def look(ctx: Ctx, what: str) -> str:
    """Look at something."""
    return "a " + what


def make(model):
    return Agent(name="looker", purpose="look", model=model, tools=[look], policies=[{"id": "look", "permit": {"safety": "read"}}])


def test_look(run_agent, scripted_model, clock, ledger):
    before = clock.now()
    result = run_agent(make(scripted_model(Step(calls=(("look", {"what": "bird"}),)), "I saw a bird.")), "Look")
    assert (result.state, result.output) == ("completed", "I saw a bird.")
    assert clock.now() == before
    assert [e.type for e in run_agent.events][-1] == "RunSealed"
    assert_trace(run_agent.events, "look")


def test_runner(runner, scripted_model):
    import asyncio

    async def go():
        r = runner(make(scripted_model("One.", "Two.")))
        first, second = await r.turn("Say one"), await r.turn("Say two")
        assert (first.output, second.output) == ("One.", "Two.")
        assert (await r.replay()).ok

    asyncio.run(go())
'''


def users(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "error", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_a_users_project(tmp_path: Path) -> None:
    """No golden file is a failure that shows what would stand there; with --golden-update it is written; a change is shown as a diff."""
    (tmp_path / "test_look.py").write_text(USERS_TEST)
    missing = users(tmp_path)
    assert missing.returncode == 1
    assert "there is no golden file look.txt" in missing.stdout
    assert users(tmp_path, "--golden-update").returncode == 0
    golden = tmp_path / "golden" / "look.txt"
    assert 'ActionEnded action=1.1 output=valid result=done via=tool output="a bird"' in golden.read_text()
    assert users(tmp_path).returncode == 0
    golden.write_text(golden.read_text().replace("a bird", "a plane"))
    changed = users(tmp_path)
    assert changed.returncode == 1
    shown = [line.removeprefix("E").strip() for line in changed.stdout.splitlines()]
    assert any(line.startswith("-") and 'output="a plane"' in line for line in shown)
    assert any(line.startswith("+") and 'output="a bird"' in line for line in shown)


def test_the_plugin_loads_nothing_of_the_runtime() -> None:
    """Every pytest of every project loads it."""
    heavy = ("mandamus.runtime.", "mandamus.drivers.", "mandamus.proof.")
    code = f"import sys, mandamus.testing.plugin; print([m for m in sys.modules if m.startswith({heavy})])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["", "../up", "a/b"])
def test_a_golden_file_has_a_plain_name(name: str) -> None:
    with pytest.raises(Misuse, match="MDM-0270"):
        assert_trace([], name)


def test_a_missing_golden_file_is_named(tmp_path: Path) -> None:
    if HERE.update:
        pytest.skip("golden files are being written")
    with pytest.raises(AssertionError, match=r"nothing\.txt"):
        assert_trace([], "nothing", folder=tmp_path)


async def _runner(*steps: object) -> Runner:
    return Runner(agent(World(), *steps))


async def _vote_of_nobody() -> None:
    r = await _runner(pay(amount={"amount": "5000000", "currency": "USD"}))
    await r.turn("Pay")
    await r.approve("p-nobody")


async def _vote_on_nothing() -> None:
    r = await _runner("Hello.")
    r.approver("p-alice")
    await r.turn("Hello")
    await r.approve("p-alice")


async def _late_approver() -> None:
    r = await _runner("Hello.")
    await r.turn("Hello")
    r.approver("p-alice")


async def _no_turn() -> None:
    await (await _runner(Step("Hello."))).resume()


@pytest.mark.parametrize(
    ("mistake", "code"),
    [(_vote_of_nobody, "MDM-0272"), (_vote_on_nothing, "MDM-0272"), (_late_approver, "MDM-0271"), (_no_turn, "MDM-0273")],
)
def test_mistakes_of_a_test_are_said(mistake: object, code: str) -> None:
    with pytest.raises(Misuse, match=code):
        asyncio.run(mistake())  # type: ignore[operator]


def test_virtual_time_and_keys_follow_from_the_seed() -> None:
    one, two, other = VirtualTime(), VirtualTime(), VirtualTime(seed="1")
    assert one.entropy(8) == two.entropy(8) != other.entropy(8)
    assert one.entropy(8) != one.entropy(8)
    before = one.now()
    one.advance(hours=1, minutes=-90)
    assert one.now() == before
    one.advance(minutes=1)
    assert one.now() == before + 60_000_000
    assert signer("a").vkey == signer("a").vkey != signer("a", "1").vkey
    assert home().signer("log").vkey == home().signer("log").vkey


def test_events_show_their_record() -> None:
    async def go() -> list[Event]:
        r = await _runner("Hello.")
        await r.turn("Hello")
        return r.events

    first = asyncio.run(go())[0]
    assert (first.type, first.seq, first.fact.agent, first.values["input"]) == ("RunOpened", 0, "payout-bot", "Hello")
