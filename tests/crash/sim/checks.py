"""The invariants, each in one place. `written` is asked at every commit, `World.send` at every effect, `ended` when all is over.

I1   chain whole: prev = hash, seq dense                         ended (recover.read_run walks every hash)
I2   epochs strictly rise                                        ended
I3   no event by a fenced owner                                  ended
I4   at most one of each (action, attempt, type)                 ended
I5   model < verdict < intent < outcome                          ended
I6   each operation applied once, irreversible sent at most once World.send, World._arrive
I7   no effect without a durable ALLOW + intent                  World.send
I8   every run ends, waits or is halted with a cause             Sim._main, ended
I9   effects in the log = effects in the world, or unknown       ended
I10  each acknowledged append is there after all faults          ended (replicas that heal: tests/ports and tests/chaos, on real servers)
I11  the fold of the log = the live state                        ended
I12  no secret in log or blob                                    not here: tests/attack (no secret enters this world)
I13  deny and approval are never bypassed                        World.send
I14  accounts are never exceeded, resent work is counted         written, ended
I15  snapshot + tail = full replay                               not here: none is written yet; replays: tests/e2e/test_replay.py
I17  the log is asked for what is stored only                   SimLog.reach
I16  each attempt stands right after an ALLOW of its moment      written
I18  the order of all records has each once                      ended
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from mandamus.core import records as r
from mandamus.core.records import event_hash
from mandamus.core.run import state_digest
from mandamus.runtime import recover
from tests.crash.sim.world import LIMIT

_HALTS = {("budget", "retries"), ("poison", "poison")}  # what so many faults may honestly come to
_LATE = {("people", "expired")}  # and what a clock may that jumps by hours


def written(sim: Any, facts: list[Any]) -> None:
    """At the moment of a commit: what it may rest on, and what it may not exceed."""
    accounts = sim.store.data.accounts
    for before, fact in zip([None, *facts], facts, strict=False):
        if not isinstance(fact, r.ActionStarted):
            continue
        same = isinstance(before, r.ActionJudged) and (before.action, before.attempt) == (fact.action, fact.attempt)
        if not same or before.verdict != "allow":
            sim.findings.append("I16 an attempt does not stand behind its ALLOW")
        elif before.authority != (accounts["authority"].version if "authority" in accounts else 0):
            sim.findings.append("I16 an attempt on an authority that is gone")
    for account in accounts.values():
        if account.id.startswith("limit/") and account.reserved + account.spent > LIMIT:
            sim.findings.append("I14 a limit was exceeded")


async def ended(sim: Any, run: str) -> None:
    s = await recover.read_run(sim.admin, sim.bound, run)
    raws = sim.store.durable(run)
    records = [r.decode(raw) for raw in raws]
    find = sim.findings.append
    if run in sim.lived and sim.lived[run] != state_digest(s.run):
        find("I11 the fold of the log is not the live state")
    if lost := sim.told[run] - {event_hash(raw) for raw in raws}:
        find(f"I10 {len(lost)} acknowledged appends are gone")
    if [one.raw async for one in sim.store.ledger.feed() if one.run == run] != raws:
        find("I18 the order of all records is not the run's")
    honest = _HALTS | _LATE if any(fault == "clock" for _, _, fault in sim.trace) else _HALTS
    if s.run.life != "sealed" and _cause(records) not in honest:
        find(f"I8 the run is {s.run.life} for no good cause: {_cause(records)}")
    _order(records, find)
    _compare(sim.world, run, records, s.run.life == "sealed", find)


def _cause(records: list[Any]) -> tuple[str, str]:
    halts = [x.fact for x in records if isinstance(x.fact, r.RunHalted)]
    return (halts[-1].cause, halts[-1].code) if halts else ("", "")


def _order(records: list[Any], find: Any) -> None:
    epoch, seen = 1, Counter[Any]()
    operations: dict[str, str] = {}
    replied = False
    judged: set[Any] = set()
    for x in records:
        fact = x.fact
        if isinstance(fact, r.RunOwned):
            epoch += 1
        if x.epoch != epoch:
            find("I2 an epoch did not rise by one" if isinstance(fact, r.RunOwned) else "I3 an event by a fenced owner")
        match fact:
            case r.ModelReplied():
                replied = True
            case r.ActionJudged():
                judged.add((fact.action, fact.attempt))
                if not replied:
                    find("I5 a verdict before any answer of the model")
            case r.ActionStarted():
                seen["started", fact.action, fact.attempt] += 1
                if (fact.action, fact.attempt) not in judged:
                    find("I5 an intent without a verdict")
                if operations.setdefault(fact.action, fact.operation) != fact.operation:
                    find("I6 an action with two operation ids")
            case r.ActionEnded():
                seen["ended", fact.action, fact.attempt, fact.result, fact.via == "people"] += 1
                if fact.result in ("done", "failed") and not seen["started", fact.action, fact.attempt]:
                    find("I5 an outcome without an intent")
    if any(n > 1 for n in seen.values()):
        find("I4 the same fact twice")


def _compare(world: Any, run: str, records: list[Any], sealed: bool, find: Any) -> None:
    """What the log says was done is in the world; what is in the world, the log says or does not know. Halted, an open intent is doubt."""
    results = {x.fact.action: x.fact for x in records if isinstance(x.fact, r.ActionEnded)}
    operations = {x.fact.operation: x.fact.action for x in records if isinstance(x.fact, r.ActionStarted)}
    for operation in (o for o, of in world.runs.items() if of == run and world.done[o] and o not in operations):
        find(f"I9 done in the world, and the log never heard of {operation[:8]}")
    for operation, action in operations.items():
        last, done = results.get(action), world.done[operation]
        if last is not None and last.result == "done" and not done:
            find("I9 the log says done, the world knows nothing")
        if done and (sealed if last is None else last.result not in ("done", "unknown")):
            find(f"I9 done in the world, {last.result if last else 'nothing'} in the log")


def accounts(sim: Any) -> None:
    """When every run is sealed, nothing is reserved any more and what was spent is what was done, however often it was sent."""
    if any(not _sealed(sim, run) for run in sim.runs):
        return
    spent = 0
    for run in sim.runs:
        ended = {x.action: x for x in (r.decode(raw).fact for raw in sim.store.durable(run)) if isinstance(x, r.ActionEnded)}
        spent += sum(s.amount for x in ended.values() for s in x.spends if s.account.startswith("limit/"))
    stored = [a for a in sim.store.data.accounts.values() if a.id.startswith("limit/")]
    if sum(a.reserved for a in stored):
        sim.findings.append("I14 something is reserved, and no run is left to give it back")
    if sum(a.spent for a in stored) != spent:
        sim.findings.append("I14 what was spent is not what the outcomes say")


def _sealed(sim: Any, run: str) -> bool:
    return isinstance(r.decode(sim.store.durable(run)[-1]).fact, r.RunSealed)
