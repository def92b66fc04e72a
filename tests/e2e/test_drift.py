"""What genesis binds: a run that agent.yaml began is carried on by that agent, or refused with the difference and a way out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mandamus.cli import agents
from tests.e2e.cli_world import World

YAML = """name: payout-bot
purpose: pay invoices
model: scripted:script.json
instructions_file: prompt.md
tools: [payout:send_payment]
policies: [policies]
"""
RULES = "rules:\n  - {id: pay, permit: {safety: financial}}\n  - {id: large, rule: dualApproval, params: {over: 10000.00 USD}}\n"
SCRIPT = '[{"calls":[["send_payment",{"to":"Acme","amount":{"amount":"5000000","currency":"USD"}}]]},"paid"]'


@pytest.fixture
def world(world: World, tmp_path: Path) -> World:
    world.people()
    for name, text in (("agent.yaml", YAML), ("prompt.md", "Pay.\n"), ("script.json", SCRIPT)):
        (tmp_path / name).write_text(text)
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "rules.yaml").write_text(RULES)
    return world


@pytest.fixture
def waits(world: World) -> World:
    """A run of agent.yaml that waits for people."""
    assert world("run", "agent.yaml", "Pay").code == 4
    return world


def edited(world: World, file: str, old: str, new: str) -> None:
    path = world.folder / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    for name in [n for n, m in sys.modules.items() if getattr(m, "__file__", None) == str(world.folder / "payout.py")]:
        del sys.modules[name]


CHANGES = [
    ("prompt.md", "Pay.", "Pay everybody.", "instructions"),
    ("payout.py", "Transfer corporate funds", "Move funds", "tool 'send_payment' (description"),
    ("payout.py", 'return Receipt(id="tx-1")', 'return Receipt(id="tx-2")', "tool 'send_payment' (source)"),
    ("agent.yaml", "model: scripted:script.json", "model: openai:gpt-4o", "model"),
    ("agent.yaml", "[payout:send_payment]", "[payout:send_payment, payout:wire]", "tool 'wire'"),
    ("agent.yaml", "pay invoices", "pay anybody", "purpose"),
    ("agent.yaml", "policies: [policies]", "policies: [policies]\nmax_output: 99", "max_output"),
    ("agent.yaml", "policies: [policies]", "policies: [policies]\nbudget: {turns: 99}", "budget"),
]


@pytest.mark.parametrize(("file", "old", "new", "says"), CHANGES, ids=[x[3] for x in CHANGES])
def test_what_changed_since_genesis_is_refused_with_both_sides(waits: World, file: str, old: str, new: str, says: str) -> None:
    before = waits.ok("show", "last", "--json").data
    edited(waits, file, old, new)
    told = waits("resume", "last", "--json")
    reasons = told.data["error"]["reasons"]
    assert (told.code, {r["code"] for r in reasons}) == (3, {"manifest_drift"})
    found = next(r for r in reasons if r["what"].startswith(says))
    assert "- " in found["what"]
    assert "+ " in found["what"]
    assert f"mandamus fork {before['run_id']} --at 0" in found["fix"]
    after = waits.ok("show", "last", "--json").data
    assert (after["events"], after["head"]) == (before["events"], before["head"]), "a refused resume leaves the run where it was"
    edited(waits, file, new, old)
    assert waits("resume", "last").code == 4, "put back as it was, it goes on"


def test_the_way_out_is_a_new_run_with_the_agent_as_it_is(waits: World) -> None:
    run = waits.ok("show", "last", "--json").data["run_id"]
    edited(waits, "prompt.md", "Pay.", "Pay everybody.")
    assert waits("resume", run).code == 3
    forked = waits("fork", run, "--at", "0", "--json")
    assert (forked.code, forked.data["state"]) == (4, "suspended")
    assert waits("resume", forked.data["run_id"]).code == 4, "it is bound to what it began with"
    edited(waits, "prompt.md", "everybody", "nobody")
    assert waits("resume", forked.data["run_id"]).code == 3


def test_comments_and_policies_may_change_and_a_bound_policy_may_not(waits: World) -> None:
    """A policy hot-swaps: it stands on chain log and voids votes. One that agent.yaml bound is part of what was begun."""
    edited(waits, "agent.yaml", "name: payout-bot", "# the desk\nname: payout-bot")
    edited(waits, "policies/rules.yaml", "10000.00", "9000.00")
    assert waits("resume", "last").code == 4
    digest = waits.ok("manifest", "show", "agent.yaml", "--json").data["bindings"]["policy_digest"]
    edited(waits, "agent.yaml", "policies: [policies]", f"policies: [policies]\npolicy_digest: {digest}")
    assert waits("run", "agent.yaml", "Pay").code == 4
    edited(waits, "policies/rules.yaml", "9000.00", "90000.00")
    looser = waits("manifest", "show", "agent.yaml", "--json").data["bindings"]["policy_digest"]
    edited(waits, "agent.yaml", digest, looser)
    told = waits("resume", "last")
    assert (told.code, "policy_digest is not what run" in told.err) == (3, True), "writing the new digest into the file is no way round"


def test_an_agent_in_code_does_not_carry_on_what_agent_yaml_began(waits: World) -> None:
    told = waits("resume", "last", "--agent", "payout.py:agent")
    assert (told.code, "manifest_drift" in told.err) == (3, True)


def test_a_difference_that_cannot_be_shown_is_refused_all_the_same(waits: World) -> None:
    for folder in ("definitions", "manifests"):
        for path in (waits.folder / ".mandamus" / folder).iterdir():
            path.write_text("{}")  # exchanged: no longer the text of its digest
    assert waits("resume", "last").code == 4, "nothing changed, so nothing need be shown"
    edited(waits, "prompt.md", "Pay.", "Pay everybody.")
    told = waits("resume", "last")
    assert (told.code, "the agent's definition is not what run" in told.err) == (3, True)


def test_where_the_project_lies_is_no_part_of_the_agent(waits: World, monkeypatch: pytest.MonkeyPatch) -> None:
    other = waits.folder / "elsewhere"
    other.mkdir()
    monkeypatch.chdir(other)
    monkeypatch.setenv("MANDAMUS_LEDGER", f"sqlite:///{waits.folder}/.mandamus/run.db")
    assert waits("resume", "last").code == 4


def test_a_looser_file_run_later_is_not_what_an_older_run_is_resumed_with(world: World) -> None:
    """Two files of one definition: policies are no part of it, so the note of where a run's agent stands is of the run alone."""
    (world.folder / "loose.yaml").write_text(YAML.replace("[policies]", "[loose]"))
    (world.folder / "loose").mkdir()
    (world.folder / "loose" / "rules.yaml").write_text("rules:\n  - {id: pay, permit: {safety: financial}}\n")
    assert world("run", "agent.yaml", "Pay").code == 4
    strict = world.ok("show", "last", "--json").data["run_id"]
    assert world("run", "loose.yaml", "Pay").code == 0, "it asks nobody"
    loose = world.ok("show", "last", "--json").data["run_id"]
    home = world.folder / ".mandamus"
    assert (Path(agents.recalled(home, strict)).name, Path(agents.recalled(home, loose)).name) == ("agent.yaml", "loose.yaml")
    assert world("resume", strict).code == 4, "still two people, not none"


def test_a_refused_start_leaves_no_note(world: World) -> None:
    edited(world, "agent.yaml", "policies: [policies]", "policies: [policies]\npins: {send_payment: nonsense}")
    assert world("run", "agent.yaml", "Pay").code == 3
    assert not list((world.folder / ".mandamus" / "agents").iterdir())
