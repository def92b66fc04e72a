"""`mandamus demo`: the whole story in one command, offline: asked, stopped, approved, killed, resumed, proved, caught.

The rule a newcomer would break: the steps and the keys of `--json` are a contract; the wording is not.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from mandamus.cli._demo import guard, scene, told
from mandamus.cli._demo.scene import Step
from mandamus.cli.say import as_json, paint, say, shown, value_shown

_HELP = """Play a governed payment from proposal to proof, offline, with real processes and a real crash.

\b
Exit codes: 0 it went as it must | 1 something broke | 2 the folder is not the demo's | 3 you did not sign | 5 a step did not go as it must
"""


@click.command(help=_HELP)
@click.option("--dir", "folder", default="./mandamus-demo", metavar="DIR", help="Where to play; emptied only if the demo made it.")
@click.option("--step", is_flag=True, help="Wait for Enter before each step, and ask you to sign as Alice (on a terminal).")
@click.option("--json", "as_data", is_flag=True, help="One JSON object as the last line.")
def demo(folder: str, step: bool, as_data: bool) -> None:
    began, place = time.monotonic(), Path(folder)
    guard.install()
    _leave_proxies()
    scene.clear(place)
    out = sys.stderr if as_data else sys.stdout
    person = step and sys.stdin.isatty() and sys.stdout.isatty()
    say(told.head(folder), out)

    from mandamus.cli._demo.story import tell  # everything that the actors need comes with it

    steps: list[Step] = []
    for one in tell(place, _wait if person else _go_on, _as_alice if person else _played):
        steps.append(one)
        for line in told.lines(one):
            say(_painted(line, out), out)
    seconds = time.monotonic() - began
    end = _summary(steps, seconds)
    say(told.tail(seconds, f"{folder.rstrip('/')}/run.bundle", f"{folder.rstrip('/')}/trust"), out)
    if as_data:
        say(as_json(end))


def _summary(steps: list[Step], seconds: float) -> dict[str, Any]:
    by = {s.name: s.facts for s in steps}
    return {
        "run_id": by["ask"]["run"], "bundle": by["prove"]["bundle"], "trust": by["prove"]["trust"], "payments": by["resume"]["payments"],
        "plain_loop_payments": by["resume"]["plain_loop_payments"], "verdict": by["prove"]["verdict"], "tampered": by["tamper"],
        "seconds": round(seconds, 1), "steps": [{"n": s.n, "name": s.name, **s.facts} for s in steps],
    }  # fmt: skip


def _leave_proxies() -> None:
    """A proxy of the surroundings is asked for loopback too; the demo has no use for it."""
    for name in [k for k in os.environ if k.lower().endswith("_proxy")]:
        del os.environ[name]


def _go_on(before: str) -> None:
    """Nobody is asked."""


def _played(card: dict[str, Any]) -> bool:
    return True


def _wait(before: str) -> None:
    click.prompt(f"[Enter] {before}", default="", show_default=False, prompt_suffix="")


def _as_alice(card: dict[str, Any]) -> bool:
    """The card in full, then the question. Enter alone is no yes."""
    say(f"you are alice. {shown(card['effect'])}")
    for field in card["fields"]:
        say(f"  {shown(field['label']):<10} {value_shown(field['value'])}")
    for rule in card["rules"]:
        say(f"  why        {rule['id']}: {shown(rule['text'])}")
    say(f"  you sign   approve, once, action {card['action']}")
    return bool(click.confirm("sign?", default=False))


def _painted(line: str, out: Any) -> str:
    for word, style in (("NOT PROVEN", "red"), ("PROVEN", "green"), ("ESCALATE", "yellow"), ("IN DOUBT", "yellow"), ("ALLOW", "green")):
        if word in line:
            return line.replace(word, paint(word, style, out), 1)
    return line
