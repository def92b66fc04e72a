"""The tools, and a stand-in for your bank: a file that it appends to. Put your bank's API into `book` and `booked`; keep the rest.

The bank must take an operation id along with a payment and be able to say what became of it. Then a crash in the middle of a
payment is settled by asking, and nothing is paid twice.
"""

import json
import os
from pathlib import Path

from mandamus import Absent, Ctx, Found, Money, NotDone, Receipt, tool
from mandamus.data import Business, Confidential, none

OWN = none("the company's own account")


def book(operation: str, to: str, amount: Money) -> str:
    """Pay. Returns the bank's reference."""
    path = _file()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps({"operation": operation, "to": to, "amount": str(amount)}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return f"bank-{len(statement())}"


def booked(operation: str) -> str | None:
    """The bank's reference of the payment with this operation id, or None when there is none."""
    return next((f"bank-{n}" for n, line in enumerate(statement(), 1) if line["operation"] == operation), None)


def statement() -> list[dict[str, str]]:
    path = _file()
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _file() -> Path:
    return Path(os.environ.get("PAYOUT_BANK", ".mandamus/bank.jsonl"))


class Statement:
    """What the bank says about one operation."""

    async def find(self, operation_id: str) -> Found | Absent:
        reference = booked(operation_id)
        return Found(Receipt(id=reference)) if reference else Absent("the bank's statement does not list it")


@tool(safety="read", effect="read", data=Business(subject=OWN, retention="books"))
async def get_balance() -> Money:
    """The balance of the company's account."""
    return Money.parse("1000000.00 USD")


@tool(safety="financial", effect="reconcilable", reconcile=Statement(), data=Confidential(subject=OWN, retention="books"), timeout="30s")
async def send_payment(ctx: Ctx, to: str, amount: Money) -> Receipt:
    """Pay a supplier from the company's account."""
    if amount.amount == "0":
        raise NotDone("an amount of zero is no payment")
    return Receipt(id=book(ctx.operation_id, to, amount))
