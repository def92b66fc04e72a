"""One tree of errors. The class says whose fault it is; the diagnosis says what happened, why it matters and what to do.

The rule a newcomer would break: never quote a payload or a secret in a diagnosis, and never raise a bare exception at a public boundary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Diagnosis:
    """What a person reads. `where` is file:line:column, or run and event; `fix` is a command or the text to write."""

    code: str
    what: str
    where: str = ""
    expected: str = ""
    found: str = ""
    why: str = ""
    fix: str = ""

    def __str__(self) -> str:
        """At most twelve lines: code, place and fact first, then expected/found, why, fix."""
        head = "  ".join(part for part in (self.code, self.where, self.what) if part)
        rows = [head]
        if self.expected or self.found:
            found = ("      found  " if self.expected else "  found     ") + self.found if self.found else ""
            rows.append((f"  expected  {self.expected}" if self.expected else "") + found)
        if self.why:
            rows.append("  why       " + self.why)
        if self.fix:
            rows.append("  fix       " + self.fix)
        return "\n".join(rows)

    def as_json(self) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if value}


class MandamusError(Exception):
    """The root. `diagnosis` is always there; `exit_code` is the one of docs/reference/cli.md."""

    exit_code = 1

    def __init__(
        self, what: str, *, code: str = "", where: str = "", expected: str = "", found: str = "", why: str = "", fix: str = ""
    ) -> None:
        self.diagnosis = Diagnosis(code or self.default_code, what, where, expected, found, why, fix)
        super().__init__(str(self.diagnosis))

    default_code = "MDM-0001"


class Misuse(MandamusError):
    """The caller's mistake: an illegal tool, agent, setting or argument. Nothing was started."""

    exit_code = 2
    default_code = "MDM-0100"


class Refused(MandamusError):
    """A rule said no: policy, a start condition, a vote that does not count."""

    exit_code = 3
    default_code = "MDM-0300"


class RunRefused(Refused):
    """The run may not start. `reasons` holds every reason at once, each with its code, articles and fix.

    `result` is the RunResult of state "refused", when a run was asked for through an Agent.
    """

    result: Any = None

    default_code = "MDM-0310"

    def __init__(self, what: str, reasons: tuple[Any, ...] = (), **more: str) -> None:
        super().__init__(what, **more)
        self.reasons = reasons


class EngineFault(MandamusError):
    """Something that must answer did not, or answered what cannot be true. Never an allow; the run halts or the process ends."""

    exit_code = 5
    default_code = "MDM-0500"


class Unavailable(EngineFault):
    """The ledger did not answer. `outcome` says whether the write is known not to have happened ("none") or may have ("unknown")."""

    default_code = "MDM-0510"

    def __init__(self, what: str, *, outcome: str = "unknown", **more: str) -> None:
        super().__init__(what, **more)
        self.outcome = outcome


class Conflict(MandamusError):
    """Somebody else was first. `on` is "run", "account" or "witness"; `head` is the run's head as it stands, `size` the log's size that the
    witness knows; nothing of the write happened."""

    exit_code = 5
    default_code = "MDM-0400"

    def __init__(self, what: str, *, on: str = "run", head: Any = None, account: str = "", size: int = 0, **more: str) -> None:
        super().__init__(what, **more)
        self.on, self.head, self.account, self.size = on, head, account, size


class ProofError(MandamusError):
    """Evidence does not hold: a hash, a signature, a commitment, a chain."""

    exit_code = 1
    default_code = "MDM-0600"


class Erased(ProofError):
    """What is asked for was forgotten, by right and with a record. Nothing is broken, and nobody can read it any more."""

    exit_code = 3
    default_code = "MDM-0960"


class NotDone(Exception):
    """Raised by a tool that knows that nothing happened. The only way in which a writing tool can fail (docs/concepts/effects.md)."""
