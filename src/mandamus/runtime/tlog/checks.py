"""What must hold before anything is signed, and the diagnosis when it does not: each names the place and both sides of the difference.

The rule a newcomer would break: none of these is repaired here. A log that signed what it does not hold any more has a past that somebody
may know; only a person can say which copy is the true one.
"""

from __future__ import annotations

from collections.abc import Sequence

from mandamus.core.accounts import REGISTER
from mandamus.core.canonical import accept
from mandamus.core.records import LOG, RunOpened, decode
from mandamus.errors import Misuse, ProofError
from mandamus.ports import Ledger
from mandamus.proof.keys import VKey
from mandamus.proof.note import Checkpoint, parse_checkpoint, parse_note
from mandamus.proof.tree import leaf_hash, verify_consistency
from mandamus.runtime.tlog import objects
from mandamus.runtime.tlog.objects import Pending
from mandamus.runtime.tlog.reader import Reader
from mandamus.runtime.tlog.spans import Spans

WHOLE = "keep both as evidence; put the newest whole copy of the log back, and begin no second one under its key"
LEDGER = "keep this ledger as evidence and put the newest whole one back; what it lacks was signed, and would be done a second time"
INDEX = "the index of leaves beside the ledger"
FOREIGN, GONE = "MDM-0910", "MDM-0911"  # of another kind of ledger; where the cursor points, another record stands, or none


# -- of the store ------------------------------------------------------------------------------------------------------------
def read(raw: bytes, origin: str, path: str) -> Checkpoint:
    """A checkpoint of this log out of its own store; who signed it is checked where it is given out."""
    found = parse_checkpoint(parse_note(raw).text)
    if found.origin != origin:
        raise ProofError(
            "this is the store of another log", code="MDM-0931", where=path, expected=origin, found=found.origin,
            why="one tree has one origin and one key", fix="name another folder or prefix by MANDAMUS_LOG",
        )  # fmt: skip
    return found


def nothing_lost(origin: str, newest: int, signed: Sequence[int], shown: bytes | None, projected: int) -> None:
    """Everything that was signed, shown or projected was announced before. Raises ProofError."""
    if signed and signed[-1] > newest:
        raise lost(newest, signed[-1], "its own signed checkpoints")
    if shown is not None and (known := read(shown, origin, objects.CHECKPOINT).size) > newest:
        raise lost(newest, known, "the checkpoint that it shows")
    if projected > newest:
        raise lost(newest, projected, INDEX)


async def same_trees(reader: Reader, kind: str, sizes: Sequence[int], size: int, root: bytes) -> None:
    """The tree of `size` under `root` begins with what stands under each of these sizes. Raises ProofError.

    Only tiles of that tree are read: another writer's growing tiles would agree with his own row.
    """
    for old in sizes:
        path = objects.name(kind, old)
        raw = await reader.store.get(path)
        if raw is None:
            continue  # thinned out meanwhile
        if kind == objects.PENDING:
            told = bytes.fromhex(objects.unpack(raw, Pending, path, reader.origin).root)
        else:
            told = read(raw, reader.origin, path).root
        if not verify_consistency(old, size, told, root, await reader.consistency(old, size)):
            raise other_tree("the log does not begin with what was announced or signed", path, told.hex(), f"root {root.hex()[:11]}")


def lost(newest: int, known: int, who: str) -> ProofError:
    return ProofError(
        "the log was rolled back: it is smaller than what was signed", code="MDM-0931", where="log", expected=f"size {known} ({who})",
        found=f"size {newest}", why=f"leaves {newest} to {known - 1} are missing; signing again would show two logs", fix=WHOLE,
    )  # fmt: skip


def other_tree(what: str, where: str, expected: str, found: str) -> ProofError:
    why = "two roots of one size cannot both be true, and a witness would see it"
    return ProofError(what, code="MDM-0932", where=where, expected=expected[:16], found=found[:16], why=why, fix=WHOLE)


def unsigned(size: int, key: VKey) -> ProofError:
    return ProofError(
        "a stored checkpoint is not signed by the key of this log", code="MDM-0932", where=f"size {size}", expected=f"{key.name}+{key.id}",
        why="somebody else put it there, or the key was changed without a rotation", fix=WHOLE,
    )  # fmt: skip


def taken(path: str) -> ProofError:
    return ProofError(
        "an object of the log is not what this ledger says", code="MDM-0933", where=path,
        why="another ledger writes into this store, or this one was changed", fix=WHOLE,
    )  # fmt: skip


def second_log(path: str, ours: str, theirs: str) -> ProofError:
    return ProofError(
        "two processes with one log key write different trees", code="MDM-0933", where=path, expected=ours[:16], found=theirs[:16],
        why="they stand on two ledgers; whoever signs second would show two logs", fix="stop one of them: one key, one ledger, one store",
    )  # fmt: skip


# -- of the ledger -----------------------------------------------------------------------------------------------------------
async def feed_stands(ledger: Ledger, reader: Reader, row: Pending) -> bool:
    """Whether the feed gives the last leaf's record where it gave it before. False: it is another feed, or it was rolled back."""
    try:
        async for fed in ledger.feed(row.before, 1):
            return leaf_hash(fed.raw) == await reader.leaf(row.size - 1, row.size)
    except Misuse:
        pass  # a cursor of another kind of ledger
    except ProofError as other:
        if other.diagnosis.code != GONE:
            raise
    return False


async def nothing_missing(ledger: Ledger, reader: Reader, spans: Spans, size: int) -> None:
    """Every leaf is a record of this ledger: one that was copied has them in another order, one that was rolled back lacks some."""
    minimum = await reader.minimum()
    floor = minimum.index if minimum else 0
    seen: dict[str, int] = {}
    async for fed in ledger.feed():
        leaf = spans.leaf(fed.run, fed.seq)
        if leaf is None or leaf >= size:
            continue
        if leaf >= floor and leaf_hash(fed.raw) != await reader.leaf(leaf, size):
            if (fed.run, fed.seq) == (LOG, 0):
                raise _another_ledger()
            raise ProofError(
                "the ledger was written anew: another record stands where the log has one", code="MDM-0934",
                where=f"run {fed.run} (event {fed.seq})", expected=f"leaf {leaf}", why="two histories of one run cannot both be true",
                fix=LEDGER,
            )  # fmt: skip
        seen[fed.run] = fed.seq + 1
    for run, many in spans.runs(size):
        if seen.get(run, 0) < many and (run in seen or not await _left_behind(ledger, reader, spans, run, size)):
            raise _rolled_back(run, many, seen.get(run, 0))


def _another_ledger() -> ProofError:
    return ProofError(
        "this log is of another ledger with the same key", code="MDM-0933", where="chain log (event 0)",
        why="one key stands for one ledger and one log: two under it would be two stories told by one name",
        fix="put the second ledger into a folder of its own, where it has keys and a log of its own",
    )  # fmt: skip


async def _left_behind(ledger: Ledger, reader: Reader, spans: Spans, run: str, size: int) -> bool:
    """Whether a run that the ledger does not know stayed where the ledger was copied from: its number in the register came along."""
    leaf = spans.leaf(run, 0)
    minimum = await reader.minimum()
    if leaf is None or (minimum and leaf < minimum.index):
        return True  # its records are gone by a written rule
    fact = decode(await reader.record(leaf, size)).fact
    if not isinstance(fact, RunOpened):
        return False
    number = 0
    async for delta in ledger.deltas(REGISTER):
        number += 1
        if number == fact.register.number:
            return bool(accept(delta)["run"] == run)
    return False


def _rolled_back(run: str, known: int, found: int) -> ProofError:
    where = "chain log" if run == "log" else f"run {run}"
    return ProofError(
        "the ledger was rolled back: the log has records that it lacks", code="MDM-0934", where=where,
        expected=f"event {known - 1} or later", found=f"event {found - 1}" if found else "nothing",
        why="an old copy was put in its place, or a server lost its last writes", fix=LEDGER,
    )  # fmt: skip


def gap(run: str, due: int, found: int) -> ProofError:
    return ProofError(
        "the ledger's feed leaves out records", code="MDM-0935", where=f"run {run}", expected=f"event {due}", found=f"event {found}",
        why="a log with a hole proves nothing of what follows", fix="mandamus doctor",
    )  # fmt: skip
