"""The SQL of the Postgres ledger: named statements and numbered migrations, for a ledger in whatever schema.

    sql = Statements("mandamus")
    sql["head"]; sql.text("head"); sql.append(opens=False, payloads=True, accounts="checks"); sql.migrations()

The rule a newcomer would break: the schema's name goes into the text and everything else goes in as a parameter. Behind a pooler of
transactions there is no session whose search path could be set, so every name is written in full.
"""

from __future__ import annotations

import functools
import hashlib
import re
from importlib import resources
from typing import Literal

from msgspec import Struct

from mandamus.drivers.ledger_postgres.binary import Statement
from mandamus.errors import Misuse

HEAD = "h.run, h.seq, h.hash, h.epoch, h.owner, h.lease_until, h.wake_at, h.mail, h.prio, h.tries, h.state, h.pool"
Accounts = Literal["", "checks", "writes"]
_statement_name = re.compile(r"^-- (\w+) --$", re.MULTILINE)
_schema_name = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,47}").fullmatch
_our_name = re.compile(r"\bmandamus\b")


class Migration(Struct, frozen=True):
    version: int
    text: str
    digest: str  # of the file as released, whatever the schema is called


class Statements:
    """The statements of one schema."""

    def __init__(self, schema: str) -> None:
        if not _schema_name(schema):
            raise Misuse("the ledger's schema cannot be used", code="MDM-0111", expected="a-z 0-9 _, at most 48", found=ascii(schema[:80]))
        self.schema = schema
        named = {name: text.replace("{head}", HEAD) for name, text in _named().items()}
        named["claim"] = named["claim"].replace("{awake}", named["awake"])
        self._named = {name: self._placed(text) for name, text in named.items()}
        self._made: dict[str | tuple[bool, bool, Accounts], Statement] = {}

    def __getitem__(self, name: str) -> Statement:
        if name not in self._made:
            self._made[name] = Statement.of(self._named[name], name)
        return self._made[name]

    def text(self, name: str) -> str:
        """With its parameters by name, as psycopg takes it."""
        return self._named[name]

    def append(self, *, opens: bool, payloads: bool, accounts: Accounts) -> Statement:
        """Compare-and-append as one statement, with no more in it than this append needs."""
        key = (opens, payloads, accounts)
        if key not in self._made:
            n = self._named
            moved = n["open_run" if opens else "move_head"].replace("{accounts}", n["accounts" if accounts else "no_accounts"])
            more = (n["with_payloads"] if payloads else "") + (n["with_accounts"] if accounts == "writes" else "")
            text = n["append"].replace("{moved}", moved).replace("{more}", more)
            self._made[key] = Statement.of(text, f"append {opens:d}{payloads:d}{accounts}")
        return self._made[key]

    def migrations(self) -> list[Migration]:
        """Version 1, 2, ... in order."""
        return [Migration(version, self._placed(text), _digest(text)) for version, text in enumerate(_migrations(), 1)]

    def _placed(self, text: str) -> str:
        return _our_name.sub(self.schema, text)


@functools.cache
def _named() -> dict[str, str]:
    pieces = _statement_name.split(_read("postgres.sql"))
    return {name: _without_comments(text) for name, text in zip(pieces[1::2], pieces[2::2])}


@functools.cache
def _migrations() -> tuple[str, ...]:
    folder = resources.files("mandamus.drivers").joinpath("sql")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.startswith("postgres_"))
    for version, name in enumerate(names, 1):
        assert name.startswith(f"postgres_{version:04}_"), name
    return tuple(_read(name) for name in names)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _read(name: str) -> str:
    return resources.files("mandamus.drivers").joinpath("sql", name).read_text("utf-8")


def _without_comments(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("--"))
