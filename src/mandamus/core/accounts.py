"""Accounts: budgets, limits, standing votes, the register and `authority` are chains of deltas (docs/adr/0008).

A delta names the (run, seq) that caused it and carries the totals it leads to, so that the newest one is the state and the chain
proves it. Deltas repeat what records say; a verifier recomputes them.
"""

from __future__ import annotations

from msgspec import Struct

from mandamus.core.canonical import canon, digest

AUTHORITY = "authority"
REGISTER = "register"
HANDED = "handoff/"


def narrowed(run: str) -> str:
    """The account that counts how often the authority of `run` over its children was narrowed: it halted, or people stopped it."""
    return f"{AUTHORITY}/{run}"


def handed(run: str, unit: str) -> str:
    """The account of what `run` handed down to its children of its budget, in `unit`: calls, cost or tokens."""
    return f"{HANDED}{run}/{unit}"


def unit_of(run: str, account: str) -> str:
    """The unit, when this is an account of what `run` handed down, else ""."""
    head = f"{HANDED}{run}/"
    return account[len(head) :] if account.startswith(head) else ""


class Delta(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`change` in the account's unit: what was added to `reserved` and `spent`; the totals stand beside it."""

    account: str
    change: Change
    prev: str
    reserved: int
    run: str
    seq: int
    spent: int
    version: int


class Change(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    reserved: int
    spent: int


class Balance(Struct, frozen=True):
    """An account as it stands. Version 0: it does not exist yet."""

    id: str
    version: int = 0
    hash: str = ""
    reserved: int = 0
    spent: int = 0

    @property
    def used(self) -> int:
        return self.reserved + self.spent

    def plus(self, run: str, seq: int, *, reserved: int = 0, spent: int = 0) -> tuple[Balance, bytes]:
        """The next state and the canonical bytes of the delta that leads to it."""
        delta = Delta(
            account=self.id, change=Change(reserved=reserved, spent=spent), prev=self.hash, reserved=self.reserved + reserved,
            run=run, seq=seq, spent=self.spent + spent, version=self.version + 1,
        )  # fmt: skip
        raw = canon({**{f: getattr(delta, f) for f in delta.__struct_fields__}, "change": {"reserved": reserved, "spent": spent}})
        return Balance(self.id, delta.version, digest("delta", raw), delta.reserved, delta.spent), raw
