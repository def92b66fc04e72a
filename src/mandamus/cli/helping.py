"""`help CODE` and `completion SHELL`: what is explained from tables, without a ledger."""

from __future__ import annotations

import difflib
import re

import click
from click.shell_completion import ShellComplete, get_completion_class

from mandamus.cli.common import Cli, verb
from mandamus.errors import Misuse

_code = re.compile(r"(?:MDM-?)?([0-9]{1,4})", re.IGNORECASE).fullmatch


@verb("help", exits={0: "explained"})
@click.argument("code", metavar="[CODE]", required=False)
def help_(cli: Cli, code: str | None) -> int:
    """Explain an error code, such as MDM-0332 (or 332). Without one, list them."""
    from mandamus.cli.codes import CODES

    if code is None:
        rows = [f"{name}  {title}" for name, (title, _) in CODES.items()]
        cli.tell({"codes": {name: title for name, (title, _) in CODES.items()}}, "\n".join(rows))
        return 0
    found = _code(code)
    name = f"MDM-{int(found[1]):04}" if found else code
    if name not in CODES:
        near = [] if found else difflib.get_close_matches(name, CODES, n=1)
        raise Misuse(
            f"there is no code {code[:20]!a}",
            code="MDM-0004",
            fix=f"did you mean mandamus help {near[0]}?" if near else "mandamus help",
        )
    title, text = CODES[name]
    cli.tell({"code": name, "text": text, "title": title}, f"{name}  {title}\n\n{text}")
    return 0


@verb("completion", exits={0: "printed"})
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(cli: Cli, shell: str) -> int:
    """Print the completion script of a shell: eval "$(mandamus completion bash)"."""
    from mandamus.cli.main import root

    kind = get_completion_class(shell)
    assert kind is not None
    script = _source(kind(root(), {}, "mandamus", "_MANDAMUS_COMPLETE"))
    cli.tell({"script": script, "shell": shell}, script)
    return 0


def _source(made: ShellComplete) -> str:
    """The script itself; click's own `source` of bash would start a bash to ask its version."""
    return made.source_template % made.source_vars()
