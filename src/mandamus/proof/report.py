"""What a verifier says: one verdict first, then each claim with one of four outcomes, then the first thing that is broken.

The rule a newcomer would break: a claim says only what was checked. Nothing is "ok"; grey is not green.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from mandamus.errors import ProofError

Outcome = Literal["proven", "broken", "cannot check now", "not in this bundle"]
Verdict = Literal["PROVEN", "NOT PROVEN", "NOT FULLY CHECKED"]
State = Literal["sealed", "open", "interrupted", "unknown"]


def some(count: int, one: str, many: str = "") -> str:
    """`1 vote`, `2 votes`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


class Finding(Struct, frozen=True, omit_defaults=True):
    """One thing that does not hold. `event` (with `chain`) or `line` says where; digests are shown whole."""

    what: str
    code: str = "MDM-0640"
    chain: str = ""
    event: int | None = None
    line: int | None = None
    type: str = ""
    expected: str = ""
    found: str = ""
    why: str = ""
    fix: str = ""

    @property
    def where(self) -> str:
        parts = [
            f"event {self.event} {self.type}".strip() if self.event is not None else "",
            f"line {self.line}" if self.line is not None else "",
        ]
        text = ", ".join(part for part in parts if part)
        return f"chain log, {text}" if self.chain == "log" else text


class Broken(ProofError):
    """A check that stops at its first finding."""

    def __init__(self, finding: Finding) -> None:
        f = finding
        super().__init__(f.what, code=f.code, where=f.where, expected=f.expected, found=f.found, why=f.why, fix=f.fix)
        self.finding = finding


class Claim(Struct, frozen=True):
    name: str
    outcome: Outcome
    says: str
    exit_code: int = 0


class Report(Struct, frozen=True, kw_only=True):
    """`exit_code`: 0 complete and valid, 1 broken, 2 nothing to verify or no trust root, 3 a part is missing, 4 open, 5 cannot tell."""

    verdict: Verdict
    exit_code: int
    run: str = ""
    state: State = "unknown"
    events: int = 0
    head: str = ""
    checkpoint: Any = None  # proof.witnessed.Seen: the largest of the bundle
    claims: tuple[Claim, ...] = ()
    broken: Finding | None = None
    attested: str = ""
    sample: tuple[str, ...] = ()  # of a period's runs, drawn by the auditor's seed

    @property
    def ok(self) -> bool:
        """Nothing is broken. Not the same as proven."""
        return self.broken is None and self.exit_code not in (1, 2)

    def as_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self)
        if self.broken is not None:
            plain["broken"]["where"] = self.broken.where
        return {key: value for key, value in plain.items() if value not in (None, "", ()) or key == "claims"}


ORDER = (2, 1, 5, 4, 3)  # where several apply, the first of these


def exit_code(codes: set[int]) -> int:
    return next((code for code in ORDER if code in codes), 0)


def verdict(code: int) -> Verdict:
    return "PROVEN" if code == 0 else "NOT PROVEN" if code in (1, 2) else "NOT FULLY CHECKED"
