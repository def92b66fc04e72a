"""Chain `log`: the administrative chain of a ledger. Keys, policy changes, stops, allowances and refusals stand here.

It has no owner: append by compare, and try again. Whatever changes authority raises the account `authority` in the same commit, and
every intent checks that account, so nothing starts on an authority that is gone. A record that widens authority and lacks the
administrators' signatures is ignored by the fold and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec
from msgspec import UNSET, Struct

from mandamus.core import records as r
from mandamus.core.accounts import AUTHORITY, REGISTER, Balance
from mandamus.core.canonical import accept, canon
from mandamus.core.clock import Clock, rfc3339
from mandamus.core.money import minor
from mandamus.core.payload import opened
from mandamus.core.records import LOG, decode, event_hash, genesis_prev
from mandamus.core.seal import Content, Draft, Position, seal
from mandamus.errors import Conflict, Misuse, ProofError
from mandamus.ports import AccountWrite, Head, Ledger, Signer, Time
from mandamus.proof import authority
from mandamus.proof import ballot as ballots
from mandamus.proof import mail as post
from mandamus.proof.ballot import Ballot
from mandamus.proof.keys import VKey
from mandamus.proof.trust import Trust
from mandamus.runtime.away import elsewhere, refusal
from mandamus.runtime.env import salts

TRIES = 8
TAKEN_BACK = "MDM-0695"


class Allowance(Struct, frozen=True):
    """A standing vote in force: whose, in which chain, what it covers and what using it costs."""

    digest: str
    principal: str
    ballot: Ballot

    @property
    def chain(self) -> str:
        standing = self.ballot.standing
        return "" if standing is None else standing.chain

    def charge(self, tool: str, args: dict[str, Any], money: Any, run: str, date: str) -> list[tuple[str, int, int]] | None:
        """[(account, amount, limit)] when it covers this call, else None. `money` is the AmountFacts of the call."""
        standing = self.ballot.standing
        if standing is None or standing.pattern.get("tool") != tool:
            return None
        wanted = standing.pattern.get("args", {})
        if any(args.get(k) != v for k, v in wanted.items()):
            return None
        window = {"day": date, "run": run, "until": "all"}[standing.window]
        out = [(f"standing/{self.digest}/count/{window}", 1, standing.count)]
        if standing.amount is not UNSET:
            limit = standing.amount
            if money is None or money.currency != limit.currency:
                return None
            out.append((f"standing/{self.digest}/amount/{window}", money.minor, minor(limit)))
        elif money is not None:
            return None  # an allowance for money names an amount
        return out


class LogBook:
    """The fold of chain `log`, kept fresh by `refresh`; `authority` is the version that intents check."""

    def __init__(self, ledger: Ledger, time: Time, signer: Signer) -> None:
        self.ledger, self.time, self.signer = ledger, time, signer
        self.authority = 0
        self._believed: tuple[Trust | None, int, Trust] = (None, 0, Trust())
        self.away = ""  # the word of the row, when this ledger was moved to another or is only arriving
        self._forget()

    def _forget(self) -> None:
        self.head: Head | None = None
        self.opened: r.LogOpened | None = None
        self._standing: list[tuple[int, bytes]] = []
        self._withdrawn: set[str] = set()
        self.policies: dict[str, str] = {}
        self._stops: list[tuple[int, r.StopRequested, bytes]] = []
        self.changes: list[r.KeyChanged] = []
        self._nonces: set[str] = set()
        self._unsigned: list[int] = []

    async def open(self, origin: str, keys: Callable[[], Sequence[r.NamedKey]], clock: Clock, quorum: int = 1) -> None:
        """Read the chain, or begin it: only then are the keys asked for, and read from their files. `quorum`: of administrators."""
        await self.refresh()
        if self.opened is None:
            fact = r.LogOpened(clock=clock, keys=tuple(keys()), nonce=self.time.entropy(16).hex(), origin=origin, quorum=quorum)
            try:
                await self.append([Draft(fact, 0)])
            except Conflict:
                await self.refresh()
        assert self.opened is not None
        if self.opened.origin != origin:
            raise Misuse(
                f"this ledger belongs to {self.opened.origin}", code="MDM-0240", expected=origin, why="its log was opened with another key",
                fix="put the log.pem of this ledger into the folder keys, or name another ledger",
            )  # fmt: skip

    async def refresh(self) -> None:
        """Read what is new, checking the chain; then the version of `authority`."""
        account = await self.ledger.account(AUTHORITY)
        stands = await self.ledger.head(LOG)
        self.away = stands.state if stands is not None and elsewhere(stands.state) else ""
        after = self.head.seq if self.head else -1
        prev = self.head.hash if self.head else ""
        if self.head is not None and (stands is None or stands.seq < after or (stands.seq == after and stands.hash != prev)):
            self._taken_back(stands.seq if stands else -1)
        async for raw in self.ledger.read(LOG, after):
            record = decode(raw)
            if self.head is not None and record.seq == after + 1 and record.prev != prev:
                self._taken_back(after)
            expected = prev or genesis_prev(LOG, record.fact) if isinstance(record.fact, r.LogOpened) else prev
            if record.prev != expected:
                raise ProofError(
                    "chain log is broken",
                    code="MDM-0641",
                    where=f"log (event {record.seq})",
                    expected=expected[:12],
                    found=record.prev[:12],
                )
            prev = event_hash(raw)
            await self._fold(record)
            self.head = Head(LOG, record.seq, prev, record.epoch)
        self.authority = account.version if account else 0

    def _taken_back(self, stands: int) -> NoReturn:
        """What was read here is gone: a server failed over without its last writes, or somebody put an old copy in its place.

        This object begins anew, so that whoever asks next judges by what stands now; nothing that was begun on the old state goes on.
        """
        assert self.head is not None
        read = self.head.seq
        self._forget()
        raise ProofError(
            "chain log is not what this process has read", code=TAKEN_BACK, where="log", expected=f"event {read} as it was read",
            found=f"event {stands}, another history", why="a server lost its last writes, or an old copy was put in its place",
            fix="mandamus doctor; if the server failed over: mandamus resume RUN",
        )  # fmt: skip

    def refuse_elsewhere(self) -> None:
        """Raises Conflict when nothing may be driven here any more, or yet. As of the last `refresh`."""
        if self.away:
            raise refusal("this ledger", self.away)

    async def _fold(self, record: r.AnyRecord) -> None:
        match record.fact:
            case r.LogOpened() as fact:
                self.opened = fact
            case r.Voted(scope="standing"):
                self._standing.append((record.seq, await self._signed(record, "ballot")))
            case r.VoteWithdrawn() as fact:
                self._withdrawn.add(fact.ballot)
            case r.PolicyChanged() as fact:
                if await self._agreed(record):
                    self.policies[fact.agent] = fact.new
            case r.KeyChanged() as fact:
                if fact.new is UNSET or await self._agreed(record):
                    self.changes.append(fact)
            case r.StopRequested() as fact:
                self._stops.append((record.seq, fact, await self._signed(record, "statement") if record.body else b""))
            case _:
                pass

    async def _agreed(self, record: r.AnyRecord) -> bool:
        """Whether the administrators whom the log names have signed this widening, for the first time. One that they have not is passed
        over (see `ignored`): whoever can write the ledger can write it."""
        assert self.opened is not None
        envelope = await self._signed(record, "statement") if record.body else b""
        keys = authority.administrators(self.opened, self.changes)
        if not authority.check_statement(envelope, record.fact, self.opened, keys, self._nonces):
            return True
        self._unsigned.append(record.seq)
        return False

    async def _signed(self, record: r.AnyRecord, part: str) -> bytes:
        payload = await self.ledger.payload(LOG, record.seq, part)
        body = record.body[0] if record.body else None
        if payload is None or body is None:
            raise ProofError(f"a {record.type} lost its {part}", code="MDM-0611", where=f"log (event {record.seq})")
        return canon(opened(payload, body.commit))

    def stopped(self, agent: str, tenant: str, trust: Callable[[], Trust]) -> bool:
        """Whether somebody who may has stopped this agent or this tenant. A stop that nobody signed stops nothing (see `ignored`)."""
        return bool(self._stops) and any(
            authority.covers(fact, agent, tenant) and not self._why_not(fact, envelope, trust()) for _, fact, envelope in self._stops
        )

    def _why_not(self, fact: r.StopRequested, envelope: bytes, trust: Trust) -> str:
        assert self.opened is not None
        return authority.why_no_stop(envelope or None, fact, self.opened, trust, self.admins(trust))

    def admins(self, trust: Trust) -> list[VKey]:
        """The administrators of now."""
        assert self.opened is not None
        return authority.admins(self.opened, trust, self.changes)

    def believed(self, trust: Trust) -> Trust:
        """The trust file without the people's keys that this chain has retired."""
        if not self.changes:
            return trust
        if self._believed[0] is not trust or self._believed[1] != len(self.changes):
            self._believed = trust, len(self.changes), authority.believed(trust, self.changes)
        return self._believed[2]

    async def stop(self, message: post.Stop, clock: Clock, trust: Trust) -> Head:
        """Put a signed stop of an agent or a tenant on the chain. Raises ProofError for one that would count for nothing."""
        assert self.opened is not None
        found = post.check_log_stop(message.envelope.encode(), trust, self.admins(trust))
        if isinstance(found, str) or found[1].origin != self.opened.origin:
            why = "wrong log" if not isinstance(found, str) else found.replace("_", " ")
            raise ProofError(f"this stop does not count: {why}", code="MDM-0651", fix="have an approver or an administrator sign it")
        principal, said = found
        fact = r.StopRequested(agent=said.agent, clock=clock, mode=said.mode, principal=principal, tenant=said.tenant)
        return await self.append([Draft(fact, 0, (Content("statement", accept(message.envelope.encode())),))], raises=True)

    @property
    def standing(self) -> bool:
        """Whether any standing vote was ever recorded: only then is there an allowance to look for."""
        return bool(self._standing)

    def allowances(self, trust: Trust, policy: str, clock: Clock) -> list[Allowance]:
        """In force now: signed by an approver and by the administrators, same policy, not withdrawn, not over."""
        out = []
        seen = set(self._withdrawn)  # equal words of two people are one allowance: it has one account
        for _, envelope in self._standing:
            allowance = self._allowance(envelope, trust)
            if allowance is None or allowance.digest in seen or allowance.ballot.policy != policy:
                continue
            seen.add(allowance.digest)
            standing = allowance.ballot.standing
            if standing is not None and min(standing.until, allowance.ballot.expires) > clock.now:
                out.append(allowance)
        return out

    def _allowance(self, envelope: bytes, trust: Trust) -> Allowance | None:
        """An allowance widens authority: on the same envelope stand an approver's signature and the administrators', m of n."""
        assert self.opened is not None
        found = ballots.examine_standing(envelope, trust, self.admins(trust), self.opened.quorum)
        if isinstance(found, str) or found[1].origin != self.opened.origin:
            return None
        return Allowance(ballots.ballot_digest(found[1]), found[0], found[1])

    def ignored(self, trust: Trust) -> list[int]:
        """Changes, standing votes and stops on the chain that count for nothing: an incident."""
        votes = [seq for seq, envelope in self._standing if self._allowance(envelope, trust) is None]
        return self._unsigned + votes + [seq for seq, fact, envelope in self._stops if self._why_not(fact, envelope, trust)]

    async def append(self, drafts: Sequence[Draft], *, raises: bool = False, numbered: bool = False) -> Head:
        """Compare and append; read and try again when somebody else was first.

        `raises`: this changes authority. `numbered`: a refused start, which takes a register number in the same commit.
        """
        self.refuse_elsewhere()
        for _ in range(TRIES):
            at = self._position(drafts[0])
            register = await self._balance(REGISTER) if numbered else Balance(REGISTER)
            if numbered:
                drafts = [_numbered(drafts[0], register), *drafts[1:]]
            sealed, _ = seal(drafts, at, rfc3339(self.time.now()), salts(self.time))
            also: list[Any] = []
            if raises:
                also.append(_counted(await self._balance(AUTHORITY), sealed[-1].record.seq))
            if numbered:
                also.append(_counted(register, sealed[0].record.seq))
            try:
                head = await self.ledger.append(
                    LOG, self.head, [x.raw for x in sealed], payloads=[p for x in sealed for p in x.payloads], also=also
                )
            except Conflict:
                await self.refresh()
                self.refuse_elsewhere()
                continue
            await self.refresh()
            return head
        raise Conflict("chain log is busy", on="run", fix="try again")

    async def _balance(self, id: str) -> Balance:
        account = await self.ledger.account(id)
        return Balance(id) if account is None else Balance(id, account.version, account.hash, account.reserved, account.spent)

    def _position(self, first: Draft) -> Position:
        if self.head is None:
            assert isinstance(first.fact, r.LogOpened)
            return Position(LOG, -1, genesis_prev(LOG, first.fact), 1)
        return Position(LOG, self.head.seq, self.head.hash, self.head.epoch)


def _numbered(draft: Draft, register: Balance) -> Draft:
    fact = msgspec.structs.replace(draft.fact, register=r.Register(number=register.version + 1, prev=register.hash))
    return msgspec.structs.replace(draft, fact=fact)


def _counted(before: Balance, seq: int) -> AccountWrite:
    """An account that only counts: its next version, caused by event `seq` of chain `log`."""
    after, raw = before.plus(LOG, seq)
    return AccountWrite(after.id, after.version, after.hash, 0, 0, raw, LOG, seq)
