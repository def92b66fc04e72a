"""A run's row as the port names it, put together from what the NATS ledger keeps apart; and the words of its conflicts.

The rule a newcomer would break: a conflict carries the head as it stands now, read from the leader after the refusal, so that its reader
can tell his own write from another's.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from mandamus.drivers._refusals import account_moved, moved
from mandamus.drivers.ledger_nats.append import Known, Moved, Positions, known_of
from mandamus.drivers.ledger_nats.layout import Count, Names, Row
from mandamus.drivers.ledger_nats.lease import Free, Leases, Taken
from mandamus.drivers.ledger_nats.mail import Mail, Post
from mandamus.drivers.ledger_nats.wire import Wire
from mandamus.errors import Conflict
from mandamus.ports import Head


class Look(Struct, frozen=True):
    """A run at one moment: its row, and what it was put together from."""

    head: Head
    known: Known
    lease: Free | Taken
    tries: int


class Rows:
    """Reads whole rows from the leaders."""

    def __init__(self, wire: Wire, names: Names, positions: Positions, leases: Leases, post: Post) -> None:
        self._wire, self._names, self._positions, self._leases, self._post = wire, names, positions, leases, post

    async def look(self, run: str) -> Look | None:
        """Position, mail, lease and tries, asked at once."""
        log, names = self._names.log, self._names
        ev, mail, lease, count = await asyncio.gather(
            self._wire.get(log, last_by_subj=names.ev(run)),
            self._wire.get(log, last_by_subj=names.mailbox(run)),
            self._leases.look("lease", run),
            self._leases.count("tries", run),
        )
        known = known_of(ev)
        self._positions.keep(run, known)
        if known is None:
            return None
        cursor, due = await self.unread(run, known.row, self._post.read(run, mail))
        owner, until = (lease.lease.owner, lease.lease.until) if isinstance(lease, Taken) else ("", 0)
        tries = tries_of(count, known.row)
        return Look(head_of(run, known.row, cursor, due, owner, until, tries), known, lease, tries)

    async def unread(self, run: str, row: Row, newest: Mail) -> tuple[int, int | None]:
        """The cursor of the newest mail, and when the run is due: at once, while some of it lies behind the cursor that the row names."""
        if not newest.seq or newest.seq + row.shift <= row.cursor:
            return row.cursor, row.at
        seq = max(row.cursor - row.shift, 0) + 1
        first = await self._wire.get(self._names.log, seq=seq, next_by_subj=self._names.mailbox(run))
        came = first.time if first else newest.time
        return newest.seq + row.shift, came if row.at is None else min(row.at, came)


def head_of(run: str, row: Row, mail: int, due: int | None, owner: str, until: int, tries: int) -> Head:
    return Head(run, row.seq, row.hash.hex(), row.epoch, owner, until, due, mail, row.prio, tries, row.state, row.pool)


def tries_of(count: Count, row: Row) -> int:
    """Claims since the run last got further."""
    return count.n if count.mark == row.progress else 0


def refused(run: str, after: Head | None, stored: Head | None, why: Moved) -> Conflict:
    if why.account:
        return account_moved(run, stored, why.account, why.expected, why.found)
    return moved(run, after, stored)


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
