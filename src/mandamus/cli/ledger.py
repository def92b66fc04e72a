"""`ledger copy FROM TO`: a ledger moves, with its keys, to another file or server, and its runs go on there.

The rule a newcomer would break: the target never gets keys of its own. A ledger's name is bound to its log key; with another one nothing
that was proved would be of this ledger any more.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mandamus.cli import agents, read
from mandamus.cli.common import Cli, verb
from mandamus.cli.progress import Progress
from mandamus.cli.say import without_password
from mandamus.errors import Misuse

if TYPE_CHECKING:
    from mandamus.runtime.copy import Copied
    from mandamus.runtime.env import Env
    from mandamus.wiring import Home

KEPT = ("policies", "manifests", "definitions")


@verb("copy", exits={0: "moved, or with --dry-run nothing stands in the way", 1: "a chain does not hold", 5: "a run is driven just now"})
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("runs", metavar="[RUN]...", nargs=-1)
@click.option("--with-keys", is_flag=True, help="Copy keys and trust file to the target's folder, when it has none.")
@click.option("--dry-run", is_flag=True, help="Check every chain and what stands in the way; write nothing.")
def copy(cli: Cli, source: str, target: str, runs: tuple[str, ...], with_keys: bool, dry_run: bool) -> int:
    """Move chain log, accounts and runs (all, or RUN... with their relatives) from ledger FROM to ledger TO, where they go on.

    FROM is not driven any more afterwards; it keeps everything and can be read. A copy that was cut short is carried on by the same
    command. The way back is the same with FROM and TO exchanged.
    """
    cli.ledger_given = source
    return cli.run(_copy(cli, source, target, runs, with_keys, dry_run))


async def _copy(cli: Cli, source: str, target: str, wanted: tuple[str, ...], with_keys: bool, dry_run: bool) -> int:
    from mandamus import wiring

    cli.must_exist()
    for uri in (source, target):
        if not wiring.ledger_store(uri).lasts:
            raise Misuse("a ledger in memory ends with its process", code="MDM-0111", found=uri, fix="name a file or a server")
    names = _place(source), _place(target)
    if names[0] == names[1]:
        raise Misuse("FROM and TO are one ledger", code="MDM-0003", found=without_password(target), fix="name another target")
    homes = wiring.home_of(source), wiring.home_of(target)
    _keys(homes, with_keys, dry_run)
    async with cli.env() as env:
        done = await _moved(cli, env, names, target, wanted, dry_run)
    if not dry_run:
        _texts(homes, [*done.runs, *done.there])
        _keystore(source, homes[1], target)
    data = {
        "deltas": done.deltas, "dry_run": dry_run, "events": done.events, "messages": done.messages, "runs": done.runs,
        "source": without_password(source), "target": without_password(target), "there": done.there,
    }  # fmt: skip
    cli.tell(data, lambda: _words(done, without_password(target), dry_run))
    return 0


async def _moved(cli: Cli, env: Env, names: tuple[str, str], target: str, wanted: tuple[str, ...], dry_run: bool) -> Copied:
    from mandamus import wiring
    from mandamus.runtime.copy import Copied, Move

    path = wiring.ledger_file(target)
    keys = env.open_keys(False) if env.open_keys is not None and env.sealing is not None else None
    opened = None if dry_run and path is not None and not path.exists() else wiring.open_ledger(target, keys=keys)
    try:
        ids = [await read.run_id(env.ledger, text) for text in wanted]
        total = sum([head.seq + 1 async for head in env.ledger.runs()])
        progress = Progress(cli, "copied", total)
        move = Move(env, opened, *names, lambda head: wiring.driver_of(cli.uri, head), progress.at)
        try:
            if not dry_run:
                await _carry_log(cli, env, target)
                return await move.carry(ids)
            chosen = await move.plan(ids)
            return Copied([c.head.run for c in chosen], [], sum(c.head.seq + 1 for c in chosen))
        finally:
            progress.end()
    finally:
        if opened is not None:
            await opened.close()


async def _carry_log(cli: Cli, env: Env, target: str) -> None:
    """The transparency log goes first, and signs nothing here any more: two that go on from one tree would be two logs of one name."""
    from mandamus import wiring
    from mandamus.runtime.tlog.export import carry

    if env.tlog is None:
        return
    uri = wiring.log_uri(target)
    if not uri:
        cli.note("the log stays behind: MANDAMUS_LOG names where that of the target lies, copy its objects there before anything runs")
    await env.tlog.catch_up()
    env.tlog.frozen = True
    if uri and uri != wiring.log_uri(cli.uri):
        store = wiring.open_store(uri)
        try:
            await carry(env.tlog.store, store)
        finally:
            await store.close()


def _words(done: Copied, target: str, dry_run: bool) -> str:
    said = f"runs {len(done.runs)}, events {done.events}, account changes {done.deltas}, unread messages {done.messages}"
    if dry_run:
        return f"nothing stands in the way: runs {len(done.runs)}, events {done.events}; nothing was written"
    again = f"; {len(done.there)} were there already" if done.there else ""
    return f"{said}{again}: checked, written, read back\n  next    mandamus runs --ledger {shlex.quote(target)}"


def _place(uri: str) -> str:
    """The URI by which both ledgers know each other, wherever this command is called."""
    from mandamus import wiring

    path = wiring.ledger_file(uri)
    return uri if path is None else f"{uri.partition(':')[0]}://{path.resolve()}"


# -- what stands beside a ledger -------------------------------------------------------------------------------------------------
def _keys(homes: tuple[Home, Home], with_keys: bool, dry_run: bool) -> None:
    """The target is opened with the source's keys, or not at all. None is ever made here."""
    ours, theirs = (Path(home.folder or ".").resolve() for home in homes)
    if ours == theirs:
        return
    mine, other = ours / "keys" / "log.pem", theirs / "keys" / "log.pem"
    if other.exists():
        if homes[0].signer("log").vkey != homes[1].signer("log").vkey:
            raise Misuse(
                "the target's folder holds the keys of another ledger", code="MDM-0294", where=str(other), expected=f"the key of {mine}",
                why="a ledger's name is bound to its log key", fix="name a target in another folder",
            )  # fmt: skip
        return
    if not with_keys:
        raise Misuse(
            "the target's folder has no keys", code="MDM-0294", where=str(other.parent), why="a ledger moves with its keys; none are made",
            fix=f"--with-keys, or: cp -rp {ours / 'keys'} {ours / 'trust'} {theirs}/",
        )  # fmt: skip
    if dry_run:
        return
    from mandamus import _files

    _files.folder(other.parent)
    other.parent.chmod(0o700)
    for key in sorted(mine.parent.glob("*.pem")):
        shutil.copy2(key, other.parent / key.name)  # with its mode: nobody else may read it
    if (ours / "trust").exists() and not (theirs / "trust").exists():
        _files.write(theirs / "trust", (ours / "trust").read_bytes())


def _keystore(source: str, home: Home, target: str) -> None:
    """The keys of sealed payloads are not copied, or forgetting in one place would leave them in another: TO is told where they lie."""
    from mandamus import _files, wiring

    ours, theirs = wiring.keys_file(source), wiring.keys_file(target)
    if ours is None or theirs is None or not ours.exists() or ours.resolve() == theirs.resolve() or home.folder is None:
        return
    _files.write(home.folder / wiring.ELSEWHERE, f"sqlite:///{ours.resolve()}\n".encode())


def _texts(homes: tuple[Home, Home], runs: list[str]) -> None:
    """Policies, manifests and definitions that bundles and refusals quote, and where each run's agent was found."""
    from mandamus import _files

    ours, theirs = homes[0].folder, homes[1].folder
    if ours is None or theirs is None or ours.resolve() == theirs.resolve():
        return
    for kind in KEPT:
        for path in sorted((ours / kind).glob("*")):
            if not (theirs / kind / path.name).exists():
                _files.write(theirs / kind / path.name, path.read_bytes())
    for run in runs:
        reference = agents.recalled(ours, run)
        if reference and not agents.recalled(theirs, run):
            agents.remember(theirs, run, reference)
