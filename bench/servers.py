"""Real servers for the units that need one: a Postgres, a NATS cluster of three. Started once for a unit, ended with it.

    with servers.postgres() as server:
        place = functools.partial(servers.database, server)     # of a System: an empty database for each measurement

Data lies on the measured disk (BENCH_DATA). Settings that differ from the servers' defaults stand below; a flush is never saved.

The rule a newcomer would break: servers are not measured systems. They run for all systems of a round alike, and what they burn is in
nobody's CPU column; wall time, commits and bytes of log are what counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import pathlib
import stat
import tempfile
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import common
import nats_raw
import pg
from interleave import Place, nowhere

if TYPE_CHECKING:
    from mandamus.testing.nats import Cluster
    from mandamus.testing.postgres import Postgres

SETTINGS = {
    "autovacuum": "off",  # it takes transaction ids and writes log when it likes
    "checkpoint_timeout": "1h",  # a checkpoint makes the next change of each page write the whole page: once, whoever changes it
    "max_wal_size": "8GB",
    "shared_buffers": "256MB",
    "max_connections": "200",
}
NATS_MAX_BYTES = 1 << 30
_names = itertools.count(1)


@contextlib.contextmanager
def postgres(**more: str) -> Iterator[Postgres]:
    """A new cluster, `more` settings over those above, with fsync, full_page_writes and synchronous_commit on, as by default."""
    from mandamus.testing.postgres import Postgres, missing

    if why := missing():
        raise common.NotMeasured(why)
    with _folder(), Postgres(**SETTINGS | more) as server:
        yield server


@contextlib.contextmanager
def database(server: Postgres) -> Iterator[Mapping[str, str]]:
    """An empty database; dropped afterwards, whoever is still connected."""
    name = f"bench_{os.getpid()}_{next(_names)}"
    server.sql(f"create database {name}")
    try:
        yield {pg.HERE: server.uri(database=name)}
    finally:
        server.sql(f"drop database {name} with (force)")


@contextlib.contextmanager
def nats() -> Iterator[Cluster]:
    """Three nodes on this machine, every write flushed on each."""
    from mandamus.testing.nats import Cluster, missing

    if why := missing():
        raise common.NotMeasured(why)
    with _folder(), Cluster(3) as cluster:
        yield cluster


@contextlib.contextmanager
def ledger(cluster: Cluster) -> Iterator[Mapping[str, str]]:
    """A ledger of its own on the cluster. Afterwards all streams are deleted: one measurement is made at a time."""
    uri = cluster.uri(f"bench-{next(_names)}", max_bytes=NATS_MAX_BYTES)
    try:
        yield {nats_raw.HERE: uri}
    finally:
        asyncio.run(nats_raw.emptied(uri))


@contextlib.contextmanager
def _folder() -> Iterator[None]:
    """Where servers make their folders meanwhile: on the measured disk, when the user they run as can reach it; never on a memory disk."""
    common.DATA.mkdir(parents=True, exist_ok=True)
    here = common.DATA.resolve()
    reachable = os.geteuid() != 0 or all(stat.S_IMODE(p.stat().st_mode) & stat.S_IXOTH for p in (here, *here.parents))
    before, chosen = tempfile.tempdir, str(here) if reachable else None
    if common.disk(pathlib.Path(chosen or tempfile.gettempdir())) in common.MEMORY_DISKS:
        raise common.NotMeasured("a server's data would lie on a memory disk; point BENCH_DATA at a real disk that everybody may reach")
    tempfile.tempdir = chosen
    try:
        yield
    finally:
        tempfile.tempdir = before


def version(server: Any) -> str:
    """As the table shows it."""
    return "Postgres " + str(server.sql("show server_version")[0][0]).split()[0]


@contextlib.contextmanager
def of(store: str, **postgres_settings: str) -> Iterator[tuple[Place, str]]:
    """(a System's place, the version) for a store by its name; SQLite needs no server."""
    if store == "sqlite":
        yield nowhere, ""
    elif store == "postgres":
        with postgres(**postgres_settings) as server:
            yield functools.partial(database, server), version(server)
    else:
        with nats() as cluster:
            yield functools.partial(ledger, cluster), "NATS " + cluster.nodes[1].http("/varz")["version"]
