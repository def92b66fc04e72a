"""A store of objects in memory: `MemoryStore()`, a second handle on the same objects by `MemoryStore(beside=first)`. `memory:`

The rule a newcomer would break: no method awaits between looking and writing, so each is atomic among the tasks of one loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from mandamus.core.objects import checked, folder


class MemoryStore:
    """Implements `ports.Store`; nothing of it outlives the process."""

    def __init__(self, beside: MemoryStore | None = None) -> None:
        self.objects: dict[str, bytes] = {} if beside is None else beside.objects

    @classmethod
    def open(cls, uri: str) -> MemoryStore:
        return cls()

    async def get(self, path: str) -> bytes | None:
        return self.objects.get(checked(path))

    async def put_new(self, path: str, data: bytes) -> bool:
        if checked(path) in self.objects:
            return False
        self.objects[path] = data
        return True

    async def put(self, path: str, data: bytes) -> None:
        self.objects[checked(path)] = data

    async def delete(self, path: str) -> None:
        self.objects.pop(checked(path), None)

    async def list(self, prefix: str = "") -> AsyncIterator[str]:
        folder(prefix)
        for path in sorted(p for p in self.objects if p.startswith(prefix)):
            yield path

    async def close(self) -> None:
        """The objects stay: another handle may stand beside this one."""
