"""What every ledger driver checks before it writes: `admit(run, after, records, payloads, seals) -> Admitted`.

Records must continue the chain (run, seq, prev, epoch), stay within their size, and stand beside exactly the payloads they commit
to. Only a header of each record is read here; the closed decoding of the whole belongs to whoever believes a record. What `seal` made
in this process comes with its seals: then the chain is held against them, and no hash is computed a second time (ADR 0013).

A payload is plain, S || JCS(value), and then held against its commitment; or *sealed*, nonce || AES-256-GCM of that, which nobody can hold
against anything here. Who seals has recomputed the commitment before, and who opens does so again; here only its size is looked at.

The rule a newcomer would break: nothing here knows the stored head. Whether `after` is still where the run stands is for the driver
to compare inside its own transaction, and there a difference is a Conflict; here it is the caller who contradicts himself.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from mandamus.core.data import ORDER
from mandamus.core.payload import INLINE_MAX, SALT, Payload, holds
from mandamus.core.records import (
    EVENT,
    LOG,
    RECORD_BYTES_MAX,
    ActionEnded,
    LogOpened,
    ModelReplied,
    RunOpened,
    RunOwned,
    decode,
    genesis_prev,
)
from mandamus.core.seal import Sealed
from mandamus.errors import Misuse, ProofError

PARTS_MAX = 32
SEAL = 12 + 16  # the nonce before and the tag behind what is sealed
PROGRESS = frozenset((ModelReplied, ActionEnded))  # a reply or an outcome: the run is no poison, `tries` falls to 0
After = tuple[int, str, int]  # seq, hash, epoch of the last record

_KEYS = "MANDAMUS_KEYS=sqlite:///keys.db: name a key store"
LASTING = frozenset(ORDER[: ORDER.index("personal")])  # what nobody has a right to see erased

_run_name = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch  # a file name, a NATS token and a URL segment alike


class Admitted(Struct, frozen=True, gc=False):
    """Where the run stands afterwards, and whether one of the records was a reply or an outcome."""

    seq: int
    hash: str
    epoch: int
    progress: bool


class _Part(Struct, frozen=True, gc=False):
    commit: str
    part: str


class _Header(Struct, frozen=True, gc=False):
    epoch: int
    prev: str
    run: str
    seq: int
    type: str
    body: tuple[_Part, ...] = ()


class _Class(Struct, frozen=True, gc=False, rename={"class_": "class"}):
    part: str
    class_: str = ""


class _Classes(Struct, frozen=True, gc=False):
    body: tuple[_Class, ...] = ()


_header = msgspec.json.Decoder(_Header).decode
_classes = msgspec.json.Decoder(_Classes).decode
_PROGRESS = frozenset(kind.__name__ for kind in PROGRESS)


def admit(
    run: str, after: After | None, records: Sequence[bytes], payloads: Sequence[Payload] = (), seals: Sequence[Sealed] = ()
) -> Admitted:
    """`after` None opens the run. Raises ProofError when bytes contradict each other, Misuse when something is missing or too large."""
    if after is None and not (records and _run_name(run)):
        raise _cannot_open(run, records)
    if seals and after is not None:
        return _admit_sealed(run, after, records, payloads, seals)
    seq, tip, epoch = after or (-1, "", 0)
    wanted: dict[tuple[int, str], str] = {}
    progress, parts, sha256 = False, 0, hashlib.sha256
    for raw in records:
        if len(raw) > RECORD_BYTES_MAX:
            raise _too_large(run, seq + 1, raw)
        try:
            header = _header(raw)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise ProofError(f"record has no readable header: {error}", code="MDM-0601", where=_at(run, seq + 1)) from None
        if header.run != run or header.seq != seq + 1 or header.prev != (tip if seq >= 0 else _genesis(run, header, raw)):
            raise _does_not_chain(run, seq, tip, header)
        if seq >= 0 and header.epoch != epoch + (header.type == "RunOwned"):
            raise _wrong_epoch(run, epoch, header)
        seq, epoch, body = header.seq, header.epoch, header.body
        if body:
            parts += len(body)
            for part in body:
                wanted[seq, part.part] = part.commit
            if parts > len(wanted) or len(body) > PARTS_MAX:  # two of one name
                raise _bad_parts(run, header)
        tip = sha256(EVENT + raw).hexdigest()  # `event_hash`, without a call for each
        progress = progress or header.type in _PROGRESS
    if wanted or payloads:
        _match(run, wanted, payloads)
    return Admitted(seq, tip, epoch, progress)


def _admit_sealed(run: str, after: After, records: Sequence[bytes], payloads: Sequence[Payload], seals: Sequence[Sealed]) -> Admitted:
    """These very bytes were sealed by the caller: what is left to check is that they follow the head and each other, and are all there."""
    seq, tip, epoch = after
    progress, parts, given = False, 0, len(payloads)
    for raw, one in zip(records, seals, strict=True):
        record, kind = one.record, type(one.record.fact)
        if one.raw is not raw or record.run != run or record.seq != seq + 1 or record.prev != tip:
            raise _does_not_chain(run, seq, tip, _header(raw))
        if record.epoch != epoch + (kind is RunOwned):
            raise _wrong_epoch(run, epoch, _header(raw))
        seq, epoch, tip = record.seq, record.epoch, one.hash
        for payload in one.payloads:
            if parts >= given or (payloads[parts] is not payload and not _seals(payloads[parts], payload)):
                raise _stray(payload)
            if len(payload.bytes) > SALT + INLINE_MAX:
                raise _not_inline(payload)
            parts += 1
        progress = progress or kind in PROGRESS
    if parts < given:
        raise _stray(payloads[parts])
    return Admitted(seq, tip, epoch, progress)


def _seals(sealed: Payload, plain: Payload) -> bool:
    """Whether the one stands where the other belongs, sealed. Raises Misuse for what no sealing makes of any payload."""
    if sealed.form != "sealed" or (sealed.run, sealed.seq, sealed.part) != (plain.run, plain.seq, plain.part):
        return False
    if len(sealed.bytes) != SEAL + len(plain.bytes):
        raise _torn(sealed)
    return True


def _refuse_size(sealed: Payload) -> None:
    if len(sealed.bytes) <= SEAL + SALT:
        raise _torn(sealed)
    if len(sealed.bytes) > SEAL + SALT + INLINE_MAX:
        raise _not_inline(sealed)


def next_wake(stored: int | None, mail: int, at: int | None, cursor: int, now: int) -> int | None:
    """When the run is due after an append that asked for `at` with the mail cursor of its fold.

    While mail lies beyond that cursor the run stays due: a vote sent a moment before the append would be slept through.
    """
    if mail <= cursor:
        return at
    return min(instant for instant in (stored, at, now) if instant is not None)


def refuse_name(duty: str) -> None:
    """Raises Misuse: a duty's name is a key and a subject in every store."""
    if not _run_name(duty):
        raise Misuse("the duty's name cannot be used", code="MDM-0123", expected="1 to 64 of A-Z a-z 0-9 _ -", found=ascii(duty[:80]))


def refuse_plain(tier: str, run: str, records: Sequence[bytes], payloads: Sequence[Payload], sealed_only: bool) -> None:
    """For ledgers that can never forget: raises Misuse when a payload would be stored there in plain that must be forgettable.

    `sealed_only`: that is every one, but for what stands on chain `log` for everybody's eyes: statements and ballots that each verifier
    needs. Else, outside tier dev, those of class personal and above.
    """
    if not payloads or (tier == "dev" and not sealed_only):
        return
    if sealed_only and run != LOG:
        for payload in payloads:
            if payload.form != "sealed":
                raise _unsealed(payload)
        return
    plain = {(payload.seq, payload.part) for payload in payloads if payload.form != "sealed"}
    for raw in records if plain else ():
        seq = _header(raw).seq
        for part in _classes(raw).body:
            if part.class_ not in LASTING and (seq, part.part) in plain:
                raise _plain(run, seq, part)


def _genesis(run: str, header: _Header, raw: bytes) -> str:
    """`prev` that seq 0 must carry; it binds the run's name, so a genesis cannot be replayed under another one."""
    fact = decode(raw).fact
    if not isinstance(fact, LogOpened if run == LOG else RunOpened):
        raise ProofError(
            f"a chain cannot begin with {header.type}",
            code="MDM-0680",
            where=_at(run, 0),
            expected="LogOpened" if run == LOG else "RunOpened",
            found=header.type,
        )
    return genesis_prev(run, fact)


def _match(run: str, wanted: dict[tuple[int, str], str], payloads: Sequence[Payload]) -> None:
    for payload in payloads:
        named = wanted.pop((payload.seq, payload.part), None) if payload.run == run else None
        if named is None:
            raise _stray(payload)
        stored = payload.bytes
        if payload.form == "sealed":
            _refuse_size(payload)
            continue
        if len(stored) > SALT + INLINE_MAX or payload.form != "plain":
            raise _not_inline(payload)
        if not holds(stored[:SALT], stored[SALT:], named):
            raise ProofError(
                f"payload {payload.part!r} is not the one its record commits to",
                code="MDM-0610",
                where=_at(run, payload.seq),
                expected=named[:12],
                why="stored so, nobody could ever use it: every reader recomputes the commitment",
            )
    for seq, part in wanted:
        raise Misuse(
            f"body part {part!r} has no payload",
            code="MDM-0122",
            where=_at(run, seq),
            why="a crash would leave a commitment to a value that nobody has",
            fix="send the payload in the same append",
        )


# -- diagnoses ---------------------------------------------------------------------------------------------------------------
def _at(run: str, seq: int) -> str:
    return f"run {run} (event {seq})"


def _too_large(run: str, seq: int, raw: bytes) -> Misuse:
    return Misuse(
        f"a record of {len(raw)} bytes is too large",
        code="MDM-0120",
        where=_at(run, seq),
        expected=f"at most {RECORD_BYTES_MAX}",
        fix="move the value into a payload, or into a blob when it exceeds 256 KiB",
    )


def _cannot_open(run: str, records: Sequence[bytes]) -> Misuse:
    if records:
        return Misuse(
            "the run's name cannot be used",
            code="MDM-0123",
            expected="1 to 64 of A-Z a-z 0-9 _ -",
            found=ascii(run[:80]),
            why="it names files, subjects and addresses",
        )
    return Misuse("a run begins with its genesis record", code="MDM-0123", where=f"run {run[:64]}", found="no record")


def _does_not_chain(run: str, seq: int, tip: str, header: _Header) -> ProofError:
    if header.run != run:
        what, expected, found = "a record of another run", run, header.run[:64]
    elif header.seq != seq + 1:
        what, expected, found = "the record is out of order", f"event {seq + 1}", f"event {header.seq}"
    else:
        what, expected, found = "the record does not continue the chain", f"prev {tip[:12] or 'as genesis'}", f"prev {header.prev[:12]}"
    return ProofError(
        what,
        code="MDM-0680",
        where=_at(run, seq + 1),
        expected=expected,
        found=found,
        why="written so, the chain would be broken for ever",
        fix="seal the facts again, from the head that the append names",
    )


def _wrong_epoch(run: str, epoch: int, header: _Header) -> ProofError:
    owned = header.type == "RunOwned"
    return ProofError(
        "the epoch moves only with RunOwned, by one",
        code="MDM-0681",
        where=_at(run, header.seq),
        expected=f"epoch {epoch + owned} in {header.type}",
        found=f"epoch {header.epoch}",
        why="it says who wrote a record; a fenced owner must not pass for the present one",
    )


def _plain(run: str, seq: int, part: _Class) -> Misuse:
    return Misuse(
        f"payload {part.part!r} of class {part.class_[:20]} would be stored in plain",
        code="MDM-0125",
        where=_at(run, seq),
        expected=f"form sealed, or class {' or '.join(sorted(LASTING))}",
        found=part.class_[:20],
        why="a plain payload in an append-only ledger can never be erased",
        fix=_KEYS,
    )


def _unsealed(payload: Payload) -> Misuse:
    return Misuse(
        f"payload {payload.part!r} would be stored in plain",
        code="MDM-0125",
        where=_at(payload.run, payload.seq),
        expected="form sealed",
        found=f"form {payload.form[:20]!a}",
        why="this ledger never deletes: what is sealed can be forgotten by its key, what is plain never",
        fix=_KEYS,
    )


def _stray(payload: Payload) -> Misuse:
    return Misuse(
        f"payload {payload.part!r} belongs to no record of this append",
        code="MDM-0121",
        where=_at(payload.run, payload.seq),
        fix="send each payload once, in the append of the record that commits to it",
    )


def _bad_parts(run: str, header: _Header) -> ProofError:
    return ProofError(
        "body parts must have different names, and few",
        code="MDM-0682",
        where=_at(run, header.seq),
        expected=f"at most {PARTS_MAX} distinct parts",
        found=f"{len(header.body)} parts",
    )


def _torn(payload: Payload) -> Misuse:
    return Misuse(
        f"payload {payload.part!r} of {len(payload.bytes)} bytes is not sealed whole",
        code="MDM-0124",
        where=_at(payload.run, payload.seq),
        expected=f"a nonce of 12 bytes, then what was sealed ({SALT} random bytes and a value) with its tag of 16",
        why="nobody could ever open it",
    )


def _not_inline(payload: Payload) -> Misuse:
    if payload.form not in ("plain", "sealed"):
        return Misuse(
            f"payload {payload.part!r} has the form {payload.form[:20]!a}",
            code="MDM-0124",
            where=_at(payload.run, payload.seq),
            expected="plain or sealed",
            why="nobody could read it",
        )
    return Misuse(
        f"payload {payload.part!r} of {len(payload.bytes) - SALT - SEAL * (payload.form == 'sealed')} bytes is too large for the ledger",
        code="MDM-0124",
        where=_at(payload.run, payload.seq),
        expected=f"at most {INLINE_MAX} bytes",
        fix="store it as a blob first",
    )
