"""Compare two runs by what their events mean: `diff(env, a, b) -> Diff`, with the first *proposal* at which they part.

Events are aligned on their semantic hash, so that ids, clocks and takeovers make no difference. The rule a newcomer would break: the
difference that matters is what the agents wanted to do, not where the logs first disagree; both are named.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from mandamus.core import records as r
from mandamus.core.semantic import differences, meaning, semantic_hash
from mandamus.runtime.env import Env
from mandamus.runtime.recording import Recording


class Side(Struct, frozen=True, kw_only=True):
    """One event of one run."""

    event: int
    type: str
    what: str


class Parting(Struct, frozen=True, kw_only=True):
    """Where two runs part. A side is None when its run has no further event; `fields` name what differs when both are of one type."""

    left: Side | None
    right: Side | None
    fields: tuple[str, ...] = ()


class Diff(Struct, frozen=True, kw_only=True):
    """`same`, `only_left`, `only_right` count events; `first` is the first difference, `proposal` the first divergent proposal."""

    left: str
    right: str
    same: int
    only_left: int
    only_right: int
    first: Parting | None
    proposal: Parting | None
    lines: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return self.first is None

    def text(self) -> str:
        head = f"{self.left} and {self.right}: {self.same} events mean the same, {self.only_left} only left, {self.only_right} only right"
        if self.equal:
            return head
        out = [head, *(f"  {line}" for line in self.lines)]
        if self.proposal:
            out.append(f"first divergent proposal: {_one(self.proposal.left)} | {_one(self.proposal.right)}{_named(self.proposal.fields)}")
        else:
            out.append("the proposals are the same")
        return "\n".join(out)


def _one(side: Side | None) -> str:
    return "none" if side is None else f"event {side.event} {side.what}"


def _named(fields: tuple[str, ...]) -> str:
    return f" ({', '.join(fields)})" if fields else ""


async def diff(env: Env, left: str, right: str) -> Diff:
    """Raises Misuse for a run that does not exist, ProofError for one that does not hold or whose payloads were erased."""
    a, b = _Side(await Recording.load(env, left)), _Side(await Recording.load(env, right))
    blocks = difflib.SequenceMatcher(None, a.hashes, b.hashes, autojunk=False).get_opcodes()
    same = sum(i2 - i1 for op, i1, i2, _, _ in blocks if op == "equal")
    parted = next(((i1, j1) for op, i1, _, j1, _ in blocks if op != "equal"), None)
    return Diff(
        left=left, right=right, same=same, only_left=len(a.hashes) - same, only_right=len(b.hashes) - same,
        first=None if parted is None else _parting(a, b, _at(a.seqs, parted[0]), _at(b.seqs, parted[1])),
        proposal=_first_proposal(a, b), lines=tuple(_lines(a, b, blocks)),
    )  # fmt: skip


class _Side:
    """What one run means, event by event, without housekeeping."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        known = [(x.seq, semantic_hash(x, recording.values(x.seq))) for x in recording.records]
        self.seqs = [seq for seq, hash in known if hash is not None]
        self.hashes = [hash for _, hash in known if hash is not None]
        self.of = dict(zip(self.seqs, self.hashes, strict=True))
        self.proposals = [s for s in self.seqs if isinstance(recording.fact(s), r.ActionProposed)]

    def side(self, seq: int | None) -> Side | None:
        if seq is None:
            return None
        record = self.recording.records[seq]
        return Side(event=seq, type=record.type, what=label(record))

    def meaning(self, seq: int) -> dict[str, Any]:
        return meaning(self.recording.records[seq], self.recording.values(seq), digested=True)


def _at(seqs: Sequence[int], n: int) -> int | None:
    return seqs[n] if n < len(seqs) else None


def _first_proposal(a: _Side, b: _Side) -> Parting | None:
    for n in range(max(len(a.proposals), len(b.proposals))):
        left, right = _at(a.proposals, n), _at(b.proposals, n)
        if left is None or right is None or a.of[left] != b.of[right]:
            return _parting(a, b, left, right)
    return None


def _parting(a: _Side, b: _Side, left: int | None, right: int | None) -> Parting:
    fields: tuple[str, ...] = ()
    if left is not None and right is not None and a.recording.records[left].type == b.recording.records[right].type:
        fields = tuple(path.removesuffix(".value") for path, _, _ in differences(a.meaning(left), b.meaning(right)))
    return Parting(left=a.side(left), right=b.side(right), fields=fields)


def _lines(a: _Side, b: _Side, blocks: Sequence[tuple[str, int, int, int, int]]) -> list[str]:
    out: list[str] = []
    for op, i1, i2, j1, j2 in blocks:
        if op == "equal":
            out.append(f"= {i2 - i1} the same")
            continue
        out += [f"- {_one(a.side(seq))}" for seq in a.seqs[i1:i2]]
        out += [f"+ {_one(b.side(seq))}" for seq in b.seqs[j1:j2]]
    return out


def label(record: r.AnyRecord) -> str:
    """The event in a few words that never hold a payload."""
    fact: Any = record.fact
    words = [
        record.type,
        *(
            str(v)
            for n in ("tool", "verdict", "result", "decision", "closed", "cause", "category", "code")
            if type(v := getattr(fact, n, "")) is str and v
        ),
    ]
    return " ".join(words)
