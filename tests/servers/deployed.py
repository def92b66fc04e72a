"""The NATS cluster of `deploy/nats`, from its own files, on the loopback: `with cluster(folder) as nodes: nodes[0].client`.

Only folders, addresses and peers are others. The rule a newcomer would break: nothing is configured here. What a test needs stands in the
files that people deploy, or the test proves nothing about them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers.needs import needs
from tests.servers.nkey import nkey

FILES = Path(__file__).parents[2] / "deploy" / "nats"
USERS = {"NATS_WORKER_NKEY": b"worker", "NATS_ADMIN_NKEY": b"admin", "NATS_SYS_NKEY": b"sys"}
START_S = 60.0


class Node(NamedTuple):
    name: str
    client: int
    monitor: int
    route: int

    def asked(self, path: str) -> Any:
        """An answer of its monitoring port."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}{path}", timeout=5) as answer:
            return json.load(answer)


def program(name: str) -> str:
    """Beside this Python first: wheels put their programs there."""
    needs(name)
    return str(shutil.which(name, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])))


def surroundings(node: str) -> dict[str, str]:
    return {**os.environ, **{name: nkey(user)[1] for name, user in USERS.items()}, "NATS_NAME": node}


def files(folder: Path) -> Path:
    """The servers' files with this folder for /etc/nats, and certificates by our own script. The path of server.conf."""
    program("nats-server")
    program("openssl")
    subprocess.run([FILES / "tls.sh", folder / "tls", "n1", "n2", "n3"], check=True, capture_output=True, timeout=60)
    for name in ("server.conf", "accounts.conf"):
        text = (FILES / name).read_text().replace("/etc/nats/", f"{folder}/").replace("0.0.0.0", "127.0.0.1")
        (folder / name).write_text(text)
    return folder / "server.conf"


def seed(folder: Path, user: bytes) -> Path:
    """The file with a user's nkey."""
    path = folder / f"{user.decode()}.nk"
    path.write_text(nkey(user)[0])
    path.chmod(0o600)
    return path


def accounts(admin: str, workers: dict[str, list[str]], more: str = "") -> str:
    """accounts.conf with other users: `admin` and each tenant's workers in the servers' words, `user: x, password: y`. `more`: accounts."""
    text = (FILES / "accounts.conf").read_text()
    (tenant,) = re.findall(r"^  TENANT_DEFAULT \{\n.*?^  \}\n", text, re.S | re.M)
    (user,) = re.findall(r"^      \{\n        nkey: \$NATS_WORKER_NKEY\n.*?^      \}\n", tenant, re.S | re.M)
    blocks = []
    for name, logins in workers.items():
        users = "".join(user.replace("nkey: $NATS_WORKER_NKEY", login) for login in logins)
        blocks.append(tenant.replace(user, users).replace("TENANT_DEFAULT", f"TENANT_{name}").replace("default", name))
    text = text.replace(tenant, "".join(blocks) + more)
    text = text.replace("TENANTS: [TENANT_DEFAULT]", f"TENANTS: [{', '.join(f'TENANT_{name}' for name in workers)}]")
    return text.replace("nkey: $NATS_ADMIN_NKEY", admin).replace("nkey: $NATS_SYS_NKEY", "user: sys, password: sys")


@contextmanager
def cluster(folder: Path) -> Iterator[list[Node]]:
    """Three nodes that know each other and have a leader; gone afterwards."""
    conf, ports = files(folder), _free_ports(9)
    nodes = [Node(f"n{i + 1}", *ports[3 * i : 3 * i + 3]) for i in range(3)]
    routes = ",".join(f"nats://127.0.0.1:{node.route}" for node in nodes)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for node in nodes:
            own = conf.with_name(f"{node.name}.conf")
            own.write_text(conf.read_text().replace('"/data/', f'"{folder}/{node.name}/'))
            at = ["-p", str(node.client), "-m", str(node.monitor), "--cluster", f"nats://127.0.0.1:{node.route}", "--routes", routes]
            command = [program("nats-server"), "-c", str(own), *at, "-l", str(folder / f"{node.name}.log")]
            started.append(subprocess.Popen(command, env=surroundings(node.name)))
        _wait(nodes, folder, started)
        yield nodes
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(nodes: list[Node], folder: Path, started: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and all(process.poll() is None for process in started):
        try:
            if all(node.asked("/healthz")["status"] == "ok" for node in nodes) and nodes[0].asked("/jsz")["meta_cluster"].get("leader"):
                return
        except (OSError, ValueError, KeyError):
            pass
        time.sleep(0.1)
    raise RuntimeError("no cluster: " + "\n".join(log.read_text()[-1500:] for log in folder.glob("n?.log")))


def _free_ports(n: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports: list[int] = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports
