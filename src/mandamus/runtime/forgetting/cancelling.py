"""Bring a run to its end without its agent: `await carry_out(env, run)`. For runs that were asked to stop, or lack their seal.

The rule a newcomer would break: no tool, model or policy is at hand here, so nothing may be due that needs one. Whoever calls this has seen
that no action is in doubt; a run that turns out to need its agent is given back as it is.
"""

from __future__ import annotations

from typing import Any

from mandamus.core import records as r
from mandamus.core.definition import AgentSpec
from mandamus.core.effects import Seal
from mandamus.core.facts import RuleBook
from mandamus.core.messages import Settings
from mandamus.runtime import recover
from mandamus.runtime.env import Bound, Env
from mandamus.runtime.world import perform


async def carry_out(env: Env, run: str) -> None:
    """Raises Conflict while another process drives it."""
    genesis = await _genesis(env, run)
    s = await recover.take_over(env, _nobody(genesis), run)
    try:
        while s.unsaved or (s.due() and all(isinstance(x, Seal) for x in s.due())):
            if not await s.save():
                continue
            for effect in s.due():
                if isinstance(effect, Seal):
                    s.take(await perform(s, effect))
        await s.save()
    finally:
        await recover.give_back(s)


async def _genesis(env: Env, run: str) -> r.RunOpened:
    async for raw in env.ledger.read(run, upto=0):
        fact = r.decode(raw).fact
        if isinstance(fact, r.RunOpened):
            return fact
    raise AssertionError("a run that has a head has a genesis")


def _nobody(g: r.RunOpened) -> Bound:
    """An agent of the same name that can do nothing."""
    spec = AgentSpec(
        name=g.agent, purpose="", lawful_basis=None, annex_iii="none", art22_decision=False, model="none:", instructions="", tools=(),
        output_schema={}, budget=g.budget, timezone=g.clock.tz,
    )  # fmt: skip
    model: Any = None  # nothing is asked
    book = RuleBook(digest=g.policy)
    return Bound(spec, g.definition, {}, (), book, model, Settings("none"), str)
