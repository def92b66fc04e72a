"""`log export`: the log as files for any client of C2SP tlog-tiles. `log compact`: tidy up, and by a written rule prune old leaves.

The rule a newcomer would break: nothing is pruned by default. Without `--before` only what is superseded is tidied up.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mandamus.cli.common import Cli, verb
from mandamus.cli.log import Look, instant, looking, no_log
from mandamus.cli.progress import Progress
from mandamus.errors import Misuse

if TYPE_CHECKING:
    from mandamus.runtime.tlog.compact import Rule


@verb("export", exits={0: "written", 1: "the log does not hold, or DIR holds another one"})
@click.argument("folder", metavar="DIR")
@click.option("--period", metavar="A..B", help="Records of this time only (2026-10-01..2026-11-01), by the checkpoints around it.")
def export(cli: Cli, folder: str, period: str | None) -> int:
    """Write the log's tiles, records and newest checkpoint into DIR, which any web server can show. What DIR has already stays."""
    return cli.run(_export(cli, folder, period))


async def _export(cli: Cli, folder: str, within: str | None) -> int:
    from mandamus import wiring
    from mandamus.runtime.tlog import export as files

    async with looking(cli) as log:
        shown, first = await log.points.best(), 0
        if within:
            first, size = await files.period(log.reader, *_period(within))
            shown = await log.points.at(size)
        if shown is None:
            raise no_log(cli)
        target = wiring.open_store(f"folder://{Path(folder)}")
        progress = Progress(cli, "objects", len(list(files.parts(shown.checkpoint.size, first, 0))))
        try:
            done = await files.export(log.reader, target, shown, first, progress.at)
        finally:
            progress.end()
            await target.close()
    data = {
        "bytes": done.bytes, "first": first, "folder": folder, "level": shown.level, "objects": done.objects, "size": done.size,
        "there": done.there,
    }  # fmt: skip
    words = f"{folder}  leaves {first} to {done.size}, {shown.level}: {done.objects} objects written, {done.there} were there"
    cli.tell(data, words + f"\n  next    python -m http.server -d {shlex.quote(folder)}")
    return 0


def _period(text: str) -> tuple[int, int]:
    since, dots, until = text.partition("..")
    if not dots:
        raise Misuse("this is no period", code="MDM-0003", found=text[:40], fix="--period 2026-10-01..2026-11-01")
    return instant(since), instant(until)


@verb("compact", exits={0: "done", 3: "these leaves may not be pruned yet"})
@click.option("--before", metavar="SIZE|TIME", help="Raise the minimum index to here: records of older leaves go out of the log.")
@click.option("--retention", metavar="NAME", default="", help="The written rule that lets them go.")
@click.option("--ground", metavar="TEXT", default="", help="Why it does.")
@click.option(
    "--floor", type=click.IntRange(0), default=None, metavar="DAYS", help="No run that was closed less than this ago; default: 184."
)
@click.option("--dry-run", is_flag=True, help="Say what would go; take nothing away.")
def compact(cli: Cli, before: str | None, retention: str, ground: str, floor: int | None, dry_run: bool) -> int:
    """Tidy up what is superseded; with --before also prune old leaf records. The ledger keeps everything, every proof above stays valid."""
    from mandamus.runtime.tlog.compact import FLOOR_DAYS, Rule

    return cli.run(_compact(cli, before, Rule(retention, ground, FLOOR_DAYS if floor is None else floor), dry_run))


async def _compact(cli: Cli, before: str | None, rule: Rule, dry_run: bool) -> int:
    import time

    from mandamus.runtime import erased
    from mandamus.runtime.tlog import compact as tidying

    now = time.time_ns() // 1000
    async with looking(cli) as log:
        first = size = 0
        runs: tuple[str, ...] = ()
        if before is not None:
            holds = (await erased.read(log.ledger, log.trust)).holds
            plan = await tidying.planned(log.ledger, log.reader, log.spans, await _leaf(log, before), rule, now, holds.values())
            first, size, runs = plan.first, plan.size, plan.runs
        stale, gone = await tidying.stale(log.reader, size), 0
        if not dry_run:
            await tidying.tidy(log.reader.store, list(stale), now)
            if before is not None:
                progress = Progress(cli, "tiles", size // 256)
                gone = await tidying.prune(log.reader, log.spans, plan, rule, now, progress.at)
                progress.end()
    data = {
        "dry_run": dry_run,
        "first": first,
        "minimum": size,
        "objects": gone,
        "retention": rule.retention,
        "runs": list(runs),
        "tidied": len(stale),
    }
    cli.tell(data, lambda: _words(data))
    return 0


async def _leaf(log: Look, before: str) -> int:
    """A number is a size; a time, the size of the newest checkpoint that is older."""
    from mandamus.runtime.tlog.export import period

    if before.isascii() and before.isdigit():
        return int(before)
    at = instant(before)
    return (await period(log.reader, at, at))[0]


def _words(data: dict[str, Any]) -> str:
    would = "would be " if data["dry_run"] else ""
    rows = [f"{data['tidied']} growing tiles that are full by now {would}tidied up"]
    if data["retention"] and data["minimum"] == data["first"]:
        rows.append(f"minimum index {data['minimum']}: nothing to prune, whole tiles of 256 leaves go and the last one stays")
    elif data["retention"]:
        rows.append(
            f"minimum index {data['minimum']}: records of leaves {data['first']} to {data['minimum']} {would}pruned, by {data['retention']}"
        )
        rows.append(f"  of {len(data['runs'])} runs; {data['objects']} objects went; the object pruned/ says which records these were")
    return "\n".join(rows)
