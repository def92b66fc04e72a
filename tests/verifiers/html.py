"""The JavaScript verifier as the tests ask it: `Node()` runs its sources in node, `asked(page, case)` the built page in a browser.

Both answer with the report as a dict. The rule a newcomer would break: what is compared is what a verifier *says* (exit code, verdict,
state, each claim's outcome); the words for a malformed byte may differ from library to library.
"""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mandamus.core.canonical import canon
from tests.servers.needs import needs
from tests.verifiers.chromium import Page
from tests.verifiers.corpus import CLOCK, Case

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "verifiers" / "verify.html"
NODE = Path(__file__).parent / "node"
BYTES = "(text) => text === null ? null : Uint8Array.from(atob(text), (c) => c.charCodeAt(0))"


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def question(
    bundle: bytes,
    trust: str | bytes | None,
    *,
    views: Any = (),
    blobs: Any = (),
    last: bytes | None = None,
    now: int | None = CLOCK,
    max_age: int | None = None,
) -> dict[str, Any]:
    """Files as base64."""
    roots = trust.encode() if isinstance(trust, str) else trust
    files = {"views": dict(views), "blobs": dict(blobs)}
    packed = {kind: {name: b64(raw) for name, raw in given.items()} for kind, given in files.items()}
    whole = {name: None if raw is None else b64(raw) for name, raw in {"bundle": bundle, "trust": roots, "last": last}.items()}
    return {**whole, **packed, "now": now, "maxAge": max_age}


def question_of(case: Case) -> dict[str, Any]:
    last = None
    if case.last is not None:
        heads = {origin: {"root": root, "size": size} for origin, (size, root) in case.last.items()}
        last = canon({"mandamus": "last-seen/1", "origins": heads}) + b"\n"
    return question(case.bundle, case.trust, views=case.views, blobs=case.blobs, last=last, now=case.now, max_age=case.max_age)


class Node:
    """The sources in node, one process for many questions."""

    def __enter__(self) -> Self:
        needs("node")
        self.process = subprocess.Popen(["node", str(NODE / "run.mjs")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()

    def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked).encode() + b"\n")
        self.process.stdin.flush()
        report: dict[str, Any] = json.loads(self.process.stdout.readline())
        return report


def asked(page: Page, what: dict[str, Any]) -> dict[str, Any]:
    """The same question, put to the function that the page's button calls."""
    program = f"""(async () => {{
        const bytes = {BYTES}, files = (given) => new Map(Object.entries(given).map(([name, text]) => [name, bytes(text)]));
        const {{ bundle, trust, views, blobs, last, ...rest }} = {json.dumps(what)};
        return JSON.stringify(await mandamusVerify({{
            bundle: bytes(bundle), trust: bytes(trust), views: files(views), blobs: files(blobs), last: bytes(last), ...rest }}));
    }})()"""
    report: dict[str, Any] = json.loads(page.evaluate(program))
    return report


def differs(case: Case, report: dict[str, Any], wanted: dict[str, Any]) -> str:
    """What is wrong with a report, "" where nothing is. `wanted`: what the library says.

    An engine that has no ML-DSA says so, and checks nothing that rests on it: the case allows for that answer.
    """
    found = said_by(report)
    lacks = found["exit_code"] == 5 and any("cannot check signatures of this kind" in claim["says"] for claim in report["claims"])
    if found["exit_code"] in case.codes and (found == wanted or wanted["exit_code"] == found["exit_code"] == 2 or lacks):
        return ""
    return f"{case.name}: {case.codes} is right, here {found}, the library {wanted}"


def said_by(report: dict[str, Any]) -> dict[str, Any]:
    """What is compared of a report, in the form of `single.said`; a refused trust file is an exit code and nothing else."""
    if "claims" not in report:
        return {"exit_code": report["exit_code"]}
    claims = [(claim["name"], claim["outcome"], claim["exit_code"]) for claim in report["claims"]]
    return {"exit_code": report["exit_code"], "verdict": report["verdict"], "state": report.get("state", "unknown"), "claims": claims}
