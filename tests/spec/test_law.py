"""The law (docs/concepts/law.md), clause by clause. Each docstring is the clause; `make law` prints them with what became of them.

A clause that is not built yet is a strict xfail which names the missing part: the day it is built, the test says so by failing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mandamus import Agent, Block, Budget, Ctx, Misuse, NotDone, Refused, RunRefused, guardrail, tool, wiring
from mandamus.core import records as r
from mandamus.core.accounts import AUTHORITY
from mandamus.core.definition import RetryRule
from mandamus.core.facts import Judgement
from mandamus.core.fold import fold
from mandamus.core.messages import ModelFault
from mandamus.core.run import state_digest
from mandamus.core.seal import Draft
from mandamus.data import Personal, subject
from mandamus.drivers.model_scripted import ScriptedModel
from mandamus.errors import Unavailable
from mandamus.proof.trust import Trust
from mandamus.proof.verify import verify
from mandamus.runtime import evidence, recover, replay, start
from mandamus.testing.certify import certify
from mandamus.testing.people import signer
from tests import logged, samples
from tests.crash.stand import LARGE, PAY, PLAIN, TWO, Around, Stand, agent_of, pay_tool
from tests.e2e.clinic import Clinic

EXAMPLES = Path(__file__).parents[2] / "examples" / "effects"
Story = Callable[[], Awaitable[None]]


def told(story: Story) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


async def bundle_of(stand: Stand, run: str) -> bytes:
    return await evidence.build(await stand.worker("prover"), run, stand.bound.book.texts, "")


def both_lines(stand: Stand) -> Trust:
    return stand.home.trust()  # type: ignore[no-any-return]


# -- 1 --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.law("1")
@pytest.mark.parametrize("effect", ["read", "idempotent", "keyed", "irreversible"])
def test_no_effect_without_a_durable_committed_intent(effect: str) -> None:
    """No effect without a durable, committed intent event: at the moment of the effect, its ActionStarted is in the ledger."""

    async def story() -> None:
        seen: list[bool] = []

        @tool(safety="write" if effect not in ("read",) else "read", effect=effect, data=PLAIN)  # type: ignore[arg-type]
        async def act(ctx: Ctx, what: str) -> str:
            """Do something in the world."""
            facts = [x.fact for x in await stand.records(ctx.run_id)]
            seen.append(any(isinstance(f, r.ActionStarted) and f.operation == ctx.operation_id for f in facts))
            return what

        stand = await Stand.of(agent_of(act, calls=(("act", {"what": "x"}),), policies=({"permit": {"safety": ["read", "write"]}},)))
        s = await stand.run()
        assert seen == [True]
        assert s.run.end == "completed"

    told(story)


@pytest.mark.law("1")
@pytest.mark.parametrize("outcome", ["none", "unknown"])
def test_no_durable_log_no_effect(outcome: str) -> None:
    """No durable log, no effect (fail closed): a ledger that does not take the intent lets nothing happen."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool("irreversible")))

        async def gone(facts: list[r.Fact]) -> None:
            if any(isinstance(f, r.ActionStarted) for f in facts):
                raise Unavailable("the disk is gone", outcome=outcome)

        with pytest.raises(Unavailable):
            await stand.run(env=await stand.worker("w", lambda inner: Around(inner, gone)))
        assert stand.deeds == 0

    told(story)


# -- 2 --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.law("2")
def test_only_policy_starts_an_action_and_every_attempt_of_it() -> None:
    """Only policy starts an action, and every attempt of it; ALLOW and the intent are one atomic append."""

    async def story() -> None:
        appends: list[list[r.Fact]] = []

        async def watch(facts: list[r.Fact]) -> None:
            appends.append(facts)

        tries: list[int] = []

        def deed(ctx: Ctx) -> None:
            tries.append(1)
            if len(tries) < 3:
                raise ConnectionError("no answer")

        stand = await Stand.of(agent_of(pay_tool("keyed", deed, retry=RetryRule(3, 1))))
        await stand.run(env=await stand.worker("w", lambda inner: Around(inner, watch)))
        starts = [(facts, n) for facts in appends for n, f in enumerate(facts) if isinstance(f, r.ActionStarted)]
        assert [facts[n].attempt for facts, n in starts] == [1, 2, 3]  # type: ignore[attr-defined]
        for facts, n in starts:
            before: Any = facts[n - 1]
            assert isinstance(before, r.ActionJudged)
            assert before.verdict == "allow"
            assert any(layer.layer == "policy" and layer.verdict == "allow" for layer in before.layers)

    told(story)


@pytest.mark.law("2")
def test_people_never_bypass_policy() -> None:
    """Votes are evidence handed to policy; people never bypass it: with every vote given, a forbid still denies."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool(), calls=(("pay", {"to": "A", "amount": LARGE}),), policies=(PAY, TWO)))
        s = await stand.run()
        await stand.vote(s)
        closed = await wiring.bind(
            agent_of(pay_tool(), calls=(("pay", {"to": "A", "amount": LARGE}),), policies=(PAY, TWO, {"toolDenylist": {"tools": ["pay"]}}))
        )
        s = await stand.resume(s.run.id, bound=closed)
        assert stand.deeds == 0
        assert (await stand.facts(s.run.id, r.ActionJudged))[-1].verdict == "deny"

    told(story)


# -- 3 --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.law("3")
def test_a_model_can_only_propose() -> None:
    """A model can only propose: what it asks for and policy does not permit does not happen, whatever it calls."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool(), policies=({"permit": {"safety": "read"}},)))
        s = await stand.run()
        assert stand.deeds == 0
        assert [f.verdict for f in await stand.facts(s.run.id, r.ActionJudged)] == ["deny"]
        assert len(await stand.facts(s.run.id, r.ActionProposed)) == 1

    told(story)


@pytest.mark.law("3")
def test_tools_never_hold_sibling_tools_and_cannot_call_models() -> None:
    """Tools never hold sibling tools (only ctx.invoke, which re-enters the loop) and cannot call models: ctx has no way to either."""
    public = {name for name in dir(Ctx) if not name.startswith("_")}
    assert "invoke" in public
    assert not public & {"tools", "model", "llm", "agent", "models", "generate"}

    async def story() -> None:
        @tool(safety="write", effect="irreversible", data=PLAIN)
        async def outer(ctx: Ctx) -> str:
            """Try to pay through a sibling."""
            try:
                await ctx.invoke("pay", {"to": "A", "amount": {"amount": "500", "currency": "USD", "decimals": 2}})
            except Refused:
                return "refused"
            return "paid"

        stand = await Stand.of(agent_of(outer, pay_tool(), calls=(("outer", {}),), policies=({"permit": {"safety": "write"}},)))
        s = await stand.run()
        judged = await stand.facts(s.run.id, r.ActionJudged)
        assert [(f.action, f.verdict) for f in judged] == [("1.1", "allow"), ("1.1.1", "deny")]
        assert [c.tool for c in stand.world.calls] == ["outer"]

    told(story)


@pytest.mark.law("3")
def test_a_guardrail_can_only_block_and_providers_do_not_retry() -> None:
    """A guardrail can only say no; providers run with max_retries=0 and the loop owns retries, each of them recorded."""

    async def story() -> None:
        @guardrail("input")
        def suspicious(view: Any) -> Any:
            return Block("not today")

        stand = await Stand.of(agent_of(pay_tool(), guardrails=(suspicious,)))
        s = await stand.run()
        assert (s.run.life, s.run.cause) == ("halted", "guardrail")
        assert stand.deeds == 0
        asked: list[int] = []

        class Failing:
            async def generate(self, *given: Any) -> Any:
                asked.append(1)
                raise ModelFault("server", "503")

            async def close(self) -> None: ...

        stand = await Stand.of(Agent(name="a", model=Failing(), budget=Budget(retries=2)))
        s = await stand.run()
        for _ in range(4):
            stand.time.instant += 60_000_000
            s = await stand.resume(s.run.id) if s.run.life == "running" else s
        assert len(asked) == len(await stand.facts(s.run.id, r.ModelCalled)) == 3
        assert (s.run.life, s.run.cause) == ("halted", "budget")

    told(story)


@pytest.mark.law("3")
@pytest.mark.xfail(strict=True, raises=ModuleNotFoundError, reason="the sandbox: tools run in process and could import a model's library")
def test_a_tool_cannot_reach_a_model_behind_the_loop() -> None:
    """A tool cannot call a model by itself either: its sandbox has no way out but the egress proxy."""
    __import__("mandamus.drivers.sandbox_process")


# -- 4 --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.law("4")
def test_default_deny() -> None:
    """Default deny: without a matching permit nothing starts, and an agent without policies may do nothing."""

    async def story() -> None:
        for policies in ((), ({"permit": {"safety": "read"}},)):
            stand = await Stand.of(agent_of(pay_tool(), policies=policies))
            s = await stand.run()
            assert [(f.verdict, f.code) for f in await stand.facts(s.run.id, r.ActionJudged)] == [("deny", "no_match")]
            assert stand.deeds == 0

    told(story)


@pytest.mark.law("4")
def test_an_error_of_an_engine_is_a_fault_and_no_verdict() -> None:
    """`error` of an engine is a fault, not a verdict: the run halts (resumable), never allows, never falls back to another engine."""

    async def story() -> None:
        broken, asked = [True], []

        class Flaky:
            """An engine that cannot answer for a while, beside one that would allow."""

            async def decide(self, facts: Any) -> Judgement:
                asked.append(facts)
                return Judgement(verdict="error", errors=("the schema is gone",)) if broken else Judgement(verdict="allow")

            def digest(self) -> str:
                return "f" * 64

        stand = await Stand.of(agent_of(pay_tool()))
        stand.bound = dataclasses.replace(stand.bound, engines=[*stand.bound.engines, ("code", Flaky())])  # type: ignore[list-item]
        s = await stand.run()
        assert (s.run.life, s.run.cause) == ("halted", "engine")
        assert stand.deeds == 0
        assert [f.verdict for f in await stand.facts(s.run.id, r.ActionJudged)] == ["error"]
        broken.clear()
        s = await stand.resume(s.run.id)
        assert s.run.end == "completed"
        assert stand.deeds == 1
        assert len(asked) == 2

    told(story)


# -- 5 --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.law("5")
@pytest.mark.parametrize("effect", ["keyed", "reconcilable", "irreversible"])
def test_a_crash_before_or_after_the_effect(effect: str) -> None:
    """A non-idempotent effect happens exactly once or the run says it does not know: 1 and 1; else unknown, and people decide."""
    report = certify(EXAMPLES / f"{effect}.py", sqlite=6)
    assert report.ok, report.text()
    (row,) = report.rows
    assert (row.duplicated, row.lost, row.unaccounted) == (0, 0, 0)
    assert bool(row.unknown) == (effect == "irreversible")


# -- 6 --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.law("6")
def test_state_is_a_fold_of_the_log() -> None:
    """The log is the truth, state is a fold of it: the live state of a run is the fold of its stored bytes, at every length."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool(), calls=(("pay", {"to": "A", "amount": LARGE}),), policies=(PAY, TWO)))
        s = await stand.run()
        assert state_digest(fold(await stand.records(s.run.id))) == state_digest(s.run)
        await stand.vote(s)
        s = await stand.resume(s.run.id)
        assert state_digest(fold(await stand.records(s.run.id))) == state_digest(s.run)

    told(story)


@pytest.mark.law("6")
def test_projections_are_rebuilt_at_will() -> None:
    """Snapshots, indexes and heads are projections: the account of authority and every head equal what the chains say."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool()))
        admin = await stand.worker("admin")
        change = Draft(r.PolicyChanged(agent="x", clock=admin.clock("UTC"), new="b" * 64, old="a" * 64), 0)
        await admin.log.append([change], raises=True)
        s = await stand.run()
        for run in (s.run.id, r.LOG):
            raws = [raw async for raw in stand.ledger.read(run)]
            head = await stand.ledger.head(run)
            assert head is not None
            assert (head.seq, head.hash) == (len(raws) - 1, r.event_hash(raws[-1]))
        deltas = [json.loads(d) async for d in stand.ledger.deltas(AUTHORITY)]
        account = await stand.ledger.account(AUTHORITY)
        assert account is not None
        assert account.version == deltas[-1]["version"] == len(deltas)

    told(story)


# -- 7 --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.law("7")
def test_the_same_log_gives_the_same_state_prompts_and_next_effect() -> None:
    """Same log in, same state, same prompt bytes, same next effect: a strict replay of a run finds no difference and does nothing."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool(), calls=(("pay", {"to": "A", "amount": LARGE}),), policies=(PAY, TWO)))
        s = await stand.run()
        await stand.vote(s)
        s = await stand.resume(s.run.id)
        before, deeds = await stand.records(s.run.id), stand.deeds
        report = await replay.replay(await stand.worker("replayer"), stand.counted(), s.run.id)
        assert report.ok, report
        assert await stand.records(s.run.id) == before
        assert stand.deeds == deeds == 1

    told(story)


@pytest.mark.law("7")
def test_clock_and_randomness_enter_only_as_recorded_inputs() -> None:
    """Clock, randomness and ids enter only as recorded inputs: the same seed of the shell gives the same bytes, another one others."""

    async def story() -> None:
        logs = []
        for seed in (1, 1, 2):
            stand = await Stand.of(agent_of(pay_tool()), seed=seed)
            stand.home.keys["log"] = KEY
            stand.home._trust = None
            s = await stand.run(run_id="01SAMESAMESAMESAMESAMESAME")
            logs.append([x.fact for x in await stand.records(s.run.id)])
        assert logs[0] == logs[1]
        assert logs[0] != logs[2]

    told(story)


KEY = signer("mandamus.local/law-test")


# -- 8 --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.law("8")
def test_plaintext_secrets_never_reach_the_log_or_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plaintext secrets never reach the log or the prompt: a tool gets a reference, and what is printed of it is its name."""
    monkeypatch.setenv("MANDAMUS_SECRET_BANK", "hunter2-hunter2")

    async def story() -> None:
        used: list[str] = []

        @tool(safety="read", effect="read", data=PLAIN)
        async def look(ctx: Ctx) -> str:
            """Look with a secret."""
            secret = ctx.secrets["bank"]
            used.append(secret.reveal())
            return f"looked with {secret!r}"

        stand = await Stand.of(agent_of(look, calls=(("look", {}),), policies=({"permit": {"safety": "read"}},)))
        s = await stand.run()
        assert used == ["hunter2-hunter2"]
        stored = [raw async for raw in stand.ledger.read(s.run.id)] + [p.bytes async for p in stand.ledger.payloads(s.run.id)]
        assert not any(b"hunter2" in raw for raw in stored)
        assert any(b"SecretRef(bank)" in raw for raw in stored)

    told(story)


@pytest.mark.law("8")
def test_a_secret_that_a_tool_gives_away_is_masked_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tool has revealed is neither its output, nor its reason, nor its note, nor another tool's argument."""
    monkeypatch.setenv("MANDAMUS_SECRET_BANK", "hunter2-hunter2")
    refused: list[str] = []

    @tool(safety="read", effect="read", data=PLAIN)
    async def look(ctx: Ctx, how: str) -> Any:
        """Give the secret away in one way or another."""
        plain = ctx.secrets["bank"].reveal()
        try:
            if how == "note":
                await ctx.note("key", [plain])
            if how == "invoke":
                await ctx.invoke("look", {"how": f"with {plain}"})
        except Misuse as error:
            refused.append(str(error))
        if how == "reason":
            raise NotDone(f"the bank does not know {plain}")
        return {"url": f"https://bank/?key={plain}", plain: [plain]}

    async def story() -> None:
        ways = ("output", "note", "invoke", "reason")
        agent = agent_of(look, calls=tuple(("look", {"how": how}) for how in ways), policies=({"permit": {"safety": "read"}},))
        stand = await Stand.of(agent)
        s = await stand.run()
        stored = [raw async for raw in stand.ledger.read(s.run.id)] + [p.bytes async for p in stand.ledger.payloads(s.run.id)]
        assert not any(b"hunter2" in raw for raw in stored)
        assert any(b'{"SecretRef(bank)":["SecretRef(bank)"],"url":"https://bank/?key=SecretRef(bank)"}' in raw for raw in stored)
        assert any(b"the bank does not know SecretRef(bank)" in raw for raw in stored)
        assert len(refused) == 2
        assert not any("hunter2" in text for text in refused)

    told(story)


@pytest.mark.law("8")
@pytest.mark.xfail(strict=True, raises=ModuleNotFoundError, reason="the secrets broker: tools read the environment")
def test_plaintext_secrets_never_reach_the_tools_parent() -> None:
    """Plaintext secrets never reach the tool's parent."""
    __import__("mandamus.runtime.vault")


@pytest.mark.law("8")
def test_personal_data_can_be_provably_forgotten_without_breaking_a_proof(tmp_path: Path) -> None:
    """Personal data can be provably forgotten without breaking a proof: no file holds it any more, and its bundle still verifies."""

    async def story() -> None:
        async with Clinic(tmp_path) as clinic:
            result = await clinic.treat()
            assert verify(await result.evidence_bundle.read(), clinic.env.trust()).exit_code == 0
            assert (await clinic.forget()).state == "erased"
            assert clinic.where() == []
            found = verify(await result.evidence_bundle.read(), clinic.env.trust())
            assert (found.ok, found.exit_code) == (True, 3), "valid, and what is gone is told by a record"

    told(story)


# -- 9 --------------------------------------------------------------------------------------------------------------------------
@pytest.mark.law("9")
def test_a_bundle_proves_itself_offline_with_roots_from_outside() -> None:
    """A bundle proves itself offline, with trust roots that never come from the bundle: no root, no proof; another root, no proof."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool(), calls=(("pay", {"to": "A", "amount": LARGE}),), policies=(PAY, TWO)))
        s = await stand.run()
        await stand.vote(s)
        s = await stand.resume(s.run.id)
        raw = await bundle_of(stand, s.run.id)
        assert verify(raw, both_lines(stand)).exit_code == 0, verify(raw, both_lines(stand))
        assert verify(raw, None).exit_code == 2
        other = Trust.parse(wiring.Home(None).own_lines())
        assert verify(raw, other).exit_code == 1
        place = raw.index(b'"tool":"pay"')
        assert verify(raw[: place + 8] + b"q" + raw[place + 9 :], both_lines(stand)).exit_code == 1

    told(story)


@pytest.mark.law("9")
def test_a_bundle_proves_that_everybody_saw_the_same_log() -> None:
    """With witnesses a bundle also proves that the log was not shown differently to somebody else: they have cosigned one tree."""
    tale = samples.story()
    shown, other = (logged.Log().add([*first, *tale.log.raws, *tale.chain.raws]) for first in ((), (b"a record for other eyes",)))
    asked = logged.demanding()
    true = verify(tale.bundle(proofs=logged.proofs(tale, shown)), asked)
    assert (true.exit_code, true.verdict) == (0, "PROVEN"), true
    alone = verify(tale.bundle(proofs=logged.proofs(tale, other, witnesses=())), asked)
    assert (alone.exit_code, alone.verdict) == (3, "NOT FULLY CHECKED"), "a tree that no witness saw is below what was demanded"
    assert shown.tree.root() != other.tree.root()


# -- 10 -------------------------------------------------------------------------------------------------------------------------
@pytest.mark.law("10")
@pytest.mark.parametrize(
    "contract",
    [
        {"safety": "financial", "effect": "idempotent"},
        {"safety": "write", "effect": "reconcilable"},
        {"safety": "deadly", "effect": "read"},
        {"safety": "write", "effect": "read"},
        {
            "safety": "read",
            "effect": "read",
            "data": Personal(subject=subject("nobody"), allowed_lawful_bases=("contract",), retention="standard"),
        },
    ],
)
def test_an_illegal_tool_cannot_be_constructed(contract: dict[str, Any]) -> None:
    """An illegal tool cannot be constructed: refused when it is written, with a code and what to do."""

    def look(what: str) -> str:
        """Look."""
        return what

    with pytest.raises(Misuse) as refused:
        tool(**({"data": PLAIN} | contract))(look)
    assert refused.value.diagnosis.code.startswith("MDM-02")


@pytest.mark.law("10")
@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"annex_iii": "employment"}, "oversight_missing"),
        ({"art22_decision": True}, "art22_unguarded"),
        ({"purpose": ""}, "purpose_missing"),
        ({}, "basis_missing"),
    ],
)
def test_an_illegal_agent_cannot_be_started(options: dict[str, Any], code: str) -> None:
    """An agent without lawful basis, purpose or oversight chain cannot be started; every reason is named at once and recorded."""

    async def story() -> None:
        @tool(safety="read", effect="read", data=Personal(subject=subject("who"), allowed_lawful_bases=("contract",), retention="standard"))
        def look_up(who: str) -> str:
            """Look a person up."""
            return who

        stand = await Stand.of(Agent(name="a", model=ScriptedModel(["x"]), tools=[look_up], **({"purpose": "test"} | options)))
        env = await stand.worker("w")
        with pytest.raises(RunRefused) as refused:
            await start.may_start(env, stand.bound)
        assert code in {x.code for x in refused.value.reasons}
        assert [f.codes for f in await stand.facts(r.LOG, r.RunRefused)] == [tuple(x.code for x in refused.value.reasons)]
        assert [h.run async for h in stand.ledger.runs()] == [r.LOG], "no run was opened"

    told(story)


@pytest.mark.law("10")
def test_a_missing_layer_refuses_the_start_in_tiers_that_need_it() -> None:
    """A sandbox layer that is missing refuses the start where the tier needs it; a capability not granted is no capability."""

    async def story() -> None:
        stand = await Stand.of(agent_of(pay_tool()))
        env = await stand.worker("w")
        env.tier = "cloud"
        with pytest.raises(RunRefused) as refused:
            await start.may_start(env, stand.bound)
        assert "isolation_missing" in {x.code for x in refused.value.reasons}
        env.tier = "dev"
        s = await recover.open_run(env, stand.counted(), "Pay.", grant=r.Grant(tools=("look",)))
        await stand.carry(s)
        assert [(f.verdict, f.code) for f in await stand.facts(s.run.id, r.ActionJudged)] == [("deny", "not_granted")]
        assert stand.deeds == 0

    told(story)


def test_every_clause_has_its_words_and_the_built_ones_no_excuse() -> None:
    """Each test of a clause says it in its docstring; laws 1, 2, 4, 5, 6 and 7 have no xfail; all ten are there."""
    tests = [f for name, f in globals().items() if name.startswith("test_") and hasattr(f, "pytestmark")]
    clauses: dict[str, list[Any]] = {}
    for f in tests:
        for mark in f.pytestmark:
            if mark.name == "law":
                clauses.setdefault(mark.args[0], []).append(f)
    assert set(clauses) == {str(n) for n in range(1, 11)}
    for clause, proofs in clauses.items():
        assert all(inspect.getdoc(f) for f in proofs)
        excused = [f for f in proofs for mark in f.pytestmark if mark.name == "xfail"]
        assert clause not in ("1", "2", "4", "5", "6", "7") or not excused
        assert len(excused) < len(proofs)
