"""`manifest show|sign`: what agent.yaml binds and who signed it.

The rule a newcomer would break: only a file that binds its tools, policies and instructions is worth a signature; `show` prints the
lines that are missing.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from mandamus.cli import agents
from mandamus.cli.common import Cli, verb
from mandamus.cli.keys import SIGNS, open_key
from mandamus.cli.say import shown, shown_json


@verb("show", exits={0: "shown", 1: "signed, but the signature is of another text"})
@click.argument("file", metavar="FILE")
def show(cli: Cli, file: str) -> int:
    """What agent.yaml would bind (pins, policy, instructions, model), which of it stands there, and whose signature holds."""
    return cli.run(_show(cli, file))


async def _show(cli: Cli, file: str) -> int:
    from mandamus import manifest, wiring
    from mandamus.proof.trust import Trust

    with contextlib.redirect_stdout(sys.stderr):
        loaded = manifest.read(file)
        binds = await agents.load(file).bindings()
    path = wiring.home_of(cli.uri).trust_file
    trust = Trust.parse(path.read_bytes(), str(path)) if path is not None and path.exists() else Trust()
    author = manifest.check_manifest(loaded, trust)
    known = f"signed by {author.name}" if author.name else "unsigned"
    signed = f"signed by {author.stranger}, whom the trust file does not know" if author.stranger else known
    bound = {name: getattr(loaded.manifest, name, None) == value for name, value in binds.items()}
    data: dict[str, Any] = {
        "author": author.name,
        "bindings": binds,
        "bound": bound,
        "digest": loaded.digest,
        "file": file,
        "name": loaded.manifest.name,
        "signed": bool(loaded.signature),
        "signer": author.vkey,
    }
    rows = [f"{shown(loaded.manifest.name)}  {signed}", f"  digest  {loaded.digest}"]
    rows += [f"  {'bound' if bound[name] else 'open '}   {name}: {shown_json(value)}" for name, value in binds.items()]
    rows += [f"  fix     {author.fix}"] if author.stranger else []
    rows += [f"  next    write the open ones into {file}, then sign it"] if not all(bound.values()) else []
    cli.tell(data, "\n".join(rows))
    return 0


@verb("sign", exits={0: "signed"})
@click.argument("file", metavar="FILE")
@click.option("--key", "key_file", metavar="FILE", help="The author's key file.")
def sign(cli: Cli, file: str, key_file: str | None) -> int:
    """Sign agent.yaml as its author: FILE.sig appears beside it. Whoever trusts you has an `author` line in the trust file."""
    from mandamus.manifest import sign_manifest

    signer = open_key(cli, key_file, SIGNS)
    written = sign_manifest(file, signer)
    line = f"author {signer.key.name} {signer.vkey}"
    cli.tell({"author": line, "file": file, "signature": str(written)}, f"{written}\n  next    mandamus key trust --add '{line}'")
    return 0
