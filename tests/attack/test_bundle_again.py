"""`--reevaluate`: the recorded verdicts of policy, asked again with the recorded facts. A verdict that policy would not give is named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mandamus.core import records as r
from mandamus.core.canonical import canon, parse
from mandamus.core.payload import commit
from mandamus.drivers.policy_cedar.again import judge
from mandamus.proof import Trust, verify
from mandamus.proof.keys import unb64
from mandamus.proof.report import Report
from mandamus.proof.verify import Beside
from tests.e2e.cli_world import AGENT, World
from tests.samples import BUNDLE_KEY, insider, relinked, sections, story, trust

OTHERS = """
from mandamus.drivers.policy_python import rule

@rule("code", "always")
def code(facts):
    return "allow"

denied = made(pay(5000), "no", policies=[{"id": "reads", "permit": {"safety": "read"}}])
coded = made(pay(5000), "yes", policies=[code])
"""


@pytest.fixture(name="world")
def _world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [n for n in os.environ if n.startswith("MANDAMUS_")]:
        monkeypatch.delenv(name)
    return World(tmp_path)


def bundled(world: World) -> tuple[bytes, Trust]:
    world("bundle", "last", "-o", "run.bundle")
    return Path("run.bundle").read_bytes(), Trust.parse(Path(".mandamus/trust").read_bytes())


def again(raw: bytes, roots: Trust) -> Report:
    return verify(raw, roots, Beside(judge=judge))


def claim(report: Report) -> Any:
    return next(c for c in report.claims if c.name == "re-evaluation")


def test_an_allow_is_an_allow_again(world: World) -> None:
    world.ok("run", "payout.py:small", "Pay")
    report = again(*bundled(world))
    assert (report.exit_code, claim(report).outcome) == (0, "proven"), report
    assert "1 verdict" in claim(report).says
    assert world("verify", "run.bundle", "--trust", ".mandamus/trust", "--reevaluate").code == 0


def test_an_escalation_and_the_allow_after_the_votes(world: World) -> None:
    world.people()
    item = world.waiting()
    for who in ("alice", "bob"):
        assert world.approve(item, who).code == 0
    world("resume", "last")
    report = again(*bundled(world))
    assert (report.exit_code, claim(report).outcome) == (0, "proven"), report
    assert "2 verdicts" in claim(report).says


def test_rules_in_code_are_not_asked_again(world: World) -> None:
    (world.folder / "payout.py").write_text(AGENT + OTHERS)
    assert world("run", "payout.py:denied", "Pay").code != 2
    report = again(*bundled(world))
    assert claim(report).outcome == "proven", report
    assert world("run", "payout.py:coded", "Pay").code != 2
    report = again(*bundled(world))
    assert (report.exit_code, claim(report).outcome) == (5, "cannot check now"), report


def test_facts_or_policy_that_are_not_shown(world: World) -> None:
    world.ok("run", "payout.py:small", "Pay")
    world.ok("bundle", "last", "-o", "part.bundle", "--withhold", "*/facts")
    roots = Trust.parse(Path(".mandamus/trust").read_bytes())
    report = again(Path("part.bundle").read_bytes(), roots)
    assert (report.exit_code, claim(report).outcome) == (3, "not in this bundle")


def rewritten(world: World, change: dict[str, Any], fact: dict[str, Any] | None = None) -> tuple[bytes, Trust]:
    """The run up to its intent, with other facts (or another verdict) in its judgement, linked and signed anew by an insider."""
    world.ok("run", "payout.py:small", "Pay")
    raw, _ = bundled(world)
    lines = sections(raw)
    records = [r.decode(x) for x in lines["record"]]
    at = next(n for n, x in enumerate(records) if x.type == "ActionJudged")
    number = next(n for n, x in enumerate(lines["payload"]) if parse(x)["part"] == "facts")
    line = parse(lines["payload"][number])
    facts = line["value"]
    for path, value in change.items():
        group, _, name = path.partition(".")
        facts[group][name] = value
    line["commit"] = commit(unb64(line["secret"]), canon(facts))
    record = parse(lines["record"][at])
    record["body"][0]["commit"] = line["commit"]
    record["fact"] |= fact or {}
    lines["record"][at] = canon(record)
    lines["payload"][number] = canon(line)
    lines["record"] = relinked(lines["record"][: at + 2])
    lines["payload"] = [x for x in lines["payload"] if parse(x)["run"] == "log" or parse(x)["seq"] < at + 2]
    lines["proof"], lines["account"] = [], lines["account"][:1]
    text = Path(".mandamus/trust").read_text()
    kept = "\n".join(row for row in text.splitlines() if not row.startswith("bundle "))
    return insider(lines, state="interrupted"), Trust.parse(f"{kept}\nbundle local {BUNDLE_KEY.key}\n")


def test_the_cut_run_itself_holds(world: World) -> None:
    report = again(*rewritten(world, {}))
    assert (report.exit_code, claim(report).outcome) == (4, "proven"), report


@pytest.mark.parametrize(
    ("change", "fact", "words"),
    [
        ({"amount.minor": 5_000_000}, None, "something else"),
        ({}, {"determining": ["large"]}, "another rule"),
        ({"action.safety": "read"}, None, "another safety"),
        ({"action.tool": "wire"}, None, "another tool"),
        ({"principal.agent": "somebody"}, None, "another agent"),
        ({"context.tier": "sovereign"}, None, "another tier"),
    ],
)
def test_a_verdict_that_policy_would_not_give(world: World, change: dict[str, Any], fact: Any, words: str) -> None:
    """An owner who started a payment above the limit, or told policy of another one: without --reevaluate nothing shows it."""
    raw, roots = rewritten(world, change, fact)
    assert verify(raw, roots).exit_code == (4 if "amount.minor" not in change else 1), "of limits, claim votes has its own word"
    report = again(raw, roots)
    assert (report.exit_code, claim(report).outcome) == (1, "broken"), report
    assert words in claim(report).says


def test_a_policy_that_does_not_parse_any_more_is_not_judged() -> None:
    report = verify(story().bundle(), trust(), Beside(judge=judge))
    assert report.exit_code in (1, 5), report
    assert judge({"policy/policies.cedar": "nonsense", "policy/rules.json": "[]", "policy/schema.json": "{}"}, {}) is None
    assert judge({}, {}) is None
