"""`bundle` writes the proof of a run; `verify` hands over to the auditor's own command, which needs neither click nor a ledger."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from mandamus import _files
from mandamus.cli import read
from mandamus.cli.common import Cli, run_ids, verb
from mandamus.errors import Misuse


@verb("bundle", exits={0: "written", 1: "the stored chain is broken", 4: "written, but the run is not finished"})
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option("-o", "--output", metavar="FILE", help="Where to; default RUN.bundle, - is stdout.")
@click.option("--views", metavar="DIR", help="Also agent_run.json, decision.json and tool_trace.json.")
def bundle(cli: Cli, run_id: str, output: str | None, views: str | None) -> int:
    """Write the signed proof of RUN into a file. It holds what was said and done: give it to whom you would show that."""
    return cli.run(_bundle(cli, run_id, output, views))


async def _bundle(cli: Cli, text: str, output: str | None, views: str | None) -> int:
    from mandamus.runtime import evidence

    async with cli.env() as env:
        story = await read.story(env.ledger, text)
        raw = await evidence.build(env, story.id, {}, "")
        made = await _views(env, story) if views else {}
        trust = env.home.trust_file
    target = output or f"{story.id}.bundle"
    if views:
        with contextlib.suppress(OSError):  # one folder; `write` tells what is wrong with it
            Path(views).mkdir(exist_ok=True)
        for name, content in made.items():
            write(Path(views) / name, content)
    if target == "-":
        _to_stdout(cli, raw)
    else:
        write(Path(target), raw)
    check = f"mandamus verify {target} --trust {trust or 'TRUST'}"
    data = {
        "bundle": target,
        "bytes": len(raw),
        "events": len(story.records),
        "run_id": story.id,
        "state": "sealed" if story.run.life == "sealed" else "open",
        "trust": str(trust or ""),
        "views": sorted(made),
    }
    words = f"{target}  {len(story.records)} events, {len(raw)} bytes" + (f"; views in {views}" if views else "")
    words += "" if story.run.life == "sealed" else "\n  open    the run is not finished: it proves what happened so far (exit code 4)"
    words += f"\n  next    {check}"
    if target != "-":
        cli.tell(data, words)
    return 0 if story.run.life == "sealed" else 4


async def _views(env: Any, story: read.Story) -> dict[str, bytes]:
    from mandamus.proof import views

    values = {}
    for record in story.records:
        for part in record.body or ():
            values[(story.id, record.seq, part.part)] = await read.value(env.ledger, record, part.part)
    return views.render(story.records, values)


def _to_stdout(cli: Cli, raw: bytes) -> None:
    binary = getattr(cli.stdout, "buffer", None)
    if cli.json or binary is None:
        raise Misuse("a bundle is no JSON object of ours", code="MDM-0003", fix="-o FILE")
    binary.write(raw)
    binary.flush()


def write(path: Path, content: bytes) -> None:
    """Whole or not at all. Raises Misuse."""
    try:
        _files.put(path, content)
    except OSError as error:
        raise Misuse(
            f"the file cannot be written: {error.strerror}", code="MDM-0024", where=str(path), fix="name a file in a folder that exists"
        ) from None


@click.command("verify", context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
@click.option("-q", "--quiet", is_flag=True, help="The verdict, and what is broken.")
def verify(rest: tuple[str, ...], quiet: bool) -> int:
    """Check a bundle offline, against your trust file."""
    from mandamus.cli.verify import main

    return main([*(x for x in rest if x not in ("-v", "--verbose", "--debug", "--no-input")), *(["--quiet"] if quiet else [])])
