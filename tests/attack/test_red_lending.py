"""Allowances in bundles: what they cover, what they cost, and that each is one vote and no more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from mandamus.core import records as r
from mandamus.core.accounts import Balance
from mandamus.core.canonical import canon, parse
from mandamus.core.digests import operation_id
from mandamus.core.money import Money
from mandamus.errors import Misuse
from mandamus.proof import ballot, dsse, verify
from tests.attack.test_red_proof import caught
from tests.samples import (
    ADMIN,
    ADMIN_2,
    ALICE,
    ALICE_2,
    BOB,
    ENOUGH,
    ENOUGH_DIGEST,
    ORIGIN,
    POLICY,
    RUN,
    TRUST_TEXT,
    Keyring,
    Story,
    clock,
    log_chain,
    trust,
)

replace = msgspec.structs.replace


def granted(policy: str, principal: str, key: Keyring, **standing: Any) -> tuple[str, tuple[r.Voted, dict[str, Any]]]:
    """(its name, its record on chain `log`) of a standing vote in the chain of the treasurers."""
    given: dict[str, Any] = {
        "amount": Money.of("60000.00", "USD"), "chain": "treasury", "count": 2, "pattern": {"tool": "send_payment"},
        "until": clock(600).now, "window": "until",
    } | standing  # fmt: skip
    scope = ballot.StandingScope(ballot.Standing(**given))
    said = ballot.Ballot(decision="approve", expires=clock(600).now, origin=ORIGIN, policy=policy, run="log", scope=scope)
    envelope = dsse.sign(ballot.PAYLOAD_TYPE, ballot.encode(said), [(s.key.id, s.sign) for s in (key, ADMIN, ADMIN_2)])
    name = ballot.ballot_digest(said)
    voted = r.Voted(about="start", ballot=name, clock=clock(1), decision="approve", principal=principal, scope="standing")
    return name, (voted, {"ballot": parse(envelope)})


Person = tuple[str, Keyring]


def charged(tale: Story, *names: str, votes: tuple[int, ...] = ()) -> r.ActionStarted:
    """The intent of a payment of 50,000.00 USD, charged to these allowances."""
    cost = {f"standing/{name}/{k}": v for name in names for k, v in {"amount/all": 5_000_000, "count/all": 1}.items()}
    return r.ActionStarted(
        action="1.1", attempt=1, capabilities=(), deadline=1, effect="reconcilable", landing=1,
        operation=operation_id(args=tale.args, call="1.1", run=RUN, tool="send_payment"),
        reserves=tuple(r.Reserve(account=account, amount=amount) for account, amount in cost.items()), votes=votes,
    )  # fmt: skip


def paid_under(policies: dict[str, Any], *people: Person, voters: tuple[Person, ...] = (), **standing: Any) -> bytes:
    """A run that pays under standing votes of `people`, and fresh votes of `voters` to a request for the rest of the two."""
    policy = next(iter(policies))
    stands = [granted(policy, name, key, salt=f"{n:064}", **standing) for n, (name, key) in enumerate(people)]
    tale = Story(log=log_chain(*(x for _, x in stands)), authority=len(stands), policy=policy, voters=voters, quorum=2 - len(stands))
    tale.opened()
    tale.proposed()
    if voters:
        tale.escalated()
        tale.voted()
    tale.judged("allow")
    fact = charged(tale, *(name for name, _ in stands), votes=tuple(tale.votes))
    seq = tale.chain.add(fact, 1).record.seq
    tale.deltas += [Balance(x.account).plus(RUN, seq, reserved=x.amount)[1] for x in fact.reserves]
    return tale.bundle(policies=policies)


ONE_VOTE, ONE_ENOUGH = {Story().policy: POLICY}, {ENOUGH_DIGEST: ENOUGH}
ALICES, BOBS = ("p-alice", ALICE), ("p-bob", BOB)


def test_one_allowance_is_no_quorum_of_two() -> None:
    caught(paid_under(ONE_VOTE, ALICES), "ActionStarted", "too few different people")


def test_two_allowances_of_one_person_are_one_vote() -> None:
    caught(paid_under(ONE_VOTE, ALICES, ("p-alice", ALICE_2)), "ActionStarted", "too few different people")


def test_an_allowance_and_a_vote_of_the_same_person_are_one_vote() -> None:
    caught(paid_under(ONE_VOTE, ALICES, voters=(("p-alice", ALICE_2),)), "ActionStarted", "too few different people")


def test_fewer_people_are_asked_only_where_standing_votes_count() -> None:
    """The request for one person of two rests on an allowance that is for another chain."""
    caught(paid_under(ONE_VOTE, ALICES, voters=(BOBS,), chain="default"), "ApprovalRequested", "fewer people")


def test_an_allowance_serves_its_own_chain_only() -> None:
    caught(paid_under(ONE_VOTE, ALICES, BOBS, chain="default"), "ActionStarted", "no vote of theirs")


def test_what_the_rules_ask_about_is_no_allow_without_an_answer() -> None:
    """A worker that never escalated: no request, no vote, no allowance."""
    caught(paid_under(ONE_VOTE), "ActionStarted", "no vote of theirs")


def test_an_allowance_of_somebody_whom_the_chain_does_not_ask() -> None:
    roots = trust(TRUST_TEXT.replace("role treasurer p-alice p-bob", "role treasurer p-bob"))
    caught(paid_under(ONE_ENOUGH, ALICES), "ActionStarted", "does not ask", roots=roots)


def test_verify_says_in_words_what_an_allowance_was() -> None:
    def said(raw: bytes) -> str:
        report = verify(raw, trust())
        assert (report.exit_code, report.broken) == (4, None)
        return next(claim.says for claim in report.claims if claim.name == "votes")

    both = said(paid_under(ONE_VOTE, ALICES, BOBS))
    assert both.endswith("quorum reached; 2 of them standing votes, each one vote of its approver in its chain")
    mixed = said(paid_under(ONE_VOTE, ALICES, voters=(BOBS,)))
    assert mixed.startswith("2 signed votes for 1 intent:")
    assert "quorum reached; 1 of them" in mixed
    alone = said(paid_under(ONE_ENOUGH, ALICES))
    assert "quorum reached" not in alone
    assert "1 intent rests on an allowance alone, which the rules call enough: no quorum was asked for" in alone


def allowed(charges: dict[str, int] | None = None, used: int = 0, **standing: Any) -> bytes:
    """A run that pays 50,000.00 USD to Acme Suppliers under an allowance; `used` was reserved on each account before."""
    name, voted = granted(ENOUGH_DIGEST, "p-alice", ALICE, **standing)
    tale = Story(log=log_chain(voted), authority=1, policy=ENOUGH_DIGEST)
    tale.opened()
    tale.proposed()
    tale.judged("allow")
    cost = {f"standing/{name}/{k}": v for k, v in ({"amount/all": 5_000_000, "count/all": 1} if charges is None else charges).items()}
    reserves = tuple(r.Reserve(account=account, amount=amount) for account, amount in cost.items())
    fact = replace(charged(tale), reserves=reserves)
    seq = tale.chain.add(fact, 1).record.seq
    for account, amount in cost.items():
        balance = Balance(account, version=1, hash="h" * 64, reserved=used) if used else Balance(account)
        tale.deltas.append(balance.plus(RUN, seq, reserved=amount)[1])
    return tale.bundle(policies=ONE_ENOUGH)


def test_an_allowance_that_covers_the_call_is_no_finding() -> None:
    assert verify(allowed(), trust()).exit_code == 4
    salted: dict[str, Any] = {"pattern": {"tool": "send_payment", "args": {"to": "Acme Suppliers"}}, "salt": "5a" * 32}
    assert verify(allowed(**salted), trust()).exit_code == 4
    assert verify(allowed(used=1), trust()).exit_code == 4
    day = {"amount/2026-11-18": 5_000_000, "count/2026-11-18": 1}
    assert verify(allowed(day, window="day"), trust()).exit_code == 4


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"pattern": {"tool": "send_payment", "args": {"to": "Mallory"}}, "salt": "5a" * 32}, "other arguments"),
        ({"pattern": {"tool": "send_mail"}}, "another tool"),
        ({"used": 2}, "used up"),
        ({"amount": Money.of("100.00", "USD")}, "used up"),
        ({"charges": {"amount/all": 1, "count/all": 1}}, "another amount"),
        ({"charges": {"amount/all": 5_000_000, "count/all": 0}}, "another amount"),
        ({"charges": {"count/all": 1}}, "other accounts"),
        ({"charges": {"amount/2026-11-18": 5_000_000, "count/2026-11-18": 1}}, "other accounts"),
        ({"amount": UNSET, "charges": {"count/all": 1}}, "names no amount"),
        ({"amount": Money.of("60000.00", "EUR")}, "another amount"),
    ],
)
def test_an_allowance_is_held_against_its_pattern_count_and_amount(given: dict[str, Any], word: str) -> None:
    caught(allowed(**given), "ActionStarted", word)


def test_an_allowance_for_certain_arguments_has_a_salt() -> None:
    """Records and accounts are named by the ballot's digest: without a salt a guess at the payee could be tested for ever."""
    pattern = {"tool": "send_payment", "args": {"to": "DE02 1203 0000 0000 2020 51"}}
    standing = ballot.Standing(chain="treasury", count=1, pattern=pattern, until=1, window="until")
    bare = ballot.Ballot(decision="approve", expires=1, origin=ORIGIN, policy="p", run="log", scope=ballot.StandingScope(standing))
    with pytest.raises(Misuse, match="salt"):
        ballot.encode(bare)
    with pytest.raises(ValueError, match="salt"):
        ballot.decode(canon(msgspec.to_builtins(bare)))
    with pytest.raises(Misuse, match="64 hex digits"):
        ballot.encode(replace(bare, scope=ballot.StandingScope(replace(standing, salt="short"))))
    names = {ballot.ballot_digest(replace(bare, scope=ballot.StandingScope(replace(standing, salt=salt * 32)))) for salt in ("00", "01")}
    assert len(names | {ballot.ballot_digest(bare)}) == 3
