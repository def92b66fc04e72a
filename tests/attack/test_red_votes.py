"""Votes, allowances and policies that must not count, engines that break their promise, children that outgrow their parent."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from mandamus import Budget, Ctx, NotDone, Retry, allow, escalate, rule, tool, wiring
from mandamus.agent import guardrail
from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core import rules, rulings
from mandamus.core.accounts import Balance
from mandamus.core.facts import FactEnvelope, Judgement, Limit
from mandamus.core.seal import Draft
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.model_scripted import Step
from mandamus.ports import AccountWrite
from mandamus.runtime import engines, mail, recover
from mandamus.runtime.fork import fork_run
from mandamus.runtime.guard import Block
from mandamus.testing.virtual import VirtualTime, home
from tests.attack.red_votes import OWN, PAY, PLAIN, Engine, agent, chain, env_of, facts, payer, pays, records, stop, story, usd, vote

TREASURY = ("treasury p-alice p-bob",)


# -- quorums and tiers ---------------------------------------------------------------------------------------------------------
def lying(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """The worker that asks the people writes another request than policy wants."""
    honest = rulings._request

    def request(run: Any, action: Any, v: Any, now: int) -> list[Draft]:
        draft = honest(run, action, v, now)[0]
        return [msgspec.structs.replace(draft, fact=msgspec.structs.replace(draft.fact, **changes))]

    monkeypatch.setattr(rulings, "_request", request)


@pytest.mark.parametrize("changes", [{"quorum": 1}, {"quorum": 1, "tier": 1}], ids=["quorum", "tier"])
@pytest.mark.parametrize("asked", [2, 1], ids=["the rule asks two", "the chain asks two"])
def test_an_honest_owner_counts_by_todays_policy(monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], asked: int) -> None:
    async def tell() -> None:
        paid: list[str] = []
        env = await env_of("p-alice", "p-bob", roles=TREASURY)
        tiers = ({"quorum": 2, "of": ["role:treasury"]}, {"quorum": 1, "of": ["role:treasury"]})
        bot = agent([payer(paid)], chain(*tiers, quorum=asked), pays("A"))
        with monkeypatch.context() as liar:
            lying(liar, **changes)
            result = await bot.run("x", ledger=env)
        await vote(env, result.run_id, "p-alice")
        result = await bot.resume(result.checkpoint_id, ledger=env)
        assert (result.state, paid) == ("suspended", [])
        for person in ("p-alice", "p-bob"):  # asked again, honestly now
            await vote(env, result.run_id, person)
        assert (await bot.resume(result.checkpoint_id, ledger=env)).state == "completed"
        assert paid == ["A"]

    asyncio.run(tell())


@story
async def test_a_judgements_own_clock_ends_tiers_too() -> None:
    """Whatever records the time asks the next tier beside it, so that nobody can be passed over by looking at the clock elsewhere."""
    env = await env_of("p-alice", "p-bob")
    tiers = ({"quorum": 1, "of": ["p-alice"], "deadline": "1h"}, {"quorum": 1, "of": ["p-bob"]})
    bot = agent([payer([])], chain(*tiers), pays("A"))
    result = await bot.run("x", ledger=env)
    s = await recover.read_run(env, await wiring.bind(bot), result.run_id)
    env.time.advance(hours=1)
    clock = s.clock()
    drafts = rules.decide(s.run, e.Rulings(seq=s.run.seq, clock=clock, rulings=(), tiers=mail.next_tiers(s, clock)))
    assert [type(d.fact) for d in drafts] == [r.TimePassed, r.ApprovalRequested]
    assert drafts[1].fact.tier == 1  # type: ignore[attr-defined]
    await vote(env, result.run_id, "p-alice")  # answered, in the time of the first tier, before anybody looked
    await mail.drain(s)
    assert mail.next_tiers(s, clock) == ()


@story
async def test_a_run_whose_request_went_to_a_later_tier_can_be_forked() -> None:
    env = await env_of("p-alice", "p-bob")
    tiers = ({"quorum": 1, "of": ["p-alice"], "deadline": "1h"}, {"quorum": 1, "of": ["p-bob"]})
    bot = agent([payer([])], chain(*tiers), pays("A"))
    result = await bot.run("x", ledger=env)
    env.time.advance(hours=1)
    await bot.resume(result.checkpoint_id, ledger=env)
    asked = [q.tier for q in await facts(env, result.run_id, "ApprovalRequested")]
    assert asked == [0, 1]
    last = len(await records(env, result.run_id)) - 1
    s = await fork_run(env, await wiring.bind(bot), result.run_id, at=last)
    assert [q.tier for q in await facts(env, s.run.id, "ApprovalRequested")] == [0]


@rule("ask-board", "the board")
def ask_board(facts: FactEnvelope) -> Any:
    return allow() if "bord" in facts.people.met else escalate(chain="bord", quorum=1)  # a typing error for "board"


@story
async def test_a_chain_that_nobody_declared_is_an_error() -> None:
    paid: list[str] = []
    env = await env_of("p-intern", "p-chair")
    policies = [{"rules": [PAY], "chains": {"board": {"tiers": [{"quorum": 1, "of": ["p-chair"]}]}}}, ask_board]
    result = await agent([payer(paid)], policies, pays("A")).run("x", ledger=env)
    assert (result.state, paid) == ("halted", [])
    assert [x.verdict for x in await facts(env, result.run_id, "ActionJudged")] == ["error"]


# -- who may not vote ----------------------------------------------------------------------------------------------------------
@story
async def test_the_requester_does_not_approve_through_a_handoff() -> None:
    paid: list[str] = []
    env = await env_of("p-alice", "p-bob")
    child = agent([payer(paid)], chain({"quorum": 1}), pays("A"), name="payer")
    hands = Step(calls=(("handoff_payer", {"task": "pay"}),))
    boss = agent([], [{"id": "h", "permit": {"tool": "handoff_payer"}}], hands, name="boss", handoffs=[child])
    result = await boss.run("x", ledger=env, user=r.User(principal="p-alice"))
    kid = (await facts(env, result.run_id, "ActionStarted"))[0].child
    await vote(env, kid, "p-alice")
    result = await boss.resume(result.checkpoint_id, ledger=env)
    assert paid == []
    assert [x.reason for x in await facts(env, kid, "MessageRefused")] == ["own_request"]
    await vote(env, kid, "p-bob")
    assert (await boss.resume(result.checkpoint_id, ledger=env)).state == "completed"
    assert paid == ["A"]


@story
async def test_the_author_of_a_modification_does_not_approve_it() -> None:
    paid: list[str] = []
    env = await env_of("p-alice", "p-bob")
    bot = agent([payer(paid)], chain({"quorum": 1}), pays("Acme"))
    result = await bot.run("x", ledger=env)
    await vote(env, result.run_id, "p-bob", "modify", args={"to": "Bob", "amount": usd(99_000)})
    result = await bot.resume(result.checkpoint_id, ledger=env)
    await vote(env, result.run_id, "p-bob")
    result = await bot.resume(result.checkpoint_id, ledger=env)
    assert (result.state, paid) == ("suspended", [])
    await vote(env, result.run_id, "p-alice")
    await bot.resume(result.checkpoint_id, ledger=env)
    assert paid == ["Bob"]


@story
async def test_arguments_that_the_contract_would_rewrite_are_not_what_was_signed() -> None:
    paid: list[str] = []
    env = await env_of("p-alice")
    bot = agent([payer(paid)], chain({"quorum": 1}), pays("Acme"))
    result = await bot.run("x", ledger=env)
    await vote(env, result.run_id, "p-alice", "modify", args={"to": "Acme", "amount": {"amount": "100", "currency": "USD"}})
    await bot.resume(result.checkpoint_id, ledger=env)
    assert [x.reason for x in await facts(env, result.run_id, "MessageRefused")] == ["malformed"]
    assert paid == []


@story
async def test_who_may_only_veto_does_not_approve() -> None:
    paid: list[str] = []
    env = await env_of("p-alice", "p-owner")
    bot = agent([payer(paid)], chain({"quorum": 1, "of": ["p-alice"], "veto": ["p-owner"]}), pays("Acme"))
    result = await bot.run("x", ledger=env)
    await vote(env, result.run_id, "p-owner")
    result = await bot.resume(result.checkpoint_id, ledger=env)
    assert (result.state, paid) == ("suspended", [])
    await vote(env, result.run_id, "p-owner", "reject")
    assert (await bot.resume(result.checkpoint_id, ledger=env)).state == "failed"


# -- policies and engines ------------------------------------------------------------------------------------------------------
@story
async def test_a_run_starts_nothing_under_a_policy_that_was_replaced() -> None:
    paid: list[str] = []
    time, stands = VirtualTime(), home()
    store = MemoryLedger(time.now)
    mine, theirs = [await env_of(time=time, ledger=MemoryLedger(time.now, beside=store), home=stands) for _ in range(2)]

    async def replaced(ctx: Ctx) -> None:
        if not paid:
            strict = agent([payer(paid)], [{"id": "never", "toolDenylist": {"tools": ["send_payment"]}}, PAY])
            await strict.run("a new policy is in force", ledger=theirs)

    bot = agent([payer(paid, deed=replaced)], [PAY], pays("1"), pays("2"))
    result = await bot.run("x", ledger=mine)
    assert (result.state, paid) == ("halted", ["1"])
    assert [x.code for x in await facts(mine, result.run_id, "RunHalted")] == ["policy_replaced"]


async def raises(facts: FactEnvelope) -> Judgement:
    raise RuntimeError("down")


async def hangs(facts: FactEnvelope) -> Judgement:
    await asyncio.sleep(3600)
    return Judgement(verdict="allow")


async def cancels(facts: FactEnvelope) -> Judgement:
    raise asyncio.CancelledError


async def of_another_policy(facts: FactEnvelope) -> Judgement:
    return Judgement(verdict="allow", engine="e", policy="deadbeef")


async def beside_errors(facts: FactEnvelope) -> Judgement:
    return Judgement(verdict="allow", engine="e", policy="ab" * 32, errors=("forbid 3 could not be evaluated",))


async def asks_nobody(facts: FactEnvelope) -> Judgement:
    return Judgement(verdict="escalate", engine="e", policy="ab" * 32)


async def no_judgement(facts: FactEnvelope) -> Any:
    return "allow"


@pytest.mark.parametrize("answer", [raises, hangs, cancels, of_another_policy, beside_errors, asks_nobody, no_judgement])
def test_what_is_no_answer_of_an_engine_halts_the_run(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell() -> None:
        monkeypatch.setattr(engines, "DEADLINE_S", 0.05)
        paid: list[str] = []
        env = await env_of()
        result = await agent([payer(paid)], [Engine(answer)], pays("A")).run("x", ledger=env)
        assert (result.state, paid) == ("halted", [])
        assert [(x.cause, x.code) for x in await facts(env, result.run_id, "RunHalted")] == [("engine", "engine_error")]

    asyncio.run(tell())


@story
async def test_a_limit_holds_while_two_judgements_are_in_flight() -> None:
    """The slow one has read the account before another process reserved on it; the quick one after. Both rest on what they read."""
    paid: list[str] = []
    env = await env_of(time=wiring.SystemTime())
    void, slow, second, tries = asyncio.Event(), asyncio.Event(), asyncio.Event(), dict[str, int]()

    async def answer(facts: FactEnvelope) -> Judgement:
        over = facts.amount.minor + facts.sums["day"] > 100_00  # type: ignore[union-attr]
        if facts.action.attempt > 1 and facts.action.tool == "pay_a":
            if not void.is_set():
                void.set()  # the failure of the other makes this judgement void, and keeps the next one from being alone
                await slow.wait()
            elif not slow.is_set():
                slow.set()
                await second.wait()
        elif facts.action.attempt > 1 and facts.action.tool == "pay_b":
            second.set()
            await asyncio.sleep(0.3)  # the slow one lands first
        return Judgement(verdict="deny" if over else "allow", engine="e", policy="ab" * 32, reason="forbidden" if over else "")

    async def busy(name: str) -> None:
        tries[name] = tries.get(name, 0) + 1
        if tries[name] == 1:
            if name == "b":
                await void.wait()
            raise NotDone("busy")

    async def another_process() -> None:
        await slow.wait()
        id = f"limit/default/day/payout-bot/{env.clock('UTC').local().date}"
        stored = await env.ledger.account(id)
        before = Balance(id, stored.version, stored.hash, stored.reserved, stored.spent)
        after, raw = before.plus("OTHER", 0, reserved=90_00)
        env.ledger._write_accounts([AccountWrite(id, after.version, after.hash, after.reserved, after.spent, raw, "OTHER", 0)])

    tools = [
        payer(paid, "pay_a", lambda ctx: busy("a"), retry=Retry(3, backoff_ms=50)),
        payer(paid, "pay_b", lambda ctx: busy("b"), retry=Retry(3, backoff_ms=400)),
    ]
    first = Step(calls=(("pay_a", {"to": "A", "amount": usd(60)}), ("pay_b", {"to": "B", "amount": usd(1)})))
    bot = agent(tools, [Engine(answer, Limit(id="day", limit=100_00, currency="USD"))], first)
    result, _ = await asyncio.gather(bot.run("x", ledger=env), another_process())
    used = [a.reserved + a.spent for a in env.ledger._store.accounts.values() if a.id.startswith("limit")]
    assert slow.is_set()
    assert second.is_set()
    assert used
    assert all(x <= 100_00 for x in used)
    assert "A" not in paid
    assert result.state in ("completed", "halted")


# -- budgets, children, guardrails ---------------------------------------------------------------------------------------------
def writer(done: list[int]) -> Any:
    @tool(safety="write", effect="idempotent", data=PLAIN)
    async def leaf(i: int) -> str:
        """Write a leaf."""
        done.append(i)
        return "ok"

    return leaf


@story
async def test_calls_that_a_tool_makes_count_against_the_budget() -> None:
    done: list[int] = []
    env = await env_of()

    @tool(safety="write", effect="idempotent", data=PLAIN)
    async def root(ctx: Ctx) -> str:
        """Write many leaves."""
        for i in range(40):
            await ctx.invoke("leaf", {"i": i})
        return "ok"

    bot = agent([writer(done), root], [{"id": "p", "permit": {"safety": "write"}}], Step(calls=(("root", {}),)), budget=Budget(calls=2))
    await bot.run("x", ledger=env)
    assert len(done) == 1  # and the call of root itself


def parent_of(child: Any, **more: Any) -> Any:
    hands = Step(calls=(("handoff_kid", {"task": "work"}),))
    return agent([], [{"id": "h", "permit": {"tool": "handoff_kid"}}], hands, name="boss", handoffs=[child], **more)


@story
async def test_a_child_lives_within_its_parents_budget() -> None:
    done: list[int] = []
    env = await env_of()
    calls = [Step(calls=(("leaf", {"i": i}),)) for i in range(15)]
    child = agent([writer(done)], [{"id": "p", "permit": {"safety": "write"}}], *calls, name="kid")
    result = await parent_of(child, budget=Budget(turns=2, calls=3, tokens=6000)).run("x", ledger=env)
    kid = (await facts(env, result.run_id, "ActionStarted"))[0].child
    budget = (await facts(env, kid, "RunOpened"))[0].budget
    assert (budget.turns, budget.calls) == (1, 2)
    assert budget.tokens < 6000
    assert len(done) <= 2


@story
async def test_a_parents_halt_stops_its_child() -> None:
    paid: list[str] = []
    env = await env_of("p-alice")

    async def halted(ctx: Ctx) -> None:
        if not paid:
            await stop(env, "PARENT1", "p-alice", "halt")
            while "RunHalted" not in [x.type for x in await records(env, "PARENT1")]:
                await asyncio.sleep(0.02)

    child = agent([payer(paid, deed=halted)], [PAY], pays("1"), pays("2"), name="kid")
    parent = parent_of(child)
    result = await parent.run("x", ledger=env, run_id="PARENT1")
    assert (result.state, paid) == ("halted", ["1"])
    assert (await parent.resume(result.checkpoint_id, ledger=env)).state == "completed"
    kid = (await facts(env, "PARENT1", "ActionStarted"))[0].child
    assert [x.code for x in await facts(env, kid, "ActionEnded") + await facts(env, kid, "ActionJudged") if x.code] == ["stopped"]
    assert paid == ["1"]  # what was refused stays refused; the child's model may propose it again


@story
async def test_a_thread_does_not_hear_what_its_parent_said_later() -> None:
    """It continues the run as it stood; what that one did afterwards is another story, also after a crash of this one."""
    env = await env_of("p-alice")
    heard: list[list[str]] = []

    def hear(prompt: Any) -> Any:
        heard.append([m.text for m in prompt.messages])
        return pays("A") if heard[-1][-1] in ("one", "two") else "later words"

    bot = agent([payer([])], chain({"quorum": 1}), hear, hear, hear)
    first = await bot.run("one", ledger=env)
    second = await bot.run("two", thread=first.thread, ledger=env)
    for one in (first, second):
        await vote(env, one.run_id, "p-alice")
        assert (await bot.resume(one.checkpoint_id, ledger=env)).state == "completed"
    assert "later words" not in heard[3]
    assert [text for text in heard[3] if text in ("one", "two")] == ["one", "two"]


@story
async def test_a_foreign_run_under_the_childs_id_is_not_adopted() -> None:
    paid: list[str] = []
    env = await env_of()
    child = agent([payer(paid)], [PAY], pays("Mallory"), name="kid")
    parent = parent_of(child)
    real = env.ledger.append

    async def overtaken(run: str, *given: Any, **more: Any) -> Any:
        head = await real(run, *given, **more)
        for raw in given[1]:
            fact = r.decode(raw).fact
            if isinstance(fact, r.ActionStarted) and fact.child:
                env.ledger.append = real
                await child.run("another task", ledger=env, run_id=fact.child)
        return head

    env.ledger.append = overtaken
    result = await parent.run("x", ledger=env)
    assert [(x.result, x.code) for x in await facts(env, result.run_id, "ActionEnded")] == [("failed", "foreign_child")]


@story
async def test_what_a_guardrail_withheld_is_not_handed_to_a_tool() -> None:
    got: list[str] = []
    env = await env_of()

    @guardrail("tool_result")
    def check(view: Any) -> Any:
        return Block("injection") if view.tool == "leaf" else None

    @tool(safety="read", effect="read", data=PLAIN)
    async def leaf() -> str:
        """Read a leaf."""
        return "POISON"

    @tool(safety="read", effect="read", data=OWN)
    async def root(ctx: Ctx) -> str:
        """Read through a leaf."""
        got.append(await ctx.invoke("leaf", {}))
        return "ok"

    bot = agent([leaf, root], [{"id": "p", "permit": {"safety": "read"}}], Step(calls=(("root", {}),)), guardrails=[check])
    result = await bot.run("x", ledger=env)
    assert (result.state, got) == ("halted", [])
    await bot.resume(result.checkpoint_id, ledger=env)
    assert got == []
