"""`verify_period(bundle, trust, beside)`: are these all runs of the period? Nothing left out, nothing added, each number once.

Every leaf that the log took in belongs to one run. So the log's growth is recomputed from its leaf hashes, the runs' first and last
records are found among them, and the events in between must be exactly all leaves. The rule a newcomer would break: the number of runs
is counted from the log, never read from the signer's statement. What only a copy of the log's files can show (that each chain is whole)
is claimed with `--log DIR` alone.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct

from mandamus.core.accounts import REGISTER, Delta
from mandamus.core.canonical import accept, digest
from mandamus.core.clock import rfc3339
from mandamus.core.records import (
    LOG,
    AnyRecord,
    RunOpened,
    RunRefused,
    RunSealed,
    decode,
    event_hash,
)
from mandamus.errors import MandamusError, ProofError, Unavailable
from mandamus.proof import bundle, dsse, papers, period, tree
from mandamus.proof import note as notes
from mandamus.proof.report import Broken, Claim, Finding, Report, exit_code, some, verdict
from mandamus.proof.scan import Scan, Told
from mandamus.proof.tiles import Tiles
from mandamus.proof.tree import HASH
from mandamus.proof.trust import Trust
from mandamus.proof.witnessed import LAST_SECOND, Seen, newest, young

T = TypeVar("T", bound=Struct)
_instant = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d+)?Z)?", re.ASCII)


class Population:
    """One bundle of a period under examination; a method for each claim."""

    def __init__(self, trust: Trust, now: int | None, max_age: int | None, tiles: Tiles | None) -> None:
        self.trust, self.now, self.max_age, self.tiles = trust, now, max_age, tiles
        self.box: bundle.Container
        self.said: period.Predicate
        self.leaves = b""
        self.runs: list[Told] = []
        self.by_run: dict[str, Told] = {}
        self.refused: dict[int, Any] = {}  # seq in chain log -> the register's number of a refused start
        self.log: list[tuple[int, AnyRecord, bytes]] = []
        self.numbers: dict[int, str] = {}
        self.seen: Seen | None = None

    # -- container and signature -----------------------------------------------------------------------------------------------
    def container(self, raw: bytes) -> Claim:
        self.box = bundle.read(raw, period.FORM)
        return Claim("container", "proven", f"{self.box.lines} lines, canonical, in {len(self.box.sections)} sections")

    def signature(self) -> Claim:
        keys = [key for _, key in self.trust.bundles]
        try:
            done = dsse.check(self.box.sections["dsse"][0], bundle.PAYLOAD_TYPE, keys)
            said = period.parse_statement(done.payload)
        except ProofError as error:
            d = error.diagnosis
            raise _no(d.what, 2, d.expected, d.found, d.code) from None
        if not self.trust.log_keys(said.origin) or done.keys[0] not in self.trust.bundle_keys(said.origin):
            raise _no(
                "the signer may not sign bundles of this log, or the log is not trusted", 2, said.origin, done.keys[0].name, "MDM-0650"
            )
        if period.header(said) != self.box.header:
            raise _no("the header is not the one that the signed statement demands", 1, code="MDM-0645")
        self.said = said
        return Claim("signature", "proven", f"by {done.keys[0].name}+{done.keys[0].id}, origin {said.origin}")

    def sections(self) -> Claim:
        return papers.section_digests(self.box, self.said.sections)

    # -- the log grew from the one checkpoint to the other -----------------------------------------------------------------------
    def checkpoint(self) -> Claim:
        first, last = (self._note(n) for n in (0, 1))
        if first is None and self.said.first != period.Head(tree.EMPTY_ROOT.hex(), 0):
            raise _no("the first checkpoint is not shown", self.box.first["checkpoint"], code="MDM-0665")
        if last is None:
            raise _no("the last checkpoint is not shown", self.box.first["checkpoint"] + 1, code="MDM-0665")
        for held, head in ((first, self.said.first), (last, self.said.last)):
            if held is not None and (held.checkpoint.size, held.checkpoint.root.hex()) != (head.size, head.root):
                raise _no("a checkpoint is not the one that the signed statement names", self.box.first["checkpoint"], code="MDM-0647")
        if self.said.first.size > self.said.last.size:
            raise _no("the last checkpoint is smaller than the first", self.box.first["checkpoint"], code="MDM-0671")
        time = max((seen.time or 0 for seen in last.cosigners), default=0)
        self.seen = Seen(self.said.origin, self.said.last.size, self.said.last.root, time)
        told = f"size {self.said.first.size} to {self.said.last.size}, signed by {last.log.name}+{last.log.id}"
        if not last.met or (first is not None and not first.met):
            return Claim("checkpoint", "not in this bundle", f"{told}; not the quorum {self.trust.quorum}", 3)
        if not young(last, self.trust, self.now, self.max_age):
            return Claim("checkpoint", "not in this bundle", f"{told}; too few cosignatures are as young as {self.max_age} seconds", 3)
        demanded = self.trust.quorum not in (None, "none")
        if demanded and first is not None and not self._early(first):
            what = f"the period is to begin at {self.said.period[0][:40]}, and its first checkpoint was cosigned later"
            return Claim("checkpoint", "not in this bundle", f"{told}; {what}", 3)
        return Claim("checkpoint", "proven", told + (f": quorum {self.trust.quorum}" if demanded else "; no quorum is demanded"))

    def _early(self, first: notes.Witnessed) -> bool:
        """What came before the first checkpoint is not in the bundle: so that one was there when the period began."""
        since = self.said.period[0]
        times = ((s.key.public, s.time) for s in first.cosigners if s.time is not None and notes.SKEW_S <= s.time < LAST_SECOND)
        early = {public for public, time in times if rfc3339((time - notes.SKEW_S) * 1_000_000) <= since}
        return _instant.fullmatch(since) is not None and notes.met(self.trust, early)

    def _note(self, number: int) -> notes.Witnessed | None:
        line = self.box.first["checkpoint"] + number
        text = self._text("checkpoint", number)
        if not text:
            return None
        try:
            return notes.check(text.encode(), self.trust, self.said.origin, now=self.now)
        except ProofError as error:
            d = error.diagnosis
            raise _no(d.what, line, d.expected, d.found, d.code) from None

    def _text(self, section: str, number: int) -> str:
        line = self.box.first[section] + number
        try:
            text = accept(self.box.sections[section][number])
        except ValueError as error:
            raise _no(f"this line is not canonical JSON: {str(error)[:80]}", line, code="MDM-0646") from None
        if type(text) is not str:
            raise _no("this line is no text", line, code="MDM-0646")
        return text

    def growth(self) -> Claim:
        """The tree of the last checkpoint is that of the first and these leaves, and nothing else."""
        first, last = self.said.first, self.said.last
        try:
            edge = [bytes.fromhex(self._text("edge", n)) for n in range(len(self.box.sections["edge"]))]
            self.leaves = period.leaves_of(self.box.sections["leaf"])
        except ValueError as error:
            raise _no(str(error)[:120], self.box.first["leaf"], code="MDM-0646") from None
        if len(edge) != first.size.bit_count() or any(len(h) != HASH for h in edge) or period.root_of_edge(edge).hex() != first.root:
            raise _no("the edge of the first tree does not lead to its root", self.box.first["edge"], first.root, code="MDM-0664")
        size = period.grow(edge, first.size, self.leaves)
        if size != last.size or period.root_of_edge(edge).hex() != last.root:
            what = "the leaves do not lead from the first checkpoint to the last"
            raise _no(what, self.box.first["leaf"], f"{last.size} leaves, root {last.root}", f"{size} leaves", "MDM-0664")
        return Claim("growth", "proven", f"{last.size - first.size} leaves, from the first checkpoint to the last")

    # -- whose leaves they are ---------------------------------------------------------------------------------------------------
    def places(self) -> Claim:
        """Each record that is shown stands at its leaf."""
        for number, raw in enumerate(self.box.sections["run"], self.box.first["run"]):
            told = self._run(_typed(raw, period.RunLine, number), number)
            if told.run in self.by_run or told.run == LOG:
                raise _no("this run is shown already, or is none", number, code="MDM-0646")
            self.by_run[told.run] = told
            self.runs.append(told)
        for number, raw in enumerate(self.box.sections["log"], self.box.first["log"]):
            self._log(_typed(raw, period.LogLine, number), number)
        self._not_too_early()
        count = 2 * len(self.runs) + len(self.log)
        return Claim("places", "proven", f"{some(count, 'record')} of {some(len(self.runs), 'run')} and of chain log, each at its leaf")

    def _run(self, line: period.RunLine, number: int) -> Told:
        first_raw, last_raw = line.first.encode(), line.last.encode()
        first, last = self._at(first_raw, line.index[0], number), self._at(last_raw, line.index[1], number)
        if first.run != last.run or last.seq - first.seq < 0 or line.index[1] - line.index[0] < last.seq - first.seq:
            raise _no("these two records are not the first and the last of one run", number, code="MDM-0646")
        if (first.seq == 0) != isinstance(first.fact, RunOpened) or (
            isinstance(first.fact, RunOpened) and first.fact.origin != self.said.origin
        ):
            raise _no("the run does not begin with a genesis of this log", number, code="MDM-0650")
        if (line.state == "sealed") != isinstance(last.fact, RunSealed):
            raise _no("a run is sealed when its last record is its seal", number, line.state, last.type, "MDM-0658")
        opened = first.fact.register.number if isinstance(first.fact, RunOpened) else 0
        return Told(first.run, opened, first, last, line.index, line.state, number, event_hash(last_raw))

    def _log(self, line: period.LogLine, number: int) -> None:
        raw = line.record.encode()
        record = self._at(raw, line.index, number)
        before = self.log[-1] if self.log else None
        linked = before is None or (record.seq == before[1].seq + 1 and record.prev == event_hash(before[2]) and line.index > before[0])
        if record.run != LOG or not linked:
            raise _no("this is not the next record of chain log", number, code="MDM-0641")
        self.log.append((line.index, record, raw))
        if isinstance(record.fact, RunRefused) and record.fact.register is not UNSET:
            self.refused[record.seq] = record.fact.register

    def _at(self, raw: bytes, index: int, number: int) -> AnyRecord:
        at = (index - self.said.first.size) * HASH
        if not 0 <= at < len(self.leaves) or self.leaves[at : at + HASH] != tree.leaf_hash(raw):
            raise _no(f"this record is not leaf {index}", number, code="MDM-0664")
        try:
            return decode(raw)
        except ProofError as error:
            raise _no(error.diagnosis.what, number, code=error.diagnosis.code) from None

    def _not_too_early(self) -> None:
        """A witness cannot have seen what was written later."""
        at = newest([*(t.last for t in self.runs), *(record for _, record, _ in self.log)])
        last = self._note(1)
        for seen in last.cosigners if last is not None else ():
            if seen.time is not None and seen.time < LAST_SECOND and at > rfc3339((seen.time + notes.SKEW_S) * 1_000_000):
                raise _no(f"the cosignature of {seen.key.name} is older than a record that it covers", None, at, code="MDM-0666")

    # -- the register --------------------------------------------------------------------------------------------------------------
    def register(self) -> Claim:
        """Consecutive numbers, each linked to the one before, each for one genesis or one refused start."""
        before: Delta | None = None
        hash = ""
        for number, raw in enumerate(self.box.sections["register"], self.box.first["register"]):
            delta = _typed(raw, Delta, number)
            if delta.account != REGISTER or (before is not None and delta.version != before.version + 1):
                raise _no(
                    "a number of the register is missing", number, str(before.version + 1 if before else ""), str(delta.version), "MDM-0674"
                )
            if before is not None and delta.prev != hash:
                raise _no("a number does not link to the one before", number, hash, delta.prev[:64], "MDM-0674")
            self.numbers[delta.version] = delta.run if delta.run != LOG else f"{LOG}/{delta.seq}"
            before, hash = delta, digest("delta", raw)
            self._taken(delta, number)
        numbers = (min(self.numbers), max(self.numbers)) if self.numbers else ()
        if numbers != self.said.numbers:
            raise _no("the register is not the one that the signed statement names", None, str(self.said.numbers), str(numbers), "MDM-0674")
        for told in self.runs:
            if told.number and self.numbers.get(told.number) != told.run:
                raise _no(f"run {told.run} has a number that the register does not give it", told.line, "", str(told.number), "MDM-0674")
        for seq, given in self.refused.items():
            if self.numbers.get(given.number) != f"{LOG}/{seq}":
                raise _no(f"log event {seq} has a number that the register does not give it", None, code="MDM-0674")
        return Claim("register", "proven", self._words_of_numbers() + ", linked, none missing")

    def _taken(self, delta: Delta, number: int) -> None:
        """By whom, in his own record."""
        told = self.by_run.get(delta.run)
        given: Any = self.refused.get(delta.seq) if delta.run == LOG else None
        if told is not None and told.number and delta.seq == 0:
            given = told.first.fact.register  # type: ignore[attr-defined]
        if given is None:
            raise _no(f"number {delta.version} was taken by run {delta.run[:40]}, which is not shown", number, code="MDM-0674")
        if (given.number, given.prev) != (delta.version, delta.prev):
            raise _no(f"run {delta.run[:40]} names another number", number, str(delta.version), str(given.number), "MDM-0674")

    def _words_of_numbers(self) -> str:
        if not self.numbers:
            return "no run was opened"
        low, high = min(self.numbers), max(self.numbers)
        return f"run {low:,}" if low == high else f"runs {low:,}-{high:,}"

    # -- nothing else --------------------------------------------------------------------------------------------------------------
    def population(self) -> Claim:
        """The events of the runs that are shown are all leaves that there are."""
        held = sum(told.last.seq - told.first.seq + 1 for told in self.runs) + len(self.log)
        there = self.said.last.size - self.said.first.size
        if held != there:
            what = "there are leaves of no run that is shown" if held < there else "the runs claim more records than there are"
            raise _no(what, None, f"{there} leaves", f"{held} events", "MDM-0675")
        shown = [index for told in self.runs for index in set(told.index)] + [index for index, _, _ in self.log]
        if len(set(shown)) != len(shown):
            raise _no("one leaf is shown for two records", None, code="MDM-0675")
        states = Counter(told.state for told in self.runs)
        older = sum(not told.number for told in self.runs)
        told_ = [f"{self._words_of_numbers()}, none missing", *(f"{states[s]:,} {s}" for s in ("open", "interrupted") if states[s])]
        told_ += [f"{older:,} opened before"] if older else []
        return Claim("population", "proven", ", ".join(told_))

    # -- with the log's files ------------------------------------------------------------------------------------------------------
    def records(self) -> Claim:
        """Each record of the period read from the log's files: whole chains, states and counts as they are told."""
        counts = self.said.counts
        told = f"{_sum(counts.verdicts)}; {_sum(counts.outcomes)}"
        if self.tiles is None:
            return Claim("records", "cannot check now", f"as the signer counts: {told}; the log's files (--log DIR) would show it", 0)
        reader = Scan(self.runs)
        try:
            for at, raw in enumerate(self.tiles.entries(self.said.first.size, self.said.last.size)):
                if tree.leaf_hash(raw) != self.leaves[at * HASH : (at + 1) * HASH]:
                    raise _no(f"the log's files hold another record as leaf {self.said.first.size + at}", None, code="MDM-0675")
                reader.take(raw, self.said.first.size + at)
        except Unavailable as error:
            return Claim("records", "cannot check now", f"{error.diagnosis.what} ({error.diagnosis.where})", 5)
        reader.close()
        if (reader.verdicts, reader.outcomes) != (counts.verdicts, counts.outcomes):
            raise _no("the records count otherwise", 2, told, f"{_sum(reader.verdicts)}; {_sum(reader.outcomes)}", "MDM-0675")
        return Claim("records", "proven", f"{some(self.said.last.size - self.said.first.size, 'record')} read: {told}")


def verify_period(
    raw: bytes,
    trust: Trust,
    *,
    now: int | None,
    max_age: int | None,
    tiles: Tiles | None,
    continuity: Callable[[Seen | None], Claim] | None,
    sample: tuple[int, str] | None,
) -> Report:
    """Never raises. Each claim stands on those before it: the first that does not hold ends it."""
    case = Population(trust, now, max_age, tiles)
    checks: list[Callable[[], Claim]] = [
        lambda: case.container(raw), case.signature, case.checkpoint, case.growth, case.places, case.register, case.population,
        case.records, case.sections,
    ]  # fmt: skip
    if continuity is not None:
        checks.insert(4, lambda: continuity(case.seen))
    names = ["container", "signature", "checkpoint", "growth", *(["continuity"] if continuity else []), "places", "register", "population"]
    claims: list[Claim] = []
    broken: Finding | None = None
    for name, check in zip([*names, "records", "sections"], checks, strict=True):
        try:
            claims.append(check())
        except Broken as error:
            claims.append(Claim(name, "broken", error.diagnosis.what, 1))
            broken = error.finding
            break
        except (ArithmeticError, AttributeError, LookupError, MandamusError, RecursionError, TypeError, ValueError):
            broken = Finding("the file is of no form that a period has", code="MDM-0646")
            claims.append(Claim(name, "broken", broken.what, 1))
            break
    code = exit_code({claim.exit_code for claim in claims})
    said = getattr(case, "said", None)
    return Report(
        verdict=verdict(code), exit_code=code, events=said.last.size - said.first.size if said else 0, checkpoint=case.seen,
        claims=tuple(claims), broken=broken, sample=drawn(case.runs, *sample) if sample and broken is None else (),
    )  # fmt: skip


def drawn(runs: Sequence[Told], count: int, seed: str) -> tuple[str, ...]:
    """The auditor's sample of the runs that were opened: whoever knows the seed draws the same, and who does not cannot choose it."""
    names = [told.run for told in runs if told.number]
    return tuple(sorted(names, key=lambda run: hashlib.sha256(f"mandamus/v1/sample\0{seed}\0{run}".encode()).digest())[:count])


def _typed(raw: bytes, kind: type[T], number: int) -> T:
    """A line as its closed form, when it is its canonical bytes."""
    try:
        value = msgspec.json.decode(raw, type=kind)
        if msgspec.json.encode(value) != raw or not raw.isascii():  # fields stand in sorted order: canonical for ASCII
            raise ValueError("not canonical")
    except (ValueError, TypeError, RecursionError):  # msgspec's errors are ValueErrors
        raise _no("this line is not of its section's form", number, code="MDM-0646") from None
    return value


def _sum(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def _no(what: str, line: int | None, expected: str = "", found: str = "", code: str = "MDM-0675") -> Broken:
    return Broken(Finding(what, code=code, line=line, expected=expected, found=found))
