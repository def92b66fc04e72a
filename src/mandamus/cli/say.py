"""The only way out for text: survives consoles that cannot encode it and pipes that are closed, and shows what hides.

The rule a newcomer would break: a string that came from an agent, a tool or a person goes through `shown` before it is printed, or
it could move the cursor, turn the reading direction, or look like something else.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Any, TextIO

_PLAIN = str.maketrans({"✓": "ok", "✗": "no", "…": "...", "→": "->", "·": "-", "─": "-", "│": "|", "–": "-", "“": '"', "”": '"'})
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_STYLES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "dim": "2"}


class Closed(Exception):
    """The reader went away; that is no error of ours."""


def say(text: str = "", stream: TextIO | None = None) -> None:
    """One line, or several. What the console cannot encode becomes a plain twin, at last a backslash escape: never a traceback."""
    out = sys.stdout if stream is None else stream
    code = getattr(out, "encoding", None) or "utf-8"
    try:
        text.encode(code)
    except UnicodeEncodeError:
        text = text.translate(_PLAIN).encode(code, "backslashreplace").decode(code)
    except LookupError:
        text = text.encode("ascii", "backslashreplace").decode("ascii")
    try:
        out.write(text + "\n")
        out.flush()
    except BrokenPipeError:
        raise Closed from None
    except OSError as error:
        from mandamus.errors import Misuse

        raise Misuse(f"the answer cannot be written: {error.strerror}", code="MDM-0026", fix="another place for the output") from None
    except ValueError:  # the stream was closed under us
        raise Closed from None


def as_json(value: Any) -> str:
    """One line of ASCII, keys sorted: any console and any parser takes it."""
    import json

    return json.dumps(value, ensure_ascii=True, sort_keys=True)


_PASSWORD = re.compile(r"(?<=[/,])([^/,:@]*):[^/,]*@")
_OPTION = re.compile(r"(?<=[?&])(password|passphrase|sslpassword|token|listen)=[^&]*", re.IGNORECASE)


def without_password(uri: str) -> str:
    """A ledger's URI with `...` where its password stood, also in a list of hosts and in its options. A file's stays as it is."""
    scheme, sep, rest = uri.partition("://")
    hosts, slash, name = rest.partition("/")
    if hosts and "@" in name.partition("?")[0]:  # a sign in the password ended it too early: nobody can say where it ends
        return f"{scheme}{sep}..."
    hosts = _PASSWORD.sub(r"\1:...@", f"/{hosts}")
    return scheme + sep + _OPTION.sub(r"\1=...", hosts[1:] + slash + name)


def hides(char: str) -> bool:
    """Control, bidi, zero-width, private and unassigned characters, line and paragraph separators, odd spaces."""
    from unicodedata import category

    return category(char) in _HIDDEN or (char != " " and category(char) == "Zs")


def shown(text: str) -> str:
    """Text of somebody else, unambiguous: as it is, or in quotes with escapes when it holds anything that hides, or a backslash."""
    if "\\" not in text and not any(hides(c) for c in text):
        return text
    return '"' + "".join(_escaped(c) for c in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    return char.encode("unicode_escape").decode("ascii") if hides(char) else char


def value_shown(value: Any) -> str:
    """A value of a card or a payload, in full."""
    return shown(value) if isinstance(value, str) else shown_json(value)


def shown_json(value: Any) -> str:
    """JSON with the same care: quotes are there already, so only what hides is escaped."""
    import json

    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return "".join(f"\\u{ord(c):04x}" if hides(c) and ord(c) < 0x10000 else _escaped(c) if hides(c) else c for c in text)


def look_alikes(text: str) -> bool:
    """Letters of more than one script in one text: it may look like another text."""
    import unicodedata

    scripts = {unicodedata.name(c, "?").split(" ")[0] for c in text if c.isalpha()}
    return len(scripts & {"LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE"}) > 1


def coloured(stream: TextIO) -> bool:
    """Colour is never the only carrier, and off when piped, with NO_COLOR or on a dumb terminal."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(stream, "isatty", lambda: False)())


def paint(text: str, style: str, stream: TextIO) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if coloured(stream) else text


def columns() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns when they fit, else one block per row: nothing is cut."""
    widths = [max(len(str(row[i])) for row in [head, *rows]) for i in range(len(head))]
    if sum(widths) + 2 * (len(widths) - 1) <= columns():
        return "\n".join("  ".join(str(x).ljust(w) for x, w in zip(row, widths)).rstrip() for row in [head, *rows])
    label = max(len(x) for x in head)
    blocks = ["\n".join(f"{name.ljust(label)}  {x}" for name, x in zip(head, row) if x) for row in rows]
    return "\n\n".join(blocks)
