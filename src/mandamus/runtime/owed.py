"""What a run's chain says it gave back or spent, and no account has heard of: `missing(s)` after a takeover, for the next append to settle.

An outcome is never refused for an account's sake: after a few conflicts it is appended without its settlement, which a later append
carries. The rule a newcomer would break: who carried it may die first, so what is owed is read from the chain, never from memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec

from mandamus.core import records as r
from mandamus.core.accounts import Delta, narrowed
from mandamus.core.rules import wakes
from mandamus.core.run import Run
from mandamus.errors import Conflict, Unavailable
from mandamus.ports import AT_REST, Wake
from mandamus.proof.books import expected
from mandamus.runtime.books import Change
from mandamus.runtime.session import SETTLES_MAX, Session

SOON_US = 2_000_000
KINDS = frozenset((r.ActionStarted, r.ActionEnded, r.RunHalted, r.StopRequested))
_delta = msgspec.json.Decoder(Delta)


def moves(run: Run, fact: r.Fact) -> bool:
    """Whether this record, just folded, moves an account."""
    match fact:
        case r.ActionStarted():
            return bool(fact.reserves)
        case r.ActionEnded():
            return bool(fact.spends)
        case r.RunHalted() | r.StopRequested():
            return any(a.child for a in run.actions.values())
        case _:
            return False


async def missing(s: Session, moved: Iterable[r.AnyRecord]) -> list[Change]:
    """The movements that outcomes and stops of this run made and its accounts lack. Reservations never do: they stand with their intent."""
    records = list(moved)
    out = [
        Change(account, seq, reserved, spent)
        for (seq, account), (reserved, spent) in expected(records).items()
        if any(x.seq == seq and type(x.fact) is r.ActionEnded for x in records)
    ]
    stops = [x.seq for x in records if type(x.fact) in (r.RunHalted, r.StopRequested)]
    out += [Change(narrowed(s.run.id), seq, 0, 0) for seq in stops]
    known: dict[str, set[int]] = {}
    for account in {c.account for c in out}:
        known[account] = {c.seq for c in out if c.account == account} if await _even(s, account) else await _heard(s, account)
    return [c for c in out if c.seq not in known[c.account]]


async def settle(s: Session) -> None:
    """Before a run is given back: what an outcome left behind is settled now, or the run is due again soon, and its next owner does it."""
    if not s.books.owed or s.unsaved or s.head is None or s.run.life == "sealed":
        return
    at, word = wakes(s.run, s.due(), s.parked)
    with contextlib.suppress(Conflict, Unavailable):  # the next owner reads what is owed from the chain
        for _ in range(SETTLES_MAX if word in AT_REST else 3):
            also = await s.books.writes(s.run.id)
            try:
                s.head = await s.env.ledger.append(s.run.id, s.head, [], also=also, wake=Wake(at, s.run.cursor, word))
            except Conflict as conflict:
                if conflict.on != "account":
                    raise
                s.books.forget()
            else:
                s.books.appended(also, True)
                return
        soon = s.env.time.now() + SOON_US
        s.head = await s.env.ledger.append(s.run.id, s.head, [], wake=Wake(soon if at is None else min(at, soon), s.run.cursor, word))


async def _even(s: Session, id: str) -> bool:
    """Whether all that is reserved there is what open actions of this run hold: then nothing that has ended is still reserved."""
    if id == narrowed(s.run.id):
        return False
    account = await s.env.ledger.account(id)
    held = sum(x.amount for a in s.run.actions.values() for x in a.reserves if x.account == id)
    return account is not None and account.reserved == held


async def _heard(s: Session, id: str) -> set[int]:
    """The records of this run that the account has heard of."""
    out = set()
    async for raw in s.env.ledger.deltas(id):
        delta = _delta.decode(raw)
        if delta.run == s.run.id:
            out.add(delta.seq)
    return out
