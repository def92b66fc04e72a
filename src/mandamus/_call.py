"""One call of an agent: the environment it runs in, the run it names, and whether agent.yaml is true of what was loaded.

The rule a newcomer would break: an environment that the caller keeps open is never closed here, and nothing is written before a
run is known to be this agent's.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mandamus import _legal
from mandamus._author import Author
from mandamus.core.records import FACTS, decode
from mandamus.errors import Misuse, ProofError
from mandamus.tool import milliseconds

if TYPE_CHECKING:
    from mandamus.core.definition import AgentSpec
    from mandamus.core.duties import Reason
    from mandamus.core.records import RunOpened
    from mandamus.manifest import Loaded
    from mandamus.runtime.env import Bound, Env


class Calling:
    """The environment of one call: opened here and closed here, or an open one that the caller keeps."""

    def __init__(self, ledger: Any, tenant: str) -> None:
        self.given, self.tenant = ledger, tenant

    async def __aenter__(self) -> Env:
        from mandamus import wiring
        from mandamus.runtime.env import Env

        if isinstance(self.given, Env):
            self.env = self.given
            return self.env
        if self.given is not None and not isinstance(self.given, str):
            raise Misuse(
                "ledger", code="MDM-0111", expected="a URI, or what wiring.open_env answers", found=type(self.given).__name__,
                fix='ledger="sqlite:///FILE"',
            )  # fmt: skip
        _legal.texts(ledger=self.given or "", tenant=self.tenant)
        self.env = await wiring.open_env(self.given, tenant=self.tenant, warn=lambda text: print(text, file=sys.stderr))
        return self.env

    async def __aexit__(self, *_: object) -> None:
        from mandamus import wiring

        if self.env is not self.given:
            await wiring.close_env(self.env)


def until(bound: Bound, deadline: str | None) -> Bound:
    if deadline is None:
        return bound
    from dataclasses import replace

    limits = msgspec.structs.replace(bound.spec.budget, wall_ms=milliseconds(deadline, "deadline"))
    return replace(bound, spec=msgspec.structs.replace(bound.spec, budget=limits))


async def continued(env: Env, thread: str | None) -> dict[str, Any]:
    """The run that the new one continues: its history, by reference."""
    from mandamus.core.records import Parent

    if thread is None:
        return {}
    head = await env.ledger.head(thread)
    if head is None:
        raise Misuse(f"thread {thread!r} is no run of this ledger", code="MDM-0251", fix="thread=result.thread")
    return {"parent": Parent(hash=head.hash, kind="thread", run=thread, seq=head.seq)}


async def checkpoint(env: Env, checkpoint_id: str, agent: str) -> tuple[str, RunOpened]:
    """The run that a checkpoint id names and its genesis. Raises Misuse: no such run, another agent's, or newer than this ledger."""
    from mandamus.core.records import RunOpened

    _legal.texts(checkpoint_id=checkpoint_id)
    run, _, seq = checkpoint_id.partition("@")
    head = await env.ledger.head(run)
    if head is None:
        raise Misuse(f"there is no run {run[:60]!r}", code="MDM-0250", fix="mandamus runs")
    if seq and not (seq.isascii() and seq.isdecimal() and len(seq) < 16):
        raise Misuse("this is no checkpoint id", code="MDM-0253", expected="RUN@SEQ, as RunResult.checkpoint_id", found=checkpoint_id[:60])
    if seq and int(seq) > head.seq:
        why = "it is an older copy: what happened after it is not known here"
        raise Misuse(f"this ledger knows run {run} only up to event {head.seq}", code="MDM-0253", expected=f"event {seq}", why=why)
    first = [decode(raw) async for raw in env.ledger.read(run, upto=0)]
    if not first or not isinstance(first[0].fact, RunOpened):
        raise ProofError("a run begins with RunOpened", code="MDM-0641", where=f"run {run} (event 0)")
    if first[0].fact.agent != agent:
        raise Misuse(
            f"run {run} belongs to another agent",
            code="MDM-0253",
            expected=first[0].fact.agent,
            found=agent,
            fix="resume it with its own agent",
        )
    return run, first[0].fact


def identity(loaded: Loaded, env: Env, spec: AgentSpec, policy: str) -> tuple[Author, tuple[Reason, ...]]:
    """Who signed agent.yaml, and what of it is not true of what was loaded."""
    from mandamus.core.duties import refusal
    from mandamus.manifest import check_manifest, drift

    drifted = drift(loaded, spec, policy)
    try:
        return check_manifest(loaded, env.trust()), drifted
    except ProofError as error:
        return Author(), (
            *drifted,
            refusal("manifest_unsigned", f"{error.diagnosis.where}: {error.diagnosis.what}", error.diagnosis.fix or "sign it again"),
        )


def types_of(types: Sequence[str]) -> frozenset[str]:
    for one in (types,) if isinstance(types, str) else types:
        if one not in FACTS:
            raise Misuse(f"there is no event type {str(one)[:40]!r}", code="MDM-0229", fix=_legal.near(one, tuple(FACTS)))
    return frozenset((types,) if isinstance(types, str) else types)
