"""Whom a waiting request asks: the tier of its chain, read from the policy texts that are kept beside the ledger.

The rule a newcomer would break: the texts are only believed when their digest is the one that the request names. A chain that cannot be
read so refuses nobody here: the run's owner decides anyway, this only says early what it would say late.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mandamus.core.canonical import parse
from mandamus.core.digests import policy_digest
from mandamus.core.facts import Chain, Tier
from mandamus.core.run import Action, Waiting
from mandamus.proof.chains import Chains, holds, may_decide
from mandamus.proof.trust import Trust

_BYTES_MAX = 16 * 1024 * 1024


class Whom:
    """Chains of the policies in `folder`/policies. Without a folder nothing is known."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder / "policies" if folder else None
        self._read: dict[str, dict[str, Any]] = {}

    def tier(self, request: Waiting) -> Tier | None:
        """The tier that `request` asks now, or None when it cannot be read."""
        texts = self._texts(request.policy)
        chain = Chains({request.policy: texts}).of(request.policy, request.chain) if texts else None
        return chain.tiers[min(request.tier, len(chain.tiers) - 1)] if chain else None

    def roles(self) -> frozenset[str]:
        """Every role that a kept policy names in a chain."""
        tiers = [tier for chain in self._every() for tier in chain.tiers]
        return frozenset(name[5:] for tier in tiers for name in (*tier.of, *tier.veto) if name.startswith("role:"))

    def _every(self) -> list[Chain]:
        digests = [p.stem for p in sorted(self.folder.glob("*.json"))] if self.folder and self.folder.is_dir() else []
        chains = Chains({digest: self._texts(digest) for digest in digests})
        for digest in digests:
            chains.of(digest, "")
        return [chain for of in chains.read.values() for chain in of.values()]

    def _texts(self, digest: str) -> dict[str, Any]:
        if digest not in self._read:
            self._read[digest] = self._kept(digest)
        return self._read[digest]

    def _kept(self, digest: str) -> dict[str, Any]:
        try:
            path = self.folder / f"{digest}.json" if self.folder else None
            if path is None or path.stat().st_size > _BYTES_MAX:
                return {}
            texts = parse(path.read_bytes())
            return texts if isinstance(texts, dict) and policy_digest(texts) == digest else {}
        except (OSError, ValueError):
            return {}


def named(names: tuple[str, ...]) -> str:
    """`role treasurer or p-alice`; nobody named means every approver."""
    return " or ".join(f"role {name[5:]}" if name.startswith("role:") else name for name in names) or "any approver"


def why_not(tier: Tier | None, action: Action, principal: str, trust: Trust, decision: str) -> str:
    """Why a vote of `principal` would not count, or "". Who holds a veto and nothing else can only say no."""
    if tier is None or may_decide(tier, principal, trust):
        return "author" if tier and "author" in tier.sod and action.author == principal else ""
    if holds(tier.veto, principal, trust):
        return "" if decision in ("reject", "halt") else "veto"
    return "role"


def enrolling(tier: Tier, principal: str) -> str:
    """The command that would make the vote count, as far as a role can."""
    role = next((name[5:] for name in tier.of if name.startswith("role:")), "")
    return f"mandamus key enroll --principal {principal} --role {role} --key FILE" if role else f"a vote of {named(tier.of)}"
