"""Cases about people: ballots, quorums, administrators, allowances, stops, words; and what accounts, owners and budgets say."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from mandamus.core import records as r
from mandamus.core.canonical import canon, parse
from mandamus.core.money import Money
from mandamus.proof import ballot, dsse
from mandamus.proof import mail as post
from mandamus.proof.sshsig import blob
from mandamus.proof.sshsig import signed as ssh_signed
from tests.attack.test_bundle_attacks import FOREIGN, with_record
from tests.attack.test_bundle_bytes import eventful
from tests.attack.test_bundle_log import retiring
from tests.attack.test_red_lending import ALICES, BOBS, ONE_ENOUGH, ONE_VOTE, allowed, paid_under
from tests.attack.test_red_proof import INTERN, OVER, TWO_TIERS, WITH_INTERN, asked, expired, lived, rewritten, tried_again, waited
from tests.attack.test_red_proof import NEXT as NEXT_TIER
from tests.samples import (
    ADMIN,
    ADMIN_2,
    ALICE,
    ALICE_2,
    BOB,
    BUNDLE_KEY,
    CAROL,
    ORIGIN,
    POLICY,
    RUN,
    STRANGER,
    TRUST_TEXT,
    Keyring,
    Story,
    clock,
    insider,
    log_chain,
    relinked,
    sections,
    statement,
    story,
)
from tests.verifiers.corpus import Builder, Case

replace = msgspec.structs.replace
MALLORY = Keyring.of("mallory")
assert TWO_TIERS
assert lived


def made() -> list[Case]:
    b = Builder("people")
    _ballots(b)
    _authority(b)
    _rotated(b)
    _allowances(b)
    _requests(b)
    _mail(b)
    _accounts(b)
    _rules(b)
    return b.made


def _ballots(b: Builder) -> None:
    for name, change in FOREIGN.items():
        b.attack(56, f"ballot_of_another_{name}", story(alter=lambda x, change=change: replace(x, **change)).bundle())
    b.attack(56, "vote_after_its_expiry", story(vote_minute=61).bundle())
    b.attack(62, "one_person_two_keys", story(voters=(("p-alice", ALICE), ("p-alice", ALICE_2))).bundle())
    b.attack(64, "vote_by_a_stranger", story(voters=(("p-alice", ALICE), ("p-bob", STRANGER))).bundle())
    b.attack(64, "vote_by_a_key_not_trusted", story(voters=(("p-alice", ALICE), ("p-bob", CAROL))).bundle())
    b.attack(64, "vote_under_another_name", story(voters=(("p-alice", ALICE), ("p-bob", ALICE_2))).bundle())
    b.attack(62, "one_vote_of_two", story(voters=(("p-alice", ALICE),)).bundle())
    b.attack(62, "no_vote_listed", story(count_votes=False).bundle())
    b.attack(62, "asked_one_of_two", story(voters=(("p-alice", ALICE),), quorum=1).bundle())
    b.attack(62, "judged_for_one_of_two", story(voters=(("p-alice", ALICE),), quorum=1, asked=1).bundle())
    b.attack(
        62, "somebody_whom_the_chain_does_not_ask", story(voters=(("p-alice", ALICE), ("p-intern", INTERN))).bundle(), trust=WITH_INTERN
    )
    no_roles = "\n".join(line for line in TRUST_TEXT.split("\n") if not line.startswith("role"))
    b.attack(62, "nobody_has_the_role", story().bundle(), trust=no_roles)
    b.honest("voted_by_ssh", _by_ssh("mandamus-approval"))
    b.attack(42, "ssh_signature_for_another_purpose", _by_ssh("git"))
    b.attack(42, "ssh_signature_with_something_behind", _by_ssh("mandamus-approval", b"\0"))
    junk = sections(story().bundle())
    junk["payload"] = [x.replace(b'"part":"ballot"', b'"part":"junk"') if b'"seq":9,' in x else x for x in junk["payload"]]
    b.attack(64, "junk_in_place_of_a_ballot", insider(junk))


def _by_ssh(purpose: str, behind: bytes = b"") -> bytes:
    """p-bob votes with his ssh key."""

    class Told(Story):
        def voted(self) -> None:
            add = self.chain.add

            def resigned(fact: Any, turn: int = 0, **body: Any) -> Any:
                if isinstance(fact, r.Voted) and fact.principal == "p-bob":
                    message = dsse.pae(ballot.PAYLOAD_TYPE, ballot.encode(self.ballot()))
                    made_ = blob(BOB.key.public, BOB.sign(ssh_signed(message, purpose)), purpose) + behind
                    body = {"ballot": parse(dsse.sign(ballot.PAYLOAD_TYPE, ballot.encode(self.ballot()), [(BOB.key.id, lambda _: made_)]))}
                return add(fact, turn, **body)

            self.chain.add = resigned  # type: ignore[method-assign]
            super().voted()
            self.chain.add = add  # type: ignore[method-assign]

    tale = Told()
    tale.tell()
    return tale.bundle()


def _authority(b: Builder) -> None:
    gone = r.KeyChanged(clock=clock(1), old=str(BOB.key), principal="p-bob", role="approver")
    revoked = log_chain((gone, {}))
    b.attack(45, "revoked_before_it_judged", story(log=revoked, authority=1).bundle())
    b.honest("revoked_after_it_judged", story(log=log_chain((gone, {})), authority=0).bundle())
    bob = r.KeyChanged(clock=clock(1), new=str(BOB.key), principal="p-bob", role="approver")

    def enrolled(said: dict[str, Any] | None, **more: Any) -> bytes:
        return story(log=log_chain((bob, {} if said is None else {"statement": said}), **more), authority=1).bundle()

    b.honest("enrolled_by_both", enrolled(statement(bob, ADMIN, ADMIN_2)))
    b.attack(63, "enrolled_by_nobody", enrolled(None))
    b.attack(63, "enrolled_by_one", enrolled(statement(bob, ADMIN)))
    b.attack(63, "enrolled_by_a_stranger", enrolled(statement(bob, ADMIN, STRANGER)))
    b.attack(63, "statement_expired", enrolled(statement(bob, ADMIN, ADMIN_2, expires=clock(0).now)))
    b.attack(63, "statement_of_another_log", enrolled(statement(bob, ADMIN, ADMIN_2, origin="other")))
    carol = replace(bob, new=str(CAROL.key))
    b.attack(63, "statement_about_another_key", enrolled(statement(carol, ADMIN, ADMIN_2)))
    said = statement(bob, ADMIN, ADMIN_2)
    twice = log_chain((bob, {"statement": said}), (bob, {"statement": said}))
    b.attack(63, "old_statement_used_again", story(log=twice, authority=2).bundle())
    own = log_chain((bob, {"statement": statement(bob, MALLORY)}), admins=(MALLORY,), quorum=1)
    b.attack(63, "administrator_of_the_log_alone", story(log=own, authority=1).bundle())
    no_admins = "\n".join(line for line in TRUST_TEXT.split("\n") if not line.startswith("admin"))
    b.honest("no_administrator_in_the_trust_file", story().bundle(), 5, trust=no_admins)
    changed = r.PolicyChanged(agent="Corporate Assistant", clock=clock(2), new="a" * 64, old="b" * 64)
    b.attack(63, "policy_changed_by_nobody", story(log=log_chain((changed, {})), authority=1).bundle())
    lines = sections(story().bundle())
    b.attack(65, "log_cut_before_a_revocation", insider({**lines, "log": lines["log"][:-1]}))
    bare = [p for p in lines["payload"] if b'"run":"log"' not in p]
    b.attack(65, "log_left_out", insider({**lines, "log": [], "payload": bare}))


def _rotated(b: Builder) -> None:
    """Keys that took another's place. The old one signs nothing over a chain log that says so."""
    fresh, again = Keyring.of("bundles-2"), Keyring.of("alice-2026")
    tale = retiring(BUNDLE_KEY, fresh, "bundle")
    roots = TRUST_TEXT + f"bundle local {fresh.key}\n"
    b.honest("bundle_key_rotated", tale.bundle(signer=fresh.sign, key=fresh.key), trust=roots)
    b.attack(45, "signed_with_the_key_before", tale.bundle(), trust=roots)

    def rotated(*signers: Keyring, old: Keyring = ALICE, new: Keyring = again) -> bytes:
        change = r.KeyChanged(clock=clock(2), new=str(new.key), old=str(old.key), principal="p-alice", role="approver")
        log = log_chain((change, {"statement": statement(change, *signers)}))
        voters = (("p-alice", new), ("p-bob", BOB))
        return story(log=log, authority=1, voters=voters).bundle()

    people = TRUST_TEXT.replace(str(ALICE.key), str(again.key))
    b.honest("approver_key_rotated", rotated(ADMIN, ADMIN_2, ALICE, again), trust=people)
    b.attack(63, "rotated_without_the_old_key", rotated(ADMIN, ADMIN_2, again), trust=people)
    b.attack(63, "rotated_without_the_new_key", rotated(ADMIN, ADMIN_2, ALICE), trust=people)
    b.attack(63, "rotated_without_administrators", rotated(ALICE, again), trust=people)
    change = r.KeyChanged(clock=clock(2), new=str(again.key), old=str(ALICE.key), principal="p-alice", role="approver")
    log = log_chain((change, {"statement": statement(change, ADMIN, ADMIN_2, ALICE, again)}))
    b.attack(45, "voted_with_the_key_before", story(log=log, authority=1).bundle())
    third = Keyring.of("admin-3")
    change = r.KeyChanged(clock=clock(1), new=str(third.key), old=str(ADMIN.key), principal="operator", role="administrator")
    bob = r.KeyChanged(clock=clock(2), new=str(BOB.key), principal="p-bob", role="approver")
    first = (change, {"statement": statement(change, ADMIN, ADMIN_2, third, nonce="r")})
    rulers = TRUST_TEXT + f"admin {third.key}\n"
    for name, signers, code in (("by_the_new_one", (third, ADMIN_2), 0), ("by_the_one_before", (ADMIN, ADMIN_2), 1)):
        raw = story(log=log_chain(first, (bob, {"statement": statement(bob, *signers, nonce="b")})), authority=2).bundle()
        if code:
            b.attack(63, f"enrolled_{name}", raw, trust=rulers)
        else:
            b.honest(f"enrolled_{name}", raw, trust=rulers)


def _allowances(b: Builder) -> None:
    b.honest("allowance", allowed(), 4)
    b.honest("allowance_salted", allowed(pattern={"tool": "send_payment", "args": {"to": "Acme Suppliers"}}, salt="5a" * 32), 4)
    b.honest("allowance_used_once_before", allowed(used=1), 4)
    b.honest("allowance_of_a_day", allowed({"amount/2026-11-18": 5_000_000, "count/2026-11-18": 1}, window="day"), 4)
    b.honest("two_allowances", paid_under(ONE_VOTE, ALICES, BOBS), 4)
    b.honest("allowance_and_vote", paid_under(ONE_VOTE, ALICES, voters=(BOBS,)), 4)
    b.honest("allowance_that_is_enough", paid_under(ONE_ENOUGH, ALICES), 4)
    wrong: dict[str, dict[str, Any]] = {
        "other_arguments": {"pattern": {"tool": "send_payment", "args": {"to": "Mallory"}}, "salt": "5a" * 32},
        "another_tool": {"pattern": {"tool": "send_mail"}},
        "used_up": {"used": 2},
        "amount_used_up": {"amount": Money.of("100.00", "USD")},
        "charged_less": {"charges": {"amount/all": 1, "count/all": 1}},
        "not_counted": {"charges": {"amount/all": 5_000_000, "count/all": 0}},
        "no_amount_charged": {"charges": {"count/all": 1}},
        "names_no_amount": {"amount": UNSET, "charges": {"count/all": 1}},
        "another_day": {"charges": {"amount/2026-11-18": 5_000_000, "count/2026-11-18": 1}},
        "another_currency": {"amount": Money.of("60000.00", "EUR")},
        "over": {"until": clock(2).now},
    }
    for name, given in wrong.items():
        b.attack(62, f"allowance_{name}", allowed(**given))
    b.attack(62, "one_allowance_of_two", paid_under(ONE_VOTE, ALICES))
    b.attack(62, "two_allowances_of_one_person", paid_under(ONE_VOTE, ALICES, ("p-alice", ALICE_2)))
    b.attack(62, "allowance_and_vote_of_one_person", paid_under(ONE_VOTE, ALICES, voters=(("p-alice", ALICE_2),)))
    b.attack(62, "allowance_of_another_chain", paid_under(ONE_VOTE, ALICES, voters=(BOBS,), chain="default"))
    b.attack(62, "nobody_asked", paid_under(ONE_VOTE))
    without = TRUST_TEXT.replace("role treasurer p-alice p-bob", "role treasurer p-bob")
    b.attack(62, "allowance_of_somebody_not_asked", paid_under(ONE_ENOUGH, ALICES), trust=without)


def _requests(b: Builder) -> None:
    b.honest("asked", asked(), 4)
    b.attack(62, "tier_without_the_one_before", asked({"request": "REQ2", "tier": 1, "quorum": 1}))
    b.attack(62, "tier_too_early", asked({"tier": 1, "quorum": 2}, minute=62))
    b.attack(62, "tier_that_is_none", asked({"tier": 1, "quorum": 2}, minute=63))
    b.attack(62, "tier_too_short", asked({"request": "REQ2", "until": clock(62).now}))
    b.honest("rules_not_shown", story().bundle(policies={}), 3)
    b.attack(62, "next_tier_not_asked", waited(OVER))
    b.attack(62, "expired_before_its_last_tier", waited(expired()))
    b.honest("next_tier_asked", waited(OVER, NEXT_TIER), 4)
    b.honest("tiers_without_their_rules", waited(OVER, policies={}), 4)
    b.honest("tried_again", tried_again(("p-alice", ALICE), ("p-bob", BOB)), 4)
    b.attack(62, "tried_again_unasked", tried_again())
    b.attack(62, "tried_again_by_one", tried_again(("p-alice", ALICE)))
    b.attack(62, "tried_again_against_their_word", tried_again(("p-alice", ALICE), ("p-bob", BOB), decision="abandon"))
    b.attack(56, "new_arguments_that_nobody_signed", rewritten({"to": "Acme"}))
    b.attack(56, "new_arguments_without_a_vote", rewritten({}, voted=False))
    b.attack(48, "clock_set_back_for_a_late_vote", _set_back())
    b.attack(56, "over_a_rejection", _rejected())


def _set_back() -> bytes:
    """The owner saw minute 64, when the request had expired at 63, and then counts votes of minute 6."""
    tale = Story()
    for step in (tale.opened, tale.proposed, tale.escalated):
        step()
    tale.chain.add(r.TimePassed(clock=clock(64), source="worker"), 1)
    tale.voted()
    tale.started()
    return tale.bundle()


def _rejected() -> bytes:
    tale = Story()
    for step in (tale.opened, tale.proposed, tale.escalated):
        step()
    no = replace(tale.ballot(), decision="reject")
    fact = r.Voted(
        about="start", action="1.1", ballot=ballot.ballot_digest(no), clock=clock(4), decision="reject", principal="p-alice",
        request="REQ1", scope="once",
    )  # fmt: skip
    tale.chain.add(fact, 1, ballot=parse(ballot.sign(no, ALICE.sign, ALICE.key.id)))
    tale.voted()
    tale.started()
    return tale.bundle()


def _mail(b: Builder) -> None:
    b.honest("every_type_of_record", eventful())

    def stopped(key: Keyring, principal: str = "p-alice", **said: Any) -> bytes:
        tale = Story()
        tale.opened()
        words: dict[str, Any] = {"mode": "halt", "nonce": "n", "origin": ORIGIN, "run": RUN} | said
        envelope = post.stop(post.StopStatement(**words), signer=key.sign, keyid=key.key.id).envelope
        tale.chain.add(r.StopRequested(clock=clock(4), mode="halt", principal=principal), 1, statement=parse(envelope.encode()))
        return tale.bundle()

    b.honest("stopped", stopped(ALICE), 4)
    b.attack(64, "stopped_by_a_stranger", stopped(STRANGER))
    b.attack(64, "stopped_under_another_name", stopped(BOB))
    b.attack(56, "stop_of_another_mode", stopped(ALICE, mode="cancel"))
    b.attack(56, "stop_of_another_run", stopped(ALICE, run=RUN[:-1] + "D"))
    bare = Story()
    bare.opened()
    bare.chain.add(r.StopRequested(clock=clock(4), mode="halt", principal="p-alice"), 1)
    b.attack(64, "stop_that_nobody_signed", bare.bundle())

    def spoken(key: Keyring, principal: str = "p-zoe", text: str = "pay", **said: Any) -> bytes:
        tale = Story()
        tale.opened()
        secret = bytes(range(32))
        words: dict[str, Any] = {"nonce": "n", "origin": ORIGIN, "principal": principal, "run": RUN} | said
        envelope = post.say("pay", secret=secret, signer=key.sign, keyid=key.key.id, **words).envelope
        tale.chain.entropy = iter([secret, *(bytes([n]) * 32 for n in range(9))])
        fact = r.MessageReceived(clock=clock(4), mail=r.MailRef(cursor=1, key="k"), principal="p-zoe")
        tale.chain.add(fact, 1, text=text, statement=parse(envelope.encode()))
        return tale.bundle()

    desk = TRUST_TEXT + f"frontend desk {CAROL.key}\n"
    b.honest("words_of_a_known_front_end", spoken(CAROL), 4, trust=desk)
    b.honest("words_of_an_unknown_front_end", spoken(CAROL), 5)
    b.attack(64, "words_of_somebody_else", spoken(ALICE), trust=desk)
    b.attack(25, "other_words", spoken(CAROL, text="pay more"), trust=desk)
    b.attack(56, "words_for_another_run", spoken(CAROL, run="R2"), trust=desk)


def _accounts(b: Builder) -> None:
    tale = story()
    b.attack(45, "takeover_by_a_stranger", story(owner=STRANGER).bundle())
    one = with_record(story(seal=False).bundle(), 11, lambda rec: replace(rec, fact=replace(rec.fact, operation="0" * 64)))
    b.attack(56, "operation_of_another_call", insider({**one, "record": relinked(one["record"])}))
    b.attack(7, "reservation_in_no_account", tale.bundle(deltas=[tale.deltas[0], tale.deltas[2]]))
    b.honest("settlement_follows", tale.bundle(deltas=tale.deltas[:2]), 3)
    b.attack(12, "delta_twice", tale.bundle(deltas=[*tale.deltas, tale.deltas[-1]]))
    wrong = tale.deltas[1].replace(b'"reserved":5000000', b'"reserved":4000000')
    b.attack(1, "delta_of_another_amount", tale.bundle(deltas=[tale.deltas[0], wrong, tale.deltas[2]]))
    b.attack(
        15, "delta_of_another_run", tale.bundle(deltas=[tale.deltas[0].replace(RUN.encode(), RUN[:-1].encode() + b"D"), *tale.deltas[1:]])
    )
    b.attack(27, "policy_of_another_digest", tale.bundle(policies={tale.policy: {"engine": "cedar", "texts": {}}}))
    b.attack(27, "manifest_of_another_agent", tale.bundle(manifest="name: other\n"))
    sealed = with_record(tale.bundle(), 18, lambda rec: replace(rec, fact=replace(rec.fact, state="0" * 64)))
    b.attack(2, "seal_over_another_state", insider(sealed))


def _rules(b: Builder) -> None:
    """Policies that are odd: what cannot be read declares nothing, and is said to be hidden."""
    from mandamus.core.digests import policy_digest

    def under(rules: Any) -> bytes:
        source = POLICY | {"policy/rules.json": rules if type(rules) is str else canon(rules).decode()}
        digest = policy_digest(source)
        return story(policy=digest).bundle(policies={digest: source})

    dual = {"id": "pay.dual", "dualApproval": {"over": "1.00 USD", "chain": "treasury"}}
    tiers = {"treasury": {"tiers": [{"quorum": 2, "roles": ["treasurer"]}]}}
    good = {"rules": [dual], "chains": tiers}
    b.honest("rules_as_they_are", under([good]))
    fine: dict[str, list[Any]] = {
        "spelt_out": [{"rules": [{"rule": "dualApproval", "params": dual["dualApproval"]}], "chains": tiers}],
        "in_two_documents": [{"rules": [dual]}, {"chains": tiers}],
        "with_others": [{"rules": [dual, {"permit": {"safety": "financial"}}, {"stepBudget": {"turns": 9}}], "chains": tiers}],
        "roles_as_text": [{"rules": [dual], "chains": {"treasury": {"tiers": [{"quorum": 2, "roles": "treasurer", "deadline": "30m"}]}}}],
        "evidence_too": [{"rules": [dual, {"needsEvidence": {"over": "9999999.00 USD", "level": "sealed"}}], "chains": tiers}],
        "of_another_tenant": [{"rules": [dual, {"tenant": "other", "needsApproval": {"chain": "treasury"}}], "chains": tiers}],
    }
    for name, rules in fine.items():
        b.honest(f"rules_{name}", under(rules))
    unread: dict[str, Any] = {
        "no_json": "[{",
        "duplicate_key": '[{"rules":[],"rules":[]}]',
        "unknown_kind": [{**good, "rules": [dual, {"hope": {}}]}],
        "two_kinds": [{**good, "rules": [{**dual, "permit": {}}]}],
        "unknown_setting": [{**good, "rules": [{"dualApproval": {"ower": "1"}}]}],
        "empty_list": [{**good, "rules": [dual, {"toolDenylist": {"tools": []}}]}],
        "bad_amount": [{**good, "rules": [dual, {"maxAmount": {"limit": "1"}}]}],
        "bad_day": [{**good, "rules": [dual, {"noWritesOn": {"weekdays": ["someday"]}}]}],
        "id_twice": [{**good, "rules": [dual, dual]}],
        "bad_hours": [{**good, "rules": [dual, {"workingHours": {"from": "8", "to": "9"}}]}],
        "no_tier": [{**good, "chains": {"treasury": {"tiers": []}}}],
        "quorum_of_none": [{**good, "chains": {"treasury": {"tiers": [{"quorum": 0}]}}}],
        "level_as_a_chain": [{**good, "chains": {**tiers, "sealed": tiers["treasury"]}}],
        "chain_not_declared": [{"rules": [dual]}],
        "reserved_id": [{**good, "rules": [dual, {"id": "ask.me", "permit": {}}]}],
    }
    for name, rules in unread.items():
        b.honest(f"rules_unread_{name}", under(rules), 3)
    b.attack(62, "rules_that_ask_three", under([{**good, "chains": {"treasury": {"tiers": [{"quorum": 3, "roles": ["treasurer"]}]}}}]))
    b.attack(62, "rules_that_ask_others", under([{**good, "chains": {"treasury": {"tiers": [{"quorum": 2, "of": ["p-carol", "p-dan"]}]}}}]))
    another = {"id": "more", "needsApproval": {"roles": ["owner"]}}
    b.attack(62, "rules_that_ask_another_chain_too", under([{**good, "rules": [dual, another]}]))
    b.attack(
        62,
        "rules_above_the_amount_in_yen",
        under([{**good, "rules": [dual, {"needsApproval": {"chain": "other"}}], "chains": {**tiers, "other": tiers["treasury"]}}]),
    )
