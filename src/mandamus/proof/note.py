"""Signed notes, checkpoints and cosignatures, as C2SP writes them (signed-note, tlog-checkpoint, tlog-cosignature).

A note is text, an empty line, and signature lines; a checkpoint is a note of three lines: origin, size, root. Witnesses add a line that
says when they saw it grow. The rules a newcomer would break: a line whose name and id are those of a known key must verify, or the whole
note is refused; a quorum counts public keys, never names or lines; a fourth line of text would be seen by no auditor, so it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from msgspec import Struct

from mandamus.errors import ProofError
from mandamus.proof.keys import COSIGNER_PQ, COSIGNERS, VKey, b64, unb64, verify
from mandamus.proof.tree import EMPTY_ROOT, HASH
from mandamus.proof.trust import Trust

NOTE_BYTES_MAX = 1 << 18
LINES_MAX = 32
SIZE_MAX = 1 << 53  # below it every reader has a number exactly
SKEW_S = 300  # a clock of a witness may go wrong by so much
Sign = Callable[[bytes], bytes]

_line = re.compile("\N{EM DASH} ([^\\s+]{1,200}) ([A-Za-z0-9+/]+={0,2})")
_size = re.compile("0|[1-9][0-9]{0,15}")
_origin = re.compile(r"[!-*,-~]{1,200}")


class Line(Struct, frozen=True):
    """One signature line: the name and the four bytes that say whose it claims to be, and the signature."""

    name: str
    id: bytes
    signature: bytes


class Note(Struct, frozen=True):
    """`text` ends with its newline; nothing of it is believed before somebody checked a line."""

    text: str
    lines: tuple[Line, ...]


class Checkpoint(Struct, frozen=True):
    """The head of a log: how many leaves, under which root (32 bytes)."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{b64(self.root)}\n"


class Seen(Struct, frozen=True):
    """A key that signed. `time` (seconds since 1970): when a witness did; None for a log, which says no time."""

    key: VKey
    time: int | None


class Witnessed(Struct, frozen=True):
    """A checkpoint that its log signed. `cosigners`: the witnesses of the trust file that did too; `met`: whether they are its quorum."""

    checkpoint: Checkpoint
    log: VKey
    cosigners: tuple[Seen, ...]
    met: bool


# -- reading -----------------------------------------------------------------------------------------------------------------
def parse_note(raw: bytes) -> Note:
    """Raises ProofError: not a note, too large, too many lines, or not written as notes are."""
    if len(raw) > NOTE_BYTES_MAX:
        raise _no(f"it is larger than {NOTE_BYTES_MAX} bytes")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise _no("it is not text") from None
    if any(c < " " and c != "\n" for c in text):
        raise _no("a control character stands in it")
    body, gap, signatures = text.rpartition("\n\n")  # the last empty line ends the text
    if not gap or not signatures.endswith("\n"):
        raise _no("no signature lines stand behind it")
    lines = signatures[:-1].split("\n")
    if len(lines) > LINES_MAX:
        raise _no(f"more than {LINES_MAX} signatures stand behind it")
    return Note(body + "\n", tuple(_read_line(line) for line in lines))


def _read_line(text: str) -> Line:
    match = _line.fullmatch(text)
    if match is None:
        raise _no("a signature line is malformed")
    try:
        raw = unb64(match[2])
    except ValueError as error:
        raise _no(f"a signature is {error}") from None
    if len(raw) < 5:
        raise _no("a signature is too short")
    return Line(match[1], raw[:4], raw[4:])


def parse_checkpoint(text: str) -> Checkpoint:
    """Raises ProofError unless it is exactly three lines: origin, size in plain digits, root in base64."""
    lines = text.split("\n")
    if len(lines) != 4 or lines[3]:
        raise _no("a checkpoint is three lines; further ones are seen by no auditor")
    if not _origin.fullmatch(lines[0]):
        raise _no("its origin is not printable ASCII without spaces")
    if not _size.fullmatch(lines[1]):
        raise _no("its size is not a plain number below 2^53")
    try:
        root = unb64(lines[2])
    except ValueError as error:
        raise _no(f"its root is {error}") from None
    size = int(lines[1])
    if size >= SIZE_MAX:
        raise _no("its size is not a plain number below 2^53")
    if len(root) != HASH or (size == 0 and root != EMPTY_ROOT):
        raise _no("its root is not one of 32 bytes, or not that of an empty log")
    return Checkpoint(lines[0], size, root)


# -- signing -----------------------------------------------------------------------------------------------------------------
def write(text: str, lines: Iterable[str]) -> bytes:
    """The note: text and signature lines."""
    return (text + "\n" + "".join(lines)).encode()


def sign_line(text: str, key: VKey, sign: Sign) -> str:
    """A log's signature line over the text as it is."""
    return _written(key, sign(text.encode()))


def cosign_line(text: str, key: VKey, sign: Sign, time_s: int) -> str:
    """A witness's line: at `time_s` (seconds since 1970) this checkpoint was the newest it had seen, and followed from all before."""
    return _written(key, time_s.to_bytes(8, "big") + sign(_cosigned(key, text, time_s)))


def _written(key: VKey, signature: bytes) -> str:
    return f"\N{EM DASH} {key.name} {b64(bytes.fromhex(key.id) + signature)}\n"


def _cosigned(key: VKey, text: str, time_s: int) -> bytes:
    """Ed25519 signs the text behind two lines, and no name; ML-DSA-44 a structure with the cosigner's name in it. Raises ProofError."""
    if key.kind != COSIGNER_PQ:
        return f"cosignature/v1\ntime {time_s}\n{text}".encode()
    of, name = parse_checkpoint(text), key.name.encode()
    origin = of.origin.encode()
    whose = b"subtree/v1\n\0" + bytes([len(name)]) + name + time_s.to_bytes(8, "big") + bytes([len(origin)]) + origin
    return whose + (0).to_bytes(8, "big") + of.size.to_bytes(8, "big") + of.root


# -- checking ----------------------------------------------------------------------------------------------------------------
def seen(note: Note, keys: Iterable[VKey]) -> tuple[Seen, ...]:
    """Which of `keys` signed, each public key once. Lines of others are passed over. Raises ProofError when a line that claims to be of
    one of them is not."""
    known = {(key.name, bytes.fromhex(key.id)): key for key in keys}
    out: dict[bytes, Seen] = {}
    for line in note.lines:
        key = known.get((line.name, line.id))
        if key is None:
            continue
        found = _signed(note.text, line, key)
        if found is None:
            raise ProofError(
                f"the signature of {key.name}+{key.id} does not hold", code="MDM-0901", why="a known key must verify, or nothing does"
            )
        out.setdefault(key.public, found)
    return tuple(out.values())


def _signed(text: str, line: Line, key: VKey) -> Seen | None:
    if key.kind not in COSIGNERS:
        return Seen(key, None) if verify(key, text.encode(), line.signature) else None
    if len(line.signature) < 8:
        return None
    time = int.from_bytes(line.signature[:8], "big")
    good = 0 < time < 1 << 63 and verify(key, _cosigned(key, text, time), line.signature[8:])
    return Seen(key, time) if good else None


def check(raw: bytes, trust: Trust, origin: str, *, now: int | None = None) -> Witnessed:
    """The checkpoint of the log `origin`, signed by one of its keys in the trust file. `now` (seconds since 1970): what is cosigned later
    than five minutes from it was not cosigned. Raises ProofError; a quorum that is not met is told by `met`."""
    note = parse_note(raw)
    checkpoint = parse_checkpoint(note.text)
    if checkpoint.origin != origin:
        raise ProofError("the checkpoint is of another log", code="MDM-0902", expected=origin, found=checkpoint.origin)
    signers = seen(note, [*trust.log_keys(origin), *trust.witnesses.values()])
    log = next((s.key for s in signers if s.time is None), None)
    if log is None:
        names = ", ".join(f"{key.name}+{key.id}" for key in trust.log_keys(origin))
        raise ProofError(
            "no trusted key of the log signed the checkpoint", code="MDM-0902", expected=names or "a `log` line of the trust file"
        )
    cosigners = tuple(s for s in signers if s.time is not None)
    for one in cosigners:
        if now is not None and one.time is not None and one.time > now + SKEW_S:
            raise ProofError(
                f"the cosignature of {one.key.name} is from the future",
                code="MDM-0903",
                expected=f"at most {now + SKEW_S}",
                found=str(one.time),
            )
    return Witnessed(checkpoint, log, cosigners, met(trust, {s.key.public for s in cosigners}))


def met(trust: Trust, publics: Iterable[bytes]) -> bool:
    """Whether these public keys are the quorum of the trust file; without a quorum line, or with `none`, nobody is asked for."""
    have = set(publics)

    def of(name: str) -> bool:
        if name in trust.witnesses:
            return trust.witnesses[name].public in have
        group = trust.groups[name]
        return sum(of(member) for member in group.members) >= group.k

    return trust.quorum is None or trust.quorum == "none" or of(trust.quorum)


def _no(what: str) -> ProofError:
    return ProofError(f"this is no signed checkpoint: {what}", code="MDM-0900")
