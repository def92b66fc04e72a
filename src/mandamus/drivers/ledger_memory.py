"""The ledger in memory, for tests: the same promises as a file's, except that it dies with its process.

    ledger = MemoryLedger(clock=lambda: 0)
    second = MemoryLedger(beside=ledger)        # another handle on the same store, as another process would have
    ledger = MemoryLedger(leases=True)          # ownership runs out by the clock, as on a server, and not by death, as on a file

The rule a newcomer would break: law 1 forbids effects without a durable log, so nothing but a test may drive a run on this.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec import structs

from mandamus.core import feed
from mandamus.core.admit import admit, next_wake, refuse_name
from mandamus.core.payload import INLINE_MAX, Payload
from mandamus.core.seal import Sealed
from mandamus.drivers._refusals import account_moved, moved, same
from mandamus.errors import Conflict, Misuse
from mandamus.ports import AT_REST, Account, AccountCheck, AccountWrite, Fed, Head, Node, Wake


class _Store:
    """What all handles share."""

    def __init__(self, leases: bool) -> None:
        self.leases = leases
        self.handles = 0
        self.heads: dict[str, Head] = {}
        self.records: dict[str, list[bytes]] = {}
        self.order: list[tuple[str, int, int]] = []  # run, the seq before and the last one of each append
        self.payloads: dict[str, dict[tuple[int, str], Payload]] = {}
        self.mail: dict[str, list[tuple[int, str, bytes]]] = {}
        self.messages = 0
        self.accounts: dict[str, Account] = {}
        self.deltas: dict[str, list[bytes]] = {}
        self.holders: dict[str, MemoryLedger] = {}
        self.duties: dict[str, tuple[str, int, int]] = {}  # holder, until, epoch
        self.nodes: dict[str, tuple[Node, int]] = {}
        self.bell = asyncio.Event()


class MemoryLedger:
    """Implements `ports.Ledger` for one event loop. Closing a handle drops its locks, as death does; a lease runs on."""

    def __init__(self, clock: Callable[[], int] | None = None, *, beside: MemoryLedger | None = None, leases: bool = False) -> None:
        self._store: _Store = beside._store if beside else _Store(leases)
        self._clock: Callable[[], int] = clock or (beside._clock if beside else _now)
        self._closed = False
        self._store.handles += 1
        self._me = f"pid {os.getpid()}" + (f" #{self._store.handles}" if self._store.leases else "")

    @property
    def locks(self) -> bool:
        return not self._store.leases

    # -- records -------------------------------------------------------------------------------------------------------------
    async def head(self, run: str) -> Head | None:
        self._refuse_closed()
        return self._store.heads.get(run)

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
        self._refuse_closed()
        if not (records or also or wake):
            raise Misuse("nothing to append", code="MDM-0123", where=f"run {run[:64]}")
        new = admit(run, (after.seq, after.hash, after.epoch) if after else None, records, payloads, seals)
        store, old = self._store, self._store.heads.get(run)
        if not same(old, after):
            raise moved(run, after, old)
        self._check_accounts(run, old, also)
        head = old or Head(run, new.seq, new.hash, new.epoch)
        wake_at, state, tries = head.wake_at, head.state, 0 if new.progress else head.tries
        if wake is not None:
            unread = head.mail > wake.cursor
            wake_at, state = next_wake(head.wake_at, head.mail, wake.at, wake.cursor, self._clock()) if unread else wake.at, wake.state
            mail = max(head.mail, wake.cursor)
            head = structs.replace(head, pool=wake.pool or head.pool, prio=head.prio if wake.prio is None else wake.prio, mail=mail)
        head = structs.replace(head, seq=new.seq, hash=new.hash, epoch=new.epoch, wake_at=wake_at, state=state, tries=tries)
        store.heads[run] = head
        self._ring()
        store.records.setdefault(run, []).extend(records)
        store.order += ((run, after.seq if after else -1, new.seq),)
        kept = store.payloads.setdefault(run, {})
        for payload in payloads:
            kept[payload.seq, payload.part] = payload
        self._write_accounts(also)
        return head

    async def read(self, run: str, after: int = -1, upto: int | None = None) -> AsyncIterator[bytes]:
        self._refuse_closed()
        known = self._store.records.get(run, ())
        stop = len(known) if upto is None else min(len(known), upto + 1)
        for seq in range(max(after, -1) + 1, stop):
            yield known[seq]

    async def payload(self, run: str, seq: int, part: str) -> Payload | None:
        self._refuse_closed()
        return self._store.payloads.get(run, {}).get((seq, part))

    async def payloads(self, run: str, after: int = -1, parts: Sequence[str] = ()) -> AsyncIterator[Payload]:
        self._refuse_closed()
        known = self._store.payloads.get(run, {})
        for key in sorted(key for key in known if key[0] > after and (not parts or key[1] in parts)):
            yield known[key]

    async def feed(self, after: str = "", limit: int | None = None) -> AsyncIterator[Fed]:
        self._refuse_closed()
        nth, behind = self._behind(after) if after else (1, -1)
        order, records = self._store.order, self._store.records
        left = -1 if limit is None else limit
        for at in range(nth - 1, len(order)):
            run, before, last = order[at]
            for seq in range(max(before, behind) + 1, last + 1):
                if left == 0:
                    return
                raw = records[run][seq]
                yield Fed(feed.cursor(f"{at + 1}.{seq}", raw), run, seq, raw)
                left -= 1
            behind = -1

    def _behind(self, after: str) -> tuple[int, int]:
        nth, seq = feed.read(after, 2)
        run, before, last = self._store.order[nth - 1] if 0 < nth <= len(self._store.order) else ("", 0, 0)
        feed.stands(after, self._store.records[run][seq] if before < seq <= last else None)
        return nth, seq

    async def runs(self, after: str | None = None, state: str | None = None) -> AsyncIterator[Head]:
        self._refuse_closed()
        for run in sorted(run for run in self._store.heads if run > (after or "")):
            head = self._store.heads[run]
            if state is None or head.state == state:
                yield head

    # -- accounts ------------------------------------------------------------------------------------------------------------
    async def account(self, id: str) -> Account | None:
        self._refuse_closed()
        return self._store.accounts.get(id)

    async def deltas(self, id: str) -> AsyncIterator[bytes]:
        self._refuse_closed()
        for delta in tuple(self._store.deltas.get(id, ())):
            yield delta

    def _check_accounts(self, run: str, head: Head | None, also: Sequence[AccountWrite | AccountCheck]) -> None:
        """Checks compare with what is stored; several writes to one account in one append must follow each other."""
        versions: dict[str, int] = {}
        for entry in also:
            known = self._store.accounts.get(entry.id)
            stored = known.version if known else 0
            if isinstance(entry, AccountCheck):
                expected = entry.version
            else:
                stored, expected = versions.get(entry.id, stored), entry.version - 1
                versions[entry.id] = entry.version
            if stored != expected:
                raise account_moved(run, head, entry.id, expected, stored)

    def _write_accounts(self, also: Sequence[AccountWrite | AccountCheck]) -> None:
        for entry in also:
            if isinstance(entry, AccountWrite):
                self._store.accounts[entry.id] = Account(entry.id, entry.version, entry.hash, entry.reserved, entry.spent)
                self._store.deltas.setdefault(entry.id, []).append(entry.delta)

    # -- mail ----------------------------------------------------------------------------------------------------------------
    async def send(self, run: str, message: bytes) -> str:
        self._refuse_closed()
        if len(message) > INLINE_MAX:
            raise Misuse(f"a message of {len(message)} bytes is too large", code="MDM-0134", expected=f"at most {INLINE_MAX}")
        store, head = self._store, self._store.heads.get(run)
        if head is None:
            raise Misuse("there is no such run to send a message to", code="MDM-0133", where=f"run {run[:64]}", fix="mandamus runs")
        key, box = hashlib.sha256(message).hexdigest(), store.mail.setdefault(run, [])
        if all(known != key for _, known, _ in box):
            store.messages = max(store.messages, head.mail) + 1
            box.append((store.messages, key, message))
            now = self._clock()
            store.heads[run] = structs.replace(head, mail=store.messages, wake_at=now if head.wake_at is None else min(head.wake_at, now))
            self._ring()
        return key

    async def mailbox(self, run: str, after: int = 0) -> AsyncIterator[tuple[int, str, bytes]]:
        self._refuse_closed()
        for message in tuple(self._store.mail.get(run, ())):
            if message[0] > after:
                yield message

    # -- ownership -----------------------------------------------------------------------------------------------------------
    async def claim(self, pool: str, ttl_ms: int, *, run: str | None = None) -> Head | None:
        self._refuse_closed()
        store, now = self._store, self._clock()
        if run is not None:
            head = store.heads.get(run)
            if head is not None and self._live(head, now):
                raise Conflict(
                    f"the run is driven by {head.owner}",
                    on="run",
                    head=head,
                    code="MDM-0403",
                    where=f"run {run}",
                    found=head.owner,
                    why="a run has one driver at a time; nothing was written",
                    fix="wait until it is given back; then claim it again",
                )
            return self._lease(head, ttl_ms) if head else None
        due = [
            (-head.prio, head.wake_at, head)
            for head in store.heads.values()
            if head.pool == pool
            and head.state not in AT_REST
            and head.wake_at is not None
            and head.wake_at <= now
            and not self._live(head, now)
        ]
        return self._lease(min(due, key=lambda one: one[:2])[2], ttl_ms) if due else None

    async def renew(self, head: Head, ttl_ms: int) -> Head:
        self._refuse_closed()
        store = self._store
        stored = store.heads.get(head.run)
        if store.holders.get(head.run) is not self or stored is None or not self._live(stored, self._clock()):
            raise Conflict(
                "the run is not claimed by this ledger",
                on="run",
                head=stored,
                code="MDM-0403",
                where=f"run {head.run}",
                fix="claim it first",
            )
        if ttl_ms == 0:
            del store.holders[head.run]
        owner, until, tries = (self._me, self._clock() + ttl_ms * 1000, stored.tries) if ttl_ms else ("", 0, min(stored.tries, head.tries))
        store.heads[head.run] = structs.replace(stored, owner=owner, lease_until=until, tries=tries)
        self._ring()
        return store.heads[head.run]

    async def close(self) -> None:
        self._closed = True
        if self.locks:
            for run in [run for run, holder in self._store.holders.items() if holder is self]:
                del self._store.holders[run]

    def _live(self, head: Head, now: int) -> bool:
        return head.run in self._store.holders and (self.locks or head.lease_until > now)

    def _lease(self, head: Head, ttl_ms: int) -> Head:
        self._store.holders[head.run] = self
        until = self._clock() + ttl_ms * 1000
        self._store.heads[head.run] = structs.replace(head, owner=self._me, lease_until=until, tries=head.tries + 1)
        return self._store.heads[head.run]

    # -- workers -------------------------------------------------------------------------------------------------------------
    async def hint(self, pool: str, timeout_ms: int) -> None:
        self._refuse_closed()
        try:
            await asyncio.wait_for(self._store.bell.wait(), timeout_ms / 1000)
        except TimeoutError:
            pass

    async def duty(self, name: str, ttl_ms: int) -> int | None:
        self._refuse_closed()
        refuse_name(name)
        now, me = self._clock(), f"{self._me} {id(self)}"
        holder, until, epoch = self._store.duties.get(name, ("", 0, 0))
        if holder != me:
            if ttl_ms == 0 or (holder and until > now):
                return None
            epoch += 1
        self._store.duties[name] = (me, now + ttl_ms * 1000, epoch) if ttl_ms else ("", 0, epoch)
        return epoch if ttl_ms else None

    async def beat(self, node: Node, ttl_ms: int) -> None:
        self._refuse_closed()
        now = self._clock()
        self._store.nodes.pop(node.id, None)
        if ttl_ms:
            self._store.nodes[node.id] = structs.replace(node, seen=now), now + ttl_ms * 1000

    async def nodes(self) -> AsyncIterator[Node]:
        self._refuse_closed()
        now = self._clock()
        for _, (node, until) in sorted(self._store.nodes.items()):
            if until > now:
                yield node

    def _ring(self) -> None:
        self._store.bell.set()
        self._store.bell = asyncio.Event()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Misuse("the ledger is closed", code="MDM-0135", fix="open it again")


def _now() -> int:
    return time.time_ns() // 1000


def from_uri(uri: str, clock: Callable[[], int] | None = None) -> MemoryLedger:
    """`memory:` has nothing to name."""
    return MemoryLedger(clock)
