"""Destroying keys in a store that keeps every row it ever held: `await destroy(link, roots, Wanted(erasure, keys, subject, True))`.

    1  a new wrapping key and a new root for each month that is touched, durable, not in use
    2  one transaction: the rows go, each touched cell gets a new key and what is left in it is wrapped anew, the other cells' keys are
       wrapped by the new root; the new wrapping key is in use, the old one is not
    3  the old wrapping key is destroyed: from here on old rows, wherever they lie, are noise

The rule a newcomer would break: whoever dies after 2 has forgotten nothing yet. Rows say what is to be destroyed, so that anybody who comes
after him does it, and destroying again is how an erasure is carried on. Nobody else's key is ever without a wrapping key that opens it.
"""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from mandamus.core.retention import KeyName
from mandamus.drivers.keys_postgres import closing
from mandamus.drivers.keys_postgres.link import LONG_S, Db, Link
from mandamus.drivers.keys_postgres.roots import STORE, Root, Roots
from mandamus.errors import EngineFault

BATCH = 2_000  # rows of one statement


class Wanted(NamedTuple):
    id: str
    keys: tuple[KeyName, ...]
    subject: str
    whole: bool


Touched = dict[str, set[int]]  # cells, by their month


async def destroy(link: Link, roots: Roots, wanted: Wanted) -> int:
    """0, or the instant at which a key service lets go of the last wrapping key that could open any of it."""
    fresh: dict[str, Root] = {}
    while True:
        async with link.lent() as db:
            touched = await _touched(db, wanted)
        for period in touched.keys() - fresh.keys():
            fresh[period] = await roots.make(period)
        async with link.transaction(LONG_S) as db:
            await db.hold("erase")
            touched = await _touched(db, wanted)
            if touched.keys() <= fresh.keys():
                await _wrap_anew(db, roots, wanted, touched, fresh)
                break
    roots.forget()
    async with link.lent() as db:
        upto = int(await db.one("last_of", id=wanted.id))
    return await roots.bury(upto)


async def _touched(db: Db, wanted: Wanted) -> Touched:
    found: Touched = {}
    for key in wanted.keys:
        for period, n in await db.run("matching", owner=key.owner, kind=key.kind, period=key.period):
            found.setdefault(period, set()).add(n)
    for period, n in await db.run("matching_subject", subject=wanted.subject) if wanted.subject else ():
        found.setdefault(period, set()).add(n)
    return found


async def _wrap_anew(db: Db, roots: Roots, wanted: Wanted, touched: Touched, fresh: dict[str, Root]) -> None:
    old = {period: await _live(db, roots, period) for period in touched}
    for key in wanted.keys:
        await db.run("delete", owner=key.owner, kind=key.kind, period=key.period)
        await db.run("is_gone", owner=key.owner, kind=key.kind, period=key.period, id=wanted.id)
    if wanted.subject:
        await db.run("delete_subject", subject=wanted.subject)
        await db.run("delete_touched", subject=wanted.subject)
    for period, root in fresh.items():
        before = old.get(period)
        left = before is not None and await _month(db, roots.store, touched[period], before, root)
        if before is not None:
            await db.run("retire", name=before.name, erasure=wanted.id)
        await (db.run("lives", name=root.name) if left else db.run("retire", name=root.name, erasure=""))
    if wanted.whole:
        await db.run("destroyed", id=wanted.id)
    await db.run("changed")


async def _live(db: Db, roots: Roots, period: str) -> Root | None:
    """None: its wrapping key was destroyed before, as in a database that is older than an erasure; nothing in it can be opened."""
    for name, id, wrapped in await db.run("live", period=period):
        try:
            return await roots.unwrapped(name, id, period, wrapped)
        except EngineFault as fault:
            if fault.diagnosis.code != "MDM-0979" or period == STORE:
                raise
    return None


async def _month(db: Db, store: str, touched: set[int], old: Root, new: Root) -> bool:
    """Whether anything is left in it."""
    left = False
    for n, stored in await db.run("cells_of", period=old.period):
        place = closing.of_cell(store, old.period, n)
        key = closing.opened(old.secret, stored, place)
        if n in touched:
            anew = os.urandom(closing.SECRET)
            if not await _cell(db, old.period, n, key, anew):
                await db.run("drop_cell", period=old.period, n=n)
                continue
            key = anew
        left = True
        await db.run("set_cell", period=old.period, n=n, key=closing.close(new.secret, key, place), anew=n in touched)
    return left


async def _cell(db: Db, period: str, n: int, old: bytes, new: bytes) -> int:
    """How many rows are left in it, all of them under its new key."""
    if n >= closing.FIRST_SUBJECT:
        return await _subjects(db, period, n, old, new)
    rows = await db.run("rows_of", period=period, n=n)
    for at in range(0, len(rows), BATCH):
        ids, keys = [], []
        for id, owner, kind, month, stored in rows[at : at + BATCH]:
            place = closing.of_key(KeyName(owner, kind, month))
            ids.append(id)
            keys.append(closing.close(new, closing.opened(old, stored, place), place))
        await db.run("rewrap", ids=ids, keys=keys)
        await asyncio.sleep(0)
    return len(rows)


async def _subjects(db: Db, period: str, n: int, old: bytes, new: bytes) -> int:
    rows = await db.run("subjects_in", period=period, n=n)
    for pseudonym, stored in rows:
        place = closing.of_subject(pseudonym)
        said = closing.opened(old, stored, place)
        name = said[: -closing.SECRET]
        await db.run("rename_subject", pseudonym=pseudonym, lookup=closing.lookup(new, name), sealed=closing.close(new, said, place))
    return len(rows)
