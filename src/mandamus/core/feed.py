"""Cursors of a ledger's feed: `cursor("17", raw)` is "17-9f86d081884c7d65", `read(text, 1)` takes it apart, `stands(...)` believes it.

A cursor names a place in the ledger and the record that stands there, by the first quarter of its event hash. Whoever goes on
from it finds that record first. So a ledger that was put back to an older day, or that is another one with places of the same form, is
noticed by the first question, instead of giving out other records as if they were the next.

The rule a newcomer would break: what comes behind a cursor is given out without a second look at what came before it. A cursor that is
believed unseen makes a hole in the log, and nobody would ever look there again.
"""

from __future__ import annotations

import hashlib
import re

from mandamus.core.records import EVENT
from mandamus.errors import Misuse, ProofError

_MARK = 16  # hex digits of the event hash
_shape = re.compile(r"((?:0|[1-9][0-9]{0,18})(?:\.(?:0|[1-9][0-9]{0,18}))*)-([0-9a-f]{16})").fullmatch
_sha256 = hashlib.sha256


def cursor(place: str, raw: bytes) -> str:
    """Behind this record. `place`: whole numbers with dots between them."""
    return f"{place}-{_sha256(EVENT + raw).hexdigest()[:_MARK]}"


def read(after: str, numbers: int) -> tuple[int, ...]:
    """The place that a cursor names. Raises Misuse for what no ledger with places of so many numbers has given out."""
    found = _shape(after)
    place = tuple(int(n) for n in found[1].split(".")) if found else ()
    if len(place) != numbers or max(place) >= 2**63:
        raise Misuse(
            "this is no cursor of this ledger",
            code="MDM-0910",
            expected='"", or what an earlier reading gave out',
            found=ascii(after[:80]),
            why="each kind of ledger counts in its own way",
            fix="begin anew, from the first record",
        )
    return place


def stands(after: str, raw: bytes | None) -> None:
    """Raises ProofError unless `raw`, what stands at the cursor's place now, is the record that stood there when it was given out."""
    if raw is None or not after.endswith(cursor("", raw)):
        raise ProofError(
            "the record that was read last is not in the ledger any more",
            code="MDM-0911",
            where=after,
            found="another record" if raw is not None else "nothing",
            why="it is an older backup, or another ledger: what was read from it already would be contradicted by what comes now",
            fix="bring back the newest backup; what is missing was read, and stands in the tenant's log",
        )
