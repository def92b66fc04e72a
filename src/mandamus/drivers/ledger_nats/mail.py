"""The newest message of each run, known without asking: `await post.newest(run) -> Mail`, read once, then told by the stream itself.

The log republishes each message that it stores in a mailbox, without its body. What was stored before an append is told before the append
is acknowledged, since both leave the stream's leader by one way; so an append's head names the newest mail at no cost.

The rule a newcomer would break: what is told may be lost, when a leader changes or a connection breaks. Whoever lets a run sleep reads its
row from the leader first (`renew` to 0), and a reconnection forgets everything here.
"""

from __future__ import annotations

import asyncio
import hashlib

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from mandamus.drivers.ledger_nats.layout import Names
from mandamus.drivers.ledger_nats.wire import Stored, Wire, micros

KEPT = 20_000


def key(message: bytes) -> str:
    return hashlib.sha256(message).hexdigest()


def same(found: bytes, message: bytes) -> None:
    """Raises ValidationError: another message was put where this one belongs, so that it would be taken for sent."""
    if found != message:
        raise msgspec.ValidationError(f"another message, of {len(found)} bytes")


class Mail(Struct, frozen=True):
    """Stream sequence and time of a message; 0: none."""

    seq: int = 0
    time: int = 0


class Post:
    """What one handle knows of its tenant's mailboxes."""

    def __init__(self, wire: Wire, names: Names) -> None:
        self._wire, self._names = wire, names
        self._newest: dict[str, Mail] = {}
        self._told: Subscription | None = None
        wire.again.append(self.forget)

    async def listen(self) -> None:
        self._newest.clear()
        self._told = await self._wire.listen(f"{self._names.post}.*.*", self._hear)

    async def forget(self) -> None:
        self._newest.clear()

    def opened(self, run: str) -> None:
        """A run that was made just now: nobody can have written to it."""
        self._newest.setdefault(run, Mail())

    def read(self, run: str, stored: Stored | None) -> Mail:
        """What the leader answered is what there is."""
        return self._keep(run, Mail(stored.seq, stored.time) if stored else Mail())

    async def newest(self, run: str) -> Mail:
        await self.caught_up()
        known = self._newest.get(run)
        if known is None:
            known = self.read(run, await self._wire.get(self._names.log, last_by_subj=self._names.mailbox(run)))
        return known

    async def caught_up(self) -> None:
        """What has arrived at this process was heard."""
        while self._told is not None and self._told.pending_msgs:
            await asyncio.sleep(0)

    def _hear(self, message: Msg) -> None:
        run, headers = message.subject.split(".")[-2], message.headers or {}
        if run in self._newest:
            self._keep(run, Mail(int(headers.get("Nats-Sequence", 0)), micros(headers["Nats-Time-Stamp"])))

    def _keep(self, run: str, mail: Mail) -> Mail:
        known = self._newest.pop(run, None)
        newest = known if known is not None and known.seq > mail.seq else mail
        self._newest[run] = newest
        if len(self._newest) > KEPT:
            del self._newest[next(iter(self._newest))]
        return newest
