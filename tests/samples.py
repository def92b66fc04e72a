"""A small world made by hand: keys, a trust file, chain `log`, and one run of a payment that two people approve.

Everything is deterministic (keys come from names, salts from a counter), so that tests can name events and lines. The run crashes
after its intent, is taken over, reconciled and sealed; its nineteen events touch most record types.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import UNSET

from mandamus.core import records as r
from mandamus.core.accounts import Balance
from mandamus.core.canonical import canon, parse
from mandamus.core.clock import Clock, rfc3339
from mandamus.core.digests import action_digest, manifest_digest, operation_id, ownership, policy_digest
from mandamus.core.fold import fold
from mandamus.core.payload import Payload, card_digest
from mandamus.core.records import Fact, genesis_prev
from mandamus.core.run import state_digest
from mandamus.core.seal import Content, Draft, Position, Sealed, seal
from mandamus.proof import authority, ballot, bundle, dsse
from mandamus.proof.keys import COSIGNER, ED25519, VKey, b64, vkey
from mandamus.proof.trust import Trust

ORIGIN = "mandamus.local/0123456789abcdef"
RUN = "01JD9Z6Q7M0T3K8W5R2N4X1YBC"
MANIFEST = "name: Corporate Assistant\nmodel: scripted\n"
RULES: Any = [
    {
        "rules": [{"id": "pay.dual", "dualApproval": {"over": "1.00 USD", "chain": "treasury"}}],
        "chains": {"treasury": {"tiers": [{"quorum": 2, "roles": ["treasurer"]}]}},
    }
]
POLICY = {
    "engine/0": "e" * 64, "policy/policies.cedar": "permit (principal, action, resource);", "policy/rules.json": canon(RULES).decode(),
}  # fmt: skip
ENOUGH = POLICY | {"policy/rules.json": POLICY["policy/rules.json"].replace('"over":', '"standing":"enough","over":')}
ENOUGH_DIGEST = policy_digest(ENOUGH)  # the same rules, to which one allowance is enough
replace_struct = msgspec.structs.replace
START = 1_795_000_000_000_000
HOUR = 3_600_000_000
EMPTY_ANCHOR = r.Anchor(root=r.EMPTY_ROOT, size=0)


@dataclass(frozen=True)
class Keyring:
    """A private key that is known to everybody who reads this file."""

    private: Ed25519PrivateKey
    key: VKey

    @classmethod
    def of(cls, name: str, seed: str = "", kind: int = ED25519) -> Keyring:
        private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256((seed or name).encode()).digest())
        return cls(private, vkey(name, private.public_key().public_bytes_raw(), kind))

    def sign(self, message: bytes) -> bytes:
        return self.private.sign(message)


LOG_KEY = Keyring.of(ORIGIN)
BUNDLE_KEY = Keyring.of("bundles")
ALICE, ALICE_2, BOB, CAROL = Keyring.of("alice"), Keyring.of("alice-laptop"), Keyring.of("bob"), Keyring.of("carol")
ADMIN, ADMIN_2 = Keyring.of("admin-1"), Keyring.of("admin-2")
STRANGER = Keyring.of("stranger")
W1, W2, W3 = (Keyring.of(f"witness-{n}", kind=COSIGNER) for n in (1, 2, 3))

TRUST_TEXT = f"""# who is believed
log {LOG_KEY.key}
bundle local {BUNDLE_KEY.key}
approver p-alice {ALICE.key}
approver p-alice {ALICE_2.key}   # the same person, another machine
approver p-bob {BOB.key}
role treasurer p-alice p-bob
admin {ADMIN.key}
admin {ADMIN_2.key}
quorum none
"""


def trust(text: str = TRUST_TEXT) -> Trust:
    return Trust.parse(text)


def salts(prefix: str = "salt") -> Iterator[bytes]:
    number = 0
    while True:
        yield hashlib.sha256(f"{prefix}{number}".encode()).digest()
        number += 1


def clock(minutes: int) -> Clock:
    return Clock(now=START + minutes * 60_000_000, offset=0, tz="UTC")


@dataclass
class Chain:
    """Appends facts one by one, as a runtime would."""

    run: str
    epoch: int = 1
    sealed: list[Sealed] = field(default_factory=list)
    at: Position | None = None
    entropy: Iterator[bytes] = field(default_factory=salts)

    def add(self, fact: Fact, turn: int = 0, **body: Any) -> Sealed:
        if self.at is None:
            assert isinstance(fact, r.RunOpened | r.LogOpened)
            self.at = Position(self.run, -1, genesis_prev(self.run, fact), self.epoch)
        at = Position(self.at.run, self.at.seq, self.at.hash, self.epoch)
        contents = tuple(Content(part, value) for part, value in body.items())
        made, self.at = seal([Draft(fact, turn, contents)], at, rfc3339(START + len(self.sealed) * 1_000_000), self.entropy)
        self.sealed += made
        return made[0]

    @property
    def raws(self) -> list[bytes]:
        return [one.raw for one in self.sealed]

    @property
    def records(self) -> list[r.AnyRecord]:
        return [one.record for one in self.sealed]

    @property
    def payloads(self) -> list[Payload]:
        return [payload for one in self.sealed for payload in one.payloads]

    @property
    def head(self) -> str:
        return self.sealed[-1].hash

    def seal_up(self, closed: str = "completed") -> None:
        state = state_digest(fold(self.records))
        self.add(r.RunSealed(closed=closed, count=len(self.sealed), head=self.head, state=state), turn=self.records[-1].turn)  # type: ignore[arg-type]


def log_chain(*facts: tuple[Fact, dict[str, Any]], admins: tuple[Keyring, ...] = (ADMIN, ADMIN_2), quorum: int = 2) -> Chain:
    chain = Chain(r.LOG, entropy=salts("log"))
    keys = tuple(r.NamedKey(key=str(a.key), role=authority.ADMIN) for a in admins)
    chain.add(r.LogOpened(clock=clock(0), keys=keys, nonce="00" * 16, origin=ORIGIN, quorum=quorum))
    for fact, body in facts:
        chain.add(fact, **body)
    return chain


def statement(fact: Fact, *signers: Keyring, nonce: str = "n1", expires: int = START + 100 * HOUR, origin: str = ORIGIN) -> dict[str, Any]:
    said = authority.statement(fact, expires=expires, nonce=nonce, origin=origin)
    return parse(dsse.sign(authority.PAYLOAD_TYPE, said, [(s.key.id, s.sign) for s in signers]))


def enrolled() -> Chain:
    """Chain `log` with Bob enrolled by both administrators, and Carol's key revoked. Authority: version 2."""
    bob = r.KeyChanged(clock=clock(1), new=str(BOB.key), principal="p-bob", role="approver")
    gone = r.KeyChanged(clock=clock(2), old=str(CAROL.key), principal="p-carol", role="approver")
    return log_chain((bob, {"statement": statement(bob, ADMIN, ADMIN_2)}), (gone, {}))


@dataclass
class Story:
    """The run step by step; the knobs are what attacks turn."""

    log: Chain = field(default_factory=enrolled)
    authority: int = 2
    voters: tuple[tuple[str, Keyring], ...] = (("p-alice", ALICE), ("p-bob", BOB))
    alter: Callable[[ballot.Ballot], ballot.Ballot] = lambda b: b
    vote_minute: int = 5
    quorum: int = 2
    asked: int = 2
    count_votes: bool = True
    owner: Keyring = LOG_KEY
    seal: bool = True
    chain: Chain = field(default_factory=lambda: Chain(RUN))
    deltas: list[bytes] = field(default_factory=list)
    votes: list[int] = field(default_factory=list)

    policy: str = policy_digest(POLICY)
    price: r.Price | None = None

    def tell(self) -> Story:
        self.opened()
        self.proposed()
        self.escalated()
        self.voted()
        self.started()
        self.taken_over()
        self.finished()
        return self

    def opened(self) -> None:
        c = self.chain
        c.add(
            r.RunOpened(
                agent="Corporate Assistant",
                anchor=EMPTY_ANCHOR,
                budget=r.BudgetLimits(),
                clock=clock(3),
                definition="d" * 64,
                isolation="in_process",
                manifest=manifest_digest(MANIFEST),
                nonce="11" * 16,
                origin=ORIGIN,
                policy=self.policy,
                profile="none",
                register=r.Register(number=1, prev=""),
                tenant="t",
                tier="dev",
            ),
            input="Pay 50,000.00 USD to Acme Suppliers",
        )
        self.deltas.append(Balance("register").plus(RUN, 0)[1])
        if self.price is not None:
            c.add(r.ModelPriced(price=self.price))
        c.add(r.TurnStarted(clock=clock(3)), 1)
        c.add(r.ContextCompiled(items=1, tokens=20, window=1000), 1, manifest=[["input", 0]])
        c.add(r.ModelCalled(attempt=1, model="scripted", reserves=100), 1)

    def proposed(self) -> None:
        c = self.chain
        c.add(
            r.ModelReplied(attempt=1, calls=1, model="scripted", stop="calls", usage=r.Usage(input=20, output=9)),
            1,
            reply={"text": "", "calls": 1},
        )
        fact = r.ActionProposed(
            action="1.1",
            by="model",
            call="1.1",
            effect="reconcilable",
            kind="invoke",
            pin="p" * 64,
            safety="financial",
            tool="send_payment",
        )
        args = {"amount": {"amount": "5000000", "currency": "USD", "decimals": 2}, "to": "Acme Suppliers"}
        self.proposal = c.add(fact, 1, args=args)
        self.args = self.proposal.record.body[0].commit
        self.digest = action_digest(args=self.args, call="1.1", origin=ORIGIN, policy=self.policy, run=RUN, pin="p" * 64)

    def judged(self, verdict: Any, attempt: int = 1, asks: Any = UNSET) -> None:
        fact = r.ActionJudged(
            action="1.1",
            asks=asks,
            attempt=attempt,
            authority=self.authority,
            bundle=self.policy,
            determining=("pay.dual",),
            engine="cedar/4.12.2",
            layers=(r.Layer(layer="policy", of="agent", verdict=verdict),),
            verdict=verdict,
        )
        self.chain.add(fact, 1, facts={"amount": 5000000}, decision={"verdict": verdict})

    def escalated(self) -> None:
        self.judged("escalate", asks=(r.Ask(chain="treasury", quorum=self.asked),))
        card = {"action": self.digest, "effect": "Transfer corporate funds.", "needed": 2, "request": "REQ1", "v": "mandamus.card/1"}
        secret = self.proposal.payloads[0].bytes[:32]
        self.request = r.ApprovalRequested(
            about="start",
            action="1.1",
            card=card_digest(secret, card),
            chain="treasury",
            digest=self.digest,
            expires=clock(63).now,
            policy=self.policy,
            quorum=self.quorum,
            request="REQ1",
            tier=0,
            until=clock(63).now,
        )
        self.chain.add(self.request, 1, card=card)

    def ballot(self) -> ballot.Ballot:
        q = self.request
        return ballot.Ballot(
            action=q.digest,
            card=q.card,
            decision="approve",
            expires=q.expires,
            origin=ORIGIN,
            policy=q.policy,
            request=q.request,
            run=RUN,
            scope="once",
        )

    def voted(self) -> None:
        for number, (principal, key) in enumerate(self.voters, 1):
            signed = self.alter(self.ballot())
            fact = r.Voted(
                about="start",
                action="1.1",
                ballot=ballot.ballot_digest(signed),
                clock=clock(self.vote_minute + number),
                decision="approve",
                mail=r.MailRef(cursor=number, key=f"{number:064}"),
                principal=principal,
                request="REQ1",
                scope="once",
            )
            envelope = dsse.sign(ballot.PAYLOAD_TYPE, canon(_plain(signed)), [(key.key.id, key.sign)])
            self.votes.append(self.chain.add(fact, 1, ballot=parse(envelope)).record.seq)

    def started(self) -> None:
        self.judged("allow")
        reserves = (r.Reserve(account="limit/t/daily", amount=5_000_000),)
        fact = r.ActionStarted(
            action="1.1",
            attempt=1,
            capabilities=(r.Issued(capability="tool.invoke:send_payment", mechanism="in_process"),),
            deadline=30000,
            effect="reconcilable",
            landing=30000,
            operation=operation_id(args=self.args, call="1.1", run=RUN, tool="send_payment"),
            reserves=reserves,
            votes=tuple(self.votes) if self.count_votes else (),
        )
        seq = self.chain.add(fact, 1).record.seq
        self.balance, delta = Balance("limit/t/daily").plus(RUN, seq, reserved=5_000_000)
        self.deltas.append(delta)

    def taken_over(self) -> None:
        c = self.chain
        message = ownership(epoch=2, nonce="N2", origin=ORIGIN, prev=c.head, run=RUN, worker="w2")
        c.epoch = 2
        c.add(r.RunOwned(clock=clock(9), nonce="N2", signature=b64(self.owner.sign(message)), worker="w2"), 1)

    def finished(self) -> None:
        c = self.chain
        spends = (r.Reserve(account="limit/t/daily", amount=5_000_000),)
        fact = r.ActionEnded(action="1.1", attempt=1, output="valid", result="done", spends=spends, via="reconciled")
        seq = c.add(fact, 1, output={"receipt": "R-1"}).record.seq
        self.deltas.append(self.balance.plus(RUN, seq, reserved=-5_000_000, spent=5_000_000)[1])
        c.add(r.TurnStarted(clock=clock(10)), 2)
        c.add(r.ModelCalled(attempt=1, model="scripted", reserves=100), 2)
        c.add(
            r.ModelReplied(attempt=1, calls=0, model="scripted", stop="end", usage=r.Usage(input=40, output=5)), 2, reply={"text": "Paid."}
        )
        c.add(r.RunEnded(state="completed"), 2, output="Paid.")
        if self.seal:
            c.seal_up()

    def bundle(self, **changes: Any) -> bytes:
        given: dict[str, Any] = {
            "records": self.chain.raws, "payloads": [*self.chain.payloads, *self.log.payloads], "policies": {self.policy: POLICY},
            "manifest": MANIFEST, "signer": BUNDLE_KEY.sign, "key": BUNDLE_KEY.key, "log": self.log.raws, "deltas": self.deltas,
            "keys": [("log", LOG_KEY.key), ("approver", ALICE.key)],
        }  # fmt: skip
        return bundle.build(**(given | changes))


def sections(raw: bytes) -> dict[str, list[bytes]]:
    return {name: list(lines) for name, lines in bundle.read(raw).sections.items()}


def insider(lines: dict[str, list[bytes]], key: Keyring = BUNDLE_KEY, **said: Any) -> bytes:
    """A bundle of these sections, signed whatever they are: what somebody who holds the bundle key can do."""
    old = bundle.parse_statement(dsse.read(lines["dsse"][0]).payload)
    parts = tuple(bundle.Section(len(lines[n]), bundle.section_digest(n, lines[n]), n) for n in bundle.SECTIONS if n != "dsse")
    heads = {
        "count": len(lines["record"]), "head": r.event_hash(lines["record"][-1]),
        "log": bundle.Chained(len(lines["log"]), r.event_hash(lines["log"][-1]) if lines["log"] else ""),
    }  # fmt: skip
    new = replace_struct(old, **{"sections": parts, **heads, **said})
    envelope = dsse.sign(bundle.PAYLOAD_TYPE, bundle.statement(new), [(key.key.id, key.sign)])
    body = [line for name in bundle.SECTIONS[1:] for line in lines[name]]
    return b"\n".join([bundle.header(new), envelope, *body]) + b"\n"


def relinked(raws: list[bytes]) -> list[bytes]:
    """The same facts with every link made anew: what a writer without conscience does after an edit."""
    out: list[bytes] = []
    for raw in raws:
        link = b',"prev":"' + r.event_hash(out[-1]).encode() + b'","run":' if out else b""
        out.append(re.sub(rb',"prev":"[^"]*","run":', link, raw) if out else raw)
    return out


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def story(**knobs: Any) -> Story:
    return replace(Story(), **knobs).tell() if knobs else Story().tell()


def forged(raw: bytes, change: Callable[[list[bytes]], list[bytes]]) -> bytes:
    """The bundle's lines after `change`, as somebody without any key could write them."""
    return b"\n".join(change(raw[:-1].split(b"\n"))) + b"\n"
