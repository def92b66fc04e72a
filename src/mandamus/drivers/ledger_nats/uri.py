"""What a `nats://` URI says: `options("nats://h1:4222,h2:4222/mdm?tenant=acme&creds=FILE", tier) -> Options`.

    nats:// or tls+nats://  [USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…][/NAME]  ?tenant= ?replicas= ?shards= ?max_bytes=
    ?monitor=URL[,URL…]  ?assume_sync_always=1  ?creds=FILE  ?nkey=FILE  ?tls_ca=FILE  ?tls_cert=FILE  ?tls_key=FILE
    ?timeout_ms=  ?patience_ms=  ?sweep_ms=  ?shard=K
    ?api=PREFIX, where an account of workers imports the requests of the account that holds the streams (deploy/nats/accounts.conf)

The rule a newcomer would break: a parameter that is not known is refused. A misspelt `replicas` must not become the default.
"""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from mandamus.errors import Misuse

PORT = 4222
MAX_BYTES_DEV = 1 << 30
_name = re.compile(r"[a-z][a-z0-9_-]{0,31}").fullmatch
_token = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_prefix = re.compile(r"[A-Za-z0-9_$-]{1,32}(\.[A-Za-z0-9_$-]{1,32}){0,7}").fullmatch
API = "$JS.API"
_NUMBERS = ("replicas", "shards", "shard", "max_bytes", "timeout_ms", "patience_ms", "sweep_ms")
_WORDS = ("tenant", "api", "monitor", "assume_sync_always", "creds", "nkey", "tls_ca", "tls_cert", "tls_key")
_KNOWN = frozenset(_NUMBERS + _WORDS)


class Options(Struct, frozen=True):
    """`shard` -1: computed from the tenant. `max_bytes` 0: not given. `patience_ms`: how long one call is tried again before it says so."""

    uri: str  # without what is secret
    servers: tuple[str, ...]
    name: str = "mdm"
    tenant: str = "default"
    tier: str = "dev"
    api: str = API
    replicas: int = 3
    shards: int = 1
    shard: int = -1
    max_bytes: int = 0
    monitor: tuple[str, ...] = ()
    assume_sync_always: bool = False
    user: str = ""
    password: str = ""
    creds: str = ""
    nkey: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    timeout_ms: int = 2_000
    patience_ms: int = 10_000
    sweep_ms: int = 30_000


def options(uri: str, tier: str = "dev") -> Options:
    """Raises Misuse. The password may come from NATS_PASSWORD, a credentials file from NATS_CREDS, the file of a seed from NATS_NKEY."""
    scheme, _, rest = uri.partition("://")
    authority, _, tail = rest.partition("/")
    authority, _, early = authority.partition("?")
    name, _, query = tail.partition("?")
    login, _, hosts = authority.rpartition("@")
    asked = _asked(uri, query or early)
    user, _, password = login.partition(":")
    name = name or "mdm"
    if scheme not in ("nats", "tls+nats") or not hosts or not _name(name):
        raise _wrong(uri, "nats://HOST[:PORT][,HOST[:PORT]]/NAME", "NAME is 1 to 32 of a-z 0-9 _ -")
    tls = scheme == "tls+nats" or bool(asked.get("tls_ca"))
    made = Options(
        uri=f"{scheme}://{hosts}/{name}",
        servers=tuple(_server(uri, host, tls) for host in hosts.split(",")),
        name=name,
        tenant=asked.get("tenant", "default"),
        tier=tier,
        api=asked.get("api", API),
        monitor=tuple(url for url in asked.get("monitor", "").split(",") if url),
        assume_sync_always=asked.get("assume_sync_always", "") == "1",
        user=unquote(user),
        password=unquote(password) or os.environ.get("NATS_PASSWORD", ""),
        creds=asked.get("creds") or ("" if user or asked.get("nkey") else os.environ.get("NATS_CREDS", "")),
        nkey=asked.get("nkey") or ("" if user or asked.get("creds") else os.environ.get("NATS_NKEY", "")),
        tls=tls,
        tls_ca=asked.get("tls_ca", ""),
        tls_cert=asked.get("tls_cert", ""),
        tls_key=asked.get("tls_key", ""),
        **_numbers(uri, asked),
    )
    if not _token(made.tenant):
        raise _wrong(uri, "tenant of 1 to 64 of A-Z a-z 0-9 _ -", "it is a token of every subject")
    if not _prefix(made.api):
        raise _wrong(uri, "api=PREFIX, tokens with dots between them", "requests go to PREFIX.STREAM.INFO.…")
    if made.replicas not in (1, 3, 5):
        raise _wrong(uri, "replicas 3 or 5 (1 in tier dev)", "an even number of replicas adds no safety")
    return made


def _asked(uri: str, query: str) -> dict[str, str]:
    asked = dict(parse_qsl(query, keep_blank_values=True))
    for name in asked.keys() - _KNOWN:
        raise _wrong(uri, " ".join(sorted(_KNOWN)), "a parameter is not known", name)
    return asked


def _numbers(uri: str, asked: dict[str, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in _NUMBERS:
        if name in asked:
            if not re.fullmatch(r"[0-9]{1,15}", asked[name]):
                raise _wrong(uri, f"{name}=NUMBER", "it is a number", asked[name])
            found[name] = int(asked[name])
    return found


def _server(uri: str, host: str, tls: bool) -> str:
    split = urlsplit(f"//{host}")
    try:
        port = split.port or PORT
    except ValueError:
        port = 0
    if not split.hostname or not port or split.path:
        raise _wrong(uri, "HOST or HOST:PORT", "a / ? # or @ in a password is written %2F %3F %23 %40", host)
    shown = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
    return f"{'tls' if tls else 'nats'}://{shown}:{port}"


def _wrong(uri: str, expected: str, why: str, found: str = "") -> Misuse:
    """`found` may be a piece of a password, when a sign in it ended it too early: it is shown of an address without any."""
    shown = re.sub(r"//.*@", "//…@", uri, flags=re.DOTALL)
    told = f"{why}: {found[:60]!a}" if found and "@" not in uri else why
    return Misuse("the NATS ledger's URI cannot be used", code="MDM-0563", where=shown[:200], expected=expected, why=told)
