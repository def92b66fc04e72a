"""A counter for attacks on votes and policies: one payout tool, enrolled people, votes through the mailbox, a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mandamus import Agent, Ctx, Money, Receipt, tool, wiring
from mandamus.core.canonical import canon
from mandamus.core.facts import FactEnvelope, Judgement, Limit, RuleBook
from mandamus.core.payload import commit
from mandamus.core.records import AnyRecord, ApprovalRequested, decode
from mandamus.data import Business, Confidential, none
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.proof import ballot as ballots
from mandamus.proof import mail as post
from mandamus.proof.keys import b64
from mandamus.testing.virtual import VirtualTime, home, signer

OWN = Confidential(subject=none("own account"), retention="books")
PLAIN = Business(subject=none("a test"), retention="standard")
PAY = {"id": "pay", "permit": {"safety": "financial"}}
SECRET = bytes(range(32))


def usd(amount: int) -> dict[str, Any]:
    return {"amount": str(amount * 100), "currency": "USD", "decimals": 2}


def chain(*tiers: dict[str, Any], quorum: int = 1) -> list[Any]:
    """Payments are allowed once chain `c` has approved them."""
    return [{"rules": [PAY, {"id": "dual", "needsApproval": {"quorum": quorum, "chain": "c"}}], "chains": {"c": {"tiers": list(tiers)}}}]


def payer(paid: list[str], name: str = "send_payment", deed: Callable[[Ctx], Any] | None = None, **options: Any) -> Any:
    @tool(safety="financial", effect="keyed", data=OWN, name=name, **options)
    async def send_payment(ctx: Ctx, to: str, amount: Money) -> Receipt:
        """Transfer corporate funds."""
        if deed is not None:
            await deed(ctx)
        paid.append(to)
        return Receipt(id="tx")

    return send_payment


def pays(*to: str, name: str = "send_payment", amount: int = 50) -> Step:
    return Step(calls=tuple((name, {"to": x, "amount": usd(amount)}) for x in to))


def agent(tools: Sequence[Any], policies: Sequence[Any], *script: Any, name: str = "payout-bot", **more: Any) -> Agent[Any]:
    return Agent(
        name=name, purpose="pay invoices", model=ScriptedModel([*script, "done"]), tools=list(tools), policies=list(policies), **more
    )


async def env_of(*people: str, roles: Sequence[str] = (), **options: Any) -> Any:
    stands = options.pop("home", None) or home()
    for person in people:
        stands.add_trust(f"approver {person} {signer(person).vkey}")
    for line in roles:
        stands.add_trust(f"role {line}")
    return await wiring.open_env("memory:", time=options.pop("time", None) or VirtualTime(), home=stands, **options)


async def records(env: Any, run: str) -> list[AnyRecord]:
    return [decode(raw) async for raw in env.ledger.read(run)]


async def facts(env: Any, run: str, kind: str) -> list[Any]:
    return [x.fact for x in await records(env, run) if x.type == kind]


async def vote(env: Any, run: str, person: str, decision: str = "approve", args: Any = None) -> None:
    q: ApprovalRequested = (await facts(env, run, "ApprovalRequested"))[-1]
    new = {} if args is None else {"args": commit(SECRET, canon(args))}
    ballot: Any = ballots.Ballot(
        action=q.digest, card=q.card, decision=decision, expires=q.expires, origin=env.origin, policy=q.policy, request=q.request, run=run,  # type: ignore[arg-type]
        scope="once", **new,
    )  # fmt: skip
    key = signer(person)
    envelope = ballots.sign(ballot, key.sign, key.keyid).decode()
    mail = post.Vote(envelope) if args is None else post.Vote(envelope, args=args, secret=b64(SECRET))
    await env.ledger.send(run, post.encode(mail))


async def stop(env: Any, run: str, person: str, mode: Any) -> None:
    key = signer(person)
    statement = post.StopStatement(mode=mode, nonce=env.time.entropy(16).hex(), origin=env.origin, run=run)
    await env.ledger.send(run, post.encode(post.stop(statement, signer=key.sign, keyid=key.keyid)))


class Engine:
    """An engine of somebody else, whose answer the test gives."""

    def __init__(self, answer: Callable[[FactEnvelope], Any], *limits: Limit) -> None:
        self.answer, self._book = answer, RuleBook(digest="ab" * 32, limits=limits)

    @property
    def book(self) -> RuleBook:
        return self._book

    def digest(self) -> str:
        return self._book.digest

    async def check(self) -> None:
        return None

    async def decide(self, facts: FactEnvelope) -> Judgement:
        return await self.answer(facts)  # type: ignore[no-any-return]


def story(tell: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        asyncio.run(asyncio.wait_for(tell(), 30))  # type: ignore[arg-type]

    test.__name__, test.__doc__ = tell.__name__, tell.__doc__
    return test
