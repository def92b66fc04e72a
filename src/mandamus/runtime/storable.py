"""What the code of others hands in, in a form that can be recorded: a text that can be written down, a value that has a canonical form.

The rule a newcomer would break: this is asked where a value comes in. A fact that cannot be sealed takes along whatever was to be
recorded with it, such as the outcome of an effect that happened.
"""

from __future__ import annotations

from typing import Any

from mandamus.core.canonical import canon
from mandamus.core.payload import INLINE_MAX


def text(said: str, most: int) -> str:
    """At most so many characters of it; what has no UTF-8 form is replaced."""
    return said[:most].encode("utf-8", "replace").decode()


def unfit(value: Any) -> str:
    """Why it cannot be recorded, without a word of it; "" when it can."""
    try:
        size = len(canon(value))
    except (ValueError, TypeError, RecursionError) as error:
        return f"{type(value).__name__}: no canonical form ({type(error).__name__})"
    return "" if size <= INLINE_MAX else f"{size} bytes"
