"""What every answer of `--json` is made of: nothing stands in it that is not named, and a failure has one form."""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Closed(Struct, forbid_unknown_fields=True):
    """Nothing stands in an answer that is not named here."""


class Diagnosed(Closed):
    """`class`: whose fault it is. `fix`: a command, or the text to write."""

    code: str
    what: str
    class_: str = msgspec.field(name="class", default="")
    where: str = ""
    expected: str = ""
    found: str = ""
    why: str = ""
    fix: str = ""
    reasons: list[dict[str, str]] = []


class Failed(Closed):
    """The answer of every verb that raised."""

    error: Diagnosed
    exit_code: int
    verdict: str = ""
