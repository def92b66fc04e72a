"""Port `Witness`, by HTTP (C2SP tlog-witness): `witness+https://HOST[:PORT][/PREFIX][?residency=eu&timeout=10]#VKEY`

    witness = HttpWitness.open("witness+http://127.0.0.1:7380#w1.example+3f9a1c02+BAbc…")
    lines = await witness.add(origin, old, proof, note)

Any witness that speaks the protocol will do, also those that answer a second root of one size with 409 instead of 422. Only lines of the
address's own key come back, verified, over our checkpoint, made now. The rule a newcomer would break: what a 409 says is a claim without
a signature; it may stop us, it never starts anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mandamus.drivers._signed_http import Place, Remote
from mandamus.errors import Conflict, ProofError, Refused
from mandamus.proof.keys import COSIGNERS, VKey, b64
from mandamus.proof.note import SKEW_S, Note, parse_checkpoint, parse_note, seen
from mandamus.proof.witnessing import ANOTHER_SIZE, ANOTHER_TREE, GOOD, size_told, write_request


class HttpWitness(Remote):
    """Implements `ports.Witness`."""

    def __init__(self, place: Place, now: Callable[[], int] | None = None) -> None:
        super().__init__(place)
        self._now = now or (lambda: int(time.time()))

    @classmethod
    def open(cls, uri: str) -> HttpWitness:
        """Raises Misuse."""
        return cls(Place.parse(uri, "witness", COSIGNERS))

    async def add(self, origin: str, old: int, proof: Sequence[bytes], note: bytes) -> bytes:
        status, _, body = await self._post("/add-checkpoint", write_request(old, proof, note), "application/octet-stream")
        if status == GOOD:
            return self._cosigned(note, body)
        if status == ANOTHER_SIZE:
            raise self._elsewhere(note, old, body)
        if status == ANOTHER_TREE:
            raise another_tree(self.name, origin, old, "it answered that the consistency proof does not hold")
        if status in (429, 503) or status >= 500:
            raise self._silent(f"HTTP {status}")
        raise Refused(
            f"the witness {self.name} does not take this checkpoint", code="MDM-0953", where=self.place.base, found=f"HTTP {status}",
            fix=f"give its operator the log line of {origin}: mandamus key trust",
        )  # fmt: skip

    def _cosigned(self, note: bytes, body: bytes) -> bytes:
        """Our key's lines out of the answer, checked over our text. Raises ProofError."""
        text = parse_note(note).text
        answer = parse_note(text.encode() + b"\n" + body)
        if answer.text != text:  # an empty line in the answer would make its first part text that nobody asked about
            raise self._worthless("another text", "signature lines alone")
        found = next(iter(seen(answer, [self.key])), None)
        if found is None or found.time is None:
            raise self._worthless("no line of its key", f"a line of {self.key.name}+{self.key.id}")
        now = self._now()
        if abs(found.time - now) > SKEW_S:
            raise self._worthless(f"cosigned at {found.time}", f"within {SKEW_S} s of {now}")
        return _lines(answer, self.key).encode()

    def _worthless(self, found: str, expected: str) -> ProofError:
        return ProofError(
            f"the answer of the witness {self.name} proves nothing", code="MDM-0950", where=self.place.base, expected=expected, found=found
        )

    def _elsewhere(self, note: bytes, old: int, body: bytes) -> Conflict | ProofError | Refused:
        size = size_told(body)
        if size is None:
            return Refused(
                f"the witness {self.name} names no size that it knows", code="MDM-0953", where=self.place.base,
                fix="it does not speak c2sp.org/tlog-witness",
            )  # fmt: skip
        checkpoint = parse_checkpoint(parse_note(note).text)
        if size == old == checkpoint.size:  # so do witnesses of before July 2026 answer a second root of one size
            return another_tree(self.name, checkpoint.origin, size, "it knows another root of this size")
        return Conflict(
            f"the witness {self.name} knows another size", on="witness", size=size, code="MDM-0957", where=checkpoint.origin,
            expected=str(old), found=str(size), fix="prove the growth from there",
        )  # fmt: skip


def another_tree(name: str, origin: str, size: int, found: str) -> ProofError:
    """What this witness cosigned at `size` is no beginning of the log that was shown to it."""
    return ProofError(
        f"the witness {name} has seen another tree of this log", code="MDM-0952", where=f"{origin} at size {size}", found=found,
        why="two logs were signed with one key, or records were changed: nothing more may be signed",
        fix="keep the store and the ledger as they are, and compare them with what the witness cosigned",
    )  # fmt: skip


def _lines(note: Note, key: VKey) -> str:
    mine = (line for line in note.lines if line.name == key.name and line.id.hex() == key.id)
    line = next(mine)  # one is enough: a second of the same key counts for nothing
    return f"\N{EM DASH} {line.name} {b64(line.id + line.signature)}\n"
