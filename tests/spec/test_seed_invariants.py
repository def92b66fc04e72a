"""The invariants of the first seed, one test per sentence; the sentence is the docstring, in the seed's own words."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from mandamus import Agent, Block, Misuse, ProofError, RunRefused, guardrail, tool
from mandamus.core import records as r
from mandamus.data import Business, Confidential, Personal, SpecialCategory, subject
from mandamus.drivers.model_scripted import ScriptedModel
from mandamus.runtime import start
from tests.crash.stand import Stand, agent_of, pay_tool


def test_tools_never_receive_sibling_tools() -> None:
    """Tools never receive sibling tools."""
    seen: list[Any] = []
    stand_of(lambda ctx: seen.append([name for name in dir(ctx) if not name.startswith("_")]))
    assert seen
    assert not {"tools", "agent", "bound"} & set(seen[0])


def test_tools_cannot_call_models() -> None:
    """Tools cannot call models."""
    seen: list[Any] = []
    stand_of(lambda ctx: seen.append([name for name in dir(ctx) if hasattr(getattr(ctx, name, None), "generate")]))
    assert seen == [[]]


def stand_of(deed: Any) -> Stand:
    async def story() -> Stand:
        stand = await Stand.of(agent_of(pay_tool(deed=deed)))
        assert (await stand.run()).run.end == "completed"
        return stand

    return asyncio.run(story())


def test_guardrails_get_a_restricted_model_handle() -> None:
    """Guardrails get a restricted model handle."""
    handles: list[Any] = []

    @guardrail("input")
    async def ask(view: Any, model: Any = None) -> Any:
        handles.append(model)
        return Block("seen")

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool(), guardrails=(ask,)))
        await stand.run()
        (handle,) = handles
        assert handle is not stand.bound.model
        assert not any(hasattr(handle, name) for name in ("tools", "generate", "bound", "session"))
        assert stand.deeds == 0

    asyncio.run(story())


def test_secrets_are_opaque() -> None:
    """Ctx.secrets returns opaque SecretRef. Plaintext never reaches evidence."""
    shown: list[str] = []
    stand_of(lambda ctx: shown.append(f"{ctx.secrets['bank']} {ctx.secrets['bank']!r}"))
    assert shown == ["SecretRef(bank) SecretRef(bank)"]


def test_lawful_basis_mismatch_refuses_at_run_start() -> None:
    """Lawful-basis mismatch refuses at run start."""

    async def story() -> None:
        @tool(safety="read", effect="read", data=Personal(subject=subject("who"), allowed_lawful_bases=("contract",), retention="standard"))
        def look_up(who: str) -> str:
            """Look a person up."""
            return who

        def made(basis: Any) -> Agent[Any]:
            return Agent(name="a", purpose="test", lawful_basis=basis, model=ScriptedModel(["x"]), tools=[look_up])

        stand = await Stand.of(made("consent"))
        with pytest.raises(RunRefused) as refused:
            await start.may_start(await stand.worker(), stand.bound)
        assert [x.code for x in refused.value.reasons] == ["basis_mismatch"]
        stand = await Stand.of(made("contract"))
        await start.may_start(await stand.worker(), stand.bound)

    asyncio.run(story())


@pytest.mark.parametrize("kind", [Business, Personal, SpecialCategory, Confidential])
def test_the_subject_is_required(kind: Any) -> None:
    """subjectRef is required for non-public data classifications."""
    with pytest.raises(Misuse) as refused:
        kind(retention="standard")
    assert refused.value.diagnosis.code == "MDM-0209"


def test_annex_iii_requires_oversight() -> None:
    """Annex III domain non-'none' requires an oversight tool."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool(), annex_iii="employment"))
        with pytest.raises(RunRefused) as refused:
            await start.may_start(await stand.worker(), stand.bound)
        assert "oversight_missing" in {x.code for x in refused.value.reasons}

    asyncio.run(story())


def test_the_hash_chain_is_non_bypassable() -> None:
    """Hash chain is non-bypassable."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool()))
        s = await stand.run()
        head = await stand.ledger.head(s.run.id)
        raws = [raw async for raw in stand.ledger.read(s.run.id)]
        with pytest.raises(ProofError):
            await stand.ledger.append(s.run.id, head, [raws[-1]])
        assert [raw async for raw in stand.ledger.read(s.run.id)] == raws
        hashes = [r.event_hash(raw) for raw in raws]
        assert [r.decode(raw).prev for raw in raws[1:]] == hashes[:-1]

    asyncio.run(story())


def test_each_test_is_a_sentence() -> None:
    """One sentence, one test."""
    tests = [f for name, f in globals().items() if name.startswith("test_")]
    assert all((inspect.getdoc(f) or "").endswith(".") for f in tests)
