"""The ledger in Postgres: compare-and-append as one statement, for as many workers as the server carries.

    ledger = from_uri("postgres://worker@db.example:5432/books")
    head = await ledger.append(run, None, [genesis], payloads=[...], wake=Wake(0, 0))

Nothing is opened before the first await. The URI may say: `schema=` (default mandamus), `sync=required` (refuse a server without a
synchronous standby), `pooler=transaction` and `listen=DSN` (pgbouncer in between, and the way around it for notifications),
`connections=16`. Whatever else it says is libpq's. Running it: docs/adr/0026-postgres-ledger.md.

Safety is the compare in `move_head`; a lease is a row that runs out by the database's clock, and serves liveness. The rule a newcomer
would break: what a head shows after an unknown outcome is visible, not durable. Such a head is believed only after a later write of
this handle was acknowledged; `head` makes that write by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from mandamus.core import feed
from mandamus.core.admit import admit, refuse_name, refuse_plain
from mandamus.core.payload import INLINE_MAX, Payload
from mandamus.core.seal import Sealed
from mandamus.drivers._refusals import moved, same
from mandamus.drivers.ledger_postgres.address import Address
from mandamus.drivers.ledger_postgres.bell import Bell
from mandamus.drivers.ledger_postgres.binary import Rows, Statement
from mandamus.drivers.ledger_postgres.group import Group, Job, Locks
from mandamus.drivers.ledger_postgres.link import Connection, Fault, Link, UniqueViolation, translate
from mandamus.drivers.ledger_postgres.rows import (
    ENDED,
    Also,
    Place,
    account_values,
    append_values,
    check_accounts,
    fed,
    head_of,
    owned,
    torn,
)
from mandamus.drivers.ledger_postgres.schema import Facts, Schema
from mandamus.drivers.ledger_postgres.statements import Accounts, Statements
from mandamus.errors import Conflict, MandamusError, Misuse, Unavailable
from mandamus.ports import AT_REST, Account, Fed, Head, Node, Wake

ATTEMPTS = 8
PAYLOADS_PAGE = 64  # as the statement says
FEED_PAGE = 256
_node = msgspec.json.Decoder(Node).decode
_encode = msgspec.json.encode


class PostgresLedger:
    """Implements `ports.Ledger`. One object serves any number of runs and tasks; in one event loop at a time."""

    locks = False
    in_order = True  # group.py

    def __init__(self, address: Address, tier: str, sealed_only: bool = False) -> None:
        self.owner = f"{socket.gethostname()[:40]} pid {os.getpid()} {os.urandom(4).hex()}"
        self._address, self._tier, self._sealed_only = address, tier, sealed_only
        self._sql = Statements(address.schema)
        self._schema = Schema(address, self._sql)
        self._link = Link(address, f"mandamus {self.owner}"[:63])
        self._link.vet, self._link.prepare = self._schema.vet, self._schema.migrate
        self._group = Group(self._link, self._sql["locks"])
        self._bell = Bell(address.schema, self._listener if address.listen else None, self._notify)
        self._doubted: set[str] = set()  # runs of which a write had an unknown outcome
        self._closed = False

    # -- records -------------------------------------------------------------------------------------------------------------
    async def head(self, run: str) -> Head | None:
        """Of the primary. After an unknown outcome of this handle, with the write that makes it believable."""
        self._refuse_closed()
        if run not in self._doubted:
            rows = await self._fetch("head", run=run)
            return head_of(rows[0]) if rows else None
        await self._group.quiet(run)
        await self._link.quiet()
        rows = await self._link.write(self._sql["settle"], {"run": run})
        if not rows:  # a genesis may still be on its way: the doubt stays
            return None
        self._doubted.discard(run)
        return head_of(rows[0])

    async def append(
        self,
        run: str,
        after: Head | None,
        records: Sequence[bytes],
        *,
        payloads: Sequence[Payload] = (),
        also: Also = (),
        wake: Wake | None = None,
        seals: Sequence[Sealed] = (),
    ) -> Head:
        """One statement, one round trip. Cancelled or cut off, its outcome is unknown."""
        self._refuse_closed()
        if not (records or also or wake):
            raise Misuse("nothing to append", code="MDM-0123", where=f"run {run[:64]}")
        new = admit(run, (after.seq, after.hash, after.epoch) if after else None, records, payloads, seals)
        refuse_plain(self._tier, run, records, payloads, self._sealed_only)
        values = append_values(run, after, new, records, payloads, wake)
        stands = account_values(self._address.schema, also, values) if also else True
        accounts: Accounts = "" if not also else "writes" if "a_id" in values else "checks"
        statement = self._sql.append(opens=after is None, payloads=bool(payloads), accounts=accounts)
        locks = tuple(zip(values["locks"], values["alone"])) if also and stands else ()
        for _ in range(ATTEMPTS):
            rows = await self._append(run, statement, values, locks) if stands else []
            if rows:
                self._doubted.discard(run)
                head = head_of(rows[0])
                if wake is not None:
                    self._ring(head, rows[0][-1])
                return head
            await self._refuse(run, after, also)
        raise Unavailable("the run's row does not come to rest", outcome="none", code="MDM-0553", where=f"run {run}", fix="try again")

    async def read(self, run: str, after: int = -1, upto: int | None = None) -> AsyncIterator[bytes]:
        seq, last = max(after, -1), -1
        rows = await self._fetch("first_events", run=run, after=seq)
        while rows:
            if last < 0:  # the head is looked at once
                last = rows[0][2] if upto is None else min(rows[0][2], upto)
            for found, body, *_ in rows:
                if seq >= last:
                    return
                seq += 1
                if found != seq:
                    raise torn(run, seq, -1 if found is None else found)
                yield body
            rows = await self._fetch("events", run=run, after=seq, last=last) if seq < last else []
            if not rows and seq < last:
                raise torn(run, seq + 1, -1)

    async def payload(self, run: str, seq: int, part: str) -> Payload | None:
        rows = await self._fetch("payload", run=run, seq=seq, part=part)
        return Payload(run, seq, part, rows[0][0], rows[0][1]) if rows else None

    async def payloads(self, run: str, after: int = -1, parts: Sequence[str] = ()) -> AsyncIterator[Payload]:
        seq, part = max(after, -1) + 1, ""  # behind the empty name, which no part has
        last: int | None = None
        while rows := await self._fetch("payloads", run=run, seq=seq, part=part, last=last, parts=list(parts) or None):
            for seq, part, value, form, upto in rows:
                last = upto if last is None else last  # as far as the head stood at first
                yield Payload(run, seq, part, value, form)
            if len(rows) < PAYLOADS_PAGE:
                return

    async def runs(self, after: str | None = None, state: str | None = None) -> AsyncIterator[Head]:
        last = after or ""
        while rows := await self._fetch("runs", behind=last, state=state):
            for row in rows:
                head = head_of(row)
                last = head.run
                yield head

    async def feed(self, after: str = "", limit: int | None = None) -> AsyncIterator[Fed]:
        """In the order of transactions, as far as none that is older still runs anywhere on the server: one that stays open holds it up.

        With synchronous standbys each page costs a commit of its own: what is visible may have been cut off before it reached one.
        """
        place, left = await self._place(after) if after else (-1, -1, -1), limit
        while asked := FEED_PAGE if left is None else min(left, FEED_PAGE):
            rows = await self._fetch("feed", place=place[0], no=place[1], seq=place[2], count=asked)
            if rows and rows[0][-1]:
                await self._flush()
            for at, one in fed(rows):
                place = at
                if one is not None:
                    left = None if left is None else left - 1
                    yield one
            if len(rows) < asked:
                return

    async def _place(self, after: str) -> Place:
        place, no, seq = feed.read(after, 3)
        rows = await self._fetch("fed", place=place, no=no, seq=seq)
        feed.stands(after, rows[0][0] if rows else None)
        return place, no, seq

    async def _flush(self) -> None:
        try:
            await self._link.write(self._sql["flush"], {})
        except Unavailable as lost:
            d = lost.diagnosis
            raise Unavailable(
                "what was written last may not be on any standby yet",
                outcome="none",
                code=d.code,
                where=d.where,
                found=d.what,
                why=d.why,
                fix=d.fix,
            ) from None

    # -- accounts ------------------------------------------------------------------------------------------------------------
    async def account(self, id: str) -> Account | None:
        rows = await self._fetch("account", id=id)
        return Account(*rows[0]) if rows else None

    async def deltas(self, id: str) -> AsyncIterator[bytes]:
        version = 0
        while rows := await self._fetch("deltas", id=id, after=version):
            for _, body in rows:
                yield body
            version = rows[-1][0]

    # -- mail ----------------------------------------------------------------------------------------------------------------
    async def send(self, run: str, message: bytes) -> str:
        """A message that is there already is written down once more as it is, so that its commit is no longer in doubt either."""
        self._refuse_closed()
        if len(message) > INLINE_MAX:
            raise Misuse(f"a message of {len(message)} bytes is too large", code="MDM-0134", expected=f"at most {INLINE_MAX}")
        key = hashlib.sha256(message).digest()
        rows = await self._send(run, {"run": run, "key": key, "body": message})
        if rows:
            _, pool, owner = rows[0]
            if not owner:
                self._bell.ring(pool)
        elif not await self._link.write(self._sql["settle"], {"run": run}):
            raise Misuse("there is no such run to send a message to", code="MDM-0133", where=f"run {run[:64]}", fix="mandamus runs")
        return key.hex()

    async def mailbox(self, run: str, after: int = 0) -> AsyncIterator[tuple[int, str, bytes]]:
        cursor = after
        while rows := await self._fetch("messages", run=run, after=cursor):
            for cursor, key, body in rows:
                yield cursor, key.hex(), body

    # -- ownership -----------------------------------------------------------------------------------------------------------
    async def claim(self, pool: str, ttl_ms: int, *, run: str | None = None) -> Head | None:
        self._refuse_closed()
        values = {"owner": self.owner, "ttl": ttl_ms * 1000, "pool": pool, "run": run}
        if run is None:
            rows = await self._link.write(self._sql["claim"], values)
            return head_of(rows[0]) if rows else None
        rows = await self._link.write(self._sql["claim_run"], values)
        if not rows and (head := await self.head(run)) is not None:
            raise owned(head)
        return head_of(rows[0]) if rows else None

    async def renew(self, head: Head, ttl_ms: int) -> Head:
        """A lease that ran out, and that nobody took since, is still its owner's. Giving back leaves the wake-up as it stands."""
        self._refuse_closed()
        if not ttl_ms and not head.owner and head.state in ENDED:
            return head  # its last append gave it back
        values = {"run": head.run, "owner": self.owner, "ttl": ttl_ms * 1000, "tries": head.tries}
        rows = await self._link.write(self._sql["renew" if ttl_ms else "give_back"], values)
        if not rows:
            raise Conflict(
                "the run is not claimed by this ledger",
                on="run",
                head=await self.head(head.run),
                code="MDM-0403",
                where=f"run {head.run}",
                fix="claim it first",
            )
        held = head_of(rows[0])
        if not ttl_ms:
            self._ring(held, rows[0][-2])
        return held

    async def hint(self, pool: str, timeout_ms: int) -> None:
        """By LISTEN on a connection of its own; where there is none, it sleeps for a second at most."""
        self._refuse_closed()
        await self._bell.wait(pool, timeout_ms)

    # -- workers -------------------------------------------------------------------------------------------------------------
    async def duty(self, name: str, ttl_ms: int) -> int | None:
        self._refuse_closed()
        refuse_name(name)
        values = {"name": name, "me": self.owner, "ttl": ttl_ms * 1000}
        rows = await self._link.write(self._sql["duty" if ttl_ms else "leave_duty"], values)
        return rows[0][0] if rows else None

    async def beat(self, node: Node, ttl_ms: int) -> None:
        self._refuse_closed()
        values = {"id": node.id, "body": _encode(node), "ttl": ttl_ms * 1000}
        await self._link.write(self._sql["beat" if ttl_ms else "leave"], values)

    async def nodes(self) -> AsyncIterator[Node]:
        for body, seen in await self._fetch("nodes"):
            with contextlib.suppress(msgspec.DecodeError, UnicodeError):  # whoever may beat may write anything here
                yield msgspec.structs.replace(_node(body), seen=seen)

    # -- for people and doctor -----------------------------------------------------------------------------------------------
    async def check(self) -> Facts:
        """Settings, migrations, guards, rights, and that no record is missing between others. Slow on large ledgers.

        What it answers is for people: versions and settings by name. Raises EngineFault, ProofError or Unavailable.
        """
        self._refuse_closed()
        async with self._own_connection() as connection:
            return await self._schema.check(connection, self._tier)

    async def settings(self) -> Facts:
        """The settings that a commit rests on, synchronous standbys included; of the server that answers now."""
        self._refuse_closed()
        async with self._own_connection() as connection:
            return await self._schema.settings(connection)

    async def close(self) -> None:
        """Connections are given back. A lease runs out by itself: give runs back first. Twice is once."""
        if not self._closed:
            self._closed = True
            await self._bell.close()
            await self._link.close()

    # -- how it is done ------------------------------------------------------------------------------------------------------
    async def _fetch(self, name: str, **values: Any) -> Rows:
        self._refuse_closed()
        return await self._link.fetch(self._sql[name], values)

    async def _append(self, run: str, statement: Statement, values: dict[str, Any], locks: Locks) -> Rows:
        try:
            return await self._group.write(Job(run, (statement, self._link.encoded(statement, values)), locks, "after_seq" not in values))
        except UniqueViolation as error:
            raise translate(error, self._address.where) from None
        except BaseException as fault:
            self._doubt(run, fault)
            raise

    async def _send(self, run: str, values: dict[str, Any]) -> Rows:
        try:
            return await self._link.write(self._sql["send"], values)
        except UniqueViolation:
            return []  # another sender of the same words was faster
        except BaseException as fault:
            self._doubt(run, fault)
            raise

    def _doubt(self, run: str, fault: BaseException) -> None:
        """A write whose loss must be remembered. Cancelling is a crash in the middle: nobody knows either."""
        if not isinstance(fault, MandamusError) or (isinstance(fault, Unavailable) and fault.outcome == "unknown"):
            self._doubted.add(run)

    async def _refuse(self, run: str, after: Head | None, also: Also) -> None:
        """Why no row came back. Returns when nothing speaks against the append any more: then it is tried again."""
        stored = await self.head(run)
        if not same(stored, after):
            raise moved(run, after, stored)
        if also:
            rows = await self._fetch("versions", ids=[entry.id for entry in also])
            check_accounts(run, stored, also, {id: (version, hash) for id, version, hash in rows})

    def _ring(self, head: Head, now: int) -> None:
        if not head.owner and head.wake_at is not None and head.wake_at <= now and head.state not in AT_REST:
            self._bell.ring(head.pool)

    async def _notify(self, pool: str) -> None:
        with contextlib.suppress(MandamusError):  # a hint; the poll finds it too
            await self._link.write(self._sql["ring"], {"channel": self._address.schema, "pool": pool})

    async def _listener(self) -> Connection:
        return await self._link.connect(self._address.listen)

    @contextlib.asynccontextmanager
    async def _own_connection(self) -> AsyncIterator[Connection]:
        await self._fetch("head", run="")  # the tables are made, or it is said why not
        connection = await self._link.connect()
        try:
            yield connection
        except Fault as error:
            raise translate(error, self._address.where) from None
        finally:
            await connection.close()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Misuse("the ledger is closed", code="MDM-0135", where=self._address.where, fix="open it again")


def from_uri(uri: str, clock: Callable[[], int] | None = None, *, tier: str = "dev", sealed_only: bool = False) -> PostgresLedger:
    """`clock` is not looked at: leases and wake-ups go by the database's. Raises Misuse; whether a server answers is seen at first use.

    `sealed_only`: takes no plain payload, whatever its class, but for what is public on chain `log`.
    """
    return PostgresLedger(Address.of(uri), tier, sealed_only)
