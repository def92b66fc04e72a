"""Attacks on what a run may use: money that slips through, children that spend their parent's budget again, accounts that forget.

Whoever hands a task down shares one budget with everything below; nothing of it may be used twice.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from mandamus import Agent, Budget, Ctx, Misuse, Price, tool
from mandamus.core import records as r
from mandamus.core.accounts import Balance, handed, narrowed
from mandamus.core.canonical import accept
from mandamus.core.handed import used
from mandamus.core.records import Usage
from mandamus.core.run import Below
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.errors import Conflict
from mandamus.ports import AccountWrite
from mandamus.proof import spending
from mandamus.proof.books import check
from mandamus.proof.report import Broken
from mandamus.proof.verify import verify
from mandamus.runtime import drive, evidence, recover, replay
from mandamus.runtime.owed import missing
from mandamus.testing.crash import crash_everywhere
from tests.attack.red_votes import PAY, PLAIN, agent, chain, env_of, facts, payer, pays, records, stop, vote
from tests.attack.test_red_votes import story, writer

PRICE = Price(input="1000.00 USD", output="2000.00 USD")  # a token costs a thousandth of a dollar, and two
WRITE = [{"id": "w", "permit": {"safety": "write"}}]


def hands(*names: str) -> Step:
    return Step(calls=tuple((f"handoff_{name}", {"task": "work"}) for name in names))


def boss(*script: Any, children: tuple[Any, ...], **more: Any) -> Any:
    permits = [{"id": f"h{n}", "permit": {"tool": f"handoff_{c.spec.name}"}} for n, c in enumerate(children)]
    return agent(
        more.pop("tools", []), [*permits, *more.pop("policies", [])], *script, name=more.pop("name", "boss"), handoffs=children, **more
    )


async def folded(env: Any, bound: Any, run: str) -> Any:
    return (await recover.read_run(env, bound, run)).run


# -- money ---------------------------------------------------------------------------------------------------------------------
@story
async def test_money_is_counted_by_the_price_and_spent_before_it_is_gone() -> None:
    env = await env_of()
    look = [Step(calls=(("leaf", {"i": i}),), usage=Usage(input=100, output=10)) for i in range(9)]
    bot = agent([writer([])], WRITE, *look, price=PRICE, budget=Budget(cost="0.80 USD"), max_output=100)
    result = await bot.run("x", ledger=env)
    assert (result.state, result.cause) == ("halted", "budget")
    run = await folded(env, bot._bound, result.run_id)
    assert run.code == "cost"
    assert result.cost is not None
    assert str(result.cost) == f"{run.spent.cost / 1e6:.6f} USD"
    assert run.spent.cost == run.turn * 120_000  # 100 tokens in, 10 out, each turn
    assert 120_000 < run.spent.cost <= 800_000
    assert (await replay.replay(env, bot._bound, result.run_id)).ok


@story
async def test_a_lost_call_costs_all_that_it_might_have() -> None:
    env = await env_of()
    bot = agent([], [], price=PRICE, budget=Budget(cost="9.00 USD"), max_output=100)
    bound = await bound_of(env, bot)
    s = await recover.open_run(env, bound, "x")
    await drive._round(s)  # prepared
    await s.save()
    await recover.give_back(s)  # and the process is gone while the model is asked
    again = await recover.take_over(env, bound, s.run.id)
    assert again.run.spent.cost == s.run.compiled * 1000 + 100 * 2000
    await recover.give_back(again)


async def bound_of(env: Any, bot: Any) -> Any:
    return await bot._start(env)


@story
async def test_the_price_stands_behind_the_genesis_and_is_proved() -> None:
    env = await env_of()
    bot = agent([], [], price=PRICE)
    result = await bot.run("x", ledger=env)
    types = [x.type for x in await records(env, result.run_id)]
    assert types[:3] == ["RunOpened", "ModelPriced", "TurnStarted"]
    assert result.cost is not None
    assert (await replay.replay(env, bot._bound, result.run_id)).ok
    dearer = agent([], [], price=Price(input="1001.00 USD", output="2000.00 USD"))
    told = await replay.replay(env, await bound_of(env, dearer), result.run_id)
    assert [d.field for d in told.divergences] == ["fact.definition", "fact.price.input"]


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"budget": Budget(cost="5.00 USD")}, "this agent has no price in"),
    ({"budget": Budget(cost="5.00 EUR"), "price": PRICE}, "this agent has no price in"),
    ({"budget": Budget(cost="much"), "price": PRICE}, "budget: cost"),
    ({"budget": Budget(cost="0.00 USD"), "price": PRICE}, "budget: cost"),
    ({"price": Price(input="1.00 USD", output="1.00 EUR")}, "agent: price"),
    ({"price": Price(input="1.0000001 USD", output="1.00 USD")}, "agent: price"),
    ({"price": "1.00 USD"}, "price"),
    ({"price": PRICE, "budget": Budget(cost="5.00 USD"), "handoffs": [Agent(name="kid", model=ScriptedModel(["x"]))]}, "'kid'"),
]


@pytest.mark.parametrize(("given", "words"), MISTAKES)
def test_money_that_cannot_be_counted_is_refused_when_it_is_written(given: dict[str, Any], words: str) -> None:
    with pytest.raises(Misuse) as refused:
        Agent(name="a", model=ScriptedModel(["x"]), **given)
    assert words in refused.value.diagnosis.what


# -- children ------------------------------------------------------------------------------------------------------------------
def worker(done: list[int], name: str, n: int, **more: Any) -> Any:
    steps = [Step(calls=(("leaf", {"i": i}),)) for i in range(n)]
    return agent([writer(done)], WRITE, *steps, name=name, **more)


@story
async def test_what_a_child_used_is_gone_for_its_parent_and_the_next_child() -> None:
    """Two children, one after the other: together they may make the calls that one budget allows."""
    done: list[int] = []
    env = await env_of()
    one, two = worker(done, "one", 3), worker(done, "two", 3)
    bot = boss(hands("one"), hands("two"), children=(one, two), budget=Budget(calls=7))
    result = await bot.run("x", ledger=env)
    run = await folded(env, bot._bound, result.run_id)
    assert run.spent.below == Below(calls=3)
    assert len(done) <= 5  # two calls are the handoffs themselves
    kids = [x.child for x in await facts(env, result.run_id, "ActionStarted")]
    budgets = [(await facts(env, kid, "RunOpened"))[0].budget.calls for kid in kids]
    assert budgets == [6, 2]


@story
async def test_children_side_by_side_share_what_is_left_and_none_is_made_twice() -> None:
    done: list[int] = []
    env = await env_of()
    bot = boss(hands("one", "two"), children=(worker(done, "one", 1), worker(done, "two", 1)), budget=Budget(calls=10, tokens=100_000))
    result = await bot.run("x", ledger=env)
    assert (result.state, sorted(done)) == ("completed", [0, 0])
    started = await facts(env, result.run_id, "ActionStarted")
    assert [{x.account.rpartition("/")[2]: x.amount for x in s.reserves}["calls"] for s in started] == [4, 4]
    account = await env.ledger.account(handed(result.run_id, "calls"))
    assert (account.reserved, account.spent) == (0, 2)
    assert (await replay.replay(env, bot._bound, result.run_id)).ok
    run = await folded(env, bot._bound, result.run_id)
    assert used(run, "calls") == 4
    raws = await evidence._deltas(env, run.id, [raw async for raw in env.ledger.read(run.id)])
    count, unsettled = check(raws, 0, await records(env, run.id))
    assert (count, unsettled) == (9, [])  # the register, and two units reserved and settled for each of two
    report = verify(await evidence.build(env, run.id, {}, ""), env.trust())
    assert {c.name: c.says for c in report.claims}["budget"] == "2 model calls and 2 tasks handed down within what the genesis allows"


@story
async def test_a_grandchild_is_paid_by_all_above_it() -> None:
    done: list[int] = []
    env = await env_of()
    leaf = worker(done, "leaf1", 2)
    middle = boss(hands("leaf1"), children=(leaf,), name="middle", tools=[writer(done)])  # who lends what it may use itself
    bot = boss(hands("middle"), children=(middle,), budget=Budget(calls=9))
    result = await bot.run("x", ledger=env)
    run = await folded(env, bot._bound, result.run_id)
    assert (result.state, len(done)) == ("completed", 2)
    assert run.spent.below == Below(calls=3)  # the middle's one and the leaf's two


@story
async def test_a_child_with_nothing_left_is_denied_and_never_opened() -> None:
    env = await env_of()
    bot = boss(hands("one"), children=(worker([], "one", 1),), budget=Budget(calls=1))
    result = await bot.run("x", ledger=env)
    assert [x.code for x in await facts(env, result.run_id, "ActionJudged")] == ["calls_exhausted"]
    assert not await facts(env, result.run_id, "ActionStarted")


@story
async def test_a_child_that_was_opened_with_more_than_was_reserved_is_not_ours() -> None:
    """Everything else about it is as the parent would have said it."""
    env = await env_of()
    bot = boss(hands("kid"), children=(worker([], "kid", 1),), budget=Budget(calls=9))
    bound = await bound_of(env, bot)
    real = env.ledger.append

    async def overtaken(run: str, after: Any, rows: Any, **more: Any) -> Any:
        head = await real(run, after, rows, **more)
        for record in (r.decode(raw) for raw in rows):
            if isinstance(record.fact, r.ActionStarted) and record.fact.child:
                env.ledger.append = real
                parent = r.Parent(hash=head.hash, kind="handoff", run=run, seq=head.seq)
                grant = r.Grant(tools=("leaf",))
                kid = bound.children["kid"]  # whose own budget names no limit of calls
                opened = await recover.open_run(env, kid, "work", run_id=record.fact.child, parent=parent, depth=1, grant=grant)
                await recover.give_back(opened)
        return head

    env.ledger.append = overtaken
    result = await bot.run("x", ledger=env)
    assert [(x.result, x.code) for x in await facts(env, result.run_id, "ActionEnded")] == [("failed", "foreign_child")]
    account = await env.ledger.account(handed(result.run_id, "calls"))
    assert (account.reserved, account.spent) == (0, 0)


@story
async def test_money_of_a_child_is_its_parents_money() -> None:
    env = await env_of()
    kid = agent([], [], name="kid", price=Price(input="500.00 USD", output="500.00 USD"), max_output=100)
    bot = boss(hands("kid"), children=(kid,), price=PRICE, budget=Budget(cost="90.00 USD"), max_output=100)
    result = await bot.run("x", ledger=env)
    child = (await facts(env, result.run_id, "ActionStarted"))[0].child
    below = (await folded(env, bot._bound, result.run_id)).spent.below
    assert below.cost == (await folded(env, bot._bound.children["kid"], child)).spent.cost > 0
    assert (await facts(env, child, "RunOpened"))[0].budget.currency == "USD"


@story
async def test_a_tool_cannot_use_what_an_open_child_may_still_use() -> None:
    """A tool hands down and calls at the same time: what the child holds is not free."""
    done: list[int] = []
    env = await env_of()

    @tool(safety="write", effect="idempotent", data=PLAIN)
    async def root(ctx: Ctx) -> str:
        """Write while a child works."""
        await ctx.invoke("leaf", {"i": 1})
        return "ok"

    kid = agent([payer([])], chain({"quorum": 1}), pays("1"), name="kid")
    first = Step(calls=(("handoff_kid", {"task": "t"}), ("root", {})))
    bot = boss(first, children=(kid,), tools=[root, writer(done)], policies=WRITE, budget=Budget(calls=5))
    await bot.run("x", ledger=env)
    assert done == []


SMALLER: list[tuple[dict[str, int], str]] = [
    ({"calls": 1}, "MDM-0657"),
    ({"cost": 1_000_000}, "MDM-0657"),
    ({"tokens": 500}, "MDM-0657"),
]


@pytest.mark.parametrize(("limits", "code"), SMALLER)
def test_a_chain_that_used_more_than_its_genesis_allows_is_no_proof(limits: dict[str, int], code: str) -> None:
    """As if its worker had not asked: the same run under a smaller budget."""

    async def made() -> list[Any]:
        env = await env_of()
        kid = agent([], [], name="kid", price=PRICE, max_output=100)
        budget = Budget(calls=9, cost="90.00 USD", tokens=90_000)
        result = await boss(hands("kid"), children=(kid,), price=PRICE, budget=budget, max_output=100).run("x", ledger=env)
        return await records(env, result.run_id)

    told = asyncio.run(made())
    assert spending.check(told) == (2, 1)
    less = structs.replace(told[0].fact, budget=structs.replace(told[0].fact.budget, **limits))
    with pytest.raises(Broken) as broken:
        spending.check([structs.replace(told[0], fact=less), *told[1:]])
    assert broken.value.diagnosis.code == code


# -- waiting -------------------------------------------------------------------------------------------------------------------
@story
async def test_a_parent_whose_child_waits_says_so_and_is_not_claimed_in_vain() -> None:
    env = await env_of("p-alice")
    paid: list[str] = []
    kid = agent([payer(paid)], chain({"quorum": 1}), pays("1"), name="kid")
    bot = boss(hands("kid"), children=(kid,))
    result = await bot.run("x", ledger=env)
    child = (await facts(env, result.run_id, "ActionStarted"))[0].child
    head, below = await env.ledger.head(result.run_id), await env.ledger.head(child)
    assert (result.state, head.state, below.state) == ("suspended", "child", "people")
    assert head.wake_at == below.wake_at  # when the child must be looked at, so must its parent, who drives it
    assert await env.ledger.claim("default", 1000) is None
    await vote(env, child, "p-alice")
    claimed = await env.ledger.claim("default", 1000)
    assert claimed.run == child
    await env.ledger.renew(claimed, 0)
    done = await kid.resume(child, ledger=env)
    assert (done.state, paid) == ("completed", ["1"])
    claimed = await env.ledger.claim("default", 1000)
    assert claimed.run == result.run_id  # its child has ended: there is something to do
    await env.ledger.renew(claimed, 0)
    assert (await bot.resume(result.run_id, ledger=env)).state == "completed"


# -- accounts that were never told -----------------------------------------------------------------------------------------------
class Busy:
    """A ledger whose account has just moved, whenever a settlement of one that begins so comes."""

    def __init__(self, inner: Any, prefix: str) -> None:
        self.inner, self.prefix, self.busy = inner, prefix, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def append(self, run: str, after: Any, rows: Any, *, also: Any = (), **more: Any) -> Any:
        moved = [x for x in also if isinstance(x, AccountWrite) and x.id.startswith(self.prefix)]
        freed = [x for x in moved if accept(x.delta)["change"]["reserved"] <= 0]
        if freed and self.busy:
            raise Conflict("it moved", on="account", account=freed[0].id)
        return await self.inner.append(run, after, rows, also=also, **more)


LIMIT = {"id": "day", "maxDailyLimit": {"limit": "100.00 USD"}}


@story
async def test_a_settlement_that_died_with_its_process_is_made_by_the_next() -> None:
    env = await env_of()
    inner, paid = env.ledger, list[str]()
    env.ledger = Busy(inner, "limit/")
    bot = agent([payer(paid)], [PAY, LIMIT], pays("A"))
    result = await bot.run("x", ledger=env)
    id = next(a for a in inner._store.accounts if a.startswith("limit/"))
    assert (paid, (await inner.account(id)).reserved) == (["A"], 50_00)  # and what was to settle it is forgotten here
    assert [x.type for x in await records(env, result.run_id)][-1] == "RunEnded"  # not sealed: behind the seal nobody could
    env.ledger.busy = False
    again = await bot.resume(result.run_id, ledger=env)
    account = await inner.account(id)
    assert (again.state, account.reserved, account.spent) == ("completed", 0, 50_00)
    assert [x.type for x in await records(env, result.run_id)][-1] == "RunSealed"
    raws = await evidence._deltas(env, result.run_id, [raw async for raw in inner.read(result.run_id)])
    assert check(raws, 0, await records(env, result.run_id))[1] == []


@story
async def test_what_was_settled_is_not_settled_again() -> None:
    """Somebody else holds a reservation on the account, so it must be read delta by delta."""
    env = await env_of()
    first = agent([payer([])], [PAY, LIMIT], pays("A"), pays("B"), budget=Budget(turns=2))
    result = await first.run("x", ledger=env)
    assert result.state == "halted"
    id = next(a for a in env.ledger._store.accounts if a.startswith("limit/"))
    stored = await env.ledger.account(id)
    after, raw = Balance(id, stored.version, stored.hash, stored.reserved, stored.spent).plus("OTHER", 0, reserved=1)
    env.ledger._write_accounts([AccountWrite(id, after.version, after.hash, after.reserved, after.spent, raw, "OTHER", 0)])
    s = await recover.read_run(env, first._bound, result.run_id)
    assert await missing(s, s.moved) == []


@story
async def test_a_stop_that_no_account_heard_of_is_told_by_the_next_owner() -> None:
    """Children check that account before they start anything; whoever died with it must not keep it from them."""
    env = await env_of("p-alice")
    inner = env.ledger
    kid = agent([payer([])], chain({"quorum": 1}), pays("1"), name="kid")
    bot = boss(hands("kid"), children=(kid,))
    result = await bot.run("x", ledger=env)
    env.ledger = Busy(inner, narrowed(result.run_id))
    await stop(env, result.run_id, "p-alice", "cancel")
    await bot.resume(result.run_id, ledger=env)
    assert await inner.account(narrowed(result.run_id)) is None
    env.ledger.busy = False
    await bot.resume(result.run_id, ledger=env)
    assert (await inner.account(narrowed(result.run_id))).version == 1


@story
async def test_what_a_child_used_is_settled_after_a_crash_too() -> None:
    env = await env_of()
    inner = env.ledger
    env.ledger = Busy(inner, "handoff/")
    bot = boss(hands("kid"), children=(worker([], "kid", 1),), budget=Budget(calls=9))
    result = await bot.run("x", ledger=env)
    account = handed(result.run_id, "calls")
    assert (await inner.account(account)).reserved == 8
    env.ledger.busy = False
    assert (await bot.resume(result.run_id, ledger=env)).state == "completed"
    settled = await inner.account(account)
    assert (settled.reserved, settled.spent) == (0, 1)


def test_a_run_with_children_and_a_budget_survives_every_power_cut() -> None:
    """Reserved once, adopted after a crash, settled once: else a life ends in another way."""

    def made() -> Any:
        kid = agent([writer([])], WRITE, Step(calls=(("leaf", {"i": 1}),)), name="kid", price=PRICE)
        return boss(hands("kid"), children=(kid,), price=PRICE, budget=Budget(calls=9, cost="90.00 USD"))

    report = crash_everywhere(made, "x", sqlite=0, pairs=20)
    assert report.ok, report.text()
