"""Which people's answers count, at this judgement: by ballots that verify now, by chains and quorums of today's policy.

The rule a newcomer would break: what an earlier owner recorded about a request (its quorum, its tier) is a claim. The quorum is what
today's policy asks; a later tier is believed only when the clock has passed the deadlines of the earlier ones. A standing vote is one
vote of its approver in its own chain: who has answered already is not counted again for having an allowance.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from mandamus.core import facts as f
from mandamus.core.canonical import canon
from mandamus.core.digests import action_digest
from mandamus.core.records import Reserve
from mandamus.core.run import Action, Waiting, decision_of
from mandamus.proof import ballot as ballots
from mandamus.proof.chains import may_decide
from mandamus.runtime import engines, mail
from mandamus.runtime.session import Session

if TYPE_CHECKING:
    from mandamus.runtime.batch import Batch

Wanted = Callable[[tuple[str, ...]], Awaitable[dict[str, int]]]


class _Answer(Struct, frozen=True):
    """Votes of one chain: the tier they claim, when they were asked for, and when they were complete."""

    chain: str
    seqs: tuple[int, ...]
    tier: int
    asked: int
    by: int


class Lent(Struct, frozen=True):
    """A standing vote that covers the call: whose, in which chain, and what using it would be charged."""

    principal: str
    chain: str
    charge: tuple[Reserve, ...]


class Counted(Struct):
    """`votes`: principal → seq of a vote that counts. `standing`: per chain, the standing votes that may count beside them."""

    met: set[str]
    votes: dict[str, int]
    short: dict[str, dict[str, int]]
    standing: dict[str, list[Lent]]
    people: set[str]
    used: list[Reserve]

    @property
    def allowed(self) -> tuple[str, ...]:
        return tuple(sorted(chain for chain, lent in self.standing.items() for _ in lent))


NOBODY = Counted(set(), {}, {}, {}, set(), [])


async def counted(b: Batch, action: Action, wanted: Wanted, lent: tuple[Lent, ...] = ()) -> Counted:
    """Chains whose quorum is met by ballots that verify now, and by standing votes where those alone are too few.

    `wanted` asks the engines how many people they want of each chain while only the given ones have answered.
    """
    answers = [_Answer(g.chain, g.votes, g.tier, g.asked, g.by) for g in action.granted]
    if action.request and decision_of(action.request) == "approve":
        answers.append(_of(b, action.request, "approve"))
    names = {a.chain for a in answers}
    out = Counted(set(), {}, {}, {}, set(), [])
    for answer in answers:
        tier, place = _tier(b, answer)
        if tier is None:
            continue
        good = await _verified(b, action, tier, answer.seqs, "approve")
        asks = (await wanted(tuple(sorted(names - {answer.chain})))).get(answer.chain, 0) if good and place == 0 else 0
        if len(good) >= max(1, tier.quorum, asks):
            out.met.add(answer.chain)
            out.votes |= good
        elif place == 0:
            out.short[answer.chain] = good
    for chain in sorted({x.chain for x in lent} - out.met):
        await _lend(b, action, chain, wanted, [x for x in lent if x.chain == chain], out)
    out.people |= out.votes.keys()
    return out


async def _lend(b: Batch, action: Action, chain: str, wanted: Wanted, lent: list[Lent], out: Counted) -> None:
    """Standing votes of people whom the first tier asks, who may vote on this and have not; a chain that nobody asks needs none."""
    declared = engines.chain_of(b.s.bound.book, chain)
    asks = (await wanted(tuple(sorted(out.met)))).get(chain, 0)
    if declared is None or not asks:
        return
    tier, good = declared.tiers[0], out.short.get(chain, {})
    one_each = {x.principal: x for x in reversed(lent) if x.principal not in good}
    trust = b.s.env.trust()
    spare = [x for p, x in one_each.items() if may_decide(tier, p, trust) and not mail.own(b.s, tier, action, p)]
    if not spare:
        return
    out.standing[chain] = spare
    missing = max(1, tier.quorum, asks) - len(good)
    used = spare[: max(1, missing)]  # where a rule calls one of them enough, one of them is charged
    if missing > len(spare):
        used = spare[:1]
    else:
        out.met.add(chain)
        out.votes |= good
        out.people |= {x.principal for x in used}
    out.used += [r for x in used for r in x.charge]


async def said(b: Batch, action: Action, request: Waiting, decision: str) -> bool:
    """Whether people gave this answer about an outcome, by ballots that verify now."""
    answer = _of(b, request, decision)
    tier, _ = _tier(b, answer)
    return tier is not None and len(await _verified(b, action, tier, answer.seqs, decision)) >= max(1, tier.quorum)


def _of(b: Batch, q: Waiting, decision: str) -> _Answer:
    seqs = tuple(v.seq for v in q.votes if v.decision == decision)
    return _Answer(q.chain, seqs, q.tier, q.asked, min(b.clock.now, b.s.env.time.now()))


def _tier(b: Batch, answer: _Answer) -> tuple[f.Tier | None, int]:
    """The tier whose people count, and its place: the claimed one, if its time had come."""
    chain = engines.chain_of(b.s.bound.book, answer.chain)
    if chain is None:
        return None, 0
    place, passed = 0, answer.asked
    while place < min(answer.tier, len(chain.tiers) - 1):
        passed += chain.tiers[place].deadline_ms * 1000
        if answer.by < passed:
            break
        place += 1
    return chain.tiers[place], place


async def _verified(b: Batch, action: Action, tier: f.Tier, seqs: tuple[int, ...], decision: str) -> dict[str, int]:
    """Distinct principals of the tier whose ballots, as stored, are signed for exactly this action under today's policy, unexpired."""
    good: dict[str, int] = {}
    trust = b.s.env.trust()
    for seq in seqs:
        raw = await b.s.value(seq, "ballot")
        found = ballots.check(canon(raw) if isinstance(raw, dict) else str(raw).encode(), trust)
        if isinstance(found, str):
            continue
        principal, ballot = found
        exact = (
            ballot.action == digest_of(b.s, action)
            and ballot.run == b.run.id
            and ballot.decision == decision
            and ballot.policy == b.s.bound.book.digest
            and ballot.origin == b.run.genesis.origin
            and ballot.expires > b.clock.now
        )
        if exact and not mail.barred(b.s, tier, action, principal, decision):
            good[principal] = seq
    return good


def digest_of(s: Session, action: Action) -> str:
    return action_digest(
        args=action.args, call=action.call, origin=s.run.genesis.origin, policy=s.bound.book.digest, run=s.run.id,
        pin=action.pin or None,
    )  # fmt: skip


def roles(s: Session, people: set[str]) -> tuple[str, ...]:
    if not people:
        return ()
    trust = s.env.trust()
    return tuple(sorted({role for p in people for role in trust.roles_of(p)}))
