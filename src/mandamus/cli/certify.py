"""`certify FILE|DIR`: the power goes out at every event and inside every effect of an agent of yours, and the world is counted."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from mandamus.cli.common import Cli, verb
from mandamus.cli.say import shown


@verb("certify", exits={0: "nothing twice, nothing unaccounted", 1: "an effect was duplicated, lost or is unaccounted for"})
@click.argument("target", metavar="FILE|DIR")
@click.option("--prompt", default="", metavar="TEXT", help="What the agent is asked; default: PROMPT of the file.")
@click.option("--sqlite", type=click.IntRange(0), default=24, metavar="N", help="How many places also on a real file.")
@click.option("--pairs", type=click.IntRange(0), default=0, metavar="N", help="How many runs are cut twice.")
@click.option("--seed", type=int, default=0, metavar="N", help="Of the pairs.")
def certify(cli: Cli, target: str, prompt: str, sqlite: int, pairs: int, seed: int) -> int:
    """Run the agent of FILE (FILE.py[:attr], module:attr or agent.yaml; it needs a scripted model) with a power cut at every place.

    DIR is its agent.yaml, or else every FILE.py in it that holds an Agent: one verdict over all.
    """
    from mandamus.testing import certify as crash

    whole = crash.certify_folder if Path(target).is_dir() else crash.certify
    with contextlib.redirect_stdout(sys.stderr):
        report = whole(target, prompt, sqlite=sqlite, pairs=pairs, seed=seed)
    cli.tell(report.as_dict(), lambda: "\n".join(shown(line) for line in report.text().split("\n")))
    return 0 if report.ok else 1
