"""A Postgres ledger's URI, taken apart: `Address.of("postgres://worker@db:5432/books?schema=mandamus&sync=required")`.

What is ours in the query stands in `_OURS`; the rest is libpq's and goes to it as it is. The rule a newcomer would break: a URI may hold
a password. What is shown to anybody is `where`, and no error quotes the URI.
"""

from __future__ import annotations

import importlib
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from mandamus.errors import Misuse

try:  # of all files here this one is imported first
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    importlib.import_module("psycopg_pool")
except ImportError as error:  # an extra: most ledgers are files
    raise Misuse(
        "the Postgres driver is not installed", code="MDM-0112", found=str(error), fix="pip install 'mandamus[postgres]'"
    ) from None

CONNECT_S = 10  # for a connection, a restart or a failover included; `connect_timeout=` of the URI is another number
_OURS = {"schema": "mandamus", "sync": "", "pooler": "", "listen": "", "connections": "16"}
_FORM = "postgres://USER@HOST:PORT/DATABASE?schema=mandamus"
_CHOICES = {"sync": ("", "required"), "pooler": ("", "transaction")}


class Address(Struct, frozen=True):
    """A ledger's URI, taken apart. `conninfo` is libpq's part of it."""

    conninfo: str
    where: str  # without the password
    schema: str
    standby: bool  # a synchronous standby must be configured
    pooled: bool  # behind a pooler of transactions: no session keeps anything
    listen: str  # conninfo of the connection that hears notifications, "" = none
    connections: int
    patience: int  # seconds

    @classmethod
    def of(cls, uri: str) -> Address:
        """Raises Misuse."""
        parts = _split(uri)
        asked = parse_qsl(parts.query, keep_blank_values=True)
        ours = _OURS | {name: value for name, value in asked if name in _OURS}
        for name, choices in _CHOICES.items():
            if ours[name] not in choices:
                raise _bad(f"{name}={ours[name]}", f"{name}={choices[1]}")
        if not (ours["connections"].isascii() and ours["connections"].isdecimal() and 1 <= int(ours["connections"]) <= 1000):
            raise _bad(f"connections={ours['connections']}", "connections=1 to 1000")
        rest = urlencode([(name, value) for name, value in asked if name not in _OURS])
        conninfo = urlunsplit(("postgresql", parts.netloc, parts.path, rest, ""))
        try:
            known = conninfo_to_dict(conninfo)
            conninfo_to_dict(ours["listen"])
            patience = int(known.get("connect_timeout") or CONNECT_S)
        except (psycopg.Error, ValueError):  # its text may quote the password
            raise _bad("what libpq cannot read", _FORM) from None
        if "://" in ours["listen"]:
            _split(ours["listen"])
        pooled = ours["pooler"] == "transaction"
        where = f"{known.get('host', 'localhost')}:{known.get('port', '5432')}/{known.get('dbname', '')}"
        listen = ours["listen"] or ("" if pooled else conninfo)
        return cls(conninfo, where, ours["schema"], ours["sync"] == "required", pooled, listen, int(ours["connections"]), patience)


def _split(uri: str) -> SplitResult:
    """Raises Misuse also where a sign of the password ends it too early: the rest of it would be taken for a host, and shown as one."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise _bad("what cannot be read", _FORM) from None
    if parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment:
        raise _bad("a sign that must be written otherwise in a password or a name", "%40 for @, %2F for /, %23 for #, %3F for ?")
    return parts


def _bad(found: str, expected: str) -> Misuse:
    return Misuse("the ledger's URI cannot be used", code="MDM-0111", expected=expected, found=found[:200])
