"""A bundle as one HTML page for reading and printing: the verdict first, then each claim, then every event with what is shown of it.

The rule a newcomer would break: everything in a bundle is somebody's text. It goes onto the page as characters, escaped, and what hides
(control and bidi marks, zero-width letters) is made visible. No script, no link, no picture: the page asks nothing of any network.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mandamus.cli.say import hides
from mandamus.core.records import AnyRecord, decode
from mandamus.proof import bundle, shown
from mandamus.proof.report import Finding, Report, some

VALUE_CHARS_MAX = 20_000
_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;border-left:.5rem solid;padding-left:.75rem}
table{border-collapse:collapse;width:100%}
th,td{border-bottom:1px solid;padding:.35rem .5rem;text-align:left;vertical-align:top}
code,pre{font:13px/1.45 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:0}
section{margin-top:2rem}
.mark{border:1px solid;border-radius:.2rem;padding:0 .2rem;font-size:.8em}
.broken{border:2px solid;padding:.5rem 1rem}
article{border-top:1px solid;padding:.75rem 0;break-inside:avoid}
"""


def page(raw: bytes, report: Report, blobs: Mapping[str, bytes] | None = None) -> bytes:
    """The same bytes for the same bundle and report. What a broken bundle holds is not shown: nobody vouches for it."""
    body = [_head(report), _claims(report)]
    if report.broken is None and report.run:
        box = bundle.read(raw)
        lines = _lines(box, blobs)
        body += [_events("Events of the run", box.sections["record"], lines, "event")]
        body += [_events("Chain log", box.sections["log"], lines, "log")] if box.sections["log"] else []
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode("ascii")
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = f"{report.verdict}: run {report.run}" if report.run else report.verdict
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="viewport" content="width=device-width">\n'
        f"<title>{text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    ).encode()


def text(value: str) -> str:
    """Escaped, and with a visible mark for each character that hides. Line ends stay."""
    return "".join(_mark(c) if c not in "\n" and hides(c) else html.escape(c) for c in value)


def _mark(char: str) -> str:
    return f'<span class="mark">U+{ord(char):04X}</span>'


def _head(report: Report) -> str:
    what = {
        "PROVEN": "Everything that this bundle claims was checked and holds.",
        "NOT PROVEN": "Something does not hold. Do not rely on any of it.",
        "NOT FULLY CHECKED": "What is shown holds, but something is missing, unfinished or could not be checked.",
    }[report.verdict]
    rows = [("Run", report.run), ("State", report.state), ("Events", str(report.events)), ("Head", report.head)]
    seen = report.checkpoint
    rows += [("Log", f"{seen.origin}, {seen.size} leaves, root {seen.root}")] if seen is not None else []
    table = "".join(f'<tr><th scope="row">{name}</th><td><code>{text(value)}</code></td></tr>' for name, value in rows if value)
    broken = _finding(report.broken) if report.broken is not None else ""
    note = "This page is a copy for reading. Check the bundle itself: mandamus verify BUNDLE --trust TRUST."
    verdict = f"<h1>{report.verdict}</h1>\n<p>{what} Exit code {report.exit_code}.</p>\n{broken}"
    return f"{verdict}<table>{table}</table>\n<p><strong>{note}</strong></p>"


def _finding(found: Finding) -> str:
    rows = [
        found.what,
        found.where,
        *(f"{name}: {value}" for name in ("expected", "found", "why", "fix") if (value := getattr(found, name))),
    ]
    return '<div class="broken" role="alert">' + "".join(f"<p>{text(row)}</p>" for row in [found.code, *rows] if row) + "</div>\n"


def _claims(report: Report) -> str:
    rows = "".join(f'<tr><th scope="row">{text(c.name)}</th><td>{text(c.outcome)}</td><td>{text(c.says)}</td></tr>' for c in report.claims)
    head = '<tr><th scope="col">Claim</th><th scope="col">Outcome</th><th scope="col">In words</th></tr>'
    return f'<section aria-labelledby="claims"><h2 id="claims">Claims</h2>\n<table>{head}{rows}</table></section>'


def _lines(box: bundle.Container, blobs: Mapping[str, bytes] | None) -> dict[shown.Key, shown.Line]:
    lines = [shown.read(raw, number) for number, raw in enumerate(box.sections["payload"], box.first["payload"])]
    return shown.match(lines, [decode(raw) for name in ("record", "log") for raw in box.sections[name]], blobs)


def _events(title: str, raws: Sequence[bytes], lines: Mapping[shown.Key, shown.Line], prefix: str) -> str:
    events = "\n".join(_event(decode(raw), lines, prefix) for raw in raws)
    return f'<section aria-labelledby="{prefix}s"><h2 id="{prefix}s">{title}</h2>\n{events}</section>'


def _event(record: AnyRecord, lines: Mapping[shown.Key, shown.Line], prefix: str) -> str:
    fact = json.dumps(msgspec.to_builtins(record.fact), ensure_ascii=False, sort_keys=True, indent=1)
    parts = "".join(_part(part.part, part.class_, lines[record.run, record.seq, part.part]) for part in record.body or ())
    return (
        f'<article id="{prefix}-{record.seq}"><h3>{record.seq} {text(record.type)}</h3><p><time>{text(record.at)}</time></p>'
        f"<pre>{text(fact)}</pre>{parts}</article>"
    )


def _part(name: str, class_: str, line: shown.Line) -> str:
    head = f"<p><strong>{text(name)}</strong> ({text(class_)})"
    if line.show == "whole":
        return f"{head}</p><pre>{_value(line.value)}</pre>"
    if line.show == "fields":
        members = {member[2]: member[3] for member in line.members}
        return f"{head}; not shown of it: {some(len(line.hidden), 'member')}</p><pre>{_value(members)}</pre>"
    words = {"erased": "erased, with a record that says so", "blob": "lies beside the bundle", "cipher": "as it is stored, encrypted"}
    return f"{head}: {words.get(line.show, 'withheld')}; commitment <code>{text(line.commit)}</code></p>"


def _value(value: Any) -> str:
    whole = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, indent=1)
    cut = f"\n(cut here; {len(whole) - VALUE_CHARS_MAX} more characters stand in the bundle)" if len(whole) > VALUE_CHARS_MAX else ""
    return text(whole[:VALUE_CHARS_MAX]) + cut
