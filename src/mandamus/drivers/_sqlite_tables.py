"""What one append, message or lease writes into the tables. Everything here runs inside a transaction that somebody else began.

The rule a newcomer would break: all checks stand before the first write, so that a Conflict has nothing to undo.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from operator import attrgetter

import apsw
from msgspec import structs

from mandamus.core import feed
from mandamus.core.admit import Admitted, next_wake
from mandamus.core.payload import Payload
from mandamus.drivers._refusals import account_moved, moved, same
from mandamus.drivers._sqlite_file import APPLICATION, queries
from mandamus.errors import Misuse, ProofError
from mandamus.ports import Account, AccountCheck, AccountWrite, Fed, Head, Wake

SEQ_MAX = 2**28 - 1
RUNS_MAX = 2**30 - 1
_sql = queries()
_HEAD, _OPEN, _MOVE, _MOVE_WAKE = _sql["head"], _sql["open_run"], _sql["move_head"], _sql["move_head_and_wake"]
_EVENT, _PAYLOAD, _ACCOUNT = _sql["add_event"], _sql["add_payload"], _sql["account"]


def spot(no: int, seq: int, ordinal: int = 0) -> int:
    """Where a record (ordinal 0) or a payload of it stands; see sql/ledger_0001_tables.sql."""
    return no << 33 | seq << 5 | ordinal


def find(cursor: apsw.Cursor, run: str) -> tuple[int, Head] | None:
    """The run's number and head."""
    row = cursor.execute(_HEAD, (run,)).fetchone()
    return None if row is None else (row[0], head_of(row))


def head_of(row: Sequence[object]) -> Head:
    _, run, seq, digest, epoch, owner, lease_until, wake_at, mail, prio, tries, state, pool = row
    return Head(run, seq, digest.hex(), epoch, owner, lease_until, wake_at, mail, prio, tries, state, pool)  # type: ignore[arg-type,attr-defined]


def append(
    cursor: apsw.Cursor,
    run: str,
    after: Head | None,
    new: Admitted,
    records: Sequence[bytes],
    payloads: Sequence[Payload],
    also: Sequence[AccountWrite | AccountCheck],
    wake: Wake | None,
    now: int,
) -> Head:
    found = find(cursor, run)
    stored = found[1] if found else None
    if not same(stored, after):
        raise moved(run, after, stored)
    if also:
        check_accounts(cursor, run, stored, also)
    if new.seq > SEQ_MAX:
        raise Misuse("the run has too many records for a SQLite ledger", code="MDM-0132", where=f"run {run}", expected=f"at most {SEQ_MAX}")
    if found is None:
        no, head = _open(cursor, run, new, wake)
    else:
        no, head = found[0], _move(cursor, found[0], found[1], new, wake, now)
    first = new.seq - len(records) + 1
    cursor.executemany(_EVENT, [(no << 33 | seq << 5, raw) for seq, raw in enumerate(records, first)])
    if payloads:
        cursor.executemany(_PAYLOAD, _payload_rows(no, payloads))
    for entry in also:
        if isinstance(entry, AccountWrite):
            _write_account(cursor, entry)
    return head


def fed(leaf: int, row: Sequence[object]) -> Fed:
    """Raises ProofError when it is another leaf, or one without its record."""
    found, spot, run, body = row
    if found != leaf or not isinstance(body, bytes) or not isinstance(spot, int) or not isinstance(run, str):
        raise _hole(leaf, found)
    return Fed(feed.cursor(f"{leaf}", body), run, spot >> 5 & SEQ_MAX, body)


def settle(cursor: apsw.Cursor) -> None:
    """Writes the file's first page as it is: once that is flushed, so is whatever stood in the log before it."""
    cursor.execute(f"PRAGMA application_id = {APPLICATION}")


def send(cursor: apsw.Cursor, run: str, message: bytes, now: int) -> str:
    key = hashlib.sha256(message).digest()
    found = find(cursor, run)
    if found is None:
        raise Misuse("there is no such run to send a message to", code="MDM-0133", where=f"run {run[:64]}", fix="mandamus runs")
    no = found[0]
    if cursor.execute(_sql["find_message"], (no, key)).fetchone() is None:
        ((id,),) = cursor.execute(_sql["add_message"], (no, key, message, found[1].mail)).fetchall()
        cursor.execute(_sql["announce_message"], (id, now, no))
    return key.hex()


def take_lease(cursor: apsw.Cursor, run: str, owner: str, until: int, due_by: int | None) -> Head | None:
    """None when the run is not there, or no longer due (`due_by`): another worker was faster and is already done with it."""
    found = find(cursor, run)
    if found is None or (due_by is not None and (found[1].wake_at is None or found[1].wake_at > due_by)):
        return None
    cursor.execute(_sql["take_lease"], (owner, until, found[0]))
    return _leased(found[1], owner, until, found[1].tries + 1)


def move_lease(cursor: apsw.Cursor, run: str, owner: str, until: int, tries: int | None) -> Head | None:
    """`tries`: at most so many from now on; None leaves them as they are."""
    found = find(cursor, run)
    if found is None:
        return None
    tries = found[1].tries if tries is None else min(found[1].tries, tries)
    cursor.execute(_sql["move_lease"], (owner, until, tries, found[0]))
    return _leased(found[1], owner, until, tries)


def take_duty(cursor: apsw.Cursor, name: str, holder: str, now: int, ttl_ms: int) -> int | None:
    """The epoch of the holder, or None: another one holds it, or it was given back."""
    row: tuple[str, int, int] = cursor.execute(_sql["duty"], (name,)).fetchone() or ("", 0, 0)
    stands, until, epoch = row
    if stands != holder:
        if not ttl_ms or (stands and until > now):
            return None
        epoch += 1
    cursor.execute(_sql["set_duty"], (name, holder, now + ttl_ms * 1000, epoch) if ttl_ms else (name, "", 0, epoch))
    return epoch if ttl_ms else None


def account(cursor: apsw.Cursor, id: str) -> Account | None:
    row = cursor.execute(_ACCOUNT, (id,)).fetchone()
    return None if row is None else Account(*row)


def check_accounts(cursor: apsw.Cursor, run: str, head: Head | None, also: Sequence[AccountWrite | AccountCheck]) -> None:
    """Checks compare with what is stored; several writes to one account in one append must follow each other."""
    written: dict[str, tuple[int, str]] = {}
    for entry in also:
        known = account(cursor, entry.id)
        stored, digest = (known.version, known.hash) if known else (0, "")
        if isinstance(entry, AccountCheck):
            expected, prev = entry.version, ""
        else:
            stored, digest = written.get(entry.id, (stored, digest))
            expected, prev = entry.version - 1, entry.prev
            written[entry.id] = entry.version, entry.hash
        if stored != expected or (prev and digest != prev):
            raise account_moved(run, head, entry.id, expected, stored)


def _open(cursor: apsw.Cursor, run: str, new: Admitted, wake: Wake | None) -> tuple[int, Head]:
    wake_at, state = (wake.at, wake.state) if wake else (None, "open")
    pool, prio = (wake.pool or "default", wake.prio or 0) if wake else ("default", 0)
    values = (run, new.seq, bytes.fromhex(new.hash), new.epoch, wake_at, state, pool, prio)
    no: int = cursor.execute(_OPEN, values).fetchall()[0][0]  # type: ignore[assignment]
    if no > RUNS_MAX:
        raise Misuse("the ledger file has too many runs", code="MDM-0132", expected=f"at most {RUNS_MAX}", fix="begin another file")
    mail = wake.cursor if wake else 0
    if mail:
        cursor.execute(_sql["reserve_mail"], (mail, no))
    return no, Head(run, new.seq, new.hash, new.epoch, wake_at=wake_at, mail=mail, state=state, pool=pool, prio=prio)


def _move(cursor: apsw.Cursor, no: int, old: Head, new: Admitted, wake: Wake | None, now: int) -> Head:
    wake_at, state = old.wake_at, old.state
    if wake is not None:
        wake_at, state = next_wake(old.wake_at, old.mail, wake.at, wake.cursor, now), wake.state
        if wake.pool or wake.prio is not None:
            old = structs.replace(old, pool=wake.pool or old.pool, prio=old.prio if wake.prio is None else wake.prio)
            cursor.execute(_sql["place"], (old.pool, old.prio, no))
        if wake.cursor > old.mail:
            old = structs.replace(old, mail=wake.cursor)
            cursor.execute(_sql["reserve_mail"], (old.mail, no))
    tries = 0 if new.progress else old.tries
    values = (new.seq, bytes.fromhex(new.hash), new.epoch, tries, state)
    if wake_at == old.wake_at:
        cursor.execute(_MOVE, (*values, no))
    else:
        cursor.execute(_MOVE_WAKE, (*values, wake_at, no))
    return Head(old.run, new.seq, new.hash, new.epoch, old.owner, old.lease_until, wake_at, old.mail, old.prio, tries, state, old.pool)


_place_of = attrgetter("seq", "part")


def _payload_rows(no: int, payloads: Sequence[Payload]) -> list[tuple[int, str, str, bytes]]:
    """Ordinals follow the names of the parts, so that reading by spot is reading by (seq, part)."""
    rows: list[tuple[int, str, str, bytes]] = []
    seq, ordinal = -1, 0
    for p in sorted(payloads, key=_place_of) if len(payloads) > 1 else payloads:
        ordinal = ordinal + 1 if p.seq == seq else 1
        seq = p.seq
        rows.append((no << 33 | seq << 5 | ordinal, p.part, p.form, p.bytes))
    return rows


def _write_account(cursor: apsw.Cursor, entry: AccountWrite) -> None:
    if entry.version == 1:
        cursor.execute(_sql["open_account"], (entry.id, 1, entry.hash, entry.reserved, entry.spent))
    else:
        cursor.execute(_sql["move_account"], (entry.version, entry.hash, entry.reserved, entry.spent, entry.id))
    cursor.execute(_sql["add_delta"], (entry.id, entry.version, entry.run, entry.seq, entry.delta))


def _leased(head: Head, owner: str, until: int, tries: int) -> Head:
    return Head(head.run, head.seq, head.hash, head.epoch, owner, until, head.wake_at, head.mail, head.prio, tries, head.state, head.pool)


def dense(run: str, expected: int, found: int) -> None:
    if expected != found:
        raise ProofError(
            "records are missing from the ledger",
            code="MDM-0632",
            where=f"run {run}",
            expected=f"event {expected}",
            found=f"event {found}" if found >= 0 else "nothing",
            why="the file was edited or restored in part",
            fix="keep the file as evidence; restore a whole backup, or begin another: --ledger sqlite:///NEW.db",
        )


def _hole(leaf: int, found: object) -> ProofError:
    return ProofError(
        "records are missing from the ledger",
        code="MDM-0632",
        where=f"record {leaf} of all",
        found="nothing" if found == leaf else f"record {found}",
        why="the file was edited or restored in part",
        fix="keep the file as evidence; restore a whole backup, or begin another: --ledger sqlite:///NEW.db",
    )
