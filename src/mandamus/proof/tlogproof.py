"""C2SP tlog-proof: that one record is a leaf of a log, as one piece of text: its index, the hashes beside its way, the checkpoint.

    c2sp.org/tlog-proof@v1
    extra BASE64            (not always)
    index N
    BASE64 …                one line a hash, from the leaf up

    ORIGIN, SIZE, ROOT, signatures: the checkpoint as a signed note
The rule a newcomer would break: nothing signs `extra` or the index; each is believed for what can be recomputed from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct

from mandamus.errors import ProofError
from mandamus.proof.keys import b64, unb64
from mandamus.proof.tree import HASH

HEAD = "c2sp.org/tlog-proof@v1"
PATH_MAX = 63
_index = re.compile("index (0|[1-9][0-9]{0,15})")


class LogProof(Struct, frozen=True):
    """As read: `path` of 32-byte hashes, `note` the bytes of the checkpoint."""

    index: int
    path: tuple[bytes, ...]
    note: bytes
    extra: bytes = b""


def write(index: int, path: Sequence[bytes], note: bytes, extra: bytes = b"") -> bytes:
    lines = [HEAD, *([f"extra {b64(extra)}"] if extra else []), f"index {index}", *(b64(p) for p in path), "", ""]
    return "\n".join(lines).encode() + note


def parse(raw: bytes) -> LogProof:
    """Raises ProofError."""
    head, gap, note = raw.partition(b"\n\n")
    try:
        lines = head.decode("ascii").split("\n")
        if not gap or lines.pop(0) != HEAD:
            raise ValueError("it does not begin as one")
        extra = unb64(lines.pop(0)[6:]) if lines and lines[0].startswith("extra ") else b""
        match = _index.fullmatch(lines.pop(0)) if lines else None
        if match is None or int(match[1]) >= 1 << 53:  # above it not every reader has a number exactly
            raise ValueError("it names no index below 2^53")
        if len(lines) > PATH_MAX:
            raise ValueError(f"it has more than {PATH_MAX} hashes")
        path = tuple(unb64(line) for line in lines)
        if any(len(p) != HASH for p in path):
            raise ValueError("a hash is not one of 32 bytes")
    except ValueError as error:
        what = "it is not ASCII" if isinstance(error, UnicodeDecodeError) else str(error)
        raise ProofError(f"this is no proof of a log: {what}", code="MDM-0904") from None
    return LogProof(int(match[1]), path, note, extra)
