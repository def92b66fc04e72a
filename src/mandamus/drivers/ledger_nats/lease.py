"""Keys that run out: leases of runs and duties, each with a count beside it that stays (tries, epochs), and the list of workers.

    held = await leases.take("lease", run, old, count, ttl_ms); await leases.renew(held, ttl_ms); await leases.drop(held)

A key is free when there is no message, since it ran out, or when the last one says that it was given back. It is taken by the place of that
very message: creating a key afresh fails while it stands. The server leaves no markers of its own: a stream that has them must take
roll-ups, and one message could wipe it. Key and count are one atomic batch.

The rule a newcomer would break: only the server says that a lease ran out. `until` in its value is what the holder hoped, for people to
read.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from msgspec import Struct

from mandamus.drivers.ledger_nats import layout, strand
from mandamus.drivers.ledger_nats.append import refused
from mandamus.drivers.ledger_nats.layout import Count, Lease, Message, Names
from mandamus.drivers.ledger_nats.wire import AGAIN, BUSY, FULL, STALE, Ack, Refusal, Silence, Stored, Wire, answered, silent
from mandamus.errors import ProofError
from mandamus.ports import Node

_DROPPED = (("KV-Operation", "DEL"), ("Nats-TTL", "60s"))
_as_node = msgspec.json.Decoder(Node).decode
_handles = 0


class Free(Struct, frozen=True):
    """A key that may be taken at this place."""

    at: int


class Taken(Struct, frozen=True):
    at: int
    lease: Lease


class Held(Struct, frozen=True):
    """A key that this handle took."""

    kind: str
    name: str
    at: int
    until: int
    count: int
    mark: int = -1


class Lost(Exception):
    """The key is another's by now, or nobody's."""


def seconds(ttl_ms: int) -> str:
    """The server counts whole seconds, at least one."""
    return f"{max(1, -(-ttl_ms // 1000))}s"


class Leases:
    """The keys of one handle."""

    def __init__(self, wire: Wire, names: Names, clock: Callable[[], int]) -> None:
        global _handles
        _handles += 1
        self._wire, self._names, self._clock = wire, names, clock
        self.me = f"pid {os.getpid()} on {socket.gethostname()}" + (f" #{_handles}" if _handles > 1 else "")
        self.token = os.urandom(12).hex()

    async def look(self, kind: str, name: str) -> Free | Taken:
        return _state(await self._wire.get(self._names.lease, last_by_subj=self._names.key(kind, name)))

    async def count(self, kind: str, name: str) -> Count:
        stored = await self._wire.get(self._names.lease, last_by_subj=self._names.key(kind, name))
        if stored is None:
            return Count(0)
        try:
            return strand.read(stored.subject, stored, layout.count_of)
        except ProofError:
            if kind != "tries":
                raise  # an epoch that began again would let two owners hold the same one
            return Count(0)

    async def take(self, kinds: tuple[str, str], name: str, free: Free, count: Count, ttl_ms: int) -> Held:
        """`kinds`: of the key and of its count. Raises Lost when another was faster."""
        until = self._clock() + ttl_ms * 1000
        key = self._value(kinds[0], name, free.at, until, ttl_ms)
        counted = Message(self._names.key(kinds[1], name), layout.as_json(count))
        ack = await self._write(lambda: self._wire.batch([key, counted]), kinds[0], name)
        return Held(kinds[0], name, ack - 1 if ack > 0 else -ack, until, count.n, count.mark)

    async def renew(self, held: Held, ttl_ms: int) -> Held:
        until = self._clock() + ttl_ms * 1000
        message = self._value(held.kind, held.name, held.at, until, ttl_ms)
        ack = await self._write(lambda: self._wire.put(message), held.kind, held.name)
        return msgspec.structs.replace(held, at=abs(ack), until=until)

    async def drop(self, held: Held, count: tuple[str, Count] | None = None) -> None:
        """`count`: its kind and what it is to be."""
        messages = [Message(self._names.key(held.kind, held.name), b"", held.at, headers=_DROPPED)]
        if count is not None:
            messages.append(Message(self._names.key(count[0], held.name), layout.as_json(count[1])))
        await self._write(lambda: self._wire.batch(messages), held.kind, held.name, dropping=True)

    def _value(self, kind: str, name: str, at: int, until: int, ttl_ms: int) -> Message:
        value = layout.as_json(Lease(self.me, self.token, until))
        return Message(self._names.key(kind, name), value, at, headers=(("Nats-TTL", seconds(ttl_ms)),))

    async def _write(self, send: Callable[[], Awaitable[Ack]], kind: str, name: str, *, dropping: bool = False) -> int:
        """The sequence of the last message; negative: of the key, found there after an attempt whose fate was not known."""
        deadline, sure, says = time.monotonic() + self._wire.options.patience_ms / 1000, True, ""
        while True:
            try:
                return (await send()).seq
            except Refusal as refusal:
                if refusal.code == STALE:
                    if not sure and (mine := await self._mine(kind, name, dropping)):
                        return mine
                    raise Lost from None
                if refusal.code in FULL or (refusal.code not in AGAIN | {BUSY} and refusal.http != 503):
                    raise refused(refusal, f"{kind} {name}") from None
                says = str(refusal)
            except Silence as silence:
                sure, says = sure and not silence.sent, silence.says
            if time.monotonic() > deadline:
                raise silent(f"{kind} of {name[:64]}", says, "none" if sure else "unknown")
            await asyncio.sleep(random.uniform(0.001, 0.05))

    async def _mine(self, kind: str, name: str, dropping: bool) -> int:
        found = await self.look(kind, name)
        if isinstance(found, Taken):
            return -found.at if found.lease.token == self.token and not dropping else 0
        return -max(found.at, 1) if dropping else 0

    # -- workers -------------------------------------------------------------------------------------------------------------
    async def beat(self, node: Node, ttl_ms: int) -> None:
        headers = (("Nats-TTL", seconds(ttl_ms)),) if ttl_ms else _DROPPED
        value = layout.as_json(node) if ttl_ms else b""
        async with answered("who works"):
            try:
                await self._wire.put(Message(self._names.worker(node.id), value, headers=headers))
            except Refusal as refusal:
                raise refused(refusal, f"worker {node.id[:64]}") from None

    async def nodes(self) -> AsyncIterator[Node]:
        async with answered("who works"):
            subjects = await self._wire.subjects(self._names.node, self._names.worker())
            found = await asyncio.gather(*(self._wire.get(self._names.node, last_by_subj=subject) for subject in subjects))
        living = [_node(stored) for stored in found if stored is not None and not stored.gone]
        for node in sorted((node for node in living if node is not None), key=lambda node: node.id):
            yield node


def _state(stored: Stored | None) -> Free | Taken:
    if stored is None:
        return Free(0)
    try:
        return Free(stored.seq) if stored.gone else Taken(stored.seq, strand.read(stored.subject, stored, layout.lease_of))
    except ProofError:
        return Free(stored.seq)  # nobody wrote it who could renew it: like one that ran out, it is taken over by its place


def _node(stored: Stored) -> Node | None:
    """None: no worker wrote this."""
    try:
        return msgspec.structs.replace(strand.read(stored.subject, stored, _as_node), seen=stored.time)
    except ProofError:
        return None
