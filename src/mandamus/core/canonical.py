"""Canonical bytes: RFC 8785 (JCS), exact. `canon(value) -> bytes`, `parse(raw) -> value`, `accept(raw)` = the read rule.

Everything that two JSON parsers could read differently is refused: NaN, integers beyond +-(2^53-1), lone surrogates, duplicate
keys, foreign types, more than 64 nested containers. The pure path is the reference and needs nothing; orjson serves values where
its output is proved equal (tests/core/test_canonical.py has the differences).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any

import msgspec

orjson: Any
try:
    import orjson
except ImportError:  # the auditor's environment has msgspec and cryptography only
    orjson = None

INT_MAX = 2**53 - 1
DEPTH_MAX = 64

_needs_escape = re.compile(r'[\x00-\x1f"\\]')
_short = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_sorted = msgspec.json.Encoder(order="sorted").encode
_scalars = frozenset((str, int, bool, type(None)))
_astral = re.compile(rb"[\xf0-\xf4]").search


def canon(value: Any) -> bytes:
    """JCS bytes of any JSON value. Raises ValueError or TypeError, which name the fault.

    The fast path stands only where UTF-8 order and UTF-16 order of keys agree: no character beyond U+FFFF in the output.
    """
    if orjson is None:
        return canon_pure(value)
    plain = _with_number_text(value) if _guard(value) else value
    try:
        raw = orjson.dumps(plain, option=_OPTIONS)
    except TypeError:
        return canon_pure(value)
    return raw if raw.isascii() or not _astral(raw) else canon_pure(value)


def canon_own(value: Any) -> bytes:
    """JCS bytes of what this code built itself from texts, whole numbers within 2^53, lists and records: nothing is looked for in it.

    Typed and sorted encoding is JCS as long as everything is ASCII; what is not goes the general way.
    """
    raw = _sorted(value)
    return raw if raw.isascii() else canon(msgspec.to_builtins(value))


def canon_pure(value: Any) -> bytes:
    """The reference: the same bytes with nothing installed."""
    return _pure(value, 0).encode("utf-8")


def parse(raw: bytes) -> Any:
    """Strict JSON: no duplicate keys, no NaN, integers within +-(2^53-1), at most 64 containers deep. Raises ValueError."""
    try:
        value = _decoder.decode(raw.decode("utf-8"))
    except RecursionError:
        raise ValueError(f"more than {DEPTH_MAX} nested containers") from None
    _depth_ok(value)
    return value


def accept(raw: bytes) -> Any:
    """Stored bytes are believed only if they are the canonical form of what they parse to.

    What re-encodes to the very same bytes holds no duplicate key, no wide integer and no NaN, whichever parser read it; anything
    else goes to the strict one, which says what is wrong.
    """
    if orjson is not None:
        try:
            value = orjson.loads(raw)
            if canon(value) == raw:
                return value
        except (ValueError, TypeError, RecursionError):
            pass
    value = parse(raw)
    if canon(value) != raw:
        raise ValueError("not canonical")
    return value


def digest(domain: str, *parts: bytes) -> str:
    """Hex SHA-256 over `mandamus/v1/<domain>` and a zero byte, then the parts. No two kinds share one (docs/concepts/record-format.md)."""
    return hashlib.sha256(b"".join((b"mandamus/v1/", domain.encode("ascii"), b"\0", *parts))).hexdigest()


def es6_number(x: float) -> str:
    """ECMAScript Number::toString, from the shortest digits that Python's repr already gives."""
    if math.isnan(x) or math.isinf(x):
        raise ValueError("NaN and infinities have no JSON form")
    if x == 0:
        return "0"
    if x < 0:
        return "-" + es6_number(-x)
    mantissa, _, exponent = repr(x).partition("e")
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    point = len(whole) + int(exponent or 0)
    digits = whole + fraction
    if whole == "0":
        digits = fraction.lstrip("0")
        point = len(digits) - len(fraction)
    digits = digits.rstrip("0") or "0"
    n = len(digits)
    if n <= point <= 21:
        return digits + "0" * (point - n)
    if 0 < point <= 21:
        return digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    e = point - 1
    return (digits if n == 1 else digits[0] + "." + digits[1:]) + "e" + ("+" if e >= 0 else "-") + str(abs(e))


def _quote(s: str) -> str:
    if not _needs_escape.search(s):
        return f'"{s}"'
    return '"' + _needs_escape.sub(lambda m: _short.get(m.group()) or f"\\u{ord(m.group()):04x}", s) + '"'


def _pure(v: Any, depth: int) -> str:
    t = type(v)
    if t is str:
        return _quote(v)
    if t is dict or t is list or t is tuple:
        if depth >= DEPTH_MAX:
            raise ValueError(f"more than {DEPTH_MAX} nested containers")
        if t is not dict:
            return "[" + ",".join([_pure(x, depth + 1) for x in v]) + "]"
        keys = list(v)
        if any(type(k) is not str for k in keys):
            raise TypeError("keys must be strings")
        keys.sort(key=_utf16)  # RFC 8785, section 3.2.3: by UTF-16 code units, not by code points
        return "{" + ",".join([_quote(k) + ":" + _pure(v[k], depth + 1) for k in keys]) + "}"
    if v is True:
        return "true"
    if v is False:
        return "false"
    if v is None:
        return "null"
    if t is int:
        if not -INT_MAX <= v <= INT_MAX:
            raise ValueError("integer outside +-(2^53-1): send it as a string")
        return str(v)
    if t is float:
        return _float(v)
    raise TypeError(f"{t.__name__} has no canonical form")


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be")


def _float(v: float) -> str:
    if abs(v) > INT_MAX and not math.isinf(v):  # JCS prints it as a bare integer, which strict parsers refuse
        raise ValueError("float beyond 2^53-1: send it as a string")
    return es6_number(v)


def _depth_ok(v: Any) -> None:
    level, depth = [v], 0
    while level:
        if depth >= DEPTH_MAX:
            raise ValueError(f"more than {DEPTH_MAX} nested containers")
        level = [y for x in level for y in (x.values() if type(x) is dict else x if type(x) in (list, tuple) else ())]
        level = [y for y in level if type(y) in (dict, list, tuple)]
        depth += 1


def _guard(v: Any) -> bool:
    """Only plain types pass; True when a float needs ES6 text. DEPTH_MAX containers or fewer cannot be nested deeper than that."""
    if type(v) in _scalars:
        return False
    found, containers, floats = [v], 0, False
    for x in found:  # grows while it is walked
        t = type(x)
        if t is dict or t is list or t is tuple:
            containers += 1
            for y in x.values() if t is dict else x:
                if type(y) not in _scalars:
                    found.append(y)
        elif t is float:
            floats = True
        elif t not in _scalars:
            raise TypeError(f"{t.__name__} has no canonical form")
        if containers > DEPTH_MAX:
            _depth_ok(v)
            containers = -INT_MAX
    return floats


def _with_number_text(v: Any) -> Any:
    t = type(v)
    if t is dict:
        return {k: (x if type(x) in _scalars else _with_number_text(x)) for k, x in v.items()}
    if t is list or t is tuple:
        return [x if type(x) in _scalars else _with_number_text(x) for x in v]
    return orjson.Fragment(_float(v).encode()) if t is float else v


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("duplicate key")
    return out


def _safe_int(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > INT_MAX:
        raise ValueError("integer outside +-(2^53-1)")
    return int(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_int=_safe_int, parse_constant=_refuse)
if orjson is not None:
    _OPTIONS = (
        orjson.OPT_SORT_KEYS
        | orjson.OPT_STRICT_INTEGER
        | orjson.OPT_PASSTHROUGH_SUBCLASS
        | orjson.OPT_PASSTHROUGH_DATACLASS
        | orjson.OPT_PASSTHROUGH_DATETIME
    )
