"""`mandamus init TEMPLATE [DIR]`: a small project that runs and passes its own test, out of the wheel, without a download.

The rule a newcomer would break: nothing is ever overwritten. When one file of the template is there already, none is written.
"""

from __future__ import annotations

import os
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import click

from mandamus.cli.common import Cli, verb
from mandamus.cli.say import shown
from mandamus.core.strict import did_you_mean
from mandamus.errors import Misuse

_DOTTED = {"gitignore": ".gitignore"}  # a file of that name inside the wheel would be an instruction to those who build it
_SKIPPED = ("__pycache__",)


@verb("init", exits={0: "written", 2: "usage, or a file is there already"})
@click.argument("template")
@click.argument("folder", metavar="[DIR]", default="", required=False)
@click.option("--dry-run", is_flag=True, help="List what would be written.")
def init(cli: Cli, template: str, folder: str, dry_run: bool) -> None:
    """Write a project from a template: payout, minimal."""
    known = templates()
    if template not in known:
        raise Misuse(
            f"there is no template {shown(template[:40])}", code="MDM-0820", expected=", ".join(known), fix=did_you_mean(template, known)
        )
    target = Path(folder or template)
    files = contents(template)
    _refuse_to_overwrite(target, files)
    if not dry_run:
        _write(target, files)
    names = [str(target / name) for name in files]
    data = {"template": template, "dir": str(target), "files": names, "written": not dry_run}
    cli.tell(data, lambda: "\n".join([*(shown(name) for name in names), "", *_next(template, target)] if not dry_run else names))


def templates() -> list[str]:
    """Names of the templates in this installation."""
    return sorted(entry.name for entry in _root().iterdir() if entry.is_dir() and entry.name not in _SKIPPED)


def contents(template: str) -> dict[str, bytes]:
    """Relative name -> bytes, as they will stand in the project."""
    return dict(sorted(_walk(_root() / template, "")))


def _root() -> Traversable:
    return resources.files("mandamus") / "templates"


def _walk(folder: Traversable, before: str) -> list[tuple[str, bytes]]:
    out: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name not in _SKIPPED:
            out += _walk(entry, f"{before}{entry.name}/")
        elif entry.is_file():
            out.append((before + _DOTTED.get(entry.name, entry.name), entry.read_bytes()))
    return out


def _refuse_to_overwrite(target: Path, files: dict[str, bytes]) -> None:
    there = [name for name in files if os.path.lexists(target / name)]
    if os.path.lexists(target) and not target.is_dir():
        there = ["."]
    if there:
        raise Misuse(
            "something is there already; nothing was written",
            code="MDM-0821",
            where=str(target / there[0]),
            found=f"{len(there)} of {len(files)} files",
            fix="mandamus init TEMPLATE ANOTHER_DIR",
        )


def _write(target: Path, files: dict[str, bytes]) -> None:
    """Exclusive: a file that appeared in the meantime is not replaced either."""
    for name, content in files.items():
        path = target / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
        except OSError as error:
            raise Misuse(f"the file cannot be written: {error.strerror}", code="MDM-0822", where=str(path)) from None


def _next(template: str, target: Path) -> list[str]:
    prompt = {"payout": "Pay 50,000.00 USD to Acme Suppliers", "minimal": "What time is it?"}[template]
    go = [f"cd {target}"] if target != Path() else []
    return ["next:", *(f"  {line}" for line in [*go, f'mandamus run agent.yaml "{prompt}"', _test()])]


def _test() -> str:
    """What runs the project's test here."""
    from importlib.util import find_spec

    return "python -m pytest" if find_spec("pytest") else "pip install pytest && python -m pytest"
