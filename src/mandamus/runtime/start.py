"""Before a run: check every duty, say once what a person must know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from mandamus.core import records as r
from mandamus.core.duties import Reason, reasons
from mandamus.core.seal import Content, Draft
from mandamus.errors import EngineFault, RunRefused
from mandamus.runtime.env import Bound, Env
from mandamus.runtime.recover import ISOLATION
from mandamus.runtime.statements import widen

_said: set[tuple[str, str]] = set()


async def may_start(env: Env, bound: Bound, resumes: str = "", *, also: Sequence[Reason] = (), author: Any = None) -> None:
    """Every reason at once, of the agent and of those it may hand a task to, recorded on chain `log`. Raises RunRefused.

    A refused start takes a register number; a refused resume leaves its run where it is. `also`: what the caller found, `author`: who
    signed agent.yaml (`name` when the trust file knows the key, else `stranger`).
    """
    family = _family(bound)
    for engine in (engine for b in family for _, engine in b.engines):
        if not engine.digest():
            raise EngineFault("a policy engine names no digest", code="MDM-0504", why="a verdict of an unknown policy is no verdict")
    found = (*also, *dict.fromkeys(x for b in family for x in _reasons(env, b, author)))
    if not found:
        for b in family:
            env.home.keep_policy(b.book.digest, b.book.texts)
            await _policy_in_force(env, b)
        return
    fact = r.RunRefused(
        agent=bound.spec.name, clock=env.clock(bound.spec.timezone), codes=tuple(dict.fromkeys(x.code for x in found)), run=resumes or UNSET
    )
    await env.log.append([Draft(fact, 0, (Content("diagnosis", [msgspec.to_builtins(x) for x in found]),))], numbered=not resumes)
    lines = "; ".join(f"{x.code}: {x.what}" + (f" ({x.articles})" if x.articles else "") for x in found)
    raise RunRefused(f"the run may not start: {lines}", found, code="MDM-0310", fix="; ".join(x.fix for x in found))


def _family(bound: Bound) -> list[Bound]:
    """The agent, and every agent below it: none of them may do what the one above may not start with."""
    return [bound, *(b for child in bound.children.values() for b in _family(child))]


def _reasons(env: Env, bound: Bound, author: Any) -> tuple[Reason, ...]:
    trust = env.trust()
    people = sorted({p for p, _ in trust.approvers.values()})
    return reasons(bound.spec, bound.book, tier=env.tier, isolation=ISOLATION, approvers=people, roles=trust.roles, **_signer(author))


def _signer(author: Any) -> dict[str, str]:
    return {} if author is None else {"author": author.name, "stranger": author.stranger}


async def _policy_in_force(env: Env, bound: Bound) -> None:
    """A policy other than the last one of this agent stands on chain `log` before it judges: votes and allowances name the old one."""
    if env.log.policies.get(bound.spec.name, "") == bound.book.digest:
        return
    async with env.turnstile:
        await _change_policy(env, bound)


async def _change_policy(env: Env, bound: Bound) -> None:
    old = env.log.policies.get(bound.spec.name, "")
    if old == bound.book.digest:
        return  # of many runs that begin at once, another one has said it
    clock = env.clock(bound.spec.timezone)
    await widen(env, r.PolicyChanged(agent=bound.spec.name, clock=clock, new=bound.book.digest, old=old))


def say_once(env: Env, agent: Any, author: Any) -> None:
    for key, text in _notes(agent, author):
        if (agent.spec.name, key) not in _said:
            _said.add((agent.spec.name, key))
            env.warn(text)


def _notes(agent: Any, author: Any) -> list[tuple[str, str]]:
    out = [("isolation", f"mandamus: tools of {agent.spec.name!r} run in this process (isolation: {ISOLATION}); tier dev only")]
    if agent.manifest and author.stranger:
        signed = f"is signed by {author.stranger}, whom the trust file does not know; {author.fix}"
        out.append((f"signed by {author.vkey}", f"mandamus: agent.yaml of {agent.spec.name!r} {signed}"))
    elif agent.manifest and not author.name:
        out.append(("unsigned", f"mandamus: agent.yaml of {agent.spec.name!r} is unsigned: whoever may write it may change the agent"))
    for tool in agent.tools.values():
        if not tool.said_effect:
            out.append(
                (
                    tool.name,
                    f"mandamus: tool {tool.name!r} names no effect and counts as irreversible; "
                    'say effect="keyed" (or another) in @tool(...)',
                )
            )
    return out
