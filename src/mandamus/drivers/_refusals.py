"""How every ledger says no: `same` compares where a run stands, `moved` and `account_moved` are the Conflicts of an append.

The rule a newcomer would break: callers act on `on` and `head` of a Conflict, people on its words; both are one for all drivers.
"""

from __future__ import annotations

from mandamus.errors import Conflict
from mandamus.ports import Head


def same(stored: Head | None, after: Head | None) -> bool:
    if stored is None or after is None:
        return stored is after
    return stored.seq == after.seq and stored.hash == after.hash and stored.epoch == after.epoch


def moved(run: str, after: Head | None, stored: Head | None) -> Conflict:
    fenced = stored is not None and after is not None and stored.epoch > after.epoch
    return Conflict(
        "another owner took the run over" if fenced else "the run is not where the append expected it",
        on="run",
        head=stored,
        code="MDM-0401",
        where=f"run {run}",
        expected=_place(after),
        found=_place(stored),
        why="one chain has one writer; nothing was written",
        fix="stop driving this run" if fenced else "read the head and fold what is new",
    )


def account_moved(run: str, stored: Head | None, account: str, expected: int, found: int) -> Conflict:
    return Conflict(
        f"account {account!r} has moved",
        on="account",
        account=account,
        head=stored,
        code="MDM-0402",
        where=f"run {run}",
        expected=f"version {expected}",
        found=f"version {found}",
        fix="read the account, judge again, append again",
    )


def _place(head: Head | None) -> str:
    return f"event {head.seq} ({head.hash[:12]}) of epoch {head.epoch}" if head else "no such run"
