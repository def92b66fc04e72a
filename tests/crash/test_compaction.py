"""Compaction of blobs loses no live blob: the power fails at every operation of the store; writers, readers and it run interleaved."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mandamus.drivers.store_folder import FolderStore
from mandamus.drivers.store_memory import MemoryStore
from mandamus.ports import Store
from mandamus.runtime.content import compact as module
from mandamus.runtime.content import shelf as shelves
from mandamus.runtime.content.compact import compact
from mandamus.runtime.content.shelf import Shelf
from mandamus.testing.power import Power, PowerCut
from mandamus.testing.power_store import PowerStore
from tests.ports.test_blobs import DAY, NOW, PACKING, several, sha, zstd
from tests.servers.needs import needs


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few blobs each, and no pauses: every place is passed in little time."""
    needs(PACKING)
    monkeypatch.setattr(module, "SEGMENT", 600)
    monkeypatch.setattr(shelves, "_PAUSE_S", 0)


async def world() -> tuple[dict[str, bytes], dict[str, bytes], dict[str, bytes]]:
    """(objects, live blobs, dead blobs): some packed, some alone, dead ones among both, their grace over."""
    store, old, new, large = MemoryStore(), several(14), several(6, "new "), b"L" * (shelves.SMALL + 1)
    shelf = Shelf(store, zstd())
    for digest, data in old.items():
        await shelf.put(digest, data)
    await compact(shelf, old, NOW)
    whole = old | new | {sha(large): large}
    for digest, data in (new | {sha(large): large}).items():
        await shelf.put(digest, data)
    dead = {digest: data for n, (digest, data) in enumerate(whole.items()) if n % 4 == 1 or digest == sha(large)}
    live = {digest: data for digest, data in whole.items() if digest not in dead}
    for digest in dead:
        await store.put_new(f"doomed/{digest}", str(NOW).encode())
    return store.objects, live, dead


def beside(objects: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    store.objects = dict(objects)
    return store


async def every_cut() -> int:
    objects, live, dead = await world()
    k = 0
    while True:
        store, power = beside(objects), Power(cuts=(k,))
        try:
            await compact(Shelf(PowerStore(store, power), zstd()), live, NOW + DAY)
            return k
        except PowerCut:
            pass
        await after_the_cut(store, live, dead, k)
        k += 1


async def after_the_cut(store: MemoryStore, live: dict[str, bytes], dead: dict[str, bytes], k: int) -> None:
    """Everything that is named is there at once; the next compaction ends the work; nothing is left over."""
    reader = Shelf(store, zstd())
    for digest, data in live.items():
        assert await reader.get(digest) == data, k
    await compact(Shelf(store, zstd()), live, NOW + DAY, take_over=True)
    fresh = Shelf(store, zstd())
    for digest, data in live.items():
        assert await fresh.get(digest) == data, k
    for digest in dead:
        assert await fresh.get(digest) is None, k
    assert {path.partition("/")[0] for path in store.objects} == {"index", "segment"}, k
    names = [{p.partition("/")[2] for p in store.objects if p.startswith(kind)} for kind in ("index/", "segment/")]
    assert names[0] == names[1], k


def test_the_power_fails_at_every_operation() -> None:
    assert asyncio.run(every_cut()) > 100


def test_the_power_fails_twice() -> None:
    """Also while the next one carries on."""

    async def twice(seed: int) -> None:
        chance = random.Random(seed)
        objects, live, dead = await world()
        store = beside(objects)
        for _ in range(3):
            power = Power(cuts=(chance.randrange(150),))
            try:
                await compact(Shelf(PowerStore(store, power), zstd()), live, NOW + DAY, take_over=True)
            except PowerCut:
                pass
        await after_the_cut(store, live, dead, seed)

    for seed in range(60):
        asyncio.run(twice(seed))


WORKER = """
import asyncio, json, sys
from mandamus.drivers.pack_zstd import Zstd
from mandamus.drivers.store_folder import FolderStore
from mandamus.runtime.content import compact as module
from mandamus.runtime.content.shelf import Shelf
module.SEGMENT = 600
live = json.loads(sys.stdin.readline())
async def main():
    shelf = Shelf(FolderStore.open(sys.argv[1]), Zstd())
    print("begun", flush=True)
    await module.compact(shelf, live, int(sys.argv[2]), take_over=True)
    print("done", flush=True)
asyncio.run(main())
"""


async def killed(place: Path, seed: int) -> None:
    chance = random.Random(seed)
    objects, live, dead = await world()
    store = FolderStore.open(place)
    for path, data in objects.items():
        await store.put_new(path, data)
    told = ""
    for _ in range(20):
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(place), str(NOW + DAY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps(sorted(live)) + "\n")
        worker.stdin.flush()
        assert worker.stdout.readline() == "begun\n"
        time.sleep(chance.random() * 0.15)
        worker.send_signal(signal.SIGKILL)
        told = worker.communicate()[0]
        reader = Shelf(store, zstd())
        for digest, data in live.items():
            assert await reader.get(digest) == data, seed
        if "done" in told:
            break
    await compact(Shelf(store, zstd()), live, NOW + DAY, take_over=True)
    for digest in dead:
        assert await Shelf(store, zstd()).get(digest) is None


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")
def test_kill_9_in_the_middle_of_a_real_folder(tmp_path: Path) -> None:
    first, rounds = int(os.environ.get("SEED", "0")), int(os.environ.get("ROUNDS", "3"))
    for seed in range(first, first + rounds):
        asyncio.run(killed(tmp_path / str(seed), seed))


# -- interleaved -----------------------------------------------------------------------------------------------------------------
class Slow:
    """A store whose every operation happens some steps after it was asked for: another task may come between any two."""

    def __init__(self, inner: Store, chance: random.Random) -> None:
        self._inner, self._chance = inner, chance

    async def _wait(self) -> None:
        for _ in range(self._chance.choice((0, 0, 1, 2, 5, 30))):
            await asyncio.sleep(0)

    async def get(self, path: str) -> bytes | None:
        await self._wait()
        return await self._inner.get(path)

    async def put_new(self, path: str, data: bytes) -> bool:
        await self._wait()
        return await self._inner.put_new(path, data)

    async def put(self, path: str, data: bytes) -> None:
        await self._wait()
        await self._inner.put(path, data)

    async def delete(self, path: str) -> None:
        await self._wait()
        await self._inner.delete(path)

    async def list(self, prefix: str = "") -> AsyncIterator[str]:
        await self._wait()
        async for path in self._inner.list(prefix):
            yield path

    async def close(self) -> None: ...


async def interleaved(seed: int) -> None:
    chance = random.Random(seed)
    objects, live, dead = await world()
    store = beside(objects)
    promised: dict[str, bytes] = {}

    async def write(blobs: list[tuple[str, bytes]]) -> None:
        shelf = Shelf(Slow(store, chance), zstd())
        for digest, data in blobs:
            await shelf.put(digest, data)
            promised[digest] = data

    async def look() -> None:
        shelf = Shelf(Slow(store, chance), zstd())
        for digest, data in chance.sample(sorted(live.items()), 8):
            assert await shelf.get(digest) == data, seed

    again = [chance.sample(sorted(dead.items()), len(dead)) for _ in range(2)]
    await asyncio.gather(compact(Shelf(Slow(store, chance), zstd()), live, NOW + DAY), *map(write, again), look(), look())
    fresh = Shelf(store, zstd())
    for digest, data in (live | promised).items():
        assert await fresh.get(digest) == data, seed


def test_what_a_writer_was_promised_is_not_cleared_beside_it() -> None:
    first, seeds = int(os.environ.get("SEED", "0")), int(os.environ.get("SEEDS", "150"))
    for seed in range(first, first + seeds):
        asyncio.run(interleaved(seed))


def test_the_interleaving_finds_a_store_without_the_announcement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: a writer that does not look for the announcement loses what it was promised."""

    async def careless(self: Shelf, digest: str) -> bool:
        await self.store.delete(f"doomed/{digest}")
        return True

    monkeypatch.setattr(Shelf, "_spared", careless)

    def lost(seed: int) -> Any:
        try:
            asyncio.run(interleaved(seed))
        except AssertionError:
            return True
        return False

    assert any(lost(seed) for seed in range(60))
