"""`verify BUNDLE --trust TRUST`: the auditor's command. Needs the standard library, msgspec and cryptography, and no network.

The rule a newcomer would break: the verdict comes first, and nothing is printed that was not checked. Exit codes: 0 complete and valid,
1 broken, 2 usage or no trust root or nothing to verify, 3 a part is withheld or missing, 4 the run is open, 5 cannot tell.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mandamus.errors import MandamusError, Misuse, ProofError
from mandamus.proof import continuity
from mandamus.proof.again import Judge
from mandamus.proof.bundle import BUNDLE_BYTES_MAX
from mandamus.proof.note import NOTE_BYTES_MAX, parse_checkpoint, parse_note
from mandamus.proof.report import Finding, Report
from mandamus.proof.tiles import Tiles
from mandamus.proof.trust import TRUST_BYTES_MAX, Trust
from mandamus.proof.verify import Beside, verify

USAGE = 2
_AGE = re.compile(r"([1-9][0-9]{0,8})([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_WHAT = {
    0: "complete and valid",
    1: "broken",
    2: "nothing to verify, or no trust root",
    3: "valid, but a part is not shown",
    4: "valid so far, the run is not finished",
    5: "cannot tell yet",
}


@dataclass(frozen=True)
class More:
    """What needs more than the auditor's own packages and is handed in by whoever has them. `stamps(root)` reads RFC 3161 replies,
    `judge()` is an engine that policy is asked again with."""

    stamps: Callable[[bytes], Callable[[bytes, bytes], int]] | None = None
    judge: Callable[[], Judge] | None = None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Misuse(message, code="MDM-0195", fix="mandamus verify BUNDLE --trust TRUST")


def parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="mandamus verify",
        description="Check the proof of a run, offline, against your own trust file.",
        epilog=_exits(),
        allow_abbrev=False,
    )
    made.add_argument("bundle", metavar="BUNDLE", help="the file that `mandamus bundle RUN` wrote")
    made.add_argument("--trust", metavar="TRUST", help="your trust file; it must not come with the bundle")
    made.add_argument("--views", metavar="DIR", help="compare agent_run.json, decision.json and tool_trace.json in DIR with the records")
    made.add_argument("--blobs", metavar="DIR", help="where payloads lie that are too large for a line; default beside BUNDLE")
    made.add_argument("--state", metavar="FILE", help="what you saw last of each log: the log may only have grown since; kept there")
    made.add_argument("--log", metavar="DIR", help="the log as files (mandamus log export), to check that it only grew")
    made.add_argument("--max-age", metavar="TIME", help="how old the youngest cosignature may be: 90, 30m, 12h, 7d")
    made.add_argument("--tsa", metavar="PEM", help="root certificate of the RFC 3161 authority whose stamps you believe")
    made.add_argument("--reevaluate", action="store_true", help="ask policy again with the recorded facts: the same verdicts?")
    made.add_argument("--sample", metavar="N", type=int, help="of a period: draw so many of its runs, by your own --seed")
    made.add_argument("--seed", metavar="TEXT", help="for --sample: a word that the other side could not know before")
    made.add_argument("--json", action="store_true", help="one JSON object instead of text")
    made.add_argument("-q", "--quiet", action="store_true", help="the verdict, and what is broken; no list of claims")
    return made


def _exits() -> str:
    return "exit codes: " + " | ".join(f"{code} {what}" for code, what in _WHAT.items())


def main(argv: Sequence[str] | None = None, more: More | None = None) -> int:
    """The command as a function: prints to stdout, problems to stderr, returns the exit code."""
    as_json = "--json" in (sys.argv[1:] if argv is None else argv)
    try:
        options = parser().parse_args(argv)
        report = _report(options, more or More())
    except SystemExit as done:  # --help
        return int(done.code or 0)
    except MandamusError as error:
        return _refuse(error, as_json)
    try:
        _say(json.dumps(report.as_json(), ensure_ascii=True, sort_keys=True) if as_json else text(report, quiet=options.quiet))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has what it wanted
        sys.stdout = None
    return report.exit_code


def _report(options: argparse.Namespace, more: More) -> Report:
    raw = _read(options.bundle, BUNDLE_BYTES_MAX)
    roots = None if options.trust is None else Trust.parse(_read(options.trust, TRUST_BYTES_MAX), options.trust)
    beside = _beside(options, more)
    report = verify(raw, roots, beside)
    if beside.last is not None:
        _remember(Path(options.state), report)
    return report


def _beside(options: argparse.Namespace, more: More) -> Beside:
    return Beside(
        views={} if options.views is None else _views(options.views),
        blobs=_Folder(Path(options.blobs) if options.blobs else Path(options.bundle).parent),
        now=int(time.time()),
        max_age=None if options.max_age is None else _age(options.max_age),
        sample=_sample(options.sample, options.seed),
        last=None if options.state is None else _last(Path(options.state)),
        tiles=None if options.log is None else _tiles(Path(options.log)),
        judge=_judge(more) if options.reevaluate else None,
        stamp=None if options.tsa is None else _stamps(options.tsa, more),
    )


def _age(text: str) -> int:
    match = _AGE.fullmatch(text)
    if match is None:
        raise Misuse("that is no age", code="MDM-0195", where=f"--max-age {text[:40]}", fix="write 90, 30m, 12h or 7d")
    return int(match[1]) * _SECONDS[match[2]]


def _sample(count: int | None, seed: str | None) -> tuple[int, str] | None:
    if count is None and seed is None:
        return None
    if count is None or seed is None or count < 1:
        raise Misuse("a sample is drawn by a number and a seed", code="MDM-0195", fix="--sample 25 --seed 'your own words'")
    return count, seed


class _Folder(Mapping[str, bytes]):
    """Files by name, read when they are asked for. Names come from a bundle: they are hex digests by then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (self.folder / name).is_file()

    def __getitem__(self, name: str) -> bytes:
        return _read(str(self.folder / name), BUNDLE_BYTES_MAX)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


# -- what was seen last, and the log as files --------------------------------------------------------------------------------
def _last(path: Path) -> continuity.Last:
    return continuity.read(_read(str(path), continuity.LAST_BYTES_MAX), str(path)) if path.exists() else {}


def _remember(path: Path, report: Report) -> None:
    """Only what holds is remembered, whole or not at all: what the witnesses of the trust file have not seen is nobody's head."""
    held = {claim.name for claim in report.claims if claim.outcome == "proven"}
    if report.broken is not None or not held.issuperset(("checkpoint", "continuity")):
        return
    with _alone(path.parent):
        stands = _last(path)  # not what was read before the bundle was: another reader may have seen more meanwhile
        after = continuity.after(stands, report.checkpoint)
        if after != stands:
            _put(path, continuity.write(after))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of several readers that keep one file, one writes at a time. Where the system has no such locks, nobody waits."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise _unkept(folder, error) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _put(path: Path, content: bytes) -> None:
    try:
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as error:
        raise _unkept(path, error) from None


def _unkept(path: Path, error: OSError) -> Misuse:
    return Misuse(f"what was seen cannot be kept: {error.strerror}", code="MDM-0195", where=str(path), fix="--state FILE")


def _tiles(folder: Path) -> Tiles:
    if not folder.is_dir():
        raise Misuse("there is no such folder", code="MDM-0195", where=str(folder), fix="--log DIR: what `mandamus log export DIR` wrote")

    def read(path: str) -> bytes | None:
        file = folder / path
        return _read(str(file), 1 << 25) if file.is_file() else None

    return Tiles(read, _size(folder))


def _size(folder: Path) -> int:
    """Of the folder's own checkpoint: which widths its last tiles have. It is a hint; nothing is believed of it."""
    file = folder / "checkpoint"
    try:
        return parse_checkpoint(parse_note(_read(str(file), NOTE_BYTES_MAX)).text).size if file.is_file() else 0
    except ProofError:
        return 0


def _judge(more: More) -> Judge:
    if more.judge is None:
        fix = "pip install mandamus and use mandamus verify, or verify without --reevaluate"
        raise Misuse("this command has no policy engine", code="MDM-0195", where="--reevaluate", fix=fix)
    return more.judge()


def _stamps(pem: str, more: More) -> Callable[[bytes, bytes], int]:
    if more.stamps is None:
        fix = "pip install 'mandamus[tsa]' and use mandamus verify, or verify without --tsa"
        raise Misuse("this command cannot read RFC 3161 stamps", code="MDM-0195", where="--tsa", fix=fix)
    return more.stamps(_read(pem, 1 << 20))


def _views(folder: str) -> dict[str, bytes]:
    found = {path.name: _read(str(path), BUNDLE_BYTES_MAX) for path in sorted(Path(folder).glob("*.json"))}
    if not found:
        raise Misuse("there is no view in that folder", code="MDM-0195", where=folder, fix="mandamus bundle RUN --views DIR")
    return found


def _read(path: str, limit: int) -> bytes:
    try:
        with open(path, "rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        fix = "mandamus verify BUNDLE --trust TRUST: a file that mandamus bundle wrote, and your own trust file"
        raise Misuse(f"cannot be read: {error.strerror}", code="MDM-0195", where=path, fix=fix) from None
    if len(raw) > limit:
        raise Misuse("the file is too large", code="MDM-0195", where=path, expected=f"at most {limit} bytes")
    return raw


def _refuse(error: MandamusError, as_json: bool) -> int:
    if as_json:
        _say(json.dumps({"error": error.diagnosis.as_json(), "exit_code": USAGE, "verdict": "NOT PROVEN"}, sort_keys=True))
    else:
        print(_plain(f"NOT PROVEN\n{error.diagnosis}"), file=sys.stderr)
    return USAGE


# -- text --------------------------------------------------------------------------------------------------------------------
def text(report: Report, *, quiet: bool = False) -> str:
    """Verdict, the first broken thing, then, unless `quiet`, one line per claim."""
    rows = [f"{report.verdict}  ({_WHAT[report.exit_code]})"]
    if report.broken is not None:
        rows += _finding(report.broken)
        if report.attested:
            rows.append(f"  {report.attested}")
    if report.run:
        rows.append(f"run {report.run}  {report.state}, {report.events} events, head {report.head}")
    rows += [f"  sample    {run}" for run in report.sample]
    claims = () if quiet else report.claims
    width = max((len(claim.outcome) for claim in claims), default=0)
    rows += [f"  {claim.outcome.ljust(width)}  {claim.name}: {claim.says}" for claim in claims]
    return "\n".join(rows)


def _finding(finding: Finding) -> list[str]:
    rows = [f"{finding.code}  {finding.where + ': ' if finding.where else ''}{finding.what}"]
    told = (("expected", finding.expected), ("found   ", finding.found), ("why     ", finding.why), ("fix     ", finding.fix))
    return rows + [f"  {name}  {value}" for name, value in told if value]


def _say(line: str) -> None:
    print(_plain(line))


def _plain(line: str) -> str:
    """Printable ASCII and line ends: names and digests come from a file that nobody vouches for yet."""
    return "".join(c if " " <= c <= "~" or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in line)


if __name__ == "__main__":
    sys.exit(main())
