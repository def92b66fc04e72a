"""Every vote of a run: signed by a trusted key of somebody whom the rules ask, for exactly this action, in time; and by enough people.

The rule a newcomer would break: a `Voted` record proves nothing by itself, whether an intent lists it or not: a rejection, a halt and a
modification move a run too. Its ballot is opened from the payload, verified against the trust file, and compared with the request
that it answers; two keys of one person are one voter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from msgspec import UNSET

from mandamus.core.canonical import canon
from mandamus.core.clock import Clock
from mandamus.core.facts import Tier
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
from mandamus.core.rulekinds import Asking
from mandamus.proof import authority as authorities
from mandamus.proof import ballot as ballots
from mandamus.proof.authority import Authority
from mandamus.proof.chains import Chains, holds, may_decide, may_vote
from mandamus.proof.lending import Lending, Opened, Tally
from mandamus.proof.report import Broken, Finding
from mandamus.proof.requested import Requests
from mandamus.proof.shown import Line
from mandamus.proof.trust import Trust

OUTCOME = "outcome.unknown"  # the rule by which people are asked what became of an action
ART_22 = "ask.art22"  # the rule by which a deed waits for the oversight chain whatever policy says
SETTLES = {"done": "done", "unknown": "abandon"}  # result of an outcome that people gave -> what they voted
Totals = Mapping[tuple[int, str], int]  # (seq, account) -> reserved + spent after it


# Of no action and without a clock: most records of a long run.
_SILENT = frozenset({"ContextCompiled", "GuardrailChecked", "CapabilityChecked", "ModelCalled", "ModelReplied", "ModelFailed"})


class Votes:
    """Reads a run once, in order; `check()` raises Broken at the first vote that does not hold."""

    def __init__(
        self,
        records: Sequence[AnyRecord],
        log: Sequence[AnyRecord],
        trust: Trust,
        authority: Authority,
        line: Callable[[AnyRecord, str], Line | None],
        chains: Chains,
        totals: Totals,
    ) -> None:
        self.records, self.trust, self.authority, self.line = records, trust, authority, line
        self.chains, self.totals = chains, totals
        opened = records[0].fact
        assert isinstance(opened, RunOpened)
        begun = log[0].fact if log else None
        self.opening = begun if isinstance(begun, LogOpened) else None
        self.origin, self.run, self.clock = opened.origin, records[0].run, opened.clock
        self.requester = "" if opened.user is UNSET else opened.user.principal
        self.tenant = opened.tenant
        self.forked = opened.parent is not UNSET and opened.parent.kind == "fork"
        self.tally = Tally()
        self.lending, self.requests = Lending(self), Requests(self)
        self.proposed: dict[str, AnyRecord] = {}
        self.judged: dict[str, ActionJudged] = {}
        self.judged_at: dict[str, AnyRecord] = {}
        self.guarded: set[str] = set()  # actions that wait for a person each time, by the law
        self.asked: dict[str, dict[str, tuple[int, str]]] = {}  # action -> chain -> (quorum, policy)
        self.opened: dict[int, Opened] = {}  # seq of a vote -> its ballot
        self.modified: dict[str, AnyRecord] = {}
        self.rejections: dict[str, list[AnyRecord]] = {}
        self.authors: dict[str, str] = {}  # action -> who wrote its arguments anew
        self.unknown: dict[str, int] = {}
        self.withdrawn: set[str] = set()
        self.now = 0

    def check(self) -> Tally:
        for record in self.records:
            if record.type in _SILENT:
                continue
            fact: Any = record.fact
            if isinstance(fact, ActionStarted):
                self._started(record, fact)
            elif isinstance(fact, ActionEnded) and fact.via == "people" and fact.action in self.judged:
                self._settled(record, fact)
            self._note(record, fact)
            if isinstance(fact, Voted):
                self._cast(record, fact)
        return self.tally

    def _note(self, record: AnyRecord, fact: Any) -> None:
        clock = getattr(fact, "clock", None)
        if isinstance(clock, Clock):
            self.clock, self.now = clock, max(self.now, clock.now)
        if isinstance(fact, ActionProposed):
            self._proposed(record, fact)
        elif isinstance(fact, ActionEnded) and fact.result == "unknown" and fact.via != "people":
            self.unknown[fact.action] = record.seq
        elif isinstance(fact, ActionEnded):
            self.lending.freed(fact.action)
        elif isinstance(fact, ActionJudged):
            self.judged[fact.action], self.judged_at[fact.action] = fact, record
            if ART_22 in fact.determining:
                self.guarded.add(fact.action)
            if OUTCOME not in fact.determining:  # those asks are about what happened, not about a start
                self.asked.setdefault(fact.action, {}).update(
                    {ask.chain: (ask.quorum, fact.bundle) for ask in fact.asks or () if ask.to == "people"}  # the log: proof/levels.py
                )
        elif isinstance(fact, ApprovalRequested):
            self.requests.made(record, fact)
        elif isinstance(fact, VoteWithdrawn):
            self.withdrawn.add(fact.ballot)

    # -- each vote, whatever became of it ------------------------------------------------------------------------------------
    def _cast(self, record: AnyRecord, fact: Voted) -> None:
        """Somebody whom the chain asks has signed exactly this, in time."""
        request = self.requests.of(record, str(fact.request))
        if fact.action != request.action or fact.scope != "once":
            raise self.broken(record, "it is for another action than its request")
        if fact.clock.now >= request.expires:
            raise self.broken(record, "its request had expired", code="MDM-0655")
        self._allowed_to(record, fact, request)
        self.requests.card(record, request.action, request.card)
        line = self.line(record, "ballot")
        if line is None:
            self.tally.hidden.append(f"ballot of event {record.seq}")
        else:
            judged = self.judged.get(request.action)
            opened = self.signed(record, fact, line, judged.authority if judged else 0)
            if why := _unlike(opened.ballot, fact, request, self.origin, self.run):
                raise self.broken(record, f"the signed ballot names another {why}", code="MDM-0653")
            self.opened[record.seq] = opened
            self.tally.votes += 1
        if fact.decision == "reject":
            self.rejections.setdefault(request.request, []).append(record)
        if fact.decision == "modify":
            self.modified[request.action] = record

    def _allowed_to(self, record: AnyRecord, fact: Voted, request: ApprovalRequested) -> None:
        tier = self.requests.tier(request)
        if tier is None:
            return  # said already: the rules of the chain are not shown
        if not may_vote(tier, fact.principal, self.trust):
            raise self.broken(record, "it was cast by somebody whom the chain does not ask", ", ".join(tier.of), fact.principal, "MDM-0652")
        if fact.veto and not holds(tier.veto, fact.principal, self.trust):
            raise self.broken(record, "it is called a veto of somebody who has none", ", ".join(tier.veto), fact.principal, "MDM-0652")
        if self.own(tier, request.action, fact.principal):
            raise self.broken(record, "it was cast by the person whose own request it is", "another person", fact.principal, "MDM-0652")

    def own(self, tier: Tier, action: str, principal: str) -> bool:
        """Whoever asked for it or wrote its arguments anew does not approve it."""
        names = {"requester": self.requester, "author": self.authors.get(action, "")}
        return any(names[duty] == principal for duty in tier.sod)

    def _proposed(self, record: AnyRecord, fact: ActionProposed) -> None:
        """What people write is what one of them signed: the commitment of the new arguments stands in the ballot."""
        self.proposed[fact.action] = record
        if fact.by != "person":
            return
        voted = self.modified.pop(str(fact.replaces), None)
        if voted is None:
            raise self.broken(record, "people wrote it, but nobody voted for it")
        vote: Any = voted.fact
        self.authors[fact.action] = vote.principal
        opened = self.opened.get(voted.seq)
        found = record.body[0].commit if record.body else ""
        if opened is not None and opened.ballot.args != found:
            raise self.broken(record, "its arguments are not those that were signed", str(opened.ballot.args), found)

    # -- what rests on votes -------------------------------------------------------------------------------------------------
    def _started(self, record: AnyRecord, fact: ActionStarted) -> None:
        votes = []
        for seq in fact.votes:
            voted = self.records[seq] if 0 <= seq < record.seq else None
            if voted is None or not isinstance(voted.fact, Voted):
                raise self.broken(record, f"it lists event {seq} as a vote, which is none before it")
            votes += [voted] if voted.fact.decision == "approve" else []
        lent = self.lending.under(record, fact)
        rules = self.lending.asking(record, fact.action)
        answered = self._quorum(record, fact.action, votes, lent, rules)
        for chain in sorted(lent.keys() - answered):
            asked = self.asked.get(fact.action, {}).get(chain, (0, ""))[0]
            self.lending.enough(record, fact.action, chain, lent[chain], asked, rules.get(chain, ()))
        self._asks_met(record, fact, answered | lent.keys(), rules.keys())
        self._again(record, fact.action)
        self.tally.intents += bool(fact.votes or lent)

    def _asks_met(self, record: AnyRecord, fact: ActionStarted, answered: Set[str], rules: Set[str]) -> None:
        """Whoever was asked, or had to be by the rules, has answered or lent a standing vote (of this or an earlier attempt)."""
        policy = self.judged[fact.action].bundle
        asked = {chain for chain, (_, bundle) in self.asked.get(fact.action, {}).items() if bundle == policy}
        if self.forked and rules - asked - answered:  # told again: whoever answered, answered the run that it was forked from
            self.tally.hidden.append("votes of the run that it was forked from")
            rules = asked
        for chain in () if fact.action in self.lending.unseen else sorted((asked | rules) - answered):
            if self.lending.lapsed(fact.action, chain):
                raise self.broken(record, "it rests on an allowance that was not in force", code="MDM-0655")
            raise self.broken(record, "policy asked people, and the intent rests on no vote of theirs", f"chain {chain}", "", "MDM-0654")

    def _again(self, record: AnyRecord, action: str) -> None:
        """What nobody knew the outcome of is tried again only when enough people said so, after that became known."""
        since = self.unknown.pop(action, None)
        if since is None:
            return
        asked: list[Any] = [r.fact for r in self.requests.known.values() if r.seq > since and _asks_outcome(r.fact, action)]
        for request in asked:
            voters = {r.fact.principal for r in self.records[since : record.seq] if _says(r.fact, request.request, "again")}  # type: ignore[attr-defined]
            tier = self.requests.tier(request)
            if len({v for v in voters if tier is None or may_decide(tier, v, self.trust)}) >= request.quorum:
                return
        raise self.broken(record, "nobody knew its outcome, and people did not say to try again", code="MDM-0654")

    def _settled(self, record: AnyRecord, fact: ActionEnded) -> None:
        """An outcome that people gave rests on their votes about it, under the newest request."""
        said = SETTLES.get(fact.result)
        if said is None:
            return
        request: Any = next((r.fact for r in reversed(self.requests.known.values()) if _asks_outcome(r.fact, fact.action)), None)
        if request is None:
            raise self.broken(record, "people settled it, but were never asked")
        votes = [r for r in self.records[: record.seq] if _says(r.fact, request.request, said)]
        if not votes:
            raise self.broken(record, "people settled it without a vote", code="MDM-0654")
        self._quorum(record, fact.action, votes, {}, {})
        self.tally.intents += 1

    def _quorum(
        self,
        record: AnyRecord,
        action: str,
        votes: Sequence[AnyRecord],
        lent: Mapping[str, set[str]],
        rules: Mapping[str, Sequence[Asking]],
    ) -> set[str]:
        """Enough people answered each request, with those (`lent`) whose standing votes count in its chain. Chains asked about a start."""
        people: dict[str, set[str]] = {}
        answered: set[str] = set()
        for voted in votes:
            self._counted(record, action, voted, people)
        for name, voters in people.items():
            request, needed = self.requests.of(record, name), self.requests.needs[name]
            self._unopposed(record, request)
            answered |= {request.chain} if request.about == "start" else set()
            if request.tier == 0 and request.about == "start":
                together = voters | lent.get(request.chain, set())
                self.lending.enough(record, action, request.chain, together, needed, rules.get(request.chain, ()))
            elif len(voters) < needed:
                what, wanted = "too few different people approved", f"{needed} of chain {request.chain}"
                raise self.broken(record, what, expected=wanted, found=str(len(voters)), code="MDM-0654")
        return answered

    def _unopposed(self, record: AnyRecord, request: ApprovalRequested) -> None:
        """One rejection by somebody whom the tier asks decides, whoever approved."""
        tier = self.requests.tier(request)
        for other in self.rejections.get(request.request, ()):
            vote: Any = other.fact
            if tier is None or may_vote(tier, vote.principal, self.trust):
                raise self.broken(record, f"it had been rejected at event {other.seq}", code="MDM-0654")

    def _counted(self, record: AnyRecord, action: str, voted: AnyRecord, people: dict[str, set[str]]) -> None:
        vote: Any = voted.fact
        if vote.action != action or vote.scope != "once" or vote.request is UNSET:
            raise self.broken(record, f"the vote of event {voted.seq} is for another action", code="MDM-0653")
        request = self.requests.of(voted, vote.request)
        people.setdefault(vote.request, set())
        self._fresh(record, action, voted, vote, request)
        opened = self.opened.get(voted.seq)
        if opened is not None and self.authority.was_revoked(opened.key, self.judged[action].authority):
            raise self.broken(voted, "the key that signed its ballot had been revoked", code="MDM-0656")
        tier = self.requests.tier(request)
        if tier is None or may_decide(tier, vote.principal, self.trust):
            people[vote.request].add(vote.principal)

    def _fresh(self, record: AnyRecord, action: str, voted: AnyRecord, vote: Voted, request: ApprovalRequested) -> None:
        judged = self.judged[action]  # the chain's rules: an intent stands behind its judgement
        if judged.bundle != request.policy:
            raise self.broken(
                record, f"the vote of event {voted.seq} was given under another policy", judged.bundle, request.policy, "MDM-0653"
            )
        if max(vote.clock.now, self.now) >= request.expires:
            raise self.broken(record, f"the vote of event {voted.seq} had expired", code="MDM-0655")
        if vote.ballot in self.withdrawn:
            raise self.broken(record, f"the vote of event {voted.seq} was withdrawn", code="MDM-0655")

    def signed(self, voted: AnyRecord, vote: Voted, line: Line, version: int) -> Opened:
        """The ballot of a vote, by an approver's key that was in force at `version`."""
        envelope = envelope_of(line.value)
        changes = self.authority.before(version + 1)
        admins = authorities.admins(self.opening, self.trust, changes) if self.opening else []
        quorum = self.opening.quorum if self.opening else 1
        standing = vote.scope == "standing"
        found = ballots.examine_standing(envelope, self.trust, admins, quorum) if standing else ballots.examine(envelope, self.trust)
        if isinstance(found, str):
            raise self.broken(voted, f"its ballot does not count: {found.replace('_', ' ')}", code="MDM-0652", line=line.number)
        principal, ballot, key = found
        if principal != vote.principal:
            raise self.broken(voted, "its ballot was signed by somebody else", vote.principal, principal, "MDM-0652", line.number)
        if ballots.ballot_digest(ballot) != vote.ballot:
            raise self.broken(voted, "its ballot is another one", vote.ballot, ballots.ballot_digest(ballot), "MDM-0652", line.number)
        if self.authority.was_revoked(key, version):
            raise self.broken(voted, "the key that signed its ballot had been revoked", code="MDM-0656", line=line.number)
        return Opened(principal, ballot, key)

    def broken(
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


def _unlike(ballot: ballots.Ballot, vote: Voted, request: ApprovalRequested, origin: str, run: str) -> str:
    """Which field of what was signed is not the one of what was asked; "" when none."""
    pairs = (
        ("origin", ballot.origin, origin), ("run", ballot.run, run),
        ("request", ballot.request, request.request), ("action", ballot.action, request.digest),
        ("card", ballot.card, request.card), ("policy", ballot.policy, request.policy), ("expiry", ballot.expires, request.expires),
        ("decision", ballot.decision, vote.decision), ("scope", ballot.scope, vote.scope), ("subject", request.about, vote.about),
    )  # fmt: skip
    return next((name for name, signed, asked in pairs if signed != asked), "")
