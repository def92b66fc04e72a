"""What every ledger promises, rule by rule (docs/concepts/effect-protocol.md). Run it on your own driver:

    @pytest.mark.parametrize("name", names(LedgerSuite))
    def test_my_ledger(name, tmp_path):
        run(LedgerSuite, name, lambda: MyLedger.open(tmp_path / "ledger"))

`open` gives a new handle on one and the same store each time it is called: the second handle stands for another process. `LedgerSuite` is
for a ledger that takes plain payloads, `SealedSuite` has the same cases with sealed ones; a ledger takes both, or, when it can never
forget, what is sealed only: `SealedOnlySuite`.
"""

from __future__ import annotations

from mandamus.testing.conformance.ledger_feed import FeedCases
from mandamus.testing.conformance.ledger_forms import PlainCases, SealedCases, SealedOnlyCases, sealed
from mandamus.testing.conformance.ledger_records import RecordCases
from mandamus.testing.conformance.ledger_work import WorkCases
from mandamus.testing.conformance.ledger_workers import WorkerCases
from mandamus.testing.conformance.suite import names, run


class _Cases(RecordCases, FeedCases, WorkCases, WorkerCases):
    """Those that are one for all forms of payloads."""


class LedgerSuite(PlainCases, _Cases):
    """All cases of the ledger port, with plain payloads."""


class SealedSuite(SealedCases, _Cases):
    """All of them, with sealed payloads."""

    form = staticmethod(sealed)


class SealedOnlySuite(SealedOnlyCases, SealedSuite):
    """The same for a ledger that refuses plain ones."""


__all__ = ["LedgerSuite", "SealedOnlySuite", "SealedSuite", "names", "run"]
