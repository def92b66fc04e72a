"""What every signer says of its key, and what its repr may show. Imports no library, so that no signer brings another's."""

from __future__ import annotations

from mandamus.proof.keys import VKey


class Keyed:
    """`key` is public. A private key, a PIN and an address never stand in the repr."""

    key: VKey

    @property
    def vkey(self) -> str:
        return str(self.key)

    @property
    def keyid(self) -> str:
        return self.key.id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key.name}+{self.key.id})"
