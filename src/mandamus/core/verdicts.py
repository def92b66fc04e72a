"""What a rule in code may answer: `allow()`, `deny(reason)`, `escalate(chain, quorum, reason)`, `evidence(level)`, or None: no opinion.

The rule a newcomer would break: None is not a permit. What no rule allows is denied.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from mandamus.core.asks import WITHIN_MS, level
from mandamus.core.records import Ask


class Verdict(Struct, frozen=True, kw_only=True):
    """One rule's answer. `reason` is shown to people, never to the model; `asks` only with `escalate`."""

    verdict: Literal["allow", "deny", "escalate"]
    reason: str = ""
    asks: tuple[Ask, ...] = ()
    on_deny: Literal["", "feedback", "halt"] = ""


def allow(reason: str = "") -> Verdict:
    """The permit that default deny asks for. A forbid of any engine still wins."""
    return Verdict(verdict="allow", reason=reason)


def deny(reason: str = "", *, halt: bool = False) -> Verdict:
    """No. With `halt` the run halts instead of telling the model."""
    return Verdict(verdict="deny", reason=reason, on_deny="halt" if halt else "")


def escalate(chain: str = "default", quorum: int = 1, reason: str = "") -> Verdict:
    """Not yet: ask `quorum` people of `chain`. The rule must answer otherwise once `chain` is in `facts.people.met`."""
    return Verdict(verdict="escalate", reason=reason, asks=(Ask(chain=chain, quorum=quorum),))


def evidence(name: Literal["sealed", "witnessed"] = "witnessed", *, within_ms: int = WITHIN_MS, reason: str = "") -> Verdict:
    """Not yet: the proposal must first stand under a signed checkpoint, or one that the quorum of witnesses cosigned, and within this time,
    else the action is denied. The rule must answer otherwise once the level is in `facts.people.met`."""
    return Verdict(verdict="escalate", reason=reason, asks=(level(name, within_ms),))
