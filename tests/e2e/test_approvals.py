"""People: who may vote, what a vote is for, what happens when nobody does. Every vote goes through the mailbox, signed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mandamus import Agent, Misuse
from mandamus.core.records import RunEnded
from mandamus.proof import mail as post
from mandamus.testing.people import stop
from mandamus.testing.virtual import signer
from tests.e2e.approving import Desk


def story(tell: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        asyncio.run(tell())  # type: ignore[arg-type]

    test.__name__, test.__doc__ = tell.__name__, tell.__doc__
    return test


@story
async def test_two_people_and_then_policy() -> None:
    d = await Desk.open()
    assert (await d.ask()).state == "suspended"
    await d.vote("p-alice")
    assert (await d.resume()).waiting[0].needed == 1
    await d.vote("p-bob")
    assert (await d.resume()).state == "completed"
    assert d.paid == [("Acme", "50,000.00 USD")]
    started = next(r for r in await d.records() if r.type == "ActionStarted")
    assert len(started.fact.votes) == 2  # type: ignore[attr-defined]


@story
async def test_one_person_counts_once() -> None:
    d = await Desk.open()
    await d.ask()
    await d.vote("p-alice")
    await d.resume()
    await d.vote("p-alice", card=(await d.request()).card, expires=(await d.request()).expires, decision="approve", scope="once")
    other = await d.ballot("reject")
    assert other.decision == "reject"
    await d.vote("p-alice", "reject")
    await d.resume()
    assert d.paid == []
    assert "voted_already" in await d.refusals()


@pytest.mark.parametrize(
    ("person", "changes", "reason"),
    [
        ("p-stranger", {}, "not_an_approver"),
        ("p-chief", {}, "not_an_approver"),
        ("p-alice", {"action": "0" * 64}, "wrong_action"),
        ("p-alice", {"card": "0" * 64}, "wrong_action"),
        ("p-alice", {"policy": "0" * 64}, "wrong_action"),
        ("p-alice", {"run": "01AAAAAAAAAAAAAAAAAAAAAAAA"}, "wrong_request"),
        ("p-alice", {"origin": "elsewhere/log"}, "wrong_request"),
        ("p-alice", {"request": "01AAAAAAAAAAAAAAAAAAAAAAAA"}, "not_waiting"),
        ("p-alice", {"expires": 2**52}, "expired"),
    ],
)
def test_a_vote_that_does_not_count_is_refused_with_its_reason(person: str, changes: dict[str, Any], reason: str) -> None:
    async def tell() -> None:
        d = await Desk.open()
        await d.ask()
        await d.vote(person, **changes)
        await d.vote("p-bob")
        assert (await d.resume()).state == "suspended"
        assert await d.refusals() == [reason]
        assert d.paid == []

    asyncio.run(tell())


@story
async def test_a_forged_signature_is_an_incident() -> None:
    d = await Desk.open()
    await d.ask()
    thief, alice = signer("p-thief"), signer("p-alice")
    thief.key = alice.key
    await d.vote("p-alice", key=thief)
    await d.resume()
    assert await d.refusals() == ["forged"]


@story
async def test_junk_in_the_mailbox_moves_nothing() -> None:
    d = await Desk.open()
    await d.ask()
    for junk in (b"", b"{}", b"\xff\xfe", b'{"kind":"vote","envelope":"x"}', b"[" * 5000):
        await d.env.ledger.send(d.result.run_id, junk)
    assert (await d.resume()).state == "suspended"
    assert set(await d.refusals()) == {"malformed"}


@story
async def test_the_requester_cannot_approve_their_own_run() -> None:
    d = await Desk.open()
    await d.ask(user={"principal": "p-alice"})
    await d.vote("p-alice")
    await d.vote("p-bob")
    assert (await d.resume()).state == "suspended"
    assert await d.refusals() == ["own_request"]
    assert d.paid == []


@story
async def test_a_rejection_of_a_payment_ends_the_run() -> None:
    d = await Desk.open()
    await d.ask()
    await d.vote("p-alice")
    await d.vote("p-bob", "reject")
    result = await d.resume()
    assert (result.state, result.cause, d.paid) == ("failed", "rejected", [])
    judged = [r.fact for r in await d.records() if r.type == "ActionJudged"][-1]
    assert judged.determining == ("ask.rejected",)  # type: ignore[attr-defined]


@story
async def test_a_rejection_may_be_told_to_the_model() -> None:
    d = await Desk.open(on_reject="feedback")
    await d.ask()
    await d.vote("p-bob", "reject")
    result = await d.resume()
    assert (result.state, result.output, d.paid) == ("completed", "told", [])


@story
async def test_a_veto_needs_no_quorum() -> None:
    d = await Desk.open()
    await d.ask()
    await d.vote("p-owner", "reject")
    assert (await d.resume()).cause == "rejected"


@story
async def test_a_tier_that_ends_gives_way_and_votes_keep_counting() -> None:
    d = await Desk.open()
    await d.ask()
    await d.vote("p-alice")
    await d.resume()
    d.time.advance(minutes=61)
    assert (await d.resume()).state == "suspended"
    requests = [r.fact for r in await d.records() if r.type == "ApprovalRequested"]
    assert [q.tier for q in requests] == [0, 1]  # type: ignore[attr-defined]
    assert len({q.request for q in requests}) == 1, "the ballot is for the request, not for the tier"  # type: ignore[attr-defined]


@story
async def test_nobody_answering_is_expired_and_never_a_persons_no() -> None:
    d = await Desk.open()
    await d.ask()
    d.time.advance(hours=2)
    result = await d.resume()
    judged = [r.fact for r in await d.records() if r.type == "ActionJudged"][-1]
    assert judged.determining == ("ask.expired",)  # type: ignore[attr-defined]
    assert (result.state, d.paid) == ("completed", [])


@story
async def test_a_vote_after_the_end_does_not_count() -> None:
    d = await Desk.open()
    await d.ask()
    ballot = await d.ballot("approve")
    d.time.advance(hours=3)
    await d.vote("p-alice", expires=ballot.expires)
    await d.vote("p-bob", expires=ballot.expires)
    await d.resume()
    assert d.paid == []
    assert set(await d.refusals()) <= {"expired", "not_waiting"}


@story
async def test_modified_arguments_are_a_new_proposal_that_is_judged_again() -> None:
    d = await Desk.open()
    await d.ask()
    await d.vote("p-alice", "modify", args={"to": "Acme", "amount": {"amount": "900000", "currency": "USD", "decimals": 2}})
    result = await d.resume()
    assert (result.state, d.paid) == ("completed", [("Acme", "9,000.00 USD")])
    proposed = [r for r in await d.records() if r.type == "ActionProposed"]
    assert [p.fact.replaces for p in proposed][1] == "1.1"  # type: ignore[attr-defined]


@story
async def test_modified_arguments_still_need_their_own_votes() -> None:
    d = await Desk.open()
    await d.ask()
    await d.vote("p-alice", "modify", args={"to": "Mallory", "amount": {"amount": "9900000", "currency": "USD", "decimals": 2}})
    assert (await d.resume()).waiting[0].needed == 2
    assert d.paid == []


@story
async def test_new_arguments_other_than_the_signed_ones_are_forged() -> None:
    d = await Desk.open()
    await d.ask()
    signs = signer("p-alice")
    from mandamus.core.canonical import canon
    from mandamus.core.payload import commit
    from mandamus.proof import ballot as ballots
    from mandamus.proof.keys import b64
    from tests.e2e.approving import SECRET

    good = {"to": "Acme", "amount": {"amount": "1", "currency": "USD"}}
    envelope = ballots.sign(await d.ballot("modify", args=commit(SECRET, canon(good))), signs.sign, signs.keyid).decode()
    await d.env.ledger.send(d.result.run_id, post.encode(post.Vote(envelope, args={**good, "to": "Mallory"}, secret=b64(SECRET))))
    await d.resume()
    assert await d.refusals() == ["forged"]


@story
async def test_a_policy_edit_between_two_votes_voids_both() -> None:
    d = await Desk.open()
    await d.ask()
    await d.vote("p-alice")
    await d.resume()
    stricter: Agent[Any] = Agent(
        name="payout-bot",
        model=d.agent.model,
        tools=list(d.agent.tools.values()),
        policies=[*d.agent.policies, {"id": "cap", "maxAmount": {"limit": "90000.00 USD"}}],
    )
    d.agent = stricter
    await d.vote("p-bob")
    await d.resume()
    assert d.paid == [], "one old vote and one for the old policy do not pay"


@story
async def test_a_stop_cancels_what_waits() -> None:
    d = await Desk.open()
    await d.ask()
    await d.env.ledger.send(d.result.run_id, stop(d.env, d.result.run_id, signer("p-alice")))
    result = await d.resume()
    assert (result.state, d.paid) == ("cancelled", [])
    assert [r.fact for r in await d.records()][-2] == RunEnded(state="cancelled")


@story
async def test_a_halt_can_be_resumed() -> None:
    d = await Desk.open()
    await d.ask()
    await d.env.ledger.send(d.result.run_id, stop(d.env, d.result.run_id, signer("p-alice"), "halt"))
    assert (await d.resume()).state == "halted"
    assert (await d.resume()).state == "suspended"
    await d.vote("p-alice")
    await d.vote("p-bob")
    assert (await d.resume()).state == "completed"


@story
async def test_a_name_is_no_vote() -> None:
    d = await Desk.open()
    await d.ask()
    with pytest.raises(Misuse, match="signed vote"):
        await d.agent.resume(d.result.checkpoint_id, approvals=["alice@example.org"], ledger=d.env)


@story
async def test_the_same_votes_do_not_pay_twice() -> None:
    d = await Desk.open()
    await d.ask()
    await d.vote("p-alice")
    await d.vote("p-bob")
    await d.resume()
    first = d.result
    await d.ask()
    for mail in [m async for _, _, m in d.env.ledger.mailbox(first.run_id)]:
        await d.env.ledger.send(d.result.run_id, mail)
    assert (await d.resume()).state == "suspended"
    assert len(d.paid) == 1
    assert set(await d.refusals()) == {"wrong_request"}
