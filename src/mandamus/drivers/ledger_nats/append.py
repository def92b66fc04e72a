"""Writing: an append becomes one publish, or one atomic batch, and is sent again until its fate is known or patience ends.

A lone append goes as it is. Those that come while others are under way share a batch: it costs the servers less, and the server lets one
check of an account be under way at a time (10164), so 64 writers that each checked `authority` alone would wait for each other 64 times.

The rule a newcomer would break: 10164 is not 10071. It means that another write is under way there, perhaps our own; it says nothing about
who is first. Only what is *read from the leader* makes a Conflict.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct

from mandamus.core.admit import Admitted
from mandamus.core.payload import Payload
from mandamus.drivers.ledger_nats import layout, strand
from mandamus.drivers.ledger_nats.layout import Delta, Frame, Message, Names, Row
from mandamus.drivers.ledger_nats.wire import AGAIN, BUSY, DUPLICATE, FULL, IN_PROCESS, STALE, Refusal, Silence, Stored, Wire, silent
from mandamus.errors import EngineFault, Misuse, Unavailable
from mandamus.ports import Account, AccountCheck, AccountWrite, Head, Wake

MESSAGES_MAX = 1000  # of one atomic batch, the server's limit
SHARED_MAX = 400
BYTES_MAX = 4 << 20
FLIGHTS_MAX = 2
KEPT = 20_000
T = TypeVar("T")


class Known(Struct, frozen=True):
    """The last message of a run, where it stands, and where its predecessors do. `body`: to know one's own again."""

    at: int
    row: Row
    back: tuple[int, ...]
    body: bytes


class Kept(Struct, frozen=True):
    """The last delta of an account. `at` 0: there is none."""

    at: int
    account: Account | None
    back: tuple[int, ...]

    @property
    def version(self) -> int:
        return self.account.version if self.account else 0


class Job(Struct, eq=False):
    """One append on its way. `messages[:own]` are its frames; accounts are those it writes."""

    run: str
    messages: list[Message]
    known: Known  # what will stand there afterwards, but for `at`
    last: int  # which of the messages is the run's last
    writes: dict[str, tuple[int, AccountWrite]]  # which message, what it says
    checks: dict[str, int]
    size: int
    done: asyncio.Future[int] | None = None  # the stream sequence of its first message


class Positions:
    """Where runs and accounts stand, as last seen. Wrong at any time: the expectations of a write say so."""

    def __init__(self, wire: Wire, names: Names) -> None:
        self._wire, self._names = wire, names
        self._runs: dict[str, Known] = {}
        self._accounts: dict[str, Kept] = {}
        self.read: dict[str, int] = {}  # the newest cursor that was given out for a run

    async def run(self, run: str, *, fresh: bool = False) -> Known | None:
        if not fresh and run in self._runs:
            return self._runs[run]
        known = known_of(await self._wire.get(self._names.log, last_by_subj=self._names.ev(run)))
        self.keep(run, known)
        return known

    async def account(self, id: str, *, fresh: bool = False) -> Kept:
        if not fresh and id in self._accounts:
            return self._accounts[id]
        stored = await self._wire.get(self._names.log, last_by_subj=self._names.account(id))
        kept = kept_of(id, stored)
        _put(self._accounts, id, kept)
        return kept

    def keep(self, run: str, known: Known | None) -> None:
        if known is None:
            self._runs.pop(run, None)
        else:
            _put(self._runs, run, known)

    def keep_account(self, id: str, kept: Kept) -> None:
        _put(self._accounts, id, kept)

    def forget(self, run: str, accounts: Sequence[str] = ()) -> None:
        self._runs.pop(run, None)
        for id in accounts:
            self._accounts.pop(id, None)


def known_of(stored: Stored | None) -> Known | None:
    if stored is None:
        return None
    frame = strand.read(stored.subject, stored, layout.frame_of)
    return Known(stored.seq, frame.row, layout.strand(stored.seq, frame), stored.data)


def kept_of(id: str, stored: Stored | None) -> Kept:
    if stored is None:
        return Kept(0, None, ())
    d: Delta = strand.read(f"account {id[:64]}", stored, layout.delta_of)
    return Kept(stored.seq, Account(id, d.version, d.hash, d.reserved, d.spent), layout.strand(stored.seq, d))


class Moved(Exception):
    """The run is not where the append expected it; `account` names the account that moved instead."""

    def __init__(self, known: Known | None, account: str = "", expected: int = 0, found: int = 0) -> None:
        super().__init__()
        self.known, self.account, self.expected, self.found = known, account, expected, found


class Appends:
    """All appends of one handle."""

    def __init__(self, wire: Wire, names: Names) -> None:
        self._wire, self._names, self.at = wire, names, Positions(wire, names)
        self._waiting: list[Job] = []
        self._flights = 0
        self._flying: set[asyncio.Task[None]] = set()
        self._busy: set[str] = set()  # accounts in a batch under way
        self.batches = self.shared = 0

    async def append(
        self,
        run: str,
        after: Head | None,
        new: Admitted,
        records: Sequence[bytes],
        payloads: Sequence[Payload],
        also: Sequence[AccountWrite | AccountCheck],
        wake: Wake | None,
    ) -> Known:
        """Raises Moved, Unavailable, EngineFault, Misuse."""
        deadline = time.monotonic() + self._wire.options.patience_ms / 1000
        sure, first, pause, says = True, True, 0.001, ""
        job: Job | None = None
        while first or time.monotonic() < deadline:
            try:
                if job is not None and not sure and (ours := await self._ours(job)) is not None:
                    return ours
                job = await self._job(run, after, new, records, payloads, also, wake, fresh=not first)
                first = False
                return await self._post(job)
            except Moved as moved:
                if job is not None and moved.known is not None and moved.known.body == job.known.body:
                    return moved.known  # by ourselves: a leader that answered "not now" had passed it on after all
                if sure:
                    raise
                raise silent(f"the append to run {run}", f"the run has moved meanwhile: {moved.known is not None}", "unknown") from None
            except Refusal as refusal:
                first, says = False, str(refusal)
                if refusal.code in (STALE, DUPLICATE):  # stored already: by an earlier attempt, or by somebody who had the same bytes
                    self.at.forget(run, [entry.id for entry in also])
                elif refusal.code in (BUSY, IN_PROCESS):
                    await asyncio.sleep(random.uniform(0.0005, 0.002))
                    continue
                elif refusal.code in FULL or (refusal.code not in AGAIN and refusal.http != 503):
                    raise refused(refusal, f"run {run}", "none" if sure else "unknown") from None
                else:
                    sure = False  # "temporarily unavailable" is no promise that nothing was stored
            except Silence as silence:
                first, says = False, silence.says
                sure = sure and not silence.sent
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.25)
        raise silent(f"the append to run {run}", says, "none" if sure else "unknown")

    # -- one attempt ---------------------------------------------------------------------------------------------------------
    async def _job(
        self,
        run: str,
        after: Head | None,
        new: Admitted,
        records: Sequence[bytes],
        payloads: Sequence[Payload],
        also: Sequence[AccountWrite | AccountCheck],
        wake: Wake | None,
        *,
        fresh: bool,
    ) -> Job:
        """The append as messages at today's positions. Raises Moved when it cannot follow."""
        known = await self.at.run(run, fresh=fresh)
        if not same(known, after):
            known = await self.at.run(run, fresh=True)
            if not same(known, after):
                raise Moved(known)
        at, back = (known.at, (known.at, *known.back)[: layout.BACK]) if known else (0, ())
        foreign = wake is not None and await self._foreign(run, known, wake.cursor)
        row = layout.next_row(known.row if known else None, new, wake, foreign)
        messages = layout.frames(self._names, run, row, at, back, records, payloads)
        last = sum(message.subject == messages[0].subject for message in messages) - 1
        checks, writes = await self._accounts(known, also, messages)
        if len(messages) + len(checks) > MESSAGES_MAX:
            raise Misuse("the append has too many parts for a NATS ledger", code="MDM-0132", where=f"run {run}", expected=f"{MESSAGES_MAX}")
        final = Known(0, row, (), messages[last].body)
        return Job(run, messages, final, last, writes, checks, sum(len(m.body) for m in messages))

    async def _foreign(self, run: str, known: Known | None, cursor: int) -> bool:
        """Whether a cursor lies beyond every message of the run."""
        shift = known.row.shift if known else 0
        if cursor <= max(shift, self.at.read.get(run, 0)):
            return False
        newest = await self._wire.get(self._names.log, last_by_subj=self._names.mailbox(run))
        return newest is None or newest.seq + shift < cursor

    async def _accounts(
        self, known: Known | None, also: Sequence[AccountWrite | AccountCheck], messages: list[Message]
    ) -> tuple[dict[str, int], dict[str, tuple[int, AccountWrite]]]:
        checks: dict[str, int] = {}
        writes: dict[str, tuple[int, AccountWrite]] = {}
        nths: dict[str, int] = {}
        for entry in also:
            kept = await self.at.account(entry.id)
            earlier = writes.get(entry.id)
            expected = entry.version - isinstance(entry, AccountWrite)
            found = earlier[1].version if earlier and isinstance(entry, AccountWrite) else kept.version
            if found != expected and earlier is None:
                kept = await self.at.account(entry.id, fresh=True)
                found = kept.version
            if found != expected:
                raise Moved(known, entry.id, expected, found)
            if isinstance(entry, AccountCheck):
                checks[entry.id] = kept.at
                continue
            back = (kept.at, *kept.back)[: layout.BACK] if kept.at else ()
            nth = nths[entry.id] = nths.get(entry.id, -1) + 1
            messages.append(layout.delta(self._names, entry, None if earlier else kept.at, back, nth))
            writes[entry.id] = (len(messages) - 1, entry)
        return {id: at for id, at in checks.items() if id not in writes}, writes

    async def _post(self, job: Job) -> Known:
        """Sends it, alone or with others."""
        if not self._waiting and not self._flights and len(job.messages) == 1 and not job.checks:
            self._flights += 1
            try:
                return self._keep(job, (await self._wire.batch(job.messages)).seq)
            finally:
                self._flights -= 1
                self._depart()
        return self._keep(job, await self._together(job))

    def _keep(self, job: Job, first: int) -> Known:
        at = first + job.last
        frame: Frame = layout.frame_of(job.known.body)
        known = Known(at, job.known.row, layout.strand(at, frame), job.known.body)
        self.at.keep(job.run, known)
        for id, (nth, entry) in job.writes.items():
            delta: Delta = layout.delta_of(job.messages[nth].body)
            account = Account(id, entry.version, entry.hash, entry.reserved, entry.spent)
            self.at.keep_account(id, Kept(first + nth, account, layout.strand(first + nth, delta)))
        return known

    async def _ours(self, job: Job) -> Known | None:
        """After an attempt whose fate is not known: what stands there now, if it is this append."""
        self.at.forget(job.run, list(job.writes))
        known = await self.at.run(job.run, fresh=True)
        return known if known is not None and known.body == job.known.body else None

    # -- appends that share a batch ------------------------------------------------------------------------------------------
    async def _together(self, job: Job) -> int:
        job.done = asyncio.get_running_loop().create_future()
        self._waiting.append(job)
        self._depart()
        return await job.done

    def _depart(self) -> None:
        """Starts a batch of those who wait, when there is room for one more on the way."""
        while self._waiting and self._flights < FLIGHTS_MAX and (jobs := self._boarding()):
            self._flights += 1
            self._busy |= _accounts(jobs)
            flight = asyncio.ensure_future(self._fly(jobs))
            self._flying.add(flight)
            flight.add_done_callback(self._landed)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flying.discard(flight)
        self._flights -= 1
        self._depart()

    async def _fly(self, jobs: list[Job]) -> None:
        messages = [message for job in jobs for message in job.messages]
        checks = {id: at for job in jobs for id, at in job.checks.items()}
        messages += [Message(self._names.gate, b"", at, self._names.account(id)) for id, at in checks.items()]
        self.batches, self.shared = self.batches + 1, self.shared + len(jobs)
        try:
            first = (await self._wire.batch(messages)).seq - len(messages) + 1
        except (Refusal, Silence, Unavailable) as error:
            alone = len(jobs) == 1 or not isinstance(error, Refusal) or error.code not in (STALE, DUPLICATE)
            _fail(jobs, error if alone else Refusal(STALE, "one of those who shared a batch was stale"))  # each looks for itself
        except BaseException as error:
            _fail(jobs, Silence(type(error).__name__, sent=True))
            raise
        else:
            for job in jobs:
                assert job.done is not None
                if not job.done.done():
                    job.done.set_result(first)
                first += len(job.messages)
        finally:
            self._busy -= _accounts(jobs)

    def _boarding(self) -> list[Job]:
        """Those who wait, first come first served, as far as they do not stand in each other's way."""
        taken: list[Job] = []
        left: list[Job] = []
        runs: set[str] = set()
        writes: set[str] = set()
        checks: dict[str, int] = {}
        count = size = 0
        for job in self._waiting:
            accounts = job.writes.keys() | job.checks.keys()
            fits = not (self._busy & accounts) and (
                not taken
                or (
                    count + len(job.messages) + len(job.checks) <= SHARED_MAX
                    and size + job.size <= BYTES_MAX
                    and job.run not in runs
                    and not (writes & accounts)
                    and not (checks.keys() & job.writes.keys())
                    and all(checks.get(id, at) == at for id, at in job.checks.items())
                )
            )
            if not fits:
                left.append(job)
                continue
            taken.append(job)
            runs.add(job.run)
            writes |= job.writes.keys()
            checks |= job.checks
            count += len(job.messages) + len(job.checks)
            size += job.size
        self._waiting = left
        return taken


def same(known: Known | None, after: Head | None) -> bool:
    if known is None or after is None:
        return known is None and after is None
    row = known.row
    return row.seq == after.seq and row.epoch == after.epoch and row.hash.hex() == after.hash


def refused(refusal: Refusal, where: str, outcome: str = "none") -> EngineFault:
    if refusal.code in FULL:
        return Unavailable(
            "the log is full",
            outcome=outcome,
            code="MDM-0562",
            where=where,
            found=refusal.says[:200],
            why="the server refused it whole: nothing was written, and nothing is begun that could not be written down",
            fix="give the stream more room (max_bytes, disk), then go on; mandamus doctor warns at 80 %",
        )
    return EngineFault(
        "the server refused a request that it should accept",
        code="MDM-0570",
        where=where,
        found=str(refusal)[:200],
        fix="mandamus doctor; look at the server's version and at what this user may do",
    )


def _accounts(jobs: Sequence[Job]) -> set[str]:
    return {id for job in jobs for id in (*job.writes, *job.checks)}


def _fail(jobs: Sequence[Job], error: Exception) -> None:
    for job in jobs:
        if job.done is not None and not job.done.done():
            job.done.set_exception(error)


def _put(kept: dict[str, T], key: str, value: T) -> None:
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > KEPT:
        del kept[next(iter(kept))]
