"""`schema [VERB]`: the JSON Schema of what `mandamus VERB --json` answers, for whoever reads it by a program.

The rule a newcomer would break: it is generated from the types that a test holds every answer against; nothing of it is written by hand.
"""

from __future__ import annotations

import difflib
import json

import click

from mandamus.cli.common import Cli, verb
from mandamus.errors import Misuse


@verb("schema", exits={0: "printed"})
@click.argument("words", metavar="[VERB]", nargs=-1)
def schema(cli: Cli, words: tuple[str, ...]) -> int:
    """Print the JSON Schema of VERB's --json answer; without VERB the names of all."""
    from mandamus.cli import shapes

    name = " ".join(words)
    if not name:
        cli.tell({"verbs": list(shapes.SHAPES)}, "\n".join(f"mandamus schema {x}" for x in shapes.SHAPES))
        return 0
    if name not in shapes.SHAPES:
        near = difflib.get_close_matches(name, shapes.SHAPES, n=1)
        fix = f"did you mean: mandamus schema {near[0]}" if near else "mandamus schema"
        raise Misuse(f"there is no command {name[:40]!a}", code="MDM-0002", fix=fix)
    made = shapes.schema(name)
    cli.tell(made, lambda: json.dumps(made, indent=2, sort_keys=True))
    return 0
