"""What a server's own counters say: writing commits and bytes of write-ahead log, as differences that are exact at once.

    with Counted(dsn) as c, Meter() as m:
        work()
    {**m.per(turns), **c.per(turns)}          # commits, wal

Every transaction that writes takes one transaction id, and a rolled-back one too; reading takes none. `pg_stat_*` lags by up to ten
seconds and undercounts, so nothing here asks it. Imported in every peer's venv: the standard library and psycopg, nothing else.

The rule a newcomer would break: the counters are the whole server's. One system is measured at a time, and the bench's own server runs
no autovacuum and no checkpoint meanwhile (servers.py).
"""

from __future__ import annotations

import os
from typing import Any

from common import NotMeasured, Sample

HERE = "BENCH_POSTGRES_DB"
POOL = 16
"""Connections that anybody may hold who drives many runs at once: the same for ours and for peers."""
NOW = "select pg_snapshot_xmax(pg_current_snapshot())::text::bigint, (pg_current_wal_insert_lsn() - '0/0')::bigint"


def dsn() -> str:
    """The empty database that this measurement got."""
    if HERE not in os.environ:
        raise NotMeasured(f"needs a Postgres server: {HERE} names no database")
    return os.environ[HERE]


class Counted:
    """Differences between entry and exit. Its own connection writes nothing."""

    def __init__(self, where: str) -> None:
        import psycopg

        self._connection: Any = psycopg.connect(where, autocommit=True)

    def __enter__(self) -> Counted:
        self._before = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        xid, lsn = self._now()
        self.commits, self.wal = xid - self._before[0], lsn - self._before[1]
        self._connection.close()

    def _now(self) -> tuple[int, int]:
        found: tuple[int, int] = self._connection.execute(NOW).fetchone()
        return found

    def per(self, units: int) -> Sample:
        return {"commits": self.commits / units, "wal": self.wal / units}
