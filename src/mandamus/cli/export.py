"""`export`: the log's growth over a period as a bundle; a run's bundle as a page for reading, as views, or as a SCITT statement.

The rule a newcomer would break: an export is made of a bundle that was verified first. What does not hold is not dressed up as something
else; only the page says of a broken bundle that it is broken, and shows nothing of it.
"""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mandamus.cli.bundle import write
from mandamus.cli.common import Cli, verb
from mandamus.cli.progress import Progress
from mandamus.errors import Misuse, ProofError

if TYPE_CHECKING:
    from mandamus.proof.report import Report
    from mandamus.proof.trust import Trust

SUFFIX = {"bundle": "period.bundle", "html": "html", "scitt": "cose", "views": "views"}
LOG_CHARGE = "operator"


@verb("export", exits={0: "written", 1: "the bundle does not hold", 3: "written; a part is not shown", 4: "written; the run is open"})
@click.argument("what", metavar="log|BUNDLE")
@click.option(
    "--as", "form", type=click.Choice(sorted(SUFFIX)), required=True, help="bundle: of log; html, scitt, views: of a BUNDLE file."
)
@click.option("--period", metavar="A..B", help="Of log: dates or instants (UTC); an end left out is the log's own.")
@click.option("--trust", metavar="TRUST", help="The trust file; default this ledger's own.")
@click.option("-o", "--output", metavar="PATH", help="Where to; default a name beside what is exported.")
def export(cli: Cli, what: str, form: str, period: str | None, trust: str | None, output: str | None) -> int:
    """Every run of a period as one bundle (log --as bundle), or a run's bundle in another form."""
    if (what == "log") != (form == "bundle"):
        fix = "mandamus export log --as bundle --period A..B, or mandamus export BUNDLE --as html"
        raise Misuse(f"{what[:40]!a} is not exported as {form}", code="MDM-0003", fix=fix)
    if what == "log":
        return cli.run(_period(cli, period or "..", output))
    return cli.run(_bundle(cli, Path(what), form, trust, output))


# -- the log ---------------------------------------------------------------------------------------------------------------------
async def _period(cli: Cli, words: str, output: str | None) -> int:
    from mandamus.core.canonical import digest
    from mandamus.core.records import Exported
    from mandamus.core.seal import Content, Draft
    from mandamus.proof import bundle, dsse
    from mandamus.proof.period import FORM, parse_statement
    from mandamus.runtime import period

    since, until = parsed(words)
    async with cli.env() as env:
        progress: list[Progress] = []

        def tell(done: int, all_: int) -> None:
            if not progress:
                progress.append(Progress(cli, "leaves", all_))
            progress[0].at(done)

        raw = await period.build(env, since, until, (text_of(since), text_of(until)), tell)
        for one in progress:
            one.end()
        fact = Exported(clock=env.clock("UTC"), kind="period", principal=LOG_CHARGE)
        await env.log.append([Draft(fact, 0, (Content("scope", {"digest": digest("export", raw), "period": words}),))])
        trust = env.home.trust_file
    said = parse_statement(dsse.read(bundle.read(raw, FORM).sections["dsse"][0]).payload)
    target = Path(output or f"log.{SUFFIX['bundle']}")
    write(target, raw)
    data = {
        "bytes": len(raw), "export": str(target), "form": "bundle", "leaves": said.last.size - said.first.size,
        "numbers": list(said.numbers), "run_id": "",
    }  # fmt: skip
    numbers = _words(*said.numbers) if said.numbers else "no run was opened"
    cli.tell(data, f"{target}  {numbers}, {data['leaves']} leaves\n  next    mandamus verify {target} --trust {trust or 'TRUST'}")
    return 0


def _words(low: int, high: int) -> str:
    return f"run {low:,}" if low == high else f"runs {low:,}-{high:,}"


def parsed(words: str) -> tuple[int, int]:
    """`2026-11-01..2026-12-01`, in microseconds since 1970; the second day is not in it any more. Raises Misuse."""
    first, dots, last = words.partition("..")
    if not dots:
        raise Misuse("a period is A..B", code="MDM-0003", where=f"--period {words[:60]}", fix="--period 2026-11-01..2026-12-01")
    since, until = _instant(first, 0), _instant(last, int(time.time() * 1_000_000))
    if since >= until:
        raise Misuse("the period ends before it begins", code="MDM-0003", where=f"--period {words[:60]}", fix="--period EARLIER..LATER")
    return since, until


def _instant(text: str, instead: int) -> int:
    if not text:
        return instead
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise Misuse("that is no date", code="MDM-0003", where=f"--period {text[:60]}", fix="2026-11-01 or 2026-11-01T12:00:00Z") from None
    at = at if at.tzinfo else at.replace(tzinfo=datetime.UTC)
    return int(at.timestamp()) * 1_000_000 + at.microsecond


def text_of(instant: int) -> str:
    from mandamus.core.clock import rfc3339

    return rfc3339(instant)


# -- a bundle --------------------------------------------------------------------------------------------------------------------
async def _bundle(cli: Cli, path: Path, form: str, trust: str | None, output: str | None) -> int:
    from mandamus.proof.verify import Beside, verify

    raw, roots = _bytes(path), _trust(cli, trust)
    report = verify(raw, roots, Beside(now=int(time.time())))
    target = Path(output) if output else path.with_suffix(f".{SUFFIX[form]}")
    if form != "html" and report.exit_code in (1, 2):
        found = report.broken
        raise ProofError(
            f"the bundle does not hold: {found.what if found else ''}", code=found.code if found else "MDM-0640", where=str(path),
            fix=f"mandamus verify {path}",
        )  # fmt: skip
    files = _made(form, raw, report)
    if form == "scitt":
        files = {"": await _scitt(cli, raw)}
    await _note(cli, report.run, [target / name if name else target for name in files])
    if any(files):
        target.mkdir(exist_ok=True)
    for name, content in files.items():
        write(target / name if name else target, content)
    data = {"bytes": sum(map(len, files.values())), "export": str(target), "form": form, "leaves": 0, "numbers": [], "run_id": report.run}
    cli.tell(data, f"{target}  {report.verdict}, {data['bytes']} bytes")
    return report.exit_code if report.exit_code in (1, 3, 4, 5) else 0


def _made(form: str, raw: bytes, report: Report) -> dict[str, bytes]:
    if form == "html":
        from mandamus.cli.page import page

        return {"": page(raw, report)}
    return _views(raw) if form == "views" else {}


def _views(raw: bytes) -> dict[str, bytes]:
    from mandamus.core.records import decode
    from mandamus.proof import bundle, shown, views

    box = bundle.read(raw)
    lines = [shown.read(line, number) for number, line in enumerate(box.sections["payload"], box.first["payload"])]
    return views.render([decode(x) for x in box.sections["record"]], {line.key: line.value for line in lines if line.show == "whole"})


async def _scitt(cli: Cli, raw: bytes) -> bytes:
    """Signed with this ledger's keys: whoever has only the bundle cannot make one."""
    try:
        from mandamus.drivers import export_scitt
    except ImportError:
        raise Misuse("a SCITT export needs an extra", code="MDM-0677", fix="pip install 'mandamus[scitt]'") from None
    from mandamus.core.canonical import accept
    from mandamus.proof import bundle, dsse, tlogproof
    from mandamus.proof.keys import parse_vkey

    box = bundle.read(raw)
    if not box.sections["proof"]:
        raise Misuse("the bundle holds no proof of the log, so there is nothing to give a receipt for", code="MDM-0677", fix="MANDAMUS_LOG")
    statement, proof = dsse.read(box.sections["dsse"][0]).payload, tlogproof.parse(accept(box.sections["proof"][0]).encode())
    async with cli.env() as env:
        signer = env.home.signer("bundle")
        return export_scitt.transparent(
            statement, box.sections["record"][-1], proof, bundle=(parse_vkey(signer.vkey), signer.sign),
            log=(parse_vkey(env.signer.vkey), env.signer.sign),
        )  # fmt: skip


async def _note(cli: Cli, run: str, files: list[Path]) -> None:
    """What shows payloads of a run of this ledger is remembered, so that forgetting finds it."""
    from mandamus.runtime import sealing

    try:
        cli.must_exist()
    except Misuse:
        return
    async with cli.env() as env:
        await sealing.handed_out(env, run, "", files)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror}", code="MDM-0003", where=str(path), fix="mandamus bundle RUN writes one") from None


def _trust(cli: Cli, given: str | None) -> Trust:
    from mandamus import wiring
    from mandamus.proof.trust import Trust

    if given is not None:
        return Trust.parse(_bytes(Path(given)), given)
    file: Any = wiring.home_of(cli.uri).trust_file
    if file is None or not Path(file).exists():
        raise Misuse("no trust file was given, and this ledger has none", code="MDM-0649", fix="--trust TRUST")
    return Trust.parse(_bytes(Path(file)), str(file))
