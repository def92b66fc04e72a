"""Cedar, embedded: what loading refuses, what deciding promises."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import cedarpy
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mandamus.core.argtypes import argument_types, hidden
from mandamus.core.cedartext import quoted
from mandamus.core.definition import pinned
from mandamus.core.facts import FactEnvelope
from mandamus.drivers.policy_cedar import ENGINE, CedarEngine, binding
from mandamus.drivers.policy_cedar.engine import _entities
from mandamus.drivers.yaml_strict import load
from mandamus.errors import EngineFault, Misuse
from tests.core.policy_world import ADMIN, ANYTHING, ASK, FRIDAY, LOOK, MAIL, PAY, TOOLS, WIRE, WRITE, cedar, facts, judged, tool

TREASURY = Path(__file__).parents[2] / "examples" / "treasury" / "policies"
PERMIT = '@id("any") permit (principal, action, resource);\n'


def from_text(folder: Path, text: str, tools: Any = TOOLS) -> CedarEngine:
    (folder / "p.cedar").write_text(text, "utf-8")
    return CedarEngine.load([folder], tools)


# -- the shipped example -----------------------------------------------------------------------------------------------------------
def treasury() -> CedarEngine:
    return CedarEngine.load([TREASURY], (PAY, LOOK), read_yaml=load)


def test_the_shipped_treasury() -> None:
    engine, sums = treasury(), {"pay.daily": 0}
    night = replace(FRIDAY, hour=23)
    delegated = facts(sums=sums)
    delegated = replace(delegated, principal=replace(delegated.principal, depth=1))
    rows = [
        (facts(sums=sums), "allow", ["pay.any"]),
        (facts(LOOK, sums=sums), "allow", ["look.up"]),
        (facts(minor=5_000_000, sums=sums), "escalate", ["pay.large"]),
        (facts(minor=5_000_000, sums=sums, met=("treasury",)), "allow", ["pay.any"]),
        (facts(minor=5_000_000, sums=sums, at=night), "escalate", ["pay.large", "pay.night"]),
        (facts(minor=5_000_000, sums={"pay.daily": 20_000_001}, met=("treasury",)), "deny", ["pay.daily"]),
        (facts(sums=sums, roles=()), "deny", []),
        (delegated, "deny", ["pay.delegated"]),
    ]
    for question, verdict, rules in rows:
        judgement = judged(engine, question)
        assert (judgement.verdict, [d.id for d in judgement.determining]) == (verdict, rules)
        assert (judgement.engine, judgement.policy) == (ENGINE, engine.digest())
    assert [(a.chain, a.quorum) for a in judged(engine, rows[4][0]).asks] == [("treasury", 2)]
    assert judged(engine, delegated).on_deny == "halt"
    assert engine.book.covered == (
        "pay.delegated",
        "pay.night",
        "look.up",
        "pay.any",
        "pay.large",
        "pay.daily",
        "pay.daily.uncounted",
        "pay.closed",
        "steps",
    )
    assert engine.book.texts["pay.large"] == "more than 10,000.00 USD: 2 approvals from treasury"


def test_nothing_is_parsed_after_load() -> None:
    engine = treasury()
    after_load = engine.parses
    for n in range(50):
        assert judged(engine, facts(minor=n, sums={"pay.daily": n})).verdict == "allow"
    judged(engine, facts(LOOK, sums={"pay.daily": 0}))
    assert engine.parses == after_load == 2
    assert engine.slices == 2  # one for each principal and tool


def test_only_the_facts_that_policies_read_are_sent() -> None:
    sent = json.loads(cedar(ANYTHING, {"id": "m", "maxAmount": {"limit": "1.00 USD"}})._request(facts())["context"])
    assert sent == {"amount": {"currency": "USD", "minor": 50_000}}


def slice_of(engine: CedarEngine, question: FactEnvelope) -> list[dict[str, Any]]:
    tool = question.action.tool
    return _entities(question.principal, tool, engine._contracts[tool])


ODD_READS = [
    "context has amount && context.amount.minor > 10",
    'context has amount && context["amount"]["minor"] > 10',
    "context has amount.minor && context.amount.minor > 10",
    "context has amount",
    "context has nothing",
    "context.args has to",
    'context.args has "amount" && context.args.amount has decimals',
    "context == context && context.run.turn == 1",
    "context.people == context.people",
    "[context.run, context.run].contains(context.run)",
    "{x: context.clock}.x.hour > 9",
    '(if context has amount then context.amount else {counterparty: "", currency: "", minor: 0}).minor > 10',
    'context.people.met.containsAny(["a", "default"]) || context.context.user.roles.isEmpty()',
    "context.principal.depth == principal.depth && context.action.safety == resource.safety",
]


@pytest.mark.parametrize("condition", ODD_READS)
@pytest.mark.parametrize("effect", ["permit", "forbid"])
def test_asking_with_the_read_facts_is_asking_with_all(tmp_path: Path, condition: str, effect: str) -> None:
    text = f'@id("p") permit (principal, action, resource) when {{ {effect == "forbid" or "false"} }};\n'.replace("True", "true")
    text += f'@id("x") {effect} (principal, action == Action::"pay", resource) when {{ {condition} }};'
    engine = from_text(tmp_path, text)
    whole = cedarpy.Schema.from_json_str(engine.book.texts["policy/schema.json"])
    for question in (facts(), facts(minor=1), facts(met=("a",)), facts(turn=2), facts(at=replace(FRIDAY, hour=3))):
        request = engine._request(question) | {"context": msgspec.json.encode(question).decode()}
        full = cedarpy.is_authorized(request, text, slice_of(engine, question), whole)
        assert full.diagnostics.errors == []
        assert judged(engine, question).verdict == ("allow" if full.allowed else "deny")


def test_check_passes_on_this_build_of_cedar(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(treasury().check())
    silent = binding.Answer("Allow", binding.Diagnostics([], ["policy0"]))
    monkeypatch.setattr(binding, "ask", lambda *_: silent)
    with pytest.raises(EngineFault):
        asyncio.run(treasury().check())


@pytest.mark.parametrize("told", ['{"decision":"Allow","diagnostics":{"reason":["policy0"]}}', '{"decision":"Yes"}', "[]", ""])
def test_an_answer_of_another_form_is_an_error(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    engine = treasury()
    monkeypatch.setattr(binding._internal, "is_authorized_batch", lambda *_: [told])
    assert judged(engine, facts(sums={"pay.daily": 0})).verdict == "error"


def test_the_binding_says_what_the_wrapper_of_cedarpy_says(tmp_path: Path) -> None:
    engine = from_text(tmp_path, PERMIT)
    for question in (facts(), facts(minor=1), facts(turn=2)):
        asked = engine._request(question), engine._policies, engine._slice(question), engine._schema
        answer, wrapped = binding.ask(*asked), cedarpy.is_authorized(asked[0], PERMIT, slice_of(engine, question), asked[3])
        assert answer.decision == wrapped.decision.value
        assert (answer.diagnostics.reason, answer.diagnostics.errors) == (wrapped.diagnostics.reasons, wrapped.diagnostics.errors)


def test_a_fault_of_the_binding_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = treasury()

    def gone(*_: Any) -> None:
        raise RuntimeError("acme")

    monkeypatch.setattr(binding, "ask", gone)
    judgement = judged(engine, facts(sums={"pay.daily": 0}))
    assert (judgement.verdict, judgement.errors) == ("error", ("the engine failed: RuntimeError",))


# -- digest ------------------------------------------------------------------------------------------------------------------------
def test_the_digest_covers_policies_schema_and_tools_and_nothing_of_the_place(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    base = from_text(tmp_path / "a", PERMIT).digest()
    assert from_text(tmp_path / "b", PERMIT).digest() == base
    assert CedarEngine.load([tmp_path / "a"], tuple(reversed(TOOLS))).digest() == base
    changed = [
        from_text(tmp_path / "b", PERMIT.replace("any", "all")),
        from_text(tmp_path / "b", PERMIT, TOOLS[:-1]),
        from_text(tmp_path / "b", PERMIT, (*TOOLS[:-1], pinned(replace(ASK, description="other")))),
        CedarEngine.load([tmp_path / "a"], TOOLS, default="allow"),
        CedarEngine.load([tmp_path / "a", {"id": "x", "maxAmount": {"limit": "1.00 USD"}}], TOOLS),
    ]
    assert len({base, *(engine.digest() for engine in changed)}) == 6


# -- escalate ----------------------------------------------------------------------------------------------------------------------
def test_default_allow_never_covers_money_or_power() -> None:
    engine = CedarEngine.load([{"id": "no", "toolDenylist": {"tools": "mail"}}], TOOLS, default="allow")
    assert engine.book.default == "allow"
    verdicts = {t.name: judged(engine, facts(t)).verdict for t in TOOLS}
    assert verdicts == {
        "pay": "deny",
        "wire": "deny",
        "close_account": "deny",
        "look": "allow",
        "write": "allow",
        "mail": "deny",
        "admin": "deny",
        "ask_helper": "allow",
    }


def test_any_other_forbid_makes_an_escalation_a_deny(tmp_path: Path) -> None:
    escalates = '@id("e") @verdict("escalate") forbid (principal, action, resource) unless { context.people.met.contains("default") };\n'
    denies = '@id("d") forbid (principal, action, resource) when { context.run.turn > 1 };'
    engine = from_text(tmp_path, PERMIT + escalates + denies)
    first, second = judged(engine, facts(LOOK)), judged(engine, facts(LOOK, turn=2))
    assert (first.verdict, first.asks[0].chain, first.asks[0].quorum) == ("escalate", "default", 1)
    assert (second.verdict, second.asks) == ("deny", ())
    assert [(d.id, d.verdict) for d in second.determining] == [("d", "deny"), ("e", "escalate")]
    assert judged(engine, facts(LOOK, met=("default",))).verdict == "allow"


def test_the_chain_s_own_quorum_is_the_least(tmp_path: Path) -> None:
    rules = "chains: {c: {tiers: [{quorum: 3}]}}\nrules:\n  - {id: any, permit: {}}\n  - {id: n, needsApproval: {chain: c, tools: look}}\n"
    (tmp_path / "rules.yaml").write_text(rules)
    engine = CedarEngine.load([tmp_path], TOOLS, read_yaml=load)
    assert [(a.chain, a.quorum) for a in judged(engine, facts(LOOK)).asks] == [("c", 3)]


# -- what loading refuses ----------------------------------------------------------------------------------------------------------
BAD: list[tuple[str, str, str, str]] = [
    ('@id("a") permit (principal, actoin, resource);', "not Cedar", "1:1", ""),
    (PERMIT + '\n  @id("b")\n  forbid (principal, action, resource) when { context.run.turn > };', "not Cedar", "3:3", ""),
    ("permit (principal, action, resource);", "without a usable @id", "1:1", "@id("),
    ('@id("") permit (principal, action, resource);', "without a usable @id", "1:1", ""),
    ('@id("a b") permit (principal, action, resource);', "without a usable @id", "1:1", ""),
    (PERMIT + "// a; comment\n" + PERMIT, "the id 'any' is there twice", "3:1", "rename"),
    ('@id("a") @reson("x") permit (principal, action, resource);', "unknown annotation @reson", "1:1", "did you mean reason?"),
    ('@id("a") @evidence("sealed") forbid (principal, action, resource);', "@evidence", "1:1", ""),
    (
        '@id("a") @verdict("escalate") @evidence("notarised") forbid (principal, action, resource) unless { context.people.approved > 1 };',
        "@evidence",
        "1:1",
        "",
    ),
    (
        '@id("a") @verdict("escalate") @evidence("sealed") @chain("x") forbid (principal, action, resource) unless { 1 > 2 };',
        "@evidence",
        "1:1",
        "",
    ),
    (
        '@id("a") @verdict("escalate") @evidence("sealed") forbid (principal, action, resource);',
        "never looks at the answer",
        "1:1",
        'contains("sealed")',
    ),
    ('@id("a") @obligation("log") permit (principal, action, resource);', "not enforced", "1:1", ""),
    ('@id("a") @verdict("escalate") permit (principal, action, resource);', "@verdict", "1:1", ""),
    ('@id("a") @verdict("allow") forbid (principal, action, resource);', "@verdict", "1:1", ""),
    ('@id("a") @approvals("2") forbid (principal, action, resource);', "@approvals without", "1:1", ""),
    ('@id("a") @verdict("escalate") forbid (principal, action, resource);', "never looks at the answer", "1:1", "people.met"),
    (
        '@id("a") @verdict("escalate") @approvals("two") forbid (principal, action, resource) unless { context.people.approved > 1 };',
        "no number of people",
        "1:1",
        "",
    ),
    (
        '@id("a") @verdict("escalate") @chain("tresury") forbid (principal, action, resource) unless { context.people.approved > 1 };',
        "no chain",
        "1:1",
        "",
    ),
    ('@id("a") @on_deny("stop") forbid (principal, action, resource);', "@on_deny", "1:1", ""),
    ('@id("a") permit (principal == ?principal, action, resource);', "template", "", ""),
    (PERMIT + '@id("a") forbid (principal, action, resource) when { context.run.trun > 1 };', "does not fit", "2:1", ""),
    ('@id("a") forbid (principal, action, resource) when { context.run.turn > "1" };', "does not fit", "1:1", ""),
    ('@id("a") forbid (principal, action == Action::"pya", resource);', "does not fit", "1:1", ""),
    ('@id("a") forbid (principal, action, resource) when { context.amount.minor > 1 };', "does not fit", "1:1", "has amount"),
    ('@id("a") forbid (principal, action, resource) when { context.sums["x"] > 1 };', "does not fit", "1:1", ""),
    ('@id("a") permit (principal, action in Action::"invoke", resource) when { context.args.key == "x" };', "does not fit", "1:1", ""),
]


@pytest.mark.parametrize(("text", "what", "at", "fix"), BAD, ids=lambda x: None)
def test_a_policy_that_cannot_be_enforced_is_refused(tmp_path: Path, text: str, what: str, at: str, fix: str) -> None:
    with pytest.raises(Misuse) as caught:
        from_text(tmp_path, text)
    told = caught.value.diagnosis
    assert what in told.what
    assert told.where == f"{tmp_path / 'p.cedar'}{':' if at else ''}{at}"
    assert fix in told.fix


def test_places_survive_texts_and_comments_with_semicolons(tmp_path: Path) -> None:
    text = '// one; two "\n@id("a") permit (principal, action, resource)\nwhen { resource.name != "x;//y\\"" }; '
    text += '@id("b")\nforbid (principal, action, resource) when { 1 };'
    with pytest.raises(Misuse) as caught:
        from_text(tmp_path, text)
    assert caught.value.diagnosis.where.endswith("p.cedar:3:38")


def test_sources_that_are_not_policies(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "stray").mkdir()
    (tmp_path / "stray" / "rules.yml").write_text("rules: []")
    (tmp_path / "notes.txt").write_text("permit")
    (tmp_path / "latin.cedar").write_bytes(b"\xff")
    for source, what in [
        ("nowhere", "no such folder"),
        ("empty", "without policies"),
        ("stray", "would not be read"),
        ("notes.txt", "not a policy file"),
        ("latin.cedar", "UTF-8"),
    ]:
        with pytest.raises(Misuse, match=what):
            CedarEngine.load([tmp_path / source], TOOLS)
    with pytest.raises(Misuse, match="no policy at all"):
        CedarEngine.load([], TOOLS)


def test_rules_in_yaml_are_never_skipped() -> None:
    with pytest.raises(Misuse, match="need a reader"):
        CedarEngine.load([TREASURY], (PAY, LOOK))


def test_a_mistake_in_rules_yaml_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("rules:\n  - id: a\n    permit: {}\n  - id: b\n    maxAmount:\n      limt: 1.00 USD\n")
    with pytest.raises(Misuse) as caught:
        CedarEngine.load([tmp_path], TOOLS, read_yaml=load)
    assert caught.value.diagnosis.where == f"{tmp_path / 'rules.yaml'}:6:7"
    assert caught.value.diagnosis.fix == "did you mean limit?"


def test_tools_that_policies_could_not_tell_apart() -> None:
    for tools in ((PAY, PAY), (tool("invoke", "read", "read", dict),)):
        with pytest.raises(Misuse):
            CedarEngine.load([ANYTHING], tools)


# -- the tool's contract ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "change", [{"pin": "0" * 64}, {"safety": "read"}, {"effect": "read"}, {"data": "public"}, {"kind": "handoff"}, {"tool": "other"}]
)
def test_facts_of_another_tool_are_an_error(change: dict[str, str]) -> None:
    question = facts()
    assert judged(cedar(ANYTHING), replace(question, action=replace(question.action, **change))).verdict == "error"


def test_policies_may_read_arguments(tmp_path: Path) -> None:
    text = (
        PERMIT + '@id("memo") forbid (principal, action == Action::"pay", resource)'
        ' when { context.args has memo && context.args.memo like "*bribe*" };'
        '@id("copies") forbid (principal, action == Action::"mail", resource) when { context.args.copies > 3 };'
    )
    engine = from_text(tmp_path, text)
    args = facts().args
    assert judged(engine, facts()).verdict == "allow"
    assert judged(engine, facts(args={**args, "memo": "fee"})).verdict == "allow"
    assert judged(engine, facts(args={**args, "memo": "a bribe"})).verdict == "deny"
    assert judged(engine, facts(MAIL, args={"to": "x", "copies": 4})).verdict == "deny"
    for bad in ({"memo": None}, {"memo": 1}, {"memos": "x"}, {"to": 1.5}):
        assert judged(engine, facts(args={**args, **bad})).verdict == "error"


class Inner(msgspec.Struct):
    free: dict[str, Any]
    plain: str


class Odd(msgspec.Struct):
    either: int | str
    free: dict[str, Any]
    inner: Inner
    rate: float
    many: list[Inner]
    pair: tuple[int, str]
    words: list[str]
    maybe: int | None = None


def test_what_cedar_cannot_type_is_hidden_from_rules_and_still_closed(tmp_path: Path) -> None:
    odd = tool("odd", "read", "read", Odd)
    assert sorted(hidden(argument_types(odd.input_schema))) == ["either", "free", "inner.free", "many", "pair"]
    text = (
        PERMIT + '@id("r") forbid (principal, action == Action::"odd", resource)'
        ' when { context.args.rate == "0.5" && context.args.inner.plain == "p" };'
    )
    engine = from_text(tmp_path, text, (odd,))
    inner = {"free": {"a": [1]}, "plain": "p"}
    args = {"either": 1, "free": {"x": {"y": "z"}}, "inner": inner, "rate": "0.25", "many": [inner], "pair": [1, "a"], "words": ["a", "a"]}
    assert judged(engine, facts(odd, args=args)).verdict == "allow"
    assert judged(engine, facts(odd, args={**args, "rate": "0.5"})).verdict == "deny"
    for bad in (
        {"free": {"x": 1.5}},
        {"free": {"x": None}},
        {"free": {"x": 2**53}},
        {"free": {"\ud800": 1}},
        {"either": b""},
        {"rate": 0.5},
    ):
        assert judged(engine, facts(odd, args={**args, **bad})).verdict == "error"


# -- properties --------------------------------------------------------------------------------------------------------------------
@given(st.text(max_size=12))
@settings(max_examples=60, deadline=None)
def test_a_quoted_text_is_that_text_in_cedar(text: str) -> None:
    if any("\ud800" <= c <= "\udfff" for c in text):
        return
    document = json.loads(cedarpy.policies_to_json_str(f"permit (principal == Agent::{quoted(text)}, action, resource);"))
    assert document["staticPolicies"]["policy0"]["principal"]["entity"]["id"] == text


SCALARS = st.sampled_from(
    [({"type": "string"}, st.text(max_size=4)), ({"type": "integer"}, st.integers(-99, 2**53 - 1)), ({"type": "boolean"}, st.booleans())]
)


def nested(inner: Any) -> Any:
    many = inner.map(lambda pair: ({"type": "array", "items": pair[0]}, st.lists(pair[1], max_size=3)))
    names = st.text("abé\n \"'", min_size=1, max_size=3)
    record = st.dictionaries(names, inner, max_size=3).map(
        lambda fields: (
            {"type": "object", "properties": {n: s for n, (s, _) in fields.items()}, "required": sorted(fields)[:1]},
            st.fixed_dictionaries({n: v for n, (_, v) in fields.items()}),
        )
    )
    return many | record


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_arguments_of_any_typed_schema_reach_cedar_whole(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """What the closed check lets through, Cedar's own request check lets through too: the two types are one."""
    schema, values = data.draw(st.recursive(SCALARS, nested, max_leaves=6))
    root = {"type": "object", "properties": {"x": schema}, "required": ["x"]}
    odd = pinned(replace(LOOK, name="odd tool", input_schema=root, pin=""))
    reads = '@id("r") permit (principal, action == Action::"odd tool", resource) when { context.args == context.args };'
    engine = from_text(tmp_path_factory.getbasetemp(), reads, (odd,))
    question = facts(odd, args={"x": data.draw(values)})
    assert json.loads(engine._request(question)["context"])["args"] == question.args
    assert judged(engine, question).verdict == "allow"
    assert judged(engine, replace(question, args={})).verdict == "error"


NUMBERS = st.sampled_from([0, 1, 99_999, 100_000, 100_001, 2**53 - 1])


@given(
    spec=st.sampled_from((PAY, WIRE, LOOK, WRITE, MAIL, ADMIN)),
    minor=NUMBERS,
    spent=NUMBERS,
    currency=st.sampled_from(("USD", "EUR", "JPY")),
    hour=st.integers(0, 23),
    met=st.sampled_from(((), ("default",), ("x", "default"))),
    roles=st.sampled_from(((), ("treasury",), ("a", "treasury"))),
)
@settings(max_examples=150, deadline=None)
def test_rules_mean_what_plain_python_says(**x: Any) -> None:
    """An oracle beside the compiler: verdict and determining rules, over random questions."""
    spec, money, over = x["spec"], x["spec"].safety == "financial", x["minor"] > 100_000
    want_forbid = {
        "max": money and x["currency"] == "USD" and over,
        "max.uncounted": money and x["currency"] != "USD",
        "day": money and x["currency"] == "USD" and x["spent"] + x["minor"] > 100_001,
        "day.eur": money and x["currency"] == "EUR" and x["minor"] > 99_999,
        "day.uncounted": money and x["currency"] == "JPY",
        "day.eur.uncounted": money and x["currency"] == "JPY",
        "hours": spec.effect != "read" and not 8 <= x["hour"] < 18,
        "dual": money and not (x["currency"] == "USD" and x["minor"] <= 99_999) and "default" not in x["met"],
    }
    fired = sorted(name for name, fires in want_forbid.items() if fires)
    permitted = spec is LOOK or "treasury" in x["roles"]
    verdict = ("escalate" if fired == ["dual"] else "deny") if fired else "allow" if permitted else "deny"
    sums = {"day": x["spent"], "day.eur": 0}
    question = facts(
        spec, minor=x["minor"], currency=x["currency"], roles=x["roles"], met=x["met"], sums=sums, at=replace(FRIDAY, hour=x["hour"])
    )
    judgement = judged(ORACLE, question)
    assert judgement.verdict == verdict
    if fired:
        assert [d.id for d in judgement.determining] == fired


ORACLE = cedar(
    {"id": "reads", "permit": {"tool": "look"}},
    {"id": "all", "permit": {"role": "treasury"}},
    {"id": "max", "maxAmount": {"limit": "1000.00 USD"}},
    {"id": "day", "maxDailyLimit": {"limit": "1000.01 USD"}},
    {"id": "day.eur", "maxDailyLimit": {"limit": "999.99 EUR"}},
    {"id": "hours", "workingHours": {"from": "08:00", "to": "18:00"}},
    {"id": "dual", "dualApproval": {"over": "999.99 USD"}},
)


def test_loading_parses_once_and_types_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent's first second: rules are parsed in one go, and typed against the one schema that Cedar will be asked with."""
    calls: list[str] = []

    def counted(name: str) -> None:
        called = getattr(cedarpy, name)

        def count(*args: Any, **more: Any) -> Any:
            calls.append(name)
            return called(*args, **more)

        monkeypatch.setattr(cedarpy, name, count)

    for name in ("policies_to_json_str", "validate_policies"):
        counted(name)
    rules = [{"id": f"r{n}", "permit": {"tool": "pay"}} for n in range(4)]
    assert judged(CedarEngine.load(rules, TOOLS), facts()).verdict == "allow"
    assert sorted(calls) == ["policies_to_json_str", "validate_policies"]


def test_a_policy_does_not_go_on_in_the_next_file(tmp_path: Path) -> None:
    """Read together the two files are sound; alone neither is, and the first of them is named."""
    halves = {"a.cedar": '@id("one") permit (principal, action', "b.cedar": ", resource);"}
    for file, text in halves.items():
        (tmp_path / file).write_text(text, "utf-8")
    assert json.loads(cedarpy.policies_to_json_str("\n".join(halves.values())))["staticPolicies"].keys() == {"policy0"}
    with pytest.raises(Misuse) as refused:
        CedarEngine.load([tmp_path], TOOLS)
    assert (refused.value.diagnosis.code, refused.value.diagnosis.where) == ("MDM-0743", f"{tmp_path / 'a.cedar'}:1:1")


def test_each_note_keeps_the_place_of_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "a.cedar").write_text('// ; "\n' + PERMIT.replace("any", "a1") + "\n" + PERMIT.replace("any", "a2"), "utf-8")
    (tmp_path / "b.cedar").write_text(PERMIT.replace("any", "b1").rstrip("\n"), "utf-8")
    (tmp_path / "c.cedar").write_text(
        "\n\n" + '@id("c1")\npermit (principal, action, resource)\nwhen { context.amount.minor > 0 };', "utf-8"
    )
    with pytest.raises(Misuse) as refused:  # not every tool has an amount
        CedarEngine.load([tmp_path], TOOLS)
    assert (refused.value.diagnosis.code, refused.value.diagnosis.where) == ("MDM-0742", f"{tmp_path / 'c.cedar'}:3:1")
