"""What `--json` answers is published: every verb's real answer is held against the types that its schema is made of."""

from __future__ import annotations

import importlib
import json
import pkgutil
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mandamus.cli import _shapes, shapes
from mandamus.cli.table import NOUNS, VERBS
from mandamus.core.canonical import canon
from mandamus.drivers.sign_file import FileSigner
from mandamus.proof import authority, dsse
from tests.e2e.cli_world import World

ROOT = Path(__file__).parents[2]
# A day's work; `{id}`, `{digest}` and `{allowance}` stand for what waits and stands by then.
DAY = """
init payout desk --dry-run
run payout.py:small Pay
run payout.py:small Pay --follow
run payout.py Pay --dry-run
run payout.py:small Pay --detach
worker payout.py:small --until-idle
top
runs
show last
show last --events
show last --events -v --as spec
why last/1.1
replay last
fork last --at 2
diff last {first}
run payout.py Pay
show last
inbox
approve {id} --key alice.pem --digest {digest} --dry-run
approve {id} --key alice.pem --digest {digest} --idempotency-key k
approve {id} --key alice.pem --digest {digest} --idempotency-key k
reject {id} --key bob.pem --digest {digest}
resume last
run payout.py:lost Wire
inbox
settle {id} --done --key alice.pem --digest {digest}
run payout.py Pay
cancel last --key alice.pem --dry-run
cancel last --key alice.pem
hold place --run last --ground legal_claims
hold list
hold lift {hold}
forget --run {first} --dry-run
bundle last -o run.bundle --views views
verify run.bundle --trust .mandamus/trust --views views
export run.bundle --as html -o run.html
export log --as bundle -o log.bundle
verify log.bundle --trust .mandamus/trust --sample 1 --seed s
log head
log query --limit 2
log prove last -o last.proof
log consistency 1 2
log export files
log compact
verify payout.py --trust .mandamus/trust
verify none --trust .mandamus/trust
certify payout.py:small --sqlite 0
certify examples/minimal --sqlite 0
doctor
doctor payout.py:small
help MDM-0332
help
completion bash
schema
schema key list
key new carol.pem --name carol
key enroll --principal p-carol --role treasury --key carol.pem
key trust
witness status
key list
key sign statement.json --key carol.pem --yes
key rotate --role bundle
manifest show agent.yaml
manifest sign bound.yaml --key carol.pem
allowance grant payout.py --tool send_payment --count 2 --amount "1000.00 USD" --until 1h --key alice.pem
allowance list
allowance withdraw {allowance}
key revoke --principal p-carol
nonsense
run nothing.py Pay
run refused.yaml Pay
ledger copy sqlite:///.mandamus/run.db sqlite:///.mandamus/new.db --dry-run
ledger copy sqlite:///.mandamus/run.db sqlite:///.mandamus/new.db
""".strip().splitlines()


PARTS = (_shapes, *(importlib.import_module(f"mandamus.cli._shapes.{m.name}") for m in pkgutil.iter_modules(_shapes.__path__)))
CLOSED = {name for part in PARTS for name, kind in vars(part).items() if isinstance(kind, type) and issubclass(kind, _shapes.Closed)}


@pytest.fixture
def world(world: World, tmp_path: Path) -> World:
    world.people()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    text = (tmp_path / "agent.yaml").read_text()
    (tmp_path / "refused.yaml").write_text(text + "pins: {send_payment: nonsense}\n")
    binds = world.ok("manifest", "show", "agent.yaml", "--json").data["bindings"]
    (tmp_path / "bound.yaml").write_text(text + f"pins: {json.dumps(binds['pins'])}\npolicy_digest: {binds['policy_digest']}\n")
    dpo = FileSigner.create(tmp_path / "dpo.pem", "dpo")
    said = canon({"fact": {"new": "x"}, "type": "KeyChanged"})
    (tmp_path / "statement.json").write_bytes(dsse.sign(authority.PAYLOAD_TYPE, said, [(dpo.keyid, dpo.sign)]))
    return world


def filled(world: World, line: str) -> list[str]:
    known: dict[str, Any] = {}
    if "{id}" in line:
        known |= next({"id": x["id"], "digest": x["digest"]} for x in reversed(world("inbox", "--json").stream))
    if "{allowance}" in line:
        known["allowance"] = world("allowance", "list", "--json").stream[-1]["name"]
    if "{hold}" in line:
        known["hold"] = world("hold", "list", "--json").stream[-1]["hold"]
    if "{first}" in line:
        known["first"] = world("runs", "--json").stream[0]["run"]
    return shlex.split(line.format(**known))


def test_every_answer_has_the_shape_that_is_published(world: World) -> None:
    seen: set[tuple[str, str]] = set()
    for line in DAY:
        args = filled(world, line)
        verb = " ".join(args[:2]) if args[0] in NOUNS else args[0]
        told = world(*args, "--json")
        assert told.stream, (line, told)
        for answer in told.stream:
            seen.add((verb, fitting(verb, answer, line)))
    wanted = {(verb, kind.__name__) for verb, kinds in shapes.SHAPES.items() for kind in kinds} - {
        ("demo", "Told"),  # test_demo.py plays it, and holds it against its shape
        ("inbox", "Unreadable"), ("resume", "Followed"),
        ("witness serve", "Served"),  # it serves until it is told to end: test_witness_cli.py
    }  # fmt: skip
    assert wanted - seen == set(), "each published shape is one that was met"


def fitting(verb: str, answer: Any, line: str) -> str:
    """The one shape of the verb that the answer has, to the letter."""
    wrong = []
    for kind in (*shapes.SHAPES.get(verb, ()), shapes.Failed):
        try:
            msgspec.convert(answer, kind, strict=True)
            return kind.__name__
        except msgspec.ValidationError as error:
            wrong.append(f"{kind.__name__}: {error}")
    raise AssertionError(f"{line}: {wrong}\n{json.dumps(answer)[:2000]}")


def test_every_verb_is_published() -> None:
    assert set(shapes.SHAPES) == {*VERBS, *(f"{noun} {verb}" for noun, (_, verbs) in NOUNS.items() for verb in verbs)}


@pytest.mark.parametrize("verb", shapes.SHAPES)
def test_a_schema_is_closed_and_names_its_parts(verb: str) -> None:
    made = shapes.schema(verb)
    text = json.dumps(made)
    assert all(f'"{name}"' in text for name in made["$defs"])
    for name, part in made["$defs"].items():
        if part.get("type") == "object" and "properties" in part and name in CLOSED:
            assert part["additionalProperties"] is False, name


def test_a_word_that_is_no_verb_is_told_with_the_nearest(world: World) -> None:
    told = world("schema", "key", "lst")
    assert (told.code, "mandamus schema key list" in told.err) == (2, True)
    assert json.loads(world.ok("schema", "run").out)["title"] == "mandamus run --json"
