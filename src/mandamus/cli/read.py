"""A run as the ledger holds it, for people: every record checked, folded, and its payloads opened against their commitments.

The rule a newcomer would break: nothing is shown from a chain that does not hold. A broken one raises, and the event is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mandamus.core.accounts import REGISTER
from mandamus.core.canonical import accept
from mandamus.core.clock import rfc3339
from mandamus.core.fold import fold
from mandamus.core.payload import SALT, opened
from mandamus.core.records import LOG, AnyRecord, KeyChanged, decode, event_hash
from mandamus.core.run import IN_DOUBT, Action, Run, Waiting, ripe
from mandamus.errors import Misuse, ProofError
from mandamus.ports import Head, Ledger
from mandamus.proof import authority
from mandamus.proof.chain import walk
from mandamus.proof.report import Finding
from mandamus.proof.trust import Trust


@dataclass(frozen=True)
class Story:
    """One run: its head row, its records in order, what they fold to, and the words of the head rows of children that it waits for."""

    head: Head
    raws: list[bytes]
    records: list[AnyRecord]
    run: Run
    below: dict[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.head.run


async def run_id(ledger: Ledger, text: str) -> str:
    """A whole id, a prefix of one, or `last`. Raises Misuse: none, or several."""
    if text == "last":
        newest = ""
        async for delta in ledger.deltas(REGISTER):
            newest = accept(delta)["run"]
        if not newest:
            raise Misuse("there is no run yet", code="MDM-0250", fix="mandamus run AGENT PROMPT")
        return newest
    found = [h.run async for h in ledger.runs() if h.run != LOG and h.run.startswith(text)]
    found = found or [h.run async for h in ledger.runs() if h.run != LOG and h.run.upper().startswith(text.upper())]
    if text in found:
        return text
    if not found or not text:
        raise Misuse(f"there is no run {text[:40]!a}", code="MDM-0250", fix="mandamus runs")
    if len(found) > 1:
        raise Misuse(
            f"{text[:40]!a} is the beginning of {len(found)} runs",
            code="MDM-0011",
            found=", ".join(found[:3]),
            fix="write more of the id",
        )
    return found[0]


def broken(run: str, found: Finding) -> ProofError:
    """A finding of the walk, with the run that it is about."""
    where = f"run {run}" + ("" if found.event is None else f" (event {found.event})")
    fix = found.fix or "mandamus doctor walks every chain; keep the ledger as evidence"
    return ProofError(found.what, code=found.code, where=where, expected=found.expected, found=found.found, why=found.why, fix=fix)


async def story(ledger: Ledger, text: str) -> Story:
    """The run that `text` names. Raises Misuse for none, ProofError for a chain that does not hold."""
    id = await run_id(ledger, text)
    head = await ledger.head(id)
    if head is None:
        raise Misuse(f"there is no run {id}", code="MDM-0250", fix="mandamus runs")
    raws = [raw async for raw in ledger.read(id, upto=head.seq)]
    walked = walk(raws, id)
    if walked.fault is not None:
        raise broken(id, walked.fault)
    if event_hash(raws[-1]) != head.hash:
        raise ProofError(
            f"the last event of run {id} is not the one its head names",
            code="MDM-0642",
            expected=head.hash[:12],
            found=event_hash(raws[-1])[:12],
            why="the end of the chain was cut or changed",
            fix="mandamus doctor walks every chain; keep the ledger as evidence",
        )
    run = fold(walked.records)
    heads = [await ledger.head(a.child) for a in children(run)]
    return Story(head, raws, walked.records, run, {h.run: h.state for h in heads if h is not None})


async def value(ledger: Ledger, record: AnyRecord, part: str) -> Any:
    """The payload of a record, or None when the record has no such part. Raises ProofError when it is another one, or gone."""
    return (await value_and_secret(ledger, record, part))[0]


async def value_and_secret(ledger: Ledger, record: AnyRecord, part: str) -> tuple[Any, bytes]:
    body = next((b for b in record.body or () if b.part == part), None)
    if body is None:
        return None, b""
    payload = await ledger.payload(record.run, record.seq, part)
    if payload is None:
        raise ProofError(f"payload {part!r} of event {record.seq} is gone", code="MDM-0611", where=f"run {record.run} (event {record.seq})")
    return opened(payload, body.commit), payload.bytes[:SALT]


def action_of(text: str) -> tuple[str, str]:
    """`RUN/3.1` as (RUN, "3.1"); a run alone as (RUN, "")."""
    run, _, action = text.strip().rpartition("/") if "/" in text else (text.strip(), "", "")
    if not run or ("/" in text and not action):
        raise Misuse(f"{text[:60]!a} names no action", code="MDM-0012", expected="RUN/TURN.N, such as last/1.1", fix="mandamus inbox")
    return run, action


def waiting(run: Run) -> list[tuple[Action, Waiting]]:
    """Requests that people may still answer."""
    return [(a, a.request) for a in run.open_actions if a.request is not None and not ripe(a.request)]


def children(run: Run) -> list[Action]:
    """Handoffs whose child runs have not answered."""
    return [a for a in run.open_actions if a.state == "started" and a.child]


def unsettled(run: Run) -> list[Action]:
    return [a for a in run.actions.values() if a.state in IN_DOUBT]


def state_of(run: Run) -> str:
    """In the words of RunResult."""
    return {"sealed": run.end, "running": "suspended"}.get(run.life, run.life)


def pooled(head: Head) -> str:
    """The pool whose workers are to take the run, when nobody has begun it here: "" otherwise."""
    return head.pool if head.state == "running" and head.epoch == 1 and head.seq <= 1 else ""


def turn_of(run: Run, now: int, driver: str = "", pool: str = "") -> str:
    """Whose turn it is, in words. `driver`: the living process that drives it; `pool`: whose workers are to begin it."""
    asks = waiting(run)
    if run.life == "halted":
        return f"halted: {run.cause}" + (f" ({run.code})" if run.code != run.cause else "")
    if asks:
        late = [r for _, r in asks if r.expires <= now]
        return "waits for people" + (", too late: nobody may answer any more" if late else "")
    if run.life == "running" and not driver and (below := children(run)):
        return "waits for " + ("a child run" if len(below) == 1 else f"{len(below)} child runs")
    if run.life == "running":
        return f"driven by {driver}" if driver else f"waits in pool {pool} for a worker" if pool else "nobody drives it"
    return f"ended: {run.code}" if run.code else ""


def when(instant: int) -> str:
    """To the second, UTC."""
    return rfc3339(instant).partition(".")[0] + "Z"


def away(instant: int, now: int) -> str:
    """How far, in words."""
    seconds = abs(instant - now) // 1_000_000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{'in ' if instant >= now else ''}{seconds // size} {unit}{'' if instant >= now else ' ago'}"
    return f"{'in ' if instant >= now else ''}{seconds} s{'' if instant >= now else ' ago'}"


async def in_force(ledger: Ledger, trust: Trust) -> Trust:
    """The trust file without the keys that chain `log` has revoked."""
    facts = [decode(raw).fact async for raw in ledger.read(LOG)]
    return authority.believed(trust, [fact for fact in facts if isinstance(fact, KeyChanged)])
