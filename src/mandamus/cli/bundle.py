"""`bundle` writes the proof of a run; `verify` hands over to the auditor's own command, which needs neither click nor a ledger."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mandamus import _files
from mandamus.cli import read
from mandamus.cli.common import Cli, run_ids, verb
from mandamus.errors import Erased, Misuse

if TYPE_CHECKING:
    from mandamus.proof.again import Judge
    from mandamus.proof.shown import Key


@verb("bundle", exits={0: "written", 1: "the stored chain is broken", 4: "written, but the run is not finished"})
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option("-o", "--output", metavar="FILE", help="Where to; default RUN.bundle, - is stdout.")
@click.option("--views", metavar="DIR", help="Also agent_run.json, decision.json and tool_trace.json.")
@click.option("--withhold", metavar="EVENT/PART", multiple=True, help="Not shown: 7/args, */output, log/1/statement. The proof holds.")
@click.option("--only", metavar="EVENT/PART=NAME,...", multiple=True, help="Of a payload that has members, show only these.")
@click.option("--stamp", metavar="URL", help="Have the checkpoint stamped by this RFC 3161 authority.")
def bundle(
    cli: Cli, run_id: str, output: str | None, views: str | None, withhold: tuple[str, ...], only: tuple[str, ...], stamp: str | None
) -> int:
    """Write the signed proof of RUN into a file. It holds what was said and done: give it to whom you would show that."""
    return cli.run(_bundle(cli, run_id, output, views, Hiding(withhold, only), stamp))


class Hiding:
    """What the options say of each payload, asked by whoever makes the bundle. Raises Misuse for a word that can name none."""

    def __init__(self, withhold: tuple[str, ...], only: tuple[str, ...]) -> None:
        self._hidden = {word: _place(word) for word in withhold}
        self._members = {word: (_place(place), set(names.split(","))) for word in only for place, _, names in [word.partition("=")]}
        self._met: set[str] = set()

    def __call__(self, key: Key) -> bool | Collection[str]:
        hidden = [word for word, place in self._hidden.items() if _names(place, key)]
        members = [word for word, (place, _) in self._members.items() if _names(place, key)]
        self._met.update(hidden, members)
        return bool(hidden) or (self._members[members[0]][1] if members else False)

    def all_met(self) -> None:
        """Raises Misuse for a word that named nothing: what somebody meant to hide would be shown."""
        lost = [word for word in (*self._hidden, *self._members) if word not in self._met]
        if lost:
            where = "--withhold" if lost[0] in self._hidden else "--only"
            raise Misuse(
                f"{lost[0][:40]!a} names no payload of this run", code="MDM-0003", where=where,
                why="what it was meant to hide would be shown; nothing was written", fix="mandamus show RUN --events -v lists them",
            )  # fmt: skip


def _names(place: tuple[str, str, str], key: Key) -> bool:
    run, seq, part = place
    return run == ("log" if key[0] == "log" else "") and seq in ("*", str(key[1])) and part in ("*", key[2])


def _place(word: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"(log/)?([0-9]+|\*)/([a-z_]+|\*)", word)
    if match is None:
        raise Misuse(f"{word[:40]!a} names no payload", code="MDM-0003", expected="EVENT/PART", fix="7/args; mandamus show RUN --events")
    return (match[1] or "").rstrip("/"), match[2], match[3]


async def _bundle(cli: Cli, text: str, output: str | None, views: str | None, hide: Hiding, stamp: str | None) -> int:
    from mandamus.runtime import evidence, sealing

    async with cli.env() as env:
        story = await read.story(env.ledger, text)
        raw = await evidence.build(env, story.id, {}, "", hide=hide, stamp=stamped_by(stamp) if stamp else None)
        hide.all_met()
        made = await _views(env, story, hide) if views else {}
        target = output or f"{story.id}.bundle"
        await sealing.handed_out(env, story.id, target if target != "-" else "", [Path(views or "") / name for name in made])
        trust = env.home.trust_file
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


async def _views(env: Any, story: read.Story, hide: Callable[[Key], bool | Collection[str]]) -> dict[str, bytes]:
    """Of what the bundle shows whole: it must be possible to make them anew from it."""
    from mandamus.proof import views

    values = {}
    for record in story.records:
        for part in record.body or ():
            if hide((story.id, record.seq, part.part)) is False:
                with contextlib.suppress(Erased):
                    values[(story.id, record.seq, part.part)] = await read.value(env.ledger, record, part.part)
    return views.render(story.records, values)


def stamped_by(url: str) -> Callable[[bytes], Awaitable[bytes]]:
    try:
        from mandamus.drivers import stamp_rfc3161
    except ImportError:
        raise Misuse("RFC 3161 stamps need an extra", code="MDM-0677", where="--stamp", fix="pip install 'mandamus[tsa]'") from None
    return functools.partial(stamp_rfc3161.stamp, url)


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
    from mandamus.cli.verify import More, main

    words = [*(x for x in rest if x not in ("-v", "--verbose", "--debug", "--no-input")), *(["--quiet"] if quiet else [])]
    return main(words, More(stamps=_stamp_reader, judge=_policy_again))


def _policy_again() -> Judge:
    try:
        from mandamus.drivers.policy_cedar import again
    except ImportError:
        raise Misuse("asking policy again needs Cedar", code="MDM-0195", where="--reevaluate", fix="pip install cedarpy") from None
    return again.judge


def _stamp_reader(root: bytes) -> Callable[[bytes, bytes], int]:
    try:
        from mandamus.drivers import stamp_rfc3161
    except ImportError:
        fix = "pip install 'mandamus[tsa]', or verify without --tsa"
        raise Misuse("reading RFC 3161 stamps needs an extra", code="MDM-0195", where="--tsa", fix=fix) from None
    return stamp_rfc3161.reader(root)
