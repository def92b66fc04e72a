"""The closed lists meet: whoever adds to one of two tables in two folders is told here where the other one is."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

from mandamus.context import transcript
from mandamus.core import effects as e
from mandamus.core.rules import _DECIDE
from mandamus.runtime.prepare import _NOTES
from mandamus.runtime.world import PERFORMERS


def test_each_effect_has_its_performer() -> None:
    assert set(PERFORMERS) == set(e.Effect.__subclasses__()), "core/effects.py and runtime/world.py"


def test_each_input_is_decided() -> None:
    assert set(_DECIDE) == set(get_args(e.Input)), "core/effects.py and core/rules.py"


def test_each_note_of_the_transcript_has_its_words() -> None:
    """A note names a sentence; one without words would stop the run that reads it."""
    heads = {text.partition(":")[0] for text in _notes_of(Path(transcript.__file__))}
    assert heads == set(_NOTES), "context/transcript.py and runtime/prepare.py"


def _notes_of(path: Path) -> set[str]:
    """Whatever is written down as a note: the `note=` of an Item, and the table of how an action ended."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "note"]
    tables = [
        value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "note" for t in node.targets)
        for table in ast.walk(node.value)
        if isinstance(table, ast.Dict)
        for value in table.values
    ]
    return {head for node in (*said, *tables) if (head := _head(node))}


def _head(node: ast.expr) -> str:
    """A text, or the fixed beginning of one; "" for a variable."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) else node
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
