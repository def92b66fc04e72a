"""One bounded HTTP exchange for the model drivers: a request goes out once, a reader reads the reply, any failure is a `ModelFault`.

The rules a newcomer would break: nothing here sends a request twice (the loop owns retries), and neither a key nor a word that the
provider wrote enters the text of a fault. Redirects are not followed; httpx is imported at the first call, not with this module.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import json
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from mandamus.core.messages import ModelAnswer, ModelFault
from mandamus.drivers._key import Key
from mandamus.drivers._wire import error_code, fault_from, read_json
from mandamus.errors import Misuse

if TYPE_CHECKING:
    import ssl

    import httpx

BODY_BYTES_MAX = 64 * 1024 * 1024
ERROR_BYTES_MAX = 64 * 1024
WAIT_MS_MAX = 86_400_000
DRAIN_S = 0.2


class Reader(Protocol):
    """Turns one reply into an answer. `partial` is the text so far, for people; it is never read as calls."""

    @property
    def partial(self) -> str: ...

    def whole(self, raw: bytes) -> ModelAnswer:
        """The reply came as one JSON body."""
        ...

    def event(self, name: str, data: bytes) -> bool:
        """One server-sent event. True: the reply is complete."""
        ...

    def done(self) -> ModelAnswer:
        """The stream is over. Raises ModelFault("cut") when the reply is not complete."""
        ...


class Events:
    """Server-sent events out of bytes. Lines end with LF, CR or CRLF and nothing else: U+2028 and U+0085 are ordinary text here."""

    def __init__(self) -> None:
        self._line, self._data, self._name, self._after_cr = bytearray(), list[bytes](), "", False

    def feed(self, chunk: bytes) -> list[tuple[str, bytes]]:
        """The events that this chunk completes, as (name, data)."""
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_cr = False
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        pieces = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        found = []
        for piece in pieces[:-1]:
            self._line += piece
            event = self._take(bytes(self._line))
            self._line.clear()
            if event is not None:
                found.append(event)
        self._line += pieces[-1]
        return found

    def _take(self, line: bytes) -> tuple[str, bytes] | None:
        if not line:
            event = (self._name, b"\n".join(self._data)) if self._data else None
            self._name, self._data = "", []
            return event
        field, _, value = line.removeprefix(b"\xef\xbb\xbf").partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        return None


class Exchange:
    """A base URL, a key and a pool of connections per event loop."""

    def __init__(
        self,
        base_url: str,
        key: Key,
        headers: Callable[[str | None], dict[str, str]],
        *,
        trust_env: bool | None = None,
        plain_http: bool = False,
    ) -> None:
        self.base_url = checked(base_url, key, plain_http)
        self._key, self._headers = key, headers
        # A proxy of the environment must not see what is meant for this machine.
        self._trust_env = not _loopback(self.base_url) if trust_env is None else trust_env
        # A connection belongs to the loop that opened it; run_sync makes a loop per call.
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = weakref.WeakKeyDictionary()

    async def post(self, path: str, body: Mapping[str, Any], timeout_ms: int, reader: Reader) -> ModelAnswer:
        """One POST, answered by `reader`. `timeout_ms` bounds all of it. Raises ModelFault, nothing else."""
        import httpx

        reply = _Reply()
        try:
            content, headers = _encoded(body), self._headers(self._key.read())
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._exchange(path, content, headers, reader, reply)
        except ModelFault as known:
            fault = known
        except TimeoutError:
            fault = ModelFault("timeout", f"no complete reply within {timeout_ms} ms")
        except httpx.DecodingError:
            fault = ModelFault("malformed", "the body does not decode as its content-encoding says")
        except (httpx.RequestError, OSError, UnicodeError) as error:
            fault = _broken(error, reply)
        fault.status = reply.status if fault.status is None else fault.status
        fault.partial = fault.partial or reader.partial
        # Raised out here so that httpx's exception, which holds the request and its headers, is not its context.
        raise fault

    async def _exchange(self, path: str, content: bytes, headers: dict[str, str], reader: Reader, reply: _Reply) -> ModelAnswer:
        async with self._client().stream("POST", self.base_url + path, content=content, headers=headers) as response:
            reply.status = response.status_code
            if not response.is_success:
                raise await _refused(response)
            if response.headers.get("content-type", "").lower().startswith("text/event-stream"):
                return await _stream(response, reader)
            return reader.whole(await _whole(response))

    def _client(self) -> httpx.AsyncClient:
        import httpx

        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            limits = httpx.Limits(max_connections=256, max_keepalive_connections=32)
            # No timeouts of its own: four of them, each restarted by every byte, do not bound a slow stream.
            tls = _tls(self._trust_env)
            client = httpx.AsyncClient(timeout=None, limits=limits, trust_env=self._trust_env, verify=tls, follow_redirects=False)
            self._clients[loop] = client
        return client

    async def close(self) -> None:
        """Gives back this loop's connections; a later call opens new ones."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def __repr__(self) -> str:
        return f"{self.base_url}, key {self._key!r}"


def checked(base_url: str, key: Key, plain_http: bool) -> str:
    """The base URL without its last slash. Raises Misuse when it is none, or would carry a secret in the clear."""
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not base_url.isascii() or any(c.isspace() for c in base_url):
        raise Misuse("the model's base URL cannot be used", code="MDM-0170", expected="https://host/v1", fix="write scheme, host and path")
    if parts.username is not None or parts.password is not None:
        why = "addresses are printed and recorded"
        raise Misuse("the base URL holds a login", code="MDM-0171", where=parts.hostname or "", why=why, fix="name the key: env:NAME")
    if parts.query or parts.fragment:
        raise Misuse("the base URL holds a query or a fragment", code="MDM-0170", where=parts.hostname or "", expected="https://host/v1")
    if parts.scheme == "http" and key and not plain_http and not _loopback(base_url):
        why = "anybody on the way could read the key"
        fix = "use https, or say plain_http when the network is yours"
        raise Misuse("the key would travel unencrypted", code="MDM-0172", where=parts.hostname or "", why=why, fix=fix)
    return base_url.rstrip("/")


@functools.cache
def _tls(trust_env: bool) -> ssl.SSLContext:
    """Reading the authorities takes 35 ms of CPU, once per process instead of once per loop."""
    import httpx

    return httpx.create_ssl_context(trust_env=trust_env)


def _loopback(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Reply:
    """How far an exchange came: the status, once its head has arrived."""

    status: int | None = None


def _encoded(body: Mapping[str, Any]) -> bytes:
    """Keys keep their order: it is the order in which a model reads, and writes, the properties of a schema."""
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelFault("bad_request", f"the prompt has no JSON form ({type(error).__name__}); nothing was sent") from None


def _broken(error: Exception, reply: _Reply) -> ModelFault:
    name = type(error).__name__
    if reply.status is not None:
        return ModelFault("cut", f"the connection broke inside the reply ({name})")
    return ModelFault("connection", f"no reply came over the connection ({name})")


async def _chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_bytes():
        yield chunk


async def _whole(response: httpx.Response) -> bytes:
    size = _Size()
    async with aclosing(_chunks(response)) as chunks:
        return b"".join([size.counted(chunk) async for chunk in chunks])


async def _stream(response: httpx.Response, reader: Reader) -> ModelAnswer:
    size, events = _Size(), Events()
    async with aclosing(_chunks(response)) as chunks:
        async for chunk in chunks:
            for name, data in events.feed(size.counted(chunk)):
                if reader.event(name, data):
                    await _drain(chunks)
                    return reader.done()
    return reader.done()


class _Size:
    """Counts decoded bytes, so that a small compressed body cannot become a large one."""

    total = 0

    def counted(self, chunk: bytes) -> bytes:
        self.total += len(chunk)
        if self.total > BODY_BYTES_MAX:
            raise ModelFault("malformed", f"the reply is larger than {BODY_BYTES_MAX} bytes")
        return chunk


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """The reply is complete. Read to the end of the body so that the connection can be used again, but wait for no one."""
    import httpx

    try:
        async with asyncio.timeout(DRAIN_S):
            async for _ in chunks:
                pass
    except (TimeoutError, httpx.RequestError, OSError):
        pass


async def _refused(response: httpx.Response) -> ModelFault:
    """A status that is no success, as a fault. The body is looked at for the error's code only."""
    import httpx

    status, body = response.status_code, bytearray()
    try:
        async with aclosing(_chunks(response)) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > ERROR_BYTES_MAX:
                    break
    except (httpx.RequestError, OSError):
        pass  # the status alone says enough
    wait = retry_after_ms(response.headers, time.time())
    return fault_from(status, error_code(read_json(bytes(body), {})), retry_after_ms=wait)


def retry_after_ms(headers: Mapping[str, str], now: float) -> int | None:
    """Retry-After, in seconds or as a date (RFC 9110, section 10.2.3), or retry-after-ms. None: absent or nonsense."""
    exact, said = headers.get("retry-after-ms", ""), headers.get("retry-after", "").strip()
    if exact.isascii() and exact.isdigit() and len(exact) < 16:
        return min(int(exact), WAIT_MS_MAX)
    if said.isascii() and said.replace(".", "", 1).isdigit() and len(said) < 16:
        return min(int(float(said) * 1000), WAIT_MS_MAX)
    until = _instant(said)
    if until is None:
        return None
    # Both dates by the server's clock, where it told us its own.
    since = _instant(headers.get("date", "")) or now
    return min(max(int((until - since) * 1000), 0), WAIT_MS_MAX)


def _instant(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp() if date else None
    except (ValueError, TypeError, OverflowError):
        return None
