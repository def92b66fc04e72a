"""A store of objects on a power switch (testing/power.py): dead before an operation, or after it before anybody hears of it.

    power = Power(cuts=(k,))
    store = PowerStore(MemoryStore(), power)   # the k-th place, counted from 0, raises PowerCut; from then on every call does

The rule a newcomer would break: the port promises that what returned is durable, so the objects of the dead process are exactly what
the next one finds: give it a new `PowerStore` around the same inner store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from mandamus.ports import Store
from mandamus.testing.power import Power


class PowerStore:
    """Implements `ports.Store` around another one. Reading is a place too: whoever reads and then acts can die in between."""

    def __init__(self, inner: Store, power: Power) -> None:
        self._inner, self.power = inner, power

    async def get(self, path: str) -> bytes | None:
        self.power.place(f"before get {path}")
        return await self._inner.get(path)

    async def put_new(self, path: str, data: bytes) -> bool:
        self.power.place(f"before put_new {path}")
        done = await self._inner.put_new(path, data)
        self.power.place(f"after put_new {path}")
        return done

    async def put(self, path: str, data: bytes) -> None:
        self.power.place(f"before put {path}")
        await self._inner.put(path, data)
        self.power.place(f"after put {path}")

    async def delete(self, path: str) -> None:
        self.power.place(f"before delete {path}")
        await self._inner.delete(path)
        self.power.place(f"after delete {path}")

    async def list(self, prefix: str = "") -> AsyncIterator[str]:
        self.power.place(f"before list {prefix}")
        async for path in self._inner.list(prefix):
            yield path

    async def close(self) -> None:
        """The inner store lives on: it is what survives the cut."""
