"""Whom a policy asks: the approval chains, read from the rules in the bundle and held against the roles of the trust file.

The rule a newcomer would break: the quorum that a record names was written by the run's owner. Who may vote, how many must, and when
the next tier's turn is are said by the rules; a chain that no shown rule declares cannot be checked, and that is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mandamus.core.canonical import parse
from mandamus.core.facts import DEFAULT_CHAIN, Chain, Tier
from mandamus.core.rulebook import Source, compiled
from mandamus.errors import MandamusError
from mandamus.proof.trust import Trust

RULES = "policy/rules.json"


class _Nowhere:
    """Rules in a bundle stand in no file."""

    def where(self, path: tuple[str | int, ...] = (), *, key: bool = False) -> str:
        return "bundle"


class Chains:
    """`of(policy, chain)`: the chain as that policy declares it, or None when the bundle does not show it."""

    def __init__(self, sources: Mapping[str, Mapping[str, Any]]) -> None:
        self.sources = sources
        self.read: dict[str, dict[str, Chain]] = {}

    def of(self, policy: str, chain: str) -> Chain | None:
        if policy not in self.sources:
            return None
        if policy not in self.read:
            self.read[policy] = _declared(self.sources[policy])
        return self.read[policy].get(chain, DEFAULT_CHAIN if chain == DEFAULT_CHAIN.id else None)


def _declared(source: Mapping[str, Any]) -> dict[str, Chain]:
    """Rules that do not compile any more declare nothing: what rests on them is not checked, and said to be so."""
    out: dict[str, Chain] = {}
    for name, text in source.items():
        if name.endswith(RULES) and type(text) is str:
            try:
                out |= compiled([Source(document, _Nowhere()) for document in parse(text.encode())]).chains
            except (MandamusError, ValueError, TypeError):
                continue
    return out


def may_decide(tier: Tier, principal: str, trust: Trust) -> bool:
    """Counts for the quorum. A tier that names nobody means every approver of the trust file."""
    return not tier.of or holds(tier.of, principal, trust)


def may_vote(tier: Tier, principal: str, trust: Trust) -> bool:
    return may_decide(tier, principal, trust) or holds(tier.veto, principal, trust)


def holds(names: tuple[str, ...], principal: str, trust: Trust) -> bool:
    roles = trust.roles_of(principal)
    return any(name == principal or (name.startswith("role:") and name[5:] in roles) for name in names)
