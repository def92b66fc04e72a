"""Wait until a proposal has reached a level of evidence: under a signed checkpoint, or one that the witnesses' quorum cosigned.

The log is asked, which one process writes for all runs of a ledger: many that wait share one checkpoint. The rule a newcomer would break:
nothing is believed for having waited long. A log or a witness that does not answer leaves the action where it is, and the run is looked
at again; when the time of the ask is over, it is judged again, and denied.
"""

from __future__ import annotations

import asyncio
import contextlib

from mandamus.core import effects as e
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
