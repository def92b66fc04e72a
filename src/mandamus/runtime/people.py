"""Which people's answers count, at this judgement: by ballots that verify now, by chains and quorums of today's policy.

The rule a newcomer would break: what an earlier owner recorded about a request (its quorum, its tier) is a claim. The quorum is what
today's policy asks; a later tier is believed only when the clock has passed the deadlines of the earlier ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from mandamus.core import facts as f
from mandamus.core.canonical import canon
from mandamus.core.digests import action_digest
from mandamus.core.run import Action, Waiting, decision_of
from mandamus.proof import ballot as ballots
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


async def counted(b: Batch, action: Action, wanted: Wanted) -> tuple[tuple[str, ...], dict[str, int]]:
    """(chains whose quorum is met by ballots that verify now, principal → seq of the vote).

    `wanted` asks the engines how many people they want of each chain while only the given ones have answered.
    """
    answers = [_Answer(g.chain, g.votes, g.tier, g.asked, g.by) for g in action.granted]
    if action.request and decision_of(action.request) == "approve":
        answers.append(_of(b, action.request, "approve"))
    names = {a.chain for a in answers}
    met: set[str] = set()
    votes: dict[str, int] = {}
    for answer in answers:
        tier, place = _tier(b, answer)
        if tier is None:
            continue
        good = await _verified(b, action, tier, answer.seqs, "approve")
        asks = (await wanted(tuple(sorted(names - {answer.chain})))).get(answer.chain, 0) if good and place == 0 else 0
        if len(good) >= max(1, tier.quorum, asks):
            met.add(answer.chain)
            votes |= good
    return tuple(sorted(met)), votes


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


def roles(s: Session, votes: dict[str, int]) -> tuple[str, ...]:
    if not votes:
        return ()
    trust = s.env.trust()
    return tuple(sorted({role for p in votes for role in trust.roles_of(p)}))
