"""A desk for approval tests: one payout agent, a virtual clock, enrolled people, votes through the mailbox."""

from __future__ import annotations

from typing import Any

from mandamus import Agent, Ctx, Money, Receipt, RunResult, tool, wiring
from mandamus.core.canonical import canon
from mandamus.core.payload import commit
from mandamus.core.records import AnyRecord, ApprovalRequested, decode
from mandamus.data import Confidential, none
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.proof import ballot as ballots
from mandamus.proof import mail as post
from mandamus.proof.keys import b64
from mandamus.testing.virtual import VirtualTime, home, signer

SECRET = bytes(range(32))
CHAIN = {
    "tiers": [
        {"quorum": 2, "of": ["role:treasurer"], "veto": ["role:owner"], "deadline": "1h"},
        {"quorum": 1, "of": ["p-chief"], "deadline": "30m"},
    ]
}


class Desk:
    """`await Desk.open()`; `ask()` opens a run, `vote(...)` sends a signed vote, `resume()` carries it on."""

    def __init__(self, env: Any, agent: Agent[Any], paid: list[tuple[str, str]]) -> None:
        self.env, self.agent, self.paid = env, agent, paid
        self.time: VirtualTime = env.time
        self.result: RunResult[Any]

    @classmethod
    async def open(
        cls,
        *,
        effect: str = "keyed",
        on_reject: str = "",
        tools: tuple[Any, ...] = (),
        rules: Any = (),
        more_policies: Any = (),
        **agent: Any,
    ) -> Desk:
        stands = home()
        for person, roles in (
            ("p-alice", "treasurer"),
            ("p-bob", "treasurer"),
            ("p-carol", "treasurer"),
            ("p-owner", "owner"),
            ("p-chief", ""),
        ):
            stands.add_trust(f"approver {person} {signer(person).vkey}")
            if roles and person in ("p-alice", "p-owner"):
                holders = {"treasurer": "p-alice p-bob p-carol", "owner": "p-owner"}[roles]
                stands.add_trust(f"role {roles} {holders}")
        env = await wiring.open_env("memory:", time=VirtualTime(), home=stands)
        paid: list[tuple[str, str]] = []

        @tool(safety="financial", effect=effect, data=Confidential(subject=none("own account"), retention="books"))  # type: ignore[arg-type]
        async def send_payment(ctx: Ctx, to: str, amount: Money) -> Receipt:
            """Transfer corporate funds."""
            paid.append((to, str(amount)))
            return Receipt(id="tx")

        pay = Step(calls=(("send_payment", {"to": "Acme", "amount": {"amount": "5000000", "currency": "USD"}}),))
        more: dict[str, Any] = {"model": ScriptedModel([pay, "told"]), **agent}
        chain = {**CHAIN, **({"on_reject": on_reject} if on_reject else {})}
        written = [
            {"id": "pay", "permit": {"safety": "financial"}},
            *(rules or [{"id": "dual", "dualApproval": {"over": "10000.00 USD", "chain": "treasury"}}]),
        ]
        made: Agent[Any] = Agent(
            name="payout-bot",
            tools=[send_payment, *tools],
            policies=[{"rules": written, "chains": {"treasury": chain}}, *more_policies],
            **more,
        )
        return cls(env, made, paid)

    async def ask(self, **options: Any) -> RunResult[Any]:
        self.result = await self.agent.run("Pay 50,000.00 USD to Acme", ledger=self.env, **options)
        return self.result

    async def resume(self) -> RunResult[Any]:
        self.result = await self.agent.resume(self.result.checkpoint_id, ledger=self.env)
        return self.result

    async def records(self) -> list[AnyRecord]:
        return [decode(raw) async for raw in self.env.ledger.read(self.result.run_id)]

    async def request(self) -> ApprovalRequested:
        return [r.fact for r in await self.records() if isinstance(r.fact, ApprovalRequested)][-1]

    async def ballot(self, decision: str, **changes: Any) -> ballots.Ballot:
        q = await self.request()
        fields: dict[str, Any] = {
            "action": q.digest, "card": q.card, "decision": decision, "expires": q.expires, "origin": self.env.origin, "policy": q.policy,
            "request": q.request, "run": self.result.run_id, "scope": "once",
        }  # fmt: skip
        return ballots.Ballot(**(fields | changes))

    async def vote(self, person: str, decision: str = "approve", key: Any = None, args: Any = None, **changes: Any) -> None:
        if args is not None:
            changes["args"] = commit(SECRET, canon(args))
        signs = key or signer(person)
        envelope = ballots.sign(await self.ballot(decision, **changes), signs.sign, signs.keyid).decode()
        mail = post.Vote(envelope) if args is None else post.Vote(envelope, args=args, secret=b64(SECRET))
        await self.env.ledger.send(self.result.run_id, post.encode(mail))

    async def types(self) -> list[str]:
        return [r.type for r in await self.records()]

    async def refusals(self) -> list[str]:
        return [r.fact.reason for r in await self.records() if r.type == "MessageRefused"]  # type: ignore[attr-defined]
