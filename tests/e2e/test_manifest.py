"""agent.yaml from the file to the genesis: every field, every mistake with its place, what it binds, and who signed it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandamus import Agent, Misuse, RunRefused, manifest, schemas, wiring
from mandamus.core.digests import manifest_digest
from mandamus.core.records import LOG, RunOpened, decode
from mandamus.errors import ProofError
from mandamus.manifest import check_manifest, read, sign_manifest
from mandamus.proof import dsse
from mandamus.proof.keys import parse_vkey
from mandamus.proof.trust import Trust
from mandamus.proof.verify import verify
from mandamus.testing import people
from mandamus.wiring import Home

CODE = '''
from msgspec import Struct

from mandamus import Money, Pass, Plugin, Receipt, allow, guardrail, rule, tool
from mandamus.data import Confidential, Public, none


class Answer(Struct):
    total: int


@tool(safety="financial", effect="keyed", data=Confidential(subject=none("own account"), retention="books"))
async def pay(to: str, amount: Money) -> Receipt:
    """Transfer corporate funds."""
    return Receipt(id="tx-1")


@tool(safety="read", effect="read", data=Public())
def rate(currency: str) -> str:
    """Look up a rate."""
    return "1"


@tool(safety="read", effect="read", data=Public())
def more() -> str:
    """Come with a plugin."""
    return "more"


@guardrail("input")
def polite(view):
    return Pass()


@rule("reads", "Reading is free")
def reads(facts):
    return allow() if facts.action.safety == "read" else None


plugin = Plugin(name="extra", version="1", tools=(more,))
broken_value = 7


def make_deps():
    return {"dsn": "x"}
'''
FULL = """\
name: desk
purpose: pay invoices
lawful_basis: legal-obligation
annex_iii: none
art22_decision: false
model: scripted:script.json
instructions_file: prompt.md
tools: [app:pay, "app:rate"]
output: str
policies:
  - policies
  - app:reads
  - {rule: maxDailyLimit, params: {limit: "1000.00 USD"}}
guardrails: [app:polite]
plugins: [app:plugin]
budget: {turns: 5, tokens: 9000, retries: 2, wall: 10m}
deps: app:make_deps
roles: [treasury]
retentions:
  - {id: mine, content_days: 10, hash_days: 20, decision_days: 30}
environment: test
timezone: Europe/Berlin
window: 64000
max_output: 1000
timeout: 20s
profile: none
default: deny
replay_mode: deterministic
"""
SMALL = "name: desk\nmodel: scripted:script.json\ntools: [app:pay]\npolicies: [policies]\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(CODE)
    (tmp_path / "prompt.md").write_text("Pay what is due.\n")
    (tmp_path / "script.json").write_text('["done"]')
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "rules.yaml").write_text("rules: [{id: pay, permit: {safety: financial}}]\n")
    return tmp_path


def wrote(folder: Path, text: str, name: str = "agent.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


async def _run(agent: Agent[Any], home: Home | None = None, tier: str = "dev", prompt: str = "Go") -> tuple[Any, Any]:
    env = await wiring.open_env("memory:", tier=tier, home=home)
    return await agent.run(prompt, ledger=env), env


def run(agent: Agent[Any], **options: Any) -> tuple[Any, Any]:
    return asyncio.run(_run(agent, **options))


# -- reading -----------------------------------------------------------------------------------------------------------------
def test_every_field_of_an_agent_can_be_written(folder: Path) -> None:
    agent = Agent.load(wrote(folder, FULL))
    spec = agent.spec
    assert (spec.name, spec.lawful_basis, spec.timezone, spec.window, spec.roles) == (
        "desk",
        "legal_obligation",
        "Europe/Berlin",
        64_000,
        ("treasury",),
    )
    assert (spec.budget.turns, spec.budget.tokens, spec.budget.retries, spec.budget.wall_ms) == (5, 9000, 2, 600_000)
    assert list(agent.tools) == ["pay", "rate", "more"]
    assert (spec.instructions, agent.max_output, agent.timeout_ms) == ("Pay what is due.\n", 1000, 20_000)
    assert [g.name for g in agent.guards] == ["polite"]
    assert spec.retentions[0].id == "mine"
    result, _ = run(agent)
    assert (result.state, result.output) == ("completed", "done")


def test_the_struct_has_a_key_for_every_argument_of_agent() -> None:
    import inspect

    known = set(manifest.Manifest.__struct_fields__)
    assert set(inspect.signature(Agent.__init__).parameters) - {"self", "manifest"} <= known


def test_its_digest_stands_in_genesis_and_its_text_in_the_bundle(folder: Path) -> None:
    path = wrote(folder, SMALL + "# as written\n")

    async def story() -> None:
        env = await wiring.open_env(f"sqlite:///{folder}/run.db")
        result = await Agent.load(path).run("Go", ledger=env)
        [first] = [decode(raw) async for raw in env.ledger.read(result.run_id, upto=0)]
        assert isinstance(first.fact, RunOpened)
        assert first.fact.manifest == manifest_digest(path.read_text())
        bundle = await result.evidence_bundle.read()
        path.write_text(SMALL)  # what it was is kept beside the ledger
        assert await result.evidence_bundle.read() == bundle
        report = verify(bundle, env.trust())
        assert report.ok, report
        assert b"# as written" in bundle
        await wiring.close_env(env)

    asyncio.run(story())


MISTAKES = [
    ("nam: desk\nmodel: x:y\n", "1:1", "did you mean name?"),
    ("name: desk\nmodel: x:y\npurpos: pay\n", "3:1", "did you mean purpose?"),
    ("name: desk\nmodel: x:y\nname: two\n", "3:1", "there twice"),
    ("name: desk\n", "1:1", "model"),
    ("- name\n", "1:1", "mapping"),
    ("", "", "mapping"),
    ("name: 7\nmodel: x:y\n", "1:7", "str"),
    ("name: desk\nmodel: x:y\nlawful_basis: whim\n", "3:15", "whim"),
    ("name: desk\nmodel: x:y\nannex_iii: hiring\n", "3:12", "hiring"),
    ("name: desk\nmodel: x:y\nart22_decision: 'yes'\n", "3:17", "bool"),
    ("name: desk\nmodel: x:y\nbudget: {turns: 5, token: 3}\n", "3:20", "did you mean tokens?"),
    ("name: desk\nmodel: x:y\nbudget: {turns: many}\n", "3:17", "int"),
    ("name: desk\nmodel: x:y\nretentions: [{id: a, content_days: 9, hash_days: 1, decision_days: 1}]\n", "3:", "content_days"),
    ("name: desk\nmodel: x:y\nreplay_mode: off\n", "3:14", "always on"),
    ("name: desk\nmodel: x:y\nprofile: strict\n", "3:10", "strict"),
    ("name: desk\nmodel: x:y\ntools: app:pay\n", "3:8", "array"),
    ("name: desk\nmodel: x:y\ntools: [app.pay]\n", "3:9", "app:send_payment"),
    ("name: desk\nmodel: x:y\ntools: [ap:pay]\n", "3:9", "did you mean app?"),
    ("name: desk\nmodel: x:y\ntools: [app:pa]\n", "3:9", "did you mean pay?"),
    ("name: desk\nmodel: x:y\ntools: [app:broken_value]\n", "3:8", "is no tool"),
    ("name: desk\nmodel: x:y\nguardrails: [app:pay]\n", "3:13", "no guardrail"),
    ("name: desk\nmodel: x:y\nplugins: [app:pay]\n", "3:10", "plugins"),
    ("name: desk\nmodel: x:y\ndeps: app:broken_value\n", "3:7", "factory"),
    ("name: desk\nmodel: x:y\ntools: [bad:tool]\n", "3:9", "bad.py:2"),
    ("name: desk\nmodel: x:y\ninstructions: a\ninstructions_file: prompt.md\n", "4:20", "twice"),
    ("name: desk\nmodel: x:y\ninstructions_file: prompt.txt\n", "3:20", "cannot be read"),
    ("name: desk\nmodel: nothing\n", "2:8", "model"),
    ("name: desk\nmodel: x:y\ntimezone: Mars/Base\n", "3:11", "Mars/Base"),
    ("name: desk\nmodel: x:y\nbudget: {turns: 0}\n", "3:17", "turns"),
    ("name: desk\nmodel: x:y\nbudget: {cost: 5.00 USD}\n", "3:16", "no price in USD"),
    ("name: desk\nmodel: x:y\nprice: {input: 1.00 USD, outptu: 1.00 USD}\n", "3:26", "did you mean output?"),
    ("name: desk\nmodel: x:y\nprice: {input: 1.00 USD, output: 1.00 EUR}\n", "3:8", "one currency"),
    ("name: desk\nmodel: x:y\nhandoffs: [agent.yaml]\n", "3:11", "itself"),
    ("name: *anchor\nmodel: x:y\n", "1:7", ""),
]


@pytest.mark.parametrize(("text", "place", "word"), MISTAKES)
def test_a_mistake_is_refused_with_its_place(folder: Path, text: str, place: str, word: str) -> None:
    (folder / "bad.py").write_text("\nraise ValueError('a secret of theirs')\n")
    path = wrote(folder, text)
    with pytest.raises(Misuse) as refused:
        Agent.load(path)
    assert refused.value.diagnosis.where.startswith(str(path))
    assert f":{place}" in refused.value.diagnosis.where
    assert word in str(refused.value)
    assert "secret of theirs" not in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="cannot be read"):
        Agent.load(tmp_path / "agent.yaml")


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(manifest.Manifest.__struct_fields__),
        st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.lists(st.text(max_size=4), max_size=2),
    )
)
def test_any_values_at_all_are_read_or_misuse(tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("any") / "agent.yaml"
    path.write_bytes(msgspec.json.encode(values))
    try:
        name = read(path).manifest.name
    except Misuse as refused:
        name = refused.diagnosis.where
    assert name in (values.get("name"), str(path)) or name.startswith(f"{path}:")


def test_two_folders_may_each_have_an_app(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "app.py").write_text(CODE.replace("Transfer corporate funds.", "Transfer somebody else's."))
    (other / "policies").mkdir()
    one = Agent.load(wrote(folder, SMALL))
    two = Agent.load(wrote(other, SMALL))
    assert one.tools["pay"].spec.description == "Transfer corporate funds."
    assert two.tools["pay"].spec.description == "Transfer somebody else's."


def test_an_agent_may_hand_off_to_another_file(folder: Path) -> None:
    wrote(folder, "name: helper\nmodel: scripted:script.json\n", "helper.yaml")
    agent = Agent.load(wrote(folder, SMALL + "handoffs: [helper.yaml]\n"))
    assert list(agent.children) == ["helper"]
    assert "handoff_helper" in agent.tools


# -- drift -------------------------------------------------------------------------------------------------------------------
def bound(folder: Path, text: str = SMALL) -> Path:
    """agent.yaml with everything it can bind."""
    path = wrote(folder, text)
    more = asyncio.run(Agent.load(path).bindings())
    return wrote(folder, text + "".join(f"{key}: {json.dumps(value)}\n" for key, value in more.items()))


def test_what_it_binds_may_start(folder: Path) -> None:
    result, _ = run(Agent.load(bound(folder)))
    assert result.state == "completed"


DRIFTS = {
    "a tool's words": ("app.py", "Transfer corporate funds.", "Transfer all of it.", "tool 'pay'"),
    "a tool's effect": ("app.py", 'effect="keyed"', 'effect="irreversible"', "tool 'pay'"),
    "a tool's code": ("app.py", 'Receipt(id="tx-1")', 'Receipt(id="tx-2")', "tool 'pay'"),
    "the instructions": ("prompt.md", "due", "asked", "instructions_sha256"),
    "a policy": ("policies/rules.yaml", "financial", "[financial, privileged]", "policy_digest"),
    "a tool more": ("agent.yaml", "[app:pay]", "[app:pay, app:rate]", "tool 'rate'"),
}


@pytest.mark.parametrize(("file", "old", "new", "word"), DRIFTS.values(), ids=DRIFTS.keys())
def test_drift_is_refused_with_both_sides(folder: Path, file: str, old: str, new: str, word: str) -> None:
    path = bound(folder, SMALL + "instructions_file: prompt.md\n")
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    with pytest.raises(RunRefused) as refused:
        run(_fresh(path))
    drifted = [r for r in refused.value.reasons if r.code == "manifest_drift"]
    assert any(word in r.what and " - " in r.what and " + " in r.what and str(path) in r.what for r in drifted)
    assert {r.code for r in refused.value.reasons} == {"manifest_drift"}


def _fresh(path: Path) -> Agent[Any]:
    """As another process would load it: the module is read again."""
    import sys

    for name in [n for n, m in sys.modules.items() if getattr(m, "__file__", None) == str(path.parent / "app.py")]:
        del sys.modules[name]
    import linecache

    linecache.checkcache()
    return Agent.load(path)


# -- signatures --------------------------------------------------------------------------------------------------------------
AUTHOR = people.signer("author.test/ann")


def trusting(line: str = "") -> Home:
    home = Home(None)
    home.trust()
    if line:
        home.add_trust(line)
    return home


def test_signed_by_a_trusted_author(folder: Path) -> None:
    path = bound(folder)
    assert sign_manifest(path, AUTHOR) == folder / "agent.yaml.sig"
    assert check_manifest(read(path), trusting(f"author ann {AUTHOR.vkey}").trust()).name == "ann"


def test_signed_by_a_stranger_is_said_so_with_the_command_that_trusts_him(folder: Path) -> None:
    """Not "unsigned": the signature holds, only nobody here knows the key."""
    path = bound(folder)
    path.write_text(path.read_text().replace("name: desk", "name: strange desk"))
    sign_manifest(path, AUTHOR)
    found = check_manifest(read(path), trusting().trust())
    assert (found.name, found.stranger, found.vkey) == ("", AUTHOR.vkey.rpartition("+")[0], AUTHOR.vkey)
    said: list[str] = []

    async def story(home: Home) -> None:
        env = await wiring.open_env("memory:", warn=said.append, home=home)
        await Agent.load(path).run("Go", ledger=env)

    asyncio.run(story(trusting()))
    line = next(text for text in said if "does not know" in text)
    assert "unsigned" not in line
    command = line.partition("--add '")[2].rstrip("'")
    said.clear()
    asyncio.run(story(trusting(command)))
    assert not [text for text in said if "agent.yaml" in text], "the command that was named is the one that helps"


def test_a_signature_that_names_another_key_than_signed_is_refused(folder: Path) -> None:
    path = bound(folder)
    other = people.signer("author.test/bea")
    loaded = read(path)
    forged = dsse.sign(manifest.PAYLOAD_TYPE, manifest._signed(loaded, AUTHOR.vkey), [(parse_vkey(other.vkey).id, other.sign)])
    (folder / "agent.yaml.sig").write_bytes(forged)
    for trust in (trusting().trust(), trusting(f"author bea {other.vkey}").trust()):
        with pytest.raises(ProofError):
            check_manifest(read(path), trust)


def test_unsigned_is_said_in_dev(folder: Path) -> None:
    said: list[str] = []

    async def story() -> None:
        env = await wiring.open_env("memory:", warn=said.append)
        await Agent.load(wrote(folder, SMALL.replace("desk", "unsigned desk"))).run("Go", ledger=env)

    asyncio.run(story())
    assert any("unsigned" in text and "agent.yaml" in text for text in said)


@pytest.mark.parametrize("tier", ["cloud", "sovereign"])
def test_unsigned_is_refused_in_other_tiers(folder: Path, tier: str) -> None:
    path = bound(folder)
    with pytest.raises(RunRefused) as refused:
        run(Agent.load(path), tier=tier)
    assert [r.code for r in refused.value.reasons] == ["isolation_missing", "manifest_unsigned"]
    sign_manifest(path, AUTHOR)
    with pytest.raises(RunRefused) as untrusted:
        run(Agent.load(path), tier=tier)
    assert [r.code for r in untrusted.value.reasons] == ["isolation_missing", "manifest_unsigned"]
    assert AUTHOR.vkey.rpartition("+")[0] in untrusted.value.reasons[1].what
    with pytest.raises(RunRefused) as signed:
        run(Agent.load(path), tier=tier, home=trusting(f"author ann {AUTHOR.vkey}"))
    assert [r.code for r in signed.value.reasons] == ["isolation_missing"]


def test_signed_and_changed_is_refused_in_dev_too(folder: Path) -> None:
    path = bound(folder)
    sign_manifest(path, AUTHOR)
    path.write_text(path.read_text() + "purpose: something else\n")
    with pytest.raises(RunRefused, match="not the text that was signed") as refused:
        run(Agent.load(path), home=trusting(f"author ann {AUTHOR.vkey}"))
    assert [r.code for r in refused.value.reasons] == ["manifest_unsigned"]
    (folder / "agent.yaml.sig").unlink()
    assert run(Agent.load(path))[0].state == "completed"


@pytest.mark.parametrize("sig", [b"", b"{}", b"not json", b'{"payload":"","payloadType":"x","signatures":[]}'])
def test_a_signature_that_is_none(folder: Path, sig: bytes) -> None:
    path = wrote(folder, SMALL)
    (folder / "agent.yaml.sig").write_bytes(sig)
    loaded = read(path)
    if not sig:
        assert check_manifest(loaded, Trust()).name == ""
        return
    with pytest.raises(ProofError):
        check_manifest(loaded, Trust())


@pytest.mark.parametrize(
    ("text", "word"), [(SMALL, "pins"), (SMALL, "policy_digest"), (SMALL + "instructions_file: prompt.md\n", "instructions_sha256")]
)
def test_what_binds_nothing_is_not_signed(folder: Path, text: str, word: str) -> None:
    with pytest.raises(Misuse, match=word):
        sign_manifest(wrote(folder, text), AUTHOR)
    assert not (folder / "agent.yaml.sig").exists()


def test_a_refused_start_is_on_the_log(folder: Path) -> None:
    async def story() -> None:
        env = await wiring.open_env("memory:", tier="cloud")
        with pytest.raises(RunRefused):
            await Agent.load(wrote(folder, SMALL)).run("Go", ledger=env)
        types = [decode(raw).type async for raw in env.ledger.read(LOG)]
        assert types == ["LogOpened", "RunRefused"]

    asyncio.run(story())


# -- schemas -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", schemas.FILES)
def test_the_schemas_are_in_step(name: str) -> None:
    assert (schemas.HERE / name).read_text() == schemas.text(name), "python -m mandamus.schemas writes them again"


def test_the_schemas_know_every_key() -> None:
    agent = schemas.agent()["$defs"]["Manifest"]
    assert set(agent["properties"]) == set(manifest.Manifest.__struct_fields__)
    assert agent["additionalProperties"] is False
    forms = schemas.rules()["$defs"]["Document"]["properties"]["rules"]["items"]["oneOf"]
    assert {w for f in forms for w in f["required"]} == {*schemas.KINDS, "rule"}


def test_a_price_and_a_budget_of_money_are_read(folder: Path) -> None:
    agent = Agent.load(wrote(folder, SMALL + 'price: {input: "2.50 USD", output: 10.00 USD}\nbudget: {cost: 5.00 USD}\n'))
    assert (agent.spec.price.input, agent.spec.price.output, agent.spec.budget.cost) == (2_500_000, 10_000_000, 5_000_000)
