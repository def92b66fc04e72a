"""What one judgement has at hand: the run as it stood, the clock, and the accounts as they were read first."""

from __future__ import annotations

from mandamus.core.accounts import Balance
from mandamus.core.clock import Clock
from mandamus.runtime.session import Session


class Batch:
    """`tentative` is what earlier actions of the batch would reserve; `read` goes with the verdicts, for the append to hold against."""

    def __init__(self, s: Session, clock: Clock) -> None:
        self.s, self.run, self.clock, self.authority = s, s.run, clock, s.authority
        self.tentative: dict[str, int] = {}
        self.read: dict[str, Balance] = {}

    async def balance(self, id: str) -> Balance:
        """An account as this judgement saw it first; its intent is appended only onto that version."""
        if id not in self.read:
            account = await self.s.env.ledger.account(id)
            self.read[id] = Balance(id) if account is None else Balance(id, account.version, account.hash, account.reserved, account.spent)
        return self.read[id]
