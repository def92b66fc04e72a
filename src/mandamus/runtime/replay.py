"""Strict replay: `replay(env, agent, run) -> ReplayReport`. Recompute a stored run from the answers it got, and compare what it means.

The core decides again, prompts are compiled again, replies are read again, engines judge again on the recorded facts; what follows must
be what was recorded. The rule a newcomer would break: nothing is executed, asked or written here. Tools and models are never called, and
guardrails and votes count as recorded, since keys and people of today say nothing about that day (`verify` checks signatures).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from mandamus.core import effects as e
from mandamus.core import facts as f
from mandamus.core import records as r
from mandamus.core.accounts import Balance
from mandamus.core.canonical import canon, digest, parse
from mandamus.core.clock import Clock
from mandamus.core.definition import ToolSpec
from mandamus.core.records import BodyPart, Record
from mandamus.core.rules import NotDue, decide, due, owned
from mandamus.core.run import EMPTY, Action, Waiting, decision_of, levels
from mandamus.core.seal import Draft, Position
from mandamus.core.semantic import differences, meaning, semantic_hash
from mandamus.errors import Misuse
from mandamus.runtime import ask, judge, prepare
from mandamus.runtime.env import Bound, Env
from mandamus.runtime.judge import Gathered, Judging
from mandamus.runtime.recording import Recording
from mandamus.runtime.recover import recall
from mandamus.runtime.session import Session

# Beside what an event means: fields that follow from the fold alone, so that replay can demand them to the letter.
EXACT: dict[str, tuple[str, ...]] = {
    "ActionProposed": ("repeats",),
    "ActionStarted": ("operation", "child", "reserves"),
    "ApprovalRequested": ("digest", "expires", "until"),
    "RunSealed": ("count", "head", "state"),
}


class Divergence(Struct, frozen=True, kw_only=True):
    """`expected` is what was recorded, `found` what follows now; of payloads only digests are shown."""

    event: int
    type: str
    field: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"event {self.event} {self.type}: {self.field}: recorded {self.expected or '-'}, now {self.found or '-'}"


class ReplayReport(Struct, frozen=True, kw_only=True):
    """`hashes`: what the run means, event by event, without housekeeping. `ok`: the same follows again."""

    run: str
    events: int
    compared: int
    sealed: bool
    hashes: tuple[str, ...]
    divergences: tuple[Divergence, ...]

    @property
    def ok(self) -> bool:
        return not self.divergences

    @property
    def first(self) -> Divergence | None:
        return self.divergences[0] if self.divergences else None

    def text(self) -> str:
        state = "sealed" if self.sealed else "open"
        if self.ok:
            return (
                f"run {self.run} replays: {self.events} events ({state}), {len(self.hashes)} compared, all the same. Nothing was executed."
            )
        return "\n".join([f"run {self.run} diverges after {self.compared} events ({state})", *(f"  {d}" for d in self.divergences)])


async def replay(env: Env, bound: Bound, run: str) -> ReplayReport:
    """`bound` as `wiring.bind(agent)` makes it. Raises Misuse for an unknown run, ProofError when its chain or a payload does not hold."""
    recording = await Recording.load(env, run)
    walk = _Walk(env, bound, recording)
    await walk.all()
    hashes = [semantic_hash(x, recording.values(x.seq)) for x in recording.records]
    return ReplayReport(
        run=run,
        events=len(recording),
        compared=walk.compared,
        sealed=isinstance(recording.records[-1].fact, r.RunSealed),
        hashes=tuple(h for h in hashes if h is not None),
        divergences=tuple(walk.divergences),
    )


class _Reader(Session):
    """A session that is never driven: its clock says what was recorded, and limits count from nothing (sums are recorded facts)."""

    said: Clock | None = None

    def clock(self) -> Clock:
        said, self.said = self.said, None
        return said or self.run.clock or self.run.genesis.clock

    async def balance(self, id: str) -> Balance:
        return Balance(id)

    async def save(self) -> bool:
        raise AssertionError("replay writes nothing")


class _Diverged(Exception):
    def __init__(self, field: str, expected: Any, found: Any) -> None:
        super().__init__(field)
        self.field, self.expected, self.found, self.event = field, expected, found, -1


class _Walk:
    """Goes through the recorded run group by group: what one answer made stands together."""

    def __init__(self, env: Env, bound: Bound, recording: Recording) -> None:
        self.recording, self.bound = recording, bound
        quiet = dataclasses.replace(bound, guards=(), model=_Silent())
        self.s = _Reader(env, quiet, EMPTY, Position(recording.records[0].run, -1, "", 1), None)
        self.divergences: list[Divergence] = []
        self.known: set[tuple[str, str]] = set()
        self.compared = 0

    async def all(self) -> None:
        self._genesis()
        self._fold(0)
        await recall(self.s)
        n = 1
        while n < len(self.recording):
            try:
                drafts = await self._follows(n)
                self._compare(n, drafts)
            except _Diverged as diverged:
                self._note(max(n, diverged.event), diverged.field, diverged.expected, diverged.found)
                return
            except (NotDue, Misuse) as error:
                self._note(n, "type", self.recording.records[n].type, f"not due: {error}")
                return
            for k in range(len(drafts)):
                self._fold(n + k)
            n += len(drafts)

    # -- genesis -------------------------------------------------------------------------------------------------------------
    def _genesis(self) -> None:
        """Another agent or another policy is a divergence by itself; what it changes is looked at all the same."""
        fact, b = self.recording.fact(0), self.bound
        now = {
            "agent": b.spec.name,
            "definition": b.definition,
            "policy": b.book.digest,
            "manifest": b.manifest,
            "profile": b.spec.profile,
            "default": b.book.default,
            "environment": b.spec.environment,
        }
        for field, found in now.items():
            expected = getattr(fact, field)
            if expected != found:
                self._note(0, f"fact.{field}", expected, found)
                self.known.add((_shown(expected), _shown(found)))

    def _fold(self, n: int) -> None:
        record = self.recording.records[n]
        self.s.fold_in(record, self.recording.hashes[n])
        self.compared = n + 1
        fact = record.fact
        if isinstance(fact, r.ActionProposed) and not fact.fault:
            self.s.proposed[(fact.tool, canon(self.recording.value(n, "args")))] = n

    # -- what follows --------------------------------------------------------------------------------------------------------
    async def _follows(self, n: int) -> list[Draft]:
        """The facts that follow now from the answer that was recorded at `n`."""
        run, record = self.s.run, self.recording.records[n]
        match record.fact:
            case r.RunOwned() as fact:
                return owned(run, fact)
            case r.ModelPriced() as fact:
                return [Draft(r.ModelPriced(price=self.bound.spec.price or fact.price), 0)]
            case r.RunHalted(cause="engine" | "poison"):  # a fault of that day; it has no cause in the chain
                return [Draft(record.fact, record.turn)]
            case r.TurnStarted() | r.ModelCalled() | r.RunHalted(cause="budget" | "context"):
                return decide(run, await self._prepared(n))
            case r.ModelReplied():
                return decide(run, await self._replied(n))
            case r.ActionJudged() | r.ActionEnded(via="policy" | "people"):
                return decide(run, await self._judgement(n))
            case _:
                return decide(run, self.recording.given(run, n))

    async def _prepared(self, n: int) -> e.Prepared:
        recorded = self.recording.given(self.s.run, n)
        assert isinstance(recorded, e.Prepared)
        self.s.said = recorded.clock
        effect = next(x for x in due(self.s.run) if isinstance(x, e.Prepare))
        given = await prepare.perform(self.s, effect)
        return msgspec.structs.replace(given, checks=recorded.checks)

    async def _replied(self, n: int) -> e.Reply:
        run = self.s.run
        effect = e.AskModel(turn=run.turn, attempt=run.attempt)
        given = await ask.reply(self.s, effect, self.recording.answer(n))
        return msgspec.structs.replace(given, checks=self.recording.checks(n + 1))

    async def _judgement(self, n: int) -> e.Rulings:
        run, verdicts = self.s.run, []
        tentative: dict[str, int] = {}  # of the whole batch: a later handoff shares what the earlier ones left
        for id in self.recording.judge_effect(run, n).actions:
            at = self.recording.judged(n, id)
            if at is None and not self.recording.settled(n, id):
                break  # the group ended before this one: an error, a refusal that ends the batch
            verdicts.append(await self._verdict(run.actions[id], at, tentative))
        return e.Rulings(seq=run.seq, clock=run.clock or run.genesis.clock, rulings=tuple(verdicts))

    async def _verdict(self, action: Action, at: int | None, tentative: dict[str, int]) -> e.Ruling:
        fact: Any = None if at is None else self.recording.fact(at)
        asked = {} if at is None else self.recording.value(at, "facts")
        if at is not None and fact.verdict == "error":
            return self.recording.verdict(at)  # an engine that did not answer: a fault of that day, and a recorded input
        self.s.authority = 0 if fact is None else fact.authority
        batch = _Recorded(self.s, self.s.clock(), self.recording, at, asked)
        batch.tentative = tentative
        return await judge.one(batch, action)

    # -- comparison ----------------------------------------------------------------------------------------------------------
    def _compare(self, n: int, drafts: Sequence[Draft]) -> None:
        if not drafts:
            raise _Diverged("type", self.recording.records[n].type, "nothing follows")
        for at, draft in enumerate(drafts, n):
            try:
                self._compare_one(at, draft)
            except _Diverged as diverged:
                diverged.event = at
                raise

    def _compare_one(self, n: int, draft: Draft) -> None:
        if n >= len(self.recording):
            raise _Diverged("type", "the chain ends", type(draft.fact).__name__)
        record = self.recording.records[n]
        if type(draft.fact) is not type(record.fact):
            raise _Diverged("type", record.type, type(draft.fact).__name__)
        if type(record.fact).housekeeping:
            return
        before, now = meaning(record, self.recording.values(n)), _meaning(draft)
        for field, expected, found in sorted(differences(before, now), key=lambda d: d[0] != "fact.verdict"):  # the verdict says most
            if (_shown(expected), _shown(found)) not in self.known:
                payload = field.startswith("body")
                raise _Diverged(field, _hidden(expected) if payload else expected, _hidden(found) if payload else found)
        for name in EXACT.get(record.type, ()):
            expected, found = getattr(record.fact, name), getattr(draft.fact, name)
            if expected != found:
                raise _Diverged(f"fact.{name}", expected, found)

    def _note(self, n: int, field: str, expected: Any, found: Any) -> None:
        kind = self.recording.records[n].type if n < len(self.recording) else ""
        self.divergences.append(Divergence(event=n, type=kind, field=field, expected=_shown(expected), found=_shown(found)))


class _Recorded(Judging):
    """A judgement whose outside is the recording: sums, people and stops as they were."""

    def __init__(self, s: Session, clock: Clock, recording: Recording, at: int | None, asked: dict[str, Any]) -> None:
        super().__init__(s, clock)
        self.recording, self.at, self.asked = recording, at, asked

    async def gather(self, action: Action, tool: ToolSpec, args: dict[str, Any]) -> Gathered:
        if self.at is None or not self.asked:
            return Gathered(people=f.PeopleFacts(), votes={}, sums={})
        fact = self.recording.fact(self.at)
        if self.asked["clock"] != msgspec.to_builtins(self.clock.local()):
            raise _Diverged("body.facts.clock", _hidden(self.asked["clock"]), _hidden(msgspec.to_builtins(self.clock.local())))
        people = msgspec.convert(self.asked["people"], f.PeopleFacts)
        surplus = set(people.met) - self._answered(action) - set(people.allowed)
        if surplus:
            raise _Diverged("body.facts.people.met", sorted(people.met), "no such votes in the chain")
        intent = self.recording.behind(self.at, action.id, r.ActionStarted)
        started = None if intent is None else self.recording.fact(intent)
        _, reserves = await judge.sums_of(self, tool, args, action)
        below, exhausted = judge.handed_down(self, tool, action) if tool.agent else ((), "")
        if self.recording.forked and not (started and started.reserves):
            reserves, below = () if started else reserves, ()  # told again: the parent reserved it
            exhausted = str(fact.code) if tool.agent and str(fact.code).endswith("_exhausted") else ""
        used = tuple(x for x in started.reserves if x.account.startswith("standing/")) if started else ()
        votes = {str(seq): seq for seq in started.votes} if started else {}
        return Gathered(
            people=people,
            votes=votes,
            sums=dict(self.asked["sums"]),
            reserves=reserves + below,
            used=used,
            stopped="limits.stop" in fact.determining,
            exhausted=exhausted,
        )

    def lacks(self, level: str) -> str:
        """That day's answer was recorded as an error, or there was none."""
        return ""

    def _answered(self, action: Action) -> set[str]:
        """Chains whose people approved, and levels that were reached, as the chain tells."""
        chains = {g.chain for g in action.granted} | set(levels(self.run, action.seq))
        if action.request and decision_of(action.request) == "approve":
            chains.add(action.request.chain)
        return chains

    async def said(self, action: Action, request: Waiting, decision: str) -> bool:
        fact = None if self.at is None else self.recording.fact(self.at)
        return fact is None or fact.code != "expired"


class _Silent:
    """Stands where the model was. Replay asks nobody."""

    async def generate(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("replay asks no model")

    async def close(self) -> None:
        return None


def _meaning(draft: Draft) -> dict[str, Any]:
    parts = tuple(BodyPart(class_=c.class_, commit="", media=c.media, part=c.part, subject=c.subject) for c in draft.body)
    values = {c.part: parse(c.raw or canon(c.value)) for c in draft.body}
    record: Record[Any] = Record(
        actor=draft.actor,
        at="",
        body=parts or UNSET,
        epoch=0,
        fact=draft.fact,
        prev="",
        run="",
        seq=0,
        turn=draft.turn,
        type=type(draft.fact).__name__,
    )
    return meaning(record, values)


def _hidden(value: Any) -> str:
    return "-" if value is None else "sha256:" + digest("semantic", canon(value))[:12]


def _shown(value: Any) -> str:
    text = "" if value is None or value is UNSET else value if isinstance(value, str) else canon(msgspec.to_builtins(value)).decode()
    return text if len(text) <= 80 else text[:77] + "..."
