"""`mandamus-verify-release FOLDER --key VKEY --builder URI [--commit SHA]`: are these the files that were released?

Needs the standard library, msgspec and cryptography. The key comes from where you trust it, never from the folder. Exit codes: 0 every file
in the folder is named by the provenance, 1 one is not or the provenance does not hold, 2 it cannot be read.

The rule a newcomer would break: a file that the provenance does not name is a failure too, not a file to pass over.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from mandamus.errors import MandamusError, Misuse
from mandamus.proof import provenance
from mandamus.proof.dsse import ENVELOPE_BYTES_MAX
from mandamus.proof.keys import parse_vkey

PROVENANCE = "provenance.intoto.jsonl"


def main(argv: Sequence[str] | None = None) -> int:
    """The command as a function: prints to stdout, problems to stderr, returns the exit code."""
    parser = argparse.ArgumentParser(prog="mandamus-verify-release", description="Check the files of a release against their provenance.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the files, and their provenance.intoto.jsonl")
    parser.add_argument("--key", required=True, metavar="VKEY", help="the release key, as you trust it")
    parser.add_argument("--builder", required=True, metavar="URI", help="the builder that you trust")
    parser.add_argument("--commit", default="", metavar="SHA", help="the commit that you expect")
    options = parser.parse_args(argv)
    try:
        made, artifacts = _checked(options.folder, options.key, options.builder, options.commit)
    except (OSError, Misuse) as error:
        print(f"CANNOT CHECK\n{error}", file=sys.stderr)
        return 2
    except MandamusError as error:
        print(f"NOT PROVEN\n{error}")
        return 1
    print(f"PROVEN  {len(artifacts)} files, built by {made.builder} from commit {made.commit}, signed by {made.keys[0].name}")
    for name in made.absent:
        print(f"  not here: {name!a}")
    return 0


def _checked(folder: Path, key: str, builder: str, commit: str) -> tuple[provenance.Provenance, dict[str, str]]:
    with open(folder / PROVENANCE, "rb") as file:
        raw = file.read(ENVELOPE_BYTES_MAX + 2).removesuffix(b"\n")
    artifacts = {path.name: _sha256(path) for path in sorted(folder.iterdir()) if path.name != PROVENANCE}
    return provenance.check(raw, [parse_vkey(key)], builder=builder, artifacts=artifacts, commit=commit), artifacts


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
