"""Golden traces: what a run meant, one line per event, in a text file beside the test. `assert_trace(events, "name")`.

A trace holds no ids, clocks, digests or salts, so the same behaviour gives the same file on any machine. `--golden-update` writes it.
The rule a newcomer would break: read the diff of a golden file as you would read code, and commit only what you understand.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from mandamus.core.canonical import canon
from mandamus.core.records import AnyRecord
from mandamus.core.semantic import meaning
from mandamus.errors import Misuse
from mandamus.testing._place import HERE

# Outside a trace: digests of what stands elsewhere, versions, and counts that move with every word of a description.
_QUIET = frozenset(
    (
        "bundle",
        "capabilities",
        "call",
        "definition",
        "engine",
        "isolation",
        "items",
        "manifest",
        "pin",
        "plugins",
        "policy",
        "reserves",
        "source",
        "spends",
        "tokens",
        "trusted_code",
        "usage",
        "window",
        "budget",
    )
)
_PARTS = ("input", "text", "reply", "args", "output", "finding", "value", "partial", "message", "fault")


class Event(Struct, frozen=True):
    """A committed record with the payloads it names: `event.type`, `event.fact`, `event.values["args"]`."""

    record: AnyRecord
    values: dict[str, Any]

    @property
    def type(self) -> str:
        return self.record.type

    @property
    def fact(self) -> Any:
        return self.record.fact

    @property
    def seq(self) -> int:
        return self.record.seq


def lines(events: Iterable[Event]) -> Iterator[str]:
    """The trace: turn, event, what its fact says, what was said or done. Housekeeping is left out."""
    for event in events:
        if not type(event.fact).housekeeping:
            yield line(event.record, event.values)


def line(record: AnyRecord, values: Mapping[str, Any]) -> str:
    plain = meaning(record, values)
    words = [f"{k}={word}" for k, v in plain["fact"].items() if k not in _QUIET and (word := _word(k, v))]
    parts = [f"{p['part']}={canon(p['value']).decode()}" for p in plain.get("body", ()) if p["part"] in _PARTS and "value" in p]
    return " ".join([f"{record.turn:>2}", record.type, *words, *parts])


def _word(name: str, value: Any) -> str:
    """ "" for what goes without saying: what is empty, false or zero, and layers that allowed."""
    if not value:
        return ""
    if name == "layers":
        return ",".join(f"{x['layer']}:{x['verdict']}" for x in value if x["verdict"] != "allow")
    if name == "asks":
        return ",".join(f"{x['quorum']}x{x['chain']}" for x in value)
    if isinstance(value, list | tuple) and all(isinstance(x, str) for x in value):
        return ",".join(value)
    return value if isinstance(value, str) and value.isprintable() and " " not in value else canon(value).decode()


def assert_trace(events: Iterable[Event], name: str, *, folder: str | Path | None = None) -> None:
    """The trace is the one of `golden/NAME.txt` beside the test. Raises AssertionError with the difference, or that the file is missing."""
    if not name or name != Path(name).name:
        raise Misuse(f"golden trace {name!r}", code="MDM-0270", expected="a plain file name", fix='assert_trace(events, "payout")')
    compare("".join(x + "\n" for x in lines(events)), _folder(folder) / f"{name}.txt")


def compare(found: str, path: Path) -> None:
    """Against a golden file, or into it with --golden-update."""
    if HERE.update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8", newline="\n")
        return
    if not path.exists():
        raise AssertionError(
            f"there is no golden file {path.name}; look at what would stand there, then run with --golden-update:\n{found}"
        )
    expected = path.read_text(encoding="utf-8")
    if found != expected:
        delta = difflib.unified_diff(expected.splitlines(), found.splitlines(), f"golden/{path.name}", "now", lineterm="", n=1)
        raise AssertionError("the trace is another one (--golden-update rewrites it):\n" + "\n".join(delta))


def _folder(given: str | Path | None) -> Path:
    return Path(given) if given is not None else HERE.folder or Path("golden")
