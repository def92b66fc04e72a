"""The content store: blobs by their SHA-256, on one store and its replicas.

    blobs = Blobs(Shelf(primary, codec), Shelf(second, codec))
    kept = await blobs.put(data)         # kept.digest; durable on the primary; kept.missing names the replicas that did not answer
    found = await blobs.get(kept.digest) # found.data; found.repaired, found.wrong say what was mended on the way

A blob is never believed before its hash was recomputed. Where one copy is gone or damaged, the next replica is asked, and a good copy is
put back to where there was none.

The rule a newcomer would break: a repair is told, never silent. A disk that changes what it holds is an incident, also when nobody lost
anything by it.
"""

from __future__ import annotations

import re

from msgspec import Struct

from mandamus.errors import EngineFault, MandamusError, Misuse, ProofError, Refused, Unavailable
from mandamus.runtime.content.segments import digest_of
from mandamus.runtime.content.shelf import Shelf

_digest = re.compile(r"[0-9a-f]{64}").fullmatch


class Kept(Struct, frozen=True):
    """What became of a put. Stores are numbered: 0 is the primary."""

    digest: str
    missing: tuple[int, ...] = ()  # did not take it; `mend` brings it there later


class Found(Struct, frozen=True):
    """What a get came upon. `wrong`: held other bytes under that name; `absent`: held none; `silent`: did not answer."""

    data: bytes
    wrong: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    repaired: tuple[int, ...] = ()


class Blobs:
    """Reads and writes; what is no longer named by anybody is cleared by runtime/content/compact.py, a store at a time."""

    def __init__(self, primary: Shelf, *replicas: Shelf) -> None:
        self._shelves = (primary, *replicas)

    async def put(self, data: bytes) -> Kept:
        """Durable on the primary when it returns. Raises Unavailable or EngineFault when the primary does not take it."""
        digest = digest_of(data)
        await self._shelves[0].put(digest, data)
        missing = [n for n, shelf in enumerate(self._shelves[1:], 1) if not await _puts(shelf, digest, data)]
        return Kept(digest, tuple(missing))

    async def get(self, digest: str) -> Found:
        """Raises ProofError when no store has it and each one answered, Unavailable when one that did not answer may have it."""
        if not _digest(digest):
            raise Misuse("this is no name of a blob", code="MDM-0926", expected="64 hex digits", found=ascii(digest[:80]))
        bad: dict[int, MandamusError | None] = {}
        for n, shelf in enumerate(self._shelves):
            try:
                data = await shelf.get(digest)
            except (ProofError, EngineFault) as error:
                bad[n] = error
                continue
            if data is not None:
                return await self._found(digest, data, bad)
            bad[n] = None
        raise _lost(digest, list(bad.values()))

    async def mend(self, digest: str) -> Found:
        """Every store is asked and has it afterwards, as far as it answers: after a replica was away, or was put in anew."""
        found = await self.get(digest)
        bad: dict[int, MandamusError | None] = {}
        for n, shelf in enumerate(self._shelves):
            try:
                if await shelf.get(digest) is None:
                    bad[n] = None
            except (ProofError, EngineFault) as error:
                bad[n] = error
        return await self._found(digest, found.data, bad) if bad else found

    async def _found(self, digest: str, data: bytes, bad: dict[int, MandamusError | None]) -> Found:
        wrong = tuple(n for n, error in bad.items() if isinstance(error, ProofError))
        absent = tuple(n for n, error in bad.items() if error is None)
        silent = tuple(n for n in bad if n not in wrong and n not in absent)
        repaired = [n for n in (*wrong, *absent) if await _puts(self._shelves[n], digest, data)]
        return Found(data, wrong, absent, silent, tuple(sorted(repaired)))


async def _puts(shelf: Shelf, digest: str, data: bytes) -> bool:
    """A store that does not take it is no reason to lose what is in the hand."""
    try:
        await shelf.put(digest, data)
    except (EngineFault, Refused):
        return False
    return True


def _lost(digest: str, said: list[MandamusError | None]) -> MandamusError:
    silent = next((error for error in said if isinstance(error, EngineFault)), None)
    if silent is not None:
        return Unavailable(
            "no store that answers has this blob", outcome="none", code="MDM-0923", where=f"blob {digest}", found=silent.diagnosis.what,
            fix="bring the store back that does not answer, then again",
        )  # fmt: skip
    wrong = next((error for error in said if error is not None), None)
    if wrong is not None:
        return wrong
    return ProofError(
        "this blob is in no store", code="MDM-0923", where=f"blob {digest}", expected=f"one of {len(said)} stores holds it",
        fix="put it back from a copy: any file with this SHA-256 is the right one",
    )  # fmt: skip
