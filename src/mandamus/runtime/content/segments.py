"""A segment: many small blobs packed into one object that is named by its own SHA-256. `build(blobs, codec)`, `read(raw, name, codec)`.

    content   one line of canonical JSON {"blobs":[[digest, length], …],"v":1}, LF, then the blobs one behind the other
    object    the content, packed; its path is segment/SHA-256(object); its first line stands again in index/SHA-256(object)

The rule a newcomer would break: an index is a hint. It may be missing, old or wrong; only the segment says what is in it, and only
the hash of a blob says that it is that blob.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Protocol

import msgspec
from msgspec import Struct

from mandamus.core.canonical import canon
from mandamus.errors import ProofError

CONTENT_MAX = 64 << 20  # before it is unpacked, nobody knows how large it is
_VERSION = 1


class Codec(Protocol):
    """What packs: drivers/pack_zstd.py."""

    name: str

    def pack(self, data: bytes) -> bytes: ...

    def unpack(self, raw: bytes, limit: int) -> bytes: ...


class _Header(Struct, frozen=True, forbid_unknown_fields=True):
    blobs: list[tuple[str, int]]
    v: int


_header = msgspec.json.Decoder(_Header)


def digest_of(data: bytes) -> str:
    """The name of a blob, and of a segment: SHA-256, hex."""
    return hashlib.sha256(data).hexdigest()


def build(blobs: Mapping[str, bytes], codec: Codec) -> tuple[str, bytes]:
    """(name, object). The same blobs and codec give the same bytes."""
    raw = codec.pack(index({d: len(data) for d, data in blobs.items()}) + b"\n" + b"".join(blobs[d] for d in sorted(blobs)))
    return digest_of(raw), raw


def read(raw: bytes, name: str, codec: Codec) -> dict[str, bytes]:
    """Every blob of the segment whose bytes are its own. Raises ProofError when the object is not the one of that name.

    A blob that is not what its digest says is left out: the others are as good as they were.
    """
    if (found := digest_of(raw)) != name:
        raise damaged(name, expected=name, found=found)
    try:
        line, lf, rest = codec.unpack(raw, CONTENT_MAX).partition(b"\n")
        header = _header.decode(line)
    except (ValueError, UnicodeError, msgspec.DecodeError) as error:
        raise damaged(name, found=str(error)) from None
    if not lf or header.v != _VERSION or any(length < 0 for _, length in header.blobs):
        raise damaged(name, found=f"version {header.v}")
    out, at = {}, 0
    for digest, length in header.blobs:
        data = rest[at : at + length]
        at += length
        if digest_of(data) == digest:
            out[digest] = data
    return out


def index(lengths: Mapping[str, int]) -> bytes:
    return canon({"blobs": [[digest, lengths[digest]] for digest in sorted(lengths)], "v": _VERSION})


def indexed(raw: bytes) -> dict[str, int]:
    """Digest -> length; nothing when the index cannot be read, for it is rebuilt from its segment."""
    try:
        return dict(_header.decode(raw).blobs)
    except (msgspec.DecodeError, UnicodeError):
        return {}


def damaged(name: str, expected: str = "", found: str = "") -> ProofError:
    return ProofError(
        "a segment of blobs is damaged", code="MDM-0924", where=f"segment/{name}", expected=expected, found=found,
        why="whatever is packed in it cannot be read from this store", fix="another replica holds it; keep this object, it is evidence",
    )  # fmt: skip
