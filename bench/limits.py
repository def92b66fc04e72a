"""The physical limits under every ratio: flush, SQLite commit, Python call and switch, encode, hash, sign.

    python bench/limits.py [disk sqlite python codec] [--json out.json]

µs per operation, median and range of several samples.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import pathlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

import common
from interleave import Row, spread

ROUNDS = 3 if common.QUICK else 5
EVENT = {
    "at": 1763756830123456, "body": {
        "args": {"a": 1, "b": 2}, "hash": "b" * 64, "note": "x" * 180, "output": {"ok": True, "value": 3},
        "policy": {"reason": "allow list", "rule": "tools/add", "verdict": "allow"}, "tool": "add", "turn": 17,
    }, "prev": "a" * 64, "run": "01JD0000000000000000000000", "seq": 12345, "type": "ActionEnded", "v": 1,
}  # fmt: skip
RAW = json.dumps(EVENT, separators=(",", ":")).encode().ljust(600)
Samples = Iterator[tuple[str, list[float]]]


def per_op(work: Callable[[], Any], n: int) -> list[float]:
    samples = []
    for _ in range(ROUNDS):
        t = time.perf_counter()
        for _ in range(n):
            work()
        samples.append((time.perf_counter() - t) / n * 1e6)
    return samples


def disk(n: int = 50 if common.QUICK else 200) -> Samples:
    for size, sync in ((4096, os.fdatasync), (600, os.fdatasync), (4096, os.fsync)):
        with common.scratch("limit") as folder:
            fd = os.open(folder + "/f", os.O_CREAT | os.O_RDWR)

            def work(fd: int = fd, block: bytes = b"x" * size, sync: Callable[[int], None] = sync) -> None:
                os.write(fd, block)
                sync(fd)

            yield f"append {size} B + {sync.__name__}", per_op(work, n)
            os.close(fd)


def sqlite(n: int = 100 if common.QUICK else 400) -> Samples:
    full = [("wal", "full", 1), ("wal", "full", 10), ("wal", "full", 100), ("delete", "full", 1)]
    settings = [*full, ("wal", "normal", 1), ("wal", "off", 1)]
    for journal, sync, group in settings:
        samples = []
        rows = n * (1 if group == 1 else 4)
        for _ in range(ROUNDS):
            with common.scratch("limit") as folder:
                c = sqlite3.connect(folder + "/x.db", isolation_level=None)
                c.execute(f"pragma journal_mode={journal}")
                c.execute(f"pragma synchronous={sync}")
                c.execute("create table event(run text, seq int, raw blob, primary key(run, seq)) without rowid")
                t = time.perf_counter()
                for i in range(0, rows, group):
                    c.execute("begin immediate")
                    c.executemany("insert into event values('r', ?, ?)", [(i + j, RAW) for j in range(group)])
                    c.execute("commit")
                samples.append((time.perf_counter() - t) / rows * 1e6)
                c.close()
        yield f"SQLite {journal}, synchronous={sync}, {group} row(s) of 600 B per commit, per row", samples


def python() -> Samples:
    def call(a: int, b: int) -> int:
        return a + b

    async def coroutine(a: int, b: int) -> int:
        return a + b

    async def timed(work: Callable[[], Any], n: int) -> float:
        t = time.perf_counter()
        for _ in range(n):
            await work()
        return (time.perf_counter() - t) / n * 1e6

    yield "function call", per_op(lambda: call(1, 2), 100_000)
    steps: tuple[tuple[str, Callable[[], Any], int], ...] = (
        ("await a coroutine", lambda: coroutine(1, 2), 100_000),
        ("sleep(0): one switch", lambda: asyncio.sleep(0), 20_000),
        ("create_task + await", lambda: asyncio.create_task(coroutine(1, 2)), 10_000),
        ("to_thread", lambda: asyncio.to_thread(call, 1, 2), 2_000),
    )
    for what, work, n in steps:
        yield what, [asyncio.run(timed(work, n)) for _ in range(ROUNDS)]


def codec(n: int = 2_000 if common.QUICK else 50_000) -> Samples:
    import msgspec
    import orjson
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    typed_event = msgspec.defstruct("Typed", [(name, type(value)) for name, value in EVENT.items()])
    typed, sort, sha = typed_event(**EVENT), orjson.OPT_SORT_KEYS, hashlib.sha256
    encode, decode = msgspec.json.Encoder(order="sorted").encode, msgspec.json.Decoder(typed_event).decode
    yield "msgspec typed encode, sorted", per_op(lambda: encode(typed), n)
    yield "msgspec typed decode", per_op(lambda: decode(RAW), n)
    yield "orjson dumps, sorted keys", per_op(lambda: orjson.dumps(EVENT, option=sort), n)
    yield "json dumps, sorted keys", per_op(lambda: json.dumps(EVENT, sort_keys=True, separators=(",", ":")), n // 5)
    yield "sha256 of 600 B", per_op(lambda: sha(RAW).digest(), n)
    yield "encode + chain step", per_op(lambda: sha(b"p" * 32 + encode(typed)).digest(), n)
    key = Ed25519PrivateKey.generate()
    public, signature = key.public_key(), key.sign(RAW)
    yield "Ed25519 sign", per_op(lambda: key.sign(RAW), n // 20)
    yield "Ed25519 verify", per_op(lambda: public.verify(signature, RAW), n // 20)


GROUPS = {"disk": disk, "sqlite": sqlite, "python": python, "codec": codec}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("groups", nargs="*", help="default: all")
    p.add_argument("--json", type=pathlib.Path)
    a = p.parse_args()
    machine = common.machine()
    common.emit(machine=machine)
    if machine["disk"] in common.MEMORY_DISKS:
        GROUPS.pop("disk"), GROUPS.pop("sqlite")
    rows: list[Row] = []
    for group in a.groups or GROUPS:
        for what, samples in GROUPS[group]():
            row: Row = {"unit": "limits", "label": group, "system": what, "role": "limit", "n": len(samples)}
            rows.append({**row, "figures": {"wall": spread(samples)}})
            common.emit(**rows[-1])
    if a.json:
        a.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
