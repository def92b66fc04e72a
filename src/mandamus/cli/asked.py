"""A request to people, read from the ledger and checked: the card, what its digests are made of, and who has voted.

The rule a newcomer would break: nothing that is signed is taken from the ledger as it stands there. Both digests are computed again
from the stored call and its arguments, and every line of the card is held against the arguments; any difference refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mandamus.cli import read
from mandamus.cli.whom import Whom, enrolling, named, why_not
from mandamus.core.digests import action_digest
from mandamus.core.facts import Tier
from mandamus.core.money import Money
from mandamus.core.payload import card_digest
from mandamus.core.records import AnyRecord
from mandamus.core.run import Action, Waiting
from mandamus.errors import Misuse, ProofError, Refused
from mandamus.ports import Ledger
from mandamus.proof import ballot as ballots
from mandamus.proof import mail as post
from mandamus.proof.trust import Trust


@dataclass(frozen=True)
class Given:
    """One vote that is there: `counted` in the run, or still in the mailbox. `wrong`: why it will be refused, as things stand."""

    principal: str
    decision: str
    counted: bool
    wrong: str = ""


@dataclass(frozen=True)
class Asked:
    """`action` and `request` as folded; `args` and `card` from payloads that were checked; `votes` in the run and in the mailbox.

    `tier` is whom the request asks, None when the policy that says so cannot be read here.
    """

    story: read.Story
    action: Action
    request: Waiting
    args: dict[str, Any]
    card: dict[str, Any]
    votes: tuple[Given, ...]
    trust: Trust
    tier: Tier | None = None

    @property
    def asks(self) -> str:
        """Who may vote, in words; "" when it is not known."""
        return named(self.tier.of) if self.tier else ""

    @property
    def counting(self) -> tuple[Given, ...]:
        return tuple(v for v in self.votes if not v.wrong)

    @property
    def id(self) -> str:
        return f"{self.story.id}/{self.action.id}"

    @property
    def missing(self) -> int:
        agreeing = {v.principal for v in self.counting if v.decision not in ("reject", "modify", "halt")}
        return max(0, self.request.quorum - len(agreeing))

    @property
    def decided(self) -> bool:
        """Nothing more is needed: the quorum is there, or somebody said no."""
        return self.missing == 0 or any(v.decision in ("reject", "modify", "halt") for v in self.counting)

    def ballot(self, decision: Any, args: Any = None) -> ballots.Ballot:
        """What is signed. `args`, with modify: the commitment of the new arguments."""
        q = self.request
        more = {} if args is None else {"args": args}
        return ballots.Ballot(
            action=q.digest,
            card=q.card,
            decision=decision,
            expires=q.expires,
            origin=self.story.run.genesis.origin,
            policy=q.policy,
            request=q.id,
            run=self.story.id,
            scope="once",
            **more,
        )


async def asked(ledger: Ledger, text: str, trust: Trust, about: str = "", whom: Whom | None = None) -> Asked:
    """The open request of `RUN/3.1` (or of a run that has one). Raises Misuse: nothing waits; Refused: it is not what it says.

    `whom` knows the chains; without it nobody's role is looked at.
    """
    run, action_id = read.action_of(text)
    story = await read.story(ledger, run)
    action, request = _open(story, action_id, about)
    proposal, asking = story.records[action.seq], story.records[request.seq]
    args, secret = await read.value_and_secret(ledger, proposal, "args")
    card = await read.value(ledger, asking, "card")
    _same(story, action, request, proposal, args, secret, card)
    tier = whom.tier(request) if whom else None
    return Asked(story, action, request, args, card, await _votes(ledger, story, action, request, trust, tier), trust, tier)


def _open(story: read.Story, action_id: str, about: str) -> tuple[Action, Waiting]:
    found = [(a, q) for a, q in read.waiting(story.run) if (not action_id or a.id == action_id) and (not about or q.about == about)]
    if len(found) == 1:
        return found[0]
    where = f"run {story.id}"
    if found:
        ids = ", ".join(f"{story.id}/{a.id}" for a, _ in found)
        raise Misuse(f"{len(found)} actions of this run wait", code="MDM-0012", where=where, found=ids, fix="name one of them")
    raise _nothing(story, action_id, where)


def _nothing(story: read.Story, action_id: str, where: str) -> Misuse:
    """Nothing waits for this kind of vote; if it waits for the other kind, the command for that is the fix."""
    other = next(((a, q) for a, q in read.waiting(story.run) if not action_id or a.id == action_id), None)
    if other is not None:
        verb = "settle" if other[1].about == "outcome" else "approve"
        options = " --done|--again|--abandon" if verb == "settle" else ""
        what, fix = "it waits, but for another kind of vote", f"mandamus {verb} {story.id}/{other[0].id}{options} --key FILE"
        return Misuse(what, code="MDM-0013", where=where, found=other[1].about, fix=fix)
    action = story.run.actions.get(action_id)
    what = f"{action_id} does not wait for people" if action_id else "nothing of this run waits for people"
    found = action.state if action else read.state_of(story.run)
    fix = f"mandamus why {story.id}/{action_id}" if action else "mandamus inbox"
    return Misuse(what, code="MDM-0013", where=where, expected="an action that waits", found=found, fix=fix)


# -- what you see is what you sign -------------------------------------------------------------------------------------------------
def _same(story: read.Story, action: Action, request: Waiting, proposal: AnyRecord, args: Any, secret: bytes, card: Any) -> None:
    """The request is about the stored call, the card is the one that was asked, and the card shows the stored arguments."""
    computed = action_digest(
        args=action.args, call=action.call, origin=story.run.genesis.origin, policy=request.policy, run=story.id, pin=action.pin or None
    )
    if computed != request.digest:
        raise _differs(story, action, "the request is not about the stored call", computed, request.digest)
    if not isinstance(card, dict) or card_digest(secret, card) != request.card:
        raise _differs(story, action, "the card is not the one that was asked", request.card, "another")
    shows = {f["label"]: f["value"] for f in card["fields"]}
    if list(shows) != [f["label"] for f in card["fields"]] or shows.keys() != args.keys():
        raise _differs(story, action, "the card does not show every argument, each once", ", ".join(args), ", ".join(shows))
    wrong = [name for name, value in args.items() if not _shows(shows[name], value)]
    if wrong:
        raise _differs(
            story, action, f"the card shows another value of {wrong[0]!r} than the action has", "the stored argument", "another value"
        )
    if (card["action"], card["request"], card["tool"]) != (request.digest, request.id, action.tool):
        raise _differs(story, action, "the card is about another action", request.digest, str(card["action"]))


def _shows(shown: Any, value: Any) -> bool:
    if isinstance(value, dict) and value.keys() == {"amount", "currency", "decimals"}:
        return bool(shown == str(Money(value["amount"], value["currency"], value["decimals"])))
    return bool(shown == value)


def _differs(story: read.Story, action: Action, what: str, expected: str, found: str) -> Refused:
    return Refused(
        what,
        code="MDM-0330",
        where=f"approval {story.id}/{action.id}",
        expected=expected[:64],
        found=found[:64],
        why="what you see would not be what you sign: nothing was signed",
        fix=f"tell whoever runs this ledger: mandamus show {story.id} --events",
    )


# -- votes that are there ------------------------------------------------------------------------------------------------------
async def _votes(ledger: Ledger, story: read.Story, action: Action, request: Waiting, trust: Trust, tier: Tier | None) -> tuple[Given, ...]:
    """In the run, and in the mailbox behind its cursor: those the owner has not read yet, with what it will say of them."""
    out = [Given(v.principal, v.decision, True) for v in request.votes]
    async for _, _, raw in ledger.mailbox(story.id, story.run.cursor):
        found = _vote_of(raw, trust)
        if found and found[1].request == request.id and found[1].action == request.digest and found[0] not in _settled(out):
            wrong = why_not(tier, action, found[0], trust, found[1].decision)
            out = [v for v in out if wrong or v.principal != found[0]]
            out.append(Given(found[0], found[1].decision, False, wrong))
    return tuple(out)


def _settled(votes: list[Given]) -> set[str]:
    return {v.principal for v in votes if not v.wrong}


def _vote_of(raw: bytes, trust: Trust) -> tuple[str, ballots.Ballot] | None:
    try:
        message = post.decode(raw)
    except ProofError:
        return None
    if not isinstance(message, post.Vote):
        return None
    found = ballots.check(message.envelope.encode(), trust)
    return None if isinstance(found, str) else found


def refuse_early(a: Asked, principal: str, now: int, decision: str) -> None:
    """What the owner would refuse anyway, said before anything is signed. Raises Refused."""
    where = f"approval {a.id}"
    if a.request.expires <= now:
        raise Refused(
            "this request has expired",
            code="MDM-0334",
            where=where,
            expected=f"before {read.when(a.request.expires)}",
            found=read.when(now),
            why="an answer after the deadline is none",
            fix=f"mandamus resume {a.story.id} judges it again, with nobody's answer as a fact",
        )
    if any(v.principal == principal for v in a.counting):
        raise Refused(
            f"{principal} has voted already",
            code="MDM-0332",
            where=where,
            why="a principal is one voter, with however many keys",
            fix=f"{a.missing} more by others: mandamus show {a.story.id}" if a.missing else f"mandamus resume {a.story.id}",
        )
    _refuse_role(a, principal, decision, where)
    user = a.story.run.genesis.user
    if user and user.principal == principal and (a.tier is None or "requester" in a.tier.sod):
        raise Refused(
            f"{principal} asked for this run",
            code="MDM-0335",
            where=where,
            why="who asks does not approve (separation of duties)",
            fix="somebody else of the chain votes",
        )


def _refuse_role(a: Asked, principal: str, decision: str, where: str) -> None:
    """A vote that nobody would count is not even signed."""
    wrong = why_not(a.tier, a.action, principal, a.trust, decision)
    if not wrong or a.tier is None:
        return
    if wrong == "author":
        what, why, fix = f"{principal} wrote these arguments", "who proposes does not approve", "somebody else of the chain votes"
        raise Refused(what, code="MDM-0335", where=where, why=why, fix=fix)
    what = f"{principal} has not {named(a.tier.of)}"
    if wrong == "veto":
        what = f"{principal} holds a veto and no vote"
    raise Refused(
        what,
        code="MDM-0339",
        where=where,
        expected=named(a.tier.of),
        found=", ".join(a.trust.roles_of(principal)) or "no role",
        why=f"chain {a.request.chain} would not count this vote: nothing was signed",
        fix=enrolling(a.tier, principal) + (f"; a no counts: mandamus reject {a.id} --key FILE" if wrong == "veto" else ""),
    )


# -- the card as text ----------------------------------------------------------------------------------------------------------
def card_text(a: Asked, now: int) -> str:
    """Effect, arguments in full, why you are asked, who has voted."""
    from mandamus.cli.say import look_alikes, shown, value_shown

    q, card = a.request, a.card
    back = "can be taken back" if card.get("reversible") else "cannot be taken back"
    about = "WHAT BECAME OF IT IS UNKNOWN: find out, then say so" if q.about == "outcome" else back
    width = max([len(f["label"]) for f in card["fields"]] + [1])
    rows = [f"{a.id}  {shown(a.action.tool)}: {shown(card['effect'])}", f"  {about}"]
    for field in card["fields"]:
        text = value_shown(field["value"])
        mark = "   (letters of several scripts)" if look_alikes(text) else ""
        rows.append(f"  {shown(field['label']).ljust(width)}  {text}{mark}")
    rows.append("why you are asked")
    rows += [f"  {shown(r['id'])}  {shown(r['text'])}".rstrip() for r in card["rules"]] or ["  no rule is named"]
    who = f" of {a.asks}" if a.asks else ""
    rows.append(f"  chain {q.chain}: {q.quorum} needed{who}, {a.missing} missing; votes: {votes_text(a)}")
    rows.append(f"  ends {read.when(q.expires)} ({read.away(q.expires, now)})")
    return "\n".join(rows)


def votes_text(a: Asked) -> str:
    return ", ".join(f"{v.principal} {v.decision}{_standing(v)}" for v in a.votes) or "none yet"


def _standing(v: Given) -> str:
    wrong = {"role": ", without the role", "veto": ", of who may only say no", "author": ", of the author"}.get(v.wrong, "")
    return "" if v.counted else f" (in the mailbox{wrong})"


def signing_text(ballot: ballots.Ballot, principal: str) -> str:
    rows = [
        "what you sign",
        f"  decision  {ballot.decision}, scope once, as {principal}",
        f"  action    {ballot.action}",
        f"  card      {ballot.card}",
    ]
    if ballot.args:
        rows.append(f"  arguments {ballot.args}")
    return "\n".join([*rows, f"  policy    {ballot.policy}", f"  expires   {read.when(ballot.expires)}"])


def as_object(a: Asked) -> dict[str, Any]:
    q = a.request
    return {
        "about": q.about,
        "asks": list(a.tier.of) if a.tier else None,
        "card": a.card,
        "chain": q.chain,
        "digest": q.digest,
        "expires": q.expires,
        "id": a.id,
        "missing": a.missing,
        "quorum": q.quorum,
        "run_id": a.story.id,
        "tool": a.action.tool,
        "votes": [{"counted": v.counted, "decision": v.decision, "principal": v.principal, "wrong": v.wrong} for v in a.votes],
    }
