"""The trust file: what it says, and every way in which it is refused, with the line and the fix."""

from __future__ import annotations

import pytest

from mandamus.errors import Misuse
from mandamus.proof import Trust
from mandamus.proof.trust import TRUST_BYTES_MAX
from tests.samples import ADMIN, ALICE, ALICE_2, BUNDLE_KEY, CAROL, LOG_KEY, ORIGIN, STRANGER, TRUST_TEXT, W1, W2, W3, trust


def test_what_a_trust_file_says() -> None:
    roots = trust()
    assert roots.log_keys(ORIGIN) == (LOG_KEY.key,)
    assert roots.log_keys("other") == ()
    assert roots.bundle_keys(ORIGIN) == (BUNDLE_KEY.key,)
    assert {principal for principal, _ in roots.approvers.values()} == {"p-alice", "p-bob"}
    assert len(roots.approvers) == 3
    assert roots.roles_of("p-alice") == ("treasurer",)
    assert roots.roles_of("p-carol") == ()
    assert roots.quorum == "none"
    assert roots.approver(ALICE_2.key.id) == [("p-alice", ALICE_2.key)]


def test_its_digest_is_of_what_it_says_not_of_how_it_is_written() -> None:
    lines = TRUST_TEXT.strip().split("\n")
    shuffled = "# another comment\r\n" + "\r\n".join(reversed(lines[1:])) + "\r\n"
    assert trust(shuffled).digest == trust().digest
    assert trust(TRUST_TEXT.replace("p-bob", "p-bert")).digest != trust().digest


def test_witnesses_groups_and_quorum_are_read() -> None:
    text = (
        f"log {LOG_KEY.key}\nwitness w1 {W1.key}\nwitness w2 {W2.key}\nwitness w3 {W3.key}\ngroup g 1 w1 w2\ngroup h all g w3\nquorum h\n"
    )
    roots = trust(text)
    assert (roots.quorum, roots.groups["g"].k, roots.groups["h"].k) == ("h", 1, 2)
    assert set(roots.witnesses) == {"w1", "w2", "w3"}


def test_with_several_logs_a_bundle_key_belongs_to_one() -> None:
    other = CAROL.key
    text = f"log {LOG_KEY.key}\nlog {other}\nbundle {ORIGIN} {BUNDLE_KEY.key}\nbundle carol {ADMIN.key}\n"
    roots = trust(text)
    assert roots.bundle_keys(ORIGIN) == (BUNDLE_KEY.key,)
    assert roots.bundle_keys("carol") == (ADMIN.key,)


BAD = {
    "unknown word": ("logg x", 1),
    "no key": ("log", 1),
    "words too many": (f"log {LOG_KEY.key} more", 1),
    "bad key": ("\n\nlog abc", 3),
    "wrong id": ("log " + str(LOG_KEY.key).replace(LOG_KEY.key.id, "00000000"), 1),
    "key twice": (f"admin {ALICE.key}\napprover p-alice {ALICE.key}", 2),
    "key of two people": (f"approver p-alice {ALICE.key}\napprover p-bob {ALICE.key}", 2),
    "same line twice": (f"log {LOG_KEY.key}\nlog {LOG_KEY.key}", 2),
    "two logs, bundle of neither": (f"log {LOG_KEY.key}\nlog {STRANGER.key}\nbundle local {BUNDLE_KEY.key}", 3),
    "role without people": ("role treasurer", 1),
    "not ASCII": (f"approver p-\u0430lice {ALICE.key}", 1),
    "group of nobody": ("group g 1", 1),
    "group of unknown": ("group g 1 w9", 1),
    "group k too large": (f"witness w1 {W1.key}\ngroup g 2 w1", 2),
    "group k zero": (f"witness w1 {W1.key}\ngroup g 0 w1", 2),
    "group member twice": (f"witness w1 {W1.key}\ngroup g any w1 w1", 2),
    "name taken": (f"witness w1 {W1.key}\nwitness w1 {W2.key}", 2),
    "name none": (f"witness none {W1.key}", 1),
    "quorum unknown": ("quorum g", 1),
    "two quorums": ("quorum none\nquorum none", 2),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_lines_are_named(name: str) -> None:
    text, line = BAD[name]
    with pytest.raises(Misuse) as caught:
        Trust.parse(text, "my.trust")
    assert caught.value.diagnosis.where == f"my.trust:{line}"
    assert caught.value.diagnosis.fix


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"#" * (TRUST_BYTES_MAX + 1)])
def test_files_that_are_no_trust_file(raw: bytes) -> None:
    with pytest.raises(Misuse):
        Trust.parse(raw)


def test_an_empty_file_trusts_nobody() -> None:
    roots = Trust.parse("# nothing\n\n")
    assert (roots.logs, roots.bundles, roots.approvers) == ((), (), {})
