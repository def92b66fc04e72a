"""The servers' files of `deploy/`: they are taken, they make a cluster that keeps what it acknowledges, and the addresses fit them."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.servers import deployed

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = sorted((DEPLOY / "compose").glob("*.yaml"))
WIRING = sorted((ROOT / "examples" / "wiring").glob("*.env"))


def sh(*command: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=120, **more)


def test_the_servers_take_their_files(tmp_path: Path) -> None:
    conf = deployed.files(tmp_path)
    check = [deployed.program("nats-server"), "-t", "-c", conf]
    env = deployed.surroundings("n1")
    good = sh(*check, env=env)
    assert good.returncode == 0, good.stderr
    conf.write_text(conf.read_text().replace("sync_interval: always", "sync_interval: sometimes"))
    assert sh(*check, env=env).returncode != 0
    assert sh(*check, env={k: v for k, v in env.items() if k != "NATS_WORKER_NKEY"}).returncode != 0


def test_three_nodes_of_these_files_are_a_cluster_that_syncs_always(tmp_path: Path) -> None:
    with deployed.cluster(tmp_path) as nodes:
        for node in nodes:
            assert node.asked("/varz")["jetstream"]["config"]["sync_always"] is True
            with socket.create_connection(("127.0.0.1", node.client), timeout=10) as line:
                said = json.loads(line.makefile("rb").readline().removeprefix(b"INFO "))
            assert (said["tls_required"], said["auth_required"], said["server_name"]) == (True, True, node.name)
        assert len(nodes[0].asked("/jsz")["meta_cluster"]["replicas"]) == 2


def test_the_file_says_what_the_ledger_demands() -> None:
    text = (DEPLOY / "nats" / "server.conf").read_text()
    assert re.findall(r"^\s*sync_interval: (\S+)", text, re.M) == ["always"]
    servers = yaml.safe_load_all((DEPLOY / "kubernetes" / "overlays" / "nats" / "servers.yaml").read_text())
    volume = next(d for d in servers if d["kind"] == "StatefulSet")["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]
    (bound,) = re.findall(r"max_file: (\d+)GB", text)
    assert int(bound) * 2**30 < 0.9 * int(volume["requests"]["storage"].removesuffix("Gi")) * 2**30


@pytest.mark.parametrize("path", [*COMPOSE, *WIRING, ROOT / "docs" / "how-to" / "deploy.md"], ids=lambda p: p.name)
def test_addresses_are_ones_that_the_drivers_read(path: Path) -> None:
    from mandamus import wiring

    found = re.findall(r"""(?:MANDAMUS_LEDGER[:=]\s*"?|^)((?:postgres|tls\+nats|nats|sqlite):[^\s"]+)""", path.read_text(), re.M)
    assert found
    for uri in found:
        assert wiring.ledger_store(uri).lasts
        if "nats" in uri:
            from mandamus.drivers.ledger_nats.uri import options

            said = options(uri, "dev")
            assert (said.replicas, len(said.servers), len(said.monitor), said.name, bool(said.nkey)) == (3, 3, 3, "mdm", True)
            assert 0 < said.max_bytes < 16_000_000_000  # below max_file of server.conf
        elif uri.startswith("postgres"):
            from mandamus.drivers.ledger_postgres.link import Address

            assert Address.of(uri).schema == "mandamus"
