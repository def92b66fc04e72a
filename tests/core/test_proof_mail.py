"""Ballots and mail: what is signed is all that counts, and the mailbox is believed in nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandamus.core.canonical import canon
from mandamus.core.money import Money
from mandamus.errors import Misuse, ProofError
from mandamus.proof import ballot, dsse, mail
from mandamus.proof.ballot import Ballot, Standing, StandingScope
from tests.samples import ADMIN, ADMIN_2, ALICE, BOB, ORIGIN, RUN, STRANGER, TRUST_TEXT, Keyring, clock, trust

ONCE = Ballot(
    action="a" * 64,
    card="c" * 64,
    decision="approve",
    expires=clock(9).now,
    origin=ORIGIN,
    policy="p" * 64,
    request="R",
    run=RUN,
    scope="once",
)
SCOPE = Standing(
    amount=Money("100", "USD"), chain="treasury", count=3, pattern={"tool": "send_payment", "args": {"to": "ACME"}}, salt="5a" * 32,
    until=clock(99).now, window="day",
)  # fmt: skip
STANDING = Ballot(decision="approve", expires=clock(99).now, origin=ORIGIN, policy="p" * 64, run="log", scope=StandingScope(SCOPE))
replace = msgspec.structs.replace


def test_the_bytes_of_a_ballot_are_frozen() -> None:
    """What people sign; a change here voids every signature ever given."""
    assert ballot.encode(ONCE) == (
        b'{"action":"'
        + b"a" * 64
        + b'","card":"'
        + b"c" * 64
        + b'","decision":"approve","domain":"mandamus/approval/v1","expires":1795000540000000,'
        b'"origin":"mandamus.local/0123456789abcdef","policy":"'
        + b"p" * 64
        + b'","request":"R","run":"01JD9Z6Q7M0T3K8W5R2N4X1YBC","scope":"once"}'
    )
    assert ballot.encode(STANDING) == (
        b'{"decision":"approve","domain":"mandamus/approval/v1","expires":1795005940000000,"origin":"mandamus.local/0123456789abcdef","policy":"'
        + b"p" * 64
        + b'","run":"log","scope":{"standing":{"amount":{"amount":"100","currency":"USD","decimals":2},"chain":"treasury","count":3,'
        b'"pattern":{"args":{"to":"ACME"},"tool":"send_payment"},"salt":"' + b"5a" * 32 + b'","until":1795005940000000,"window":"day"}}}'
    )


@pytest.mark.parametrize("said", [ONCE, STANDING, replace(ONCE, decision="modify", args="n" * 64)])
def test_a_ballot_reads_back(said: Ballot) -> None:
    assert ballot.decode(ballot.encode(said)) == said
    assert ballot.ballot_digest(said) != ballot.ballot_digest(replace(said, policy="q" * 64))


CONTRADICTIONS = [
    replace(ONCE, action=msgspec.UNSET),
    replace(ONCE, request=msgspec.UNSET),
    replace(ONCE, card=msgspec.UNSET),
    replace(ONCE, run="log"),
    replace(ONCE, args="n" * 64),
    replace(ONCE, decision="modify"),
    replace(ONCE, expires=-1),
    replace(ONCE, expires=2**53),
    replace(STANDING, run=RUN),
    replace(STANDING, action="a" * 64),
    replace(STANDING, request="R"),
    replace(STANDING, decision="reject"),
    replace(STANDING, scope=StandingScope(replace(SCOPE, count=0))),
    replace(STANDING, scope=StandingScope(replace(SCOPE, until=-1))),
]


@pytest.mark.parametrize("said", CONTRADICTIONS, ids=[f"{n}" for n in range(len(CONTRADICTIONS))])
def test_a_ballot_that_can_mean_nothing(said: Ballot) -> None:
    with pytest.raises(Misuse):
        ballot.sign(said, ALICE.sign, ALICE.key.id)
    with pytest.raises(ValueError):
        ballot.decode(canon(msgspec.to_builtins(said)) if said.expires <= 2**53 - 1 else b"{}")


def test_who_voted_is_said_by_the_trust_file() -> None:
    assert ballot.check(ballot.sign(ONCE, ALICE.sign, ALICE.key.id), trust()) == ("p-alice", ONCE)
    renamed = trust(TRUST_TEXT.replace("p-bob", "p-robert"))
    assert ballot.check(ballot.sign(ONCE, BOB.sign, BOB.key.id), renamed) == ("p-robert", ONCE)


def signed(payload: bytes, *who: Keyring, kind: str = ballot.PAYLOAD_TYPE) -> bytes:
    return dsse.sign(kind, payload, [(key.key.id, key.sign) for key in who])


def test_why_a_ballot_is_none() -> None:
    raw = ballot.encode(ONCE)
    assert ballot.check(signed(raw, STRANGER), trust()) == "not_an_approver"
    assert ballot.check(signed(raw, ADMIN), trust()) == "not_an_approver"
    assert ballot.check(dsse.sign(ballot.PAYLOAD_TYPE, raw, [(ALICE.key.id, STRANGER.sign)]), trust()) == "forged"
    assert ballot.check(signed(raw, ALICE, BOB), trust()) == "malformed"
    assert ballot.check(signed(raw, ALICE, kind=mail.STOP_TYPE), trust()) == "malformed"
    assert ballot.check(signed(raw + b" ", ALICE), trust()) == "malformed"
    assert ballot.check(signed(raw.replace(b'"scope":"once"', b'"scope":"ever"'), ALICE), trust()) == "malformed"
    assert ballot.check(signed(raw.replace(b"approval/v1", b"approval/v2"), ALICE), trust()) == "malformed"
    assert ballot.check(signed(canon({"x": "y" * ballot.BALLOT_BYTES_MAX}), ALICE), trust()) == "malformed"
    assert ballot.check(b"not json", trust()) == "malformed"


@given(st.data())
def test_no_byte_of_a_signed_ballot_can_change(data: st.DataObject) -> None:
    raw = ballot.sign(ONCE, ALICE.sign, ALICE.key.id)
    at = data.draw(st.integers(0, len(raw) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != raw[at]))
    assert isinstance(ballot.check(raw[:at] + bytes([byte]) + raw[at + 1 :], trust()), str)


def test_an_allowance_is_signed_by_an_approver_and_the_administrators() -> None:
    raw, admins = ballot.encode(STANDING), [ADMIN.key, ADMIN_2.key]
    found = ballot.examine_standing(signed(raw, ALICE, ADMIN, ADMIN_2), trust(), admins, 2)
    assert found == ("p-alice", STANDING, ALICE.key)
    assert ballot.examine_standing(signed(raw, ALICE, ADMIN), trust(), admins, 2) == "not_an_approver"
    assert ballot.examine_standing(signed(raw, ADMIN, ADMIN_2), trust(), admins, 2) == "not_an_approver"
    assert ballot.examine_standing(signed(raw, ALICE, BOB, ADMIN, ADMIN_2), trust(), admins, 2) == "not_an_approver"
    assert ballot.examine_standing(signed(raw, ALICE, STRANGER), trust(), admins, 1) == "forged"
    assert ballot.examine_standing(signed(ballot.encode(ONCE), ALICE, ADMIN, ADMIN_2), trust(), admins, 2) == "not_an_approver"
    assert ballot.examine_standing(b"", trust(), admins, 2) == "malformed"


# -- mail --------------------------------------------------------------------------------------------------------------------
FRONT = Keyring.of("web")
WITH_FRONT = trust(TRUST_TEXT + f"frontend web {FRONT.key}\n")
SECRET = b"\x07" * 32


def said(text: str = "pay less", signer: Keyring = FRONT, principal: str = "p-user", **changes: Any) -> mail.Say:
    made = mail.say(text, secret=SECRET, nonce="n", origin=ORIGIN, principal=principal, run=RUN, signer=signer.sign, keyid=signer.key.id)
    return replace(made, **changes)


STOP = mail.stop(mail.StopStatement(mode="cancel", nonce="n", origin=ORIGIN, run=RUN), signer=ALICE.sign, keyid=ALICE.key.id)


@pytest.mark.parametrize("message", [mail.Vote("{}", card={"v": 1}), mail.Vote("{}"), STOP, said()])
def test_mail_reads_back(message: mail.Mail) -> None:
    assert mail.decode(mail.encode(message)) == message


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"null",
        b'"vote"',
        b"[" * 9999,
        b'{"kind":"vote"}',
        b'{"envelope":"","kind":"vote","x":1}',
        b'{"envelope":"","kind":"vots"}',
        b'{"envelope":1,"kind":"stop"}',
        b'{"kind":"stop","envelope":""}',
        b'{"envelope":"", "kind":"stop"}',
        b'{"envelope":"","envelope":"","kind":"stop"}',
        b'{"envelope":"\\ud800","kind":"stop"}',
        b'{"card":{"a":1e999},"envelope":"","kind":"vote"}',
        b"\xff",
        b" " * (mail.MAIL_BYTES_MAX + 1),
        canon({"envelope": "", "kind": "say", "secret": "", "text": "x" * (mail.TEXT_BYTES_MAX + 1)}),
    ],
)
def test_what_is_no_mail(raw: bytes) -> None:
    with pytest.raises(ProofError) as caught:
        mail.decode(raw)
    assert caught.value.diagnosis.code == "MDM-0630"


@given(st.binary(max_size=200))
def test_any_bytes_are_mail_or_refused(raw: bytes) -> None:
    try:
        message = mail.decode(raw)
    except ProofError:
        return
    assert mail.encode(message) == raw


def test_mail_too_large_or_without_form_is_not_sent() -> None:
    with pytest.raises(Misuse):
        mail.encode(mail.Stop("x" * mail.MAIL_BYTES_MAX))
    with pytest.raises(Misuse):
        mail.encode(mail.Vote("{}", card={"x": float("nan")}))


def test_a_stop_is_believed_by_its_signature() -> None:
    found = mail.check_stop(STOP, trust())
    assert isinstance(found, tuple)
    assert (found[0], found[1].mode, found[1].run) == ("p-alice", "cancel", RUN)
    statement = mail.StopStatement(mode="halt", nonce="n", origin=ORIGIN, run=RUN)
    assert mail.check_stop(mail.stop(statement, signer=STRANGER.sign, keyid=STRANGER.key.id), trust()) == "not_an_approver"
    assert mail.check_stop(mail.stop(statement, signer=STRANGER.sign, keyid=ALICE.key.id), trust()) == "forged"
    assert mail.check_stop(mail.Stop(ballot.sign(ONCE, ALICE.sign, ALICE.key.id).decode()), trust()) == "malformed"
    assert mail.check_stop(mail.Stop(signed(b"{}", ALICE, kind=mail.STOP_TYPE).decode()), trust()) == "malformed"
    assert mail.check_stop(mail.Stop("x"), trust()) == "malformed"


def test_a_users_words_are_believed_by_the_front_end_or_by_themselves() -> None:
    found = mail.check_say(said(), WITH_FRONT)
    assert isinstance(found, mail.SayStatement)
    assert (found.principal, found.run) == ("p-user", RUN)
    own = mail.check_say(said(signer=ALICE, principal="p-alice"), WITH_FRONT)
    assert isinstance(own, mail.SayStatement)


def test_words_that_are_not_believed() -> None:
    assert mail.check_say(said(text="pay less"), trust()) == "not_an_approver"  # no front end in this trust file
    assert mail.check_say(said(signer=STRANGER), WITH_FRONT) == "not_an_approver"
    assert mail.check_say(said(signer=ALICE, principal="p-bob"), WITH_FRONT) == "forged"
    assert mail.check_say(replace(said(), text="pay more"), WITH_FRONT) == "forged"
    assert mail.check_say(replace(said(), secret="AAAA"), WITH_FRONT) == "forged"
    assert mail.check_say(replace(said(), secret="?"), WITH_FRONT) == "malformed"
    assert mail.check_say(replace(said(), envelope="?"), WITH_FRONT) == "malformed"
    lie = dsse.sign(mail.SAY_TYPE, b"{}", [(FRONT.key.id, STRANGER.sign)]).decode()
    assert mail.check_say(replace(said(), envelope=lie), WITH_FRONT) == "forged"
    empty = signed(b"{}", FRONT, kind=mail.SAY_TYPE).decode()
    assert mail.check_say(replace(said(), envelope=empty), WITH_FRONT) == "malformed"
