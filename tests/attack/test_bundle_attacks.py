"""The attacks of the evidence design that need no tree, by their numbers. Each is caught, and the report says where."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mandamus.core import records as r
from mandamus.core.accounts import Balance
from mandamus.core.canonical import canon, parse
from mandamus.core.digests import operation_id
from mandamus.core.money import Money
from mandamus.proof import Report, ballot, bundle, dsse, verify
from mandamus.proof.chain import walk
from tests.samples import (
    ADMIN,
    ADMIN_2,
    ALICE,
    ALICE_2,
    BOB,
    BUNDLE_KEY,
    CAROL,
    ENOUGH,
    ENOUGH_DIGEST,
    LOG_KEY,
    ORIGIN,
    RUN,
    STRANGER,
    TRUST_TEXT,
    Keyring,
    Story,
    clock,
    forged,
    insider,
    log_chain,
    relinked,
    sections,
    statement,
    story,
    trust,
)  # fmt: skip

replace = msgspec.structs.replace
WHOLE = story().bundle()


def caught(raw: bytes, *words: str, roots: Any = None, code: int = 1) -> Report:
    report = verify(raw, roots or trust())
    assert report.exit_code == code, report
    assert report.broken is not None
    for word in words:
        assert word in f"{report.broken.where} {report.broken.what} {report.broken.code} {report.attested}", report.broken
    return report


def records_at(raw: bytes) -> slice:
    box = bundle.read(raw)
    first = box.first["record"] - 1
    return slice(first, first + len(box.sections["record"]))


def edit_records(raw: bytes, change: Callable[[list[bytes]], list[bytes]]) -> bytes:
    """The record lines after `change`, the header's count adjusted, nothing signed."""
    at, lines = records_at(raw), raw[:-1].split(b"\n")
    new = change(lines[at])
    head = parse(lines[0])
    head["sections"] = [[name, len(new) if name == "record" else count] for name, count in head["sections"]]
    return b"\n".join([canon(head), *lines[1 : at.start], *new, *lines[at.stop :]]) + b"\n"


def with_record(raw: bytes, index: int, change: Callable[[Any], Any]) -> dict[str, list[bytes]]:
    lines = sections(raw)
    lines["record"][index] = r.encode(change(r.decode(lines["record"][index])))
    return lines


# -- chain and count ---------------------------------------------------------------------------------------------------------
def test_attack_01_an_edited_record_is_named_and_what_stands_behind_it_is_proven() -> None:
    raw = story().bundle().replace(b'"effect":"reconcilable","landing":30000', b'"effect":"reconcilable","landing":39000')
    report = caught(raw, "event 11", "ActionStarted")
    assert report.broken is not None
    assert report.broken.expected != report.broken.found != ""
    assert report.attested == "events 12 to 18 are proven, 0 to 10 are not attested"


def test_attack_02_edit_and_rehash_the_tail() -> None:
    raw = story().bundle()
    lines = with_record(raw, 11, lambda rec: replace(rec, fact=replace(rec.fact, landing=39000)))
    caught(edit_records(raw, lambda _: relinked(lines["record"])), "event 18", "the signed head")


def test_attack_03_and_a_forged_head() -> None:
    raw = story().bundle()
    lines = with_record(raw, 11, lambda rec: replace(rec, fact=replace(rec.fact, landing=39000)))
    lines["record"] = relinked(lines["record"])
    caught(insider(lines, key=STRANGER), "line 2", "not trusted")


def test_attack_04_signed_by_the_attackers_key() -> None:
    caught(story().bundle(signer=STRANGER.sign, key=STRANGER.key), "line 2", "not trusted")


def test_attack_05_the_log_key_is_no_bundle_key() -> None:
    caught(story().bundle(signer=LOG_KEY.sign, key=LOG_KEY.key), "line 2")


def test_attack_07_dropped_tail() -> None:
    caught(edit_records(story().bundle(), lambda raws: raws[:-3]), "line 1", "header")
    caught(forged(story().bundle(), lambda lines: lines[:-3]), "line")


def test_attack_08_dropped_tail_with_a_shorter_head() -> None:
    lines = sections(story().bundle())
    lines["record"] = lines["record"][:-1]
    caught(insider(lines, key=STRANGER), "line 2")
    caught(insider(lines), "MDM-0647")  # even the bundle's signer must then say that the run is open
    assert verify(insider(lines, state="open"), trust()).exit_code == 4


def test_attack_09_dropped_genesis() -> None:
    lines = sections(story().bundle())
    lines["record"] = lines["record"][1:]
    caught(insider(lines), "event 0", "its number is not the next one")


def test_attack_10_a_record_deleted_in_the_middle() -> None:
    lines = sections(story().bundle())
    del lines["record"][8]
    caught(insider(lines), "event 8")
    lines["record"] = relinked(lines["record"])
    caught(insider(lines), "event 8", "its number is not the next one")


def test_attack_11_reordered() -> None:
    lines = sections(story().bundle())
    lines["record"][8:10] = reversed(lines["record"][8:10])
    caught(insider(lines), "event")


def test_attack_12_duplicated() -> None:
    lines = sections(story().bundle())
    lines["record"].insert(9, lines["record"][8])
    caught(insider(lines), "event")


def test_attack_13_duplicate_number_relinked() -> None:
    lines = sections(story().bundle())
    lines["record"].insert(9, lines["record"][8])
    caught(insider({**lines, "record": relinked(lines["record"])}), "event 9", "its number is not the next one")


def test_attack_14_a_run_of_equal_length_swapped_in() -> None:
    other = story(vote_minute=6).bundle()
    caught(
        forged(
            story().bundle(),
            lambda lines: [*lines[: records_at(other).start], *sections(other)["record"], *lines[records_at(other).stop :]],
        ),
        "event 18",
    )


def test_attack_15_relabelled() -> None:
    raw = story().bundle()
    other = RUN[:-1] + "D"
    caught(raw.replace(f'"run":"{RUN}"'.encode(), f'"run":"{other}"'.encode(), 1), "line 1")
    caught(insider(sections(raw), run=other), "event 0", "another run")


def test_attack_27_a_second_genesis_or_an_intent_without_its_allow() -> None:
    lines = sections(story().bundle())
    del lines["record"][10]
    renumbered = [r.encode(replace(r.decode(raw), seq=n)) for n, raw in enumerate(lines["record"])]
    caught(insider({**lines, "record": relinked(renumbered)}), "event 10", "ActionStarted", "without the ALLOW")


def test_attack_31_and_47_the_origin_of_another_log() -> None:
    other = Keyring.of("mandamus.local/ffffffffffffffff")
    roots = trust(TRUST_TEXT.replace(str(LOG_KEY.key), str(other.key)))
    caught(story().bundle(), "line 2", "log that is not trusted", roots=roots)
    two = trust(TRUST_TEXT.replace("bundle local", f"bundle {other.key.name}") + f"log {other.key}\n")
    caught(story().bundle(), "line 2", "may not sign bundles of this log", roots=two)


# -- bytes -------------------------------------------------------------------------------------------------------------------
TWINS: dict[str, Callable[[bytes], bytes]] = {
    "17_duplicate_key": lambda raw: raw.replace(b'"seq":8', b'"seq":9,"seq":8'),
    "18_spaces": lambda raw: raw.replace(b",", b", ", 1),
    "18_key_order": lambda raw: raw.replace(b'"turn":1,', b"").replace(b'"seq":8', b'"turn":1,"seq":8'),
    "19_float": lambda raw: raw.replace(b'"seq":8', b'"seq":8.0'),
    "20_minus_zero": lambda raw: raw.replace(b'"offset":0', b'"offset":-0'),
    "21_escape": lambda raw: raw.replace(b'"seq"', b'"\\u0073eq"'),
    "22_nan": lambda raw: raw.replace(b'"seq":8', b'"seq":NaN'),
    "23_unknown_field": lambda raw: raw.replace(b'"seq":8', b'"seq":8,"seqq":8'),
    "36_too_large_an_integer": lambda raw: raw.replace(b'"offset":0', b'"offset":9007199254740993'),
    "40_byte_order_mark": lambda raw: b"\xef\xbb\xbf" + raw,
    "40_carriage_return": lambda raw: raw + b"\r",
    "55_lone_surrogate": lambda raw: raw.replace(b'"tz":"UTC"', b'"tz":"\\ud800"'),
    "57_version_that_never_existed": lambda raw: raw.replace(b'"v":1}', b'"v":0}'),
    "59_spaces_inside": lambda raw: raw.replace(b'"mail":{', b'"mail":{ '),
}


@pytest.mark.parametrize("name", TWINS)
def test_attack_bytes_are_refused_even_when_signed(name: str) -> None:
    """Two readers could read such a record differently, so no signature makes it good."""
    lines = sections(story().bundle())
    twin = TWINS[name](lines["record"][8])
    assert twin != lines["record"][8]
    lines["record"][8] = twin
    tail = lines["record"][9:]
    lines["record"][9:] = []
    for raw in tail:
        lines["record"].append(r.encode(replace(r.decode(raw), prev=r.event_hash(lines["record"][-1]))))
    caught(insider(lines), "event 8")


def test_attack_24_an_nfd_twin_is_another_value() -> None:
    raw = story().bundle()
    caught(forged(raw, lambda lines: [line.replace(b"Acme Suppliers", "Acme Supplie\u0301rs".encode()) for line in lines]), "line")


def test_attack_40_nothing_may_stand_behind_the_end() -> None:
    raw = story().bundle()
    for tail in (b"\n", b" ", b"{}\n", b"\r\n"):
        caught(raw + tail, "line")
    caught(raw.replace(b"\n", b"\r\n"), "line")


def test_attack_57_a_newer_version_cannot_be_checked() -> None:
    lines = sections(story().bundle())
    lines["record"][-1] = lines["record"][-1].replace(b'"v":1}', b'"v":2}')
    report = verify(insider(lines), trust())
    assert (report.exit_code, report.verdict) == (5, "NOT FULLY CHECKED")
    assert any(c.outcome == "cannot check now" and "newer" in c.says for c in report.claims)


def test_attack_58_an_empty_file_is_no_success() -> None:
    assert verify(b"", trust()).exit_code == 2
    assert verify(b"\n", trust()).exit_code == 1


def test_without_a_trust_root_nothing_is_verified() -> None:
    raw = story().bundle()
    assert verify(raw, None).exit_code == 2
    assert verify(raw, trust(f"log {LOG_KEY.key}\n")).exit_code == 2
    assert verify(raw, trust("# empty\n")).exit_code == 2


# -- payload -----------------------------------------------------------------------------------------------------------------
def test_attack_25_payload_replaced() -> None:
    raw = story().bundle()
    report = caught(raw.replace(b'"to":"Acme Suppliers"', b'"to":"Evil Suppliers"'), "event 5", "not the one its record commits to")
    assert report.broken is not None
    assert report.broken.line is not None


def test_attack_26_salt_and_payload_cannot_shift() -> None:
    def shift(line: bytes) -> bytes:
        value = parse(line)
        if value.get("part") != "args":
            return line
        value["secret"] = base64.b64encode(base64.b64decode(value["secret"])[:31]).decode()
        return canon(value)

    lines = sections(story().bundle())
    lines["payload"] = [shift(line) for line in lines["payload"]]
    caught(insider(lines), "event 5")


def test_attack_52_a_missing_or_added_payload_is_named() -> None:
    lines = sections(story().bundle())
    caught(insider({**lines, "payload": lines["payload"][:-1]}), "do not match")
    caught(insider({**lines, "payload": lines["payload"][1:]}), "line")
    caught(insider({**lines, "payload": [*lines["payload"], lines["payload"][-1]]}), "do not match")


def test_withheld_payloads_are_named_and_the_rest_holds() -> None:
    tale = story()
    report = verify(tale.bundle(withheld=lambda key: key[2] == "output"), trust())
    assert (report.exit_code, report.broken) == (3, None)
    assert any("output of event" in c.says for c in report.claims)
    ballots = verify(tale.bundle(withheld=lambda key: key[2] == "ballot"), trust())
    assert ballots.exit_code == 3
    assert {c.outcome for c in ballots.claims if c.name == "votes"} == {"not in this bundle"}


# -- signatures --------------------------------------------------------------------------------------------------------------
def test_attack_37_base64_with_dirty_trailing_bits() -> None:
    line = sections(story().bundle())["dsse"][0]
    envelope = parse(line)
    sig = envelope["signatures"][0]["sig"]
    assert sig.endswith("==")
    dirty = sig[:-3] + chr(ord(sig[-3]) + 1) + "=="
    envelope["signatures"][0]["sig"] = dirty
    raw = story().bundle().replace(line, canon(envelope))
    caught(raw, "line 2", "base64")


def edited_envelope(change: Callable[[dict[str, Any]], object]) -> bytes:
    raw = story().bundle()
    line = sections(raw)["dsse"][0]
    envelope = parse(line)
    change(envelope)
    return raw.replace(line, canon(envelope))


def test_attack_41_payload_type_swap_and_the_boundary_of_the_encoding() -> None:
    caught(edited_envelope(lambda e: e.update(payloadType="application/json")), "line 2")
    assert dsse.pae("ab", b"c") != dsse.pae("a", b"bc")


def test_attack_41_empty_list_one_key_twice_threshold_zero() -> None:
    caught(edited_envelope(lambda e: e.update(signatures=[])), "line 2")
    caught(edited_envelope(lambda e: e["signatures"].append(dict(e["signatures"][0]))), "line 2", "twice")
    caught(edited_envelope(lambda e: e["signatures"].append({"keyid": "00000000", "sig": e["signatures"][0]["sig"]})), "line 2")
    caught(edited_envelope(lambda e: e.update(signatures=e["signatures"] * 40)), "line 2")
    envelope = sections(story().bundle())["dsse"][0]
    with pytest.raises(dsse.ProofError):
        dsse.check(envelope, bundle.PAYLOAD_TYPE, [BUNDLE_KEY.key], threshold=0)


def test_attack_41_nothing_is_parsed_before_it_is_verified() -> None:
    caught(
        edited_envelope(lambda e: e.update(payload=base64.b64encode(b'{"predicate":{"origin":"x"}}').decode())), "signature does not hold"
    )


def test_attack_42_the_keyid_chooses_nothing() -> None:
    caught(edited_envelope(lambda e: e["signatures"][0].update(keyid=LOG_KEY.key.id)), "line 2", "not trusted")
    caught(edited_envelope(lambda e: e["signatures"][0].update(alg="HS256")), "line 2")


def test_attack_44_a_small_order_r_verifies_nothing() -> None:
    zero = base64.b64encode(bytes(64)).decode()
    caught(edited_envelope(lambda e: e["signatures"][0].update(sig=zero)), "line 2", "does not hold")


def test_attack_45_keys_in_the_bundle_are_hints_only() -> None:
    raw = story().bundle(signer=STRANGER.sign, key=STRANGER.key, keys=[("bundle", STRANGER.key), ("log", STRANGER.key)])
    caught(raw, "line 2", "not trusted")


def test_attack_45_a_revoked_key_counts_for_nothing_later() -> None:
    gone = r.KeyChanged(clock=clock(1), old=str(BOB.key), principal="p-bob", role="approver")
    revoked = log_chain((gone, {}))
    caught(story(log=revoked, authority=1).bundle(), "Voted", "revoked")
    assert verify(story(log=revoked, authority=0).bundle(), trust()).exit_code == 0  # judged before it was known


# -- approvals ---------------------------------------------------------------------------------------------------------------
FOREIGN: dict[str, dict[str, Any]] = {
    "run": {"run": RUN[:-1] + "D"},
    "action": {"action": "0" * 64},
    "request": {"request": "REQ0"},
    "card": {"card": "0" * 64},
    "policy": {"policy": "0" * 64},
    "origin": {"origin": "other"},
    "expiry": {"expires": clock(99).now},
    "decision": {"decision": "reject"},
}


@pytest.mark.parametrize("name", FOREIGN)
def test_attack_56_a_ballot_for_something_else(name: str) -> None:
    caught(story(alter=lambda b: replace(b, **FOREIGN[name])).bundle(), "event 8", "Voted", f"another {name}")


def test_attack_56_a_vote_after_its_expiry() -> None:
    caught(story(vote_minute=61).bundle(), "Voted", "expired")


def test_attack_62_one_person_with_two_keys_is_no_quorum() -> None:
    caught(story(voters=(("p-alice", ALICE), ("p-alice", ALICE_2))).bundle(), "event 11", "too few different people")


def test_votes_of_strangers_and_under_foreign_names() -> None:
    caught(story(voters=(("p-alice", ALICE), ("p-bob", STRANGER))).bundle(), "event 9", "not an approver")
    caught(story(voters=(("p-alice", ALICE), ("p-bob", CAROL))).bundle(), "event 9", "not an approver")
    caught(story(voters=(("p-alice", ALICE), ("p-bob", ALICE_2))).bundle(), "event 9", "somebody else")


def test_too_few_votes_and_none_at_all() -> None:
    caught(story(voters=(("p-alice", ALICE),)).bundle(), "too few different people")
    caught(story(count_votes=False).bundle(), "ActionStarted", "rests on no vote")
    caught(story(voters=(("p-alice", ALICE),), quorum=1).bundle(), "ApprovalRequested", "fewer people than policy")


def test_attack_63_a_key_change_without_the_administrators() -> None:
    bob = r.KeyChanged(clock=clock(1), new=str(BOB.key), principal="p-bob", role="approver")

    def log(said: dict[str, Any] | None) -> bytes:
        return story(log=log_chain((bob, {} if said is None else {"statement": said})), authority=1).bundle()

    assert verify(log(statement(bob, ADMIN, ADMIN_2)), trust()).exit_code == 0
    caught(log(None), "chain log, event 1", "no statement")
    caught(log(statement(bob, ADMIN)), "chain log, event 1", "fewer than 2")
    caught(log(statement(bob, ADMIN, STRANGER)), "chain log, event 1")
    caught(log(statement(bob, ADMIN, ADMIN_2, expires=clock(0).now)), "chain log, event 1", "expired")
    caught(log(statement(bob, ADMIN, ADMIN_2, origin="other")), "chain log, event 1", "something else")
    carol = replace(bob, new=str(CAROL.key))
    caught(log(statement(carol, ADMIN, ADMIN_2)), "chain log, event 1", "something else")


def test_attack_63_an_old_statement_used_again() -> None:
    bob = r.KeyChanged(clock=clock(1), new=str(BOB.key), principal="p-bob", role="approver")
    said = statement(bob, ADMIN, ADMIN_2)
    again = log_chain((bob, {"statement": said}), (bob, {"statement": said}))
    caught(story(log=again, authority=2).bundle(), "chain log, event 2", "used before")


def test_attack_63_administrators_are_believed_by_the_trust_file_only() -> None:
    mallory = Keyring.of("mallory")
    bob = r.KeyChanged(clock=clock(1), new=str(BOB.key), principal="p-bob", role="approver")
    log = log_chain((bob, {"statement": statement(bob, mallory)}), admins=(mallory,), quorum=1)
    caught(story(log=log, authority=1).bundle(), "chain log, event 1", "trust file")
    no_admins = "\n".join(line for line in TRUST_TEXT.split("\n") if not line.startswith("admin"))
    assert verify(story().bundle(), trust(no_admins)).exit_code == 5


def test_attack_64_a_junk_vote_record_moves_no_verifier() -> None:
    caught(story(voters=(("p-alice", ALICE), ("p-bob", STRANGER))).bundle(), "Voted")
    junk = sections(story().bundle())
    seq = 9
    junk["payload"] = [
        line.replace(b'"part":"ballot"', b'"part":"junk"') if f'"seq":{seq}'.encode() in line else line for line in junk["payload"]
    ]
    caught(insider(junk), f"event {seq}")


def test_attack_65_chain_log_cut_before_a_revocation() -> None:
    tale = story()
    lines = sections(tale.bundle())
    cut = lines["log"][:-1]
    caught(insider({**lines, "log": cut}), "chain log", "ends before")
    caught(insider({**lines, "log": [], "payload": [p for p in lines["payload"] if b'"run":"log"' not in p]}), "chain log", "ends before")


def test_attack_66_ledger_payload_swapped_after_the_vote() -> None:
    """The card and the arguments are what the voters' ballots are about: neither can be another one."""
    lines = sections(story().bundle())
    lines["payload"] = [line.replace(b"Acme", b"Evil") for line in lines["payload"]]
    caught(insider(lines), "MDM-0610")


def test_an_allowance_needs_an_approver_and_the_administrators() -> None:
    limit = Money.of("60000.00", "USD")
    standing = ballot.Standing(
        amount=limit, chain="treasury", count=3, pattern={"tool": "send_payment"}, until=clock(600).now, window="until"
    )
    scope = ballot.StandingScope(standing)
    said = ballot.Ballot(decision="approve", expires=clock(600).now, origin=ORIGIN, policy=ENOUGH_DIGEST, run="log", scope=scope)

    def bundle_of(*signers: Keyring, used: bool = True, withdrawn: bool = False) -> bytes:
        envelope = dsse.sign(ballot.PAYLOAD_TYPE, ballot.encode(said), [(s.key.id, s.sign) for s in signers])
        name = ballot.ballot_digest(said)
        voted = r.Voted(about="start", ballot=name, clock=clock(1), decision="approve", principal="p-alice", scope="standing")
        more = [(r.VoteWithdrawn(ballot=name, clock=clock(2), principal="p-alice"), {})] if withdrawn else []
        tale = Story(log=log_chain((voted, {"ballot": parse(envelope)}), *more), authority=1 + withdrawn, policy=ENOUGH_DIGEST)
        tale.opened()
        tale.proposed()
        tale.judged("allow")
        charges = {f"standing/{name}/amount/all": 5_000_000, f"standing/{name}/count/all": 1}
        fact = r.ActionStarted(
            action="1.1", attempt=1, capabilities=(), deadline=1, effect="reconcilable", landing=1,
            operation=operation_id(args=tale.args, call="1.1", run=RUN, tool="send_payment"),
            reserves=tuple(r.Reserve(account=account, amount=amount) for account, amount in charges.items()) if used else (),
        )  # fmt: skip
        seq = tale.chain.add(fact, 1).record.seq
        if used:
            tale.deltas += [Balance(account).plus(RUN, seq, reserved=amount)[1] for account, amount in charges.items()]
        return tale.bundle(policies={ENOUGH_DIGEST: ENOUGH})

    good = verify(bundle_of(ALICE, ADMIN, ADMIN_2), trust())
    assert (good.exit_code, good.state) == (4, "interrupted")
    caught(bundle_of(ALICE), "chain log, event 1")
    caught(bundle_of(ALICE, ADMIN), "chain log, event 1")
    caught(bundle_of(ADMIN, ADMIN_2), "chain log, event 1")
    caught(bundle_of(ALICE, ADMIN, ADMIN_2, withdrawn=True), "not in force")


# -- owners and accounts -----------------------------------------------------------------------------------------------------
def test_a_takeover_by_somebody_else() -> None:
    caught(story(owner=STRANGER).bundle(), "RunOwned", "no trusted log key")


def test_an_operation_id_belongs_to_its_call() -> None:
    """Else a retry could pay again under another idempotency key."""
    lines = with_record(story(seal=False).bundle(), 11, lambda rec: replace(rec, fact=replace(rec.fact, operation="0" * 64)))
    report = caught(insider({**lines, "record": relinked(lines["record"])}))
    assert [c.outcome for c in report.claims if c.name == "operations"] == ["broken"]


def test_deltas_repeat_what_the_records_say() -> None:
    tale = story()
    caught(tale.bundle(deltas=[tale.deltas[0], tale.deltas[2]]), "ActionStarted", "no account")
    assert verify(tale.bundle(deltas=tale.deltas[:2]), trust()).exit_code == 3  # the settlement may follow
    more = [*tale.deltas, tale.deltas[-1]]
    caught(tale.bundle(deltas=more), "line")
    wrong = tale.deltas[1].replace(b'"reserved":5000000', b'"reserved":4000000')
    caught(tale.bundle(deltas=[tale.deltas[0], wrong, tale.deltas[2]]), "line")


def test_policies_and_manifest_have_the_digests_that_the_genesis_names() -> None:
    tale = story()
    caught(tale.bundle(policies={tale.policy: {"engine": "cedar", "texts": {}}}), "line", "another digest")
    assert verify(tale.bundle(policies={}), trust()).exit_code == 3
    caught(tale.bundle(manifest="name: other\n"), "line 3", "manifest")


def test_a_seal_over_another_state() -> None:
    lines = with_record(story().bundle(), 18, lambda rec: replace(rec, fact=replace(rec.fact, state="0" * 64)))
    caught(insider(lines), "event 18", "RunSealed", "another state")


def test_an_open_run_is_open_and_says_so() -> None:
    report = verify(story(seal=False).bundle(), trust())
    assert (report.exit_code, report.state, report.verdict) == (4, "open", "NOT FULLY CHECKED")


# -- the verifier itself -----------------------------------------------------------------------------------------------------
def test_attack_54_bombs_are_refused_before_they_are_parsed() -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    raw = story().bundle()
    lines = sections(raw)
    caught(insider({**lines, "payload": [deep, *lines["payload"][1:]]}), "line")
    caught(raw.replace(b"\n", b"\n" + b"[" * 5000 + b"\n", 1), "line")
    caught(forged(raw, lambda ls: [*ls[:4], b'"' + b"x" * (1 << 20) + b'"', *ls[5:]]), "line 5")
    caught(b"x" * 2_000_000 + b"\n", "line 1")
    fat = parse(lines["dsse"][0])
    fat["signatures"] = fat["signatures"] * 10_000
    caught(raw.replace(lines["dsse"][0], canon(fat)), "line 2")
    caught(raw.replace(b'["record",19]', b'["record",1000000000]'), "line 1")


@given(st.data())
def test_a_signer_without_conscience_cannot_crash_a_verifier(data: st.DataObject) -> None:
    """Any field of any record, changed, relinked and signed: a verdict, never an exception; whatever is broken is named."""
    lines = sections(WHOLE)
    index = data.draw(st.integers(0, len(lines["record"]) - 1))
    record: Any = r.decode(lines["record"][index])
    name = data.draw(st.sampled_from(record.fact.__struct_fields__))
    old = getattr(record.fact, name)
    new = data.draw(st.sampled_from(other(old)))
    assume(new != old)
    lines["record"][index] = r.encode(replace(record, fact=replace(record.fact, **{name: new})))
    lines["record"] = relinked(lines["record"])
    report = verify(insider(lines, state=data.draw(st.sampled_from(("sealed", "open")))), trust())
    assert (report.exit_code == 1) == (report.broken is not None)
    assert (report.exit_code == 0) == (report.verdict == "PROVEN")


def other(value: Any) -> list[Any]:
    """Values of the same type that a record could hold as well."""
    match value:
        case bool():
            return [not value]
        case int():
            return [0 if value else 1, 2**53 - 1, -1]
        case str():
            return ["" if value else "x", value + "0", "9.9"]
        case tuple():
            return [(), (0,), (10**6, -1)] if value and isinstance(value[0], int) else [()]
        case None | msgspec.UNSET:
            return [msgspec.UNSET]
    return [value]


def test_attack_54_a_record_of_a_megabyte() -> None:
    lines = sections(story().bundle())
    lines["record"][3] = lines["record"][3].replace(b'"scripted"', b'"' + b"s" * 70_000 + b'"')
    caught(insider({**lines, "record": lines["record"][:4]}), "event 3")


def test_a_building_bundle_refuses_what_does_not_hold() -> None:
    """Nothing unsound is ever signed."""
    tale = story()
    with pytest.raises(dsse.ProofError):
        tale.bundle(records=tale.chain.raws[:5] + tale.chain.raws[6:])
    swapped = [msgspec.structs.replace(p, bytes=p.bytes[:32] + b'"x"') if p.part == "args" else p for p in tale.chain.payloads]
    with pytest.raises(dsse.ProofError):
        tale.bundle(payloads=[*swapped, *tale.log.payloads])
    with pytest.raises(dsse.ProofError):
        tale.bundle(payloads=[])
    assert walk(tale.chain.raws).fault is None
