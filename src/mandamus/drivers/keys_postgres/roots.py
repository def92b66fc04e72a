"""Roots and cells, as this process knows them: `await roots.period("2026-11")`, `await roots.cell("2026-11", 7)`.

What was unwrapped is kept in memory until the store's version changes: a month costs one call of the key service for each process.

The rule a newcomer would break: a wrapping key is written down before it is made, and is relied on only when what it wraps is durable. Who
dies in between leaves a row that says what to destroy, never a root that nobody can unwrap.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from mandamus.drivers.keys_postgres import closing
from mandamus.drivers.keys_postgres.link import Db, Link
from mandamus.errors import EngineFault, Erased, Unavailable
from mandamus.ports import Wraps

KNOWN_MAX = 4_096
TRIES = 20
FORSAKEN_S = 600.0  # whoever makes a wrapping key for longer than this has died
STORE = ""  # the period of no month: its root says that these wrapping keys are the store's own


class Root(NamedTuple):
    name: str
    id: str
    period: str
    secret: bytes


class Cell(NamedTuple):
    period: str
    n: int
    gen: int
    key: bytes


class Roots:
    """`store` is set when the tables are known."""

    def __init__(self, link: Link, wraps: Wraps) -> None:
        self._link, self._wraps, self.store = link, wraps, ""
        self._roots: dict[str, Root] = {}
        self._cells: dict[int, Cell] = {}
        self._placed: dict[tuple[str, int], Cell] = {}

    def forget(self) -> None:
        """What was destroyed elsewhere is not kept in this memory either."""
        self._roots.clear()
        self._cells.clear()
        self._placed.clear()

    # -- wrapping keys -----------------------------------------------------------------------------------------------------------
    async def make(self, period: str) -> Root:
        """One that wraps a new root, not in use yet."""
        assert self.store, "the tables are known"
        name = f"mandamus-{self.store}-{os.urandom(8).hex()}"
        async with self._link.transaction() as db:
            await db.run("made", name=name, period=period)
        id = await asyncio.to_thread(self._wraps.new, name)
        root = Root(name, id, period, os.urandom(closing.SECRET))
        wrapped = await asyncio.to_thread(self._wraps.wrap, id, root.secret, closing.of_root(self.store, name, period))
        async with self._link.transaction() as db:
            if not await db.run("wrapped", name=name, id=id, root=wrapped):
                raise Unavailable(
                    "a wrapping key took too long to make", outcome="none", code="MDM-0966", where=self._wraps.place, fix="again"
                )
        return root

    async def unwrapped(self, name: str, id: str, period: str, wrapped: bytes) -> Root:
        """Raises EngineFault when its wrapping key is not there (any more)."""
        if (known := self._roots.get(name)) is None:
            try:
                secret = await asyncio.to_thread(self._wraps.unwrap, id, bytes(wrapped), closing.of_root(self.store, name, period))
            except Erased:
                raise self._missing(period) from None
            if len(self._roots) >= KNOWN_MAX:
                self._roots.clear()
            known = self._roots[name] = Root(name, id, period, secret)
        return known

    async def period(self, period: str) -> Root:
        """Its root, made when there is none; of several processes that make one at once all get the first one's."""
        for _ in range(TRIES):
            async with self._link.one_by_one():
                for name, id, wrapped in await self._link.ask("live", period=period):
                    return await self.unwrapped(name, id, period, wrapped)
                await self._begin(period)
        raise self._moved()

    async def _begin(self, period: str) -> None:
        made = await self.make(period)
        async with self._link.transaction() as db:
            await db.hold("erase", shared=True)
            await db.hold("period")
            if lives := await db.run("lives", name=made.name):
                return
            await db.run("retire", name=made.name, erasure="")
        if not lives:
            await self.bury()

    async def bury(self, upto: int | None = None) -> int:
        """Destroy every wrapping key that is out of use. The instant at which the last one is gone, of those that were retired `upto`
        then; 0: now."""
        async with self._link.transaction() as db:
            await db.run("forsaken", seconds=FORSAKEN_S)
        last = 0
        for name, id, retired in await self._link.ask("dying"):
            gone = await asyncio.to_thread(self._destroyed, name, id)
            if not gone:
                async with self._link.transaction() as db:
                    await db.run("is_destroyed", name=name)
            elif upto is None or retired <= upto:
                last = max(last, gone)
        return last

    def _destroyed(self, name: str, id: str) -> int:
        """`id` "": whoever made it died before he wrote down which one it is."""
        return max((self._wraps.destroy(one) for one in ([id] if id else self._wraps.list(name))), default=0)

    # -- cells -------------------------------------------------------------------------------------------------------------------
    async def cell(self, period: str, n: int) -> Cell:
        """Made when there is none. It may have another key by now: who seals with it looks (`same_cell`) in the same transaction."""
        if known := self._placed.get((period, n)):
            return known
        for _ in range(TRIES):
            for row in await self._link.ask("cell", period=period, n=n):
                found = self._placed[period, n] = await self.opened(row)
                return found
            root = await self.period(period)
            stored = closing.close(root.secret, os.urandom(closing.SECRET), closing.of_cell(self.store, period, n))
            async with self._link.transaction() as db:
                await db.hold("erase", shared=True)
                await db.run("new_cell", period=period, n=n, key=stored, kek=root.name)
        raise self._moved()

    async def opened(self, row: tuple[object, ...]) -> Cell:
        """Of (period, n, gen, key, name, id, root)."""
        period, n, gen, key, name, id, wrapped = row[:7]
        assert isinstance(gen, int)
        assert isinstance(n, int)
        if (known := self._cells.get(gen)) is None:
            assert isinstance(key, bytes)
            assert isinstance(wrapped, bytes)
            root = await self.unwrapped(str(name), str(id), str(period), wrapped)
            place = closing.of_cell(self.store, str(period), n)
            if len(self._cells) >= KNOWN_MAX:
                self._cells.clear()
                self._placed.clear()
            known = self._cells[gen] = Cell(str(period), n, gen, closing.opened(root.secret, key, place))
        return known

    async def subjects(self, db: Db | None = None) -> list[Cell]:
        """All that subjects lie in."""
        first = closing.FIRST_SUBJECT
        rows = await (db.run("subject_cells", first=first) if db else self._link.ask("subject_cells", first=first))
        return [await self.opened(row) for row in rows]

    # -- diagnoses ---------------------------------------------------------------------------------------------------------------
    def _missing(self, period: str) -> EngineFault:
        if period == STORE:
            return EngineFault(
                "these are not the wrapping keys of this key store", code="MDM-0979", where=self._wraps.place,
                why="every host names one and the same place", fix="MANDAMUS_KEK: what the other hosts name",
            )  # fmt: skip
        return EngineFault(
            "the wrapping key of this month was destroyed", code="MDM-0979", where=f"{self._wraps.place}, {period}",
            why="the key store's database is older than the last erasure: a backup, or a standby that was behind",
            fix="restore a newer one: what was wrapped in this month cannot be opened with this one",
        )  # fmt: skip

    def _moved(self) -> Unavailable:
        return Unavailable(
            "erasures stood in the way again and again", outcome="none", code="MDM-0966", where=self._link.address.place, fix="try again"
        )
