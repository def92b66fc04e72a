"""`approve`, `reject`, `settle`: one thing, a vote. Print the card, ask (or compare the digest), sign, put it into the mailbox.

The rule a newcomer would break: there is no vote without a card shown or a digest given. --yes does not exist here, and nothing a
ledger says about the action is signed before it was computed again.
"""

from __future__ import annotations

import difflib
import os
import secrets
from dataclasses import dataclass
from typing import Any

import click

from mandamus.cli import once, read
from mandamus.cli.asked import Asked, as_object, asked, card_text, refuse_early, signing_text
from mandamus.cli.common import Cli, run_ids, verb
from mandamus.cli.keys import open_key, principal_of
from mandamus.cli.runs import now
from mandamus.cli.whom import Whom
from mandamus.core.canonical import canon, parse
from mandamus.core.money import Money
from mandamus.core.payload import SALT, commit
from mandamus.errors import Misuse, Refused
from mandamus.ports import Ledger, Signer
from mandamus.proof import ballot as ballots
from mandamus.proof import mail as post
from mandamus.proof.keys import b64
from mandamus.proof.trust import Trust
from mandamus.runtime.away import deliver

EXITS = {0: "the vote is in the mailbox", 3: "refused: not an approver, voted already, expired, another digest, or not what it says"}


def _options(fn: Any) -> Any:
    fn = click.option(
        "--digest", "digests", multiple=True, metavar="SHA256", help="Consent without a question: the action's digest, equal or refused."
    )(fn)
    return click.option("--key", "key_file", metavar="FILE", help="The approver's key file.")(once.options(fn))


@dataclass(frozen=True)
class Wish:
    """What is wanted of the actions that are named: the decision, about what, and how it is consented to."""

    decision: str
    about: str
    changes: tuple[str, ...]
    key_file: str | None
    digests: tuple[str, ...]
    once: str | None
    dry_run: bool


@verb("approve", exits=EXITS)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=run_ids)
@_options
@click.option("--set", "changes", multiple=True, metavar="K=V", help="Modify: approve nothing, propose these arguments instead.")
def approve(cli: Cli, ids: tuple[str, ...], changes: tuple[str, ...], **given: Any) -> int:
    """Read the card of a waiting action (RUN/3.1, or a run with one) and sign it."""
    if changes and len(ids) != 1:
        raise Misuse("--set changes one action", code="MDM-0003", found=f"{len(ids)} actions", fix="one ID")
    return cli.run(_vote(cli, ids, Wish("modify" if changes else "approve", "start", changes, **given)))


@verb("reject", exits=EXITS)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=run_ids)
@_options
def reject(cli: Cli, ids: tuple[str, ...], **given: Any) -> int:
    """Sign a no. One no decides; a financial or privileged action then ends its run, unless its chain says otherwise."""
    return cli.run(_vote(cli, ids, Wish("reject", "start", (), **given)))


@verb("settle", exits=EXITS)
@click.argument("id_", metavar="ACTION", shell_complete=run_ids)
@_options
@click.option("--done", "word", flag_value="done", help="It happened.")
@click.option("--again", "word", flag_value="again", help="It did not happen: try once more, if policy still allows it.")
@click.option("--abandon", "word", flag_value="abandon", help="Leave it unknown, and go on.")
def settle(cli: Cli, id_: str, word: str | None, **given: Any) -> int:
    """Say, by a signed vote, what became of an action that nobody knows about."""
    if word is None:
        raise Misuse(
            "what became of it?",
            code="MDM-0003",
            expected="one of --done --again --abandon",
            fix=f"mandamus settle {id_} --done --key FILE",
        )
    return cli.run(_vote(cli, (id_,), Wish(word, "outcome", (), **given)))


# -- one vote after the other ------------------------------------------------------------------------------------------------------
async def _vote(cli: Cli, ids: tuple[str, ...], wish: Wish) -> int:
    signer = open_key(cli, wish.key_file, ssh=True)
    async with cli.reading() as ledger:
        home = _home(cli)
        trust, whom = await read.in_force(ledger, home.known()), Whom(home.folder)
        principal = principal_of(signer, trust)
        names = {id: await _nonce(ledger, id, signer, wish.once) for id in ids}
        before = await _before(ledger, names, wish, trust, principal) if wish.once else {}
        fresh = [id for id in ids if id not in before]
        every = [await asked(ledger, id, trust, wish.about, whom) for id in fresh]
        if len({a.id for a in every}) != len(every):
            raise Misuse("one action is named twice", code="MDM-0003", fix="name each once")
        for a in every:
            refuse_early(a, principal, now(), wish.decision)
        made = [_consented(cli, a, principal, wish) for a in every]
        if len(set(wish.digests)) > len(ids):
            raise Misuse("more digests than actions", code="MDM-0003", expected=str(len(ids)), found=str(len(set(wish.digests))))
        for id, a, (ballot, message) in () if wish.dry_run else zip(fresh, every, made):
            envelope = ballots.sign(ballot, signer.sign, signer.keyid)
            await deliver(ledger, a.story.id, post.encode(_with_envelope(message, envelope, names[id][1])))
        after = [await asked(ledger, a.id, trust, wish.about, whom) for a in every]
    _told(cli, after, principal, wish, [ballots.ballot_digest(b) for b, _ in made], before)
    return 0


async def _nonce(ledger: Ledger, id: str, signer: Signer, key: str | None) -> tuple[str, str]:
    """(run, nonce) of the vote on the action that `id` names. Without an idempotency key the nonce is random."""
    text, action = read.action_of(id)
    run = await read.run_id(ledger, text)
    return run, once.nonce(signer, key, run, action) if key else secrets.token_hex(8)


async def _before(ledger: Ledger, names: dict[str, tuple[str, str]], wish: Wish, trust: Trust, principal: str) -> dict[str, ballots.Ballot]:
    """The votes that this idempotency key has sent already. Raises Misuse when one of them said something else."""
    found: dict[str, ballots.Ballot] = {}
    for id, (run, nonce) in names.items():
        sent = await once.voted(ledger, run, nonce, trust, principal)
        if sent is None:
            continue
        found[id], args = sent
        if found[id].decision != wish.decision:
            raise once.another(found[id].decision, f"approval {id}")
        if wish.digests and found[id].action not in wish.digests:
            raise once.another("another action", f"approval {id}")
        if wish.changes:
            before = await once.voted_on(await read.story(ledger, run), ledger, str(found[id].request))
            if modified(before, wish.changes, "that action", id) != args:
                raise once.another("other changes", f"approval {id}")
    return found


def _home(cli: Cli) -> Any:
    from mandamus import wiring

    return wiring.home_of(cli.uri)


def _with_envelope(message: post.Vote, envelope: bytes, nonce: str) -> post.Vote:
    """With a nonce: a mailbox takes a message once, and who was refused may vote again."""
    return post.Vote(envelope=envelope.decode("ascii"), card=message.card, args=message.args, nonce=nonce, secret=message.secret)


def _consented(cli: Cli, a: Asked, principal: str, wish: Wish) -> tuple[ballots.Ballot, post.Vote]:
    """The ballot, once the person has seen the card and said so, or has given the action's digest. Raises Refused, Misuse.

    With --dry-run the card is shown and nobody is asked.
    """
    decision, digests, changes = wish.decision, wish.digests, wish.changes
    card = a.card | {"votes": [{"decision": v.decision, "principal": v.principal} for v in a.votes]}
    if changes:
        args = modified(a.args, changes, a.action.tool, a.id)
        secret = os.urandom(SALT)
        ballot = a.ballot(decision, commit(secret, canon(args)))
        message = post.Vote(envelope="", card=card, args=args, secret=b64(secret))
    else:
        args, ballot, message = a.args, a.ballot(decision), post.Vote(envelope="", card=card)
    if digests:
        if a.request.digest not in digests:
            raise Refused(
                "the action has another digest than you consented to",
                code="MDM-0331",
                where=f"approval {a.id}",
                expected=a.request.digest,
                found=digests[0][:64],
                why="a consent is for exactly one action: nothing was signed",
                fix=f"mandamus approve {a.id} --key FILE, and read its card",
            )
        return ballot, message
    _show(cli, a, principal, ballot, args if changes else None, always=wish.dry_run)
    if wish.dry_run:
        return ballot, message
    answer = cli.ask(f'type "{decision}" to sign, anything else to leave: ', f"--digest {a.request.digest}")
    if answer != decision:
        raise Refused(
            "you did not sign", code="MDM-0336", where=f"approval {a.id}", why="nothing was sent", fix=f"mandamus approve {a.id} --key FILE"
        )
    return ballot, message


def _show(cli: Cli, a: Asked, principal: str, ballot: ballots.Ballot, changed: dict[str, Any] | None, *, always: bool) -> None:
    """Always, -q or not: the card is what is consented to."""
    import sys

    from mandamus.cli.say import say, shown, value_shown

    if cli.json or (cli.no_input and not always):
        return
    rows = [card_text(a, now())]
    if changed is not None:
        rows.append("instead")
        rows += [f"  {shown(k)}  {value_shown(v)}" + ("" if a.args[k] == v else "   (changed)") for k, v in changed.items()]
    rows.append(signing_text(ballot, principal))
    say("\n".join(rows), sys.stderr)


def modified(before: dict[str, Any], changes: tuple[str, ...], tool: str, id: str) -> dict[str, Any]:
    """The arguments with --set applied. Raises Misuse: no such argument, or a value of another form."""
    args = dict(before)
    for change in changes:
        name, sep, text = change.partition("=")
        if not sep or name not in args:
            near = difflib.get_close_matches(name, args, n=1)
            raise Misuse(
                f"{name[:40]!a} is no argument of {tool}",
                code="MDM-0022",
                expected=", ".join(args),
                fix=f"did you mean --set {near[0]}=..." if near else "--set NAME=VALUE",
            )
        args[name] = _value(name, args[name], text)
    if args == before:
        raise Misuse("--set changes nothing", code="MDM-0022", fix=f"mandamus approve {id} --key FILE, without --set")
    return args


def _value(name: str, before: Any, text: str) -> Any:
    if isinstance(before, str):
        return text
    if isinstance(before, dict) and before.keys() == {"amount", "currency", "decimals"}:
        try:
            money = Money.parse(text)
        except ValueError as error:
            raise Misuse(f"{name}: {error}", code="MDM-0022", fix=f'--set {name}="1000.00 USD"') from None
        return {"amount": money.amount, "currency": money.currency, "decimals": money.decimals}
    try:
        return parse(text.encode())
    except ValueError as error:
        raise Misuse(f"{name}: not JSON ({error})", code="MDM-0022", expected="a JSON value, such as 3, true or [1]") from None


def _told(cli: Cli, every: list[Asked], principal: str, wish: Wish, names: list[str], before: dict[str, ballots.Ballot]) -> None:
    rows: list[str] = []
    votes: list[dict[str, Any]] = []
    decision, sent = wish.decision, "nothing was signed (--dry-run)" if wish.dry_run else "signed and sent"
    for id, ballot in before.items():
        step = cli.command(f"show {ballot.run}")
        rows += [f"{id}  {decision} by {principal}, sent before by the same idempotency key", f"  next    {step}"]
        votes.append({"ballot": ballots.ballot_digest(ballot), "decision": decision, "digest": ballot.action, "id": id, "next": step})
        votes[-1] |= {"principal": principal, "repeated": True, "run_id": ballot.run}
    for a, name in zip(every, names):
        of = f" of {a.asks}" if a.asks else ""
        step = (
            cli.command(f"resume {a.story.id}")
            if a.decided
            else f"{a.missing} more vote{'s' if a.missing != 1 else ''}{of}: {cli.command(f'approve {a.id} --key FILE')}"
        )
        rows += [f"{a.id}  {decision} by {principal}, {sent}", f"  next    {step}"]
        votes.append(as_object(a) | {"ballot": name, "decided": a.decided, "decision": decision, "next": step, "principal": principal})
        votes[-1]["repeated"] = False
    cli.tell({"dry_run": wish.dry_run, "votes": votes}, "\n".join(rows))
