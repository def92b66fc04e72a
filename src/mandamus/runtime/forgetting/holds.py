"""Legal holds on chain `log`: `hold = await place(env, …)`, `await lift(env, hold, …)`. What they keep: runtime/forgetting/forget.py.

The rule a newcomer would break: placing a hold keeps more, so anybody who may write to the log may place one; lifting it lets things be
destroyed, so the administrators sign that. And a hold never stands on the chain between a destruction and its record.
"""

from __future__ import annotations

from msgspec import UNSET

from mandamus.core import records as r
from mandamus.core.seal import Draft
from mandamus.errors import Misuse
from mandamus.runtime import erased, sealing
from mandamus.runtime.env import Env, ulid
from mandamus.runtime.forgetting import forget
from mandamus.runtime.statements import widen


async def place(env: Env, ground: str, principal: str, *, subject: str = "", run: str = "") -> str:
    """On a subject, a run, or (neither) on everything: its id. A destruction that is under way is told first."""
    ledger = sealing.put_on(env, make=bool(subject))
    pseudonym = await ledger.keys.pseudonym(subject) if subject and ledger is not None else ""
    if subject and not pseudonym:
        raise Misuse("this ledger has no key store", code="MDM-0972", why="it does not know whom a name means", fix="hold the runs: --run")
    if ledger is None:
        return await _place(env, ground, principal, pseudonym, run)
    while True:
        async with ledger.keys.alone():
            destroyed = [one.id for one in await ledger.keys.erasings() if one.state == "destroyed"]
            if not destroyed:
                return await _place(env, ground, principal, pseudonym, run)
        for id in destroyed:
            await forget.carry(env, id)


async def _place(env: Env, ground: str, principal: str, subject: str, run: str) -> str:
    id = ulid(env.time)
    fact = r.HoldPlaced(
        clock=env.clock("UTC"), ground=ground, hold=id, principal=principal, run=run or UNSET, subject=subject or UNSET
    )  # fmt: skip
    await env.log.append([Draft(fact, 0)], raises=True)
    return id


async def lift(env: Env, hold: str, principal: str) -> None:
    """Signed by this ledger's administrator. Raises Misuse when no such hold is in force."""
    told = await erased.read(env.ledger, env.trust())
    found = [id for id in told.holds if hold and id.startswith(hold.upper())]
    if len(found) != 1:
        what = f"{len(found)} holds begin with {hold[:20]!a}" if found else f"no hold {hold[:20]!a} is in force"
        raise Misuse(what, code="MDM-0975", fix="mandamus hold list")
    await widen(env, r.HoldLifted(clock=env.clock("UTC"), hold=found[0], principal=principal))
