"""A stored run as the answers it got: `Recording.given(run, n)` is the input from which the records at `n` followed.

Replay and fork read a run this way. Nobody outside is asked again: replies, outcomes, mail, times and uses are the recorded ones. The
rule a newcomer would break: what the core or the judge can compute is not read from here by replay; it is computed and compared.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import Any

from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.canonical import canon
from mandamus.core.clock import Clock
from mandamus.core.messages import Call, ModelAnswer
from mandamus.core.payload import opened
from mandamus.core.records import decode, event_hash
from mandamus.core.rules import due
from mandamus.core.run import Run
from mandamus.errors import Erased, Misuse, ProofError
from mandamus.runtime.env import Env

_JUDGED = (r.ActionJudged, r.ActionStarted, r.ApprovalRequested, r.ActionEnded)


class Recording:
    """All records and payloads of one run, each payload held against its commitment when it is loaded."""

    def __init__(
        self, records: list[r.AnyRecord], hashes: list[str], values: dict[int, dict[str, Any]], erased: Collection[tuple[int, str]] = ()
    ) -> None:
        self.records, self.hashes, self._values, self._erased = records, hashes, values, erased

    @classmethod
    async def load(cls, env: Env, run: str) -> Recording:
        """Raises Misuse when there is no such run, ProofError when its chain or a payload does not hold."""
        head = await env.ledger.head(run)
        if head is None:
            raise Misuse(f"there is no run {run}", code="MDM-0250", fix="mandamus runs")
        raws = [raw async for raw in env.ledger.read(run, upto=head.seq)]
        records = [decode(raw) for raw in raws]
        hashes = [event_hash(raw) for raw in raws]
        _linked(run, records, hashes, head.hash)
        commits = {(x.seq, p.part): p.commit for x in records for p in x.body or ()}
        values: dict[int, dict[str, Any]] = {}
        erased: set[tuple[int, str]] = set()
        async for payload in env.ledger.payloads(run):
            if payload.form == "erased":
                erased.add((payload.seq, payload.part))
            elif (commit := commits.get((payload.seq, payload.part))) is not None:
                values.setdefault(payload.seq, {})[payload.part] = opened(payload, commit)
        return cls(records, hashes, values, erased)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def forked(self) -> bool:
        parent = self.fact(0).parent
        return parent is not UNSET and parent.kind == "fork"

    def fact(self, n: int) -> Any:
        return self.records[n].fact if n < len(self.records) else None

    def values(self, seq: int) -> dict[str, Any]:
        return self._values.get(seq, {})

    def value(self, seq: int, part: str) -> Any:
        """Raises Erased when it was, ProofError when it is lost."""
        try:
            return self._values[seq][part]
        except KeyError:
            where = f"run {self.records[seq].run} (event {seq})"
            if (seq, part) in self._erased:
                raise Erased(f"payload {part!r} of event {seq} was erased", where=where, why="without it the run cannot be told") from None
            raise ProofError(f"payload {part!r} of event {seq} is gone", code="MDM-0611", where=where) from None

    # -- what was given ------------------------------------------------------------------------------------------------------
    def given(self, run: Run, n: int) -> e.Input:
        """The input whose facts begin with record `n`. Raises Misuse when nothing that is due leads there."""
        match self.fact(n):
            case r.TurnStarted() | r.ModelCalled():
                return self._prepared(run, n)
            case r.RunHalted(cause="budget" | "context"):
                return self._prepared(run, n)
            case r.ModelReplied():
                return self._reply(run, n)
            case r.ModelFailed():
                return self._lost(run, n)
            case r.ActionProposed(by="tool"):
                return self._steps(n)
            case r.ActionJudged() | r.ActionEnded(via="policy" | "people"):
                return self._judgement(run, n)
            case r.ActionEnded() | r.ActionDoubted():
                return self._outcome(run, n)
            case r.CapabilityChecked():
                return self._use(n)
            case r.Voted() | r.StopRequested() | r.MessageReceived() | r.MessageRefused():
                return self._mail(n)
            case r.TimePassed():
                return self._time(run, n)
            case r.EvidenceReached() as fact:
                return e.Level(level=fact.level, root=fact.root, seq=fact.seq, size=fact.size)
            case r.RunEnded() | r.RunSealed():
                return e.Closing()
            case _:
                raise _astray(self.records[n])

    def instant(self, n: int) -> int:
        """When record `n` says it was written: the only time that is known of answers which left no clock."""
        at = datetime.datetime.fromisoformat(self.records[n].at)
        return int((at - _EPOCH) / datetime.timedelta(microseconds=1))

    def clock(self, run: Run, n: int) -> Clock:
        """The newest clock at record `n`: the one it carries, else the instant at which it was written."""
        carried = getattr(self.fact(n), "clock", None)
        if isinstance(carried, Clock):
            return carried
        last = run.clock or run.genesis.clock
        return Clock(max(self.instant(n), last.now), last.offset, last.tz)

    # -- the model -----------------------------------------------------------------------------------------------------------
    def _prepared(self, run: Run, n: int) -> e.Prepared:
        effect = next((x for x in due(run) if isinstance(x, e.Prepare)), None)
        if effect is None:
            raise _astray(self.records[n])
        known: dict[str, Any] = {"turn": effect.turn, "attempt": effect.attempt, "clock": self.clock(run, n)}
        checks, at = self.checks(n + 1), n + 1
        at += len(checks)
        compiled, called = self.fact(at), self.fact(at + 1)
        if isinstance(compiled, r.ContextCompiled):
            known |= {"items": compiled.items, "tokens": compiled.tokens, "window": compiled.window, "manifest": self.value(at, "manifest")}
        first = self.fact(n)
        called = first if isinstance(first, r.ModelCalled) else called
        if isinstance(called, r.ModelCalled):
            known |= {"model": called.model, "reserves": called.reserves}
        else:
            known |= {"model": "", "reserves": 0}
        if isinstance(first, r.RunHalted):
            known["fault"] = first.code if first.cause == "context" else ""
        return e.Prepared(**known, checks=checks)

    def checks(self, n: int) -> tuple[e.GuardCheck, ...]:
        out = []
        while isinstance(fact := self.fact(n), r.GuardrailChecked):
            usage = None if fact.usage is UNSET else fact.usage
            finding = self.values(n).get("finding")
            out.append(e.GuardCheck(name=fact.name, point=fact.point, result=fact.result, source=fact.source, finding=finding, usage=usage))
            n += 1
        return tuple(out)

    def answer(self, n: int) -> ModelAnswer:
        """The reply as the driver parsed it."""
        fact, value = self.fact(n), self.value(n, "reply")
        calls = tuple(Call(c["id"], c["name"], c.get("arguments", {}), c.get("fault", "")) for c in value.get("calls", ()))
        return ModelAnswer(value["text"], calls, fact.stop, fact.model, fact.usage)

    def _reply(self, run: Run, n: int) -> e.Reply:
        fact, value, checks = self.fact(n), self.value(n, "reply"), self.checks(n + 1)
        at = n + 1 + len(checks)
        bad = isinstance(failed := self.fact(at), r.ModelFailed) and failed.category == "bad_output"
        proposals: list[e.Proposal] = []
        while isinstance(proposed := self.fact(at), r.ActionProposed) and proposed.by == "model" and len(proposals) < fact.calls:
            proposals.append(self.proposal(at))
            at += 1
        proposals += [e.Proposal(tool="?", args=None)] * (fact.calls - len(proposals))  # a run that is being stopped proposes none
        return e.Reply(
            turn=run.turn,
            attempt=fact.attempt,
            value=value,
            raw=canon(value),
            model=fact.model,
            stop=fact.stop,
            usage=fact.usage,
            proposals=tuple(proposals),
            bad="bad_output" if bad else "",
            checks=checks,
        )

    def proposal(self, n: int) -> e.Proposal:
        fact, record = self.fact(n), self.records[n]
        return e.Proposal(
            tool=fact.tool,
            args=self.value(n, "args"),
            kind=fact.kind,
            safety=fact.safety,
            effect=fact.effect,
            data=record.body[0].class_ if record.body else "business",
            pin=fact.pin or "",
            fault=fact.fault or "",
            repeats=None if fact.repeats is UNSET else fact.repeats,
            subject=record.body[0].subject if record.body else UNSET,
        )

    def _lost(self, run: Run, n: int) -> e.ModelLost:
        fact = self.fact(n)
        return e.ModelLost(
            turn=run.turn,
            attempt=fact.attempt,
            category=fact.category,
            retry_at=fact.retry_at or None,
            status=fact.status or None,
            partial=self.values(n).get("partial", ""),
        )

    # -- actions -------------------------------------------------------------------------------------------------------------
    def _steps(self, n: int) -> e.Steps:
        fact = self.fact(n)
        return e.Steps(parent=fact.parent, first=int(fact.action.rpartition(".")[2].partition("m")[0]), proposals=(self.proposal(n),))

    def _outcome(self, run: Run, n: int) -> e.Outcome:
        fact, body = self.fact(n), self.records[n].body
        class_ = body[0].class_ if body else "business"
        common: dict[str, Any] = {
            "subject": body[0].subject if body else UNSET,
            "action": fact.action,
            "attempt": fact.attempt,
            "retry_at": fact.retry_at or None,
            "checks": self.checks(n + 1),
        }
        if isinstance(fact, r.ActionDoubted):
            kind: Any = "unclear" if fact.cause == "unclear" else "doubt"
            return e.Outcome(kind=kind, cause=fact.cause, value=self.values(n).get("fault"), data=class_, **common)
        value = self.values(n).get("output")
        kind = "done" if fact.result == "done" else "absent" if fact.via == "reconciled" else "failed"
        return e.Outcome(
            kind=kind,
            via=fact.via,
            value=value,
            output=fact.output,
            code=fact.code or "",
            data=class_,
            spends=fact.spends,
            raw=b"" if value is None else canon(value),
            **common,
        )

    def _use(self, n: int) -> e.Use:
        fact = self.fact(n)
        value = self.values(n).get("value")
        return e.Use(action=fact.action, capability=fact.capability, result=fact.result, mechanism=fact.mechanism, value=value)

    # -- judgements ----------------------------------------------------------------------------------------------------------
    def judge_effect(self, run: Run, n: int) -> e.Judge:
        """Which batch was judged. Raises Misuse when none with this action is due."""
        first = self.fact(n).action
        for effect in due(run):
            if isinstance(effect, e.Judge) and first in effect.actions:
                return effect
        raise _astray(self.records[n])

    def judged(self, n: int, action: str) -> int | None:
        """Where the judgement of `action` stands in the group at `n`."""
        while isinstance(fact := self.fact(n), _JUDGED):
            if isinstance(fact, r.ActionJudged) and fact.action == action:
                return n
            n += 1
        return None

    def settled(self, n: int, action: str) -> bool:
        """Whether people's answer about an outcome stands in the group at `n`."""
        while isinstance(fact := self.fact(n), _JUDGED):
            if isinstance(fact, r.ActionEnded) and fact.action == action and fact.via == "people":
                return True
            n += 1
        return False

    def behind(self, n: int, action: str, kind: type[Any]) -> int | None:
        """The intent or request that stands right behind the judgement at `n`."""
        fact = self.fact(n + 1)
        return n + 1 if isinstance(fact, kind) and fact.action == action else None

    def _judgement(self, run: Run, n: int) -> e.Rulings:
        effect = self.judge_effect(run, n)
        places = [(a, self.judged(n, a)) for a in effect.actions]
        verdicts = tuple(self.verdict(at) for _, at in places if at is not None)
        return e.Rulings(seq=run.seq, clock=run.clock or run.genesis.clock, rulings=verdicts)

    def verdict(self, n: int) -> e.Ruling:
        fact = self.fact(n)
        known: dict[str, Any] = {}
        if (at := self.behind(n, fact.action, r.ActionStarted)) is not None:
            s = self.fact(at)
            known = {
                "operation": s.operation,
                "capabilities": s.capabilities,
                "deadline_ms": s.deadline,
                "landing_ms": s.landing,
                "reserves": s.reserves,
                "votes": s.votes,
                "child": s.child or "",
            }
        elif (at := self.behind(n, fact.action, r.ApprovalRequested)) is not None:
            known = {"request": self._request(at), "about": self.fact(at).about}
        else:
            halted = self.fact(n + 1)
            known["halt"] = halted.cause if isinstance(halted, r.RunHalted) and halted.cause in ("denials", "people") else ""
        return e.Ruling(
            action=fact.action,
            verdict=fact.verdict,
            layers=fact.layers,
            determining=fact.determining,
            asks=fact.asks or (),
            code=fact.code or "",
            engine=fact.engine,
            bundle=fact.bundle,
            authority=fact.authority,
            facts=canon(self.value(n, "facts")),
            decision=self.value(n, "decision"),
            **known,
        )

    def _request(self, n: int) -> e.Request:
        q = self.fact(n)
        now = self.instant(n)
        return e.Request(
            id=q.request,
            chain=q.chain,
            digest=q.digest,
            card=self.value(n, "card"),
            card_digest=q.card,
            quorums=(q.quorum,),
            deadlines_ms=(max(0, q.expires - now) // 1000,),
            policy=q.policy,
        )

    # -- mail and time -------------------------------------------------------------------------------------------------------
    def _mail(self, n: int) -> e.Mail:
        fact, values = self.fact(n), self.values(n)
        clock = getattr(fact, "clock", None) or Clock(self.instant(n), 0, "UTC")
        common: dict[str, Any] = {"ref": fact.mail, "clock": clock}
        match fact:
            case r.MessageRefused():
                return e.Mail(kind="refused", reason=fact.reason, value=values.get("message"), **common)
            case r.StopRequested():
                return e.Mail(kind="stop", principal=fact.principal, mode=fact.mode, statement=values.get("statement"), **common)
            case r.MessageReceived():
                said = self.value(n, "text")
                return e.Mail(kind="message", principal=fact.principal, value=said, statement=values.get("statement"), **common)
            case _:
                return self._voted(n, common)

    def _voted(self, n: int, common: dict[str, Any]) -> e.Mail:
        fact, values = self.fact(n), self.values(n)
        modified = next((x for x in (n + 1, n + 2) if isinstance(p := self.fact(x), r.ActionProposed) and p.by == "person"), None)
        return e.Mail(
            kind="vote",
            principal=fact.principal,
            value=self.value(n, "ballot"),
            action=fact.action,
            request=fact.request,
            about=fact.about,
            decision=fact.decision,
            ballot=fact.ballot,
            veto=fact.veto,
            card=values.get("card"),
            modified=None if modified is None else self.proposal(modified),
            **common,
        )

    def _time(self, run: Run, n: int) -> e.Time:
        """A later tier is asked under the request that its action has already."""
        fact, tiers = self.fact(n), []
        while isinstance(q := self.fact(n + 1), r.ApprovalRequested) and q.tier > 0:
            tiers.append(e.NextTier(action=q.action, tier=q.tier, quorum=q.quorum, until=q.until, carries=q.carries))
            n += 1
        return e.Time(clock=fact.clock, source=fact.source, tiers=tuple(tiers))


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _astray(record: r.AnyRecord) -> Misuse:
    return Misuse(
        f"nothing that was due leads to {record.type}",
        code="MDM-0260",
        where=f"run {record.run} (event {record.seq})",
        why="the stored run is not one that these rules make",
    )


def _linked(run: str, records: list[r.AnyRecord], hashes: list[str], head: str) -> None:
    for n, record in enumerate(records):
        first = record.fact
        if n == 0 and not isinstance(first, r.RunOpened):
            raise Misuse("only a run can be replayed, not chain log", code="MDM-0261", where=f"run {run}")
        prev = hashes[n - 1] if n else r.genesis_prev(run, first)  # type: ignore[arg-type]
        if record.prev != prev or record.seq != n or record.run != run:
            raise ProofError(
                f"event {n} does not follow the one before it",
                code="MDM-0641",
                where=f"run {run} (event {n})",
                expected=prev[:12],
                found=record.prev[:12],
            )
    if not hashes or hashes[-1] != head:
        raise ProofError(f"the last event of run {run} is not the one its head names", code="MDM-0642", expected=head[:12])
