"""Words of a head row that say that a chain is driven on another ledger: `elsewhere(head.state)`.

    moved-3f2a90b1c4d5   it was taken to the ledger of that name (`away_name(URI)`), by `mandamus ledger copy`
    arriving             its records are being written here, and are not all there yet

    key = await deliver(ledger, run, message)     # into the mailbox of a run that is driven on this ledger

The rule a newcomer would break: elsewhere a row's state is a hint. These two words are none: a run that stands under one is not driven,
and on a ledger whose chain `log` stands under one nothing is. Nor is its mail read there: a stop or a vote that is sent to it is lost.
"""

from __future__ import annotations

import hashlib
from urllib.parse import urlsplit

from mandamus.core.records import LOG
from mandamus.errors import Conflict, Misuse
from mandamus.ports import Ledger

MOVED, ARRIVING = "moved-", "arriving"


def elsewhere(state: str) -> bool:
    return state == ARRIVING or state.startswith(MOVED)


def away_name(uri: str) -> str:
    """What a ledger is called in the rows of another: of its place, without the user or the password that open it.

    A file is named by its absolute path.
    """
    at = urlsplit(uri)
    place = f"{at.scheme}://{at.netloc.rpartition('@')[2]}{at.path}?{at.query}"
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def refusal(chain: str, state: str) -> Conflict:
    """Nobody drives this here. Nothing was written."""
    if state == ARRIVING:
        return Conflict(
            "it is being copied to this ledger", on="run", code="MDM-0405", where=chain, why="its records are not all here yet",
            fix="run mandamus ledger copy FROM TO again: it goes on where it stopped",
        )  # fmt: skip
    return Conflict(
        "it was moved to another ledger", on="run", code="MDM-0405", where=chain, found=state,
        why="what is driven in two places is done twice", fix="resume it on the ledger that it was copied to",
    )  # fmt: skip


async def deliver(ledger: Ledger, run: str, message: bytes) -> str:
    """As `Ledger.send`. Raises Conflict when nobody will read it here: whoever wants a run stopped must not believe that he said so.

    The row is looked at again behind the sending. A copy marks a run first and takes its mail along afterwards, so what was sent to
    one that is not marked by then comes along.
    """
    if run == LOG:
        raise Misuse("chain log reads no mail", code="MDM-0133", where=f"run {LOG}", fix="mandamus runs")
    await _must_be_here(ledger, run)
    key = await ledger.send(run, message)
    await _must_be_here(ledger, run)
    return key


async def _must_be_here(ledger: Ledger, run: str) -> None:
    head = await ledger.head(run)
    if head is not None and elsewhere(head.state):
        raise refusal(f"run {run}", head.state)
