"""No byte of a bundle can change unnoticed: every position, three replacements each. The report names the event or the line."""

from __future__ import annotations

import functools
import random

import pytest

from mandamus.core import records as r
from mandamus.proof import verify
from tests.samples import MANIFEST, Story, log_chain, story, trust

SLICES = 8


@functools.cache
def small() -> bytes:
    """The shortest run that has every section."""
    tale = Story(log=log_chain())
    tale.opened()
    tale.chain.add(r.ModelFailed(attempt=1, category="auth", status=401), 1)
    tale.chain.add(r.RunEnded(state="failed", code="model_auth"), 1)
    tale.chain.seal_up("failed")
    return tale.bundle()


def replacements(byte: int, rnd: random.Random) -> list[int]:
    """One bit, another printable character, anything else."""
    printable = rnd.choice([c for c in range(0x20, 0x7F) if c != byte])
    return [byte ^ (1 << rnd.randrange(8)), printable, (byte + rnd.randrange(1, 256)) % 256]


def survivors(raw: bytes, positions: range, seed: int) -> list[tuple[int, int]]:
    roots, rnd, out = trust(), random.Random(seed), []
    for position in positions:
        for byte in replacements(raw[position], rnd):
            report = verify(raw[:position] + bytes([byte]) + raw[position + 1 :], roots)
            named = report.broken is not None and (report.broken.event is not None or report.broken.line is not None)
            if report.exit_code != 1 or report.verdict != "NOT PROVEN" or not named:
                out.append((position, byte))
    return out


def test_the_untouched_bundles_are_proven() -> None:
    assert verify(small(), trust()).exit_code == 0
    assert verify(story().bundle(), trust()).exit_code == 0


@pytest.mark.parametrize("part", range(SLICES))
def test_every_byte_of_a_small_bundle(part: int) -> None:
    assert survivors(small(), range(part, len(small()), SLICES), part) == []


def test_bytes_of_a_whole_story() -> None:
    """Every eleventh byte of a bundle with votes, takeover, deltas and statements."""
    raw = story().bundle()
    assert survivors(raw, range(3, len(raw), 11), 1) == []


def test_no_byte_can_be_added_or_taken_away() -> None:
    raw, roots = small(), trust()
    for position in range(0, len(raw), 29):
        assert verify(raw[:position] + b"0" + raw[position:], roots).exit_code == 1
        assert verify(raw[:position] + raw[position + 1 :], roots).exit_code == 1


def test_cut_anywhere_it_is_refused() -> None:
    raw, roots = small(), trust()
    assert {verify(raw[:length], roots).exit_code for length in range(1, len(raw), 37)} == {1}


def test_the_manifest_is_shown_as_written() -> None:
    assert MANIFEST.splitlines()[0].encode() in small()
