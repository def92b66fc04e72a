"""One run in one process: its fold, the facts not saved yet, the effects in flight. `take` decides, seals and folds; `save` is the barrier.

The rule a newcomer would break: nothing unsaved is shown to anybody, and what an append refused is rolled back, never patched.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mandamus.context.transcript import STEPS, Mark, Transcript
from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.clock import Clock, rfc3339
from mandamus.core.fold import evolve
from mandamus.core.messages import Message
from mandamus.core.payload import SALT, Payload, opened
from mandamus.core.rules import NotDue, decide, due, wakes
from mandamus.core.run import Run
from mandamus.core.seal import Draft, Position, Sealed, seal
from mandamus.errors import Conflict, ProofError, Unavailable
from mandamus.ports import AccountCheck, AccountWrite, Head, Wake
from mandamus.runtime.books import Books
from mandamus.runtime.env import Bound, Env

_URGENT = frozenset((r.Voted, r.StopRequested, r.MessageReceived, r.MessageRefused, r.CapabilityChecked, r.RunHalted, r.ApprovalRequested))
_MOVES = frozenset((r.ActionStarted, r.ActionEnded))
_STOPS = frozenset((r.RunHalted, r.StopRequested))
_OUTCOMES = frozenset((r.ActionEnded, r.ActionDoubted))
_JOINED = frozenset(("input", "text", "reply", "output", "args", "ballot", "card"))
POLL_S = 0.25
PRELOAD_MIN = 8
SETTLES_MAX = 50
AT_ONCE = (0.0, 0.0, None)  # pauses between the tries of one append: None is the last
OUTAGE_S = (0.1, 0.4, 1.0, 2.0, 3.0, 4.0, None)  # longer than a store takes to choose another leader
ENOUGH_S = 25.0


class Past(Struct, frozen=True, gc=False):
    """How an action of an earlier turn ended, by reference: `seq` is its proposal, `out` the record of its output or -1."""

    tool: str
    state: str
    code: str
    seq: int
    out: int


class Session:
    def __init__(self, env: Env, bound: Bound, run: Run, position: Position, head: Head | None) -> None:
        self.env, self.bound, self.run, self.position, self.head = env, bound, run, position, head
        self.transcript = Transcript()
        self.unsaved: list[Sealed] = []
        self.flying: dict[e.Effect, asyncio.Future[e.Input]] = {}
        self.at_once = 0  # effects that were begun in the task of the drive
        self.books = Books(env)
        self.authority = 0
        self.urgent = False
        self.values: dict[tuple[int, str], Any] = {}
        self.commits: dict[tuple[int, str], str] = {}
        self.subjects: dict[int, str] = {}  # whose data a proposal is about: pseudonyms, by its event
        self.messages: list[Message] = []
        self.replies = 0
        self.joined = 0
        self.tokens = 0
        self.inbox: list[tuple[e.Input, asyncio.Future[bool]]] = []
        self.deaf = False  # nobody drives any more, or will hear what is handed in
        self.landed: list[e.Effect] = []
        self.parked: dict[e.Effect, int | None] = {}  # what waits for a child run, and when that one wants to be looked at
        self.moved: list[r.AnyRecord] = []  # of a stored run: what moved accounts
        self.doubts: dict[str, int] = {}
        self.bell: asyncio.Future[bool] | None = None
        self.ticker: asyncio.TimerHandle | None = None
        self.watching: list[Callable[[str, str, float | None], None]] = []
        self.proposed: dict[tuple[str, bytes], int] = {}
        self.recalled = True  # whether `proposed` holds all of the run: not yet, when another process began it
        self.tools_of: dict[int, str] = {}
        self.past: dict[str, Past] = {}
        self.watchers: dict[str, asyncio.Future[None]] = {}
        self.subscribers: list[Any] = []
        self.saved: tuple[Run, Position, Mark] = (run, position, self.transcript.mark())
        self.live: Head | None = None
        self.renewed = 0.0  # when the lease was last confirmed, by the clock of lease.py
        self.carry: Callable[[Session], Awaitable[None]] | None = None
        self._due: tuple[Run | None, list[e.Effect]] = (None, [])

    # -- taking an answer ----------------------------------------------------------------------------------------------------
    def take(self, given: e.Input) -> bool:
        """decide → seal → fold. False: it is no longer asked for (the run ended meanwhile) and leaves no fact."""
        try:
            drafts = decide(self.run, given)
        except NotDue:
            return False
        if type(given) is e.Rulings:
            self._rest_on(given, drafts)
        self.record(drafts)
        return True

    def _rest_on(self, given: e.Rulings, drafts: Sequence[Draft]) -> None:
        """What its intents rest on goes along with them: the accounts and the authority, as they were read."""
        for draft in drafts:
            if type(draft.fact) is r.ActionStarted:
                for b in given.read:
                    self.books.read[b.id] = b
                self.authority = min([x.authority for x in given.rulings])
                return

    def record(self, drafts: Sequence[Draft]) -> None:
        if not drafts:
            return
        sealed, self.position = seal(drafts, self.position, rfc3339(self.env.time.now()), self.env.salts)
        for draft, one in zip(drafts, sealed, strict=True):
            record = one.record
            kind = type(record.fact)
            if kind in _MOVES or kind in _STOPS:
                self.books.note(self.run, one)
            self.fold_in(record, one.hash)
            if kind in _URGENT or (kind in _OUTCOMES and _irreversible(self.run, record.fact)):
                self.urgent = True
            if draft.body:
                self._keep(draft, one)
        self.unsaved += sealed

    def _keep(self, draft: Draft, one: Sealed) -> None:
        """The values that a prompt is joined from, until it was; and what was proposed, to know a repeat."""
        seq = one.record.seq
        for content, payload in zip(draft.body, one.payloads, strict=True):
            if content.part in _JOINED:
                # As it is stored, not as it was handed in: the next process must see the same order of keys, and so the same prompt.
                self.values[seq, content.part] = msgspec.json.decode(payload.bytes[SALT:])
            if content.part == "args" and seq in self.tools_of:
                self.proposed[self.tools_of[seq], payload.bytes[SALT:]] = seq

    def fold_in(self, record: r.AnyRecord, hash: str) -> None:
        fact = record.fact
        kind = type(fact)
        if kind is r.TurnStarted:  # the fold lets go of the last turn's actions here
            for a in self.run.actions.values():
                self.past[a.id] = Past(a.tool, a.state, a.code, a.seq, a.out)
        self.run = evolve(self.run, record, hash)
        if kind in STEPS:
            STEPS[kind](self.transcript, record, fact)
        if kind is r.ActionProposed and not fact.fault:  # type: ignore[attr-defined]
            self.tools_of[record.seq] = fact.tool  # type: ignore[attr-defined]
        for part in record.body or ():
            if part.part in _JOINED:
                self.commits[record.seq, part.part] = part.commit
                if part.subject is not UNSET and kind is r.ActionProposed:
                    self.subjects[record.seq] = part.subject

    def due(self) -> list[e.Effect]:
        """What is due, asked once for each state of the run."""
        if self._due[0] is not self.run:
            self._due = self.run, due(self.run)
        return self._due[1]

    # -- the barrier ---------------------------------------------------------------------------------------------------------
    async def save(self) -> bool:
        """One append of everything unsaved. False: an account moved, what rested on it was rolled back and must be judged again."""
        self.urgent = False
        if not self.unsaved:
            return True
        starts = False
        for x in self.unsaved:
            starts = starts or type(x.record.fact) is r.ActionStarted
        sealed = self.run.life == "sealed"
        tries = SETTLES_MAX if sealed else 3
        for attempt in range(tries + 1):
            try:
                await self._append(starts, settle=attempt < tries)
                return True
            except Conflict as conflict:
                if conflict.on != "account":
                    raise
                self.books.forget()
                if starts:
                    await self._roll_back()
                    return False
                if sealed and attempt == tries - 1 and not self._unseal():
                    return True
        raise AssertionError("an append without accounts cannot conflict on one")

    async def _append(self, starts: bool, settle: bool) -> None:
        raws = [x.raw for x in self.unsaved]
        payloads: list[Payload] = []
        for x in self.unsaved:
            payloads += x.payloads
        also: list[AccountWrite | AccountCheck] = []
        if settle and (self.books.changes or self.books.owed):
            also += await self.books.writes(self.run.id)
        if starts:
            also += self.books.checks(self.authority, also)
        at, word = wakes(self.run, self.due(), self.parked)
        wake = Wake(at, self.run.cursor, word)
        self.head = await self.write(raws, payloads, also, wake)
        done, self.unsaved = self.unsaved, []
        self.books.appended(also, settle)
        self.saved = (self.run, self.position, self.transcript.mark())
        for subscriber in self.subscribers:
            subscriber(done)
        if self.watchers:
            self.tell_watchers()

    async def say_waiting(self) -> None:
        """The head row says that the run waits for its children, and nobody claims it in vain. A hint: nothing rests on it."""
        at, word = wakes(self.run, self.due(), self.parked)
        if self.head is None or self.unsaved or (self.head.wake_at, self.head.state) == (at, word):
            return
        with contextlib.suppress(Unavailable):
            self.head = await self.env.ledger.append(self.run.id, self.head, [], wake=Wake(at, self.run.cursor, word))

    async def write(self, raws: list[bytes], payloads: list[Payload], also: Sequence[AccountWrite | AccountCheck], wake: Wake) -> Head:
        """An unknown outcome is resolved before anything else: read the head, resend the same bytes, or believe after a later write.

        A server may be choosing another leader: it is waited for, with growing pauses. A file that fails is not.
        """
        ledger, doubted, began = self.env.ledger, False, asyncio.get_running_loop().time()
        fault: Unavailable | Conflict
        for pause in AT_ONCE if ledger.locks else OUTAGE_S:
            try:
                return await ledger.append(self.run.id, self.head, raws, payloads=payloads, also=also, wake=wake, seals=self.unsaved)
            except Unavailable as lost:
                if lost.outcome == "none" and ledger.locks:
                    raise
                doubted, fault = doubted or lost.outcome == "unknown", lost
            except Conflict as refused:
                if not doubted or refused.on != "run":
                    raise
                fault = refused  # a resend may meet its own first attempt, which came through after all
            if asyncio.get_running_loop().time() - began > ENOUGH_S:
                raise fault  # a store that takes so long for one answer is not choosing a leader
            if doubted and (found := await self._came_through(fault)) is not None:
                return found
            if pause is None:
                raise fault  # it says what is wrong with the ledger, and what helps
            await asyncio.sleep(pause)
        raise AssertionError("the last fault is raised")

    async def _came_through(self, fault: Unavailable | Conflict) -> Head | None:
        """The head, when it is what we sent. None: it stands where it stood, or nobody can say. Raises Conflict when it is foreign."""
        try:
            now = await self.env.ledger.head(self.run.id)
        except Unavailable:
            return None
        if now is not None and now.hash == self.unsaved[-1].hash:
            return now
        if (now.hash if now else None) != (self.head.hash if self.head else None):
            raise Conflict("another process wrote this run", on="run", head=now, fix="mandamus show " + self.run.id) from fault
        return None

    async def _roll_back(self) -> None:
        """Back to the last saved state, plus everything unsaved before the first judgement; that one is void."""
        cut = next((i for i, x in enumerate(self.unsaved) if isinstance(x.record.fact, r.ActionJudged)), len(self.unsaved))
        self._rewind(cut)
        await self.env.log.refresh()
        self.env.log.refuse_elsewhere()

    def _unseal(self) -> bool:
        """A run is not sealed while an account has not heard of what it spent: behind the seal nothing could carry it any more.

        False: nothing else is unsaved. Whoever takes the run over settles what is owed, and seals.
        """
        self._rewind(len(self.unsaved) - 1)
        self.parked.update(dict.fromkeys(self.due(), 0))
        return bool(self.unsaved)

    def _rewind(self, cut: int) -> None:
        """Back to the last saved state, plus the first `cut` of what is unsaved."""
        kept = self.unsaved[:cut]
        self.run, self.position, mark = self.saved
        self.transcript.rewind(mark)
        self.unsaved, self.books.changes = [], []
        for one in kept:
            self.books.note(self.run, one)
            self.fold_in(one.record, one.hash)
            self.unsaved.append(one)
            self.position = Position(self.run.id, one.record.seq, one.hash, self.position.epoch)

    async def unstart(self) -> None:
        """Take back unsaved intents: nobody will carry them out, and nothing may say that they could have been."""
        if any(isinstance(x.record.fact, r.ActionStarted) for x in self.unsaved):
            await self._roll_back()

    def tell_watchers(self) -> None:
        """Wake tools that wait for the end of an action they proposed."""
        for id, future in list(self.watchers.items()):
            action = self.run.actions.get(id)
            if self.deaf or action is None or action.closed or self.run.life != "running":
                self.watchers.pop(id)
                if not future.done():
                    future.set_result(None)

    # -- effects in flight -------------------------------------------------------------------------------------------------
    def launch(self, effect: e.Effect, work: Coroutine[Any, Any, e.Input]) -> None:
        self.flying[effect] = task = asyncio.get_running_loop().create_task(self._fly(effect, work))
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, nobody else would

    async def _fly(self, effect: e.Effect, work: Coroutine[Any, Any, e.Input]) -> e.Input:
        """Rings from inside the task: a callback of the task would wake the loop one turn of the event loop later."""
        try:
            return await work
        finally:
            self.landed.append(effect)
            self.ring()

    def land_here(self, effect: e.Effect) -> asyncio.Future[e.Input]:
        """A place for what an effect comes to that no task carried out."""
        place = self.flying[effect] = asyncio.get_running_loop().create_future()
        self.landed.append(effect)
        return place

    def hand_in(self, given: e.Input, heard: asyncio.Future[bool]) -> None:
        """From a running tool into the loop."""
        self.inbox.append((given, heard))
        if self.deaf:
            self.deafen()
        self.ring()

    def deafen(self) -> None:
        """Whoever still waits to be heard, or for the end of an action, is told that this is over: a tool may outlive its call."""
        self.deaf = True
        for _, heard in self.inbox:
            if not heard.done():
                heard.set_result(False)
        self.inbox.clear()
        self.tell_watchers()

    def ring(self, news: bool = True) -> None:
        if self.bell and not self.bell.done():
            self.bell.set_result(news)

    async def listen(self) -> bool:
        """Wait until something landed or was handed in. False: the clock ticked, nothing did."""
        if self.landed or self.inbox:
            return True
        loop = asyncio.get_running_loop()
        self.bell = loop.create_future()
        if self.ticker is None:
            self.ticker = loop.call_later(POLL_S, self._tick)
        try:
            return await self.bell
        finally:
            self.bell = None

    def _tick(self) -> None:
        """One timer for the whole run, not one for each wait: cancelled timers pile up in the loop."""
        self.ticker = asyncio.get_running_loop().call_later(POLL_S, self._tick)
        self.ring(False)

    async def land(self) -> None:
        """Whatever ended the loop, nothing of it goes on behind its back."""
        self.deafen()
        if self.ticker is not None:
            self.ticker.cancel()
            self.ticker = None
        tasks = list(self.flying.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        self.flying.clear()
        self.landed.clear()

    # -- payloads ------------------------------------------------------------------------------------------------------------
    async def value(self, seq: int, part: str) -> Any:
        """A payload's value, its commitment recomputed when it comes from the ledger. Raises ProofError when it is another one or gone."""
        key = seq, part
        if key in self.values:
            return self.values[key]
        return opened(await self._payload(seq, part), self.commits[(seq, part)])

    async def secret(self, seq: int, part: str) -> bytes:
        """S of a payload, from the unsaved facts or the ledger."""
        payload = await self._payload(seq, part)
        opened(payload, self.commits[(seq, part)])
        return payload.bytes[:SALT]

    async def preload(self, wanted: set[tuple[int, str]]) -> None:
        """The same for many at once, in one pass over the stored payloads. What is not there is left to `value`, which says so."""
        missing = {key for key in wanted if key not in self.values}
        if len(missing) < PRELOAD_MIN:
            return
        first, last = min(missing)[0], max(missing)[0]
        async for p in self.env.ledger.payloads(self.run.id, first - 1, tuple({part for _, part in missing})):
            if p.seq > last:
                return
            if (p.seq, p.part) in missing:
                self.values[p.seq, p.part] = opened(p, self.commits[p.seq, p.part])

    async def _payload(self, seq: int, part: str) -> Payload:
        for one in reversed(self.unsaved):
            for p in one.payloads:
                if (p.seq, p.part) == (seq, part):
                    return p
        payload = await self.env.ledger.payload(self.run.id, seq, part)
        if payload is None:
            raise ProofError(f"payload {part!r} of event {seq} is gone", code="MDM-0611", where=f"run {self.run.id} (event {seq})")
        return payload

    async def repeats(self, tool: str, args: bytes) -> int | None:
        """seq of an equal earlier proposal of this run, by canonical arguments; only the number is ever recorded."""
        if not self.recalled:
            earlier: dict[tuple[str, bytes], int] = {}
            async for p in self.env.ledger.payloads(self.run.id, parts=("args",)):
                if p.seq in self.tools_of:
                    opened(p, self.commits[(p.seq, "args")])
                    earlier[(self.tools_of[p.seq], p.bytes[SALT:])] = p.seq
            self.proposed, self.recalled = earlier | self.proposed, True  # at once: nobody may meet a table that is half read
        return self.proposed.get((tool, args))

    def clock(self) -> Clock:
        return self.env.clock(self.bound.spec.timezone, self.run.clock.now if self.run.clock else 0)


def _irreversible(run: Run, fact: r.Fact) -> bool:
    """An irreversible outcome is saved at once; so is the result of a call that a running tool waits for."""
    action = run.actions[fact.action]  # type: ignore[attr-defined]
    return action.effect == "irreversible" or bool(action.parent)
