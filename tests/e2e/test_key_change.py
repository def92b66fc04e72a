"""Keys change, and are taken out of force, as people do it by the command line: who may sign then, and who not any more."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mandamus import wiring
from mandamus.proof.keys import parse_vkey
from mandamus.proof.trust import Trust
from mandamus.proof.verify import verify
from tests.e2e.cli_world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    before = Path.cwd()
    os.chdir(tmp_path)
    yield World(tmp_path)
    os.chdir(before)


def proven(world: World, run: str, code: int = 0) -> Any:
    world("bundle", run, "-o", "b")
    trust = Trust.parse((world.folder / ".mandamus" / "trust").read_bytes())
    report = verify((world.folder / "b").read_bytes(), trust)
    assert report.exit_code == code, report
    return report


def paid(world: World) -> str:
    return str(world.ok("run", "payout.py:small", "Pay a little", "--json").data["run_id"])


@pytest.mark.parametrize("role", ["log", "bundle", "administrator"])
def test_an_own_key_is_rotated_and_everything_goes_on(world: World, role: str) -> None:
    before = paid(world)
    old = wiring.Home(world.folder / ".mandamus").signer(role).vkey
    told = world.ok("key", "rotate", "--role", role, "--json").data
    assert told["old"] == old
    assert told["new"] != old
    assert wiring.Home(world.folder / ".mandamus").signer(role).vkey == told["new"]
    after = paid(world)
    for run in (before, after):
        proven(world, run)
    assert world.ok("doctor").code == 0


def test_the_origin_stays_when_the_log_key_changes(world: World) -> None:
    paid(world)
    told = world.ok("key", "rotate", "--role", "log", "--json").data
    assert parse_vkey(told["new"]).name == parse_vkey(told["old"]).name


def test_names_keep_their_pseudonyms_when_the_log_key_changes(world: World) -> None:
    import asyncio

    async def name() -> str:
        env = await wiring.open_env("sqlite:///.mandamus/run.db")
        try:
            return env.pseudonym("Acme")
        finally:
            await wiring.close_env(env)

    paid(world)
    before = asyncio.run(name())
    world.ok("key", "rotate", "--role", "log")
    world.ok("key", "rotate", "--role", "log")
    assert asyncio.run(name()) == before


def test_a_retired_log_key_writes_nothing(world: World) -> None:
    paid(world)
    keys = world.folder / ".mandamus" / "keys"
    old = (keys / "log.pem").read_bytes()
    world.ok("key", "rotate", "--role", "log")
    (keys / "log.pem").write_bytes(old)
    told = world("run", "payout.py:small", "Pay")
    assert told.code == 2
    assert "MDM-0989" in told.err


def test_a_rotation_that_broke_off_is_finished(world: World) -> None:
    """The record is on the chain, the files are as they were: whoever opens the ledger next puts the new key into its place."""
    paid(world)
    keys = world.folder / ".mandamus" / "keys"
    old = (keys / "log.pem").read_bytes()
    world.ok("key", "rotate", "--role", "log")
    (keys / "log.next.pem").write_bytes((keys / "log.pem").read_bytes())
    (keys / "log.next.pem").chmod(0o600)
    (keys / "log.pem").write_bytes(old)
    run = paid(world)
    assert not (keys / "log.next.pem").exists()
    proven(world, run)


def test_an_approver_who_is_revoked_votes_no_more(world: World) -> None:
    world.people()
    item = world.waiting()
    world.ok("key", "revoke", "--principal", "p-alice")
    told = world.approve(item, "alice")
    assert told.code == 3
    again = world("key", "revoke", "--principal", "p-alice")
    assert (again.code, "MDM-0341" in again.err) == (3, True)


def test_a_vote_that_was_sent_before_and_read_after_a_revocation_does_not_count(world: World) -> None:
    world.people()
    item = world.waiting()
    assert world.approve(item, "alice").code == 0
    world.ok("key", "revoke", "--principal", "p-alice")
    assert world.approve(item, "bob").code == 0
    told = world("resume", item["run_id"], "--json")
    assert told.code == 4, told


def test_a_vote_of_before_still_proves_what_it_allowed(world: World) -> None:
    world.people()
    item = world.waiting()
    world.approve(item, "alice")
    world.approve(item, "bob")
    world("resume", item["run_id"])
    world.ok("key", "revoke", "--principal", "p-alice")
    proven(world, item["run_id"])


def test_an_approver_gets_another_key(world: World) -> None:
    world.people()
    world.ok("key", "new", "alice2.pem", "--name", "alice2")
    told = world.ok("key", "rotate", "--role", "approver", "--key", "alice.pem", "--new", "alice2.pem", "--json").data
    assert told["role"] == "approver"
    item = world.waiting()
    assert world.approve(item, "alice").code == 3
    assert world.approve(item, "alice2").code in (0, 4)
    assert world.approve(item, "bob").code in (0, 4)
    world("resume", item["run_id"])
    proven(world, item["run_id"])


def test_no_key_takes_a_second_role(world: World) -> None:
    world.people()
    told = world("key", "rotate", "--role", "bundle", "--new", "alice.pem")
    assert (told.code, "MDM-0988" in told.err) == (2, True)


def test_what_cannot_be_rotated_is_told(world: World) -> None:
    paid(world)
    assert world("key", "rotate", "--role", "approver").code == 2
    assert world("key", "rotate", "--role", "log", "--key", "x.pem").code == 2
    assert world("key", "revoke").code == 2
    assert world("key", "revoke", "--principal", "p-nobody").code == 3
    world.ok("key", "new", "other.pem", "--name", "other.example")
    told = world("key", "rotate", "--role", "log", "--new", "other.pem")
    assert (told.code, "MDM-0189" in told.err) == (2, True)


def test_a_record_of_a_rotation_needs_both_keys(world: World) -> None:
    """An administrator alone cannot put a key of his own in the log's place."""
    import asyncio

    from mandamus.core.canonical import parse
    from mandamus.core.records import KeyChanged
    from mandamus.core.seal import Content, Draft
    from mandamus.drivers.sign_file import FileSigner
    from mandamus.proof import authority, dsse

    run = paid(world)
    thief = FileSigner.create(world.folder / "thief.pem", wiring.Home(world.folder / ".mandamus").signer("log").key.name)  # type: ignore[attr-defined]

    async def forge() -> None:
        env = await wiring.open_env("sqlite:///.mandamus/run.db")
        admin: Any = env.home.signer("administrator")
        fact = KeyChanged(clock=env.clock("UTC"), new=thief.vkey, old=env.signer.vkey, principal="p-administrator", role="log")
        said = authority.statement(fact, expires=fact.clock.now + 10**9, nonce="n", origin=env.origin)
        envelope = dsse.sign(authority.PAYLOAD_TYPE, said, [(admin.keyid, admin.sign), (thief.keyid, thief.sign)])
        await env.log.append([Draft(fact, 0, (Content("statement", parse(envelope)),))], raises=True)
        await wiring.close_env(env)

    world.ok("bundle", run, "-o", "b")
    asyncio.run(forge())
    report = proven_raw(world, run)
    assert report.exit_code == 1
    assert "did not sign" in report.broken.what


def proven_raw(world: World, run: str) -> Any:
    import asyncio

    from mandamus.runtime import evidence

    async def build() -> bytes:
        home = wiring.Home(world.folder / ".mandamus")
        ledger = wiring.open_ledger("sqlite:///.mandamus/run.db")
        from mandamus.runtime.env import Env, SystemTime

        signer = home.signer("log")
        env = Env(ledger, SystemTime(), signer, home.trust, parse_vkey(signer.vkey).name)
        env.home = home
        try:
            return await evidence.build(env, run, {}, "")
        finally:
            await ledger.close()

    return verify(asyncio.run(build()), Trust.parse((world.folder / ".mandamus" / "trust").read_bytes()))


# -- several administrators --------------------------------------------------------------------------------------------------
def test_two_of_three_administrators_must_agree(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [world.ok("key", "new", f"admin{n}.pem", "--name", f"admin{n}", "--json").data["vkey"] for n in (1, 2)]
    monkeypatch.setenv("MANDAMUS_ADMINISTRATORS", " ".join(lines))
    monkeypatch.setenv("MANDAMUS_ADMINISTRATORS_QUORUM", "2")
    told = world("run", "payout.py:small", "Pay")
    assert (told.code, "MDM-0342" in told.err) == (3, True)
    (statement,) = (world.folder / ".mandamus" / "statements").iterdir()
    assert world("key", "sign", str(statement), "--key", "admin1.pem").code == 2  # nobody can be asked here
    shown = world.ok("key", "sign", str(statement), "--key", "admin1.pem", "--yes")
    assert "PolicyChanged" in shown.out
    assert world("key", "sign", str(statement), "--key", "admin1.pem", "--yes").code == 1
    run = paid(world)
    proven(world, run)
    assert not statement.exists()

    world.ok("key", "new", "carol.pem", "--name", "carol")
    enroll = ("key", "enroll", "--principal", "p-carol", "--role", "treasury", "--key", "carol.pem")
    assert world(*enroll).code == 3
    assert b"p-carol" not in (world.folder / ".mandamus" / "trust").read_bytes(), "nothing is half done"
    (statement,) = (world.folder / ".mandamus" / "statements").iterdir()
    world.ok("key", "sign", str(statement), "--key", "admin2.pem", "--yes")
    world.ok(*enroll)
    proven(world, paid(world))


def test_a_stranger_among_administrators_counts_for_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    line = world.ok("key", "new", "admin1.pem", "--name", "admin1", "--json").data["vkey"]
    world.ok("key", "new", "stranger.pem", "--name", "stranger")
    monkeypatch.setenv("MANDAMUS_ADMINISTRATORS", line)
    monkeypatch.setenv("MANDAMUS_ADMINISTRATORS_QUORUM", "2")
    world("run", "payout.py:small", "Pay")
    (statement,) = (world.folder / ".mandamus" / "statements").iterdir()
    world.ok("key", "sign", str(statement), "--key", "stranger.pem", "--yes")
    told = world("run", "payout.py:small", "Pay")
    assert (told.code, "MDM-0342" in told.err) == (3, True)


def test_a_quorum_that_can_never_be_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANDAMUS_ADMINISTRATORS_QUORUM", "2")
    told = world("run", "payout.py:small", "Pay")
    assert (told.code, "MDM-0187" in told.err) == (2, True)


def test_what_is_no_statement_is_not_signed(world: World) -> None:
    (world.folder / "x.json").write_text("{}")
    assert world("key", "sign", "x.json", "--key", "alice.pem", "--yes").code == 1
    assert world("key", "sign", "nothing.json", "--key", "alice.pem", "--yes").code == 2


def test_those_who_begin_at_once_have_the_same_keys(tmp_path: Path) -> None:
    """Several workers of one host, started by one orchestrator in an empty folder."""
    for n in range(20):
        together = threading.Barrier(4)

        def begins(folder: Path, together: threading.Barrier = together) -> tuple[str, bytes]:
            home = wiring.Home(folder)
            together.wait()
            home.trust()
            return home.signer("log").vkey, (folder / "trust").read_bytes()

        with ThreadPoolExecutor(4) as pool:
            found = set(pool.map(begins, [tmp_path / str(n)] * 4))
        assert len(found) == 1
