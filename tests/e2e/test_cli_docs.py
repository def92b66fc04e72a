"""The reference of the command line is made of the commands themselves: `--golden-update` writes it, otherwise it must be in step."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mandamus.cli import verify
from mandamus.cli.codes import CODES
from mandamus.cli.main import root
from mandamus.cli.table import ALIASES, EXITS, NOUNS, VERBS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
COMMON = ("as_json", "quiet", "verbose", "debug", "no_input", "ledger")


def cli_page() -> str:
    rows = [
        "# The command line\n",
        "Generated from the commands. `mandamus VERB --help` says the same.\n",
        "## Exit codes\n",
        "| code | means |\n|---|---|",
    ]
    rows += [f"| {code} | {what} |" for code, what in EXITS.items()]
    rows += ["\nEach verb says below what a code means for it.\n", "## Options of every verb\n", *_options(_command("runs"), common=True)]
    rows += ["\n## Names\n", "A run is named by its id, the beginning of one, or `last`; an action `RUN/TURN.N`, such as `last/1.1`."]
    rows += ["\n" + ", ".join(f"`{other}` is `{ours}`" for other, ours in ALIASES.items()) + ".\n"]
    for name in [*VERBS, *(f"{noun} {verb}" for noun, (_, verbs) in NOUNS.items() for verb in verbs)]:
        rows += _verb(name)
    return "\n".join(rows) + "\n"


def _command(name: str) -> click.Command:
    group: click.Command | None = root()
    for word in name.split():
        assert isinstance(group, click.Group)
        group = group.get_command(click.Context(group), word)
    assert group is not None, name
    return group


def _verb(name: str) -> list[str]:
    command = _command(name)
    if name == "verify":  # the same words as the verifier that is installed alone
        return _alone(name, verify.parser())
    places = [p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)]
    help = " ".join((command.help or "").replace("\b", " ").split())
    exits = (command.epilog or "").replace("|", "·")
    return [f"## {name}\n", f"`mandamus {' '.join([name, *places])}`\n", f"{help}\n", *_options(command), f"\n{exits}\n"]


def _options(command: click.Command, common: bool = False) -> list[str]:
    shown = [p for p in command.params if isinstance(p, click.Option) and (p.name in COMMON) is common]
    rows = [
        f"| `{', '.join(p.opts)}{'' if p.is_flag or p.count else ' ' + (p.metavar or p.type.name.upper())}` | {p.help or ''} |".replace(
            "| |", "|"
        )
        for p in shown
    ]
    return ["| option | |\n|---|---|", *rows] if rows else []


def _alone(name: str, parser: argparse.ArgumentParser) -> list[str]:
    own = [a for a in parser._actions if a.option_strings and a.dest not in ("help", "json", "quiet")]
    rows = [
        f"| `{' '.join([*a.option_strings, *([a.metavar] if isinstance(a.metavar, str) else [])])}` | {_sentence(a.help)} |" for a in own
    ]
    exits = _sentence((parser.epilog or "").replace("|", "·")).removesuffix(".")
    told = [f"## {name}\n", f"`mandamus {name} BUNDLE`\n", f"{parser.description}\n"]
    return [*told, "| option | |\n|---|---|", *rows, f"\n{exits}\n"]


def _sentence(words: str | None) -> str:
    told = f"{(words or '')[:1].upper()}{(words or '')[1:]}"
    return told if told.endswith("?") else f"{told}."


def errors_page() -> str:
    rows = ["# Errors\n", "Generated from the pages of `mandamus help CODE`.\n"]
    rows += [f'<a id="{code.lower()}"></a>**{code}** {title}. {text}\n' for code, (title, text) in CODES.items()]
    return "\n".join(rows)


def pages() -> Iterator[tuple[Path, str]]:
    yield REFERENCE / "cli.md", cli_page()
    yield REFERENCE / "errors.md", errors_page()


def test_the_reference_is_in_step_with_the_commands(request: pytest.FixtureRequest) -> None:
    for path, text in pages():
        if request.config.getoption("--golden-update", default=False):
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: pytest {Path(__file__).name} --golden-update"
