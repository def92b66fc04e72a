"""The ballot: exactly what a person signs, as closed data. `sign(ballot, sign_fn, keyid) -> envelope`, `check(envelope, trust)`.

The rule a newcomer would break: decision *and* scope are inside the signed bytes, and who voted is said by the trust file, never by
the ballot. A login is not a vote; a name beside a signature is not a voter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mandamus.core.canonical import INT_MAX, accept, canon, digest
from mandamus.core.money import Money
from mandamus.core.records import LOG
from mandamus.errors import Misuse, ProofError
from mandamus.proof import dsse
from mandamus.proof.keys import VKey
from mandamus.proof.trust import Trust

PAYLOAD_TYPE = "application/vnd.mandamus.ballot+json"
DOMAIN: Literal["mandamus/approval/v1"] = "mandamus/approval/v1"
BALLOT_BYTES_MAX = 16 * 1024
_salt = re.compile("[0-9a-f]{64}").fullmatch

Decision = Literal["approve", "reject", "modify", "halt", "done", "again", "abandon"]
Reason = Literal["forged", "malformed", "not_an_approver"]


class Standing(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An allowance: calls that match `pattern` {tool, args?}, at most `count` and `amount` in all, per `window`, until an instant.

    It is one vote of whoever signs it, in the approval chain `chain` and in no other.

    `salt`, 64 hex digits drawn once, keeps the ballot's digest, which records and accounts are named by, from being a digest of `args`
    that somebody could guess.
    """

    amount: Money | UnsetType = UNSET
    chain: str
    count: int
    pattern: dict[str, Any]
    salt: str | UnsetType = UNSET
    until: int
    window: Literal["day", "run", "until"]


class StandingScope(Struct, frozen=True, forbid_unknown_fields=True):
    standing: Standing


class Ballot(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`action`, `card` and `policy` are digests, `request` is an id, `expires` the end of the whole chain (instant).

    `args`, with decision `modify` only: the commitment of the arguments that shall stand instead. A standing ballot has `run` "log"
    and neither action nor request.
    """

    action: str | UnsetType = UNSET
    args: str | UnsetType = UNSET
    card: str | UnsetType = UNSET
    decision: Decision
    domain: Literal["mandamus/approval/v1"] = DOMAIN
    expires: int
    origin: str
    policy: str
    request: str | UnsetType = UNSET
    run: str
    scope: Literal["once"] | StandingScope

    @property
    def standing(self) -> Standing | None:
        return self.scope.standing if isinstance(self.scope, StandingScope) else None


def encode(ballot: Ballot) -> bytes:
    """The JCS bytes that are signed. Raises Misuse when the fields contradict each other."""
    fault = _contradiction(ballot)
    if fault:
        raise Misuse(f"this ballot can mean nothing: {fault}", code="MDM-0184")
    return canon(msgspec.to_builtins(ballot))


def decode(raw: bytes) -> Ballot:
    """Only canonical bytes of a closed, consistent ballot. Raises ValueError."""
    if len(raw) > BALLOT_BYTES_MAX:
        raise ValueError("too large")
    try:
        ballot = msgspec.convert(accept(raw), Ballot)
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(str(error)) from None
    if canon(msgspec.to_builtins(ballot)) != raw:
        raise ValueError("a field that a reader would have to fill in is missing")
    fault = _contradiction(ballot)
    if fault:
        raise ValueError(fault)
    return ballot


def ballot_digest(ballot: Ballot) -> str:
    """The name of a ballot: `Voted.ballot`, `VoteWithdrawn.ballot`."""
    return digest("ballot", canon(msgspec.to_builtins(ballot)))


def _contradiction(ballot: Ballot) -> str:
    standing = ballot.standing
    if standing is None:
        if ballot.action is UNSET or ballot.request is UNSET or ballot.card is UNSET:
            return "a ballot for one action names action, card and request"
        if ballot.run == LOG:
            return "a ballot for one action names its run"
    else:
        if ballot.run != LOG or ballot.action is not UNSET or ballot.request is not UNSET:
            return 'a standing ballot has run "log" and names no action and no request'
        if ballot.decision != "approve":
            return "a standing ballot approves; it is taken back by VoteWithdrawn"
        if standing.pattern.get("args") and standing.salt is UNSET:
            return "an allowance for certain arguments has a salt"
        if standing.salt is not UNSET and not _salt(standing.salt):
            return "a salt is 64 hex digits"
        if not 1 <= standing.count <= INT_MAX or not 0 <= standing.until <= INT_MAX:
            return "count is at least 1, until an instant"
    if (ballot.args is not UNSET) != (ballot.decision == "modify"):
        return "new arguments (args) belong to modify, and only to it"
    if not 0 <= ballot.expires <= INT_MAX:
        return "expires is an instant"
    return ""


def sign(ballot: Ballot, signer: dsse.Sign, keyid: str) -> bytes:
    """Envelope bytes, signed by one person. Raises Misuse for a ballot that contradicts itself."""
    return dsse.sign(PAYLOAD_TYPE, encode(ballot), [(keyid, signer)])


def check(envelope: bytes, trust: Trust) -> tuple[str, Ballot] | Reason:
    """(principal, ballot), or why it is none. The principal is who the trust file says owns the key that signed.

    Whether it answers the right request, in time, once, is the caller's question; this one is who said what.
    """
    found = examine(envelope, trust)
    return found if isinstance(found, str) else found[:2]


def examine(envelope: bytes, trust: Trust) -> tuple[str, Ballot, VKey] | Reason:
    """As `check`, with the key that signed: revocation is asked of a key, not of a person."""
    found = who_signed(envelope, PAYLOAD_TYPE, trust)
    if isinstance(found, str):
        return found
    principal, payload, key = found
    try:
        return principal, decode(payload), key
    except ValueError:
        return "malformed"


def examine_standing(envelope: bytes, trust: Trust, admins: Sequence[VKey], quorum: int) -> tuple[str, Ballot, VKey] | Reason:
    """An allowance widens authority: one approver and `quorum` administrators have signed the same envelope."""
    people = [key for _, key in trust.approvers.values()]
    try:
        done = dsse.check(envelope, PAYLOAD_TYPE, [*people, *admins], ssh=True)
        ballot = decode(done.payload)
    except (ProofError, ValueError) as error:
        return "malformed" if isinstance(error, ValueError) or error.diagnosis.code == "MDM-0620" else "forged"
    voters = [key for key in done.keys if key.public in trust.approvers]
    ruling = {key.public for key in done.keys} & {key.public for key in admins}
    if ballot.standing is None or len(voters) != 1 or len(ruling) < max(1, quorum):
        return "not_an_approver"
    return trust.approvers[voters[0].public][0], ballot, voters[0]


def who_signed(envelope: bytes, payload_type: str, trust: Trust) -> tuple[str, bytes, VKey] | Reason:
    """One signature, by an approver's key: (principal, payload bytes, key)."""
    try:
        parts = dsse.read(envelope)
    except ProofError:
        return "malformed"
    if parts.payload_type != payload_type or len(parts.signatures) != 1:
        return "malformed"
    candidates = trust.approver(parts.signatures[0][0])
    if not candidates:
        return "not_an_approver"
    try:
        done = dsse.check(envelope, payload_type, [key for _, key in candidates], ssh=True)
    except ProofError:
        return "forged"
    return trust.approvers[done.keys[0].public][0], done.payload, done.keys[0]
