"""Cases that a verifier must survive: facts that the rules cannot have made, amounts beyond counting, statements with a field too few."""

from __future__ import annotations

from typing import Any

import msgspec

from mandamus.core import records as r
from mandamus.core.canonical import canon, parse
from mandamus.core.money import Money
from mandamus.proof import authority, ballot, dsse, note, tlogproof
from mandamus.proof import mail as post
from mandamus.proof.keys import COSIGNER_PQ, vkey
from tests.attack.test_bundle_log import told
from tests.attack.test_red_lending import allowed, charged
from tests.logged import NOW, QUORUM, Log, proofs
from tests.samples import (
    ADMIN,
    ADMIN_2,
    ALICE,
    BOB,
    ENOUGH,
    ENOUGH_DIGEST,
    LOG_KEY,
    ORIGIN,
    RUN,
    START,
    TRUST_TEXT,
    W1,
    W2,
    W3,
    Keyring,
    Story,
    clock,
    insider,
    log_chain,
    sections,
    statement,
    story,
)
from tests.verifiers.corpus import Builder, Case

replace = msgspec.structs.replace
HUGE = {"amount": "9" * 30, "currency": "USD", "decimals": 2}


def made() -> list[Case]:
    b = Builder("odd")
    _budgets(b)
    _amounts(b)
    _closed(b)
    _trust(b)
    _names(b)
    _witnessed(b)
    return b.made


class Changed(Story):
    """The story with other facts: `change` is asked about each before it is written, `after` what follows it."""

    def change(self, fact: r.Fact) -> r.Fact:
        return fact

    def after(self, fact: r.Fact) -> list[r.Fact]:
        return []

    def told(self) -> bytes:
        add = self.chain.add

        def changed(fact: r.Fact, turn: int = 0, **body: Any) -> Any:
            out = add(self.change(fact), turn, **body)
            for more in self.after(fact):
                add(more, turn)
            return out

        self.chain.add = changed  # type: ignore[method-assign]
        self.tell()
        return self.bundle()


def limited(follows: tuple[str, r.Fact] | None = None, price: r.Price | None = None, seal: bool = True, **limits: Any) -> bytes:
    """A run with these limits, and perhaps one more fact behind the first of a type."""

    class Limited(Changed):
        done = False

        def change(self, fact: r.Fact) -> r.Fact:
            return replace(fact, budget=r.BudgetLimits(**limits)) if isinstance(fact, r.RunOpened) else fact

        def after(self, fact: r.Fact) -> list[r.Fact]:
            if follows is None or self.done or type(fact).__name__ != follows[0]:
                return []
            self.done = True
            return [follows[1]]

    return Limited(price=price, seal=seal).told()


def _budgets(b: Builder) -> None:
    price = r.Price(currency="USD", input=2_500_000, output=10_000_000)
    b.honest("within_its_tokens", limited(tokens=1000))
    b.honest("within_its_calls", limited(calls=9))
    b.honest("within_its_money", limited(price=price, cost=1_000_000, currency="USD"))
    b.attack(2, "beyond_its_tokens", limited(tokens=128))
    b.attack(2, "beyond_its_calls", limited(calls=1))
    b.attack(2, "beyond_its_money", limited(price=price, cost=900, currency="USD"))
    b.attack(2, "money_without_a_price", limited(cost=1_000_000, currency="USD"))
    b.attack(2, "price_in_another_currency", limited(price=price, cost=1_000_000, currency="EUR"))
    used = r.CapabilityChecked(action="9.9", capability="clock", mechanism="in_process", result="granted", use=1)
    b.attack(2, "capability_of_no_action_under_a_budget", limited(("TurnStarted", used), seal=False, tokens=1000))
    ended = r.RunHalted(cause="people", code="stop")
    b.honest("halted_and_gone_on_under_a_budget", limited(("ModelReplied", ended), tokens=1000))


def _amounts(b: Builder) -> None:
    class Rich(Changed):
        """Pays more than policy can count."""

        def proposed(self) -> None:
            add = self.chain.add

            def huge(fact: r.Fact, turn: int = 0, **body: Any) -> Any:
                if isinstance(fact, r.ActionProposed):
                    body = {"args": {"amount": HUGE, "to": "Acme Suppliers"}}
                return add(fact, turn, **body)

            self.chain.add = huge  # type: ignore[method-assign]
            super().proposed()
            self.chain.add = add  # type: ignore[method-assign]

        def judged(self, verdict: Any, attempt: int = 1, asks: Any = msgspec.UNSET) -> None:
            add = self.chain.add

            def told(fact: r.Fact, turn: int = 0, **body: Any) -> Any:
                if isinstance(fact, r.ActionJudged):
                    body = {**body, "facts": {"amount": {"currency": "USD", "minor": 2**53 - 1}}}
                return add(fact, turn, **body)

            self.chain.add = told  # type: ignore[method-assign]
            super().judged(verdict, attempt, asks)
            self.chain.add = add  # type: ignore[method-assign]

    b.attack(66, "an_amount_beyond_counting", Rich().told())
    b.attack(62, "allowance_beyond_counting", allowed(amount=Money("9" * 30, "USD", 2), charges={"amount/all": 1, "count/all": 1}))
    b.attack(62, "allowance_for_a_list_of_arguments", _with_pattern({"tool": "send_payment", "args": ["to"]}))
    b.attack(62, "allowance_for_no_arguments_at_all", _with_pattern({"tool": "send_payment", "args": None}))


def _with_pattern(pattern: Any) -> bytes:
    """An allowance whose pattern has arguments that are none."""
    standing = {"chain": "treasury", "count": 2, "pattern": pattern, "salt": "5a" * 32, "until": clock(600).now, "window": "until"}
    said = {
        "decision": "approve", "domain": ballot.DOMAIN, "expires": clock(600).now, "origin": ORIGIN, "policy": ENOUGH_DIGEST, "run": "log",
        "scope": {"standing": standing},
    }  # fmt: skip
    return _granted(said, ALICE, ADMIN, ADMIN_2)


def _granted(said: dict[str, Any], *signers: Keyring) -> bytes:
    envelope = dsse.sign(ballot.PAYLOAD_TYPE, canon(said), [(s.key.id, s.sign) for s in signers])
    name = ballot.ballot_digest(msgspec.convert(said, ballot.Ballot))
    voted = r.Voted(about="start", ballot=name, clock=clock(1), decision="approve", principal="p-alice", scope="standing")
    tale = Story(log=log_chain((voted, {"ballot": parse(envelope)})), authority=1, policy=ENOUGH_DIGEST)
    tale.opened()
    tale.proposed()
    tale.judged("allow")
    reserve = r.Reserve(account=f"standing/{name}/count/all", amount=1)
    tale.chain.add(replace(charged(tale), reserves=(reserve,)), 1)
    return tale.bundle(policies={ENOUGH_DIGEST: ENOUGH})


def _closed(b: Builder) -> None:
    """What was signed has every field of its kind, the domain too, even where a reader could fill it in."""

    class Undomained(Story):
        def voted(self) -> None:
            add = self.chain.add

            def bare(fact: r.Fact, turn: int = 0, **body: Any) -> Any:
                said = {k: v for k, v in msgspec.to_builtins(self.ballot()).items() if k != "domain"}
                key = ALICE if fact.principal == "p-alice" else BOB  # type: ignore[attr-defined]
                return add(fact, turn, ballot=parse(dsse.sign(ballot.PAYLOAD_TYPE, canon(said), [(key.key.id, key.sign)])))

            self.chain.add = bare  # type: ignore[method-assign]
            super().voted()
            self.chain.add = add  # type: ignore[method-assign]

    tale = Undomained()
    tale.tell()
    b.attack(56, "ballots_without_a_domain", tale.bundle())
    bob = r.KeyChanged(clock=clock(1), new=str(BOB.key), principal="p-bob", role="approver")
    said = {"expires": START * 2, "fact": authority.signable(bob), "nonce": "n", "origin": ORIGIN, "type": "KeyChanged"}
    envelope = dsse.sign(authority.PAYLOAD_TYPE, canon(said), [(s.key.id, s.sign) for s in (ADMIN, ADMIN_2)])
    b.attack(63, "statement_without_a_domain", story(log=log_chain((bob, {"statement": parse(envelope)})), authority=1).bundle())
    stop = Story()
    stop.opened()
    words = {"mode": "halt", "nonce": "n", "origin": ORIGIN, "run": RUN}
    halted = dsse.sign(post.STOP_TYPE, canon(words), [(ALICE.key.id, ALICE.sign)])
    stop.chain.add(r.StopRequested(clock=clock(4), mode="halt", principal="p-alice"), 1, statement=parse(halted))
    b.attack(56, "stop_without_a_domain", stop.bundle())


def _trust(b: Builder) -> None:
    """Trust files that mean something else than they seem to: nobody reads with them."""
    witnesses = f"witness one {W1.key}\nwitness two {W2.key}\n"
    shared = "group a 1 one two\ngroup b 1 one two\ngroup both all a b\nquorum both\n"
    bad = {
        "one_witness_in_two_groups": witnesses + shared,
        "witnesses_and_no_quorum": witnesses,
        "line_end_in_a_comment": f"{witnesses}quorum none # \rquorum two\n",
        "turned_writing_in_a_comment": f"{witnesses}quorum none # \u202eowt\n",
        "a_space_that_is_none": f"{witnesses}quorum\u00a0none\n",
    }
    for name, lines in bad.items():
        b.attack(55, f"trust_{name}", story().bundle(), 2, trust=TRUST_TEXT.replace("quorum none\n", "") + lines)
    tabs = TRUST_TEXT.replace("log ", "log\t ").replace("\n", "\r\n")
    b.honest("trust_with_tabs_and_carriage_returns", story().bundle(), trust=tabs)


def renamed(key: Keyring, name: str) -> Keyring:
    return Keyring(key.private, vkey(name, key.key.public, key.key.kind))


def _names(b: Builder) -> None:
    """A key is its bytes, whatever the trust file calls it."""
    bobby = renamed(BOB, "bobby")
    people = TRUST_TEXT.replace(str(BOB.key), str(bobby.key))
    voters = (("p-alice", ALICE), ("p-bob", bobby))
    b.honest("voted_under_another_key_name", story(voters=voters).bundle(), trust=people)
    gone = r.KeyChanged(clock=clock(1), old=str(BOB.key), principal="p-bob", role="approver")
    b.attack(45, "revoked_under_another_name", story(log=log_chain((gone, {})), authority=1, voters=voters).bundle(), trust=people)
    chief = renamed(ADMIN, "chief")
    bob = r.KeyChanged(clock=clock(1), new=str(BOB.key), principal="p-bob", role="approver")
    log = log_chain((bob, {"statement": statement(bob, chief, ADMIN_2)}))
    b.honest("enrolled_under_another_name", story(log=log, authority=1).bundle(), trust=TRUST_TEXT.replace(str(ADMIN.key), str(chief.key)))
    fresh = Keyring.of(ORIGIN, "fresh")
    change = r.KeyChanged(clock=clock(2), new=str(fresh.key), old=str(LOG_KEY.key), principal="operator", role="log")

    def owned(owner: Keyring, authority_: int) -> bytes:
        said = statement(change, ADMIN, ADMIN_2, LOG_KEY, fresh)
        return story(log=log_chain((change, {"statement": said})), authority=authority_, owner=owner).bundle()

    both = TRUST_TEXT + f"log {fresh.key}\n"
    b.honest("taken_over_with_the_new_key", owned(fresh, 1), trust=both)
    b.honest("taken_over_before_the_key_was_retired", owned(LOG_KEY, 0), trust=both)
    b.attack(45, "taken_over_with_a_retired_key", owned(LOG_KEY, 1), trust=both)


def _witnessed(b: Builder) -> None:
    tale = story()
    log = Log().add([*tale.log.raws, *tale.chain.raws])
    text = log.checkpoint().text

    def seen(*times: int, text: str = text) -> bytes:
        lines = [note.sign_line(text, LOG_KEY.key, LOG_KEY.sign)]
        lines += [note.cosign_line(text, w.key, w.sign, at) for w, at in zip((W1, W2, W3), times, strict=False)]
        return tale.bundle(proofs=proofs(tale, log, signed=note.write(text, lines)))

    here: dict[str, Any] = {"trust": QUORUM, "now": NOW}
    b.honest("two_of_three_lately", seen(NOW, NOW - 100, NOW - 5000), max_age=100, **here)
    b.attack(30, "one_of_three_lately", seen(NOW, NOW - 101, NOW - 5000), 3, max_age=100, **here)
    for size in (2**53, 2**53 + 1, 9_999_999_999_999_999):
        b.attack(38, f"size_of_{size}", seen(NOW, NOW, text=text.replace(f"\n{log.tree.size}\n", f"\n{size}\n")), **here)
    lines = sections(tale.bundle(proofs=proofs(tale, log)))
    high = lines["proof"][0].replace(b"index ", b"index 9007199254740993\\nindex ")
    b.attack(38, "two_indexes", insider({**lines, "proof": [high, lines["proof"][1]]}), **here)
    read = tlogproof.parse(proofs(tale, log)[0])
    far = tlogproof.write(2**53 + 1, read.path, read.note)
    b.attack(38, "index_beyond_what_is_exact", tale.bundle(proofs=(far, proofs(tale, log)[1])), **here)
    leveled, whole = told()
    b.honest("level_that_no_witness_is_asked_for", leveled.bundle(proofs=leveled.lines(whole)), trust=TRUST_TEXT, now=NOW)
    _post_quantum(b)


def _post_quantum(b: Builder) -> None:
    """A witness whose key is of ML-DSA-44. A verifier without it cannot check (5), and must not say that it could."""
    try:
        from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey

        private, thief = (MLDSA44PrivateKey.from_seed_bytes(bytes([n]) * 32) for n in (0, 1))
    except Exception:  # the library of this machine was built without it
        return
    key = vkey("quantum", private.public_key().public_bytes_raw(), COSIGNER_PQ)
    tale = story()
    log = Log().add([*tale.log.raws, *tale.chain.raws])
    text = log.checkpoint().text
    roots = TRUST_TEXT.replace("quorum none\n", "") + f"witness q {key}\nquorum q\n"
    for name, signer, codes in (("by_ml_dsa", private, (0, 5)), ("by_a_thief_s_ml_dsa", thief, (1, 5))):
        signed = note.write(text, [note.sign_line(text, LOG_KEY.key, LOG_KEY.sign), note.cosign_line(text, key, signer.sign, NOW)])
        raw, attack = tale.bundle(proofs=proofs(tale, log, signed=signed)), 0 if 0 in codes else 32
        b.made.append(Case(f"odd/cosigned_{name}", raw, codes, attack=attack, trust=roots, now=NOW))
