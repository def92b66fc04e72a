"""Every vote that an intent lists: signed by a trusted key of an approver, for exactly this action, in time, by enough different people.

The rule a newcomer would break: a `Voted` record proves nothing by itself. Its ballot is opened from the payload, verified against the
trust file, and compared with the request that it answers; two keys of one person are one voter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, Struct

from mandamus.core.canonical import canon
from mandamus.core.digests import action_digest
from mandamus.core.payload import card_digest
from mandamus.core.records import (
    ActionEnded,
    ActionJudged,
    ActionProposed,
    ActionStarted,
    AnyRecord,
    ApprovalRequested,
    LogOpened,
    RunOpened,
    Voted,
    VoteWithdrawn,
)
from mandamus.proof import authority as authorities
from mandamus.proof import ballot as ballots
from mandamus.proof.authority import Authority
from mandamus.proof.report import Broken, Finding
from mandamus.proof.shown import Line
from mandamus.proof.trust import Trust

STANDING = "standing/"  # accounts of an allowance: standing/<digest of its ballot>/...
OUTCOME = "outcome.unknown"  # the rule by which people are asked what became of an action
STARTS = ("approve", "again")
SETTLES = {"done": "done", "unknown": "abandon"}  # result of an outcome that people gave -> what they voted


class Tally(Struct):
    """What was checked, and what could not be because a payload is not shown."""

    intents: int = 0
    votes: int = 0
    allowances: int = 0
    hidden: list[str] = []


class Votes:
    """Reads a run once, in order; `check()` raises Broken at the first vote that does not hold."""

    def __init__(
        self,
        records: Sequence[AnyRecord],
        log: Sequence[AnyRecord],
        trust: Trust,
        authority: Authority,
        line: Callable[[AnyRecord, str], Line | None],
    ) -> None:
        self.records, self.trust, self.authority, self.line = records, trust, authority, line
        opened = records[0].fact
        assert isinstance(opened, RunOpened)
        begun = log[0].fact if log else None
        self.opening = begun if isinstance(begun, LogOpened) else None
        self.origin, self.run = opened.origin, records[0].run
        self.tally = Tally()
        self.proposed: dict[str, AnyRecord] = {}
        self.judged: dict[str, ActionJudged] = {}
        self.asked: dict[str, dict[str, tuple[int, str]]] = {}  # action -> chain -> (quorum, policy)
        self.served: set[str] = set()
        self.requests: dict[str, AnyRecord] = {}
        self.withdrawn: set[str] = set()
        self.now = 0

    def check(self) -> Tally:
        for record in self.records:
            fact: Any = record.fact
            if isinstance(fact, ActionStarted):
                self._started(record, fact)
            elif isinstance(fact, ActionEnded) and fact.via == "people" and fact.action in self.judged:
                self._settled(record, fact)
            self._note(record, fact)
        return self.tally

    def _note(self, record: AnyRecord, fact: Any) -> None:
        clock = getattr(fact, "clock", None)
        if clock is not None:
            self.now = max(self.now, clock.now)
        if isinstance(fact, ActionProposed):
            self.proposed[fact.action] = record
        elif isinstance(fact, ActionJudged):
            self.judged[fact.action] = fact
            if OUTCOME not in fact.determining:  # those asks are about what happened, not about a start
                self.asked.setdefault(fact.action, {}).update({ask.chain: (ask.quorum, fact.bundle) for ask in fact.asks or ()})
        elif isinstance(fact, ApprovalRequested):
            self._requested(record, fact)
        elif isinstance(fact, VoteWithdrawn):
            self.withdrawn.add(fact.ballot)

    # -- the request -------------------------------------------------------------------------------------------------------
    def _requested(self, record: AnyRecord, fact: ApprovalRequested) -> None:
        """Its digest is the action's, its card the one that is stored, its quorum not less than policy asked for."""
        proposal = self.proposed.get(fact.action)
        if proposal is None:
            raise self._broken(record, "it asks about an action that was never proposed")
        if fact.digest not in self._digests(proposal, fact):
            raise self._broken(record, "its digest is not the action's", expected=self._digests(proposal, fact)[0], found=fact.digest)
        earlier = self.requests.get(fact.request)
        if earlier is not None and not _same_request(earlier.fact, fact):
            raise self._broken(record, "a later tier changes what was asked")
        asked = 1
        if fact.tier == 0 and fact.about == "start":
            asked = max(1, self.asked.get(fact.action, {}).get(fact.chain, (1, ""))[0])
        if fact.quorum < asked:
            raise self._broken(record, "it asks fewer people than policy demanded", expected=str(asked), found=str(fact.quorum))
        self._card(record, fact, proposal)
        self.requests[fact.request] = record

    def _digests(self, proposal: AnyRecord, fact: ApprovalRequested) -> list[str]:
        """With the expiry and without: whichever the writer bound, the ballot names the expiry again."""
        p: Any = proposal.fact
        args = proposal.body[0].commit if proposal.body else ""
        pin = None if p.pin is UNSET else p.pin
        return [
            action_digest(args=args, call=p.call, origin=self.origin, policy=fact.policy, run=self.run, expires=expires, pin=pin)
            for expires in (fact.expires, None)
        ]

    def _card(self, record: AnyRecord, fact: ApprovalRequested, proposal: AnyRecord) -> None:
        card, args = self.line(record, "card"), self.line(proposal, "args")
        if card is None or args is None:
            if not any(part.part == "card" for part in record.body or ()):
                return  # a later tier repeats the request without its card
            self.tally.hidden.append(f"card of event {record.seq}")
            return
        found = card_digest(args.secret, card.value) if type(card.value) is dict else ""
        if found != fact.card:
            raise self._broken(record, "its card is not the one that was shown and signed", expected=fact.card, found=found)

    # -- the votes -----------------------------------------------------------------------------------------------------------
    def _started(self, record: AnyRecord, fact: ActionStarted) -> None:
        votes = []
        for seq in fact.votes:
            voted = self.records[seq] if 0 <= seq < record.seq else None
            if voted is None or not isinstance(voted.fact, Voted):
                raise self._broken(record, f"it lists event {seq} as a vote, which is none before it")
            votes += [voted] if voted.fact.decision in STARTS else []
        self._quorum(record, fact.action, votes)
        accounts = {reserve.account for reserve in fact.reserves if reserve.account.startswith(STANDING)}
        for name in sorted({account.split("/")[1] for account in accounts}):
            self._allowance(record, fact, name)
        self.served |= {fact.action} if accounts else set()
        self._asks_met(record, fact, votes)
        self.tally.intents += bool(fact.votes or accounts)

    def _asks_met(self, record: AnyRecord, fact: ActionStarted, votes: Sequence[AnyRecord]) -> None:
        """Whoever was asked under the policy that allowed it has answered, unless an allowance (of this or an earlier attempt) serves."""
        policy = self._judged(fact).bundle
        asked = {chain for chain, (_, bundle) in self.asked.get(fact.action, {}).items() if bundle == policy}
        answered = {self._request(record, str(voted.fact.request)).chain for voted in votes if isinstance(voted.fact, Voted)}
        missing = sorted(asked - answered)
        if missing and fact.action not in self.served:
            raise self._broken(
                record, "policy asked people, and the intent rests on no vote of theirs", f"chain {missing[0]}", "", "MDM-0654"
            )

    def _settled(self, record: AnyRecord, fact: ActionEnded) -> None:
        """An outcome that people gave rests on their votes about it, under the newest request."""
        said = SETTLES.get(fact.result)
        if said is None:
            return
        request: Any = next((r.fact for r in reversed(self.requests.values()) if _asks_outcome(r.fact, fact.action)), None)
        if request is None:
            raise self._broken(record, "people settled it, but were never asked")
        votes = [r for r in self.records[: record.seq] if _says(r.fact, request.request, said)]
        if not votes:
            raise self._broken(record, "people settled it without a vote", code="MDM-0654")
        self._quorum(record, fact.action, votes)
        self.tally.intents += 1

    def _quorum(self, record: AnyRecord, action: str, votes: Sequence[AnyRecord]) -> None:
        people: dict[str, set[str]] = {}
        for voted in votes:
            self._counted(record, action, voted, people)
        for name, voters in people.items():
            request = self._request(record, name)
            if len(voters) < request.quorum:
                what = "too few different people approved"
                raise self._broken(
                    record, what, expected=f"{request.quorum} of chain {request.chain}", found=str(len(voters)), code="MDM-0654"
                )

    def _counted(self, record: AnyRecord, action: str, voted: AnyRecord, people: dict[str, set[str]]) -> None:
        vote: Any = voted.fact
        if vote.action != action or vote.scope != "once" or vote.request is UNSET:
            raise self._broken(record, f"the vote of event {voted.seq} is for another action", code="MDM-0653")
        request = self._request(voted, vote.request)
        people.setdefault(vote.request, set())
        self._fresh(record, action, voted, vote, request)
        line = self.line(voted, "ballot")
        if line is None:
            self.tally.hidden.append(f"ballot of event {voted.seq}")
            people[vote.request].add(vote.principal)
            return
        principal, ballot = self._signed(voted, vote, line, self.judged[action].authority)
        why = _unlike(ballot, vote, request, self.origin, self.run)
        if why:
            raise self._broken(voted, f"the signed ballot names another {why}", code="MDM-0653")
        people[vote.request].add(principal)
        self.tally.votes += 1

    def _fresh(self, record: AnyRecord, action: str, voted: AnyRecord, vote: Voted, request: ApprovalRequested) -> None:
        judged = self.judged[action]  # the chain's rules: an intent stands behind its judgement
        if judged.bundle != request.policy:
            raise self._broken(
                record, f"the vote of event {voted.seq} was given under another policy", judged.bundle, request.policy, "MDM-0653"
            )
        if max(vote.clock.now, self.now) >= request.expires:
            raise self._broken(record, f"the vote of event {voted.seq} had expired", code="MDM-0655")
        if vote.ballot in self.withdrawn:
            raise self._broken(record, f"the vote of event {voted.seq} was withdrawn", code="MDM-0655")

    def _signed(self, voted: AnyRecord, vote: Voted, line: Line, version: int) -> tuple[str, ballots.Ballot]:
        """The ballot of a vote, by an approver's key that was in force at `version`."""
        envelope = envelope_of(line.value)
        admins = authorities.admins(self.opening, self.trust) if self.opening else []
        quorum = self.opening.quorum if self.opening else 1
        standing = vote.scope == "standing"
        found = ballots.examine_standing(envelope, self.trust, admins, quorum) if standing else ballots.examine(envelope, self.trust)
        if isinstance(found, str):
            raise self._broken(voted, f"its ballot does not count: {found.replace('_', ' ')}", code="MDM-0652", line=line.number)
        principal, ballot, key = found
        if principal != vote.principal:
            raise self._broken(voted, "its ballot was signed by somebody else", vote.principal, principal, "MDM-0652", line.number)
        if ballots.ballot_digest(ballot) != vote.ballot:
            raise self._broken(voted, "its ballot is another one", vote.ballot, ballots.ballot_digest(ballot), "MDM-0652", line.number)
        if self.authority.was_revoked(key, version):
            raise self._broken(voted, "the key that signed its ballot had been revoked", code="MDM-0656", line=line.number)
        return principal, ballot

    def _allowance(self, record: AnyRecord, fact: ActionStarted, name: str) -> None:
        """A standing vote of chain `log`, in force at the version of the judgement, under the same policy."""
        version = self._judged(fact).authority
        granted = self.authority.granted.get(name)
        if granted is None or granted[0] > version or self.authority.withdrawn.get(name, version + 1) <= version:
            raise self._broken(record, "it rests on an allowance that was not in force", code="MDM-0655")
        voted = granted[1]
        vote: Any = voted.fact
        line = self.line(voted, "ballot")
        if line is None:
            self.tally.hidden.append(f"allowance of log event {voted.seq}")
            return
        _, ballot = self._signed(voted, vote, line, version)
        standing = ballot.standing
        if standing is None or ballot.origin != self.origin or self.now >= min(standing.until, ballot.expires):
            raise self._broken(record, "its allowance is over or of another log", code="MDM-0655")
        if ballot.policy != self._judged(fact).bundle or standing.pattern.get("tool") != self._tool(fact):
            raise self._broken(record, "its allowance is for another tool or policy", code="MDM-0653")
        self.tally.votes += 1
        self.tally.allowances += 1

    def _judged(self, fact: ActionStarted) -> ActionJudged:
        return self.judged[fact.action]

    def _tool(self, fact: ActionStarted) -> str:
        proposal: Any = self.proposed[fact.action].fact
        return str(proposal.tool)

    def _request(self, at: AnyRecord, request: str) -> ApprovalRequested:
        record = self.requests.get(request)
        if record is None or not isinstance(record.fact, ApprovalRequested):
            raise self._broken(at, "it answers a request that was never made", code="MDM-0653")
        return record.fact

    def _broken(
        self, at: AnyRecord, what: str, expected: str = "", found: str = "", code: str = "MDM-0653", line: int | None = None
    ) -> Broken:
        chain = "log" if at.run == "log" else "run"
        return Broken(Finding(what, code=code, chain=chain, event=at.seq, type=at.type, line=line, expected=expected, found=found))


def envelope_of(value: Any) -> bytes:
    """A DSSE payload is stored as the object it is, or as its text."""
    return value.encode("utf-8") if type(value) is str else canon(value)


def _says(fact: Any, request: str, decision: str) -> bool:
    return isinstance(fact, Voted) and fact.request == request and fact.decision == decision


def _asks_outcome(fact: Any, action: str) -> bool:
    return bool(fact.action == action and fact.about == "outcome")


def _same_request(earlier: Any, later: ApprovalRequested) -> bool:
    names = ("about", "action", "card", "chain", "digest", "expires", "policy")
    return all(getattr(earlier, name) == getattr(later, name) for name in names) and later.tier > earlier.tier


def _unlike(ballot: ballots.Ballot, vote: Voted, request: ApprovalRequested, origin: str, run: str) -> str:
    """Which field of what was signed is not the one of what was asked; "" when none."""
    pairs = (
        ("origin", ballot.origin, origin), ("run", ballot.run, run),
        ("request", ballot.request, request.request), ("action", ballot.action, request.digest),
        ("card", ballot.card, request.card), ("policy", ballot.policy, request.policy), ("expiry", ballot.expires, request.expires),
        ("decision", ballot.decision, vote.decision), ("scope", ballot.scope, vote.scope), ("subject", request.about, vote.about),
    )  # fmt: skip
    return next((name for name, signed, asked in pairs if signed != asked), "")
