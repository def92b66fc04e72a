"""The corpus as files, for verifiers in other languages: `python tests/verifiers/dump.py DIR` writes DIR/cases.json and one file each.

    cases.json   [{name, attack, codes, bundle, trust, views: {name: file}, blobs: {name: file}, last, now, max_age, library}...]
`bundle` and the others are names of files in DIR (the SHA-256 of what they hold), or null. `library`: what the library says, to compare
claim by claim. `last`: {origin: {size, root}} seen before, `now`: the clock in seconds, both null where nobody asks.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.verifiers.corpus import Case, cases
from tests.verifiers.test_agree import library


def written(folder: Path, raw: bytes) -> str:
    name = hashlib.sha256(raw).hexdigest()
    (folder / name).write_bytes(raw)
    return name


def plain(case: Case, folder: Path) -> dict[str, Any]:
    last = None if case.last is None else {origin: {"root": root, "size": size} for origin, (size, root) in case.last.items()}
    return {
        "name": case.name, "attack": case.attack, "codes": list(case.codes), "bundle": written(folder, case.bundle),
        "trust": None if case.trust is None else written(folder, case.trust.encode()),
        "views": {name: written(folder, raw) for name, raw in case.views.items()},
        "blobs": {name: written(folder, raw) for name, raw in case.blobs.items()},
        "last": last, "now": case.now, "max_age": case.max_age, "library": library(case),
    }  # fmt: skip


def dump(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    made = [plain(case, folder) for case in cases()]
    (folder / "cases.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return len(made)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(f"{dump(Path(sys.argv[1]))} cases in {sys.argv[1]}")
