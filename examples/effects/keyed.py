"""Effect class *keyed*: the other side keeps idempotency keys. After a crash the call is sent again under the same operation id."""

from mandamus import Agent, Ctx, Money, Receipt, tool
from mandamus.data import Confidential, none
from mandamus.drivers.model_scripted import ScriptedModel, Step

BOOKED: dict[str, str] = {}  # the other side: idempotency key -> its reference
PROMPT = "Pay invoice 4711."


@tool(safety="financial", effect="keyed", data=Confidential(subject=none("own account"), retention="books"))
async def send_payment(ctx: Ctx, to: str, amount: Money) -> Receipt:
    """Transfer corporate funds."""
    return Receipt(id=BOOKED.setdefault(ctx.operation_id, f"tx-{len(BOOKED) + 1}"))


agent = Agent(
    name="payout-bot",
    purpose="pay invoices",
    model=ScriptedModel([Step(calls=(("send_payment", {"to": "Acme", "amount": {"amount": "5000000", "currency": "USD"}}),)), "paid"]),
    tools=[send_payment],
    policies=[
        {"id": "pay", "permit": {"safety": "financial"}},
        {"id": "pay.large", "dualApproval": {"over": "10000.00 USD", "quorum": 2}},
        {"id": "pay.daily", "maxDailyLimit": {"limit": "9000000.00 USD"}},
    ],
)
