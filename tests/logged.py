"""A log in memory for bundles made by hand: `Log().add(raws)`, then `log.proof(raw)` under a checkpoint that witnesses cosigned.

Times are those of the samples' clock, so that nothing depends on when a test runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from mandamus.core import records as r
from mandamus.core.digests import operation_id
from mandamus.proof import note, tlogproof, tree
from mandamus.proof.note import Checkpoint
from tests.samples import LOG_KEY, ORIGIN, RUN, START, TRUST_TEXT, W1, W2, W3, Chain, Keyring, Story, clock, replace_struct, trust

NOW = START // 1_000_000 + 7200
QUORUM = TRUST_TEXT.replace("quorum none\n", "") + (
    f"witness one {W1.key}\nwitness two {W2.key}\nwitness three {W3.key}\ngroup all 2 one two three\nquorum all\n"
)
ALL = (W1, W2, W3)


class Log:
    """`key`: whose log it is; `origin`: what it calls itself."""

    def __init__(self, key: Keyring = LOG_KEY, origin: str = ORIGIN) -> None:
        self.key, self.origin = key, origin
        self.tree = tree.Tree()
        self.raws: list[bytes] = []

    def add(self, raws: Iterable[bytes]) -> Log:
        new = list(raws)
        self.raws += new
        self.tree.extend([tree.leaf_hash(raw) for raw in new])
        return self

    def checkpoint(self, size: int | None = None) -> Checkpoint:
        return Checkpoint(self.origin, self.tree.size if size is None else size, self.tree.root(size))

    def note(self, witnesses: Iterable[Keyring] = ALL, *, size: int | None = None, time: int = NOW, key: Keyring | None = None) -> bytes:
        text, key = self.checkpoint(size).text, key or self.key
        lines = [note.sign_line(text, key.key, key.sign), *(note.cosign_line(text, w.key, w.sign, time) for w in witnesses)]
        return note.write(text, lines)

    def proof(self, raw: bytes, signed: bytes | None = None, *, extra: bytes = b"", size: int | None = None, **how: Any) -> bytes:
        index = self.raws.index(raw)
        return tlogproof.write(index, self.tree.inclusion(index, size), signed or self.note(size=size, **how), extra)


def proofs(tale: Story, log: Log | None = None, **how: Any) -> tuple[bytes, ...]:
    """Of the run and of chain log, each record a leaf."""
    log = log or Log().add([*tale.log.raws, *tale.chain.raws])
    ends = [tale.chain.raws[-1], *tale.log.raws[-1:]]
    return tuple(log.proof(raw, **how) for raw in ends)


def demanding() -> Any:
    """The trust file of the samples, and two of three witnesses."""
    return trust(QUORUM)


@dataclass
class Parent(Story):
    """The story's run hands its task to a child. `child` is known once it was told."""

    result: str = "done"
    code: str = ""
    child: str = ""

    def started(self) -> None:
        self.judged("allow")
        operation = operation_id(args=self.args, call="1.1", run=RUN, tool="send_payment")
        self.child = operation[:26].upper()
        self.chain.add(
            r.ActionStarted(
                action="1.1", attempt=1, capabilities=(), child=self.child, deadline=30000, effect="reconcilable", landing=30000,
                operation=operation, votes=tuple(self.votes),
            ), 1,
        )  # fmt: skip

    def finished(self) -> None:
        c = self.chain
        code: Any = self.code or UNSET
        valid = self.result == "done"
        ended = r.ActionEnded(action="1.1", attempt=1, code=code, output="valid" if valid else "none", result=self.result, via="child")  # type: ignore[arg-type]
        c.add(ended, 1, **({"output": "Paid."} if valid else {}))
        c.add(r.RunEnded(state="completed"), 2, output="Paid.")
        c.seal_up()


def child_chain(run: str, closed: Any = "completed") -> Chain:
    """A child that ended at once."""
    opened: Any = r.decode(Story().tell().chain.raws[0]).fact
    chain = Chain(run, entropy=iter([bytes([n]) * 32 for n in range(32)]))
    chain.add(replace_struct(opened, clock=clock(4), register=r.Register(number=2, prev="")), input="help")
    chain.add(r.RunEnded(state=closed), 0, output="Paid.")
    chain.seal_up(closed)
    return chain
