"""Who may widen authority, and what chain `log` says about it up to a version.

A record on chain `log` that widens authority carries, as payload `statement`, a DSSE by m of the administrators that `LogOpened`
names, or that took their place since; a key that takes another's place has signed it too, and so has the other. An allowance carries
their signatures on the envelope of its own `ballot`; what narrows authority needs none. Either raises the account `authority` by one: the
n-th such record makes version n. A stop narrows, but it moves runs: an approver or an administrator signs it like any other stop.
The rule a newcomer would break: `LogOpened` is not believed for being in the log. An administrator's key must stand in the trust file too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mandamus.core.canonical import accept, canon
from mandamus.core.records import (
    LOG,
    AnyRecord,
    Fact,
    HoldLifted,
    HoldPlaced,
    KeyChanged,
    LogOpened,
    PolicyChanged,
    StopRequested,
    Voted,
    VoteWithdrawn,
)
from mandamus.errors import Misuse, ProofError
from mandamus.proof import ballot as ballots
from mandamus.proof import dsse, mail
from mandamus.proof.keys import VKey, parse_vkey
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
    return isinstance(fact, StopRequested | PolicyChanged | KeyChanged | VoteWithdrawn | HoldPlaced | HoldLifted) or (
        isinstance(fact, Voted) and fact.scope == "standing"
    )


def widens(fact: Fact) -> bool:
    """Must it carry a statement?"""
    if isinstance(fact, KeyChanged):
        return fact.new is not UNSET
    return isinstance(fact, PolicyChanged | HoldLifted) or (isinstance(fact, Voted) and fact.scope == "standing")


def signable(fact: Fact) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(fact)
    return {name: value for name, value in plain.items() if name not in ("clock", "mail")}


def statement(fact: Fact, *, expires: int, nonce: str, origin: str) -> bytes:
    """The bytes that administrators sign, with `dsse.sign(authority.PAYLOAD_TYPE, ...)`."""
    said = Widening(expires=expires, fact=signable(fact), nonce=nonce, origin=origin, type=type(fact).__name__)
    return canon(msgspec.to_builtins(said))


def check_statement(envelope: bytes, fact: Fact, opened: LogOpened, keys: Sequence[VKey], seen: set[str]) -> str:
    """ "" when the statement widens exactly this, now, for the first time; else why not. Remembers its nonce in `seen`.

    `keys`: the administrators of then (`admins`). A key that takes another's place has signed it too, and so has the other.
    """
    if not keys:
        return "no administrator that the log names stands in the trust file"
    try:
        pair = _both(fact)
        done = dsse.check(envelope, PAYLOAD_TYPE, [*keys, *(key for key in pair if key not in keys)])
        if len([key for key in done.keys if key in keys]) < max(1, opened.quorum):
            return f"fewer than {opened.quorum} administrators signed it"
        if missing := [key for key in pair if key not in done.keys]:
            return f"{missing[0].name}+{missing[0].id} did not sign that one takes the other's place"
        said = msgspec.convert(accept(done.payload), Widening)
        if canon(msgspec.to_builtins(said)) != done.payload:  # a field that a reader would have to fill in
            return "the statement is of another form"
    except Misuse as error:
        return error.diagnosis.what
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


def _both(fact: Fact) -> list[VKey]:
    """The two keys of a rotation. Raises Misuse for one that is none."""
    if not isinstance(fact, KeyChanged) or fact.old is UNSET or fact.new is UNSET:
        return []
    return [parse_vkey(fact.old), parse_vkey(fact.new)]


def admins(opened: LogOpened, trust: Trust, changes: Iterable[KeyChanged] = ()) -> list[VKey]:
    """Administrators that the log names, at its opening or by `changes` up to then, *and* that the trust file holds."""
    keys = _named(opened, changes)
    return [key for key in trust.admins if _bytes_of(str(key)) in keys]


def administrators(opened: LogOpened, changes: Iterable[KeyChanged] = ()) -> list[VKey]:
    """Those that the log itself names: what they have not signed, no trust file makes theirs."""
    out = []
    for line in _named(opened, changes).values():
        with contextlib.suppress(Misuse):
            out.append(parse_vkey(line))
    return out


def _named(opened: LogOpened, changes: Iterable[KeyChanged]) -> dict[str, str]:
    named = {_bytes_of(key.key): key.key for key in opened.keys if key.role == ADMIN}
    for change in changes:
        if change.role == ADMIN:
            named.pop(_bytes_of(change.old or ""), None)
            named |= {_bytes_of(change.new): change.new} if change.new else {}
    return named


def _bytes_of(line: str) -> str:
    """The key itself, as a line of text ends with it. By which name the log or the trust file calls it, does not matter."""
    return line.split("+", 2)[-1]


def believed(trust: Trust, changes: Iterable[KeyChanged]) -> Trust:
    """The trust file without the people's keys that the log has retired. The file may lag behind; nobody waits for it."""
    gone = {_bytes_of(change.old) for change in changes if change.old}
    approvers = {public: entry for public, entry in trust.approvers.items() if _bytes_of(str(entry[1])) not in gone}
    return trust if len(approvers) == len(trust.approvers) else msgspec.structs.replace(trust, approvers=approvers)


class Authority:
    """Chain `log`, read: which version each record made, which keys were revoked at which, which allowances were granted and withdrawn."""

    def __init__(self) -> None:
        self.version = 0
        self.revoked: dict[str, int] = {}
        self.keys: list[tuple[int, KeyChanged]] = []
        self.granted: dict[str, tuple[int, AnyRecord]] = {}
        self.withdrawn: dict[str, int] = {}
        self.widened: list[tuple[int, AnyRecord]] = []
        self.stops: list[tuple[int, AnyRecord]] = []

    @property
    def signed(self) -> list[AnyRecord]:
        """Records that count only with somebody's signature."""
        return [record for _, record in (*self.widened, *self.stops)]

    def stopped(self, agent: str, tenant: str, version: int) -> AnyRecord | None:
        """The stop that was in force for this agent or tenant at `version`."""
        found = ((n, record, record.fact) for n, record in self.stops)
        return next((x for n, x, fact in found if n <= version and covers(fact, agent, tenant)), None)

    def was_revoked(self, key: VKey, version: int) -> bool:
        return self.revoked.get(_bytes_of(str(key)), version + 1) <= version

    def retired(self, key: VKey) -> bool:
        """Whether this chain says that the key is none any more: what is signed with it over this chain was signed too late."""
        return _bytes_of(str(key)) in self.revoked

    def before(self, version: int) -> list[KeyChanged]:
        """The changes of keys that stood when `version` was made."""
        return [change for n, change in self.keys if n < version]


Open = Callable[[AnyRecord, str], bytes | None]


def read(records: Sequence[AnyRecord]) -> Authority:
    out = Authority()
    for record in records:
        fact = record.fact
        if not raises(fact):
            continue
        out.version += 1
        if widens(fact):
            out.widened.append((out.version, record))
        if isinstance(fact, KeyChanged):
            out.keys.append((out.version, fact))
            if fact.old is not UNSET:
                out.revoked.setdefault(_bytes_of(fact.old), out.version)
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
    for version, record in authority.widened:
        keys = admins(opened, trust, authority.before(version))
        if isinstance(record.fact, Voted):
            why = _why_no_allowance(payload(record, "ballot"), record.fact, opened, trust, keys)
        else:
            envelope = payload(record, "statement")
            why = "it carries no statement" if envelope is None else check_statement(envelope, record.fact, opened, keys, seen)
        if why:
            what = f"it widens authority, but {why}"
            fix = "trust the log's administrators by `admin` lines, if you do" if "trust file" in why else ""
            raise Broken(Finding(what, code="MDM-0651", chain=LOG, event=record.seq, type=record.type, fix=fix))
    for version, record in authority.stops:
        keys = admins(opened, trust, authority.before(version))
        if why := why_no_stop(payload(record, "statement"), record.fact, opened, trust, keys):
            what = f"it stops runs, but {why}"
            raise Broken(Finding(what, code="MDM-0651", chain=LOG, event=record.seq, type=record.type))
    return len(authority.signed)


def covers(stop: Any, agent: str, tenant: str) -> bool:
    return bool(stop.agent == agent or stop.tenant == tenant)


def why_no_stop(envelope: bytes | None, fact: Any, opened: LogOpened, trust: Trust, keys: Sequence[VKey]) -> str:
    """Why a stop on chain `log` counts for nothing; "" when whoever it names signed exactly this."""
    if envelope is None:
        return "nobody signed it: it carries no statement"
    found = mail.check_log_stop(envelope, trust, keys)
    if isinstance(found, str):
        return f"its statement does not count: {found.replace('_', ' ')}"
    principal, said = found
    recorded = (fact.principal, opened.origin, fact.mode, fact.agent, fact.tenant)
    return "" if (principal, said.origin, said.mode, said.agent, said.tenant) == recorded else "its statement says something else"


def part_of(fact: Fact) -> str:
    """The payload that carries the administrators' signatures."""
    return "ballot" if isinstance(fact, Voted) else "statement"


def _why_no_allowance(envelope: bytes | None, fact: Voted, opened: LogOpened, trust: Trust, keys: Sequence[VKey]) -> str:
    if envelope is None:
        return "it carries no ballot"
    if not keys:
        return "no administrator that the log names stands in the trust file"
    found = ballots.examine_standing(envelope, trust, keys, opened.quorum)
    if isinstance(found, str):
        return f"its ballot does not count: {found.replace('_', ' ')}"
    principal, ballot, _ = found
    if principal != fact.principal or ballots.ballot_digest(ballot) != fact.ballot or ballot.origin != opened.origin:
        return "its ballot is another one"
    return ""
