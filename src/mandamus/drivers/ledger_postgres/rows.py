"""Rows into heads and records, appends into parameters, and what a refusal says. Pure: nothing here asks the server.

The rule a newcomer would break: several writes to one account in one append are one row of the account and as many deltas, and only
the first of them is compared with what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mandamus.core import feed
from mandamus.core.admit import Admitted
from mandamus.core.payload import Payload
from mandamus.drivers._refusals import account_moved
from mandamus.drivers.ledger_postgres.schema import lock_of
from mandamus.errors import Conflict, ProofError
from mandamus.ports import AccountCheck, AccountWrite, Fed, Head, Wake

Also = Sequence[AccountWrite | AccountCheck]


ENDED = ("completed", "failed", "cancelled")  # states of a run that nobody drives any more: it has no owner


def head_of(row: Sequence[Any]) -> Head:
    run, seq, digest, *rest = row[:12]
    return Head(run, seq, digest.hex(), *rest)


Place = tuple[int, int, int]  # of a record in the feed: its transaction's, its run's number, its seq


def fed(rows: Sequence[Sequence[Any]]) -> list[tuple[Place, Fed | None]]:
    """Each with the place behind which the next page begins; None for an append that has no run. Raises ProofError for a hole."""
    found: list[tuple[Place, Fed | None]] = []
    span, seq = (-1, -1, -1), -1
    for place, no, last, first, run, at, body, _ in rows:
        if run is None:
            found.append(((place, no, last), None))
            continue
        if span != (place, no, last):
            if seq != span[2]:
                raise torn(found[-1][1].run if found[-1][1] else "", seq + 1, -1)
            span, seq = (place, no, last), first - 1
        seq += 1
        if at != seq:
            raise torn(run, seq, -1 if at is None else at)
        found.append(((place, no, seq), Fed(feed.cursor(f"{place}.{no}.{seq}", body), run, seq, body)))
    return found


def append_values(
    run: str, after: Head | None, new: Admitted, records: Sequence[bytes], payloads: Sequence[Payload], wake: Wake | None
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "run": run,
        "seq": new.seq,
        "hash": bytes.fromhex(new.hash),
        "epoch": new.epoch,
        "progress": new.progress,
        "ended": wake is not None and wake.state in ENDED,
        "count": len(records),
        "bodies": list(records),
        "wakes": wake is not None,
        "at": wake.at if wake else None,
        "cursor": wake.cursor if wake else 0,
        "state": wake.state if wake else None,
        "pool": (wake.pool or None) if wake else None,
        "prio": wake.prio if wake else None,
    }
    if after is not None:
        values |= {"after_seq": after.seq, "after_hash": bytes.fromhex(after.hash), "after_epoch": after.epoch}
    if payloads:
        values |= {
            "p_seq": [p.seq for p in payloads],
            "p_part": [p.part for p in payloads],
            "p_form": [p.form for p in payloads],
            "p_bytes": [p.bytes for p in payloads],
        }
    return values


def account_values(schema: str, also: Also, values: dict[str, Any]) -> bool:
    """Adds what the accounts need to `values`. False when the entries contradict each other: then no statement is needed."""
    expected: dict[str, int] = {}
    follows: dict[str, str] = {}
    written: dict[str, AccountWrite] = {}
    for entry in also:
        checks = isinstance(entry, AccountCheck)
        asks = entry.version if checks else entry.version - 1
        if not checks and entry.id in written:
            if asks != written[entry.id].version:
                return False
        elif expected.setdefault(entry.id, asks) != asks:
            return False
        if isinstance(entry, AccountWrite):
            if entry.id not in written:
                follows[entry.id] = entry.prev
            written[entry.id] = entry
    locked = sorted((lock_of(f"account {schema}", id), id in written) for id in expected)
    values |= {"ids": list(expected), "versions": list(expected.values()), "hashes": [follows.get(id, "") for id in expected]}
    values |= {"locks": [key for key, _ in locked], "alone": [alone for _, alone in locked]}
    if not written:
        return True
    deltas = [entry for entry in also if isinstance(entry, AccountWrite)]
    last = list(written.values())
    values |= {"a_id": [w.id for w in last], "a_version": [w.version for w in last], "a_hash": [w.hash for w in last]}
    values |= {"a_reserved": [w.reserved for w in last], "a_spent": [w.spent for w in last]}
    values |= {"d_id": [w.id for w in deltas], "d_version": [w.version for w in deltas], "d_run": [w.run for w in deltas]}
    values |= {"d_seq": [w.seq for w in deltas], "d_body": [w.delta for w in deltas]}
    return True


def check_accounts(run: str, head: Head | None, also: Also, stored: dict[str, tuple[int, str]]) -> None:
    """Checks compare with what is stored; several writes to one account in one append must follow each other."""
    written: dict[str, tuple[int, str]] = {}
    for entry in also:
        found, hash = stored.get(entry.id, (0, ""))
        prev = ""
        if isinstance(entry, AccountCheck):
            expected = entry.version
        else:
            (found, hash), expected, prev = written.get(entry.id, (found, hash)), entry.version - 1, entry.prev
            written[entry.id] = entry.version, entry.hash
        if found != expected or prev not in ("", hash):
            raise account_moved(run, head, entry.id, expected, found)


# -- diagnoses ---------------------------------------------------------------------------------------------------------------
def owned(head: Head) -> Conflict:
    return Conflict(
        f"the run is driven by {head.owner or 'another worker'}",
        on="run",
        head=head,
        code="MDM-0403",
        where=f"run {head.run}",
        found=head.owner,
        why="a run has one driver at a time; nothing was written",
        fix=f"wait until it is given back, or until its lease runs out; then mandamus resume {head.run}",
    )


def torn(run: str, expected: int, found: int) -> ProofError:
    return ProofError(
        "records are missing from the ledger",
        code="MDM-0632",
        where=f"run {run}",
        expected=f"event {expected}",
        found=f"event {found}" if found >= 0 else "nothing",
        why="the tables were edited or restored in part",
        fix="keep the database as evidence; restore a whole backup, or begin another schema",
    )
