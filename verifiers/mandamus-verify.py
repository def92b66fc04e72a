#!/usr/bin/env python3
"""mandamus-verify.py BUNDLE --trust FILE: does this file prove what it says about one run of an agent?

One file, Python 3.9 or newer, standard library only, no network. It shares no code with mandamus: it was written from the format
(docs/concepts: bundle-format, record-format, ballot-format, effect-protocol) so that you need not believe the program that made the
bundle. It reads from top to bottom; each check begins with the sentence that it proves.

    1 the report      3 signatures     5 the container    7 chains      9 payloads     11 people      13 accounts and the rest
    2 bytes           4 the trust file 6 records          8 the log     10 authority   12 the fold    14 the command

The rule that everything here obeys: nothing in a bundle is a reason to believe the bundle. Whose signatures count is said by the trust
file, which is yours. Exit codes: 0 complete and valid | 1 broken | 2 nothing to verify, or no trust root | 3 valid, but a part is not
shown or below the demanded level | 4 valid so far, the run is not finished | 5 cannot tell (a newer format, or an outcome in doubt).
"""

from __future__ import annotations

import argparse
import base64
import binascii
import datetime
import gc
import hashlib
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from json.encoder import encode_basestring as quoted
from typing import Any, NamedTuple, NoReturn

FORMAT = "mandamus/1"
LOG = "log"  # the name of the administrative chain
INT_MAX = 2**53 - 1  # beyond it two JSON readers may differ
DEPTH_MAX = 64
BUNDLE_BYTES_MAX, LINES_MAX, LINE_BYTES_MAX, HEADER_BYTES_MAX = 1 << 30, 4_000_000, 1 << 20, 1024
RECORD_BYTES_MAX, STATEMENT_BYTES_MAX, TRUST_BYTES_MAX, BALLOT_BYTES_MAX = 65_535, 4096, 1 << 20, 16 * 1024
SIGNATURES_MAX, NOTE_BYTES_MAX, PATH_MAX, SKEW_S = 32, 1 << 18, 63, 300
Object = dict[str, Any]


# ---- 1. The report: one verdict first, then each claim as proven, broken, cannot check now, or not in this bundle ----------------


class Usage(Exception):
    """Nothing can be checked: a wrong argument, a trust file that cannot be read. Exit code 2."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(what)
        self.what, self.where = what, where


class Broken(Exception):
    """A check that stops at its first finding. `event` (with `chain`) or `line` says where."""

    def __init__(self, what: str, **where: Any) -> None:
        super().__init__(what)
        self.finding: Object = {"what": what}
        for name in ("chain", "event", "line", "type", "expected", "found"):
            if where.get(name) not in (None, ""):
                self.finding[name] = where[name]


def broken_at(record: Object, what: str, expected: object = "", found: object = "", line: int | None = None) -> Broken:
    chain = LOG if record["run"] == LOG else "run"
    where = {"chain": chain, "event": record["seq"], "type": record["type"], "line": line}
    return Broken(what, expected=str(expected)[:400], found=str(found)[:400], **where)


class Claim(NamedTuple):
    name: str
    outcome: str
    says: str
    exit_code: int = 0


def exit_code(codes: set[int]) -> int:
    """Where several apply, the first of 2, 1, 5, 4, 3."""
    return next((code for code in (2, 1, 5, 4, 3) if code in codes), 0)


def verdict(code: int) -> str:
    return "PROVEN" if code == 0 else "NOT PROVEN" if code in (1, 2) else "NOT FULLY CHECKED"


def place(finding: Object) -> str:
    parts = [f"event {finding['event']} {finding.get('type', '')}".strip()] if "event" in finding else []
    parts += [f"line {finding['line']}"] if "line" in finding else []
    return ("chain log, " if finding.get("chain") == LOG else "") + ", ".join(parts)


def some(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


# ---- 2. Bytes: one way to write each value (RFC 8785), one way to name it by a digest --------------------------------------------


def digest(domain: str, *parts: bytes) -> str:
    """Each kind of thing has a domain of its own, so that a digest of one kind is never one of another."""
    return hashlib.sha256(b"mandamus/v1/" + domain.encode() + b"\0" + b"".join(parts)).hexdigest()


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def unb64(text: str) -> bytes:
    """Standard alphabet, padded, zero trailing bits: the only text of these bytes. Raises ValueError."""
    try:
        raw = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not standard base64") from None
    if b64(raw) != text:
        raise ValueError("base64 with dirty trailing bits")
    return raw


def number(x: float) -> str:
    """RFC 8785, section 3.2.2.3: the shortest digits that read back as x, laid out as ECMAScript does."""
    if not abs(x) <= INT_MAX:
        raise ValueError("a number beyond 2^53-1, or none at all")
    if x == 0:
        return "0"
    _, digits, exponent = Decimal(repr(abs(x))).normalize().as_tuple()
    text = "".join(map(str, digits))
    point = len(text) + int(exponent)
    if point >= len(text):
        text += "0" * (point - len(text))
    elif point > 0:
        text = text[:point] + "." + text[point:]
    elif point > -6:
        text = "0." + "0" * -point + text
    else:
        text = text[0] + ("." + text[1:] if len(text) > 1 else "") + f"e{point - 1}"
    return "-" + text if x < 0 else text


def jcs(value: Any) -> bytes:
    """The canonical bytes. Raises ValueError for what two readers could read differently."""
    return _jcs(value, 0).encode("utf-8")


def _jcs(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is str:
        return quoted(value)
    if kind is int:
        if not -INT_MAX <= value <= INT_MAX:
            raise ValueError("an integer beyond 2^53-1")
        return str(value)
    if kind is dict or kind is list:
        if depth >= DEPTH_MAX:
            raise ValueError(f"more than {DEPTH_MAX} nested containers")
        if kind is list:
            return "[" + ",".join([_jcs(x, depth + 1) for x in value]) + "]"
        keys = sorted(value) if "".join(value).isascii() else sorted(value, key=lambda key: key.encode("utf-16-be"))
        return "{" + ",".join([quoted(key) + ":" + _jcs(value[key], depth + 1) for key in keys]) + "}"
    return number(value) if kind is float else "true" if value is True else "false" if value is False else "null"


def _whole(text: str) -> int:
    if len(text) > 17:  # before a million digits are turned into a number
        raise ValueError("an integer beyond 2^53-1")
    return int(text)


_parse = json.JSONDecoder(parse_int=_whole).decode


_tricky = re.compile(rb"[:,[]-?[0-9]+[.eE0-9]{15}|[:,[]-?[0-9]+[.eE]").search
_sorted = json.JSONEncoder(ensure_ascii=False, sort_keys=True, allow_nan=False, separators=(",", ":")).encode


def accept(raw: bytes) -> Any:
    """The value, if these are the canonical bytes of what they parse to: no duplicate key, no space, no `-0`. Raises ValueError.

    Python's own writer gives the same bytes wherever there is only ASCII, no fraction, no long number and not too many containers.
    """
    try:
        value = _parse(raw.decode("utf-8"))
        plain_ = raw.isascii() and raw[:1] in b'{["' and not _tricky(raw) and raw.count(b"{") + raw.count(b"[") <= DEPTH_MAX
        if (_sorted(value).encode() if plain_ else jcs(value)) != raw:
            raise ValueError("not canonical")
    except RecursionError:
        raise ValueError(f"more than {DEPTH_MAX} nested containers") from None
    return value


def row(raw: bytes, fields: str, line: int) -> Object:
    """A line of a section: canonical, with exactly these fields."""
    try:
        value = accept(raw)
    except ValueError as error:
        raise Broken(f"this line is not canonical JSON: {str(error)[:80]}", line=line) from None
    if type(value) is not dict or sorted(value) != fields.split():
        raise Broken("this line has other fields than its section", line=line, expected=fields)
    return value


# ---- 3. Signatures: Ed25519 (RFC 8032) and ECDSA on P-256 (FIPS 186-5) in plain integers. Slow, and short enough to be read -------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P
ROOT = pow(2, (P - 1) // 4, P)  # of -1
Y_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
SMALL_ORDER = (0, 1, P - 1, Y_ORDER_8, P - Y_ORDER_8)  # the y of the eight points whose multiples are few: they sign anything
Point = Any  # extended coordinates X, Y, Z, T of Ed25519, Jacobian X, Y, Z of P-256


def strong(encoded: bytes) -> bool:
    """32 bytes with a canonical y that is not of small order. Verifiers disagree about all other keys and R values."""
    y = int.from_bytes(encoded, "little") & ((1 << 255) - 1)
    return len(encoded) == 32 and y < P and y not in SMALL_ORDER


def ed_point(encoded: bytes) -> Point:
    """The point of these 32 bytes, or None where they are none."""
    y = int.from_bytes(encoded, "little") & ((1 << 255) - 1)
    u, v = y * y - 1, D * y * y + 1
    x = u * v**3 * pow(u * v**7, (P - 5) // 8, P) % P
    if (v * x * x - u) % P:
        x = x * ROOT % P
    if (v * x * x - u) % P:
        return None
    x = P - x if x & 1 != encoded[31] >> 7 else x
    return (x, y, 1, x * y % P)


def ed_add(p: Point, q: Point) -> Point:
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * D * p[3] * q[3] % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def ed_double(p: Point) -> Point:
    a, b, c = p[0] * p[0] % P, p[1] * p[1] % P, 2 * p[2] * p[2] % P
    h = a + b
    e, g = h - (p[0] + p[1]) ** 2 % P, a - b
    f = c + g
    return (e * f % P, g * h % P, f * g % P, e * h % P)


BASE = ed_point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def ed25519(public: bytes, message: bytes, signature: bytes) -> bool:
    """[s]B == R + [k]A, strictly: A and R strong, s below L, R compared as bytes."""
    if len(signature) != 64 or not strong(public) or not strong(signature[:32]):
        return False
    s = int.from_bytes(signature[32:], "little")
    a = ed_point(public)
    if s >= L or a is None:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % L
    minus = (P - a[0], a[1], 1, P - a[3])
    steps = (None, BASE, minus, ed_add(BASE, minus))
    r = (0, 1, 1, 0)
    for bit in range(max(s, k).bit_length() - 1, -1, -1):  # [s]B - [k]A, both at once
        r = ed_double(r)
        step = steps[(s >> bit & 1) + 2 * (k >> bit & 1)]
        r = ed_add(r, step) if step else r
    z = pow(r[2], P - 2, P)
    return (r[1] * z % P | (r[0] * z % P & 1) << 255).to_bytes(32, "little") == signature[:32]


EP = 2**256 - 2**224 + 2**192 + 2**96 - 1
EN = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
EB = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
EG = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
    1,
)


def ec_point(public: bytes) -> Point:
    """The point of an uncompressed key (0x04, x, y), or None when it is not on the curve."""
    x, y = int.from_bytes(public[1:33], "big"), int.from_bytes(public[33:], "big")
    good = len(public) == 65 and public[0] == 4 and x < EP and y < EP and (y * y - x**3 + 3 * x - EB) % EP == 0
    return (x, y, 1) if good else None


def ec_double(p: Point) -> Point:
    x, y, z = p
    delta, gamma = z * z % EP, y * y % EP
    beta, alpha = x * gamma % EP, 3 * (x - delta) * (x + delta) % EP
    x3 = (alpha * alpha - 8 * beta) % EP
    return (x3, (alpha * (4 * beta - x3) - 8 * gamma * gamma) % EP, ((y + z) ** 2 - gamma - delta) % EP)


def ec_add(p: Point, q: Point) -> Point:
    if not p[2] or not q[2]:
        return q if not p[2] else p
    z1, z2 = p[2] * p[2] % EP, q[2] * q[2] % EP
    u1, u2, s1, s2 = p[0] * z2 % EP, q[0] * z1 % EP, p[1] * z2 * q[2] % EP, q[1] * z1 * p[2] % EP
    h, r = (u2 - u1) % EP, (s2 - s1) % EP
    if not h:
        return (1, 1, 0) if r else ec_double(p)
    hh = h * h % EP
    x = (r * r - hh * h - 2 * u1 * hh) % EP
    return (x, (r * (u1 * hh - x) - s1 * hh * h) % EP, h * p[2] * q[2] % EP)


def p256(public: bytes, message: bytes, signature: bytes) -> bool:
    """ECDSA over SHA-256; the signature is r and s, 32 bytes each. (r, n-s) verifies too, so a signature is never an identity."""
    r, s, q = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big"), ec_point(public)
    if len(signature) != 64 or q is None or not 0 < r < EN or not 0 < s < EN:
        return False
    inverse = pow(s, EN - 2, EN)
    u1, u2 = int.from_bytes(hashlib.sha256(message).digest(), "big") * inverse % EN, r * inverse % EN
    steps, out = (None, EG, q, ec_add(EG, q)), (1, 1, 0)
    for bit in range(255, -1, -1):
        out = ec_double(out)
        step = steps[(u1 >> bit & 1) + 2 * (u2 >> bit & 1)]
        out = ec_add(out, step) if step else out
    return bool(out[2]) and out[0] * pow(out[2], EP - 3, EP) % EP % EN == r


MQ, MROOTS = 8380417, [pow(1753, int(f"{i:08b}"[::-1], 2), 8380417) for i in range(256)]  # FIPS 204: the modulus, the roots of unity


def ml_ntt(f: list[int]) -> list[int]:
    at, f = 0, f[:]
    for length in (128, 64, 32, 16, 8, 4, 2, 1):
        for start in range(0, 256, 2 * length):
            at += 1
            for j in range(start, start + length):
                t = MROOTS[at] * f[j + length] % MQ
                f[j + length], f[j] = (f[j] - t) % MQ, (f[j] + t) % MQ
    return f


def ml_back(f: list[int]) -> list[int]:
    at = 256
    for length in (1, 2, 4, 8, 16, 32, 64, 128):
        for start in range(0, 256, 2 * length):
            at -= 1
            for j in range(start, start + length):
                t, f[j] = f[j], (f[j] + f[j + length]) % MQ
                f[j + length] = MROOTS[at] * (f[j + length] - t) % MQ
    return [x * 8347681 % MQ for x in f]


def ml_bits(raw: bytes, width: int) -> list[int]:
    """256 numbers of this many bits, the lowest first."""
    whole = int.from_bytes(raw, "little")
    return [whole >> width * i & (1 << width) - 1 for i in range(256)]


def ml_uniform(seed: bytes) -> list[int]:
    raw = hashlib.shake_128(seed).digest(1344)
    found = [int.from_bytes(raw[i : i + 3], "little") & 0x7FFFFF for i in range(0, len(raw), 3)]
    return [x for x in found if x < MQ][:256]


def ml_ball(seed: bytes) -> list[int]:
    """39 signs among zeros (SampleInBall)."""
    raw, c, at = hashlib.shake_256(seed).digest(1024), [0] * 256, 8
    signs = int.from_bytes(raw[:8], "little")
    for i in range(217, 256):
        while raw[at] > i:
            at += 1
        c[i], c[raw[at]] = c[raw[at]], 1 - 2 * (signs >> (i - 217) & 1)
        at += 1
    return c


def ml_high(r: int, hint: int) -> int:
    """The high part of r, moved by its hint (UseHint)."""
    low = (r + 95231) % 190464 - 95231
    high = 0 if r - low == MQ - 1 else (r - low) // 190464
    low -= r - low == MQ - 1
    return (high + (1 if low > 0 else -1)) % 44 if hint else high


def ml_dsa(public: bytes, message: bytes, signature: bytes) -> bool:
    """ML-DSA-44 (FIPS 204, algorithm 8), with an empty context: a signature that holds against a quantum computer."""
    if len(public) != 1312 or len(signature) != 2420:
        return False
    z = [[131072 - x for x in ml_bits(signature[32 + 576 * i : 608 + 576 * i], 18)] for i in range(4)]
    marks, ends, hints, before = signature[2336:2416], signature[2416:], [[0] * 256 for _ in range(4)], 0
    for hint, end in zip(hints, ends):
        if not before <= end <= 80 or list(marks[before:end]) != sorted(set(marks[before:end])):
            return False
        for at in marks[before:end]:
            hint[at] = 1
        before = end
    if any(marks[before:]) or any(abs(x) >= 131072 - 78 for one in z for x in one):
        return False
    mu = hashlib.shake_256(hashlib.shake_256(public).digest(64) + b"\0\0" + message).digest(64)
    c, zs, packed = ml_ntt(ml_ball(signature[:32])), [ml_ntt(one) for one in z], b""
    for i in range(4):
        t = ml_ntt([x << 13 for x in ml_bits(public[32 + 320 * i : 352 + 320 * i], 10)])
        a = [ml_uniform(public[:32] + bytes([j, i])) for j in range(4)]
        w = ml_back([(sum(a[j][n] * zs[j][n] for j in range(4)) - c[n] * t[n]) % MQ for n in range(256)])
        packed += sum(ml_high(w[n], hints[i][n]) << 6 * n for n in range(256)).to_bytes(192, "little")
    return hashlib.shake_256(mu + packed).digest(32) == signature[:32]


ED25519, P256, COSIGNER, COSIGNER_PQ = 0x01, 0x02, 0x04, 0x06  # the kind stands in the key, and is never read from what was signed
COSIGNERS = (COSIGNER, COSIGNER_PQ)
SCHEMES = {ED25519: ed25519, P256: p256, COSIGNER: ed25519, COSIGNER_PQ: ml_dsa}


class Key(NamedTuple):
    """A public key as C2SP signed-note writes it: name+id+base64(kind || key)."""

    name: str
    kind: int
    public: bytes

    @property
    def id(self) -> str:
        return hashlib.sha256(self.name.encode() + b"\n" + bytes([self.kind]) + self.public).hexdigest()[:8]

    def __str__(self) -> str:
        return f"{self.name}+{self.id}+{b64(bytes([self.kind]) + self.public)}"


KEY_NAME = re.compile(r"[!-*,-~]{1,200}")
_verified: dict[tuple[Key, bytes, bytes], bool] = {}  # an envelope is asked about more than once


def parse_key(text: str) -> Key:
    """Raises ValueError for a key that nobody may trust."""
    name, _, rest = text.partition("+")
    key_id, _, encoded = rest.partition("+")
    raw = unb64(encoded)
    key = Key(name, raw[0] if raw else 0, raw[1:])
    forms: dict[int, Callable[[bytes], Any]] = {ED25519: strong, COSIGNER: strong, P256: ec_point, COSIGNER_PQ: lambda k: len(k) == 1312}
    fits = key.kind in forms and forms[key.kind](key.public)
    if not KEY_NAME.fullmatch(name) or not fits:
        raise ValueError("this is no key, or one that is too weak to be trusted")
    if key.id != key_id:
        raise ValueError("the id of this key does not belong to it")
    return key


def signed(key: Key, message: bytes, signature: bytes) -> bool:
    question = (key, message, signature)
    if question not in _verified:
        _verified[question] = SCHEMES[key.kind](key.public, message, signature)
    return _verified[question]


# ---- DSSE: the envelope around whatever a person or a machine signed --------------------------------------------------------------


class Envelope(NamedTuple):
    kind: str
    payload: bytes
    signatures: list[tuple[str, bytes]]


def read_envelope(raw: bytes) -> Envelope:
    """As parsed, not as believed. Raises ValueError unless it is written in the one canonical form."""
    value = accept(raw) if len(raw) <= LINE_BYTES_MAX else None
    if type(value) is not dict or sorted(value) != ["payload", "payloadType", "signatures"]:
        raise ValueError("its fields are not payload, payloadType and signatures")
    entries = value["signatures"]
    if type(value["payload"]) is not str or type(value["payloadType"]) is not str or type(entries) is not list:
        raise ValueError("a field has another type")
    if not 1 <= len(entries) <= SIGNATURES_MAX:
        raise ValueError(f"it has {len(entries)} signatures, not 1 to {SIGNATURES_MAX}")
    for entry in entries:
        if type(entry) is not dict or sorted(entry) != ["keyid", "sig"] or not all(type(x) is str for x in entry.values()):
            raise ValueError("a signature is not {keyid, sig}")
    return Envelope(value["payloadType"], unb64(value["payload"]), [(entry["keyid"], unb64(entry["sig"])) for entry in entries])


def ssh_signed(key: Key, message: bytes, blob: bytes) -> bool:
    """The blob that `ssh-keygen -Y sign -n mandamus-approval` makes with this very key (OpenSSH, PROTOCOL.sshsig), byte for byte."""

    def text(raw: bytes) -> bytes:
        return len(raw).to_bytes(4, "big") + raw

    kind, purpose = text(b"ssh-ed25519"), text(b"mandamus-approval") + text(b"") + text(b"sha512")
    whole = b"SSHSIG\0\0\0\1" + text(kind + text(key.public)) + purpose + text(kind + text(blob[-64:]))
    return blob == whole and signed(key, b"SSHSIG" + purpose + text(hashlib.sha512(message).digest()), blob[-64:])


def open_envelope(envelope: Envelope, kind: str, keys: Sequence[Key], threshold: int = 1, ssh: bool = False) -> list[Key]:
    """The keys that signed, each once. Raises ValueError when a signature is anybody else's, or fewer than `threshold` keys signed.

    What is signed says its own lengths (PAE), so that nothing can move over a boundary; `keyid` is a hint that must be true. `ssh`:
    what people sign may be signed by their ssh key.
    """
    if envelope.kind != kind:
        raise ValueError("the envelope is of another type")
    message = b"DSSEv1 %d %s %d %s" % (len(kind.encode()), kind.encode(), len(envelope.payload), envelope.payload)
    signers = []
    for keyid, signature in envelope.signatures:
        by_ssh = ssh and len(signature) != 64 and signature[:6] == b"SSHSIG"
        check = {True: ssh_signed, False: signed}
        who = next((k for k in keys if k.id == keyid and check[by_ssh and k.kind == ED25519](k, message, signature)), None)
        if who is None:
            known = any(key.id == keyid for key in keys)
            raise ValueError("a signature does not hold" if known else "a signature is by a key that is not trusted for this")
        signers.append(who)
    distinct = len({key.public for key in signers})
    if distinct != len(signers):
        raise ValueError("one key signed twice")
    if threshold < 1 or distinct < threshold:
        raise ValueError("too few signatures")
    return signers


# ---- 4. The trust file: whose signatures count, for what. Yours, and never part of a bundle ---------------------------------------


UNSEEN = re.compile("[\\0-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]")


class Trust:
    """One line each: log, bundle, approver, role, author, admin, frontend, witness, group, quorum. `#` starts a comment."""

    WORDS = {
        "log": 1, "bundle": 2, "approver": 2, "author": 2, "admin": 1, "frontend": 2, "witness": 2, "anchor": 2, "quorum": 1,
        "role": -2, "group": -3,
    }  # fmt: skip

    def __init__(self, raw: bytes) -> None:
        self.seen: set[bytes] = set()
        self.logs: list[Key] = []
        self.admins: list[Key] = []
        self.bundles: list[tuple[str, Key]] = []
        self.frontends: list[Key] = []
        self.anchors: list[Key] = []
        self.approvers: dict[bytes, tuple[str, Key]] = {}
        self.roles: dict[str, list[str]] = {}
        self.witnesses: dict[str, Key] = {}
        self.groups: dict[str, tuple[int, list[str]]] = {}
        self.quorum: str | None = None
        self.members: set[str] = set()
        if len(raw) > TRUST_BYTES_MAX:
            raise Usage("the trust file is too large")
        try:
            lines = raw.decode("utf-8").replace("\r\n", "\n").split("\n")
        except UnicodeDecodeError:
            raise Usage("the trust file is not text") from None
        for at, text in enumerate(lines, 1):
            if UNSEEN.search(text):  # what an editor shows as a line is one
                raise Usage("a control character, or one that turns the writing, stands in it", f"trust:{at}")
            words = [word for word in text.split("#", 1)[0].replace("\t", " ").split(" ") if word]
            try:
                if words:
                    self._read(words)
            except ValueError as error:
                raise Usage(str(error), f"trust:{at}") from None
        if self.witnesses and self.quorum is None:
            raise Usage("witnesses are named, and nothing says how many of them must have signed (quorum NAME, or none)")
        origins = {key.name for key in self.logs}
        if len(origins) > 1 and any(name not in origins for name, _ in self.bundles):
            raise Usage("a bundle line does not say for which log it signs")

    def _read(self, words: list[str]) -> None:
        kind, rest = words[0], words[1:]
        count = self.WORDS.get(kind, 0)
        if not count or any(not re.fullmatch(r"[!-~]{1,2000}", word) for word in words):
            raise ValueError("this starts no line of a trust file, or a word is not printable ASCII")
        if len(rest) != count if count > 0 else not -count <= len(rest) < 10_000:
            raise ValueError(f"a {kind} line has another number of words")
        if kind == "role":
            self.roles[rest[0]] = self.roles.get(rest[0], []) + rest[1:]
        elif kind == "group":
            self._group(rest[0], rest[1], rest[2:])
        elif kind == "quorum":
            if self.quorum is not None or (rest[0] != "none" and rest[0] not in self.witnesses and rest[0] not in self.groups):
                raise ValueError("a second quorum, or one that is not defined above")
            self.quorum = rest[0]
        else:
            self._keyed(kind, rest)

    def _keyed(self, kind: str, rest: list[str]) -> None:
        """One public key has one line and one role, else one signature could be counted for two things."""
        name = rest[0]
        if kind == "witness":
            self._new(name)
        key = parse_key(rest[-1])
        if key.public in self.seen:
            raise ValueError("this public key stands on another line already")
        self.seen.add(key.public)
        wrong = {"witness": key.kind not in COSIGNERS, "log": key.kind in COSIGNERS, "anchor": key.name != name}
        if wrong.get(kind):
            raise ValueError(f"this key is not one of a {kind}, or of another name")
        if kind == "log":
            self.logs.append(key)
        elif kind == "bundle":
            self.bundles.append((name, key))
        elif kind == "approver":
            self.approvers[key.public] = (name, key)
        elif kind == "admin":
            self.admins.append(key)
        elif kind == "frontend":
            self.frontends.append(key)
        elif kind == "anchor":
            self.anchors.append(key)
        elif kind == "witness":
            self.witnesses[name] = key

    def _group(self, name: str, k: str, members: list[str]) -> None:
        self._new(name)
        if any(one not in self.witnesses and one not in self.groups for one in members) or len(set(members)) != len(members):
            raise ValueError("a group member is not defined above, or named twice")
        if self.members & set(members):  # C2SP tlog-policy: else one cosignature counts in two ways
            raise ValueError("a member of another group already")
        self.members |= set(members)
        needed = 1 if k == "any" else len(members) if k == "all" else int(k) if re.fullmatch("[1-9][0-9]{0,3}", k) else 0
        if not 1 <= needed <= len(members):
            raise ValueError("so many members can never be")
        self.groups[name] = (needed, members)

    def _new(self, name: str) -> None:
        if name in self.witnesses or name in self.groups or name == "none":
            raise ValueError("this name is taken")

    def log_keys(self, origin: str) -> list[Key]:
        return [key for key in self.logs if key.name == origin]

    def bundle_keys(self, origin: str) -> list[Key]:
        one = len({key.name for key in self.logs}) < 2
        return [key for name, key in self.bundles if one or name == origin]

    def met(self, publics: set[bytes], name: str | None = None) -> bool:
        """Whether these public keys are the quorum; without one (or with `none`) nobody is asked for."""
        name = self.quorum if name is None else name
        if name is None or name == "none":
            return True
        if name in self.witnesses:
            return self.witnesses[name].public in publics
        needed, members = self.groups[name]
        return sum(self.met(publics, member) for member in members) >= needed

    def holds(self, names: Iterable[str], principal: str) -> bool:
        """Whether this principal is named, or has a role that is."""
        return any(name == principal or (name[:5] == "role:" and principal in self.roles.get(name[5:], ())) for name in names)


# ---- 5. The container: one file, cut into sections; then what its signer says ------------------------------------------------------

SECTIONS = ("dsse", "manifest", "policy", "record", "log", "account", "payload", "proof", "key", "tsr")
PAYLOAD_TYPE = "application/vnd.in-toto+json"


class Box(NamedTuple):
    """The lines of each section; `first` is the number of its first line, counted from 1."""

    header: bytes
    sections: dict[str, list[bytes]]
    first: dict[str, int]
    lines: int


def cut(raw: bytes) -> Box:
    """The file is exactly a header and the sections that it counts; every limit is checked before anything is parsed."""
    if len(raw) > BUNDLE_BYTES_MAX or raw.count(b"\n") > LINES_MAX:
        raise Broken("the file is larger than a bundle can be")
    end = raw.find(b"\n", 0, HEADER_BYTES_MAX)
    counts = _counts(raw[:end]) if end >= 0 else None
    if counts is None:
        raise Broken("the first line is no bundle header: the file is no bundle, or its beginning was changed", line=1)
    lines = raw.split(b"\n")
    if lines.pop():
        raise Broken("the last line has no end: the file is cut off or something stands behind it", line=len(lines) + 1)
    for at, line in enumerate(lines, 1):
        if len(line) > LINE_BYTES_MAX:
            raise Broken(f"a line of {len(line)} bytes", line=at)
    if len(lines) != 1 + sum(counts.values()):
        raise _another_number(lines, 1 + sum(counts.values()))
    sections, first, at = {}, {}, 1
    for name, count in counts.items():
        sections[name], first[name] = lines[at : at + count], at + 1
        at += count
    return Box(lines[0], sections, first, len(lines))


def _counts(line: bytes) -> dict[str, int] | None:
    try:
        value = accept(line)
        if sorted(value) != ["bundle", "run", "sections"] or value["bundle"] != FORMAT:
            return None
        counts = dict(value["sections"])
    except (ValueError, TypeError):
        return None
    names = [pair[0] for pair in value["sections"]] == list(SECTIONS)
    if not names or any(type(n) is not int or not 0 <= n <= LINES_MAX for n in counts.values()):
        return None
    return counts if counts["dsse"] == counts["manifest"] == 1 <= counts["record"] else None


def _another_number(lines: Sequence[bytes], wanted: int) -> Broken:
    """A broken line explains it, if there is one; else lines were added or taken away."""
    for at, line in enumerate(lines, 1):
        try:
            accept(line)
        except ValueError:
            return Broken("this line is not canonical JSON", line=at)
    what = "the file has another number of lines than its header says"
    return Broken(what, line=min(len(lines), wanted) + 1, expected=str(wanted), found=str(len(lines)))


def section_digest(name: str, lines: Sequence[bytes]) -> str:
    return digest("section", name.encode() + b"\n", *(line + b"\n" for line in lines))


SAID = {
    "count": int,
    "head": str,
    "log": dict,
    "manifest": str,
    "origin": str,
    "policies": list,
    "run": str,
    "sections": list,
    "state": str,
}


def parse_statement(raw: bytes) -> Object:
    """The predicate of *verified* bytes: an in-toto statement about this run and its head, and nothing else."""
    try:
        said = accept(raw)["predicate"]
        shapes = {name: type(value) for name, value in said.items()} == SAID and all(type(x) is str for x in said["policies"])
        parts = [[sorted(x), type(x["count"]), type(x["digest"]), x["name"]] for x in said["sections"]] if shapes else []
        log = said["log"] if shapes else {}
        good = sorted(log) == ["count", "head"] and type(log["count"]) is int and type(log["head"]) is str
        good = good and parts == [[["count", "digest", "name"], int, str, name] for name in SECTIONS[1:]]
        counts = {part["name"]: part["count"] for part in said["sections"]}
        good = good and (counts["record"], counts["log"]) == (said["count"], log["count"])
        subject = [{"digest": {"sha256": said["head"]}, "name": f"run/{said['run']}"}]
        again = {"_type": "https://in-toto.io/Statement/v1", "predicateType": "urn:mandamus:run-bundle:1"}
        good = good and jcs({**again, "predicate": said, "subject": subject}) == raw
    except (ValueError, TypeError, KeyError, AttributeError):
        good = False
    if not good:
        raise Broken("the signed statement is of another form, or contradicts itself", line=2)
    return dict(said)


def header_of(said: Object) -> bytes:
    """Line 1 as it must be for this statement: the file's first line is signed for, too."""
    counts = [["dsse", 1], *([part["name"], part["count"]] for part in said["sections"])]
    return jcs({"bundle": FORMAT, "run": said["run"], "sections": counts})


# ---- 6. Records: closed objects. Each type has these fields and no others, in this order, which is that of their canonical bytes ---
# str, bool, int (within 2^53-1), nat (from 0), int(LO..HI), =a|b (one of these words), [KIND] (a list of), or the name of a part.

# fmt: off
# -- begin: written by verifiers/build.py --
FACTS = {
    "ActionDoubted": "action:str attempt:int cause:=fault|lost|stopped|timeout|unclear retry_at?:int",
    "ActionEnded": (
        "action:str attempt:int code?:str output:=invalid|none|oversize|valid result:=cancelled|done|failed|unknown retry_at?:int "
        "spends:[Reserve] via:=child|people|policy|reconciled|stop|tool"
    ),
    "ActionJudged": (
        "action:str asks?:[Ask] attempt:int authority:int bundle:str code?:str determining:[str] engine:str layers:[Layer] "
        "verdict:=allow|deny|error|escalate"
    ),
    "ActionProposed": (
        "action:str by:=model|person|tool call:str effect:str fault?:str kind:=handoff|invoke parent?:str pin?:str repeats?:int "
        "replaces?:str safety:str tool:str"
    ),
    "ActionStarted": (
        "action:str attempt:int capabilities:[Issued] child?:str deadline:int effect:str landing:int operation:str "
        "reserves:[Reserve] votes:[int]"
    ),
    "ApprovalRequested": (
        "about:=outcome|start action:str card:str carries:[int] chain:str digest:str expires:int policy:str quorum:int request:str "
        "tier:int until:int"
    ),
    "CapabilityChecked": "action:str capability:str mechanism:str result:=granted|refused use:int",
    "ContextCompiled": "items:int tokens:int window:int",
    "Erased": "clock:Clock commits:[str] erasure:str ground:str principal:str subject?:str",
    "ErasureBlocked": "clock:Clock erasure:str ground:=floor|hold|open_action hold?:str run?:str",
    "ErasureRequested": "after:int clock:Clock erasure:str ground:str principal:str subject?:str",
    "EvidenceReached": "level:=sealed|witnessed root:str seq:int size:int",
    "Exported": "clock:Clock kind:str principal:str",
    "GuardrailChecked": (
        "action?:str name:str point:=after_turn|before_turn|input|output|tool_result result:=annotate|block|pass source:str "
        "usage?:Usage"
    ),
    "HoldLifted": "clock:Clock hold:str principal:str",
    "HoldPlaced": "clock:Clock ground:str hold:str principal:str run?:str subject?:str",
    "KeyChanged": "clock:Clock new?:str old?:str principal:str role:str",
    "LogOpened": "clock:Clock keys:[NamedKey] nonce:str origin:str quorum:int",
    "MessageReceived": "clock:Clock mail:MailRef principal:str",
    "MessageRefused": (
        "mail:MailRef reason:=duplicate|ended|expired|forged|malformed|not_an_approver|not_waiting|own_request|vetoed|voted_already|"
        "wrong_action|wrong_request"
    ),
    "ModelCalled": "attempt:int model:str reserves:int",
    "ModelFailed": (
        "attempt:int category:=auth|bad_output|bad_request|connection|cut|empty|fault|lost|malformed|rate_limit|refusal|server|"
        "timeout retry_at?:int status?:int"
    ),
    "ModelPriced": "price:Price",
    "ModelReplied": "attempt:int calls:int model:str stop:str usage:Usage",
    "PolicyChanged": "agent:str clock:Clock new:str old:str",
    "RunEnded": "code?:str state:=cancelled|completed|failed",
    "RunHalted": "action?:str cause:=budget|context|denials|engine|guardrail|people|poison code:str",
    "RunOpened": (
        "agent:str anchor:Anchor budget:BudgetLimits clock:Clock default:=allow|deny definition:str depth:int environment:str "
        "grant?:Grant isolation:str manifest:str nonce:str origin:str parent?:Parent plugins:[str] policy:str profile:str "
        "register:Register tenant:str tier:str trusted_code:[str] user?:User"
    ),
    "RunOwned": "clock:Clock nonce:str signature:str worker:str",
    "RunRefused": "agent:str clock:Clock codes:[str] register?:Register run?:str",
    "RunSealed": "closed:=cancelled|completed|failed count:int head:str state:str",
    "StopRequested": "agent?:str clock:Clock mail?:MailRef mode:=cancel|halt principal:str tenant?:str",
    "TimePassed": "clock:Clock source:=ledger|worker",
    "TurnStarted": "clock:Clock",
    "VoteWithdrawn": "ballot:str clock:Clock mail?:MailRef principal:str",
    "Voted": (
        "about:=outcome|start action?:str ballot:str clock:Clock decision:=abandon|again|approve|done|halt|modify|reject "
        "mail?:MailRef principal:str request?:str scope:=once|standing veto:bool"
    ),
}
PARTS = {
    "Record": (
        "actor?:Actor at:str body?:[BodyPart] causes?:[str] epoch:int fact:Fact prev:str run:str seq:int turn:int type:str v:int"
    ),
    "Actor": "agent:str principal:str runtime:str",
    "Anchor": "root:str size:int",
    "Ask": "chain:str quorum:int to:=log|people within?:int",
    "BodyPart": "class:str commit:str media:str part:str subject?:str",
    "BudgetLimits": "calls?:int cost?:int currency?:str denials:int retries:int tokens?:int turns:int wall_ms?:int",
    "Clock": "now:int offset:int(-1440..1440) tz:str",
    "Grant": "tools:[str]",
    "Issued": "capability:str mechanism:str",
    "Layer": "layer:str of?:str verdict:str",
    "MailRef": "cursor:int key:str",
    "NamedKey": "key:str principal?:str role:str",
    "Parent": "hash:str kind:=fork|handoff|thread run:str seq:int",
    "Price": "cache_read?:nat cache_write?:nat currency:str input:nat output:nat",
    "Register": "number:int prev:str",
    "Reserve": "account:str amount:int",
    "Usage": "cache_read:int cache_write:int estimated:bool input:int output:int reasoning:int",
    "User": "principal:str roles:[str]",
}
# -- end: written by verifiers/build.py --
# fmt: on

KINDS = {"str": str, "bool": bool, "int": int, "nat": int, "=": str, "[": list}  # of what type a value of each kind is; else a dict
Fits = Callable[[Any], bool]


def fits(kind: str) -> Fits | None:
    """What must hold of a value besides its type; None: nothing."""
    if kind in ("str", "bool", "Fact"):
        return None
    if kind[0] == "=":
        words = frozenset(kind[1:].split("|"))
        return lambda v: v in words
    if kind[0] == "[":
        of, inner = type_of_kind(kind[1:-1]), fits(kind[1:-1])
        return lambda v: all(type(x) is of and (inner is None or inner(x)) for x in v)
    bounds = re.fullmatch(r"int\((-?[0-9]+)\.\.([0-9]+)\)", kind)
    if bounds or kind in ("int", "nat"):
        low, high = (int(bounds[1]), int(bounds[2])) if bounds else (0 if kind == "nat" else -INT_MAX, INT_MAX)
        return lambda v: low <= v <= high
    return lambda v: closed(kind, v)


def type_of_kind(kind: str) -> type:
    return int if kind[:4] == "int(" else KINDS.get(kind, KINDS.get(kind[0], dict))


Shape = Any  # (the types of the values in order, [(place, check)...]), or None for fields that no such object has
_shapes: dict[tuple[str, tuple[str, ...]], Shape] = {}


def closed(name: str, value: Object) -> bool:
    """Exactly the fields of this type, each of its kind: none that is unknown, none that is missing, in this order."""
    keys = (name, tuple(value))
    shape_ = _shapes[keys] if keys in _shapes else _shape(*keys)
    if shape_ is None:
        return False
    values = tuple(value.values())
    if tuple(map(type, values)) != shape_[0]:
        return False
    for place_, check in shape_[1]:  # noqa: SIM110  a generator costs a tenth of the whole time
        if not check(values[place_]):
            return False
    return True


def _shape(name: str, keys: tuple[str, ...]) -> Shape:
    fields = [field.split(":", 1) for field in (FACTS.get(name) or PARTS[name]).split(" ")]
    present = [(field.rstrip("?"), kind) for field, kind in fields if field[-1] != "?" or field[:-1] in keys]
    checks = [(at, check) for at, check in enumerate(fits(kind) for _, kind in present) if check is not None]
    good = tuple(field for field, _ in present) == keys
    _shapes[name, keys] = (tuple(type_of_kind(kind) for _, kind in present), checks) if good else None
    return _shapes[name, keys]


class Newer(Exception):
    """A well-formed record of a type or version that this verifier does not know."""


NEWER = "a newer format than this verifier knows"
_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def read_record(raw: bytes) -> Object:
    """The record, if these bytes are exactly how it is written. Raises ValueError, or Newer.

    What Python's json parses and writes again to the very same ASCII bytes had no duplicate key, no space and no other spelling
    of a text or a number; that its keys are in order, and that no float and no large integer is in it, is seen by `closed`.
    """
    if len(raw) > RECORD_BYTES_MAX:
        raise ValueError(f"a record of {len(raw)} bytes is too large")
    try:
        text = raw.decode("ascii")
        record: Object = _scan(text, 0)[0]
        name = record["type"]
        if _write(record) == text and name in FACTS and record["v"] == 1 and closed("Record", record) and closed(name, record["fact"]):
            return record
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, StopIteration):
        pass
    raise _unreadable(raw)


def _unreadable(raw: bytes) -> Exception:
    """Every canonical record ends in its type and version; a version below 1 never existed."""
    at = raw.rfind(b'"type":"')
    name, version = raw[at + 8 : -8].decode("ascii", "replace"), raw[raw.rfind(b',"v":') + 5 : -1]
    if at >= 0 and raw.endswith(b'","v":1}'):
        newer = name not in FACTS
    else:
        newer = raw.endswith(b"}") and version.isdigit() and version[:1] != b"0" and version != b"1"
    return Newer(NEWER) if newer else ValueError("the record is not in its one canonical form, or has other fields than its type")


def event_hash(raw: bytes) -> str:
    """The name of an event, and what the next one calls `prev`."""
    return hashlib.sha256(b"mandamus/v1/event\0" + raw).hexdigest()


EMPTY_ROOT = hashlib.sha256(b"").hexdigest()


def genesis_prev(record: Object) -> str | None:
    """What `prev` of the first record must be: it binds the chain to its log, its run and its manifest. None: this opens no chain."""
    fact = record["fact"]
    if record["type"] != ("LogOpened" if record["run"] == LOG else "RunOpened"):
        return None
    manifest, anchor = fact.get("manifest", ""), fact.get("anchor", {"root": EMPTY_ROOT, "size": 0})
    bound = {"anchor": anchor, "manifest": manifest, "nonce": fact["nonce"], "origin": fact["origin"], "run": record["run"]}
    return digest("genesis", jcs(bound))


# ---- 7. Chains: every record in its place, linked to the one before it, and legal where it stands ----------------------------------

ACTION_MOVES = {
    "proposed": ("judged", "denied", "cancelled"),
    "judged": ("started", "denied", "judged", "cancelled"),
    "started": ("doubted", "done", "failed"),
    "doubted": ("started", "done", "failed", "unknown", "cancelled", "doubted"),
    "unknown": ("started", "done", "settled"),
    "failed": ("judged", "denied", "cancelled"),
    "done": (), "denied": (), "cancelled": (), "settled": (),
}  # fmt: skip
ONLY_LOG = (
    "LogOpened", "RunRefused", "PolicyChanged", "KeyChanged", "VoteWithdrawn", "HoldPlaced", "HoldLifted", "ErasureRequested",
    "ErasureBlocked", "Erased", "Exported",
)  # fmt: skip
IN_LOG = (*ONLY_LOG, "Voted", "StopRequested")


def refuses_all(fact: Object) -> bool:
    """A person said no, and meant the run."""
    return bool(fact["cause"] == "people" and fact["code"] == "rejected")


class Life:
    """What may follow what. Each rule answers with a sentence when the record may not stand there."""

    def __init__(self, count: int) -> None:
        self.count, self.calls, self.ended, self.refused, self.sealed = count, False, "", False, False
        self.actions: dict[str, str] = {}
        self.effects: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        self.children: set[str] = set()
        self.final: set[str] = set()
        self.holds: dict[str, Object | None] = {}  # in force; None when lifted
        self.erasures: dict[str, int] = {}  # not before this instant

    @property
    def in_flight(self) -> bool:
        return self.calls or any(state in ("started", "doubted") for state in self.actions.values())

    @property
    def unsettled(self) -> list[str]:
        return [action for action, state in self.actions.items() if state == "unknown"]

    def check(self, record: Object, before: Object | None) -> str:
        name = record["type"]
        if (name not in IN_LOG) if record["run"] == LOG else (name in ONLY_LOG):
            return f"{name} belongs to another kind of chain"
        rule = getattr(self, "_" + name, None)
        return rule(record, record["fact"], before) if rule else ""

    def _move(self, action: str, state: str) -> str:
        old = self.actions.get(action)
        if old is None:
            return f"action {action[:40]} was never proposed"
        if state not in ACTION_MOVES[old] or action in self.final:
            return f"action {action[:40]} is {old}, it cannot be {state}"
        self.actions[action] = state
        return ""

    def _RunOpened(self, record: Object, fact: Object, before: Object | None) -> str:
        return "" if before is None else "a chain has one genesis"

    _LogOpened = _RunOpened

    def _RunOwned(self, record: Object, fact: Object, before: Object | None) -> str:
        if before is None or record["epoch"] != before["epoch"] + 1:
            return "a new owner raises the epoch by one"
        for action, state in self.actions.items():
            if state == "started" and action not in self.children:  # nobody who knew is left; a child's own chain answers
                self.actions[action] = "doubted"
        return ""

    def _ModelPriced(self, record: Object, fact: Object, before: Object | None) -> str:
        return "" if record["seq"] == 1 else "a price stands right behind the genesis"

    def _ModelCalled(self, record: Object, fact: Object, before: Object | None) -> str:
        self.calls = True
        return "a model is called after the run ended, or a person's no had ended it" if self.refused or self.ended else ""

    def _ModelReplied(self, record: Object, fact: Object, before: Object | None) -> str:
        was, self.calls = self.calls, False
        return "" if was or fact.get("category") == "bad_output" else "no model call is open"

    _ModelFailed = _ModelReplied

    def _ActionProposed(self, record: Object, fact: Object, before: Object | None) -> str:
        if fact["action"] in self.actions:
            return f"action {fact['action'][:40]} is proposed twice"
        self.actions[fact["action"]], self.effects[fact["action"]] = "proposed", fact["effect"]
        return "an action is proposed after the run ended" if self.ended else ""

    def _ActionJudged(self, record: Object, fact: Object, before: Object | None) -> str:
        if self.actions.get(fact["action"]) in ("doubted", "unknown"):  # it stays so while it is judged
            return ""
        return self._move(fact["action"], "denied" if fact["verdict"] == "deny" else "judged")

    def _ActionStarted(self, record: Object, fact: Object, before: Object | None) -> str:
        """Nothing starts without its ALLOW directly before it, and no attempt starts twice."""
        action, attempt = fact["action"], fact["attempt"]
        judged = before["fact"] if before is not None and before["type"] == "ActionJudged" else {}
        if (judged.get("verdict"), judged.get("action"), judged.get("attempt")) != ("allow", action, attempt):
            return "an intent without the ALLOW of this action and attempt directly before it"
        if self.actions.get(action) == "started" or attempt <= self.attempts.get(action, 0):
            return "this attempt was started before, or an earlier one is still in flight"
        if self.actions.get(action) == "doubted" and self.effects[action] == "irreversible":
            return "what cannot be taken back is tried again while nobody knows whether it happened"
        what = self._move(action, "started")
        if what:
            return what
        self.children |= {action} if "child" in fact else set()
        self.attempts[action] = attempt
        return "an action starts after the run ended, or a person's no had ended it" if self.refused or self.ended else ""

    def _ActionDoubted(self, record: Object, fact: Object, before: Object | None) -> str:
        if self.actions.get(fact["action"]) not in ("started", "doubted"):
            return "only a started action can be doubted"
        return self._move(fact["action"], "doubted")

    def _ActionEnded(self, record: Object, fact: Object, before: Object | None) -> str:
        action, result = fact["action"], fact["result"]
        old = self.actions.get(action)
        if result == "done" and old in ("proposed", "judged"):
            return "an action that never started is done"
        if result == "cancelled" and old == "doubted" and self.effects[action] == "irreversible":
            return "nobody knows whether it happened, and it is called cancelled"
        what = self._move(action, "settled" if result == "unknown" and fact["via"] == "people" else result)
        if not what and result == "failed" and "retry_at" not in fact:
            self.final.add(action)
        return what

    def _RunHalted(self, record: Object, fact: Object, before: Object | None) -> str:
        self.refused = self.refused or refuses_all(fact)
        return ""

    def _RunEnded(self, record: Object, fact: Object, before: Object | None) -> str:
        was, self.ended = self.ended, self.ended or fact["state"]
        return "a run ends once" if was else ""

    def _RunSealed(self, record: Object, fact: Object, before: Object | None) -> str:
        self.sealed = True
        if record["seq"] != self.count - 1:
            return "a record stands behind the seal"
        if not self.ended or fact["closed"] != self.ended:
            return "the seal does not say how the run ended"
        if fact["head"] != record["prev"] or fact["count"] != record["seq"]:
            return "the seal counts other records than those before it"
        return "sealed while an action is in flight or unsettled" if self.in_flight or self.unsettled else ""

    def _Voted(self, record: Object, fact: Object, before: Object | None) -> str:
        if (record["run"] == LOG) != (fact["scope"] == "standing") or (fact["scope"] == "standing") != ("action" not in fact):
            return "a standing vote names no action and belongs to chain log, any other to its run"
        known = record["run"] == LOG or fact["action"] in self.actions
        return "" if known else f"action {fact['action'][:40]} was never proposed"

    def _EvidenceReached(self, record: Object, fact: Object, before: Object | None) -> str:
        """A checkpoint holds what was written before it was heard of."""
        if not 0 <= fact["seq"] < record["seq"]:
            return "evidence was reached for an event that is not there yet"
        return "" if fact["size"] > fact["seq"] else "a checkpoint of fewer leaves than the run has events"

    def _HoldPlaced(self, record: Object, fact: Object, before: Object | None) -> str:
        twice = fact["hold"] in self.holds
        self.holds.setdefault(fact["hold"], fact)
        return f"hold {fact['hold'][:40]} is placed twice" if twice else ""

    def _HoldLifted(self, record: Object, fact: Object, before: Object | None) -> str:
        held, self.holds[fact["hold"]] = self.holds.get(fact["hold"]), None
        return "" if held else f"hold {fact['hold'][:40]} is not in force"

    def _ErasureRequested(self, record: Object, fact: Object, before: Object | None) -> str:
        twice = fact["erasure"] in self.erasures
        self.erasures.setdefault(fact["erasure"], fact["after"])
        return f"erasure {fact['erasure'][:40]} is requested twice" if twice else ""

    def _ErasureBlocked(self, record: Object, fact: Object, before: Object | None) -> str:
        if fact["erasure"] not in self.erasures:
            return f"erasure {fact['erasure'][:40]} was never requested"
        return "the hold that is said to keep it is not in force" if "hold" in fact and not self.holds.get(fact["hold"]) else ""

    def _Erased(self, record: Object, fact: Object, before: Object | None) -> str:
        """Asked for first, not before its time, and not while a hold on this subject, or on everything, is in force."""
        if fact["erasure"] not in self.erasures:
            return "something was destroyed that nobody had asked to erase"
        if fact["clock"]["now"] < self.erasures[fact["erasure"]]:
            return "it was destroyed before its time"
        held = [hold for hold in self.holds.values() if hold and "run" not in hold]
        stops = any("subject" not in hold or hold["subject"] == fact.get("subject") for hold in held)
        return "it was destroyed while a hold was in force" if stops else ""


class Walk:
    """A chain, read forward as far as it holds. `fault` is the first thing that does not; `newer` when that is only its age."""

    def __init__(self, raws: Sequence[bytes], run: str) -> None:
        self.records: list[Object] = []
        self.life, self.head, self.newer = Life(len(raws)), "", False
        self.fault: Object | None = None
        before: Object | None = None
        prev: str | None = ""
        for seq, raw in enumerate(raws):
            try:
                record = read_record(raw)
            except (ValueError, Newer) as error:
                self.newer = isinstance(error, Newer)
                self.fault = self._fault(raw, seq, run, str(error))
                return
            prev = genesis_prev(record) if before is None else prev
            what = self._misplaced(record, seq, run, prev, before) or self.life.check(record, before)
            if what:
                self.fault = self._fault(raw, seq, run, what)
                return
            prev = self.head = event_hash(raw)
            before = record
            self.records.append(record)

    @staticmethod
    def _misplaced(record: Object, seq: int, run: str, prev: str | None, before: Object | None) -> str:
        if record["seq"] != seq:
            return "its number is not the next one"
        if record["run"] != run:
            return "it belongs to another run"
        if record["prev"] != prev:
            return "the chain does not begin with its genesis" if before is None else "it does not name the event before it"
        if before is not None and record["epoch"] != before["epoch"] and record["type"] != "RunOwned":
            return "the epoch changed without RunOwned"
        return ""

    @staticmethod
    def _fault(raw: bytes, seq: int, run: str, what: str) -> Object:
        return Broken(what, chain=LOG if run == LOG else "run", event=seq, type=type_of(raw)).finding

    @property
    def state(self) -> str:
        return "sealed" if self.life.sealed else "interrupted" if self.life.in_flight else "open"


def type_of(raw: bytes) -> str:
    """The type that a damaged record claims, to name it. Never believed."""
    match = re.search(rb'"type":"([A-Za-z]{1,40})","v":', raw[-80:])
    return match[1].decode() if match else ""


def backward(raws: Sequence[bytes], head: str, chain: str) -> Object | None:
    """From the signed head back: the first record whose hash is not the one demanded. What stands behind it is attested, no more."""
    by = "the signed head"
    for seq in range(len(raws) - 1, -1, -1):
        found = event_hash(raws[seq])
        if found != head:
            what = f"hash is not the one {by} names"
            return Broken(what, chain=chain, event=seq, type=type_of(raws[seq]), expected=head, found=found).finding
        at = raws[seq].rfind(b',"prev":"')
        head, by = (raws[seq][at + 9 : at + 73].decode("ascii", "replace") if at >= 0 else ""), f"event {seq}"
    return None


def attested(event: int, count: int) -> str:
    behind = f"events {event + 1} to {count - 1} are proven" if event + 1 < count else "no event is proven"
    return behind + (f", 0 to {event - 1} are not attested" if event else "")


# ---- 8. The log: that these records are leaves of the tree that the log signed, and that others saw it grow ------------------------


class Note(NamedTuple):
    """A C2SP signed note that is a checkpoint of three lines. `signatures`: (name, id, signature), unbelieved."""

    text: str
    origin: str
    size: int
    root: bytes
    signatures: list[tuple[str, str, bytes]]


def parse_note(raw: bytes) -> Note:
    """Raises ValueError. A fourth line of text would be seen by no auditor, so it is refused."""
    if len(raw) > NOTE_BYTES_MAX:
        raise ValueError("the checkpoint is too large")
    body, gap, block = raw.decode("utf-8").rpartition("\n\n")  # the last empty line ends the text
    lines, marks = body.split("\n"), block.split("\n")
    if not gap or marks.pop() or len(marks) > SIGNATURES_MAX or re.search(r"[\x00-\x09\x0b-\x1f]", body + block):
        raise ValueError("this is no signed note")
    signatures = []
    for mark in marks:
        match = re.fullmatch("\u2014 ([^\\s+]{1,200}) ([A-Za-z0-9+/]+={0,2})", mark)
        raw_signature = unb64(match[2]) if match else b""
        if match is None or len(raw_signature) < 5:
            raise ValueError("a signature line is malformed")
        signatures.append((match[1], raw_signature[:4].hex(), raw_signature[4:]))
    if len(lines) != 3 or not KEY_NAME.fullmatch(lines[0]) or not re.fullmatch("0|[1-9][0-9]{0,15}", lines[1]):
        raise ValueError("a checkpoint is three lines: origin, size, root")
    size, root = int(lines[1]), unb64(lines[2])
    if size > INT_MAX or len(root) != 32 or (size == 0 and root.hex() != EMPTY_ROOT):
        raise ValueError("the root is not one")
    return Note(body + "\n", lines[0], size, root, signatures)


def note_signers(note: Note, keys: Iterable[Key]) -> dict[Key, int]:
    """Which of these keys signed, each once, and when (0: a log says no time). A known name and id must hold. Raises ValueError."""
    known = {(key.name, key.id): key for key in keys}
    out: dict[Key, int] = {}
    for name, key_id, signature in note.signatures:
        key = known.get((name, key_id))
        if key is None:
            continue
        message, at = note.text.encode(), 0
        if key.kind in COSIGNERS:
            at, signature = int.from_bytes(signature[:8], "big"), signature[8:]
            message = b"cosignature/v1\ntime %d\n%s" % (at, message)
        if key.kind == COSIGNER_PQ:  # C2SP tlog-cosignature: it signs the cosigner's name too
            names = bytes([len(name)]) + name.encode() + at.to_bytes(8, "big") + bytes([len(note.origin)]) + note.origin.encode()
            message = b"subtree/v1\n\0" + names + bytes(8) + note.size.to_bytes(8, "big") + note.root
        if not signed(key, message, signature) or (key.kind in COSIGNERS and not 0 < at < 1 << 63):
            raise ValueError(f"the signature of {key.name}+{key.id} does not hold")
        if key.public not in [one.public for one in out]:
            out[key] = at
    return out


class LogProof(NamedTuple):
    """A C2SP tlog-proof. Nothing signs `extra` or the index: each is believed for what can be recomputed from it."""

    at: int
    path: list[bytes]
    note: bytes
    extra: bytes


def parse_proof(raw: bytes) -> LogProof:
    head, gap, note = raw.partition(b"\n\n")
    lines = head.decode("ascii").split("\n")
    if not gap or lines.pop(0) != "c2sp.org/tlog-proof@v1":
        raise ValueError("this is no proof of a log")
    extra = unb64(lines.pop(0)[6:]) if lines and lines[0].startswith("extra ") else b""
    match = re.fullmatch("index (0|[1-9][0-9]{0,15})", lines.pop(0)) if lines else None
    path = [unb64(line) for line in lines[: PATH_MAX + 1]]
    if match is None or int(match[1]) > INT_MAX or len(path) > PATH_MAX or any(len(one) != 32 for one in path):
        raise ValueError("it names no index, or a hash is not one")
    return LogProof(int(match[1]), path, note, extra)


def leaf_hash(record: bytes) -> bytes:
    return hashlib.sha256(b"\0" + record).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def included(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """RFC 9162, section 2.1.3.2: this leaf is number `index` of the `size` leaves under `root`."""
    at, last, out = index, size - 1, leaf
    if not 0 <= index < size:
        return False
    for one in path:
        if not last:
            return False
        if at & 1 or at == last:
            out = node_hash(one, out)
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            out = node_hash(out, one)
        at, last = at >> 1, last >> 1
    return not last and out == root


def root_of_tiles(folder: str, size: int) -> bytes:
    """The root over the first `size` leaves, from the files of C2SP tlog-tiles. Raises OSError where one is not there."""

    def tile(level: int, index: int, least: int) -> bytes:
        parts = [f"{index % 1000:03d}"]
        while index >= 1000:
            index //= 1000
            parts.insert(0, f"x{index % 1000:03d}")
        path = os.path.join(folder, "tile", str(level), *parts)
        widths = [int(name) for name in os.listdir(path + ".p") if name.isdigit()] if os.path.isdir(path + ".p") else []
        names = [path, *(os.path.join(path + ".p", str(width)) for width in sorted(widths, reverse=True) if width >= least)]
        with open(next((name for name in names if os.path.isfile(name)), path), "rb") as file:
            return file.read(8192)

    def node(height: int, number: int) -> bytes:
        level, above = divmod(height, 8)
        if above:
            return node_hash(node(height - 1, 2 * number), node(height - 1, 2 * number + 1))
        raw, at = tile(level, number // 256, number % 256 + 1), number % 256 * 32
        if len(raw) < at + 32:
            raise OSError("a tile is too short")
        return raw[at : at + 32]

    out = b""
    for height in range(size.bit_length()):  # the complete subtrees, from the right
        if size >> height & 1:
            left = node(height, (size >> height) - 1)
            out = node_hash(left, out) if out else left
    return out or hashlib.sha256(b"").digest()


INSTANT = re.compile(r"(19[7-9]\d|[2-9]\d{3})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)\.\d{6}Z")
LAST_SECOND = 253_402_300_000  # of the year 9999: behind it nothing is earlier


def newest(records: Iterable[Object]) -> str:
    """The latest `at`. Texts of this width are ordered as their times are."""
    return max((record["at"] for record in records if INSTANT.fullmatch(record["at"])), default="")


def instant(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(seconds))


class Leaf(NamedTuple):
    """One proof line: what it is for (run, log, child, level, anchor), the leaf that it is about, the latest `at` that it covers."""

    number: int
    job: str
    proof: LogProof
    note: Note
    leaf: bytes
    newest: str
    record: Object


class Proofs:
    """The proof lines, in the order that the format gives them, against checkpoints that the log and its witnesses signed."""

    def __init__(self, case: Case) -> None:
        self.case, self.trust, self.held = case, case.trust, False
        self.lines: list[Leaf] = []
        self.head: Note | None = None  # the largest checkpoint of this log
        self.raws: list[bytes] = case.box.sections["proof"]
        self.times: dict[bytes, dict[Key, int]] = {}
        self.children: list[tuple[str, str, str, str]] = list(rests_on(case.run.records))  # (run, action, closed, operation)

    @property
    def own(self) -> list[Leaf]:
        return [line for line in self.lines if line.job != "anchor"]

    def checkpoint(self) -> Claim:
        """Every checkpoint is of this log, signed by its key, cosigned by the quorum of the trust file, at a time that can be."""
        demanded = self.trust.quorum not in (None, "none")
        if not self.raws and demanded:
            says_ = f"the trust file demands quorum {self.trust.quorum}, and there is no proof of the log"
            return Claim("checkpoint", "not in this bundle", says_, 3)
        if not self.raws:
            says_ = "no proof that the log holds this run; nobody is asked to have witnessed it"
            return Claim("checkpoint", "not in this bundle", says_)
        self.lines = self._sorted()
        roots: dict[int, bytes] = {}
        for line in self.own:
            self._check(line)
            if roots.setdefault(line.note.size, line.note.root) != line.note.root:
                raise Broken("two checkpoints of one size have different roots: a split view", line=line.number)
        self.held, self.head = True, max((line.note for line in self.own), key=lambda note: note.size)
        first = self.lines[0]
        seen = [at for at in self.times[first.proof.note].values() if at]
        told = f"size {first.note.size}, cosigned by {some(len(seen), 'witness', 'witnesses')} of the trust file"
        if not all(self.met(line) for line in self.own if line.job != "level"):
            return Claim("checkpoint", "not in this bundle", f"{told}; that is not the quorum {self.trust.quorum}", 3)
        if not self.young(first):
            return Claim("checkpoint", "not in this bundle", f"{told}; too few cosignatures are as young as {self.case.max_age} seconds", 3)
        return Claim("checkpoint", "proven", told + (f": quorum {self.trust.quorum}" if demanded else "; no quorum is demanded"))

    def met(self, line: Leaf) -> bool:
        """Whether the quorum cosigned it, counted over different public keys."""
        return self.trust.met({key.public for key, at in self.times[line.proof.note].items() if at})

    def young(self, line: Leaf) -> bool:
        """One witness's clock makes nothing young: as many as are demanded have cosigned it lately."""
        now, most, times = self.case.now, self.case.max_age, self.times[line.proof.note]
        if most is None or now is None:
            return most is None or any(times.values())
        lately = {key.public for key, at in times.items() if at and now - at <= most}
        return bool(lately) and self.trust.met(lately)

    def _check(self, line: Leaf) -> None:
        note, origin = line.note, self.case.said["origin"]
        if line.proof.note not in self.times:
            if note.origin != origin:
                raise Broken("the checkpoint is of another log", line=line.number, expected=origin, found=note.origin)
            try:
                seen = note_signers(note, [*self.trust.log_keys(origin), *self.trust.witnesses.values()])
            except ValueError as error:
                raise Broken(str(error), line=line.number) from None
            if not any(key in self.trust.logs and not at for key, at in seen.items()):
                raise Broken("no trusted key of the log signed the checkpoint", line=line.number)
            if self.case.now is not None and any(at > self.case.now + SKEW_S for at in seen.values()):
                raise Broken("a cosignature is from the future", line=line.number)
            self.times[line.proof.note] = seen
        for at in self.times[line.proof.note].values():  # a witness cannot have seen what was written later
            if 0 < at < LAST_SECOND and line.newest > instant(at + SKEW_S):
                raise Broken(
                    "a cosignature is older than a record that it covers", line=line.number, expected=line.newest, found=instant(at)
                )

    def inclusion(self) -> Claim:
        """The run's last record, and with it by its chain each one before, is a leaf of that tree."""
        if not self.raws:
            return Claim("inclusion", "not in this bundle", "no record is shown to be in the log")
        if not self.held:
            return Claim("inclusion", "cannot check now", "there is no checkpoint that holds", 5)
        for line in self.own:
            if not included(line.leaf, line.proof.at, line.note.size, line.proof.path, line.note.root):
                raise Broken(f"the record is not in the log at index {line.proof.at}", line=line.number)
        records, first = self.case.run.records, self.lines[0]
        roots = {line.note.size: line.note.root.hex() for line in self.own}
        for record in records:  # what names a checkpoint was written after it, so it stands behind all of its leaves
            named = record["fact"]["anchor"] if record["type"] == "RunOpened" else record["fact"]
            if record["type"] not in ("RunOpened", "EvidenceReached") or not named["size"]:
                continue
            least = named["size"] + len(records) - 1 - record["seq"]
            if first.proof.at < least:
                what = f"event {record['seq']} names a checkpoint that is newer than itself"
                raise Broken(what, line=first.number, expected=f"index {least} or more", found=str(first.proof.at))
            if roots.get(named["size"], named["root"]) != named["root"]:
                raise Broken(f"event {record['seq']} names another root for {named['size']} leaves: a split view", line=first.number)
        return Claim("inclusion", "proven", f"the run's last record is leaf {first.proof.at}")

    def of_children(self) -> Claim:
        """Each child that an outcome rests on is the one that its intent named, and ended as the outcome says, by its own seal."""
        seals = {line.record["run"]: line for line in self.lines if line.job == "child"}
        for run, action, closed_, operation in self.children:
            if run != operation[:26].upper():
                raise Broken(f"child {run[:26]} is not the one of its intent", expected=operation[:26].upper(), found=run[:80])
            if run in seals and seals[run].record["fact"]["closed"] != closed_:
                raise Broken(f"action {action[:40]} says something else than the seal of its child", line=seals[run].number)
        absent = [run for run, *_ in self.children if run not in seals]
        if self.raws and not self.held:
            return Claim("children", "cannot check now", "there is no checkpoint that holds", 5)
        if absent:
            code = 3 if self.raws or self.trust.quorum not in (None, "none") else 0
            return Claim("children", "not in this bundle", f"the seal of child {', '.join(absent[:5])}", code)
        return Claim("children", "proven", f"{some(len(seals), 'seal')} of children in the log, each as its action says")

    def of_anchors(self) -> Claim:
        """The checkpoint, or its SHA-256, is an entry of a public log whose key the trust file holds."""
        texts, known, unknown = [line.note.text.encode() for line in self.own if self.times.get(line.proof.note)], [], []
        for line in [line for line in self.lines if line.job == "anchor"]:
            keys = [key for key in self.trust.anchors if key.name == line.note.origin]
            if not keys:
                unknown.append(line.note.origin)
                continue
            try:
                seen = note_signers(line.note, keys)
            except ValueError as error:
                raise Broken(str(error), line=line.number) from None
            if not seen or not included(line.leaf, line.proof.at, line.note.size, line.proof.path, line.note.root):
                raise Broken(f"the entry is not in the public log {line.note.origin}", line=line.number)
            if not any(is_entry_over(line.proof.extra, text) for text in texts):
                raise Broken(f"the entry in {line.note.origin} is not about a checkpoint of this bundle", line=line.number)
            known.append(line.note.origin)
        if not self.held:
            return Claim("anchors", "cannot check now", "there is no checkpoint that holds", 5)
        if not known:
            return Claim("anchors", "cannot check now", f"the trust file holds no anchor key for {', '.join(unknown[:5])}")
        return Claim("anchors", "proven", f"the checkpoint is an entry of {', '.join(known)}")

    def _sorted(self) -> list[Leaf]:
        """Line 1 is of the run's last record, line 2 of chain log's; then children's seals, levels reached, anchors; nothing between."""
        case, first = self.case, self.case.box.first["proof"]
        reached = [record for record in case.run.records if record["type"] == "EvidenceReached"]
        latest_at = list(itertools.accumulate((newest([record]) for record in case.run.records), max)) if reached else []
        if len(self.raws) > 2 + len(self.children) + len(reached) + 8:
            raise Broken("section proof has too many lines", line=first)
        own = [("run", case.box.sections["record"][-1], newest(case.run.records))]
        if case.log.records:
            own.append(("log", case.box.sections["log"][-1], newest(case.log.records)))
        read = [(number, *_proof_line(raw, number)) for number, raw in enumerate(self.raws, first)]
        if len(read) < len(own):
            raise Broken("there is no proof for chain log", line=first)
        out: list[Leaf] = []
        left, anchors = [run for run, *_ in self.children], 0
        for at, (number, proof, note) in enumerate(read):
            job, leaf, latest, record = "anchor", proof.extra, "", {}
            if at < len(own):
                job, leaf, latest = own[at]
            elif note.origin == case.said["origin"] and (anchors or (proof.extra and out[-1].job == "level")):
                raise Broken("this proof does not stand in its turn", line=number)
            elif note.origin == case.said["origin"] and proof.extra:
                job, record = "child", _seal_in(proof, number)
                latest = newest([record])
                if record["run"] not in left:
                    raise Broken(
                        "this proof is of no run that this one rests on, or not in its turn", line=number, found=record["run"][:40]
                    )
                left = left[left.index(record["run"]) + 1 :]
            elif note.origin == case.said["origin"]:
                heads = [(one["fact"]["size"], one["fact"]["root"]) for one in reached]
                if (note.size, note.root.hex()) not in heads:
                    raise Broken("this proof is of no level that the run reached, or not in its turn", line=number)
                at_head = heads.index((note.size, note.root.hex()))
                job, record, reached = "level", reached[at_head], reached[at_head + 1 :]
                upto = record["fact"]["seq"] + 1
                leaf, latest = case.box.sections["record"][upto - 1], latest_at[upto - 1]
            anchors += job == "anchor"
            if (at < len(own) and proof.extra) or anchors > 8:
                raise Broken("the proof carries a record that stands in this bundle already, or there are too many anchors", line=number)
            out.append(Leaf(number, job, proof, note, leaf_hash(leaf), latest, record))
        return out


def _proof_line(raw: bytes, number: int) -> tuple[LogProof, Note]:
    try:
        text = accept(raw)
        if type(text) is not str:
            raise ValueError("a proof line is a JSON string")
        proof = parse_proof(text.encode("utf-8"))
        return proof, parse_note(proof.note)
    except ValueError as error:
        raise Broken(str(error)[:120], line=number) from None


def _seal_in(proof: LogProof, number: int) -> Object:
    try:
        record = read_record(proof.extra)
    except (ValueError, Newer):
        raise Broken("this proof carries no record", line=number) from None
    fact = record["fact"]
    if record["type"] != "RunSealed" or (fact["count"], fact["head"]) != (record["seq"], record["prev"]):
        raise Broken("this proof carries no seal of a run", line=number)
    return record


def rests_on(records: Sequence[Object]) -> Iterator[tuple[str, str, str, str]]:
    """Each child that an outcome rests on, once: (run, action, how it must have ended, operation)."""
    started: dict[str, Object] = {}
    seen = set()
    for record in records:
        fact, action = record["fact"], record["fact"].get("action")
        if record["type"] == "ActionStarted" and "child" in fact:
            started[action] = fact
        elif record["type"] == "ActionEnded" and fact["via"] == "child" and action in started:
            done, code, intent = fact["result"] == "done", fact.get("code", ""), started[action]
            if (done or code.startswith("child_")) and intent["child"] not in seen:
                seen.add(intent["child"])
                yield intent["child"], action, "completed" if done else code[len("child_") :], intent["operation"]


def is_entry_over(entry: bytes, text: bytes) -> bool:
    """Whether a public log's entry is our checkpoint itself, or a Rekor v2 `hashedrekord` over its SHA-256."""
    try:
        value = json.loads(entry, object_pairs_hook=_no_twins, parse_int=_whole) if entry != text else None
        data = value["spec"]["hashedRekordV002"]["data"] if value is not None else {}
        found = (value["kind"], value["apiVersion"], data["algorithm"], data["digest"]) if value is not None else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return entry == text or found == ("hashedrekord", "0.0.2", "SHA2_256", b64(hashlib.sha256(text).digest()))


def check_continuity(head: Note | None, last: dict[str, Object], folder: str | None) -> Claim:
    """What this bundle shows of the log is what was seen last, or has grown out of it. One bundle alone cannot show a split view."""
    if head is None:
        return Claim("continuity", "not in this bundle", "no checkpoint to compare with the one seen last", 3)
    before = last.get(head.origin)
    told = f"size {head.size}" + (f", seen last {before['size']}" if before else "")
    if before is None:
        return Claim("continuity", "proven", f"the first look at {head.origin}: {told}")
    if head.size == before["size"]:
        if head.root.hex() != before["root"]:
            raise Broken("the log shows another root for a size seen before: a split view", expected=before["root"], found=head.root.hex())
        return Claim("continuity", "proven", told)
    smaller = head.size < before["size"]
    try:
        roots = [] if folder is None else [root_of_tiles(folder, size).hex() for size in (head.size, before["size"])]
    except OSError as error:
        return Claim("continuity", "cannot check now", f"{told}: {error}", 5)
    if not roots and not smaller:
        return Claim("continuity", "cannot check now", f"{told}: whether one begins with the other needs the log's tiles (--log DIR)", 5)
    if roots != [head.root.hex(), before["root"]]:
        raise Broken("the log is smaller than it was: rolled back" if smaller else "the log does not begin with what was seen last")
    return Claim("continuity", "proven", f"{told}: one log")


# ---- 9. Payloads: what a record committed to, shown whole, in part, or not at all --------------------------------------------------

SHOWN = {
    "whole": "commit part run secret seq show value", "fields": "commit fields hidden part run seq show",
    "blob": "commit name part run seq show", "cipher": "cipher commit part run seq show",
    "withheld": "commit part run seq show", "erased": "commit part run seq show",
}  # fmt: skip
WHOLE, CARD = 2**32 - 1, 2**32 - 2
FIELDS = "application/vnd.mandamus.fields+json"  # payloads of this media type can be shown member by member
FIELDS_MAX, CIPHER_BYTES_MIN = 32, 12 + 32 + 1 + 16


class Line(NamedTuple):
    """A payload line. `value` and `secret` only where it is shown whole."""

    number: int
    key: tuple[str, int, str]
    show: str
    commit: str
    secret: bytes
    value: Any
    more: Any  # of `fields`: (members, hidden digests); of `blob`: the name of its file


def salt(secret: bytes, which: int) -> bytes:
    return hashlib.sha256(b"mandamus/v1/salt\0" + secret + which.to_bytes(4, "big")).digest()[:16]


def card_digest(secret: bytes, card: Object) -> str:
    return digest("card", salt(secret, CARD), jcs({name: value for name, value in card.items() if name != "votes"}))


def field_digest(own: bytes, name: str, value: Any) -> str:
    return digest("field", own, jcs([name, value]))


def fields_commitment(digests: Iterable[str]) -> str:
    return digest("fields", *sorted(bytes.fromhex(one) for one in digests))


def commitment(line: Line, media: str) -> str:
    """Recomputed from what is shown. Nobody without S guesses the value, nobody finds another value with the same commitment."""
    if line.show == "fields":
        members, hidden = line.more
        count = len(members) + len(hidden)
        good = media == FIELDS and count <= FIELDS_MAX and all(member[0] < count for member in members)
        own = [field_digest(unb64(one), name, value) for _, one, name, value in members]
        return fields_commitment([*own, *hidden]) if good else "members of what has none, or too many"
    if line.show != "whole":
        return line.commit  # nothing is shown: it is the one that the record names, and no more is said
    if len(line.secret) != 32:
        return "a salt of another length"
    if media != FIELDS:
        return digest("payload", salt(line.secret, WHOLE), jcs(line.value))
    if type(line.value) is not dict or not 1 <= len(line.value) <= FIELDS_MAX:
        return "no object of 1 to 32 members"
    names = sorted(line.value, key=lambda name: name.encode("utf-16-be"))
    return fields_commitment(field_digest(salt(line.secret, i), name, line.value[name]) for i, name in enumerate(names))


def read_payload(raw: bytes, number: int) -> Line:
    try:
        value = accept(raw)
        wanted = SHOWN.get(value["show"]) if type(value) is dict else None
        if wanted is None or sorted(value) != wanted.split() or type(value["seq"]) is not int:
            raise ValueError("its fields are not those of a payload line")
        if any(type(value[name]) is not str for name in value if name not in ("seq", "value", "fields", "hidden")):
            raise ValueError("a field has another type")
        secret, more = unb64(value.get("secret", "")), value.get("name")
        if "name" in value and not re.fullmatch("[0-9a-f]{64}", value["name"]):
            raise ValueError("a blob is named by its SHA-256")
        if "cipher" in value and len(unb64(value["cipher"])) < CIPHER_BYTES_MIN:
            raise ValueError("its cipher is too short to be one")
        if "fields" in value:
            more = _members(value["fields"], value["hidden"])
    except (ValueError, TypeError, KeyError) as error:
        raise Broken(f"this is no payload line: {str(error)[:80]}", line=number) from None
    return Line(number, (value["run"], value["seq"], value["part"]), value["show"], value["commit"], secret, value.get("value"), more)


def _members(members: Any, hidden: Any) -> tuple[list[Any], list[str]]:
    """[number, salt, name, value] of each member that is shown, and the digests of the others, both in ascending order."""
    good = type(members) is list and type(hidden) is list and len(hidden) >= 1 and len(members) + len(hidden) <= FIELDS_MAX
    good = good and all(type(one) is list and len(one) == 4 and [type(x) for x in one[:3]] == [int, str, str] for one in members)
    good = good and all(type(one) is str and re.fullmatch("[0-9a-f]{64}", one) for one in hidden)
    if not good or hidden != sorted(set(hidden)) or any(len(unb64(one[1])) != 16 for one in members):
        raise ValueError("members that cannot be")
    numbers = [one[0] for one in members]
    if numbers != sorted(set(numbers)) or any(n < 0 for n in numbers) or len({one[2] for one in members}) != len(members):
        raise ValueError("a member stands twice")
    return members, hidden


def match_payloads(lines: Sequence[Line], records: Sequence[Object], blobs: dict[str, bytes]) -> dict[tuple[str, int, str], Line]:
    """Each line belongs to the body part whose turn it is, and is what that part committed to: none missing, doubled or added."""
    out = {}
    parts = [(record, part) for record in records for part in record.get("body", ())]
    for line, (record, part) in zip(lines, parts):
        if line.key != (record["run"], record["seq"], part["part"]) or line.commit != part["commit"]:
            raise broken_at(record, f"this line is not payload {part['part']!r} of its record", part["commit"], line.commit, line.number)
        if line.show == "blob" and line.more in blobs:  # a file beside the bundle: S, then the canonical value
            line = _with_blob(line, blobs[line.more], record)
        try:
            found = commitment(line, part["media"])
        except ValueError as error:
            found = str(error)
        if found != part["commit"]:
            raise broken_at(record, f"payload {part['part']!r} is not the one its record commits to", part["commit"], found, line.number)
        out[line.key] = line
    if len(lines) != len(parts):
        raise Broken("payload lines and body parts do not match", expected=f"{len(parts)} lines", found=str(len(lines)))
    return out


def _with_blob(line: Line, raw: bytes, record: Object) -> Line:
    try:
        if hashlib.sha256(raw).hexdigest() != line.more:
            raise ValueError("the file beside the bundle is not the one it names")
        return line._replace(show="whole", secret=raw[:32], value=accept(raw[32:]))
    except ValueError as error:
        raise broken_at(record, str(error), line=line.number) from None


def check_erased(lines: Iterable[Line], log: Sequence[Object], run: str) -> int:
    """What is gone was erased by a record of chain log; what a record says is gone is not shown; nothing under a legal hold is gone."""
    gone, held, kept = set(), set(), set()
    for record in log:
        fact = record["fact"]
        if record["type"] == "HoldPlaced" and fact.get("run") == run:
            held.add(fact["hold"])
        elif record["type"] == "HoldLifted":
            held.discard(fact["hold"])
        elif record["type"] == "Erased":
            gone |= set(fact["commits"])
            kept |= set(fact["commits"]) if held else set()
    count = 0
    for line in lines:
        where = {"chain": LOG if line.key[0] == LOG else "run", "event": line.key[1], "line": line.number}
        count += line.show == "erased"
        if line.show == "erased" and line.commit not in gone:
            raise Broken(f"payload {line.key[2]!r} is missing, and no record says that it was erased", **where)
        if line.show in ("whole", "fields") and line.commit in gone:
            raise Broken(f"payload {line.key[2]!r} is shown, although a record says that it was erased", **where)
        if line.key[0] == run and line.commit in kept:
            raise Broken(f"payload {line.key[2]!r} was erased while the run was under a legal hold", **where)
    return count


# ---- 10. Authority: what chain `log` enrolled, revoked, granted and stopped, up to each version -----------------------------------

AUTHORITY_TYPE = "application/vnd.mandamus.authority+json"
STOP_TYPE = "application/vnd.mandamus.stop+json"
SAY_TYPE = "application/vnd.mandamus.message+json"
BALLOT_TYPE = "application/vnd.mandamus.ballot+json"
NARROWS = ("StopRequested", "VoteWithdrawn", "HoldPlaced")


def raises(record: Object) -> bool:
    """Does this record of chain log make the next version of the authority?"""
    standing = record["type"] == "Voted" and record["fact"]["scope"] == "standing"
    return standing or record["type"] in (*NARROWS, "PolicyChanged", "KeyChanged", "HoldLifted")


def widens(record: Object) -> bool:
    """Must administrators have signed it? Revoking a key alone narrows."""
    return raises(record) and record["type"] not in NARROWS and (record["type"] != "KeyChanged" or "new" in record["fact"])


def bytes_of(line: str) -> str:
    """The key itself, as its line of text ends with it. By which name the log or the trust file calls it, does not matter."""
    return line.split("+", 2)[-1]


class Authority:
    """The n-th record that raises the authority makes version n; each judgement names the version that it saw."""

    def __init__(self, records: Sequence[Object]) -> None:
        self.version = 0
        self.revoked: dict[str, int] = {}
        self.granted: dict[str, tuple[int, Object]] = {}
        self.withdrawn: dict[str, int] = {}
        self.keys: list[tuple[int, Object]] = []
        self.widened: list[tuple[int, Object]] = []
        self.stops: list[tuple[int, Object]] = []
        for record in filter(raises, records):
            fact, name = record["fact"], record["type"]
            self.version += 1
            if widens(record):
                self.widened.append((self.version, record))
            if name == "KeyChanged":
                self.keys.append((self.version, fact))
            if name == "KeyChanged" and "old" in fact:
                self.revoked.setdefault(bytes_of(fact["old"]), self.version)
            elif name == "StopRequested":
                self.stops.append((self.version, record))
            elif name == "VoteWithdrawn":
                self.withdrawn.setdefault(fact["ballot"], self.version)
            elif name == "Voted":
                self.granted.setdefault(fact["ballot"], (self.version, record))

    def was_revoked(self, key: Key, version: int) -> bool:
        return self.revoked.get(bytes_of(str(key)), version + 1) <= version

    def was_withdrawn(self, ballot: str, version: int) -> bool:
        return self.withdrawn.get(ballot, version + 1) <= version

    def admins(self, opened: Object, trust: Trust, version: int) -> list[Key]:
        """Keys that the log named as its administrators' before this version *and* the trust file holds: neither alone is enough."""
        named = {bytes_of(key["key"]) for key in opened["keys"] if key["role"] == "administrator"}
        for at, change in self.keys:
            if at < version and change["role"] == "administrator":
                named = (named - {bytes_of(change.get("old", ""))}) | ({bytes_of(change["new"])} if change.get("new") else set())
        return [key for key in trust.admins if bytes_of(str(key)) in named]


def why_no_statement(raw: bytes, record: Object, opened: Object, keys: list[Key], seen: set[str]) -> str:
    """Why this signed statement does not widen exactly this, now, for the first time; "" when it does.

    `keys`: the administrators of then. A key that takes another's place has signed it too, and so has the other.
    """
    fact = record["fact"]
    if not keys:
        return "no administrator that the log names stands in the trust file"
    try:
        both = [parse_key(fact["old"]), parse_key(fact["new"])] if "old" in fact and "new" in fact and "role" in fact else []
        envelope = read_envelope(raw)
        signers = open_envelope(envelope, AUTHORITY_TYPE, [*keys, *(key for key in both if key not in keys)])
        if sum(key in keys for key in signers) < max(1, opened["quorum"]):
            return f"fewer than {opened['quorum']} administrators signed it"
        if any(key not in signers for key in both):
            return "one of two keys did not sign that one takes the other's place"
        said = accept(envelope.payload)
        if not shape(said, "domain expires fact nonce origin type", expires=int, fact=dict):
            return "the statement is of another form"
    except (ValueError, TypeError) as error:
        return str(error)
    signable = {name: value for name, value in fact.items() if name not in ("clock", "mail")}
    about = said["domain"], said["origin"], said["type"], said["fact"]
    if about != ("mandamus/authority/v1", opened["origin"], record["type"], signable):
        return "the statement is about something else"
    if said["nonce"] in seen:
        return "the statement was used before"
    seen.add(said["nonce"])
    return "the statement had expired" if fact["clock"]["now"] >= said["expires"] else ""


def who_signed(raw: bytes, kind: str, trust: Trust) -> tuple[str, bytes, Key] | str:
    """(principal, what was signed, key) of one approver's signature. Who it was is said by the trust file, never beside the signature."""
    try:
        envelope = read_envelope(raw)
    except ValueError:
        return "malformed"
    if envelope.kind != kind or len(envelope.signatures) != 1:
        return "malformed"
    candidates = [entry for entry in trust.approvers.values() if entry[1].id == envelope.signatures[0][0]]
    if not candidates:
        return "not an approver"
    try:
        key = open_envelope(envelope, kind, [key for _, key in candidates], ssh=True)[0]
    except ValueError:
        return "forged"
    return trust.approvers[key.public][0], envelope.payload, key


def shape(value: Any, required: str, optional: str = "", **kinds: Any) -> bool:
    """A closed object: these fields and no others; those not in `kinds` are texts."""
    if type(value) is not dict or not set(required.split()) <= set(value) <= set(required.split()) | set(optional.split()):
        return False
    return all(type(value[name]) is kinds.get(name, str) for name in value)


def stop_statement(raw: bytes) -> Object | None:
    try:
        said = accept(raw)
    except ValueError:
        return None
    good = shape(said, "domain mode nonce origin run", "agent tenant") and said["mode"] in ("cancel", "halt")
    return said if good and said["domain"] == "mandamus/stop/v1" else None


def why_no_stop(raw: bytes | None, fact: Object, opened: Object, trust: Trust, keys: list[Key]) -> str:
    """A stop on chain log moves runs: an approver signed it, or an administrator of the log, and it says exactly this."""
    if raw is None:
        return "nobody signed it: it carries no statement"
    found = who_signed(raw, STOP_TYPE, trust)
    if found == "not an approver" and keys:
        try:
            envelope = read_envelope(raw)
            open_envelope(envelope, STOP_TYPE, keys)
            found = "p-administrator", envelope.payload, keys[0]
        except ValueError:
            pass
    if isinstance(found, str):
        return f"its statement does not count: {found}"
    said = stop_statement(found[1])
    if said is None or said["run"] != LOG or ("agent" in said) == ("tenant" in said):
        return "its statement does not count: malformed"
    says = found[0], said["origin"], said["mode"], said.get("agent"), said.get("tenant")
    recorded = fact["principal"], opened["origin"], fact["mode"], fact.get("agent"), fact.get("tenant")
    return "" if says == recorded else "its statement says something else"


# ---- 11. People: ballots, whom the rules ask, requests, votes, allowances ---------------------------------------------------------

DECISIONS = ("approve", "reject", "modify", "halt", "done", "again", "abandon")


def parse_ballot(raw: bytes) -> Object:
    """The closed data that a person signs, free of contradiction. Raises ValueError."""
    ballot: Any = accept(raw) if len(raw) <= BALLOT_BYTES_MAX else None
    scope = ballot.get("scope") if type(ballot) is dict else None
    good = shape(ballot, "decision domain expires origin policy run scope", "action args card request", expires=int, scope=type(scope))
    if not good or ballot["domain"] != "mandamus/approval/v1" or ballot["decision"] not in DECISIONS:
        raise ValueError("no ballot")
    if scope == "once":
        good = {"action", "request", "card"} <= set(ballot) and ballot["run"] != LOG
    else:
        good = ballot["run"] == LOG and not {"action", "request"} & set(ballot) and ballot["decision"] == "approve"
        good = good and _standing_ok(scope)
    if not good or ("args" in ballot) != (ballot["decision"] == "modify") or not 0 <= ballot["expires"] <= INT_MAX:
        raise ValueError("a ballot that can mean nothing")
    return dict(ballot)


def _standing_ok(scope: Any) -> bool:
    if type(scope) is not dict or sorted(scope) != ["standing"]:
        return False
    s, kinds = scope["standing"], {"amount": dict, "count": int, "pattern": dict, "until": int}
    if not shape(s, "chain count pattern until window", "amount salt", **kinds) or s["window"] not in ("day", "run", "until"):
        return False
    salted = re.fullmatch("[0-9a-f]{64}", s["salt"]) is not None if "salt" in s else not s["pattern"].get("args")
    money = money_of(s["amount"]) is not None if "amount" in s else True
    return salted and money and 1 <= s["count"] <= INT_MAX and 0 <= s["until"] <= INT_MAX


NO_DECIMALS = ("CLP", "ISK", "JPY", "KRW", "PYG", "UGX", "VND", "XAF", "XOF")
THREE_DECIMALS = ("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND")
TWO_DECIMALS = (
    "AED", "AUD", "BRL", "CAD", "CHF", "CNY", "CZK", "DKK", "EGP", "EUR", "GBP", "HKD", "HUF", "ILS", "INR", "MXN", "NOK", "NZD", "PLN",
    "RON", "SAR", "SEK", "SGD", "THB", "TRY", "USD", "ZAR",
)  # fmt: skip


def decimals_of(currency: str) -> int:
    """In how many decimals policy counts a currency (ISO 4217); what is no such currency is counted in six."""
    return 0 if currency in NO_DECIMALS else 3 if currency in THREE_DECIMALS else 2 if currency in TWO_DECIMALS else 6


def money_of(value: Any) -> tuple[str, int] | None:
    """(currency, the amount as policy would count it, rounded up), or None when this is no money."""
    if not shape(value, "amount currency", "decimals", decimals=int):
        return None
    places = value.get("decimals", 2)
    good = re.fullmatch(r"0|[1-9][0-9]{0,38}", value["amount"]) and re.fullmatch(r"[A-Z][A-Z0-9]{2,9}", value["currency"])
    if not good or not 0 <= places <= 18:
        return None
    shift = decimals_of(value["currency"]) - places
    return value["currency"], int(value["amount"]) * 10**shift if shift >= 0 else -(-int(value["amount"]) // 10**-shift)


def moneys(args: Object) -> set[tuple[str, int]]:
    """Every amount of money among the arguments of a call. Raises ValueError for one that nobody can count."""
    return {(money[0], counted(money[1])) for money in map(money_of, args.values()) if money is not None}


def counted(amount: int) -> int:
    if amount > INT_MAX:
        raise ValueError("an amount beyond 2^53-1")
    return amount


class Tier(NamedTuple):
    """Who may decide, how many must, for how long; who may forbid; whose own request it may not be."""

    quorum: int
    of: list[str] = []
    veto: list[str] = []
    deadline_ms: int = 3_600_000
    sod: Sequence[str] = ("requester", "author")


class Asking(NamedTuple):
    """A rule that asks a chain about calls. `over`: (currency, amount) above which it asks; `enough`: one allowance answers it."""

    chain: str
    quorum: int
    enough: bool
    safety: list[str]
    tools: list[str]
    tenant: str
    over: tuple[str, int] | None
    currencies: frozenset[str]

    def applies(self, tool: str, safety: str, tenant: str, amount: tuple[str, int] | None) -> bool:
        if (self.tools and tool not in self.tools) or (self.safety and safety not in self.safety) or self.tenant not in ("", tenant):
            return False
        if self.over is None or amount is None or amount[0] not in self.currencies:
            return True
        return amount[0] == self.over[0] and amount[1] > self.over[1]


SETTINGS = {  # what each kind of rule may say; `!` must be there
    "permit": "role safety tool tools maxAmount:str", "toolAllowlist": "tools!", "toolDenylist": "tools!",
    "maxAmount": "limit!:str currency:str safety tools", "maxDailyLimit": "limit!:str currency:str per:str safety tools",
    "dualApproval": "over:str chain:str quorum:int safety tools standing:str",
    "needsApproval": "quorum:int chain:str roles safety tools standing:str", "noWritesOn": "weekdays dates tz:str safety tools",
    "workingHours": "from!:str to!:str weekdays tz:str safety tools", "recipientAllowlist": "recipients! argument:str safety tools",
    "stepBudget": "turns:int calls:int", "needsEvidence": "level:str over:str within:str safety tools",
}  # fmt: skip
MONEY_OF = {"maxAmount": "limit", "maxDailyLimit": "limit", "dualApproval": "over", "needsEvidence": "over", "permit": "maxAmount"}
SAFETY = ("read", "write", "network", "financial", "privileged")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
Rules = Any  # (chains by name: list of tiers, askings)


def must(good: object) -> None:
    if not good:
        raise ValueError("rules that cannot be read")


def many(value: Any) -> list[str]:
    return [value] if type(value) is str else value


def _no_twins(pairs: list[tuple[str, Any]]) -> Object:
    must(len(dict(pairs)) == len(pairs))
    return dict(pairs)


def read_rules(text: str) -> Rules:
    """Whom the thin rules of a policy ask. Raises ValueError for rules that would not compile: they declare nothing."""
    chains: dict[str, list[Tier]] = {}
    rules: list[Object] = []
    for document in json.loads(text, object_pairs_hook=_no_twins, parse_int=_whole):
        must(type(document) is dict and set(document) <= {"rules", "chains", "on_deny"})
        must(document.get("on_deny") in (None, "feedback", "halt"))
        must(type(document.get("rules", [])) is list and type(document.get("chains", {})) is dict)
        for entry in document.get("rules", []):
            rules.append(_rule(entry, [rule["id"] for rule in rules]))
        for name, chain in document.get("chains", {}).items():
            must(name not in ("sealed", "witnessed"))  # levels of evidence, which stand among the chains that were met
            must(NAME.fullmatch(name) and name not in chains and set(chain) <= {"tiers", "on_reject"} and chain["tiers"])
            must(chain.get("on_reject", "") in ("", "feedback", "terminate"))
            chains[name] = [_tier(tier) for tier in chain["tiers"]]
    for rule in rules:
        if rule["kind"] == "needsApproval" and rule["roles"]:
            must(not rule["chain"] and rule["id"] not in (*chains, "sealed", "witnessed"))
            chains[rule["id"]] = [Tier(rule["quorum"], ["role:" + role for role in rule["roles"]])]
            rule["chain"] = rule["id"]
    asking = [rule for rule in rules if rule["kind"] in ("dualApproval", "needsApproval")]
    for rule in asking:
        rule["chain"] = rule["chain"] or "default"
        must(rule["chain"] in chains or rule["chain"] == "default")
    return chains, [_asking(rule, rules) for rule in asking]


def _rule(entry: Any, taken: list[str]) -> Object:
    must(type(entry) is dict)
    rest = [key for key in entry if key not in ("id", "name", "on_deny", "reason", "tenant", "rule", "params")]
    must(not rest if "rule" in entry else len(rest) == 1 and "params" not in entry)
    kind, said = (entry["rule"], entry.get("params")) if "rule" in entry else (rest[0], entry[rest[0]])
    must(kind in SETTINGS and type(said) in (dict, type(None)))
    rule: Object = {"kind": kind, "id": entry.get("id"), "tenant": entry.get("tenant", ""), "said": frozenset(said or {})}
    must(all(type(entry.get(key, "")) is str for key in ("name", "reason", "tenant")))
    must(entry.get("on_deny", "") in ("", "feedback", "halt"))
    if "id" not in entry:
        names = [kind, *(f"{kind}.{i}" for i in range(2, len(taken) + 2))]
        rule["id"] = next(name for name in names if name not in taken)
    must(type(rule["id"]) is str and NAME.fullmatch(rule["id"]) and rule["id"] not in taken)
    must(not rule["id"].startswith(("ask.", "default.", "no_match")) or "id" not in entry)
    for setting in SETTINGS[kind].split():
        name, _, form = setting.partition(":")
        key = name.rstrip("!")
        value = (said or {}).get(key, {"": [], "int": 0, "str": ""}[form])
        must(key in (said or {}) or name[-1] != "!")
        if form:
            must(type(value) is (int if form == "int" else str))
        else:
            must(type(value) in (str, list) and all(type(x) is str for x in value))
            value = many(value)
        must((said or {}).get(key, 0) not in ("", []))  # an empty list reads like "none" and would mean "any"
        rule[key] = value
    must(set(said or {}) <= {setting.split(":")[0].rstrip("!") for setting in SETTINGS[kind].split()})
    _sensible(rule)
    return rule


def _sensible(rule: Object) -> None:
    """The values that this kind takes."""
    kind = rule["kind"]
    must(all(word in SAFETY for word in rule.get("safety", ())))
    if kind in ("dualApproval", "needsApproval"):
        rule["quorum"] = rule["quorum"] if "quorum" in rule["said"] else {"dualApproval": 2, "needsApproval": 1}[kind]
        must(1 <= rule["quorum"] <= 100 and rule["standing"] in ("", "vote", "enough"))
    if rule.get(MONEY_OF.get(kind, "")):
        rule["money"] = _bound(rule[MONEY_OF[kind]], rule.get("currency", ""))
    must("money" in rule or kind not in ("maxAmount", "maxDailyLimit"))
    must(rule.get("per", "") in ("", "agent", "tenant", "counterparty"))
    must(all(day.lower() in DAYS or day.lower() in [d[:3] for d in DAYS] for day in rule.get("weekdays", ())))
    date = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    must(all(re.fullmatch(date, day) for day in rule.get("dates", ())))
    must(kind != "noWritesOn" or ((rule["weekdays"] or rule["dates"]) and rule["tz"] == rule["tz"].strip()))
    hours = [rule["from"], rule["to"]] if kind == "workingHours" else []
    must(all(re.fullmatch(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00", hour) for hour in hours) and len(set(hours)) == len(hours))
    must(rule.get("level", "") in ("", "sealed", "witnessed") and re.fullmatch("([1-9][0-9]{0,4}[smhd])?", rule.get("within", "")))
    if kind == "stepBudget":
        must(0 <= rule["turns"] <= INT_MAX and 0 <= rule["calls"] <= INT_MAX and (rule["turns"] or rule["calls"]))


def _bound(text: str, currency: str) -> tuple[str, int]:
    """ "1000.00 USD", or "1000.00" with its currency beside it."""
    amount, _, named = text.strip().partition(" ")
    named = named.strip() or currency
    match = re.fullmatch(r"([0-9]{1,30})(?:\.([0-9]{1,18}))?", amount.replace(",", "").strip())
    must(match and len(match[2] or "") <= decimals_of(named) and currency in ("", named))
    digits = (match[1] + (match[2] or "").ljust(decimals_of(named), "0")).lstrip("0") or "0" if match else ""
    money = money_of({"amount": digits, "currency": named, "decimals": decimals_of(named)})
    must(money and money[1] <= INT_MAX)
    return money or ("", 0)


def _tier(said: Any) -> Tier:
    must(type(said) is dict and set(said) <= {"quorum", "of", "roles", "veto", "deadline", "sod"} and type(said["quorum"]) is int)
    lists = [said.get(name, []) for name in ("of", "roles", "veto")]
    must(all(type(x) in (str, list) and all(type(name) is str for name in x) for x in lists))
    of, roles, veto = map(many, lists)
    sod, span = said.get("sod", ["requester", "author"]), re.fullmatch(r"([1-9][0-9]{0,8})([smhd])", said.get("deadline", "1h"))
    must(1 <= said["quorum"] <= 100 and span and type(sod) is list and all(x in ("requester", "author") for x in sod))
    of = of + ["role:" + role for role in roles]
    must(not of or any(name.startswith("role:") for name in of) or len(set(of)) >= said["quorum"])
    unit = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return Tier(said["quorum"], of, veto, int(span[1]) * unit[span[2]] if span else 0, sod)


def _scope(rule: Object) -> tuple[Any, ...]:
    return rule["kind"], rule["tenant"], sorted(rule.get("safety", [])), sorted(rule.get("tools", []))


def _asking(rule: Object, rules: list[Object]) -> Asking:
    """Rules about money of the same kind and scope know their currencies together; what none of them can count, each asks about."""
    known = frozenset(r["money"][0] for r in rules if "money" in r and r["kind"] != "permit" and _scope(r) == _scope(rule))
    safety = rule["safety"] or (["financial"] if rule["kind"] == "dualApproval" and not rule["tools"] else [])
    enough = rule["standing"] == "enough"
    return Asking(rule["chain"], rule["quorum"], enough, safety, rule["tools"], rule["tenant"], rule.get("money"), known)


class Chains:
    """The approval chains that a policy declares, from its source in the bundle. What is not shown is None, and said to be hidden."""

    def __init__(self, sources: dict[str, Object]) -> None:
        self.read: dict[str, Rules] = {}
        for policy, source in sources.items():
            chains: dict[str, list[Tier]] = {}
            asks: list[Asking] = []
            for name, text in source.items():
                if name.endswith("policy/rules.json") and type(text) is str:
                    try:
                        found = read_rules(text)
                    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                        continue
                    chains.update(found[0])
                    asks += found[1]
            self.read[policy] = chains, asks

    def of(self, policy: str, chain: str) -> list[Tier] | None:
        if policy not in self.read:
            return None
        found: list[Tier] | None = self.read[policy][0].get(chain, [Tier(1)] if chain == "default" else None)
        return found

    def asks(self, policy: str) -> list[Asking]:
        return list(self.read[policy][1]) if policy in self.read else []


class Opened(NamedTuple):
    """A ballot that was verified, and who signed it with which key."""

    principal: str
    ballot: Object
    key: Key


class Served(NamedTuple):
    """An allowance that an action is charged to: one vote of its approver, in one chain."""

    chain: str
    principal: str
    until: int


class People:
    """Every vote of a run is signed by a trusted key of somebody whom the rules ask, for exactly this action, in time; by enough of them.

    A `Voted` record proves nothing by itself: its ballot is opened from the payload, held against the trust file and the request that
    it answers. Two keys of one person are one voter. The run is read once, in order.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.records, self.trust, self.authority = case, case.run.records, case.trust, case.authority
        opened = self.records[0]["fact"]
        self.origin, self.run, self.tenant, self.clock = opened["origin"], self.records[0]["run"], opened["tenant"], opened["clock"]
        self.requester = opened.get("user", {}).get("principal", "")
        self.forked = opened.get("parent", {}).get("kind") == "fork"
        self.log_opened = case.log.records[0]["fact"] if case.log.records else None
        self.chains, self.totals, self.now = Chains(case.sources()), totals(case.box), 0
        self.proposed: dict[str, Object] = {}
        self.judged: dict[str, Object] = {}  # action -> the record of its last judgement
        self.guarded: set[str] = set()  # a person must look at them each time (GDPR, Art. 22)
        self.asked: dict[str, dict[str, tuple[int, str]]] = {}  # action -> chain -> (quorum, policy)
        self.opened: dict[int, Opened] = {}
        self.modified: dict[str, Object] = {}
        self.rejections: dict[str, list[Object]] = {}
        self.authors: dict[str, str] = {}
        self.unknown: dict[str, int] = {}
        self.withdrawn: set[str] = set()
        self.requests: dict[str, Object] = {}  # the newest tier of each request
        self.needs: dict[str, int] = {}
        self.served: dict[str, dict[str, Served]] = {}
        self.unseen: set[str] = set()
        self.hidden: list[str] = []
        self.votes = self.allowances = self.intents = self.alone = 0

    def check(self) -> Claim:
        for record in self.records:
            fact, kind = record["fact"], record["type"]
            if kind == "ActionStarted":
                self._started(record, fact)
            elif kind == "ActionEnded" and fact["via"] == "people" and fact["action"] in self.judged:
                self._settled(record, fact)
            self._note(record, fact, kind)
            if kind == "Voted":
                self._cast(record, fact)
        return self._claim()

    def _claim(self) -> Claim:
        if self.hidden:
            names = ", ".join(list(dict.fromkeys(self.hidden))[:5])
            return Claim("votes", "not in this bundle", f"{some(self.votes, 'vote')} checked; not shown: {names}", 3)
        if not self.votes:
            return Claim("votes", "proven", "no intent of this run rests on a vote")
        said = f"{some(self.votes, 'signed vote')} for {some(self.intents, 'intent')}: distinct approvers, this action, in time"
        said += ", quorum reached" if self.alone < self.intents else ""
        said += f"; {self.allowances} of them standing votes, each one vote of its approver in its chain" if self.allowances else ""
        said += (
            f"; {some(self.alone, 'intent rests', 'intents rest')} on an allowance alone, which the rules call enough" if self.alone else ""
        )
        return Claim("votes", "proven", said)

    def _note(self, record: Object, fact: Object, kind: str) -> None:
        if "clock" in fact:
            self.clock, self.now = fact["clock"], max(self.now, fact["clock"]["now"])
        if kind == "ActionProposed":
            self._propose(record, fact)
        elif kind == "ActionEnded" and fact["result"] == "unknown" and fact["via"] != "people":
            self.unknown[fact["action"]] = record["seq"]
        elif kind == "ActionEnded":
            self.served.pop(fact["action"], None)  # its reservations were given back or spent
        elif kind == "ActionJudged":
            self.judged[fact["action"]] = record
            if "ask.art22" in fact["determining"]:
                self.guarded.add(fact["action"])
            if "outcome.unknown" not in fact["determining"]:  # those ask what happened, not whether to start
                asks = {ask["chain"]: (ask["quorum"], fact["bundle"]) for ask in fact.get("asks", ()) if ask["to"] == "people"}
                self.asked.setdefault(fact["action"], {}).update(asks)
        elif kind == "ApprovalRequested":
            self._request(record, fact)
        elif kind == "VoteWithdrawn":
            self.withdrawn.add(fact["ballot"])

    def _propose(self, record: Object, fact: Object) -> None:
        """What a person writes in place of other arguments is what one of them signed: its commitment stands in the ballot."""
        self.proposed[fact["action"]] = record
        if fact["by"] != "person":
            return
        voted = self.modified.pop(str(fact.get("replaces")), None)
        if voted is None:
            raise broken_at(record, "people wrote it, but nobody voted for it")
        self.authors[fact["action"]] = voted["fact"]["principal"]
        opened = self.opened.get(voted["seq"])
        if opened is not None and opened.ballot.get("args") != args_of(record):
            raise broken_at(record, "its arguments are not those that were signed", opened.ballot.get("args"), args_of(record))

    # -- requests: about the action they name, with its card, and to as many people as the rules say
    def _request(self, record: Object, fact: Object) -> None:
        proposal, before = self.proposed.get(fact["action"]), self.requests.get(fact["request"])
        if proposal is None:
            raise broken_at(record, "it asks about an action that was never proposed")
        wanted = self._action_digests(proposal, fact)
        if fact["digest"] not in wanted:
            raise broken_at(record, "its digest is not the action's", wanted[0], fact["digest"])
        if before is None and fact["tier"]:
            raise broken_at(record, "no earlier tier led to this one", "tier 0", f"tier {fact['tier']}")
        if before is not None:
            old, same = before["fact"], ("about", "action", "card", "chain", "digest", "expires", "policy")
            if any(old[name] != fact[name] for name in same) or fact["tier"] != old["tier"] + 1:
                raise broken_at(record, "a later tier changes what was asked")
            if self.clock["now"] < old["until"]:
                raise broken_at(record, "the tier before it was not over", old["until"], self.clock["now"])
        self._enough_asked(record, fact, self.clock["now"] if before is None else before["fact"]["until"])
        self._card(record, fact["action"], fact["card"])
        self.requests[fact["request"]] = record

    def _action_digests(self, proposal: Object, fact: Object) -> list[str]:
        """What a vote is for: this call, its arguments by their commitment, under this policy, in this run."""
        p, args = proposal["fact"], args_of(proposal)
        bound = {"args": args, "call": p["call"], "origin": self.origin, "policy": fact["policy"], "run": self.run, "target": args}
        bound.update({"pin": p["pin"]} if "pin" in p else {})
        return [digest("action", jcs({**bound, "expires": fact["expires"]})), digest("action", jcs(bound))]

    def _enough_asked(self, record: Object, fact: Object, begins: int) -> None:
        first = fact["tier"] == 0 and fact["about"] == "start"
        asked = max(1, self.asked.get(fact["action"], {}).get(fact["chain"], (1, ""))[0]) if first else 1
        tiers = self.chains.of(fact["policy"], fact["chain"])
        if tiers is None:
            self.hidden.append(f"rules of chain {fact['chain']}")
        elif not 0 <= fact["tier"] < len(tiers):
            raise broken_at(record, "its chain has no such tier", f"{len(tiers)} tiers", f"tier {fact['tier']}")
        else:
            tier = tiers[fact["tier"]]
            asked = max(asked, tier.quorum)
            if fact["until"] < begins + tier.deadline_ms * 1000:
                raise broken_at(record, "its tier ends before its time", begins + tier.deadline_ms * 1000, fact["until"])
        self.needs[fact["request"]] = max(asked, fact["quorum"])
        if fact["quorum"] < asked and first and fact["quorum"] >= 1:
            asked -= len(self._lenders(fact["chain"], self.judged[fact["action"]]["fact"]["authority"]))
        if fact["quorum"] < asked:
            raise broken_at(record, "it asks fewer people than policy demanded", asked, fact["quorum"])

    def _card(self, record: Object, action: str, wanted: str) -> None:
        """The card in this record, if it has one, is the one that was shown and signed."""
        card, args = self.case.shown(record, "card"), self.case.shown(self.proposed[action], "args")
        if card is not None and args is not None:
            found = card_digest(args.secret, card.value) if type(card.value) is dict else ""
            if found != wanted:
                raise broken_at(record, "its card is not the one that was shown and signed", wanted, found)
        elif has_part(record, "card"):
            self.hidden.append(f"card of event {record['seq']}")

    def _answered(self, record: Object, request: object) -> Object:
        if request not in self.requests:
            raise broken_at(record, "it answers a request that was never made")
        found: Object = self.requests[str(request)]["fact"]
        return found

    def _tier(self, request: Object) -> Tier | None:
        tiers = self.chains.of(request["policy"], request["chain"])
        return None if tiers is None else tiers[request["tier"]]

    # -- votes: each is signed by somebody whom the chain asks, for exactly this, in time; whatever became of it
    def _cast(self, record: Object, fact: Object) -> None:
        request = self._answered(record, fact.get("request"))
        if fact.get("action") != request["action"] or fact["scope"] != "once":
            raise broken_at(record, "it is for another action than its request")
        if fact["clock"]["now"] >= request["expires"]:
            raise broken_at(record, "its request had expired")
        self._may_vote(record, fact, request)
        self._card(record, request["action"], request["card"])
        line = self.case.shown(record, "ballot")
        if line is None:
            self.hidden.append(f"ballot of event {record['seq']}")
        else:
            judged = self.judged.get(request["action"])
            opened = self._signed(record, line, judged["fact"]["authority"] if judged else 0)
            ballot = opened.ballot
            pairs = (
                ("origin", ballot["origin"], self.origin), ("run", ballot["run"], self.run),
                ("request", ballot.get("request"), request["request"]), ("action", ballot.get("action"), request["digest"]),
                ("card", ballot.get("card"), request["card"]), ("policy", ballot["policy"], request["policy"]),
                ("expiry", ballot["expires"], request["expires"]), ("decision", ballot["decision"], fact["decision"]),
                ("scope", ballot["scope"], fact["scope"]), ("subject", request["about"], fact["about"]),
            )  # fmt: skip
            unlike = [name for name, signed_for, asked in pairs if signed_for != asked]
            if unlike:
                raise broken_at(record, f"the signed ballot names another {unlike[0]}")
            self.opened[record["seq"]] = opened
            self.votes += 1
        if fact["decision"] == "reject":
            self.rejections.setdefault(request["request"], []).append(record)
        if fact["decision"] == "modify":
            self.modified[request["action"]] = record

    def _may_vote(self, record: Object, fact: Object, request: Object) -> None:
        tier, who = self._tier(request), fact["principal"]
        if tier is None:
            return  # said already: the rules of the chain are not shown
        vetoes = self.trust.holds(tier.veto, who)
        if not self._decides(tier, who) and not vetoes:
            raise broken_at(record, "it was cast by somebody whom the chain does not ask", ", ".join(tier.of), who)
        if fact["veto"] and not vetoes:
            raise broken_at(record, "it is called a veto of somebody who has none", ", ".join(tier.veto), who)
        if self._own(tier, request["action"], who):
            raise broken_at(record, "it was cast by the person whose own request it is", "another person", who)

    def _decides(self, tier: Tier | None, principal: str) -> bool:
        """A tier that names nobody means every approver of the trust file."""
        return tier is None or not tier.of or self.trust.holds(tier.of, principal)

    def _own(self, tier: Tier, action: str, principal: str) -> bool:
        """Whoever asked for it or wrote its arguments anew does not approve it."""
        return principal in [{"requester": self.requester, "author": self.authors.get(action, "")}[duty] for duty in tier.sod]

    def _signed(self, voted: Object, line: Line, version: int) -> Opened:
        """The ballot of a vote, by an approver's key that was in force at this version of the authority."""
        opening, found = self.log_opened, examine(line, self.trust)
        if voted["fact"]["scope"] == "standing":
            ruling = self.authority.admins(opening, self.trust, version + 1) if opening else []
            found = examine_standing(line, self.trust, ruling, opening["quorum"] if opening else 1)
        if isinstance(found, str):
            raise broken_at(voted, f"its ballot does not count: {found}", line=line.number)
        opened, name = found
        if opened.principal != voted["fact"]["principal"]:
            raise broken_at(voted, "its ballot was signed by somebody else", voted["fact"]["principal"], opened.principal, line.number)
        if name != voted["fact"]["ballot"]:
            raise broken_at(voted, "its ballot is another one", voted["fact"]["ballot"], name, line.number)
        if self.authority.was_revoked(opened.key, version):
            raise broken_at(voted, "the key that signed its ballot had been revoked", line=line.number)
        return opened

    # -- what rests on votes
    def _started(self, record: Object, fact: Object) -> None:
        action, votes = fact["action"], []
        for seq in fact["votes"]:
            voted = self.records[seq] if 0 <= seq < record["seq"] else None
            if voted is None or voted["type"] != "Voted":
                raise broken_at(record, f"it lists event {seq} as a vote, which is none before it")
            votes += [voted] if voted["fact"]["decision"] == "approve" else []
        lent, rules = self._lent(record, fact), self._asking(action)
        answered = self._quorum(record, action, votes, lent, rules)
        for chain in sorted(set(lent) - answered):
            self._enough(record, action, chain, lent[chain], self.asked.get(action, {}).get(chain, (0, ""))[0], rules.get(chain, []))
        self._asks_met(record, action, answered | set(lent), set(rules))
        self._again(record, action)
        self.intents += bool(fact["votes"] or lent)

    def _asks_met(self, record: Object, action: str, answered: set[str], rules: set[str]) -> None:
        """Whoever was asked, or had to be by the rules, has answered or lent a standing vote."""
        policy = self.judged[action]["fact"]["bundle"]
        asked = {chain for chain, (_, bundle) in self.asked.get(action, {}).items() if bundle == policy}
        if self.forked and rules - asked - answered:  # told again: whoever answered, answered the run that it was forked from
            self.hidden.append("votes of the run that it was forked from")
            rules = asked
        for chain in [] if action in self.unseen else sorted((asked | rules) - answered):
            if any(one.chain == chain and self._over(name, one, action) for name, one in self.served.get(action, {}).items()):
                raise broken_at(record, "it rests on an allowance that was not in force")
            raise broken_at(record, "policy asked people, and the intent rests on no vote of theirs", f"chain {chain}")

    def _again(self, record: Object, action: str) -> None:
        """What nobody knew the outcome of is tried again only when enough people said so, after that became known."""
        since = self.unknown.pop(action, None)
        if since is None:
            return
        for request in [r["fact"] for r in self.requests.values() if r["seq"] > since]:
            if request["action"] == action and request["about"] == "outcome":
                tier = self._tier(request)
                voters = {r["fact"]["principal"] for r in self.records[since : record["seq"]] if says(r, request["request"], "again")}
                if len([who for who in voters if self._decides(tier, who)]) >= request["quorum"]:
                    return
        raise broken_at(record, "nobody knew its outcome, and people did not say to try again")

    def _settled(self, record: Object, fact: Object) -> None:
        """An outcome that people gave rests on their votes about it, under the newest request."""
        said = {"done": "done", "unknown": "abandon"}.get(fact["result"])
        if said is None:
            return
        asked = [r["fact"] for r in self.requests.values() if r["fact"]["action"] == fact["action"] and r["fact"]["about"] == "outcome"]
        if not asked:
            raise broken_at(record, "people settled it, but were never asked")
        votes = [r for r in self.records[: record["seq"]] if says(r, asked[-1]["request"], said)]
        if not votes:
            raise broken_at(record, "people settled it without a vote")
        self._quorum(record, fact["action"], votes, {}, {})
        self.intents += 1

    def _quorum(
        self, record: Object, action: str, votes: list[Object], lent: dict[str, set[str]], rules: dict[str, list[Asking]]
    ) -> set[str]:
        """Enough different people answered each request, with those whose standing votes count in its chain. Chains asked about a start."""
        people: dict[str, set[str]] = {}
        answered: set[str] = set()
        for voted in votes:
            self._count(record, action, voted, people)
        for name, voters in people.items():
            request, needed = self._answered(record, name), self.needs[name]
            tier, chain = self._tier(request), request["chain"]
            for other in self.rejections.get(name, ()):  # one rejection by somebody whom the tier asks decides, whoever approved
                who = other["fact"]["principal"]
                if self._decides(tier, who) or self.trust.holds(tier.veto if tier else (), who):
                    raise broken_at(record, f"it had been rejected at event {other['seq']}")
            answered |= {chain} if request["about"] == "start" else set()
            if request["tier"] == 0 and request["about"] == "start":
                self._enough(record, action, chain, voters | lent.get(chain, set()), needed, rules.get(chain, []))
            elif len(voters) < needed:
                raise broken_at(record, "too few different people approved", f"{needed} of chain {chain}", len(voters))
        return answered

    def _count(self, record: Object, action: str, voted: Object, people: dict[str, set[str]]) -> None:
        vote, judged = voted["fact"], self.judged[action]["fact"]
        if vote.get("action") != action or vote["scope"] != "once" or "request" not in vote:
            raise broken_at(record, f"the vote of event {voted['seq']} is for another action")
        request = self._answered(voted, vote["request"])
        voters = people.setdefault(vote["request"], set())
        if judged["bundle"] != request["policy"]:
            raise broken_at(record, f"the vote of event {voted['seq']} was given under another policy", judged["bundle"], request["policy"])
        if max(vote["clock"]["now"], self.now) >= request["expires"]:
            raise broken_at(record, f"the vote of event {voted['seq']} had expired")
        if vote["ballot"] in self.withdrawn:
            raise broken_at(record, f"the vote of event {voted['seq']} was withdrawn")
        opened = self.opened.get(voted["seq"])
        if opened is not None and self.authority.was_revoked(opened.key, judged["authority"]):
            raise broken_at(voted, "the key that signed its ballot had been revoked")
        if self._decides(self._tier(request), vote["principal"]):
            voters.add(vote["principal"])

    # -- standing votes: in force, for this call, charged as they say, each one vote of its approver in its own chain
    def _lent(self, record: Object, fact: Object) -> dict[str, set[str]]:
        """chain -> people whose allowances count for this intent."""
        action = fact["action"]
        out: dict[str, set[str]] = {}
        reserves = [reserve for reserve in fact["reserves"] if reserve["account"].startswith("standing/")]
        names = sorted({reserve["account"].split("/")[1] for reserve in reserves})
        if names:
            self.served[action] = {}
        for name in names:
            served = self._allowance(record, fact, name, [x for x in reserves if x["account"].split("/")[1] == name])
            if served is None:
                self.unseen.add(action)
            else:
                self.served[action][name] = served
        for name, one in self.served.get(action, {}).items():
            if not self._over(name, one, action):
                out.setdefault(one.chain, set()).add(one.principal)
        return out

    def _over(self, name: str, served: Served, action: str) -> bool:
        """Whether an allowance of an earlier attempt has ended since."""
        return self.authority.was_withdrawn(name, self.judged[action]["fact"]["authority"]) or self.now >= served.until

    def _lenders(self, chain: str, version: int) -> set[str]:
        """Whoever had a standing vote in this chain at this version of the authority."""
        out = set()
        for name, (since, voted) in self.authority.granted.items():
            if since > version or self.authority.was_withdrawn(name, version):
                continue
            line = self.case.shown(voted, "ballot")
            if line is None:
                self.hidden.append(f"allowance of log event {voted['seq']}")
                continue
            try:
                opened = self._signed(voted, line, version)
            except Broken:  # such as of a key that was revoked: it lends nothing
                continue
            out |= {opened.principal} if opened.ballot["scope"]["standing"]["chain"] == chain else set()
        return out

    def _asking(self, action: str) -> dict[str, list[Asking]]:
        """chain -> the rules that ask it about this call. What rules in another language ask is not known."""
        call, judged = self.proposed[action]["fact"], self.judged[action]
        rules = [x for x in self.chains.asks(judged["fact"]["bundle"]) if x.applies(call["tool"], call["safety"], self.tenant, None)]
        if any(x.over is not None for x in rules):
            known, amount = self._amount(action, judged)
            rules = [x for x in rules if x.over is None or (known and x.applies(call["tool"], call["safety"], self.tenant, amount))]
        out: dict[str, list[Asking]] = {}
        for x in rules:
            out.setdefault(x.chain, []).append(x)
        return out

    def _amount(self, action: str, judged: Object) -> tuple[bool, tuple[str, int] | None]:
        """(is it known, the amount that the judgement looked at): one that the arguments name."""
        facts, args = self.case.shown(judged, "facts"), self.case.shown(self.proposed[action], "args")
        if facts is None or args is None:
            self.hidden.append(f"facts of event {judged['seq']}")
            return False, None
        said = facts.value.get("amount") if type(facts.value) is dict else None
        if type(said) is not dict:
            return True, None
        amount = str(said.get("currency")), said.get("minor")
        if type(args.value) is not dict or amount not in moneys(args.value):
            raise broken_at(judged, "its facts name an amount that the arguments do not")
        return True, amount

    def _enough(self, record: Object, action: str, chain: str, people: set[str], needed: int, rules: list[Asking]) -> None:
        """How many a chain needs is said by its rules; one allowance is enough only where every rule that asks says so."""
        tiers, charged = self.chains.of(self.judged[action]["fact"]["bundle"], chain), action in self.served
        if tiers is None:
            self.hidden.append(f"rules of chain {chain}")
            return
        needed = max(needed, tiers[0].quorum, 1, *(x.quorum for x in rules))
        if len(people) >= needed:
            return
        if rules and all(x.enough for x in rules) and charged:
            self.alone += 1
        elif not rules and charged:  # asked by rules in another language, which may call an allowance enough
            self.hidden.append(f"rules of chain {chain}")
        else:
            raise broken_at(record, "too few different people approved", f"{needed} of chain {chain}", len(people))

    def _allowance(self, record: Object, fact: Object, name: str, reserves: list[Object]) -> Served | None:
        """A standing vote of chain log, in force at the version of the judgement, under the same policy, for this call, not used up."""
        judged, proposal = self.judged[fact["action"]]["fact"], self.proposed[fact["action"]]
        since, voted = self.authority.granted.get(name, (judged["authority"] + 1, {}))
        if since > judged["authority"] or self.authority.was_withdrawn(name, judged["authority"]):
            raise broken_at(record, "it rests on an allowance that was not in force")
        line, args = self.case.shown(voted, "ballot"), self.case.shown(proposal, "args")
        if line is None or args is None:
            self.hidden.append(f"allowance of log event {voted['seq']}")
            return None
        opened = self._signed(voted, line, judged["authority"])
        ballot, s = opened.ballot, opened.ballot["scope"]["standing"]
        until = min(s["until"], ballot["expires"])
        if ballot["origin"] != self.origin or self.now >= until:
            raise broken_at(record, "its allowance is over or of another log")
        why = (
            "its allowance is for another tool or policy"
            if ballot["policy"] != judged["bundle"]
            else not_for(s, proposal["fact"], args.value)
        )
        if why:
            raise broken_at(record, why)
        self._may_lend(record, fact["action"], s["chain"], opened.principal, judged["bundle"])
        self._charge(record, name, reserves, s, args.value)
        self.votes, self.allowances = self.votes + 1, self.allowances + 1
        return Served(s["chain"], opened.principal, until)

    def _may_lend(self, record: Object, action: str, chain: str, principal: str, policy: str) -> None:
        tiers = self.chains.of(policy, chain)
        if action in self.guarded:
            raise broken_at(record, "an allowance serves what a person must look at each time (GDPR, Art. 22)")
        if tiers is None:
            self.hidden.append(f"rules of chain {chain}")
        elif not self._decides(tiers[0], principal):
            raise broken_at(record, "its allowance is of somebody whom the chain does not ask", ", ".join(tiers[0].of), principal)
        elif self._own(tiers[0], action, principal):
            raise broken_at(record, "its allowance is of the person whose own request it is", "another person", principal)

    def _charge(self, record: Object, name: str, reserves: list[Object], s: Object, args: Object) -> None:
        """Exactly what the ballot says one call costs, and never more in all than it grants."""
        days = (self.clock["now"] // 60_000_000 + self.clock["offset"]) // 1440  # since 1970, where the agent is
        day = datetime.date.fromordinal(days + 719_163).isoformat()
        window = {"day": day, "run": self.run, "until": "all"}[s["window"]]
        money = money_of(s["amount"]) if "amount" in s else None
        limits = {f"standing/{name}/count/{window}": s["count"]}
        limits.update({f"standing/{name}/amount/{window}": counted(money[1])} if money else {})
        accounts = sorted(reserve["account"] for reserve in reserves)
        if accounts != sorted(limits):
            raise broken_at(record, "its allowance is charged to other accounts", ", ".join(sorted(limits)), ", ".join(accounts))
        for reserve in reserves:
            account, amount = reserve["account"], reserve["amount"]
            cost = {1} if "/count/" in account else {minor for currency, minor in moneys(args) if money and currency == money[0]}
            if amount not in cost:
                raise broken_at(record, "its allowance is charged another amount than the call's", "", amount)
            if self.totals.get((record["seq"], account), amount) > limits[account]:
                raise broken_at(record, "its allowance is used up", limits[account])


def args_of(proposal: Object) -> str:
    """The commitment of the arguments of a call."""
    return str(proposal["body"][0]["commit"]) if proposal.get("body") else ""


def has_part(record: Object, part: str) -> bool:
    return any(one["part"] == part for one in record.get("body", ()))


def says(record: Object, request: str, decision: str) -> bool:
    return record["type"] == "Voted" and (record["fact"].get("request"), record["fact"]["decision"]) == (request, decision)


def envelope_of(value: Any) -> bytes:
    """An envelope is stored as the object that it is, or as its text."""
    return value.encode("utf-8") if type(value) is str else jcs(value)


def examine(line: Line, trust: Trust) -> tuple[Opened, str] | str:
    """(whose ballot, its name), or why it is none."""
    found = who_signed(envelope_of(line.value), BALLOT_TYPE, trust)
    if isinstance(found, str):
        return found
    try:
        return Opened(found[0], parse_ballot(found[1]), found[2]), digest("ballot", found[1])
    except (ValueError, TypeError):
        return "malformed"


def examine_standing(line: Line, trust: Trust, ruling: list[Key], quorum: int) -> tuple[Opened, str] | str:
    """An allowance widens authority: one approver and a quorum of the log's administrators have signed the same envelope."""
    try:
        envelope = read_envelope(envelope_of(line.value))
        signers = open_envelope(envelope, BALLOT_TYPE, [*(key for _, key in trust.approvers.values()), *ruling], ssh=True)
        ballot = parse_ballot(envelope.payload)
    except (ValueError, TypeError) as error:
        return str(error)
    voters = [key for key in signers if key.public in trust.approvers]
    enough = sum(key in ruling for key in signers) >= max(1, quorum)
    if ballot["scope"] == "once" or len(voters) != 1 or not enough:
        return "not an approver"
    return Opened(trust.approvers[voters[0].public][0], ballot, voters[0]), digest("ballot", envelope.payload)


def not_for(standing: Object, call: Object, args: Any) -> str:
    """Why an allowance is not for this call; "" when it is."""
    if call["effect"] == "irreversible" or call["safety"] == "privileged":
        return "its allowance is for what has to be asked each time"
    if type(args) is not dict or standing["pattern"].get("tool") != call["tool"]:
        return "its allowance is for another tool or policy"
    if any(args.get(name) != value for name, value in standing["pattern"].get("args", {}).items()):
        return "its allowance is for other arguments"
    moves = "amount" not in standing and call["safety"] == "financial" and moneys(args)
    return "its allowance names no amount, and the call moves money" if moves else ""


# ---- 12. The fold: what a run is after its records. Its digest stands in the seal; budgets and tiers are held against it -----------

UNITS = ("calls", "cost", "tokens")


class Impossible(Exception):
    """The records cannot have been made by the rules that the fold follows."""


def per_million(amount: int) -> int:
    return -(-amount // 1_000_000)


def priced(price: Object, usage: Object) -> int:
    """What one reply costs, in micro-units, rounded up by itself."""
    read, write = price.get("cache_read", price["input"]), price.get("cache_write", price["input"])
    fresh = max(0, usage["input"] - usage["cache_read"] - usage["cache_write"])
    cached = usage["cache_read"] * read + usage["cache_write"] * write
    return per_million(fresh * price["input"] + cached + usage["output"] * price["output"])


def at_most(price: Object, prompt: int, output: int) -> int:
    """What one call may cost: its prompt at the dearest price, and all the output that it may have."""
    dearest = max(price["input"], price.get("cache_read", 0), price.get("cache_write", 0))
    return per_million(prompt * dearest + output * price["output"])


def decision_of(request: Object) -> str:
    """What people decided: one rejection or veto, else the quorum of different people. "" while it is open."""
    if any(vote["decision"] == "reject" or vote["veto"] for vote in request["votes"]):
        return "reject"
    for decision in ("approve", "done", "again", "abandon"):
        if len({vote["principal"] for vote in request["votes"] if vote["decision"] == decision}) >= request["quorum"]:
            return decision
    return ""


class Run:
    """The state, as the very object whose JSON the seal's digest is made of: names and their order are part of the format."""

    def __init__(self) -> None:
        self.s: Object = {
            "id": "", "seq": -1, "head": "", "epoch": 0, "life": "new", "stage": "ready", "opened": None, "clock": None, "turn": 0,
            "attempt": 0, "retry_at": 0, "cursor": 0, "keys": [], "actions": {},
            "spent": {"calls": 0, "input": 0, "output": 0, "retries": 0, "denials": 0, "bad": 0}, "denied": [], "reserved": 0,
            "cause": "", "code": "", "end": "", "answer": -1, "heard": 0,
        }  # fmt: skip

    def step(self, record: Object) -> None:
        getattr(self, "_" + record["type"], lambda record, fact, s: None)(record, record["fact"], self.s)
        self.s["seq"] = record["seq"]

    def digest(self) -> str:
        s = dict(self.s)
        s["actions"] = dict(sorted(s["actions"].items()))
        spent = s["spent"]
        s["spent"] = {
            name: spent[name] for name in ("calls", "input", "output", "retries", "denials", "bad", "below", "cost") if name in spent
        }
        for name in ("compiled", "price", "sealed", "witnessed"):  # these stand last, in this order, where they are there at all
            if name in s:
                s[name] = s.pop(name)
        return digest("state", _write(s).encode())

    def used(self, spent: Object, unit: str) -> int:
        below = spent.get("below", {}).get(unit, 0)
        own = spent["input"] + spent["output"] if unit == "tokens" else spent.get(unit, 0)
        return int(own + below)

    def reserved_cost(self) -> int:
        """What the model call under way may cost."""
        s, prompt = self.s, self.s.get("compiled", 0)
        return at_most(s["price"], prompt, s["reserved"] - prompt) if "price" in s and s["reserved"] else 0

    def left(self, unit: str) -> int | None:
        """What nobody has used or may use yet; None: there is no such limit."""
        s, account = self.s, f"handoff/{self.s['id']}/{unit}"
        if unit not in s["opened"]["budget"]:
            return None
        held = sum(x["amount"] for a in s["actions"].values() for x in a["reserves"] if x["account"] == account)
        asked = {"calls": 0, "cost": self.reserved_cost(), "tokens": s["reserved"]}[unit]
        return int(s["opened"]["budget"][unit] - self.used(s["spent"], unit) - held - asked)

    def _mailed(self, fact: Object) -> None:
        if "mail" in fact:
            self.s["cursor"] = max(self.s["cursor"], fact["mail"]["cursor"])
            self.s["keys"].append(fact["mail"]["key"])

    def _move(self, action: Object, state: str) -> None:
        if state not in ACTION_MOVES[action["state"]]:
            raise Impossible(f"an action that is {action['state']} cannot be {state}")
        action["state"] = state

    def _paid(self, usage: Object) -> None:
        if "price" in self.s:
            self.s["spent"]["cost"] = self.s["spent"].get("cost", 0) + priced(self.s["price"], usage)

    def _RunOpened(self, record: Object, fact: Object, s: Object) -> None:
        s.update(id=record["run"], epoch=record["epoch"], life="running", opened=fact, clock=fact["clock"])

    def _RunOwned(self, record: Object, fact: Object, s: Object) -> None:
        """Whatever was started is in doubt, but for what a child answers; whoever resumes a halted run has seen its cause."""
        for a in s["actions"].values():
            if a["state"] in ("started", "doubted") and not a["child"]:
                a["lands"] = a["lands"] or fact["clock"]["now"] + a["landing"] * 1000
                if a["state"] == "started":
                    a.update(state="doubted", cause="lost", retry_at=0)
        if s["life"] == "halted":
            if s["cause"] == "guardrail" and s["stage"] == "answered":
                s.update(stage="ready", end="", answer=-1)
            s["spent"]["denials"] = 0
        code = s["code"] if s["stage"] == "stopping" and s["end"] == "failed" else ""
        s.update(life="running" if s["life"] == "halted" else s["life"], stage="failed" if s["stage"] == "asking" else s["stage"])
        s.update(epoch=record["epoch"], cause="", code=code, clock=fact["clock"])

    def _StopRequested(self, record: Object, fact: Object, s: Object) -> None:
        s["clock"] = fact["clock"]
        self._mailed(fact)
        if fact["mode"] == "cancel":
            s.update(end="cancelled", stage="stopping")

    def _RunHalted(self, record: Object, fact: Object, s: Object) -> None:
        s.update(life="halted", cause=fact["cause"], code=fact["code"])
        if refuses_all(fact):
            s.update(stage="stopping", end="failed")

    def _RunEnded(self, record: Object, fact: Object, s: Object) -> None:
        s.update(life=fact["state"], end=fact["state"], code=fact.get("code", ""))

    def _RunSealed(self, record: Object, fact: Object, s: Object) -> None:
        s["life"] = "sealed"

    def _TurnStarted(self, record: Object, fact: Object, s: Object) -> None:
        s.update(turn=record["turn"], clock=fact["clock"], actions={}, attempt=0, heard=0)

    def _GuardrailChecked(self, record: Object, fact: Object, s: Object) -> None:
        if fact["result"] == "block" and fact.get("action") in s["actions"]:
            s["actions"][fact["action"]]["withheld"] = True
        if "usage" in fact:
            s["spent"]["input"] += fact["usage"]["input"]
            s["spent"]["output"] += fact["usage"]["output"]
            self._paid(fact["usage"])

    def _ContextCompiled(self, record: Object, fact: Object, s: Object) -> None:
        if "price" in s:
            s["compiled"] = fact["tokens"]

    def _ModelPriced(self, record: Object, fact: Object, s: Object) -> None:
        s["price"] = fact["price"]

    def _ModelCalled(self, record: Object, fact: Object, s: Object) -> None:
        s.update(stage="asking", attempt=fact["attempt"], reserved=fact["reserves"], retry_at=0)

    def _ModelReplied(self, record: Object, fact: Object, s: Object) -> None:
        usage, spent = fact["usage"], s["spent"]
        spent.update(input=spent["input"] + usage["input"], output=spent["output"] + usage["output"], calls=spent["calls"] + fact["calls"])
        self._paid(usage)
        s.update(stage="stopping" if s["stage"] == "stopping" else "acting" if fact["calls"] else "answered", reserved=0)
        if s["stage"] == "answered":
            s.update(end="completed", answer=record["seq"])

    def _ModelFailed(self, record: Object, fact: Object, s: Object) -> None:
        """A lost call counts as spent in full. A bad answer was a reply already; it makes another turn due, once."""
        spent = s["spent"]
        if fact["category"] == "bad_output":
            again = spent["bad"] == 0 and s["stage"] != "stopping"
            spent.update(bad=spent["bad"] + 1, retries=spent["retries"] + 1)
            s.update(stage="ready" if again else s["stage"], end="" if again else "failed", code="" if again else "bad_output")
            return
        lost = s["reserved"] if fact["category"] == "lost" else 0
        spent.update(input=spent["input"] + lost, retries=spent["retries"] + ("retry_at" in fact))
        if lost and "price" in s:
            spent["cost"] = spent.get("cost", 0) + self.reserved_cost()
        s.update(stage="stopping" if s["stage"] == "stopping" else "failed", reserved=0, retry_at=fact.get("retry_at", 0))

    def _ActionProposed(self, record: Object, fact: Object, s: Object) -> None:
        replaced = s["actions"].get(fact["replaces"]) if fact.get("replaces") else None
        action = {
            "id": fact["action"], "call": fact["call"], "tool": fact["tool"], "kind": fact["kind"], "safety": fact["safety"],
            "effect": fact["effect"], "by": fact["by"], "seq": record["seq"], "args": args_of(record), "pin": fact.get("pin", ""),
            "parent": fact.get("parent", ""), "fault": fact.get("fault", ""), "repeats": fact.get("repeats"), "state": "proposed",
            "verdict": "", "code": "", "attempt": 0, "absent": False, "doubts": 0, "cause": "", "retry_at": 0, "operation": "", "child": "",
            "reserves": [], "request": None, "granted": [], "uses": 0, "out": -1, "clock": 0,
            "author": replaced["author"] if replaced else "", "withheld": False, "landing": 0, "lands": 0,
        }  # fmt: skip
        if fact["by"] == "tool":
            s["spent"]["calls"] += 1
        s["actions"][fact["action"]] = action

    def _ActionJudged(self, record: Object, fact: Object, s: Object) -> None:
        a = s["actions"][fact["action"]]
        q = a["request"]
        if q and decision_of(q) == "approve":
            by = s["clock"]["now"] if s["clock"] else 0
            votes = [vote["seq"] for vote in q["votes"]]
            a["granted"] = [*a["granted"], {"chain": q["chain"], "votes": votes, "tier": q["tier"], "asked": q["asked"], "by": by}]
        a.update(verdict=fact["verdict"], code=fact.get("code", ""), request=None)
        level = next((ask for ask in fact.get("asks", ()) if ask["to"] == "log"), None)
        if level is None:
            a.pop("awaits", None)
        elif a.get("awaits", {}).get("level") != level["chain"]:  # asked again for the same one, the time does not begin anew
            now = s["clock"]["now"] if s["clock"] else 0
            a["awaits"] = {"level": level["chain"], "until": now + level.get("within", 0) * 1000}
        if a["state"] in ("proposed", "judged", "failed"):
            a["state"] = "denied" if fact["verdict"] == "deny" else "judged"
        if fact["verdict"] == "deny":
            a["retry_at"] = 0
            s["denied"] = [*s["denied"][-15:], a["seq"]]
            s["spent"]["denials"] += 1

    def _ActionStarted(self, record: Object, fact: Object, s: Object) -> None:
        a = s["actions"][fact["action"]]
        self._move(a, "started")
        s["spent"]["denials"] = 0
        a.update(
            attempt=fact["attempt"], operation=fact["operation"], reserves=a["reserves"] or fact["reserves"], child=fact.get("child", "")
        )
        a.update(retry_at=0, absent=False, cause="", landing=fact["landing"], lands=0)
        a["clock"] = a["clock"] or (s["clock"]["now"] if s["clock"] else 0)

    def _CapabilityChecked(self, record: Object, fact: Object, s: Object) -> None:
        s["actions"][fact["action"]]["uses"] += 1

    def _ActionDoubted(self, record: Object, fact: Object, s: Object) -> None:
        a = s["actions"][fact["action"]]
        s["spent"]["retries"] += "retry_at" in fact and fact["cause"] != "unclear"
        cause = a["cause"] if fact["cause"] == "unclear" and a["cause"] else fact["cause"]
        a.update(state="doubted", cause=cause, doubts=a["doubts"] + 1, retry_at=fact.get("retry_at", 0))

    def _ActionEnded(self, record: Object, fact: Object, s: Object) -> None:
        a, open_ = s["actions"][fact["action"]], fact["result"] == "unknown" and fact["via"] != "people"
        self._move(a, "settled" if fact["result"] == "unknown" and not open_ else fact["result"])
        a.update(code=fact.get("code", ""), retry_at=fact.get("retry_at", 0), request=None)
        if not open_:
            a["reserves"] = []
        if fact.get("retry_at"):
            a["absent"] = True
            s["spent"]["retries"] += 1
        if record.get("body"):
            a["out"] = record["seq"]
        if fact["spends"] and a["child"]:
            self._came_back(fact["spends"], s)

    def _came_back(self, spends: list[Object], s: Object) -> None:
        """What a child used is used of this run's budget, with all below it."""
        head, below = f"handoff/{s['id']}/", dict(s["spent"].get("below", dict.fromkeys(UNITS, 0)))
        used = {x["account"][len(head) :]: x["amount"] for x in spends if x["account"].startswith(head) and x["account"] != head}
        if set(used) - set(UNITS):
            raise Impossible("a child used what is no unit")
        if used:
            s["spent"]["below"] = {unit: below[unit] + used.get(unit, 0) for unit in UNITS}

    def _ApprovalRequested(self, record: Object, fact: Object, s: Object) -> None:
        a = s["actions"][fact["action"]]
        again = a["request"] if a["request"] and a["request"]["id"] == fact["request"] else None
        a["request"] = {"id": fact["request"]}
        a["request"].update({n: fact[n] for n in ("about", "chain", "digest", "card", "policy", "quorum", "tier", "until", "expires")})
        a["request"].update(
            seq=again["seq"] if again else record["seq"], asked=again["asked"] if again else s["clock"]["now"] if s["clock"] else 0,
            votes=[vote for vote in again["votes"] if vote["seq"] in fact["carries"]] if again else [], over=False,
        )  # fmt: skip

    def _Voted(self, record: Object, fact: Object, s: Object) -> None:
        s["clock"] = fact["clock"]
        self._mailed(fact)
        a = s["actions"][fact.get("action", "")]
        if a["request"]:
            vote = {"principal": fact["principal"], "decision": fact["decision"], "seq": record["seq"], "veto": fact["veto"]}
            a["request"]["votes"] = [*a["request"]["votes"], vote]
            a["author"] = fact["principal"] if fact["decision"] == "modify" else a["author"]

    def _EvidenceReached(self, record: Object, fact: Object, s: Object) -> None:
        s[fact["level"]] = max(s.get(fact["level"], 0), fact["seq"])

    def _MessageReceived(self, record: Object, fact: Object, s: Object) -> None:
        s.update(clock=fact["clock"], heard=s["heard"] + 1)
        self._mailed(fact)
        if s["stage"] == "answered" and s["end"] == "completed":
            s.update(stage="ready", end="")

    def _MessageRefused(self, record: Object, fact: Object, s: Object) -> None:
        self._mailed(fact)

    def _TimePassed(self, record: Object, fact: Object, s: Object) -> None:
        """A request whose end has passed is over."""
        s["clock"] = fact["clock"]
        for a in s["actions"].values():
            if a["request"] and fact["clock"]["now"] >= a["request"]["expires"]:
                a["request"]["over"] = True


FOLD_FAULTS = (Impossible, KeyError, ValueError, TypeError, AttributeError)


def state_after(records: Sequence[Object]) -> str:
    run = Run()
    try:
        for record in records:
            run.step(record)
        return run.digest()
    except FOLD_FAULTS:
        return "none: the fold cannot follow these records"


def check_budget(records: Sequence[Object]) -> Claim:
    """No model was called and no task handed down beyond what the genesis allows. A call is held against what was known at its turn."""
    run, limits = Run(), records[0]["fact"]["budget"]
    decided: Object = {}
    calls = handoffs = 0
    for record in records:
        fact, kind, s = record["fact"], record["type"], run.s
        if kind == "TurnStarted":
            decided = dict(s["spent"])
        elif kind == "ModelCalled":
            prompt = s.get("compiled", 0)
            cost = at_most(s["price"], prompt, fact["reserves"] - prompt) if "price" in s else 0
            for unit, asked in zip(UNITS, (1, cost, fact["reserves"])):
                before = run.used((decided if fact["attempt"] == 1 else s["spent"]) or Run().s["spent"], unit)
                if unit in limits and before + asked > limits[unit]:
                    raise broken_at(record, f"the model is called beyond the budget of {unit}", limits[unit], before + asked)
            if "cost" in limits and "price" not in s:
                raise broken_at(record, "the budget of money has no price to be counted by")
            calls += 1
        elif kind == "ActionStarted" and fact.get("child"):
            _handed_down(run, record, fact)
            handoffs += 1
        elif kind == "ModelPriced" and limits.get("currency", fact["price"]["currency"]) != fact["price"]["currency"]:
            raise broken_at(record, "the price is in another currency than the budget", limits["currency"], fact["price"]["currency"])
        try:
            run.step(record)
        except FOLD_FAULTS:
            raise broken_at(record, "the run's own rules cannot have made this record") from None
    down = f" and {some(handoffs, 'task')} handed down" if handoffs else ""
    return Claim("budget", "proven", f"{calls} model calls{down} within what the genesis allows")


def _handed_down(run: Run, record: Object, fact: Object) -> None:
    """Each unit that is limited is reserved. A fork tells again what its parent reserved."""
    before = run.s["actions"][fact["action"]]["reserves"]
    told = run.s["opened"].get("parent", {}).get("kind") == "fork" and not fact["reserves"]
    amounts = {x["account"]: x["amount"] for x in [*before, *fact["reserves"]]}
    for unit in UNITS:
        free, amount = run.left(unit), amounts.get(f"handoff/{run.s['id']}/{unit}")
        if free is not None and not told and not before and (amount is None or amount > free):
            raise broken_at(record, f"a task is handed down beyond the budget of {unit}", free, amount)


def check_tiers(records: Sequence[Object], chains: Chains) -> None:
    """Where a recorded time ended a tier, the next one was asked at once; no request ran out before its last tier."""
    last = {record["fact"]["bundle"]: record["seq"] for record in records if record["type"] == "ActionJudged"}
    run = Run()
    for record in records if any(record["type"] == "ApprovalRequested" for record in records) else ():
        fact = record["fact"]
        if record["type"] == "TimePassed":
            _tiers_asked(run, record, records, chains, last)
        elif record["type"] == "ActionJudged" and "ask.expired" in fact["determining"]:
            q = run.s["actions"].get(fact["action"], {}).get("request")
            tiers = chains.of(q["policy"], q["chain"]) if q else None
            if q and tiers is not None and q["policy"] == fact["bundle"] and q["tier"] + 1 < len(tiers):
                raise broken_at(record, "it expired before every tier of its chain was asked", f"{len(tiers)} tiers", q["tier"])
        try:
            run.step(record)
        except FOLD_FAULTS:
            return  # found where the seal is checked


def _tiers_asked(run: Run, record: Object, records: Sequence[Object], chains: Chains, last: dict[str, int]) -> None:
    """The requests right behind this time are those of the tiers that begin with it."""
    asked = set()
    for later in records[record["seq"] + 1 :]:
        if later["type"] != "ApprovalRequested":
            break
        asked.add((later["fact"]["request"], later["fact"]["tier"]))
    for a in run.s["actions"].values():
        q = a["request"]
        closed_ = a["state"] in ("done", "failed", "denied", "cancelled", "settled") and not a["retry_at"]
        if q is None or closed_ or q["over"] or decision_of(q) or record["fact"]["clock"]["now"] < q["until"]:
            continue
        tiers = chains.of(q["policy"], q["chain"])
        otherwise = any(policy != q["policy"] and seq > record["seq"] for policy, seq in last.items())
        if tiers is not None and not otherwise and q["tier"] + 1 < len(tiers) and (q["id"], q["tier"] + 1) not in asked:
            raise broken_at(
                record, "the time of a tier was over, and the next one was not asked", f"tier {q['tier'] + 1}", f"tier {q['tier']}"
            )


# ---- 13. Accounts, words, papers, views: each held against the records -------------------------------------------------------------


def deltas(box: Box) -> Iterator[tuple[int, bytes, Object]]:
    """(line, bytes, delta): closed, canonical, within 2^53-1."""
    for number, raw in enumerate(box.sections["account"], box.first["account"]):
        delta = row(raw, "account change prev reserved run seq spent version", number)
        change = delta["change"]
        ints = [delta[name] for name in ("reserved", "seq", "spent", "version")]
        good = type(change) is dict and sorted(change) == ["reserved", "spent"] and all(type(n) is int for n in [*ints, *change.values()])
        if not good or any(type(delta[name]) is not str for name in ("account", "prev", "run")):
            raise Broken("this is no account delta", line=number)
        yield number, raw, delta


def totals(box: Box) -> dict[tuple[int, str], int]:
    """(event, account) -> reserved and spent after it."""
    return {(delta["seq"], delta["account"]): delta["reserved"] + delta["spent"] for _, _, delta in deltas(box)}


def moves(records: Sequence[Object]) -> dict[tuple[int, str], list[int]]:
    """(event, account) -> [reserved, spent] that intents and outcomes say was added."""
    out: dict[tuple[int, str], list[int]] = {}
    held: dict[str, dict[str, int]] = {}
    for record in records:
        fact, seq = record["fact"], record["seq"]
        if record["type"] == "ActionStarted":
            mine = held.setdefault(fact["action"], {}) if fact["reserves"] else {}
            for x in fact["reserves"]:
                out.setdefault((seq, x["account"]), [0, 0])[0] += x["amount"]
                mine[x["account"]] = mine.get(x["account"], 0) + x["amount"]
        elif record["type"] == "ActionEnded" and (fact["result"] != "unknown" or fact["via"] == "people"):
            for account, amount in held.pop(fact["action"], {}).items():
                out.setdefault((seq, account), [0, 0])[0] -= amount
            for x in fact["spends"]:
                out.setdefault((seq, x["account"]), [0, 0])[1] += x["amount"]
    return {key: move for key, move in out.items() if move != [0, 0]}


def check_accounts(box: Box, records: Sequence[Object]) -> Claim:
    """Every reservation and every settlement moved its account by just what the record says; deltas of one account link and add up."""
    wanted = moves(records)
    found: dict[tuple[int, str], list[int]] = {}
    heads: dict[str, tuple[str, Object]] = {}
    for number, raw, delta in deltas(box):
        account, change = delta["account"], delta["change"]
        if delta["run"] != records[0]["run"] or not 0 <= delta["seq"] < len(records):
            raise Broken("this delta was caused by another run", line=number)
        before_hash, before = heads.get(account, ("", {"version": 0, "reserved": 0, "spent": 0}))
        next_ = delta["version"] == before["version"] + 1
        sums = (before["reserved"] + change["reserved"], before["spent"] + change["spent"])
        if delta["version"] <= before["version"] or (next_ and delta["prev"] != before_hash):
            raise Broken("it does not link to the delta before it", line=number)
        if next_ and sums != (delta["reserved"], delta["spent"]):
            raise Broken("its totals are not the sum of its changes", line=number)
        heads[account] = digest("delta", raw), delta
        key, cause = (delta["seq"], account), records[delta["seq"]]
        move = found.setdefault(key, [0, 0])
        move[0], move[1] = move[0] + change["reserved"], move[1] + change["spent"]
        counts = (account == "register" and delta["seq"] == 0) or account.startswith("authority")  # they only count versions
        zero = change == {"reserved": 0, "spent": 0} and cause["type"] in ("ActionStarted", "ActionEnded")
        if key not in wanted and not counts and not zero:
            raise Broken(f"event {delta['seq']} explains no change of this account", line=number)
    missing = []
    for (seq, account), move in wanted.items():
        if found.get((seq, account), move) != move:
            raise broken_at(records[seq], "the account was moved by another amount than it says", move, found[seq, account])
        if (seq, account) not in found and records[seq]["type"] == "ActionStarted":
            raise broken_at(records[seq], "its reservation stands in no account", account)
        if (seq, account) not in found:
            missing.append(f"settlement of event {seq}")
    count = some(len(box.sections["account"]), "delta")
    if missing:
        return Claim("accounts", "not in this bundle", f"{count} as the records say; not settled yet: {', '.join(missing[:5])}", 3)
    return Claim("accounts", "proven", f"{count}, as reservations and spends say")


def check_mail(case: Case) -> Claim:
    """Each stop and each message was signed by whom it names, and says exactly what the record says."""
    stops = messages = 0
    hidden, unknown = [], []
    for record in case.run.records:
        fact, kind = record["fact"], record["type"]
        if kind not in ("StopRequested", "MessageReceived"):
            continue
        if not has_part(record, "statement"):
            raise broken_at(record, "nobody signed it: it holds no statement")
        line, text = case.shown(record, "statement"), case.shown(record, "text")
        if line is None:
            hidden.append(f"statement of event {record['seq']}")
        elif kind == "StopRequested":
            found = who_signed(envelope_of(line.value), STOP_TYPE, case.trust)
            said = None if isinstance(found, str) else stop_statement(found[1])
            if isinstance(found, str) or said is None:
                raise broken_at(
                    record, f"its statement does not count: {found if isinstance(found, str) else 'malformed'}", line=line.number
                )
            says_ = found[0], said["mode"], said["run"], said["origin"]
            if says_ != (fact["principal"], fact["mode"], record["run"], case.said["origin"]):
                raise broken_at(record, "its statement says something else", line=line.number)
            stops += 1
        elif text is None:
            hidden.append(f"text of event {record['seq']}")
        else:
            said_ = who_spoke(envelope_of(line.value), text, case.trust)
            if said_ == "not an approver":
                unknown.append(f"event {record['seq']}")
            elif isinstance(said_, str):
                raise broken_at(record, f"its statement does not count: {said_}", line=line.number)
            elif (said_["principal"], said_["run"], said_["origin"]) != (fact["principal"], record["run"], case.said["origin"]):
                raise broken_at(record, "its statement says something else", line=line.number)
            else:
                messages += 1
    told = f"{some(stops, 'stop')} and {some(messages, 'message')}, each signed by who is named"
    if unknown:
        return Claim(
            "mail", "cannot check now", f"{told}; the trust file holds no key (`frontend NAME VKEY`) for {', '.join(unknown[:5])}", 5
        )
    if hidden:
        return Claim("mail", "not in this bundle", f"{told}; not shown: {', '.join(hidden[:5])}", 3)
    return Claim("mail", "proven", told)


def who_spoke(raw: bytes, text: Line, trust: Trust) -> Object | str:
    """The statement about these words, by a front end (for anybody whom it has logged in) or by a person (for that person)."""
    found, only = who_signed(raw, SAY_TYPE, trust), ""
    if isinstance(found, str):
        if found != "not an approver":
            return found
        envelope = read_envelope(raw)
        try:
            open_envelope(envelope, SAY_TYPE, trust.frontends)
        except ValueError:
            known = {key.id for key in trust.frontends} & {keyid for keyid, _ in envelope.signatures}
            return "forged" if known or not envelope.payload else "not an approver"
        payload = envelope.payload
    else:
        only, payload = found[0], found[1]
    try:
        said = accept(payload)
    except ValueError:
        return "malformed"
    if not shape(said, "commit domain nonce origin principal run") or said["domain"] != "mandamus/message/v1":
        return "malformed"
    words = text.value if type(text.value) is str else ""
    holds = said["commit"] == digest("payload", salt(text.secret, WHOLE), jcs(words))
    return said if holds and only in ("", said["principal"]) else "forged"


LEVELS = ("sealed", "witnessed")


def check_levels(case: Case) -> Claim:
    """What policy wanted sealed or witnessed before its effect was so, and the bundle shows the checkpoint."""
    proposed: dict[str, int] = {}
    policy: dict[str, str] = {}
    asked: dict[str, set[tuple[str, str]]] = {}  # action -> (level, the policy that asked)
    upto, intents, reached = dict.fromkeys(LEVELS, -1), 0, []
    for record in case.run.records:
        fact, kind, wanted = record["fact"], record["type"], []
        action = fact.get("action", "")
        if kind == "ActionProposed":
            proposed[action] = record["seq"]
        elif kind == "EvidenceReached":
            reached.append(record)
            for level in LEVELS[: LEVELS.index(fact["level"]) + 1]:  # what is witnessed is sealed too
                upto[level] = max(upto[level], fact["seq"])
        elif kind == "ActionJudged":
            policy[action] = fact["bundle"]
            asked.setdefault(action, set()).update((level, fact["bundle"]) for level in asked_levels(record))
            line = case.shown(record, "facts")
            people = line.value.get("people") if line and type(line.value) is dict else None
            met = people.get("met") if type(people) is dict else None
            wanted = [level for level in LEVELS if level in (met if type(met) is list else [])]
        elif kind == "ActionStarted":
            wanted = [level for level, by in sorted(asked.get(action, ())) if by == policy.get(action)]
            intents += bool(wanted)
        for level in wanted:
            if upto[level] < proposed.get(action, 0):
                raise broken_at(
                    record, f"policy wanted, or was told, that action {action[:40]} is {level}, and no record before it says so"
                )
    shown = {line.record["seq"]: case.proofs.met(line) for line in case.proofs.own if line.job == "level" and case.proofs.held}
    absent = [f"event {r['seq']}" for r in reached if r["seq"] not in shown]
    below = [f"event {r['seq']}" for r in reached if r["fact"]["level"] == "witnessed" and not shown.get(r["seq"], True)]
    told = f"{some(intents, 'intent')} with the evidence that policy asked for"
    if below:
        return Claim("levels", "not in this bundle", f"{told}; not the quorum of the trust file: {', '.join(below[:5])}", 3)
    if absent:
        code = 3 if case.proofs.raws or case.trust.quorum not in (None, "none") else 0
        return Claim("levels", "not in this bundle", f"{told}; the checkpoint is not shown: {', '.join(absent[:5])}", code)
    if case.trust.quorum in (None, "none") and any(r["fact"]["level"] == "witnessed" for r in reached):
        return Claim("levels", "cannot check now", f"{told}; the trust file demands no quorum, so it does not say who are witnesses")
    return Claim("levels", "proven", f"{told}; {some(len(reached), 'checkpoint')} shown")


def asked_levels(record: Object) -> list[str]:
    """The levels of evidence that a judgement asks the log for."""
    return [ask["chain"] for ask in record["fact"].get("asks", ()) if ask["to"] == "log" and ask["chain"] in LEVELS]


def render_views(records: Sequence[Object], values: dict[tuple[str, int, str], Any]) -> dict[str, bytes]:
    """The three views, made anew: whoever relies on one has compared it with the records."""
    run, opened = records[0]["run"], records[0]["fact"]

    def part(record: Object, name: str, shown: bool = True) -> Any:
        commits = [{"commit": one["commit"]} for one in record.get("body", ()) if one["part"] == name]
        value = values.get((record["run"], record["seq"], name)) if shown else None
        return value if shown and (record["run"], record["seq"], name) in values else commits[0] if commits else None

    def kind(*names: str) -> list[Object]:
        return [record for record in records if record["type"] in names]

    ended, replies = kind("RunEnded"), kind("ModelReplied")
    tokens = {name: sum(reply["fact"]["usage"][name] for reply in replies) for name in ("input", "output")}
    session = {name: opened[name] for name in ("agent", "definition", "manifest", "origin", "policy", "tenant", "tier")}
    session.update(
        claimed_begin=records[0]["at"], claimed_end=records[-1]["at"], events=len(records), input=part(records[0], "input"),
        model_calls=len(kind("ModelCalled")), models=sorted({reply["fact"]["model"] for reply in replies}),
        output=part(ended[0], "output") if ended else None, run=run, state=ended[0]["fact"]["state"] if ended else "open", tokens=tokens,
        turns=max(record["turn"] for record in records), view="mandamus.agent_run/1",
    )  # fmt: skip
    decisions = []
    for record in kind("ActionJudged"):
        fact, facts = record["fact"], part(record, "facts", False)
        decisions.append({
            "action": fact["action"], "attempt": fact["attempt"], "decision": part(record, "decision"), "engine": fact["engine"],
            "event": record["seq"], "facts": facts["commit"] if facts else None, "policy": fact["bundle"], "result": fact["verdict"],
            "rule_trace": {"determining": fact["determining"], "layers": fact["layers"]}, "asks": fact.get("asks", []),
            "code": fact.get("code"),
        })  # fmt: skip
    actions: dict[str, Object] = {}
    for record in kind("ActionProposed", "ActionStarted", "Voted", "ActionEnded"):
        fact, seq = record["fact"], record["seq"]
        mine = actions.get(fact.get("action", ""), {})
        if record["type"] == "ActionProposed":
            actions[fact["action"]] = {
                "action": fact["action"], "attempts": [], "effect": fact["effect"], "event": seq, "input": part(record, "args"),
                "outcomes": [], "pin": fact.get("pin"), "safety": fact["safety"], "tool": fact["tool"], "votes": [],
            }  # fmt: skip
        elif record["type"] == "ActionStarted":
            mine["attempts"].append({"attempt": fact["attempt"], "event": seq, "operation": fact["operation"], "votes": fact["votes"]})
        elif record["type"] == "Voted":
            mine["votes"].append({"decision": fact["decision"], "event": seq, "principal": fact["principal"]})
        else:
            outcome = {"event": seq, "output": part(record, "output"), "result": fact["result"], "via": fact["via"]}
            mine["outcomes"].append(outcome)
    made = {
        "agent_run.json": session,
        "decision.json": {"decisions": decisions, "run": run, "view": "mandamus.decision/1"},
        "tool_trace.json": {"actions": list(actions.values()), "run": run, "view": "mandamus.tool_trace/1"},
    }
    return {name: jcs(value) + b"\n" for name, value in made.items()}


class Case:
    """One bundle under examination. Each method proves the sentence in its first line, or raises Broken with the first finding."""

    def __init__(
        self, trust: Trust, *, views: dict[str, bytes] | None = None, blobs: dict[str, bytes] | None = None, now: int | None = None,
        max_age: int | None = None, last: dict[str, Object] | None = None, tiles: str | None = None,
    ) -> None:  # fmt: skip
        self.trust, self.views, self.blobs, self.max_age, self.last, self.tiles = trust, views or {}, blobs or {}, max_age, last, tiles
        self.now = now  # seconds since 1970; None where nobody asks what time it is
        self.claims: list[Claim] = []
        self.broken: Object | None = None
        self.attested, self.state = "", "unknown"
        self.said: Object = {}
        self.lines: dict[tuple[str, int, str], Line] = {}
        self.box: Box
        self.run: Walk
        self.log: Walk
        self.proofs: Proofs
        self.authority: Authority
        self.signer: Key

    def examine(self, raw: bytes) -> Object:
        """The first group decides whether the rest has anything to stand on."""
        ground: list[tuple[str, Callable[[], Claim]]] = [
            ("container", lambda: self._container(raw)), ("signature", self._signature), ("chain", self._records),
            ("log", self._log_chain), ("payloads", self._payloads),
        ]  # fmt: skip
        if self._all(ground, False):
            self.proofs = Proofs(self)
            self.authority = Authority(self.log.records)
            self._all([("state", self._seal), ("checkpoint", self.proofs.checkpoint), ("inclusion", self.proofs.inclusion)], True)
            self._all(self._rest(), True)
        code = exit_code({claim.exit_code for claim in self.claims})
        report: Object = {"verdict": verdict(code), "exit_code": code, "claims": [claim._asdict() for claim in self.claims]}
        report.update(run=self.said.get("run", ""), state=self.state, events=self.said.get("count", 0), head=self.said.get("head", ""))
        if self.head is not None:
            times = self.proofs.times[self.proofs.lines[0].proof.note]
            report["checkpoint"] = {
                "origin": self.head.origin,
                "size": self.head.size,
                "root": self.head.root.hex(),
                "time": max(times.values()),
            }
        report.update(attested=self.attested, broken={**self.broken, "where": place(self.broken)} if self.broken else None)
        return {name: value for name, value in report.items() if value not in (None, "")}

    def _all(self, checks: Iterable[tuple[str, Callable[[], Claim]]], go_on: bool) -> bool:
        """False when something does not hold, or, on the ground, nothing further can be said."""
        for name, check in checks:
            try:
                claim = check()
            except Broken as error:
                claim = Claim(name, "broken", error.finding["what"], 1)
                self.broken = self.broken or error.finding
            except (KeyError, IndexError, ValueError, TypeError, AttributeError, RecursionError):
                claim = Claim(name, "broken", "the records are not ones that a run can make", 1)
                self.broken = self.broken or {"what": claim.says}
            self.claims.append(claim)
            if not go_on and claim.exit_code in (1, 5):
                return False
        return True

    def _rest(self) -> Iterator[tuple[str, Callable[[], Claim]]]:
        records, kinds = self.run.records, {record["type"] for record in self.run.records}
        if self.proofs.children:
            yield "children", self.proofs.of_children
        if any(line.job == "anchor" for line in self.proofs.lines):
            yield "anchors", self.proofs.of_anchors
        if self.box.sections["tsr"]:
            yield "stamps", self._stamps
        if self.last is not None:
            yield "continuity", lambda: check_continuity(self.head, self.last or {}, self.tiles)
        yield from (("authority", self._authority), ("owners", self._owners), ("operations", self._operations), ("votes", self._votes))
        yield "accounts", lambda: check_accounts(self.box, records)
        yield from (("policies", self._policies), ("manifest", self._manifest), ("key hints", self._keys), ("views", self._views))
        yield "sections", self._sections
        if set(UNITS) & set(records[0]["fact"]["budget"]):
            yield "budget", lambda: check_budget(records)
        if kinds & {"StopRequested", "MessageReceived"}:
            yield "mail", lambda: check_mail(self)
        if "EvidenceReached" in kinds or any(record["type"] == "ActionJudged" and asked_levels(record) for record in records):
            yield "levels", lambda: check_levels(self)

    @property
    def head(self) -> Note | None:
        """The largest checkpoint of this log that holds."""
        return self.proofs.head if hasattr(self, "proofs") else None

    # -- the ground
    def _container(self, raw: bytes) -> Claim:
        """The file is cut as its header says, and nothing stands behind its end."""
        if raw.startswith(b'{"bundle":"mandamus-log/1",'):
            return Claim("container", "cannot check now", "this is the bundle of a period, not of a run: `mandamus verify` reads it", 5)
        self.box = cut(raw)
        return Claim("container", "proven", f"{self.box.lines} lines, canonical, in {len(SECTIONS)} sections")

    def _signature(self) -> Claim:
        """A key that the trust file lets sign bundles of this log has signed what the header and the statement say."""
        try:
            envelope = read_envelope(self.box.sections["dsse"][0])
            signer = open_envelope(envelope, PAYLOAD_TYPE, [key for _, key in self.trust.bundles])[0]
        except ValueError as error:
            raise Broken(str(error), line=2) from None
        said = parse_statement(envelope.payload)
        if not self.trust.log_keys(said["origin"]):
            raise Broken("the run belongs to a log that is not trusted", line=2, found=said["origin"])
        if signer not in self.trust.bundle_keys(said["origin"]):
            raise Broken("the signer may not sign bundles of this log", line=2, expected=said["origin"], found=signer.name)
        if header_of(said) != self.box.header:
            raise Broken("the header is not the one that the signed statement demands", line=1)
        self.said, self.signer = said, signer
        return Claim("signature", "proven", f"by {signer.name}+{signer.id}, origin {said['origin']}")

    def _records(self) -> Claim:
        """Every record from the genesis to the signed head is canonical, linked, in order and legal; the run is in the signed state."""
        raws = self.box.sections["record"]
        self.run = self._walk(raws, self.said["run"], self.said["head"])
        if self.run.fault is not None:
            return self._too_new(self.run.fault, "chain")
        opened = self.run.records[0]["fact"]
        if (opened["origin"], opened["manifest"]) != (self.said["origin"], self.said["manifest"]):
            raise broken_at(self.run.records[0], "the genesis belongs to another log or manifest than the signed statement says")
        self.state = self.run.state
        if self.state != self.said["state"]:
            raise Broken(
                "the run is in another state than the signed statement says", line=2, expected=self.state, found=self.said["state"]
            )
        return Claim(
            "chain", "proven", f"{len(raws)} records from genesis to the signed head: canonical, linked, in order, each step legal"
        )

    def _walk(self, raws: list[bytes], run: str, head: str) -> Walk:
        """Bytes first, backwards from the signed head, then what they say."""
        walked, chain = Walk(raws, run), LOG if run == LOG else "run"
        if walked.fault is None and walked.head == head:
            return walked
        torn = backward(raws, head, chain)
        if torn is not None:
            self.attested = attested(torn["event"], len(raws)) if chain == "run" else ""
        fault = torn or (walked.fault if not walked.newer else None)
        if fault is not None:
            error = Broken(fault["what"])
            error.finding = fault
            raise error
        return walked

    @staticmethod
    def _too_new(fault: Object, name: str) -> Claim:
        return Claim(name, "cannot check now", f"{place(fault)}: {fault['what']}; its bytes are attested", 5)

    def _log_chain(self) -> Claim:
        """Chain log is whole up to the head that was signed with the run."""
        raws, said = self.box.sections["log"], self.said["log"]
        if not raws:
            self.log = Walk([], LOG)
            if said["head"]:
                raise Broken("chain log is missing", chain=LOG, expected=said["head"])
            return Claim("log", "not in this bundle", "no record of chain log: nothing had been enrolled, revoked or changed")
        self.log = self._walk(raws, LOG, said["head"])
        if self.log.fault is not None:
            return self._too_new(self.log.fault, "log")
        return Claim("log", "proven", f"{some(len(raws), 'record')} of chain log to the signed head")

    def _payloads(self) -> Claim:
        """Each payload that is shown is the one that its record committed to; each that is not shown is named."""
        lines = [read_payload(raw, number) for number, raw in enumerate(self.box.sections["payload"], self.box.first["payload"])]
        self.lines = match_payloads(lines, [*self.run.records, *self.log.records], self.blobs)
        erased = check_erased(self.lines.values(), self.log.records, self.said["run"])
        hidden = [line for line in self.lines.values() if line.show != "whole"]
        if hidden:
            names = ", ".join(f"{line.key[2]} of event {line.key[1]} ({line.show})" for line in hidden[:5])
            told = f"{len(lines) - len(hidden)} of {len(lines)} shown and as committed; not shown: {names}"
            return Claim("payloads", "not in this bundle", told + (f"; {erased} erased, with record" if erased else ""), 3)
        return Claim("payloads", "proven", f"{some(len(lines), 'payload')}, each what its record committed to")

    # -- the rest
    def _seal(self) -> Claim:
        """A sealed run ended as its seal says, in the state that its records lead to."""
        last = self.run.records[-1]
        if last["type"] == "RunSealed":
            found = state_after(self.run.records[:-1])
            if found != last["fact"]["state"]:
                raise broken_at(last, "the seal names another state than the records lead to", last["fact"]["state"], found)
            return Claim("state", "proven", f"sealed: {last['fact']['closed']}, {last['fact']['count']} records, state recomputed")
        if self.run.life.unsettled:
            told = f"in doubt: nobody knows whether {', '.join(self.run.life.unsettled)} happened"
            return Claim("state", "cannot check now", told, 5)
        says_ = "open: the run may go on" if self.state == "open" else "interrupted: an action or a model call has no outcome yet"
        return Claim("state", "proven", says_, 4)

    def _stamps(self) -> Claim:
        """RFC 3161 replies are over checkpoints of this bundle. Whether they hold, other programs can tell (openssl ts -verify)."""
        known, first = [hashlib.sha256(line.proof.note).hexdigest() for line in self.proofs.own], self.box.first["tsr"]
        known = known if self.proofs.held else []
        if len(self.box.sections["tsr"]) > 8:
            raise Broken("section tsr has too many lines", line=first)
        rows = [(number, row(raw, "note reply", number)) for number, raw in enumerate(self.box.sections["tsr"], first)]
        for number, stamp in rows:
            try:
                good = type(stamp["note"]) is str and 0 < len(unb64(stamp["reply"])) <= 1 << 16
            except (ValueError, AttributeError):
                good = False
            if not good or stamp["note"] not in known:
                raise Broken("this is no stamp line, or it is over no checkpoint of this bundle", line=number)
        return Claim("stamps", "cannot check now", f"{some(len(rows), 'stamp')} over the checkpoint; this verifier reads none")

    def _authority(self) -> Claim:
        """Chain log reaches as far as any judgement saw; all that widens authority in it is signed by its administrators."""
        a, trust, records = self.authority, self.trust, self.log.records
        seen = max((record["fact"]["authority"] for record in self.run.records if record["type"] == "ActionJudged"), default=0)
        self._nothing_by_the_retired()
        if a.version < seen:
            what = "chain log ends before the newest change of authority that a judgement saw"
            raise Broken(what, chain=LOG, expected=f"version {seen}", found=f"version {a.version}")
        if not records:
            return Claim("authority", "proven", "no judgement saw any change of authority")
        if a.widened and not trust.admins:
            return Claim("authority", "cannot check now", "the trust file names no administrator (`admin VKEY`) to check changes by", 5)
        for _, record in [*a.widened, *a.stops]:
            part = "ballot" if record["type"] == "Voted" else "statement"
            line = self.lines.get((LOG, record["seq"], part))
            if line is not None and line.show != "whole":
                return Claim("authority", "not in this bundle", f"the {part} of log event {record['seq']} is not shown", 3)
        opened = records[0]["fact"]
        nonces: set[str] = set()
        if opened["origin"] != self.said["origin"]:
            raise broken_at(records[0], "chain log belongs to another log", self.said["origin"], opened["origin"])
        for version, record in a.widened:
            why = self._why_not_wider(record, opened, a.admins(opened, trust, version), nonces)
            if why:
                raise broken_at(record, f"it widens authority, but {why}")
        for version, record in a.stops:
            line = self.shown(record, "statement")
            keys = a.admins(opened, trust, version)
            why = why_no_stop(envelope_of(line.value) if line else None, record["fact"], opened, trust, keys)
            if why:
                raise broken_at(record, f"it stops runs, but {why}")
        self._not_stopped()
        told = f"version {a.version}, {some(len(a.widened), 'signed change')} to what it allows, {some(len(a.revoked), 'key')} revoked"
        return Claim("authority", "proven", told + (f", {some(len(a.stops), 'signed stop')}, none passed over" if a.stops else ""))

    def _nothing_by_the_retired(self) -> None:
        """What is signed over a chain log that says the key is none any more was signed too late."""
        if bytes_of(str(self.signer)) in self.authority.revoked:
            raise Broken("the signer of the bundle had been retired", line=2)
        upto = next((line.proof.at for line in self.proofs.lines if line.job == "log"), INT_MAX)
        for line in self.proofs.own if self.proofs.held else ():
            logs = [key for key, at in self.proofs.times[line.proof.note].items() if not at]
            if line.note.size > upto and all(bytes_of(str(key)) in self.authority.revoked for key in logs):
                raise Broken("the log's key that signed the checkpoint had been retired", line=line.number)

    def _why_not_wider(self, record: Object, opened: Object, keys: list[Key], nonces: set[str]) -> str:
        if record["type"] != "Voted":
            line = self.shown(record, "statement")
            return why_no_statement(envelope_of(line.value), record, opened, keys, nonces) if line else "it carries no statement"
        ballot = self.shown(record, "ballot")
        if ballot is None:
            return "it carries no ballot"
        if not keys:
            return "no administrator that the log names stands in the trust file"
        found = examine_standing(ballot, self.trust, keys, opened["quorum"])
        if isinstance(found, str):
            return f"its ballot does not count: {found}"
        says_ = found[0].principal, found[1], found[0].ballot["origin"]
        return "" if says_ == (record["fact"]["principal"], record["fact"]["ballot"], opened["origin"]) else "its ballot is another one"

    def _not_stopped(self) -> None:
        """No intent stands on a judgement that saw the stop of its agent or tenant."""
        opened, judged = self.run.records[0]["fact"], {}
        for record in self.run.records if self.authority.stops else ():
            if record["type"] == "ActionJudged":
                judged = record["fact"]
            elif record["type"] == "ActionStarted":  # right behind its ALLOW, by the chain's rules
                for version, stop in self.authority.stops:
                    fact = stop["fact"]
                    if version <= judged["authority"] and (fact.get("agent") == opened["agent"] or fact.get("tenant") == opened["tenant"]):
                        raise broken_at(record, f"it started although log event {stop['seq']} had stopped it")

    def _owners(self) -> Claim:
        """Each take-over was signed by the log's key."""
        keys, count, version = self.trust.log_keys(self.said["origin"]), 0, 0
        for record in self.run.records:
            if record["type"] == "ActionJudged":
                version = max(version, record["fact"]["authority"])
            elif record["type"] == "RunOwned":  # whoever takes over after a judgement has no key that was retired before it
                keys = [key for key in keys if not self.authority.was_revoked(key, version)]
                fact, count = record["fact"], count + 1
                bound = {"epoch": record["epoch"], "nonce": fact["nonce"], "origin": self.said["origin"], "prev": record["prev"]}
                message = jcs({**bound, "domain": "mandamus/owned/v1", "run": record["run"], "worker": fact["worker"]})
                try:
                    signature = unb64(fact["signature"])
                except ValueError:
                    signature = b""
                if not any(signed(key, message, signature) for key in keys):
                    raise broken_at(record, "no trusted log key signed this takeover")
        says_ = f"{some(count, 'takeover')} signed by the log's key" if count else "one owner from genesis to the head"
        return Claim("owners", "proven", says_)

    def _operations(self) -> Claim:
        """The idempotency key of every intent is the one of its call: the same for every attempt, another for every other action."""
        wanted, count = {}, 0
        for record in self.run.records:
            fact = record["fact"]
            if record["type"] == "ActionProposed":
                bound = {"args": args_of(record), "call": fact["call"], "run": record["run"], "tool": fact["tool"]}
                wanted[fact["action"]] = digest("operation", jcs(bound))
            elif record["type"] == "ActionStarted":
                count += 1
                if fact["operation"] != wanted[fact["action"]]:
                    raise broken_at(record, "its operation id is not the one of this call", wanted[fact["action"]], fact["operation"])
        return Claim("operations", "proven", f"{some(count, 'intent')}, each with the operation id of its call")

    def _votes(self) -> Claim:
        people = People(self)
        claim = people.check()
        check_tiers(self.run.records, people.chains)
        return claim

    def sources(self) -> dict[str, Object]:
        """Policies whose source has the digest that it stands under."""
        out = {}
        for number, raw in enumerate(self.box.sections["policy"], self.box.first["policy"]):
            said = row(raw, "digest source", number)
            if type(said["source"]) is dict and digest("policy", jcs(said["source"])) == said["digest"]:
                out[said["digest"]] = said["source"]
        return out

    def _policies(self) -> Claim:
        """Each policy that judged the run is here, with the digest that the judgements name."""
        for number, raw in enumerate(self.box.sections["policy"], self.box.first["policy"]):
            said = row(raw, "digest source", number)
            if type(said["source"]) is not dict or digest("policy", jcs(said["source"])) != said["digest"]:
                raise Broken("this policy has another digest", line=number, expected=str(said["digest"])[:80])
        found = self.sources()
        judged = {record["fact"]["bundle"] for record in self.run.records if record["type"] == "ActionJudged"}
        absent = sorted(({self.run.records[0]["fact"]["policy"]} | judged) - set(found) - {""})
        if absent:
            return Claim("policies", "not in this bundle", f"the source of policy {absent[0][:12]} are not shown", 3)
        return Claim("policies", "proven", f"{some(len(found), 'policy', 'policies')} with the digests that judged the run")

    def _manifest(self) -> Claim:
        """The manifest is the one that the genesis names."""
        number, named = self.box.first["manifest"], self.said["manifest"]
        text = row(self.box.sections["manifest"][0], "text", number)["text"]
        if type(text) is str and not text and not named:
            return Claim("manifest", "proven", "the genesis names none: the agent is defined in code (see `definition`)")
        if type(text) is not str or digest("manifest", text.encode("utf-8")) != named:
            raise Broken("this is not the manifest that the genesis names", line=number, expected=named)
        return Claim("manifest", "proven", "the manifest is the one that the genesis names")

    def _keys(self) -> Claim:
        """Keys in the bundle are hints for people: well-formed, and never used."""
        for number, raw in enumerate(self.box.sections["key"], self.box.first["key"]):
            try:
                parse_key(str(row(raw, "key role", number)["key"]))
            except ValueError as error:
                raise Broken(str(error), line=number) from None
        return Claim(
            "key hints", "proven", f"{len(self.box.sections['key'])} keys named in the bundle; none of them is a reason to trust it"
        )

    def _views(self) -> Claim:
        """The views that came with the bundle are what the records say."""
        if not self.views:
            return Claim("views", "not in this bundle", "no views were given to compare")
        made = render_views(self.run.records, {key: line.value for key, line in self.lines.items() if line.show == "whole"})
        for name, raw in sorted(self.views.items()):
            if made.get(name) != raw:
                raise Broken(f"view {name[:80]} is not what the records say")
        return Claim("views", "proven", f"{some(len(self.views), 'view')}, as the records say")

    def _sections(self) -> Claim:
        """The net under everything: no byte of any section is another one than was signed."""
        for part in self.said["sections"]:
            if section_digest(part["name"], self.box.sections[part["name"]]) != part["digest"]:
                raise Broken(f"section {part['name']} is not the one that was signed", line=self.box.first[part["name"]])
        return Claim("sections", "proven", "every section has the digest that was signed")

    def shown(self, record: Object, part: str) -> Line | None:
        line = self.lines.get((record["run"], record["seq"], part))
        return line if line is not None and line.show == "whole" else None


# ---- 14. The command ---------------------------------------------------------------------------------------------------------------

WHAT = {
    0: "complete and valid", 1: "broken", 2: "nothing to verify, or no trust root", 3: "valid, but a part is not shown",
    4: "valid so far, the run is not finished", 5: "cannot tell yet",
}  # fmt: skip


def verify(raw: bytes, trust: bytes | None, **beside: Any) -> Object:
    """The report, as plain data. `beside`: views, blobs, now, max_age, last, tiles (see Case). Raises Usage for a bad trust file."""
    gc.disable()  # records are trees: there is nothing to collect among them, and looking for it costs a third of the time
    roots = Trust(trust) if trust is not None else None
    what = "" if raw else "the file is empty: there is nothing to verify"
    if raw and (roots is None or not roots.logs or not roots.bundles):
        what = "no trust root was given: a trust file has a `log` and a `bundle` line"
    if what or roots is None:
        return {
            "verdict": "NOT PROVEN",
            "exit_code": 2,
            "claims": [],
            "state": "unknown",
            "events": 0,
            "broken": {"what": what, "where": ""},
        }
    return Case(roots, **beside).examine(raw)


def plain(text: str) -> str:
    """Printable ASCII and line ends: names come from a file that nobody vouches for yet."""
    return "".join(c if " " <= c <= "~" or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


def as_text(report: Object, quiet: bool) -> str:
    rows = [f"{report['verdict']}  ({WHAT[report['exit_code']]})"]
    finding = report.get("broken", {})
    if finding:
        rows.append(f"{finding['where']}: {finding['what']}" if finding["where"] else finding["what"])
        rows += [f"  {name}  {finding[name]}" for name in ("expected", "found") if name in finding]
        rows += [f"  {report['attested']}"] if "attested" in report else []
    if "run" in report:
        rows.append(f"run {report['run']}  {report['state']}, {report['events']} events, head {report['head']}")
    width = max((len(claim["outcome"]) for claim in report["claims"]), default=0)
    rows += [] if quiet else [f"  {claim['outcome'].ljust(width)}  {claim['name']}: {claim['says']}" for claim in report["claims"]]
    return "\n".join(rows)


def read_file(path: str, limit: int) -> bytes:
    try:
        with open(path, "rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise Usage(f"cannot be read: {error.strerror}", path) from None
    if len(raw) > limit:
        raise Usage("the file is too large", path)
    return raw


def read_folder(path: str, ending: str) -> dict[str, bytes]:
    names = [name for name in (os.listdir(path) if os.path.isdir(path) else []) if re.fullmatch(ending, name)]
    if not names:
        raise Usage("there is no such file in that folder", path)
    return {name: read_file(os.path.join(path, name), BUNDLE_BYTES_MAX) for name in sorted(names)}


def read_last(path: str) -> dict[str, Object]:
    """What was seen last of each log. A file that cannot be read must not be taken for a first look."""
    if not os.path.exists(path):
        return {}
    raw = read_file(path, 1 << 20)
    try:
        said: Any = accept(raw[:-1]) if raw[-1:] == b"\n" else None
        good = type(said) is dict and sorted(said) == ["mandamus", "origins"] and said["mandamus"] == "last-seen/1"
        heads: Any = said["origins"].values() if good else [None]
        if not all(sorted(head) == ["root", "size"] and head["size"] >= 0 and len(bytes.fromhex(head["root"])) == 32 for head in heads):
            raise ValueError
    except (ValueError, TypeError, AttributeError, KeyError):
        raise Usage("this is no file of what was seen last", path) from None
    return dict(said["origins"])


def remember(path: str, report: Object, last: dict[str, Object]) -> None:
    """Whole or not at all, only after success, and never a smaller log than before."""
    seen = report.get("checkpoint")
    proven = [claim["name"] for claim in report["claims"] if claim["outcome"] == "proven"]
    before = last.get(seen["origin"], {"size": -1})["size"] if seen else 0
    if seen is None or not {"checkpoint", "continuity"} <= set(proven) or "broken" in report or before >= seen["size"]:
        return
    origins = {**last, seen["origin"]: {"root": seen["root"], "size": seen["size"]}}
    with open(path + ".new", "wb") as file:
        file.write(jcs({"mandamus": "last-seen/1", "origins": origins}) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Usage(message)


def command(argv: Sequence[str] | None = None) -> int:
    exits = "exit codes: " + " | ".join(f"{code} {what}" for code, what in WHAT.items())
    parser = _Parser(description="Check the proof of a run, offline, against your own trust file.", epilog=exits, allow_abbrev=False)
    parser.add_argument("bundle", metavar="BUNDLE", help="the file that `mandamus bundle RUN` wrote")
    parser.add_argument("--trust", metavar="FILE", help="your trust file; it must not come with the bundle")
    parser.add_argument("--views", metavar="DIR", help="compare agent_run.json, decision.json and tool_trace.json in DIR")
    parser.add_argument("--blobs", metavar="DIR", help="payloads that lie beside the bundle, each named by its SHA-256")
    parser.add_argument("--state", metavar="FILE", help="remember the newest checkpoint of each log, and hold this one against it")
    parser.add_argument("--log", metavar="DIR", help="the tiles of the log, to show that it has only grown")
    parser.add_argument("--max-age", metavar="SECONDS", type=int, help="how old the youngest cosignature may be")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("-q", "--quiet", action="store_true", help="the verdict, and what is broken")
    as_json = "--json" in (sys.argv[1:] if argv is None else argv)
    try:
        o = parser.parse_args(argv)
        raw, trust = read_file(o.bundle, BUNDLE_BYTES_MAX), None if o.trust is None else read_file(o.trust, TRUST_BYTES_MAX)
        beside = {"max_age": o.max_age, "last": read_last(o.state) if o.state else None, "tiles": o.log, "now": int(time.time())}
        beside["views"] = read_folder(o.views, r".*\.json") if o.views else {}
        beside["blobs"] = read_folder(o.blobs, "[0-9a-f]{64}") if o.blobs else {}
        report = verify(raw, trust, **beside)
        if o.state:
            remember(o.state, report, beside["last"])
    except Usage as error:
        report = {"verdict": "NOT PROVEN", "exit_code": 2, "claims": [], "broken": {"what": error.what, "where": error.where}}
    sys.stdout.write(
        plain(json.dumps(report, sort_keys=True) if as_json else as_text(report, o.quiet if "o" in locals() else False)) + "\n"
    )
    return int(report["exit_code"])


if __name__ == "__main__":
    sys.exit(command())
