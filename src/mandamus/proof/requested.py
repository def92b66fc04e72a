"""What people were asked: each request, tier by tier, is about the action it names, shows its card, and asks as many as the rules say.

The rule a newcomer would break: a request is made by the owner of the run, and proves nothing by itself. Its digest is computed anew
from the proposal, and how many people it must ask is read from the chain of its policy, not from it.
"""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import UNSET

from mandamus.core.digests import action_digest
from mandamus.core.facts import Tier
from mandamus.core.payload import card_digest
from mandamus.core.records import AnyRecord, ApprovalRequested
from mandamus.proof.lending import Lending, Reading


class Asked(Reading, Protocol):
    """The same, with whom policy asked (action -> chain -> quorum and policy), and with who lent a standing vote."""

    asked: dict[str, dict[str, tuple[int, str]]]
    lending: Lending


class Requests:
    """The requests of one run. `known`: the newest tier of each; `needs`: how many people were demanded of it."""

    def __init__(self, votes: Asked) -> None:
        self.votes = votes
        self.known: dict[str, AnyRecord] = {}
        self.needs: dict[str, int] = {}

    def made(self, record: AnyRecord, fact: ApprovalRequested) -> None:
        """Its digest is the action's, its card the one that is stored, its quorum not less than policy asked for."""
        proposal = self.votes.proposed.get(fact.action)
        if proposal is None:
            raise self.votes.broken(record, "it asks about an action that was never proposed")
        if fact.digest not in self._digests(proposal, fact):
            raise self.votes.broken(record, "its digest is not the action's", expected=self._digests(proposal, fact)[0], found=fact.digest)
        earlier = self.known.get(fact.request)
        self._tier_in_turn(record, fact, None if earlier is None else earlier.fact)
        self._enough(record, fact, self.votes.clock.now if earlier is None else earlier.fact.until)  # type: ignore[attr-defined]
        self.card(record, fact.action, fact.card)
        self.known[fact.request] = record

    def _tier_in_turn(self, record: AnyRecord, fact: ApprovalRequested, earlier: Any) -> None:
        """The first tier opens a request; each later one follows the tier before it, when that one's time was over."""
        if earlier is None:
            if fact.tier:
                raise self.votes.broken(record, "no earlier tier led to this one", "tier 0", f"tier {fact.tier}")
            return
        if not _same_request(earlier, fact):
            raise self.votes.broken(record, "a later tier changes what was asked")
        if self.votes.clock.now < earlier.until:
            raise self.votes.broken(record, "the tier before it was not over", str(earlier.until), str(self.votes.clock.now))

    def _enough(self, record: AnyRecord, fact: ApprovalRequested, begins: int) -> None:
        """As many people, and as much time for them, as the rules say."""
        asked = 1
        if fact.tier == 0 and fact.about == "start":
            asked = max(1, self.votes.asked.get(fact.action, {}).get(fact.chain, (1, ""))[0])
        chain = self.votes.chains.of(fact.policy, fact.chain)
        if chain is None:
            self.votes.tally.hidden.append(f"rules of chain {fact.chain}")
        elif fact.tier >= len(chain.tiers):
            raise self.votes.broken(record, "its chain has no such tier", f"{len(chain.tiers)} tiers", f"tier {fact.tier}")
        else:
            tier = chain.tiers[fact.tier]
            asked = max(asked, tier.quorum)
            if fact.until < begins + tier.deadline_ms * 1000:
                raise self.votes.broken(record, "its tier ends before its time", str(begins + tier.deadline_ms * 1000), str(fact.until))
        self.needs[fact.request] = max(asked, fact.quorum)
        if fact.quorum < asked and fact.tier == 0 and fact.about == "start" and fact.quorum >= 1:
            if fact.action not in self.votes.judged:
                raise self.votes.broken(record, "it asks about an action that was never judged", code="MDM-0653")
            asked -= len(self.votes.lending.in_chain(fact.chain, self.votes.judged[fact.action].authority))
        if fact.quorum < asked:
            raise self.votes.broken(record, "it asks fewer people than policy demanded", expected=str(asked), found=str(fact.quorum))

    def _digests(self, proposal: AnyRecord, fact: ApprovalRequested) -> list[str]:
        """With the expiry and without: whichever the writer bound, the ballot names the expiry again."""
        p: Any = proposal.fact
        origin, run = self.votes.origin, self.votes.run
        args = proposal.body[0].commit if proposal.body else ""
        pin = None if p.pin is UNSET else p.pin
        return [
            action_digest(args=args, call=p.call, origin=origin, policy=fact.policy, run=run, expires=expires, pin=pin)
            for expires in (fact.expires, None)
        ]

    def card(self, record: AnyRecord, action: str, signed: str) -> None:
        """The card in this record, if it has one, is the one that was shown and signed. A later tier repeats its request without it."""
        card, args = self.votes.line(record, "card"), self.votes.line(self.votes.proposed[action], "args")
        if card is not None and args is not None:
            found = card_digest(args.secret, card.value) if type(card.value) is dict else ""
            if found != signed:
                raise self.votes.broken(record, "its card is not the one that was shown and signed", expected=signed, found=found)
        elif any(part.part == "card" for part in record.body or ()):
            self.votes.tally.hidden.append(f"card of event {record.seq}")

    def tier(self, request: ApprovalRequested) -> Tier | None:
        """None: the rules of its chain are not shown."""
        chain = self.votes.chains.of(request.policy, request.chain)
        return None if chain is None else chain.tiers[request.tier]

    def of(self, at: AnyRecord, request: str) -> ApprovalRequested:
        """The request that `at` answers, as its newest tier says it."""
        record = self.known.get(request)
        if record is None or not isinstance(record.fact, ApprovalRequested):
            raise self.votes.broken(at, "it answers a request that was never made", code="MDM-0653")
        return record.fact


def _same_request(earlier: Any, later: ApprovalRequested) -> bool:
    names = ("about", "action", "card", "chain", "digest", "expires", "policy")
    return all(getattr(earlier, name) == getattr(later, name) for name in names) and later.tier == earlier.tier + 1
