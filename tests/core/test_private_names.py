"""What a module keeps private is used in that module only, and what it defines is used somewhere: a name for nobody is deleted."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "mandamus"
TREES = {p: ast.parse(p.read_text(encoding="utf-8")) for p in sorted(SRC.rglob("*.py")) if "templates" not in p.parts}
LIBRARY = {"_exit", "_inner"}  # of os, of cedarpy
# Called by others under these names: pytest, click, http.server, and people who write their own conformance tests.
CALLED = re.compile(r"__\w+__|test_\w+|pytest_\w+|get_command|format_commands|do_[A-Z]+|log_message|handle_error|daemon_threads")


def defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def used(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.keyword):
            yield node.arg or ""
        elif isinstance(node, ast.alias):
            yield node.name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value)


def test_nothing_private_is_reached_from_another_module() -> None:
    found = []
    for path, tree in TREES.items():
        own = set(defined(tree)) | LIBRARY
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr) and node.attr not in own and not _inherited(node):
                found.append(f"{path.relative_to(SRC)}:{node.lineno}: .{node.attr}")
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mandamus"):
                found += [
                    f"{path.relative_to(SRC)}:{node.lineno}: {a.name}"
                    for a in node.names
                    if re.match(r"_[a-z]", a.name) and not _module(node, a)
                ]
    assert not found


def _inherited(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def _module(node: ast.ImportFrom, name: ast.alias) -> bool:
    """A private *file* of the same folder is what its neighbours share; the import contract says who may."""
    base = SRC.joinpath(*(node.module or "").split(".")[1:])
    return (base / f"{name.name}.py").exists() or (base / name.name).is_dir()


def test_every_top_level_name_is_used_somewhere() -> None:
    texts = [p for folder in ("tests", "examples", "docs", "bench") for p in (ROOT / folder).rglob("*.*") if p.suffix in (".py", ".md")]
    outside = Counter(w for p in texts if ".venvs" not in p.parts for w in set(re.findall(r"\w+", p.read_text(encoding="utf-8"))))
    inside = Counter(name for tree in TREES.values() for name in used(tree))
    dead = [
        f"{path.relative_to(SRC)}:{node.lineno}: {node.name}"
        for path, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not CALLED.fullmatch(node.name)
        if not inside[node.name] and not outside[node.name] and not node.decorator_list
    ]
    assert not dead
