"""Names and bytes of the NATS ledger: streams, subjects, what one message holds. No I/O.

Shard k of ledger `mdm` is four streams; a tenant lives in one shard, so that run, payloads and accounts share an atomic batch:

    MDM_LOG_k         mdm.k.ev.<tenant>.<run>             one message an append: the run's row, its records, its small payloads
                      mdm.k.pay.<tenant>.<run>            payloads too large for that message, right behind it in the batch
                      mdm.k.bud.<tenant>.<account>        one message a delta
                      mdm.k.mailbox.<tenant>.<run>.<key>  one message a message: the same again finds its subject taken, for ever;
                                                          told on mdm.k.post.<tenant>.<run>.<key> without its body
                      mdm.k.gate.<tenant>                 carries a check of an account, nothing else
    KV_MDM_LEASE_k    leases and duties (they run out), tries and epochs (they stay)
    KV_MDM_NODE_k     workers, in memory
    MDM_TASK_k        mdm.k.task.<tenant>.<pool>.<prio>.<run>: look at this run; told on mdm.k.bell.…
                      mdm.k.wake.<tenant>.<run>           do so at an instant

Messages on one subject form a *strand*: each names the stream sequences of its predecessors, so that whoever has the last one reads the
rest by position from the leader, many at a time, and needs no consumer.

The rule a newcomer would break: a subject's token holds no dot, star, space or `>`. Whatever is not a token already goes through `token`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from mandamus.core.admit import Admitted
from mandamus.core.payload import Payload
from mandamus.ports import AccountWrite, Wake

BACK = 16  # predecessors a message names
INLINE = 16 * 1024  # a larger payload has a message of its own
FRAME = 256 * 1024  # records and small payloads of one message, about
DUPLICATES_NS = 120 * 10**9

# What anybody wrote is read back only within these: a place that no stream has makes requests that a server refuses.
Natural = Annotated[int, Meta(ge=0, le=2**62)]
Nth = Annotated[int, Meta(ge=0, le=1000)]
Back = Annotated[tuple[Annotated[int, Meta(ge=1, le=2**62)], ...], Meta(max_length=BACK)]

_plain = re.compile(r"[A-Za-z0-9_-]+").fullmatch


def token(text: str) -> str:
    """One token of a subject: itself, or with =XX for each byte that is not a letter, a digit, _ or -."""
    if _plain(text):
        return text
    return "".join(c if _plain(c) else "".join(f"={b:02X}" for b in c.encode()) for c in text) or "="


def shard_of(tenant: str, shards: int) -> int:
    return int.from_bytes(hashlib.sha256(b"mandamus/v1/shard\0" + tenant.encode()).digest()[:8]) % shards


# -- what a message holds --------------------------------------------------------------------------------------------------------
class Row(Struct, frozen=True, array_like=True):
    """What a run's last message says of it. `at` and `cursor`: its wake-up as the owner asked; `progress`: last reply or outcome.

    A message's cursor is its stream sequence + `shift`, which a run brings that was copied from a ledger with greater cursors.
    """

    seq: Natural
    hash: Annotated[bytes, Meta(max_length=32)]
    epoch: Natural
    at: int | None = None
    cursor: Natural = 0
    state: str = "open"
    pool: str = "default"
    prio: int = 0
    progress: int = -1
    shift: Natural = 0


class Part(Struct, frozen=True, array_like=True):
    """A payload: its bytes, or how many messages behind this one it stands."""

    seq: int
    part: str
    form: str
    value: bytes
    ahead: Nth = 0


class Frame(Struct, frozen=True, array_like=True):
    """One message of a run. `back`: where its predecessors stand, newest first; `nth`: which of its append's it is."""

    row: Row
    back: Back
    nth: Nth
    records: tuple[bytes, ...]
    parts: tuple[Part, ...] = ()


class Delta(Struct, frozen=True, array_like=True):
    """One message of an account. `back` and `nth` as a frame's."""

    version: Natural
    hash: str
    reserved: int
    spent: int
    run: str
    seq: int
    delta: bytes
    back: Back
    nth: Nth


class Lease(Struct, frozen=True):
    """`until` is what its holder hoped; that it ran out, only the server says."""

    owner: str
    token: str
    until: int


class Count(Struct, frozen=True):
    """How often a key was taken since the run's progress was `mark`."""

    n: int
    mark: int = -1


class Message(Struct, frozen=True):
    """To be published. `expect`: the last stream sequence of `on` (of its own subject, when empty); None: whatever it is."""

    subject: str
    body: bytes
    expect: int | None = None
    on: str = ""
    id: str = ""
    headers: tuple[tuple[str, str], ...] = ()


frame_of = msgspec.msgpack.Decoder(Frame).decode
delta_of = msgspec.msgpack.Decoder(Delta).decode
lease_of = msgspec.json.Decoder(Lease).decode
count_of = msgspec.json.Decoder(Count).decode
packed = msgspec.msgpack.Encoder().encode
as_json = msgspec.json.Encoder().encode


def strand(at: int, message: Frame | Delta) -> tuple[int, ...]:
    """Where the predecessors of the message at `at` stand, newest first."""
    return (*(at - i - 1 for i in range(message.nth)), *message.back)


# -- names -----------------------------------------------------------------------------------------------------------------------
class Names:
    """Every stream and subject of one tenant in one shard."""

    def __init__(self, name: str, shard: int, tenant: str) -> None:
        upper, root = f"{name.upper()}", f"{name}.{shard}"
        self.tenant = tenant
        self.log, self.task = f"{upper}_LOG_{shard}", f"{upper}_TASK_{shard}"
        self.lease_bucket, self.node_bucket = f"{upper}_LEASE_{shard}", f"{upper}_NODE_{shard}"
        self.lease, self.node = f"KV_{self.lease_bucket}", f"KV_{self.node_bucket}"
        self.root, self.post = root, f"{root}.post.{tenant}"
        self.events, self.gate = f"{root}.ev.{tenant}.*", f"{root}.gate.{tenant}"
        self.run_root, self._pay, self._bud = f"{root}.ev.{tenant}.", f"{root}.pay.{tenant}.", f"{root}.bud.{tenant}."
        self._mail, self._task, self._wake = f"{root}.mailbox.{tenant}.", f"{root}.task.{tenant}.", f"{root}.wake.{tenant}."
        self._kv, self._nodes = f"$KV.{self.lease_bucket}.", f"$KV.{self.node_bucket}.{tenant}."

    def ev(self, run: str) -> str:
        return self.run_root + token(run)

    def pay(self, run: str) -> str:
        return self._pay + token(run)

    def account(self, id: str) -> str:
        return self._bud + token(id)

    def mailbox(self, run: str, key: str = "*") -> str:
        return f"{self._mail}{token(run)}.{key}"

    def wake(self, run: str) -> str:
        return self._wake + token(run)

    def tasks(self, pool: str, prio: int | str = "*", run: str = "*") -> str:
        return f"{self._task}{token(pool)}.{prio}.{token(run) if run != '*' else run}"

    def consumer(self, pool: str, prio: int) -> str:
        return f"{self.tenant}_{token(pool).replace('=', '_')}_{hashlib.sha256(pool.encode()).hexdigest()[:8]}_{prio}"

    def key(self, kind: str, name: str) -> str:
        """`kind`: lease, tries, duty, epoch."""
        return f"{self._kv}{kind}.{self.tenant}.{token(name)}"

    def worker(self, id: str = "*") -> str:
        return self._nodes + (token(id) if id != "*" else id)


# -- an append as messages -------------------------------------------------------------------------------------------------------
def next_row(old: Row | None, new: Admitted, wake: Wake | None, foreign: bool) -> Row:
    """`foreign`: the wake-up's cursor is of no message here; all that come shall lie behind it."""
    row = old or Row(0, b"", 0)
    at, cursor, state, pool, prio, shift = row.at, row.cursor, row.state, row.pool, row.prio, row.shift
    if wake is not None:
        at, cursor, state, pool = wake.at, wake.cursor, wake.state, wake.pool or pool
        prio = prio if wake.prio is None else wake.prio
        shift = max(shift, wake.cursor) if foreign else shift
    progress = new.seq if new.progress else row.progress
    return Row(new.seq, bytes.fromhex(new.hash), new.epoch, at, cursor, state, pool, prio, progress, shift)


def frames(
    names: Names, run: str, row: Row, at: int, back: tuple[int, ...], records: Sequence[bytes], payloads: Sequence[Payload]
) -> list[Message]:
    """The append's own messages: frames, then payloads that stand alone. `at`: where the run's last message stands (0: nowhere)."""
    groups, first = _grouped(row, records, payloads), row.seq - len(records) + 1
    alone = [p for group in groups for p in group[1] if len(p.bytes) > INLINE]
    made: list[Message] = []
    behind = 0
    for nth, (raws, parts) in enumerate(groups):
        first += len(raws)
        listed = []
        for p in parts:
            if len(p.bytes) > INLINE:
                listed.append(Part(p.seq, p.part, p.form, b"", len(groups) - nth + behind))
                behind += 1
            else:
                listed.append(Part(p.seq, p.part, p.form, p.bytes))
        here = row if nth == len(groups) - 1 else msgspec.structs.replace(row, seq=first - 1)
        body = packed(Frame(here, back, nth, raws, tuple(listed)))
        if nth == 0:
            id = hashlib.sha256(f"{names.ev(run)}\0{at}\0".encode() + body).hexdigest()
            made.append(Message(names.ev(run), body, at, id=id))
        else:
            made.append(Message(names.ev(run), body))
    return made + [Message(names.pay(run), p.bytes) for p in alone]


def _grouped(row: Row, records: Sequence[bytes], payloads: Sequence[Payload]) -> list[tuple[tuple[bytes, ...], list[Payload]]]:
    """Records with the payloads that belong to them, in groups that fit a message each."""
    if sum(map(len, records)) + sum(min(len(p.bytes), INLINE) for p in payloads) <= FRAME:
        return [(tuple(records), sorted(payloads, key=_place))]
    waiting, groups, size = sorted(payloads, key=_place), [], FRAME + 1
    for seq, raw in enumerate(records, row.seq - len(records) + 1):
        mine = [p for p in waiting if p.seq == seq]
        more = len(raw) + sum(len(p.bytes) for p in mine if len(p.bytes) <= INLINE)
        if size + more > FRAME:
            raws: list[bytes] = []
            parts: list[Payload] = []
            groups.append((raws, parts))
            size = 0
        groups[-1][0].append(raw)
        groups[-1][1].extend(mine)
        size += more
    return [(tuple(raws), parts) for raws, parts in groups]


def _place(payload: Payload) -> tuple[int, str]:
    return payload.seq, payload.part


def delta(names: Names, entry: AccountWrite, at: int | None, back: tuple[int, ...], nth: int) -> Message:
    """`at` None: it follows another delta of this append."""
    body = packed(Delta(entry.version, entry.hash, entry.reserved, entry.spent, entry.run, entry.seq, entry.delta, back, nth))
    return Message(names.account(entry.id), body, at)
