"""Ask the engines of the layer *policy*, and hold each answer against what an answer may be.

The rule a newcomer would break: whatever an engine does that the port does not allow is the verdict `error`: an exception, silence, an
answer beside errors, an answer of another policy than the bound one, people of a chain that nobody declared. Never a deny, never an allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from mandamus.core import facts as f
from mandamus.core import judge as j
from mandamus.core.asks import sound
from mandamus.core.records import Ask
from mandamus.ports import PolicyEngine
from mandamus.runtime.env import Bound
from mandamus.runtime.within import asked_to_go, within

DEADLINE_S = 5.0
TEXT_MAX = 32_768  # bytes of all that it says: half of what a record may be
_NO_PERMIT = f.Judgement(verdict="deny", reason="no_match")  # an agent without any policy may do nothing (law 4)


async def ask(bound: Bound, facts: f.FactEnvelope) -> list[j.Answer]:
    """What the engines say. One that knows no rule for the action is heard only when no other speaks."""
    spoken: list[j.Answer] = []
    silent: list[j.Answer] = []
    for n, (of, engine) in enumerate(bound.engines):
        judgement = await _one(bound, n, engine, facts)
        quiet = judgement.verdict == "deny" and judgement.reason == "no_match"
        (silent if quiet else spoken).append(j.policy(judgement, of))
    return spoken or silent[:1] or [j.policy(_NO_PERMIT)]


async def _one(bound: Bound, n: int, engine: PolicyEngine, facts: f.FactEnvelope) -> f.Judgement:
    try:
        judgement = await within(DEADLINE_S, engine.decide(facts))
        fault = _fault(bound, n, engine, judgement)
    except asyncio.CancelledError:
        if asked_to_go():
            raise
        fault = "cancelled itself"
    except TimeoutError:
        fault = "did not answer in time"
    except Exception as error:  # its text may quote facts: only its kind is kept
        fault = f"raised {type(error).__name__}"
    if not fault:
        return judgement
    errors = judgement.errors if fault == "errors" else (f"engine {n} {fault}",)
    return f.Judgement(verdict="error", errors=errors, reason="engine_error")


def _fault(bound: Bound, n: int, engine: PolicyEngine, judgement: Any) -> str:
    """Why this is no answer of the bound policy; "" when it is one."""
    if type(judgement) is not f.Judgement or judgement.verdict not in ("allow", "escalate", "deny", "error"):
        return f"answered {type(judgement).__name__}, which is no judgement"
    text = judgement.engine  # a Struct does not check what it is built with: what is no text raises here
    for d in judgement.determining:
        text += d.id + d.name + d.reason + d.verdict
    for error in judgement.errors:
        text += error
    if text.encode()[TEXT_MAX:] or type(judgement.errors) is not tuple:
        return "says more than a record holds"
    for a in judgement.asks:
        if not sound(a):
            return "asks for people, or for evidence, in a way that nobody could record"
    if judgement.verdict == "error":
        return ""
    if judgement.errors:
        return "errors"
    answers = engine.digest()
    if judgement.policy not in ("", answers) or answers != bound.book.texts.get(f"engine/{n}", answers):
        return "answered for another policy than the one that is bound"
    if bool(judgement.asks) != (judgement.verdict == "escalate"):
        return f"answered {judgement.verdict} with {len(judgement.asks)} asks"
    unknown = unknown_chain(bound.book, judgement.asks)
    return f"asks chain {unknown!r}, which no policy declares" if unknown else ""


def unknown_chain(book: f.RuleBook, asks: Sequence[Ask]) -> str:
    for ask in asks:
        if ask.to == "people" and chain_of(book, ask.chain) is None:
            return ask.chain
    return ""


def chain_of(book: f.RuleBook, id: str) -> f.Chain | None:
    """The declared chain of this name. Only the word "default" means the default one: a misspelt name must not mean anybody."""
    return book.chains.get(id, f.DEFAULT_CHAIN if id == f.DEFAULT_CHAIN.id else None)
