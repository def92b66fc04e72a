"""RFC 3161 stamps over checkpoint notes: somebody else's clock says that the note was there by then.

The rule a newcomer would break: a stamp says when, never whether, and only of what its own checkpoint covers. It counts only over a
note that holds by itself, and only by a root certificate that the person who asks has given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from mandamus.core.canonical import accept
from mandamus.core.clock import rfc3339
from mandamus.errors import ProofError
from mandamus.proof.keys import unb64
from mandamus.proof.note import SKEW_S
from mandamus.proof.report import Broken, Claim, Finding, some
from mandamus.proof.witnessed import LAST_SECOND

REPLY_BYTES_MAX = 1 << 16
STAMPS_MAX = 8
Reader = Callable[[bytes, bytes], int]  # (reply, message) -> seconds since 1970; raises ProofError


def check(lines: Sequence[bytes], first: int, notes: Mapping[bytes, str], head: bytes, reader: Reader | None, now: int | None) -> Claim:
    """Claim `stamps`. `notes`: each with the latest `at` of the records under it; `head`: the one over the whole run. Raises Broken."""
    known = {hashlib.sha256(note).hexdigest(): note for note in notes}
    if len(lines) > STAMPS_MAX:
        raise _no(f"section tsr has {len(lines)} lines", first, f"at most {STAMPS_MAX}")
    read = [(number, *_line(raw, number)) for number, raw in enumerate(lines, first)]
    for number, name, _ in read:
        if name not in known:
            raise _no("the stamp is over no checkpoint of this bundle", number, ", ".join(known), name)
    if reader is None:
        told = f"{some(len(lines), 'stamp')} over the checkpoint; the root certificate of its authority was not given (--tsa ROOT.pem)"
        return Claim("stamps", "cannot check now", told, 0)
    times = []
    for number, name, reply in read:
        try:
            time = reader(reply, known[name])
        except ProofError as error:
            raise Broken(Finding(error.diagnosis.what, code="MDM-0669", line=number, why=error.diagnosis.why)) from None
        if now is not None and time > now + SKEW_S:
            raise _no("the stamp is from the future", number, rfc3339(now * 1_000_000), rfc3339(time * 1_000_000))
        newest = notes[known[name]]
        if time < LAST_SECOND and newest > rfc3339((time + SKEW_S) * 1_000_000):
            raise _no("the stamp is older than a record under its checkpoint", number, newest, rfc3339(time * 1_000_000))
        times += [time] if known[name] == head else []
    if not times:
        return Claim("stamps", "cannot check now", "the stamps are over earlier checkpoints: none says when the whole run was there", 0)
    return Claim("stamps", "proven", f"the checkpoint was there by {rfc3339(min(times) * 1_000_000)}")


def _line(raw: bytes, number: int) -> tuple[str, bytes]:
    try:
        value = accept(raw)
        if (
            type(value) is not dict
            or value.keys() != {"note", "reply"}
            or type(value["note"]) is not str
            or type(value["reply"]) is not str
        ):
            raise ValueError("its fields are not note and reply")
        reply = unb64(value["reply"])
        if not 0 < len(reply) <= REPLY_BYTES_MAX:
            raise ValueError("the reply is empty or too long")
    except ValueError as error:
        raise _no(f"this is no stamp line: {str(error)[:80]}", number, code="MDM-0646") from None
    return value["note"], reply


def _no(what: str, line: int, expected: str = "", found: str = "", code: str = "MDM-0669") -> Broken:
    return Broken(Finding(what, code=code, line=line, expected=expected, found=found[:80]))
