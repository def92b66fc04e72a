"""Effect class *reconcilable*: the other side can be asked. After a crash it is asked whether the operation happened."""

from mandamus import Absent, Agent, Ctx, Found, tool
from mandamus.data import Business, none
from mandamus.drivers.model_scripted import ScriptedModel, Step

TICKETS: list[tuple[str, str]] = []  # the other side: (operation id, title); it forgives no repeats
PROMPT = "Open a ticket about the broken printer."


class Desk:
    """Asks the help desk about one operation."""

    async def find(self, operation_id: str) -> Found | Absent:
        numbers = [n for n, (operation, _) in enumerate(TICKETS, 1) if operation == operation_id]
        return Found(numbers[0]) if numbers else Absent("the desk lists no ticket of this operation")


@tool(safety="write", effect="reconcilable", data=Business(subject=none("printers"), retention="standard"), reconcile=Desk())
async def open_ticket(ctx: Ctx, title: str) -> int:
    """Open a ticket at the help desk; returns its number."""
    TICKETS.append((ctx.operation_id, title))
    return len(TICKETS)


agent = Agent(
    name="desk-bot",
    model=ScriptedModel(
        [Step(calls=(("open_ticket", {"title": "printer"}), ("open_ticket", {"title": "toner"}))), "Two tickets are open."]
    ),
    tools=[open_ticket],
    policies=[{"id": "write", "permit": {"safety": "write"}}],
)
