# What a tool may not leave out. Each line that says `refused` stands beside its twin, which passes.
from mandamus import Ctx, Money, Retry, Tool, tool
from mandamus.data import Confidential, Public, none

DATA = Confidential(subject=none("own account"), retention="books")


async def pay(ctx: Ctx, to: str, amount: Money) -> str:
    """Pay."""
    return to


tool(data=DATA)  # refused: safety is missing
tool(data=DATA, safety="financial")

tool(safety="financial")  # refused: data is missing
tool(safety="financial", data=DATA, effect="keyed")

tool(safety="money", data=DATA)  # refused: no safety class
tool(safety="privileged", data=DATA)

tool(safety="financial", data=DATA, effect="once")  # refused: no effect class
tool(safety="financial", data=DATA, effect="irreversible")

tool(safety="read", data="public")  # refused: a data class is a value, not a word
tool(safety="read", data=Public())

tool(safety="read", data=Public(), retry=3)  # refused: a number says nothing of the waiting between
tool(safety="read", data=Public(), retry=Retry(3))

made = tool(safety="financial", data=DATA)(pay)
made.pin = "0" * 64  # refused: a pin is computed
pinned: str = made.pin

Retry("3")  # refused: attempts are counted
Retry(3, backoff_ms=100)

Tool.of("pay", safety="read", data=Public())  # refused: a name is no function
Tool.of(pay, safety="read", data=Public())
