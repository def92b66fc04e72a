"""`worker`: carry due runs of one pool, for the agents that are named, until somebody asks it to go.

The rule a newcomer would break: the first signal claims nothing more and lets what has its intent end, as `run` does; a worker that is
killed loses no run, but each of its open actions is then one that nobody knows about.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click

from mandamus.cli import agents, alive
from mandamus.cli.common import Cli, verb
from mandamus.cli.run import leaving
from mandamus.cli.say import shown
from mandamus.errors import Misuse, Unavailable

if TYPE_CHECKING:
    from mandamus.agent import Agent
    from mandamus.runtime.carry import Carried
    from mandamus.runtime.env import Env

SLOTS_MAX = 1_000


@verb(
    "worker",
    exits={0: "asked to go, and everything it carried was given back", 5: "the ledger is broken", 130: "asked twice", 143: "asked twice"},
)
@click.argument("references", metavar="AGENT...", nargs=-1, required=True)
@click.option("--pool", default="default", metavar="NAME", help="Whose runs it takes; default: default.")
@click.option("--slots", type=click.IntRange(1, SLOTS_MAX), default=4, metavar="N", help="How many runs it carries at once; default: 4.")
@click.option("--until-idle", is_flag=True, help="End when nothing of the pool is due.")
@click.option("--alive-file", metavar="FILE", help="Touched every 5 s while the worker turns, for a supervisor's probe.")
def worker(cli: Cli, references: tuple[str, ...], pool: str, slots: int, until_idle: bool, alive_file: str | None) -> int:
    """Carry due runs of a pool. AGENT: agent.yaml, FILE.py:attr or module:attr, each; runs of other agents are left to other workers."""
    from mandamus import _legal, wiring

    _legal.pool(pool)
    if not wiring.ledger_store(cli.uri).lasts:
        raise Misuse("a worker needs a ledger that lasts", code="MDM-0582", where=cli.uri, fix="--ledger sqlite:///FILE")
    return cli.run(_watched(alive_file, cli, references, pool, slots, until_idle))


async def _watched(alive_file: str | None, *work: Any) -> int:
    async with alive.touched(alive_file):
        return await _worker(*work)


async def _worker(cli: Cli, references: tuple[str, ...], pool: str, slots: int, until_idle: bool) -> int:
    from mandamus import __version__, wiring
    from mandamus.runtime.worker import Worker, name

    with contextlib.redirect_stdout(sys.stderr):  # what an agent's code prints is no answer of ours
        loaded = [agents.load(reference) for reference in references]
        served = {digest: one for agent in loaded for digest, one in agent.served().items()}
        env = await _opened(cli)
        try:
            env.worker = name(env)
            names = ", ".join(shown(agent.spec.name) for agent in loaded)
            cli.note(f"worker {env.worker}: pool {pool}, {slots} slots, serves {names}")
            with leaving(env):
                made = Worker(env, served, pool=pool, slots=slots, version=__version__, tell=lambda told: _told(cli, told))
                await made.work(until_idle=until_idle)
        finally:
            await _close(loaded)
            await wiring.close_env(env)
    return 0


async def _opened(cli: Cli) -> Env:
    """A ledger that is not there yet is waited for, and that is said once."""
    from mandamus import wiring
    from mandamus.runtime.worker import RETRY_S

    pause, said = RETRY_S[0], False
    while True:
        try:
            return await wiring.open_env(cli.uri, warn=cli.note)
        except Unavailable as gone:
            if not said:
                cli.note(f"mandamus: the ledger does not answer ({gone.diagnosis.what}); asked again until it does")
            said = True
        await asyncio.sleep(pause)
        pause = min(2 * pause, RETRY_S[1])


async def _close(loaded: list[Agent[Any]]) -> None:
    for agent in loaded:
        await agent.close()


def _told(cli: Cli, told: Carried) -> None:
    data = {"agent": told.agent, "cause": told.cause, "run_id": told.run, "state": told.state, "wake_at": told.wake_at}
    cause = f" ({told.cause})" if told.cause and told.state != "completed" else ""
    cli.line(data, f"run {told.run}  {told.state}{cause}")
