"""Attacks by values: what tools and guardrails hand in and nobody could record, and secrets in other clothes.

A fact that cannot be sealed would take along what was to be recorded with it. So nothing that a user's code says may get that far.
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest

from mandamus import Agent, Ctx, Misuse, NotDone, guardrail, tool
from mandamus.core import records as r
from mandamus.drivers.model_scripted import ScriptedModel
from mandamus.runtime import secrecy
from mandamus.runtime.guard import Annotate, Block
from mandamus.runtime.replay import replay
from tests.attack.test_red_votes import story
from tests.crash.stand import PLAIN, Stand, agent_of, pay_tool

LONE = "\ud800"  # half of a character: it has no UTF-8 form
UNFIT: dict[str, Any] = {
    "an object": object(),
    "half a character": LONE,
    "too large": "x" * 300_000,
    "no number": float("nan"),
    "a set": {1},
}
READ = ({"permit": {"safety": "read"}},)


@pytest.mark.parametrize("what", [*UNFIT, "bytes to come"])
def test_a_tool_is_told_what_cannot_be_recorded_and_the_run_goes_on(what: str) -> None:
    told: list[str] = []

    async def deed(ctx: Ctx) -> None:
        try:
            await (ctx.random(300_000) if what == "bytes to come" else ctx.note("k", UNFIT[what]))
        except Misuse as error:
            told.append(error.diagnosis.code)

    @story
    async def attack() -> None:
        stand = await Stand.of(agent_of(pay_tool(deed=deed)))
        s = await stand.run()
        assert (s.run.life, told) == ("sealed", ["MDM-0234"])
        assert await stand.facts(s.run.id, r.CapabilityChecked) == []

    attack()


@story
async def test_a_name_that_cannot_be_written_down_is_an_unknown_tool() -> None:
    async def deed(ctx: Ctx) -> None:
        await ctx.invoke(LONE, {})

    stand = await Stand.of(agent_of(pay_tool(deed=deed)))
    s = await stand.run()
    assert [f.fault for f in await stand.facts(s.run.id, r.ActionProposed) if f.tool == "?"] == ["unknown_tool"]


@story
async def test_a_reason_that_cannot_be_written_down_is_still_proof_that_nothing_happened() -> None:
    async def deed(ctx: Ctx) -> None:
        raise NotDone(f"no account {LONE}")

    stand = await Stand.of(agent_of(pay_tool("irreversible", deed=deed)))
    s = await stand.run()
    assert [(f.result, f.code) for f in await stand.facts(s.run.id, r.ActionEnded)] == [("failed", "not_done")]
    assert s.run.life == "sealed"


@pytest.mark.parametrize("finding", list(UNFIT))
def test_a_guardrail_whose_finding_cannot_be_recorded_is_broken_and_loses_no_outcome(finding: str) -> None:
    async def look(view: Any) -> Annotate:
        return Annotate(UNFIT[finding])

    @story
    async def attack() -> None:
        stand = await Stand.of(agent_of(pay_tool("irreversible"), guardrails=[guardrail("tool_result")(look)]))
        s = await stand.run()
        assert (s.run.life, s.run.cause) == ("halted", "guardrail")
        assert [f.result for f in await stand.facts(s.run.id, r.ActionEnded)] == ["done"]

    attack()


@pytest.mark.parametrize("how", ["reason", "cancelled", "cancelled later"])
def test_a_guardrail_that_breaks_in_another_way_halts_the_run(how: str) -> None:
    async def look(view: Any) -> Any:
        if how == "cancelled later":
            await asyncio.sleep(0)
        if how != "reason":
            raise asyncio.CancelledError
        return Block(LONE)

    @story
    async def attack() -> None:
        stand = await Stand.of(agent_of(pay_tool(), guardrails=[guardrail("output")(look)]))
        s = await stand.run()
        assert (s.run.life, s.run.cause) == ("halted", "guardrail")

    attack()


@story
async def test_a_guardrail_looks_at_what_a_child_answers() -> None:
    seen: list[str] = []

    def look(view: Any) -> Any:
        seen.extend(view.texts)
        return Block("no") if "poison" in view.texts[0] else None

    kid = Agent(name="kid", purpose="answer", model=ScriptedModel(["poison"]))
    permit = ({"id": "h", "permit": {"tool": "handoff_kid"}},)
    hands = (("handoff_kid", {"task": "work"}),)
    bot = agent_of(calls=hands, policies=permit, handoffs=[kid], guardrails=[guardrail("tool_result")(look)])
    stand = await Stand.of(bot)
    s = await stand.run()
    assert (s.run.life, s.run.cause, seen) == ("halted", "guardrail", ["poison"])
    assert [f.result for f in await stand.facts(s.run.id, r.ActionEnded)] == ["done"]
    assert (await replay(s.env, stand.bound, s.run.id)).ok


@story
async def test_uses_side_by_side_have_different_numbers() -> None:
    async def deed(ctx: Ctx) -> None:
        await asyncio.gather(ctx.clock(), ctx.random(4), ctx.note("k", 1))

    stand = await Stand.of(agent_of(pay_tool(deed=deed)))
    s = await stand.run()
    assert [f.use for f in await stand.facts(s.run.id, r.CapabilityChecked)] == [1, 2, 3]


# -- secrets -------------------------------------------------------------------------------------------------------------------
class Said(msgspec.Struct):
    words: Any


@story
async def test_a_secret_in_other_clothes_is_masked_or_refused() -> None:
    seen: list[str] = []

    @tool(safety="read", effect="read", data=PLAIN)
    async def look(ctx: Ctx, how: str) -> Any:
        """Give the secret away in one way or another."""
        plain = ctx.secrets["bank"].reveal().strip()
        number = int(ctx.secrets["pin"].reveal())
        ctx.progress(f"asking with {plain}")
        for given in (Said(plain), Said([{plain}]), Said(plain.encode()), Said(number)):
            with pytest.raises(Misuse, match="would be recorded"):
                await ctx.invoke("look", {"how": given})
        return {"bytes": b"\xff key=" + plain.encode(), "more": bytearray(plain.encode()), "pin": number, "n": 1, "yes": True}

    with pytest.MonkeyPatch.context() as env:
        env.setattr(secrecy, "_revealed", {})
        env.setenv("MANDAMUS_SECRET_BANK", "hunter2-hunter2\n")  # as a file would hold it
        env.setenv("MANDAMUS_SECRET_PIN", "907133")
        stand = await Stand.of(agent_of(look, calls=(("look", {"how": "all"}),), policies=READ))
        s = await stand.open()
        s.watching.append(lambda action, text, part: seen.append(text))
        await stand.carry(s)
        stored = b"".join([p.bytes[32:] async for p in stand.ledger.payloads(s.run.id)])
        assert s.run.life == "sealed"
        assert seen == ["asking with SecretRef(bank)"]
        assert b"hunter2" not in stored
        assert b"907133" not in stored
        assert base64.b64encode(b"hunter2-hunter2") not in stored
        shown = base64.b64encode(b"\xff key=SecretRef(bank)")
        assert b'{"bytes":"' + shown + b'","more":"U2VjcmV0UmVmKGJhbmsp","n":1,"pin":"SecretRef(pin)","yes":true}' in stored
