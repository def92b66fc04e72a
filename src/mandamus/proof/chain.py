"""One chain: strict bytes, dense order, linked hashes, legal life. `verify_chain(records) -> Report`.

The rule a newcomer would break: a chain alone proves nothing against its own writer, and a broken link says nothing about what stands
before it. So a chain is read backwards from a *signed* head: the first record whose hash is not the one demanded is named, everything
behind it is proven, everything before it is not attested. No more is claimed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from mandamus.core.records import (
    END,
    EVENT,
    LOG,
    READERS,
    RECORD_BYTES_MAX,
    AnyRecord,
    LogOpened,
    RunOpened,
    decode,
    event_hash,
    genesis_prev,
)
from mandamus.errors import ProofError
from mandamus.proof.life import LOG_RULES, RUN_RULES, Life
from mandamus.proof.report import Claim, Finding, Report, State, exit_code, verdict

_EVENT = hashlib.sha256(EVENT)  # copied for each record: half the price of a new one
_encode_into = msgspec.json.Encoder().encode_into
_type_of = re.compile(rb'"type":"([A-Za-z]{1,40})","v":')
NEWER = "MDM-0602"


class Walk(Struct):
    """What a walk found. `records`, `count` and `head` stop before the first fault; `fault.code` NEWER: this verifier is too old to say.

    `last` and `epoch` are where `further` goes on.
    """

    records: list[AnyRecord]
    life: Life
    count: int = 0
    head: str = ""
    run: str = ""
    fault: Finding | None = None
    last: AnyRecord | None = None
    epoch: int = -1


Each = Callable[[AnyRecord, str], None]


def walk(raws: Sequence[bytes], run: str | None = None, *, keep: bool = True, each: Each | None = None) -> Walk:
    """Forward: every record strict, of this run, in its place, linked, and legal where it stands. Never raises.

    `each(record, hash)` is handed every record that is believed, at once. `keep` False: `records` stays empty, so that a long chain
    costs no memory and no collector's time.
    """
    return further(Walk([], Life(len(raws)), run=run or ""), raws, keep=keep, each=each)


def further(walked: Walk, raws: Iterable[bytes], *, keep: bool = False, each: Each | None = None) -> Walk:
    """Go on with the next records of the same chain, page by page. What `each` raises, rises; the walk is of no use then.

    The loop is the hot path (300,000 records a second and core): what follows is inlined on purpose.
    """
    if walked.fault is not None:
        return walked
    life, records, readers, write, line, copy = walked.life, walked.records, READERS, _encode_into, bytearray(1024), _EVENT.copy
    run, previous, epoch, fault, index = walked.run, walked.last, walked.epoch, None, walked.count - 1
    prev: str | None = walked.head
    rules = LOG_RULES if run == LOG else RUN_RULES
    for index, raw in enumerate(raws, walked.count):
        try:
            name, read = readers[raw[-END:]]
            record = read(raw)
        except (KeyError, msgspec.DecodeError, UnicodeError, RecursionError):
            fault = _unreadable(raw, index, run)
            break
        write(record, line)
        if line != raw or record.type != name or not raw.isascii() or len(raw) > RECORD_BYTES_MAX:
            fault = _unreadable(raw, index, run)
            break
        if previous is None:
            run, prev, epoch = run or record.run, _genesis(record), record.epoch
            rules = LOG_RULES if run == LOG else RUN_RULES
        if record.seq != index or record.prev != prev or record.run != run or (record.epoch != epoch and name != "RunOwned"):
            fault = _misplaced(record, index, run, prev, epoch)
            break
        epoch = record.epoch  # the rule of RunOwned says by how much it may rise
        rule = rules.get(name)
        if rule is not None and (what := rule(life, record, previous)):
            fault = Finding(what, code="MDM-0643", chain=_chain(run), event=index, type=name)
            break
        event = copy()
        event.update(raw)
        prev = event.hexdigest()
        previous = record
        if keep:
            records.append(record)
        if each is not None:
            each(record, prev)
    walked.count = index + (fault is None)
    walked.head, walked.run, walked.fault, walked.last, walked.epoch = (prev or "") if walked.count else "", run, fault, previous, epoch
    return walked


def _genesis(record: AnyRecord) -> str | None:
    """What `prev` of the first record must be. Only an opening has one; nothing equals None."""
    fact = record.fact
    if isinstance(fact, RunOpened | LogOpened) and isinstance(fact, LogOpened) == (record.run == LOG):
        return genesis_prev(record.run, fact)
    return None


def _chain(run: str) -> str:
    return LOG if run == LOG else "run"


def _unreadable(raw: bytes, index: int, run: str) -> Finding:
    if len(raw) > RECORD_BYTES_MAX:
        return Finding(f"a record of {len(raw)} bytes is too large", code="MDM-0601", chain=_chain(run), event=index, type=type_of(raw))
    try:
        decode(raw)
    except ProofError as error:
        d = error.diagnosis
        return Finding(d.what, code=d.code, chain=_chain(run), event=index, type=type_of(raw), why=d.why, fix=d.fix)
    except RecursionError:
        pass
    return Finding("record does not parse", code="MDM-0601", chain=_chain(run), event=index, type=type_of(raw))


def _misplaced(record: AnyRecord, index: int, run: str, prev: str | None, epoch: int) -> Finding:
    def finding(what: str, expected: str, found: str, code: str = "MDM-0641") -> Finding:
        return Finding(what, code=code, chain=_chain(run), event=index, type=record.type, expected=expected, found=found)

    if record.seq != index:
        return finding("its number is not the next one", f"seq {index}", f"seq {record.seq}")
    if record.run != run:
        return finding("it belongs to another run", run, record.run)
    if record.prev != prev and index == 0:
        return finding("the chain does not begin with its genesis", prev or "RunOpened, on chain log LogOpened", record.prev)
    if record.prev != prev:
        return finding(f"it does not name event {index - 1} as the one before it", prev or "", record.prev)
    return finding("the epoch changed without RunOwned", f"epoch {epoch}", f"epoch {record.epoch}", "MDM-0643")


def type_of(raw: bytes) -> str:
    """The type that a record claims, for naming a damaged one. Never believed."""
    match = _type_of.search(raw, max(0, len(raw) - 80))
    return match[1].decode("ascii") if match else ""


def _prev_of(raw: bytes) -> str:
    """The link of a record whose bytes are attested but cannot be decoded here. `prev` stands behind `fact`, so the last one is meant."""
    at = raw.rfind(b',"prev":"')
    return raw[at + 9 : at + 73].decode("ascii", "replace") if at >= 0 else ""


def backward(raws: Sequence[bytes], head: str, chain: str = "run") -> Finding | None:
    """From the signed head: the first record whose hash is not the one demanded, or None when all bytes are attested."""
    demanded, by = head, "the signed head"
    for index in range(len(raws) - 1, -1, -1):
        found = event_hash(raws[index])
        if found != demanded:
            what = f"hash is not the one {by} names"
            return Finding(what, code="MDM-0642", chain=chain, event=index, type=type_of(raws[index]), expected=demanded, found=found)
        demanded, by = _prev_of(raws[index]), f"event {index}"
    return None


def attested(fault: Finding, count: int) -> str:
    """What a backward walk may claim, in words."""
    if fault.event is None:
        return ""
    behind = f"events {fault.event + 1} to {count - 1} are proven" if fault.event + 1 < count else "no event is proven"
    return behind + (f", 0 to {fault.event - 1} are not attested" if fault.event else "")


def state_of(walked: Walk) -> State:
    """sealed, open (may go on) or interrupted (stopped between an intent and its outcome)."""
    if walked.fault is not None or not walked.count:
        return "unknown"
    return "sealed" if walked.life.sealed else "interrupted" if walked.life.in_flight else "open"


def verify_chain(records: Sequence[bytes]) -> Report:
    """`verify_chain(raws)`: the chain against itself. Nothing here is signed: a writer could have written it anew from genesis."""
    if not records:
        nothing = Finding("there is no record", code="MDM-0644")
        return Report(verdict="NOT PROVEN", exit_code=2, broken=nothing)
    walked = walk(records, keep=False)
    unsigned = Claim("signature", "not in this bundle", "a chain alone names no signer", 3)
    state = state_of(walked)
    if walked.fault is None:
        codes = {3} | ({4} if state != "sealed" else set()) | ({5} if walked.life.unsettled else set())
        chain, broken = Claim("chain", "proven", f"{len(records)} records: canonical, linked, in order, each step legal"), None
    else:
        newer = walked.fault.code == NEWER
        codes, broken = {5 if newer else 1}, None if newer else walked.fault
        chain = Claim("chain", "cannot check now" if newer else "broken", walked.fault.what, 5 if newer else 1)
    code = exit_code(codes)
    return Report(
        verdict=verdict(code),
        exit_code=code,
        run=walked.run,
        state=state,
        events=len(records),
        head=walked.head,
        claims=(chain, unsigned),
        broken=broken,
    )
