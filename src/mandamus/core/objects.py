"""The paths of a store of objects: `checked("tile/0/x001/234.p/17")`, `folder("pending/0001")`. One rule for all drivers.

Steps of A-Z a-z 0-9 . _ -, joined by "/". No step begins with a dot: no path leads out of the store, and a driver has names of its own
that no object can have. No path is the folder of another one.

The rule a newcomer would break: a path is asked here before a driver touches it, also one that our own code has made: parts of it
(an origin, a run's id) come from files of others.
"""

from __future__ import annotations

import re

from mandamus.errors import Misuse

PATH_MAX = 900  # S3 has 1,024 bytes for its prefix and the path
_step = r"[A-Za-z0-9_\-][A-Za-z0-9_\-.]{0,199}"
_path = re.compile(rf"{_step}(?:/{_step})*").fullmatch
_prefix = re.compile(rf"(?:{_step}/)*(?:{_step})?").fullmatch


def checked(path: str) -> str:
    """The path itself. Raises Misuse when no store could hold an object of that name."""
    if len(path) > PATH_MAX or not _path(path):
        raise _misuse(path)
    return path


def folder(prefix: str) -> str:
    """The deepest folder that holds every path with this beginning: "" or with its "/" at the end. Raises Misuse."""
    if len(prefix) > PATH_MAX or not _prefix(prefix):
        raise _misuse(prefix)
    return prefix[: prefix.rfind("/") + 1]


def _misuse(path: str) -> Misuse:
    return Misuse(
        "this is no path of a store", code="MDM-0915", found=ascii(path[:80]),
        expected=f"steps of A-Z a-z 0-9 . _ - joined by /, none beginning with a dot, at most {PATH_MAX} characters",
    )  # fmt: skip
