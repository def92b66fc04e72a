"""An agent whose runs workers carry: it pays an invoice, by a tool whose other side keeps idempotency keys."""

from mandamus import Agent, Ctx, Money, Receipt, tool
from mandamus.data import Confidential, none
from mandamus.drivers.model_scripted import ScriptedModel, Step

BOOKED: dict[str, str] = {}  # the other side: idempotency key -> its reference


@tool(safety="financial", effect="keyed", data=Confidential(subject=none("own account"), retention="books"), timeout="30s")
async def send_payment(ctx: Ctx, to: str, amount: Money) -> Receipt:
    """Transfer corporate funds."""
    return Receipt(id=BOOKED.setdefault(ctx.operation_id, f"tx-{len(BOOKED) + 1}"))


agent = Agent(
    name="invoice-bot",
    purpose="pay invoices",
    model=ScriptedModel([Step(calls=(("send_payment", {"to": "Acme", "amount": {"amount": "90000", "currency": "USD"}}),)), "paid"]),
    tools=[send_payment],
    policies=[{"id": "pay", "permit": {"safety": "financial"}}],
)
