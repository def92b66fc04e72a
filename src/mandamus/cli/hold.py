"""`hold place`, `hold lift`, `hold list`: what may not be destroyed, on which ground. Lifting is signed by this ledger's administrator.

The rule a newcomer would break: no reason in words is asked for. It would stand on chain `log` for ever, and it would be about a person.
"""

from __future__ import annotations

from typing import Any

import click
import msgspec
from msgspec import UNSET, Struct

from mandamus.cli import read
from mandamus.cli.common import Cli, verb
from mandamus.core.erasures import HOLD_GROUNDS
from mandamus.errors import Misuse

ADMINISTRATOR = "p-administrator"


class Held(Struct, forbid_unknown_fields=True):
    """`hold place`, `hold lift`, and one a line of `hold list`. `subject`: the pseudonym. Neither subject nor run: everything."""

    ground: str
    hold: str
    principal: str
    run: str
    since: str
    state: str
    subject: str


@verb("place", exits={0: "placed"})
@click.option("--subject", metavar="ID", help="Whose data is kept, as the tools' arguments name them.")
@click.option("--run", "run_id", metavar="RUN", help="Or what this run wrote.")
@click.option("--everything", is_flag=True, help="Or everything.")
@click.option("--ground", type=click.Choice(list(HOLD_GROUNDS)), required=True, help="Of GDPR 17(3).")
def place(cli: Cli, subject: str | None, run_id: str | None, everything: bool, ground: str) -> int:
    """Keep it from being destroyed, by whatever reason: it is out of use meanwhile, where an erasure has asked for it."""
    if (bool(subject), bool(run_id), everything).count(True) != 1:
        raise Misuse("what is to be held", code="MDM-0976", expected="one of --subject, --run, --everything")
    return cli.run(_place(cli, subject or "", run_id or "", ground))


async def _place(cli: Cli, subject: str, run: str, ground: str) -> int:
    from mandamus.runtime import erased
    from mandamus.runtime.forgetting import holds

    async with cli.env() as env:
        run = await read.run_id(env.ledger, run) if run else ""
        id = await holds.place(env, ground, ADMINISTRATOR, subject=subject, run=run)
        fact = (await erased.read(env.ledger)).holds[id]
    what = f"subject {fact.subject}" if fact.subject else f"run {run}" if run else "everything"
    next = cli.command(f"hold lift {id}")
    cli.tell(_row(fact, "placed"), f"{id}  {what} is kept: {ground}, {HOLD_GROUNDS[ground]} GDPR\n  next    {next}")
    return 0


def _row(fact: Any, state: str) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(
        Held(
            ground=fact.ground, hold=fact.hold, principal=fact.principal, run="" if fact.run is UNSET else fact.run,
            since=read.when(fact.clock.now), state=state, subject="" if fact.subject is UNSET else fact.subject,
        )
    )  # fmt: skip
    return plain


@verb("lift", exits={0: "lifted"})
@click.argument("hold", metavar="HOLD")
def lift(cli: Cli, hold: str) -> int:
    """End a hold. Erasures that it kept back are carried out by the next worker, or by `mandamus forget --resume`."""
    return cli.run(_lift(cli, hold))


async def _lift(cli: Cli, hold: str) -> int:
    from mandamus.runtime import erased
    from mandamus.runtime.forgetting import holds

    async with cli.env() as env:
        before = (await erased.read(env.ledger, env.trust())).holds
        await holds.lift(env, hold, ADMINISTRATOR)
        after = (await erased.read(env.ledger, env.trust())).holds
    [fact] = [before[id] for id in before if id not in after]
    next = cli.command("forget --resume")
    cli.tell(_row(fact, "lifted"), f"{fact.hold}  lifted by {ADMINISTRATOR}\n  next    {next}")
    return 0


@verb("list", exits={0: "listed"})
def list_(cli: Cli) -> int:
    """Holds in force. With --json one object per line."""
    return cli.run(_list(cli))


async def _list(cli: Cli) -> int:
    from mandamus import wiring
    from mandamus.runtime import erased

    async with cli.reading() as ledger:
        holds = (await erased.read(ledger, wiring.home_of(cli.uri).known())).holds
    for fact in holds.values():
        what = f"subject {fact.subject}" if fact.subject else f"run {fact.run}" if fact.run else "everything"
        cli.line(_row(fact, "in force"), f"{fact.hold}  {what}  {fact.ground}  since {read.when(fact.clock.now)} by {fact.principal}")
    if not holds and not cli.json:
        cli.note("no hold is in force here")
    return 0
