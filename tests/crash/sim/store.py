"""The store of a simulation: one memory ledger that all see, and what of it a failover would leave.

    store = Store(clock, leases=True)
    store.doubt(loses=True, for_s=3.0)     # from here the standby is missing: what is written is seen, and may be taken back

A write that lands while the standby is missing is visible at once and durable later, or never: no success is told meanwhile, and what
is lost is lost for everybody. The rule a newcomer would break: what must be true at an effect is asked of `durable`, never of what
is visible.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.errors import Unavailable

_KEPT = ("leases", "handles", "bell")  # of the machinery, not of the data


class Store:
    """`ledger` is a handle of nobody: for people, administrators and checks. `lost` counts the failovers that took something back."""

    def __init__(self, clock: Callable[[], int], leases: bool) -> None:
        self.ledger = MemoryLedger(clock, leases=leases)
        self.lost = 0
        self.cut: Callable[[], None] = lambda: None
        self._safe: dict[str, Any] | None = None
        self._over = asyncio.Event()

    @property
    def data(self) -> Any:
        """What is visible."""
        return self.ledger._store

    @property
    def doubtful(self) -> bool:
        return self._safe is not None

    def durable(self, run: str) -> list[bytes]:
        """The records of a run that no failover can take back."""
        records = self.data.records if self._safe is None else self._safe["records"]
        return list(records.get(run, ()))

    def handle(self) -> MemoryLedger:
        return MemoryLedger(beside=self.ledger)

    def doubt(self, loses: bool, for_s: float) -> None:
        """The standby goes missing now. Later it comes back, or another takes over that never saw what follows."""
        if self._safe is None:
            self._safe = {name: _copy(value) for name, value in vars(self.data).items() if name not in _KEPT}
            self._over = asyncio.Event()
            asyncio.get_running_loop().call_later(for_s, self._end, loses)

    def _end(self, loses: bool) -> None:
        safe, self._safe = self._safe, None
        if loses and safe is not None:
            vars(self.data).update(safe)
            if self.ledger.locks:
                self.data.holders.clear()  # a kernel's locks do not outlive it
            self.lost += 1
            self.cut()
        self._over.set()

    async def acknowledged(self) -> None:
        """Wait until a write would be acknowledged at full level. Raises Unavailable when a failover came first."""
        if self._safe is not None:
            before = self.lost
            await self._over.wait()
            if self.lost != before:
                raise Unavailable("the store failed over", code="MDM-0510")


def _copy(value: Any) -> Any:
    """Two levels are all there is: what lies deeper is immutable."""
    if isinstance(value, list):
        return value.copy()
    if not isinstance(value, dict):
        return value
    return {k: v.copy() if isinstance(v, dict | list) else v for k, v in value.items()}
