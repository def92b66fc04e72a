"""`replay`, `fork`, `diff`: a recorded run once more, told again without effects, carried on from an event, or held against another.

The rule a newcomer would break: replay executes nothing, and a fork never repeats what its parent did; both need the agent's code, and
find it where `resume` does.
"""

from __future__ import annotations

import contextlib
import sys

import click
import msgspec

from mandamus.cli import agents, read
from mandamus.cli.common import Cli, run_ids, verb
from mandamus.cli.run import EXITS, agent_of, ended, leaving
from mandamus.cli.say import shown
from mandamus.errors import Misuse


@verb("replay", exits={0: "the same follows again", 1: "it diverges, or the chain is broken"})
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option("--agent", "reference", metavar="AGENT", help="Where its agent is now; default: where `run` found it.")
def replay(cli: Cli, run_id: str, reference: str | None) -> int:
    """Tell RUN again from its record: same decisions, same prompts, same verdicts, or the first divergence. Nothing is executed."""
    return cli.run(_replay(cli, run_id, reference))


async def _replay(cli: Cli, text: str, reference: str | None) -> int:
    with contextlib.redirect_stdout(sys.stderr):
        async with cli.env() as env:
            run = await read.run_id(env.ledger, text)
            agent = await agent_of(cli, env, run, reference)
            report = await agent.replay(run, ledger=env)
    plain = msgspec.to_builtins(report)
    cli.tell({**plain, "ok": report.ok}, lambda: _safe(report.text()))
    return 0 if report.ok else 1


@verb("fork", exits=EXITS)
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option("--at", type=int, required=True, metavar="N", help="The last event that is taken from RUN.")
@click.option("--model", metavar="URI", help="Another model from there on.")
@click.option("--policy", metavar="PATH", help="Other policies: a folder or a file.")
@click.option("--input", "words", metavar="TEXT", help="At event 0 another prompt, else the user's next words.")
@click.option("--agent", "reference", metavar="AGENT", help="Where its agent is now; default: where `run` found it.")
def fork(cli: Cli, run_id: str, at: int, model: str | None, policy: str | None, words: str | None, reference: str | None) -> int:
    """A new run that is RUN until event N and live after it. What RUN did is never repeated."""
    return cli.run(_fork(cli, run_id, at, model, policy, words, reference))


async def _fork(cli: Cli, text: str, at: int, model: str | None, policy: str | None, words: str | None, reference: str | None) -> int:
    with contextlib.redirect_stdout(sys.stderr):
        async with cli.env() as env:
            run = await read.run_id(env.ledger, text)
            agent = await agent_of(cli, env, run, reference)
            with leaving(env) as left:
                result = await agent.fork(run, at, model=model, policies=None if policy is None else [policy], input=words, ledger=env)
            made = await read.story(env.ledger, result.run_id)
            agents.remember(env.home.folder, made.id, reference or agents.recalled(env.home.folder, run))
            if result.state == "suspended" and (model or policy):
                cli.note("note: a resume takes the agent's own model and policies; votes given under other policies are void then")
            return await ended(cli, env, result, left)


@verb("diff", exits={0: "they mean the same", 1: "they part"})
@click.argument("left", metavar="A", shell_complete=run_ids)
@click.argument("right", metavar="B", shell_complete=run_ids)
def diff(cli: Cli, left: str, right: str) -> int:
    """Hold two runs against each other by what their events mean, and name the first divergent proposal."""
    return cli.run(_diff(cli, left, right))


async def _diff(cli: Cli, left: str, right: str) -> int:
    from mandamus.runtime.diff import diff as compare

    async with cli.env() as env:
        a, b = await read.run_id(env.ledger, left), await read.run_id(env.ledger, right)
        if a == b:
            raise Misuse("a run and itself", code="MDM-0003", found=a, fix="mandamus runs")
        found = await compare(env, a, b)
    cli.tell({**msgspec.to_builtins(found), "equal": found.equal}, lambda: _safe(found.text()))
    return 0 if found.equal else 1


def _safe(text: str) -> str:
    return "\n".join(shown(line) for line in text.split("\n"))
