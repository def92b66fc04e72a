"""The one writer of the log: takes committed records from the ledger's feed, stores tiles, stores what it will sign, signs, stores that.

    sequencer = Sequencer(ledger, reader, spans, key, sign, now)
    size = await sequencer.advance()        # everything that the ledger feeds now lies under a stored, signed checkpoint

In this order, each step durable before the next: full tiles and bundles, growing ones, `pending/N`, signature, `signed/N`. A crash in
between is finished by whoever comes next: it signs exactly the newest pending row, or something larger that begins with it.

The rule a newcomer would break: no memory of this process is believed where a signature follows. The root is computed again from the
tiles as they are stored, and the proof that the new tree begins with the old one is computed and checked, every time. Two processes may
do this at once on one ledger and one store: they write the same bytes. With another ledger or another store they meet each other's rows,
or a witness who knows better, and stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from mandamus.errors import ProofError
from mandamus.ports import Fed, Ledger
from mandamus.proof.keys import VKey
from mandamus.proof.note import Checkpoint, parse_checkpoint, parse_note, sign_line, write
from mandamus.proof.tree import verify_consistency
from mandamus.runtime.tlog import checks, objects
from mandamus.runtime.tlog.objects import CHECKPOINT, PENDING, SIGNED, Pending
from mandamus.runtime.tlog.reader import AT_ONCE, Reader
from mandamus.runtime.tlog.spans import Spans, follow, spans_of
from mandamus.runtime.tlog.tiles import Edge, Object

CHUNK = 4_096  # records of one look at the feed
LEAVES_MAX = 65_536  # under one new checkpoint while it catches up
RUNS_MAX = 50_000  # whose length is kept in memory
Leaf = tuple[int, str, int]  # its number, whose record, which


class Sequencer:
    """`key` and `sign` are the log's; `now` in microseconds; `holder` and `epoch` are told to people who read a pending row."""

    def __init__(
        self, ledger: Ledger, reader: Reader, spans: Spans, key: VKey, sign: Callable[[bytes], bytes], now: Callable[[], int],
        holder: str = "",
    ) -> None:  # fmt: skip
        self.ledger, self.reader, self.store, self.spans = ledger, reader, reader.store, spans
        self.origin, self.key, self.sign, self._now, self.holder = reader.origin, key, sign, now, holder
        self.epoch = 0
        self.signed = 0  # the newest size that is stored with a signature
        self.stale: list[str] = []  # beginnings of names of growing tiles whose full one stands
        self._edge: Edge | None = None
        self._pending, self._root, self._before, self._cursor = 0, b"", "", ""
        self._next: dict[str, int] = {}
        self._rows: list[Leaf] = []

    # -- state -----------------------------------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Where the log stands, as stored. Raises ProofError when what is stored, or the ledger, is not what was signed.

        What was written last is read first: another process may be writing, and then it only seems that something is missing.
        """
        if self._edge is not None:
            return
        shown, projected = await self.store.get(CHECKPOINT), self.spans.state[0]
        signed = await objects.sizes(self.store, SIGNED)
        known = await objects.sizes(self.store, PENDING)
        newest = known[-1] if known else 0
        checks.nothing_lost(self.origin, newest, signed, shown, projected)
        row = await self._row(newest) if known else None
        edge = await Edge.load(self.store, newest)
        root = edge.root()
        if row is not None and root.hex() != row.root:
            raise checks.other_tree("the stored tiles are not the tree that was to be signed", f"size {newest}", row.root, root.hex())
        await checks.same_trees(self.reader, SIGNED, signed[-1:], newest, root)
        await follow(self.spans, self.reader, newest)
        self._root, self._next, self._rows = root, dict[str, int](), list[Leaf]()
        self._before, self._cursor = (row.before, row.cursor) if row else ("", "")
        if row is not None and not await checks.feed_stands(self.ledger, self.reader, row):
            await checks.nothing_missing(self.ledger, self.reader, self.spans, newest)
            self._cursor = ""  # another feed of the same records: those that are leaves already are passed over
        self._edge, self._pending = edge, newest
        self.signed = signed[-1] if signed else 0

    def forget(self) -> None:
        """What is in memory may be ahead of what is stored: the next call reads it anew."""
        self._edge = None

    async def _row(self, size: int) -> Pending:
        path = objects.name(PENDING, size)
        raw = await self.store.get(path)
        if raw is None:
            raise ProofError("the log lost a pending row", code="MDM-0931", where=path, fix=checks.WHOLE)
        row = objects.unpack(raw, Pending, path, self.origin)
        if row.size != size:
            raise ProofError("a pending row stands under another name", code="MDM-0932", where=path, found=str(row.size))
        return row

    # -- the work --------------------------------------------------------------------------------------------------------------
    async def advance(self) -> int:
        """Until the feed has nothing more. Returns the signed size; whatever fails leaves it to the next call."""
        try:
            await self.open()
            while True:
                while await self._take():
                    pass
                if await self._checkpoint():
                    return self.signed
        except BaseException:
            self.forget()
            raise

    async def _take(self) -> bool:
        """One look at the feed. False: there was no more."""
        assert self._edge is not None
        batch = [fed async for fed in self.ledger.feed(self._cursor, CHUNK)]
        fresh = self._fresh(batch)
        if fresh:
            leaf = self._edge.size
            full = self._edge.extend([fed.raw for fed in fresh])
            self._rows += [(leaf + i, fed.run, fed.seq) for i, fed in enumerate(fresh)]
            await self._put(full)
            self.stale += [path + ".p/" for path, _ in full]
        if batch:
            self._cursor = batch[-1].cursor
        if self._edge.size - self._pending >= LEAVES_MAX:
            await self._checkpoint()
        return len(batch) == CHUNK

    def _fresh(self, batch: Sequence[Fed]) -> list[Fed]:
        """Those that are no leaves yet. Raises ProofError for a feed that leaves records out."""
        out, before = [], self._cursor
        for fed in batch:
            due = self._next.get(fed.run)
            if due is None:
                due = self.spans.next(fed.run, self._pending)
            if fed.seq > due:
                raise checks.gap(fed.run, due, fed.seq)
            if fed.seq == due:
                out.append(fed)
                self._next[fed.run] = due + 1
                self._before = before
            before = fed.cursor
        return out

    async def _put(self, made: Sequence[Object]) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(path: str, raw: bytes) -> None:
            async with gate:
                if not await self.store.put_new(path, raw) and await self.store.get(path) != raw:
                    raise checks.taken(path)

        await asyncio.gather(*(one(path, raw) for path, raw in made))

    async def _checkpoint(self) -> bool:
        """What was taken is stored, pending, signed; or what a crash left pending is signed. False: there is more than this by now."""
        edge = self._edge
        assert edge is not None
        if edge.size > self._pending:
            growing = edge.partial()
            await self._put(growing)
            edge.put(growing)
            if not await self._announce(edge):
                await self._behind(edge)
                return False
        if edge.size > self.signed:
            await self._sign_it(Checkpoint(self.origin, edge.size, self._root))
        return True

    async def _announce(self, edge: Edge) -> bool:
        """The pending row. False: another process has announced a larger one."""
        root = await self._proved(edge.size)
        if root != edge.root():
            raise checks.other_tree("the stored tiles are not the tree that was taken", f"size {edge.size}", edge.root().hex(), root.hex())
        row = Pending(
            at=self._now(), before=self._before, cursor=self._cursor, epoch=self.epoch, holder=self.holder, origin=self.origin,
            root=root.hex(), size=edge.size,
        )  # fmt: skip
        path = objects.name(PENDING, edge.size)
        if not await self.store.put_new(path, objects.pack(row)):
            found = (await self._row(edge.size)).root
            if found != row.root:
                raise checks.second_log(path, row.root, found)
        known = await objects.sizes(self.store, PENDING)
        await checks.same_trees(self.reader, PENDING, [n for n in known if self._pending < n < edge.size], edge.size, root)
        if known and known[-1] > edge.size:
            return False
        before, self._pending, self._root = self._pending, edge.size, root
        rows, self._rows = self._rows, []
        if not self.spans.add(before, edge.size, root, spans_of(rows)):
            await follow(self.spans, self.reader, edge.size)  # another process has the same file open
        if len(self._next) > RUNS_MAX:
            self._next.clear()
        return True

    async def _proved(self, size: int) -> bytes:
        """The root as the stored tiles give it, and that this tree begins with the one before."""
        root = await self.reader.root(size)
        proof = await self.reader.consistency(self._pending, size)
        if self._pending and not verify_consistency(self._pending, size, self._root, root, proof):
            raise checks.other_tree("the log does not begin with what was signed", f"size {self._pending}", self._root.hex(), root.hex())
        return root

    async def _behind(self, ours: Edge) -> None:
        """Another process announced a larger tree: it is the one to go on with, if it begins with ours."""
        self.forget()
        await self.open()
        proof = await self.reader.consistency(ours.size, self._pending)
        if not verify_consistency(ours.size, self._pending, ours.root(), self._root, proof):
            raise checks.second_log(objects.name(PENDING, self._pending), ours.root().hex(), self._root.hex())

    async def _sign_it(self, made: Checkpoint) -> None:
        path = objects.name(SIGNED, made.size)
        raw = write(made.text, [sign_line(made.text, self.key, self.sign)])
        if not await self.store.put_new(path, raw):
            there = await self.store.get(path)
            if there is not None and parse_note(there).text != made.text:
                raise checks.second_log(path, made.root.hex(), parse_checkpoint(parse_note(there).text).root.hex())
        self.signed = made.size

    @property
    def cursor(self) -> str:
        """How far the feed was followed, in this process."""
        return self._cursor if self._edge is not None else ""
