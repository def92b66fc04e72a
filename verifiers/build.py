"""Writes the table of record types into `mandamus-verify.py`, between two marks: `python verifiers/build.py [--check]`.

The table is that of `records_table.py` (from core/records.py), in words that a person reads: one line for each type, its fields in the
order of their bytes, `name:kind`, with `?` behind the name of one that may be absent. The rule a newcomer would break: nobody edits the
generated lines; a type or field that is new in core comes in by this, and a test runs `--check`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import records_table

SCRIPT = Path(__file__).with_name("mandamus-verify.py")
BEGIN, END = "# -- begin: written by verifiers/build.py --\n", "# -- end: written by verifiers/build.py --\n"
WIDE = 2**53 - 1
WIDTH = 136


def word(kind: Any) -> str:
    """`str`, `bool`, `int` (within 2^53-1), `nat` (an int from 0), `int(LO..HI)`, `=a|b` (one of), `[KIND]` (a list), or a part."""
    if isinstance(kind, str):
        return {"text": "str", "flag": "bool", "fact": "Fact"}[kind]
    form, *more = kind
    if form == "whole":
        return {(-WIDE, WIDE): "int", (0, WIDE): "nat"}.get((more[0], more[1]), f"int({more[0]}..{more[1]})")
    if form == "one of":
        return "=" + "|".join(more)
    return f"[{word(more[0])}]" if form == "many" else str(more[0])


def line(name: str, fields: list[Any]) -> str:
    """`"Name": "field:kind field?:kind",`, folded where it is long."""
    words = [f"{field}{'?' if optional else ''}:{word(kind)}" for field, optional, kind in fields]
    whole = f'    "{name}": "{" ".join(words)}",\n'
    if len(whole) <= WIDTH:
        return whole
    rows = [""]
    for text in re.split(r"(?<=[ |])", " ".join(words)):
        if len(rows[-1]) + len(text) < WIDTH - 12:
            rows[-1] += text
        else:
            rows.append(text)
    return f'    "{name}": (\n' + "".join(f'        "{row}"\n' for row in rows) + "    ),\n"


def generated() -> str:
    made = records_table.table()
    rows = [BEGIN]
    for title, group in (("FACTS", made["facts"]), ("PARTS", {"Record": made["envelope"], **made["parts"]})):
        rows += [f"{title} = {{\n", *(line(name, fields) for name, fields in group.items()), "}\n"]
    return "".join([*rows, END])


def built() -> str:
    text = SCRIPT.read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{SCRIPT.name} has lost the marks of its table")
    return head + generated() + tail


def main(argv: list[str]) -> int:
    if built() == SCRIPT.read_text(encoding="utf-8"):
        return 0
    if "--check" in argv:
        print(f"{SCRIPT.name} has another table than core/records.py: python verifiers/build.py", file=sys.stderr)
        return 1
    SCRIPT.write_text(built(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
