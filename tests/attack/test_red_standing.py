"""What stands on chain `log` and lies in mailboxes: allowances, stops of an agent, junk. None of it is believed for being there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mandamus import wiring
from mandamus.core import records as r
from mandamus.core.canonical import accept
from mandamus.core.money import Money
from mandamus.core.seal import Content, Draft
from mandamus.errors import ProofError
from mandamus.proof import ballot as ballots
from mandamus.proof import dsse, verify
from mandamus.proof import mail as post
from mandamus.runtime import evidence
from mandamus.runtime.replay import replay
from mandamus.testing.virtual import signer
from tests.attack.red_votes import PAY, agent, chain, env_of, facts, payer, pays, records, story, vote

TREASURY = ("treasury p-alice p-bob",)


# -- allowances ----------------------------------------------------------------------------------------------------------------
async def allowed(env: Any, policy: str, count: int, person: str = "p-alice", chain: str = "c") -> None:
    """A standing vote of this person in this chain, countersigned by the administrator, on chain `log`."""
    later = env.time.now() + 10**12
    standing = ballots.Standing(
        amount=Money.of("100.00", "USD"), chain=chain, count=count, pattern={"tool": "send_payment"}, until=later, window="until",
        salt=env.time.entropy(32).hex(),
    )  # fmt: skip
    ballot = ballots.Ballot(
        decision="approve", expires=later, origin=env.origin, policy=policy, run="log", scope=ballots.StandingScope(standing)
    )
    signs = [(k.keyid, k.sign) for k in (signer(person), env.home.signer("administrator"))]
    envelope = dsse.sign(ballots.PAYLOAD_TYPE, ballots.encode(ballot), signs)
    name = ballots.ballot_digest(ballot)
    fact = r.Voted(about="start", ballot=name, clock=env.clock("UTC"), decision="approve", principal=person, scope="standing")
    await env.log.append([Draft(fact, 0, (Content("ballot", accept(envelope)),))], raises=True)


def treasury(standing: str = "vote", **tier: Any) -> list[Any]:
    """Payments above ten dollars need two people of chain `c`."""
    dual = {"over": "10.00 USD", "quorum": 2, "chain": "c", "standing": standing}
    return [{"rules": [PAY, {"id": "dual", "dualApproval": dual}], "chains": {"c": {"tiers": [{"quorum": 2, **tier}]}}}]


def charges(env: Any) -> int:
    """How many calls were counted on allowances."""
    return sum(a.spent + a.reserved for a in env.ledger._store.accounts.values() if "/count/" in a.id)


@pytest.mark.parametrize("people", [["p-alice"], ["p-alice", "p-alice"]], ids=["one allowance", "two of one person"])
def test_an_approver_and_the_administrator_are_no_quorum_of_two(people: list[str]) -> None:
    async def tell() -> None:
        paid: list[str] = []
        env = await env_of("p-alice", "p-bob", roles=TREASURY)
        bot = agent([payer(paid)], treasury(), pays("A"))
        for person in people:
            await allowed(env, (await wiring.bind(bot)).book.digest, 3, person)
        result = await bot.run("x", ledger=env)
        assert (result.state, paid) == ("suspended", [])
        assert [q.quorum for q in await facts(env, result.run_id, "ApprovalRequested")] == [1]
        await vote(env, result.run_id, "p-alice")  # her vote stands already
        assert (await bot.resume(result.checkpoint_id, ledger=env)).state == "suspended"
        assert (paid, charges(env)) == ([], 0)

    asyncio.run(tell())


@story
async def test_a_standing_vote_and_a_fresh_one_are_two() -> None:
    paid: list[str] = []
    env = await env_of("p-alice", "p-bob", roles=TREASURY)
    bot = agent([payer(paid)], treasury(), pays("A"))
    await allowed(env, (await wiring.bind(bot)).book.digest, 3)
    result = await bot.run("x", ledger=env)
    await vote(env, result.run_id, "p-bob")
    result = await bot.resume(result.checkpoint_id, ledger=env)
    assert (result.state, paid, charges(env)) == ("completed", ["A"], 1)
    report = verify(await evidence.build(env, result.run_id, {}, ""), env.trust())
    assert report.broken is None
    assert (await replay(env, await wiring.bind(bot), result.run_id)).ok


@story
async def test_two_standing_votes_are_two_and_both_are_charged() -> None:
    paid: list[str] = []
    env = await env_of("p-alice", "p-bob", roles=TREASURY)
    bot = agent([payer(paid)], treasury(), pays("A"))
    for person in ("p-alice", "p-bob"):
        await allowed(env, (await wiring.bind(bot)).book.digest, 3, person)
    result = await bot.run("x", ledger=env)
    assert (result.state, paid, charges(env)) == ("completed", ["A"], 2)
    report = verify(await evidence.build(env, result.run_id, {}, ""), env.trust())
    assert report.broken is None
    assert any("2 of them standing votes" in claim.says for claim in report.claims)
    assert (await replay(env, await wiring.bind(bot), result.run_id)).ok


@pytest.mark.parametrize(
    ("given", "roles", "chain", "user"),
    [
        ({"of": ["role:treasury"]}, ("treasury p-bob",), "c", "p-zoe"),
        ({}, (), "default", "p-zoe"),
        ({}, (), "c", "p-alice"),
    ],
    ids=["not of the role", "given for another chain", "the requester's own"],
)
def test_whose_allowance_counts_nowhere_here(given: dict[str, Any], roles: tuple[str, ...], chain: str, user: str) -> None:
    """Even where one allowance is called enough."""

    async def tell() -> None:
        paid: list[str] = []
        env = await env_of("p-alice", "p-bob", roles=roles)
        bot = agent([payer(paid)], treasury("enough", **given), pays("A"))
        await allowed(env, (await wiring.bind(bot)).book.digest, 3, chain=chain)
        result = await bot.run("x", ledger=env, user=r.User(principal=user))
        assert (result.state, paid) == ("suspended", [])
        assert [q.quorum for q in await facts(env, result.run_id, "ApprovalRequested")] == [2]

    asyncio.run(tell())


@story
async def test_a_rule_may_call_one_allowance_enough() -> None:
    paid: list[str] = []
    env = await env_of("p-alice", "p-bob", roles=TREASURY)
    bot = agent([payer(paid)], treasury("enough"), pays("A"))
    await allowed(env, (await wiring.bind(bot)).book.digest, 3)
    result = await bot.run("x", ledger=env)
    assert (result.state, paid, charges(env)) == ("completed", ["A"], 1)
    report = verify(await evidence.build(env, result.run_id, {}, ""), env.trust())
    assert any("no quorum was asked for" in claim.says for claim in report.claims)


@story
async def test_nothing_is_charged_to_an_allowance_that_nobody_needed() -> None:
    paid: list[str] = []
    env = await env_of("p-alice")
    bot = agent([payer(paid)], treasury(), pays("A", amount=5))
    await allowed(env, (await wiring.bind(bot)).book.digest, 3)
    result = await bot.run("x", ledger=env)
    assert (result.state, paid, charges(env)) == ("completed", ["A"], 0)


@story
async def test_an_allowance_for_one_call_serves_one_of_a_batch() -> None:
    paid: list[str] = []
    env = await env_of("p-alice")
    policies = [
        {
            "rules": [PAY, {"id": "dual", "dualApproval": {"over": "10.00 USD", "quorum": 1, "chain": "c"}}],
            "chains": {"c": {"tiers": [{"quorum": 1, "of": ["p-alice"]}]}},
        }
    ]
    bot = agent([payer(paid)], policies, pays("A", "B", "C"))
    await allowed(env, (await wiring.bind(bot)).book.digest, count=1)
    result = await bot.run("x", ledger=env)
    assert result.state == "suspended"
    assert len(paid) <= 1


# -- stops of a whole agent ------------------------------------------------------------------------------------------------------
def log_stop(env: Any, key: Any, **changes: Any) -> post.Stop:
    said: dict[str, Any] = {"agent": "payout-bot", "mode": "halt", "nonce": "n", "origin": env.origin, "run": "log"}
    return post.stop(post.StopStatement(**(said | changes)), signer=key.sign, keyid=key.keyid)


async def written(env: Any, message: post.Stop | None, principal: str) -> None:
    """What whoever may write the ledger's file can put on chain `log`."""
    fact = r.StopRequested(agent="payout-bot", clock=env.clock("UTC"), mode="halt", principal=principal)
    body = () if message is None else (Content("statement", accept(message.envelope.encode())),)
    await env.log.append([Draft(fact, 0, body)], raises=True)


@pytest.mark.parametrize(
    ("key", "changes", "principal"),
    [
        (None, {}, "p-alice"),
        ("p-mallory", {}, "p-alice"),
        ("p-bob", {}, "p-alice"),
        ("p-alice", {"agent": "another-bot"}, "p-alice"),
        ("p-alice", {"origin": "mandamus.local/ffffffffffffffff"}, "p-alice"),
        ("p-alice", {"run": "R1"}, "p-alice"),
    ],
    ids=["unsigned", "by a stranger", "by somebody else", "of another agent", "of another log", "of a run"],
)
def test_a_stop_on_the_log_that_nobody_signed_stops_nothing(key: str | None, changes: dict[str, Any], principal: str) -> None:
    async def tell() -> None:
        paid: list[str] = []
        env = await env_of("p-alice", "p-bob")
        await written(env, None if key is None else log_stop(env, signer(key), **changes), principal)
        result = await agent([payer(paid)], [PAY], pays("A")).run("x", ledger=env)
        assert (result.state, paid) == ("completed", ["A"])
        assert env.log.ignored(env.trust()) == [1]
        report = verify(await evidence.build(env, result.run_id, {}, ""), env.trust())
        assert report.broken is not None
        assert (report.broken.where, report.broken.code) == ("chain log, event 1 StopRequested", "MDM-0651")

    asyncio.run(tell())


@pytest.mark.parametrize("who", ["p-alice", "administrator"])
def test_a_signed_stop_of_an_agent_stops_it_and_nobody_passes_it_over(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    async def tell() -> None:
        paid: list[str] = []
        env = await env_of("p-alice")
        key = signer(who) if who.startswith("p-") else env.home.signer(who)
        await env.log.stop(log_stop(env, key), env.clock("UTC"), env.trust())
        bot = agent([payer(paid)], [PAY], pays("A"))
        result = await bot.run("x", ledger=env)
        assert (result.state, paid) == ("halted", [])
        honest = verify(await evidence.build(env, result.run_id, {}, ""), env.trust())
        assert honest.broken is None
        assert any("1 signed stop, none passed over" in claim.says for claim in honest.claims)
        monkeypatch.setattr(type(env.log), "stopped", lambda *_: False)
        result = await bot.run("x", ledger=env)  # a worker that does not care
        report = verify(await evidence.build(env, result.run_id, {}, ""), env.trust())
        assert paid == ["A"]
        assert report.broken is not None
        assert "had stopped it" in report.broken.what

    asyncio.run(tell())


@story
async def test_nobody_can_have_a_stop_recorded_that_would_count_for_nothing() -> None:
    env = await env_of("p-alice")
    with pytest.raises(ProofError, match="not an approver"):
        await env.log.stop(log_stop(env, signer("p-mallory")), env.clock("UTC"), env.trust())
    with pytest.raises(ProofError, match="wrong log"):
        await env.log.stop(log_stop(env, signer("p-alice"), origin="elsewhere"), env.clock("UTC"), env.trust())


# -- the mailbox ---------------------------------------------------------------------------------------------------------------
@story
async def test_a_flood_of_junk_is_counted_and_hides_no_vote() -> None:
    """Anybody may write into a mailbox: what nobody signed is neither believed nor recorded piece by piece."""
    paid: list[str] = []
    env = await env_of("p-alice")
    bot = agent([payer(paid)], chain({"quorum": 1}), pays("A"))
    result = await bot.run("x", ledger=env)
    for n in range(300):
        await env.ledger.send(result.run_id, b"junk %d" % n)
    await vote(env, result.run_id, "p-mallory")
    await vote(env, result.run_id, "p-alice")
    for n in range(40):
        await env.ledger.send(result.run_id, b"more %d" % n)
    result = await bot.resume(result.checkpoint_id, ledger=env)
    assert (result.state, paid) == ("completed", ["A"])
    refused = [x for x in await records(env, result.run_id) if x.type == "MessageRefused"]
    assert len(refused) == 18
    counted = [accept((await env.ledger.payload(result.run_id, x.seq, "message")).bytes[32:]) for x in refused[16:]]
    assert counted[0] == {"first": 17, "reasons": {"malformed": 284, "not_an_approver": 1}, "refused": 285}
    assert counted[1]["refused"] == 40
    assert (await replay(env, await wiring.bind(bot), result.run_id)).ok
    assert verify(await evidence.build(env, result.run_id, {}, ""), env.trust()).exit_code == 0
