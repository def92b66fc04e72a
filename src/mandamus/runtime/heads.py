"""A ledger whose heads a second store witnesses: what that store has seen must still stand in the ledger, else nothing is done with it.

    ledger = await watched(ledger, heads, origin, warn)

Told: every 64th record of a run, its first and whatever it halts, waits or ends with; each record of chain `log` and each number of the
register. Asked: when the ledger is opened, when a run is taken over, and at the first look at a run. A head that lies behind what was
seen, or another record in its place, is a rollback: ProofError, nothing written. Without a witness none of this runs.

The rule a newcomer would break: the witness is asked *before* the ledger. Asked after it, it may know a head that somebody wrote in
between, and an honest ledger would look rolled back. And no append ever waits for it: what it could not be told is told later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, cast

from msgspec import Struct

from mandamus.core.accounts import REGISTER
from mandamus.core.canonical import digest
from mandamus.core.records import LOG, event_hash
from mandamus.errors import ProofError, Unavailable
from mandamus.ports import AccountCheck, AccountWrite, Head, Heads, Ledger, Sighting, Wake
from mandamus.runtime.away import elsewhere

T = TypeVar("T")
EVERY = 64
RETRY_S = 5.0
CLOSE_S = 3.0
NUMBERS = f"account/{REGISTER}"
_GOES_ON = frozenset(("running", "open"))
_OVER = frozenset(("completed", "failed", "cancelled"))


async def watched(ledger: Ledger, heads: Heads, origin: str, warn: Callable[[str], None] = lambda text: None, every: int = EVERY) -> Ledger:
    """The same ledger, watched. Raises ProofError when its log or its register is not what was seen."""
    made = Witnessed(ledger, heads, origin, warn, every)
    try:
        await made.check_ledger()
    except BaseException:
        await made.close()
        raise
    return cast(Ledger, made)


class Witnessed:
    """Implements `ports.Ledger` around another one; what is not written here is that one's own."""

    def __init__(self, inner: Ledger, heads: Heads, origin: str, warn: Callable[[str], None], every: int) -> None:
        self._inner, self._heads, self._origin, self._warn, self._every = inner, heads, origin, warn, every
        self.missed = 0  # how often the witness did not answer
        self._told: dict[str, int] = {}
        self._pending: dict[str, Sighting] = {}
        self._checked: set[str] = set()
        self._unchecked: set[str] = set()
        self._broken: dict[str, ProofError] = {}
        self._teller: asyncio.Task[None] | None = None
        self._silent_until = 0.0
        self._warned = self._closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    # -- the ledger ------------------------------------------------------------------------------------------------------------
    async def head(self, run: str) -> Head | None:
        await self._sure(run)
        return await self._inner.head(run)

    async def append(
        self,
        run: str,
        after: Head | None,
        records: Sequence[bytes],
        *,
        also: Sequence[AccountWrite | AccountCheck] = (),
        wake: Wake | None = None,
        **more: Any,
    ) -> Head:
        if self._broken:
            self._refuse(run)
        if after is None:
            await self.check_ledger()
        try:
            head = await self._inner.append(run, after, records, also=also, wake=wake, **more)
        except Unavailable:
            self._checked.clear()  # whoever answers next may be another server
            raise
        if records and self._note(head, also, wake):
            await asyncio.sleep(0)  # the witness is told by another task, which must get its turn
        return head

    async def claim(self, pool: str, ttl_ms: int, *, run: str | None = None) -> Head | None:
        """A run that was asked for is looked at before it is taken; one that was found, at the first look at it."""
        if run is not None:
            self._checked.discard(run)
            await self._sure(run)
        found = await self._inner.claim(pool, ttl_ms, run=run)
        if run is None and found is not None:
            self._checked.discard(found.run)
        return found

    async def close(self) -> None:
        """What is not told yet is told now, if the witness answers in time. Twice is once."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(CLOSE_S):
                if self._teller is not None and self._teller.get_loop() is asyncio.get_running_loop():
                    await asyncio.wait([self._teller])
                if self._pending and time.monotonic() >= self._silent_until:
                    await self._tell()
        except TimeoutError:
            self._miss("no answer in time")
        finally:
            await self._heads.close()
            await self._inner.close()

    # -- asking ----------------------------------------------------------------------------------------------------------------
    async def check_ledger(self) -> None:
        """Chain `log` and the register: whatever was rolled back, they were."""
        for chain in (LOG, NUMBERS):
            if chain not in self._checked:
                await self._check(chain)

    async def _sure(self, run: str) -> None:
        if self._broken:
            self._refuse(run)
        if run not in self._checked:
            await self.check_ledger()
            if run not in self._checked:
                await self._check(run)

    async def _check(self, chain: str) -> None:
        """Raises ProofError. A witness that does not answer stops nothing: the chain is looked at when it answers again."""
        try:
            seen = await self._ask(lambda: self._heads.seen(self._origin, chain))
        except Unavailable as error:
            self._unchecked.add(chain)
            self._miss(error.diagnosis.found or error.diagnosis.what)
            return
        if seen is not None:
            await compare(self._inner, seen)
        self._checked.add(chain)

    def _refuse(self, run: str) -> None:
        for chain in (run, LOG, NUMBERS):
            if chain in self._broken:
                raise self._broken[chain]

    # -- telling ---------------------------------------------------------------------------------------------------------------
    def _note(self, head: Head, also: Sequence[AccountWrite | AccountCheck], wake: Wake | None) -> bool:
        """Whether there is something to tell, and somebody to be told."""
        run, told = head.run, self._told.get(head.run)
        stands = wake is not None and wake.state not in _GOES_ON
        if run == LOG or told is None or stands or head.seq - told >= self._every:
            self._told[run] = head.seq
            self._pending[run] = Sighting(run, head.seq, head.hash)
        for x in also:
            if type(x) is AccountWrite and x.id == REGISTER:
                self._pending[NUMBERS] = Sighting(NUMBERS, x.version, x.hash)
        if head.state in _OVER:
            self._told.pop(run, None)
        if not self._pending or time.monotonic() < self._silent_until:
            return False
        if self._teller is None or self._teller.done():
            self._teller = asyncio.get_running_loop().create_task(self._tell())
        return True

    async def _tell(self) -> None:
        while self._pending:
            batch, self._pending = self._pending, {}
            try:
                await self._look_again()
                batch = {chain: s for chain, s in batch.items() if chain not in self._broken}
                if batch:
                    await self._ask(lambda: self._heads.tell(self._origin, tuple(batch.values())))  # noqa: B023 (called at once)
            except Unavailable as error:
                self._pending = batch | self._pending
                self._miss(error.diagnosis.found or error.diagnosis.what)
                return
            except asyncio.CancelledError:
                self._pending = batch | self._pending
                raise
        self._warned, self._silent_until = False, 0.0

    async def _look_again(self) -> None:
        """Chains that could not be looked at in time. One that was rolled back is told to nobody, and refused from now on."""
        for chain in sorted(self._unchecked):
            seen = await self._ask(lambda: self._heads.seen(self._origin, chain))  # noqa: B023 (called at once)
            try:
                if seen is not None:
                    await compare(self._inner, seen)
                self._checked.add(chain)
            except ProofError as error:
                self._broken[chain] = error
                self._warn(f"mandamus: {error.diagnosis.code} {error.diagnosis.where}: {error.diagnosis.what}")
            self._unchecked.discard(chain)

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        if time.monotonic() < self._silent_until:
            raise Unavailable("the witness of heads did not answer a moment ago", outcome="none", code="MDM-0516")
        return await question()

    def _miss(self, found: str) -> None:
        self.missed += 1
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + RETRY_S
        if not self._warned:
            self._warned = True
            self._warn(f"mandamus: the witness of heads does not answer ({found}): a rollback of this ledger would not be noticed")


# -- what was seen, held against what stands -------------------------------------------------------------------------------------
async def compare(ledger: Ledger, seen: Sighting, *, whole: bool = False) -> None:
    """Raises ProofError. `seen` was read before the ledger is. `whole`: an account's deltas too, when it has grown since."""
    if seen.chain == NUMBERS:
        await _compare_numbers(ledger, seen, whole)
        return
    head = await ledger.head(seen.chain)
    if head is None:
        raise _gone(seen)
    if elsewhere(head.state):
        return  # it goes on on another ledger, which the same witness hears of
    if head.seq < seen.seq:
        raise _behind(seen, head.seq)
    found = head.hash if head.seq == seen.seq else ""
    async for raw in ledger.read(seen.chain, seen.seq - 1, seen.seq):
        if found in ("", seen.hash):  # the row may say one thing and the record be another
            found = event_hash(raw)
    if found != seen.hash:
        raise _another(seen, found)


async def _compare_numbers(ledger: Ledger, seen: Sighting, whole: bool) -> None:
    log = await ledger.head(LOG)
    if log is not None and elsewhere(log.state):
        return
    account = await ledger.account(REGISTER)
    if account is None or account.version < seen.seq:
        raise _behind(seen, account.version if account else 0)
    found = account.hash if account.version == seen.seq else ""
    if whole and not found:
        version = 0
        async for raw in ledger.deltas(REGISTER):
            version += 1
            if version == seen.seq:
                found = digest("delta", raw)
                break
    if found and found != seen.hash:
        raise _another(seen, found)


class Compared(Struct):
    """How many chains the witness knows, and what is wrong with those that are not what it saw."""

    chains: int
    faults: list[ProofError]


async def compare_all(ledger: Ledger, heads: Heads, origin: str) -> Compared:
    """Every chain that was ever seen, for `doctor`. Raises Unavailable."""
    done = Compared(0, [])
    for seen in [one async for one in heads.all(origin)]:
        done.chains += 1
        try:
            await compare(ledger, seen, whole=True)
        except ProofError as error:
            done.faults.append(error)
    return done


_FIX = "keep this ledger as evidence; put the newest whole one back. Accept a loss only by hand: docs/how-to/move-a-ledger.md"


def _where(seen: Sighting) -> str:
    return "chain log" if seen.chain == LOG else "the register" if seen.chain == NUMBERS else f"run {seen.chain}"


def _behind(seen: Sighting, found: int) -> ProofError:
    return ProofError(
        "the ledger was rolled back", code="MDM-0690", where=_where(seen), expected=f"event {seen.seq} or later, which the witness saw",
        found=f"event {found}" if found >= 0 else "nothing", why="what happened after it is missing, and would be done a second time",
        fix=_FIX,
    )  # fmt: skip


def _another(seen: Sighting, found: str) -> ProofError:
    return ProofError(
        "the ledger was rolled back, or written anew: another record stands where the witness saw one", code="MDM-0691",
        where=f"{_where(seen)} (event {seen.seq})", expected=seen.hash[:12], found=found[:12] or "nothing",
        why="two histories of one run cannot both be true", fix=_FIX,
    )  # fmt: skip


def _gone(seen: Sighting) -> ProofError:
    return ProofError(
        "the ledger was rolled back: it does not know a chain that the witness saw", code="MDM-0692", where=_where(seen),
        expected=f"event {seen.seq}", found="nothing", why="what it did would be done a second time", fix=_FIX,
    )  # fmt: skip
