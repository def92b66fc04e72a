"""`inbox`: every request that waits for people, the nearest deadline first, with the command that answers it."""

from __future__ import annotations

import click

from mandamus.cli import read
from mandamus.cli.asked import Asked, as_object, asked
from mandamus.cli.common import Cli, verb
from mandamus.cli.runs import now
from mandamus.cli.say import shown, value_shown
from mandamus.cli.whom import Whom
from mandamus.core.records import LOG
from mandamus.errors import MandamusError


@verb("inbox", exits={0: "listed", 1: "a chain or a request that does not hold is among them"})
@click.option("--for", "principal", metavar="PRINCIPAL", help="Without what this principal has voted on.")
def inbox(cli: Cli, principal: str | None) -> int:
    """What waits for people, nearest deadline first. With --json one object per line."""
    return cli.run(_inbox(cli, principal))


async def _inbox(cli: Cli, principal: str | None) -> int:
    from mandamus import wiring

    found: list[Asked] = []
    broken: list[tuple[str, MandamusError]] = []
    async with cli.reading() as ledger:
        home = wiring.home_of(cli.uri)
        trust, whom = await read.in_force(ledger, home.known()), Whom(home.folder)
        for run in [h.run async for h in ledger.runs(state="people") if h.run != LOG]:
            try:
                story = await read.story(ledger, run)
                found += [await asked(ledger, f"{run}/{a.id}", trust, "", whom) for a, _ in read.waiting(story.run)]
            except MandamusError as error:  # one run that does not hold hides no other
                broken.append((run, error))
    mine = [a for a in found if not principal or all(v.principal != principal for v in a.counting)]
    _told(cli, sorted(mine, key=lambda a: a.request.expires), broken)
    return 1 if broken else 0


def _told(cli: Cli, found: list[Asked], broken: list[tuple[str, MandamusError]]) -> None:
    for a in found:
        cli.line(as_object(a) | {"expired": a.request.expires <= now()}, _words(cli, a))
    for run, error in broken:
        cli.line({"error": error.diagnosis.as_json(), "run_id": run}, f"{run}  cannot be shown\n{error.diagnosis}")
    if not found and not broken and not cli.json:
        cli.note("nothing waits for people")


def _words(cli: Cli, a: Asked) -> str:
    q, moment = a.request, now()
    fields = ", ".join(f"{shown(f['label'])} {value_shown(f['value'])}" for f in a.card["fields"])
    left = "nobody may answer any more: " if q.expires <= moment else f"ends {read.away(q.expires, moment)}: "
    verb = f"settle {a.id} --done|--again|--abandon" if q.about == "outcome" else f"approve {a.id}"
    answer = cli.command(f"{verb} --key FILE" if q.expires > moment and not a.decided else f"resume {a.story.id}")
    votes = f"{a.missing} of {q.quorum} votes missing" + (f", of {a.asks}" if a.asks else "") if not a.decided else "decided"
    votes += "".join(f" ({v.principal} {v.decision}, will be refused)" for v in a.votes if v.wrong)
    return f"{a.id}  {shown(a.action.tool)}  {fields}\n  {q.about}, chain {q.chain}, {votes}, {left}{answer}"
