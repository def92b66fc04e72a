"""Keys, the point guard, envelopes: on what strict verifiers agree, and nothing else."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandamus.core.canonical import canon, parse
from mandamus.errors import Misuse, ProofError
from mandamus.proof import dsse
from mandamus.proof.keys import _SMALL_ORDER, VKey, b64, parse_vkey, point_ok, unb64, verify, verify_raw, vkey
from tests.samples import ALICE, BOB, STRANGER

CASES = json.loads((Path(__file__).parent.parent / "data" / "vectors" / "ed25519" / "ed25519vectors.json").read_bytes())

# -- a strict verifier after RFC 8032, cofactorless, in plain arithmetic: the second opinion ----------------------------------------
P, Q = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D, ROOT = -121665 * pow(121666, P - 2, P) % P, pow(2, (P - 1) // 4, P)
Point = tuple[int, int, int, int]
NEUTRAL: Point = (0, 1, 1, 0)


def add(a: Point, b: Point) -> Point:
    x, y = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    z, w = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = y - x, w - z, w + z, y + x
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(n: int, a: Point) -> Point:
    out = NEUTRAL
    while n:
        out = add(out, a) if n & 1 else out
        a, n = add(a, a), n >> 1
    return out


def same(a: Point, b: Point) -> bool:
    return (a[0] * b[2] - b[0] * a[2]) % P == 0 and (a[1] * b[2] - b[1] * a[2]) % P == 0


def point(raw: bytes) -> Point | None:
    n = int.from_bytes(raw, "little")
    y, sign = n & ((1 << 255) - 1), n >> 255
    if y >= P:
        return None
    x2 = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(x2, (P + 3) // 8, P)
    x = x if (x * x - x2) % P == 0 else x * ROOT % P
    if (x * x - x2) % P or (x == 0 and sign):
        return None
    x = P - x if (x & 1) != sign else x
    return x, y, 1, x * y % P


def strong(raw: bytes) -> bool:
    a = point(raw) if len(raw) == 32 else None
    return a is not None and not same(times(8, a), NEUTRAL)


GENERATOR = point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def strictly(key: bytes, message: bytes, signature: bytes) -> bool:
    s, r, a = int.from_bytes(signature[32:], "little"), point(signature[:32]), point(key)
    if not strong(key) or not strong(signature[:32]) or s >= Q or r is None or a is None or GENERATOR is None:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % Q
    return same(times(s, GENERATOR), add(r, times(k, a)))


def test_edge_cases_on_which_verifiers_disagree() -> None:
    """914 foreign vectors: no disagreement with the strict check, in both directions."""
    tally: Counter[tuple[bool, bool]] = Counter()
    for case in CASES:
        triple = bytes.fromhex(case["key"]), case["msg"].encode(), bytes.fromhex(case["sig"])
        tally[verify_raw(*triple), strictly(*triple)] += 1
    assert tally == {(True, True): 43, (False, False): 914 - 43}


def test_the_guard_is_the_points_of_small_order_and_nothing_else() -> None:
    """Eight points, five values of y; the guard needs no curve arithmetic because of this."""
    assert len(_SMALL_ORDER) == 5
    for y in _SMALL_ORDER:
        found = point(y.to_bytes(32, "little"))
        assert found is not None
        assert same(times(8, found), NEUTRAL)
        assert not point_ok(y.to_bytes(32, "little"))
        assert not point_ok((y | 1 << 255).to_bytes(32, "little"))


@given(st.binary(min_size=32, max_size=32))
def test_guard_and_library_equal_curve_arithmetic(raw: bytes) -> None:
    on_curve = point(raw) is not None
    assert (point_ok(raw) and on_curve) == strong(raw)


@pytest.mark.parametrize("y", [P, P + 1, P + 18, 2**255 - 1])
def test_a_y_that_is_not_canonical_is_refused(y: int) -> None:
    assert not point_ok(y.to_bytes(32, "little"))


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_points_and_signatures_of_another_size(size: int) -> None:
    assert not point_ok(bytes(size))
    assert not verify(ALICE.key, b"m", b"\x07" * (size if size != 64 else 63))


@given(st.binary(max_size=80))
def test_a_signature_is_for_one_message_and_one_key(message: bytes) -> None:
    signature = ALICE.sign(message)
    assert verify(ALICE.key, message, signature)
    assert not verify(ALICE.key, message + b"!", signature)
    assert not verify(BOB.key, message, signature)


def test_a_scalar_beyond_the_order_is_refused() -> None:
    """s + L signs as well for lax verifiers: one signature would have two forms."""
    signature = ALICE.sign(b"m")
    larger = int.from_bytes(signature[32:], "little") + Q
    assert not verify(ALICE.key, b"m", signature[:32] + larger.to_bytes(32, "little"))


# -- keys as text ------------------------------------------------------------------------------------------------------------
def test_the_published_example_of_a_note_key() -> None:
    """golang.org/x/mod/sumdb/note, PeterNeumann."""
    key = parse_vkey("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    assert (key.name, key.id, key.kind) == ("PeterNeumann", "c74f20a3", 1)


def test_a_key_reads_back() -> None:
    assert parse_vkey(str(ALICE.key)) == ALICE.key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "alice",
        "alice+00000000",
        "alice++",
        "+00000000+AQ==",
        f"alice+00000000+{b64(b'x')}",
        str(ALICE.key).replace("alice", "alicf"),
        str(ALICE.key)[:-1],
        str(ALICE.key) + "=",
        str(ALICE.key).upper(),
        f"a b+12345678+{b64(bytes(33))}",
        "alice+12345678+" + b64(b"\x01" + bytes(32)),
        "alice+12345678+" + b64(b"\x06" + bytes(32)),
        "\u0430lice+12345678+" + b64(b"\x01" + ALICE.key.public),
        "x" * 300 + "+12345678+" + b64(b"\x01" + ALICE.key.public),
    ],
)
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(Misuse) as caught:
        parse_vkey(text)
    assert caught.value.diagnosis.code == "MDM-0180"
    assert caught.value.diagnosis.fix


def test_a_weak_key_is_never_made() -> None:
    for y in _SMALL_ORDER:
        with pytest.raises(Misuse):
            vkey("weak", y.to_bytes(32, "little"))


def test_an_id_is_a_hint() -> None:
    assert ALICE.key.id != VKey("bob", 1, ALICE.key.public).id


@pytest.mark.parametrize("text", ["A", "AA", "AAA", "AB==", "A===", "AA==\n", " AA==", "A-==", "AA=A"])
def test_base64_has_one_form(text: str) -> None:
    with pytest.raises(ValueError):
        unb64(text)


@given(st.binary(max_size=40))
def test_base64_reads_back(raw: bytes) -> None:
    assert unb64(b64(raw)) == raw


# -- envelopes ---------------------------------------------------------------------------------------------------------------
TYPE = "application/x"


def test_the_published_vector_of_the_encoding() -> None:
    """secure-systems-lab/dsse, protocol.md."""
    assert dsse.pae("http://example.com/HelloWorld", b"hello world") == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


@given(st.binary(max_size=100))
def test_an_envelope_gives_back_what_was_signed(payload: bytes) -> None:
    raw = dsse.sign(TYPE, payload, [(ALICE.key.id, ALICE.sign), (BOB.key.id, BOB.sign)])
    done = dsse.check(raw, TYPE, [BOB.key, ALICE.key], threshold=2)
    assert (done.payload, done.keys) == (payload, (ALICE.key, BOB.key))


def refused(raw: bytes, code: str, threshold: int = 1) -> None:
    with pytest.raises(ProofError) as caught:
        dsse.check(raw, TYPE, [ALICE.key, BOB.key], threshold)
    assert caught.value.diagnosis.code == code


def test_envelopes_that_count_for_nothing() -> None:
    raw = dsse.sign(TYPE, b"p", [(ALICE.key.id, ALICE.sign)])
    refused(raw, "MDM-0624", threshold=2)
    refused(raw, "MDM-0624", threshold=0)
    refused(dsse.sign(TYPE, b"p", [(ALICE.key.id, ALICE.sign)] * 2), "MDM-0623", threshold=2)
    refused(dsse.sign(TYPE, b"p", [(STRANGER.key.id, STRANGER.sign)]), "MDM-0625")
    refused(dsse.sign(TYPE, b"p", [(ALICE.key.id, BOB.sign)]), "MDM-0621")
    refused(dsse.sign("other", b"p", [(ALICE.key.id, ALICE.sign)]), "MDM-0622")
    refused(dsse.sign(TYPE, b"p", [(ALICE.key.id, ALICE.sign), (STRANGER.key.id, STRANGER.sign)]), "MDM-0625")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"[" * 5000,
        canon({"payload": "", "payloadType": TYPE, "signatures": []}),
        canon({"payload": "", "payloadType": TYPE, "signatures": {}}),
        canon({"payload": "%", "payloadType": TYPE, "signatures": [{"keyid": "", "sig": ""}]}),
        canon({"payload": "", "payloadType": 1, "signatures": [{"keyid": "", "sig": ""}]}),
        canon({"payload": "", "payloadType": TYPE, "signatures": [{"keyid": "", "sig": "", "alg": "none"}]}),
        canon({"payload": "", "payloadType": TYPE, "signatures": [1]}),
        canon({"payload": "", "payloadType": TYPE, "signatures": [{"keyid": "", "sig": ""}], "x": 1}),
        b"x" * (dsse.ENVELOPE_BYTES_MAX + 1),
    ],
)
def test_what_is_no_envelope(raw: bytes) -> None:
    refused(raw, "MDM-0620")


def test_an_envelope_has_one_form() -> None:
    raw = dsse.sign(TYPE, b"p", [(ALICE.key.id, ALICE.sign)])
    refused(raw.replace(b",", b", ", 1), "MDM-0620")
    refused(json.dumps(parse(raw)).encode(), "MDM-0620")
    refused(raw.replace(b"+", b"-") if b"+" in raw else raw[:-1], "MDM-0620")
