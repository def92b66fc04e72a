"""What chain `log` says of holds and erasures, folded: `told = Told(); told.take(record)`. Pure; whoever reads the chain feeds it.

The rule a newcomer would break: a hold is lifted only by what its administrators signed. This fold is told which lifting counts
(`lifts`), it does not find out by itself; and what is placed or requested a second time under its id changes nothing of the first.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET, Struct

from mandamus.core.records import AnyRecord, Erased, ErasureBlocked, ErasureRequested, HoldLifted, HoldPlaced

EXPIRED = "expired"  # the ground of an erasure that a retention clock asks for
GROUNDS: dict[str, str] = {  # GDPR 17(1)
    "no_longer_needed": "17(1)(a)",
    "consent_withdrawn": "17(1)(b)",
    "objection": "17(1)(c)",
    "unlawful": "17(1)(d)",
    "legal_obligation": "17(1)(e)",
    "child": "17(1)(f)",
}
HOLD_GROUNDS: dict[str, str] = {  # GDPR 17(3)
    "expression": "17(3)(a)",
    "legal_obligation": "17(3)(b)",
    "public_health": "17(3)(c)",
    "archiving": "17(3)(d)",
    "legal_claims": "17(3)(e)",
}


class Asked(Struct):
    """One erasure: what was asked, what keeps it (the newest word on it), what was destroyed so far. `under`: the holds that were in
    force when the log said so, and whether it said so before its time."""

    fact: ErasureRequested
    seq: int
    blocked: ErasureBlocked | None = None
    commits: set[str] = set()
    erased: list[int] = []
    under: dict[str, HoldPlaced] = {}
    early: bool = False

    def unlawful(self, runs: Iterable[str]) -> bool:
        """Whether nobody may have destroyed this when the log says it was: then the record is a lie, and nobody acts on it."""
        kept = Told()
        kept.holds = self.under
        return self.early or kept.hold_on([self.subject] if self.subject else [], runs) is not None

    @property
    def subject(self) -> str:
        return "" if self.fact.subject is UNSET else self.fact.subject


class Told:
    """`asked` by erasure, `holds` in force by their id."""

    def __init__(self) -> None:
        self.asked: dict[str, Asked] = {}
        self.holds: dict[str, HoldPlaced] = {}
        self.commits: set[str] = set()
        self.seq = -1

    def take(self, record: AnyRecord, lifts: bool = True) -> None:
        fact, self.seq = record.fact, record.seq
        match fact:
            case HoldPlaced():
                self.holds.setdefault(fact.hold, fact)
            case HoldLifted() if lifts:
                self.holds.pop(fact.hold, None)
            case ErasureRequested():
                self.asked.setdefault(fact.erasure, Asked(fact, record.seq))
            case ErasureBlocked() if fact.erasure in self.asked:
                self.asked[fact.erasure].blocked = fact
            case Erased():
                self.commits.update(fact.commits)
                if (asked := self.asked.get(fact.erasure)) is not None:
                    asked.commits.update(fact.commits)
                    asked.erased.append(record.seq)
                    asked.under = asked.under | self.holds
                    asked.early = asked.early or fact.clock.now < asked.fact.after
            case _:
                pass

    def hold_on(self, subjects: Iterable[str], runs: Iterable[str]) -> HoldPlaced | None:
        """The first hold that keeps one of these. A hold that names neither a subject nor a run keeps everything."""
        named, chains = set(subjects), set(runs)
        for hold in self.holds.values():
            everything = hold.subject is UNSET and hold.run is UNSET
            if everything or hold.subject in named or hold.run in chains:
                return hold
        return None
