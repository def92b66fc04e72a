"""The named dangers, each as one test: who may start what, and what a crash may never do."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from mandamus import Absent, Conflict, Ctx, Found, Money, NotDone, ProofError, Receipt, tool, wiring
from mandamus.core import records as r
from mandamus.core.canonical import canon
from mandamus.core.payload import SALT
from mandamus.core.records import LOG, MailRef
from mandamus.core.seal import Content, Draft
from mandamus.drivers.model_scripted import Step
from mandamus.errors import Unavailable
from mandamus.proof import mail as post
from mandamus.runtime import drive, execute, mail, recover
from mandamus.runtime.carry import Delays, carry
from mandamus.testing.people import signer, stop, vote
from mandamus.testing.power import Power, PowerCut, PowerLedger
from tests.crash.stand import LARGE, OWN, PAY, SMALL, TUESDAY, TWO, Around, Retry, Stand, agent_of, pay_tool, rules_file, waiting

NEVER = {"id": "closed", "toolDenylist": {"tools": ["pay"]}}
DAY = 86_400_000_000


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


async def killed_at(stand: Stand, place: str, time: int = 1) -> str:
    """A run whose process died when it came to this place for the first, second, ... time. Returns its id."""
    power = Power()
    reached = power.place
    left = time

    def cut(name: str) -> None:
        nonlocal left
        left -= name == place
        if name == place and not left:
            power.cuts, power.base = (0,), len(power.trace)
        reached(name)

    power.place = cut  # type: ignore[method-assign]
    stand.power = power
    env = await stand.worker("worker-1", lambda inner: PowerLedger(inner, power))
    with pytest.raises(PowerCut):
        await stand.run(env=env)
    await stand.handle.close()
    stand.power = Power()
    runs = [head.run async for head in stand.ledger.runs() if head.run != LOG]
    assert len(runs) == 1
    return runs[0]


# -- each attempt is judged on today's facts ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("effect", "place", "ends"),
    [("keyed", "after pay", "unknown"), ("keyed", "before pay", "unknown"), ("reconcilable", "before pay", "failed")],
)
def test_a_second_attempt_under_a_policy_that_meanwhile_denies_does_not_start(effect: str, place: str, ends: str) -> None:
    class Nowhere:
        async def find(self, operation_id: str) -> Absent:
            return Absent()

    async def story() -> None:
        contract = {"reconcile": Nowhere(), "timeout": "1s"} if effect == "reconcilable" else {}
        pay = pay_tool(effect, **contract)
        stand = await Stand.of(agent_of(pay))
        id = await killed_at(stand, place)
        before = stand.deeds
        today = await wiring.bind(agent_of(pay, policies=(PAY, NEVER)))
        s = await stand.resume(id, bound=today)
        assert [f.attempt for f in await stand.facts(id, r.ActionStarted)] == [1]
        assert [f.verdict for f in await stand.facts(id, r.ActionJudged)][1] == "deny"
        assert (await stand.facts(id, r.ActionEnded))[-1].result == ends
        assert stand.deeds == before
        assert bool(s.run.open_actions and waiting(s).request) == (ends == "unknown"), "people are asked about what nobody knows"

    run(story())


WEEK = """
chains:
  slow:
    tiers:
      - {quorum: 2, deadline: 96h}
rules:
  - {id: pay, permit: {safety: financial}}
  - {id: two, dualApproval: {over: "10.00 USD", chain: slow, quorum: 2}}
  - {id: friday, noWritesOn: {weekdays: [friday]}}
"""


@pytest.mark.parametrize(("days", "started"), [(2, 1), (3, 0)])
def test_proposed_on_tuesday_voted_on_friday_with_no_writes_on_friday_is_denied(days: int, started: int, tmp_path: Any) -> None:
    async def story() -> None:
        stand = await Stand.of(
            agent_of(pay_tool(), calls=(("pay", {"to": "Acme", "amount": LARGE}),), policies=(rules_file(tmp_path, WEEK),))
        )
        s = await stand.run()
        stand.time.instant = TUESDAY + days * DAY
        await stand.vote(s)
        s = await stand.resume(s.run.id)
        assert len(await stand.facts(s.run.id, r.ActionStarted)) == started
        assert stand.deeds == started
        last = (await stand.facts(s.run.id, r.ActionJudged))[-1]
        assert last.verdict == ("allow" if started else "deny")
        assert started or "friday" in last.determining

    run(story())


# -- one writer ---------------------------------------------------------------------------------------------------------------
def test_a_second_resume_of_a_live_run_conflicts_and_writes_nothing() -> None:
    async def story() -> None:
        gate = asyncio.Event()
        stand = await Stand.of(agent_of(pay_tool(deed=lambda ctx: gate.wait())))
        owner = await stand.open()
        driving = asyncio.create_task(stand.carry(owner))
        while not await stand.facts(owner.run.id, r.ActionStarted):
            await asyncio.sleep(0)
        before = await stand.records(owner.run.id)
        with pytest.raises(Conflict):
            await stand.take(owner.run.id)
        assert await stand.records(owner.run.id) == before
        gate.set()
        await driving
        assert owner.run.end == "completed"
        assert not await stand.facts(owner.run.id, r.RunOwned)
        assert stand.deeds == 1

    run(story())


def test_the_late_outcome_of_a_fenced_owner_is_refused_and_nothing_of_it_is_written() -> None:
    async def story() -> None:
        gate = asyncio.Event()
        stand = await Stand.of(agent_of(pay_tool("irreversible", deed=lambda ctx: gate.wait())))
        old = await stand.open()
        driving = asyncio.create_task(stand.carry(old))
        while not await stand.facts(old.run.id, r.ActionStarted):
            await asyncio.sleep(0)
        stand.ledger._store.holders.clear()  # its machine was paused for so long that its lease ran out
        s = await stand.resume(old.run.id)
        epoch, seen = s.run.epoch, await stand.records(old.run.id)
        gate.set()
        with pytest.raises(Conflict) as refused:
            await driving
        assert refused.value.on == "run"
        assert await stand.records(old.run.id) == seen
        assert epoch == 2
        assert (await stand.facts(old.run.id, r.ActionEnded))[-1].result == "unknown"
        assert stand.deeds == 1

    run(story())


def test_a_run_that_somebody_drove_before_its_opener_held_it_is_left_to_him() -> None:
    """The opener was paused between writing genesis and taking the lease; what it folded is the past."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool("irreversible")))
        other = []

        class Paused(Around):
            async def claim(self, pool: str, ttl_ms: int, *, run: str | None = None) -> Any:
                if not other:
                    other.append(await stand.resume(run or ""))
                return await self._inner.claim(pool, ttl_ms, run=run)

        async def nothing(facts: Any) -> None:
            return None

        with pytest.raises(Conflict) as refused:
            await stand.run(env=await stand.worker("opener", lambda inner: Paused(inner, nothing)))
        assert refused.value.on == "run"
        assert other[0].run.end == "completed"
        assert stand.deeds == 1
        assert stand.ledger._store.holders == {}, "it was given back"

    run(story())


def test_what_an_earlier_owner_still_writes_between_claim_and_reading_makes_the_takeover_a_conflict() -> None:
    """Its lease ran out and it has not heard of it: an append of it may be the last thing before we read. It is no broken chain."""

    async def story() -> None:
        stand = await Stand.of(waits_for_two())
        s = await stand.run()
        old = await stand.take(s.run.id)
        await stand.vote(s)
        stand.ledger._store.holders.clear()

        class Meanwhile(Around):
            async def read(self, run: str, after: int = -1, upto: int | None = None) -> Any:
                if run == s.run.id:
                    await mail.drain(old)
                async for raw in self._inner.read(run, after, upto):
                    yield raw

        async def nothing(facts: Any) -> None:
            return None

        with pytest.raises(Conflict) as refused:
            await stand.take(s.run.id, await stand.worker("late", lambda inner: Meanwhile(inner, nothing)))
        assert refused.value.on == "run"
        assert len(await stand.facts(s.run.id, r.RunOwned)) == 1, "nothing of the second owner was written"
        assert stand.ledger._store.holders == {}, "it was given back"
        assert len(await stand.facts(s.run.id, r.Voted)) == 2
        assert (await stand.resume(s.run.id)).run.end == "completed"
        assert stand.deeds == 1

    run(story())


def test_a_ledger_that_fails_while_a_reply_is_read_is_no_fault_of_the_model() -> None:
    """Whether a call is a repeat is asked of the ledger. A run is not halted for an outage; whoever takes it over asks again."""

    async def story() -> None:
        twice = Step(calls=(("pay", {"to": "Acme", "amount": SMALL}),))
        stand = await Stand.of(agent_of(pay_tool(), then=(twice, "done")))
        id = await killed_at(stand, "before a model call", 2)  # with something proposed before, that the next call may repeat

        class Gone(Around):
            async def payloads(self, run: str, after: int = -1, parts: Any = ()) -> Any:
                raise Unavailable("the ledger does not answer", outcome="none")
                yield  # an async generator, as the port's is

        async def nothing(facts: Any) -> None:
            return None

        with pytest.raises(Unavailable):
            await stand.resume(id, await stand.worker("worker-2", lambda inner: Gone(inner, nothing)))
        assert await stand.facts(id, r.RunHalted) == []
        assert [f.category for f in await stand.facts(id, r.ModelFailed)] == ["lost"]
        await stand.handle.close()
        assert (await stand.resume(id)).run.end == "completed"
        assert stand.deeds == 2

    run(story())


def test_a_claimed_run_whose_beginning_cannot_be_read_is_given_back() -> None:
    """A worker lives on after an outage: a lock that it kept would never be free again, and nobody else could take the run."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool()))
        id = await killed_at(stand, "before a model call")

        class Gone(Around):
            async def read(self, run: str, after: int = -1, upto: int | None = None) -> Any:
                async for raw in self._inner.read(run, after, upto):
                    if run == id:
                        raise Unavailable("the ledger does not answer", outcome="none")
                    yield raw

        async def nothing(facts: Any) -> None:
            return None

        env = await stand.worker("worker-2", lambda inner: Gone(inner, nothing))
        held = await env.ledger.claim("default", 15_000)
        assert held is not None
        assert (await carry(env, {}, held, Delays())).state == "unavailable"
        assert stand.ledger._store.holders == {}
        after = await stand.ledger.head(id)
        assert after is not None
        assert after.tries == held.tries - 1, "an outage is no try: it says nothing about the run"
        assert (await stand.resume(id)).run.end == "completed"

    run(story())


# -- shared accounts ----------------------------------------------------------------------------------------------------------
def test_two_runs_racing_for_one_limit_never_go_over_it() -> None:
    daily = {"id": "daily", "maxDailyLimit": {"limit": "100.00 USD"}}
    call = (("pay", {"to": "Acme", "amount": {"amount": "6000", "currency": "USD"}}),)

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool(), calls=call, policies=(PAY, daily)))
        both, arrived = asyncio.Event(), []

        async def meet(facts: list[r.Fact]) -> None:
            """Both have judged before either writes."""
            if any(isinstance(f, r.ActionStarted) for f in facts) and len(arrived) < 2:
                arrived.append(1)
                if len(arrived) == 2:
                    both.set()
                await both.wait()

        workers = [await stand.worker(n, lambda inner: Around(inner, meet)) for n in "ab"]
        runs = await asyncio.gather(*(stand.run(env=env) for env in workers))
        started = [len(await stand.facts(s.run.id, r.ActionStarted)) for s in runs]
        assert sorted(started) == [0, 1]
        assert stand.deeds == 1
        loser = runs[started.index(0)].run.id
        assert [f.verdict for f in await stand.facts(loser, r.ActionJudged)] == ["deny"]
        account = await stand.ledger.account("limit/default/daily/payout-bot/2023-11-21")
        assert account is not None
        assert (account.reserved, account.spent) == (0, 6000)

    run(story())


def test_a_stop_between_judgement_and_intent_makes_the_append_fail_and_the_action_is_judged_again() -> None:
    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool()))
        admin = await stand.worker("admin")
        told = []

        async def meanwhile(facts: list[r.Fact]) -> None:
            if any(isinstance(f, r.ActionStarted) for f in facts) and not told:
                told.append(1)
                key = admin.home.signer("administrator")
                said = post.StopStatement(agent="payout-bot", mode="halt", nonce="n", origin=admin.origin, run="log")
                message = post.stop(said, signer=key.sign, keyid=key.keyid)
                await admin.log.stop(message, admin.clock("UTC"), admin.trust())

        s = await stand.run(env=await stand.worker("worker", lambda inner: Around(inner, meanwhile)))
        assert told
        assert await stand.facts(s.run.id, r.ActionStarted) == []
        judged = await stand.facts(s.run.id, r.ActionJudged)
        assert [(f.verdict, f.code) for f in judged] == [("deny", "stopped")]
        assert s.run.life == "halted"
        assert stand.deeds == 0

    run(story())


@pytest.mark.parametrize("turns", range(8))
def test_an_outcome_is_not_lost_when_another_start_beside_it_is_rolled_back(turns: int) -> None:
    """Two actions: one ends in the moment in which the intent of the other is refused. The ended one is not done again."""

    async def story() -> None:
        tries: list[str] = []

        def deed(ctx: Any) -> None:
            tries.append(ctx.operation_id)
            if len(tries) == 1:
                raise NotDone("not today")

        gate, told = asyncio.Event(), []

        class Meanwhile(Around):
            async def account(self, id: str) -> Any:
                """Asked while the second attempt is judged: the other tool comes home, some turns of the loop before the judgement does."""
                task: Any = asyncio.current_task()
                if tries and "_fly" in task.get_coro().__qualname__ and not gate.is_set():
                    gate.set()
                    for _ in range(turns):
                        await asyncio.sleep(0)
                return await self._inner.account(id)

        async def change(facts: list[r.Fact]) -> None:
            if any(isinstance(f, r.ActionStarted) and f.attempt == 2 for f in facts) and not told:
                told.append(1)
                await admin.log.append(
                    [Draft(r.PolicyChanged(agent="x", clock=admin.clock("UTC"), new="b" * 64, old="a" * 64), 0)], raises=True
                )

        first = pay_tool("irreversible", deed, name="pay", retry=Retry(3, backoff_ms=0))
        second = pay_tool("irreversible", lambda ctx: gate.wait(), name="wire")
        calls = (("pay", {"to": "A", "amount": SMALL}), ("wire", {"to": "B", "amount": SMALL}))
        stand = await Stand.of(
            agent_of(first, second, calls=calls, policies=(PAY, {"id": "daily", "maxDailyLimit": {"limit": "100.00 USD"}}))
        )
        admin = await stand.worker("admin")
        s = await stand.run(env=await stand.worker("worker", lambda inner: Meanwhile(inner, change)))
        assert told
        assert s.run.end == "completed"
        assert sorted(stand.world.deeds.values()) == [1, 1]
        assert [f.result for f in await stand.facts(s.run.id, r.ActionEnded)].count("done") == 2

    run(story())


# -- votes are evidence -------------------------------------------------------------------------------------------------------
def waits_for_two() -> Any:
    return agent_of(pay_tool(), calls=(("pay", {"to": "Acme", "amount": LARGE}),), policies=(PAY, TWO))


def test_junk_votes_recorded_by_an_owner_start_nothing_at_the_next_one() -> None:
    """A compromised worker writes `Voted` for two people into the chain; whoever owns the run next verifies the ballots itself."""

    async def story() -> None:
        stand = await Stand.of(waits_for_two())
        s = await stand.run()
        bad = await stand.take(s.run.id)
        action = waiting(bad)
        assert action.request is not None
        for n, name in enumerate(stand.crowd.people):
            fact = r.Voted(
                about="start", action=action.id, ballot="0" * 64, clock=bad.clock(), decision="approve",
                mail=MailRef(cursor=n + 1, key="0" * 63 + str(n)), principal=name, request=action.request.id, scope="once",
            )  # fmt: skip
            bad.record([Draft(fact, 1, (Content("ballot", {"payload": "", "payloadType": "x", "signatures": []}),))])
        assert await bad.save()
        await recover.give_back(bad)
        s = await stand.resume(s.run.id)
        assert await stand.facts(s.run.id, r.ActionStarted) == []
        assert stand.deeds == 0
        assert s.run.life != "completed"

    run(story())


def test_forged_squatted_replayed_and_foreign_mail_counts_for_nothing_and_is_said() -> None:
    async def story() -> None:
        stand = await Stand.of(waits_for_two())
        s, other = await stand.run(), await stand.run()
        action, name = waiting(s), next(iter(stand.crowd.people))
        stranger = signer(f"people.test/{name}")
        good = stand.crowd.vote(s, action, name, "approve")
        forged = good.replace(b'\\"sig\\":\\"', b'\\"sig\\":\\"AAAA', 1)
        again = stand.crowd.vote(s, action, name, "reject")
        foreign = stand.crowd.vote(other, waiting(other), name, "approve")
        for message in (good, good, again, vote(s, action, stranger, "approve"), forged, foreign, b"{", b"\xff" * 9):
            await stand.ledger.send(s.run.id, message)
        s = await stand.resume(s.run.id)
        voted = await stand.facts(s.run.id, r.Voted)
        assert [v.principal for v in voted] == [name]
        reasons = [f.reason for f in await stand.facts(s.run.id, r.MessageRefused)]
        assert reasons[:2] == ["voted_already", "not_an_approver"]
        assert reasons[3:] == ["wrong_request", "malformed", "malformed"]
        assert len(reasons) == 6
        assert await stand.facts(s.run.id, r.ActionStarted) == []
        assert stand.deeds == 0

    run(story())


def test_a_vote_for_what_was_shown_yesterday_does_not_start_something_else() -> None:
    async def story() -> None:
        stand = await Stand.of(waits_for_two())
        s = await stand.run()
        for wrong in (
            {"action": "f" * 64},
            {"card": "f" * 64},
            {"policy": "f" * 64},
            {"expires": TUESDAY - 1},
            {"expires": TUESDAY + DAY},
            {"origin": "elsewhere"},
        ):
            await stand.vote(s, **wrong)
        s = await stand.resume(s.run.id)
        assert await stand.facts(s.run.id, r.Voted) == []
        assert len(await stand.facts(s.run.id, r.MessageRefused)) == 12
        assert stand.deeds == 0

    run(story())


def test_votes_are_named_in_the_intent_that_used_them_and_count_for_its_later_attempts() -> None:
    async def story() -> None:
        stand = await Stand.of(waits_for_two())
        s = await stand.run()
        await stand.vote(s)
        stand.power = Power()
        env = await stand.worker("worker-2", lambda inner: PowerLedger(inner, stand.power))
        taken = await stand.take(s.run.id, env)
        stand.power.cuts, stand.power.base = (stand_places(stand, "after pay"),), len(stand.power.trace)
        with pytest.raises(PowerCut):
            await stand.carry(taken)
        await stand.handle.close()
        stand.power = Power()
        s = await stand.resume(s.run.id)
        votes = [x.seq for x in await stand.records(s.run.id) if isinstance(x.fact, r.Voted)]
        assert [f.votes for f in await stand.facts(s.run.id, r.ActionStarted)] == [tuple(votes), tuple(votes)]
        assert len(await stand.facts(s.run.id, r.ApprovalRequested)) == 1, "nobody is asked twice"
        assert s.run.end == "completed"
        assert len(stand.world.deeds) == 1

    run(story())


def stand_places(stand: Stand, name: str) -> int:
    """The deed comes two places behind the write of its intent."""
    return 3


def test_one_message_is_one_fact_however_often_it_is_read() -> None:
    async def story() -> None:
        stand = await Stand.of(waits_for_two())
        s = await stand.run()
        await stand.vote(s, people=1)
        for _ in range(3):
            s = await stand.resume(s.run.id)
            await stand.vote(s, people=1)
        assert len(await stand.facts(s.run.id, r.Voted)) == 1
        assert await stand.facts(s.run.id, r.MessageRefused) == []

    run(story())


def test_mail_that_comes_while_the_lease_is_given_back_is_not_slept_through() -> None:
    async def story() -> None:
        stand = await Stand.of(waits_for_two())
        sent = []

        class Late(Around):
            async def renew(self, head: Any, ttl_ms: int) -> Any:
                if ttl_ms == 0 and not sent:
                    sent.append(1)
                    await stand.ledger.send(head.run, b"a vote, a moment before the lease is given back")
                return await self._inner.renew(head, ttl_ms)

        async def nothing(facts: Any) -> None:
            return None

        s = await stand.run(env=await stand.worker("worker", lambda inner: Late(inner, nothing)))
        head = await stand.ledger.head(s.run.id)
        assert head is not None
        assert head.mail > s.run.cursor
        assert head.wake_at is not None
        assert head.wake_at <= stand.time.now()
        claimed = await stand.ledger.claim("default", 1000)
        assert claimed is not None
        assert claimed.run == s.run.id

    run(story())


# -- what a tool says and what the world says -------------------------------------------------------------------------------------
@pytest.mark.parametrize("effect", ["keyed", "reconcilable", "irreversible"])
def test_an_exception_after_the_effect_is_doubt_and_never_failed(effect: str) -> None:
    booked: list[str] = []

    class Bank:
        async def find(self, operation_id: str) -> Any:
            return Found("tx") if operation_id in booked else Absent()

    def deed(ctx: Any) -> None:
        if ctx.operation_id not in booked or effect != "keyed":
            booked.append(ctx.operation_id)
        raise ValueError("the answer of the bank could not be parsed")

    async def story() -> None:
        contract = {"reconcile": Bank()} if effect == "reconcilable" else {}
        stand = await Stand.of(agent_of(pay_tool(effect, deed, **contract)))
        s = await stand.run()
        assert len(booked) == 1
        assert (await stand.facts(s.run.id, r.ActionDoubted))[0].cause == "fault"
        ended = [f.result for f in await stand.facts(s.run.id, r.ActionEnded)]
        assert ended == (["done"] if effect == "reconcilable" else ["unknown"])

    run(story())


def test_only_not_done_is_a_failure_and_a_retry_of_it_is_judged_again() -> None:
    said: list[str] = []

    def deed(ctx: Any) -> None:
        said.append(ctx.operation_id)
        if len(said) == 1:
            raise NotDone("the bank is closed for a moment")

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool("irreversible", deed, retry=Retry(2, backoff_ms=10))))
        s = await stand.run()
        assert s.run.end == "completed"
        assert [f.result for f in await stand.facts(s.run.id, r.ActionEnded)] == ["failed", "done"]
        assert [f.attempt for f in await stand.facts(s.run.id, r.ActionStarted)] == [1, 2]
        assert [f.attempt for f in await stand.facts(s.run.id, r.ActionJudged)] == [1, 2]
        assert len(set(said)) == 1, "one action, one operation id"

    run(story())


def test_absent_counts_for_nothing_when_the_run_is_not_held() -> None:
    """A session that only reads the run cannot know that its owner is dead."""

    class Nowhere:
        async def find(self, operation_id: str) -> Absent:
            return Absent()

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool("reconcilable", reconcile=Nowhere())))
        id = await killed_at(stand, "before pay")
        reader = await recover.read_run(await stand.worker("reader"), stand.counted(), id)
        effect = execute.e.Reconcile(action="1.1", attempt=1, tries=0)
        assert (await execute.reconcile(reader, effect)).kind == "unclear"
        owner = await stand.take(id)
        asked = await execute.reconcile(owner, effect)
        assert asked.kind == "unclear", "what the old owner sent last may still arrive"
        assert asked.retry_at == owner.run.actions["1.1"].lands
        await stand.time.sleep_until(asked.retry_at)
        assert (await execute.reconcile(owner, effect)).kind == "absent"
        await recover.give_back(owner)
        assert (await execute.reconcile(owner, effect)).kind == "unclear", "a lease that is gone proves nothing about others"

    run(story())


def test_a_thread_that_outlived_its_deadline_is_never_believed_absent() -> None:
    """The old attempt can still land: "absent" now would be a second payment later."""
    late, booked = threading.Event(), []

    class Bank:
        async def find(self, operation_id: str) -> Any:
            return Found("tx") if booked else Absent()

    @tool(safety="financial", effect="reconcilable", data=OWN, reconcile=Bank(), timeout="50ms")
    def pay(ctx: Ctx, to: str, amount: Money) -> Receipt:
        """Transfer corporate funds, slowly."""
        late.wait(10)
        booked.append(ctx.operation_id)
        return Receipt(id="tx")

    async def story() -> None:
        stand = await Stand.of(agent_of(pay))
        s = await stand.run()
        ended = await stand.facts(s.run.id, r.ActionEnded)
        assert [f.result for f in ended] in ([], ["unknown"])
        assert len(await stand.facts(s.run.id, r.ActionStarted)) == 1
        late.set()

    run(story())


def test_a_thread_that_outlives_its_owner_in_one_process_is_not_believed_absent() -> None:
    """Tools die with their worker, threads do not die with a cancelled drive: while one lives, nobody else may own the run."""
    late, begun, booked = threading.Event(), threading.Event(), []

    class Bank:
        async def find(self, operation_id: str) -> Any:
            return Found("tx") if booked else Absent()

    @tool(safety="financial", effect="reconcilable", data=OWN, reconcile=Bank(), timeout="30s")
    def pay(ctx: Ctx, to: str, amount: Money) -> Receipt:
        """Transfer corporate funds, slowly."""
        begun.set()
        late.wait(10)
        booked.append(ctx.operation_id)
        return Receipt(id="tx")

    async def story() -> None:
        stand = await Stand.of(agent_of(pay))
        first = await stand.open()
        driving = asyncio.create_task(stand.carry(first))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        with pytest.raises(Conflict):
            await stand.resume(first.run.id)
        late.set()
        while first.env.lingering:
            await asyncio.sleep(0.01)
        second = await stand.resume(first.run.id)
        assert second.run.end == "completed"
        assert len(booked) == len(await stand.facts(second.run.id, r.ActionStarted)) == 1

    run(story())


def test_a_swapped_payload_is_a_proof_error_and_nothing_is_done_with_it() -> None:
    async def story() -> None:
        stand = await Stand.of(waits_for_two())
        s = await stand.run()
        await stand.vote(s)
        kept = stand.ledger._store.payloads[s.run.id]
        seq = waiting(s).seq
        secret = kept[seq, "args"].bytes[:SALT]
        swapped = b'{"amount":{"amount":"5000000","currency":"USD","decimals":2},"to":"Mallory"}'
        kept[seq, "args"] = type(kept[seq, "args"])(s.run.id, seq, "args", secret + swapped)
        with pytest.raises(ProofError):
            await stand.resume(s.run.id)
        assert stand.deeds == 0
        assert await stand.facts(s.run.id, r.ActionStarted) == []
        assert [f.cause for f in await stand.facts(s.run.id, r.RunHalted)] == ["engine"]

    run(story())


def test_a_stop_in_the_mailbox_is_older_than_any_resend() -> None:
    """Mail is read before anything is due: the run that was stopped while its worker lay dead does not act first."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool(), policies=(PAY,)))
        id = await killed_at(stand, "before pay")
        name, key = next(iter(stand.crowd.people.items()))
        await stand.ledger.send(id, stop(await stand.worker("front"), id, key, "halt"))
        s = await stand.resume(id)
        assert s.run.life == "halted"
        assert [f.principal for f in await stand.facts(id, r.StopRequested)] == [name]
        assert len(await stand.facts(id, r.ActionStarted)) == 1
        assert stand.deeds == 0

    run(story())


def test_settling_an_unknown_outcome_is_a_signed_vote() -> None:
    async def story() -> None:
        for said, deeds, ends in (
            ("done", 1, ["unknown", "done"]),
            ("again", 2, ["unknown", "done"]),
            ("abandon", 1, ["unknown", "unknown"]),
        ):
            stand = await Stand.of(agent_of(pay_tool("irreversible")))
            id = await killed_at(stand, "after pay")
            s = await stand.resume(id)
            assert waiting(s).request.about == "outcome"  # type: ignore[union-attr]
            await stand.vote(s, said, people=1)
            s = await stand.resume(id)
            assert [f.result for f in await stand.facts(id, r.ActionEnded)] == ends
            assert stand.deeds == deeds
            assert s.run.end == "completed"

    run(story())


def test_drive_returns_at_once_for_a_run_that_is_over() -> None:
    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool()))
        s = await stand.run()
        before = await stand.records(s.run.id)
        taken = await stand.take(s.run.id)
        await drive.drive(taken)
        assert await stand.records(s.run.id) == before

    run(story())


def test_a_repeat_is_known_to_all_who_ask_while_the_stored_proposals_are_still_being_read() -> None:
    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool()))
        s = await stand.run()
        proposal = next(x for x in await stand.records(s.run.id) if isinstance(x.fact, r.ActionProposed))
        reader = await recover.read_run(await stand.worker("reader", Slowly), stand.counted(), s.run.id)
        args = canon(await reader.value(proposal.seq, "args"))
        assert await asyncio.gather(*(reader.repeats("pay", args) for _ in range(3))) == [proposal.seq] * 3

    run(story())


class Slowly:
    """A ledger that lets others have their turn before each payload."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def payloads(self, *given: Any, **more: Any) -> Any:
        async for payload in self._inner.payloads(*given, **more):
            await asyncio.sleep(0)
            yield payload

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
