"""`cancel`: ask a run to stop, by a request that an approver has signed. It moves nothing by itself; the run's owner takes it."""

from __future__ import annotations

import secrets
from typing import Any, Literal

import click

from mandamus.cli import once as requests
from mandamus.cli import read
from mandamus.cli.common import Cli, run_ids, verb
from mandamus.cli.keys import open_key, principal_of
from mandamus.core.run import ENDED
from mandamus.errors import Misuse, Refused
from mandamus.proof import mail as post
from mandamus.runtime.away import deliver


@verb("cancel", exits={0: "the request is in the mailbox", 3: "refused: not an approver", 5: "an action is unknown: settle it first"})
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option("--key", "key_file", metavar="FILE", help="An approver's key file.")
@click.option("--halt", is_flag=True, help="Stop where it is; it can be resumed.")
@requests.options
def cancel(cli: Cli, run_id: str, key_file: str | None, halt: bool, **given: Any) -> int:
    """Ask RUN to stop: no new action starts, what has started ends or stays visible as doubted."""
    return cli.run(_cancel(cli, run_id, key_file, "halt" if halt else "cancel", **given))


async def _cancel(cli: Cli, text: str, key_file: str | None, mode: Literal["cancel", "halt"], once: str | None, dry_run: bool) -> int:
    from mandamus import wiring

    signer = open_key(cli, key_file, ssh=True)
    async with cli.reading() as ledger:
        trust = await read.in_force(ledger, wiring.home_of(cli.uri).known())
        principal = principal_of(signer, trust)
        story = await read.story(ledger, text)
        nonce = requests.nonce(signer, once, story.id) if once else secrets.token_hex(16)
        before = await requests.stopped(ledger, story.id, nonce, trust, principal) if once else None
        if before is None:
            _may(story, mode)
        elif before.mode != mode:
            raise requests.another(before.mode, f"run {story.id}")
        if before is None and not dry_run:
            statement = post.StopStatement(mode=mode, nonce=nonce, origin=story.run.genesis.origin, run=story.id)
            await deliver(ledger, story.id, post.encode(post.stop(statement, signer=signer.sign, keyid=signer.keyid)))
    _told(cli, story, mode, principal, repeated=before is not None, dry_run=dry_run)
    return 0


def _told(cli: Cli, story: read.Story, mode: str, principal: str, *, repeated: bool, dry_run: bool) -> None:
    over = story.run.life in ENDED
    step = "" if story.head.owner or over else cli.command(f"resume {story.id}")
    said = f"{story.head.owner} takes it at its next step" if story.head.owner else f"nobody drives it; carried out by: {step}"
    done = "would be asked" if dry_run else "was asked before" if repeated else "asked"
    data = {"dry_run": dry_run, "mode": mode, "next": step, "owner": story.head.owner, "principal": principal}
    text = f"run {story.id}  {mode} {done} by {principal}; {f'the run has ended ({story.run.end})' if over else said}"
    cli.tell(data | {"repeated": repeated, "run_id": story.id}, text)


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
