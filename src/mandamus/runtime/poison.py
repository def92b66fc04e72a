"""A run whose owners died, or were lost, again and again is parked: owned once more, halted, and not driven.

    if held.tries > 5: await poison.park(env, held)

Claims are counted in the head row (`tries`): a reply or an outcome sets the count back, and so does an owner that brought the run to a
wait or gave it back untouched. What is left are owners that vanished. The rule a newcomer would break: the halt is a record of the
chain like any other, behind a `RunOwned`, so that an earlier owner who was only slow is fenced, and people lift it by a resume.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from mandamus.core.records import RunHalted
from mandamus.core.seal import Draft
from mandamus.ports import Head, Wake
from mandamus.runtime import owed, recover
from mandamus.runtime.env import Env

CODE = "poison"
UNSEALED_US = 3_600_000_000


async def park(env: Env, held: Head) -> None:
    """Halts the run and gives it back. No model, tool or policy of its agent is asked. Raises ProofError for a chain that does not hold."""
    nobody: Any = None  # what an agent is bound to is not needed to read what happened
    async with recover.ours(env, held):
        await recover.refuse_elsewhere(env, held)
        s = await recover.read_held(env, nobody, held)
        if s.run.life == "running":
            recover.own(s, env.clock(s.run.genesis.clock.tz, s.run.clock.now if s.run.clock else 0))
            if s.run.life == "running":
                s.record([Draft(RunHalted(cause="poison", code=CODE), s.run.turn)])
            await s.save()
            s.books.owed = await owed.missing(s, s.moved) if s.moved else []
            await owed.settle(s)
            assert s.head is not None, "it was read"
            held = s.head
        else:  # it only waits to be sealed: nothing is left to halt
            held = await env.ledger.append(held.run, held, [], wake=Wake(env.time.now() + UNSEALED_US, held.mail, held.state))
    await env.ledger.renew(structs.replace(held, tries=0), 0)
