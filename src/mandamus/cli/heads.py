"""What `doctor` says of the witness of heads: who it is, whether it answers, and which chains are not what it saw.

The rule a newcomer would break: the witness is read before the ledger, chain by chain, as the runtime does it. Nothing is written.
"""

from __future__ import annotations

import os
from pathlib import Path

from mandamus.cli.common import Cli
from mandamus.cli.say import without_password
from mandamus.core.records import LOG, LogOpened, decode
from mandamus.errors import Unavailable
from mandamus.ports import Heads, Ledger

Found = tuple[str, str, str]  # ok, degraded or broken; what it says; what to do


async def findings(cli: Cli) -> list[Found]:
    """Nothing for a file that nobody witnesses: one process on one disk is what it is. A server without a witness is degraded."""
    from mandamus import wiring

    heads = wiring.heads_of(cli.uri)
    if heads is None:
        if not wiring.ledger_store(cli.uri).server:
            return []
        missing = "nobody witnesses where its chains stand: a lost failover or an old backup would not be noticed"
        return [("degraded", missing, "MANDAMUS_HEADS=postgres://USER@OTHER-HOST/DB, or file:///OTHER-DISK/heads.jsonl")]
    try:
        async with cli.reading() as ledger:
            return [*await _compared(ledger, heads), *_near(cli)]
    finally:
        await heads.close()


async def _compared(ledger: Ledger, heads: Heads) -> list[Found]:
    from mandamus.runtime.heads import compare_all

    named = without_password(os.environ["MANDAMUS_HEADS"])
    origin = await _origin(ledger)
    try:
        done = await compare_all(ledger, heads, origin)
    except Unavailable as silent:
        d = silent.diagnosis
        return [("degraded", f"{d.code} {named} does not answer ({d.found}): a rollback would not be noticed", d.fix)]
    broken = [("broken", f"{f.code} {f.where}: {f.what}", f.fix) for f in (fault.diagnosis for fault in done.faults)]
    whole = ("ok", f"{named}: {done.chains} chains stand where they were seen, or further", "")
    lost = getattr(heads, "damaged", 0)
    torn = [("degraded", f"{lost} lines of {named} cannot be read, and count for nothing", "look who writes to that file")] if lost else []
    return [*(broken or [whole]), *torn]


async def _origin(ledger: Ledger) -> str:
    """The ledger's own name; of one that has lost its log there is nothing to compare."""
    async for raw in ledger.read(LOG, upto=0):
        fact = decode(raw).fact
        if isinstance(fact, LogOpened):
            return fact.origin
    return ""


def _near(cli: Cli) -> list[Found]:
    """A file in the ledger's own folder comes back with it from the same backup."""
    from mandamus import wiring

    at, path = os.environ["MANDAMUS_HEADS"], wiring.ledger_file(cli.uri)
    if path is None or not at.startswith("file://"):
        return []
    if not Path(at.removeprefix("file://")).resolve().is_relative_to(path.resolve().parent):
        return []
    return [("degraded", "the witness lies in the ledger's folder: whoever restores one restores both", "put it on another disk")]
