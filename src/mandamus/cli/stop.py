"""`cancel`: ask a run to stop, by a request that an approver has signed. It moves nothing by itself; the run's owner takes it."""

from __future__ import annotations

import secrets

import click

from mandamus.cli import read
from mandamus.cli.common import Cli, run_ids, verb
from mandamus.cli.keys import open_key, principal_of
from mandamus.core.run import ENDED
from mandamus.errors import Misuse, Refused
from mandamus.proof import mail as post


@verb("cancel", exits={0: "the request is in the mailbox", 3: "refused: not an approver", 5: "an action is unknown: settle it first"})
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option("--key", "key_file", metavar="FILE", help="An approver's key file.")
@click.option("--halt", is_flag=True, help="Stop where it is; it can be resumed.")
def cancel(cli: Cli, run_id: str, key_file: str | None, halt: bool) -> int:
    """Ask RUN to stop: no new action starts, what has started ends or stays visible as doubted."""
    return cli.run(_cancel(cli, run_id, key_file, "halt" if halt else "cancel"))


async def _cancel(cli: Cli, text: str, key_file: str | None, mode: str) -> int:
    from mandamus import wiring

    signer = open_key(cli, key_file)
    async with cli.reading() as ledger:
        principal = principal_of(signer, wiring.home_of(cli.uri).trust())
        story = await read.story(ledger, text)
        _may(story, mode)
        statement = post.StopStatement(mode=mode, nonce=secrets.token_hex(16), origin=story.run.genesis.origin, run=story.id)  # type: ignore[arg-type]
        await ledger.send(story.id, post.encode(post.stop(statement, signer=signer.sign, keyid=signer.keyid)))
    step = "" if story.head.owner else cli.command(f"resume {story.id}")
    said = f"{story.head.owner} takes it at its next step" if story.head.owner else f"nobody drives it; carried out by: {step}"
    cli.tell(
        {"mode": mode, "next": step, "owner": story.head.owner, "principal": principal, "run_id": story.id},
        f"run {story.id}  {mode} asked by {principal}; {said}",
    )
    return 0


class Unsettled(Refused):
    """Nobody knows what became of an action; a run that ended would hide it."""

    exit_code = 5
    default_code = "MDM-0340"


def _may(story: read.Story, mode: str) -> None:
    """Raises Misuse when it has ended; Unsettled while an outcome is unknown, which a cancelled run would hide."""
    run = story.run
    if run.life in ENDED:
        raise Misuse(f"the run has ended ({run.end})", code="MDM-0023", where=f"run {story.id}", fix=f"mandamus show {story.id}")
    unknown = [a for a in run.actions.values() if a.state == "unknown"]
    if unknown and mode == "cancel":
        raise Unsettled(
            "an action is unknown and unsettled",
            where=f"run {story.id}",
            found=f"{unknown[0].id} {unknown[0].tool}",
            why="a cancelled run would hide that nobody knows whether it happened",
            fix=f"mandamus settle {story.id}/{unknown[0].id} --done|--again|--abandon --key FILE",
        )
