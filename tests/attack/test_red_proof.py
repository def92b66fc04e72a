"""Bundles that lied and verified: what a dishonest owner wrote is held against what people signed and what the rules say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.canonical import canon, parse
from mandamus.core.digests import operation_id, policy_digest
from mandamus.core.fold import fold
from mandamus.core.payload import card_digest, commit
from mandamus.errors import ProofError
from mandamus.proof import Report, ballot, verify
from mandamus.proof import mail as post
from mandamus.proof.chain import walk
from mandamus.runtime import evidence, mail
from mandamus.testing.virtual import signer
from tests.e2e.approving import Desk
from tests.e2e.stories import STORIES, World
from tests.samples import (
    ALICE,
    BOB,
    CAROL,
    ORIGIN,
    POLICY,
    RUN,
    STRANGER,
    TRUST_TEXT,
    Keyring,
    Story,
    clock,
    story,
    trust,
)

replace = msgspec.structs.replace


def caught(raw: bytes, *words: str, roots: Any = None) -> Report:
    report = verify(raw, roots or trust())
    assert report.exit_code == 1, report
    assert report.broken is not None
    for word in words:
        assert word in f"{report.broken.where} {report.broken.what} {report.broken.code}", report.broken
    return report


def unfinished(tale: Story) -> bytes:
    assert walk(tale.chain.raws).fault is None
    return tale.bundle()


# -- requests and tiers ------------------------------------------------------------------------------------------------------
def asked(*changes: dict[str, Any], minute: int = 3) -> bytes:
    """The request as it was made, then with each of the changes; time stands at `minute` before the last one."""
    tale = Story()
    tale.opened()
    tale.proposed()
    tale.escalated()
    for change in changes:
        tale.chain.add(r.TimePassed(clock=clock(minute), source="worker"), 1)
        tale.chain.add(replace(tale.request, **change), 1)
    return unfinished(tale)


def test_a_request_as_it_should_be_is_no_finding() -> None:
    assert verify(asked(), trust()).exit_code == 4


def test_no_tier_without_the_one_before_it() -> None:
    caught(asked({"request": "REQ2", "tier": 1, "quorum": 1}), "ApprovalRequested", "no earlier tier")


def test_no_tier_before_the_time_of_the_one_before_it_is_over() -> None:
    caught(asked({"tier": 1, "quorum": 2}, minute=62), "ApprovalRequested", "was not over")


def test_no_tier_that_the_chain_does_not_have() -> None:
    caught(asked({"tier": 1, "quorum": 2}, minute=63), "ApprovalRequested", "no such tier")


def test_a_tier_has_the_time_that_the_rules_give_it() -> None:
    caught(asked({"request": "REQ2", "until": clock(62).now}), "ApprovalRequested", "before its time")


def test_the_quorum_is_that_of_the_rules_even_when_the_judgement_says_less() -> None:
    caught(story(voters=(("p-alice", ALICE),), quorum=1, asked=1).bundle(), "ApprovalRequested", "fewer people")


def test_without_the_rules_the_chain_is_not_called_checked() -> None:
    report = verify(story().bundle(policies={}), trust())
    assert (report.exit_code, report.broken) == (3, None)
    assert any("rules of chain treasury" in claim.says for claim in report.claims)


TWO_TIERS = POLICY | {
    "policy/rules.json": POLICY["policy/rules.json"].replace('"roles":["treasurer"]}]', '"roles":["treasurer"]},{"quorum":2}]')
}


def waited(*facts: r.Fact, policies: Any = None) -> bytes:
    """A request of a chain with two tiers, the first of which is over at minute 63; then these facts."""
    digest = policy_digest(TWO_TIERS)
    tale = Story(policy=digest)
    tale.opened()
    tale.proposed()
    tale.escalated()
    for fact in facts:
        mine = replace(tale.request, tier=1, until=clock(123).now) if isinstance(fact, r.ApprovalRequested) else fact
        tale.chain.add(mine, 1)
    return tale.bundle(policies={digest: TWO_TIERS} if policies is None else policies)


def expired() -> r.ActionJudged:
    return r.ActionJudged(
        action="1.1", attempt=1, authority=2, bundle=policy_digest(TWO_TIERS), code="expired", determining=("ask.expired",),
        engine="none", layers=(r.Layer(layer="asks", verdict="deny"),), verdict="deny",
    )  # fmt: skip


OVER, NEXT = r.TimePassed(clock=clock(63), source="worker"), Story().tell().request


def test_an_owner_that_saw_the_time_of_a_tier_end_asked_the_next_one() -> None:
    caught(waited(OVER), "TimePassed", "the next one was not asked")
    caught(waited(OVER, OVER, NEXT), "event 8 TimePassed", "the next one was not asked")


def test_a_request_does_not_expire_before_its_last_tier() -> None:
    """Whoever never looks at the clock before the end has still to ask everybody."""
    caught(waited(expired()), "ActionJudged", "before every tier")


def test_tiers_that_were_asked_in_time_are_no_finding() -> None:
    report = verify(waited(OVER, NEXT), trust())
    assert (report.exit_code, report.broken) == (4, None)
    assert verify(waited(r.TimePassed(clock=clock(62), source="worker")), trust()).exit_code == 4
    assert verify(waited(OVER, policies={}), trust()).broken is None  # without the rules nobody can say


# -- who may vote ------------------------------------------------------------------------------------------------------------
INTERN = Keyring.of("intern")
WITH_INTERN = f"{TRUST_TEXT}approver p-intern {INTERN.key}\n"


def test_a_vote_of_somebody_whom_the_chain_does_not_ask() -> None:
    raw = story(voters=(("p-alice", ALICE), ("p-intern", INTERN))).bundle()
    caught(raw, "Voted", "does not ask", roots=trust(WITH_INTERN))


def test_the_chain_that_policy_names_decides_who_votes() -> None:
    """A whole run, written by a worker that lets anybody vote."""

    async def tell() -> Report:
        d = await Desk.open()
        for person in ("p-mallory", "p-trudy"):
            d.env.home.add_trust(f"approver {person} {signer(person).vkey}")
        await d.ask()
        request = await d.request()
        for person in ("p-mallory", "p-trudy"):
            await d.env.ledger.send(d.result.run_id, b"vote of " + person.encode())
        mails = iter(
            [
                e.Mail(ref=r.MailRef(cursor=0, key=""), clock=d.env.clock("UTC"), kind="vote", principal=person)
                for person in ("p-mallory", "p-trudy")
            ]
        )

        async def believed(s: Any, ref: r.MailRef, raw: bytes) -> e.Mail:
            said, k = next(mails), signer(raw.decode().split()[-1])
            signed = ballot.Ballot(
                action=request.digest, card=request.card, decision="approve", expires=request.expires, origin=d.env.origin,
                policy=request.policy, request=request.request, run=d.result.run_id, scope="once",
            )  # fmt: skip
            return replace(
                said, ref=ref, clock=s.clock(), action=request.action, request=request.request, decision="approve",
                ballot=ballot.ballot_digest(signed), value=parse(ballot.sign(signed, k.sign, k.keyid)),
            )  # fmt: skip

        return await moved(d, believed)

    report = asyncio.run(tell())
    assert report.exit_code == 1
    assert report.broken is not None
    assert "does not ask" in report.broken.what


def test_nobody_approves_their_own_request() -> None:
    tale = Story()
    opened = tale.chain.add

    def add(fact: Any, turn: int = 0, **body: Any) -> Any:
        mine = replace(fact, user=r.User(principal="p-bob")) if isinstance(fact, r.RunOpened) else fact
        return opened(mine, turn, **body)

    tale.chain.add = add  # type: ignore[method-assign]
    caught(tale.tell().bundle(), "Voted", "own request")


# -- votes that no intent lists ----------------------------------------------------------------------------------------------
async def moved(d: Desk, read: Callable[..., Any]) -> Report:
    """The run goes on under a worker that reads its mail in its own way; then its bundle is verified."""
    honest = mail.read
    mail.read = read
    try:
        await d.resume()
    finally:
        mail.read = honest
    return verify(await evidence.build(d.env, d.result.run_id, {}, ""), d.env.trust())


def made_up(**said: Any) -> Report:
    """A mailbox with one junk message, which a dishonest worker takes for something signed."""

    async def tell() -> Report:
        d = await Desk.open()
        await d.ask()
        request = await d.request()
        await d.env.ledger.send(d.result.run_id, b"junk")
        vote: dict[str, Any] = {"action": request.action, "request": request.request, "ballot": "0" * 64, "value": {"junk": 1}}

        async def believed(s: Any, ref: r.MailRef, raw: bytes) -> e.Mail:
            mine: dict[str, Any] = {"ref": ref, "clock": s.clock(), "principal": "p-alice"}
            if said.get("kind") == "vote":
                mine |= vote
            if said.get("decision") == "modify":
                args = {"to": "Mallory", "amount": {"amount": "500", "currency": "USD", "decimals": 2}}
                pin = s.bound.tools["send_payment"].pin
                mine["modified"] = e.Proposal(
                    tool="send_payment", args=args, safety="financial", effect="keyed", data="confidential", pin=pin
                )
            return e.Mail(**(mine | said))

        return await moved(d, believed)

    report = asyncio.run(tell())
    assert report.broken is not None, report
    return report


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"kind": "vote", "decision": "reject"}, "Voted"),
        ({"kind": "vote", "decision": "modify"}, "Voted"),
        ({"kind": "stop", "mode": "cancel"}, "StopRequested"),
        ({"kind": "stop", "mode": "halt", "statement": {"junk": 1}}, "StopRequested"),
        ({"kind": "message", "value": "please pay me"}, "MessageReceived"),
    ],
)
def test_what_nobody_signed_is_found(said: dict[str, Any], kind: str) -> None:
    report = made_up(**said)
    assert report.exit_code == 1
    assert report.broken is not None
    assert kind in report.broken.where, report.broken


def test_an_intent_over_a_rejection_is_found() -> None:
    tale = Story()
    tale.opened()
    tale.proposed()
    tale.escalated()
    rejected = replace(tale.ballot(), decision="reject")
    envelope = parse(ballot.sign(rejected, ALICE.sign, ALICE.key.id))
    fact = r.Voted(
        about="start", action="1.1", ballot=ballot.ballot_digest(rejected), clock=clock(4), decision="reject", principal="p-alice",
        request="REQ1", scope="once",
    )  # fmt: skip
    tale.chain.add(fact, 1, ballot=envelope)
    tale.voted()
    tale.started()
    caught(unfinished(tale), "ActionStarted", "rejected")


# -- cards -------------------------------------------------------------------------------------------------------------------
def test_a_card_beside_a_vote_is_the_one_that_was_signed() -> None:
    async def tell() -> None:
        d = await Desk.open()
        await d.ask()
        request = await d.request()
        stored = [parse(p.bytes[32:]) async for p in d.env.ledger.payloads(d.result.run_id) if p.part == "card"]
        k = signer("p-alice")
        signed = ballot.Ballot(
            action=request.digest, card=request.card, decision="approve", expires=request.expires, origin=d.env.origin,
            policy=request.policy, request=request.request, run=d.result.run_id, scope="once",
        )  # fmt: skip
        envelope = ballot.sign(signed, k.sign, k.keyid).decode()
        for card in ({"effect": "a present", "tool": "nothing"}, stored[-1]):
            await d.env.ledger.send(d.result.run_id, post.encode(post.Vote(envelope, card=card)))
        await d.resume()
        told = [x.fact for x in await d.records() if isinstance(x.fact, r.MessageRefused | r.Voted)]
        assert [type(x).__name__ for x in told] == ["MessageRefused", "Voted"]
        assert isinstance(told[0], r.MessageRefused)
        assert told[0].reason == "forged"
        assert not [p async for p in d.env.ledger.payloads(d.result.run_id) if b"a present" in p.bytes]
        assert verify(await evidence.build(d.env, d.result.run_id, {}, ""), d.env.trust()).exit_code == 4

    asyncio.run(tell())


def test_the_verifier_holds_the_card_beside_a_vote_against_the_request() -> None:
    def with_card(card: dict[str, Any]) -> bytes:
        tale = Story()
        before = tale.chain.add
        tale.chain.add = lambda fact, turn=0, **body: before(  # type: ignore[method-assign]
            fact, turn, **body, **({"card": card} if isinstance(fact, r.Voted) else {})
        )
        return tale.tell().bundle()

    caught(with_card({"effect": "a present"}), "Voted", "card")
    plain = story()
    shown = next(parse(p.bytes[32:]) for p in plain.chain.payloads if p.part == "card")
    assert card_digest(plain.proposal.payloads[0].bytes[:32], shown) == plain.request.card
    assert verify(with_card(shown | {"votes": ["p-alice"]}), trust()).exit_code == 0


# -- stops and messages ------------------------------------------------------------------------------------------------------
def spoken() -> tuple[Report, list[r.AnyRecord]]:
    """One message that a front end vouches for, and one signed stop."""

    async def tell() -> tuple[Report, list[r.AnyRecord]]:
        d = await Desk.open()
        await d.ask()
        run, desk = d.result.run_id, d.env.home.signer("frontend")
        said = post.say(
            "hello", secret=bytes(range(32)), nonce="1", origin=d.env.origin, principal="p-zoe", run=run, signer=desk.sign, keyid=desk.keyid
        )
        k = signer("p-alice")
        stop = post.StopStatement(mode="halt", nonce="2", origin=d.env.origin, run=run)
        await d.env.ledger.send(run, post.encode(said))
        await d.env.ledger.send(run, post.encode(post.stop(stop, signer=k.sign, keyid=k.keyid)))
        await d.resume()
        return verify(await evidence.build(d.env, run, {}, ""), d.env.trust()), await d.records()

    return asyncio.run(tell())


def test_a_message_and_a_stop_keep_the_signature_of_who_sent_them() -> None:
    report, records = spoken()
    kept = {x.type: [part.part for part in x.body or ()] for x in records if x.type in ("MessageReceived", "StopRequested")}
    assert kept == {"MessageReceived": ["text", "statement"], "StopRequested": ["statement"]}
    assert report.broken is None
    assert [(c.outcome, c.says) for c in report.claims if c.name == "mail"] == [
        ("proven", "1 stop and 1 message, each signed by who is named")
    ]


def stopped(key: Keyring, *, principal: str = "p-alice", **said: Any) -> bytes:
    tale = Story()
    tale.opened()
    fields: dict[str, Any] = {"mode": "halt", "nonce": "n", "origin": ORIGIN, "run": RUN} | said
    envelope = post.stop(post.StopStatement(**fields), signer=key.sign, keyid=key.key.id).envelope
    tale.chain.add(r.StopRequested(clock=clock(4), mode="halt", principal=principal), 1, statement=parse(envelope.encode()))
    return unfinished(tale)


def test_the_statement_of_a_stop_says_what_the_record_says() -> None:
    assert verify(stopped(ALICE), trust()).broken is None
    caught(stopped(STRANGER), "StopRequested", "not an approver")
    caught(stopped(BOB), "StopRequested", "something else")
    caught(stopped(ALICE, mode="cancel"), "StopRequested", "something else")
    caught(stopped(ALICE, run=RUN[:-1] + "D"), "StopRequested", "something else")


def test_words_of_an_unknown_front_end_are_not_called_checked() -> None:
    tale = Story()
    tale.opened()
    said = post.say("pay", secret=bytes(32), nonce="n", origin=ORIGIN, principal="p-zoe", run=RUN, signer=CAROL.sign, keyid=CAROL.key.id)
    fact = r.MessageReceived(clock=clock(4), mail=r.MailRef(cursor=1, key="k"), principal="p-zoe")
    tale.chain.add(fact, 1, text="pay", statement=parse(said.envelope.encode()))
    report = verify(unfinished(tale), trust())
    assert (report.exit_code, report.broken) == (5, None)
    assert any("frontend NAME VKEY" in claim.says for claim in report.claims)


# -- the life of an action ---------------------------------------------------------------------------------------------------
def lived(*steps: str, effect: str = "keyed") -> str:
    """What the chain's rules say to an action that takes these steps, and whether the fold goes along; "" when both do."""
    tale = Story()
    tale.opened()
    tale.proposed()
    sealed = tale.chain.sealed[-1]
    assert isinstance(sealed.record.fact, r.ActionProposed)
    tale.chain.sealed.pop()
    assert tale.chain.at is not None
    tale.chain.at = replace(tale.chain.at, seq=sealed.record.seq - 1, hash=tale.chain.sealed[-1].hash)
    tale.chain.add(replace(sealed.record.fact, effect=effect), 1, args={})
    attempt = 0
    for step in steps:
        if step == "start":
            attempt += 1
            tale.judged("allow", attempt=attempt)
            started = r.ActionStarted(action="1.1", attempt=attempt, capabilities=(), deadline=1, effect=effect, landing=1, operation="o")
            tale.chain.add(started, 1)
        elif step == "deny":
            tale.judged("deny", attempt=attempt + 1)
        elif step == "doubt":
            tale.chain.add(r.ActionDoubted(action="1.1", attempt=attempt, cause="lost"), 1)
        else:
            result, _, via = step.partition(" ")
            retry = 1 if result == "failed" and via == "again" else UNSET
            ended = r.ActionEnded(
                action="1.1", attempt=attempt, output="none", result=result, retry_at=retry, via="people" if via == "people" else "tool",  # type: ignore[arg-type]
            )  # fmt: skip
            tale.chain.add(ended, 1)
    fault = walk(tale.chain.raws).fault
    return "" if fault is None else fault.what


@pytest.mark.parametrize(
    "steps",
    [
        ("start", "done"), ("start", "failed again", "start", "done"), ("start", "doubt", "start", "done"), ("deny",),
        ("start", "doubt", "unknown", "done people"), ("start", "doubt", "unknown", "unknown people"), ("cancelled",),
        ("start", "doubt", "doubt", "unknown", "start", "done"), ("start", "doubt", "cancelled"), ("start", "failed again", "deny"),
    ],
)  # fmt: skip
def test_a_life_that_the_table_knows(steps: tuple[str, ...]) -> None:
    assert lived(*steps) == ""


@pytest.mark.parametrize(
    ("steps", "effect"),
    [
        (("start", "done", "start", "done"), "irreversible"), (("start", "done", "start"), "keyed"), 
        (("start", "doubt", "start"), "irreversible"),
        (("start", "doubt", "cancelled"), "irreversible"), (("deny", "start"), "keyed"), (("cancelled", "start"), "keyed"),
        (("start", "failed", "start"), "keyed"), (("start", "unknown"), "keyed"), (("start", "start"), "keyed"), (("done",), "keyed"),
        (("start", "doubt", "unknown", "unknown people", "start"), "keyed"), (("start", "done", "doubt"), "keyed"),
        (("start", "done", "deny"), "keyed"), (("start", "done", "failed again"), "keyed"),
    ],
)  # fmt: skip
def test_a_life_that_the_table_does_not_know(steps: tuple[str, ...], effect: str) -> None:
    assert lived(*steps, effect=effect) != ""


def test_no_owner_goes_on_with_a_run_that_its_rules_cannot_have_made() -> None:
    tale = story(seal=False)
    done = next(x for x in tale.chain.records if isinstance(x.fact, r.ActionEnded))
    upto = tale.chain.records[: done.seq + 1]
    started = next(x for x in upto if isinstance(x.fact, r.ActionStarted))
    for again in (started, done):
        with pytest.raises(ProofError, match="cannot be"):
            fold([*upto, replace(again, seq=done.seq + 1)])


# -- again -------------------------------------------------------------------------------------------------------------------
def tried_again(*voters: tuple[str, Keyring], decision: str = "again", listed: bool = False) -> bytes:
    """Paid with two approvals, then nobody knew; people are asked, and the worker starts it once more."""
    tale = Story()
    tale.opened()
    tale.proposed()
    tale.escalated()
    tale.voted()
    tale.started()
    add = tale.chain.add
    add(r.ActionDoubted(action="1.1", attempt=1, cause="lost"), 1)
    add(r.ActionEnded(action="1.1", attempt=1, output="none", result="unknown", via="policy"), 1)
    secret = tale.proposal.payloads[0].bytes[:32]
    card = {"about": "outcome"}
    request = replace(
        tale.request, about="outcome", card=card_digest(secret, card), expires=clock(70).now, request="REQ2", until=clock(70).now
    )
    add(request, 1, card=card)
    start = decision == "approve"
    for principal, key in voters:
        signed = replace(tale.ballot(), card=request.card, decision=decision, expires=request.expires, request="REQ2")
        fact = r.Voted(
            about="start" if start else "outcome", action="1.1", ballot=ballot.ballot_digest(signed), clock=clock(9), decision=decision,  # type: ignore[arg-type]
            principal=principal, request="REQ2", scope="once",
        )  # fmt: skip
        seq = add(fact, 1, ballot=parse(ballot.sign(signed, key.sign, key.key.id))).record.seq
        tale.votes += [seq] if listed else []
    tale.judged("allow", attempt=2)
    fact2 = r.ActionStarted(
        action="1.1", attempt=2, capabilities=(), deadline=1, effect="reconcilable", landing=1,
        operation=operation_id(args=tale.args, call="1.1", run=RUN, tool="send_payment"), votes=tuple(tale.votes),
    )  # fmt: skip
    add(fact2, 1)
    return unfinished(tale)


def test_an_unknown_outcome_is_tried_again_when_enough_people_say_so() -> None:
    assert verify(tried_again(("p-alice", ALICE), ("p-bob", BOB)), trust()).exit_code == 4


def test_an_unknown_outcome_is_not_tried_again_without_them() -> None:
    caught(tried_again(), "ActionStarted", "did not say to try again")
    caught(tried_again(("p-alice", ALICE)), "ActionStarted", "did not say to try again")
    caught(tried_again(("p-alice", ALICE), ("p-bob", BOB), decision="abandon"), "ActionStarted", "did not say to try again")


def test_a_word_about_the_outcome_is_no_approval_of_the_start() -> None:
    """Two people say that it may be tried again; policy asked two to approve it, and nobody did."""
    tale = Story(count_votes=False)
    tale.opened()
    tale.proposed()
    tale.escalated()
    secret = tale.proposal.payloads[0].bytes[:32]
    card = {"about": "outcome"}
    request = replace(tale.request, about="outcome", card=card_digest(secret, card), request="REQ2")
    tale.chain.add(request, 1, card=card)
    votes = []
    for principal, key in (("p-alice", ALICE), ("p-bob", BOB)):
        signed = replace(tale.ballot(), card=request.card, decision="again", request="REQ2")
        fact = r.Voted(
            about="outcome", action="1.1", ballot=ballot.ballot_digest(signed), clock=clock(9), decision="again", principal=principal,
            request="REQ2", scope="once",
        )  # fmt: skip
        votes.append(tale.chain.add(fact, 1, ballot=parse(ballot.sign(signed, key.sign, key.key.id))).record.seq)
    tale.votes, tale.count_votes = votes, True
    tale.started()
    caught(unfinished(tale), "ActionStarted", "rests on no vote")


# -- new arguments -----------------------------------------------------------------------------------------------------------
def rewritten(signed_for: dict[str, Any], *, voted: bool = True) -> bytes:
    """p-alice signs new arguments; the worker proposes others."""
    tale = Story()
    tale.opened()
    tale.proposed()
    tale.escalated()
    if voted:
        said = replace(tale.ballot(), args=commit(bytes(range(32)), canon(signed_for)), decision="modify")
        fact = r.Voted(
            about="start", action="1.1", ballot=ballot.ballot_digest(said), clock=clock(4), decision="modify", principal="p-alice",
            request="REQ1", scope="once",
        )  # fmt: skip
        tale.chain.add(fact, 1, ballot=parse(ballot.sign(said, ALICE.sign, ALICE.key.id)))
    tale.chain.add(r.ActionEnded(action="1.1", attempt=0, output="none", result="cancelled", via="people"), 1)
    proposed = r.ActionProposed(
        action="1.1m1", by="person", call="1.1m1", effect="keyed", kind="invoke", replaces="1.1", safety="financial", tool="send_payment"
    )
    tale.chain.add(proposed, 1, args={"to": "Mallory"})
    return unfinished(tale)


def test_new_arguments_are_those_that_somebody_signed() -> None:
    caught(rewritten({"to": "Acme"}), "ActionProposed", "not those that were signed")
    caught(rewritten({}, voted=False), "ActionProposed", "nobody voted for it")


# -- honest runs -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", STORIES)
def test_what_the_runtime_writes_itself_is_never_called_broken(name: str) -> None:
    """Open, halted or in doubt is fine; every kind of run that is told here must stand up to the checks above."""

    async def tell() -> Report:
        told = await STORIES[name](World())
        env = await told.env()
        assert told.result is not None
        return verify(await evidence.build(env, told.result.run_id, {}, ""), env.trust())

    report = asyncio.run(tell())
    assert report.broken is None, report.broken
    assert report.exit_code in (0, 4, 5)


def test_a_run_that_a_person_ended_while_something_was_in_the_air_does_nothing_new() -> None:
    tale = Story()
    tale.opened()
    tale.proposed()
    for fact in (
        r.RunHalted(cause="people", code="rejected"),
        r.TurnStarted(clock=clock(4)),
        r.ModelCalled(attempt=1, model="scripted", reserves=100),
    ):
        tale.chain.add(fact, 1)
    found = walk(tale.chain.raws).fault
    assert found is not None
    assert (found.type, found.what) == ("ModelCalled", "a model is called after a person's no had ended the run")
