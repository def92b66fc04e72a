"""Strict replay of every story: the same follows again, nobody is asked, nothing is written; each change is named where it first shows."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from mandamus import Agent, Misuse, ProofError, guardrail, wiring
from mandamus.core.records import FACTS, decode, encode, event_hash
from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.runtime.replay import EXACT
from mandamus.testing import Runner, VirtualTime, assert_trace
from tests.e2e.stories import RULES, STORIES, World, agent, pay


def told(name: str) -> tuple[World, Runner]:
    world = World()
    return world, asyncio.run(STORIES[name](world))


@pytest.mark.parametrize("name", STORIES)
def test_the_same_follows_again(name: str) -> None:
    """Replay gives the same semantic hashes; no tool, no model, no record more than before."""
    world, r = told(name)
    deeds, result = list(world.deeds), r.result
    assert result is not None

    async def check() -> None:
        env = await r.env()
        before = await env.ledger.head(result.run_id)
        report = await r.replay()
        assert report.ok, report.text()
        assert report.compared == report.events == len(await r.events_of(result.run_id))
        assert await env.ledger.head(result.run_id) == before

    asyncio.run(check())
    assert world.deeds == deeds


@pytest.mark.parametrize("name", STORIES)
def test_trace(name: str) -> None:
    _, r = told(name)
    assert_trace(r.events, name)


# -- what changed is named -----------------------------------------------------------------------------------------------------
def replayed(r: Runner, other: Agent[Any] | None = None) -> Any:
    async def go() -> Any:
        assert r.result is not None
        return await (other or r.agent).replay(r.result.run_id, ledger=await r.env())

    return asyncio.run(go())


def test_another_policy_is_named_and_so_is_the_verdict_it_changes() -> None:
    _, r = told("one_payment")
    stricter = agent(World(), pay(), "Paid.", policies=[*RULES, {"id": "never", "toolDenylist": {"tools": ["send_payment"]}}])
    report = replayed(r, stricter)
    assert [(d.event, d.field) for d in report.divergences] == [(0, "fact.policy"), (6, "fact.verdict")]
    assert (report.divergences[1].expected, report.divergences[1].found) == ("allow", "deny")
    assert report.compared == 6
    assert "Nothing was executed" not in report.text()


def test_another_agent_is_named() -> None:
    _, r = told("plain_answer")
    report = replayed(r, agent(World(), "Hello.", instructions="Be brief, and be kind to everybody who asks."))
    assert [d.field for d in report.divergences][:2] == ["fact.definition", "fact.tokens"]


def test_other_guardrails_change_the_definition_and_are_not_called() -> None:
    _, r = told("plain_answer")

    @guardrail("input")
    def never(view: Any) -> Any:
        raise AssertionError("replay calls no guardrail")

    report = replayed(r, agent(World(), "Hello.", guardrails=[never]))
    assert [d.field for d in report.divergences] == ["fact.definition"]


def test_replay_asks_no_model() -> None:
    def never(prompt: Any) -> str:
        raise AssertionError("replay asks no model")

    _, r = told("plain_answer")
    assert replayed(r, agent(World(), never)).ok


# -- a stored chain that these rules do not make -------------------------------------------------------------------------------
def forged(r: Runner, change: Any) -> None:
    """Rewrite the stored records as somebody with the whole file could: hashes and head fit, meaning does not."""
    assert r.result is not None
    store = asyncio.run(r.env()).ledger._store  # type: ignore[attr-defined]
    run, made, prev, kept = r.result.run_id, [], "", {}
    for record in change([decode(raw) for raw in store.records[run]]):
        now = msgspec.structs.replace(record, prev=prev, seq=len(made)) if made else record
        for part in now.body or ():
            kept[now.seq, part.part] = msgspec.structs.replace(store.payloads[run][record.seq, part.part], seq=now.seq)
        made.append(encode(now))
        prev = event_hash(made[-1])
    store.records[run], store.payloads[run] = made, kept
    store.heads[run] = msgspec.structs.replace(store.heads[run], seq=len(made) - 1, hash=prev)


def with_field(kind: str, field: str, value: Any) -> Any:
    def change(records: list[Any]) -> list[Any]:
        n = next(n for n, x in enumerate(records) if x.type == kind)
        fact = msgspec.structs.replace(records[n].fact, **{field: value})
        return [*records[:n], msgspec.structs.replace(records[n], fact=fact), *records[n + 1 :]]

    return change


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("ContextCompiled", "tokens", 1),
        ("ContextCompiled", "items", 9),
        ("ModelCalled", "reserves", 1),
        ("ModelCalled", "model", "another"),
        ("ActionProposed", "tool", "wire"),
        ("ActionProposed", "safety", "read"),
        ("ActionProposed", "pin", "0" * 64),
        ("ActionProposed", "repeats", 3),
        ("ActionJudged", "determining", ("another",)),
        ("ActionStarted", "operation", "0" * 64),
        ("ActionStarted", "effect", "read"),
        ("RunSealed", "state", "0" * 64),
        ("RunSealed", "count", 3),
        ("RunEnded", "code", "odd"),
    ],
)
def test_a_field_that_does_not_follow_is_named(kind: str, field: str, value: Any) -> None:
    _, r = told("one_payment")
    forged(r, with_field(kind, field, value))
    first = replayed(r).first
    assert (first.type, first.field) == (kind, f"fact.{field}")


def test_people_that_were_never_asked_are_named() -> None:
    """A judgement that counts votes which the chain does not hold does not follow."""
    _, r = told("two_people")

    def without_a_vote(records: list[Any]) -> list[Any]:
        n = next(n for n, x in enumerate(records) if x.type == "Voted")
        return [*records[:n], *records[n + 1 :]]

    forged(r, without_a_vote)
    report = replayed(r)
    assert [(d.type, d.field) for d in report.divergences] == [("ActionJudged", "type")]


def test_an_intent_without_its_judgement_does_not_follow() -> None:
    _, r = told("one_payment")
    forged(r, lambda records: [x for x in records if x.type != "ActionStarted"])
    assert replayed(r).first.type in ("ActionEnded", "ActionStarted")


def test_a_payload_that_was_swapped_is_no_divergence_but_a_broken_proof() -> None:
    _, r = told("one_payment")
    assert r.result is not None
    kept = asyncio.run(r.env()).ledger._store.payloads[r.result.run_id]  # type: ignore[attr-defined]
    key = next(k for k in kept if k[1] == "output")
    kept[key] = msgspec.structs.replace(kept[key], bytes=kept[key].bytes[:-1] + b"?")
    with pytest.raises(ProofError, match="MDM-0610"):
        replayed(r)


def test_a_payload_that_is_gone_is_said_to_be_gone() -> None:
    _, r = told("one_payment")
    assert r.result is not None
    kept = asyncio.run(r.env()).ledger._store.payloads[r.result.run_id]  # type: ignore[attr-defined]
    kept.pop(next(k for k in kept if k[1] == "reply"))
    with pytest.raises(ProofError, match="MDM-0611"):
        replayed(r)


def test_a_cut_chain_is_a_broken_proof() -> None:
    _, r = told("one_payment")
    assert r.result is not None
    asyncio.run(r.env()).ledger._store.records[r.result.run_id].pop()  # type: ignore[attr-defined]
    with pytest.raises(ProofError, match="MDM-0642"):
        replayed(r)


@pytest.mark.parametrize("run", ["no-such-run", "log"])
def test_what_is_no_run_is_refused(run: str) -> None:
    _, r = told("plain_answer")

    async def go() -> None:
        await r.agent.replay(run, ledger=await r.env())

    with pytest.raises(Misuse, match=r"MDM-02(50|61)"):
        asyncio.run(go())


def test_a_child_run_replays_with_its_own_agent() -> None:
    _, r = told("child_run")
    child = next(x.fact.child for x in r.events if x.type == "ActionStarted")
    clerk = r.agent.children["clerk"]

    async def go() -> Any:
        return await clerk.replay(child, ledger=await r.env())

    assert asyncio.run(go()).ok


def test_the_same_story_on_a_file_means_the_same(tmp_path: Any) -> None:
    """Another ledger, another clock, other keys: the same semantic hashes."""
    world = World()
    made = agent(world, pay(), "Paid.")

    async def go() -> tuple[Any, Any]:
        env = await wiring.open_env(f"sqlite:///{tmp_path}/run.db")
        try:
            result = await made.run("Pay Acme", ledger=env)
            return await made.replay(result.run_id, ledger=env), result
        finally:
            await wiring.close_env(env)

    report, result = asyncio.run(go())
    assert result.state == "completed"
    assert report.ok, report.text()
    _, r = told("one_payment")
    assert report.hashes == replayed(r).hashes


def test_a_takeover_leaves_no_trace_in_what_a_run_means() -> None:
    """One process or two: the same events, but for the second attempt."""
    _, whole = told("waiting")
    _, r = told("waiting")
    asyncio.run(r.resume())
    assert replayed(whole).hashes == replayed(r).hashes
    assert len(r.events) > len(whole.events)


def test_facts_that_replay_looks_at_exist() -> None:
    for kind, fields in EXACT.items():
        assert set(fields) <= set(FACTS[kind].__struct_fields__)


class _LateMail(MemoryLedger):
    """Somebody writes at the very moment at which the run is sealed."""

    async def append(self, run: str, after: Any, records: Any, **more: Any) -> Any:
        if any(decode(raw).type == "RunSealed" for raw in records):
            await self.send(run, b"{}")
        return await super().append(run, after, records, **more)


def test_mail_that_comes_with_the_seal_changes_nothing() -> None:
    """Nothing stands behind a seal, and the loop ends."""
    clock = VirtualTime()
    r = Runner(agent(World(), "Hello."), clock=clock, ledger=_LateMail(clock.now))
    result = asyncio.run(r.turn("Say hello"))
    assert result.state == "completed"
    assert r.events[-1].type == "RunSealed"
