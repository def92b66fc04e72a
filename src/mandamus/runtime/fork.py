"""Fork a run: a new run that is recorded until event N, from the answers that its parent got, and live after it.

    session = await fork_run(env, bound, run, at=12)      # then drive(session)

The rule a newcomer would break: the parent's effects are never repeated and never charged again, and its people's votes do not come
along. A vote is for one action of one run; whoever forks behind a vote would hold an intent that nobody allowed there.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.clock import Clock
from mandamus.core.digests import operation_id
from mandamus.core.fold import fold
from mandamus.core.payload import card_digest
from mandamus.core.rules import NotDue, decide
from mandamus.core.run import IN_DOUBT
from mandamus.core.seal import Draft
from mandamus.errors import Conflict, Misuse
from mandamus.proof import mail as post
from mandamus.runtime import mail, people, recover
from mandamus.runtime.env import Bound, Env, ulid
from mandamus.runtime.recording import Recording
from mandamus.runtime.session import Session

_SKIPPED = (r.RunOwned, r.TimePassed, r.ModelPriced)  # the fork has its own owner, its own time and its own price
_BEHIND = (r.Voted, r.StopRequested, r.RunEnded, r.RunSealed, r.RunHalted)


async def fork_run(env: Env, bound: Bound, run: str, at: int, *, input: str | None = None) -> Session:
    """`input` stands for the prompt when `at` is 0, else it is heard as the user's words right after event `at`.

    Raises Misuse, with nothing written, for an event behind which no lawful run can begin.
    """
    parent = await Recording.load(env, run)
    end = _end(parent, at)
    genesis = parent.fact(0)
    prompt = input if input is not None and end == 0 else parent.value(0, "input")
    link = r.Parent(hash=parent.hashes[end], kind="fork", run=run, seq=end)
    user = None if genesis.user is UNSET else genesis.user
    s = await recover.open_run(env, bound, prompt, user=user, parent=link, depth=genesis.depth, grant=genesis.grant)
    try:
        await recover.recall(s)
        _Retold(s, parent).until(end)
        s.authority = env.log.authority
        if not await s.save():
            raise Conflict("authority moved while the run was forked", on="account", fix="try again")
        if input is not None and end > 0:
            await _say(s, input)
        return s
    except BaseException:
        await _abandon(s)
        raise


async def _abandon(s: Session) -> None:
    """A fork that could not be told to its end must not be driven by whoever finds it."""
    s.run, s.position, mark = s.saved
    s.transcript.rewind(mark)
    s.unsaved.clear()
    s.books.changes.clear()
    s.record([Draft(r.RunEnded(state="failed", code="fork"), s.run.turn)])
    await s.save()
    await recover.give_back(s)


# -- how far -----------------------------------------------------------------------------------------------------------------
def _end(parent: Recording, at: int) -> int:
    """The last event of the group that `at` stands in: an answer is never torn. Raises Misuse where a fork would be unlawful."""
    where = f"run {parent.records[0].run} (event {at})"
    if not 0 <= at < len(parent):
        raise Misuse(f"the run has no event {at}", code="MDM-0262", where=where, expected=f"0 to {len(parent) - 1}")
    end = next((n for n in groups(parent) if n >= at), at)
    behind = next((n for n in range(end + 1) if isinstance(parent.fact(n), _BEHIND)), None)
    if behind is not None:
        raise Misuse(
            f"a fork cannot begin behind {parent.records[behind].type}",
            code="MDM-0263",
            where=where,
            why="a vote is for one action of one run, and a run that was stopped or has ended has nothing to go on with",
            fix=f"fork at event {_before(parent, behind)} or earlier",
        )
    if _in_the_air(parent, end):
        raise Misuse(
            f"at event {at} an action of the parent is in the air",
            code="MDM-0264",
            where=where,
            why="the fork would do it again, or could never learn what became of it",
            fix=f"fork at event {_before(parent, end)} or earlier, or behind its outcome",
        )
    return end


def _before(parent: Recording, limit: int) -> int:
    ends = [n for n in groups(parent) if n < limit and not _in_the_air(parent, n)]
    return max(ends, default=0)


def _in_the_air(parent: Recording, end: int) -> bool:
    run = fold(parent.records[: end + 1])
    return any(a.state in IN_DOUBT for a in run.actions.values())


def groups(parent: Recording) -> list[int]:
    """The last event of each group, as far as a fork may go: what followed from one answer stands together."""
    run, n, ends = fold(parent.records[:1]), 1, [0]
    while n < len(parent) and not isinstance(parent.fact(n), _BEHIND):
        size = _skipped(parent, n) or max(1, len(decide(run, parent.given(run, n))))
        run = fold(parent.records[n : n + size], run)
        n += size
        ends.append(min(n, len(parent)) - 1)
    return ends


def _skipped(parent: Recording, n: int) -> int:
    """How many events at `n` a fork does not tell again: none, one, or a time that passed with the tiers that it ended."""
    if not isinstance(parent.fact(n), _SKIPPED):
        return 0
    tiers = 0
    while isinstance(parent.fact(n), r.TimePassed) and isinstance(q := parent.fact(n + tiers + 1), r.ApprovalRequested) and q.tier > 0:
        tiers += 1
    return 1 + tiers


# -- telling it again --------------------------------------------------------------------------------------------------------
class _Retold:
    """Feeds a new session what the parent was given, with ids, operations and digests of the new run."""

    def __init__(self, s: Session, parent: Recording) -> None:
        self.s, self.parent = s, parent
        self.place: dict[int, int] = {0: 0}  # event of the parent → event of the fork

    def until(self, end: int) -> None:
        n = 1
        while n <= end:
            if skipped := _skipped(self.parent, n):
                self._skip(n)
                n += skipped
                continue
            given = self._given(n)
            before = self.s.run.seq
            self.s.take(given)
            n = self._mapped(n, before)

    def _skip(self, n: int) -> None:
        """A takeover doubted what was started; here that is a fact of its own."""
        if isinstance(self.parent.fact(n), r.RunOwned):
            for action in [a for a in self.s.run.actions.values() if a.state == "started" and not a.child]:
                self.s.take(e.Outcome(action=action.id, attempt=action.attempt, kind="doubt", cause="lost", retry_at=self.s.clock().now))

    def _mapped(self, n: int, before: int) -> int:
        """What followed must mean what followed then, or the fork stops before anything is saved."""
        made = self.s.run.seq - before
        for k in range(made):
            record = self.parent.records[n + k]
            self.place[record.seq] = before + 1 + k
            new = self.s.unsaved[len(self.s.unsaved) - made + k].record
            if type(new.fact) is not type(record.fact):
                raise Misuse(f"event {record.seq} does not follow again", code="MDM-0265", expected=record.type, found=new.type)
        if not made:
            raise Misuse(f"event {n} does not follow again", code="MDM-0265", expected=self.parent.records[n].type, found="nothing")
        return n + made

    def _given(self, n: int) -> e.Input:
        try:
            given = self.parent.given(self.s.run, n)
        except NotDue as error:
            raise Misuse(f"event {n} does not follow again: {error}", code="MDM-0265") from None
        match given:
            case e.Rulings():
                return msgspec.structs.replace(
                    given, seq=self.s.run.seq, clock=self._clock(), rulings=tuple(self._verdict(v) for v in given.rulings)
                )
            case e.Reply():
                return msgspec.structs.replace(given, proposals=tuple(self._proposal(p) for p in given.proposals))
            case e.Steps():
                return msgspec.structs.replace(given, proposals=tuple(self._proposal(p) for p in given.proposals))
            case e.Prepared():
                return msgspec.structs.replace(given, clock=self.s.clock(), manifest=[self._item(x) for x in given.manifest or ()])
            case e.Mail():
                ref = r.MailRef(cursor=0, key=given.ref.key)  # a place in the parent's mailbox
                return msgspec.structs.replace(given, clock=self.s.clock(), ref=ref)
            case e.Outcome():
                return msgspec.structs.replace(given, spends=())  # the parent has paid
            case _:
                return given

    def _clock(self) -> Clock:
        """Policy's clock is the newest recorded one."""
        return self.s.run.clock or self.s.run.genesis.clock

    def _item(self, item: list[Any]) -> list[Any]:
        return [item[0], self.place[item[1]], item[2]]

    def _proposal(self, p: e.Proposal) -> e.Proposal:
        return p if p.repeats is None else msgspec.structs.replace(p, repeats=self.place[p.repeats])

    def _verdict(self, v: e.Ruling) -> e.Ruling:
        action = self.s.run.actions[v.action]
        operation = operation_id(args=action.args, call=action.call, run=self.s.run.id, tool=action.tool) if v.operation else ""
        request = None if v.request is None else self._request(v.request, v)
        return msgspec.structs.replace(v, operation=operation, reserves=(), votes=(), request=request)

    def _request(self, q: e.Request, v: e.Ruling) -> e.Request:
        """Asked anew in the new run: people may answer this one."""
        s = self.s
        action = s.run.actions[v.action]
        id, digest, now = ulid(s.env.time), people.digest_of(s, action), self._clock().now
        card = {**q.card, "action": digest, "expires": now + sum(q.deadlines_ms) * 1000, "request": id}
        secret = next(p.bytes[:32] for x in s.unsaved for p in x.payloads if (p.seq, p.part) == (action.seq, "args"))
        return msgspec.structs.replace(
            q, id=id, digest=digest, card=card, card_digest=card_digest(secret, card), policy=s.bound.book.digest
        )


async def _say(s: Session, text: str) -> None:
    """The new words, as any user's words come: by mail, vouched for by the front end."""
    signer, genesis = s.env.home.signer("frontend"), s.run.genesis
    principal = genesis.user.principal if genesis.user is not UNSET else "p-local"
    said = post.say(
        text,
        secret=s.env.time.entropy(32),
        nonce=s.env.time.entropy(16).hex(),
        origin=s.env.origin,
        principal=principal,
        run=s.run.id,
        signer=signer.sign,
        keyid=signer.keyid,
    )
    await s.env.ledger.send(s.run.id, post.encode(said))
    await mail.look(s)
