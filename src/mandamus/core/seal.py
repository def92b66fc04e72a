"""Facts become bytes: `seal(drafts, at, salts) -> records, payloads, new position`. The only place where envelopes are made.

A draft is what `decide` returns: a fact, its turn, and the values of its body parts. Salts and the claimed time are given, so the
same drafts with the same salts are the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from mandamus.core import fields
from mandamus.core.canonical import accept, canon
from mandamus.core.payload import SALT, Payload, commit_whole
from mandamus.core.records import EVENT, RECORD_BYTES_MAX, Actor, AnyRecord, BodyPart, Fact, Record, encode
from mandamus.errors import Misuse

_sha256 = hashlib.sha256


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
    run, seq, tip, epoch = at.run, at.seq, at.hash, at.epoch
    for draft in drafts:
        seq += 1
        fact, kind = draft.fact, type(draft.fact).__name__
        parts, payloads = _sealed_body(draft.body, run, seq, salts) if draft.body else (UNSET, ())
        record: AnyRecord = Record(
            actor=draft.actor, at=claim, body=parts, causes=draft.causes, epoch=epoch, fact=fact, prev=tip, run=run, seq=seq,
            turn=draft.turn,
            type=kind,
        )  # fmt: skip
        raw = encode(record)
        if len(raw) > RECORD_BYTES_MAX:
            raise Misuse(f"a {kind} record of {len(raw)} bytes is too large", code="MDM-0120", expected=f"at most {RECORD_BYTES_MAX}")
        tip = _sha256(EVENT + raw).hexdigest()  # `event_hash`, without a call for each
        out.append(Sealed(record, raw, tip, payloads))
    return out, Position(run, seq, tip, epoch)


def _sealed_body(body: tuple[Content, ...], run: str, seq: int, salts: Iterator[bytes]) -> tuple[tuple[BodyPart, ...], tuple[Payload, ...]]:
    parts: tuple[BodyPart, ...] = ()
    payloads: tuple[Payload, ...] = ()
    for c in body:
        secret, value = c.secret or next(salts), c.raw or canon(c.value)
        if c.secret and len(secret) != SALT:
            raise ValueError("S is 32 bytes")
        commit = commit_whole(secret, value) if c.media != fields.MEDIA else fields.commit(secret, accept(value))
        parts += (BodyPart(class_=c.class_, commit=commit, media=c.media, part=c.part, subject=c.subject),)
        payloads += (Payload(run, seq, c.part, secret + value),)
    return parts, payloads
