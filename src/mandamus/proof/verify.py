"""`verify(bundle, trust) -> Report`: does this file prove what it says, to somebody who trusts only his own trust file?

Order: container, trust, signature, every record, chain log, payloads, seal, the proofs of the log, authority, owners, votes, accounts,
policies, views. The rule a
newcomer would break: nothing from the bundle is ever a reason to believe the bundle, and a claim that was not checked is not made.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mandamus.core.digests import operation_id, ownership
from mandamus.core.fold import fold
from mandamus.core.records import LOG, ActionJudged, ActionProposed, ActionStarted, AnyRecord, RunOpened, RunOwned, RunSealed
from mandamus.core.run import state_digest
from mandamus.errors import MandamusError, ProofError
from mandamus.proof import (
    again,
    authority,
    books,
    bundle,
    chain,
    continuity,
    dsse,
    levels,
    papers,
    period,
    population,
    shown,
    spending,
    spoken,
    stamps,
    tiers,
    witnessed,
)
from mandamus.proof.chains import Chains
from mandamus.proof.keys import VKey, unb64
from mandamus.proof.keys import verify as signed_by
from mandamus.proof.report import Broken, Claim, Finding, Report, State, exit_code, some, verdict
from mandamus.proof.tiles import Tiles
from mandamus.proof.trust import Trust
from mandamus.proof.votes import Votes, envelope_of

Check = Callable[[], Claim]
_STRAYS = (ArithmeticError, AssertionError, AttributeError, LookupError, MandamusError, RecursionError, TypeError, ValueError)


class Beside(Struct, frozen=True, kw_only=True):
    """What the person who asks gives besides bundle and trust file. Nothing of it has to be there.

    `views`: those that came with the bundle, by file name; they are made anew and compared. `blobs`: payloads beside the bundle, by name.
    `now`: the clock, seconds since 1970; `max_age`: seconds. `last`: what was seen last of each log; `tiles`: the log as files.
    `stamp`: reads an RFC 3161 reply against the root certificate that was given. `sample`: how many runs of a period, and the seed.
    `judge`: an engine that policy is asked again with.
    """

    views: Mapping[str, bytes] = {}
    blobs: Mapping[str, bytes] = {}
    now: int | None = None
    max_age: int | None = None
    last: continuity.Last | None = None
    tiles: Tiles | None = None
    stamp: stamps.Reader | None = None
    sample: tuple[int, str] | None = None
    judge: again.Judge | None = None


def verify(raw: bytes, trust: Trust | None, beside: Beside | None = None, *, regenerated: Mapping[str, bytes] | None = None) -> Report:
    """Never raises. `regenerated`: short for `Beside(views=...)`."""
    if not raw:
        return _nothing("the file is empty: there is nothing to verify", "name a bundle that `mandamus bundle RUN` wrote")
    if trust is None or not trust.logs or not trust.bundles:
        return _nothing(
            "no trust root was given",
            "--trust FILE, with a `log` and a `bundle` line that reached you another way than this bundle",
            "MDM-0649",
        )
    beside = beside or Beside()
    if regenerated is not None:
        beside = msgspec.structs.replace(beside, views=regenerated)
    if period.is_period(raw):
        return population.verify_period(
            raw, trust, now=beside.now, max_age=beside.max_age, tiles=beside.tiles, sample=beside.sample,
            continuity=None if beside.last is None else functools.partial(continuity.check, last=beside.last, tiles=beside.tiles),
        )  # fmt: skip
    return Case(trust, beside).report(raw)


def _nothing(what: str, fix: str, code: str = "MDM-0648") -> Report:
    return Report(verdict="NOT PROVEN", exit_code=2, broken=Finding(what, code=code, fix=fix))


class Case:
    """One bundle under examination. Each check is a method that returns a claim, or raises Broken with the first finding."""

    def __init__(self, trust: Trust, beside: Beside) -> None:
        self.trust, self.beside = trust, beside
        self.box: bundle.Container
        self.said: bundle.Predicate
        self.signer: VKey
        self.run: chain.Walk
        self.log: chain.Walk
        self.proofs: witnessed.Proofs
        self.authority = authority.Authority()
        self.lines: dict[shown.Key, shown.Line] = {}
        self.claims: list[Claim] = []
        self.broken: Finding | None = None
        self.attested = ""
        self.state: State = "unknown"

    def report(self, raw: bytes) -> Report:
        """The first group decides whether the rest has anything to stand on."""
        ground = self._all([lambda: self._container(raw), self._signature, self._records, self._log_chain, self._payloads])
        if ground:
            box, asked = self.box, self.beside
            run = witnessed.Run(self.said.origin, self.run.records, box.sections["record"], self.log.records, box.sections["log"])
            self.proofs = witnessed.Proofs(box.sections["proof"], box.first["proof"], run, self.trust, asked.now, asked.max_age)
            self._all(itertools.chain([self._seal], self._of_the_log(), self._of_the_run()), go_on=True)
        codes = {claim.exit_code for claim in self.claims}
        code = exit_code(codes)
        said = getattr(self, "said", None)
        seen = self.proofs.seen if ground else None
        return Report(
            verdict=verdict(code), exit_code=code, run=said.run if said else "", state=self.state, events=said.count if said else 0,
            head=said.head if said else "", checkpoint=seen, claims=tuple(self.claims), broken=self.broken, attested=self.attested,
        )  # fmt: skip

    def _of_the_log(self) -> Iterator[Check]:
        """What later claims are made at all is known when the proof lines were read."""
        yield self._checkpoint
        yield self._inclusion
        if self.proofs.rested:
            yield self._children
        if self.proofs.anchored:
            yield self._anchors
        if self.box.sections["tsr"]:
            yield self._stamps
        if self.beside.last is not None:
            yield self._continuity

    def _of_the_run(self) -> Iterator[Check]:
        yield from (self._authority, self._owners, self._operations, self._votes, self._accounts)
        yield from (self._policies, self._manifest, self._keys, self._views, self._sections)
        if spending.any_of(self.run.records):
            yield self._budget
        if spoken.any_of(self.run.records):
            yield self._mail
        if levels.any_of(self.run.records):
            yield self._levels
        if self.beside.judge is not None:
            yield self._again

    def _all(self, checks: Iterable[Check], go_on: bool = False) -> bool:
        """False when something does not hold (or, without it, nothing further can be said)."""
        for check in checks:
            try:
                claim = check()
            except Broken as error:
                claim = Claim(_name(check), "broken", error.diagnosis.what, 1)
                self.broken = self.broken or error.finding
            except _STRAYS:  # records that are legal one by one, and that no run makes in this order: never a reason to fall over
                found = Finding("the records are not ones that a run can make", code="MDM-0643")
                claim = Claim(_name(check), "broken", found.what, 1)
                self.broken = self.broken or found
            self.claims.append(claim)
            if claim.exit_code in (1, 5) and not go_on and claim.name != "state":
                return False
        return True

    # -- ground: container, signature, chains, payloads ------------------------------------------------------------------------
    def _container(self, raw: bytes) -> Claim:
        self.box = bundle.read(raw)
        return Claim("container", "proven", f"{self.box.lines} lines, canonical, in {len(self.box.sections)} sections")

    def _signature(self) -> Claim:
        """The DSSE line, by a bundle key of the trust file, for a log of the trust file; then line 1 as it must be."""
        keys = [key for _, key in self.trust.bundles]
        try:
            done = dsse.check(self.box.sections["dsse"][0], bundle.PAYLOAD_TYPE, keys)
            said = bundle.parse_statement(done.payload)
        except ProofError as error:
            d = error.diagnosis
            raise Broken(
                Finding(d.what, code=d.code, line=2, expected=d.expected, found=d.found, fix="check that the trust file is the one meant")
            ) from None
        if not self.trust.log_keys(said.origin):
            names = ", ".join(sorted({key.name for key in self.trust.logs}))
            raise Broken(
                Finding("the run belongs to a log that is not trusted", code="MDM-0650", line=2, expected=names, found=said.origin)
            )
        if done.keys[0] not in self.trust.bundle_keys(said.origin):
            raise Broken(
                Finding(
                    "the signer may not sign bundles of this log", code="MDM-0650", line=2, expected=said.origin, found=done.keys[0].name
                )
            )
        if bundle.header(said) != self.box.header:
            what = "the header is not the one that the signed statement demands"
            raise Broken(
                Finding(
                    what,
                    code="MDM-0645",
                    line=1,
                    expected=bundle.header(said).decode(),
                    found=self.box.header.decode("utf-8", "replace")[:400],
                )
            )
        self.said, self.signer = said, done.keys[0]
        return Claim("signature", "proven", f"by {done.keys[0].name}+{done.keys[0].id}, origin {said.origin}")

    def _records(self) -> Claim:
        raws = self.box.sections["record"]
        self.run = self._walk(raws, self.said.run, self.said.head)
        fact = self.run.records[0].fact if self.run.records else None
        if self.run.fault is not None:
            return self._too_new(self.run.fault, "chain")
        assert isinstance(fact, RunOpened)
        if (fact.origin, fact.manifest) != (self.said.origin, self.said.manifest):
            what = "the genesis belongs to another log or manifest than the signed statement says"
            raise Broken(
                Finding(what, code="MDM-0650", chain="run", event=0, type="RunOpened", expected=self.said.origin, found=fact.origin)
            )
        self.state = chain.state_of(self.run)
        if self.state != self.said.state:
            raise Broken(
                Finding(
                    "the run is in another state than the signed statement says",
                    code="MDM-0647",
                    line=2,
                    expected=self.state,
                    found=self.said.state,
                )
            )
        return Claim(
            "chain", "proven", f"{len(raws)} records from genesis to the signed head: canonical, linked, in order, each step legal"
        )

    def _walk(self, raws: list[bytes], run: str, head: str) -> chain.Walk:
        """Bytes first (backwards from the signed head), then what they say."""
        walked = chain.walk(raws, run)
        if walked.fault is None and walked.head == head:
            return walked
        name = LOG if run == LOG else "run"
        torn = chain.backward(raws, head, name)
        if torn is not None:
            self.attested = chain.attested(torn, len(raws)) if name == "run" else ""
            raise Broken(torn)
        if walked.fault is not None and walked.fault.code != chain.NEWER:
            raise Broken(walked.fault)
        return walked

    def _too_new(self, fault: Finding, name: str) -> Claim:
        return Claim(name, "cannot check now", f"{fault.where}: {fault.what}; its bytes are attested, a newer verifier can read them", 5)

    def _log_chain(self) -> Claim:
        raws = self.box.sections["log"]
        if not raws:
            self.log = chain.walk([], LOG)
            if self.said.log.head:
                raise Broken(Finding("chain log is missing", code="MDM-0642", chain=LOG, expected=self.said.log.head, found="no record"))
            return Claim("log", "not in this bundle", "no record of chain log: nothing had been enrolled, revoked or changed", 0)
        self.log = self._walk(raws, LOG, self.said.log.head)
        if self.log.fault is not None:
            return self._too_new(self.log.fault, "log")
        return Claim("log", "proven", f"{some(len(raws), 'record')} of chain log to the signed head")

    def _payloads(self) -> Claim:
        first = self.box.first["payload"]
        lines = [shown.read(raw, number) for number, raw in enumerate(self.box.sections["payload"], first)]
        self.lines = shown.match(lines, [*self.run.records, *self.log.records], self.beside.blobs)
        erased = shown.check_erased(list(self.lines.values()), self.log.records, self.said.run)
        hidden = [line for line in self.lines.values() if line.show != "whole"]
        if hidden:
            names = ", ".join(f"{line.key[2]} of event {line.key[1]} ({line.show})" for line in hidden[:5])
            return Claim(
                "payloads",
                "not in this bundle",
                f"{len(lines) - len(hidden)} of {len(lines)} shown and as committed; not shown: {names}"
                + (f"; {erased} erased, with record" if erased else ""),
                3,
            )
        return Claim("payloads", "proven", f"{some(len(lines), 'payload')}, each what its record committed to")

    # -- the rest: what the run claims -----------------------------------------------------------------------------------------
    def _seal(self) -> Claim:
        last = self.run.records[-1].fact
        if isinstance(last, RunSealed):
            found = _state(self.run.records[:-1])
            if found != last.state:
                raise Broken(
                    _at(self.run.records[-1], "the seal names another state than the records lead to", last.state, found, "MDM-0658")
                )
            return Claim("state", "proven", f"sealed: {last.closed}, {last.count} records, state recomputed")
        if self.run.life.unsettled:
            return Claim("state", "cannot check now", f"in doubt: nobody knows whether {', '.join(self.run.life.unsettled)} happened", 5)
        says = "open: the run may go on" if self.state == "open" else "interrupted: an action or a model call has no outcome yet"
        return Claim("state", "proven", says, 4)

    def _authority(self) -> Claim:
        """Chain log reaches as far as any judgement saw; everything in it that widens authority is signed by its administrators."""
        seen = max((record.fact.authority for record in self.run.records if isinstance(record.fact, ActionJudged)), default=0)
        self.authority = authority.read(self.log.records)
        self._nothing_by_the_retired()
        if self.authority.version < seen:
            what = "chain log ends before the newest change of authority that a judgement saw"
            raise Broken(Finding(what, code="MDM-0651", chain=LOG, expected=f"version {seen}", found=f"version {self.authority.version}"))
        if not self.log.records:
            return Claim("authority", "proven", "no judgement saw any change of authority")
        if self.authority.widened and not self.trust.admins:
            return Claim(
                "authority",
                "cannot check now",
                "the trust file names no administrator (`admin VKEY`), so changes of authority cannot be checked",
                5,
            )
        hidden = [record for record in self.authority.signed if self._hidden(record, authority.part_of(record.fact))]
        if hidden:
            return Claim(
                "authority", "not in this bundle", f"the {authority.part_of(hidden[0].fact)} of log event {hidden[0].seq} is not shown", 3
            )
        count = authority.check(self.log.records, self.authority, self.said.origin, self.trust, self._envelope)
        self._not_stopped()
        stops = len(self.authority.stops)
        revoked = some(len(self.authority.revoked), "key")
        told = f"version {self.authority.version}, {some(count - stops, 'signed change')} to what it allows, {revoked} revoked"
        return Claim("authority", "proven", told + (f", {some(stops, 'signed stop')}, none passed over" if stops else ""))

    def _nothing_by_the_retired(self) -> None:
        """What is signed over a chain that says the key is none any more was signed too late."""
        if self.authority.retired(self.signer):
            what = "the signer of the bundle had been retired"
            raise Broken(Finding(what, code="MDM-0656", line=2, found=f"{self.signer.name}+{self.signer.id}"))
        self.proofs.check_retired(self.authority.retired)

    def _not_stopped(self) -> None:
        """No intent stands on a judgement that saw the stop of its agent or tenant."""
        opened: Any = self.run.records[0].fact
        judged: Any = None
        for record in self.run.records if self.authority.stops else ():
            if isinstance(record.fact, ActionJudged):
                judged = record.fact
            elif isinstance(record.fact, ActionStarted):  # right behind its ALLOW, by the chain's rules
                stop = self.authority.stopped(opened.agent, opened.tenant, judged.authority)
                if stop is not None:
                    raise Broken(_at(record, f"it started although log event {stop.seq} had stopped it", "", "", "MDM-0651"))

    def _owners(self) -> Claim:
        keys = self.trust.log_keys(self.said.origin)
        count = version = 0
        for record in self.run.records:
            fact = record.fact
            if isinstance(fact, ActionJudged):
                version = max(version, fact.authority)
            elif isinstance(fact, RunOwned):  # whoever takes over after a judgement has no key that was retired before it
                count += 1
                keys = tuple(key for key in keys if not self.authority.was_revoked(key, version))
                if not _owned_by(keys, record, fact, self.said.origin):
                    raise Broken(
                        _at(record, "no trusted log key signed this takeover", ", ".join(f"{k.name}+{k.id}" for k in keys), "", "MDM-0659")
                    )
        return Claim(
            "owners", "proven", f"{some(count, 'takeover')} signed by the log's key" if count else "one owner from genesis to the head"
        )

    def _operations(self) -> Claim:
        """The idempotency key of every intent is the one of its call: the same for every attempt, another for every other action."""
        proposed: dict[str, str] = {}
        count = 0
        for record in self.run.records:
            fact = record.fact
            if isinstance(fact, ActionProposed):
                args = record.body[0].commit if record.body else ""
                proposed[fact.action] = operation_id(args=args, call=fact.call, run=record.run, tool=fact.tool)
            elif isinstance(fact, ActionStarted):
                count += 1
                wanted = proposed[fact.action]  # the chain's rules: nothing starts that was not proposed
                if fact.operation != wanted:
                    raise Broken(_at(record, "its operation id is not the one of this call", wanted, fact.operation, "MDM-0661"))
        return Claim("operations", "proven", f"{some(count, 'intent')}, each with the operation id of its call")

    def _votes(self) -> Claim:
        chains = Chains(papers.sources(self.box))
        totals = books.totals(self.box.sections["account"], self.box.first["account"])
        tally = Votes(self.run.records, self.log.records, self.trust, self.authority, self._shown, chains, totals).check()
        later = tiers.check(self.run.records, chains)
        if tally.hidden:
            hidden = ", ".join(list(dict.fromkeys(tally.hidden))[:5])
            return Claim("votes", "not in this bundle", f"{some(tally.votes, 'vote')} checked; not shown: {hidden}", 3)
        return Claim("votes", "proven", tally.words + (f"; {later} later tiers asked when their time came" if later else ""))

    def _mail(self) -> Claim:
        """Only where there is a stop or a message."""
        heard = spoken.check(self.run.records, self.trust, self._shown)
        told = f"{some(heard.stops, 'stop')} and {some(heard.messages, 'message')}, each signed by who is named"
        if heard.unknown:
            who = ", ".join(heard.unknown[:5])
            return Claim("mail", "cannot check now", f"{told}; the trust file holds no key (`frontend NAME VKEY`) for {who}", 5)
        if heard.hidden:
            return Claim("mail", "not in this bundle", f"{told}; not shown: {', '.join(heard.hidden[:5])}", 3)
        return Claim("mail", "proven", told)

    def _accounts(self) -> Claim:
        count, missing = books.check(self.box.sections["account"], self.box.first["account"], self.run.records)
        if missing:
            return Claim(
                "accounts", "not in this bundle", f"{some(count, 'delta')} as the records say; not settled yet: {', '.join(missing[:5])}", 3
            )
        return Claim("accounts", "proven", f"{some(count, 'delta')}, as reservations and spends say")

    def _budget(self) -> Claim:
        """Only where tokens, calls or money are limited."""
        calls, handoffs = spending.check(self.run.records)
        down = f" and {some(handoffs, 'task')} handed down" if handoffs else ""
        return Claim("budget", "proven", f"{calls} model calls{down} within what the genesis allows")

    def _policies(self) -> Claim:
        return papers.policies(self.box, self.run.records)

    def _manifest(self) -> Claim:
        return papers.manifest(self.box, self.said.manifest)

    def _keys(self) -> Claim:
        return papers.key_hints(self.box)

    def _views(self) -> Claim:
        values = {key: line.value for key, line in self.lines.items() if line.show == "whole"}
        return papers.compared(self.beside.views, self.run.records, values)

    def _sections(self) -> Claim:
        return papers.section_digests(self.box, self.said.sections)

    # -- the log ---------------------------------------------------------------------------------------------------------------
    def _checkpoint(self) -> Claim:
        return self.proofs.checkpoint()

    def _inclusion(self) -> Claim:
        return self.proofs.inclusion()

    def _children(self) -> Claim:
        return self.proofs.children()

    def _anchors(self) -> Claim:
        return self.proofs.anchors()

    def _stamps(self) -> Claim:
        box, own = self.box, self.proofs.lines
        head = own[0].proof.note if own else b""
        newest: dict[bytes, str] = {}
        for line in own:
            if line.job != "anchor":
                newest[line.proof.note] = max(newest.get(line.proof.note, ""), line.newest)
        return stamps.check(box.sections["tsr"], box.first["tsr"], newest, head, self.beside.stamp, self.beside.now)

    def _continuity(self) -> Claim:
        return continuity.check(self.proofs.seen, self.beside.last or {}, self.beside.tiles)

    def _again(self) -> Claim:
        assert self.beside.judge is not None
        return again.check(self.run.records, papers.sources(self.box), self._shown, self.beside.judge)

    def _levels(self) -> Claim:
        needed = self.proofs.demanded or bool(self.box.sections["proof"])
        return levels.check(self.run.records, self._shown, self.proofs.levels(), needed, self.proofs.demanded)

    # -- help ------------------------------------------------------------------------------------------------------------------
    def _shown(self, record: AnyRecord, part: str) -> shown.Line | None:
        line = self.lines.get((record.run, record.seq, part))
        return line if line is not None and line.show == "whole" else None

    def _hidden(self, record: AnyRecord, part: str) -> bool:
        line = self.lines.get((record.run, record.seq, part))
        return line is not None and line.show != "whole"

    def _envelope(self, record: AnyRecord, part: str) -> bytes | None:
        line = self._shown(record, part)
        return None if line is None else envelope_of(line.value)


def _name(check: Check) -> str:
    name = getattr(check, "__name__", "").lstrip("_")
    return {
        "<lambda>": "container",
        "records": "chain",
        "log_chain": "log",
        "seal": "state",
        "keys": "key hints",
        "again": "re-evaluation",
    }.get(name, name)


def _state(records: Sequence[AnyRecord]) -> str:
    """The digest of the fold; a chain that the fold cannot follow has none."""
    try:
        return state_digest(fold(records))
    except (KeyError, AssertionError, ValueError, TypeError, AttributeError, ProofError):
        return "none: the fold cannot follow these records"


def _owned_by(keys: Sequence[VKey], record: AnyRecord, fact: RunOwned, origin: str) -> bool:
    message = ownership(epoch=record.epoch, nonce=fact.nonce, origin=origin, prev=record.prev, run=record.run, worker=fact.worker)
    try:
        signature = unb64(fact.signature)
    except ValueError:
        return False
    return any(signed_by(key, message, signature) for key in keys)


def _at(record: AnyRecord, what: str, expected: str, found: str, code: str) -> Finding:
    return Finding(what, code=code, chain="run", event=record.seq, type=record.type, expected=expected, found=found)
