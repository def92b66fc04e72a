"""The walks of `test_fuzz`, with the sources of `verify.html` in the place of the single file: whatever is changed, and signed again by an
insider or not, the library and the JavaScript answer alike, claim by claim."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mandamus.proof import verify
from mandamus.proof.verify import Beside
from tests.logged import NOW
from tests.samples import TRUST_TEXT
from tests.verifiers import test_fuzz as fuzz
from tests.verifiers.html import Node, question, said_by
from tests.verifiers.single import said


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node() as running:
        yield running


@pytest.fixture(autouse=True)
def in_javascript(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question of the walks goes to node as well."""

    def answered(raw: bytes, trust: str = TRUST_TEXT) -> int:
        report = verify(raw, fuzz.roots(trust), Beside(now=NOW))
        other = node.ask(question(raw, trust, now=NOW))
        assert said_by(other) == said(report), f"library: {report.broken}\nverify.html: {other.get('broken')}"
        return report.exit_code

    monkeypatch.setattr(fuzz, "answered", answered)


@pytest.mark.parametrize("name", fuzz.BUNDLES)
def test_bytes(name: str) -> None:
    fuzz.walk_bytes(name, 2, 60)


@pytest.mark.parametrize("section", ["record", "log"])
def test_each_field_of_each_type_of_record(section: str) -> None:
    """Each field of each type of record, changed, relinked and signed again."""
    assert fuzz.walk_fields("eventful", section, 7, 3, caught=True) > 400


@pytest.mark.parametrize("name", ["plain", "allowance", "tiers", "again", "members"])
def test_fields_that_nobody_witnessed(name: str) -> None:
    for section, every in (("record", 23), ("log", 11), ("account", 5), ("payload", 23), ("policy", 3), ("key", 2)):
        fuzz.walk_fields(name, section, every, 1, caught=False)


def test_proof_lines() -> None:
    fuzz.walk_proofs(2, 250)


def test_rules() -> None:
    fuzz.walk_rules(5, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.BUNDLES)
def test_many_bytes(name: str) -> None:
    fuzz.walk_bytes(name, 200, 5000)


@pytest.mark.slow
@pytest.mark.parametrize("section", ["record", "log"])
def test_all_fields_of_all_types_of_record(section: str) -> None:
    fuzz.walk_fields("eventful", section, 1, 0, caught=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", fuzz.BUNDLES)
def test_all_fields_that_nobody_witnessed(name: str) -> None:
    for section in ("record", "log", "account", "payload", "policy", "key"):
        fuzz.walk_fields(name, section, 1, 0, caught=False)


@pytest.mark.slow
def test_many_proof_lines_and_all_rules() -> None:
    fuzz.walk_proofs(200, 10_000)
    fuzz.walk_rules(1, 0)
