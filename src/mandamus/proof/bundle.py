"""The bundle: one run and everything needed to check it, as one canonical JSONL file. `build(...) -> bytes`, `read(bytes) -> Container`.

    line 1   header: the sections and their number of lines
    then     dsse 1 · manifest 1 · policy k · record n · log l · account a · payload m · proof p · key q · tsr t
Every line is canonical JSON, LF only, nothing behind the last one. The DSSE line signs the digest of every section, so no byte can
change unnoticed. The rule a newcomer would break: keys inside are hints for people. What is trusted comes from outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from mandamus.core.canonical import accept, canon, digest
from mandamus.core.payload import Payload
from mandamus.core.records import LOG, AnyRecord, Erased, RunOpened
from mandamus.errors import Misuse, ProofError
from mandamus.proof import dsse, shown
from mandamus.proof.chain import Walk, state_of, walk
from mandamus.proof.keys import VKey, b64
from mandamus.proof.report import Broken, Finding

FORMAT = "mandamus/1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:mandamus:run-bundle:1"
STATEMENT_BYTES_MAX = 4096  # what a KMS signs without hashing first
SECTIONS = ("dsse", "manifest", "policy", "record", "log", "account", "payload", "proof", "key", "tsr")
BUNDLE_BYTES_MAX = 1 << 30
LINES_MAX = 4_000_000
HEADER_BYTES_MAX = 1024
T = TypeVar("T")


class Chained(Struct, frozen=True, forbid_unknown_fields=True):
    count: int
    head: str


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    count: int
    digest: str
    name: str


class Predicate(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the bundle's signer says. `state` is sealed, open or interrupted, and is recomputed by whoever verifies."""

    count: int
    head: str
    log: Chained
    manifest: str
    origin: str
    policies: tuple[str, ...]
    run: str
    sections: tuple[Section, ...]
    state: str


class Form(Struct, frozen=True):
    """A file format of this kind: its name, what line 1 says it is of, its sections, and how many lines some of them have."""

    name: str
    of: str
    sections: tuple[str, ...]
    lines: dict[str, tuple[int, int]]


RUN_FORM = Form(FORMAT, "run", SECTIONS, {"dsse": (1, 1), "manifest": (1, 1), "record": (1, LINES_MAX)})


class Container(Struct, frozen=True):
    """A bundle cut into its sections; nothing is believed yet. `first` = number of each section's first line, counted from 1."""

    header: bytes
    sections: dict[str, list[bytes]]
    first: dict[str, int]
    lines: int


# -- build -------------------------------------------------------------------------------------------------------------------
def build(
    *,
    records: Sequence[bytes],
    payloads: Iterable[Payload],
    policies: Mapping[str, Mapping[str, Any]],
    manifest: str,
    signer: dsse.Sign,
    key: VKey,
    log: Sequence[bytes] = (),
    deltas: Sequence[bytes] = (),
    proofs: Sequence[bytes] = (),
    keys: Iterable[tuple[str, VKey]] = (),
    stamps: Iterable[tuple[bytes, bytes]] = (),
    withheld: shown.Hide = lambda _: False,
    blobs: Mapping[str, str] | None = None,
) -> bytes:
    """The bundle of one run.

    `policies`: by digest, what it is the digest of (core.digests.policy_digest).
    `payloads`: of the run and of chain `log`. `deltas`: those that this run caused. `keys`:
    (role, key), as hints. `proofs`: C2SP tlog-proofs, of the run's last record, then of the last record of `log`, then one for each
    child's seal (its bytes are the proof's `extra`), then one for each level reached, then anchors. `stamps`: (the checkpoint note of a
    proof, RFC 3161 reply over it).
    `withheld((run, seq, part))`: True hides a payload, names show only these members of it; `blobs` names, by commitment, those that lie
    beside the bundle. A payload that is stored sealed is shown as stored.
    Raises ProofError when the chain or a payload does not hold: nothing is signed then.
    """
    walked, log_walk = _sound(records, None), _sound(log, LOG)
    opened = walked.records[0].fact
    if not isinstance(opened, RunOpened):
        raise Misuse("a bundle is made of a run, not of chain log", code="MDM-0186")
    lines = {
        "manifest": [canon({"text": manifest})],
        "policy": [canon({"digest": name, "source": dict(source)}) for name, source in sorted(policies.items())],
        "record": list(records),
        "log": list(log),
        "account": list(deltas),
        "payload": _payload_lines([*walked.records, *log_walk.records], payloads, withheld, blobs or {}),
        "proof": [canon(proof.decode("utf-8")) for proof in proofs],
        "key": [canon({"key": str(k), "role": role}) for role, k in keys],
        "tsr": [canon({"note": hashlib.sha256(note).hexdigest(), "reply": b64(reply)}) for note, reply in stamps],
    }
    too_long = next((name for name, section in lines.items() if any(len(line) > shown.LINE_BYTES_MAX for line in section)), "")
    if too_long:
        raise Misuse(
            f"a {too_long} line is longer than {shown.LINE_BYTES_MAX} bytes",
            code="MDM-0186",
            fix="keep the payload as a blob, or withhold it",
        )
    predicate = _predicate(opened, walked, log_walk, policies, lines)
    return _file(predicate, _signed(predicate, signer, key), lines)


def _sound(raws: Sequence[bytes], run: str | None) -> Walk:
    walked = walk(raws, run)
    if walked.fault is not None:
        raise Broken(walked.fault)
    if not raws and run is None:
        raise Misuse("there is no record to make a bundle of", code="MDM-0186")
    return walked


def _payload_lines(records: Sequence[AnyRecord], given: Iterable[Payload], withheld: shown.Hide, blobs: Mapping[str, str]) -> list[bytes]:
    index = {(p.run, p.seq, p.part): p for p in given}
    gone = {name for record in records if isinstance(record.fact, Erased) for name in record.fact.commits}
    parts = shown.parts_of(records)
    return [
        shown.write(key, part, index.get(key), withheld(key), blobs.get(part.commit, ""), part.commit in gone) for key, part, _ in parts
    ]


def _predicate(opened: RunOpened, walked: Walk, log: Walk, policies: Iterable[str], lines: Mapping[str, list[bytes]]) -> Predicate:
    sections = tuple(Section(len(lines[name]), section_digest(name, lines[name]), name) for name in SECTIONS if name != "dsse")
    return Predicate(
        count=walked.count, head=walked.head, log=Chained(log.count, log.head), manifest=opened.manifest, origin=opened.origin,
        policies=tuple(sorted(policies)), run=walked.records[0].run, sections=sections, state=state_of(walked),
    )  # fmt: skip


def section_digest(name: str, lines: Sequence[bytes]) -> str:
    return digest("section", name.encode() + b"\n", *(line + b"\n" for line in lines))


def statement(predicate: Predicate) -> bytes:
    """The in-toto Statement that is signed: the subject is the run, its digest the head."""
    return canon(
        {
            "_type": STATEMENT,
            "predicate": msgspec.to_builtins(predicate),
            "predicateType": PREDICATE,
            "subject": [{"digest": {"sha256": predicate.head}, "name": f"run/{predicate.run}"}],
        }
    )


def _signed(predicate: Predicate, signer: dsse.Sign, key: VKey) -> bytes:
    said = statement(predicate)
    if len(said) > STATEMENT_BYTES_MAX:
        raise Misuse(
            f"the statement has {len(said)} bytes",
            code="MDM-0186",
            expected=f"at most {STATEMENT_BYTES_MAX}",
            fix="export fewer policies in one bundle",
        )
    return dsse.sign(PAYLOAD_TYPE, said, [(key.id, signer)])


def header(predicate: Predicate) -> bytes:
    """Line 1, as it must be for this predicate."""
    counts = {section.name: section.count for section in predicate.sections} | {"dsse": 1}
    return canon({"bundle": FORMAT, "run": predicate.run, "sections": [[name, counts.get(name, 0)] for name in SECTIONS]})


def _file(predicate: Predicate, envelope: bytes, lines: Mapping[str, list[bytes]]) -> bytes:
    out = [header(predicate), envelope]
    for name in SECTIONS[1:]:
        out += lines[name]
    return b"\n".join(out) + b"\n"


# -- read --------------------------------------------------------------------------------------------------------------------
def read(raw: bytes, form: Form = RUN_FORM) -> Container:
    """Cut into lines and sections, with every limit checked before anything is parsed. Raises Broken, which names the line."""
    if len(raw) > BUNDLE_BYTES_MAX:
        raise _no(f"the file has {len(raw)} bytes", None)
    first = raw.find(b"\n", 0, HEADER_BYTES_MAX)
    if first < 0:
        raise _no(_NO_HEADER, 1)
    counts = _counts(raw[:first], form)
    total = 1 + sum(counts.values())
    lines = _lines(raw)
    for number, line in enumerate(lines, 1):
        if len(line) > shown.LINE_BYTES_MAX:
            raise _no(f"a line of {len(line)} bytes", number, expected=f"at most {shown.LINE_BYTES_MAX}")
    if len(lines) != total:
        raise _first_bad(lines, total)
    sections: dict[str, list[bytes]] = {}
    starts: dict[str, int] = {}
    at = 1
    for name, count in counts.items():
        starts[name], sections[name] = at + 1, lines[at : at + count]
        at += count
    return Container(lines[0], sections, starts, len(lines))


def _lines(raw: bytes) -> list[bytes]:
    count = raw.count(b"\n")
    if count > LINES_MAX:
        raise _no(f"the file has {count} lines", None, expected=f"at most {LINES_MAX}")
    if not raw.endswith(b"\n"):
        raise _no("the last line has no end: the file is cut off or something stands behind it", count + 1)
    return raw[:-1].split(b"\n")


_NO_HEADER = "the first line is no bundle header: the file is no bundle (mandamus bundle RUN writes one), or its beginning was changed"


def _counts(line: bytes, form: Form) -> dict[str, int]:
    try:
        value = accept(line)
    except ValueError:
        raise _no(_NO_HEADER, 1) from None
    try:
        if type(value) is not dict or value.keys() != {"bundle", form.of, "sections"} or value["bundle"] != form.name:
            raise ValueError(f"this is not the header of a {form.name} file; mandamus bundle RUN writes one")
        counts: dict[str, int] = dict(value["sections"])
        if [name for name, _ in value["sections"]] != list(form.sections) or not all(
            type(n) is int and 0 <= n <= LINES_MAX for n in counts.values()
        ):
            raise ValueError("its sections are not " + ", ".join(form.sections))
        for name, (least, most) in form.lines.items():
            if not least <= counts[name] <= most:
                raise ValueError(f"{name} has {counts[name]} lines, not {least}" + ("" if least == most else " or more"))
    except (ValueError, TypeError) as error:
        raise _no(f"the first line is no bundle header: {str(error)[:120]}", 1) from None
    return counts


def _first_bad(lines: Sequence[bytes], total: int) -> Broken:
    """The number of lines is wrong: a broken line explains it, if there is one; else lines were added or taken away."""
    for number, line in enumerate(lines, 1):
        if not _is_canonical(line):
            return _no("this line is not canonical JSON", number)
    return _no(
        "the file has another number of lines than its header says", min(len(lines), total) + 1, expected=str(total), found=str(len(lines))
    )


def _is_canonical(line: bytes) -> bool:
    try:
        accept(line)
    except ValueError:
        return False
    return True


def predicate_of(raw: bytes, kind: type[T]) -> T:
    """What an in-toto Statement says, read strictly. Raises ProofError."""
    try:
        value: Any = accept(raw)
        return msgspec.convert(value["predicate"], kind)
    except (ValueError, TypeError, KeyError, msgspec.ValidationError) as error:
        raise ProofError(f"the signed statement is of another form: {str(error)[:120]}", code="MDM-0647") from None


def parse_statement(raw: bytes) -> Predicate:
    """From *verified* bytes. Raises ProofError when they are not this kind of statement, or contradict themselves."""
    predicate = predicate_of(raw, Predicate)
    counts = {section.name: section.count for section in predicate.sections}
    if (
        statement(predicate) != raw or tuple(counts) != SECTIONS[1:] or len(predicate.sections) != len(counts)
        or (counts["record"], counts["log"]) != (predicate.count, predicate.log.count)
    ):  # fmt: skip
        raise ProofError("the signed statement contradicts itself", code="MDM-0647")
    return predicate


def _no(what: str, line: int | None, expected: str = "", found: str = "") -> Broken:
    return Broken(Finding(what, code="MDM-0645", line=line, expected=expected, found=found))
