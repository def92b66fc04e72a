"""What every ledger promises, rule by rule (docs/concepts/effect-protocol.md). Run it on your own driver:

    @pytest.mark.parametrize("name", names(LedgerSuite))
    def test_my_ledger(name, tmp_path):
        run(LedgerSuite, name, lambda: MyLedger.open(tmp_path / "ledger"))

`open` gives a new handle on one and the same store each time it is called: the second handle stands for another process.
"""

from __future__ import annotations

from mandamus.testing.conformance.ledger_records import RecordCases
from mandamus.testing.conformance.ledger_work import WorkCases
from mandamus.testing.conformance.ledger_workers import WorkerCases
from mandamus.testing.conformance.suite import names, run


class LedgerSuite(RecordCases, WorkCases, WorkerCases):
    """All cases of the ledger port."""


__all__ = ["LedgerSuite", "names", "run"]
