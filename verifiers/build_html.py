"""`verify.html` from verifiers/src: `build_html.py --write` builds it, `--check` says whether the one that stands there is the newest.

One page that needs nothing beside it: the sources in the order of src/order.json, the table of record types (records.json), page.js, and
a Content-Security-Policy that lets run exactly this script and nothing else, and nothing reach the network. The rule a newcomer would
break: the hashes in the policy are those of the text between the tags, so nobody edits the built page by hand.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE / "verify.html"


def built() -> str:
    source = HERE / "src"
    names = [*json.loads(_text(source / "order.json")), "page.js"]
    table = json.dumps(json.loads(_text(HERE / "records.json")), separators=(",", ":"))
    code = "\n".join(_text(source / name).strip() for name in names)
    script = f'(() => {{\n"use strict";\nconst TABLE = {table};\n\n{code}\n}})();'
    style = _text(source / "page.css").strip()
    if "</" in script.replace("<\\/", "") or "</" in style:
        raise SystemExit("a source holds the beginning of a closing tag: the page would end there")
    page = _text(source / "page.html")
    for name, value in {"script-hash": _hash(script), "style-hash": _hash(style), "style": style, "script": script}.items():
        page = page.replace("{{" + name + "}}", value, 1)
    return page


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def main(argv: list[str]) -> int:
    if argv == ["--write"]:
        PAGE.write_text(built(), encoding="utf-8")
        return 0
    if argv == ["--check"]:
        if PAGE.exists() and _text(PAGE) == built():
            return 0
        print("verify.html is not built from its sources: python verifiers/build_html.py --write", file=sys.stderr)
        return 1
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
