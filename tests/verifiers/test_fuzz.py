"""Differential fuzzing: whatever bytes they are given, the library and the single file answer alike, and no change passes unseen.

Every walk is seeded and prints what it found; a small one runs in `make test`, the long one in `make slow`. The rule a newcomer would
break: a change that both let pass is only allowed where nobody could tell, and then the test says why.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mandamus.core import records as r
from mandamus.core.canonical import canon, parse
from mandamus.core.digests import policy_digest
from mandamus.proof import Report, verify
from mandamus.proof.trust import Trust
from mandamus.proof.verify import Beside
from tests.attack.test_bundle_bytes import eventful, small
from tests.attack.test_bundle_shown import forgetting, only, told, without
from tests.attack.test_red_lending import ALICES, BOBS, ONE_VOTE, allowed, paid_under
from tests.attack.test_red_proof import NEXT, OVER, tried_again, waited
from tests.logged import NOW, QUORUM
from tests.samples import ALICE, BOB, POLICY, TRUST_TEXT, Story, insider, relinked, sections, story
from tests.verifiers.single import SINGLE, by_single, said

WIDE = 2**53 - 1


@functools.cache
def roots(text: str) -> Trust:
    return Trust.parse(text)


def answered(raw: bytes, trust: str = TRUST_TEXT) -> int:
    """The exit code on which both agree, with every claim."""
    beside = Beside(now=NOW)
    report: Report = verify(raw, roots(trust), beside)
    other = by_single(raw, trust, beside)
    assert said(other) == said(report), f"library: {report.broken}\nsingle file: {other.get('broken')}"
    return report.exit_code


def agreed(raw: bytes, trust: str, why: str) -> int:
    try:
        return answered(raw, trust)
    except Exception as error:
        raise AssertionError(f"{why}: {error}") from error


BUNDLES: dict[str, tuple[Callable[[], bytes], str]] = {
    "small": (small, TRUST_TEXT),
    "plain": (lambda: story().bundle(), TRUST_TEXT),
    "eventful": (eventful, QUORUM),
    "erased": (lambda: without(forgetting(story())), TRUST_TEXT),
    "members": (lambda: only(told(), ["name", "paid"]), TRUST_TEXT),
    "allowance": (allowed, TRUST_TEXT),
    "lent_and_voted": (lambda: paid_under(ONE_VOTE, ALICES, voters=(BOBS,)), TRUST_TEXT),
    "tiers": (lambda: waited(OVER, NEXT), TRUST_TEXT),
    "again": (lambda: tried_again(("p-alice", ALICE), ("p-bob", BOB)), TRUST_TEXT),
}


@functools.cache
def bundle(name: str) -> bytes:
    return BUNDLES[name][0]()


def test_every_type_of_record_is_among_them() -> None:
    lines = sections(bundle("eventful"))
    assert {r.decode(raw).type for name in ("record", "log") for raw in lines[name]} == set(r.FACTS)
    assert answered(bundle("eventful"), QUORUM) == 0


# -- bytes -------------------------------------------------------------------------------------------------------------------
def scratched(raw: bytes, rnd: random.Random) -> bytes:
    """One thing that bytes can suffer."""
    lines, at, end = raw.split(b"\n"), rnd.randrange(len(raw)), rnd.randrange(1, 9)
    one, two = rnd.randrange(len(lines) - 1), rnd.randrange(len(lines) - 1)
    match rnd.randrange(7):
        case 0:
            return raw[:at] + bytes([raw[at] ^ 1 << rnd.randrange(8)]) + raw[at + 1 :]
        case 1:
            return raw[:at] + bytes(rnd.randrange(256) for _ in range(end)) + raw[at:]
        case 2:
            return raw[:at] + raw[at + end :]
        case 3:
            return raw[:at] + bytes([rnd.choice(b'"{}[],:0-9\\ue. \n')]) + raw[at + 1 :]
        case 4:
            lines[one], lines[two] = lines[two], lines[one]
        case 5:
            lines.insert(one, lines[two])
        case 6:
            del lines[one]
    return b"\n".join(lines)


def walk_bytes(name: str, seed: int, count: int) -> None:
    rnd, whole, trust = random.Random(f"{name}/{seed}"), bundle(name), BUNDLES[name][1]
    for step in range(count):
        raw = scratched(whole, rnd)
        if raw != whole:
            code = agreed(raw, trust, f"{name}, seed {seed}, step {step}")
            assert code in (1, 2), f"{name}, seed {seed}, step {step}: exit code {code}"


@pytest.mark.parametrize("name", BUNDLES)
def test_bytes(name: str) -> None:
    """A changed byte is found by both, at whatever place."""
    walk_bytes(name, 1, 60)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", BUNDLES)
def test_many_bytes(name: str, seed: int) -> None:
    walk_bytes(name, 100 + seed, 1000)


# -- fields ------------------------------------------------------------------------------------------------------------------
def others(value: Any) -> list[Any]:
    """Values that could stand in the place of this one, of its type and of others."""
    if value is None or isinstance(value, bool):
        return [not value, 0, None]
    if isinstance(value, int):
        return [value + 1, 0 if value else 7, -1, WIDE, -WIDE, WIDE + 1, str(value), float(value) + 0.5, True]
    if isinstance(value, str):
        return ["" if value else "x", value + "0", value[::-1] or "y", "9.9", value.upper() or "Z", "\x7f", "\xe9", 7, None]
    if isinstance(value, list):
        return [[], value + value, value[::-1] if value != value[::-1] else [*value, "x"], [*value, 0], {}]
    return [{}, {**value, "zz": 1}, []]


def changes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(path, another value) for everything inside, and each field left out."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        for other in others(inner):
            if other != inner or type(other) is not type(inner):
                yield (*path, key), other
        if isinstance(value, dict):
            yield (*path, key), KeyError
        yield from changes(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    made = json.loads(json.dumps(value))
    inner = functools.reduce(lambda x, key: x[key], path[:-1], made)
    if other is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = other
    return made


def rewritten(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def resigned(lines: dict[str, list[bytes]], section: str, index: int, raw: bytes, relink: bool) -> bytes:
    """The bundle with this line, and everything that an insider can make good again: links, the seal's head, the signed state."""
    new = {**lines, section: [*lines[section][:index], raw, *lines[section][index + 1 :]]}
    if relink and section in ("record", "log"):
        new[section] = relinked(new[section])
        tail = parse(new[section][-1]) if section == "record" else {}
        if tail.get("type") == "RunSealed" and type(tail.get("fact")) is dict and len(new[section]) > 1:
            tail["fact"]["head"] = tail.get("prev", "")
            new[section][-1] = rewritten(tail)
    return insider(new)


def walk_fields(name: str, section: str, every: int, offset: int, *, caught: bool) -> int:
    """Every field of every line of a section, changed, relinked and signed again; every n-th of these changes."""
    lines, trust, number = sections(bundle(name)), BUNDLES[name][1], 0
    seen: set[Any] = set()
    for index, raw in enumerate(lines[section]):
        value = parse(raw)
        kind = value.get("type", value.get("part", "")) if isinstance(value, dict) else ""
        for path, other in changes(value):
            mark = (kind, tuple(p for p in path if isinstance(p, str)), repr(other)[:12])
            if mark in seen:  # the same change of the same field of the same type
                continue
            seen.add(mark)
            number += 1
            if number % every != offset % every:
                continue
            where = f"{name}, {section} {index} {path} -> {other!r}"
            made = resigned(lines, section, index, rewritten(changed(value, path, other)), number % 2 == 0 or caught)
            if made == bundle(name):  # a link that was made good again
                continue
            code = agreed(made, trust, where)
            assert not caught or code in (1, 5), f"{where}: exit code {code}"
            assert code != 5 or path[-1] in ("type", "v", "cause", "result") or not caught, f"{where}: exit code {code}"
    return number


@pytest.mark.parametrize("section", ["record", "log"])
def test_each_field_of_each_type_of_record(section: str) -> None:
    """Witnessed, no field of any record can change, not even when the bundle's signer makes everything else good again."""
    assert walk_fields("eventful", section, 7, 3, caught=True) > 400


@pytest.mark.slow
@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("section", ["record", "log"])
def test_all_fields_of_all_types_of_record(section: str, offset: int) -> None:
    walk_fields("eventful", section, 8, offset, caught=True)


@pytest.mark.parametrize("name", ["plain", "allowance", "tiers", "again", "members"])
def test_fields_that_nobody_witnessed(name: str) -> None:
    """Without a witness an insider can write other facts; the verifiers must say the same of each."""
    for section, every in (("record", 23), ("log", 11), ("account", 5), ("payload", 23), ("policy", 3), ("key", 2)):
        walk_fields(name, section, every, 1, caught=False)


@pytest.mark.slow
@pytest.mark.parametrize("offset", range(2))
@pytest.mark.parametrize("name", BUNDLES)
def test_more_fields_that_nobody_witnessed(name: str, offset: int) -> None:
    for section in ("record", "log", "account", "payload", "policy", "key"):
        walk_fields(name, section, 6, offset, caught=False)


# -- proofs, rules, notes ----------------------------------------------------------------------------------------------------
def walk_proofs(seed: int, count: int) -> None:
    """Text of proof lines, altered and signed again by an insider. Where all three witnesses are asked for, no line is idle."""
    strict = QUORUM.replace("group all 2", "group all 3")
    rnd, lines = random.Random(seed), sections(bundle("eventful"))
    for step in range(count):
        index = rnd.randrange(len(lines["proof"]))
        text = parse(lines["proof"][index])
        at, end = rnd.randrange(len(text)), rnd.randrange(0, 3)
        other = text[:at] + "".join(rnd.choice("\n =+0A9z\u2014\t\r") for _ in range(rnd.randrange(3))) + text[at + end :]
        if other == text:
            continue
        raw = insider({**lines, "proof": [*lines["proof"][:index], canon(other), *lines["proof"][index + 1 :]]})
        assert agreed(raw, strict, f"proof line {index}, seed {seed}, step {step}") in (1, 3)


def test_proof_lines() -> None:
    walk_proofs(1, 250)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_many_proof_lines(seed: int) -> None:
    walk_proofs(100 + seed, 2000)


RULES: Any = [
    {
        "on_deny": "halt",
        "rules": [
            {"id": "pay", "permit": {"safety": ["financial"], "maxAmount": "9000000.00 USD"}},
            {"id": "pay.dual", "dualApproval": {"over": "1.00 USD", "chain": "treasury", "quorum": 2, "standing": "vote"}},
            {"rule": "needsApproval", "params": {"roles": "treasurer", "tools": ["wire"]}, "tenant": "other", "name": "n", "reason": "r"},
            {"maxDailyLimit": {"limit": "100.00", "currency": "EUR", "per": "tenant"}},
            {"noWritesOn": {"weekdays": ["sat", "Sunday"], "dates": ["2026-12-25"], "tz": "Europe/Paris"}},
            {"workingHours": {"from": "08:30", "to": "17:00", "weekdays": "monday"}},
            {"recipientAllowlist": {"recipients": ["Acme"], "argument": "to"}},
            {"stepBudget": {"turns": 20, "calls": 9}},
            {"needsEvidence": {"over": "9999999.00 USD", "level": "sealed", "within": "30m"}},
        ],
        "chains": {
            "treasury": {"tiers": [{"quorum": 2, "roles": ["treasurer"], "veto": "role:owner", "deadline": "1h", "sod": ["author"]}]},
            "other": {"tiers": [{"quorum": 1, "of": ["p-alice"]}], "on_reject": "feedback"},
        },
    }
]


def under(rules: Any) -> bytes:
    source = POLICY | {"policy/rules.json": rewritten(rules).decode()}
    digest = policy_digest(source)
    return Story(policy=digest).tell().bundle(policies={digest: source})


def walk_rules(every: int, offset: int) -> None:
    for number, (path, other) in enumerate(changes(RULES)):
        if number % every == offset:
            agreed(under(changed(RULES, path, other)), TRUST_TEXT, f"rules {path} -> {other!r}")


def test_rules() -> None:
    """Rules that a person could have written: both read the same chains out of them, or none."""
    assert answered(under(RULES)) == 0
    walk_rules(5, 2)


@pytest.mark.slow
def test_all_rules() -> None:
    walk_rules(1, 0)


def test_numbers_and_texts_are_written_alike() -> None:
    """RFC 8785 in both, on numbers of every size and texts of every plane."""
    rnd = random.Random(7)
    for _ in range(4000):
        x = rnd.choice([rnd.uniform(-1, 1) * 10 ** rnd.randrange(-300, 16), float(rnd.randrange(-WIDE, WIDE)), rnd.random()])
        text = "".join(chr(rnd.choice([rnd.randrange(0xD800), rnd.randrange(0xE000, 0x110000), rnd.randrange(128)])) for _ in range(4))
        value = {text: [x, text], "k" + text[::-1]: rnd.randrange(-WIDE, WIDE)}
        assert SINGLE.jcs(value) == canon(value)
        assert SINGLE.accept(canon(value)) == value
