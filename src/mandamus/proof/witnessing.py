"""What a witness decides (C2SP tlog-witness, `add-checkpoint`): bytes in, a status out; nothing is stored or signed here.

    asked = read_request(body, logs)      # logs: origin -> the keys that may sign for it
    status = judge(asked, known)          # known: the checkpoint that was cosigned last for this origin, or None

200 sign it · 400 malformed, or an old size above the new one · 403 no known signature, or a wrong one of a known key · 404 an origin
that nobody named · 409 the witness knows another size · 422 the new tree does not begin with the one it knows.
The rule a newcomer would break: `known` is read, `judge` asked and the new checkpoint made durable inside ONE transaction, and only
then an answer is given; in two steps a slow request for N overwrites a fast one for N+K, and the log can be rolled back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from mandamus.errors import Misuse, ProofError
from mandamus.proof.keys import ED25519, VKey, b64, parse_vkey, unb64
from mandamus.proof.note import NOTE_BYTES_MAX, Checkpoint, parse_checkpoint, parse_note, seen
from mandamus.proof.tree import EMPTY_ROOT, HASH, verify_consistency

PROOF_MAX = 63
REQUEST_BYTES_MAX = 64 + PROOF_MAX * 45 + NOTE_BYTES_MAX
SIZE_TYPE = "text/x.tlog.size"  # of the body that comes with 409
GOOD, BAD, UNKNOWN_KEY, UNKNOWN_LOG, ANOTHER_SIZE, ANOTHER_TREE = 200, 400, 403, 404, 409, 422
SAYS = {
    BAD: "malformed request\n",
    UNKNOWN_KEY: "no valid signature of a known key of this log\n",
    UNKNOWN_LOG: "unknown log\n",
    ANOTHER_TREE: "the consistency proof does not hold\n",
}
_old = re.compile("old (0|[1-9][0-9]{0,15})")
_answered = re.compile(b"(0|[1-9][0-9]{0,15})\n")
Logs = Mapping[str, Sequence[VKey]]


class Asked(Struct, frozen=True):
    """A request whose checkpoint a known key of its log signed. `old`: the size that its sender believes the witness to know."""

    old: int
    proof: Sequence[bytes]
    checkpoint: Checkpoint
    note: bytes


class Turned(Struct, frozen=True):
    """A request that is answered without looking at what is known."""

    status: int
    why: str


def logs_of(vkeys: Sequence[str]) -> dict[str, tuple[VKey, ...]]:
    """Origin -> keys; the key's name is the log's origin. Raises Misuse: a public checkpoint carries an Ed25519 signature (C2SP)."""
    out: dict[str, tuple[VKey, ...]] = {}
    for text in vkeys:
        key = parse_vkey(text)
        if key.kind != ED25519:
            raise Misuse(
                "this key signs no checkpoint that a witness reads", code="MDM-0946", where=key.name,
                expected="a log's Ed25519 key (0x01)", found=f"0x{key.kind:02x}", fix="the `log` line of `mandamus key trust`",
            )  # fmt: skip
        out[key.name] = (*out.get(key.name, ()), key)
    return out


def write_request(old: int, proof: Sequence[bytes], note: bytes) -> bytes:
    return f"old {old}\n{''.join(b64(p) + chr(10) for p in proof)}\n".encode() + note


def read_request(body: bytes, logs: Logs) -> Asked | Turned:
    try:
        old, proof, note, checkpoint = _parsed(body)
    except ProofError as error:
        return Turned(BAD, error.diagnosis.what)
    except ValueError as error:
        return Turned(BAD, "it is not ASCII" if isinstance(error, UnicodeDecodeError) else str(error))
    keys = logs.get(checkpoint.origin)
    if not keys:
        return Turned(UNKNOWN_LOG, checkpoint.origin)
    try:
        if not seen(parse_note(note), keys):
            return Turned(UNKNOWN_KEY, f"nobody known signed for {checkpoint.origin}")
    except ProofError as error:
        return Turned(UNKNOWN_KEY, error.diagnosis.what)
    if old > checkpoint.size:
        return Turned(BAD, "the old size is above the new one")
    return Asked(old, proof, checkpoint, note)


def _parsed(body: bytes) -> tuple[int, tuple[bytes, ...], bytes, Checkpoint]:
    """Raises ValueError or ProofError."""
    head, gap, note = body.partition(b"\n\n")
    lines = head.decode("ascii").split("\n")
    match = _old.fullmatch(lines.pop(0))
    if not gap or match is None:
        raise ValueError("it does not begin with an old size")
    if len(lines) > PROOF_MAX:
        raise ValueError(f"it has more than {PROOF_MAX} hashes")
    proof = tuple(unb64(line) for line in lines)
    if any(len(p) != HASH for p in proof):
        raise ValueError("a hash is not one of 32 bytes")
    return int(match[1]), proof, note, parse_checkpoint(parse_note(note).text)


def judge(asked: Asked, known: Checkpoint | None) -> int:
    """GOOD, ANOTHER_SIZE or ANOTHER_TREE."""
    size, root = (known.size, known.root) if known else (0, EMPTY_ROOT)
    new = asked.checkpoint
    if asked.old != size:
        return ANOTHER_SIZE
    if size == 0:  # every tree begins with the empty one; there is nothing to prove, so nothing may be said
        return ANOTHER_TREE if asked.proof else GOOD
    return GOOD if verify_consistency(size, new.size, root, new.root, tuple(asked.proof)) else ANOTHER_TREE


def size_told(body: bytes) -> int | None:
    """The size in the body of a 409, or None for anything else."""
    match = _answered.fullmatch(body)
    return int(match[1]) if match else None
