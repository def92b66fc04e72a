"""`approve`, `reject`, `settle`: one thing, a vote. Print the card, ask (or compare the digest), sign, put it into the mailbox.

The rule a newcomer would break: there is no vote without a card shown or a digest given. --yes does not exist here, and nothing a
ledger says about the action is signed before it was computed again.
"""

from __future__ import annotations

import difflib
import os
import secrets
from typing import Any

import click

from mandamus.cli.asked import Asked, as_object, asked, card_text, refuse_early, signing_text
from mandamus.cli.common import Cli, run_ids, verb
from mandamus.cli.keys import open_key, principal_of
from mandamus.cli.runs import now
from mandamus.cli.whom import Whom
from mandamus.core.canonical import canon, parse
from mandamus.core.money import Money
from mandamus.core.payload import SALT, commit
from mandamus.errors import Misuse, Refused
from mandamus.proof import ballot as ballots
from mandamus.proof import mail as post
from mandamus.proof.keys import b64

EXITS = {0: "the vote is in the mailbox", 3: "refused: not an approver, voted already, expired, another digest, or not what it says"}


def _options(fn: Any) -> Any:
    fn = click.option(
        "--digest", "digests", multiple=True, metavar="SHA256", help="Consent without a question: the action's digest, equal or refused."
    )(fn)
    return click.option("--key", "key_file", metavar="FILE", help="The approver's key file.")(fn)


@verb("approve", exits=EXITS)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=run_ids)
@_options
@click.option("--set", "changes", multiple=True, metavar="K=V", help="Modify: approve nothing, propose these arguments instead.")
def approve(cli: Cli, ids: tuple[str, ...], key_file: str | None, digests: tuple[str, ...], changes: tuple[str, ...]) -> int:
    """Read the card of a waiting action (RUN/3.1, or a run with one) and sign it."""
    if changes and len(ids) != 1:
        raise Misuse("--set changes one action", code="MDM-0003", found=f"{len(ids)} actions", fix="one ID")
    return cli.run(_vote(cli, ids, key_file, digests, "modify" if changes else "approve", "start", changes))


@verb("reject", exits=EXITS)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, shell_complete=run_ids)
@_options
def reject(cli: Cli, ids: tuple[str, ...], key_file: str | None, digests: tuple[str, ...]) -> int:
    """Sign a no. One no decides; a financial or privileged action then ends its run, unless its chain says otherwise."""
    return cli.run(_vote(cli, ids, key_file, digests, "reject", "start", ()))


@verb("settle", exits=EXITS)
@click.argument("id_", metavar="ACTION", shell_complete=run_ids)
@_options
@click.option("--done", "word", flag_value="done", help="It happened.")
@click.option("--again", "word", flag_value="again", help="It did not happen: try once more, if policy still allows it.")
@click.option("--abandon", "word", flag_value="abandon", help="Leave it unknown, and go on.")
def settle(cli: Cli, id_: str, key_file: str | None, digests: tuple[str, ...], word: str | None) -> int:
    """Say, by a signed vote, what became of an action that nobody knows about."""
    if word is None:
        raise Misuse(
            "what became of it?",
            code="MDM-0003",
            expected="one of --done --again --abandon",
            fix=f"mandamus settle {id_} --done --key FILE",
        )
    return cli.run(_vote(cli, (id_,), key_file, digests, word, "outcome", ()))


# -- one vote after the other ------------------------------------------------------------------------------------------------------
async def _vote(
    cli: Cli, ids: tuple[str, ...], key_file: str | None, digests: tuple[str, ...], decision: str, about: str, changes: tuple[str, ...]
) -> int:
    signer = open_key(cli, key_file)
    async with cli.reading() as ledger:
        home = _home(cli)
        trust, whom = home.trust(), Whom(home.folder)
        principal = principal_of(signer, trust)
        every = [await asked(ledger, id, trust, about, whom) for id in ids]
        if len({a.id for a in every}) != len(every):
            raise Misuse("one action is named twice", code="MDM-0003", fix="name each once")
        for a in every:
            refuse_early(a, principal, now(), decision)
        made = [_consented(cli, a, principal, decision, digests, changes) for a in every]
        if digests and len(set(digests)) > len(every):
            raise Misuse("more digests than actions", code="MDM-0003", expected=str(len(every)), found=str(len(set(digests))))
        for a, (ballot, message) in zip(every, made):
            envelope = ballots.sign(ballot, signer.sign, signer.keyid)
            await ledger.send(a.story.id, post.encode(_with_envelope(message, envelope)))
        after = [await asked(ledger, a.id, trust, about, whom) for a in every]
    _told(cli, after, principal, decision, [ballots.ballot_digest(b) for b, _ in made])
    return 0


def _home(cli: Cli) -> Any:
    from mandamus import wiring

    return wiring.home_of(cli.uri)


def _with_envelope(message: post.Vote, envelope: bytes) -> post.Vote:
    """With a nonce: a mailbox takes a message once, and who was refused may vote again."""
    nonce = secrets.token_hex(8)
    return post.Vote(envelope=envelope.decode("ascii"), card=message.card, args=message.args, nonce=nonce, secret=message.secret)


def _consented(
    cli: Cli, a: Asked, principal: str, decision: str, digests: tuple[str, ...], changes: tuple[str, ...]
) -> tuple[ballots.Ballot, post.Vote]:
    """The ballot, once the person has seen the card and said so, or has given the action's digest. Raises Refused, Misuse."""
    card = a.card | {"votes": [{"decision": v.decision, "principal": v.principal} for v in a.votes]}
    if changes:
        args = modified(a, changes)
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
    _show(cli, a, principal, ballot, args if changes else None)
    answer = cli.ask(f'type "{decision}" to sign, anything else to leave: ', f"--digest {a.request.digest}")
    if answer != decision:
        raise Refused(
            "you did not sign", code="MDM-0336", where=f"approval {a.id}", why="nothing was sent", fix=f"mandamus approve {a.id} --key FILE"
        )
    return ballot, message


def _show(cli: Cli, a: Asked, principal: str, ballot: ballots.Ballot, changed: dict[str, Any] | None) -> None:
    """Always, -q or not: the card is what is consented to."""
    import sys

    from mandamus.cli.say import say, shown, value_shown

    if cli.json or cli.no_input:
        return
    rows = [card_text(a, now())]
    if changed is not None:
        rows.append("instead")
        rows += [f"  {shown(k)}  {value_shown(v)}" + ("" if a.args[k] == v else "   (changed)") for k, v in changed.items()]
    rows.append(signing_text(ballot, principal))
    say("\n".join(rows), sys.stderr)


def modified(a: Asked, changes: tuple[str, ...]) -> dict[str, Any]:
    """The arguments with --set applied. Raises Misuse: no such argument, or a value of another form."""
    args = dict(a.args)
    for change in changes:
        name, sep, text = change.partition("=")
        if not sep or name not in args:
            near = difflib.get_close_matches(name, args, n=1)
            raise Misuse(
                f"{name[:40]!a} is no argument of {a.action.tool}",
                code="MDM-0022",
                expected=", ".join(args),
                fix=f"did you mean --set {near[0]}=..." if near else "--set NAME=VALUE",
            )
        args[name] = _value(name, args[name], text)
    if args == a.args:
        raise Misuse("--set changes nothing", code="MDM-0022", fix=f"mandamus approve {a.id} --key FILE, without --set")
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


def _told(cli: Cli, every: list[Asked], principal: str, decision: str, names: list[str]) -> None:
    rows, votes = [], []
    for a, name in zip(every, names):
        of = f" of {a.asks}" if a.asks else ""
        step = (
            cli.command(f"resume {a.story.id}")
            if a.decided
            else f"{a.missing} more vote{'s' if a.missing != 1 else ''}{of}: {cli.command(f'approve {a.id} --key FILE')}"
        )
        rows += [f"{a.id}  {decision} by {principal}, signed and sent", f"  next    {step}"]
        votes.append(as_object(a) | {"ballot": name, "decided": a.decided, "decision": decision, "next": step, "principal": principal})
    cli.tell({"votes": votes}, "\n".join(rows))
