"""Cases that single checks alone catch: each was written because a verifier without that check still passed all the others."""

from __future__ import annotations

from typing import Any

import msgspec

from mandamus.core import records as r
from mandamus.core.accounts import Balance
from mandamus.core.canonical import canon, parse
from mandamus.proof import bundle, dsse
from mandamus.proof import mail as post
from tests.attack.test_red_lending import charged, granted
from tests.logged import Parent
from tests.samples import (
    ADMIN,
    ALICE,
    BOB,
    ENOUGH,
    ENOUGH_DIGEST,
    ORIGIN,
    POLICY,
    RUN,
    STRANGER,
    TRUST_TEXT,
    W1,
    W2,
    Chain,
    Keyring,
    Story,
    clock,
    forged,
    insider,
    log_chain,
    sections,
    story,
)
from tests.verifiers.corpus import Builder, Case
from tests.verifiers.corpus_odd import Changed

replace = msgspec.structs.replace


def made() -> list[Case]:
    b = Builder("more")
    _stops(b)
    _requests(b)
    _accounts(b)
    _children(b)
    _files(b)
    return b.made


# -- stops on chain log ------------------------------------------------------------------------------------------------------
def stop(*signers: Keyring, **said: Any) -> dict[str, Any]:
    words = {"agent": "Corporate Assistant", "domain": "mandamus/stop/v1", "mode": "halt", "nonce": "n", "origin": ORIGIN, "run": "log"}
    plain = {name: value for name, value in (words | said).items() if value is not None}
    return {"statement": parse(dsse.sign(post.STOP_TYPE, canon(plain), [(s.key.id, s.sign) for s in signers]))}


def stopped(body: dict[str, Any], authority: int = 0, principal: str = "p-alice", **fact: Any) -> bytes:
    """A stop on chain log, and a run that had seen it, or not yet."""
    named = fact or {"agent": "Corporate Assistant"}
    halt = r.StopRequested(clock=clock(1), mode="halt", principal=principal, **named)
    return story(log=log_chain((halt, body)), authority=authority).bundle()


def _stops(b: Builder) -> None:
    b.honest("stopped_later", stopped(stop(ALICE)))
    b.honest("another_agent_was_stopped", stopped(stop(ALICE, agent="other"), 1, agent="other"))
    b.honest("stopped_by_an_administrator", stopped(stop(ADMIN), 0, "p-administrator"))
    b.attack(56, "started_although_stopped", stopped(stop(ALICE), 1))
    b.attack(56, "started_although_its_tenant_was_stopped", stopped(stop(ALICE, agent=None, tenant="t"), 1, tenant="t"))
    b.attack(63, "stopped_by_nobody", stopped({}))
    b.attack(63, "stopped_by_a_stranger", stopped(stop(STRANGER)))
    b.attack(63, "stopped_under_another_name", stopped(stop(BOB)))
    b.attack(63, "stop_about_another_agent", stopped(stop(ALICE, agent="other")))
    b.attack(63, "stop_of_another_log", stopped(stop(ALICE, origin="other")))
    b.attack(63, "stop_of_a_run_on_the_log", stopped(stop(ALICE, run=RUN)))
    b.attack(63, "stop_of_agent_and_tenant", stopped(stop(ALICE, tenant="t")))


# -- requests and votes ------------------------------------------------------------------------------------------------------
def changed(change: Any, **knobs: Any) -> bytes:
    class Told(Changed):
        def change(self, fact: r.Fact) -> r.Fact:
            return change(self, fact)  # type: ignore[no-any-return]

    return Told(**knobs).told()


def _other_digest(tale: Any, fact: r.Fact) -> r.Fact:
    if isinstance(fact, r.ApprovalRequested):
        fact = tale.request = replace(fact, digest="0" * 64)
    return fact


def _longer(tale: Any, fact: r.Fact) -> r.Fact:
    """The same request, asked for one person with another card."""
    return replace(fact, card="0" * 64) if isinstance(fact, r.ApprovalRequested) else fact


def _veto(tale: Any, fact: r.Fact) -> r.Fact:
    return replace(fact, veto=True) if isinstance(fact, r.Voted) else fact


def _other_tool(tale: Any, fact: r.Fact) -> r.Fact:
    return replace(fact, pin="q" * 64) if isinstance(fact, r.ActionProposed) else fact


class AnotherPolicy(Changed):
    """Asked under one policy, allowed under another."""

    def change(self, fact: r.Fact) -> r.Fact:
        return replace(fact, bundle=ENOUGH_DIGEST) if isinstance(fact, r.ActionJudged) and fact.verdict == "allow" else fact

    def bundle(self, **changes: Any) -> bytes:
        return super().bundle(**({"policies": {self.policy: POLICY, ENOUGH_DIGEST: ENOUGH}} | changes))


def _requests(b: Builder) -> None:
    b.attack(56, "request_about_another_call", changed(_other_digest))
    b.attack(66, "request_with_another_card", changed(_longer))
    b.attack(62, "a_veto_of_somebody_who_has_none", changed(_veto))
    b.attack(27, "request_about_another_contract", changed(_other_tool))
    b.attack(56, "voted_under_another_policy", AnotherPolicy().told())
    b.honest("allowance_for_somebody_else_s_request", lent(user=r.User(principal="p-bob")), 4)
    b.attack(62, "allowance_for_one_s_own_request", lent(user=r.User(principal="p-alice")))
    b.attack(62, "allowance_where_a_person_must_look", lent("ask.art22"))  # GDPR, Art. 22


def lent(rule: str = "pay.dual", user: Any = msgspec.UNSET) -> bytes:
    """A payment under an allowance of p-alice: asked for by `user`, judged by `rule`."""
    name, voted = granted(ENOUGH_DIGEST, "p-alice", ALICE)

    class Lent(Changed):
        def change(self, fact: r.Fact) -> r.Fact:
            fact = replace(fact, user=user) if isinstance(fact, r.RunOpened) else fact
            return replace(fact, determining=(rule,)) if isinstance(fact, r.ActionJudged) else fact

        def tell(self) -> Story:
            self.opened()
            self.proposed()
            self.judged("allow")
            fact = charged(self, name)
            seq = self.chain.add(fact, 1).record.seq
            self.deltas += [Balance(x.account).plus(RUN, seq, reserved=x.amount)[1] for x in fact.reserves]
            return self

        def bundle(self, **changes: Any) -> bytes:
            return super().bundle(**({"policies": {ENOUGH_DIGEST: ENOUGH}} | changes))

    return Lent(log=log_chain(voted), authority=1, policy=ENOUGH_DIGEST).told()


# -- accounts, children, files -----------------------------------------------------------------------------------------------
def _accounts(b: Builder) -> None:
    tale = story()
    first, reserved, settled = tale.deltas
    plain = parse(settled)
    lies: dict[str, dict[str, Any]] = {
        "unlinked": {"prev": "0" * 64},
        "sums_wrong": {"spent": plain["spent"] + 1},
        "version_again": {"version": 1},
    }
    for name, change in lies.items():
        b.attack(2, f"delta_{name}", tale.bundle(deltas=[first, reserved, canon(plain | change)]))
    led = canon(parse(first) | {"prev": "0" * 64})
    b.attack(2, "delta_first_with_a_predecessor", tale.bundle(deltas=[led, reserved, settled]))
    b.honest("delta_after_others", tale.bundle(deltas=[first, reserved, canon(plain | {"prev": "0" * 64, "version": 7})]))
    odd = Balance("limit/x").plus(RUN, 1, reserved=5)[1]
    b.attack(2, "delta_that_nothing_explains", tale.bundle(deltas=[first, odd, reserved, settled]))
    less, one = Balance("limit/t/daily").plus(RUN, parse(reserved)["seq"], reserved=4_000_000)
    two = less.plus(RUN, plain["seq"], reserved=-4_000_000, spent=5_000_000)[1]
    b.attack(2, "deltas_that_add_up_to_less", tale.bundle(deltas=[first, one, two]))


class Handed(Parent):
    """Hands a task down; the genesis limits tokens, and nothing is reserved for the child."""

    limit: Any = msgspec.UNSET
    other: bool = False

    def opened(self) -> None:
        self._hook(lambda fact: replace(fact, budget=r.BudgetLimits(tokens=self.limit)) if isinstance(fact, r.RunOpened) else fact)
        super().opened()

    def started(self) -> None:
        if self.other:
            self._hook(lambda fact: replace(fact, child="A" * 26) if isinstance(fact, r.ActionStarted) else fact)
        super().started()

    def _hook(self, change: Any) -> None:
        add = Chain.add.__get__(self.chain)
        self.chain.add = lambda fact, turn=0, **body: add(change(fact), turn, **body)  # type: ignore[method-assign]


def handed(**knobs: Any) -> bytes:
    tale = Handed()
    for name, value in knobs.items():
        setattr(tale, name, value)
    tale.tell()
    return tale.bundle()


def _children(b: Builder) -> None:
    b.honest("task_handed_down", handed())
    b.attack(2, "task_handed_down_beyond_the_budget", handed(limit=1000))
    b.attack(46, "child_that_the_intent_does_not_name", handed(other=True))


def _files(b: Builder) -> None:
    whole = story().bundle()
    lines = sections(whole)
    hint = canon({"key": str(BOB.key), "role": "approver"})
    b.attack(45, "key_hint_exchanged", forged(whole, lambda rows: [hint if row == lines["key"][1] else row for row in rows]))
    bare = {**lines, "log": [], "payload": [x for x in lines["payload"] if b'"run":"log"' not in x]}
    b.attack(65, "log_left_out_but_signed_for", insider(bare, log=bundle.Chained(0, "ab" * 32)))
    b.attack(65, "log_head_of_another_chain", insider(lines, log=bundle.Chained(len(lines["log"]), "ab" * 32)))
    b.attack(8, "run_head_of_another_chain", insider(lines, head="ab" * 32))
    twice = f"witness one {W1.key}\nwitness one {W2.key}\nquorum one\n"
    none = f"witness none {W1.key}\nquorum none\n"
    for name, more in {"witness_named_twice": twice, "witness_called_none": none, "group_named_as_a_witness": _group()}.items():
        b.attack(45, f"trust_{name}", whole, 2, trust=TRUST_TEXT.replace("quorum none\n", "") + more)


def _group() -> str:
    return f"witness one {W1.key}\ngroup one any one\nquorum one\n"
