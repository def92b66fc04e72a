"""The yardstick, not a peer: the least work that the laws need, so that every goal has a floor to be compared with.

A one-tool turn writes nine chained events with the architecture's names: canonical bytes (typed, keys in declared = sorted order), a
SHA-256 chain, compare-and-append, and exactly two durable commits, one before the model is called and one before the tool is called. Each
commit carries the outcome of the last effect and the intent of the next. It has no real policy engine, no schema check, no guardrail, no
payloads, no head row and no OpenTelemetry, and its events are small: it is the floor, not the goal. Keep it as it is.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

DOMAIN = b"mandamus/v1/event\0"
RULES = {"add": "allow"}
Body = dict[str, Any]
Stored = tuple[str, int, bytes, str]


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Fields are declared in sorted order: typed encoding is then already canonical, with no sorting pass."""

    at: int
    body: dict
    prev: str
    run: str
    seq: int
    type: str
    v: int = 1


encode, decode = msgspec.json.Encoder(order="sorted").encode, msgspec.json.Decoder(Event).decode


def genesis(run: str) -> str:
    return hashlib.sha256(b"mandamus/v1/genesis\0" + run.encode()).hexdigest()


def digest(raw: bytes) -> str:
    return hashlib.sha256(DOMAIN + raw).hexdigest()


class Log:
    """One run's chain. `add` is memory only; the ledger's `commit` makes everything added so far durable in one transaction."""

    __slots__ = ("held", "prev", "run", "seq")

    def __init__(self, run: str, seq: int = 0, prev: str = "") -> None:
        self.run, self.seq, self.held = run, seq, list[Stored]()
        self.prev = prev or genesis(run)

    def add(self, kind: str, body: Body) -> None:
        self.seq += 1
        raw = encode(Event(time.time_ns() // 1000, body, self.prev, self.run, self.seq, kind))
        self.prev = digest(raw)
        self.held.append((self.run, self.seq, raw, self.prev))

    def take(self) -> list[Stored]:
        held, self.held = self.held, []
        return held


class Ledger(Protocol):
    async def commit(self, log: Log) -> None: ...


class Memory:
    """Forgets."""

    async def commit(self, log: Log) -> None:
        log.take()


class Sqlite:
    """WAL + synchronous=FULL. The primary key (run, seq) is the compare-and-append: a second writer of the same position fails."""

    def __init__(self, path: str) -> None:
        self.c = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.c.execute("pragma journal_mode=wal")
        self.c.execute("pragma synchronous=full")
        self.c.execute("create table if not exists event(run text, seq int, raw blob, hash text, primary key(run, seq)) without rowid")

    def write(self, rows: list[Stored]) -> None:
        self.c.execute("begin immediate")
        self.c.executemany("insert into event values(?,?,?,?)", rows)
        self.c.execute("commit")

    async def commit(self, log: Log) -> None:
        self.write(log.take())

    def read(self, run: str) -> Iterable[tuple[bytes, str]]:
        return self.c.execute("select raw, hash from event where run=? order by seq", (run,))

    def stored(self) -> int:
        return int(self.c.execute("select sum(length(raw) + length(hash) + 8) from event").fetchone()[0])


async def model(history: list[Body], turns: int, tool: str = "add", last: str = "add") -> Body:
    """Scripted: one tool call per turn, `last` in the last turn but one, then the answer."""
    k = len(history)
    if k < 2 * (turns - 1) + 1:
        return {"content": "", "id": f"c{k}", "name": last if k == 2 * (turns - 1) - 1 else tool, "args": {"a": k, "b": 1}}
    return {"content": "done"}


async def drive(run: str, turns: int, ledger: Ledger, last: str = "add") -> str:
    """A whole run of `turns` turns, the last of which is the answer. Stops at a tool that no rule allows, and asks people."""
    log = Log(run)
    history: list[Body] = [{"content": "go", "role": "user"}]
    tokens = 12
    log.add("RunOpened", {"input": "go"})
    for turn in range(turns):
        log.add("TurnStarted", {"turn": turn})
        log.add("ContextCompiled", {"messages": len(history), "tokens": tokens})  # a running count, never a re-scan
        log.add("ModelCalled", {"turn": turn})
        await ledger.commit(log)  # barrier 1: the last outcome, and the intent to ask the model
        reply = await model(history, turns, last=last)
        history.append(reply)
        log.add("ModelReplied", reply)
        if call := reply.get("id"):
            name, args = reply["name"], reply["args"]
            log.add("ActionProposed", {"args": args, "id": call, "tool": name})
            verdict = RULES.get(name, "ask")
            log.add("ActionJudged", {"grant": "g1", "id": call, "rules": ["tools/" + name], "verdict": verdict})
            if verdict == "ask":
                log.add("ApprovalRequested", {"id": call})
                await ledger.commit(log)
                return "suspended"
            log.add("ActionStarted", {"id": call, "key": f"{run}/{call}"})
            await ledger.commit(log)  # barrier 2: the reply, the verdict, and the intent to act
            output = args["a"] + args["b"]
            history.append({"content": output, "id": call, "role": "tool"})
            log.add("ActionEnded", {"id": call, "output": output})  # durable with barrier 1 of the next turn
            log.add("GuardrailChecked", {"id": call, "stage": "tool_result", "verdict": "pass"})
            tokens += 24
    log.add("RunCompleted", {"output": history[-1]["content"]})
    await ledger.commit(log)
    return str(history[-1]["content"])


def fold(rows: Iterable[tuple[bytes, str]], run: str) -> tuple[int, str, list[Body], Body | None]:
    """Reads as the auditor reads: canonical bytes, hash, chain, sequence; then the state (history and the pending action)."""
    seq, prev, pending = 0, genesis(run), None
    history: list[Body] = []
    for raw, known in rows:
        e = decode(raw)
        if encode(e) != raw or e.prev != prev or e.seq != seq + 1 or digest(raw) != known:
            raise ValueError(f"broken chain at {seq + 1}")
        seq, prev = e.seq, known
        if e.type in ("RunOpened", "ModelReplied"):
            history.append(e.body)
        elif e.type == "ActionProposed":
            pending = e.body
        elif e.type == "ActionEnded":
            history.append(e.body)
            pending = None
    return seq, prev, history, pending
