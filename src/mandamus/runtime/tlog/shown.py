"""Stored checkpoints: the newest of a level, the one of a size, the one that everybody is shown.

    points = Checkpoints(reader, key, trust)
    newest = await points.newest(WITNESSED)         # a Shown, or None
    await points.publish()

The rule a newcomer would break: whether a checkpoint is witnessed is asked of the trust file each time, and never of the folder it lies in.
Who is asked for may have changed since it was stored.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from mandamus.proof.keys import VKey
from mandamus.proof.note import Checkpoint, met, parse_checkpoint, parse_note, seen
from mandamus.proof.trust import Trust
from mandamus.runtime.tlog import checks, objects
from mandamus.runtime.tlog.objects import CHECKPOINT, COSIGNED, KEPT, SIGNED
from mandamus.runtime.tlog.reader import Reader

SEALED, WITNESSED = "sealed", "witnessed"


class Shown(Struct, frozen=True):
    """A stored checkpoint. `level`: sealed, or witnessed when it has the quorum of the trust file."""

    checkpoint: Checkpoint
    note: bytes
    level: str


class Checkpoints:
    """`key`: the one that the log signs with now; what an earlier one signed counts as long as the trust file names that. `trust` answers
    as the trust file stands now."""

    def __init__(self, reader: Reader, key: VKey, trust: Callable[[], Trust]) -> None:
        self.reader, self.store, self.key, self.trust = reader, reader.store, key, trust
        self._known: dict[str, Shown] = {}
        self._believed: Trust | None = None  # the trust file by which they were read
        self._kept: set[int] = set()

    @property
    def quorum(self) -> bool:
        """Whether the trust file asks for witnesses at all. There is no silent default."""
        return self.trust().quorum not in (None, "none")

    def known(self, level: str) -> Shown | None:
        """The newest that this process has met, without a look at the store."""
        now = self.trust()
        if now is not self._believed:
            self._believed = now
            self._known.clear()
        return self._known.get(level)

    async def newest(self, level: str) -> Shown | None:
        stored = await self.reader.newest(SIGNED if level == SEALED else COSIGNED)
        if stored is None:
            return None
        found = self.read(stored[1])
        if level == WITNESSED and found.level != WITNESSED:
            return None  # the trust file asks for others now
        known = self.known(level)
        if known is None or known.checkpoint.size < found.checkpoint.size:
            self._known[level] = found
        return self._known[level]

    async def best(self) -> Shown | None:
        """The newest witnessed one where a quorum is asked for and one was ever met, else the newest signed."""
        found = await self.newest(WITNESSED) if self.quorum else None
        return found or await self.newest(SEALED)

    async def at(self, size: int) -> Shown | None:
        """The one of exactly this size, with the lines of witnesses if it has them."""
        for kind in (COSIGNED, SIGNED):
            raw = await self.store.get(objects.name(kind, size))
            if raw is not None:
                return self.read(raw)
        return None

    def read(self, raw: bytes) -> Shown:
        """Raises ProofError for a note that our own key did not sign."""
        note, trust = parse_note(raw), self.trust()
        signers = seen(note, [self.key, *trust.log_keys(self.reader.origin), *trust.witnesses.values()])
        point = checks.read(raw, self.reader.origin, "a stored checkpoint")
        if not any(s.time is None for s in signers):
            raise checks.unsigned(point.size, self.key)
        cosigners = {s.key.public for s in signers if s.time is not None}
        return Shown(point, raw, WITNESSED if self.quorum and cosigners and met(trust, cosigners) else SEALED)

    async def keep(self, size: int) -> None:
        """A record says of itself that it was reached: what proves that is never thinned out."""
        if size not in self._kept:
            await self.store.put_new(objects.name(KEPT, size), b"")
            self._kept.add(size)

    async def publish(self) -> None:
        """What everybody is shown: never an older one than before."""
        found = await self.best()
        if found is None:
            return
        shown = await self.store.get(CHECKPOINT)
        size = parse_checkpoint(parse_note(shown).text).size if shown is not None else -1
        if size < found.checkpoint.size or (size == found.checkpoint.size and shown != found.note):
            await self.store.put(CHECKPOINT, found.note)
