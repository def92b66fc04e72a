"""Virtual time: an event loop in which nobody waits, and clocks of machines that may be wrong.

    with asyncio.Runner(loop_factory=VirtualLoop) as runner: ...
    time = SimTime(seed=7); time.skew = 3_600_000_000        # this machine's clock is an hour ahead

The rule a newcomer would break: the loop's own time is the truth and never jumps; what jumps is what a machine believes.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from typing import Any

from mandamus.testing.power import TUESDAY

REAL_S = 10.0


class Stuck(AssertionError):
    """Everybody waits for somebody else."""


class _Jump(selectors.SelectSelector):
    """When nothing is ready, the clock jumps to whatever comes next."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:  # only a thread could say something now: the loop's executor, when it is shut down
            ready = super().select(REAL_S)
            if not ready:
                raise Stuck("everybody waits for somebody else")
            return ready
        self.loop.virtual += max(0.0, timeout)
        return ()


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        jump = _Jump()
        super().__init__(jump)
        self.virtual, jump.loop = 0.0, self

    def time(self) -> float:
        return getattr(self, "virtual", 0.0)


class SimTime:
    """The clock of one machine: virtual, and wrong by `skew` microseconds when the plan says so. Its randomness comes from the seed."""

    def __init__(self, seed: int | str) -> None:
        self.skew, self._random = 0, random.Random(seed)

    def now(self) -> int:
        return TUESDAY + self.skew + int(asyncio.get_running_loop().time() * 1e6)

    def entropy(self, n: int) -> bytes:
        return self._random.randbytes(n)

    async def sleep_until(self, instant: int) -> None:
        await asyncio.sleep(max(0, instant - self.now()) / 1e6)
