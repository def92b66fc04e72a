"""Take a ledger's runs to another ledger, byte by byte: nothing is encoded anew.

    done = await Move(env, target, "sqlite:////abs/run.db", "postgres://host/db", driver).carry(runs)

In this order, each step safe to repeat after a crash: the source's chain `log` is marked as moved and its account `authority` raised, so
that no process starts an effect there any more; every run that can go on is taken over there (`RunOwned`, which fences an owner that
only sleeps) and marked; then chain `log`, the accounts, the runs and their unread mail are written to the target, where each chain
stands as *arriving* until it was read back; last the target is opened.

The rule a newcomer would break: no run may be drivable on both ledgers at any moment. So the source lets go first, and a copy that was
cut short leaves a run on neither until the copy is carried on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from mandamus.core import records as r
from mandamus.core.accounts import AUTHORITY, REGISTER, Balance, Delta, narrowed
from mandamus.core.clock import rfc3339
from mandamus.core.digests import ownership
from mandamus.core.fold import evolve
from mandamus.core.payload import Payload
from mandamus.core.records import LOG, event_hash
from mandamus.core.rules import owned, wakes
from mandamus.core.run import EMPTY, Run
from mandamus.core.seal import Draft, Position, seal
from mandamus.errors import Conflict, EngineFault, Misuse, ProofError
from mandamus.ports import AccountWrite, Head, Ledger, Wake
from mandamus.proof.keys import b64
from mandamus.runtime.away import ARRIVING, MOVED, away_name, elsewhere, refusal
from mandamus.runtime.env import Env, ulid
from mandamus.runtime.erased import stored
from mandamus.runtime.sealing import SealedLedger
from mandamus.runtime.statements import signed
from mandamus.runtime.survey import Chain, closing, equal, folded, linked, survey, with_payloads

LEASE_MS = 60_000
ACTING = "MDM-0406"
MESSAGES_MAX, BYTES_MAX = 200, 512 * 1024  # of one append to the target
_delta = msgspec.json.Decoder(Delta).decode


class Copied(Struct):
    """What a copy did, or with a dry run would do. `there`: runs that the target had already."""

    runs: list[str]
    there: list[str]
    events: int = 0
    deltas: int = 0
    messages: int = 0


class Move:
    """From the ledger of `source` to `target`, whose URIs are `name_from` and `name_to`. `driver(head)`: a run's live process, or ""."""

    def __init__(
        self, source: Env, target: Ledger | None, name_from: str, name_to: str, driver: Callable[[Head], str],
        tell: Callable[[int], None] = lambda events: None,
    ) -> None:  # fmt: skip
        self.env, self.source, self._target, self.driver, self.tell = source, source.ledger, target, driver, tell
        self.to, self.back = MOVED + away_name(name_to), MOVED + away_name(name_from)
        self.done = Copied([], [])

    @property
    def target(self) -> Ledger:
        assert self._target is not None, "only a plan can do without it"
        return self._target

    # -- the whole -------------------------------------------------------------------------------------------------------------
    async def plan(self, wanted: Sequence[str] = ()) -> list[Chain]:
        """Reads and checks every chain of the source. Raises Misuse, Conflict or ProofError for what stands in the way; writes nothing."""
        log = await self._log_at_source()
        await self._log_at_target(log)
        await self._one_key_store()
        chains = {head.run: await survey(self.source, head) async for head in self.source.runs() if head.run != LOG}
        self.accounts = {AUTHORITY, REGISTER}.union(*(c.accounts for c in chains.values()), (narrowed(run) for run in chains))
        self.known = {LOG, *chains}
        chosen = [chains[run] for run in sorted(_closed(wanted, chains) if wanted else chains)]
        for chain in chosen:
            self._may_go(chain)
        for chain in chains.values():  # also one that is left behind: nothing is driven at the source any more
            self._may_rest(chain)
        return chosen

    async def carry(self, wanted: Sequence[str] = ()) -> Copied:
        """Raises what `plan` raises; Unavailable when a ledger goes away: call it again then."""
        try:
            chosen = await self.plan(wanted)
            await self._mark_log()
            await self._settled()
        except Conflict as conflict:
            if conflict.diagnosis.code == ACTING:
                await self._let_be()
            raise
        ready = [c.head if c.sealed else await self._fence(c.head.run) for c in chosen]
        log = await self.source.head(LOG)
        assert log is not None, "a ledger that was opened has a log"
        goes_on = await self._bring_log(log)
        for account in sorted(self.accounts):
            await self._bring_account(account)
        for head in ready:
            await self._bring_run(head)
        await self._release()
        await self._nothing_new()
        if not goes_on:
            await self._wake(LOG, Wake(None, 0, "open"))
        return self.done

    # -- what stands in the way --------------------------------------------------------------------------------------------------
    async def _log_at_source(self) -> Head:
        log = await self.source.head(LOG)
        if log is None:
            raise Misuse("there is no ledger to copy", code="MDM-0010", where="FROM", fix="name the one that holds the runs")
        if elsewhere(log.state) and log.state != self.to:
            raise refusal("the ledger FROM", log.state)
        return log

    async def _one_key_store(self) -> None:
        """What is sealed goes as it is: its keys stay where they are, or who is forgotten in one place could still be read in another."""
        ours, theirs = self.env.sealing, self._target
        if ours is None or theirs is None or not await ours.keys.sealed():
            return
        place = theirs.keys.place if isinstance(theirs, SealedLedger) else "none"
        if place != ours.keys.place:
            raise Misuse(
                "FROM and TO have different key stores", code="MDM-0977", where="TO", expected=ours.keys.place, found=place,
                why="keys that lie in two places are not destroyed in one", fix=f"MANDAMUS_KEYS={ours.keys.place}, for both",
            )  # fmt: skip

    async def _log_at_target(self, log: Head) -> None:
        there = await self._target.head(LOG) if self._target else None
        if there is None or there.state in (ARRIVING, self.back) or (log.state == self.to and not elsewhere(there.state)):
            return
        raise Misuse(
            "the target ledger has a life of its own", code="MDM-0291", where="TO", expected="an empty ledger, or an unfinished copy",
            found=f"its own chain log of {there.seq + 1} events" if not elsewhere(there.state) else f"one that was moved: {there.state}",
            why="one name of a ledger cannot stand for two histories", fix="name a new one",
        )  # fmt: skip

    def _may_go(self, chain: Chain) -> None:
        head = chain.head
        if chain.sealed or head.state == self.to:
            return
        if elsewhere(head.state):
            raise refusal(f"run {head.run}", head.state)
        alive = self.driver(head) if self.source.locks else head.owner if head.lease_until > self.env.time.now() else ""
        if alive:
            raise Conflict(
                f"the run is driven by {alive}", on="run", head=head, code="MDM-0403", where=f"run {head.run}", found=alive,
                why="a run that moves has no driver; nothing was written", fix="end that process, or wait until it gives the run back",
            )  # fmt: skip

    def _may_rest(self, chain: Chain) -> None:
        head = chain.head
        if chain.acting and not chain.sealed and not elsewhere(head.state) and self._proves_too_much:
            raise Conflict(
                "an action of the run is in flight, and nobody knows whether who sent it is dead", on="run", code=ACTING,
                where=f"run {head.run}", why="FROM has leases, which prove no death; TO would take it for proved",
                fix=f"mandamus resume {head.run} on FROM first, until the action has ended or people have settled it",
            )  # fmt: skip

    @property
    def _proves_too_much(self) -> bool:
        """TO takes a claim for the death of the owner before; at FROM it was no such proof."""
        return not self.source.locks and (self._target is None or self._target.locks)

    async def _settled(self) -> None:
        """No intent begins at the source any more. One that came between the look and the mark is seen now."""
        if self._proves_too_much:
            async for head in self.source.runs():
                if head.run != LOG and not elsewhere(head.state):
                    self._may_rest(await survey(self.source, head))

    async def _let_be(self) -> None:
        """What is in flight must be driven to its end where it is: nothing was written to the target, or nothing that is in service."""
        log = await self.source.head(LOG)
        there = await self._target.head(LOG) if self._target else None
        if log is not None and log.state == self.to and (there is None or there.state == ARRIVING):
            await self.source.append(LOG, log, [], wake=Wake(None, log.mail, "open"))

    # -- the source lets go --------------------------------------------------------------------------------------------------------
    async def _mark_log(self) -> None:
        """In one commit with a higher `authority`: an intent of any process that has not heard of it fails on that account."""
        log = await self._log_at_source()
        if log.state == self.to:
            return
        wake = Wake(None, log.mail, self.to)
        if not self.env.log.policies:  # no run was ever judged here: whoever begins one writes to the log first, and hears of it
            await self.source.append(LOG, log, [], wake=wake)
            return
        account = await self.source.account(AUTHORITY)
        before = Balance(AUTHORITY, account.version, account.hash, account.reserved, account.spent) if account else Balance(AUTHORITY)
        after, raw = before.plus(LOG, log.seq + 1)
        at = Position(LOG, log.seq, log.hash, log.epoch)
        sealed, _ = seal([self._said_again()], at, rfc3339(self.env.time.now()), self.env.salts)
        await self.source.append(
            LOG, log, [x.raw for x in sealed], payloads=[p for x in sealed for p in x.payloads], seals=sealed, wake=wake,
            also=[AccountWrite(after.id, after.version, after.hash, after.reserved, after.spent, raw, LOG, log.seq + 1)],
        )  # fmt: skip

    def _said_again(self) -> Draft:
        """A policy that is in force is put in force: nothing changes but the version of `authority`, of which each raise is on the log."""
        agent, policy = sorted(self.env.log.policies.items())[-1]
        fact = r.PolicyChanged(agent=agent, clock=self.env.clock("UTC"), new=policy, old=policy)
        return Draft(fact, 0, (signed(self.env, fact),))

    async def _fence(self, run: str) -> Head:
        """Take the run over where it is: an owner that sleeps loses its next append there. What it was doing is doubted."""
        held = await self.source.claim("default", LEASE_MS, run=run)
        assert held is not None, "it was listed"
        try:
            if held.state == self.to:
                return held
            if elsewhere(held.state):
                raise refusal(f"run {run}", held.state)
            now = await folded(self.source, held)
            if now.life == "sealed":
                return held
            epoch, nonce, worker = now.epoch + 1, ulid(self.env.time), f"copy-{self.to.removeprefix(MOVED)}"
            said = ownership(epoch=epoch, nonce=nonce, origin=now.genesis.origin, prev=now.head, run=run, worker=worker)
            clock = self.env.clock(now.genesis.clock.tz, now.clock.now if now.clock else 0)
            fact = r.RunOwned(clock=clock, nonce=nonce, signature=b64(self.env.signer.sign(said)), worker=worker)
            sealed, _ = seal(owned(now, fact), Position(run, now.seq, now.head, epoch), rfc3339(self.env.time.now()), self.env.salts)
            return await self.source.append(
                run, held, [x.raw for x in sealed], payloads=[p for x in sealed for p in x.payloads],
                wake=Wake(None, held.mail, self.to), seals=sealed,
            )  # fmt: skip
        finally:
            await self.source.renew(held, 0)

    async def _nothing_new(self) -> None:
        """A process that had the source open may still have begun a run there; it can do nothing with it, and it must come along."""
        late = [head.run async for head in self.source.runs() if head.run not in self.known]
        for id in sorted(self.accounts):
            here, there = await self.source.account(id), await self.target.account(id)
            if here is not None and (there is None or there.version < here.version):
                late.append(f"account {id}")
        if late:
            raise Conflict(
                "the source was written to while it was copied", on="run", code="MDM-0407", where="FROM", found=", ".join(late[:3]),
                why="what came late is not at the target, which is not in service yet", fix="the same command again",
            )  # fmt: skip

    # -- the target receives -------------------------------------------------------------------------------------------------------
    async def _bring_log(self, log: Head) -> bool:
        """True: the target's log is in service already, and runs follow that stayed behind."""
        there = await self.target.head(LOG)
        if there is not None and not elsewhere(there.state):
            await self._same_beginning(log, there)
            return True
        await self._bring_records(log)
        await self._read_back(log)
        return False

    async def _bring_run(self, head: Head) -> None:
        there = await self.target.head(head.run)
        if there is not None and not elsewhere(there.state):
            await self._same_beginning(head, there)
            self.done.there.append(head.run)
            return
        now = await self._bring_records(head)
        await self._read_back(head)
        if now.life != "sealed":
            await self._bring_mail(now)
        at, word = wakes(now)
        await self._wake(head.run, Wake(at, now.cursor, word, head.pool, head.prio))
        self.done.runs.append(head.run)

    async def _bring_records(self, head: Head) -> Run:
        """Everything behind what is there. The source's chain is checked on the way, and what is there must be its beginning."""
        there = await self.target.head(head.run)
        if there is not None and there.seq > head.seq:
            raise _another(head.run, f"event {there.seq}, the source ends at {head.seq}")
        if there is not None and there.state != ARRIVING:
            there = await self._wake(head.run, Wake(None, there.mail, ARRIVING))
        have = there.seq if there else -1
        batch, now = _Batch(), EMPTY
        async with closing(with_payloads(stored(self.source), head, have)) as stream:
            async for record, raw, payloads in stream:
                if head.run != LOG:
                    now = evolve(now, record, event_hash(raw))
                if record.seq <= have:
                    if there is not None and record.seq == have and event_hash(raw) != there.hash:
                        raise _another(head.run, f"another event {have}")
                    continue
                if not batch.takes(raw, payloads):
                    there = await batch.write(self.target, head.run, there)
                batch.add(raw, payloads)
                self.done.events += 1
                self.tell(self.done.events)
        if batch.raws:
            await batch.write(self.target, head.run, there)
        return now

    async def _bring_mail(self, now: Run) -> None:
        """Messages that the run has not read. Theirs, and those of everybody who writes later, must lie behind the cursor of its fold."""
        run = now.id
        head = await self._wake(run, Wake(None, now.cursor, ARRIVING))
        if head.mail < now.cursor:
            raise EngineFault(
                "the target ledger numbers its mail from the beginning", code="MDM-0517", where=f"run {run}",
                expected=f"a cursor behind {now.cursor}", found=str(head.mail), why="mail of this run would never be read there",
                fix="name a target of another kind",
            )  # fmt: skip
        async for _, key, message in self.source.mailbox(run, now.cursor):
            if key not in now.keys:
                await self.target.send(run, message)
                self.done.messages += 1

    async def _bring_account(self, id: str) -> None:
        lines = [raw async for raw in self.source.deltas(id)]
        deltas = [_delta(raw) for raw in lines]
        hashes = linked(id, lines, deltas)
        there = [raw async for raw in self.target.deltas(id)]
        if there[: len(lines)] != lines[: len(there)]:
            raise _another(f"account {id}", "other deltas")
        writes = [
            AccountWrite(id, d.version, h, d.reserved, d.spent, raw, d.run, d.seq) for raw, d, h in zip(lines, deltas, hashes, strict=True)
        ][len(there) :]
        for i in range(0, len(writes), MESSAGES_MAX):
            log = await self.target.head(LOG)
            await self.target.append(LOG, log, [], also=writes[i : i + MESSAGES_MAX])
        self.done.deltas += len(writes)
        if writes and [raw async for raw in self.target.deltas(id)] != lines:
            raise _not_the_same(f"account {id}")

    async def _read_back(self, head: Head) -> None:
        """The target's chain, walked and held against the source's, byte by byte; and every payload."""
        there = await self.target.head(head.run)
        if there is None or (there.seq, there.hash, there.epoch) != (head.seq, head.hash, head.epoch):
            raise _not_the_same(f"run {head.run}")
        await survey(self.target, there)
        same = await equal(self.source.read(head.run, upto=head.seq), self.target.read(head.run, upto=head.seq))
        if not same or not await equal(self.source.payloads(head.run), self.target.payloads(head.run)):
            raise _not_the_same(f"run {head.run}")

    async def _same_beginning(self, head: Head, there: Head) -> None:
        """A chain that is in service at the target begins with what the source holds of it."""
        found = [raw async for raw in self.target.read(head.run, head.seq - 1, head.seq)]
        if there.seq < head.seq or not found or event_hash(found[0]) != head.hash:
            raise _another(head.run, f"{there.seq + 1} events that the source does not have")

    async def _release(self) -> None:
        """On the way back: runs that were let go towards the source of today, and never arrived there, can be driven again."""
        async for head in self.target.runs():
            if head.state == self.back and head.run != LOG and await self.source.head(head.run) is None:
                now = await folded(self.target, head)
                at, word = wakes(now)
                await self._wake(head.run, Wake(at, now.cursor, word))

    async def _wake(self, run: str, wake: Wake) -> Head:
        head = await self.target.head(run)
        return await self.target.append(run, head, [], wake=wake)


class _Batch:
    """Records for one append, with the payloads that they commit to."""

    def __init__(self) -> None:
        self.raws: list[bytes] = []
        self.payloads: list[Payload] = []
        self.size = 0

    def takes(self, raw: bytes, payloads: Sequence[Payload]) -> bool:
        many = len(self.raws) + len(self.payloads) + len(payloads) + 1
        return not self.raws or (many <= MESSAGES_MAX and self.size + _size(raw, payloads) <= BYTES_MAX)

    def add(self, raw: bytes, payloads: Sequence[Payload]) -> None:
        self.raws.append(raw)
        self.payloads += payloads
        self.size += _size(raw, payloads)

    async def write(self, target: Ledger, run: str, after: Head | None) -> Head:
        mail = after.mail if after else 0
        head = await target.append(run, after, self.raws, payloads=self.payloads, wake=Wake(None, mail, ARRIVING))
        self.__init__()  # type: ignore[misc]
        return head


def _size(raw: bytes, payloads: Iterable[Payload]) -> int:
    return len(raw) + sum(len(p.bytes) for p in payloads)


def _closed(wanted: Sequence[str], chains: dict[str, Chain]) -> set[str]:
    """With every run that one of these continues, came from, or handed a task to: none can be told without them."""
    out: set[str] = set()
    left = list(wanted)
    while left:
        run = left.pop()
        if run in chains and run not in out:
            out.add(run)
            left += chains[run].relatives
    return out


# -- diagnoses -------------------------------------------------------------------------------------------------------------------
def _another(chain: str, found: str) -> Misuse:
    return Misuse(
        "the target holds another one of this name", code="MDM-0292", where=chain, expected="nothing, or the beginning of the source's",
        found=found, why="two histories of one name cannot both be true; nothing of it was changed", fix="name a new target",
    )  # fmt: skip


def _not_the_same(chain: str) -> ProofError:
    return ProofError(
        "what the target gives back is not what was written to it", code="MDM-0693", where=chain, why="it is not put in service there",
        fix="check the target ledger: mandamus doctor --ledger TO; the source still holds everything",
    )  # fmt: skip
