"""Account deltas against the records that caused them: what was reserved and spent is recomputed, never believed.

The rule a newcomer would break: a reservation is made by the intent's own commit, so its delta may never be missing; the settlement of
an outcome may follow later (an outcome is not refused for an account's sake), so its absence is a gap that is named, not a lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from mandamus.core.accounts import AUTHORITY, REGISTER, Delta
from mandamus.core.canonical import INT_MAX, canon, digest
from mandamus.core.records import ActionEnded, ActionStarted, AnyRecord
from mandamus.proof.report import Broken, Finding

Move = tuple[int, int]  # change of reserved, of spent


def expected(records: Sequence[AnyRecord]) -> dict[tuple[int, str], Move]:
    """(seq, account) -> change, as intents and outcomes say."""
    out: dict[tuple[int, str], Move] = {}
    held: dict[str, dict[str, int]] = {}
    for record in records:
        fact: Any = record.fact
        if isinstance(fact, ActionStarted):
            for reserve in fact.reserves:
                _add(out, (record.seq, reserve.account), reserve.amount, 0)
                mine = held.setdefault(fact.action, {})
                mine[reserve.account] = mine.get(reserve.account, 0) + reserve.amount
        elif isinstance(fact, ActionEnded) and (fact.result != "unknown" or fact.via == "people"):
            for account, amount in held.pop(fact.action, {}).items():
                _add(out, (record.seq, account), -amount, 0)
            for spend in fact.spends:
                _add(out, (record.seq, spend.account), 0, spend.amount)
    return {key: move for key, move in out.items() if move != (0, 0)}


def _add(out: dict[tuple[int, str], Move], key: tuple[int, str], reserved: int, spent: int) -> None:
    before = out.get(key, (0, 0))
    out[key] = (before[0] + reserved, before[1] + spent)


def check(lines: Sequence[bytes], first: int, records: Sequence[AnyRecord]) -> tuple[int, list[str]]:
    """(deltas checked, settlements that are missing). Raises Broken at a delta that no record explains, or a reservation without one."""
    wanted = expected(records)
    found: dict[tuple[int, str], Move] = {}
    line: dict[tuple[int, str], int] = {}  # the last delta of this event and account: the one to look at
    heads: dict[str, tuple[int, str, Delta]] = {}
    for number, raw in enumerate(lines, first):
        delta = _read(raw, number)
        if delta.run != records[0].run or not 0 <= delta.seq < len(records):
            raise _no("this delta was caused by another run", number, records[0].run, delta.run)
        _links(delta, heads.get(delta.account), number)
        heads[delta.account] = (delta.version, digest("delta", raw), delta)
        key = (delta.seq, delta.account)
        line[key] = number
        _add(found, key, delta.change.reserved, delta.change.spent)
        if key not in wanted and not _silent(delta, records[delta.seq]):
            raise _no(f"event {delta.seq} explains no change of this account", number)
    missing = []
    for key, move in wanted.items():
        if key in found and found[key] != move:
            raise _event(records[key[0]], "the account was moved by another amount than it says", f"{move}", f"{found[key]}", line[key])
        if key not in found and isinstance(records[key[0]].fact, ActionStarted):
            raise _event(records[key[0]], "its reservation stands in no account", key[1], "nothing")
        if key not in found:
            missing.append(f"settlement of event {key[0]}")
    return len(lines), missing


def totals(lines: Sequence[bytes], first: int) -> dict[tuple[int, str], int]:
    """(seq, account) -> reserved + spent after that event."""
    deltas = [_read(raw, number) for number, raw in enumerate(lines, first)]
    return {(delta.seq, delta.account): delta.reserved + delta.spent for delta in deltas}


def _silent(delta: Delta, record: AnyRecord) -> bool:
    """Accounts that only count versions: the register at genesis, `authority` and those of children."""
    by_genesis = delta.account == REGISTER and record.seq == 0
    zero = delta.change.reserved == 0 and delta.change.spent == 0
    return by_genesis or delta.account.startswith(AUTHORITY) or (zero and isinstance(record.fact, ActionStarted | ActionEnded))


def _links(delta: Delta, before: tuple[int, str, Delta] | None, number: int) -> None:
    """Deltas of one account that stand side by side link, and their totals add up."""
    if delta.version < 1 or (delta.version == 1 and delta.prev):
        raise _no("an account's first delta has version 1 and no predecessor", number)
    if before is None:
        if delta.version == 1 and (delta.reserved, delta.spent) != (delta.change.reserved, delta.change.spent):
            raise _no("its totals are not the sum of its changes", number)
        return
    version, hash, last = before
    if delta.version <= version:
        raise _no("the versions of an account rise", number, f"more than {version}", str(delta.version))
    if delta.version == version + 1:
        if delta.prev != hash:
            raise _no("it does not link to the delta before it", number, hash, delta.prev)
        if (delta.reserved, delta.spent) != (last.reserved + delta.change.reserved, last.spent + delta.change.spent):
            raise _no("its totals are not the sum of its changes", number)


def _read(raw: bytes, number: int) -> Delta:
    try:
        delta = msgspec.json.decode(raw, type=Delta)
        if canon(msgspec.to_builtins(delta)) != raw or max(abs(delta.reserved), abs(delta.spent)) > INT_MAX:
            raise ValueError("not canonical")
    except (ValueError, TypeError, RecursionError):  # msgspec's errors are ValueErrors
        raise _no("this is no account delta", number) from None
    return delta


def _no(what: str, line: int, expected: str = "", found: str = "") -> Broken:
    return Broken(Finding(what, code="MDM-0657", line=line, expected=expected, found=found[:80]))


def _event(record: AnyRecord, what: str, expected: str, found: str, line: int | None = None) -> Broken:
    where: dict[str, Any] = {"chain": "run", "event": record.seq, "line": line, "type": record.type}
    return Broken(Finding(what, code="MDM-0657", expected=expected, found=found, **where))
