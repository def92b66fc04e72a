"""`mandamus demo`: the whole story in one command, offline: asked, stopped, approved, killed, resumed, proved, caught.

The rule a newcomer would break: the steps and the keys of `--json` are a contract; the wording is not.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import click

from mandamus.cli._demo import guard, scene, servers, told
from mandamus.cli._demo.scene import Ground, Step
from mandamus.cli.common import Cli, typed, verb
from mandamus.cli.say import as_json, paint, say, shown, value_shown
from mandamus.errors import Misuse

_EXITS = {0: "it went as it must", 2: "the folder is not the demo's", 3: "refused: you did not sign", 5: "a step did not go as it must"}


@verb("demo", exits=_EXITS)
@click.option("--dir", "folder", default="./mandamus-demo", metavar="DIR", help="Where to play; emptied only if the demo made it.")
@click.option(
    "--tier", type=click.Choice(list(servers.TIERS)), default="dev", metavar="TIER", help="dev: a file; postgres, nats: servers of its own."
)
@click.option("--step", is_flag=True, help="Wait for Enter before each step, and ask you to sign as Alice.")
def demo(cli: Cli, folder: str, tier: str, step: bool) -> None:
    """Play a governed payment from proposal to proof: offline, with real processes and a real crash.

    On postgres and nats the same story: their servers are started here, on ports of this machine, and stopped at the end.
    """
    if cli.ledger_given:
        raise Misuse("the demo has a ledger of its own", code="MDM-0800", fix="mandamus demo --dir DIR")
    began, place, out = time.monotonic(), Path(folder), sys.stderr if cli.json else sys.stdout
    guard.install()
    _leave_proxies()
    servers.check(tier)
    scene.clear(place)
    say(told.head(folder), out)
    with servers.standing(tier, place) as ground:
        if ground.says:
            say(told.ground(tier, ground.says), out)
        steps = _played(place, ground, out, person=step and cli.may_ask() and sys.stdout.isatty())
    seconds, named = time.monotonic() - began, folder.rstrip("/")
    say(told.tail(seconds, f"{named}/run.bundle", f"{named}/.mandamus/trust"), out)
    if cli.json:
        say(as_json(_summary(tier, steps, seconds)))


def _played(place: Path, ground: Ground, out: TextIO, person: bool) -> list[Step]:
    from mandamus.cli._demo.story import tell  # all that the actors need comes with it

    steps = []
    for step in tell(place, ground, _wait if person else _go_on, _as_alice if person else _signs):
        steps.append(step)
        for line in told.lines(step):
            say(_painted(line, out), out)
    return steps


def _summary(tier: str, steps: list[Step], seconds: float) -> dict[str, Any]:
    by = {s.name: s.facts for s in steps}
    return {
        "run_id": by["ask"]["run"],
        "bundle": by["prove"]["bundle"],
        "trust": by["prove"]["trust"],
        "payments": by["resume"]["payments"],
        "plain_loop_payments": by["resume"]["plain_loop_payments"],
        "verdict": by["prove"]["verdict"],
        "seconds": round(seconds, 1),
        "tier": tier,
        "steps": [{"n": s.n, "name": s.name, **s.facts} for s in steps],
    }


def _leave_proxies() -> None:
    """A proxy of the surroundings would be asked for loopback too."""
    for name in [k for k in os.environ if k.lower().endswith("_proxy")]:
        del os.environ[name]


# -- who watches -----------------------------------------------------------------------------------------------------------------
def _go_on(before: str) -> None:
    """Nobody is asked."""


def _signs(card: dict[str, Any]) -> bool:
    return True


def _wait(before: str) -> None:
    _typed(f"[Enter] {before} ")


def _typed(question: str) -> str:
    sys.stdout.write(question)
    sys.stdout.flush()
    return typed()


def _as_alice(card: dict[str, Any]) -> bool:
    """The card in full, then the question. Enter alone is no yes."""
    say(f"you are alice: {shown(card['effect'])}")
    for field in card["fields"]:
        say(f"  {shown(field['label']):<10} {value_shown(field['value'])}")
    for rule in card["rules"]:
        say(f"  why        {shown(rule['id'])}: {shown(rule['text'])}")
    say(f"  you sign   approve, once, action {card['action']}")
    return _typed("sign? [y/N] ").lower() in ("y", "yes")


def _painted(line: str, out: TextIO) -> str:
    for word, style in (("NOT PROVEN", "red"), ("PROVEN", "green"), ("ESCALATE", "yellow"), ("IN DOUBT", "yellow"), ("ALLOW", "green")):
        if word in line:
            return line.replace(word, paint(word, style, out), 1)
    return line
