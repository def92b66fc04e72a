"""Port `KeyStore`, in a Postgres that workers on several hosts share.

MANDAMUS_KEYS=postgres://keys@host/db MANDAMUS_KEK=pkcs11:token=ops?…

    keys = PostgresKeys("postgres://keys@host/db?schema=mandamus_keys", wraps)
    name = await keys.pseudonym("patient-17")
    await keys.destroy(erasure, [KeyName(f"subject/{name}")], name)

Vacuum, the write-ahead log, replicas and backups of a Postgres keep every row that ever stood there. So nothing lies in it but wrapped, and
what makes destroying final is that a wrapping key, which lies elsewhere, is destroyed (closing.py says how they hang together).

The rule a newcomer would break: this process may know a key that another one has destroyed. `version` asks the database; whoever seals asks
each time, and a key that was made is held against the erasures of now, in the transaction that makes it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import time
import unicodedata
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from mandamus.core.retention import KeyName, Plan, covers, decode_plan, encode_plan
from mandamus.drivers.keys_postgres import closing, destroying
from mandamus.drivers.keys_postgres.link import FORM, Address, Db, Link
from mandamus.drivers.keys_postgres.roots import STORE, TRIES, Cell, Roots
from mandamus.errors import EngineFault, Erased, Misuse, Unavailable
from mandamus.ports import Erasing, Wraps

LAYOUT = "1"
LOOK_S = 0.05  # between two looks whether somebody else is done


class PostgresKeys:
    """Implements `ports.KeyStore`. Nothing is asked of the server before it is used."""

    def __init__(self, uri: str, wraps: Wraps) -> None:
        self._link = Link(Address(uri))
        self._wraps = wraps
        self._roots = Roots(self._link, wraps)
        self._ready = False
        self._origin = ""
        self._version: int | None = None  # None: it must be asked
        self._kept = 0  # of what is kept in memory
        self._version_at = 0.0  # when it was asked, not when it was answered
        self._question: asyncio.Task[int] | None = None  # that was not sent yet

    @property
    def place(self) -> str:
        return self._link.address.place

    # -- the log and its runs ------------------------------------------------------------------------------------------------
    async def bind(self, origin: str) -> None:
        await self._open()
        async with self._link.transaction() as db:
            bound = await db.one("bind", origin=origin)
        if bound != origin:
            raise Misuse(
                "these are the keys of another log", code="MDM-0962", where=self.place, expected=origin, found=bound,
                why="a person who is forgotten in one log would lose what another one holds, without a record there",
                fix=f"MANDAMUS_KEYS={FORM}, a schema of its own",
            )  # fmt: skip

    async def pseudonym(self, subject: str, *, make: bool = True) -> str:
        await self._open()
        plain = unicodedata.normalize("NFC", subject).strip().encode("utf-8", "replace")
        name = closing.hashed(plain)
        known = await self._known(name)
        if known or not make:
            return known
        for _ in range(TRIES):
            month = time.strftime("%Y-%m", time.gmtime())
            cell = await self._roots.cell(month, closing.subject_cell())
            async with self._link.transaction() as db:
                await db.hold("erase", shared=True)
                await db.hold("subject")
                if known := await self._known(name, db):
                    return known
                if await self._same(db, [cell]):
                    return await self._new_subject(db, cell, plain, name)
        raise self._busy()

    async def _known(self, name: bytes, db: Db | None = None) -> str:
        lookups = [closing.lookup(cell.key, name) for cell in await self._roots.subjects(db)]
        found = await (db.run("known", lookups=lookups) if db else self._link.ask("known", lookups=lookups))
        return str(found[0][0]) if found else ""

    async def _new_subject(self, db: Db, cell: Cell, plain: bytes, name: bytes) -> str:
        key = os.urandom(closing.SECRET)
        made = hmac.digest(key, plain, "sha256").hex()[:32]
        sealed = closing.close(cell.key, name + key, closing.of_subject(made))
        await db.run("new_subject", pseudonym=made, lookup=closing.lookup(cell.key, name), period=cell.period, n=cell.n, sealed=sealed)
        return made

    async def begin(
        self, run: str, plan: Plan, parent: str = "", subjects: Sequence[str] = (), keys: Mapping[KeyName, int] = {}
    ) -> None:  # fmt: skip
        await self._open()
        for _ in range(TRIES):
            cells = {name: await self._roots.cell(name.period, closing.cell_of(name.owner)) for name in keys}
            async with self._link.transaction() as db:
                await db.hold("erase", shared=True)
                if not await self._same(db, cells.values()):
                    continue
                await db.run("begin", run=run, plan=encode_plan(plan))
                if parent:
                    await db.run("related", run=run, parent=parent)
                for subject in subjects:
                    await db.run("touch", subject=subject, run=run)
                for name, until in keys.items():
                    await _insert(db, name, cells[name], until)
                return
        raise self._busy()

    async def plan(self, run: str) -> Plan | None:
        found = await self._ask("plan", run=run)
        return decode_plan(bytes(found[0][0])) if found else None

    async def touch(self, run: str, subject: str) -> None:
        if not await self._ask("is_touched", run=run, subject=subject):
            async with self._link.transaction() as db:
                await db.run("touch", run=run, subject=subject)

    async def runs_of(self, subject: str) -> tuple[str, ...]:
        return await self._families([row[0] for row in await self._ask("touched_by", subject=subject)])

    async def family(self, run: str) -> tuple[str, ...]:
        return await self._families([run])

    async def _families(self, runs: list[str]) -> tuple[str, ...]:
        return tuple(row[0] for row in await self._ask("families", runs=runs))

    async def subjects_of(self, runs: Sequence[str]) -> tuple[str, ...]:
        return tuple(row[0] for row in await self._ask("subjects_of", runs=list(runs)))

    async def sealed(self) -> tuple[str, ...]:
        return tuple(row[0] for row in await self._ask("sealed"))

    # -- keys ----------------------------------------------------------------------------------------------------------------
    async def key(self, name: KeyName, *, until: int | None = None) -> bytes:
        found = await self._find(name)
        if found or until is None:
            return found
        for _ in range(TRIES):
            cell = await self._roots.cell(name.period, closing.cell_of(name.owner))
            async with self._link.transaction() as db:
                await db.hold("erase", shared=True)
                await self._refuse_gone(db, name)
                if not await self._same(db, [cell]):
                    continue
                await _insert(db, name, cell, until)
            if found := await self._find(name):
                return found
        raise self._busy()

    async def _find(self, name: KeyName) -> bytes:
        for *cell, stored in await self._ask("key", owner=name.owner, kind=name.kind, period=name.period):
            return closing.opened((await self._roots.opened(tuple(cell))).key, stored, closing.of_key(name))
        return b""

    async def _refuse_gone(self, db: Db, name: KeyName) -> None:
        off = await db.run("off", owner=name.owner, kind=name.kind, period=name.period)
        if off or any(covers(KeyName(*row), name) for *row, _ in await db.run("gone", owner=name.owner)):
            raise Erased(
                "what would be written here is being forgotten, or was", code="MDM-0963", where=name.owner,
                why="a key that is to be destroyed takes nothing new", fix="begin a new run",
            )  # fmt: skip

    async def version(self, old_ms: int = 0) -> object:
        """One question for all who ask while it is not sent yet."""
        if self._version is not None and old_ms and time.monotonic() - self._version_at <= old_ms / 1000:
            return self._version
        await self._open()
        loop = asyncio.get_running_loop()
        if self._question is None or self._question.get_loop() is not loop:
            self._question = loop.create_task(self._ask_version())
            self._question.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever asked may have gone
        return await asyncio.shield(self._question)

    async def _ask_version(self) -> int:
        try:
            async with self._link.lent() as db:
                self._question, at = None, time.monotonic()  # whoever asks from here on asks anew
                found = int(await db.one("version"))
        except BaseException:
            self._question = None
            raise
        if found != self._kept:
            self._roots.forget()
        self._version, self._kept, self._version_at = found, found, at
        return found

    async def fate(self, name: KeyName) -> str:
        """Erased is what nothing can bring back: as long as a key service could, it is out of use."""
        pending = [left for *row, left in await self._ask("gone", owner=name.owner) if covers(KeyName(*row), name)]
        if pending:
            return "off" if any(pending) else "erased"
        return "off" if await self._ask("off", owner=name.owner, kind=name.kind, period=name.period) else ""

    async def expired(self, now: int) -> tuple[KeyName, ...]:
        return tuple(KeyName(*row) for row in await self._ask("expired", now=now))

    # -- erasing -------------------------------------------------------------------------------------------------------------
    async def erasings(self) -> tuple[Erasing, ...]:
        return tuple(_erasing(*row) for row in await self._ask("erasings"))

    async def hear(self, erasing: Erasing) -> None:
        await self._open()
        keys, runs = ((), ()) if erasing.state == "done" else (erasing.keys, erasing.runs)
        async with self._link.transaction() as db:
            await db.hold("erase", shared=True)
            await db.run("give_back", id=erasing.id)
            for selector in keys if erasing.state == "off" else ():
                await db.run("take_off", id=erasing.id, owner=selector.owner, kind=selector.kind, period=selector.period)
            packed = [[k.owner, k.kind, k.period] for k in keys]
            await db.run(
                "hear", id=erasing.id, subject=erasing.subject, keys=json.dumps(packed), runs=json.dumps(list(runs)), state=erasing.state
            )
            await db.run("changed")
        self._version = None

    async def destroy(self, id: str, keys: Sequence[KeyName], subject: str = "", *, whole: bool = True) -> int:
        await self._open()
        try:
            return await destroying.destroy(self._link, self._roots, destroying.Wanted(id, tuple(keys), subject, whole))
        finally:
            self._version = None  # nobody in this process reads on with what it knew before

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """A transaction that does nothing but hold its lock: also behind a pooler of transactions it is one connection's."""
        await self._open()
        db = await self._link.own()
        try:
            async with db.raw.transaction():
                while not await db.try_hold("alone"):
                    await asyncio.sleep(LOOK_S)
                yield
        except psycopg.Error as error:
            raise self._link.fault(error) from None
        finally:
            await db.raw.close()

    # -- what was given away -------------------------------------------------------------------------------------------------
    async def hand_out(self, path: str, run: str, kind: str) -> None:
        await self._open()
        async with self._link.transaction() as db:
            await db.run("hand_out", path=path, run=run, kind=kind)

    async def handed_out(self, runs: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
        return tuple((row[0], row[1], row[2]) for row in await self._ask("handed_out", runs=list(runs)))

    async def took_back(self, path: str) -> None:
        await self._open()
        async with self._link.transaction() as db:
            await db.run("took_back", path=path)

    async def close(self) -> None:
        self._roots.forget()
        await self._link.close()
        await asyncio.to_thread(self._wraps.close)

    # -- the tables ----------------------------------------------------------------------------------------------------------
    async def _ask(self, name: str, **values: Any) -> list[tuple[Any, ...]]:
        await self._open()
        return await self._link.ask(name, **values)

    async def _open(self) -> None:
        """Tables are made by the first who asks; whoever asks shows first that he has the store's own wrapping keys."""
        if self._ready:
            return
        async with self._link.transaction() as db:
            if not await self._there(db):
                await db.hold("tables")
                if not await self._there(db):
                    await db.raw.execute(f"CREATE SCHEMA IF NOT EXISTS {self._link.address.schema}".encode())
                    await db.make(os.urandom(8).hex())
            meta = dict(await db.run("meta"))
        if meta.get("layout") != LAYOUT:
            raise Misuse(
                "this is no key store, or a newer one", code="MDM-0961", where=self.place, expected=f"layout {LAYOUT}",
                found=str(meta.get("layout"))[:20],
            )  # fmt: skip
        self._roots.store = str(meta["store"])
        await self._roots.period(STORE)
        self._ready = True

    async def _there(self, db: Db) -> bool:
        ((there, fsync, recovering),) = await db.run("layout")
        if fsync != "on" or recovering:
            raise EngineFault(
                "this Postgres is not fit to keep keys", code="MDM-0966", where=self.place, expected="a primary, with fsync = on",
                found="a replica" if recovering else f"fsync = {fsync}", why="a key that is lost takes with it what was sealed under it",
            )  # fmt: skip
        return bool(there)

    async def _same(self, db: Db, cells: Iterable[Cell]) -> bool:
        """Under the lock against erasures: nothing has taken their keys. Else what is known of them is forgotten."""
        for cell in cells:
            if not await db.one("same_cell", period=cell.period, n=cell.n, gen=cell.gen):
                self._roots.forget()
                return False
        return True

    def _busy(self) -> Unavailable:
        return Unavailable("erasures stood in the way again and again", outcome="none", code="MDM-0966", where=self.place, fix="try again")


async def _insert(db: Db, name: KeyName, cell: Cell, until: int) -> None:
    stored = closing.close(cell.key, os.urandom(closing.SECRET), closing.of_key(name))
    await db.run("new_key", owner=name.owner, kind=name.kind, period=name.period, n=cell.n, key=stored, until=until)


def _erasing(id: str, subject: str, keys: str, runs: str, state: str) -> Erasing:
    return Erasing(id, subject, tuple(KeyName(*k) for k in json.loads(keys)), tuple(json.loads(runs)), state)
