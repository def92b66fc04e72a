"""No line cites what a reader of this repository cannot open: a path that is named is there, and no page is named by chapter alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = re.compile(r"(?<![\w/.-])(?:docs|bench|tests|examples|core|proof|runtime|drivers|cli|testing)(?:/\w[\w.-]*)+")
CHAPTER = re.compile(r"§|\b[A-Z]{3,}(?:\.md)?,? sections? \d|\b(?:ARCHITECTURE|COMPLIANCE|DURABILITY|EVIDENCE|HOUSE_RULES|PERFORMANCE)\b")
OTHERS = re.compile(r"\bthe seeds\b|\bseeds'|\bthe (?:first )?seed's\b")
FOLDERS = ("src", "tests", "docs", "bench", "examples", ".ci")
TEXT = (".py", ".md", ".toml", ".sql", ".yaml", ".c")


def texts() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml"))
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in TEXT and not {".venvs", "__pycache__", "results"} & set(path.parts) and path != Path(__file__):
                yield path


def is_there(named: str) -> bool:
    """As written, or with its ending left out: `docs/adr/0008`, `testing/conformance`. NN stands for any number."""
    named = named.rstrip(".").replace("wNN_name", "w*")
    return any(found for base in (ROOT, ROOT / "src" / "mandamus") for found in base.glob(f"{named}*"))


def test_no_page_is_cited_that_is_not_here() -> None:
    found = [f"{path.relative_to(ROOT)}: {m[0]}" for path in texts() for m in CHAPTER.finditer(path.read_text(encoding="utf-8"))]
    assert not found


def test_nothing_that_is_shipped_speaks_of_papers_that_are_not() -> None:
    shipped = [path for path in texts() if "spec" not in path.parts]
    assert not [f"{path.relative_to(ROOT)}: {m[0]}" for path in shipped for m in OTHERS.finditer(path.read_text(encoding="utf-8"))]


def test_every_path_in_a_docstring_or_page_leads_somewhere() -> None:
    lost = []
    for path in texts():
        words = path.read_text(encoding="utf-8")
        said = words if path.suffix == ".md" else _prose(words)
        lost += [f"{path.relative_to(ROOT)}: {m[0]}" for m in PATH.finditer(said) if not is_there(m[0])]
    assert not lost


def _prose(words: str) -> str:
    """Docstrings and comments: paths in code are of folders that tests make."""
    return "\n".join(a or b for a, b in re.findall(r'"""(.*?)"""|#([^\n]*)', words, re.S))


@pytest.mark.parametrize(
    ("named", "there"), [("docs/adr/0008", True), ("core/judge", True), ("docs/adr/9999", False), ("core/judges", False)]
)
def test_the_test_itself(named: str, there: bool) -> None:
    assert is_there(named) is there
