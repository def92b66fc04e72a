"""Open a run, or take one over: own first, fold, say so in the chain, read the mail, and only then ask what is due.

The fold comes from the records alone, each checked against its hash; what another process was doing is doubted, never assumed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec import UNSET

from mandamus.core import records as r
from mandamus.core.accounts import REGISTER, Balance
from mandamus.core.clock import Clock, rfc3339
from mandamus.core.digests import ownership
from mandamus.core.records import EMPTY_ROOT, genesis_prev
from mandamus.core.rules import owned
from mandamus.core.run import EMPTY
from mandamus.core.seal import Content, Draft, Position, seal
from mandamus.errors import Conflict, Misuse, ProofError, Unavailable
from mandamus.ports import AccountWrite, Head, Ordered, Wake
from mandamus.proof.chain import Walk, further
from mandamus.proof.keys import b64
from mandamus.proof.life import Life
from mandamus.runtime import mail, owed, prepare, sealing, threads
from mandamus.runtime.away import elsewhere, refusal
from mandamus.runtime.env import Bound, Env, Line, ulid
from mandamus.runtime.lease import claimed
from mandamus.runtime.session import Session

ISOLATION = "in_process"
OPENINGS_MAX = 64  # tries to take the next number of the register
PAGE = 256  # records are verified and folded in batches, and let go


async def open_run(
    env: Env, bound: Bound, prompt: str, *, run_id: str = "", user: r.User | None = None, pool: str = "", prio: int | None = None,
    hold: bool = True, **genesis: Any,
) -> Session:  # fmt: skip
    """A new run: its genesis takes the next register number in the same append. Raises Conflict when `run_id` exists.

    `hold` False: nobody owns it, and a worker of `pool` takes it; who has the higher `prio` goes first.
    """
    env.log.refuse_elsewhere()
    id = run_id or ulid(env.time)
    sealing.begins(env, bound, id, user is not None)
    for n in range(OPENINGS_MAX):
        if n > 1:  # another process is always first: not in step with it, then
            jitter = int.from_bytes(env.time.entropy(2), "big") % (1_000 << min(n, 6))
            await env.time.sleep_until(env.time.now() + jitter)
        try:
            async with _turn(env):
                s = await _open(env, bound, prompt, id, user, hold, pool, prio, genesis)
        except Conflict as conflict:
            if conflict.on == "account":
                continue
            raise
        return await _hold(s) if hold else s
    raise Conflict("the register of this ledger is busy", on="account", fix="try again")


def _turn(env: Env) -> contextlib.AbstractAsyncContextManager[None]:
    """Of two that read one register, one would be refused; each in its turn is not. A ledger that keeps their order takes both at once."""
    ordered = isinstance(env.ledger, Ordered) and env.ledger.in_order
    return contextlib.nullcontext() if ordered else env.turnstile


async def _open(
    env: Env, bound: Bound, prompt: str, id: str, user: r.User | None, hold: bool, pool: str, prio: int | None, genesis: dict[str, Any]
) -> Session:
    anchor = await env.tlog.anchor() if env.tlog else r.Anchor(root=EMPTY_ROOT, size=0)
    line = env.line or await _register(env)
    before = line.register
    fact = r.RunOpened(
        agent=bound.spec.name, anchor=anchor, budget=bound.spec.budget, clock=env.clock(bound.spec.timezone),
        default=bound.book.default, definition=bound.definition, environment=bound.spec.environment, isolation=ISOLATION,
        manifest=bound.manifest, nonce=env.time.entropy(16).hex(), origin=env.origin,
        plugins=tuple(f"{name}@{version}:{digest}" for name, version, digest in bound.spec.plugins), policy=bound.book.digest,
        profile=bound.spec.profile, register=r.Register(number=before.version + 1, prev=before.hash), tenant=env.tenant, tier=env.tier,
        trusted_code=bound.trusted_code, user=UNSET if user is None else user, **genesis,
    )  # fmt: skip
    actor = r.Actor(agent=bound.spec.name, principal=user.principal if user else "p-local", runtime=bound.definition)
    position = Position(id, -1, genesis_prev(id, fact), 1)
    drafts = [Draft(fact, 0, (Content("input", prompt),), actor)]
    if bound.spec.price is not UNSET:
        drafts.append(Draft(r.ModelPriced(price=bound.spec.price), 0))
    sealed, position = seal(drafts, position, rfc3339(env.time.now()), env.salts)
    after, delta = before.plus(id, 0)
    also = [AccountWrite(after.id, after.version, after.hash, 0, 0, delta, id, 0, before.hash)]
    s = Session(env, bound, EMPTY, position, None)
    for one in sealed:
        s.fold_in(one.record, one.hash)
    s.values[(0, "input")] = prompt
    s.unsaved = sealed  # a genesis of which nobody knows whether it stands would be driven by a worker, and begun a second time by its user
    with _joined(env, line, after):
        s.head = await s.write([x.raw for x in sealed], list(sealed[0].payloads), also, _first_wake(s, hold, pool, prio))
    s.unsaved = []
    s.saved = (s.run, s.position, s.transcript.mark())
    return s


async def _register(env: Env) -> Line:
    """As stored, or as those who were faster lead to."""
    account = await env.ledger.account(REGISTER)
    stored = Balance(REGISTER) if account is None else Balance(REGISTER, account.version, account.hash, account.reserved, account.spent)
    return env.line or Line(stored)


@contextlib.contextmanager
def _joined(env: Env, line: Line, after: Balance) -> Iterator[None]:
    """From the block's append on, whoever opens a run counts on from `after`; nothing may wait between reading the line and joining it."""
    env.line, line.register, line.size = line, after, line.size + 1
    try:
        yield
    except BaseException:
        _leave(env, line)
        raise
    finally:
        line.size -= 1
        if not line.size:
            _leave(env, line)


def _leave(env: Env, line: Line) -> None:
    """Whoever comes reads the register as stored. Another line may stand there by now."""
    if env.line is line:
        env.line = None


def _first_wake(s: Session, hold: bool, pool: str, prio: int | None) -> Wake:
    """Whoever means to drive it claims it next: until then no worker is to think that nobody does."""
    now = s.env.time.now()
    return Wake(now + s.env.lease_ms * 1000 if hold else now, 0, "running", pool, prio)


async def _hold(s: Session) -> Session:
    """Take the lease, so that nobody else takes the run for dead."""
    held = await s.env.ledger.claim("default", s.env.lease_ms, run=s.run.id)
    if held is None:
        raise Conflict(f"run {s.run.id} could not be claimed", on="run")
    if s.head is not None and held.hash != s.head.hash:
        await s.env.ledger.renew(held, 0)
        raise Conflict(
            f"another process drove run {s.run.id} before it could be claimed", on="run", head=held, fix="mandamus show " + s.run.id
        )
    s.head = held
    s.live = held
    return s


async def read_run(env: Env, bound: Bound, run: str, at: r.Parent | None = None, held: Head | None = None) -> Session:
    """Fold a stored run, checking every hash and step, without owning it. With `at`: as it stood at that event, and not a word later;
    with `held`: as it stood when it was claimed.

    Raises Misuse when there is none, ProofError when it is broken.
    """
    head = held or await env.ledger.head(run)
    if head is None:
        raise Misuse(f"there is no run {run}", code="MDM-0250", fix="mandamus runs")
    if at is not None:
        head = msgspec.structs.replace(head, seq=at.seq, hash=at.hash)
    s = Session(env, bound, EMPTY, Position(run, -1, "", 1), head)
    fold_in, moving = s.fold_in, owed.KINDS

    def believe(record: r.AnyRecord, hash: str) -> None:
        fold_in(record, hash)
        if type(record.fact) in moving and owed.moves(s.run, record.fact):
            s.moved.append(record)

    walked, page = Walk([], Life(head.seq + 1), run=run), list[bytes]()
    async for raw in env.ledger.read(run, upto=head.seq):
        page.append(raw)
        if len(page) == PAGE:
            further(walked, page, each=believe)
            page.clear()
    further(walked, page, each=believe)
    _refuse_broken(walked, head)
    s.recalled = not s.tools_of  # nothing was proposed yet: there is nothing that could be repeated
    s.position = Position(run, s.run.seq, walked.head, s.run.epoch)
    s.saved = (s.run, s.position, s.transcript.mark())
    return s


def _refuse_broken(walked: Walk, head: Head) -> None:
    """Nothing is done with a chain that somebody changed, nor with one that our rules cannot have made."""
    if (f := walked.fault) is not None:
        raise ProofError(
            f"event {f.event} cannot stand where it stands: {f.what}", code=f.code, where=f"run {head.run} ({f.where})",
            expected=f.expected[:12], found=f.found[:12], fix=f.fix,
            why=f.why or "somebody changed the stored chain: nothing is done with it",
        )  # fmt: skip
    if walked.head != head.hash:
        raise ProofError(
            f"the last event of run {head.run} is not the one its head names", code="MDM-0642", expected=head.hash[:12],
            found=walked.head[:12], why="the end of the chain was cut or changed",
        )  # fmt: skip


async def take_over(env: Env, bound: Bound, run: str, held: Head | None = None) -> Session:
    """Own a run; `held`: its lease, when it was claimed already. Raises Conflict (nothing written) while another process holds it."""
    held = held or await env.ledger.claim("default", env.lease_ms, run=run)
    if held is None:
        raise Misuse(f"there is no run {run}", code="MDM-0250", fix="mandamus runs")
    async with ours(env, held):
        await refuse_elsewhere(env, held)
        await sealing.found(env, held.run)
        s = await read_held(env, bound, held)
        if s.run.life == "sealed":
            return s
        await recall(s)
        await _say_so(s)
        s.books.owed = await owed.missing(s, s.moved) if s.moved else []  # no earlier owner settles any more
        if s.head is not None and s.head.mail > s.run.cursor:
            await mail.drain(s)
        return s


async def read_held(env: Env, bound: Bound, held: Head) -> Session:
    """The fold of a run as it was claimed. An earlier owner that wrote once more, before it heard that its lease ran out, is met by the
    first append. Raises Conflict when the ledger has taken back what the claim said: it was promoted from a copy that lacks it."""
    try:
        s = await read_run(env, bound, held.run, held=held)
    except ProofError:
        head = await env.ledger.head(held.run)
        if head is None or head.hash == held.hash:
            raise
        what = f"another process drove run {held.run} before it could be read"
        raise Conflict(what, on="run", head=head, fix="mandamus show " + held.run) from None
    s.live = held
    return s


@asynccontextmanager
async def ours(env: Env, held: Head) -> AsyncIterator[None]:
    """The lease is kept while the block lasts, and given back when it fails; behind it, whoever takes the run over answers for that.

    A ledger that did not answer says nothing about the run: such a claim counts as no try.
    """
    try:
        async with claimed(env, held):
            yield
    except BaseException as error:
        tries = held.tries - isinstance(error, Unavailable)
        with contextlib.suppress(Conflict, Unavailable):
            await env.ledger.renew(msgspec.structs.replace(held, tries=tries), 0)
        raise


async def refuse_elsewhere(env: Env, held: Head) -> None:
    """A run that was copied to another ledger is driven there; mail that still comes here wakes nobody."""
    if elsewhere(held.state):
        await env.ledger.append(held.run, held, [], wake=Wake(None, held.mail, held.state))
        raise refusal(f"run {held.run}", held.state)
    env.log.refuse_elsewhere()


async def _say_so(s: Session) -> None:
    own(s, s.clock())
    await s.save()


def own(s: Session, clock: Clock) -> None:
    """The records of a takeover, behind all that is stored; the next append writes them."""
    nonce, epoch = ulid(s.env.time), s.run.epoch + 1
    statement = ownership(epoch=epoch, nonce=nonce, origin=s.run.genesis.origin, prev=s.run.head, run=s.run.id, worker=s.env.worker)
    fact = r.RunOwned(clock=clock, nonce=nonce, signature=b64(s.env.signer.sign(statement)), worker=s.env.worker)
    s.position = Position(s.run.id, s.run.seq, s.run.head, epoch)
    s.record(owned(s.run, fact))


async def recall(s: Session) -> None:
    """Put the history of the thread's earlier run, as it stood then, before the new input. Labels and order stay those of that run.

    A fork carries its own history, and continues the thread that its parent continued. A thread may be thousands of runs long.
    """
    line = [s]
    while (parent := line[-1].run.genesis.parent) is not UNSET and parent.kind != "handoff":
        line.append(await read_run(s.env, s.bound, parent.run, parent))
    earlier = line.pop()
    while line:
        later = line.pop()
        parent = later.run.genesis.parent
        if parent is not UNSET and parent.kind == "thread":
            earlier.transcript.close_turn()
            await prepare.join(earlier, earlier.transcript.items[earlier.joined :])
        later.messages, later.tokens, later.replies = list(earlier.messages), earlier.tokens, earlier.replies
        earlier = later


async def give_back(s: Session) -> None:
    """Let others own the run. While a thread of one of its tools still acts, nobody may: the lock is kept until that has ended."""
    if s.live is None or s.head is None:
        return
    s.live = None
    try:
        await owed.settle(s)
        await _wake_parent(s)
    finally:  # whoever is cancelled here gives the run back all the same: nothing else would, while this process lives
        if threads.busy(s.run.id):
            s.env.lingering[s.run.id] = asyncio.get_running_loop().create_task(_when_quiet(s.env, _rested(s, s.head)))
        else:
            with contextlib.suppress(Conflict):  # its lease ran out, and there is nothing to give back
                await s.env.ledger.renew(_rested(s, s.head), 0)


def _rested(s: Session, head: Head) -> Head:
    """As it is given back. Whoever brought it to a wait has proved that it is no poison; whoever was asked to go has at least not died."""
    if head.state != "running":
        return msgspec.structs.replace(head, tries=0)
    return msgspec.structs.replace(head, tries=max(0, head.tries - 1)) if s.env.leaving else head


async def _wake_parent(s: Session) -> None:
    """A run that waits for this child wants to be looked at when it has ended. A hint: what the child answers is read from its chain."""
    parent = s.run.genesis.parent
    if s.run.life != "sealed" or parent is UNSET or parent.kind != "handoff":
        return
    with contextlib.suppress(Conflict, Unavailable):  # somebody moved it: it is looked at already
        head = await s.env.ledger.head(parent.run)
        if head is not None and head.state == "child":
            await s.env.ledger.append(parent.run, head, [], wake=Wake(0, head.mail, "child"))


async def _when_quiet(env: Env, head: Head) -> None:
    while threads.busy(head.run):
        await asyncio.sleep(threads.QUIET_S)
    env.lingering.pop(head.run, None)
    with contextlib.suppress(Conflict):
        await env.ledger.renew(head, 0)
