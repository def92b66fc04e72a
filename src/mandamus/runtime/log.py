"""Chain `log`: the administrative chain of a ledger. Keys, policy changes, stops, allowances and refusals stand here.

It has no owner: append by compare, and try again. Whatever changes authority raises the account `authority` in the same commit, and
every intent checks that account, so nothing starts on an authority that is gone. A record that widens authority and lacks the
administrators' signatures is ignored by the fold and reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mandamus.core import records as r
from mandamus.core.accounts import AUTHORITY, REGISTER, Balance
from mandamus.core.canonical import canon
from mandamus.core.clock import Clock, rfc3339
from mandamus.core.money import minor
from mandamus.core.payload import opened
from mandamus.core.records import LOG, decode, event_hash, genesis_prev
from mandamus.core.seal import Draft, Position, seal
from mandamus.errors import Conflict, Misuse, ProofError
from mandamus.ports import AccountWrite, Head, Ledger, Signer, Time
from mandamus.proof import authority, dsse
from mandamus.proof import ballot as ballots
from mandamus.proof.ballot import Ballot
from mandamus.proof.trust import Trust
from mandamus.runtime.env import salts

TRIES = 8


class Allowance(Struct, frozen=True):
    """A standing vote in force: what it covers and what using it costs."""

    digest: str
    principal: str
    ballot: Ballot

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
        self.head: Head | None = None
        self.opened: r.LogOpened | None = None
        self.authority = 0
        self._standing: list[tuple[int, bytes]] = []
        self._withdrawn: set[str] = set()
        self.policies: dict[str, str] = {}
        self._stops: list[r.StopRequested] = []

    async def open(self, origin: str, keys: Sequence[r.NamedKey], clock: Clock) -> None:
        """Read the chain, or begin it."""
        await self.refresh()
        if self.opened is None:
            fact = r.LogOpened(clock=clock, keys=tuple(keys), nonce=self.time.entropy(16).hex(), origin=origin, quorum=1)
            try:
                await self.append([Draft(fact, 0)])
            except Conflict:
                await self.refresh()
        assert self.opened is not None
        if self.opened.origin != origin:
            raise Misuse(
                f"this ledger belongs to {self.opened.origin}", code="MDM-0240", expected=origin, why="its log was opened with another key",
                fix="use the key file that stood beside this ledger",
            )  # fmt: skip

    async def refresh(self) -> None:
        """Read what is new, checking the chain; then the version of `authority`."""
        account = await self.ledger.account(AUTHORITY)
        after = self.head.seq if self.head else -1
        prev = self.head.hash if self.head else ""
        async for raw in self.ledger.read(LOG, after):
            record = decode(raw)
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

    async def _fold(self, record: r.AnyRecord) -> None:
        match record.fact:
            case r.LogOpened() as fact:
                self.opened = fact
            case r.Voted(scope="standing"):
                payload = await self.ledger.payload(LOG, record.seq, "ballot")
                part = record.body[0] if record.body else None
                if payload is None or part is None:
                    raise ProofError("a standing vote lost its ballot", code="MDM-0611", where=f"log (event {record.seq})")
                self._standing.append((record.seq, canon(opened(payload, part.commit))))
            case r.VoteWithdrawn() as fact:
                self._withdrawn.add(fact.ballot)
            case r.PolicyChanged() as fact:
                self.policies[fact.agent] = fact.new
            case r.StopRequested() as fact:
                self._stops.append(fact)
            case _:
                pass

    def stopped(self, agent: str, tenant: str) -> bool:
        return bool(self._stops) and any(s.agent == agent or s.tenant == tenant for s in self._stops)

    @property
    def standing(self) -> bool:
        """Whether any standing vote was ever recorded: only then is there an allowance to look for."""
        return bool(self._standing)

    def allowances(self, trust: Trust, policy: str, clock: Clock) -> list[Allowance]:
        """In force now: signed by an approver and by the administrators, same policy, not withdrawn, not over."""
        out = []
        for _, envelope in self._standing:
            allowance = self._allowance(envelope, trust)
            if allowance is None or allowance.digest in self._withdrawn or allowance.ballot.policy != policy:
                continue
            standing = allowance.ballot.standing
            if standing is not None and min(standing.until, allowance.ballot.expires) > clock.now:
                out.append(allowance)
        return out

    def _allowance(self, envelope: bytes, trust: Trust) -> Allowance | None:
        """An allowance widens authority: on the same envelope stand an approver's signature and the administrators', m of n."""
        assert self.opened is not None
        admins = authority.admins(self.opened, trust)
        people = {key.public: principal for principal, key in trust.approvers.values()}
        try:
            verified = dsse.check(envelope, ballots.PAYLOAD_TYPE, [*admins, *(key for _, key in trust.approvers.values())])
            ballot = ballots.decode(verified.payload)
        except (ProofError, ValueError):
            return None
        signed = {k.public for k in verified.keys}
        principal = next((people[k] for k in signed if k in people), "")
        if not principal or len(signed & {k.public for k in admins}) < self.opened.quorum:
            return None
        return Allowance(ballots.ballot_digest(ballot), principal, ballot)

    def ignored(self, trust: Trust) -> list[int]:
        """Standing votes on the chain that count for nothing: an incident."""
        return [seq for seq, envelope in self._standing if self._allowance(envelope, trust) is None]

    async def append(self, drafts: Sequence[Draft], *, raises: bool = False, numbered: bool = False) -> Head:
        """Compare and append; read and try again when somebody else was first.

        `raises`: this changes authority. `numbered`: a refused start, which takes a register number in the same commit.
        """
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
