"""Whatever is answered, in whatever order: the fold keeps its tables, and an intent stands right behind its ALLOW.

A random walk feeds the pure core answers that are due, answers that are late, wrong and repeated, mail, takeovers and time.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mandamus.core import effects as e
from mandamus.core import records as r
from mandamus.core.fold import evolve, fold
from mandamus.core.records import decode, encode
from mandamus.core.rules import due, wakes
from mandamus.core.run import ACTIONS, CLOSED, EMPTY, LIVES, Run, decision_of, state_digest
from tests.core.interactions import TOOLS, Player, play, step

VERDICTS = ("allow", "allow", "allow", "deny", "escalate", "error")
OUTCOMES = ("done", "done", "failed", "doubt", "doubt", "absent", "unclear")
Choose = Any


def move(p: Player, pick: Choose) -> str:
    """One line of the script, drawn from what could happen now, rarely from what could not."""
    run = p.run
    if pick(12) == 0:
        return _anything(run, pick)
    effects = due(run)
    if not effects:
        return _from_outside(run, pick)
    match effects[pick(len(effects))]:
        case e.Prepare():
            return "turn"
        case e.AskModel():
            return _reply(pick)
        case e.Judge(actions=actions):
            return _judge(run, actions, pick)
        case e.Execute(action=a):
            return (f"outcome {a} {OUTCOMES[pick(4)]}{_retry(p, pick)}", f"step {a} look n={pick(3) + 1}", f"use {a} clock.read")[
                max(0, pick(5) - 2)
            ]
        case e.Reconcile(action=a):
            return f"outcome {a} {('done', 'absent', 'unclear')[pick(3)]} via=reconciled{_retry(p, pick)}"
        case _:
            return "close"


def _reply(pick: Choose) -> str:
    if pick(4) == 0:
        return ("lost rate_limit retry=5", "lost server", "lost refusal", "reply bad=schema", "reply")[pick(5)]
    return "reply " + " ".join(list(TOOLS)[pick(len(TOOLS))] for _ in range(1 + pick(3)))


def _judge(run: Run, actions: tuple[str, ...], pick: Choose) -> str:
    """Verdicts for a batch; of what is in doubt, people are asked, and what they said is carried out."""
    for a in (run.actions[x] for x in actions):
        if a.request and a.request.about == "outcome" and (said := decision_of(a.request)) in ("done", "again", "abandon"):
            return f"judge {a.id} allow settle={said}"
        if a.state in ("doubted", "unknown") and not a.request and pick(2):
            return f"judge {a.id} escalate about=outcome"
    return "judge " + " ".join(f"{a} {VERDICTS[pick(len(VERDICTS))]}" for a in actions) + ("" if pick(3) else " amount=5")


def _retry(p: Player, pick: Choose) -> str:
    return "" if pick(2) else f" retry={p.now + 1}"


def _from_outside(run: Run, pick: Choose) -> str:
    asked = [a for a in run.open_actions if a.request]
    if asked and pick(3):
        action = asked[pick(len(asked))]
        outcome = action.request is not None and action.request.about == "outcome" and pick(4)
        said = ("done", "again", "abandon")[pick(3)] if outcome else ("approve", "reject", "done", "halt", "modify tool=look")[pick(5)]
        return f"vote {action.id} p-{pick(3)} {said}"
    return ("resume w", "wait 4000", "time", "mail stop", "mail halt", "mail say", "mail junk")[pick(7)]


def _anything(run: Run, pick: Choose) -> str:
    some = list(run.actions) or ["9.9"]
    action = some[pick(len(some))]
    return (
        "turn",
        "reply pay",
        "lost server",
        f"outcome {action} done",
        f"outcome {action} done attempt=7",
        "close",
        "resume w",
        "mail stop",
        "mail say",
        f"vote {action} p-1 approve",
        "judge",
        f"step {action} look n=9",
        "wait 50",
        "time",
        "start",
    )[pick(14)]


def walk(numbers: list[int]) -> Player:
    """Play a walk; every record is checked as it comes."""
    player, left = Player(), iter(numbers)

    def pick(n: int) -> int:
        return next(left, 0) % n

    step(player, "start denials=3 retries=4 turns=6")
    for _ in range(40):
        if player.run.life == "sealed":
            break
        before, known = player.run, len(player.records)
        step(player, move(player, pick))
        check(before, player.records[known - 1 :], player.records[known:])
        check_due(player.run)
    return player


def check(run: Run, context: list[r.AnyRecord], fresh: list[r.AnyRecord]) -> None:
    for previous, record in zip(context, fresh, strict=False):
        after = evolve(run, record)
        assert after.life == run.life or after.life in LIVES[run.life], (run.life, after.life, record.type)
        for id, action in after.actions.items():
            old = run.actions.get(id)
            if old is not None and old.state != action.state:
                assert action.state in ACTIONS[old.state], (id, old.state, action.state, record.type)
        if isinstance(record.fact, r.ActionStarted):
            allowed = previous.fact
            assert isinstance(allowed, r.ActionJudged)
            assert (allowed.verdict, allowed.action, allowed.attempt) == ("allow", record.fact.action, record.fact.attempt)
        assert after.seq == run.seq + 1
        run = after


def check_due(run: Run) -> None:
    effects = due(run)
    assert due(run) == effects
    for effect in effects:
        if isinstance(effect, e.Execute):
            assert run.actions[effect.action].state == "started"
        if isinstance(effect, e.Reconcile):
            assert run.actions[effect.action].state == "doubted"
        if isinstance(effect, e.Seal):
            assert not [a for a in run.actions.values() if a.state in ("started", "doubted", "unknown")]
    at, word = wakes(run)
    assert word
    assert at == 0 or not any(not x.not_before for x in effects) or run.life != "running"


numbers = st.lists(st.integers(min_value=0, max_value=2**16), min_size=5, max_size=160)


@given(numbers)
@settings(max_examples=250, deadline=None)
def test_tables_hold_and_intents_stand_behind_their_allow(drawn: list[int]) -> None:
    walk(drawn)


@given(numbers)
@settings(max_examples=60, deadline=None)
def test_a_run_is_the_fold_of_its_records(drawn: list[int]) -> None:
    """From the bytes, at once or in two parts: the same run, the same digest, the same effects."""
    player = walk(drawn)
    records = [decode(encode(x)) for x in player.records]
    whole = fold(records)
    half = len(records) // 2
    parted = fold(records[half:], fold(records[:half]))
    assert state_digest(whole) == state_digest(player.run) == state_digest(parted)
    assert whole == parted
    assert due(whole) == due(player.run)


@given(numbers)
@settings(max_examples=40, deadline=None)
def test_an_ended_run_has_nothing_open(drawn: list[int]) -> None:
    run = walk(drawn).run
    if run.life in ("completed", "failed", "cancelled", "sealed"):
        assert all(a.state in CLOSED for a in run.actions.values()) or run.end == "failed"


def test_the_walk_reaches_every_state() -> None:
    """The walk would prove nothing of states that it never meets."""
    seen: set[str] = set()
    for seed in range(400):
        rng = random.Random(seed)
        player = walk([rng.randrange(2**16) for _ in range(160)])
        for n in range(1, len(player.records) + 1):
            if n == len(player.records) or player.records[n].type == "TurnStarted":
                run = fold(player.records[:n])
                seen |= {run.life} | {a.state for a in run.actions.values()}
    assert seen >= (set(LIVES) - {"new", "completed", "failed", "cancelled"}) | {
        "done",
        "failed",
        "denied",
        "cancelled",
        "settled",
        "started",
    }


def test_every_state_has_its_row() -> None:
    assert {s for row in LIVES.values() for s in row} <= set(LIVES)
    assert {s for row in ACTIONS.values() for s in row} <= set(ACTIONS)
    assert all(not ACTIONS[s] for s in CLOSED if s != "failed")


def test_an_empty_run_has_nothing_due() -> None:
    assert due(EMPTY) == []
    assert play("start").endswith("due: Prepare 1/1; running\n")


@given(numbers)
@settings(max_examples=60, deadline=None)
def test_a_run_that_was_folded_further_stays_as_it_was(drawn: list[int]) -> None:
    """A step changes what it made itself: whoever kept the run of an earlier event still holds that one."""
    kept, run, blank = list[tuple[Run, str]](), EMPTY, repr(EMPTY)
    for n, record in enumerate(walk(drawn).records):
        before = run
        run = evolve(run, record, f"hash {n}")
        assert (run.seq, run.head) == (record.seq, f"hash {n}")
        assert run is not before
        kept.append((run, repr(run)))
    assert all(repr(then) == written for then, written in kept)
    assert repr(EMPTY) == blank
