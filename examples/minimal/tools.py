"""The tools of this agent. A tool says what it is (safety), what it touches (data) and what a repeat would do (effect)."""

from mandamus import Ctx, tool
from mandamus.data import Public


@tool(safety="read", effect="read", data=Public())
async def tell_time(ctx: Ctx) -> int:
    """The time in seconds since 1970. It is recorded, so that a replay sees the same."""
    return await ctx.clock() // 1_000_000
