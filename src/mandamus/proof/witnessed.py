"""The proof lines of a bundle: that its records are leaves of the log, under checkpoints that the log signed and others saw.

`Proofs(...)` reads and sorts the lines; `checkpoint`, `inclusion`, `children` and `anchors` each give one claim or raise Broken. The rule
a newcomer would break: a leaf is made of the record that was checked, never of what the proof says, and a proof without a checkpoint of
the trust file's log proves nothing.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import UNSET, Struct

from mandamus.core.canonical import accept, parse
from mandamus.core.clock import rfc3339
from mandamus.core.records import ActionEnded, ActionStarted, AnyRecord, EvidenceReached, RunOpened, RunSealed, decode
from mandamus.errors import ProofError
from mandamus.proof import note as notes
from mandamus.proof import tlogproof, tree
from mandamus.proof.keys import VKey, b64
from mandamus.proof.report import Broken, Claim, Finding, Outcome, some
from mandamus.proof.trust import Trust

ANCHORS_MAX = 8
LAST_SECOND = 253_402_300_000  # of the year 9999: behind it nothing is earlier
_at = re.compile(r"(19[7-9]\d|[2-9]\d{3})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)\.\d{6}Z")


class Proven(Struct, frozen=True):
    """One line: its number in the file, what it is for, and the proof. `newest`: the latest `at` of the records it covers."""

    number: int
    job: str  # run, log, child, level, anchor
    proof: tlogproof.LogProof
    leaf: bytes
    newest: str = ""
    action: str = ""
    child: RunSealed | None = None
    child_run: str = ""
    reached: int = -1  # the position of the EvidenceReached that it is for


class Rested(Struct, frozen=True):
    """A child that the run rests on: the action, the child's run, and how its seal must read."""

    action: str
    run: str
    closed: str
    operation: str


class Seen(Struct, frozen=True):
    """The largest checkpoint of the bundle, and the youngest cosignature on the run's (seconds since 1970, 0: none)."""

    origin: str
    size: int
    root: str
    time: int = 0


class Run(Struct, frozen=True):
    """What the proofs are for: records and bytes of the run and of chain `log`, both checked before."""

    origin: str
    records: Sequence[AnyRecord]
    raws: Sequence[bytes]
    log_records: Sequence[AnyRecord]
    log_raws: Sequence[bytes]


class Proofs:
    """`now`: seconds since 1970 of whoever verifies, None where nobody asks. `max_age`: seconds."""

    def __init__(
        self, lines: Sequence[bytes], first: int, run: Run, trust: Trust, now: int | None = None, max_age: int | None = None
    ) -> None:
        self.raws, self.first, self.run, self.trust, self.now, self.max_age = lines, first, run, trust, now, max_age
        self.rested = rests_on(run.records)
        self.reached = [record for record in run.records if isinstance(record.fact, EvidenceReached)]
        self.lines: list[Proven] = []
        self.seen: Seen | None = None
        self.notes: dict[bytes, notes.Witnessed] = {}

    @property
    def demanded(self) -> bool:
        return self.trust.quorum not in (None, "none")

    # -- claim: checkpoint -----------------------------------------------------------------------------------------------------
    def checkpoint(self) -> Claim:
        if not self.raws:
            if self.demanded:
                return _missing("checkpoint", f"the trust file demands quorum {self.trust.quorum}, and there is no proof of the log", 3)
            return _missing("checkpoint", "no proof that the log holds this run; nobody is asked to have witnessed it", 0)
        self.lines = self._sorted()
        roots: dict[int, bytes] = {}
        for line in self._own():
            held = self._note(line)
            if roots.setdefault(held.checkpoint.size, held.checkpoint.root) != held.checkpoint.root:
                raise _no("two checkpoints of one size have different roots: a split view", line.number, code="MDM-0670")
            self._in_time(line, held)
        largest = max((self.notes[line.proof.note].checkpoint for line in self._own()), key=lambda c: c.size)
        head = self.notes[self.lines[0].proof.note]
        time = max((seen.time or 0 for seen in head.cosigners), default=0)
        self.seen = Seen(largest.origin, largest.size, largest.root.hex(), time)
        return self._enough(head, time)

    def _enough(self, head: notes.Witnessed, time: int) -> Claim:
        told = f"size {head.checkpoint.size}, signed by {head.log.name}+{head.log.id}"
        names = sorted({name for name, key in self.trust.witnesses.items() for seen in head.cosigners if seen.key.public == key.public})
        told += f", cosigned by {', '.join(names)}" if names else ", cosigned by nobody of the trust file"
        if not all(self.notes[line.proof.note].met for line in self._own() if line.job != "level"):
            return _missing("checkpoint", f"{told}; that is not the quorum {self.trust.quorum}", 3)
        if not young(head, self.trust, self.now, self.max_age):
            age = f"the youngest cosignature is {self.now - time} seconds old" if time and self.now is not None else "nobody says when"
            age = age if self.now is None or self.now - time > (self.max_age or 0) else "too few cosignatures are as young"
            return _missing("checkpoint", f"{told}; {age}, and {self.max_age} is allowed", 3)
        return Claim("checkpoint", "proven", told + (f": quorum {self.trust.quorum}" if self.demanded else "; no quorum is demanded"))

    def _note(self, line: Proven) -> notes.Witnessed:
        if line.proof.note not in self.notes:
            try:
                self.notes[line.proof.note] = notes.check(line.proof.note, self.trust, self.run.origin, now=self.now)
            except ProofError as error:
                raise _passed_on(error, line.number) from None
        return self.notes[line.proof.note]

    def _in_time(self, line: Proven, held: notes.Witnessed) -> None:
        """A witness cannot have seen what was written later, but for what a clock may go wrong by."""
        for seen in held.cosigners:
            if seen.time is not None and seen.time < LAST_SECOND and line.newest > rfc3339((seen.time + notes.SKEW_S) * 1_000_000):
                what = f"the cosignature of {seen.key.name} is older than a record that it covers"
                raise _no(what, line.number, line.newest, rfc3339(seen.time * 1_000_000), "MDM-0666")

    def check_retired(self, retired: Callable[[VKey], bool]) -> None:
        """A checkpoint over all of chain log that is shown is signed by a key that this chain has not retired. Raises Broken."""
        covered = next((line.proof.index for line in self.lines if line.job == "log"), None)
        keys = self.trust.log_keys(self.run.origin)
        if self.seen is None or covered is None:
            return
        for line in self._own():
            signers = [seen.key for seen in notes.seen(notes.parse_note(line.proof.note), keys)]
            if self.notes[line.proof.note].checkpoint.size > covered and all(retired(key) for key in signers):
                what = "the checkpoint is signed by a key of the log that had been retired before"
                raise _no(what, line.number, found=", ".join(f"{key.name}+{key.id}" for key in signers), code="MDM-0656")

    # -- claim: inclusion ------------------------------------------------------------------------------------------------------
    def inclusion(self) -> Claim:
        if not self.raws:
            return _missing("inclusion", "no record is shown to be in the log", 0)
        if self.seen is None:
            return Claim("inclusion", "cannot check now", "there is no checkpoint that holds", 5)
        for line in self._own():
            held = self.notes[line.proof.note].checkpoint
            if not tree.verify_inclusion(line.leaf, line.proof.index, held.size, line.proof.path, held.root):
                what = f"the {_JOBS[line.job]} is not in the log at index {line.proof.index}"
                raise _no(what, line.number, f"root {held.root.hex()}", "another", "MDM-0664")
        self._room()
        children = sum(line.job == "child" for line in self.lines)
        told = f"the run's last record is leaf {self.lines[0].proof.index}"
        told += f", that of chain log {self.lines[1].proof.index}" if self.run.log_raws else ""
        return Claim("inclusion", "proven", told + (f"; {some(children, 'seal')} of children" if children else ""))

    def _room(self) -> None:
        """What names a checkpoint was written after it, so it stands behind all of its leaves."""
        records, line = self.run.records, self.lines[0]
        held = {c.size: c.root.hex() for c in (w.checkpoint for w in self.notes.values())}
        for record in records:
            fact = record.fact
            named = fact.anchor if isinstance(fact, RunOpened) else fact if isinstance(fact, EvidenceReached) else None
            if named is None or not named.size:
                continue
            least = named.size + len(records) - 1 - record.seq
            if line.proof.index < least:
                what = f"event {record.seq} names a checkpoint that is newer than itself"
                raise _no(what, line.number, f"index {least} or more", str(line.proof.index), "MDM-0664")
            if held.get(named.size, named.root) != named.root:
                what = f"event {record.seq} names another root for a log of {named.size} leaves: a split view"
                raise _no(what, line.number, held[named.size], named.root[:64], "MDM-0670")

    # -- claim: children -------------------------------------------------------------------------------------------------------
    def children(self) -> Claim:
        """Only where the run rests on a child."""
        lines = {line.child_run: line for line in self.lines if line.job == "child"}
        absent = [rested.run for rested in self.rested if rested.run not in lines]
        for rested in self.rested:
            if rested.run != rested.operation[:26].upper():
                raise _no(
                    f"child {rested.run[:26]} is not the one of its intent", None, rested.operation[:26].upper(), rested.run, "MDM-0667"
                )
            line = lines.get(rested.run)
            if line is not None and line.child is not None and line.child.closed != rested.closed:
                what = f"action {rested.action[:40]} says something else than the seal of its child"
                raise _no(what, line.number, line.child.closed, rested.closed, "MDM-0667")
        if self.raws and self.seen is None:
            return Claim("children", "cannot check now", "there is no checkpoint that holds", 5)
        if absent:
            return _missing("children", f"the seal of child {', '.join(absent[:5])}", 3 if self.raws or self.demanded else 0)
        return Claim("children", "proven", f"{some(len(lines), 'seal')} of children in the log, each as its action says")

    def levels(self) -> dict[int, bool]:
        """For claim `levels`: of which EvidenceReached the checkpoint is shown, and whether the quorum of the trust file cosigned it."""
        own = [line for line in self._own() if line.job == "level"] if self.seen is not None else []
        return {line.reached: self.notes[line.proof.note].met for line in own}

    # -- claim: anchors --------------------------------------------------------------------------------------------------------
    @property
    def anchored(self) -> bool:
        return any(line.job == "anchor" for line in self.lines)

    def anchors(self) -> Claim:
        """Only where there is one: our checkpoint is an entry of a public log."""
        unknown: list[str] = []
        known: list[str] = []
        texts = {w.checkpoint.size: w.checkpoint.text.encode() for w in self.notes.values()}
        head = self.notes[self.lines[0].proof.note].checkpoint.size if self.seen is not None else 0
        for line in (x for x in self.lines if x.job == "anchor"):
            note = notes.parse_note(line.proof.note)
            held = notes.parse_checkpoint(note.text)
            keys = self.trust.anchor_keys(held.origin)
            if not keys:
                unknown.append(held.origin)
                continue
            try:
                signed = notes.seen(note, keys)
            except ProofError as error:
                raise _passed_on(error, line.number) from None
            if not signed or not tree.verify_inclusion(line.leaf, line.proof.index, held.size, line.proof.path, held.root):
                raise _no(f"the entry is not in the public log {held.origin}", line.number, code="MDM-0668")
            of = next((size for size, text in texts.items() if is_entry_over(line.proof.extra, text)), None)
            if of is None:
                raise _no(f"the entry in {held.origin} is not about a checkpoint of this bundle", line.number, code="MDM-0668")
            known.append(f"{held.origin} at {line.proof.index}" + ("" if of == head else f" (an earlier one, of size {of})"))
        if self.seen is None:
            return Claim("anchors", "cannot check now", "there is no checkpoint that holds", 5)
        if not known:
            return Claim("anchors", "cannot check now", f"the trust file holds no key (`anchor NAME VKEY`) for {', '.join(unknown[:5])}", 0)
        told = f"the checkpoint is an entry of {', '.join(known)}"
        return Claim("anchors", "proven", told + (f"; not checked: {', '.join(unknown)}" if unknown else ""))

    # -- the lines, sorted -----------------------------------------------------------------------------------------------------
    def _own(self) -> list[Proven]:
        return [line for line in self.lines if line.job != "anchor"]

    def _sorted(self) -> list[Proven]:
        most = 2 + len(self.rested) + len(self.reached) + ANCHORS_MAX
        if len(self.raws) > most:
            raise _no(f"section proof has {len(self.raws)} lines", self.first, f"at most {most}", "", "MDM-0665")
        read = [(number, *_read(raw, number)) for number, raw in enumerate(self.raws, self.first)]
        number, proof, _ = read.pop(0)
        out = [Proven(number, "run", _bare(proof, number), tree.leaf_hash(self.run.raws[-1]), newest(self.run.records))]
        if self.run.log_raws:
            if not read:
                raise _no("there is no proof for chain log", self.first, code="MDM-0665")
            number, proof, _ = read.pop(0)
            out.append(Proven(number, "log", _bare(proof, number), tree.leaf_hash(self.run.log_raws[-1]), newest(self.run.log_records)))
        left, reached = list(self.rested), list(self.reached)
        for number, proof, origin in read:
            if origin != self.run.origin:
                out.append(Proven(number, "anchor", proof, tree.leaf_hash(proof.extra)))
                continue
            if out[-1].job == "anchor":
                raise _no("proofs of the log stand behind its anchors", number, code="MDM-0665")
            if proof.extra and out[-1].job == "level":
                raise _no("proofs of children stand behind those of levels", number, code="MDM-0665")
            out.append(_child(number, proof, left) if proof.extra else self._level(number, proof, reached))
        if sum(line.job == "anchor" for line in out) > ANCHORS_MAX:
            raise _no("there are too many anchors", self.first, f"at most {ANCHORS_MAX}", "", "MDM-0665")
        return out

    @functools.cached_property
    def _latest(self) -> list[str]:
        """For each event the latest `at` up to it: a run may have reached as many levels as it has events."""
        return list(itertools.accumulate((r.at if _at.fullmatch(r.at) else "" for r in self.run.records), max))

    def _level(self, number: int, proof: tlogproof.LogProof, left: list[AnyRecord]) -> Proven:
        """The event that a level was reached for, under the checkpoint that its EvidenceReached names. Takes that one, and those before."""
        held = notes.parse_checkpoint(notes.parse_note(proof.note).text)
        while left:
            record = left.pop(0)
            fact: Any = record.fact
            if (fact.size, fact.root) == (held.size, held.root.hex()):
                leaf = tree.leaf_hash(self.run.raws[fact.seq])
                return Proven(number, "level", proof, leaf, self._latest[fact.seq], reached=record.seq)
        raise _no("this proof is of no level that the run reached, or not in its turn", number, code="MDM-0665")


_JOBS = {
    "run": "run's last record", "log": "last record of chain log", "child": "seal of the child", "level": "event that reached a level",
}  # fmt: skip


def _read(raw: bytes, number: int) -> tuple[tlogproof.LogProof, str]:
    """The proof and the origin of its checkpoint."""
    try:
        text = accept(raw)
    except ValueError as error:
        raise _no(f"this line is not canonical JSON: {str(error)[:80]}", number, code="MDM-0646") from None
    if type(text) is not str:
        raise _no("a proof line is a JSON string", number, code="MDM-0646")
    try:
        proof = tlogproof.parse(text.encode())
        return proof, notes.parse_checkpoint(notes.parse_note(proof.note).text).origin
    except ProofError as error:
        raise _passed_on(error, number) from None


def _bare(proof: tlogproof.LogProof, number: int) -> tlogproof.LogProof:
    if proof.extra:
        raise _no("the proof carries a record that this bundle holds already", number, code="MDM-0665")
    return proof


def _child(number: int, proof: tlogproof.LogProof, left: list[Rested]) -> Proven:
    """The seal in `extra`, of the next child that has one. Takes it, and those that were left out, from `left`."""
    try:
        record = decode(proof.extra)
    except ProofError as error:
        raise _no(f"this proof carries no record: {error.diagnosis.what}", number, code="MDM-0667") from None
    if not isinstance(record.fact, RunSealed) or record.fact.count != record.seq or record.fact.head != record.prev:
        raise _no("this proof carries no seal of a run", number, "RunSealed", record.type[:40], "MDM-0667")
    while left:
        rested = left.pop(0)
        if rested.run == record.run:
            return Proven(
                number, "child", proof, tree.leaf_hash(proof.extra), newest([record]), rested.action, record.fact, record.run
            )  # fmt: skip
    raise _no("this proof is of no run that this one rests on, or not in its turn", number, code="MDM-0665", found=record.run[:40])


def rests_on(records: Sequence[AnyRecord]) -> list[Rested]:
    """Children whose seal the run's outcomes rest on, in order, each once."""
    started: dict[str, ActionStarted] = {}
    out: dict[str, Rested] = {}
    for record in records:
        fact: Any = record.fact
        if isinstance(fact, ActionStarted) and fact.child is not UNSET:
            started[fact.action] = fact
        elif isinstance(fact, ActionEnded) and fact.via == "child" and fact.action in started:
            intent, code = started[fact.action], "" if fact.code is UNSET else fact.code
            if fact.result == "done" or code.startswith("child_"):
                closed = "completed" if fact.result == "done" else code.removeprefix("child_")
                out.setdefault(str(intent.child), Rested(fact.action, str(intent.child), closed, intent.operation))
    return list(out.values())


def young(held: notes.Witnessed, trust: Trust, now: int | None, max_age: int | None) -> bool:
    """One witness's clock makes nothing young: as many as are demanded have cosigned it lately."""
    if max_age is None or now is None:
        return max_age is None or any(seen.time for seen in held.cosigners)
    lately = {seen.key.public for seen in held.cosigners if seen.time and now - seen.time <= max_age}
    return bool(lately) and notes.met(trust, lately)


def newest(records: Iterable[AnyRecord]) -> str:
    """The latest `at` among those that are written as instants; fixed width, so the order of texts is that of time."""
    records = list(records)
    latest = max((record.at for record in records), default="")
    return latest if not latest or _at.fullmatch(latest) else max((r.at for r in records if _at.fullmatch(r.at)), default="")


def is_entry_over(entry: bytes, text: bytes) -> bool:
    """Whether a public log's entry is our checkpoint itself, or a Rekor v2 `hashedrekord` over its SHA-256."""
    if entry == text:
        return True
    try:
        value: Any = parse(entry)
        data = value["spec"]["hashedRekordV002"]["data"]
        found = (value["kind"], value["apiVersion"], data["algorithm"], data["digest"])
    except (ValueError, TypeError, KeyError):
        return False
    return found == ("hashedrekord", "0.0.2", "SHA2_256", b64(hashlib.sha256(text).digest()))


def _missing(name: str, says: str, code: int) -> Claim:
    outcome: Outcome = "not in this bundle"
    return Claim(name, outcome, says, code)


def _passed_on(error: ProofError, line: int) -> Broken:
    d = error.diagnosis
    return Broken(Finding(d.what, code=d.code, line=line, expected=d.expected, found=d.found, why=d.why))


def _no(what: str, line: int | None, expected: str = "", found: str = "", code: str = "MDM-0665") -> Broken:
    return Broken(Finding(what, code=code, line=line, expected=expected, found=found))
