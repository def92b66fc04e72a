"""The accounts of one session: what its unsaved facts move, what they rest on, and what an earlier append could not carry.

The rule a newcomer would break: what is remembered here is a guess at what the ledger holds. Every write and every check names the
version that it was computed from, so that a stale guess is a Conflict, never a wrong sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mandamus.core import records as r
from mandamus.core.accounts import AUTHORITY, Balance, narrowed
from mandamus.core.run import Run
from mandamus.core.seal import Sealed
from mandamus.ports import AccountCheck, AccountWrite
from mandamus.runtime.env import Env


class Change(Struct, frozen=True, gc=False):
    """A movement on an account, caused by record `seq`."""

    account: str
    seq: int
    reserved: int
    spent: int


class Books:
    """`changes`: of unsaved facts. `owed`: of saved ones, settled by no append yet. `read`: what an unsaved intent rests on, as judged."""

    def __init__(self, env: Env) -> None:
        self.env = env
        self.changes: list[Change] = []
        self.owed: list[Change] = []
        self.read: dict[str, Balance] = {}
        self.known: dict[str, Balance] = {}

    def note(self, run: Run, one: Sealed) -> None:
        """What this record moves; `run` is the fold before it."""
        fact = one.record.fact
        match fact:
            case r.ActionStarted() if fact.reserves:
                self.changes += [Change(x.account, one.record.seq, x.amount, 0) for x in fact.reserves]
            case r.ActionEnded() if fact.spends:
                held = {x.account: x.amount for x in run.actions[fact.action].reserves}
                self.changes += [Change(x.account, one.record.seq, -held.get(x.account, 0), x.amount) for x in fact.spends]
            case r.RunHalted() | r.StopRequested() if any(a.child for a in run.actions.values()):
                self.changes.append(Change(narrowed(run.id), one.record.seq, 0, 0))  # its children check this version

    async def writes(self, run: str) -> list[AccountWrite | AccountCheck]:
        """Everything owed and changed, as deltas on what each account was last seen to be."""
        now: dict[str, Balance] = {}
        out: list[AccountWrite | AccountCheck] = []
        for c in (*self.owed, *self.changes):
            balance = now.get(c.account) or self.read.get(c.account) or await self._balance(c.account)
            after, raw = balance.plus(run, c.seq, reserved=c.reserved, spent=c.spent)
            now[c.account] = after
            out.append(AccountWrite(after.id, after.version, after.hash, after.reserved, after.spent, raw, run, c.seq))
        return out

    def checks(self, authority: int, also: Sequence[AccountWrite | AccountCheck]) -> list[AccountCheck]:
        """What must not have moved when an intent is committed: the accounts that its facts were read from, and authority."""
        out: list[AccountCheck] = []
        if self.read:
            written = {x.id for x in also}
            out = [AccountCheck(b.id, b.version) for b in self.read.values() if b.id not in written]
        return [*out, AccountCheck(AUTHORITY, authority)]

    def appended(self, also: Sequence[AccountWrite | AccountCheck], settled: bool) -> None:
        """An append went through. When it left the accounts out, what it changed is owed."""
        self.owed, self.changes = [] if settled else self.owed + self.changes, []
        self.read = {}
        for written in also:
            if type(written) is AccountWrite:
                self.known.pop(written.id, None)

    def forget(self) -> None:
        """An account moved: nothing that was seen of any counts."""
        self.known.clear()
        self.read.clear()

    async def _balance(self, id: str) -> Balance:
        """As last seen, else as stored now."""
        if id not in self.known:
            account = await self.env.ledger.account(id)
            self.known[id] = Balance(id) if account is None else Balance(id, account.version, account.hash, account.reserved, account.spent)
        return self.known[id]
