"""Gather the evidence of a period: all that the log took in between two of its checkpoints. `build(env, since, until, words) -> bytes`.

The rule a newcomer would break: what the period holds is read from the log's leaves, not from the ledger's list of runs. A run that the
ledger forgot would be missing there; here its records stand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import UNSET

from mandamus.core.accounts import REGISTER
from mandamus.core.canonical import accept
from mandamus.core.records import LOG, ActionEnded, ActionJudged, AnyRecord, RunOpened, RunRefused, RunSealed, decode
from mandamus.errors import Misuse, Unavailable
from mandamus.proof import chain
from mandamus.proof.keys import parse_vkey
from mandamus.proof.period import Counts, Head, LogLine, RunLine, edge_of
from mandamus.proof.period import build as written
from mandamus.proof.tree import EMPTY_ROOT, leaf_hash
from mandamus.runtime.env import Env
from mandamus.runtime.tlog import export
from mandamus.runtime.tlog.shown import Shown

Tell = Callable[[int, int], None]


class Gathered:
    """What is remembered of each record on its way past."""

    def __init__(self) -> None:
        self.leaves = bytearray()
        self.first: dict[str, tuple[int, bytes, AnyRecord]] = {}
        self.last: dict[str, tuple[int, bytes, AnyRecord]] = {}
        self.log: list[LogLine] = []
        self.numbers: list[int] = []
        self.counts = Counts(outcomes={}, verdicts={})

    def take(self, index: int, raw: bytes) -> None:
        self.leaves += leaf_hash(raw)
        record = decode(raw)
        fact: Any = record.fact
        given = fact.register if isinstance(fact, RunOpened | RunRefused) else UNSET
        if given is not UNSET:
            self.numbers.append(given.number)
        if isinstance(fact, ActionJudged):
            self.counts.verdicts[fact.verdict] = self.counts.verdicts.get(fact.verdict, 0) + 1
        elif isinstance(fact, ActionEnded):
            self.counts.outcomes[fact.result] = self.counts.outcomes.get(fact.result, 0) + 1
        if record.run == LOG:
            self.log.append(LogLine(index=index, record=raw.decode("ascii")))
            return
        self.first.setdefault(record.run, (index, raw, record))
        self.last[record.run] = (index, raw, record)


async def build(env: Env, since: int, until: int, words: tuple[str, str], tell: Tell = lambda done, all_: None) -> bytes:
    """`since` and `until` in microseconds since 1970; `words`: how they were asked for. Raises Misuse where there is no log or nothing in
    it, Refused for what was pruned."""
    if env.tlog is None:
        raise Misuse("a period is shown by the log, and this ledger keeps none", code="MDM-0677", fix="MANDAMUS_LOG=folder:///… names one")
    await env.tlog.catch_up()
    reader = env.tlog.reader
    old, new = await export.period(reader, since, until)
    if new <= old:
        raise Misuse("the log took in nothing in this period", code="MDM-0677", found=" to ".join(words), fix="mandamus log head")
    first, last = await _shown(env, old), await _shown(env, new)
    if last is None:
        raise Unavailable("the checkpoint of the period's end is not stored", outcome="none", code="MDM-0677", fix="try again")
    found = Gathered()
    async for index, raw in reader.records(old, new):
        found.take(index, raw)
        tell(index + 1 - old, new - old)
    signer = env.home.signer("bundle")
    numbers = (min(found.numbers), max(found.numbers)) if found.numbers else ()
    return written(
        origin=reader.origin, period=words, notes=(first.note if first else b"", last.note),
        heads=(_head(first), _head(last)), edge=await reader.computed(old, lambda node: edge_of(old, node)), leaves=bytes(found.leaves),
        register=await _register(env, numbers), numbers=numbers, runs=[await _line(env, found, run) for run in found.first],
        log=found.log, counts=found.counts, signer=signer.sign, key=parse_vkey(signer.vkey),
    )  # fmt: skip


async def _shown(env: Env, size: int) -> Shown | None:
    shown: Shown | None = await env.tlog.at(size) if size and env.tlog is not None else None
    return shown


def _head(shown: Shown | None) -> Head:
    return Head(shown.checkpoint.root.hex(), shown.checkpoint.size) if shown is not None else Head(EMPTY_ROOT.hex(), 0)


async def _register(env: Env, numbers: tuple[int, ...]) -> list[bytes]:
    if not numbers:
        return []
    low, high = numbers
    return [delta async for delta in env.ledger.deltas(REGISTER) if low <= accept(delta)["version"] <= high]


async def _line(env: Env, found: Gathered, run: str) -> RunLine:
    (i, first, _), (j, last, record) = found.first[run], found.last[run]
    state: Any = "sealed"
    if not isinstance(record.fact, RunSealed):
        state = chain.state_of(chain.walk([raw async for raw in env.ledger.read(run, upto=record.seq)], run, keep=False))
    return RunLine(first=first.decode("ascii"), index=(i, j), last=last.decode("ascii"), state=state)
