"""Digests that bind one action, and the bytes a worker signs when it takes a run over. Pure functions of commitments and ids.

The rule a newcomer would break: what goes in are salted *commitments* (core/payload.py), never the arguments themselves and never
an unsalted digest of them. Whoever holds such a digest could guess what it was made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mandamus.core.canonical import canon, canon_own, digest


def action_digest(*, args: str, call: str, origin: str, policy: str, run: str, expires: int | None = None, pin: str | None = None) -> str:
    """What a vote is for: exactly this call, under this policy, in this run. `args` is the commitment of the arguments.

    `target`, where the effect goes, is part of the arguments; its commitment is theirs. Absent fields are left out.
    """
    bound: dict[str, str | int] = {"args": args, "call": call, "origin": origin, "policy": policy, "run": run, "target": args}
    if expires is not None:
        bound["expires"] = expires
    if pin is not None:
        bound["pin"] = pin
    return digest("action", canon(bound))


def operation_id(*, args: str, call: str, run: str, tool: str) -> str:
    """Stable over retries and resumes; the idempotency key that the other side sees."""
    return digest("operation", canon_own({"args": args, "call": call, "run": run, "tool": tool}))


def ownership(*, epoch: int, nonce: str, origin: str, prev: str, run: str, worker: str) -> bytes:
    """The bytes that `RunOwned.signature` (base64, by the log key) signs. `prev` is the head that was taken over."""
    return canon(
        {"domain": "mandamus/owned/v1", "epoch": epoch, "nonce": nonce, "origin": origin, "prev": prev, "run": run, "worker": worker}
    )


def manifest_digest(text: str) -> str:
    """Digest of agent.yaml as written."""
    return digest("manifest", text.encode("utf-8"))


def policy_digest(source: Mapping[str, Any]) -> str:
    """Digest of a policy: everything that its engine answers from, as one JSON object."""
    return digest("policy", canon(dict(source)))
