"""Who signed agent.yaml: a name that the trust file gives, or a key that nobody here knows.

The rule a newcomer would break: what a signature says of itself is no name. `name` comes from the trust file alone.
"""

from __future__ import annotations

from msgspec import Struct


class Author(Struct, frozen=True):
    """Who signed agent.yaml. `name` is the trust file's, "" when it names no such author; `vkey` is what the signature itself says."""

    name: str = ""
    vkey: str = ""

    @property
    def stranger(self) -> str:
        """NAME+ID of a key whose signature holds and which the trust file does not know; "" for nobody and for the known."""
        return "" if self.name or not self.vkey else self.vkey.rpartition("+")[0]

    @property
    def fix(self) -> str:
        return f"if you know this key from elsewhere: mandamus key trust --add 'author {self.vkey.partition('+')[0]} {self.vkey}'"
