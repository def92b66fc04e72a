"""Takes what `cli/verify.py` and `cli/verify_release.py` need out of `src/`, under the name `mandamus_verify`.

So both wheels can be installed side by side.

The rule a newcomer would break: only the names in import statements change, nothing else of a file does. What is needed is followed from
import to import; when that leads out of the pure rings, the build fails: an auditor's tool must not grow into the runtime. Only what the
source itself does without, by `except ImportError`, is left out.
"""

from __future__ import annotations

import ast
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

START = ("mandamus.cli.verify", "mandamus.cli.verify_release")
NAME = "mandamus_verify"
ALLOWED = re.compile(r"mandamus\.(errors|core(\.\w+)?|proof(\.\w+)?|cli\.verify\w*)").fullmatch
OUTSIDE = {"cryptography", "msgspec", "orjson"}  # orjson where it is there: the same bytes without it
_import = re.compile(r"^(\s*)(from|import) mandamus\b", re.MULTILINE)
_MAIN = f'"""python -m {NAME}"""\n\nimport sys\n\nfrom {NAME}.cli.verify import main\n\nsys.exit(main())\n'
_INIT = '"""The auditor\'s half of mandamus. The command is `mandamus-verify`; what it checks: docs/concepts/bundle-format.md."""\n'


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Hatchling calls it by this name."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root).parents[1]
        self._folder = Path(tempfile.mkdtemp(prefix="mandamus-verify-"))
        for path, text in sorted(taken(root / "src").items()):
            target = self._folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode("utf-8"))
            build_data["force_include"][str(target)] = f"{NAME}/{path}"
        build_data["force_include"][str(root / "LICENSE")] = f"{NAME}/LICENSE"

    def finalize(self, version: str, build_data: dict[str, Any], artifact: str) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def taken(src: Path) -> dict[str, str]:
    """Path in the package -> text. Raises ValueError when an import leads out of what an auditor may need."""
    out = {"__init__.py": _INIT, "__main__.py": _MAIN, "py.typed": ""}
    todo, seen = [*START], {*START}
    while todo:
        module = todo.pop()
        file = _file(src, module)
        text = file.read_text(encoding="utf-8")
        out[file.relative_to(src / "mandamus").as_posix()] = _import.sub(rf"\1\2 {NAME}", text)
        for wanted in _imports(src, module, ast.parse(text)):
            if wanted not in seen:
                seen.add(wanted)
                todo.append(wanted)
    folders = {str(Path(path).parent) for path in out} - {"."}
    return {f"{folder}/__init__.py": '"""Of mandamus, as it is there."""\n' for folder in folders} | out


def _imports(src: Path, module: str, tree: ast.AST) -> Iterator[str]:
    spared = set(_optional(tree))
    for node in ast.walk(tree):
        if node in spared:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            if any(name.startswith("mandamus") for name in names):
                raise ValueError(f"{module}: `import mandamus...` cannot be renamed, write `from`")
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [node.module, *(name for name in below if name.startswith("mandamus.") and _file(src, name, missing=True))]
        else:
            continue
        for name in names:
            top = name.partition(".")[0]
            if top == "mandamus" and name != "mandamus.cli":
                if not ALLOWED(name):
                    raise ValueError(f"{module} needs {name}, which is no part of what an auditor needs")
                yield name
            elif top not in OUTSIDE and top != "mandamus" and top not in _standard():
                raise ValueError(f"{module} needs {top}, which mandamus-verify does not depend on")


def _optional(tree: ast.AST) -> Iterator[ast.AST]:
    """Imports whose absence the source handles."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(isinstance(h.type, ast.Name) and h.type.id == "ImportError" for h in node.handlers):
            for statement in node.body:
                yield from ast.walk(statement)


def _file(src: Path, module: str, missing: bool = False) -> Any:
    base = src.joinpath(*module.split("."))
    found = [path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()]
    if not found and not missing:
        raise ValueError(f"there is no module {module}")
    return found[0] if found else None


def _standard() -> frozenset[str]:
    import sys

    return frozenset(sys.stdlib_module_names) | {"__future__"}
