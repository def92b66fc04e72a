"""A worker process for the kill tests: `python pay_worker.py start|resume CLASS LEDGER BANK_URL RUN [wait]`.

Runs or resumes one payout on a SQLite ledger against the bank process, prints the result as one JSON line. With `wait` it says
"about to pay" before the first byte leaves, and stays there until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from mandamus import Absent, Agent, Ctx, Found, Money, NotDone, Receipt, Retry, tool
from mandamus.data import Confidential, none
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.testing.bank import Bank, Refusal

MODE, CLASS, LEDGER, URL, RUN = sys.argv[1:6]
WAIT = "wait" in sys.argv[6:]
bank = Bank(URL, timeout_s=60)


class AskTheBank:
    async def find(self, operation_id: str) -> Found | Absent:
        booked = bank.payments(operation_id)
        return Found({"id": booked[0]["id"], "status": "accepted"}) if booked else Absent("the bank lists no payment of this operation")


def contract() -> dict[str, object]:
    return {"reconcile": AskTheBank(), "timeout": "1s"} if CLASS == "reconcilable" else {}


@tool(safety="financial", effect=CLASS, data=Confidential(subject=none("own account"), retention="books"), retry=Retry(3), **contract())  # type: ignore[arg-type]
async def send_payment(ctx: Ctx, to: str, amount: Money) -> Receipt:
    """Transfer corporate funds."""
    if WAIT:
        print("about to pay", flush=True)
        time.sleep(600)
    try:
        return Receipt(id=bank.pay(to, str(amount), operation=ctx.operation_id, key=ctx.operation_id))
    except Refusal:
        raise NotDone("the bank refused") from None


agent = Agent(
    name="payout-bot",
    purpose="pay invoices",
    model=ScriptedModel([Step(calls=(("send_payment", {"to": "Acme", "amount": {"amount": "5000000", "currency": "USD"}}),)), "paid"]),
    tools=[send_payment],
    policies=[{"id": "pay", "permit": {"safety": "financial"}}],
)


async def main() -> None:
    result = await (agent.run("Pay Acme.", ledger=LEDGER, run_id=RUN) if MODE == "start" else agent.resume(RUN, ledger=LEDGER))
    waiting = [w.about for w in result.waiting]
    print(json.dumps({"actions": [a.state for a in result.actions], "state": result.state, "waiting": waiting}), flush=True)


asyncio.run(main())
