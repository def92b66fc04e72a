"""Who may widen authority, and what chain `log` says about it up to a version.

A record on chain `log` that widens authority carries, as payload `statement`, a DSSE by m of the administrators that `LogOpened`
names; an allowance carries their signatures on the envelope of its own `ballot`; what narrows authority needs none. Either raises the
account `authority` by one: the n-th such record makes version n. A stop narrows, but it moves runs: an approver or an administrator
signs it like any other stop.
The rule a newcomer would break: `LogOpened` is not believed for being in the log. An administrator's key must stand in the trust file too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mandamus.core.canonical import accept, canon
from mandamus.core.records import LOG, AnyRecord, Fact, KeyChanged, LogOpened, PolicyChanged, StopRequested, Voted, VoteWithdrawn
from mandamus.errors import ProofError
from mandamus.proof import ballot as ballots
from mandamus.proof import dsse, mail
from mandamus.proof.keys import VKey
from mandamus.proof.report import Broken, Finding
from mandamus.proof.trust import Trust

PAYLOAD_TYPE = "application/vnd.mandamus.authority+json"
DOMAIN = "mandamus/authority/v1"
ADMIN = "administrator"


class Widening(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What administrators sign. `fact` is the fact without `clock` and `mail`, which only the writer of the log knows."""

    domain: str = DOMAIN
    expires: int
    fact: dict[str, Any]
    nonce: str
    origin: str
    type: str


def raises(fact: Fact) -> bool:
    """Does this fact, on chain `log`, raise the account `authority`?"""
    return isinstance(fact, StopRequested | PolicyChanged | KeyChanged | VoteWithdrawn) or (
        isinstance(fact, Voted) and fact.scope == "standing"
    )


def widens(fact: Fact) -> bool:
    """Must it carry a statement?"""
    if isinstance(fact, KeyChanged):
        return fact.new is not UNSET
    return isinstance(fact, PolicyChanged) or (isinstance(fact, Voted) and fact.scope == "standing")


def signable(fact: Fact) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(fact)
    return {name: value for name, value in plain.items() if name not in ("clock", "mail")}


def statement(fact: Fact, *, expires: int, nonce: str, origin: str) -> bytes:
    """The bytes that administrators sign, with `dsse.sign(authority.PAYLOAD_TYPE, ...)`."""
    said = Widening(expires=expires, fact=signable(fact), nonce=nonce, origin=origin, type=type(fact).__name__)
    return canon(msgspec.to_builtins(said))


def check_statement(envelope: bytes, fact: Fact, opened: LogOpened, trust: Trust, seen: set[str]) -> str:
    """ "" when the statement widens exactly this, now, for the first time; else why not. Remembers its nonce in `seen`."""
    keys = admins(opened, trust)
    if not keys:
        return "no administrator that the log names stands in the trust file"
    try:
        said = msgspec.convert(accept(dsse.check(envelope, PAYLOAD_TYPE, keys, max(1, opened.quorum)).payload), Widening)
    except ProofError as error:
        return error.diagnosis.what
    except (ValueError, TypeError, msgspec.ValidationError):
        return "the statement is of another form"
    if said.domain != DOMAIN or said.origin != opened.origin or said.type != type(fact).__name__ or said.fact != signable(fact):
        return "the statement is about something else"
    if said.nonce in seen:
        return "the statement was used before"
    seen.add(said.nonce)
    clock = getattr(fact, "clock", None)
    return "the statement had expired" if clock is not None and clock.now >= said.expires else ""


def admins(opened: LogOpened, trust: Trust) -> list[VKey]:
    """Keys of role admin that the log names *and* the trust file holds."""
    named = {key.key for key in opened.keys if key.role == ADMIN}
    return [key for key in trust.admins if str(key) in named]


class Authority:
    """Chain `log`, read: which version each record made, which keys were revoked at which, which allowances were granted and withdrawn."""

    def __init__(self) -> None:
        self.version = 0
        self.revoked: dict[str, int] = {}
        self.granted: dict[str, tuple[int, AnyRecord]] = {}
        self.withdrawn: dict[str, int] = {}
        self.widened: list[AnyRecord] = []
        self.stops: list[tuple[int, AnyRecord]] = []

    @property
    def signed(self) -> list[AnyRecord]:
        """Records that count only with somebody's signature."""
        return [*self.widened, *(record for _, record in self.stops)]

    def stopped(self, agent: str, tenant: str, version: int) -> AnyRecord | None:
        """The stop that was in force for this agent or tenant at `version`."""
        found = ((n, record, record.fact) for n, record in self.stops)
        return next((x for n, x, fact in found if n <= version and covers(fact, agent, tenant)), None)

    def was_revoked(self, key: VKey, version: int) -> bool:
        return self.revoked.get(str(key), version + 1) <= version


Open = Callable[[AnyRecord, str], bytes | None]


def read(records: Sequence[AnyRecord]) -> Authority:
    out = Authority()
    for record in records:
        fact = record.fact
        if not raises(fact):
            continue
        out.version += 1
        if widens(fact):
            out.widened.append(record)
        if isinstance(fact, KeyChanged) and fact.old is not UNSET:
            out.revoked.setdefault(fact.old, out.version)
        elif isinstance(fact, StopRequested):
            out.stops.append((out.version, record))
        elif isinstance(fact, VoteWithdrawn):
            out.withdrawn.setdefault(fact.ballot, out.version)
        elif isinstance(fact, Voted):
            out.granted.setdefault(fact.ballot, (out.version, record))
    return out


def check(records: Sequence[AnyRecord], authority: Authority, origin: str, trust: Trust, payload: Open) -> int:
    """Every widening of the log is signed by its administrators, every stop by somebody who may. Number of them. Raises Broken."""
    opened = records[0].fact
    assert isinstance(opened, LogOpened)
    if opened.origin != origin:
        raise Broken(
            Finding(
                "chain log belongs to another log",
                code="MDM-0650",
                chain=LOG,
                event=0,
                type="LogOpened",
                expected=origin,
                found=opened.origin,
            )
        )
    seen: set[str] = set()
    for record in authority.widened:
        if isinstance(record.fact, Voted):
            why = _why_no_allowance(payload(record, "ballot"), record.fact, opened, trust)
        else:
            envelope = payload(record, "statement")
            why = "it carries no statement" if envelope is None else check_statement(envelope, record.fact, opened, trust, seen)
        if why:
            what = f"it widens authority, but {why}"
            fix = "trust the log's administrators by `admin` lines, if you do" if "trust file" in why else ""
            raise Broken(Finding(what, code="MDM-0651", chain=LOG, event=record.seq, type=record.type, fix=fix))
    for _, record in authority.stops:
        if why := why_no_stop(payload(record, "statement"), record.fact, opened, trust):
            what = f"it stops runs, but {why}"
            raise Broken(Finding(what, code="MDM-0651", chain=LOG, event=record.seq, type=record.type))
    return len(authority.signed)


def covers(stop: Any, agent: str, tenant: str) -> bool:
    return bool(stop.agent == agent or stop.tenant == tenant)


def why_no_stop(envelope: bytes | None, fact: Any, opened: LogOpened, trust: Trust) -> str:
    """Why a stop on chain `log` counts for nothing; "" when whoever it names signed exactly this."""
    if envelope is None:
        return "nobody signed it: it carries no statement"
    found = mail.check_log_stop(envelope, trust, admins(opened, trust))
    if isinstance(found, str):
        return f"its statement does not count: {found.replace('_', ' ')}"
    principal, said = found
    recorded = (fact.principal, opened.origin, fact.mode, fact.agent, fact.tenant)
    return "" if (principal, said.origin, said.mode, said.agent, said.tenant) == recorded else "its statement says something else"


def part_of(fact: Fact) -> str:
    """The payload that carries the administrators' signatures."""
    return "ballot" if isinstance(fact, Voted) else "statement"


def _why_no_allowance(envelope: bytes | None, fact: Voted, opened: LogOpened, trust: Trust) -> str:
    if envelope is None:
        return "it carries no ballot"
    keys = admins(opened, trust)
    if not keys:
        return "no administrator that the log names stands in the trust file"
    found = ballots.examine_standing(envelope, trust, keys, opened.quorum)
    if isinstance(found, str):
        return f"its ballot does not count: {found.replace('_', ' ')}"
    principal, ballot, _ = found
    if principal != fact.principal or ballots.ballot_digest(ballot) != fact.ballot or ballot.origin != opened.origin:
        return "its ballot is another one"
    return ""
