"""Wait until a proposal has reached a level of evidence: under a signed checkpoint, or one that the witnesses' quorum cosigned.

The log is asked, which one process writes for all runs of a ledger: many that wait share one checkpoint. The rules a newcomer would break:
nothing is believed for having waited long. A log or a witness that does not answer leaves the action where it is, and the run is looked
at again; when the time of the ask is over, it is judged again, and denied. And nothing is believed for standing in the run: who owned it
before may have written that; before an action is judged by it, the log is asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from mandamus.core import effects as e
from mandamus.core.run import levels
from mandamus.errors import Unavailable
from mandamus.runtime.session import Session

PATIENCE_S = 10.0  # longer than a checkpoint and a round of witnesses take; then the run is left to whoever is woken
AGAIN_US = 5_000_000


async def perform(s: Session, effect: e.Await) -> e.Input:
    """Raises ProofError when the log contradicts itself: the run halts."""
    with contextlib.suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            reached = await s.env.tlog.reach(s.run.id, effect.seq, effect.level)
        return e.Level(level=effect.level, root=reached.root, seq=effect.seq, size=reached.size)
    s.parked[effect] = s.env.time.now() + AGAIN_US
    return e.Nothing()


async def held(s: Session, seq: int) -> tuple[str, ...]:
    """The levels that event `seq` has: by its chain, and by stored checkpoints of the log. Raises Unavailable where the log cannot say so
    now: a level that only the chain has is one that nobody reached."""
    said = levels(s.run, seq)
    if said:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await _log(s).covered(s.run.id, seq, said[-1])
        except TimeoutError:
            raise _unheld(s, seq, said[-1], "it does not answer") from None
    return said


def _log(s: Session) -> Any:
    if s.env.tlog is None:
        raise _unheld(s, -1, "", "there is no log of this ledger")
    return s.env.tlog


def _unheld(s: Session, seq: int, level: str, why: str) -> Unavailable:
    where = f"run {s.run.id} (event {seq})" if level else f"run {s.run.id}"
    what = "the log does not confirm the evidence that this run was judged by"
    return Unavailable(what, outcome="none", code="MDM-0939", where=where, expected=level, why=why, fix="mandamus log head")
