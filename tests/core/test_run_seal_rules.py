"""What may not follow any more: answers to what has ended, and replacements of what may have happened."""

from __future__ import annotations

import pytest

from tests.core.interactions import play


def last(script: str) -> str:
    return play(script).splitlines()[-2].strip()


@pytest.mark.parametrize("late", ["reply pay", "lost server", "turn", "outcome 1.1 done", "step 1.1 look", "use 1.1 clock.read"])
def test_nothing_follows_behind_the_seal(late: str) -> None:
    ended = "start\nturn\nmail stop\nlost refusal\nclose\nclose\n"
    assert last(ended + late).startswith("not due")


def test_a_model_call_is_answered_once() -> None:
    assert last("start\nturn\nlost refusal\nlost server").startswith("not due")
    assert last("start\nturn\nlost server retry=5\nlost server retry=5").startswith("not due")


def test_a_step_is_proposed_once() -> None:
    running = "start\nturn\nreply file\njudge 1.1 allow\nstep 1.1 look\n"
    assert last(running + "step 1.1 look") == "not due: a step is proposed once"


def test_nobody_replaces_an_action_that_may_have_happened() -> None:
    """Judged again after "again", an unknown wire waits for people: they may refuse it, not put another in its place."""
    unknown = "start\nturn\nreply wire\njudge 1.1 allow\noutcome 1.1 doubt\njudge 1.1 escalate about=outcome\nvote 1.1 p-alice again\n"
    asked = unknown + "judge 1.1 escalate\n"
    assert last(asked + "vote 1.1 p-bob modify tool=pay").endswith("reason=wrong_action")


def test_an_action_that_is_over_uses_nothing() -> None:
    assert last("start\nturn\nreply look\njudge 1.1 allow\noutcome 1.1 done\nuse 1.1 clock.read").startswith("not due")
