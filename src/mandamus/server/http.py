"""A bounded HTTP/1.1 server on asyncio: one handler for every request, limits on everything that a stranger sends.

    server = await serve(answer, "127.0.0.1", 0, Limits())      # answer(method, path, body) -> Reply
    server.port
    await server.close()      # nothing new is accepted; what is being answered is answered

The rule a newcomer would break: nothing of a request is kept before it is bounded: the head by bytes, the body by its announced length,
all of it by one deadline, connections by their number. Bodies of unknown length are refused (411).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus

from msgspec import Struct

LINGER_S = 1.0


class Limits(Struct, frozen=True):
    head_bytes: int = 8 * 1024
    body_bytes: int = 512 * 1024
    connections: int = 128
    request_s: float = 10.0  # from the first byte to the last
    idle_s: float = 30.0  # between two requests of one connection
    closing_s: float = 5.0


class Reply(Struct, frozen=True):
    status: int
    body: bytes = b""
    type: str = "text/plain; charset=utf-8"


Answer = Callable[[str, str, bytes], Awaitable[Reply]]


class _Refused(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class Server:
    """Made by `serve`."""

    def __init__(self, answer: Answer, limits: Limits) -> None:
        self._answer, self._limits = answer, limits
        self._open: dict[asyncio.Task[None], bool] = {}  # connection -> a request of it is being answered
        self._closing = False
        self._socket: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> None:
        self._socket = await asyncio.start_server(self._connected, host, port, limit=self._limits.head_bytes)

    @property
    def port(self) -> int:
        assert self._socket is not None
        return int(self._socket.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._closing = True
        if self._socket is not None:
            self._socket.close()
        for task, busy in list(self._open.items()):
            if not busy:
                task.cancel()
        if self._open:
            await asyncio.wait(list(self._open), timeout=self._limits.closing_s)
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._closing or len(self._open) >= self._limits.connections:
            with contextlib.suppress(OSError):
                writer.write(_written(Reply(503, b"too many connections\n"), keep=False))
                await _heard(reader, writer)
            await _gone(writer)
            return
        self._open[task] = False
        try:
            await self._requests(task, reader, writer)
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            pass  # the other side went away, was too slow, or we are closing
        finally:
            del self._open[task]
            await _gone(writer)

    async def _requests(self, task: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep = True
        while keep and not self._closing:
            async with asyncio.timeout(self._limits.idle_s):
                first = await reader.read(1)
            if not first:
                return
            self._open[task] = True
            try:
                async with asyncio.timeout(self._limits.request_s):
                    method, path, body, keep = await _request(first, reader, writer, self._limits)
                reply = await self._answered(method, path, body)
            except _Refused as no:
                writer.write(_written(Reply(no.status, f"{HTTPStatus(no.status).phrase.lower()}\n".encode()), keep=False))
                return await _heard(reader, writer)
            keep = keep and not self._closing
            async with asyncio.timeout(self._limits.request_s):
                writer.write(_written(reply, keep))
                await writer.drain()
            self._open[task] = False

    async def _answered(self, method: str, path: str, body: bytes) -> Reply:
        """A bug of the handler is told to the loop, and to the other side as nothing but 500."""
        try:
            return await self._answer(method, path, body)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": f"{method} {path} failed", "exception": error})
            return Reply(500, b"internal error\n")


async def serve(answer: Answer, host: str, port: int, limits: Limits | None = None) -> Server:
    """Raises OSError when the address cannot be had."""
    server = Server(answer, limits or Limits())
    await server.listen(host, port)
    return server


async def _request(
    first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits
) -> tuple[str, str, bytes, bool]:
    """(method, path without its query, body, whether the connection may be used again). Raises _Refused."""
    try:
        head = first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise _Refused(431) from None
    if len(head) > limits.head_bytes:
        raise _Refused(431)
    line, *rows = head[:-4].decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not words[1].startswith("/"):
        raise _Refused(400)
    fields = _fields(rows)
    if "transfer-encoding" in fields:
        raise _Refused(411)
    length = fields.get("content-length", "0")
    if not (length.isascii() and length.isdigit() and len(length) < 16):
        raise _Refused(400)
    if int(length) > limits.body_bytes:
        raise _Refused(413)
    if fields.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(length))
    keep = words[2] == "HTTP/1.1" and fields.get("connection", "").lower() != "close"
    return words[0], words[1].partition("?")[0], body, keep


def _fields(rows: list[str]) -> dict[str, str]:
    """A field that says how long the body is may stand once: two readers of two lengths see two requests."""
    out: dict[str, str] = {}
    for row in rows:
        name, colon, value = row.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name in out and name in ("content-length", "transfer-encoding")):
            raise _Refused(400)
        out[name] = value.strip()
    return out


def _written(reply: Reply, keep: bool) -> bytes:
    phrase = HTTPStatus(reply.status).phrase
    head = [
        f"HTTP/1.1 {reply.status} {phrase}",
        f"Content-Type: {reply.type}",
        f"Content-Length: {len(reply.body)}",
        f"Date: {formatdate(usegmt=True)}",
        f"Connection: {'keep-alive' if keep else 'close'}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
    ]
    return ("\r\n".join(head) + "\r\n\r\n").encode("ascii") + reply.body


async def _heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take what is still on its way for a moment: closing over unread bytes would reset the connection before the answer is read."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(65536):
                pass


async def _gone(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.CancelledError, TimeoutError):
        async with asyncio.timeout(1.0):
            writer.close()
            await writer.wait_closed()
