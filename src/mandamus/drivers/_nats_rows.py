"""A run's row as the port names it, put together from what the NATS ledger keeps apart; and the words of its conflicts.

The rule a newcomer would break: a conflict carries the head as it stands now, read from the leader after the refusal, so that its reader
can tell his own write from another's.
"""

from __future__ import annotations

from mandamus.drivers._nats_append import Moved
from mandamus.drivers._nats_layout import Count, Row
from mandamus.errors import Conflict
from mandamus.ports import Head


def head_of(run: str, row: Row, mail: int, due: int | None, owner: str, until: int, tries: int) -> Head:
    return Head(run, row.seq, row.hash.hex(), row.epoch, owner, until, due, mail, row.prio, tries, row.state, row.pool)


def tries_of(count: Count, row: Row) -> int:
    """Claims since the run last got further."""
    return count.n if count.mark == row.progress else 0


def moved(run: str, after: Head | None, stored: Head | None, moved: Moved) -> Conflict:
    if moved.account:
        return Conflict(
            f"account {moved.account!r} has moved",
            on="account",
            account=moved.account,
            head=stored,
            code="MDM-0402",
            where=f"run {run}",
            expected=f"version {moved.expected}",
            found=f"version {moved.found}",
            fix="read the account, judge again, append again",
        )
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


def driven(run: str, head: Head | None, me: str) -> Conflict:
    owner = head.owner if head and head.owner else "another worker"
    return Conflict(
        f"the run is driven by {owner}" + (", this ledger" if owner == me else ""),
        on="run",
        head=head,
        code="MDM-0403",
        where=f"run {run}",
        found=owner,
        why="a run has one driver at a time; nothing was written",
        fix=f"wait until it is given back or its lease has run out; then mandamus resume {run}",
    )


def not_mine(run: str, head: Head | None) -> Conflict:
    return Conflict("the run is not claimed by this ledger", on="run", head=head, code="MDM-0403", where=f"run {run}", fix="claim it first")


def _place(head: Head | None) -> str:
    return f"event {head.seq} ({head.hash[:12]}) of epoch {head.epoch}" if head else "no such run"
