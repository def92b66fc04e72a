"""The payout agent of the demo: one tool, which the bank can be asked about, and a model that is a script.

The rule a newcomer would break: the tool sends the operation id along, so that the bank can be asked about this payment later; it
does not look for an earlier one itself. What became of an earlier attempt is settled before a tool is called again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mandamus import Absent, Agent, Ctx, Found, Money, Receipt, tool
from mandamus.cli._demo import scene
from mandamus.data import Confidential, none
from mandamus.drivers.model_scripted import Scripted, ScriptedModel, Step
from mandamus.drivers.sign_file import FileSigner
from mandamus.testing.bank import Bank

Gate = Callable[[], Awaitable[Any]]


class Statement:
    """Asks the bank, by operation id, what became of a payment."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank

    async def find(self, operation_id: str) -> Found | Absent:
        booked = await asyncio.to_thread(self.bank.payments, operation_id)
        return Found(Receipt(id=booked[0]["id"])) if booked else Absent("not in the bank's list of payments")


def agent(folder: Path, bank_url: str, gate: Gate | None = None) -> Agent[str]:
    """The agent of the story. Its payment waits at `gate`, when there is one: its intent is in the ledger by then."""
    bank = Bank(bank_url)

    @tool(
        safety="financial", effect="reconcilable", reconcile=Statement(bank), timeout="1h",
        data=Confidential(subject=none("the company's own account"), retention="books"),
    )  # fmt: skip
    async def send_payment(ctx: Ctx, to: str, amount: Money) -> Receipt:
        """Pay a supplier from the company's account."""
        if gate is not None:
            await gate()
        return Receipt(id=await asyncio.to_thread(bank.pay, to, str(amount), operation=ctx.operation_id))

    script: list[Scripted] = [
        Step(calls=(("send_payment", {"to": scene.PAYEE, "amount": scene.AMOUNT}),)),
        f"Done: {scene.PAYEE} has been paid.",
    ]
    return Agent(
        name="payout-bot", purpose="pay invoices", instructions="Pay what is asked.", model=ScriptedModel(script), tools=[send_payment],
        policies=[str(folder / scene.POLICY_FILE)],
    )  # fmt: skip


def enrol(folder: Path, home: Any) -> None:
    """Keys of the approvers, in files of their own, and the lines of the trust file that name them."""
    for name, principal in scene.PEOPLE.items():
        key = FileSigner.create(scene.key_file(folder, name), f"demo.mandamus.local/{name}")
        home.add_trust(f"approver {principal} {key.vkey}")
    home.add_trust("role treasurer " + " ".join(sorted(set(scene.PEOPLE.values()))))
