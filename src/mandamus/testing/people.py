"""People for tests: approvers with real keys in the trust file, who read what waits and sign real ballots.

`Crowd.enrol(home, bound)` makes enough of them for every chain of the agent's policies; `vote` signs, `answer` votes on everything
that waits. The rule a newcomer would break: a test that writes a vote into the log proves nothing; votes go through the mailbox.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mandamus.core.run import Action
from mandamus.drivers.sign_file import FileSigner
from mandamus.proof import ballot as ballots
from mandamus.proof import mail as post
from mandamus.proof.ballot import Ballot
from mandamus.proof.keys import vkey
from mandamus.runtime.env import Bound, Env
from mandamus.runtime.session import Session


def signer(name: str) -> FileSigner:
    """An Ed25519 key in memory."""
    private = Ed25519PrivateKey.generate()
    return FileSigner(private, vkey(name, private.public_key().public_bytes_raw()))


class Crowd:
    """Approvers by principal, with their keys and the roles that the agent's chains ask for."""

    def __init__(self, people: dict[str, FileSigner]) -> None:
        self.people = people

    @classmethod
    def enrol(cls, home: Any, bound: Bound, prefix: str = "p-person") -> Crowd:
        """Everybody whom a chain names, and beside them enough people who hold every role."""
        tiers = [t for b in _family(bound) for chain in b.book.chains.values() for t in chain.tiers]
        words = {x for t in tiers for x in (*t.of, *t.veto)}
        roles = sorted({x[5:] for x in words if x.startswith("role:")})
        many = max([2, *(t.quorum for t in tiers)])
        names = [f"{prefix}-{n}" for n in range(1, many + 1)] + sorted(x for x in words if not x.startswith("role:"))
        crowd = cls({name: signer(f"people.test/{name}") for name in names})
        for name, key in crowd.people.items():
            home.add_trust(f"approver {name} {key.vkey}")
        for role in roles:
            home.add_trust(f"role {role} {' '.join(names)}")
        return crowd

    def vote(self, s: Session, about: Action, principal: str, decision: str, /, **changes: Any) -> bytes:
        """The mailbox message of one person about what waits now. `changes` alters the ballot before it is signed."""
        return vote(s, about, self.people[principal], decision, **changes)

    async def answer(self, s: Session, decide: Callable[[Action], str]) -> int:
        """Everybody who is needed votes on every open request of the run. Returns how many votes were sent."""
        sent = 0
        for action in s.run.open_actions:
            request = action.request
            if request is None or request.over:
                continue
            voted = {v.principal for v in request.votes}
            for principal in [p for p in self._those(s, action) if p not in voted][: request.quorum - len(voted)]:
                await s.env.ledger.send(s.run.id, self.vote(s, action, principal, decide(action)))
                sent += 1
        return sent

    def _those(self, s: Session, action: Action) -> list[str]:
        """Who may vote in the tier of now."""
        assert action.request is not None
        chain = s.bound.book.chains.get(action.request.chain)
        of = chain.tiers[min(action.request.tier, len(chain.tiers) - 1)].of if chain else ()
        trust = s.env.trust()
        may = {p for p in self.people if not of or p in of or any(x.startswith("role:") and x[5:] in trust.roles_of(p) for x in of)}
        return [p for p in self.people if p in may]


def _family(bound: Bound) -> list[Bound]:
    return [bound, *(b for child in bound.children.values() for b in _family(child))]


def ballot_of(s: Session, about: Action, decision: Any, /, **changes: Any) -> Ballot:
    request = about.request
    assert request is not None
    fields: dict[str, Any] = {
        "action": request.digest, "card": request.card, "decision": decision, "expires": request.expires, "origin": s.run.genesis.origin,
        "policy": request.policy, "request": request.id, "run": s.run.id, "scope": "once",
    }  # fmt: skip
    return Ballot(**(fields | changes))


def vote(s: Session, about: Action, key: FileSigner, decision: str, /, **changes: Any) -> bytes:
    envelope = ballots.sign(ballot_of(s, about, decision, **changes), key.sign, key.keyid)
    return post.encode(post.Vote(envelope=envelope.decode("ascii")))


def stop(env: Env, run: str, key: FileSigner, mode: Any = "cancel") -> bytes:
    """The mailbox message of a person who stops a run."""
    statement = post.StopStatement(mode=mode, nonce=env.time.entropy(16).hex(), origin=env.origin, run=run)
    return post.encode(post.stop(statement, signer=key.sign, keyid=key.keyid))
