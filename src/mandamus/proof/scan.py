"""Every record of a period, leaf by leaf: `Scan(runs).take(raw, index)`, and `close()` when there is no more.

The rule a newcomer would break: the chain of a run that was opened in the period is checked whole, as in its own bundle; of one that was
opened before only the links are, since what it began with is not in the period.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mandamus.core.records import LOG, ActionEnded, ActionJudged, AnyRecord, decode, event_hash
from mandamus.errors import ProofError
from mandamus.proof import chain
from mandamus.proof.life import Life
from mandamus.proof.report import Broken, Finding


class Told(Struct, frozen=True):
    """One run of the period, its two records believed."""

    run: str
    number: int  # in the register; 0 for one that was opened before
    first: AnyRecord
    last: AnyRecord
    index: tuple[int, int]
    state: str
    line: int
    head: str


class Scan:
    """Follows every chain of the period through the log's leaves."""

    def __init__(self, runs: Sequence[Told]) -> None:
        self.told = {told.run: told for told in runs}
        self.walks: dict[str, chain.Walk] = {}
        self.tips: dict[str, tuple[int, str]] = {}
        self.verdicts: dict[str, int] = {}
        self.outcomes: dict[str, int] = {}

    def take(self, raw: bytes, index: int) -> None:
        try:
            record = decode(raw)
        except ProofError as error:
            raise _no(f"leaf {index}: {error.diagnosis.what}", None, code=error.diagnosis.code) from None
        fact = record.fact
        if isinstance(fact, ActionJudged):
            self.verdicts[fact.verdict] = self.verdicts.get(fact.verdict, 0) + 1
        elif isinstance(fact, ActionEnded):
            self.outcomes[fact.result] = self.outcomes.get(fact.result, 0) + 1
        if record.run == LOG:
            return
        told = self.told.get(record.run)
        tip = self.tips.get(record.run)
        if told is None or (record.seq != told.first.seq if tip is None else (record.seq, record.prev) != (tip[0] + 1, tip[1])):
            raise _no(f"leaf {index} is not the next record of a run that is shown", None, found=record.run[:40], code="MDM-0675")
        self.tips[record.run] = record.seq, event_hash(raw)
        if told.number:
            walked = self.walks.setdefault(record.run, chain.Walk([], Life(told.last.seq + 1), run=record.run))
            chain.further(walked, [raw])
            if walked.fault is not None:
                raise Broken(walked.fault)

    def close(self) -> None:
        for run, told in self.told.items():
            if self.tips.get(run) != (told.last.seq, told.head):
                raise _no(f"run {run} does not end as it is shown", told.line, code="MDM-0675")
            walked = self.walks.get(run)
            if walked is not None and chain.state_of(walked) != told.state:
                raise _no(f"run {run} is in another state than told", told.line, told.state, chain.state_of(walked), "MDM-0658")


def _no(what: str, line: int | None, expected: str = "", found: str = "", code: str = "MDM-0675") -> Broken:
    return Broken(Finding(what, code=code, line=line, expected=expected, found=found))
