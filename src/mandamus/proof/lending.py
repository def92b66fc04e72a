"""Standing votes under an intent: in force, for this call, charged as they say, each one vote of its approver in its own chain.

The rule a newcomer would break: an allowance is not a quorum. How many people a chain needs is said by the rules that ask it about this
call; only where every one of those says `standing: enough` does one allowance stand for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from mandamus.core.clock import Clock
from mandamus.core.facts import Tier
from mandamus.core.money import minor
from mandamus.core.records import ActionJudged, ActionStarted, AnyRecord, Reserve, Voted
from mandamus.core.rulekinds import Asking
from mandamus.proof import allowance
from mandamus.proof import ballot as ballots
from mandamus.proof.authority import Authority
from mandamus.proof.chains import Chains, may_decide
from mandamus.proof.keys import VKey
from mandamus.proof.report import Broken, some
from mandamus.proof.shown import Line
from mandamus.proof.trust import Trust

PREFIX = allowance.ACCOUNTS


class Served(Struct, frozen=True):
    """An allowance that an action is charged to."""

    chain: str
    principal: str
    until: int


class Tally(Struct):
    """What was checked, and what could not be because a payload is not shown.

    `allowances`: standing votes among `votes`; `alone`: intents for which the rules call one of them enough.
    """

    intents: int = 0
    votes: int = 0
    allowances: int = 0
    alone: int = 0
    hidden: list[str] = []

    @property
    def words(self) -> str:
        """Exactly what held."""
        if not self.votes:
            return "no intent of this run rests on a vote"
        said = f"{some(self.votes, 'signed vote')} for {some(self.intents, 'intent')}: distinct approvers, this action, in time"
        said += ", quorum reached" if self.alone < self.intents else ""
        if self.allowances:
            said += f"; {self.allowances} of them standing votes, each one vote of its approver in its chain"
        if self.alone:
            rests = some(self.alone, "intent rests", "intents rest")
            said += f"; {rests} on an allowance alone, which the rules call enough: no quorum was asked for"
        return said


class Opened(Struct, frozen=True):
    """A ballot that was verified, and who signed it with which key."""

    principal: str
    ballot: ballots.Ballot
    key: VKey


class Reading(Protocol):
    """The run as far as it was read, and what is believed about it (`Votes`)."""

    authority: Authority
    chains: Chains
    clock: Clock
    guarded: set[str]
    judged: dict[str, ActionJudged]
    judged_at: dict[str, AnyRecord]
    line: Callable[[AnyRecord, str], Line | None]
    now: int
    origin: str
    proposed: dict[str, AnyRecord]
    run: str
    tally: Tally
    tenant: str
    totals: Mapping[tuple[int, str], int]
    trust: Trust

    def own(self, tier: Tier, action: str, principal: str) -> bool: ...

    def signed(self, voted: AnyRecord, vote: Voted, line: Line, version: int) -> Opened: ...

    def broken(self, at: AnyRecord, what: str, expected: str = "", found: str = "", code: str = "MDM-0653") -> Broken: ...


class Lending:
    """What `Votes` asks about standing votes. `served`: action → name of an allowance → whose vote it is, in which chain."""

    def __init__(self, votes: Reading) -> None:
        self.votes = votes
        self.served: dict[str, dict[str, Served]] = {}
        self.unseen: set[str] = set()  # actions charged to an allowance that is not shown

    def under(self, record: AnyRecord, fact: ActionStarted) -> dict[str, set[str]]:
        """chain → people whose standing votes count for this intent. Raises Broken for one that may not serve it."""
        reserves = [reserve for reserve in fact.reserves if reserve.account.startswith(PREFIX)]
        names = sorted({reserve.account.split("/")[1] for reserve in reserves})
        if names:
            self.served[fact.action] = {}
        for name in names:
            served = self._allowance(record, fact, name, [x for x in reserves if x.account.split("/")[1] == name])
            if served is None:
                self.unseen.add(fact.action)
            else:
                self.served[fact.action][name] = served
        out: dict[str, set[str]] = {}
        for name, served in self.served.get(fact.action, {}).items():
            if not self.over(name, served, fact.action):
                out.setdefault(served.chain, set()).add(served.principal)
        return out

    def freed(self, action: str) -> None:
        """Its reservations were given back or spent: a later attempt rests on what that one reserves."""
        self.served.pop(action, None)

    def over(self, name: str, served: Served, action: str) -> bool:
        """Whether an allowance of an earlier attempt has ended since."""
        version, authority = self.votes.judged[action].authority, self.votes.authority
        return authority.withdrawn.get(name, version + 1) <= version or self.votes.now >= served.until

    def lapsed(self, action: str, chain: str) -> bool:
        return any(x.chain == chain and self.over(name, x, action) for name, x in self.served.get(action, {}).items())

    def in_chain(self, chain: str, version: int) -> set[str]:
        """Whoever had a standing vote in this chain at this version of the authority. What is not shown is said to be hidden."""
        v, out = self.votes, set()
        for name, (since, voted) in v.authority.granted.items():
            if since > version or v.authority.withdrawn.get(name, version + 1) <= version:
                continue
            line = v.line(voted, "ballot")
            if line is None:
                v.tally.hidden.append(f"allowance of log event {voted.seq}")
                continue
            try:
                opened = v.signed(voted, voted.fact, line, version)  # type: ignore[arg-type]
            except Broken:  # such as of a key that was revoked: it lends nothing
                continue
            if opened.ballot.standing is not None and opened.ballot.standing.chain == chain:
                out.add(opened.principal)
        return out

    # -- how many are enough ---------------------------------------------------------------------------------------------------
    def asking(self, record: AnyRecord, action: str) -> dict[str, list[Asking]]:
        """chain → the thin rules that ask it about this call. What rules in another language ask is not known."""
        v = self.votes
        call: Any = v.proposed[action].fact
        rules = [x for x in v.chains.rules(v.judged[action].bundle) if x.applies(call.tool, call.safety, v.tenant, None)]
        if any(x.over is not None for x in rules):
            known, amount = self._amount(action)
            rules = [x for x in rules if x.over is None or (known and x.applies(call.tool, call.safety, v.tenant, amount))]
        out: dict[str, list[Asking]] = {}
        for x in rules:
            out.setdefault(x.chain, []).append(x)
        return out

    def enough(self, record: AnyRecord, action: str, chain: str, people: set[str], needed: int, rules: Sequence[Asking]) -> None:
        """Raises Broken when these people, with their standing votes, are fewer than the rules ask for. `needed`: as was asked, or 0."""
        v = self.votes
        declared = v.chains.of(v.judged[action].bundle, chain)
        if declared is None:
            v.tally.hidden.append(f"rules of chain {chain}")
            return
        needed = max(needed, declared.tiers[0].quorum, *(x.quorum for x in rules), 1)
        if len(people) >= needed:
            return
        if rules and all(x.enough for x in rules) and action in self.served:
            v.tally.alone += 1
        elif not rules and action in self.served:  # asked by rules in another language, which may call an allowance enough
            v.tally.hidden.append(f"rules of chain {chain}")
        else:
            found = str(len(people)) + (", a standing vote being one" if action in self.served else "")
            raise v.broken(record, "too few different people approved", f"{needed} of chain {chain}", found, "MDM-0654")

    def _amount(self, action: str) -> tuple[bool, tuple[str, int] | None]:
        """(is it known, (currency, minor units) that the judgement looked at): one that the arguments name."""
        v = self.votes
        facts, args = v.line(v.judged_at[action], "facts"), v.line(v.proposed[action], "args")
        if facts is None or args is None:
            v.tally.hidden.append(f"facts of event {v.judged_at[action].seq}")
            return False, None
        said = facts.value.get("amount") if type(facts.value) is dict else None
        if type(said) is not dict:
            return True, None
        amount = str(said.get("currency")), said.get("minor")
        if type(args.value) is not dict or amount not in {(m.currency, minor(m)) for m in allowance.moneys(args.value)}:
            raise v.broken(v.judged_at[action], "its facts name an amount that the arguments do not")
        return True, amount

    # -- one allowance ---------------------------------------------------------------------------------------------------------
    def _in_force(self, record: AnyRecord, name: str, version: int) -> AnyRecord:
        authority = self.votes.authority
        granted = authority.granted.get(name)
        if granted is None or granted[0] > version or authority.withdrawn.get(name, version + 1) <= version:
            raise self.votes.broken(record, "it rests on an allowance that was not in force", code="MDM-0655")
        return granted[1]

    def _allowance(self, record: AnyRecord, fact: ActionStarted, name: str, reserves: Sequence[Reserve]) -> Served | None:
        """A standing vote of chain `log`, in force at the version of the judgement, under the same policy, for this call, not used up."""
        v, judged = self.votes, self.votes.judged[fact.action]
        voted = self._in_force(record, name, judged.authority)
        line, args = v.line(voted, "ballot"), v.line(v.proposed[fact.action], "args")
        if line is None or args is None:
            v.tally.hidden.append(f"allowance of log event {voted.seq}")
            return None
        opened = v.signed(voted, voted.fact, line, judged.authority)  # type: ignore[arg-type]
        ballot, standing = opened.ballot, opened.ballot.standing
        if standing is None or ballot.origin != v.origin or v.now >= min(standing.until, ballot.expires):
            raise v.broken(record, "its allowance is over or of another log", code="MDM-0655")
        if ballot.policy != judged.bundle:
            raise v.broken(record, "its allowance is for another tool or policy", code="MDM-0653")
        call: Any = v.proposed[fact.action].fact
        if why := allowance.why_not(standing, call, args.value):
            raise v.broken(record, why, code="MDM-0653")
        self._may(record, fact.action, standing.chain, opened.principal, judged.bundle)
        limits = allowance.limits(name, standing, v.run, v.clock.local().date)
        self._charge(record, reserves, limits, standing, args.value)
        v.tally.votes += 1
        v.tally.allowances += 1
        return Served(standing.chain, opened.principal, min(standing.until, ballot.expires))

    def _may(self, record: AnyRecord, action: str, chain: str, principal: str, policy: str) -> None:
        """Somebody whom the chain's first tier asks, and not about his own request."""
        v = self.votes
        if action in v.guarded:
            raise v.broken(record, "an allowance serves what a person must look at each time (GDPR, Art. 22)", code="MDM-0652")
        declared = v.chains.of(policy, chain)
        if declared is None:
            v.tally.hidden.append(f"rules of chain {chain}")
            return
        tier = declared.tiers[0]
        if not may_decide(tier, principal, v.trust):
            what = "its allowance is of somebody whom the chain does not ask"
            raise v.broken(record, what, ", ".join(tier.of), principal, "MDM-0652")
        if v.own(tier, action, principal):
            raise v.broken(record, "its allowance is of the person whose own request it is", "another person", principal, "MDM-0652")

    def _charge(
        self, record: AnyRecord, reserves: Sequence[Reserve], limits: Mapping[str, int], standing: ballots.Standing, args: dict[str, Any]
    ) -> None:
        """Exactly what the ballot says one call costs, and never more in all than it grants."""
        accounts = sorted(reserve.account for reserve in reserves)
        if accounts != sorted(limits):
            raise self._cost(record, "its allowance is charged to other accounts", ", ".join(sorted(limits)), ", ".join(accounts))
        for reserve in reserves:
            if not allowance.charged(reserve, standing, args):
                raise self._cost(record, "its allowance is charged another amount than the call's", "", str(reserve.amount))
            used = self.votes.totals.get((record.seq, reserve.account), reserve.amount)
            if used > limits[reserve.account]:
                raise self.votes.broken(record, "its allowance is used up", str(limits[reserve.account]), str(used), "MDM-0655")

    def _cost(self, record: AnyRecord, what: str, expected: str, found: str) -> Broken:
        return self.votes.broken(record, what, expected, found, "MDM-0657")
