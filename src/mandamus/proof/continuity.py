"""What an auditor remembers of a log between two looks: its last size and root. `check(...)` holds a bundle's checkpoint against it.

The rule a newcomer would break: a single bundle cannot show that the log told somebody else another story. Whoever keeps its last head
can: the same size has the same root, and a larger log begins with the smaller one.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from mandamus.core.canonical import accept, canon
from mandamus.errors import Misuse, Unavailable
from mandamus.proof.report import Broken, Claim, Finding
from mandamus.proof.tiles import Tiles
from mandamus.proof.tree import root_of
from mandamus.proof.witnessed import Seen

FORM = "last-seen/1"
LAST_BYTES_MAX = 1 << 20
KEEP = "keep this bundle and your file of what was seen: together they are the evidence; ask the other side and a witness"


class Head(Struct, frozen=True, forbid_unknown_fields=True):
    root: str
    size: int


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    mandamus: str
    origins: dict[str, Head]


Last = Mapping[str, Head]


def read(raw: bytes, where: str) -> dict[str, Head]:
    """The file of `--state`. Raises Misuse: a file that cannot be read must not be taken for a first look."""
    try:
        if not raw.endswith(b"\n"):
            raise ValueError("its end is missing")
        file = msgspec.convert(accept(raw[:-1]), _File)
        if file.mandamus != FORM or any(head.size < 0 or len(bytes.fromhex(head.root)) != 32 for head in file.origins.values()):
            raise ValueError("it is of another form")
    except (ValueError, TypeError, msgspec.ValidationError) as error:
        raise Misuse(
            f"this is no file of what was seen last: {str(error)[:80]}", code="MDM-0678", where=where,
            fix="name the file that --state wrote, or a new name: then this is the first look",
        ) from None  # fmt: skip
    return file.origins


def write(last: Last) -> bytes:
    plain = {origin: {"root": head.root, "size": head.size} for origin, head in last.items()}
    return canon({"mandamus": FORM, "origins": plain}) + b"\n"


def check(seen: Seen | None, last: Last, tiles: Tiles | None) -> Claim:
    """Claim `continuity`. Raises Broken."""
    if seen is None:
        return Claim("continuity", "not in this bundle", "no checkpoint to compare with the one seen last", 3)
    before = last.get(seen.origin)
    if before is None:
        return Claim("continuity", "proven", f"the first look at {seen.origin}: size {seen.size}")
    if seen.size == before.size:
        if seen.root != before.root:
            raise _no("the log shows another root for a size seen before: a split view", "MDM-0670", before.root, seen.root)
        return Claim("continuity", "proven", f"the head seen last: size {seen.size}")
    told = f"size {seen.size}, seen last {before.size}"
    if tiles is None and seen.size > before.size:
        return Claim(
            "continuity", "cannot check now", f"{told}: whether the one begins with the other needs the log's tiles (--log DIR)", 5
        )
    try:
        one = tiles is not None and _one(tiles, seen, before)
    except Unavailable as error:
        return Claim("continuity", "cannot check now", f"{told}: {error.diagnosis.what} ({error.diagnosis.where})", 5)
    if seen.size < before.size and not one:
        old = "if this bundle is only an old one, --log DIR with the log's files shows it; else " + KEEP
        raise _no("the log is smaller than it was: rolled back", "MDM-0671", f"{before.size} or more", str(seen.size), old)
    if not one:
        raise _no("the log does not begin with what was seen last: a split view", "MDM-0670", before.root, "another")
    return Claim(
        "continuity", "proven", f"{told}: " + ("an older head of the same log" if seen.size < before.size else "it has only grown")
    )


def after(last: Last, seen: Seen) -> dict[str, Head]:
    """What to remember once the claim is proven: never a smaller head than before."""
    before = last.get(seen.origin)
    return dict(last) if before is not None and before.size >= seen.size else {**last, seen.origin: Head(seen.root, seen.size)}


def _one(tiles: Tiles, seen: Seen, before: Head) -> bool:
    """Whether both heads are of one log: the same tiles lead to both roots."""
    node = tiles.node(max(seen.size, before.size))
    return root_of(seen.size, node).hex() == seen.root and root_of(before.size, node).hex() == before.root


def _no(what: str, code: str, expected: str, found: str, fix: str = KEEP) -> Broken:
    return Broken(Finding(what, code=code, expected=expected, found=found, fix=fix))
