"""What may lie in a mailbox: votes, stops and the words of users, each signed. `encode(mail) -> bytes`, `decode(bytes) -> mail`.

The rule a newcomer would break: anybody may write into a mailbox. Decoding says only that a message has the form; who sent it is
said by `ballot.check`, `check_stop` and `check_say`, against the trust file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mandamus.core.canonical import accept, canon
from mandamus.core.payload import SALT, commit
from mandamus.core.records import LOG
from mandamus.errors import Misuse, ProofError
from mandamus.proof import dsse
from mandamus.proof.ballot import Reason, who_signed
from mandamus.proof.keys import VKey, b64, unb64
from mandamus.proof.trust import Trust

MAIL_BYTES_MAX = 512 * 1024
TEXT_BYTES_MAX = 256 * 1024
STOP_TYPE = "application/vnd.mandamus.stop+json"
ADMINISTRATOR = "p-administrator"  # who a log's administrator is called in records
SAY_TYPE = "application/vnd.mandamus.message+json"


class Vote(Struct, frozen=True, forbid_unknown_fields=True, tag="vote", tag_field="kind"):
    """`envelope` is the DSSE of a ballot, as text; `card` is what the voter saw, votes included; `statement` widens authority.

    `nonce` makes a vote that is sent again, after a refusal, another message; it means nothing else.
    """

    envelope: str
    card: dict[str, Any] | UnsetType = UNSET
    args: dict[str, Any] | UnsetType = UNSET
    nonce: str | UnsetType = UNSET
    secret: str | UnsetType = UNSET
    statement: str | UnsetType = UNSET


class Stop(Struct, frozen=True, forbid_unknown_fields=True, tag="stop", tag_field="kind"):
    envelope: str


class Say(Struct, frozen=True, forbid_unknown_fields=True, tag="say", tag_field="kind"):
    """`text` in the words of the user, `secret` = S of its commitment (base64), `envelope` the front end's statement about it."""

    envelope: str
    secret: str
    text: str


Mail = Vote | Stop | Say


class StopStatement(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who signs it is who stops. A run, or (on chain `log`) an agent or a tenant."""

    agent: str | UnsetType = UNSET
    domain: Literal["mandamus/stop/v1"] = "mandamus/stop/v1"
    mode: Literal["cancel", "halt"]
    nonce: str
    origin: str
    run: str
    tenant: str | UnsetType = UNSET


class SayStatement(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`commit` is the salted commitment of the text; `principal` whom the front end has logged in."""

    commit: str
    domain: Literal["mandamus/message/v1"] = "mandamus/message/v1"
    nonce: str
    origin: str
    principal: str
    run: str


def encode(mail: Mail) -> bytes:
    """Canonical bytes. Raises Misuse when the message is too large or has no canonical form."""
    try:
        raw = canon(msgspec.to_builtins(mail))
    except (ValueError, TypeError) as error:
        raise Misuse(f"this message has no canonical form: {error}", code="MDM-0185") from None
    if len(raw) > MAIL_BYTES_MAX:
        raise Misuse(f"a message of {len(raw)} bytes is too large", code="MDM-0185", expected=f"at most {MAIL_BYTES_MAX}")
    return raw


def decode(raw: bytes) -> Mail:
    """Raises ProofError for anything that is not canonical, closed and within its limits."""
    if len(raw) > MAIL_BYTES_MAX:
        raise ProofError(f"a message of {len(raw)} bytes is too large", code="MDM-0630", expected=f"at most {MAIL_BYTES_MAX}")
    try:
        mail: Mail = msgspec.convert(accept(raw), Mail)
    except (ValueError, TypeError, msgspec.ValidationError) as error:
        raise ProofError(f"this is no message: {_safe(error)}", code="MDM-0630") from None
    if isinstance(mail, Say) and len(mail.text.encode()) > TEXT_BYTES_MAX:
        raise ProofError("the text is too long", code="MDM-0630", expected=f"at most {TEXT_BYTES_MAX} bytes")
    return mail


def _safe(error: Exception) -> str:
    """msgspec names paths and types, json positions; neither quotes what was sent. Cut anyway."""
    return str(error)[:120]


def say(text: str, *, secret: bytes, nonce: str, origin: str, principal: str, run: str, signer: dsse.Sign, keyid: str) -> Say:
    """A user's words, vouched for by the front end that logged the user in."""
    statement = SayStatement(commit=commit(secret, canon(text)), nonce=nonce, origin=origin, principal=principal, run=run)
    return Say(_signed(SAY_TYPE, statement, signer, keyid), b64(secret), text)


def stop(statement: StopStatement, *, signer: dsse.Sign, keyid: str) -> Stop:
    return Stop(_signed(STOP_TYPE, statement, signer, keyid))


def _signed(kind: str, statement: Struct, signer: dsse.Sign, keyid: str) -> str:
    return dsse.sign(kind, canon(msgspec.to_builtins(statement)), [(keyid, signer)]).decode("ascii")


def check_stop(mail: Stop, trust: Trust) -> tuple[str, StopStatement] | Reason:
    """(principal, statement). Approvers may stop."""
    found = who_signed(mail.envelope.encode(), STOP_TYPE, trust)
    if isinstance(found, str):
        return found
    try:
        return found[0], _said(found[1], StopStatement)
    except (ValueError, TypeError, msgspec.ValidationError):
        return "malformed"


def check_log_stop(envelope: bytes, trust: Trust, admins: Sequence[VKey]) -> tuple[str, StopStatement] | Reason:
    """(principal, statement) of a stop on chain `log`: an agent's or a tenant's. An approver signs it, or an administrator of the log."""
    found: tuple[str, bytes, VKey] | Reason = who_signed(envelope, STOP_TYPE, trust)
    if found == "not_an_approver":
        try:
            found = ADMINISTRATOR, dsse.check(envelope, STOP_TYPE, admins).payload, admins[0]
        except (ProofError, IndexError):
            return "not_an_approver"
    if isinstance(found, str):
        return found
    try:
        said = _said(found[1], StopStatement)
    except (ValueError, TypeError, msgspec.ValidationError):
        return "malformed"
    return (found[0], said) if said.run == LOG and (said.agent is UNSET) != (said.tenant is UNSET) else "malformed"


S = TypeVar("S", bound=Struct)


def _said(payload: bytes, kind: type[S]) -> S:
    """What was signed, with every field of its kind: one that a reader would have to fill in is missing. Raises ValueError."""
    said = msgspec.convert(accept(payload), kind)
    if canon(msgspec.to_builtins(said)) != payload:
        raise ValueError("a field is missing")
    return said


def check_say(mail: Say, trust: Trust) -> SayStatement | Reason:
    """The statement, signed by a front end (for any principal) or by a person (for that principal), and true of this text."""
    raw = mail.envelope.encode()
    speaker = who_signed(raw, SAY_TYPE, trust)
    if isinstance(speaker, tuple):
        only, payload, _ = speaker
    else:
        if speaker != "not_an_approver":
            return speaker
        payload, only = _frontend(raw, [key for _, key in trust.frontends]), ""
        if not payload:
            return "not_an_approver" if not _known(raw, trust) else "forged"
    try:
        statement = _said(payload, SayStatement)
        secret = unb64(mail.secret)
    except (ValueError, TypeError, msgspec.ValidationError):
        return "malformed"
    if len(secret) != SALT or (only and only != statement.principal) or commit(secret, canon(mail.text)) != statement.commit:
        return "forged"
    return statement


def _frontend(raw: bytes, keys: list[VKey]) -> bytes:
    try:
        return dsse.check(raw, SAY_TYPE, keys).payload
    except ProofError:
        return b""


def _known(raw: bytes, trust: Trust) -> bool:
    ids = {keyid for keyid, _ in dsse.read(raw).signatures}
    return any(key.id in ids for _, key in trust.frontends)
