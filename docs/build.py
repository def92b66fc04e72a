"""Build and check the documentation: `python docs/build.py` checks, `python docs/build.py --write` rewrites what is generated.

Three things are checked: the generated reference is in step with the code, every link leads somewhere, and every code block runs.
Python blocks of one page run one after the other in one fresh process and an empty folder; lines `$ mandamus …` of console blocks
run as commands there, `NAME=value` before them is set for that one, and `# exit N` at their end says which exit code they promise.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.M | re.S)
COMMAND = re.compile(r"^\$ ((?:[A-Z_]+=\S+ )*)(mandamus.*)$", re.M)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


# -- generated pages ---------------------------------------------------------------------------------------------------------
def generated() -> dict[str, str]:
    return {"events.md": events(), "states.md": states(), "api.md": api()}


def events() -> str:
    """One row a type: its fields and what it says, from the Structs themselves."""
    import msgspec

    from mandamus.core.records import FACTS

    rows = [
        "# Events\n",
        "Generated from `mandamus.core.records`. A record is a fact in an envelope; fields stand in sorted order, absent is never null.\n",
        "| type | says | fact | replay |\n|---|---|---|---|",
    ]
    for name, fact in FACTS.items():
        doc = " ".join((fact.__doc__ or "").split()) if fact.__doc__ and "housekeeping" not in fact.__doc__ else ""
        fields = " · ".join(f"`{f.encode_name}`{'' if f.required else '?'}" for f in msgspec.structs.fields(fact))
        replay = "outside" if fact.housekeeping else "compared"
        rows.append(f'| <a id="{name.lower()}"></a>**{name}** | {doc.replace("|", "/")} | {fields} | {replay} |')
    return "\n".join(rows) + "\n"


def states() -> str:
    """The two tables of `core/run.py`, drawn."""
    from mandamus.core.run import ACTIONS, LIVES

    def drawn(table: dict[str, tuple[str, ...]]) -> str:
        arrows = [f"    {a} --> {b}" for a, targets in table.items() for b in targets if a != b]
        return "```mermaid\nstateDiagram-v2\n" + "\n".join(arrows) + "\n```\n"

    return (
        "# States\n\nGenerated from the tables in `mandamus.core.run`; whatever moves a run or an action stands there.\n\n"
        f"## A run\n\n{drawn(LIVES)}\n"
        "*Suspended* is a running run that waits for people, for time or for a child; it is no state of its own.\n\n"
        f"## An action\n\n{drawn(ACTIONS)}"
    )


def api() -> str:
    """Every public name with how it is called and its docstring; an alias is said once."""
    import mandamus

    out = ["# Python API\n", "Generated from the docstrings of `mandamus`. Names that are not here are not public.\n"]
    for name in sorted(mandamus.__all__):
        thing = getattr(mandamus, name)
        own = getattr(thing, "__name__", name)
        if own != name and getattr(mandamus, own, None) is thing:
            out.append(f"## {name}\n\nAnother name of [{own}](#{anchor(own)}).\n")
            continue
        doc = inspect.cleandoc(thing.__doc__ or "")
        if doc.startswith(("Create a collection", "dict(")):
            doc = ""
        out.append(f"## {name}\n{_called(name, thing)}\n{_fenced(doc)}\n")
        if inspect.isclass(thing):
            for method, fn in inspect.getmembers(thing, inspect.isroutine):
                if not method.startswith("_") and fn.__doc__ and method in vars(thing):
                    out.append(f"### {name}.{method}\n{_called(method, fn)}\n{_fenced(inspect.cleandoc(fn.__doc__))}\n")
    return "\n".join(out)


def _called(name: str, thing: Any) -> str:
    """How it is called and what it answers, an argument a line when there are many; nothing for what users never make."""
    if name == "Ctx" or (inspect.isclass(thing) and issubclass(thing, Exception)):
        return ""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    arguments = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    told, starred = [], False
    written = vars(thing).get("__annotations__", {}) if inspect.isclass(thing) else {}  # as the source says it
    for p in arguments:
        if p.kind is p.KEYWORD_ONLY and not starred:
            told.append("*")
        starred = starred or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        told.append(_argument(p, _kind(written.get(p.name, p.annotation))))
    line = f"{name}({', '.join(told)})"
    if len(line) > 120:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in told) + ")"
    waits = "await " if inspect.iscoroutinefunction(thing) else "async for ... in " if inspect.isasyncgenfunction(thing) else ""
    answer = "" if inspect.isclass(thing) else _kind(signature.return_annotation)
    return f"\n```text\n{waits}{line}" + (f" -> {answer}" if answer else "") + "\n```\n"


def _kind(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _argument(p: inspect.Parameter, kind: str) -> str:
    star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    default = "" if p.default is p.empty else p.default.__name__ if isinstance(p.default, type) else repr(p.default)
    return f"{star}{p.name}" + (f": {kind}" if kind else "") + (f" = {default}" if default else "")


def _fenced(doc: str) -> str:
    return "\n".join("    " + line if line.startswith("    ") else line for line in doc.splitlines())


def in_step(write: bool) -> Iterator[str]:
    for name, text in generated().items():
        path = DOCS / "reference" / name
        if write:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            yield f"{path.relative_to(ROOT)}: out of step with the code; run python docs/build.py --write"


# -- links -------------------------------------------------------------------------------------------------------------------
def anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 _-]", "", heading.lower().replace("`", "")).strip().replace(" ", "-")


def broken_links() -> Iterator[str]:
    for page in pages():
        text = page.read_text()
        for target in LINK.findall(BLOCK.sub("", text)):
            if target.startswith(("http://", "https://", "mailto:")):
                continue
            name, _, fragment = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            if not path.exists():
                yield f"{page.relative_to(ROOT)}: link to {target}: no such file"
            elif fragment and path.suffix == ".md" and not _has_anchor(path.read_text(), fragment):
                yield f"{page.relative_to(ROOT)}: link to {target}: no such heading"


def _has_anchor(text: str, fragment: str) -> bool:
    return fragment in {anchor(h) for h in HEADING.findall(text)} or f'id="{fragment}"' in text


# -- code blocks -------------------------------------------------------------------------------------------------------------
def broken_blocks() -> Iterator[str]:
    for page in pages():
        blocks = [(lang, flags, body) for lang, flags, body in BLOCK.findall(page.read_text()) if "skip" not in flags]
        python = "\n".join(textwrap.dedent(body) for lang, _, body in blocks if lang == "python")
        commands = [found for lang, _, body in blocks if lang == "console" for found in COMMAND.findall(body)]
        with tempfile.TemporaryDirectory() as folder:
            if python:
                yield from _failed(page, [sys.executable, "-W", "error::DeprecationWarning", "-c", python], folder, 0)
            for surroundings, command in commands:
                line, _, promised = command.partition("# exit")
                yield from _failed(page, f"{surroundings}{sys.executable} -m {line.strip()}", folder, int(promised or 0))


def _failed(page: Path, command: str | list[str], folder: str, expected: int) -> Iterator[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), folder]), "MANDAMUS_LEDGER": ""}
    env.pop("MANDAMUS_LEDGER")
    done = subprocess.run(command, shell=isinstance(command, str), cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    if done.returncode != expected:
        what = command if isinstance(command, str) else "its python blocks"
        yield f"{page.relative_to(ROOT)}: {what}: exit {done.returncode}, not {expected}\n{done.stdout[-800:]}{done.stderr[-1500:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true", help="rewrite the generated reference")
    asked = parser.parse_args()
    found = [*in_step(asked.write), *broken_links(), *broken_blocks()]
    for line in found:
        print(line, file=sys.stderr)
    print(f"{len(pages())} pages, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
