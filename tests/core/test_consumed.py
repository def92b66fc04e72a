"""What a run has taken from its mailbox: told apart, in order, and cheap however much there was."""

from __future__ import annotations

import msgspec

from mandamus.core import records as r
from mandamus.core.consumed import NOTHING_READ, Consumed
from mandamus.core.fold import evolve
from mandamus.core.run import EMPTY, state_digest
from tests.samples import Chain, clock

KEYS = [f"{n:064}" for n in range(5)]


def refused(cursor: int, key: str) -> r.AnyRecord:
    chain = Chain("R")
    opened = r.RunOpened(
        agent="a", anchor=r.Anchor(root="", size=0), budget=r.BudgetLimits(), clock=clock(0), definition="d", isolation="in_process",
        manifest="m", nonce="n", origin="o", policy="p", profile="none", register=r.Register(number=1, prev=""), tenant="t", tier="dev",
    )  # fmt: skip
    chain.add(opened)
    return chain.add(r.MessageRefused(mail=r.MailRef(cursor=cursor, key=key), reason="forged")).record


def test_what_was_read_lies_behind_the_cursor() -> None:
    """Else the same mail would be read for ever."""
    run = evolve(EMPTY, refused(7, KEYS[0]))
    assert run.cursor == 7
    assert KEYS[0] in run.keys
    assert evolve(run, refused(3, KEYS[1])).cursor == 7


def test_an_earlier_state_does_not_hear_of_later_messages() -> None:
    one = NOTHING_READ.plus(KEYS[0])
    two, other = one.plus(KEYS[1]), one.plus(KEYS[2])
    assert (tuple(one), tuple(two), tuple(other)) == ((KEYS[0],), (KEYS[0], KEYS[1]), (KEYS[0], KEYS[2]))
    assert KEYS[1] not in one
    assert KEYS[1] not in other
    assert KEYS[2] not in two
    assert len(NOTHING_READ) == 0
    assert KEYS[0] not in NOTHING_READ


def test_a_key_that_came_twice_stands_there_twice() -> None:
    twice = Consumed(KEYS[0]).plus(KEYS[1]).plus(KEYS[0])
    assert tuple(twice) == (KEYS[0], KEYS[1], KEYS[0])
    assert twice == Consumed(KEYS[0], KEYS[1], KEYS[0])
    assert KEYS[0] in twice


def test_a_longer_mailbox_costs_no_copy_of_the_shorter() -> None:
    first = NOTHING_READ.plus(KEYS[0])
    last = first
    for n in range(1000):
        last = last.plus(f"{n:032}")
    assert last._keys is first._keys


def test_the_digest_of_a_state_lists_the_keys() -> None:
    run = msgspec.structs.replace(EMPTY, keys=Consumed(*KEYS))
    assert state_digest(run) != state_digest(EMPTY)
    assert state_digest(run) == state_digest(
        msgspec.structs.replace(EMPTY, keys=Consumed(KEYS[0]).plus(KEYS[1]).plus(KEYS[2]).plus(KEYS[3]).plus(KEYS[4]))
    )
