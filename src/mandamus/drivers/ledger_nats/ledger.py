"""The ledger on NATS JetStream: replicated streams, compare-and-append on the subject of a run, leases that run out.

    ledger = from_uri("nats://h1:4222,h2:4222,h3:4222/mdm?tenant=acme&creds=worker.creds&monitor=http://h1:8222,…", tier="team")
    head = await ledger.append(run, None, [genesis], payloads=[...], wake=Wake(now, 0))

An append is one message, or one atomic batch when it touches accounts, in one round trip; the server stores it when the run's last message
is the one that the append follows. The layout stands in `layout`, what is refused at opening in `check`, the reasons in ADR
0027.

The rule a newcomer would break: what this handle remembers is only a guess. Every head that is answered comes from the stream's leader, and
every write carries its expectation; nothing is decided by a cache, a consumer or a lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from mandamus.core.admit import admit, refuse_name, refuse_plain
from mandamus.core.payload import INLINE_MAX, Payload
from mandamus.core.seal import Sealed
from mandamus.drivers.ledger_nats import check, layout, mail, order, rows, strand
from mandamus.drivers.ledger_nats.append import Appends, Known, Moved, kept_of, refused
from mandamus.drivers.ledger_nats.layout import Count, Frame, Message, Names, Row
from mandamus.drivers.ledger_nats.lease import Leases
from mandamus.drivers.ledger_nats.mail import Post
from mandamus.drivers.ledger_nats.own import Ownership
from mandamus.drivers.ledger_nats.rows import Look, Rows, head_of, tries_of
from mandamus.drivers.ledger_nats.uri import Options, options
from mandamus.drivers.ledger_nats.wire import FULL, STALE, Refusal, Silence, Stored, Wire, answered, silent
from mandamus.drivers.ledger_nats.work import Work
from mandamus.errors import Misuse, ProofError
from mandamus.ports import AT_REST, Account, AccountCheck, AccountWrite, Fed, Head, Node, Wake

T = TypeVar("T")


def _now() -> int:
    return time.time_ns() // 1000


def from_uri(uri: str, clock: Callable[[], int] | None = None, *, tier: str = "dev", sealed_only: bool = False) -> NatsLedger:
    """Opens nothing: the servers are met, and checked, at the first question. Raises Misuse when the URI cannot be read.

    `sealed_only`: takes no plain payload, whatever its class, but for what is public on chain `log`.
    """
    return NatsLedger(options(uri, tier), clock or _now, sealed_only)


class NatsLedger:
    """Implements `ports.Ledger` for one event loop at a time, one tenant, any number of runs and tasks."""

    def __init__(self, options: Options, clock: Callable[[], int] = _now, sealed_only: bool = False) -> None:
        self.options, self._clock, self._sealed_only = options, clock, sealed_only
        self._names = Names(options.name, check.shard(options), options.tenant)
        self._wire = Wire(options)
        self._appends = Appends(self._wire, self._names)
        self._post = Post(self._wire, self._names)
        self._leases = Leases(self._wire, self._names, clock)
        self._rows = Rows(self._wire, self._names, self._appends.at, self._leases, self._post)
        self._work = Work(self._wire, self._names, clock, self._look)
        self._own = Ownership(self._leases, self._work, self._look, clock)
        self._under_way: dict[str, set[asyncio.Task[Any]]] = {}
        self._ready: asyncio.Lock | None = None
        self._notes: list[str] | None = None
        self._closed = False

    @property
    def locks(self) -> bool:
        return False

    # -- records -------------------------------------------------------------------------------------------------------------
    async def head(self, run: str) -> Head | None:
        await self._open()
        async with answered(f"where run {run[:64]} stands"):
            return await self._head(run)

    async def append(
        self,
        run: str,
        after: Head | None,
        records: Sequence[bytes],
        *,
        payloads: Sequence[Payload] = (),
        also: Sequence[AccountWrite | AccountCheck] = (),
        wake: Wake | None = None,
        seals: Sequence[Sealed] = (),
    ) -> Head:
        """A cancelled append goes on by itself, and this handle's reads of the run wait for it."""
        if not (records or also or wake):
            raise Misuse("nothing to append", code="MDM-0123", where=f"run {run[:64]}")
        new = admit(run, (after.seq, after.hash, after.epoch) if after else None, records, payloads, seals)
        refuse_plain(self.options.tier, run, records, payloads, self._sealed_only)
        await self._open()
        return await self._apart(run, self._append(run, after, new, records, payloads, also, wake))

    async def _append(
        self,
        run: str,
        after: Head | None,
        new: Any,
        records: Sequence[bytes],
        payloads: Sequence[Payload],
        also: Sequence[AccountWrite | AccountCheck],
        wake: Wake | None,
    ) -> Head:
        early = asyncio.ensure_future(self._announce(run, wake)) if after is None and wake is not None and wake.at is not None else None
        try:
            known = await self._appends.append(run, after, new, records, payloads, also, wake)
        except Moved as moved:
            raise rows.refused(run, after, await self._head(run), moved) from None
        finally:
            announced = early is not None and await early
        if after is None:
            self._post.opened(run)
        async with answered(f"the mailbox of run {run[:64]}"):
            cursor, at = await self._rows.unread(run, known.row, await self._post.newest(run))
        held = self._own.of(run)
        if held is not None:
            owner, until, tries = self._leases.me, held.until, tries_of(Count(held.count, held.mark), known.row)
        else:
            owner, until, tries = (after.owner, after.lease_until, after.tries) if after else ("", 0, 0)
            tries = 0 if new.progress else tries
        head = head_of(run, known.row, cursor, at, owner, until, tries)
        if held is None and not announced and (wake is not None or at is not None):
            await self._work.place(head)
        return head

    async def _announce(self, run: str, wake: Wake) -> bool:
        """Rings for a run that is opened as due, beside the append: a task that comes too early comes again."""
        if wake.at is None or wake.at > self._clock() or wake.state in AT_REST:
            return False
        await self._work.ring(run, wake.pool or "default", wake.prio or 0, wake.at)
        return True

    async def read(self, run: str, after: int = -1, upto: int | None = None) -> AsyncIterator[bytes]:
        known = await self._known(run)
        if known is None:
            return
        last = known.row.seq if upto is None else min(known.row.seq, upto)
        seq = max(after, -1)
        async for _, frame in self._frames(run, known, seq, last):
            first = frame.row.seq - len(frame.records) + 1
            for at, raw in enumerate(frame.records, first):
                if seq < at <= last:
                    if at != seq + 1:
                        raise strand.missing(run, seq + 1, at)
                    seq = at
                    yield raw
        if seq < last:
            raise strand.missing(run, seq + 1, -1)

    async def payload(self, run: str, seq: int, part: str) -> Payload | None:
        known = await self._known(run)
        if known is None or not 0 <= seq <= known.row.seq:
            return None
        async for at, frame in self._frames(run, known, seq - 1, seq):
            for one in frame.parts:
                if (one.seq, one.part) == (seq, part):
                    return await self._payload(run, at, one)
        return None

    async def payloads(self, run: str, after: int = -1, parts: Sequence[str] = ()) -> AsyncIterator[Payload]:
        known = await self._known(run)
        if known is None:
            return
        async for at, frame in self._frames(run, known, after, known.row.seq):
            for one in frame.parts:
                if one.seq > after and (not parts or one.part in parts):
                    yield await self._payload(run, at, one)

    async def _payload(self, run: str, at: int, part: layout.Part) -> Payload:
        if not part.ahead:
            return Payload(run, part.seq, part.part, part.value, part.form)
        async with answered(f"a payload of run {run[:64]}"):
            stored = await self._wire.get(self._names.log, seq=at + part.ahead)
        if stored is None or stored.subject != self._names.pay(run):
            raise strand.missing(run, part.seq, -1)
        return Payload(run, part.seq, part.part, stored.data, part.form)

    async def runs(self, after: str | None = None, state: str | None = None) -> AsyncIterator[Head]:
        await self._open()
        async with answered("the list of runs"):
            subjects = await self._wire.subjects(self._names.log, self._names.events)
        runs = sorted(name for name in (subject.rpartition(".")[2] for subject in subjects) if name > (after or ""))
        broken: ProofError | None = None
        for i in range(0, len(runs), 64):
            async with answered("the list of runs"):
                heads = await asyncio.gather(*(self._head_or_why(run) for run in runs[i : i + 64]))
            for head in heads:
                if isinstance(head, ProofError):
                    broken = broken or head
                elif head is not None and (state is None or head.state == state):
                    yield head
        if broken is not None and state is None:  # after all others; in which state it is, nobody can say
            raise broken

    async def feed(self, after: str = "", limit: int | None = None) -> AsyncIterator[Fed]:
        await self._open()
        async for one in order.fed(self._wire, self._names, after, limit):
            yield one

    # -- accounts ------------------------------------------------------------------------------------------------------------
    async def account(self, id: str) -> Account | None:
        await self._open()
        async with answered(f"account {id[:64]}"):
            return (await self._appends.at.account(id, fresh=True)).account

    async def deltas(self, id: str) -> AsyncIterator[bytes]:
        await self._open()
        subject = self._names.account(id)
        async with answered(f"account {id[:64]}"):
            stored = await self._wire.get(self._names.log, last_by_subj=subject)
        if stored is None:
            return
        version, last = 0, kept_of(id, stored).version
        fetched = strand.forward(self._wire, self._names.log, subject, stored, layout.delta_of, lambda delta: delta.version <= 1)
        async for _, delta in fetched:
            version += 1
            if delta.version != version:
                raise strand.missing(f"account {id[:64]}", version, delta.version)
            yield delta.delta
        if version != last:
            raise strand.missing(f"account {id[:64]}", version + 1, -1)

    # -- mail ----------------------------------------------------------------------------------------------------------------
    async def send(self, run: str, message: bytes) -> str:
        if len(message) > INLINE_MAX:
            raise Misuse(f"a message of {len(message)} bytes is too large", code="MDM-0134", expected=f"at most {INLINE_MAX}")
        await self._open()
        key = mail.key(message)
        async with answered(f"run {run[:64]}"):
            known = await self._appends.at.run(run)
        if known is None:
            raise Misuse("there is no such run to send a message to", code="MDM-0133", where=f"run {run[:64]}", fix="mandamus runs")
        await self._apart(run, self._send(run, known.row, key, message))
        return key

    async def _send(self, run: str, row: Row, key: str, message: bytes) -> None:
        """Its subject bears its key, and takes one message: sending it again finds it there, also years later."""
        sent = Message(self._names.mailbox(run, key), message, 0)

        async def put() -> None:
            try:
                await self._patiently(lambda: self._wire.put(sent), f"the message to run {run}")
            except Refusal as refusal:
                if refusal.code != STALE:
                    raise refused(refusal, f"run {run}") from None
                async with answered(f"the mailbox of run {run[:64]}"):
                    there = await self._wire.get(self._names.log, last_by_subj=sent.subject)
                if there is not None:
                    strand.read(sent.subject, there, lambda data: mail.same(data, message))

        await asyncio.gather(put(), self._work.ring(run, row.pool, row.prio, self._clock()))

    async def mailbox(self, run: str, after: int = 0) -> AsyncIterator[tuple[int, str, bytes]]:
        known = await self._known(run)
        if known is None:
            return
        shift, filter = known.row.shift, self._names.mailbox(run)
        seq = max(after - shift, 0)
        while True:
            async with answered(f"the mailbox of run {run[:64]}"):
                stored = await self._wire.get(self._names.log, seq=seq + 1, next_by_subj=filter)
            if stored is None:
                return
            seq = stored.seq
            read = self._appends.at.read
            read[run] = max(read.pop(run, 0), seq + shift)
            yield seq + shift, mail.key(stored.data), stored.data  # of what it says: its subject is what somebody called it

    # -- ownership -----------------------------------------------------------------------------------------------------------
    async def claim(self, pool: str, ttl_ms: int, *, run: str | None = None) -> Head | None:
        """A claim may find nothing although a run has become due in this very moment: its task is still on its way."""
        await self._open()
        async with answered("which run is due"):
            return await self._own.claim(pool, ttl_ms, run)

    async def renew(self, head: Head, ttl_ms: int) -> Head:
        await self._open()
        async with answered(f"the lease of run {head.run[:64]}"):
            return await self._own.renew(head, ttl_ms)

    # -- workers -------------------------------------------------------------------------------------------------------------
    async def hint(self, pool: str, timeout_ms: int) -> None:
        await self._open()
        async with answered("which run is due"):
            await self._work.hint(pool, timeout_ms)

    async def duty(self, name: str, ttl_ms: int) -> int | None:
        refuse_name(name)
        await self._open()
        async with answered(f"duty {name}"):
            return await self._own.duty(name, ttl_ms)

    async def beat(self, node: Node, ttl_ms: int) -> None:
        await self._open()
        await self._leases.beat(node, ttl_ms)

    async def nodes(self) -> AsyncIterator[Node]:
        await self._open()
        async for node in self._leases.nodes():
            yield node

    # -- opening and closing -------------------------------------------------------------------------------------------------
    async def check(self) -> dict[str, str]:
        """Everything that is refused at opening, again; the settings by name, for people. Raises EngineFault, Misuse, Unavailable."""
        await self._open()
        self._notes = await check.prepare(self._wire, self.options)
        return await check.facts(self._wire, self.options, self._notes)

    async def findings(self) -> list[tuple[str, str, str]]:
        """What is no refusal and yet worth a line of `doctor`: assumptions, streams at 80 % of their bound, replicas that lag."""
        await self._open()
        return await check.findings(self._wire, self.options, self._notes or [])

    async def close(self) -> None:
        """What is under way is waited for. Leases are not given back: who closes in the middle of a run has not brought it to a wait."""
        if self._closed:
            return
        for tasks in list(self._under_way.values()):
            await asyncio.wait(tasks)
        await self._work.finished()
        self._closed = True
        await self._wire.close()

    async def _open(self) -> None:
        if self._closed:
            raise Misuse("the ledger is closed", code="MDM-0135", where=self.options.uri, fix="open it again")
        if self._notes is None:
            self._ready = self._ready or asyncio.Lock()
            async with self._ready:
                if self._notes is None:
                    notes = await check.prepare(self._wire, self.options)
                    await self._post.listen()
                    self._notes = notes

    # -- small steps -----------------------------------------------------------------------------------------------------------
    async def _apart(self, run: str, doing: Coroutine[Any, Any, T]) -> T:
        """As a task of its own, so that a cancelled caller does not tear it; `_settled` waits for it."""
        task = asyncio.ensure_future(doing)
        tasks = self._under_way.setdefault(run, set())
        tasks.add(task)
        task.add_done_callback(lambda _: self._landed(run, task))
        return await asyncio.shield(task)

    def _landed(self, run: str, task: asyncio.Task[Any]) -> None:
        tasks = self._under_way[run]
        tasks.discard(task)
        if not tasks:
            del self._under_way[run]
        if not task.cancelled():
            task.exception()  # heard, even if the caller has gone

    async def _settled(self, run: str) -> None:
        mine = self._under_way.get(run, set()) - {asyncio.current_task()}
        if mine:
            await asyncio.wait(mine)

    async def _known(self, run: str) -> Known | None:
        await self._open()
        await self._settled(run)
        async with answered(f"where run {run[:64]} stands"):
            return await self._appends.at.run(run, fresh=True)

    async def _frames(self, run: str, known: Known, after: int, last: int) -> AsyncIterator[tuple[int, Frame]]:
        """The messages of a run that hold records behind `after` up to `last`, oldest first."""
        stored = Stored(self._names.ev(run), known.at, known.body, 0, b"")
        reached: Callable[[Frame], bool] = lambda frame: frame.row.seq - len(frame.records) <= after  # noqa: E731
        async for at, frame in strand.forward(self._wire, self._names.log, stored.subject, stored, layout.frame_of, reached):
            if frame.row.seq - len(frame.records) >= last:
                return
            yield at, frame

    async def _look(self, run: str) -> Look | None:
        if asyncio.current_task() not in self._under_way.get(run, ()):
            await self._settled(run)
        return await self._rows.look(run)

    async def _head(self, run: str) -> Head | None:
        look = await self._look(run)
        return look.head if look else None

    async def _head_or_why(self, run: str) -> Head | ProofError | None:
        try:
            return await self._head(run)
        except ProofError as error:
            return error

    async def _patiently(self, send: Callable[[], Coroutine[Any, Any, Any]], what: str) -> None:
        """Again and again, for a write that may be repeated."""
        deadline, sure = time.monotonic() + self.options.patience_ms / 1000, True
        while True:
            try:
                await send()
                return
            except Refusal as refusal:
                if refusal.code in FULL or (refusal.code not in check.PASSING and refusal.http != 503):
                    raise
                says = str(refusal)
            except Silence as silence:
                sure, says = sure and not silence.sent, silence.says
            if time.monotonic() > deadline:
                raise silent(what, says, "none" if sure else "unknown")
            await asyncio.sleep(0.05)
