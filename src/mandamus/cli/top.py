"""`top`: what a ledger has to do and who does it, from its head rows and the workers' own words; on a terminal again and again.

The rule a newcomer would break: nothing here is evidence. A row's state is a hint and a worker says of itself what it likes; `show` and
`verify` read the chain.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click
from msgspec import Struct

from mandamus.cli import log_state, read
from mandamus.cli.common import Cli, verb
from mandamus.cli.say import shown, table
from mandamus.cli.stuck import halt
from mandamus.core.records import LOG, RunHalted, decode
from mandamus.ports import AT_REST, Head, Ledger, Node

EVERY_S = 2.0
HALTED_MAX = 20  # of the halted runs, so many are told one by one
TAIL = 8
WORDS = {
    "child": "waiting for a child run",
    "level": "waiting for the log's witnesses",
    "people": "waiting for people",
    "time": "waiting for a time",
    "worker": "waiting for a worker",
}


class Seen(Struct):
    """One look: the rows that are not at rest, how many there are of each state, the newest halted ones with their cause."""

    now: int
    rows: list[Head]
    states: dict[str, int]
    halted: list[tuple[str, str, str]]
    nodes: list[Node]
    log_waits: int | None = None  # records that lie under no signed checkpoint; None where there is no log


@verb("top", exits={0: "shown"})
@click.option("--once", is_flag=True, help="Look once, also on a terminal.")
def top(cli: Cli, once: bool) -> int:
    """Runs by state, what is due, claimed and waiting in each pool, workers, halted runs with their cause. Ctrl-C ends it."""
    again = not once and not cli.json and not cli.quiet and cli.stdout.isatty()
    return cli.run(_top(cli, again))


async def _top(cli: Cli, again: bool) -> int:
    async with cli.reading() as ledger:
        while again:
            text = words(cli, await look(cli, ledger))
            cli.stdout.write("\x1b[H\x1b[2J" + text + "\n")
            cli.stdout.flush()
            await asyncio.sleep(EVERY_S)
        seen = await look(cli, ledger)
    cli.tell(as_object(cli, seen), lambda: words(cli, seen))
    return 0


async def look(cli: Cli, ledger: Ledger) -> Seen:
    seen = Seen(time.time_ns() // 1000, [], {}, [], [])
    stopped: list[str] = []
    async for head in ledger.runs():
        if head.run == LOG:
            continue
        word = "worker" if head.state == "running" and not head.owner else head.state  # given back, or never begun
        seen.states[word] = seen.states.get(word, 0) + 1
        if head.state not in AT_REST:
            seen.rows.append(head)
        elif head.state == "halted":
            stopped.append(head.run)
    for run in stopped[-HALTED_MAX:]:
        seen.halted.append((run, *await _why(ledger, run)))
    seen.nodes = [node async for node in ledger.nodes()]
    seen.log_waits = await log_state.waits(cli)
    return seen


async def _why(ledger: Ledger, run: str) -> tuple[str, str]:
    """(cause, code) of the last halt: it stands at the end of the chain, or nearly."""
    head = await ledger.head(run)
    facts = [] if head is None else [decode(raw).fact async for raw in ledger.read(run, head.seq - TAIL)]
    found = [f for f in facts if isinstance(f, RunHalted)]
    return (found[-1].cause, found[-1].code) if found else ("people", "stop")


# -- what is told ------------------------------------------------------------------------------------------------------------
def as_object(cli: Cli, seen: Seen) -> dict[str, Any]:
    oldest = _oldest(cli, seen)
    return {
        "at": read.when(seen.now),
        "halted": [{"cause": cause, "code": code, "run_id": run} for run, cause, code in seen.halted],
        "log_waits": seen.log_waits,
        "oldest_due": oldest.run if oldest else "",
        "pools": [_pool(cli, seen, name) for name in _pools(seen)],
        "runs": dict(sorted(seen.states.items())),
        "workers": [_worker(seen, node) for node in seen.nodes],
    }


def _pools(seen: Seen) -> list[str]:
    return sorted({head.pool for head in seen.rows} | {node.pool for node in seen.nodes})


def _pool(cli: Cli, seen: Seen, name: str) -> dict[str, Any]:
    rows = [head for head in seen.rows if head.pool == name]
    claimed = [head for head in rows if driven(cli, head, seen.now)]
    due = [head for head in rows if head not in claimed and _due(head, seen.now)]
    nodes = [node for node in seen.nodes if node.pool == name]
    oldest = min((head.wake_at or seen.now for head in due if head.wake_at != 0), default=seen.now)
    return {
        "claimed": len(claimed), "due": len(due), "oldest_due_s": max(0, (seen.now - oldest) // 1_000_000), "pool": name,
        "slots": sum(node.slots for node in nodes), "waits": len(rows) - len(claimed) - len(due), "workers": len(nodes),
    }  # fmt: skip


def _worker(seen: Seen, node: Node) -> dict[str, Any]:
    return {
        "agents": list(node.agents), "busy": node.busy, "draining": node.draining, "id": node.id, "pool": node.pool,
        "seen_s": max(0, (seen.now - node.seen) // 1_000_000), "slots": node.slots, "version": node.version,
    }  # fmt: skip


def driven(cli: Cli, head: Head, now: int) -> bool:
    """By a living process, as far as the row and its lock tell."""
    from mandamus import wiring

    if not head.owner:
        return False
    return bool(wiring.driver_of(cli.uri, head)) and (bool(wiring.ledger_store(cli.uri).held) or head.lease_until > now)


def _due(head: Head, now: int) -> bool:
    return head.wake_at is not None and head.wake_at <= now


def _oldest(cli: Cli, seen: Seen) -> Head | None:
    due = [head for head in seen.rows if _due(head, seen.now) and not driven(cli, head, seen.now)]
    return min(due, key=lambda head: (head.wake_at, head.run), default=None)


def words(cli: Cli, seen: Seen) -> str:
    said = as_object(cli, seen)
    states = ", ".join(f"{n} {WORDS.get(state, state)}" for state, n in said["runs"].items()) or "none yet"
    rows = [f"{said['at']}  runs: {states}"]
    if said["pools"]:
        head = ("pool", "due", "claimed", "waits", "workers", "slots", "oldest due")
        body = [[p["pool"], *(str(p[k]) for k in ("due", "claimed", "waits", "workers", "slots")), _age(p)] for p in said["pools"]]
        rows += ["", table(head, body)]
    if said["workers"]:
        body = [[shown(w["id"]), w["pool"], f"{w['busy']}/{w['slots']}", f"{w['seen_s']} s ago", _doing(w)] for w in said["workers"]]
        rows += ["", table(("worker", "pool", "busy", "heard", ""), body)]
    if said["log_waits"]:
        rows += ["", f"log: {said['log_waits']} records wait to be signed"]
    alone = [p["pool"] for p in said["pools"] if p["due"] and not p["workers"]]
    rows += [""] if alone else []
    rows += [
        f"nobody serves pool {pool}: " + cli.command("worker AGENT" + ("" if pool == "default" else f" --pool {pool}")) for pool in alone
    ]
    if said["oldest_due"]:
        rows += ["", f"due longest: {said['oldest_due']}"]
    for parked in said["halted"]:
        what, _ = halt(parked["code"], parked["cause"])
        rows.append(f"halted: {parked['run_id']}  {what}: " + cli.command(f"show {parked['run_id']}"))
    return "\n".join(rows)


def _age(pool: dict[str, Any]) -> str:
    return f"{pool['oldest_due_s']} s" if pool["due"] else "-"


def _doing(worker: dict[str, Any]) -> str:
    return "leaving" if worker["draining"] else ""
