"""Every chain of a ledger walked: bytes, links, order, the head row, and each payload against its commitment. For `doctor`.

The rule a newcomer would break: one chain that does not hold is a finding and no end; the others are walked too. What was left out is
counted, so that nobody takes a part for the whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from mandamus.core.erasures import Told
from mandamus.core.payload import opened
from mandamus.core.records import AnyRecord
from mandamus.errors import MandamusError
from mandamus.ports import Head, Ledger
from mandamus.proof.chain import NEWER, walk
from mandamus.runtime import erased

AT_MOST = 500_000
LEAVE = "keep the ledger as evidence; restore a whole backup, or leave this run as it is: the others go on, and a new one can be begun"
NEWER_FIX = "use the newest mandamus; when that does not know it either, somebody changed the ledger: " + LEAVE


class Fault(Struct, frozen=True):
    """The first thing of a chain that does not hold. `seq` None: it cannot be said of which event."""

    run: str
    seq: int | None
    code: str
    what: str
    expected: str = ""
    found: str = ""

    @property
    def where(self) -> str:
        return f"run {self.run}" + ("" if self.seq is None else f" (event {self.seq})")

    @property
    def fix(self) -> str:
        return NEWER_FIX if self.code == NEWER else LEAVE

    def says(self) -> str:
        both = f": expected {self.expected}, found {self.found}" if self.expected and self.found else ""
        return f"{self.code} {self.where}: {self.what}{both}"


class Walked(Struct):
    """What was walked and what was left out, in chains and events."""

    chains: int = 0
    events: int = 0
    left: int = 0
    faults: list[Fault] = []


async def walk_all(ledger: Ledger, at_most: int, tell: Callable[[int], None]) -> Walked:
    """Newest chains first, as far as `at_most` events reach (0: all). `tell` hears how many events are done."""
    done = Walked(faults=[])
    heads = [head async for head in ledger.runs()]
    for head in reversed(heads):
        if at_most and done.events + head.seq + 1 > at_most:
            done.left += 1
            continue
        fault = await _tried(ledger, head)
        done.chains, done.events = done.chains + 1, done.events + head.seq + 1
        done.faults += [fault] if fault else []
        tell(done.events)
    return done


async def _tried(ledger: Ledger, head: Head) -> Fault | None:
    try:
        return await _walk(ledger, head)
    except MandamusError as error:  # the store itself: records that are gone, a page that cannot be read
        d = error.diagnosis
        at = _event(d.where)
        return Fault(head.run, int(at[1]) if at else None, d.code, d.what, d.expected, d.found)


_event = re.compile(r"\(event ([0-9]+)\)$").search


async def _walk(ledger: Ledger, head: Head) -> Fault | None:
    raws = [raw async for raw in ledger.read(head.run, upto=head.seq)]
    walked = walk(raws, head.run)
    if walked.fault is not None:
        f = walked.fault
        return Fault(head.run, f.event, f.code, f.what, f.expected[:12], f.found[:12])
    if walked.head != head.hash or walked.count != head.seq + 1:
        what = "the last event is not the one that the head row names"
        return Fault(head.run, head.seq, "MDM-0642", what, head.hash[:12], walked.head[:12])
    return await _payloads(ledger, head, walked.records)


async def _payloads(ledger: Ledger, head: Head, records: list[AnyRecord]) -> Fault | None:
    """Each value that a record commits to is there, and is that value; or chain `log` says that it was erased."""
    wanted = {(r.seq, b.part): b.commit for r in records for b in r.body or ()}
    erasures: Told | None = None
    async for payload in ledger.payloads(head.run):
        commit = wanted.pop((payload.seq, payload.part), "")
        if not commit and payload.seq <= head.seq:
            return Fault(head.run, payload.seq, "MDM-0631", f"payload {payload.part!r} belongs to no record")
        if payload.form == "erased":
            erasures = erasures or await erased.read(ledger)
            if commit in erasures.commits:
                continue
        try:
            if commit and payload.form != "sealed":  # its key is out of use: nobody can look
                opened(payload, commit)
        except MandamusError as error:
            return Fault(head.run, payload.seq, error.diagnosis.code, error.diagnosis.what)
    gone = min(wanted, default=None)
    return Fault(head.run, gone[0], "MDM-0611", f"payload {gone[1]!r} is gone") if gone else None
