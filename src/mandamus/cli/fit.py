"""Every reason why an agent may not start here, and nothing is started: for `doctor AGENT` and `run --dry-run`.

The rule a newcomer would break: this asks exactly what a start asks, the ties of agent.yaml and its author included, but records
nothing and makes nothing, not even a trust file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mandamus.cli.common import Cli
from mandamus.core.duties import Reason, reasons, refusal
from mandamus.errors import MandamusError, ProofError
from mandamus.proof.trust import Trust

if TYPE_CHECKING:
    from mandamus._author import Author
    from mandamus.agent import Agent
    from mandamus.runtime.env import Bound


def trust_of(cli: Cli) -> Trust:
    """The trust file as it stands, or an empty one: one that cannot be read is told by a check of its own."""
    from mandamus import wiring

    path = wiring.home_of(cli.uri).trust_file
    try:
        return Trust.parse(path.read_bytes(), str(path)) if path is not None and path.exists() else Trust()
    except MandamusError:
        return Trust()


async def reasons_of(cli: Cli, agent: Agent[Any]) -> tuple[Bound, tuple[Reason, ...]]:
    """(what it is bound to, every reason at once). Raises Misuse for code or a policy that cannot be read."""
    from mandamus import wiring
    from mandamus.runtime.recover import ISOLATION

    bound, trust = await wiring.bind(agent), trust_of(cli)
    people = sorted({p for p, _ in trust.approvers.values()})
    found = _of_manifests(agent, bound, trust)
    for one in _family(bound):
        found += reasons(one.spec, one.book, tier="dev", isolation=ISOLATION, approvers=people, roles=dict(trust.roles))
    return bound, tuple(dict.fromkeys(found))


def author_of(agent: Agent[Any], trust: Trust) -> Author | None:
    """Who signed its agent.yaml; None for an agent in code. Raises ProofError for a signature of another text."""
    from mandamus.manifest import check_manifest

    return None if agent.loaded is None else check_manifest(agent.loaded, trust)


def _of_manifests(agent: Agent[Any], bound: Bound, trust: Trust) -> list[Reason]:
    """What agent.yaml binds and is not true, and a signature of another text; of this agent and of those below it."""
    from mandamus.manifest import drift

    out: list[Reason] = []
    if agent.loaded is not None:
        out += drift(agent.loaded, agent.spec, bound.book.digest)
        try:
            author_of(agent, trust)
        except ProofError as error:
            d = error.diagnosis
            out.append(refusal("manifest_unsigned", f"{d.where}: {d.what}", d.fix or "sign it again"))
    for name, child in agent.children.items():
        out += _of_manifests(child, bound.children[name], trust)
    return out


def _family(bound: Bound) -> list[Bound]:
    return [bound, *(b for child in bound.children.values() for b in _family(child))]
