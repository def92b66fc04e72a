"""The bundle of a period: every run that a log took in between two checkpoints, as one canonical JSONL file. `build(...) -> bytes`.

    line 1   header: the sections and their number of lines
    then     dsse 1 · checkpoint 2 · edge e · leaf t · register k · run n · log l
Section `leaf` holds the hash of every leaf that came in between, so that the tree of the second checkpoint can be made from that of the
first, and each record that is shown can be held against its place. The rule a newcomer would break: nothing in it says which runs there
are. That is counted: the leaves of the runs that are shown must be all leaves that there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from mandamus.core.canonical import accept, canon
from mandamus.errors import Misuse, ProofError
from mandamus.proof import dsse
from mandamus.proof.bundle import (
    LINES_MAX,
    PAYLOAD_TYPE,
    STATEMENT,
    STATEMENT_BYTES_MAX,
    Form,
    Section,
    predicate_of,
    section_digest,
)
from mandamus.proof.keys import VKey, b64, unb64
from mandamus.proof.tree import EMPTY_ROOT, HASH, Node, node_hash

SECTIONS = ("dsse", "checkpoint", "edge", "leaf", "register", "run", "log")
FORM = Form("mandamus-log/1", "origin", SECTIONS, {"dsse": (1, 1), "checkpoint": (2, 2), "edge": (0, 64), "leaf": (0, LINES_MAX)})
PREDICATE = "urn:mandamus:log-bundle:1"
LEAVES_A_LINE = 4096


class Head(Struct, frozen=True, forbid_unknown_fields=True):
    root: str
    size: int


class Counts(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Over all records of the period: how actions ended, what judgements said."""

    outcomes: dict[str, int]
    verdicts: dict[str, int]


class Predicate(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the signer says. `numbers`: the first and the last of the register, none where nothing was opened; `period`: as asked for."""

    counts: Counts
    first: Head
    last: Head
    numbers: tuple[int, ...]
    origin: str
    period: tuple[str, str]
    sections: tuple[Section, ...]


class RunLine(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run that wrote in the period: its first and its last record there (canonical bytes), and at which leaves they stand."""

    first: str
    index: tuple[int, int]
    last: str
    state: Literal["sealed", "open", "interrupted"]


class LogLine(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One record of chain `log`."""

    index: int
    record: str


# -- the right edge of a tree ------------------------------------------------------------------------------------------------
def edge_of(size: int, node: Node) -> list[bytes]:
    """The hashes of the complete subtrees that a tree of `size` leaves is made of, from the left: the largest first."""
    out, low = [], 0
    for height in range(size.bit_length() - 1, -1, -1):
        if size >> height & 1:
            out.append(node(height, low >> height))
            low += 1 << height
    return out


def grow(edge: list[bytes], size: int, leaves: bytes) -> int:
    """The edge after these leaf hashes, side by side; it is changed in place. Returns the new size."""
    for at in range(0, len(leaves), HASH):
        node, n = leaves[at : at + HASH], size
        while n & 1:
            node, n = node_hash(edge.pop(), node), n >> 1
        edge.append(node)
        size += 1
    return size


def root_of_edge(edge: Sequence[bytes]) -> bytes:
    if not edge:
        return EMPTY_ROOT
    root = edge[-1]
    for left in reversed(edge[:-1]):
        root = node_hash(left, root)
    return root


# -- build -------------------------------------------------------------------------------------------------------------------
def build(
    *,
    origin: str,
    period: tuple[str, str],
    notes: tuple[bytes, bytes],
    heads: tuple[Head, Head],
    edge: Sequence[bytes],
    leaves: bytes,
    register: Sequence[bytes],
    numbers: tuple[int, ...],
    runs: Iterable[RunLine],
    log: Iterable[LogLine],
    counts: Counts,
    signer: dsse.Sign,
    key: VKey,
) -> bytes:
    """`notes`: the checkpoints, the first b"" for a log that begins in the period; `leaves`: hashes, side by side."""
    lines: dict[str, list[bytes]] = {
        "checkpoint": [canon(note.decode()) for note in notes],
        "edge": [canon(h.hex()) for h in edge],
        "leaf": [canon(b64(leaves[at : at + LEAVES_A_LINE * HASH])) for at in range(0, len(leaves), LEAVES_A_LINE * HASH)],
        "register": list(register),
        "run": [line(x) for x in runs],
        "log": [line(x) for x in log],
    }
    sections = tuple(Section(len(lines[name]), section_digest(name, lines[name]), name) for name in SECTIONS[1:])
    said = Predicate(counts=counts, first=heads[0], last=heads[1], numbers=numbers, origin=origin, period=period, sections=sections)
    raw = statement(said)
    if len(raw) > STATEMENT_BYTES_MAX:
        raise Misuse(f"the statement has {len(raw)} bytes", code="MDM-0677", expected=f"at most {STATEMENT_BYTES_MAX}")
    out = [header(said), dsse.sign(PAYLOAD_TYPE, raw, [(key.id, signer)])]
    for name in SECTIONS[1:]:
        out += lines[name]
    return b"\n".join(out) + b"\n"


def line(value: Struct) -> bytes:
    """Canonical: fields stand in sorted order, and records are ASCII."""
    return msgspec.json.encode(value)


def statement(said: Predicate) -> bytes:
    """The in-toto Statement that is signed: the subject is the log, its digest the root of the second checkpoint."""
    return canon(
        {
            "_type": STATEMENT,
            "predicate": msgspec.to_builtins(said),
            "predicateType": PREDICATE,
            "subject": [{"digest": {"sha256": said.last.root}, "name": f"log/{said.origin}"}],
        }
    )


def header(said: Predicate) -> bytes:
    counts = {section.name: section.count for section in said.sections} | {"dsse": 1}
    return canon({"bundle": FORM.name, "origin": said.origin, "sections": [[name, counts.get(name, 0)] for name in SECTIONS]})


# -- read --------------------------------------------------------------------------------------------------------------------
def is_period(raw: bytes) -> bool:
    return raw.startswith(b'{"bundle":"' + FORM.name.encode() + b'"')


def parse_statement(raw: bytes) -> Predicate:
    """From *verified* bytes. Raises ProofError when they are not this kind of statement, or contradict themselves."""
    said = predicate_of(raw, Predicate)
    if statement(said) != raw or tuple(section.name for section in said.sections) != SECTIONS[1:] or len(said.numbers) not in (0, 2):
        raise ProofError("the signed statement contradicts itself", code="MDM-0647")
    return said


def leaves_of(lines: Sequence[bytes]) -> bytes:
    """All leaf hashes, side by side. Raises ValueError: every line but the last is full."""
    out = []
    for number, raw in enumerate(lines, 1):
        text = accept(raw)
        hashes = unb64(text) if type(text) is str else b""
        if not hashes or len(hashes) % HASH or (number < len(lines) and len(hashes) != LEAVES_A_LINE * HASH):
            raise ValueError(f"line {number} of the leaves is not as many hashes as it should be")
        out.append(hashes)
    return b"".join(out)
