"""`forget`: have what is known of a person destroyed, by destroying its keys; the records and their proofs stand. With a signed receipt.

The rule a newcomer would break: who is to be forgotten is a name, and names are kept nowhere: `--subject -` reads it from stdin, past the
history of the shell. The answer, the receipt and the log say the pseudonym.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import Struct

from mandamus.cli import read
from mandamus.cli.common import Cli, typed, verb
from mandamus.cli.keys import open_key, principal_of
from mandamus.core.erasures import GROUNDS
from mandamus.errors import MandamusError, Misuse

if TYPE_CHECKING:
    from mandamus.runtime.env import Env
    from mandamus.runtime.forgetting.forget import Found, Report

_span = re.compile(r"(\d{1,6})(m|h|d)").fullmatch
_UNITS = {"m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
RECEIPT = "application/vnd.mandamus.erasure+json"


class Keeps(Struct, forbid_unknown_fields=True):
    """`what`: a run or a hold; `ground`: of GDPR 17(3), or open_action; `until`: "" when nobody knows."""

    ground: str
    until: str
    what: str


class Forgot(Struct, forbid_unknown_fields=True):
    """`forget`. `state`: erased, partly, blocked, waits, nothing, withdrawn, or would (--dry-run). `payloads`: how many were destroyed;
    `plain`: of a run, how many values were written in plain and stay.
    """

    after: str
    deleted: list[str]
    dry_run: bool
    erasure: str
    given_away: list[str]
    ground: str
    kept: list[Keeps]
    next: str
    payloads: int
    plain: dict[str, int]
    receipt: str
    rewritten: list[str]
    runs: list[str]
    state: str
    subject: str


@verb("forget", exits={0: "erased, or nothing is known of them", 3: "refused: not an approver", 4: "not yet: something keeps it"})
@click.option("--subject", metavar="ID", help="Whom, as the tools' arguments name them; - reads it from stdin.")
@click.option("--run", "run_id", metavar="RUN", help="Or everything that a run and its relatives wrote.")
@click.option("--ground", type=click.Choice(list(GROUNDS)), default="no_longer_needed", help="Of GDPR 17(1).")
@click.option("--grace", metavar="TIME", default="", help="Out of use at once, destroyed after this time, such as 7d.")
@click.option("--key", "key_file", metavar="FILE", help="An approver's key: runs that wait are cancelled with it.")
@click.option("--receipt", metavar="FILE", help="Write a signed receipt.")
@click.option("--dry-run", is_flag=True, help="Say what would go and what is kept; destroy nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--resume", is_flag=True, help="Carry on with every erasure that was kept back.")
@click.option("--withdraw", metavar="ERASURE", help="Take one back within its time of grace.")
def forget(
    cli: Cli, subject: str | None, run_id: str | None, ground: str, grace: str, key_file: str | None, receipt: str | None, dry_run: bool,
    yes: bool, resume: bool, withdraw: str | None,
) -> int:  # fmt: skip
    """Destroy the keys of what is known of a person. Records, chains and proofs stand; what they committed to can be read no more."""
    asked = [name for name, given in (("--subject", subject), ("--run", run_id), ("--resume", resume), ("--withdraw", withdraw)) if given]
    if len(asked) != 1:
        raise Misuse(
            "what is to be forgotten", code="MDM-0976", expected="one of --subject, --run, --resume, --withdraw", found=" ".join(asked)
        )
    if resume:
        return cli.run(_resume(cli, key_file, receipt))
    if withdraw:
        return cli.run(_withdraw(cli, withdraw))
    whom = _whom(subject or "")
    return cli.run(_forget(cli, whom, run_id or "", ground, _micros(grace), key_file, receipt, dry_run, yes))


def _whom(subject: str) -> str:
    if subject == "-":
        return typed() if sys.stdin is not None and sys.stdin.isatty() else sys.stdin.read().strip()
    return subject


def _micros(text: str) -> int:
    found = _span(text) if text else None
    if text and found is None:
        raise Misuse(f"{text[:20]!a} is no length of time", code="MDM-0976", where="--grace", expected="such as 12h or 7d")
    return int(found[1]) * _UNITS[found[2]] if found else 0


async def _forget(
    cli: Cli, subject: str, run: str, ground: str, grace: int, key_file: str | None, receipt: str | None, dry_run: bool, yes: bool
) -> int:
    from mandamus.runtime.forgetting import forget as erasing

    async with cli.env() as env:
        signer, principal = _who(cli, key_file, env)
        run = await read.run_id(env.ledger, run) if run else ""
        found = await erasing.survey(env, subject=subject, run=run)
        if not found.keys or not (found.commits or found.open):
            cli.tell(
                _answer(cli, erasing.Report("", "nothing", "", ground)),
                "nothing is known here that could be destroyed: there was nothing, or it was erased before",
            )
            return 0
        if dry_run:
            report = erasing.Report("", "would", found.subject, ground, found.runs, kept=_in_the_way(found))
            cli.tell(_answer(cli, report, dry_run=True, payloads=found.commits), lambda: _plan(found))
            return 0
        if not yes:
            cli.note(_plan(found))
            if cli.ask("destroy? yes or no: ", "--yes, or --dry-run").lower() not in ("y", "yes"):
                raise Misuse("nothing was destroyed", code="MDM-0976", found="no", fix="mandamus forget … --yes")
        after = env.time.now() + grace if grace else 0
        id = await erasing.request(env, found, ground, after=after, principal=principal)
        report = await erasing.carry(env, id, signer)
        return await _tell(cli, env, report, principal, receipt)


def _who(cli: Cli, key_file: str | None, env: Env) -> tuple[Any, str]:
    if not key_file:
        return None, "p-administrator"
    signer = open_key(cli, key_file)
    return signer, principal_of(signer, env.trust())


async def _tell(cli: Cli, env: Env, report: Report, principal: str, receipt: str | None) -> int:
    if receipt and report.state in ("erased", "partly"):
        await _write(env, report, principal, Path(receipt))
    data = _answer(cli, report, receipt=receipt or "")
    cli.tell(data, lambda: _words(cli, report, receipt or ""))
    return 0 if report.state == "erased" else 4


async def _resume(cli: Cli, key_file: str | None, receipt: str | None) -> int:
    """One receipt for each that was carried out; of several, each with the erasure's id in its name."""
    from mandamus.runtime.forgetting import forget as erasing

    async with cli.env() as env:
        signer, principal = _who(cli, key_file, env)
        reports = await erasing.resume(env, signer)
        done = [report for report in reports if report.state in ("erased", "partly")] if receipt else []
        files = {r.erasure: Path(receipt or "") if len(done) == 1 else _beside(Path(receipt or ""), r.erasure) for r in done}
        for report in done:
            await _write(env, report, principal, files[report.erasure])
    for report in reports:
        written = str(files.get(report.erasure, ""))
        cli.line(_answer(cli, report, receipt=written), _words(cli, report, written))
    if not reports and not cli.json:
        cli.note("nothing is kept back: every erasure was carried out")
    return 4 if any(report.state != "erased" for report in reports) else 0


def _beside(file: Path, erasure: str) -> Path:
    return file.with_name(f"{file.stem}-{erasure}{file.suffix}")


async def _withdraw(cli: Cli, id: str) -> int:
    from mandamus.runtime.forgetting import forget as erasing

    async with cli.env() as env:
        report = await erasing.withdraw(env, id)
    cli.tell(_answer(cli, report), f"{report.erasure}  withdrawn: the keys are in use again")
    return 0


# -- words -----------------------------------------------------------------------------------------------------------------------
def _in_the_way(found: Found) -> tuple[tuple[str, str, int], ...]:
    return (*found.kept, *((run, "open_action", 0) for run in found.open))


def _answer(cli: Cli, report: Report, *, dry_run: bool = False, payloads: int = -1, receipt: str = "") -> dict[str, Any]:
    files = report.files
    made = Forgot(
        after=read.when(report.after) if report.after else "", deleted=list(files.deleted), dry_run=dry_run, erasure=report.erasure,
        given_away=list(files.given_away), ground=report.ground,
        kept=[Keeps(ground, read.when(end) if end else "", what) for what, ground, end in report.kept],
        next=_next(cli, report), plain=dict(report.plain), payloads=len(report.commits) if payloads < 0 else payloads, receipt=receipt,
        rewritten=list(files.rewritten), runs=list(report.runs), state=report.state, subject=report.subject,
    )  # fmt: skip
    plain: dict[str, Any] = msgspec.to_builtins(made)
    return plain


def _next(cli: Cli, report: Report) -> str:
    if report.state != "blocked" or not report.kept:
        return ""
    what, ground, _ = report.kept[0]
    return cli.command("forget --resume --key FILE" if ground == "open_action" else f"hold lift {what.removeprefix('hold ')}")


def _plan(found: Found) -> str:
    whose = f"subject {found.subject}" if found.subject else "what the run and its relatives wrote"
    rows = [f"{whose}: {_many(found.commits, 'payload')} in {_many(len(found.runs), 'run')} would be destroyed"]
    rows += [f"  run     {run}" + ("  (not over: cancelled first)" if run in found.open else "") for run in found.runs]
    return "\n".join(rows + _kept(found.kept))


def _many(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def _kept(kept: tuple[tuple[str, str, int], ...]) -> list[str]:
    return [f"  kept    {what}: {ground}" + (f", until {read.when(end)}" if end else "") for what, ground, end in kept]


def _words(cli: Cli, report: Report, receipt: str) -> str:
    said = {
        "erased": f"erased: {_many(len(report.commits), 'payload')} of {_many(len(report.runs), 'run')} can be read no more",
        "partly": f"erased: {_many(len(report.commits), 'payload')}; a legal floor keeps the rest, and it goes by itself then",
        "blocked": "not yet: something keeps it; it is carried out by itself when that is over",
        "waits": f"out of use at once; destroyed after {read.when(report.after)}",
    }
    rows = [f"{report.erasure}  {said[report.state]}", f"  subject {report.subject}" if report.subject else "", *_kept(report.kept)]
    files = report.files
    rows += [f"  file    {path}: made anew without it" for path in files.rewritten]
    rows += [f"  file    {path}: deleted, as it could not be made anew" for path in files.deleted]
    rows += [f"  given   {path}: no longer there; whoever has it can still read it" for path in files.given_away]
    rows += [f"  plain   {run}: {_many(n, 'value')} written without a key store, and there for ever" for run, n in report.plain]
    rows += [f"  receipt {receipt}"] if receipt and report.state in ("erased", "partly") else []
    rows += [f"  next    {step}"] if (step := _next(cli, report)) else []
    return "\n".join(row for row in rows if row)


# -- the receipt -----------------------------------------------------------------------------------------------------------------
async def _write(env: Env, report: Report, principal: str, path: Path) -> None:
    """Who was forgotten goes by a name that nobody can make again; what was destroyed, by its commitments."""
    from mandamus.core.canonical import canon
    from mandamus.core.records import LOG
    from mandamus.proof import dsse

    head = await env.ledger.head(LOG)
    said = {
        "at": env.clock("UTC").now, "checkpoint": await _checkpoint(env, head.seq if head else -1),
        "commits": sorted(report.commits), "domain": "mandamus/erasure/v1", "erasure": report.erasure,
        "given_away": len(report.files.given_away), "ground": report.ground,
        "kept": [{"ground": ground, "until": end, "what": what} for what, ground, end in report.kept],
        "log": {"hash": head.hash if head else "", "seq": head.seq if head else -1},
        "origin": env.origin, "plain": dict(report.plain), "principal": principal,
        "runs": len(report.runs), "state": report.state, "subject": report.subject,
    }  # fmt: skip
    signer = env.home.signer("bundle")
    raw = dsse.sign(RECEIPT, canon(said), [(signer.keyid, signer.sign)])
    from mandamus.cli.bundle import write

    with contextlib.suppress(FileExistsError):
        write(path, raw + b"\n")


async def _checkpoint(env: Env, seq: int) -> str:
    """The signed head of the transparency log that holds the erasure's records; "" where there is none to be had now."""
    from mandamus.core.records import LOG

    if env.tlog is None or seq < 0:
        return ""
    with contextlib.suppress(MandamusError):
        return str((await env.tlog.covered(LOG, seq, "sealed")).note.decode())
    return ""
