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
from mandamus.core.rulekinds import Asking
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
        self.asks: dict[str, list[Asking]] = {}

    def of(self, policy: str, chain: str) -> Chain | None:
        if policy not in self.sources:
            return None
        self._compile(policy)
        return self.read[policy].get(chain, DEFAULT_CHAIN if chain == DEFAULT_CHAIN.id else None)

    def rules(self, policy: str) -> list[Asking]:
        """The thin rules that ask people. Rules in another language are not among them."""
        if policy not in self.sources:
            return []
        self._compile(policy)
        return self.asks[policy]

    def _compile(self, policy: str) -> None:
        if policy not in self.read:
            self.read[policy], self.asks[policy] = _declared(self.sources[policy])


def _declared(source: Mapping[str, Any]) -> tuple[dict[str, Chain], list[Asking]]:
    """Rules that do not compile any more declare nothing: what rests on them is not checked, and said to be so."""
    chains: dict[str, Chain] = {}
    asks: list[Asking] = []
    for name, text in source.items():
        if name.endswith(RULES) and type(text) is str:
            try:
                book = compiled([Source(document, _Nowhere()) for document in parse(text.encode())])
            except (MandamusError, ValueError, TypeError):
                continue
            chains |= book.chains
            asks += book.asks
    return chains, asks


def may_decide(tier: Tier, principal: str, trust: Trust) -> bool:
    """Counts for the quorum. A tier that names nobody means every approver of the trust file."""
    return not tier.of or holds(tier.of, principal, trust)


def may_vote(tier: Tier, principal: str, trust: Trust) -> bool:
    return may_decide(tier, principal, trust) or holds(tier.veto, principal, trust)


def holds(names: tuple[str, ...], principal: str, trust: Trust) -> bool:
    roles = trust.roles_of(principal)
    return any(name == principal or (name.startswith("role:") and name[5:] in roles) for name in names)
