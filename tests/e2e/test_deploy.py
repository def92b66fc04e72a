"""The files of `deploy/`: each is what its tool takes, each pod is locked down, each command is one that `mandamus` has.

Everything is rendered as it is deployed (`kubectl kustomize`), and every check is shown to refuse something.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from mandamus import Agent
from mandamus.cli.table import NOUNS, VERBS
from tests.servers import deployed

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = sorted(p.name for p in (DEPLOY / "kubernetes" / "overlays").iterdir())
COMPOSE = sorted((DEPLOY / "compose").glob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PAGES = [ROOT / "docs" / "how-to" / f"{name}.md" for name in ("choose-a-tier", "deploy", "operate", "runbook")]
SECRET = re.compile(r"://[^/]*:[^/]*@|(?i:password|secret|token)")
NEWEST, OLDEST = "1.34", "1.30"


def sh(*command: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=120, **more)


@cache
def rendered(overlay: str) -> tuple[dict[str, Any], ...]:
    done = sh(deployed.program("kubectl"), "kustomize", DEPLOY / "kubernetes" / "overlays" / overlay)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def pods(documents: tuple[dict[str, Any], ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    for document in documents:
        if "template" in document.get("spec", {}):
            yield document["metadata"]["name"], document["spec"]["template"]


# -- Kubernetes ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_document_is_what_kubernetes_takes(overlay: str, version: str) -> None:
    documents = rendered(overlay)
    assert {d["kind"] for d in documents} >= {"Deployment", "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount"}
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "PodDisruptionBudget", "NetworkPolicy", "Service"])
def test_a_slip_of_the_pen_is_refused(kind: str) -> None:
    broken = copy.deepcopy(next(d for d in rendered("nats") if d["kind"] == kind))
    broken["spec"]["replicaz"] = 3
    with pytest.raises(kubernetes_validate.ValidationError, match="replicaz"):
        kubernetes_validate.validate(broken, NEWEST, strict=True)


def weak(template: dict[str, Any]) -> list[str]:
    """What a pod may do that it need not."""
    spec, found = template["spec"], []
    held = spec.get("securityContext", {})
    found += ["may be root"] if not held.get("runAsNonRoot") or held.get("runAsUser", 0) < 1000 else []
    found += ["any system call"] if held.get("seccompProfile", {}).get("type") != "RuntimeDefault" else []
    found += ["a token of the cluster"] if spec.get("automountServiceAccountToken") is not False else []
    found += [f"the host's {x}" for x in ("hostNetwork", "hostPID", "hostIPC") if spec.get(x)]
    found += ["a folder of the host" for v in spec.get("volumes", []) if "hostPath" in v]
    found += ["no time to drain"] if spec.get("terminationGracePeriodSeconds", 0) < 60 else []
    found += ["several on one machine"] if "podAntiAffinity" not in spec.get("affinity", {}) else []
    for c in spec["containers"] + spec.get("initContainers", []):
        found += [f"{c['name']}: {x}" for x in _weak(c, started_once=c in spec.get("initContainers", []))]
    return found


def _weak(c: dict[str, Any], started_once: bool) -> list[str]:
    held, found = c.get("securityContext", {}), []
    found += ["may become more"] if held.get("allowPrivilegeEscalation") is not False or held.get("privileged") else []
    found += ["writes its root"] if held.get("readOnlyRootFilesystem") is not True else []
    found += ["capabilities"] if held.get("capabilities") != {"drop": ["ALL"]} else []
    found += ["may be root"] if held.get("runAsNonRoot") is not True or held.get("runAsUser", 1000) < 1000 else []
    found += ["memory without end"] if "memory" not in c.get("resources", {}).get("limits", {}) else []
    found += ["nothing is reserved"] if not c.get("resources", {}).get("requests") else []
    found += [
        "a secret in clear text" for e in c.get("env", []) if re.search(r"://[^/]*:[^/]*@|(?i:password|secret|token)", e.get("value", ""))
    ]
    if not started_once:
        found += [f"no {p}" for p in ("startupProbe", "livenessProbe", "readinessProbe") if p not in c]
    return found


BREAKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "may be root": lambda s: s["securityContext"].update(runAsUser=0),
    "any system call": lambda s: s["securityContext"].pop("seccompProfile"),
    "a token of the cluster": lambda s: s.pop("automountServiceAccountToken"),
    "the host's hostNetwork": lambda s: s.update(hostNetwork=True),
    "a folder of the host": lambda s: s["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
    "no time to drain": lambda s: s.update(terminationGracePeriodSeconds=5),
    "several on one machine": lambda s: s.pop("affinity"),
    "worker: may become more": lambda s: s["containers"][0]["securityContext"].update(privileged=True),
    "worker: writes its root": lambda s: s["containers"][0]["securityContext"].pop("readOnlyRootFilesystem"),
    "worker: capabilities": lambda s: s["containers"][0]["securityContext"].update(capabilities={"drop": ["ALL"], "add": ["NET_RAW"]}),
    "keys: may be root": lambda s: s["initContainers"][0]["securityContext"].update(runAsUser=0),
    "worker: memory without end": lambda s: s["containers"][0]["resources"]["limits"].pop("memory"),
    "worker: nothing is reserved": lambda s: s["containers"][0]["resources"].pop("requests"),
    "worker: a secret in clear text": lambda s: s["containers"][0]["env"].append({"name": "X", "value": "postgres://u:p@h/d"}),
    "worker: no livenessProbe": lambda s: s["containers"][0].pop("livenessProbe"),
}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_is_locked_down(overlay: str) -> None:
    found = dict(pods(rendered(overlay)))
    assert "mandamus-worker" in found
    assert {name: weak(template) for name, template in found.items()} == {name: [] for name in found}
    assert not [d for d in rendered(overlay) if d["kind"] == "Secret"]  # by reference only


@pytest.mark.parametrize("what", BREAKS)
def test_a_pod_that_may_more_is_found(what: str) -> None:
    template = copy.deepcopy(dict(pods(rendered("nats")))["mandamus-worker"])
    BREAKS[what](template["spec"])
    assert what in weak(template)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_everything_that_is_named_is_there(overlay: str) -> None:
    """Mounts have volumes, policies, budgets and services select pods, the servers' ConfigMap is the one that was made."""
    documents = rendered(overlay)
    labels = [template["metadata"]["labels"] for _, template in pods(documents)]
    made = {d["metadata"]["name"] for d in documents if d["kind"] == "ConfigMap"}
    for name, template in pods(documents):
        spec = template["spec"]
        volumes = {v["name"] for v in spec["volumes"]} | ({"data"} if name == "mandamus-nats" else set())
        for c in spec["containers"] + spec.get("initContainers", []):
            assert {m["name"] for m in c["volumeMounts"]} <= volumes
        generated = {v["configMap"]["name"] for v in spec["volumes"] if v.get("configMap", {}).get("name", "").startswith("mandamus-nats-")}
        assert generated <= made
    for document in documents:
        spec = document.get("spec", {})
        wanted = spec.get("podSelector", spec.get("selector", {}))
        wanted = wanted.get("matchLabels", wanted)
        assert not wanted or any(wanted.items() <= have.items() for have in labels), document["metadata"]["name"]


def test_the_overlay_of_the_page_is_one(tmp_path: Path) -> None:
    """What docs/how-to/deploy.md shows as a start of your own renders, with the image and the number of workers that it says."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "how-to" / "deploy.md").read_text(), re.M | re.S)
    (tmp_path / "payout").mkdir()
    (tmp_path / "payout" / "kustomization.yaml").write_text(block)
    shutil.copytree(DEPLOY, tmp_path / "mandamus" / "deploy")
    done = sh(deployed.program("kubectl"), "kustomize", tmp_path / "payout")
    assert done.returncode == 0, done.stderr
    worker = next(d for d in yaml.safe_load_all(done.stdout) if d["kind"] == "Deployment")
    spec = worker["spec"]["template"]["spec"]
    assert (worker["metadata"]["namespace"], worker["spec"]["replicas"]) == ("payout", 5)
    assert {c["image"] for c in spec["containers"] + spec["initContainers"]} == {"registry.example/payout-worker:1"}


def test_a_majority_of_the_log_outlives_a_drain() -> None:
    documents = rendered("nats")
    servers = next(d for d in documents if d["kind"] == "StatefulSet")
    budget = next(d for d in documents if d["kind"] == "PodDisruptionBudget" and d["metadata"]["name"] == "mandamus-nats")
    assert (servers["spec"]["replicas"], budget["spec"]["maxUnavailable"]) == (3, 1)
    assert "requiredDuringSchedulingIgnoredDuringExecution" in servers["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    names = [f"nats://mandamus-nats-{n}.mandamus-nats:6222" for n in range(3)]
    assert servers["spec"]["template"]["spec"]["containers"][0]["args"][-1] == ",".join(names)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_worker_has_time_to_finish_what_it_began(overlay: str) -> None:
    agent = Agent.load(ROOT / "examples" / "payout" / "agent.yaml")
    slowest = max(t.spec.timeout_ms for t in agent.tools.values()) + agent.timeout_ms
    worker = dict(pods(rendered(overlay)))["mandamus-worker"]["spec"]
    assert worker["terminationGracePeriodSeconds"] * 1000 > slowest


# -- commands ------------------------------------------------------------------------------------------------------------------
def parsed(args: list[str]) -> click.Context:
    """As the command line would. Raises KeyError for a verb that does not exist, click.UsageError for an option that does not."""
    target, rest = (NOUNS[args[0]][1][args[1]][0], args[2:]) if args[0] in NOUNS else (VERBS[args[0]][0], args[1:])
    module, _, name = target.partition(":")
    command: click.Command = getattr(importlib.import_module(f"mandamus.cli.{module}"), name)
    return command.make_context(args[0], rest)


def commands() -> Iterator[tuple[str, list[str]]]:
    for overlay in OVERLAYS:
        for name, template in pods(rendered(overlay)):
            for c in template["spec"]["containers"]:
                if c["command"] == ["mandamus"]:
                    yield f"{overlay} {name}", c["args"]
    for path in COMPOSE:
        for name, service in yaml.safe_load(path.read_text())["services"].items():
            if "build" in service:
                yield f"{path.name} {name}", service["command"]
    for path in UNITS:
        for line in re.findall(r"^ExecStart=\S*/mandamus (.*)$", path.read_text(), re.M):
            yield path.name, shlex.split(line.replace("%i", "default"))


def written() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        for line in re.findall(r"^\$ (?:[A-Z_]+=\S* )*mandamus (.*)$", page.read_text(), re.M):
            yield page.name, shlex.split(line, comments=True)


def test_every_command_is_one_that_there_is() -> None:
    found = [*commands(), *written()]
    assert len(list(commands())) >= len(OVERLAYS) + len(COMPOSE) + 1
    assert len(list(written())) >= 10
    for where, args in found:
        try:
            parsed(args)
        except (KeyError, click.UsageError) as error:
            pytest.fail(f"{where}: mandamus {' '.join(args)}: {error!r}")


def test_an_option_that_there_is_not_is_found() -> None:
    with pytest.raises(click.UsageError):
        parsed(["worker", "agent.yaml", "--slotz", "4"])
    with pytest.raises(KeyError):
        parsed(["walker"])


# -- probes --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_probe_sees_a_worker_that_turns_and_one_that_stands_still(overlay: str, tmp_path: Path) -> None:
    """The command and the probes of the manifest, with another folder: no file, a fresh one, an old one, and none after SIGTERM."""
    pod = dict(pods(rendered(overlay)))["mandamus-worker"]["spec"]["containers"][0]
    alive = tmp_path / "alive"

    def probe(name: str) -> int:
        *shell, script = pod[name]["exec"]["command"]
        assert "/run/mandamus/alive" in script
        return sh(*shell, script.replace("/run/mandamus/alive", str(alive))).returncode

    args = [str(alive) if x == "/run/mandamus/alive" else x.replace("/srv/agent", str(ROOT / "examples" / "payout")) for x in pod["args"]]
    assert probe("startupProbe") != 0
    assert probe("livenessProbe") != 0
    env = {k: v for k, v in os.environ.items() if not k.startswith("MANDAMUS_")} | {"PYTHONPATH": str(ROOT / "src")}
    uri = f"sqlite:///{tmp_path}/run.db"
    with subprocess.Popen(
        [sys.executable, "-m", "mandamus", *args, "--ledger", uri], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stderr is not None
            assert worker.stderr.readline().startswith("worker ")  # it has opened its ledger, and hears signals right after
            assert [probe(x) for x in ("startupProbe", "livenessProbe", "readinessProbe")] == [0, 0, 0]
            worker.send_signal(signal.SIGSTOP)
            os.utime(alive, (0, 0))  # as if it had stood still for a long time
            assert probe("livenessProbe") != 0
            worker.send_signal(signal.SIGCONT)
            while alive.stat().st_mtime == 0:  # the next beat makes it fresh again
                assert worker.poll() is None
                time.sleep(0.1)
            assert probe("livenessProbe") == 0
            worker.send_signal(signal.SIGTERM)
            worker.stderr.read()
            assert worker.wait(60) == 0
        finally:
            worker.kill()
    assert not alive.exists()


# -- keys ----------------------------------------------------------------------------------------------------------------------
@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that others may pass: pytest's own are closed to them, and closed again by whoever starts next."""
    with tempfile.TemporaryDirectory(prefix="mandamus-keys-") as folder:
        yield Path(folder)


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can lay down a Secret's files as the cluster does")
def test_the_worker_can_read_its_key_and_nobody_else(place: Path) -> None:
    """A Secret's files are root's, with the group of the pod: refused as they are, and right after the first container has run."""
    from mandamus.drivers.sign_file import FileSigner

    uid = dict(pods(rendered("postgres")))["mandamus-worker"]["spec"]["securityContext"]["runAsUser"]
    secret, keys, home = (place / x for x in ("secret", "keys", "home"))
    place.chmod(0o711)
    secret.mkdir()
    FileSigner.create(secret / "log.pem", "test.local/log")
    os.chown(secret / "log.pem", 0, uid)
    (secret / "log.pem").chmod(0o440)
    for folder in (keys, home):
        folder.mkdir()
        os.chown(folder, uid, uid)
    script = dict(pods(rendered("postgres")))["mandamus-worker"]["spec"]["initContainers"][0]["command"][-1]
    for inside, here in (("/etc/mandamus/keys/", f"{secret}/"), (" /keys/", f" {keys}/"), ("/home/", f"{home}/")):
        assert inside in script
        script = script.replace(inside, here)
    worker = [deployed.program("setpriv"), "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    done = sh(*worker, "/bin/sh", "-euc", script, cwd="/")
    assert done.returncode == 0, done.stderr
    opens = "import sys; from mandamus.drivers.sign_file import FileSigner; print(FileSigner.open(sys.argv[1]).vkey)"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    raw = sh(*worker, sys.executable, "-c", opens, secret / "log.pem", cwd="/", env=env)
    assert "MDM-0192" in raw.stderr, raw
    own = sh(*worker, sys.executable, "-c", opens, keys / "log.pem", cwd="/", env=env)
    assert own.stdout.startswith("test.local/log+"), own
    assert (home / "trust").readlink() == Path("/etc/mandamus/trust/trust")


def test_no_worker_can_make_a_key_of_its_own() -> None:
    """One that lacks the log's key, or would have to sign for the administrator, must stop."""
    inside = "/var/lib/mandamus/.mandamus/keys"
    for overlay in OVERLAYS:
        mounts = dict(pods(rendered(overlay)))["mandamus-worker"]["spec"]["containers"][0]["volumeMounts"]
        assert [m["readOnly"] for m in mounts if m["mountPath"] == inside] == [True]
    for path in COMPOSE:
        worker = yaml.safe_load(path.read_text())["services"]["worker"]
        assert [v.rpartition(":")[2] for v in worker["volumes"] if f":{inside}:" in v] == ["ro"]
    assert f"ReadOnlyPaths=-{inside}\n" in (DEPLOY / "systemd" / "mandamus-worker@.service").read_text()


# -- compose, the image, units -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", COMPOSE, ids=lambda p: p.stem)
def test_compose_files_are_what_compose_takes(path: Path, tmp_path: Path) -> None:
    check = [deployed.program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    good = sh(*check, path)
    assert good.returncode == 0, good.stdout
    broken = tmp_path / "broken.yaml"
    broken.write_text(path.read_text().replace("read_only: true", "read_onli: true"))
    bad = sh(*check, broken)
    assert bad.returncode == 1
    assert "read_onli" in bad.stdout


@pytest.mark.parametrize("path", COMPOSE, ids=lambda p: p.stem)
def test_compose_services_are_locked_down(path: Path) -> None:
    made = yaml.safe_load(path.read_text())
    for name, service in made["services"].items():
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "network_mode", "pid", "ipc"} & service.keys() or service.get("network_mode") == "none", name
        assert "ports" not in service, name  # nothing is open to the host's network
        if name != "postgres":  # the image changes its user itself
            assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        if "build" in service:
            assert service["user"].split(":")[0] != "0"
            assert "healthcheck" in service or service["profiles"] == ["operator"], name
        for source in (v.split(":")[0] for v in service.get("configs", []) if isinstance(v, str)):
            assert source in made["configs"]
    for entry in made.get("configs", {}).values():
        assert (path.parent / entry["file"]).is_file()
    assert made["networks"]["ledger"]["internal"] is True


def settings(text: str) -> dict[str, str]:
    return {k: v.strip("'") for k, v in re.findall(r"^(\w+) = (\S+)", text, re.M)}


def test_compose_runs_postgres_with_our_settings() -> None:
    ours = settings((DEPLOY / "postgres" / "postgresql.conf").read_text())
    assert {k: ours[k] for k in ("fsync", "full_page_writes", "synchronous_commit")} == dict.fromkeys(
        ("fsync", "full_page_writes", "synchronous_commit"), "on"
    )
    said = yaml.safe_load((DEPLOY / "compose" / "postgres.yaml").read_text())["services"]["postgres"]["command"]
    given = dict(x.split("=", 1) for x in said[2::2])
    assert given
    assert given.items() <= ours.items()


def test_the_image_takes_what_is_there_and_is_not_root() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    taken = [word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]]
    assert taken
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for word in (w.replace("${PROJECT}", "examples/payout") for w in taken):
        assert (ROOT / word).exists(), word
        assert f"!{word.split('/')[0]}" in ignored, word
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users[-1] == "10001:10001"  # by number: runAsNonRoot cannot judge a name
    assert json.loads(next(x for x in lines if x.startswith("ENTRYPOINT ")).partition(" ")[2]) == ["mandamus"]
    parsed(json.loads(next(x for x in lines if x.startswith("CMD ")).partition(" ")[2]))


@pytest.mark.parametrize("path", UNITS, ids=lambda p: p.stem)
def test_units_are_what_systemd_takes(path: Path, tmp_path: Path) -> None:
    """The programs are not installed here; everything else of the unit is judged."""
    verify = [deployed.program("systemd-analyze"), "verify", "--man=no"]
    unit = tmp_path / path.name
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", path.read_text(), flags=re.M)
    unit.write_text(text)
    good = sh(*verify, unit)
    assert (good.returncode, good.stderr) == (0, "")
    unit.write_text(text.replace("NoNewPrivileges=true", "NoNewPrivilegez=true"))
    assert "NoNewPrivilegez" in sh(*verify, unit).stderr
