"""Is this server fit to hold a ledger, and are its tables there? Settings, migrations, rights, guards, and rows without holes.

The rule a newcomer would break: an unsafe setting is an error, not a warning. A ledger that may lose an acknowledged record with the
power would go on as if nothing were missing, and the effect that the record spoke of has happened.
"""

from __future__ import annotations

import hashlib
from typing import Any

from mandamus.drivers.ledger_postgres.address import Address
from mandamus.drivers.ledger_postgres.link import Connection, InsufficientPrivilege
from mandamus.drivers.ledger_postgres.statements import Statements
from mandamus.errors import EngineFault, Misuse, ProofError, Unavailable

VERSION_MIN = 140000
FLUSHED = ("on", "remote_apply")
GUARDED = ("event", "payload", "mailbox", "delta", "head", "account", "feed", "feed_base")
_WHY = {
    "server_encoding": "names and records could not be stored as they are",
    "default_transaction_isolation": "a check of an account would look at what stood before it waited",
}
FORWARD = ("head_forward", "account_forward", "feed_base_forward")
FED = "event_is_fed"
_KEPT = {"head", "account", "feed_base"}  # these may be updated, forward; nobody may delete from them

Facts = dict[str, str]


class Schema:
    """The questions that `PostgresLedger` asks about its server and its tables."""

    def __init__(self, address: Address, sql: Statements) -> None:
        self._address, self._sql = address, sql
        self._open = False  # the tables were made, and fit this cluster

    # -- each new connection -------------------------------------------------------------------------------------------------
    async def vet(self, connection: Connection) -> None:
        """Raises EngineFault or Unavailable when this server must not be written to."""
        await self.settings(connection)
        if self._open and await self._counts_lower(connection):
            raise self._elsewhere("another server answers than before")

    async def settings(self, connection: Connection) -> Facts:
        """What `doctor` shows, after it was found to be safe."""
        (row,) = await _rows(connection, self._sql.text("settings"))
        version, recovering, fsync, pages, commits, standbys, encoding, isolation, _, made = row
        if recovering:
            raise self._replica()
        if version < VERSION_MIN:
            raise EngineFault(
                "this Postgres is too old",
                code="MDM-0545",
                where=self._address.where,
                expected="version 14 or newer",
                found=f"version {version // 10000}",
            )
        for name, value, good in (
            ("fsync", fsync, ("on",)),
            ("full_page_writes", pages, ("on",)),
            ("synchronous_commit", commits, FLUSHED),
            ("server_encoding", encoding, ("UTF8",)),
            ("default_transaction_isolation", isolation, ("read committed",)),
        ):
            if value not in good:
                raise self._unsafe(name, value, good)
        if self._address.standby and not standbys:
            raise self._alone()
        return {
            "version": f"{version // 10000}.{version % 10000}",
            "schema": self._address.schema if made else "",
            "fsync": fsync,
            "full_page_writes": pages,
            "synchronous_commit": commits,
            "synchronous_standby_names": standbys,
        }

    # -- tables --------------------------------------------------------------------------------------------------------------
    async def migrate(self, connection: Connection) -> None:
        """Bring the tables up to this version, each step in a transaction of its own, one migrator at a time. Nothing to do: nothing done.

        Raises EngineFault when they are newer, were made by other files, or when this login may not make them; and when they come from
        another cluster and this login may not fit them to the present one.
        """
        while (step := await self._next(connection)) is not None:
            try:
                async with connection.transaction():
                    await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_migration_lock(self._address.schema),))
                    if step != await self._next(connection):
                        continue  # another process was faster
                    await self._apply(connection, step)
            except InsufficientPrivilege as error:
                raise self._not_made(step, str(error)) from None
        await self._fit(connection)
        self._open = True

    async def _fit(self, connection: Connection) -> None:
        """Tables that were restored from a dump go on here behind their last record, however low this cluster counts."""
        while await self._counts_lower(connection):
            try:
                async with connection.transaction():
                    await connection.execute(self._sql.text("hold").encode())
                    if await self._counts_lower(connection):  # else another process was faster
                        await connection.execute(self._sql.text("raise_base").encode())
            except InsufficientPrivilege as error:
                raise self._elsewhere(str(error)) from None

    async def _counts_lower(self, connection: Connection) -> bool:
        ((*_, fed, _),) = await _rows(connection, self._sql.text("settings"))
        return bool(fed and (await _rows(connection, self._sql.text("counts_lower")))[0][0])

    async def _apply(self, connection: Connection, version: int) -> None:
        schema, wanted = self._address.schema, self._sql.migrations()[version - 1]
        (quoted,) = (await _rows(connection, "SELECT quote_ident(%(name)s)", name=schema))[0]
        if quoted != schema:
            raise Misuse("the ledger's schema is a word of SQL", code="MDM-0111", found=schema, fix="?schema=mandamus")
        if version == 1:
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())
            await connection.execute(
                f"CREATE TABLE {schema}.migration (version integer PRIMARY KEY, digest text NOT NULL, "
                "applied timestamptz NOT NULL DEFAULT now())".encode()
            )
        await connection.execute(wanted.text.encode())
        insert = f"INSERT INTO {schema}.migration (version, digest) VALUES (%s, %s)"
        await connection.execute(insert.encode(), (version, wanted.digest))

    async def _next(self, connection: Connection) -> int | None:
        """The version to be made next, None when all are there."""
        known = self._sql.migrations()
        ((*_, made),) = await _rows(connection, self._sql.text("settings"))
        done = dict(await _rows(connection, self._sql.text("migrated"))) if made else {}
        if done and max(done) > len(known):
            raise EngineFault(
                "the ledger's tables are of a newer version",
                code="MDM-0547",
                where=self._where,
                expected=f"version {len(known)} or older",
                found=f"version {max(done)}",
                why="what this version does not know it could break",
                fix="install the newer mandamus that made them",
            )
        for step in known:
            if step.version not in done:
                return step.version
            if done[step.version] != step.digest:
                raise EngineFault(
                    "the ledger's tables were made by another file than ours",
                    code="MDM-0547",
                    where=self._where,
                    expected=f"migration {step.version} with digest {step.digest[:12]}",
                    found=str(done[step.version])[:12],
                    why="a released migration never changes; these tables may lack a guard",
                )
        return None

    # -- for doctor ----------------------------------------------------------------------------------------------------------
    async def check(self, connection: Connection, tier: str) -> Facts:
        """All of it. Slow on large ledgers: every row is counted. Raises EngineFault or ProofError."""
        facts = await self.settings(connection)
        if (step := await self._next(connection)) is not None:
            raise self._not_made(step, "an older version")
        await self._check_guards(connection)
        await self._check_rows(connection)
        ((wide,),) = await _rows(connection, self._sql.text("rights"))
        if wide and tier != "dev":
            raise EngineFault(
                "this login may change evidence",
                code="MDM-0551",
                where=self._where,
                expected=f"a member of role {self._address.schema}, which may only add and read",
                why="triggers refuse it, but an owner can take them away",
                fix=f"make the tables by one role, and let workers log in by another: GRANT {self._address.schema} TO worker",
            )
        return facts | {"rights": "owner" if wide else "writer"}

    async def _check_guards(self, connection: Connection) -> None:
        """The triggers that keep records from being edited are all there, awake, and still refuse."""
        made = "".join(step.text for step in self._sql.migrations())
        awake = set()
        for name, enabled, text, body in await _rows(connection, self._sql.text("guards")):
            if enabled == "A" and body in made and _refuses(name, text):
                awake.add(name)
        gone = next((name for name in (*(f"{table}_stays" for table in GUARDED), *FORWARD, FED) if name not in awake), None)
        if gone is not None:
            raise ProofError(
                f"the ledger has lost its guard {gone}",
                code="MDM-0631",
                where=self._where,
                why="somebody took it away to edit the tables; mandamus verify tells which chains still hold",
                fix="keep the database as evidence; restore a whole backup, or begin another schema",
            )

    async def _check_rows(self, connection: Connection) -> None:
        for run, expected, found in await _rows(connection, self._sql.text("gaps")):
            raise self._torn(f"run {run}", f"{expected} records", f"{found}, not one for each number")
        ((unfed,),) = await _rows(connection, self._sql.text("unfed"))
        if unfed:
            raise self._torn(self._where, "every record once in the order of all", f"{unfed:+} of them")
        for (no,) in await _rows(connection, self._sql.text("strays")):
            raise self._torn(self._where, "a head for every record", f"records of run number {no}")

    # -- diagnoses -----------------------------------------------------------------------------------------------------------
    @property
    def _where(self) -> str:
        return f"{self._address.where} schema {self._address.schema}"

    def _replica(self) -> Unavailable:
        return Unavailable(
            "this Postgres is a standby",
            outcome="none",
            code="MDM-0544",
            where=self._address.where,
            why="what a replica shows may be behind: a head read there could let a deed happen twice",
            fix="connect to the primary; name several hosts in the URI and the one that takes writes is found",
        )

    def _unsafe(self, name: str, value: str, good: tuple[str, ...]) -> EngineFault:
        return EngineFault(
            f"Postgres does not keep the setting {name}",
            code="MDM-0543",
            where=self._address.where,
            expected=" or ".join(good),
            found=value,
            why=_WHY.get(name, "an acknowledged record could be lost with the power"),
            fix=f"ALTER SYSTEM SET {name} = '{good[0]}', and look for ALTER ROLE or ALTER DATABASE that set it"
            if name != "server_encoding"
            else "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0",
        )

    def _alone(self) -> EngineFault:
        return EngineFault(
            "no synchronous standby is configured",
            code="MDM-0548",
            where=self._address.where,
            expected="synchronous_standby_names, as the ledger's URI asks with sync=required",
            found="none",
            why="after a failover to an asynchronous copy acknowledged records may be missing",
            fix="ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (...)'",
        )

    def _not_made(self, version: int, found: str) -> EngineFault:
        return EngineFault(
            "the ledger's tables are not made yet",
            code="MDM-0546",
            where=self._where,
            expected=f"version {version}",
            found=found.strip().partition("\n")[0][:200],
            why="who writes records may not make tables",
            fix="open the ledger once as the schema's owner: mandamus doctor --ledger postgres://OWNER@HOST/DATABASE",
        )

    def _elsewhere(self, found: str) -> EngineFault:
        return EngineFault(
            "the ledger's tables come from a server that counted further",
            code="MDM-0912",
            where=self._where,
            found=found.strip().partition("\n")[0][:200],
            why="what is written now would be read as older than what was read already",
            fix="open the ledger once as the schema's owner: mandamus doctor --ledger postgres://OWNER@HOST/DATABASE",
        )

    def _torn(self, where: str, expected: str, found: str) -> ProofError:
        return ProofError(
            "records are missing from the ledger",
            code="MDM-0632",
            where=where,
            expected=expected,
            found=found,
            why="the tables were edited or restored in part",
            fix="keep the database as evidence; restore a whole backup, or begin another schema",
        )


def _refuses(guard: str, text: str) -> bool:
    """Whether a trigger of this name, as the catalog tells it, does what it was made for."""
    if guard == FED:
        return " AFTER INSERT ON " in text and " REFERENCING NEW TABLE " in text and " WHEN " not in text
    if guard in FORWARD:
        return " BEFORE UPDATE ON " in text and " WHEN " in text
    words = ("DELETE", "TRUNCATE") + (() if guard.removesuffix("_stays") in _KEPT else ("UPDATE",))
    return " BEFORE " in text and " WHEN " not in text and all(word in text for word in words)


def lock_of(kind: str, name: str) -> int:
    """A key for advisory locks: 64 bits, signed."""
    return int.from_bytes(hashlib.sha256(f"mandamus {kind} {name}".encode("utf-8", "surrogatepass")).digest()[:8], "big", signed=True)


def _migration_lock(schema: str) -> int:
    return lock_of("migration", schema)


async def _rows(connection: Connection, sql: str, **values: Any) -> list[tuple[Any, ...]]:
    return await (await connection.execute(sql.encode(), values or None)).fetchall()
