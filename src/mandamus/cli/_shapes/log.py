"""Answers about the log and its witnesses."""

from __future__ import annotations

from typing import Any

from mandamus.cli._shapes import Closed


class LogHead(Closed):
    """`lag`: records of the ledger under no signed checkpoint; `witnessed`: the newest size that the quorum cosigned; `minimum`: leaf
    records below it were pruned."""

    at: str
    lag: int
    minimum: int
    origin: str
    quorum: str
    root: str
    size: int
    store: str
    witnessed: int
    witnesses: list[str]


class Leaf(Closed):
    """`log query`: one a line."""

    at: str
    event: int
    leaf: int
    record: dict[str, Any]
    run_id: str
    type: str


class LogProved(Closed):
    """`level`: sealed or witnessed, of the checkpoint in the proof."""

    bytes: int
    event: int
    file: str
    leaf: int
    level: str
    run_id: str
    size: int


class LogConsistent(Closed):
    """Hashes in hex. `signed`: which of the two sizes have a stored checkpoint."""

    new: int
    new_root: str
    old: int
    old_root: str
    proof: list[str]
    signed: list[int]


class LogExported(Closed):
    """`first`: records from this leaf on; `there`: objects that the folder had already."""

    bytes: int
    first: int
    folder: str
    level: str
    objects: int
    size: int
    there: int


class LogCompacted(Closed):
    """Leaves [first, minimum) lost their records in the log; `runs`: whose they were."""

    dry_run: bool
    first: int
    minimum: int
    objects: int
    retention: str
    runs: list[str]
    tidied: int


class Served(Closed, kw_only=True):
    """`witness serve`: one a line. `event`: listening, asked, turned, fault or ended; `status`: what was answered (HTTP)."""

    at: str
    event: str
    address: str = ""
    code: str = ""
    found: str = ""
    known: int = 0
    logs: list[str] = []
    old: int = 0
    origin: str = ""
    size: int = 0
    status: int = 0
    vkey: str = ""
    what: str = ""
    why: str = ""


class WitnessRow(Closed):
    """`knows`: the size it cosigned last, null with `fault` when it did not say; `trusted`: the trust file names its key."""

    anchor: bool
    fault: str
    knows: int | None
    lag: int | None
    name: str
    residency: str
    trusted: bool


class WitnessStatus(Closed):
    """`size`: of the newest signed checkpoint; `witnessed`: of the newest that the quorum cosigned."""

    met: bool
    origin: str
    quorum: str
    size: int
    witnessed: int
    witnesses: list[WitnessRow]
