"""The attempts that went through, put to all three verifiers: the library, the single file and the page's sources (in node).

What is compared is the exit code; the library's is the right one, as tests/attack/test_red_evidence_bundle.py says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mandamus.core import records as r
from mandamus.errors import Misuse
from mandamus.proof import note, tlogproof, tree, verify
from mandamus.proof.keys import b64
from mandamus.proof.trust import Trust
from mandamus.proof.verify import Beside
from tests.attack.test_bundle_log import log_of, retiring, told
from tests.attack.test_red_evidence_bundle import HOUR_S, Twice, cosigned, noted, renamed
from tests.logged import ALL, NOW, QUORUM, Log, proofs
from tests.samples import (
    ADMIN,
    ADMIN_2,
    BOB,
    BUNDLE_KEY,
    ENOUGH,
    ENOUGH_DIGEST,
    LOG_KEY,
    ORIGIN,
    POLICY,
    TRUST_TEXT,
    W1,
    Keyring,
    Story,
    clock,
    log_chain,
    statement,
    story,
)
from tests.verifiers.html import Node, question
from tests.verifiers.single import SINGLE

pytestmark = pytest.mark.service
Case = tuple[bytes, str, dict[str, Any], int]  # bundle, trust file, how it is asked, the right exit code
DAY = 24 * HOUR_S


def two_groups() -> Case:
    tale = story()
    text = QUORUM.split("group all 2")[0] + "group a any one two\ngroup b any one three\ngroup q all a b\nquorum q\n"
    return tale.bundle(proofs=proofs(tale, witnesses=(W1,))), text, {}, 2


def no_quorum_line() -> Case:
    return story().bundle(), QUORUM.replace("quorum all\n", ""), {}, 2


def hidden_line() -> Case:
    return story().bundle(), QUORUM.replace("quorum all\n", "# as agreed\rquorum all\nquorum none\n"), {}, 2


def turned_line() -> Case:
    return story().bundle(), TRUST_TEXT + "# \u202e as agreed\n", {}, 2


def other_space() -> Case:
    return story().bundle(), TRUST_TEXT.replace("quorum none", "quorum\u2003none"), {}, 2


def young_by_one() -> Case:
    tale = story()
    log = log_of(tale)
    lone = cosigned(log, {"one": NOW, "two": NOW, "three": NOW + DAY})
    return tale.bundle(proofs=noted(log, tale, lone)), QUORUM, {"now": NOW + DAY, "max_age": HOUR_S}, 3


def two_policies() -> Case:
    tale = Twice()
    tale.reached = False
    tale.tell()
    log = Log().add([*tale.log.raws, *tale.chain.raws])
    return tale.bundle(proofs=proofs(tale, log), policies={tale.policy: POLICY, ENOUGH_DIGEST: ENOUGH}), QUORUM, {}, 1


def renamed_approver() -> Case:
    gone = r.KeyChanged(clock=clock(2), old=str(renamed(BOB, "bob-of-2019")), principal="p-bob", role="approver")
    return Story(log=log_chain((gone, {})), authority=1).tell().bundle(), TRUST_TEXT, {}, 1


def renamed_bundle_key() -> Case:
    tale = retiring(BUNDLE_KEY, Keyring.of("bundles-2"), "bundle")
    alias = renamed(BUNDLE_KEY, "archive")
    return tale.bundle(key=alias), TRUST_TEXT.replace(str(BUNDLE_KEY.key), str(alias)), {}, 1


def retired_owner() -> Case:
    fresh = Keyring.of(ORIGIN, "fresh")
    change = r.KeyChanged(clock=clock(2), new=str(fresh.key), old=str(LOG_KEY.key), principal="operator", role="log")
    tale = Story(authority=3, owner=LOG_KEY)
    tale.log.add(change, statement=statement(change, ADMIN, ADMIN_2, LOG_KEY, fresh, nonce="rotate"))
    tale.tell()
    log = Log(fresh).add([*tale.log.raws, *tale.chain.raws])
    return tale.bundle(proofs=proofs(tale, log)), QUORUM + f"log {fresh.key}\n", {}, 1


def enormous_tree() -> Case:
    tale = story()
    run, log = (tree.leaf_hash(raws[-1]) for raws in (tale.chain.raws, tale.log.raws))
    left = b"\x22" * 32
    text = f"{ORIGIN}\n{(1 << 53) + 2}\n{b64(tree.node_hash(left, tree.node_hash(log, run)))}\n"
    signed = note.write(text, [note.sign_line(text, LOG_KEY.key, LOG_KEY.sign), *(note.cosign_line(text, w.key, w.sign, NOW) for w in ALL)])
    lines = (tlogproof.write((1 << 53) + 1, [log, left], signed), tlogproof.write(1 << 53, [run, left], signed))
    return tale.bundle(proofs=lines), QUORUM, {}, 1


def levels_nobody_saw() -> Case:
    tale, log = told()
    return tale.bundle(proofs=tale.lines(log, witnesses=())), TRUST_TEXT, {}, 0


CASES = (
    two_groups, no_quorum_line, hidden_line, turned_line, other_space, young_by_one, two_policies, renamed_approver, renamed_bundle_key,
    retired_owner, enormous_tree, levels_nobody_saw,
)  # fmt: skip


@pytest.fixture(name="node", scope="module")
def _node() -> Iterator[Node]:
    with Node() as node:
        yield node


def by_library(raw: bytes, text: str, now: int, max_age: int | None) -> dict[str, Any]:
    try:
        roots = Trust.parse(text.encode())
    except Misuse:
        return {"exit_code": 2}
    return verify(raw, roots, Beside(now=now, max_age=max_age)).as_json()


def by_single(raw: bytes, text: str, now: int, max_age: int | None) -> dict[str, Any]:
    try:
        report: dict[str, Any] = SINGLE.verify(raw, text.encode(), now=now, max_age=max_age)
    except SINGLE.Usage:
        return {"exit_code": 2}
    return report


@pytest.mark.parametrize("reader", ["library", "single", "page"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_all_three_answer_alike(case: Any, reader: str, node: Node) -> None:
    raw, text, how, code = case()
    asked: dict[str, Any] = {"now": NOW, "max_age": None} | how
    match reader:
        case "library":
            report = by_library(raw, text, **asked)
        case "single":
            report = by_single(raw, text, **asked)
        case _:
            report = node.ask(question(raw, text, **asked))
    assert report["exit_code"] == code, report
    if code == 0:
        assert [c["outcome"] for c in report["claims"] if c["name"] == "levels"] == ["cannot check now"]
