"""A treasury agent pays a supplier 50,000.00 USD: it looks at the balance, screens him, and is stopped until two people sign.

    python payout_cycle.py

Everything here is a stand-in: the node, the list and the keys. In production the executor talks to your bank or node, the screener to
your list, and people sign with their own keys (`mandamus approve`).
"""

import asyncio

from mandamus import Agent, Money
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.kits import treasury
from mandamus.kits.treasury import HmacEvidenceSigner, NoopSanctionScreener, Order, TransferReceipt
from mandamus.testing import Runner

ACME = "0x90F8bf9A1C437435f3065A5A90310243E197c3b2"
PROMPT = f"Pay $50,000 USD to Acme Suppliers (Address: {ACME})."


class Node:
    """The other side: it pays one key once."""

    def __init__(self) -> None:
        self.paid: dict[str, Order] = {}

    async def transfer(self, order: Order, key: str) -> TransferReceipt:
        self.paid.setdefault(key, order)
        return TransferReceipt(ref="0xabc123", key=key, chain="ethereum")


def balance() -> Money:
    return Money("1000000000000", "USD", 6)


node = Node()
kit = treasury.kit(
    "ops-suite-01",
    "payout-bot",
    sanctions=NoopSanctionScreener(),
    evidence_signer=HmacEvidenceSigner("key-01", b"my-secret-key-at-least-32-chars-long"),
    balance=balance,
    transfer=node,
    dual_approval={"USD": Money("10000000000", "USD", 6)},
)
agent = Agent(
    name="Treasury Payout Agent",
    purpose="pay suppliers",
    instructions="Obey spending limits, screen counterparties, process approved transfers.",
    model=ScriptedModel(
        [
            Step(calls=(("get_balance", {}),)),
            Step(calls=(("screen_counterparty", {"party": "Acme Suppliers"}),)),
            Step(calls=(("send_payment", {"to": ACME, "amount": {"amount": "5000000", "currency": "USD", "decimals": 2}}),)),
            "The transfer to Acme Suppliers went through.",
        ]
    ),
    tools=kit.tools,
    plugins=[kit.plugin],
)


async def main() -> None:
    for note in kit.notes:
        print("note:", note)
    runner = Runner(agent)  # a ledger in memory, and keys made for this play
    for person in ("p-alice", "p-bob"):
        runner.approver(person)
    first = await runner.turn(PROMPT)
    print(first.state, "-", first.waiting[0].needed, "people are asked;", len(node.paid), "payments")
    await runner.approve("p-alice")
    done = await runner.approve("p-bob")
    print(done.state, "-", len(node.paid), "payment")
    print("signature of the evidence bundle:", done.evidence_bundle.signature)


if __name__ == "__main__":
    asyncio.run(main())
