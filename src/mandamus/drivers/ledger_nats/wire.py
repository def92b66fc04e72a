"""The connection of the NATS ledger and the few requests it makes: publish, atomic batch, read one message, ask the API, take tasks.

    wire = Wire(options); await wire.put(message); await wire.batch(messages); await wire.get(stream, last_by_subj=subject)

Nothing is retried here. `Refusal` is an answer of the server with its code; `Silence` is none: `sent` says whether the request may have
had an effect all the same.

The rule a newcomer would break: messages are read by $JS.API.STREAM.MSG.GET, which the stream's leader answers. DIRECT.GET, consumers and
KV reads may be answered by a replica that lags, and a lagging head is a lie about where a run stands.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError, OutboundBufferLimitError

from mandamus.drivers.ledger_nats.connect import connected
from mandamus.drivers.ledger_nats.layout import Message
from mandamus.drivers.ledger_nats.uri import Options
from mandamus.errors import Unavailable

STALE, BUSY, DUPLICATE, NOT_FOUND, NO_STREAM = 10071, 10164, 10201, 10037, 10059
IN_PROCESS = 10158  # these very bytes, sent before, are being stored by a leader that is not sure of them yet
FULL = frozenset((10077, 10047, 10023, 10076, 10122))  # bytes, storage, resources: nothing was stored
# No leader, a batch torn or too many under way: nothing was stored.
AGAIN = frozenset((10008, 10009, 10118, 10176, 10206, 10207, 10210, 10211))
_LEADERLESS = b'"err_code":10008'  # what a server says that is cut off from the others
_EXPECT, _ON = "Nats-Expected-Last-Subject-Sequence", "Nats-Expected-Last-Subject-Sequence-Subject"
_EPOCH = datetime.datetime(1970, 1, 1)


class Refusal(Exception):
    """The server's answer: no."""

    def __init__(self, code: int, says: str, http: int = 0) -> None:
        super().__init__(f"{code} {says}")
        self.code, self.says, self.http = code, says, http


class Silence(Exception):
    """No answer in time. `sent` False: nobody can have acted on it."""

    def __init__(self, says: str, sent: bool) -> None:
        super().__init__(says)
        self.says, self.sent = says, sent


class Ack(Struct, frozen=True):
    seq: int
    duplicate: bool = False


class Stored(Struct, frozen=True):
    """A message as the leader has it. `time` in microseconds."""

    subject: str
    seq: int
    data: bytes
    time: int
    head: bytes

    @property
    def gone(self) -> bool:
        """A marker that a key ran out or was given back: the key is free, but its place is this message's."""
        return b"Nats-Marker-Reason:" in self.head or b"KV-Operation:" in self.head


class Task(Struct, frozen=True):
    """A run to look at. It comes again unless it is acknowledged in time."""

    run: str
    prio: int
    reply: str
    at: int
    delivered: int = 1


class _Error(Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(Struct, frozen=True):
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


class _Raw(Struct, frozen=True):
    subject: str
    seq: int
    time: str
    data: str = ""
    hdrs: str = ""


class _Said(Struct, frozen=True):
    raw: bytes
    error: _Error | None


class _Failed(Struct, frozen=True):
    error: _Error | None = None


class _Got(Struct, frozen=True):
    message: _Raw | None = None
    error: _Error | None = None


_ack = msgspec.json.Decoder(_Ack).decode
_got = msgspec.json.Decoder(_Got).decode
_failed = msgspec.json.Decoder(_Failed).decode
A = TypeVar("A")


def _said(data: bytes) -> _Said:
    return _Said(data, _failed(data).error)


class Wire:
    """One connection, made when it is first needed, made again in another event loop."""

    def __init__(self, options: Options) -> None:
        self.options, self.timeout = options, options.timeout_ms / 1000
        self.denied = ""  # the last thing the server did not permit
        self._nc: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._mute = 0.0  # since when nothing was answered; 0: something was
        self._batches, self._salt = 0, os.urandom(8).hex()
        self.again: list[Callable[[], Awaitable[None]]] = []  # called after each (re)connection

    # -- the connection ------------------------------------------------------------------------------------------------------
    async def client(self) -> Client:
        loop = asyncio.get_running_loop()
        if self._nc is not None and self._loop is loop:
            return self._nc
        if self._loop is not loop:
            self._loop, self._opening, self._nc = loop, asyncio.Lock(), None
        async with self._opening:
            if self._nc is None:
                self._nc = await connected(self.options, self._hear, self._reconnected, lambda: self.denied)
        return self._nc

    async def close(self) -> None:
        nc, self._nc = self._nc, None
        if nc is not None and self._loop is asyncio.get_running_loop():
            with contextlib.suppress(NatsError, TimeoutError, OSError):
                await nc.close()

    async def _hear(self, error: Exception) -> None:
        said = str(error)
        if "ermission" in said or "uthoriz" in said or "uthentic" in said or "certificate" in said.lower():
            self.denied = said

    def denies(self, subject: str) -> bool:
        """Whether the last thing that was not permitted is this; the client library tells it in small letters."""
        return subject.lower() in self.denied.lower()

    async def _reconnected(self) -> None:
        for call in self.again:
            await call()

    # -- writing -------------------------------------------------------------------------------------------------------------
    async def put(self, message: Message, timeout: float = 0) -> Ack:
        """Raises Refusal, Silence."""
        return _acked(await self.ask(message.subject, message.body, _headers(message), timeout))

    async def batch(self, messages: Sequence[Message], timeout: float = 0) -> Ack:
        """All or nothing, in one round trip: the server takes a connection's messages in order, so none but the last is waited for."""
        if len(messages) == 1:
            ack = await self.put(messages[0], timeout)
            if ack.duplicate:
                raise Refusal(DUPLICATE, "stored already")
            return ack
        nc = await self.client()
        self._batches += 1
        id, last = f"{self._salt}{self._batches}", len(messages)
        for i, message in enumerate(messages, 1):
            headers = _headers(message) | {"Nats-Batch-Id": id, "Nats-Batch-Sequence": str(i)}
            if i == last:
                return _acked(await self.ask(message.subject, message.body, headers | {"Nats-Batch-Commit": "1"}, timeout))
            try:
                await nc.publish(message.subject, message.body, headers=headers)
            except (NatsError, OSError) as error:
                raise Silence(str(error), sent=False) from None
        raise AssertionError("an empty batch")

    async def tell(self, subject: str, body: bytes = b"") -> None:
        """Without an answer: acknowledgements and other hints."""
        with contextlib.suppress(NatsError, OSError):
            await (await self.client()).publish(subject, body)

    async def ask(self, subject: str, body: bytes = b"", headers: dict[str, str] | None = None, timeout: float = 0) -> bytes:
        nc, began = await self.client(), time.monotonic()
        try:
            data: bytes = (await nc.request(subject, body, timeout=timeout or self.timeout, headers=headers)).data
            if _LEADERLESS in data[:256]:
                await self._move(nc, began)
            else:
                self._mute = 0.0
            return data
        except (NoRespondersError, OutboundBufferLimitError) as error:
            await self._move(nc, began)
            raise Silence(f"nobody serves {subject.split('.')[0]}: {type(error).__name__}", sent=False) from None
        except (NatsError, TimeoutError, OSError) as error:
            await self._move(nc, began)
            raise Silence(str(error) or type(error).__name__, sent=True) from None

    async def _move(self, nc: Client, began: float) -> None:
        """Goes to another server when this one has not answered for a while: it may be cut off from the others, and we with it."""
        self._mute = self._mute or began
        if time.monotonic() - self._mute >= 1.5 * self.timeout and nc is self._nc:
            self._mute = time.monotonic()
            await nc.force_reconnect()

    # -- reading -------------------------------------------------------------------------------------------------------------
    async def get(self, stream: str, **query: Any) -> Stored | None:
        """`last_by_subj=`, `seq=`, or `seq=` and `next_by_subj=`. None: there is no such message."""
        got = await self._asked(f"STREAM.MSG.GET.{stream}", msgspec.json.encode(query), _got, lambda got: got.error)
        if got.error is not None:
            if got.error.err_code == NOT_FOUND:
                return None
            raise Refusal(got.error.err_code, got.error.description, got.error.code)
        raw = got.message
        assert raw is not None
        head = base64.b64decode(raw.hdrs) if raw.hdrs else b""
        return Stored(raw.subject, raw.seq, base64.b64decode(raw.data) if raw.data else b"", micros(raw.time), head)

    async def api(self, verb: str, body: Any = None) -> dict[str, Any]:
        """An answer of <api>.<verb>. Raises Refusal, Silence."""
        said = await self._asked(verb, b"" if body is None else msgspec.json.encode(body), _said, lambda said: said.error)
        if said.error is not None:
            raise Refusal(said.error.err_code, said.error.description, said.error.code)
        answer: dict[str, Any] = msgspec.json.decode(said.raw)
        return answer

    async def _asked(self, verb: str, body: bytes, decode: Callable[[bytes], A], error: Callable[[A], _Error | None]) -> A:
        """What may be asked twice is asked again while there is no leader to answer, until patience ends."""
        subject, end = f"{self.options.api}.{verb}", time.monotonic() + self.options.patience_ms / 1000
        while True:
            try:
                answer = decode(await self.ask(subject, body))
                if (found := error(answer)) is None or found.code != 503 or time.monotonic() > end:
                    return answer
            except Silence as silence:
                if self.denies(subject):
                    raise Silence(self.denied, sent=False) from None
                if time.monotonic() > end:
                    raise silence from None
            await asyncio.sleep(0.1)

    async def subjects(self, stream: str, filter: str) -> list[str]:
        """Every subject under `filter` that holds a message, sorted, as the leader knows them."""
        found: set[str] = set()
        while True:
            answer = await self.api(f"STREAM.INFO.{stream}", {"subjects_filter": filter, "offset": len(found)})
            page = answer["state"].get("subjects") or {}
            found.update(page)
            if not page or len(found) >= answer.get("total", 0):
                return sorted(found)

    # -- tasks ---------------------------------------------------------------------------------------------------------------
    async def fetch(self, stream: str, consumer: str, batch: int, wait_ms: int, patience: float = 2.0) -> list[Task]:
        """What the queue has, at most `batch`. `wait_ms` 0: now; else the first that comes (`batch` must be 1).

        A queue that has nothing says so; one that says nothing has no leader. Raises Silence.
        """
        nc = await self.client()
        ask: dict[str, Any] = {"batch": batch, "expires": wait_ms * 1_000_000} if wait_ms else {"batch": batch, "no_wait": True}
        found: list[Task] = []
        unled, mute, inbox = False, False, nc.new_inbox()
        waiting = await nc.subscribe(inbox)  # what is delivered bears the task's subject, so the subscription tells the fetches apart
        try:
            await nc.publish(f"{self.options.api}.CONSUMER.MSG.NEXT.{stream}.{consumer}", msgspec.json.encode(ask), reply=inbox)
            while len(found) < batch:
                message = await waiting.next_msg(timeout=wait_ms / 1000 + self.timeout)
                if message.headers and "Status" in message.headers:
                    unled = message.headers["Status"] == "503"
                    break
                found.append(_task(message))
        except (TimeoutError, NatsError, OSError):
            mute = not found
        finally:
            with contextlib.suppress(NatsError, OSError):
                await waiting.unsubscribe()
        if unled and patience > 0:  # the consumer has no leader yet
            await asyncio.sleep(0.05)
            return await self.fetch(stream, consumer, batch, wait_ms, patience - 0.05)
        if mute or unled:
            raise Silence(f"the queue of {stream} does not answer", sent=False)
        return found

    async def listen(self, subject: str, heard: Callable[[Msg], None]) -> Subscription:
        """What is published there from now on."""

        async def call(message: Msg) -> None:
            heard(message)

        nc = await self.client()
        made = await nc.subscribe(subject, cb=call)
        with contextlib.suppress(NatsError, TimeoutError):
            await nc.flush(2)
        return made


@contextlib.asynccontextmanager
async def answered(what: str) -> AsyncIterator[None]:
    """Reading: silence is Unavailable, with nothing done, and so is a server without a leader."""
    try:
        yield
    except Silence as silence:
        raise silent(what, silence.says, "none") from None
    except Refusal as refusal:
        if refusal.code not in AGAIN and refusal.http != 503:
            raise
        raise silent(what, str(refusal), "none") from None


def silent(what: str, says: str, outcome: str) -> Unavailable:
    return Unavailable(
        f"the servers did not answer: {what}",
        outcome=outcome,
        code="MDM-0561",
        found=says[:200],
        why="without a quorum nothing is written, so no effect may begin",
        fix="mandamus doctor; bring back a majority of the servers",
    )


def micros(time: str) -> int:
    """Of a server's `2026-11-22T07:36:35.034163275Z`."""
    whole, _, fraction = time.rstrip("Z").partition(".")
    seconds = int((datetime.datetime.fromisoformat(whole) - _EPOCH).total_seconds())
    return seconds * 1_000_000 + int(fraction[:6].ljust(6, "0") or 0)


def _acked(data: bytes) -> Ack:
    ack = _ack(data)
    if ack.error is not None:
        raise Refusal(ack.error.err_code, ack.error.description, ack.error.code)
    return Ack(ack.seq, ack.duplicate)


def _headers(message: Message) -> dict[str, str]:
    headers = dict(message.headers)
    if message.expect is not None:
        headers[_EXPECT] = str(message.expect)
        if message.on:
            headers[_ON] = message.on
    if message.id:
        headers["Nats-Msg-Id"] = message.id
    return headers


def _task(message: Msg) -> Task:
    *_, prio, run = message.subject.split(".")
    body = message.data.decode("ascii", "replace")
    # The reply ends in …<delivered>.<stream seq>.<consumer seq>.<time>.<pending>, or with one token more in later servers.
    told = message.reply.split(".")
    delivered = int(told[4] if len(told) < 11 else told[6])
    return Task(run, int(prio), message.reply, int(body) if body.isdigit() and len(body) < 20 else 0, delivered)
