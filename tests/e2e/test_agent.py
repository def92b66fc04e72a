"""The Agent as docs/reference/api.md promises it: what may not be made, what a run answers, resume, threads, events, refusals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mandamus import (
    Agent,
    Annotate,
    Block,
    Budget,
    Ctx,
    Misuse,
    Money,
    NotDone,
    Pass,
    Plugin,
    Receipt,
    Retry,
    RunRefused,
    guardrail,
    rule,
    tool,
    wiring,
)
from mandamus.agent import POINTS, RunResult
from mandamus.core import records as r
from mandamus.core.payload import opened
from mandamus.core.records import LOG, AnyRecord, decode
from mandamus.data import Confidential, Personal, Public, Retention, none, subject
from mandamus.drivers.model_scripted import ScriptedModel, Step
from mandamus.errors import Conflict
from mandamus.proof import mail
from mandamus.proof.keys import parse_vkey
from mandamus.proof.verify import verify
from mandamus.runtime.env import Env
from mandamus.runtime.recover import read_run
from mandamus.testing import people

ALLOW: list[Any] = [{"id": "ok", "permit": {"safety": ["read", "write", "network", "financial", "privileged"]}}]
DATA = Confidential(subject=none("own account"), retention="books")
PAID = {"to": "Acme", "amount": {"amount": "5000000", "currency": "USD"}}


@tool(safety="financial", effect="keyed", data=DATA)
async def pay(ctx: Ctx, to: str, amount: Money) -> Receipt:
    """Transfer corporate funds."""
    return Receipt(id="tx-1")


@tool(safety="read", effect="read", data=Public())
def look(what: str) -> str:
    """Look something up."""
    return f"{what} is fine"


def calls(*names: str) -> Step:
    return Step(calls=tuple((n, PAID if n == "pay" else {"what": "it"}) for n in names))


def agent(*steps: Any, **changes: Any) -> Agent[Any]:
    given: dict[str, Any] = {"name": "desk", "model": ScriptedModel(steps or ("done",)), "tools": [pay, look], "policies": ALLOW}
    return Agent(**(given | changes))


def run(story: Callable[[Env], Any], **options: Any) -> Any:
    async def whole() -> Any:
        env = await wiring.open_env("memory:", **options)
        return await story(env)

    return asyncio.run(whole())


async def records(env: Env, run: str) -> list[AnyRecord]:
    return [decode(raw) async for raw in env.ledger.read(run)]


async def facts(env: Env, run: str, kind: type[Any]) -> list[Any]:
    return [x.fact for x in await records(env, run) if isinstance(x.fact, kind)]


# -- making one --------------------------------------------------------------------------------------------------------------
class Answer(msgspec.Struct):
    total: int


ILLEGAL: list[tuple[dict[str, Any], str, str]] = [
    ({"name": " "}, "MDM-0219", "name"),
    ({"name": 7}, "MDM-0219", "name"),
    ({"lawful_basis": "whim"}, "MDM-0223", "GDPR 6"),
    ({"annex_iii": "hiring"}, "MDM-0223", "AI Act"),
    ({"art22_decision": "no"}, "MDM-0224", "GDPR 22"),
    ({"profile": "strict"}, "MDM-0223", "profile"),
    ({"default": "maybe"}, "MDM-0223", "default"),
    ({"instructions": None}, "MDM-0224", "instructions"),
    ({"instructions": "Pay \ud800"}, "MDM-0224", "lone surrogate at character 5"),
    ({"model": "openai:\ud800"}, "MDM-0224", "model holds half a character"),
    ({"roles": ["\ud800"]}, "MDM-0224", "roles holds half a character"),
    ({"stream": 1}, "MDM-0224", "stream"),
    ({"window": 0}, "MDM-0224", "window"),
    ({"max_output": 128_000}, "MDM-0224", "no room"),
    ({"timeout": "later"}, "MDM-0212", "timeout"),
    ({"timezone": "Mars/Base"}, "MDM-0220", "Mars/Base"),
    ({"deps": {"db": object()}}, "MDM-0225", "module:function"),
    ({"deps": "app"}, "MDM-0225", "module:function"),
    ({"tools": [print]}, "MDM-0221", "no tool"),
    ({"tools": pay}, "MDM-0226", "tools"),
    ({"tools": [pay, pay]}, "MDM-0222", "shadow"),
    ({"policies": "policies/"}, "MDM-0226", "policies"),
    ({"policies": [7]}, "MDM-0226", "policies"),
    ({"guardrails": [print]}, "MDM-0217", "no guardrail"),
    ({"plugins": ["extra"]}, "MDM-0226", "plugins"),
    ({"handoffs": ["helper"]}, "MDM-0226", "handoffs"),
    ({"roles": "treasury"}, "MDM-0226", "roles"),
    ({"retentions": [Retention(id="a", content_days=1, hash_days=1, decision_days=1)] * 2}, "MDM-0226", "twice"),
    ({"model": "gpt"}, "MDM-0227", "model"),
    ({"model": object()}, "MDM-0227", "model"),
    ({"output": object}, "MDM-0228", "output"),
    ({"budget": 20}, "MDM-0216", "budget"),
    ({"budget": Budget(turns=0)}, "MDM-0216", "turns"),
    ({"budget": Budget(tokens=True)}, "MDM-0216", "tokens"),
    ({"budget": Budget(wall="soon")}, "MDM-0212", "wall"),
]


@pytest.mark.parametrize(("change", "code", "word"), ILLEGAL)
def test_an_illegal_agent_cannot_be_made(change: dict[str, Any], code: str, word: str) -> None:
    with pytest.raises(Misuse) as refused:
        agent(**change)
    assert refused.value.diagnosis.code == code
    assert word in str(refused.value)


def test_names_that_differ_in_case_or_dash_alone_are_one() -> None:
    async def other(what: str) -> str:
        """Look as well."""
        return what

    for name in ("LOOK", "Look"):
        twin = tool(safety="read", effect="read", data=Public(), name=name)(other)
        with pytest.raises(Misuse, match="shadow"):
            agent(tools=[look, twin])
    with pytest.raises(Misuse, match="shadow"):
        agent(tools=[tool(safety="read", effect="read", data=Public(), name=n)(other) for n in ("a-b", "a_b")])


def test_an_agent_is_frozen() -> None:
    one = agent()
    for change in (lambda: setattr(one, "default", "allow"), lambda: delattr(one, "spec"), lambda: setattr(one, "more", 1)):
        with pytest.raises(Misuse, match="frozen"):
            change()
    with pytest.raises(TypeError):
        one.tools["more"] = look  # type: ignore[index]


def test_a_plugin_only_adds_and_its_digest_stands_in_genesis() -> None:
    extra = Plugin(name="extra", version="1", tools=(look,), policies=(rule("no-pay", "Nobody pays")(_no_pay),))
    other = Plugin(name="extra", version="1", tools=(look,))
    assert extra.digest() != other.digest()

    async def story(env: Env) -> None:
        result = await agent(calls("pay"), "I may not", tools=[pay], plugins=[extra]).run("Go", ledger=env)
        assert [a.state for a in result.actions] == ["denied"]
        [opened] = await facts(env, result.run_id, r.RunOpened)
        assert opened.plugins == (f"extra@1:{extra.digest()}",)

    run(story)


def _no_pay(facts: Any) -> Any:
    return "deny" if facts.action.tool == "pay" else None


# -- results -----------------------------------------------------------------------------------------------------------------
FIELDS = ("run_id", "output", "state", "checkpoint_id", "evidence_bundle", "tokens_used", "waiting", "actions", "thread", "cause", "cost")
TWO = [{"id": "ok", "permit": {"safety": "financial"}}, {"id": "two", "dualApproval": {"quorum": 2}}]
STATES: dict[str, dict[str, Any]] = {
    "completed": {"steps": ["done"]},
    "suspended": {"steps": [calls("pay"), "paid"], "policies": TWO},
    "failed": {"steps": ["no number", "still none"], "output": Answer},
    "halted": {"steps": [calls("look"), "done"], "budget": Budget(turns=1)},
}


@pytest.mark.parametrize("state", STATES)
def test_every_field_is_there_in_every_state(state: str) -> None:
    given = dict(STATES[state])

    async def story(env: Env) -> None:
        result = await agent(*given.pop("steps"), **given).run("Go", ledger=env)
        assert (result.state, result.__struct_fields__) == (state, FIELDS)
        assert result.checkpoint_id.startswith(result.run_id + "@")
        assert result.thread == result.run_id
        assert (result.output is None) == (state != "completed")
        assert bool(result.waiting) == (state == "suspended")
        if state in ("completed", "failed"):
            assert verify(await result.evidence_bundle.read(), env.trust()).ok

    run(story)


def test_actions_are_those_of_every_turn() -> None:
    async def story(env: Env) -> None:
        result = await agent(calls("look", "look"), calls("pay"), calls("nothing"), "done").run("Go", ledger=env)
        assert [(a.id, a.tool, a.state) for a in result.actions] == [
            ("1.1", "look", "done"), ("1.2", "look", "done"), ("2.1", "pay", "done"), ("3.1", "?", "denied"),
        ]  # fmt: skip
        session = await read_run(env, await wiring.bind(agent()), result.run_id)
        assert sorted(session.past) == ["1.1", "1.2", "2.1", "3.1"]

    run(story)


def test_a_suspended_run_says_what_it_waits_for_and_a_resume_tells_all_actions() -> None:
    async def story(env: Env) -> None:
        one = agent(calls("look"), calls("pay"), "paid", policies=[*ALLOW, *TWO[1:]])
        result = await one.run("Go", ledger=env)
        [waiting] = result.waiting
        assert (waiting.action, waiting.about, waiting.needed) == (f"{result.run_id}/2.1", "start", 2)
        done = await one.resume(result.checkpoint_id, await votes(env, one, result), ledger=env)
        assert (done.state, done.output) == ("completed", "paid")
        assert [(a.id, a.state) for a in done.actions] == [("1.1", "done"), ("2.1", "done")]

    run(story)


async def votes(env: Env, one: Agent[Any], result: RunResult[Any], *names: str) -> list[bytes]:
    """Signed by real people of the trust file."""
    keys = {n: people.signer(f"t/{n}") for n in names or ("ann", "bob")}
    for name, key in keys.items():
        env.home.add_trust(f"approver p-{name} {key.vkey}")
    session = await read_run(env, await wiring.bind(one), result.run_id)
    action = next(a for a in session.run.open_actions if a.request)
    return [people.vote(session, action, key, "approve") for key in keys.values()]


def test_evidence_can_be_had_inside_and_outside_of_a_loop() -> None:
    async def story(env: Env) -> None:
        result = await agent().run("Go", ledger=env)
        assert len(result.evidence_bundle.signature) == 88
        assert (await result.evidence_bundle.read()).count(b"\n") > 5

    run(story)


def test_run_sync_needs_no_loop(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/run.db"
    result = agent("hello").run_sync("Go", ledger=uri)
    assert (result.state, result.output) == ("completed", "hello")
    assert result.evidence_bundle.signature
    path = asyncio.run(result.evidence_bundle.write(tmp_path / "bundle.jsonl"))
    assert path.read_bytes().startswith(b'{"bundle":"mandamus/1"')


# -- typed output ------------------------------------------------------------------------------------------------------------
def test_output_is_typed() -> None:
    async def story(env: Env) -> None:
        result = await agent('{"total": 7}', output=Answer).run("Go", ledger=env)
        assert result.output == Answer(total=7)

    run(story)


def test_one_retry_is_counted_and_then_it_failed() -> None:
    async def story(env: Env) -> None:
        again = await agent("seven", '{"total": 7}', output=Answer).run("Go", ledger=env)
        assert again.output == Answer(total=7)
        failed = await agent('{"total": "7"}', '{"total": 7, "more": 1, "total": 8}', output=Answer).run("Go", ledger=env)
        assert (failed.state, failed.output, failed.cause) == ("failed", None, "bad_output")
        session = await read_run(env, await wiring.bind(agent()), again.run_id)
        assert session.run.spent.retries == 1

    run(story)


# -- what no outcome carries -------------------------------------------------------------------------------------------------
async def _unbacked(env: Env, text: str, *steps: Any) -> list[str]:
    result = await agent(*steps, text).run("Pay Acme", ledger=env)
    assert (result.state, result.output) == ("completed", text)
    for record in await records(env, result.run_id):
        if isinstance(record.fact, r.GuardrailChecked):
            assert (record.fact.name, record.fact.result) == ("unbacked", "annotate")
            payload = await env.ledger.payload(result.run_id, record.seq, "finding")
            assert payload is not None
            assert record.body is not r.UNSET
            return list(opened(payload, record.body[0].commit)["unbacked"])  # type: ignore[index]
    return []


@pytest.mark.parametrize(
    ("text", "steps", "found"),
    [
        ("Paid 50,000 USD to Acme, reference tx-1.", [calls("pay")], []),
        ("Paid 50,000 USD to Acme, reference tx-9.", [calls("pay")], ["tx-9"]),
        ("Paid 60000.00 USD, tx-1.", [calls("pay")], ["60000.00 USD"]),
        ("Paid 50,000.00 USD, reference tx-1.", [], ["50,000.00 USD", "tx-1"]),
        ("All is fine.", [], []),
        ("The order number is 123456789.", [calls("look")], ["123456789"]),
    ],
)
def test_an_id_or_amount_that_nothing_carries_is_annotated(text: str, steps: list[Any], found: list[str]) -> None:
    assert run(lambda env: _unbacked(env, text, *steps)) == found


# -- options -----------------------------------------------------------------------------------------------------------------
def test_on_whose_behalf() -> None:
    allow = rule("clerks", "Clerks look")(_clerks)

    async def story(env: Env) -> None:
        one = agent(calls("look"), "done", policies=[allow])
        for user, state in (({"principal": "p-1", "roles": ["clerk"]}, "done"), ("p-1", "denied"), (None, "denied")):
            result = await one.run("Go", user=user, ledger=env)
            assert [a.state for a in result.actions] == [state]
        for bad in ("", 7, {"name": "Ann"}, {"principal": "p-1", "roles": "clerk"}):
            with pytest.raises(Misuse, match="user"):
                await one.run("Go", user=bad, ledger=env)

    run(story)


HALF = "a\udcff"  # what a shell makes of a byte that is no UTF-8


@pytest.mark.parametrize(
    "call",
    [
        lambda a, env: a.run(HALF, ledger=env),
        lambda a, env: a.run("Go", user=HALF, ledger=env),
        lambda a, env: a.run("Go", user={"principal": "p-1", "roles": [HALF]}, ledger=env),
        lambda a, env: a.run("Go", run_id=HALF, ledger=env),
        lambda a, env: a.run("Go", thread=HALF, ledger=env),
        lambda a, env: a.run("Go", tenant=HALF, ledger="memory:"),
        lambda a, env: a.run("Go", ledger=f"sqlite:///{HALF}"),
        lambda a, env: a.resume(HALF, ledger=env),
        lambda a, env: a.fork("run", 1, input=HALF, ledger=env),
        lambda a, env: a.replay(HALF, ledger=env),
    ],
)
def test_half_a_character_is_a_mistake_and_not_a_fault(call: Any) -> None:
    async def story(env: Env) -> None:
        with pytest.raises(Misuse, match=r"MDM-0224.*half a character"):
            await call(agent("done"), env)
        assert [head.run async for head in env.ledger.runs() if head.run != r.LOG] == []

    run(story)


def test_a_ledger_is_named_by_a_uri(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"MDM-0111(?s:.*)sqlite:///FILE"):
        agent("done").run_sync("Go", ledger=tmp_path / "run.db")


def _clerks(facts: Any) -> Any:
    return "allow" if "clerk" in facts.context.user.roles else None


def test_a_deadline_halts() -> None:
    async def story(env: Env) -> None:
        result = await agent(calls("look"), "done", tools=[slow]).run("Go", deadline="1ms", ledger=env)
        assert (result.state, result.cause) == ("halted", "budget")
        with pytest.raises(Misuse, match="deadline"):
            await agent().run("Go", deadline="tomorrow", ledger=env)

    run(story)


@tool(safety="read", effect="read", data=Public(), name="look")
async def slow(what: str) -> str:
    """Look, slowly."""
    await asyncio.sleep(0.01)
    return what


def test_a_thread_continues_the_history_in_a_run_of_its_own() -> None:
    heard: list[list[str]] = []

    def hear(prompt: Any) -> str:
        heard.append([m.text for m in prompt.messages])
        return f"answer {len(heard)}"

    async def story(env: Env) -> None:
        one = agent(hear, hear, hear)
        first = await one.run("one", ledger=env)
        second = await one.run("two", thread=first.thread, ledger=env)
        third = await one.run("three", thread=second.thread, ledger=env)
        assert len({first.run_id, second.run_id, third.run_id}) == 3
        assert heard[-1] == ["one", "answer 1", "two", "answer 2", "three"]
        with pytest.raises(Misuse, match="no run of this ledger"):
            await one.run("four", thread="01NOWHERE", ledger=env)

    run(story)


def test_a_message_to_a_live_run_is_heard() -> None:
    async def story(env: Env) -> None:
        one = agent(calls("pay"), lambda prompt: prompt.messages[-1].text, policies=TWO)
        result = await one.run("Go", ledger=env)
        signer = env.home.signer("frontend")
        said = mail.say(
            "and be quick", secret=env.time.entropy(32), nonce="n1", origin=env.origin, principal="p-1", run=result.run_id,
            signer=signer.sign, keyid=parse_vkey(signer.vkey).id,
        )  # fmt: skip
        await env.ledger.send(result.run_id, mail.encode(said))
        done = await one.resume(result.checkpoint_id, await votes(env, one, result), ledger=env)
        assert done.output == "and be quick"
        [received] = await facts(env, result.run_id, r.MessageReceived)
        assert received.principal == "p-1"

    run(story)


# -- resume ------------------------------------------------------------------------------------------------------------------
def test_what_cannot_be_resumed() -> None:
    async def story(env: Env) -> None:
        one = agent(calls("pay"), "paid", policies=TWO)
        result = await one.run("Go", ledger=env)
        before = len(await records(env, result.run_id))
        bad: list[Any] = ["p-alice", "alice@example.org", 7, None, b"not a vote", b"{}"]
        for vote in bad:
            with pytest.raises(Misuse, match="signed vote"):
                await one.resume(result.checkpoint_id, [vote], ledger=env)
        for checkpoint in ("01NOWHERE@3", f"{result.run_id}@999", f"{result.run_id}@-1", f"{result.run_id}@x"):
            with pytest.raises(Misuse):
                await one.resume(checkpoint, ledger=env)
        with pytest.raises(Misuse, match="another agent"):
            await agent(name="other").resume(result.checkpoint_id, ledger=env)
        assert len(await records(env, result.run_id)) == before
        head = await env.ledger.head(result.run_id)
        assert head is not None
        assert head.mail == 0

    run(story)


def test_a_run_that_somebody_holds_is_not_taken() -> None:
    async def story(env: Env) -> None:
        one = agent(calls("pay"), "paid", policies=TWO)
        result = await one.run("Go", ledger=env)
        held = await env.ledger.claim("default", 60_000, run=result.run_id)
        assert held is not None
        before = len(await records(env, result.run_id))
        with pytest.raises(Conflict):
            await one.resume(result.checkpoint_id, ledger=env)
        assert len(await records(env, result.run_id)) == before

    run(story)


def test_resuming_what_has_ended_tells_its_result_again() -> None:
    async def story(env: Env) -> None:
        one = agent(calls("look"), "done")
        first = await one.run("Go", ledger=env)
        again = await one.resume(first.checkpoint_id, ledger=env)
        assert (again.state, again.output, again.actions) == (first.state, first.output, first.actions)
        assert again.checkpoint_id == first.checkpoint_id

    run(story)


# -- events ------------------------------------------------------------------------------------------------------------------
def test_events_are_those_of_the_chain_in_order() -> None:
    async def story(env: Env) -> None:
        one = agent(calls("look"), "done")
        result = await one.run("Go", ledger=env)
        every = [x async for x in one.events(result.run_id, ledger=env)]
        assert [x.seq for x in every] == list(range(len(every)))
        assert (every[0].type, every[-1].type) == ("RunOpened", "RunSealed")
        later = [x async for x in one.events(result.run_id, after=3, types=["ActionEnded"], ledger=env)]
        assert [x.type for x in later] == ["ActionEnded"]
        with pytest.raises(AttributeError):
            every[0].seq = 7  # type: ignore[misc]
        with pytest.raises(Misuse, match="did you mean ActionEnded"):
            [x async for x in one.events(result.run_id, types=["ActionEnd"], ledger=env)]
        with pytest.raises(Misuse, match="no run"):
            [x async for x in one.events("01NOWHERE", ledger=env)]

    run(story)


def test_subscribers_hear_what_was_committed_and_their_faults_are_their_own() -> None:
    heard: list[tuple[int, str]] = []
    only: list[str] = []

    async def story(env: Env) -> None:
        one = agent(calls("look"), "done")
        one.subscribe(lambda record: 1 // 0)
        one.subscribe(lambda record: heard.append((record.seq, record.type)))
        one.subscribe(_async_append(only), types=["ModelReplied"])
        result = await one.run("Go", ledger=env)
        stored = [(x.seq, x.type) for x in await records(env, result.run_id)]
        assert heard == stored[1:]  # genesis is committed before anybody can listen
        assert only == ["ModelReplied", "ModelReplied"]
        for bad in (None, "print"):
            with pytest.raises(Misuse, match="function"):
                one.subscribe(bad)  # type: ignore[arg-type]
        with pytest.raises(Misuse, match="event type"):
            one.subscribe(print, types=["Replied"])

    run(story)


def _async_append(to: list[str]) -> Callable[[AnyRecord], Any]:
    async def fn(record: AnyRecord) -> None:
        to.append(record.type)

    return fn


# -- refused -----------------------------------------------------------------------------------------------------------------
@tool(safety="read", effect="read", data=Personal(allowed_lawful_bases=("contract",), retention="standard", subject=subject("who")))
async def person(who: str) -> str:
    """Look somebody up."""
    return who


def test_a_refused_start_takes_a_number_and_opens_nothing() -> None:
    async def story(env: Env) -> None:
        refused_one = agent(tools=[person])
        with pytest.raises(RunRefused) as refused:
            await refused_one.run("Go", ledger=env)
        assert {x.code for x in refused.value.reasons} == {"basis_missing", "purpose_missing"}
        assert refused.value.result.__struct_fields__ == FIELDS
        assert (refused.value.result.state, refused.value.result.run_id) == ("refused", "")
        with pytest.raises(Misuse, match="no run"):
            await refused.value.result.evidence_bundle.read()
        [fact] = await facts(env, LOG, r.RunRefused)
        assert (fact.register.number, fact.run, set(fact.codes)) == (1, r.UNSET, {"basis_missing", "purpose_missing"})
        good = await agent(tools=[person], purpose="answer", lawful_basis="contract").run("Go", ledger=env)
        [opened_one] = await facts(env, good.run_id, r.RunOpened)
        account = await env.ledger.account("register")
        assert (opened_one.register.number, account.version if account else 0) == (2, 2)
        assert verify(await good.evidence_bundle.read(), env.trust()).ok

    run(story)


def test_a_refused_resume_leaves_the_run_where_it_was() -> None:
    async def story(env: Env) -> None:
        given: dict[str, Any] = {"tools": [person, pay], "purpose": "answer", "policies": [*ALLOW, *TWO[1:]]}
        result = await agent(calls("pay"), "paid", lawful_basis="contract", **given).run("Go", ledger=env)
        assert result.state == "suspended"
        before = await records(env, result.run_id)
        withdrawn = agent(calls("pay"), "paid", **given)
        with pytest.raises(RunRefused, match="basis_missing") as refused:
            await withdrawn.resume(result.checkpoint_id, await votes(env, withdrawn, result), ledger=env)
        assert (refused.value.result.state, refused.value.result.run_id) == ("refused", result.run_id)
        assert await records(env, result.run_id) == before
        head = await env.ledger.head(result.run_id)
        assert (head.mail if head else None) == 0
        [fact] = await facts(env, LOG, r.RunRefused)
        assert (fact.run, fact.register) == (result.run_id, r.UNSET)

    run(story)


def test_what_a_child_may_not_do_its_parent_may_not_start() -> None:
    async def story(env: Env) -> None:
        child = Agent(name="child", model=ScriptedModel(["x"]), tools=[person], policies=ALLOW)
        with pytest.raises(RunRefused, match="basis_missing"):
            await agent(handoffs=[child]).run("Go", ledger=env)

    run(story)


@pytest.mark.parametrize("tier", ["cloud", "sovereign"])
def test_other_tiers_refuse_until_there_is_a_sandbox(tier: str) -> None:
    async def story(env: Env) -> None:
        with pytest.raises(RunRefused, match="isolation_missing"):
            await agent().run("Go", ledger=env)

    run(story, tier=tier)


def test_isolation_is_printed_once_and_stands_in_genesis() -> None:
    said: list[str] = []

    async def story(env: Env) -> None:
        one = agent("a", name="printed once")
        first = await one.run("Go", ledger=env)
        await one.run("Go", ledger=env)
        [opened_one] = await facts(env, first.run_id, r.RunOpened)
        assert opened_one.isolation == "in_process"

    run(story, warn=said.append)
    assert len([x for x in said if "in_process" in x]) == 1


def test_gdpr_22_a_deed_waits_for_the_oversight_chain_whatever_policy_says(tmp_path: Path) -> None:
    chains = {"chains": {"review": {"tiers": [{"quorum": 1, "roles": ["reviewer"]}]}}}

    @tool(safety="write", effect="keyed", data=DATA)
    async def decide(grant: bool) -> str:
        """Decide about a loan."""
        return "granted" if grant else "refused"

    (tmp_path / "rules.yaml").write_bytes(msgspec.json.encode(chains | {"rules": ALLOW}))
    step = Step(calls=(("decide", {"grant": False}),))
    given: dict[str, Any] = {"tools": [decide], "policies": [tmp_path], "art22_decision": True, "oversight": "review"}
    ann = people.signer("t/ann")

    async def story(env: Env) -> None:
        one = agent(step, "told them", **given)
        env.home.add_trust("role reviewer p-ann")
        with pytest.raises(RunRefused, match="art22_unguarded"):
            await one.run("Go", ledger=env)
        env.home.add_trust(f"approver p-ann {ann.vkey}")
        result = await one.run("Go", ledger=env)
        assert (result.state, result.waiting[0].chain) == ("suspended", "review")
        session = await read_run(env, await wiring.bind(one), result.run_id)
        vote = people.vote(session, session.run.open_actions[0], ann, "approve")
        done = await one.resume(result.checkpoint_id, [vote], ledger=env)
        assert (done.state, [a.state for a in done.actions]) == ("completed", ["done"])
        other = await one.run("Go", ledger=env)
        with pytest.raises(RunRefused, match="definition_changed"):
            await agent(step, "told them", instructions="be strict", **given).resume(other.checkpoint_id, ledger=env)

    run(story)


# -- tools in a run ----------------------------------------------------------------------------------------------------------
def _tool(fn: Any, **changes: Any) -> Any:
    return tool(**({"safety": "write", "effect": "keyed", "data": DATA, "name": "look"} | changes))(fn)


def test_sync_and_async_tools_answer_alike() -> None:
    def now(what: str) -> str:
        """Now."""
        time.sleep(0)
        return what.upper()

    async def soon(what: str) -> str:
        """Soon."""
        return what.upper()

    async def story(env: Env) -> None:
        for fn in (now, soon):
            result = await agent(calls("look"), lambda prompt: prompt.messages[-1].text, tools=[_tool(fn)]).run("Go", ledger=env)
            assert (result.state, result.output) == ("completed", "IT")

    run(story)


def test_a_tool_that_knows_nothing_happened_is_tried_again() -> None:
    tries: list[str] = []

    async def flaky(ctx: Ctx, what: str) -> str:
        """Fails twice."""
        tries.append(ctx.operation_id)
        if len(tries) < 3:
            raise NotDone("the line is busy")
        return what

    async def story(env: Env) -> None:
        result = await agent(calls("look"), "done", tools=[_tool(flaky, retry=Retry(3, backoff_ms=1))]).run("Go", ledger=env)
        assert [a.state for a in result.actions] == ["done"]
        assert (len(tries), len(set(tries))) == (3, 1)
        judged = await facts(env, result.run_id, r.ActionJudged)
        assert [j.attempt for j in judged] == [1, 2, 3]

    run(story)


def test_a_tool_that_takes_too_long_is_doubted_and_never_called_failed() -> None:
    async def hangs(what: str) -> str:
        """Never answers."""
        await asyncio.sleep(60)
        return what

    async def story(env: Env) -> None:
        result = await agent(calls("look"), "done", tools=[_tool(hangs, timeout="20ms", effect="irreversible")]).run("Go", ledger=env)
        [doubted] = await facts(env, result.run_id, r.ActionDoubted)
        assert doubted.cause == "timeout"
        assert (result.state, result.waiting[0].about) == ("suspended", "outcome")
        assert [a.state for a in result.actions] == ["unknown"]

    run(story)


# -- guardrails --------------------------------------------------------------------------------------------------------------
def test_five_points_in_their_order() -> None:
    heard: list[tuple[str, tuple[str, ...]]] = []

    def watch(point: Any) -> Any:
        def fn(view: Any) -> Any:
            heard.append((view.point, view.texts))
            return Pass()

        return guardrail(point, name=f"watch {point}")(fn)

    async def story(env: Env) -> None:
        result = await agent(calls("look"), "bye", guardrails=[watch(p) for p in POINTS]).run("hello", ledger=env)
        assert result.state == "completed"
        checked = await facts(env, result.run_id, r.GuardrailChecked)
        assert [c.point for c in checked] == [p for p, _ in heard]

    run(story)
    assert heard == [
        ("before_turn", ()), ("input", ("hello",)), ("tool_result", ("it is fine",)), ("after_turn", ()), ("before_turn", ()),
        ("output", ("bye",)), ("after_turn", ()),
    ]  # fmt: skip


@pytest.mark.parametrize("point", ["before_turn", "after_turn"])
def test_before_and_after_a_turn_may_only_annotate(point: Any) -> None:
    @guardrail(point)
    def strict(view: Any) -> Any:
        return Block("guardrail fault of my own words")

    async def story(env: Env) -> None:
        result = await agent("done", guardrails=[strict]).run("Go", ledger=env)
        assert result.state == "completed"
        assert {c.result for c in await facts(env, result.run_id, r.GuardrailChecked)} == {"annotate"}

    run(story)


@pytest.mark.parametrize("point", ["input", "tool_result", "output"])
def test_a_block_halts_and_the_run_can_be_resumed_without_what_was_blocked(point: Any) -> None:
    heard: list[list[str]] = []
    strict = True

    @guardrail(point)
    def guard(view: Any) -> Any:
        return Block("not that") if strict and ("fine" in view.texts[0] or "Go" in view.texts[0] or "secret" in view.texts[0]) else Pass()

    def hear(prompt: Any) -> str:
        heard.append([m.text for m in prompt.messages])
        return "clean"

    async def story(env: Env) -> None:
        nonlocal strict
        steps = {"input": [hear], "tool_result": [calls("look"), hear], "output": ["the secret", hear]}[point]
        one = agent(*steps, guardrails=[guard])
        result = await one.run("Go", ledger=env)
        assert (result.state, result.cause, result.output) == ("halted", "guardrail", None)
        if point == "input":
            assert (await one.resume(result.checkpoint_id, ledger=env)).state == "halted"
        strict = False
        done = await one.resume(result.checkpoint_id, ledger=env)
        assert (done.state, done.output) == ("completed", "clean")
        assert not any("is fine" in text for text in heard[-1])
        if point != "input":
            assert any("withheld" in text for text in heard[-1])

    run(story)


def _crash(view: Any) -> Any:
    raise RuntimeError("a payload of theirs")


async def _hang(view: Any) -> Any:
    await asyncio.sleep(60)


def _late(view: Any) -> Any:
    time.sleep(0.06)


def _nonsense(view: Any) -> Any:
    return True


@pytest.mark.parametrize("fn", [_crash, _hang, _late, _nonsense])
@pytest.mark.parametrize("point", ["before_turn", "input", "tool_result", "output", "after_turn"])
def test_a_guardrail_that_breaks_halts(fn: Any, point: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mandamus.runtime.guard.DEADLINE_S", 0.05)

    async def story(env: Env) -> None:
        result = await agent(calls("look"), "done", guardrails=[guardrail(point)(fn)]).run("Go", ledger=env)
        assert (result.state, result.cause) == ("halted", "guardrail")
        payloads = [p.bytes async for p in env.ledger.payloads(result.run_id)]
        assert not any(b"payload of theirs" in raw for raw in payloads)

    run(story)


def test_the_models_handle_is_metered_and_recorded() -> None:
    @guardrail("input")
    async def ask(view: Any, model: Any = None) -> Any:
        assert not hasattr(model, "generate")
        return Annotate(await model.ask(f"Is this rude? {view.texts[0]}"))

    async def story(env: Env) -> None:
        plain = await agent("done").run("Go", ledger=env)
        result = await agent("done", "unused", guardrails=[ask]).run("Go", ledger=env)
        [checked] = await facts(env, result.run_id, r.GuardrailChecked)
        assert (checked.result, checked.usage.total) == ("annotate", 15)
        assert result.tokens_used == plain.tokens_used + 15

    run(story)


def test_the_handle_has_a_budget_of_its_own() -> None:
    @guardrail("input")
    async def greedy(view: Any, model: Any = None) -> Any:
        for _ in range(400):
            await model.ask("again")

    async def story(env: Env) -> None:
        result = await agent("done", guardrails=[greedy]).run("Go", ledger=env)
        assert (result.state, result.cause) == ("halted", "guardrail")

    run(story)


@pytest.mark.parametrize(
    "bad", [lambda: guardrail("between"), lambda: guardrail("input")(lambda: None), lambda: guardrail("input")(lambda v, m: None)]
)
def test_what_is_no_guardrail(bad: Callable[[], Any]) -> None:
    with pytest.raises(Misuse):
        bad()
