"""The rules: `due(run)` says what must happen next, `decide(run, given)` says which facts follow from an answer, `wakes(run)` when.

What follows from a judgement stands in core/rulings.py, from mail and the time in core/mailed.py, what they share in core/drafts.py.
The rule a newcomer would break: nothing starts an action but an ALLOW, and each ActionStarted is emitted right behind its ALLOW, in
the same list, for one append.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.canonical import canon_own
from mandamus.core.drafts import NotDue as NotDue
from mandamus.core.drafts import draft, ended, freed, proposal
from mandamus.core.fields import GUARDED, media_of
from mandamus.core.mailed import mail, time
from mandamus.core.price import at_most
from mandamus.core.rulings import judgement
from mandamus.core.run import ENDED, IN_DOUBT, NOTHING, Action, Run, awaiting, ripe, state_digest
from mandamus.core.seal import Content, Draft

RECONCILE_TRIES = 5
CLOCK_AGE = 60_000_000  # microseconds: an older clock is refreshed at a judgement that starts something


# -- due ---------------------------------------------------------------------------------------------------------------------
def due(run: Run) -> list[e.Effect]:
    """What must happen next, in order. Empty: the run has ended, is halted, or waits."""
    if run.life in ("new", "sealed", "halted"):
        return []
    if run.life in ENDED:
        return [e.Seal(ended=True)]
    if run.actions and (acting := _acting(run)) is not None:
        return acting
    match run.stage:
        case "ready" | "acting":
            return [e.Prepare(turn=run.turn + 1, attempt=1)]
        case "failed":
            return [e.Prepare(turn=run.turn, attempt=run.attempt + 1, not_before=run.retry_at)]
        case "asking":
            return [e.AskModel(turn=run.turn, attempt=run.attempt)]
        case "answered" | "stopping":
            return [e.Seal(ended=False)]
        case _:
            raise AssertionError(run.stage)


def _acting(run: Run) -> list[e.Effect] | None:
    """None: every action of the turn is closed, another turn is due."""
    actions = run.open_actions
    if not actions:
        return None
    out: list[e.Effect] = []
    batch: list[str] = []
    held: list[str] = []
    waits = False
    for a in actions:
        if a.state == "started":
            out.append(e.Execute(action=a.id, attempt=a.attempt))
        elif a.request and not ripe(a.request):
            waits = waits or a.request.about == "start"
        elif a.awaits and awaiting(run, a):
            waits = True
            out.append(e.Await(action=a.id, level=a.awaits.level, seq=a.seq))  # type: ignore[arg-type]
        elif a.state == "doubted" and a.effect == "reconcilable" and not a.absent and a.doubts <= RECONCILE_TRIES:
            out.append(e.Reconcile(action=a.id, attempt=a.attempt, tries=a.doubts, not_before=a.retry_at))
        elif a.retry_at:
            out.append(e.Judge(actions=(a.id,), seq=run.seq, not_before=a.retry_at))
        elif a.state == "judged" and a.verdict == "allow":
            held.append(a.id)
        else:
            batch.append(a.id)
    if held and not waits:
        batch = [a.id for a in actions if a.id in batch or a.id in held]
    if batch and run.stage != "stopping":
        out.append(e.Judge(actions=tuple(batch), seq=run.seq))
    elif batch:  # only what is in doubt may still be asked about while the run is being stopped
        doubted = tuple(i for i in batch if run.actions[i].state in IN_DOUBT)
        out += [e.Judge(actions=doubted, seq=run.seq)] if doubted else []
    return out


def wakes(run: Run, effects: list[e.Effect] | None = None, children: Mapping[e.Effect, int | None] = {}) -> tuple[int | None, str]:
    """When somebody must look again, and what the run waits for (docs/concepts/effect-protocol.md, rule 6).

    0 = now, an instant, or None = only mail wakes it. The word stands in the head row: running people level time child sealing, and
    halted completed failed cancelled, where nobody is to look. `effects`: what `due` said of this run, when the caller has asked already.
    `children`: what is due and waits for a child run, and when that one wants to be looked at; whoever drives this run then drives it.
    """
    effects = due(run) if effects is None else effects
    if run.life in ENDED:
        return (0, "sealing") if effects else (None, run.end)
    if children:
        effects = [x for x in effects if x not in children]
    if run.life != "running":
        return None, run.life
    for x in effects:
        if not x.not_before:
            return 0, "running"
    times = [x.not_before for x in effects]
    asked = [a.request for a in run.open_actions if a.request and not ripe(a.request)]
    times += [min(q.until, q.expires) for q in asked]
    awaited = [a.awaits.until for a in run.open_actions if a.awaits and awaiting(run, a)]
    times += awaited
    times += [at for at in children.values() if at is not None]
    return (min(times) if times else None), "people" if asked else "level" if awaited else "child" if children else "time"


# -- decide ------------------------------------------------------------------------------------------------------------------
def decide(run: Run, given: e.Input) -> list[Draft]:
    """The facts that follow. Raises NotDue where the answer was not asked for; an empty list: ask again."""
    return _DECIDE[type(given)](run, given)


def _checks(run: Run, checks: tuple[e.GuardCheck, ...], action: str = "", turn: int | None = None) -> list[Draft]:
    return [
        draft(
            run,
            r.GuardrailChecked(
                action=action or UNSET,
                name=c.name,
                point=c.point,
                result=c.result,
                source=c.source,
                usage=UNSET if c.usage is None else c.usage,
            ),
            *(() if c.finding is None else (Content("finding", c.finding),)),
            turn=turn,
        )
        for c in checks
    ]


def _blocked(run: Run, checks: tuple[e.GuardCheck, ...], turn: int | None = None) -> list[Draft]:
    if not checks or not any(c.result == "block" for c in checks):
        return []
    return [draft(run, r.RunHalted(cause="guardrail", code="hard_block"), turn=turn)]


def _prepared(run: Run, given: e.Prepared) -> list[Draft]:
    first = given.attempt == 1
    if run.life != "running" or given.turn != run.turn + first or run.stage not in ("ready", "acting", "failed"):
        raise NotDue("prepare")
    spent = over_budget(run, given)
    if spent:
        return [draft(run, r.RunHalted(cause="budget", code=spent))]
    if given.fault:
        return [draft(run, r.RunHalted(cause="context", code=given.fault))]
    called = Draft(r.ModelCalled(attempt=given.attempt, model=given.model, reserves=given.reserves), given.turn)
    if not first:
        return [called]
    out = [Draft(r.TurnStarted(clock=given.clock), given.turn)]
    if given.checks:
        out += _checks(run, given.checks, turn=given.turn)
        if halt := _blocked(run, given.checks, turn=given.turn):
            return out + halt
    compiled = r.ContextCompiled(items=given.items, tokens=given.tokens, window=given.window)
    manifest = Content("manifest", given.manifest, raw=canon_own(given.manifest))
    return [*out, Draft(compiled, given.turn, (manifest,)), called]


def over_budget(run: Run, given: e.Prepared) -> str:
    """Which limit of the run would be broken by one more model call; "" when none."""
    limits, s = run.genesis.budget, run.spent
    below = s.below or NOTHING
    if given.attempt == 1 and run.turn >= limits.turns:
        return "turns"
    if s.retries > limits.retries:
        return "retries"
    if limits.tokens is not UNSET and s.input + s.output + below.tokens + given.reserves > limits.tokens:
        return "tokens"
    if limits.cost is not UNSET and (s.cost or 0) + below.cost + _asked_for(run, given, limits.cost) > limits.cost:
        return "cost"
    if limits.calls is not UNSET and s.calls + below.calls >= limits.calls:
        return "calls"
    if limits.wall_ms is not UNSET and given.clock.now - run.genesis.clock.now > limits.wall_ms * 1000:
        return "wall"
    return ""


def _asked_for(run: Run, given: e.Prepared, limit: int) -> int:
    """What the next model call may cost. Without a price nobody can say, and it is more than there is."""
    if run.price is UNSET:
        return limit + 1
    tokens = given.tokens if given.attempt == 1 else run.compiled or 0
    return at_most(run.price, tokens, given.reserves - tokens)


def _reply(run: Run, given: e.Reply) -> list[Draft]:
    if run.life in ENDED or run.stage not in ("asking", "stopping") or (given.turn, given.attempt) != (run.turn, run.attempt):
        raise NotDue("reply")
    n = len(given.proposals)
    fact = r.ModelReplied(attempt=given.attempt, calls=n, model=given.model, stop=given.stop, usage=given.usage)
    out = [Draft(fact, run.turn, (Content("reply", given.value, raw=given.raw),))]
    if given.checks:
        out += _checks(run, given.checks)
        if halt := _blocked(run, given.checks):
            return out + halt
    if given.bad:
        return [*out, draft(run, r.ModelFailed(attempt=given.attempt, category="bad_output"))]
    if run.stage == "stopping":
        return out
    return out + [proposal(run, p, f"{run.turn}.{k}", "model") for k, p in enumerate(given.proposals, 1)]


_FATAL = {"auth": "model_auth", "bad_request": "model_request", "fault": "model_driver"}


def _lost(run: Run, given: e.ModelLost) -> list[Draft]:
    if run.life in ENDED or run.stage not in ("asking", "stopping") or given.attempt != run.attempt:
        raise NotDue("model")
    again = given.retry_at is not None and run.spent.retries < run.genesis.budget.retries and run.stage != "stopping"
    fact = r.ModelFailed(
        attempt=given.attempt, category=given.category, status=UNSET if given.status is None else given.status,  # type: ignore[arg-type]
        retry_at=given.retry_at if again and given.retry_at is not None else UNSET,
    )  # fmt: skip
    out = [draft(run, fact, *((Content("partial", given.partial),) if given.partial else ()))]
    if again or run.stage == "stopping":
        return out
    if given.category == "refusal":
        return [*out, draft(run, r.RunEnded(state="failed", code="model_refusal"))]
    if given.category in _FATAL:
        return [*out, draft(run, r.RunHalted(cause="engine", code=_FATAL[given.category]))]
    return [*out, draft(run, r.RunHalted(cause="budget", code="retries"))]


def _level(run: Run, given: e.Level) -> list[Draft]:
    if run.life != "running" or not 0 <= given.seq <= run.seq:
        raise NotDue("level")
    return [draft(run, r.EvidenceReached(level=given.level, root=given.root, seq=given.seq, size=given.size))]


def _closing(run: Run, given: e.Closing) -> list[Draft]:
    if run.life in ENDED and run.life != "sealed":
        return [draft(run, r.RunSealed(closed=run.life, count=run.seq + 1, head=run.head, state=state_digest(run)))]  # type: ignore[arg-type]
    if run.life != "running" or run.stage not in ("answered", "stopping") or run.open_actions:
        raise NotDue("the run cannot end yet")
    return [draft(run, r.RunEnded(state=run.end, code=run.code or UNSET))]  # type: ignore[arg-type]


# -- outcome -----------------------------------------------------------------------------------------------------------------
def _outcome(run: Run, given: e.Outcome) -> list[Draft]:
    action = run.actions.get(given.action)
    if action is None or given.attempt != action.attempt or action.state not in ("started", "doubted"):
        raise NotDue(f"outcome of {given.action}")
    out = _ended_or_doubted(run, action, given)
    if not given.checks:
        return out
    out += _checks(run, given.checks, action.id)
    return out + (_blocked(run, given.checks) if run.life == "running" else [])


def _ended_or_doubted(run: Run, action: Action, given: e.Outcome) -> list[Draft]:
    again = given.retry_at is not None and run.spent.retries < run.genesis.budget.retries and run.stage != "stopping"
    retry: Any = given.retry_at if again else UNSET
    match given.kind:
        case "done":
            media = media_of(given.value) if given.data in GUARDED else "application/json"
            spends = given.spends if given.spends is not None else tuple(action.reserves)
            fact = r.ActionEnded(
                action=action.id,
                attempt=action.attempt,
                code=given.code or UNSET,
                output=given.output,
                result="done",
                spends=spends,
                via=given.via,
            )
            return [
                draft(
                    run,
                    fact,
                    *(
                        (Content("output", given.value, given.data, media, given.subject, raw=given.raw),)
                        if given.output in ("valid", "invalid")
                        else ()
                    ),
                )
            ]
        case "failed" | "absent":
            fact = r.ActionEnded(
                action=action.id, attempt=action.attempt, code=given.code or UNSET, output="none", result="failed", retry_at=retry,
                spends=given.spends if given.via == "child" and given.spends is not None else freed(action), via=given.via,
            )  # fmt: skip
            return [
                draft(run, fact, *((Content("output", given.value, given.data, subject=given.subject),) if given.value is not None else ()))
            ]
        case "doubt":
            if action.effect == "read" and not again:
                return [ended(run, action, "failed", given.via, freed(action), given.code or given.cause)]
            doubt = r.ActionDoubted(action=action.id, attempt=action.attempt, cause=given.cause, retry_at=retry)
            return [
                draft(run, doubt, *((Content("fault", given.value, given.data, subject=given.subject),) if given.value is not None else ()))
            ]
        case "unclear":
            return [draft(run, r.ActionDoubted(action=action.id, attempt=action.attempt, cause="unclear", retry_at=retry))]


def _steps(run: Run, given: e.Steps) -> list[Draft]:
    parent = run.actions.get(given.parent)
    if parent is None or parent.state != "started":
        raise NotDue(f"{given.parent} is not running")
    ids = [f"{given.parent}.{k}" for k in range(given.first, given.first + len(given.proposals))]
    if any(id in run.actions for id in ids):
        raise NotDue("a step is proposed once")
    return [proposal(run, p, id, "tool", given.parent) for id, p in zip(ids, given.proposals, strict=True)]


def _use(run: Run, given: e.Use) -> list[Draft]:
    action = run.actions.get(given.action)
    if action is None or action.state != "started":
        raise NotDue(f"{given.action} is not running")
    fact = r.CapabilityChecked(
        action=given.action, capability=given.capability, mechanism=given.mechanism, result=given.result, use=action.uses + 1
    )
    return [draft(run, fact, *((Content("value", given.value),) if given.value is not None else ()))]


def owned(run: Run, fact: r.RunOwned) -> list[Draft]:
    """Taking over. A model call without reply is lost: its reservation counts as spent, the next attempt comes out of the retries."""
    out = [draft(run, fact)]
    if run.stage == "asking":
        again = run.spent.retries < run.genesis.budget.retries
        out.append(draft(run, r.ModelFailed(attempt=run.attempt, category="lost", retry_at=fact.clock.now if again else UNSET)))
        if not again:
            out.append(draft(run, r.RunHalted(cause="budget", code="retries")))
    return out


_DECIDE: dict[type, Callable[[Run, Any], list[Draft]]] = {
    e.Prepared: _prepared,
    e.Reply: _reply,
    e.ModelLost: _lost,
    e.Rulings: judgement,
    e.Outcome: _outcome,
    e.Steps: _steps,
    e.Use: _use,
    e.Mail: mail,
    e.Time: time,
    e.Level: _level,
    e.Closing: _closing,
    e.Nothing: lambda run, given: [],
}
