"""What the HTTP drivers of witnesses and anchors share: an address that names a key, and bounded exchanges with it.

    place = Place.parse("witness+https://witness.example/w1?residency=eu#witness.example/w1+3f9a1c02+BA…", "witness", ("residency",))
    status, kind, body = await self._post("/add-checkpoint", body, "application/octet-stream")     # in a driver, which is a Remote

The rule a newcomer would break: no redirect is followed and no answer is believed here; what comes back is bytes, and its reader checks it
with the key of the address. TLS keeps others from seeing roots and from answering "409"; it proves nothing about the log.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import weakref
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from mandamus.errors import Misuse, Unavailable
from mandamus.proof.keys import VKey, parse_vkey

if TYPE_CHECKING:
    import httpx

ANSWER_BYTES_MAX = 512 * 1024
_seconds = re.compile("[1-9][0-9]{0,2}")


class Place(Struct, frozen=True):
    """Where it is asked (`base`, without a slash at its end), which key its answers must bear, and what its address says of it."""

    base: str
    key: VKey
    residency: str = "any"
    timeout_s: float = 10.0

    @classmethod
    def parse(cls, uri: str, scheme: str, kinds: tuple[int, ...], timeout_s: float = 10.0) -> Place:
        """`SCHEME+https://HOST[:PORT][/PREFIX][?residency=eu&timeout=SECONDS]#VKEY`. Raises Misuse."""
        shape = f"{scheme}+https://HOST/PREFIX#NAME+ID+KEY"
        address, _, text = uri.partition("#")
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise _no("its host or port cannot be read", shape) from None
        inner = parts.scheme.removeprefix(f"{scheme}+")
        if parts.scheme == inner or inner not in ("http", "https") or not host or port == 0:
            raise _no("it names no scheme and host", shape)
        if parts.username is not None or not address.isascii() or any(c.isspace() for c in address):
            raise _no("it holds a login or a space", shape)
        options = _options(parts.query, shape)
        if not text:
            raise _no("it names no key", shape)
        key = parse_vkey(text)
        if key.kind not in kinds:
            raise _no(f"its key is of another kind (0x{key.kind:02x})", f"{shape}, of kind {' or '.join(f'0x{k:02x}' for k in kinds)}")
        base, waits = f"{inner}://{parts.netloc}{parts.path.rstrip('/')}", float(options.get("timeout", timeout_s))
        return cls(base, key, options.get("residency", "any"), waits)


def _options(query: str, shape: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    found = dict(pairs)
    if len(found) != len(pairs) or not found.keys() <= {"residency", "timeout"}:
        raise _no("it has an option that is unknown or stands twice", f"{shape}, options residency and timeout")
    if found.get("residency", "any") not in ("any", "eu", "eu_approved"):
        raise _no("its residency is none", "residency=eu, eu_approved or any")
    if not _seconds.fullmatch(found.get("timeout", "10")):
        raise _no("its timeout is none", "timeout=SECONDS, 1 to 999")
    return found


def _no(what: str, shape: str) -> Misuse:
    return Misuse(f"this is no address of a witness: {what}", code="MDM-0949", where="MANDAMUS_WITNESSES", expected=shape)


class Remote:
    """What `ports.Witness` says of itself, and POST to its place. A connection belongs to the event loop that opened it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = weakref.WeakKeyDictionary()

    @property
    def name(self) -> str:
        return self.place.key.name

    @property
    def key(self) -> VKey:
        return self.place.key

    @property
    def residency(self) -> str:
        return self.place.residency

    async def close(self) -> None:
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    async def _post(self, path: str, body: bytes, kind: str) -> tuple[int, str, bytes]:
        """(status, content type, body). Raises Unavailable."""
        import httpx

        try:
            async with asyncio.timeout(self.place.timeout_s):
                async with self._client().stream("POST", self.place.base + path, content=body, headers={"content-type": kind}) as reply:
                    return reply.status_code, reply.headers.get("content-type", ""), await _body(reply)
        except TimeoutError:
            raise self._silent(f"no complete answer within {self.place.timeout_s:g} s") from None
        except (httpx.HTTPError, OSError, UnicodeError) as error:
            raise self._silent(type(error).__name__) from None

    def _silent(self, found: str) -> Unavailable:
        return Unavailable(
            f"the witness {self.place.key.name} does not answer", outcome="unknown", code="MDM-0954", where=self.place.base, found=found,
            fix="start it, or take it out of MANDAMUS_WITNESSES",
        )  # fmt: skip

    def _client(self) -> httpx.AsyncClient:
        import httpx

        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            # A proxy of the environment must not see what is meant for this machine.
            self._clients[loop] = httpx.AsyncClient(timeout=None, follow_redirects=False, trust_env=not _loopback(self.place.base))
        return self._clients[loop]


async def _body(reply: httpx.Response) -> bytes:
    out = bytearray()
    async for chunk in reply.aiter_bytes():
        out += chunk
        if len(out) > ANSWER_BYTES_MAX:
            raise OSError("an answer without end")
    return bytes(out)


def _loopback(base: str) -> bool:
    host = urlsplit(base).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
