"""The proof section of a bundle: C2SP tlog-proofs of what the bundle rests on, as docs/concepts/bundle-format.md orders them.

    lines = await lines_of(tlog, run, records, log, warn)     # none where nothing can be proved now, and that is said

The run's last record, the last record of chain `log` that is shown, the seal of each child run that it rests on, each level of evidence
that it reached under exactly the checkpoint that the record names, and what public logs answered.

The rule a newcomer would break: all but the levels lie under one checkpoint, the newest that the witnesses' quorum cosigned when there is
such a quorum. A line under an older one would say less than what the log can show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from mandamus.core.canonical import accept
from mandamus.core.records import LOG, ActionEnded, ActionStarted, AnyRecord, EvidenceReached, RunSealed, decode
from mandamus.errors import ProofError, Refused, Unavailable
from mandamus.proof.keys import unb64
from mandamus.runtime.tlog import objects
from mandamus.runtime.tlog.service import TenantLog
from mandamus.runtime.tlog.shown import SEALED, WITNESSED, Shown

WITNESSES_S = 10.0


async def lines_of(
    tlog: TenantLog, run: str, records: Sequence[bytes], log: Sequence[bytes], warn: Callable[[str], None] = lambda text: None
) -> list[bytes]:
    """Raises ProofError when the log does not hold what the ledger does."""
    read = [decode(raw) for raw in records]
    places = [(run, read[-1].seq, b"")]
    places += [(LOG, len(log) - 1, b"")] if log else []
    places += [(child, seq, raw) for child, seq, raw in await _seals(tlog, read)]
    try:
        under = await _under(tlog, [(name, seq) for name, seq, _ in places])
        lines = [await tlog.prove(name, seq, under=under, extra=extra) for name, seq, extra in places]
        return [*lines, *await _levels(tlog, run, read), *await _anchors(tlog, under)]
    except (Refused, Unavailable) as missing:
        d = missing.diagnosis
        warn(f"mandamus: {d.code} {d.where}: {d.what}; the bundle holds no proof that the log contains the run")
        return []


async def _under(tlog: TenantLog, places: Sequence[tuple[str, int]]) -> Shown:
    """The checkpoint for all of them: witnessed, or where that cannot be had in a while, signed."""
    level = SEALED if tlog.offers(WITNESSED) else WITNESSED
    try:
        async with asyncio.timeout(WITNESSES_S):
            found = await _reached(tlog, places, level)
    except (Unavailable, TimeoutError):
        found = await _reached(tlog, places, SEALED)
    return found


async def _reached(tlog: TenantLog, places: Sequence[tuple[str, int]], level: str) -> Shown:
    size = max([(await tlog.covered(name, seq, level)).checkpoint.size for name, seq in places])
    found = await tlog.at(size)
    if found is None:
        raise Unavailable("a checkpoint of the log went away", outcome="none", code="MDM-0938", where=objects.name(objects.SIGNED, size))
    return found


async def _seals(tlog: TenantLog, records: Sequence[AnyRecord]) -> list[tuple[str, int, bytes]]:
    """(run, seq, bytes) of the seal of each child that the run rests on, each once, in the order in which they ended."""
    children: dict[str, str] = {}
    out: dict[str, tuple[str, int, bytes]] = {}
    for record in records:
        fact = record.fact
        if isinstance(fact, ActionStarted) and isinstance(fact.child, str):
            children[fact.action] = fact.child
        elif isinstance(fact, ActionEnded) and fact.via == "child" and _rests(fact) and (child := children.get(fact.action)):
            head = await tlog.ledger.head(child)
            last = [raw async for raw in tlog.ledger.read(child, head.seq - 1, head.seq)] if head else []
            if last and isinstance(decode(last[0]).fact, RunSealed):
                out.setdefault(child, (child, decode(last[0]).seq, last[0]))
    return list(out.values())


def _rests(fact: ActionEnded) -> bool:
    return fact.result == "done" or (isinstance(fact.code, str) and fact.code.startswith("child_"))


async def _levels(tlog: TenantLog, run: str, records: Sequence[AnyRecord]) -> list[bytes]:
    out = []
    for record in records:
        fact = record.fact
        if isinstance(fact, EvidenceReached):
            shown = await tlog.at(fact.size)
            if shown is None or shown.checkpoint.root.hex() != fact.root:
                raise ProofError(
                    "a record names a checkpoint that the log does not hold", code="MDM-0932", where=f"run {run} (event {record.seq})",
                    expected=f"size {fact.size}, root {fact.root[:16]}", found=shown.checkpoint.root.hex()[:16] if shown else "nothing",
                )  # fmt: skip
            out.append(await tlog.prove(run, fact.seq, under=shown))
    return out


async def _anchors(tlog: TenantLog, under: Shown) -> list[bytes]:
    raw = await tlog.store.get(objects.name(objects.ANCHORED, under.checkpoint.size))
    return [unb64(text) for _, text in sorted(accept(raw).items())] if raw is not None else []
