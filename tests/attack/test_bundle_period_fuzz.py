"""A period's bundle with anything inside, signed by an insider: an answer always, and never a crash."""

from __future__ import annotations

import random

from mandamus.core.canonical import canon, parse
from mandamus.proof import bundle, dsse, period, verify
from mandamus.proof.verify import Beside
from tests.attack.test_bundle_period import World
from tests.logged import NOW, demanding
from tests.samples import BUNDLE_KEY, replace_struct

ROUNDS = 400


def resigned(lines: dict[str, list[bytes]], said: period.Predicate) -> bytes:
    sections = tuple(bundle.Section(len(lines[n]), bundle.section_digest(n, lines[n]), n) for n in period.SECTIONS[1:])
    new = replace_struct(said, sections=sections)
    envelope = dsse.sign(bundle.PAYLOAD_TYPE, period.statement(new), [(BUNDLE_KEY.key.id, BUNDLE_KEY.sign)])
    return b"\n".join([period.header(new), envelope, *(x for n in period.SECTIONS[1:] for x in lines[n])]) + b"\n"


def mutated(rnd: random.Random, lines: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
    out = {name: list(section) for name, section in lines.items()}
    name = rnd.choice([n for n in period.SECTIONS[1:] if out[n]])
    at = rnd.randrange(len(out[name]))
    match rnd.randrange(5):
        case 0:
            del out[name][at]
        case 1:
            out[name].insert(at, out[name][rnd.randrange(len(out[name]))])
        case 2:
            raw = bytearray(out[name][at])
            raw[rnd.randrange(len(raw))] ^= 1 << rnd.randrange(7)
            out[name][at] = bytes(raw).replace(b"\n", b" ")
        case 3:
            out[name][at] = canon(rnd.choice([None, 1, "", "x", [], {}, {"first": 1}, -1, "AA=="]))
        case _:
            value = parse(out[name][at])
            if type(value) is dict:
                key = rnd.choice(sorted(value))
                value[key] = rnd.choice([None, 0, -1, 2**53 - 1, "", "00", [], [0, 0], {}, value[rnd.choice(sorted(value))]])
            out[name][at] = canon(value)
    return out


def test_an_answer_always() -> None:
    world, rnd = World(), random.Random(4)
    raw = world.bundle(0)
    box = bundle.read(raw, period.FORM)
    said = period.parse_statement(dsse.read(box.sections["dsse"][0]).payload)
    assert verify(resigned(dict(box.sections), said), demanding(), Beside(now=NOW)).exit_code == 0
    proven = []
    for round_ in range(ROUNDS):
        lines = mutated(rnd, box.sections)
        if any(lines[n] != box.sections[n] for n in period.SECTIONS[1:]):
            report = verify(resigned(lines, said), demanding(), Beside(now=NOW))
            proven += [round_] if report.exit_code != 1 else []
    assert proven == []
