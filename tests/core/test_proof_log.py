"""The log's pure half: trees, notes, checkpoints, proofs, held against the vectors of others and against a slow tree of our own.

Vectors: transparency-dev/merkle (inclusion and consistency, good and broken), transparency-dev/tessera (a real tile log), golang.org/x/mod
sumdb/note (its published example). Their licences stand beside them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from mandamus.errors import Misuse, ProofError
from mandamus.proof import note, tlogproof, tree
from mandamus.proof.keys import COSIGNER, P256, VKey, parse_vkey, verify, vkey
from mandamus.proof.trust import Trust

VECTORS = Path(__file__).parent.parent / "data" / "vectors"
TESSERA = VECTORS / "tessera_log" / "testdata" / "log"
PROOFS = json.loads((VECTORS / "merkle" / "proofs.json").read_text())
LEAVES = [tree.leaf_hash(b"%d" % n) for n in range(600)]


def unb64(text: str | None) -> bytes:
    return base64.b64decode(text or "")


def slow_root(leaves: list[bytes]) -> bytes:
    """RFC 6962, 2.1, word for word."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\1" + slow_root(leaves[:k]) + slow_root(leaves[k:])).digest()


def grown(size: int, step: int = 1) -> tree.Tree:
    out = tree.Tree()
    for at in range(0, size, step):
        out.extend(LEAVES[at : min(at + step, size)])
    return out


WHOLE = grown(600, 7)


# -- the tree ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", PROOFS["inclusion"], ids=lambda c: c["name"])
def test_foreign_inclusion(case: dict[str, Any]) -> None:
    proof = [unb64(p) for p in case["proof"] or []]
    good = tree.verify_inclusion(unb64(case["leafHash"]), case["leafIdx"], case["treeSize"], proof, unb64(case["root"]))
    assert good is not case["wantErr"]


@pytest.mark.parametrize("case", PROOFS["consistency"], ids=lambda c: c["name"])
def test_foreign_consistency(case: dict[str, Any]) -> None:
    proof = [unb64(p) for p in case["proof"] or []]
    good = tree.verify_consistency(case["size1"], case["size2"], unb64(case["root1"]), unb64(case["root2"]), proof)
    assert good is not case["wantErr"]


def test_every_size_has_the_root_that_the_rfc_says_however_it_grew() -> None:
    for size in range(0, 131):
        assert grown(size, 1).root() == grown(size, 64).root() == WHOLE.root(size) == slow_root(LEAVES[:size])


@given(st.integers(1, 600), st.data())
def test_what_is_in_can_be_proved_and_nothing_else(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    proof, root = WHOLE.inclusion(index, size), WHOLE.root(size)
    assert tree.verify_inclusion(LEAVES[index], index, size, proof, root)
    assert not tree.verify_inclusion(LEAVES[(index + 1) % 600], index, size, proof, root)
    assert not tree.verify_inclusion(LEAVES[index], index, size, [*proof, LEAVES[0]], root)
    assert not tree.verify_inclusion(LEAVES[index], size, size, proof, root)
    if proof:
        assert not tree.verify_inclusion(LEAVES[index], index, size, proof[:-1], root)
        assert not tree.verify_inclusion(LEAVES[index], index, size, [proof[0][:31], *proof[1:]], root)


@given(st.integers(1, 600), st.data())
def test_growth_can_be_proved_and_a_fork_cannot(new: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, new))
    proof = WHOLE.consistency(old, new)
    assert tree.verify_consistency(old, new, WHOLE.root(old), WHOLE.root(new), proof)
    other = tree.Tree()
    other.extend([*LEAVES[: old - 1], tree.leaf_hash(b"other")])
    assert not tree.verify_consistency(old, new, other.root(), WHOLE.root(new), proof)
    assert not tree.verify_consistency(old, new, WHOLE.root(old), WHOLE.root(new), [*proof, LEAVES[0]])
    assert not tree.verify_consistency(0, new, tree.EMPTY_ROOT, WHOLE.root(new), proof)


def test_a_record_is_no_node_and_a_node_no_leaf() -> None:
    pair = LEAVES[0] + LEAVES[1]
    assert tree.leaf_hash(pair) != tree.node_hash(LEAVES[0], LEAVES[1])
    assert not tree.verify_inclusion(tree.node_hash(LEAVES[0], LEAVES[1]), 0, 4, [WHOLE.node(1, 1)], WHOLE.root(4))


def test_tiles_are_named_as_others_name_them() -> None:
    assert tree.tile_path(0, 1234067) == "tile/0/x001/x234/067"
    assert tree.tile_path(2, 7, 13) == "tile/2/007.p/13"
    assert tree.entries_path(1000) == "tile/entries/x001/000"
    for index, width in ((-1, 256), (0, 0), (0, 257)):
        with pytest.raises(ValueError):
            tree.tile_path(0, index, width)


def test_wrong_numbers_are_refused() -> None:
    for ask in (lambda: WHOLE.root(601), lambda: WHOLE.inclusion(600), lambda: WHOLE.consistency(5, 4), lambda: WHOLE.extend([b"short"])):
        with pytest.raises(ValueError):
            ask()


# -- a real log of another program -------------------------------------------------------------------------------------------
TESSERA_KEY = parse_vkey("example.com/log/testdata+33d7b496+AeHTu4Q3hEIMHNqc6fASMsq3rKNx280NI+oO5xCFkkSx")
TESSERA_TRUST = Trust.parse(f"log {TESSERA_KEY}")


def tessera_records() -> list[bytes]:
    out, raw = [], (TESSERA / "tile" / "entries" / "000.p" / "15").read_bytes()
    while raw:
        size = int.from_bytes(raw[:2], "big")
        out.append(raw[2 : 2 + size])
        raw = raw[2 + size :]
    return out


def test_a_foreign_log_is_read_checked_and_proved() -> None:
    mine = tree.Tree()
    mine.extend([tree.leaf_hash(record) for record in tessera_records()])
    assert mine.tile(0, 0) == (TESSERA / "tile" / "0" / "000.p" / "15").read_bytes()
    found = {}
    for file in [TESSERA / "checkpoint", *TESSERA.glob("checkpoint.*")]:
        if file.name == "checkpoint.0":
            continue  # below
        done = note.check(file.read_bytes(), TESSERA_TRUST, "example.com/log/testdata")
        assert done.checkpoint.root == mine.root(done.checkpoint.size)
        found[done.checkpoint.size] = done.checkpoint.root
    assert sorted(found) == list(range(1, 16))
    for old, new in ((1, 15), (7, 8), (8, 15), (12, 13)):
        assert tree.verify_consistency(old, new, found[old], found[new], mine.consistency(old, new))


def test_an_empty_foreign_log_is_one_too() -> None:
    assert note.check((TESSERA / "checkpoint.0").read_bytes(), TESSERA_TRUST, "example.com/log/testdata").checkpoint.size == 0


# -- notes -------------------------------------------------------------------------------------------------------------------
GO_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
GO_NOTE = f"{GO_TEXT}\n— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"


def test_the_published_example_of_a_signed_note() -> None:
    read = note.parse_note(GO_NOTE.encode())
    assert read.text == GO_TEXT
    assert [seen.key.name for seen in note.seen(read, [parse_vkey(GO_KEY)])] == ["PeterNeumann"]


def keys(name: str, kind: int = 1) -> tuple[VKey, Any]:
    private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())
    return vkey(name, private.public_key().public_bytes_raw(), kind), private.sign


ORIGIN = "log.example/tenant"
LOG, LOG_SIGN = keys(ORIGIN)
WITNESSES = [keys(f"w{n}.example", COSIGNER) for n in range(3)]
TRUST = Trust.parse(
    f"log {LOG}\n" + "".join(f"witness w{n} {key}\n" for n, (key, _) in enumerate(WITNESSES)) + "group two 2 w0 w1 w2\nquorum two\n"
)
CHECKPOINT = note.Checkpoint(ORIGIN, 600, WHOLE.root())
TIME = 1_795_000_000


def signed(*cosigners: int, text: str = CHECKPOINT.text, time: int = TIME) -> bytes:
    lines = [note.sign_line(text, LOG, LOG_SIGN), *(note.cosign_line(text, *WITNESSES[n], time) for n in cosigners)]
    return note.write(text, lines)


def test_a_quorum_of_witnesses() -> None:
    assert [note.check(signed(*who), TRUST, ORIGIN).met for who in ((), (0,), (0, 2), (0, 1, 2))] == [False, False, True, True]
    done = note.check(signed(1, 2), TRUST, ORIGIN)
    assert (done.checkpoint, done.log) == (CHECKPOINT, LOG)
    assert [(seen.key.name, seen.time) for seen in done.cosigners] == [("w1.example", TIME), ("w2.example", TIME)]


def test_one_witness_twice_is_one_witness() -> None:
    twice = signed(1) + note.cosign_line(CHECKPOINT.text, *WITNESSES[1], TIME + 1).encode()
    assert not note.check(twice, TRUST, ORIGIN).met


def test_a_line_of_a_known_key_that_does_not_hold_rejects_the_whole_note() -> None:
    whole = signed(0, 1, 2)
    torn = whole[:-40] + (b"A" if whole[-40:-39] != b"A" else b"B") + whole[-39:]
    with pytest.raises(ProofError) as refused:
        note.check(torn, TRUST, ORIGIN)
    assert refused.value.diagnosis.code in ("MDM-0901", "MDM-0900")


def test_strangers_are_passed_over() -> None:
    stranger = note.sign_line(CHECKPOINT.text, *keys("stranger.example"))
    assert note.check(signed(0, 1) + stranger.encode(), TRUST, ORIGIN).met


def test_a_witness_is_not_its_log() -> None:
    only = note.write(CHECKPOINT.text, [note.cosign_line(CHECKPOINT.text, *WITNESSES[0], TIME)])
    as_log = note.write(CHECKPOINT.text, [note.sign_line(CHECKPOINT.text, *WITNESSES[0])])
    for raw in (only, as_log):
        with pytest.raises(ProofError):
            note.check(raw, TRUST, ORIGIN)


def test_another_log_is_another_log() -> None:
    with pytest.raises(ProofError, match="another log"):
        note.check(signed(0, 1), TRUST, "log.example/other")


def test_a_cosignature_from_the_future_is_none() -> None:
    assert note.check(signed(0, 1), TRUST, ORIGIN, now=TIME - 300).met
    with pytest.raises(ProofError, match="future"):
        note.check(signed(0, 1), TRUST, ORIGIN, now=TIME - 301)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.replace(b"\n600\n", b"\n0600\n"),
        lambda raw: raw.replace(b"\n600\n", b"\n6e2\n"),
        lambda raw: raw.replace(b"\n600\n", b"\n9007199254740993000\n"),
        lambda raw: raw.replace(b"\n\n", b"\nextra line\n\n", 1),
        lambda raw: raw.replace(b"\n\n", b"\r\n\r\n", 1),
        lambda raw: raw.replace(b"\n\n", b"\n", 1),
        lambda raw: raw[:-1],
        lambda raw: raw + b"\n",
        lambda raw: raw + b"not a signature line\n",
        lambda raw: raw.replace("—".encode(), b"-"),
        lambda raw: b"\xef\xbb\xbf" + raw,
        lambda raw: raw.replace(b"log.example", b"log example", 1),
        lambda raw: raw + note.sign_line(CHECKPOINT.text, *keys("x")).encode() * 40,
        lambda raw: b"x" * (1 << 19) + raw,
        lambda raw: b"\xff" + raw,
        lambda raw: b"",
    ],
)  # fmt: skip
def test_what_is_not_written_as_a_checkpoint_is_none(change: Any) -> None:
    with pytest.raises(ProofError):
        note.check(change(signed(0, 1)), TRUST, ORIGIN)


def test_dirty_base64_is_refused() -> None:
    """The last digit before the padding carries bits that a tolerant reader throws away: two notes would be one."""
    raw = signed().decode()
    root = raw.split("\n")[2]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    dirty = root[:-2] + alphabet[alphabet.index(root[-2]) | 1] + "="
    assert base64.b64decode(dirty) == base64.b64decode(root)
    assert dirty != root
    with pytest.raises(ProofError, match="root"):
        note.check(raw.replace(root, dirty).encode(), TRUST, ORIGIN)


@given(st.integers(0, len(signed(0, 1)) - 1), st.integers(1, 255))
def test_no_byte_of_a_checkpoint_can_change(at: int, by: int) -> None:
    raw = bytearray(signed(0, 1))
    raw[at] ^= by
    try:
        done = note.check(bytes(raw), TRUST, ORIGIN)
    except ProofError:
        return
    assert done.checkpoint == CHECKPOINT, "what is signed was changed"
    assert not done.met, "a name or an id was changed: that line is a stranger's now"


# -- proofs of one record ----------------------------------------------------------------------------------------------------
def test_a_proof_is_read_as_it_was_written() -> None:
    for extra in (b"", b"the sealing record of a child"):
        raw = tlogproof.write(77, WHOLE.inclusion(77), signed(0, 1), extra)
        read = tlogproof.parse(raw)
        assert (read.index, list(read.path), read.note, read.extra) == (77, WHOLE.inclusion(77), signed(0, 1), extra)
        assert raw.startswith(b"c2sp.org/tlog-proof@v1\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.replace(b"tlog-proof@v1", b"tlog-proof@v2"),
        lambda raw: raw.replace(b"index 77", b"index 077"),
        lambda raw: raw.replace(b"index 77", b"index -7"),
        lambda raw: raw.replace(b"index 77\n", b""),
        lambda raw: raw.replace(b"\n\n", b"\n" + b"A" * 43 + b"=\n" * 1 + b"\n", 1).replace(b"index 77\n", b"index 77\nAAAA\n"),
        lambda raw: raw.replace(b"index 77\n", b"index 77\n" + (base64.b64encode(bytes(32)) + b"\n") * 64),
        lambda raw: raw.partition(b"\n\n")[0],
        lambda raw: b"",
        lambda raw: raw.replace(b"index", "índex".encode()),
    ],
)  # fmt: skip
def test_what_is_not_written_as_a_proof_is_none(change: Any) -> None:
    with pytest.raises(ProofError):
        tlogproof.parse(change(tlogproof.write(77, WHOLE.inclusion(77), signed(0, 1))))


def test_a_million_lines_are_refused_before_they_are_read() -> None:
    bomb = tlogproof.write(1, [bytes(32)] * 100_000, signed())
    with pytest.raises(ProofError, match="more than 63"):
        tlogproof.parse(bomb)


# -- keys of the curve P-256 -------------------------------------------------------------------------------------------------
def p256() -> tuple[VKey, ec.EllipticCurvePrivateKey]:
    private = ec.derive_private_key(12345678901234567890, ec.SECP256R1())
    public = private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return vkey("hsm.example", public, P256), private


def test_a_p256_key_is_read_and_verifies_with_its_own_rule_only() -> None:
    key, private = p256()
    assert parse_vkey(str(key)) == key
    r, s = utils.decode_dss_signature(private.sign(b"message", ec.ECDSA(SHA256())))
    signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    assert verify(key, b"message", signature)
    assert not verify(key, b"another", signature)
    assert not verify(key, b"message", signature[:-1])
    assert not verify(key, b"message", bytes(64))
    ed, sign = keys("ed")
    assert not verify(key, b"message", sign(b"message"))
    assert not verify(ed, b"message", signature)


@pytest.mark.parametrize("public", [b"", bytes(65), b"\x04" + b"\x01" * 64, b"\x02" + b"\x01" * 32, b"\x04" + b"\xff" * 64])
def test_what_is_no_point_is_no_key(public: bytes) -> None:
    with pytest.raises(Misuse):
        vkey("hsm.example", public, P256)


def test_licences_stand_beside_the_vectors() -> None:
    for folder in ("merkle", "tessera_log"):
        assert re.search("Apache License", (VECTORS / folder / "LICENSE").read_text())
