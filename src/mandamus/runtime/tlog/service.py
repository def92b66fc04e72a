"""What the runtime asks of the log: `env.tlog`, a `TenantLog`.

    await tlog.begin()                                  # the ledger still holds what was signed, else ProofError; what comes is signed soon
    reached = await tlog.reach(run, seq, "witnessed")   # waits; many waiters share one checkpoint
    proof = await tlog.prove(run, seq)                  # C2SP tlog-proof
    await tlog.close()                                  # what was taken is signed first

A run never waits for the log unless a policy says so: when its store does not answer, runs go on and that is said once. When what was
signed and what is stored differ, nothing more is signed, and every question is answered with that ProofError.

The rule a newcomer would break: a level is told from stored objects only. That a signature was made, or a witness answered, is no
checkpoint yet: a crash could take it back after an effect was started on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from mandamus.core.parts import Anchor
from mandamus.errors import MandamusError, Misuse, Unavailable
from mandamus.ports import Ledger, Signer, Store, Witness
from mandamus.proof import tlogproof
from mandamus.proof.keys import parse_vkey
from mandamus.proof.note import Checkpoint, sign_line, write
from mandamus.proof.tree import EMPTY_ROOT, leaf_hash, verify_inclusion
from mandamus.proof.trust import Trust
from mandamus.runtime.tlog import checks, objects
from mandamus.runtime.tlog.compact import tidy
from mandamus.runtime.tlog.cosigning import Cosigning
from mandamus.runtime.tlog.joint import Joint
from mandamus.runtime.tlog.lag import behind, lag, newest_row
from mandamus.runtime.tlog.objects import PENDING, SIGNED
from mandamus.runtime.tlog.reader import Reader
from mandamus.runtime.tlog.sequencer import Sequencer
from mandamus.runtime.tlog.shown import SEALED, WITNESSED, Checkpoints, Shown
from mandamus.runtime.tlog.spans import Spans

DUTY, DUTY_MS = "tlog", 5_000
EVERY, WITHIN_S = 256, 1.0  # a checkpoint after so many records, or so long after the first of them
TICK_S = 0.5  # how often it looks: many records make no more checkpoints than two a second, unless somebody waits for one
CLOSE_S = 10.0
PATIENCE = 8  # ticks
TURNS = 3  # rounds that one question waits for
TIDY_EVERY = 64  # checkpoints


class Reached(Struct, frozen=True):
    """The checkpoint under which a record lies: its root in hex, its size."""

    root: str
    size: int


class TenantLog:
    """`trust`: as it stands now; `witnesses`: whom to ask, in whatever number; `now` in microseconds."""

    def __init__(
        self, ledger: Ledger, store: Store, spans: Spans, signer: Signer, trust: Callable[[], Trust], now: Callable[[], int], *,
        witnesses: Sequence[Witness] = (), holder: str = "", every: int = EVERY, within_s: float = WITHIN_S, tick_s: float = TICK_S,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        key = parse_vkey(signer.vkey)
        self.reader = Reader(store, key.name)
        self.sequencer = Sequencer(ledger, self.reader, spans, key, signer.sign, now, holder)
        self.points = Checkpoints(self.reader, key, trust)
        self.cosigning = Cosigning(self.points, witnesses, self, now)
        self.ledger, self.store, self.spans, self.origin = ledger, store, spans, key.name
        self._now, self._warn, self._every, self._within_s, self._tick_s = now, warn, every, within_s, tick_s
        self.frozen = False  # the ledger goes on elsewhere, and its log with it: nothing more is written here
        self._closed = False
        self._said = ""
        self._rounds, self._held_until = 0, 0.0
        self._turn = Joint(self._round)
        self._pacing: asyncio.Task[None] | None = None

    # -- what the loop asks ----------------------------------------------------------------------------------------------------
    def offers(self, level: str) -> str:
        """Whether a level can be had at all: "", or what is missing and what to do."""
        return "" if level == SEALED else self.cosigning.lacks()

    async def reach(self, run: str, seq: int, level: str) -> Reached:
        """Waits until the record lies under a stored checkpoint of this level, which is kept for good. Raises Unavailable when it cannot
        be had now, ProofError when the log does not hold."""
        point = (await self.covered(run, seq, level)).checkpoint
        await self.points.keep(point.size)
        return Reached(point.root.hex(), point.size)

    async def covered(self, run: str, seq: int, level: str) -> Shown:
        """The same, and nothing is kept for it."""
        if missing := self.offers(level):
            raise Unavailable(f"the level {level} cannot be had", outcome="none", code="MDM-0939", why=missing)
        for turn in range(TURNS + 1):
            found = await self._covering(run, seq, level)
            if found is not None:
                return found
            if turn < TURNS:
                await self.catch_up()
                if level == WITNESSED:
                    await self.cosigning()
        raise self._not_had(run, seq, level)

    async def _covering(self, run: str, seq: int, level: str) -> Shown | None:
        leaf = self.spans.leaf(run, seq)
        if leaf is None:
            return None
        known = self.points.known(level)
        if known is None or known.checkpoint.size <= leaf:
            known = await self.newest(level)
        return known if known is not None and leaf < known.checkpoint.size else None

    def _not_had(self, run: str, seq: int, level: str) -> Unavailable:
        said = "; ".join(f"{name}: {fault.diagnosis.what}" for name, fault in sorted(self.cosigning.faults.items()))
        return Unavailable(
            f"no {level} checkpoint covers the record yet", outcome="none", code="MDM-0939", where=f"run {run} (event {seq})",
            found=said if level == WITNESSED else "", fix="mandamus log head; mandamus witness status",
        )  # fmt: skip

    async def anchor(self) -> Anchor:
        """The newest witnessed checkpoint: what begins now cannot have begun before it. Without one the empty log."""
        try:
            found = None if self.offers(WITNESSED) else await self.newest(WITNESSED)
        except Unavailable:
            found = self.points.known(WITNESSED)
        if found is None:
            return Anchor(root=EMPTY_ROOT.hex(), size=0)
        return Anchor(root=found.checkpoint.root.hex(), size=found.checkpoint.size)

    # -- what people and bundles ask -------------------------------------------------------------------------------------------
    async def checkpoint(self) -> Shown | None:
        """The newest witnessed one, where a quorum is asked for and one was ever met, else the newest signed. None: nothing is signed."""
        return await self.points.best()

    async def newest(self, level: str) -> Shown | None:
        """The newest stored checkpoint that has this level."""
        return await self.points.newest(level)

    async def at(self, size: int) -> Shown | None:
        """The stored checkpoint of exactly this size, the witnessed one first."""
        return await self.points.at(size)

    async def prove(self, run: str, seq: int, *, under: Shown | None = None, extra: bytes = b"") -> bytes:
        """The tlog-proof of one record, under the newest checkpoint that covers it (or `under`), a witnessed one first.

        Raises Misuse for a record that there is not, Unavailable when none covers it yet, ProofError when the proof would not hold.
        """
        raw = await self._record(run, seq)
        shown = under or await self._best(run, seq)
        leaf, point = self.spans.leaf(run, seq), shown.checkpoint
        if leaf is None or leaf >= point.size:
            raise self._not_had(run, seq, SEALED)
        path = await self.reader.inclusion(leaf, point.size)
        if not verify_inclusion(leaf_hash(raw), leaf, point.size, path, point.root):
            raise checks.other_tree("the ledger's record is not the leaf of the log", f"run {run} (event {seq})", f"leaf {leaf}", "another")
        return tlogproof.write(leaf, path, shown.note, extra)

    async def _record(self, run: str, seq: int) -> bytes:
        async for raw in self.ledger.read(run, seq - 1, seq):
            return raw
        raise Misuse("there is no such record", code="MDM-0250", where=f"run {run} (event {seq})", fix="mandamus runs")

    async def _best(self, run: str, seq: int) -> Shown:
        """A stored checkpoint that covers the record, a witnessed one first; else the next one."""
        found = None if self.offers(WITNESSED) else await self._covering(run, seq, WITNESSED)
        return found or await self.covered(run, seq, SEALED)

    async def consistency(self, old: int, new: int) -> list[bytes]:
        """The proof that the tree of `new` leaves begins with that of `old`."""
        return await self.reader.consistency(old, new)

    async def size(self) -> int:
        """The newest size that was announced, by whatever process."""
        return max(await objects.sizes(self.store, PENDING), default=0)

    async def extends(self, size: int, root: bytes) -> bool:
        """Whether this log once had that root at that size."""
        if size > await self.size():
            return False
        return await self.reader.root(size) == root

    async def lag(self, at_most: int = 1_000) -> int:
        """How many records of the ledger lie under no signed checkpoint yet, counted as far as `at_most`."""
        return await lag(self.ledger, self.reader, self.spans, at_most)

    # -- the work --------------------------------------------------------------------------------------------------------------
    async def check(self) -> None:
        """The ledger holds what was signed last. Raises ProofError for one that was rolled back; a store that does not answer is said,
        and looked at later."""
        try:
            row = await newest_row(self.reader)
            if row is not None and not await checks.feed_stands(self.ledger, self.reader, row):
                await self.sequencer.open()
        except Unavailable as gone:
            self._say(gone)

    async def begin(self) -> None:
        """`check`, and from now on in the background of this event loop whatever the ledger takes is signed, until `close`."""
        if self.frozen:
            return
        await self.check()
        if self._pacing is None:
            self._pacing = asyncio.get_running_loop().create_task(self._pace())

    async def catch_up(self) -> int:
        """Everything that is in the ledger now lies under a stored, signed checkpoint: its size. Raises Unavailable, ProofError."""
        return await self._turn()

    async def _round(self) -> int:
        if self.frozen:
            stored = await self.reader.newest(SIGNED)
            return stored[0] if stored else 0
        await self._hold()
        await self.cosigning.ask(self._empty)
        before = self.sequencer.signed
        size = await self.sequencer.advance()
        if size > before:
            self._rounds += 1
            await self.points.publish()
            if not self._rounds % TIDY_EVERY:
                await tidy(self.store, self.sequencer.stale, self._now())
        self._said = ""
        return size

    async def _hold(self) -> None:
        """The duty, or after a while without it: two that write write the same, and a holder that hangs must not stop a waiting run."""
        for _ in range(PATIENCE):
            if await self._mine() or not await self._behind():
                return
            await asyncio.sleep(TICK_S)

    async def _mine(self) -> bool:
        """Whether this process holds the duty. On a file, whose processes stand on one machine, nobody needs to."""
        if self.ledger.locks or time.monotonic() < self._held_until:
            return True
        asked = time.monotonic()
        self.sequencer.epoch = await self.ledger.duty(DUTY, DUTY_MS) or 0
        if self.sequencer.epoch:
            self._held_until = asked + DUTY_MS / 2000
        return bool(self.sequencer.epoch)

    async def _behind(self) -> bool:
        """Whether there is anything to do, told by as little reading as possible."""
        row = await newest_row(self.reader)
        if row is not None and await self.store.get(objects.name(SIGNED, row.size)) is None:
            return True
        return bool([fed async for fed in behind(self.ledger, row, 1)])

    def _empty(self) -> bytes:
        empty = Checkpoint(self.origin, 0, EMPTY_ROOT)
        return write(empty.text, [sign_line(empty.text, self.sequencer.key, self.sequencer.sign)])

    # -- by itself -------------------------------------------------------------------------------------------------------------
    def pace(self, every: int, within_s: float) -> None:
        """From now on a checkpoint after so many records, or so long after the first of them."""
        self._every, self._within_s = every, within_s

    async def _pace(self) -> None:
        since = 0.0
        while True:
            await asyncio.sleep(self._tick_s)
            try:
                if self.frozen or not await self._mine():
                    await asyncio.sleep(self._within_s)
                    continue
                waiting = await self._waiting()
                since = (since or time.monotonic()) if waiting else 0.0
                if waiting >= self._every or (waiting and time.monotonic() - since >= self._within_s):
                    since = 0.0
                    await self._turn()
                    if self.cosigning.witnesses:
                        await self.cosigning()
            except MandamusError as fault:
                self._say(fault)
                await asyncio.sleep(self._within_s)

    async def _waiting(self) -> int:
        """How many records came since, as far as it matters."""
        if self.sequencer.cursor:
            return len([fed async for fed in self.ledger.feed(self.sequencer.cursor, self._every)])
        return self._every if await self._behind() else 0

    def _say(self, fault: MandamusError) -> None:
        """Once, until it works again."""
        d = fault.diagnosis
        if self._said != d.code:
            self._said = d.code
            what = "the log goes on when it does" if isinstance(fault, Unavailable) else "nothing more of this ledger is signed"
            self._warn(f"mandamus: {d.code} {d.where}: {d.what}; {what}".replace("  ", " "))

    async def close(self) -> None:
        """What the ledger took is signed first, within a few seconds. Twice is once."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        if self._pacing is not None and self._pacing.get_loop() is loop:
            self._pacing.cancel()
            await asyncio.wait([self._pacing])
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._last_round()
        except TimeoutError:
            self._warn("mandamus: the log was not signed in time; the next process does it")
        except MandamusError as fault:
            self._say(fault)
        finally:
            await self._turn.stop()
            await self.cosigning.close()
            self.spans.close()
            await self.store.close()

    async def _last_round(self) -> None:
        if self.frozen:
            return
        if await self._behind():
            await self._turn()
        if self.cosigning.witnesses and await self.newest(SEALED):
            await self.cosigning.last()
        if self._held_until:
            await self.ledger.duty(DUTY, 0)
