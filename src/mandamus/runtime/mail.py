"""The mailbox is untrusted: say who each message is from and whether it may count, then let the core make one fact of it.

A vote and a stop are believed by their signature, a user's words by the front end's (or the user's own); everything else becomes
`MessageRefused`. Who may vote is the chain's tier of now, held against the trust file.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from typing import Any

import msgspec
from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import facts as f
from mandamus.core.canonical import canon, parse
from mandamus.core.clock import Clock
from mandamus.core.payload import INLINE_MAX, SALT, card_digest, commit
from mandamus.core.records import MailRef
from mandamus.core.run import Action, ripe
from mandamus.errors import ProofError
from mandamus.proof import ballot as ballots
from mandamus.proof import mail as post
from mandamus.proof.keys import unb64
from mandamus.runtime import ask, engines
from mandamus.runtime.session import Session

VETOES = ("reject", "halt")
UNBELIEVED = frozenset(("malformed", "forged", "not_an_approver"))  # no signature of anybody who is trusted
JUNK_SHOWN = 16
SAVED_MAX = 256  # facts in one append: a signed message sent again in thousands of wrappings is as many facts


async def look(s: Session) -> None:
    """Has anything come? Asked while a long effect is in flight; every append answers it for free."""
    if s.unsaved:
        await s.save()
    head = await s.env.ledger.head(s.run.id)
    if head and s.head and head.mail > s.run.cursor:
        await drain(s)


async def drain(s: Session) -> None:
    """Every message behind the cursor becomes one fact, saved before anything else is asked.

    Anybody may write into a mailbox, so of what nobody signed only the first few stand for themselves: the rest of a stretch is one
    refusal that counts them, at the place of the last. Nor is a key believed that a store tells: who wrote to it past us may have put
    one message there under several, and it would count as often.
    """
    junk: list[e.Mail] = []
    shown = 0
    async for cursor, _, raw in s.env.ledger.mailbox(s.run.id, s.run.cursor):
        given = await read(s, MailRef(cursor=cursor, key=hashlib.sha256(raw).hexdigest()), raw)
        if given.reason in UNBELIEVED and shown >= JUNK_SHOWN:
            junk.append(msgspec.structs.replace(given, value=None))
            continue
        shown += given.reason in UNBELIEVED
        _counted(s, junk)
        s.take(given)
        if len(s.unsaved) >= SAVED_MAX:
            await s.save()
    _counted(s, junk)
    await s.save()


def _counted(s: Session, junk: list[e.Mail]) -> None:
    """One refusal for all of these. What was forged is an incident, and is called so whatever lay around it."""
    if not junk:
        return
    reasons = Counter(m.reason for m in junk)
    value = {"first": junk[0].ref.cursor, "reasons": dict(sorted(reasons.items())), "refused": len(junk)}
    reason = "forged" if reasons["forged"] else junk[-1].reason
    s.take(msgspec.structs.replace(junk[-1], reason=reason, value=value))
    junk.clear()


async def read(s: Session, ref: MailRef, raw: bytes) -> e.Mail:
    try:
        message = post.decode(raw)
    except ProofError:
        return e.Mail(ref=ref, clock=s.clock(), kind="refused", reason="malformed", value=raw[:1024].decode("utf-8", "replace"))
    match message:
        case post.Vote():
            return await _vote(s, ref, message)
        case post.Stop():
            return _stop(s, ref, message)
        case post.Say():
            return _say(s, ref, message)


_principal = re.compile(r"[!-~]{1,200}").fullmatch  # as the trust file writes one


def _refused(s: Session, ref: MailRef, reason: str, value: Any) -> e.Mail:
    return e.Mail(ref=ref, clock=s.clock(), kind="refused", reason=reason, value=value)


def _stop(s: Session, ref: MailRef, message: post.Stop) -> e.Mail:
    found = post.check_stop(message, s.env.trust())
    if isinstance(found, str):
        return _refused(s, ref, found, {"kind": "stop"})
    principal, statement = found
    if statement.run != s.run.id or statement.origin != s.run.genesis.origin:
        return _refused(s, ref, "wrong_request", {"kind": "stop"})
    signed = parse(message.envelope.encode())
    return e.Mail(ref=ref, clock=s.clock(), kind="stop", principal=principal, mode=statement.mode, statement=signed)


def _say(s: Session, ref: MailRef, message: post.Say) -> e.Mail:
    statement = post.check_say(message, s.env.trust())
    if isinstance(statement, str):
        return _refused(s, ref, statement, {"kind": "message", "text": message.text[:1024]})
    if statement.run != s.run.id or statement.origin != s.run.genesis.origin:
        return _refused(s, ref, "wrong_request", {"kind": "message"})
    if len(message.text.encode()) > INLINE_MAX // 2 or not _principal(statement.principal):
        return _refused(s, ref, "malformed", {"kind": "message"})
    return e.Mail(
        ref=ref, clock=s.clock(), kind="message", principal=statement.principal, value=message.text, secret=unb64(message.secret),
        statement=parse(message.envelope.encode()),
    )  # fmt: skip


async def _vote(s: Session, ref: MailRef, message: post.Vote) -> e.Mail:
    found = ballots.check(message.envelope.encode(), s.env.trust())
    if isinstance(found, str):
        return _refused(s, ref, found, {"kind": "vote"})
    principal, ballot = found
    action = next((a for a in s.run.actions.values() if a.request and a.request.id == ballot.request), None)
    reason = _why_not(s, action, principal, ballot)
    if action is None or reason:
        return _refused(s, ref, reason or "not_waiting", {"kind": "vote", "principal": principal})
    if message.card is not UNSET and card_digest(await s.secret(action.seq, "args"), message.card) != ballot.card:
        return _refused(s, ref, "forged", {"kind": "vote", "principal": principal})  # what was shown is not what was signed
    tier = _tier(s, action)
    modified = None
    if ballot.decision == "modify":
        proposed = await _modified(s, action, message, ballot)
        if isinstance(proposed, str):
            return _refused(s, ref, proposed, {"kind": "vote", "principal": principal})
        modified = proposed
    assert action.request is not None
    assert tier is not None
    return e.Mail(
        ref=ref, clock=s.clock(), kind="vote", principal=principal, action=action.id, request=action.request.id,
        about="outcome" if ballot.decision in ("done", "again", "abandon") else "start", decision=ballot.decision,
        ballot=ballots.ballot_digest(ballot), value=parse(message.envelope.encode()),
        veto=ballot.decision == "reject" and _holds(s, principal, tier.veto),
        card=None if message.card is UNSET else message.card, modified=modified,
    )  # fmt: skip


async def _modified(s: Session, action: Action, message: post.Vote, ballot: ballots.Ballot) -> e.Proposal | str:
    """The new arguments, if they are the ones whose commitment was signed; else why not. They are judged like any other proposal.

    What is signed is what is proposed: arguments that the contract would write in another form are refused, not rewritten.
    """
    if message.args is UNSET or message.secret is UNSET:
        return "forged"
    try:
        secret, raw = unb64(message.secret), canon(message.args)
        if len(secret) != SALT or commit(secret, raw) != ballot.args:
            return "forged"
    except ValueError:
        return "forged"
    proposal = await ask.proposal(s, action.tool, message.args)
    if canon(proposal.args) != raw:
        return "malformed"
    return msgspec.structs.replace(proposal, secret=secret)


def _why_not(s: Session, action: Action | None, principal: str, ballot: ballots.Ballot) -> str:
    if ballot.run != s.run.id or ballot.origin != s.run.genesis.origin:
        return "wrong_request"
    if action is None or action.request is None:
        return "not_waiting"
    if ballot.action != action.request.digest or ballot.policy != action.request.policy or ballot.card != action.request.card:
        return "wrong_action"
    if ballot.expires <= s.clock().now or ballot.expires != action.request.expires:
        return "expired"
    tier = _tier(s, action)
    return "not_an_approver" if tier is None else barred(s, tier, action, principal, ballot.decision)


def barred(s: Session, tier: f.Tier, action: Action, principal: str, decision: str) -> str:
    """Why this person may not say this about this action, or ""."""
    if own(s, tier, action, principal):
        return "own_request"
    return "" if may_vote(s, tier, principal, decision) else "not_an_approver"


def own(s: Session, tier: f.Tier, action: Action, principal: str) -> bool:
    """Whoever asked for it or wrote its arguments does not judge it."""
    user = s.run.genesis.user
    asked = "requester" in tier.sod and user is not UNSET and principal == user.principal
    return asked or ("author" in tier.sod and principal == action.author)


def may_vote(s: Session, tier: f.Tier, principal: str, decision: str) -> bool:
    """Named by the tier or by a role of it; a tier that names nobody means every approver of the trust file. A veto can only stop."""
    if not tier.of or _holds(s, principal, tier.of):
        return True
    return decision in VETOES and _holds(s, principal, tier.veto)


def _tier(s: Session, action: Action) -> f.Tier | None:
    assert action.request is not None
    chain = engines.chain_of(s.bound.book, action.request.chain)
    return None if chain is None else chain.tiers[min(action.request.tier, len(chain.tiers) - 1)]


def _holds(s: Session, principal: str, of: tuple[str, ...]) -> bool:
    roles = s.env.trust().roles_of(principal)
    return any(x == principal or (x.startswith("role:") and x[5:] in roles) for x in of)


def time_passed(s: Session) -> e.Time:
    """The clock as a fact, with the next tier of every request whose tier has ended."""
    clock = s.clock()
    return e.Time(clock=clock, tiers=next_tiers(s, clock))


def next_tiers(s: Session, clock: Clock) -> tuple[e.NextTier, ...]:
    """Wherever this clock is recorded, the next tier is asked in the same append: `verify` demands it of every TimePassed."""
    tiers = []
    for action in s.run.open_actions:
        request = action.request
        if request is None or ripe(request) or clock.now < request.until:
            continue
        chain = engines.chain_of(s.bound.book, request.chain)
        if chain is not None and request.tier + 1 < len(chain.tiers):
            tier = chain.tiers[request.tier + 1]
            carries = tuple(v.seq for v in request.votes if may_vote(s, tier, v.principal, v.decision))
            until = request.until + tier.deadline_ms * 1000
            tiers.append(e.NextTier(action=action.id, tier=request.tier + 1, quorum=tier.quorum, until=until, carries=carries))
    return tuple(tiers)
