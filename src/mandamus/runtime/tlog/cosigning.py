"""Witnesses of this log: asked once before anything is signed, and shown every newest checkpoint.

    cosigning = Cosigning(points, witnesses, history, now)
    await cosigning.ask(empty)          # before the first signature: does anybody know this log to be larger?
    met = await cosigning()             # the newest signed checkpoint, with the quorum's lines, stored and shown

The rule a newcomer would break: what one witness says against this log outlives the round in which it was said. From then on every round,
and every signature, is refused with it: other witnesses who know less do not make it untrue.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, MutableMapping, Sequence

from mandamus.core.canonical import canon
from mandamus.errors import MandamusError, ProofError
from mandamus.ports import Witness
from mandamus.proof.keys import b64
from mandamus.proof.note import met
from mandamus.runtime import witnesses as asking
from mandamus.runtime.tlog import objects
from mandamus.runtime.tlog.joint import Joint
from mandamus.runtime.tlog.objects import ANCHORED, COSIGNED, SIGNED
from mandamus.runtime.tlog.shown import SEALED, WITNESSED, Checkpoints, Shown

ASK_S, ASK_AGAIN_S = 5.0, 60.0
ANCHOR_S = 600.0  # public logs are shown a checkpoint so often, and one when the process ends


class Cosigning:
    """`history` is the log itself; `now` in microseconds. `faults`: what witnesses last said instead of signing."""

    def __init__(self, points: Checkpoints, witnesses: Sequence[Witness], history: asking.History, now: Callable[[], int]) -> None:
        self.points, self.witnesses, self.history, self._now = points, tuple(witnesses), history, now
        self.faults: dict[str, MandamusError] = {}
        self._sizes: MutableMapping[str, int] = {}
        self._against: ProofError | None = None
        self._ask_again = self._anchor_again = 0.0
        self._round = Joint(self._cosign)
        self._resting: set[asyncio.Task[None]] = set()

    def lacks(self) -> str:
        """Why a quorum cannot be had at all, and what to do; "" when it can."""
        if not self.points.quorum:
            return "the trust file names no quorum of witnesses: add `witness NAME VKEY` lines and `quorum NAME` to it"
        return "" if self.witnesses else "no witness is named: MANDAMUS_WITNESSES says where they answer"

    async def ask(self, empty: Callable[[], bytes]) -> None:
        """Whoever knows this log to be larger knows of what this copy lost. Raises ProofError, now and from now on."""
        if self._against is not None:
            raise self._against
        if not self.witnesses or time.monotonic() < self._ask_again:
            return
        newest = await self.points.reader.newest(SIGNED)
        told = await asking.ask(self.witnesses, newest[1] if newest else empty(), ASK_S)
        with self._remembered():
            asking.refuse_rollback(told, await self.history.size(), self.points.reader.origin)
        self._sizes.update({name: answer for name, answer in told.items() if isinstance(answer, int)})
        self.faults = {name: answer for name, answer in told.items() if not isinstance(answer, int)}
        keys = {key.public for one in self.witnesses if one.name not in self.faults and (key := getattr(one, "key", None)) is not None}
        enough = not self.faults or (self.points.quorum and met(self.points.trust(), keys))
        self._ask_again = math.inf if enough else time.monotonic() + ASK_AGAIN_S  # the others say it when they are shown a checkpoint

    async def __call__(self) -> bool:
        """Whether the quorum stands under what was the newest signed checkpoint when this was called, or under a later one."""
        return await self._round()

    async def _cosign(self) -> bool:
        newest, done = await self.points.newest(SEALED), await self.points.newest(WITNESSED)
        if newest is None or (done is not None and done.checkpoint.size >= newest.checkpoint.size):
            return done is not None
        if self._against is not None:
            raise self._against
        with self._remembered():
            taken = await asking.collect(
                self._asked(), self.points.trust(), newest.note, self.history, sizes=self._sizes, now=lambda: self._now() // 1_000_000
            )
        if taken.met:
            await self._store(newest, taken.note)
        rest = asyncio.create_task(self._rest(newest, taken))  # who is slow is no reason to wait
        self._resting.add(rest)
        rest.add_done_callback(self._resting.discard)
        if not taken.met:
            await asyncio.wait([rest])
        if self._against is not None:
            raise self._against
        return taken.met

    def _asked(self) -> list[Witness]:
        """Public logs now and then only: they keep what they are given for ever, and so would everybody who reads them."""
        anchors = time.monotonic() >= self._anchor_again
        if anchors:
            self._anchor_again = time.monotonic() + ANCHOR_S
        return [one for one in self.witnesses if anchors or not getattr(one, "anchors", False)]

    async def last(self) -> None:
        """When the process ends: the newest checkpoint, and public logs are waited for."""
        self._anchor_again = 0.0
        await self()
        if self._resting and any(getattr(one, "anchors", False) for one in self.witnesses):
            await asyncio.wait(self._resting)

    async def _rest(self, newest: Shown, taken: asking.Taken) -> None:
        """Those that answer late, and public logs."""
        try:
            with self._remembered():
                await taken.rest()
            if taken.met:
                await self._store(newest, taken.note)
            if taken.anchors:
                said = {name: b64(raw) for name, raw in taken.anchors.items()}
                await self.points.store.put(objects.name(ANCHORED, newest.checkpoint.size), canon(said))
        except MandamusError:
            pass  # it is remembered, or the next round does it
        finally:
            self.faults = dict(taken.faults)

    async def _store(self, newest: Shown, note: bytes) -> None:
        path = objects.name(COSIGNED, newest.checkpoint.size)
        if await self.points.store.get(path) != note:
            await self.points.store.put(path, note)
            await self.points.publish()

    def _remembered(self) -> _Remembered:
        return _Remembered(self)

    def against(self, said: ProofError) -> None:
        self._against = self._against or said

    async def close(self) -> None:
        """Nobody is waited for any more."""
        await self._round.stop()
        loop = asyncio.get_running_loop()
        waiting = [task for task in self._resting if task.get_loop() is loop]
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)
        for witness in self.witnesses:
            await witness.close()


class _Remembered:
    """What a witness says against the log, within."""

    def __init__(self, cosigning: Cosigning) -> None:
        self._cosigning = cosigning

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ProofError) and error.diagnosis.code in asking.STOPS:
            self._cosigning.against(error)
