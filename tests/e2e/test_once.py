"""`--idempotency-key` and `--dry-run`: a request that is sent twice is one, and one that is rehearsed is none."""

from __future__ import annotations

import pytest

from tests.e2e.cli_world import World


@pytest.fixture
def asking(world: World) -> World:
    world.people()
    world.waiting()
    return world


def runs(world: World) -> list[str]:
    return [row["run"] for row in world("runs", "--json").stream]


def votes(world: World, run: str = "last") -> list[str]:
    return [v["principal"] for v in next(x for x in world("inbox", "--json").stream)["votes"]]


# -- once ------------------------------------------------------------------------------------------------------------------------
def test_a_run_that_is_asked_for_twice_is_one(world: World) -> None:
    ask = ("run", "payout.py:small", "Pay", "--idempotency-key", "invoice-4711", "--json")
    first, again = world.ok(*ask).data, world.ok(*ask).data
    assert first == again
    assert runs(world) == [first["run_id"]]
    other = world.ok("run", "payout.py:small", "Pay", "--idempotency-key", "invoice-4712", "--json").data
    assert other["run_id"] != first["run_id"]
    assert world.ok("show", "last", "--json").data["run_id"] == other["run_id"], "last is the newest all the same"


def test_a_key_that_was_used_for_something_else_is_refused(world: World) -> None:
    world.ok("run", "payout.py:small", "Pay", "--idempotency-key", "k")
    told = world("run", "payout.py:small", "Pay twice", "--idempotency-key", "k")
    assert (told.code, "MDM-0028" in told.err) == (2, True)
    assert len(runs(world)) == 1
    for more in (("--user", "p-7f3a"), ("--thread", "last", "--user", "p-7f3a")):
        told = world("run", "payout.py:small", "Pay", *more, "--idempotency-key", "k")
        assert (told.code, "another user" in told.err) == (2, True)
    other = world("run", "payout.py:small", "Pay", "--thread", "last", "--idempotency-key", "t", "--json").data
    again = world("run", "payout.py:small", "Pay", "--thread", "last", "--idempotency-key", "t", "--json").data
    assert again["run_id"] == other["run_id"]
    told = world("run", "payout.py:small", "Pay", "--thread", other["run_id"], "--idempotency-key", "k")
    assert (told.code, "another thread" in told.err) == (2, True)
    assert world("run", "payout.py:small", "Pay", "--idempotency-key", "t").code == 2
    assert len(runs(world)) == 2
    assert world("run", "payout.py:small", "Pay", "--idempotency-key", "").code == 2
    assert world("run", "payout.py:small", "Pay", "--idempotency-key", "x" * 300).code == 2


def test_the_key_itself_stands_nowhere(world: World) -> None:
    import hashlib

    world.ok("run", "payout.py:small", "Pay", "--idempotency-key", "invoice-4711")
    for path in (world.folder / ".mandamus").rglob("*"):
        raw = path.read_bytes() if path.is_file() else b""
        assert b"invoice-4711" not in raw
        assert hashlib.sha256(b"invoice-4711").hexdigest().encode() not in raw


def test_a_repeat_carries_on_what_waits_and_lifts_no_halt(asking: World) -> None:
    ask = ("run", "payout.py", "Pay", "--idempotency-key", "k", "--json")
    first = asking(*ask)
    item = next(x for x in asking("inbox", "--json").stream if x["run_id"] == first.data["run_id"])
    for who in ("alice", "bob"):
        assert asking.approve(item, who).code == 0
    assert (first.code, asking(*ask).data["state"]) == (4, "completed")
    assert asking("run", "payout.py", "Pay more", "--idempotency-key", "h").code == 4
    halted = asking.ok("show", "last", "--json").data["run_id"]
    asking.ok("cancel", halted, "--halt", "--key", "alice.pem")
    assert asking("resume", halted).code == 5
    assert asking("run", "payout.py", "Pay more", "--idempotency-key", "h").code == 5
    assert asking("show", halted, "--json").data["state"] == "halted"


def test_a_vote_that_is_sent_twice_is_one_and_can_be_told_after_the_run(asking: World) -> None:
    item = asking("inbox", "--json").stream[0]
    twice = [asking.approve(item, "alice", "--idempotency-key", "a1", "--json") for _ in range(2)]
    assert [x.code for x in twice] == [0, 0], "without the key the second is refused: voted already"
    assert [x.data["votes"][0]["repeated"] for x in twice] == [False, True]
    assert twice[0].data["votes"][0]["ballot"] == twice[1].data["votes"][0]["ballot"]
    assert votes(asking) == ["p-alice"]
    assert asking.approve(item, "alice", "--idempotency-key", "a2").code == 3
    assert asking("reject", item["id"], "--key", "alice.pem", "--digest", item["digest"], "--idempotency-key", "a1").code == 2
    assert asking.approve(item, "bob", "--idempotency-key", "a1").code == 0, "a key is its owner's"
    asking.ok("resume", item["run_id"])
    late = asking.approve(item, "alice", "--idempotency-key", "a1", "--json")
    assert (late.code, late.data["votes"][0]["repeated"]) == (0, True)
    assert asking.approve(item, "alice").code == 2, "without the key: it does not wait any more"


def test_a_change_of_one_key_is_not_answered_with_another_change(asking: World) -> None:
    item = asking("inbox", "--json").stream[0]
    change = ("--idempotency-key", "m", "--set")
    assert asking.approve(item, "alice", *change, "to=Acme Ltd", "--json").code == 0
    again = asking.approve(item, "alice", *change, "to=Acme Ltd", "--json")
    assert (again.code, again.data["votes"][0]["repeated"]) == (0, True)
    for other in (("to=Mallory",), ("to=Acme Ltd", "--set", "amount=1.00 USD")):
        told = asking.approve(item, "alice", *change, *other)
        assert (told.code, "MDM-0028" in told.err) == (2, True)
    another = asking("approve", item["id"], "--key", "alice.pem", "--digest", "ab" * 32, *change, "to=Acme Ltd")
    assert (another.code, "another action" in another.err) == (2, True)


def test_several_votes_of_one_key_are_completed(asking: World) -> None:
    first = asking("inbox", "--json").stream[0]
    second = asking.waiting()
    both = ("approve", first["id"], second["id"], "--key", "alice.pem", "--digest", first["digest"], "--digest", second["digest"])
    assert asking.approve(first, "alice", "--idempotency-key", "b").code == 0
    told = asking.ok(*both, "--idempotency-key", "b", "--json")
    assert {x["id"]: x["repeated"] for x in told.data["votes"]} == {first["id"]: True, second["id"]: False}


def test_a_stop_that_is_sent_twice_is_one(asking: World) -> None:
    stop = ("cancel", "last", "--key", "alice.pem", "--idempotency-key", "s", "--json")
    assert asking.ok(*stop).data["repeated"] is False
    asking("resume", "last")
    again = asking.ok(*stop).data
    assert (again["repeated"], again["next"]) == (True, "")
    assert asking("cancel", "last", "--key", "alice.pem").code == 2, "without the key: it has ended"
    assert asking("cancel", "last", "--halt", "--key", "alice.pem", "--idempotency-key", "s").code == 2


# -- rehearsed -------------------------------------------------------------------------------------------------------------------
def test_a_rehearsed_run_makes_nothing(world: World) -> None:
    told = world.ok("run", "payout.py:small", "Pay", "--dry-run", "--json")
    assert (told.data["agent"], told.data["dry_run"], sorted(told.data["tools"])) == ("payout-bot", True, ["send_payment", "wire"])
    assert not (world.folder / ".mandamus").exists()
    assert "nothing was started" in world.ok("run", "agent.yaml", "Pay", "--dry-run").out


def test_a_rehearsal_tells_every_reason_that_a_start_would(world: World) -> None:
    """What agent.yaml binds and is not true is a reason too, for doctor as for run."""
    path = world.folder / "agent.yaml"
    path.write_text(path.read_text() + "pins: {send_payment: nonsense}\ninstructions_sha256: nonsense\n")
    told = world("run", "agent.yaml", "Pay", "--dry-run", "--json")
    assert (told.code, [r["code"] for r in told.data["error"]["reasons"]]) == (3, ["manifest_drift"] * 2)
    looked = world("doctor", "agent.yaml", "--json")
    assert (looked.code, sum("manifest_drift" in x["says"] for x in looked.data["lines"])) == (3, 2)
    assert not (world.folder / ".mandamus").exists()
    started = world("run", "agent.yaml", "Pay", "--json")
    assert started.data["error"]["reasons"] == told.data["error"]["reasons"]


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_a_rehearsed_vote_shows_the_card_and_signs_nothing(asking: World, verb: str) -> None:
    told = asking.ok(verb, "last", "--key", "alice.pem", "--dry-run")
    assert "nothing was signed" in told.out
    assert "why you are asked" in told.err
    assert "what you sign" in told.err
    assert votes(asking) == []
    asking.ok("key", "new", "mallory.pem", "--name", "mallory")
    assert asking(verb, "last", "--key", "mallory.pem", "--dry-run").code == 3, "what would be refused is refused"
    assert asking(verb, "last", "--key", "alice.pem", "--dry-run", "--digest", "0" * 64).code == 3


def test_a_rehearsed_settlement_and_stop_send_nothing(asking: World) -> None:
    assert asking("run", "payout.py:lost", "Wire").code == 5
    run = asking.ok("show", "last", "--json").data["run_id"]
    waiting = next(x for x in asking("inbox", "--json").stream if x["run_id"] == run)
    told = asking.ok("settle", waiting["id"], "--done", "--key", "alice.pem", "--dry-run", "--json")
    assert (told.data["dry_run"], told.data["votes"][0]["votes"]) == (True, [])
    assert asking("cancel", run, "--key", "alice.pem", "--dry-run").code == 5, "an action is unknown, rehearsed or not"
    item = asking("inbox", "--json").stream[0]
    assert asking.ok("cancel", item["run_id"], "--key", "alice.pem", "--dry-run", "--json").data["dry_run"] is True
    assert asking("resume", item["run_id"]).code == 4, "nobody stopped it"
