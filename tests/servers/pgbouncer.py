"""A real pgbouncer in front of a Postgres, pooling transactions: no session keeps anything between two statements."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONFIG = """
[databases]
postgres = host=127.0.0.1 port={server} dbname=postgres user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
server_reset_query_always = 1
server_reset_query = DISCARD ALL
logfile = {folder}/log
"""


@contextmanager
def pooler(server: int, connections: int = 3) -> Iterator[int]:
    """Its port, in front of the Postgres at port `server`. DISCARD ALL after each transaction: what a session kept is gone."""
    folder = Path(tempfile.mkdtemp(prefix="mandamus-pgbouncer-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "ini").write_text(CONFIG.format(server=server, port=port, folder=folder, connections=connections))
    user = {}
    if os.geteuid() == 0:
        entry = pwd.getpwnam("nobody")
        user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": ()}
        shutil.chown(folder, "nobody")
    program = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    assert program is not None
    process = subprocess.Popen([program, "-q", str(folder / "ini")], cwd="/", stderr=subprocess.DEVNULL, **user)
    try:
        _wait_for(port, process, folder)
        yield port
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    for _ in range(400):
        assert process.poll() is None, (folder / "log").read_text("utf-8", "replace")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("pgbouncer does not answer")
