"""Golden interactions: a file is a script of inputs and, under each dashed line, exactly what the core made of them.

A wrong file is rewritten by --golden-update; read the diff as you would read code, and commit only what you understand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mandamus.testing.golden import compare
from tests.core.interactions import play

FILES = sorted((Path(__file__).parent.parent / "golden").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_interaction(path: Path) -> None:
    compare(play(path.read_text(encoding="utf-8")), path)


def test_there_are_interactions() -> None:
    assert len(FILES) >= 15
