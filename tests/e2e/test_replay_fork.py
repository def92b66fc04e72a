"""Forks and differences: recorded until event N, live after it; the parent's effects, charges and votes stay with the parent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mandamus import Misuse
from mandamus.core.records import LOG, RunOpened, decode
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.proof.verify import verify
from mandamus.runtime.evidence import build
from mandamus.runtime.fork import groups
from mandamus.runtime.recording import Recording
from mandamus.testing import Runner
from tests.e2e.stories import RULES, STORIES, World, pay


async def told(name: str) -> tuple[World, Runner]:
    world = World()
    return world, await STORIES[name](world)


def place(r: Runner, kind: str, nth: int = 0) -> int:
    assert r.result is not None
    mine = [x for x in r.events if x.record.run == r.result.run_id]
    return [x.seq for x in mine if x.type == kind][nth]


def test_a_fork_at_the_end_of_a_turn_goes_on_live_and_pays_nothing_again() -> None:
    async def go() -> None:
        world, r = await told("one_payment")
        assert r.result is not None
        at = place(r, "ActionEnded")
        forked = await r.fork(at, model=ScriptedModel(["-", "Paid, said another model."]))
        assert (forked.state, forked.output) == ("completed", "Paid, said another model.")
        assert world.deeds == ["pay Acme"]
        env = await r.env()
        genesis = decode(await anext(aiter(env.ledger.read(forked.run_id)))).fact
        recording = await Recording.load(env, r.result.run_id)
        assert isinstance(genesis, RunOpened)
        assert (genesis.parent.kind, genesis.parent.run, genesis.parent.seq) == ("fork", r.result.run_id, at)  # type: ignore[union-attr]
        assert genesis.parent.hash == recording.hashes[at]  # type: ignore[union-attr]
        report = await r.replay(forked.run_id)
        assert report.ok, report.text()

    asyncio.run(go())


def test_a_fork_charges_no_limit_again() -> None:
    """The parent's reservation stands once on the day's account, though its intent is told twice."""

    async def go() -> None:
        _, r = await told("one_payment")
        env = await r.env()
        names = {x.account for e in r.events if e.type == "ActionStarted" for x in e.fact.reserves}
        before = {n: await env.ledger.account(n) for n in names}
        assert names
        await r.fork(place(r, "ActionEnded"))
        assert {n: await env.ledger.account(n) for n in names} == before

    asyncio.run(go())


@pytest.mark.parametrize(
    "name", ["plain_answer", "one_payment", "odd_calls", "not_done", "tools_within", "bad_luck", "typed_answer", "taken_over"]
)
def test_a_fork_anywhere_lawful_means_what_its_parent_meant(name: str) -> None:
    """For every group: the fork's recorded part has the parent's meaning, event by event."""

    async def go() -> None:
        _, r = await told(name)
        assert r.result is not None
        env, run = await r.env(), r.result.run_id
        recording = await Recording.load(env, run)
        tried, refused = 0, list[str]()
        for at in groups(recording):
            try:
                forked = await r.fork(at, model=ScriptedModel([*["-"] * 3, *["Enough."] * 9]))
            except Misuse as error:
                refused.append(error.diagnosis.code)
                continue
            tried += 1
            theirs = [e for e in await r.events_of(forked.run_id) if not type(e.fact).housekeeping]
            ours = [e for e in await r.events_of(run) if not type(e.fact).housekeeping and e.seq <= at]
            told_again = [e.type for e in theirs if e.type != "ActionDoubted"][: len([e for e in ours if e.type != "ActionDoubted"])]
            assert told_again == [e.type for e in ours if e.type != "ActionDoubted"]
        assert tried > 1
        assert set(refused) <= {"MDM-0264"}

    asyncio.run(go())


def test_a_fork_before_the_vote_asks_the_people_again() -> None:
    """Two people approved the parent. In the fork they are asked anew, under the fork's own digest; old ballots do not count there."""

    async def go() -> None:
        world, r = await told("two_people")
        assert r.result is not None
        asked = next(x.fact for x in r.events if x.type == "ApprovalRequested")
        forked = await r.fork(place(r, "ApprovalRequested"))
        assert forked.state == "suspended"
        assert forked.waiting[0].digest != asked.digest
        assert forked.waiting[0].needed == 2
        assert world.deeds == ["pay Acme"]
        r.result = forked
        done = await r.approve("p-alice", "p-bob")
        assert done.state == "completed"
        assert world.deeds == ["pay Acme", "pay Acme"]
        assert (await r.replay()).ok, (await r.replay()).text()

    asyncio.run(go())


def test_a_fork_behind_a_vote_is_refused_and_says_where_it_may_begin() -> None:
    async def go() -> None:
        _, r = await told("two_people")
        env = await r.env()
        runs = [h.run async for h in env.ledger.runs()]
        with pytest.raises(Misuse, match="MDM-0263") as refused:
            await r.fork(place(r, "ActionEnded"))
        assert f"fork at event {place(r, 'Voted') - 1} or earlier" in refused.value.diagnosis.fix
        assert [h.run async for h in env.ledger.runs()] == runs

    asyncio.run(go())


def test_a_fork_while_an_action_is_in_the_air_is_refused() -> None:
    async def go() -> None:
        world, r = await told("doubted_key")
        with pytest.raises(Misuse, match="MDM-0264"):
            await r.fork(place(r, "ActionStarted"))
        with pytest.raises(Misuse, match="MDM-0264"):
            await r.fork(place(r, "ActionDoubted"))
        assert len(world.deeds) == 2

    asyncio.run(go())


@pytest.mark.parametrize("at", [-1, 99])
def test_an_event_that_is_not_there_is_refused(at: int) -> None:
    async def go() -> None:
        _, r = await told("plain_answer")
        with pytest.raises(Misuse, match="MDM-0262"):
            await r.fork(at)

    asyncio.run(go())


def test_a_fork_with_another_policy_is_judged_by_it() -> None:
    async def go() -> None:
        world, r = await told("one_payment")
        deny = [*RULES, {"id": "never", "toolDenylist": {"tools": ["send_payment"]}}]
        forked = await r.fork(place(r, "ActionProposed") - 2, policies=deny, model=ScriptedModel([pay(), "Then not."]))
        assert (forked.state, forked.output) == ("completed", "Then not.")
        assert world.deeds == ["pay Acme"]

    asyncio.run(go())


def test_a_fork_at_genesis_may_have_another_prompt() -> None:
    async def go() -> None:
        _, r = await told("plain_answer")
        heard: list[str] = []

        def answer(prompt: Any) -> str:
            heard.append(prompt.messages[-1].text)
            return "Goodbye."

        forked = await r.fork(0, input="Say goodbye", model=ScriptedModel([answer]))
        assert forked.output == "Goodbye."
        assert heard == ["Say goodbye"]

    asyncio.run(go())


def test_a_fork_later_on_hears_the_new_words_as_the_user_would_say_them() -> None:
    async def go() -> None:
        _, r = await told("one_payment")
        forked = await r.fork(place(r, "ActionEnded"), input="And tell me why", model=ScriptedModel(["-", "Because."]))
        events = await r.events_of(forked.run_id)
        assert [e.values["text"] for e in events if e.type == "MessageReceived"] == ["And tell me why"]
        assert forked.output == "Because."

    asyncio.run(go())


def test_the_register_counts_forks_too() -> None:
    async def go() -> None:
        _, r = await told("plain_answer")
        forked = await r.fork(0)
        genesis = (await r.events_of(forked.run_id))[0].fact
        assert genesis.register.number == 2

    asyncio.run(go())


def test_chain_log_is_not_forked() -> None:
    async def go() -> None:
        _, r = await told("plain_answer")
        with pytest.raises(Misuse, match="MDM-0261"):
            await r.agent.fork(LOG, 0, ledger=await r.env())

    asyncio.run(go())


# -- diff ---------------------------------------------------------------------------------------------------------------------
def test_two_runs_of_one_story_mean_the_same() -> None:
    async def go() -> None:
        _, r = await told("one_payment")
        assert r.result is not None
        twin = await r.fork(place(r, "ActionEnded"))
        found = await r.diff(r.result.run_id, twin.run_id)
        assert found.equal
        assert found.proposal is None
        assert (found.only_left, found.only_right) == (0, 0)
        assert found.same == len([e for e in r.events if not type(e.fact).housekeeping])

    asyncio.run(go())


def test_the_first_divergent_proposal_is_named_with_its_fields() -> None:
    async def go() -> None:
        _, r = await told("one_payment")
        assert r.result is not None
        at = place(r, "ModelCalled")
        other = await r.fork(at, model=ScriptedModel([pay(to="Eve"), "Paid."]))
        found = await r.diff(r.result.run_id, other.run_id)
        assert not found.equal
        assert found.first is not None
        assert found.first.left.type == "ModelReplied"  # type: ignore[union-attr]
        assert found.proposal is not None
        assert found.proposal.left.what == found.proposal.right.what == "ActionProposed send_payment"  # type: ignore[union-attr]
        assert found.proposal.fields == ("body.args",)
        assert "Eve" not in found.text()
        assert (
            "first divergent proposal: event 5 ActionProposed send_payment | event 5 ActionProposed send_payment (body.args)"
            in found.text()
        )

    asyncio.run(go())


def test_a_proposal_that_only_one_run_made() -> None:
    async def go() -> None:
        _, r = await told("one_payment")
        assert r.result is not None
        other = await r.fork(place(r, "ModelCalled"), model=ScriptedModel(["I will not."]))
        found = await r.diff(r.result.run_id, other.run_id)
        assert found.proposal is not None
        assert found.proposal.right is None
        assert found.text().endswith("first divergent proposal: event 5 ActionProposed send_payment | none")

    asyncio.run(go())


def test_runs_that_differ_only_in_words_have_the_same_proposals() -> None:
    async def go() -> None:
        _, r = await told("one_payment")
        assert r.result is not None
        other = await r.fork(place(r, "ActionEnded"), model=ScriptedModel([Step(), "Done."]))
        found = await r.diff(r.result.run_id, other.run_id)
        assert not found.equal
        assert found.proposal is None
        assert found.text().endswith("the proposals are the same")

    asyncio.run(go())


def test_a_run_that_is_not_there() -> None:
    async def go() -> None:
        _, r = await told("plain_answer")
        assert r.result is not None
        with pytest.raises(Misuse, match="MDM-0250"):
            await r.diff(r.result.run_id, "nobody")

    asyncio.run(go())


@pytest.mark.parametrize("name", ["one_payment", "taken_over", "tools_within"])
def test_a_fork_proves_itself(name: str) -> None:
    """Its bundle verifies: told-again intents stand behind their judgements, and nothing is charged that was not reserved."""

    async def go() -> None:
        _, r = await told(name)
        forked = await r.fork(place(r, "ActionEnded", -1))
        env = await r.env()
        report = verify(await build(env, forked.run_id, {}, ""), env.trust())
        assert report.ok, report

    asyncio.run(go())
