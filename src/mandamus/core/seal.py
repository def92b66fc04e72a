"""Facts become bytes: `seal(drafts, at, salts) -> records, payloads, new position`. The only place where envelopes are made.

A draft is what `decide` returns: a fact, its turn, and the values of its body parts. Salts and the claimed time are given, so the
same drafts with the same salts are the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from mandamus.core.canonical import canon
from mandamus.core.payload import Payload, commit
from mandamus.core.records import RECORD_BYTES_MAX, Actor, AnyRecord, BodyPart, Fact, Record, encode, event_hash
from mandamus.errors import Misuse


class Content(Struct, frozen=True, gc=False):
    """The value of one body part, before it is salted. `raw`: its canonical bytes, when the caller has them already."""

    part: str
    value: Any
    class_: str = "business"
    media: str = "application/json"
    subject: str | UnsetType = UNSET
    secret: bytes = b""  # S, when it was drawn earlier and signed for; else a fresh one
    raw: bytes = b""


class Draft(Struct, frozen=True, gc=False):
    fact: Fact
    turn: int
    body: tuple[Content, ...] = ()
    actor: Actor | UnsetType = UNSET
    causes: tuple[str, ...] | UnsetType = UNSET


class Position(Struct, frozen=True, gc=False):
    """Where the next record goes: `seq` and `hash` of the last one (-1 and the genesis `prev` for a new run)."""

    run: str
    seq: int
    hash: str
    epoch: int


class Sealed(Struct, frozen=True, gc=False):
    record: AnyRecord
    raw: bytes
    hash: str
    payloads: tuple[Payload, ...]


def seal(drafts: Sequence[Draft], at: Position, claim: str, salts: Iterator[bytes]) -> tuple[list[Sealed], Position]:
    """`claim` is the wall clock as RFC 3339. Raises Misuse when a record would exceed 65,535 bytes."""
    out: list[Sealed] = []
    for draft in drafts:
        one = _seal(draft, at, claim, salts)
        out.append(one)
        at = Position(at.run, at.seq + 1, one.hash, at.epoch)
    return out, at


def _seal(draft: Draft, at: Position, claim: str, salts: Iterator[bytes]) -> Sealed:
    parts: list[BodyPart] = []
    payloads: list[Payload] = []
    for content in draft.body:
        secret, value = content.secret or next(salts), content.raw or canon(content.value)
        parts.append(BodyPart(class_=content.class_, commit=commit(secret, value), media=content.media, part=content.part, subject=content.subject))
        payloads.append(Payload(at.run, at.seq + 1, content.part, secret + value))
    record: AnyRecord = Record(
        actor=draft.actor,
        at=claim,
        body=tuple(parts) if parts else UNSET,
        causes=draft.causes,
        epoch=at.epoch,
        fact=draft.fact,
        prev=at.hash,
        run=at.run,
        seq=at.seq + 1,
        turn=draft.turn,
        type=type(draft.fact).__name__,
    )
    raw = encode(record)
    if len(raw) > RECORD_BYTES_MAX:
        raise Misuse(f"a {record.type} record of {len(raw)} bytes is too large", code="MDM-0120", expected=f"at most {RECORD_BYTES_MAX}")
    return Sealed(record, raw, event_hash(raw), tuple(payloads))
