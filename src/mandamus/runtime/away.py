"""Words of a head row that say that a chain is driven on another ledger: `elsewhere(head.state)`.

    moved-3f2a90b1c4d5   it was taken to the ledger of that name (`away_name(URI)`), by `mandamus ledger copy`
    arriving             its records are being written here, and are not all there yet

The rule a newcomer would break: elsewhere a row's state is a hint. These two words are none: a run that stands under one is not driven,
and on a ledger whose chain `log` stands under one nothing is.
"""

from __future__ import annotations

import hashlib
from urllib.parse import urlsplit

from mandamus.errors import Conflict

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
