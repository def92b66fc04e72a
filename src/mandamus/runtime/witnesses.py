"""Cosignatures for a checkpoint: every witness is asked at once, until the quorum of the trust file is met.

    taken = await collect(witnesses, trust, note, history, sizes=sizes, now=clock_s)     # note: our signed checkpoint, bytes
    taken.note          # the same checkpoint with the log's line and every cosignature that came: store this
    taken.met           # the trust file's quorum stands in it (never by a file without witnesses, or with `quorum none`)
    taken.anchors       # name -> tlog-proof of a public anchor (a driver whose `anchors` is true); `rest` waits for it, no quorum counts it
    taken.faults        # name -> what the others said: Unavailable, Refused, Conflict, ProofError; for `doctor`, `log head` and the span
    await taken.rest()  # the same again when the last witness has answered or the time is over; or `await taken.drop()`: wait for nobody

    known = await ask(witnesses, note)    # at start and after a restore: name -> size it knows, or its fault; `note` may be one of size 0
    refuse_rollback(known, size, origin)  # raises when one of them knows more than `size`, the newest size stored here

`history` is what the log can say of itself (`History`): its newest stored size, and consistency proofs between its sizes. `sizes` is a
dict that the caller keeps between calls (name -> size that this witness cosigned last); losing it costs one more round trip.

What a witness says, and what becomes of it:
    200 with a line that verifies              counted
    200 with a line that does not verify, or of another key      ProofError MDM-0950, kept in `faults`: that witness is not one of ours
    409, size <= ours                          asked again, with a consistency proof from that size; when that is less than it cosigned
                                               it has forgotten: it counts, and Conflict MDM-0959 stands in `faults`
    409, size > ours but <= history.size()     a newer checkpoint of ours was first: Conflict in `faults`
    409, size > history.size()                 ProofError MDM-0951 "this log was rolled back", raised; nothing more may be signed
    409 again for our own size, or 422         ProofError MDM-0952 "the witness has seen another tree", raised
    403, 404, 400                              Refused in `faults`
    no answer                                  Unavailable in `faults`

The rule a newcomer would break: a cosignature counts after it was verified with the key of the trust file, never because a witness
answered 200; and a log that a witness knows to be longer is never signed again, whatever the other witnesses say.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Protocol

from mandamus.errors import Conflict, MandamusError, Misuse, ProofError, Unavailable
from mandamus.ports import Witness
from mandamus.proof.note import Checkpoint, check, parse_checkpoint, parse_note
from mandamus.proof.trust import Trust

TIMEOUT_S = 15.0
TRIES = 3  # a witness that names another size each time is shared with another process of ours; the next checkpoint finds it
STOPS = ("MDM-0951", "MDM-0952")  # evidence against this log itself


class History(Protocol):
    """What the log says of itself."""

    async def size(self) -> int:
        """The newest size that is stored as pending or signed, now: read anew, since another process may have gone on."""
        ...

    async def consistency(self, old: int, new: int) -> Sequence[bytes]:
        """The proof (RFC 6962, 2.1.2) that the tree of size `new` extends the one of size `old`; 0 < old <= new, empty when equal."""
        ...


async def collect(
    witnesses: Sequence[Witness], trust: Trust, note: bytes, history: History, *, sizes: MutableMapping[str, int] | None = None,
    now: Callable[[], int] | None = None, timeout_s: float = TIMEOUT_S,
) -> Taken:  # fmt: skip
    """Returns when the quorum is met, when everybody has answered, or after `timeout_s`. Raises ProofError: see above, `STOPS`."""
    one = Taken(trust, note, history, {} if sizes is None else sizes, now or (lambda: int(time.time())), timeout_s)
    one.begin(_distinct(witnesses))
    await one.until_met()
    return one


class Taken:
    """What came of asking. It grows until `rest` has returned."""

    def __init__(
        self, trust: Trust, note: bytes, history: History, sizes: MutableMapping[str, int], now: Callable[[], int], timeout_s: float
    ) -> None:
        self.checkpoint: Checkpoint = parse_checkpoint(parse_note(note).text)
        self.note, self.met = note, False
        self.faults: dict[str, MandamusError] = {}
        self.anchors: dict[str, bytes] = {}
        self._trust, self._history, self._sizes, self._now = trust, history, sizes, now
        self._ends = time.monotonic() + timeout_s
        self._asked: dict[asyncio.Task[bytes], Witness] = {}

    def begin(self, witnesses: Sequence[Witness]) -> None:
        for witness in witnesses:
            self._asked[asyncio.create_task(self._ask(witness))] = witness

    async def until_met(self) -> None:
        await self._gather(lambda: self.met or all(map(_anchors, self._asked.values())))

    async def rest(self) -> Taken:
        """Wait for those that have not answered yet, at most until the time is over. Raises ProofError as `collect` does."""
        await self._gather(lambda: False)
        return self

    async def drop(self) -> None:
        """Wait for nobody; whoever has not answered is a fault."""
        waiting = list(self._asked.items())
        self._asked.clear()
        for task, witness in waiting:
            task.cancel()
            self.faults[witness.name] = _late(witness)
        await asyncio.gather(*(task for task, _ in waiting), return_exceptions=True)

    async def _gather(self, enough: Callable[[], bool]) -> None:
        try:
            while self._asked and not enough():
                left = self._ends - time.monotonic()
                done, _ = await asyncio.wait(self._asked, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    return await self.drop()
                for task in done:
                    self._take(self._asked.pop(task), task)
        except BaseException:
            await self.drop()
            raise

    def _take(self, witness: Witness, task: asyncio.Task[bytes]) -> None:
        try:
            answer = task.result()
            if _anchors(witness):
                self.anchors[witness.name] = answer
                return
            grown = self.note + answer
            seen = check(grown, self._trust, self.checkpoint.origin, now=self._now())
        except MandamusError as fault:
            if fault.diagnosis.code in STOPS:
                raise
            self.faults[witness.name] = fault
            return
        self.note, self.met = grown, seen.met and self._trust.quorum not in (None, "none")
        self._sizes[witness.name] = self.checkpoint.size

    async def _ask(self, witness: Witness) -> bytes:
        """One witness, led to our size. Raises what `add` does, and ProofError when it knows more than there is."""
        origin, size = self.checkpoint.origin, self.checkpoint.size
        if _anchors(witness):
            return await witness.add(origin, 0, (), self.note)
        old = min(self._sizes.get(witness.name, 0), size)
        for left in reversed(range(TRIES)):
            proof = await self._history.consistency(old, size) if old else ()
            try:
                return await witness.add(origin, old, proof, self.note)
            except Conflict as other:
                if other.size > size:
                    stored = await self._history.size()
                    if other.size > stored:
                        raise rolled_back(witness.name, origin, other.size, stored) from None
                if other.size > size or not left:
                    raise
                if other.size < self._sizes.get(witness.name, 0):
                    self.faults[witness.name] = _forgot(witness.name, origin, self._sizes[witness.name], other.size)
                old = other.size
        raise AssertionError


# -- at start ----------------------------------------------------------------------------------------------------------------
async def ask(witnesses: Sequence[Witness], note: bytes, timeout_s: float = TIMEOUT_S) -> dict[str, int | MandamusError]:
    """How long each witness knows this log to be. One that knows nothing yet cosigns `note`: it must be a checkpoint that may be shown."""
    checkpoint = parse_checkpoint(parse_note(note).text)
    asked = [w for w in _distinct(witnesses) if not _anchors(w)]
    answers = await asyncio.gather(*(_known(w, checkpoint, note, timeout_s) for w in asked))
    return dict(zip((w.name for w in asked), answers))


async def _known(witness: Witness, checkpoint: Checkpoint, note: bytes, timeout_s: float) -> int | MandamusError:
    try:
        async with asyncio.timeout(timeout_s):
            await witness.add(checkpoint.origin, 0, (), note)
    except Conflict as other:
        return other.size
    except TimeoutError:
        return _late(witness)
    except MandamusError as fault:
        return fault
    return checkpoint.size


def refuse_rollback(known: Mapping[str, int | MandamusError], size: int, origin: str) -> None:
    """Raises ProofError when a witness knows more of this log than `size`, or has seen another tree of it."""
    for name, said in known.items():
        if isinstance(said, int) and said > size:
            raise rolled_back(name, origin, said, size)
        if isinstance(said, ProofError) and said.diagnosis.code in STOPS:
            raise said


def rolled_back(name: str, origin: str, known: int, stored: int) -> ProofError:
    return ProofError(
        "this log was rolled back", code="MDM-0951", where=origin, expected=f"{known} records, as the witness {name} cosigned",
        found=f"{stored} records", why="a backup was restored, or another process signs with this log's key: nothing more may be signed",
        fix="put the longer log back; if it is lost, begin another log with a new key",
    )  # fmt: skip


def _forgot(name: str, origin: str, cosigned: int, knows: int) -> Conflict:
    return Conflict(
        f"the witness {name} has forgotten what it cosigned", on="witness", size=knows, code="MDM-0959", where=origin,
        expected=str(cosigned), found=str(knows), why="it lost its memory, and could be shown another past",
        fix="ask its operator for a witness with a new key",
    )  # fmt: skip


def _anchors(witness: Witness) -> bool:
    """A public log that publishes every few seconds: its answer is a proof of inclusion, no cosignature."""
    return bool(getattr(witness, "anchors", False))


def _late(witness: Witness) -> Unavailable:
    return Unavailable(f"the witness {witness.name} has not answered in time", outcome="unknown", code="MDM-0954", where=witness.name)


def _distinct(witnesses: Sequence[Witness]) -> list[Witness]:
    """Raises Misuse: two of one name would overwrite what is known of each other."""
    names = [w.name for w in witnesses]
    for name in names:
        if names.count(name) > 1:
            raise Misuse("a witness is named twice", code="MDM-0949", where="MANDAMUS_WITNESSES", found=name, fix="name each once")
    return list(witnesses)
