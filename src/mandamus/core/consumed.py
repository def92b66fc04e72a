"""The keys of the messages that a run has taken from its mailbox, in order: asked often, and only ever added to.

The rule a newcomer would break: every earlier state of a run stays true. All states of one run share one table, each knows how much of
it was there in its time; who adds to a state that is not the newest one gets a table of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice


class Consumed:
    """Like a tuple of keys, but a longer one costs no copy, and `in` no search."""

    __slots__ = ("_count", "_first", "_keys")

    def __init__(self, *keys: str) -> None:
        self._keys = list(keys)
        self._first = {key: n for n, key in reversed(list(enumerate(keys)))}
        self._count = len(keys)

    def __contains__(self, key: str) -> bool:
        return self._first.get(key, self._count) < self._count

    def __iter__(self) -> Iterator[str]:
        return islice(self._keys, self._count)

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Consumed) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Consumed{tuple(self)!r}"

    def plus(self, key: str) -> Consumed:
        """These and one more."""
        if not self._count or len(self._keys) != self._count:
            return Consumed(*self, key)
        out = Consumed.__new__(Consumed)
        out._keys, out._first, out._count = self._keys, self._first, self._count + 1
        out._keys.append(key)
        out._first.setdefault(key, self._count)
        return out


NOTHING_READ = Consumed()
