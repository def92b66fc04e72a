"""Small stories of governed runs, each a coroutine that drives a `Runner`. Replay, forks, traces and byte identity are tested on them.

Every deed is counted in `World.deeds`, so that a test can say that nobody was called again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from mandamus import Absent, Agent, Annotate, Block, Budget, Ctx, Found, Money, NotDone, Receipt, Retry, Unclear, guardrail, tool
from mandamus.agent import RunResult
from mandamus.core.records import MessageReceived
from mandamus.data import Business, Confidential, Public, none
from mandamus.drivers.model_scripted import Fault, ScriptedModel, Step
from mandamus.proof import mail as post
from mandamus.testing import Runner
from mandamus.testing.virtual import VirtualTime

BOOKS = Confidential(subject=none("own account"), retention="books")
DESK = Business(subject=none("no person in it"), retention="books")
LARGE = {"amount": "5000000", "currency": "USD"}
SMALL = {"amount": "1000", "currency": "USD"}
RULES: list[Any] = [
    {"id": "look", "permit": {"safety": "read"}},
    {"id": "write", "permit": {"safety": "write"}},
    {"id": "pay", "permit": {"safety": "financial", "maxAmount": "100000.00 USD"}},
    {"id": "daily", "maxDailyLimit": {"limit": "190000.00 USD"}},
    {"id": "large", "dualApproval": {"over": "10000.00 USD", "quorum": 2}},
]


class World:
    """What tools did, and what they shall do next: a list of results or errors."""

    def __init__(self) -> None:
        self.deeds: list[str] = []
        self.next: list[Any] = []
        self.stuck: asyncio.Event | None = None

    async def deed(self, what: str) -> Any:
        self.deeds.append(what)
        if self.stuck is not None:
            self.stuck.set()
            await asyncio.Event().wait()
        answer = self.next.pop(0) if self.next else Receipt(id=f"tx-{len(self.deeds)}")
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Bank:
    """A reconciler that says what it is told."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.answers: list[Any] = []

    async def find(self, operation: str) -> Any:
        return self.answers.pop(0) if self.answers else Unclear("no answer")


def tools(world: World, bank: Bank | None = None) -> list[Any]:
    @tool(safety="financial", effect="keyed", data=BOOKS, retry=Retry(3, backoff_ms=200), timeout="30s")
    async def send_payment(ctx: Ctx, to: str, amount: Money) -> Receipt:
        """Transfer corporate funds."""
        return await world.deed(f"pay {to}")  # type: ignore[no-any-return]

    @tool(safety="read", effect="read", data=Public())
    async def balance(ctx: Ctx, account: str) -> int:
        """The balance of an account."""
        world.deeds.append(f"look {account}")
        return 100

    @tool(safety="financial", effect="irreversible", data=BOOKS)
    async def wire(ctx: Ctx, to: str, amount: Money) -> Receipt:
        """A wire that nobody can call back."""
        return await world.deed(f"wire {to}")  # type: ignore[no-any-return]

    @tool(
        safety="financial", effect="reconcilable", data=BOOKS, retry=Retry(2, backoff_ms=100), reconcile=bank or Bank(world), timeout="1s"
    )  # fmt: skip
    async def transfer(ctx: Ctx, to: str, amount: Money) -> Receipt:
        """A transfer that the bank can be asked about."""
        return await world.deed(f"transfer {to}")  # type: ignore[no-any-return]

    @tool(safety="write", effect="idempotent", data=DESK)
    async def settle_month(ctx: Ctx, month: str) -> str:
        """Look at the balance, note it, write the month."""
        now, dice = await ctx.clock(), await ctx.random(4)
        seen = await ctx.invoke("balance", {"account": month})
        await ctx.note("seen", {"balance": seen})
        world.deeds.append(f"settle {month} {now} {dice.hex()}")
        return f"settled at {seen}"

    return [send_payment, balance, wire, transfer, settle_month]


def agent(world: World, *steps: Any, **more: Any) -> Agent[Any]:
    given: dict[str, Any] = {"tools": tools(world, more.pop("bank", None)), "policies": RULES}
    return Agent(name="payout-bot", purpose="pay invoices", model=ScriptedModel(list(steps)), **(given | more))


def pay(to: str = "Acme", amount: Any = SMALL, name: str = "send_payment") -> Step:
    return Step(calls=((name, {"to": to, "amount": amount}),))


def runner(a: Agent[Any], *people: str) -> Runner:
    """People are enrolled as approvers and treasurers."""
    r = Runner(a, clock=VirtualTime())
    for person in people:
        r.approver(person, "treasurer")
    return r


# -- stories -----------------------------------------------------------------------------------------------------------------
Story = Callable[[World], Awaitable[Runner]]
STORIES: dict[str, Story] = {}


def story(fn: Story) -> Story:
    STORIES[fn.__name__] = fn
    return fn


@story
async def plain_answer(world: World) -> Runner:
    r = runner(agent(world, "Hello."))
    await r.turn("Say hello")
    return r


@story
async def one_payment(world: World) -> Runner:
    r = runner(agent(world, pay(), "Paid."))
    await r.turn("Pay Acme")
    return r


@story
async def two_people(world: World) -> Runner:
    r = runner(agent(world, pay(amount=LARGE), "Paid."), "p-alice", "p-bob")
    await r.turn("Pay Acme 50,000 USD")
    await r.approve("p-alice")
    await r.approve("p-bob")
    return r


@story
async def rejected(world: World) -> Runner:
    r = runner(agent(world, pay(amount=LARGE), "Paid."), "p-alice", "p-bob")
    await r.turn("Pay Acme 50,000 USD")
    await r.reject("p-bob")
    return r


@story
async def waiting(world: World) -> Runner:
    r = runner(agent(world, pay(amount=LARGE), "Paid."), "p-alice", "p-bob")
    await r.turn("Pay Acme 50,000 USD")
    return r


@story
async def expired(world: World) -> Runner:
    r = runner(agent(world, pay(amount=LARGE), "Then not."), "p-alice", "p-bob")
    await r.turn("Pay Acme 50,000 USD")
    r.clock.advance(hours=2)
    await r.resume()
    return r


@story
async def batch(world: World) -> Runner:
    """The small payment waits for the large one, and is judged again on release."""
    calls = (
        ("balance", {"account": "main"}),
        ("send_payment", {"to": "B", "amount": LARGE}),
        ("send_payment", {"to": "A", "amount": SMALL}),
    )
    r = runner(agent(world, Step(calls=calls), "Both paid."), "p-alice", "p-bob")
    await r.turn("Pay both")
    await r.approve("p-alice", "p-bob")
    return r


@story
async def denied_twice(world: World) -> Runner:
    """The same refused action twice halts the run; whoever resumes has seen it."""
    huge = {"amount": "99999999", "currency": "USD"}
    r = runner(agent(world, pay(amount=huge), pay(amount=huge), "I give up."))
    await r.turn("Pay far too much")
    await r.resume()
    return r


@story
async def odd_calls(world: World) -> Runner:
    """No such tool, arguments that do not fit, text that is no JSON."""
    calls = (("no_such_tool", {}), ("send_payment", {"to": 7}), ("send_payment", "{not json"))
    r = runner(agent(world, Step(calls=calls), "Sorry.", budget=Budget(denials=9)))
    await r.turn("Do odd things")
    return r


@story
async def not_done(world: World) -> Runner:
    world.next = [NotDone("closed"), NotDone("closed"), Receipt(id="tx-late")]
    r = runner(agent(world, pay(), "Paid."))
    await r.turn("Pay Acme")
    return r


@story
async def doubted_key(world: World) -> Runner:
    """A keyed tool broke: the same operation id is sent again, after a new judgement."""
    world.next = [RuntimeError("cut"), Receipt(id="tx-2")]
    r = runner(agent(world, pay(), "Paid."))
    await r.turn("Pay Acme")
    return r


@story
async def reconciled(world: World) -> Runner:
    bank = Bank(world)
    bank.answers = [Unclear("busy"), Found(Receipt(id="tx-found"))]
    world.next = [RuntimeError("cut")]
    r = runner(agent(world, pay(name="transfer"), "Paid.", bank=bank))
    await r.turn("Pay Acme")
    return r


@story
async def absent(world: World) -> Runner:
    bank = Bank(world)
    bank.answers = [Absent(), Absent()]  # the first comes before the landing time is over
    world.next = [RuntimeError("cut"), Receipt(id="tx-2")]
    r = runner(agent(world, pay(name="transfer"), "Paid.", bank=bank))
    await r.turn("Pay Acme")
    return r


@story
async def unknown_settled(world: World) -> Runner:
    """Nobody knows whether the wire left; a person says that it did."""
    world.next = [RuntimeError("cut")]
    r = runner(agent(world, pay(name="wire"), "Wired."), "p-alice", "p-bob")
    await r.turn("Wire it")
    await r.decide("done", "p-alice")
    return r


@story
async def unknown_again(world: World) -> Runner:
    world.next = [RuntimeError("cut"), Receipt(id="tx-2")]
    r = runner(agent(world, pay(name="wire"), "Wired."), "p-alice", "p-bob")
    await r.turn("Wire it")
    await r.decide("again", "p-bob")
    return r


@story
async def unknown_abandoned(world: World) -> Runner:
    world.next = [RuntimeError("cut")]
    r = runner(agent(world, pay(name="wire"), "Then not."), "p-alice", "p-bob")
    await r.turn("Wire it")
    await r.decide("abandon", "p-alice")
    return r


@story
async def tools_within(world: World) -> Runner:
    r = runner(agent(world, Step(calls=(("settle_month", {"month": "May"}),)), "Settled."))
    await r.turn("Settle May")
    return r


@story
async def bad_luck(world: World) -> Runner:
    """The model fails twice before it answers; the loop waits and asks again."""
    r = runner(agent(world, Step("Hello.", faults=(Fault("rate_limit", retry_after_ms=300, status=429), Fault("server", status=503)))))
    await r.turn("Say hello")
    return r


@story
async def no_key(world: World) -> Runner:
    """A provider that refuses the key is never asked again: the run halts."""
    r = runner(agent(world, Step("Hello.", faults=("auth",))))
    await r.turn("Say hello")
    await r.resume()
    return r


class Answer(Struct, frozen=True):
    total: int


@story
async def typed_answer(world: World) -> Runner:
    """The first answer does not fit the schema and counts as a retry."""
    r = runner(agent(world, "no JSON", '{"total":7}', output=Answer))
    await r.turn("How much?")
    return r


@story
async def out_of_turns(world: World) -> Runner:
    look = Step(calls=(("balance", {"account": "main"}),))
    r = runner(agent(world, look, look, look, budget=Budget(turns=2)))
    await r.turn("Look again and again")
    return r


@story
async def guarded(world: World) -> Runner:
    """Guardrails annotate the input and block the output."""

    @guardrail("input")
    def hears(view: Any) -> Any:
        return Annotate({"words": len(view.texts[0].split())})

    @guardrail("output")
    def blocks(view: Any) -> Any:
        return Block("a secret") if "secret" in view.texts[0] else None

    r = runner(agent(world, "the secret is out", guardrails=[hears, blocks]))
    await r.turn("Tell me")
    return r


@story
async def child_run(world: World) -> Runner:
    clerk = Agent(
        name="clerk", purpose="look things up", model=ScriptedModel([Step(calls=(("balance", {"account": "main"}),)), "It is 100."]),
        tools=[t for t in tools(world) if t.name == "balance"], policies=RULES[:1],
    )  # fmt: skip
    r = runner(agent(world, Step(calls=(("handoff_clerk", {"task": "Look it up"}),)), "The clerk says 100.", handoffs=[clerk]))
    await r.turn("Ask the clerk")
    return r


@story
async def thread_of_two(world: World) -> Runner:
    r = runner(agent(world, pay(), "Paid.", "You are welcome."))
    await r.turn("Pay Acme")
    await r.turn("Thank you")
    return r


@story
async def taken_over(world: World) -> Runner:
    """The process dies inside the tool; another one takes the run over and sends the same key again."""
    r = runner(agent(world, pay(), "Paid."))
    world.stuck = asyncio.Event()
    task = asyncio.create_task(r.turn("Pay Acme", run_id="01J000000000000000000000RN"))
    await world.stuck.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    world.stuck = None
    r.result = RunResult(
        "01J000000000000000000000RN", None, "suspended", "01J000000000000000000000RN@0", None, 0, (), (), "01J000000000000000000000RN"
    )
    await r.resume()
    return r


@story
async def cancelled(world: World) -> Runner:
    """A person stops a run that waits."""
    r = runner(agent(world, pay(amount=LARGE), "Paid."), "p-alice", "p-bob")
    result = await r.turn("Pay Acme 50,000 USD")
    await (await r.env()).ledger.send(result.run_id, await stop(r, result.run_id, "p-alice"))
    await r.resume()
    return r


async def stop(r: Runner, run: str, principal: str, mode: Any = "cancel") -> bytes:
    env = await r.env()
    key = r._keys[principal]
    statement = post.StopStatement(mode=mode, nonce="00" * 16, origin=env.origin, run=run)
    return post.encode(post.stop(statement, signer=key.sign, keyid=key.keyid))


@story
async def spoken_to(world: World) -> Runner:
    """The user says something while the run waits for people."""
    r = runner(agent(world, pay(amount=LARGE), "Paid, as you said."), "p-alice", "p-bob")
    result = await r.turn("Pay Acme 50,000 USD")
    env = await r.env()
    signer = env.home.signer("frontend")
    said = post.say(
        "Hurry up",
        secret=b"s" * 32,
        nonce="n",
        origin=env.origin,
        principal="p-carol",
        run=result.run_id,
        signer=signer.sign,
        keyid=signer.keyid,
    )
    await env.ledger.send(result.run_id, post.encode(said))
    await r.approve("p-alice", "p-bob")
    assert any(isinstance(x.fact, MessageReceived) for x in r.events)
    return r


@story
async def junk_mail(world: World) -> Runner:
    """What is no message, and the vote of a stranger, become refusals and nothing else."""
    r = runner(agent(world, pay(amount=LARGE), "Paid."), "p-alice", "p-bob")
    result = await r.turn("Pay Acme 50,000 USD")
    env = await r.env()
    await env.ledger.send(result.run_id, b"{}")
    await r.approve("p-alice", "p-alice")
    return r


@story
async def next_tier(world: World) -> Runner:
    """The treasurers' hour passes; the next tier is asked under the same request."""
    rules = {
        "chains": {
            "steps": {"tiers": [{"quorum": 2, "roles": ["treasurer"], "deadline": "1h"}, {"quorum": 1, "roles": ["cfo"], "deadline": "4h"}]}
        },
        "rules": [
            {"id": "pay", "permit": {"safety": "financial"}},
            {"id": "large", "dualApproval": {"over": "10000.00 USD", "chain": "steps"}},
        ],
    }
    r = Runner(agent(world, pay(amount=LARGE), "Paid.", policies=[rules]), clock=VirtualTime())
    for person, role in (("p-alice", "treasurer"), ("p-bob", "treasurer"), ("p-carol", "cfo")):
        r.approver(person, role)
    await r.turn("Pay Acme 50,000 USD")
    await r.approve("p-alice")
    r.clock.advance(minutes=61)
    await r.resume()
    await r.approve("p-carol")
    return r


@story
async def modified(world: World) -> Runner:
    """A person approves less than was asked: a new action, judged again, with its own proposal."""
    r = runner(agent(world, pay(amount=LARGE), "Paid less."), "p-alice", "p-bob")
    await r.turn("Pay Acme 50,000 USD")
    run = await r.run()
    await r.resume(
        [r.vote(run, "p-alice", "modify", "1.1", args={"amount": {"amount": "90000", "currency": "USD", "decimals": 2}, "to": "Acme"})]
    )
    return r


@story
async def talked_to_in_a_turn(world: World) -> Runner:
    """The user's second run waits for people: its history must survive another process."""
    r = runner(agent(world, "Hello.", pay(amount=LARGE), "Paid."), "p-alice", "p-bob")
    await r.turn("Hello")
    await r.turn("Pay Acme 50,000 USD")
    await r.approve("p-alice", "p-bob")
    return r
