"""What must be true of the servers before a run is written to them: `await prepare(wire, names)` at opening, `await findings(…)` for
`doctor`.

The streams are made when they are missing and this user may make them; what is there is held against what the ledger relies on. A server
that flushes now and then (its default) is refused: it acknowledges what a power cut takes back.

The rule a newcomer would break: `sync_interval` says nothing. A server that flushes always still prints two minutes; only `sync_always`
counts.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import httpx

from mandamus.drivers.ledger_nats import layout
from mandamus.drivers.ledger_nats.layout import Names
from mandamus.drivers.ledger_nats.uri import MAX_BYTES_DEV, Options
from mandamus.drivers.ledger_nats.wire import AGAIN, BUSY, NO_STREAM, Refusal, Silence, Wire, answered, silent
from mandamus.errors import EngineFault, Misuse

PASSING = AGAIN | {BUSY}
VERSION_MIN = (2, 14)
ALARM = 0.8
Finding = tuple[str, str, str]  # state, what, fix


def configs(o: Options, names: Names) -> dict[str, dict[str, Any]]:
    """Every stream as the ledger relies on it. What an operator makes by hand must say the same."""
    root, common = names.root, {"num_replicas": o.replicas, "storage": "file", "max_age": 0, "max_msgs": -1, "allow_direct": False}
    room = o.max_bytes or MAX_BYTES_DEV
    log: dict[str, Any] = {
        "subjects": [f"{root}.{kind}.>" for kind in ("ev", "pay", "bud", "mailbox", "gate")],
        "retention": "limits",
        "discard": "new",
        "deny_delete": True,
        "deny_purge": True,
        "allow_atomic": True,
        "duplicate_window": layout.DUPLICATES_NS,
        "max_bytes": room,
        "republish": {"src": f"{root}.mailbox.>", "dest": f"{root}.post.>", "headers_only": True},
        "metadata": {"mandamus.shards": str(o.shards)},
    }
    keys: dict[str, Any] = {
        "max_msgs_per_subject": 1,
        "discard": "new",
        "deny_delete": True,
        "allow_msg_ttl": True,
    }
    keys |= {"max_bytes": max(room // 8, 1 << 24)}
    lease: dict[str, Any] = {"subjects": [f"$KV.{names.lease_bucket}.>"], "allow_atomic": True, **keys}
    node: dict[str, Any] = {"subjects": [f"$KV.{names.node_bucket}.>"], **keys, "max_bytes": 1 << 24}
    task: dict[str, Any] = {
        "subjects": [f"{root}.task.>", f"{root}.wake.>"],
        "retention": "workqueue",
        "discard": "old",
        "max_msgs_per_subject": 1,
        "allow_msg_schedules": True,
        "allow_rollup_hdrs": True,  # comes with schedules; nowhere else, since one message could wipe a stream by it
        "allow_msg_ttl": True,
        "republish": {"src": f"{root}.task.>", "dest": f"{root}.bell.>", "headers_only": True},
        "max_bytes": max(room // 8, 1 << 24),
    }
    streams = {names.log: log, names.lease: lease, names.node: node | {"storage": "memory"}, names.task: task}
    return {name: common | one | {"name": name} for name, one in streams.items()}


async def prepare(wire: Wire, o: Options) -> list[str]:
    """Names of the tenant's shard are found first, then everything is checked. Returns the assumptions that were made."""
    async with answered("its configuration"):
        try:
            return await _prepare(wire, o)
        except Silence as silence:
            if "permissions" in silence.says:
                raise _cannot_make(Names(o.name, shard(o), o.tenant).log, silence.says) from None
            raise


async def _prepare(wire: Wire, o: Options) -> list[str]:
    names = Names(o.name, shard(o), o.tenant)
    _version(o, (await wire.client()).connected_server_version)
    if o.shard < 0:
        await _shards(wire, o)
    wanted = configs(o, names)
    infos = dict(zip(wanted, await asyncio.gather(*(_stream(wire, o, config) for config in wanted.values()))))
    log = infos[names.log]
    for name, info in infos.items():
        _held_against(o, name, wanted[name], info["config"])
    return await _flushes(o, log)


async def _shards(wire: Wire, o: Options) -> None:
    """In how many shards the ledger lies, its first log says. Another number would look for a tenant's runs where they are not."""
    first = Names(o.name, 0, o.tenant)
    info = await _stream(wire, o, configs(o, first)[first.log])
    shards = int(info["config"].get("metadata", {}).get("mandamus.shards", "1"))
    if shards != o.shards:
        raise _differs(first.log, "number of shards", f"?shards={shards}, as the log was made", f"shards={o.shards}")


def shard(o: Options) -> int:
    return o.shard if o.shard >= 0 else layout.shard_of(o.tenant, max(o.shards, 1))


async def _stream(wire: Wire, o: Options, config: dict[str, Any]) -> dict[str, Any]:
    name = config["name"]
    if "_LOG_" in name and not o.max_bytes and o.tier != "dev":
        existing = await _info(wire, name)
        if existing is not None:
            return existing
        raise Misuse(
            "the log's size must be set before it is made",
            code="MDM-0568",
            where=name,
            expected="?max_bytes=N, below what the disks of all nodes have",
            why="a log without a bound fills the disk, and a server whose disk is full must be restarted before it writes again",
        )
    says, end = "no leader", time.monotonic() + o.patience_ms / 1000
    while time.monotonic() < end:
        try:
            found = await _info(wire, name)
            if found is not None:
                return found
            await wire.api(f"STREAM.CREATE.{name}", config)
        except Refusal as refusal:
            if refusal.http not in (503, 500) and "peer" not in refusal.says and refusal.code != 10058:
                raise _cannot_make(name, str(refusal)) from None
            says = str(refusal)
        except Silence as silence:
            if wire.denies("STREAM.CREATE") or "permissions" in silence.says:
                raise _cannot_make(name, wire.denied) from None
            says = silence.says
        await asyncio.sleep(0.2)  # just after its start a cluster may not know its peers yet
    raise silent(f"stream {name} could not be made", says, "none")


async def _info(wire: Wire, name: str) -> dict[str, Any] | None:
    try:
        info = await wire.api(f"STREAM.INFO.{name}")
    except Refusal as refusal:
        if refusal.code == NO_STREAM:
            return None
        raise Silence(str(refusal), sent=False) from None
    if "leader" not in info.get("cluster", {"leader": ""}):
        raise Silence(f"stream {name} has no leader", sent=False)
    return info


# -- what is refused -------------------------------------------------------------------------------------------------------------
def _held_against(o: Options, name: str, wanted: dict[str, Any], found: dict[str, Any]) -> None:
    replicas = found.get("num_replicas", 1)
    if replicas < 3 and o.tier != "dev":
        raise EngineFault(
            "the log has too few replicas",
            code="MDM-0566",
            where=name,
            expected="3 or 5",
            found=str(replicas),
            why="what one server acknowledged is gone with that server",
            fix="have the operator raise num_replicas; one replica is for tier dev",
        )
    if found.get("max_bytes", -1) <= 0:
        raise _unbounded(name)
    for key, value in wanted.items():
        if key in ("num_replicas", "max_bytes", "metadata", "name"):
            continue
        if found.get(key, _ABSENT.get(key)) != value and not (key == "subjects" and sorted(found.get(key, [])) == sorted(value)):
            raise _differs(name, key, str(value), str(found.get(key)))
    for key in _PLAIN:
        if key not in wanted and found.get(key) not in (None, False, 0, -1, []):
            raise _differs(name, key, "none", str(found[key]))
    if found.get("persist_mode", "default") not in ("", "default"):
        raise _differs(name, "persist_mode", "default", str(found["persist_mode"]))


# What changes, bounds or brings in messages unseen. A stream that says nothing of it has it not.
_PLAIN: tuple[str, ...] = (
    *("allow_rollup_hdrs", "allow_msg_ttl", "allow_msg_schedules", "allow_msg_counter", "allow_atomic", "allow_batched", "mirror_direct"),
    *("max_msgs_per_subject", "max_msg_size", "max_consumers", "first_seq", "discard_new_per_subject", "subject_delete_marker_ttl"),
    *("mirror", "sources", "subject_transform", "republish", "no_ack", "sealed"),
)
_ABSENT: dict[str, Any] = {"allow_direct": False, "max_age": 0, "retention": "limits", "discard": "old", "storage": "file"}


def _version(o: Options, found: Any) -> None:
    if (found.major, found.minor) < VERSION_MIN:
        raise _too_old(", ".join(o.servers), f"{found.major}.{found.minor}")


async def _flushes(o: Options, log: dict[str, Any]) -> list[str]:
    """Every server that holds the log must flush before it answers.

    One that does not answer just now, while a majority is known to flush, is a note: else no process could begin while a machine is away.
    """
    if o.tier == "dev" and log["config"].get("num_replicas", 1) < 3:
        return ["one replica: what it acknowledged may be lost with its server (tier dev)"]
    if not o.monitor:
        if o.assume_sync_always:
            return ["sync always is assumed, not seen (assume_sync_always=1)"]
        raise _lazy(log["config"]["name"], "nobody says so", "?monitor=http://HOST:8222,… names the servers' monitoring addresses")
    cluster = log.get("cluster", {})
    peers = {cluster.get("leader", ""), *(peer["name"] for peer in cluster.get("replicas") or ())} - {""}
    seen: dict[str, bool] = {}
    mute: list[str] = []
    async with httpx.AsyncClient(timeout=5) as client:
        for url in o.monitor:
            try:
                told = (await client.get(f"{url.rstrip('/')}/varz")).raise_for_status().json()
            except (httpx.HTTPError, ValueError) as error:
                mute.append(f"{url} ({type(error).__name__})")
                continue
            seen[told["server_name"]] = _sync_always(told)
            _version_text(url, told.get("version", "0.0"))
    lazy = sorted(name for name, always in seen.items() if not always)
    if lazy:
        raise _lazy(", ".join(lazy), "sync_always is false", "jetstream { sync_interval: always } in the configuration of every server")
    if unseen := sorted(peers - seen.keys()):
        if o.assume_sync_always:
            return [f"sync always is assumed of {', '.join(unseen)} (assume_sync_always=1)"]
        if len(unseen) <= len(mute) and 2 * len(peers & seen.keys()) > len(peers):
            return [f"sync always of {', '.join(unseen)} could not be seen now: {', '.join(mute)} does not answer"]
        if mute:
            raise _lazy(", ".join(mute), "no answer", "bring a majority of the servers back, or let this machine read /varz there")
        raise _lazy(", ".join(unseen), "not among the monitored servers", "?monitor= must name every server that holds the log")
    return []


def _sync_always(varz: dict[str, Any]) -> bool:
    config = (varz.get("jetstream") or {}).get("config") or {}
    return config.get("sync_always") is True


def _version_text(where: str, text: str) -> None:
    digits = re.match(r"(\d+)\.(\d+)", text)
    if digits is None or (int(digits[1]), int(digits[2])) < VERSION_MIN:
        raise _too_old(where, text)


async def facts(wire: Wire, o: Options, notes: list[str]) -> dict[str, str]:
    """For `doctor`, when nothing was refused: settings by name."""
    names = Names(o.name, shard(o), o.tenant)
    async with answered("its configuration"):
        log = await wire.api(f"STREAM.INFO.{names.log}")
    version = (await wire.client()).connected_server_version
    return {
        "version": f"{version.major}.{version.minor}.{version.patch}",
        "stream": names.log,
        "replicas": str(log["config"]["num_replicas"]),
        "sync": "always" if not notes else "not seen",
        "max_bytes": str(log["config"]["max_bytes"]),
    }


async def findings(wire: Wire, o: Options, notes: list[str]) -> list[Finding]:
    """For `doctor`: what was assumed, how full the streams are, whether replicas follow."""
    names = Names(o.name, shard(o), o.tenant)
    told: list[Finding] = [("degraded", f"NATS: {note}", "") for note in notes]
    async with answered("its configuration"):
        for name in (names.log, names.lease, names.task):
            info = await wire.api(f"STREAM.INFO.{name}")
            used, room = info["state"]["bytes"], info["config"].get("max_bytes", -1)
            if room > 0 and used >= ALARM * room:
                fix = "the operator raises max_bytes (and the disks) before appends are refused"
                told.append(("degraded", f"{name} is {100 * used // room} % full: {used} of {room} bytes", fix))
            late = [p["name"] for p in info.get("cluster", {}).get("replicas") or () if p.get("offline") or not p.get("current", True)]
            if late:
                told.append(
                    ("degraded", f"{name}: {', '.join(late)} does not follow", "bring the server back; change no membership meanwhile")
                )
    return told


# -- diagnoses -------------------------------------------------------------------------------------------------------------------
def _too_old(where: str, found: str) -> EngineFault:
    return EngineFault(
        "the NATS server is too old",
        code="MDM-0564",
        where=where,
        expected="2.14 or later",
        found=found,
        why="atomic batches over several subjects, schedules and keys that run out come with it",
        fix="upgrade the servers, one at a time",
    )


def _lazy(where: str, found: str, fix: str) -> EngineFault:
    return EngineFault(
        "the servers are not known to flush before they answer",
        code="MDM-0565",
        where=where[:200],
        expected="sync always on every server",
        found=found[:200],
        why="by default a server flushes every two minutes: a power cut takes back what it acknowledged, and an effect happens twice",
        fix=fix,
    )


def _differs(name: str, key: str, expected: str, found: str) -> EngineFault:
    return EngineFault(
        f"the stream's {key} is not what the ledger relies on",
        code="MDM-0567",
        where=name,
        expected=expected[:200],
        found=found[:200],
        why="the setting decides whether records can be lost, changed or read from a replica that lags",
        fix="have the operator make the stream as docs/adr/0027-nats-ledger.md prints it",
    )


def _unbounded(name: str) -> EngineFault:
    return EngineFault(
        "the stream has no bound",
        code="MDM-0568",
        where=name,
        expected="max_bytes below what the disks of all nodes have",
        why="a server whose disk is full must be restarted before it writes again; a full stream refuses and goes on",
        fix="nats stream edit --max-bytes=…",
    )


def _cannot_make(name: str, says: str) -> EngineFault:
    return EngineFault(
        "the stream is missing and this user may not make it",
        code="MDM-0569",
        where=name,
        found=says[:200],
        fix="have the operator open the ledger once with rights to create streams, or make it as docs/adr/0027-nats-ledger.md prints it",
    )
