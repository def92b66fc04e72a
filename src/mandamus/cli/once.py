"""`--idempotency-key KEY`: the same request sent twice is one. What it makes is named by the key, so the second finds the first.

The rule a newcomer would break: the key itself never reaches the log, nor a digest that could be guessed. What is recorded is made of a
signature over it, by whoever asks. And a key that was used for something else is refused, never answered with the other thing.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import click

from mandamus.core.canonical import canon
from mandamus.core.records import ActionProposed, ApprovalRequested
from mandamus.errors import Misuse, ProofError
from mandamus.ports import Ledger, Signer
from mandamus.proof import ballot as ballots
from mandamus.proof import mail as post
from mandamus.proof.trust import Trust

if TYPE_CHECKING:
    from mandamus.cli.read import Story

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
KEY_MAX = 200


def options(fn: Any) -> Any:
    """The two options of every verb that changes something for good."""
    text = "The same key twice is one request; the second finds the first."
    key = click.option("--idempotency-key", "once", metavar="KEY", callback=_usable, help=text)
    return click.option("--dry-run", is_flag=True, help="Check everything, do nothing.")(key(fn))


def _usable(ctx: click.Context, param: click.Parameter, key: str | None) -> str | None:
    if key is not None and (not 0 < len(key) <= KEY_MAX or not key.isprintable()):
        raise Misuse("--idempotency-key", code="MDM-0028", expected=f"1 to {KEY_MAX} printable characters", fix="--idempotency-key KEY")
    return key


def _drawn(signer: Signer, key: str, *about: str) -> bytes:
    """32 bytes that only the holder of `signer` can compute from the key."""
    said = signer.sign(canon({"about": list(about), "domain": "mandamus/idempotency/v1", "key": key}))
    return hashlib.sha256(said).digest()


def run_id(signer: Signer, origin: str, key: str) -> str:
    """The id of the run that `key` opens in this log: 26 characters like any other, without a time in them."""
    n = int.from_bytes(_drawn(signer, key, "run", origin)[:16], "big")
    return "".join(_CROCKFORD[n >> s & 31] for s in range(125, -1, -5))


def nonce(signer: Signer, key: str, run: str, action: str = "") -> str:
    """What a vote or a stop of `key` carries: a mailbox takes a message once."""
    return _drawn(signer, key, run, action)[:16].hex()


def another(key_of: str, where: str) -> Misuse:
    return Misuse(
        f"this idempotency key was used for {key_of}", code="MDM-0028", where=where, why="one key is one request: nothing was done",
        fix="--idempotency-key with another KEY",
    )  # fmt: skip


# -- what the first one left -----------------------------------------------------------------------------------------------------
async def same_run(ledger: Ledger, story: Story, agent: str, prompt: str, user: str | None, thread: str | None) -> None:
    """Raises Misuse when the run that the key opened is of another agent, prompt, user or thread."""
    from mandamus.cli import read

    g = story.run.genesis
    if g.agent != agent or await read.value(ledger, story.records[0], "input") != prompt:
        raise another("another prompt or agent", f"run {story.id}")
    if (g.user.principal if g.user else None) != user:
        raise another("another user", f"run {story.id}")
    continues = g.parent.run if g.parent and g.parent.kind == "thread" else None
    if thread != continues and (thread is None or thread != story.id):  # `--thread last` names by now the run that the key opened
        raise another("another thread", f"run {story.id}")


async def voted(ledger: Ledger, run: str, nonce: str, trust: Trust, principal: str) -> tuple[ballots.Ballot, Any] | None:
    """The vote of `principal` that carries this nonce, and its new arguments if it has some, wherever its action stands by now."""
    async for _, _, raw in ledger.mailbox(run):
        message = _decoded(raw)
        if isinstance(message, post.Vote) and message.nonce == nonce:
            found = ballots.check(message.envelope.encode(), trust)
            if not isinstance(found, str) and found[0] == principal:
                return found[1], message.args
    return None


async def voted_on(story: Story, ledger: Ledger, request: str) -> dict[str, Any]:
    """The arguments of the action that this request asked about, as they were proposed."""
    from mandamus.cli import read

    asked = {x.fact.action for x in story.records if isinstance(x.fact, ApprovalRequested) and x.fact.request == request}
    for x in story.records:
        if isinstance(x.fact, ActionProposed) and x.fact.action in asked:
            return dict(await read.value(ledger, x, "args"))
    return {}


async def stopped(ledger: Ledger, run: str, nonce: str, trust: Trust, principal: str) -> post.StopStatement | None:
    """The stop of `principal` that carries this nonce."""
    async for _, _, raw in ledger.mailbox(run):
        message = _decoded(raw)
        if isinstance(message, post.Stop):
            found = post.check_stop(message, trust)
            if not isinstance(found, str) and found[0] == principal and found[1].nonce == nonce:
                return found[1]
    return None


def _decoded(raw: bytes) -> post.Mail | None:
    try:
        return post.decode(raw)
    except ProofError:  # anybody may write into a mailbox
        return None
