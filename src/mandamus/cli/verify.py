"""`verify BUNDLE --trust TRUST`: the auditor's command. Needs the standard library, msgspec and cryptography, and no network.

The rule a newcomer would break: the verdict comes first, and nothing is printed that was not checked. Exit codes: 0 complete and valid,
1 broken, 2 usage or no trust root or nothing to verify, 3 a part is withheld or missing, 4 the run is open, 5 cannot tell.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mandamus.errors import MandamusError, Misuse
from mandamus.proof.bundle import BUNDLE_BYTES_MAX
from mandamus.proof.report import Finding, Report
from mandamus.proof.trust import TRUST_BYTES_MAX, Trust
from mandamus.proof.verify import verify

USAGE = 2
_WHAT = {
    0: "complete and valid",
    1: "broken",
    2: "nothing to verify, or no trust root",
    3: "valid, but a part is not shown",
    4: "valid so far, the run is not finished",
    5: "cannot tell yet",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Misuse(message, code="MDM-0195", fix="mandamus verify BUNDLE --trust TRUST")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mandamus verify",
        description="Check the proof of a run, offline, against your own trust file.",
        epilog=_exits(),
        allow_abbrev=False,
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="the file that `mandamus bundle RUN` wrote")
    parser.add_argument("--trust", metavar="TRUST", help="your trust file; it must not come with the bundle")
    parser.add_argument("--views", metavar="DIR", help="compare agent_run.json, decision.json and tool_trace.json in DIR with the records")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("-q", "--quiet", action="store_true", help="the verdict, and what is broken; no list of claims")
    return parser


def _exits() -> str:
    return "exit codes: " + " | ".join(f"{code} {what}" for code, what in _WHAT.items())


def main(argv: Sequence[str] | None = None) -> int:
    """The command as a function: prints to stdout, problems to stderr, returns the exit code."""
    as_json = "--json" in (sys.argv[1:] if argv is None else argv)
    try:
        options = _parser().parse_args(argv)
        report = _report(options.bundle, options.trust, options.views)
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


def _report(bundle: str, trust: str | None, views: str | None) -> Report:
    raw = _read(bundle, BUNDLE_BYTES_MAX)
    roots = None if trust is None else Trust.parse(_read(trust, TRUST_BYTES_MAX), trust)
    return verify(raw, roots, regenerated=None if views is None else _views(views))


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
