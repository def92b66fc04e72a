"""One connection to the servers of a NATS ledger: who we are to them, by what they prove who they are, and how long we try.

    nc = await connected(options, heard, again, denied)

The rule a newcomer would break: a password or a seed is never part of a diagnosis, and the client library is never left to try for ever
behind the back of somebody who waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import NoServersError

from mandamus.drivers.ledger_nats.uri import Options
from mandamus.errors import Misuse, Unavailable

CONNECT_S = 5.0  # a person who named the wrong host waits no longer; who works on through an outage tries again by itself


async def connected(
    o: Options, heard: Callable[[Exception], Awaitable[None]], again: Callable[[], Awaitable[None]], denied: Callable[[], str]
) -> Client:
    """Raises Unavailable, Misuse. `heard`: of every error; `again`: after a reconnection; `denied`: what was not permitted, if anything."""
    login: dict[str, Any] = {}
    if o.creds:
        login["user_credentials"] = o.creds
    elif o.nkey:
        login["nkeys_seed"] = o.nkey
    elif o.user:
        login |= {"user": o.user, "password": o.password}
    if o.tls:
        login["tls"] = _tls(o)
    nc = Client()
    asked = nc.connect(
        servers=list(o.servers),
        name=f"mandamus {o.name}/{o.tenant}",
        inbox_prefix=f"_INBOX_{o.tenant}".encode(),
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.1,  # type: ignore[arg-type]  # it sleeps for what it is given
        connect_timeout=2,
        ping_interval=2,
        max_outstanding_pings=2,
        error_cb=heard,
        reconnected_cb=again,
        **login,
    )
    try:
        await _within(min(CONNECT_S, max(o.timeout_ms, o.patience_ms) / 1000), asked)
    except (NatsError, NoServersError, OSError, TimeoutError, ValueError) as error:
        with contextlib.suppress(Exception):
            await nc.close()
        raise _unreachable(o, denied() or str(error) or type(error).__name__) from None
    return nc


def _tls(o: Options) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=o.tls_ca or None)
        if o.tls_cert:
            context.load_cert_chain(o.tls_cert, o.tls_key or None)
    except OSError as error:
        raise Misuse(
            "the TLS files of the NATS ledger cannot be read", code="MDM-0563", where=o.tls_ca or o.tls_cert, found=str(error)[:200]
        ) from None
    return context


async def _within(seconds: float, asked: Coroutine[Any, Any, None]) -> None:
    """As `asyncio.wait_for`, whose one word a library that waits inside with another `wait_for` may not hear: it is said until it is."""
    task = asyncio.ensure_future(asked)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        task.result()
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=0.2)


def _unreachable(o: Options, says: str) -> Unavailable:
    return Unavailable(
        "no NATS server can be reached",
        outcome="none",
        code="MDM-0560",
        where=", ".join(o.servers)[:200],
        found=says[:200],
        fix="start the servers, or name the right ones and who you are to them: --ledger nats://HOST:PORT/NAME?creds=FILE",
    )
