"""Attacks on forgetting: what was erased comes back, goes without a record, goes although it is held; and what is sealed is exchanged."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import apsw
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import structs

from mandamus import wiring
from mandamus.cli.chains import walk_all
from mandamus.core import records as r
from mandamus.core.canonical import canon
from mandamus.core.payload import Payload, commit, opened
from mandamus.core.records import LOG, decode
from mandamus.core.retention import KeyName
from mandamus.core.seal import Draft
from mandamus.errors import Conflict, EngineFault, Erased, Misuse, ProofError
from mandamus.proof.verify import verify
from mandamus.runtime import evidence, recover
from mandamus.runtime.forgetting import forget, holds
from mandamus.runtime.sealing import MAIL, NONCE, SealedLedger, associated
from mandamus.testing import people
from tests.e2e.clinic import PATIENT, WORD, Clinic, agent


def told(tmp_path: Path, story: Callable[[Clinic], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with Clinic(tmp_path) as clinic:
            await story(clinic)

    asyncio.run(whole())


class Between:
    """A database administrator between the ledger and whoever opens its payloads."""

    def __init__(self, inner: Any, change: Callable[[Payload], Payload]) -> None:
        self._inner, self._change = inner, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def payload(self, run: str, seq: int, part: str) -> Payload | None:
        found = await self._inner.payload(run, seq, part)
        return None if found is None else self._change(found)


async def read(clinic: Clinic, run: str, seq: int, part: str, change: Callable[[Payload], Payload]) -> Payload | None:
    sealing = clinic.env.sealing
    return await SealedLedger(Between(sealing.inner, change), sealing.keys).payload(run, seq, part)  # type: ignore[arg-type]


async def genesis_of(clinic: Clinic, run: str) -> r.AnyRecord:
    [genesis] = [decode(raw) async for raw in clinic.env.ledger.read(run, upto=0)]
    return genesis


async def bundle(clinic: Clinic, run: str) -> Any:
    return verify(await evidence.build(clinic.env, run, {}, ""), clinic.env.trust())


# -- what is sealed is exchanged -----------------------------------------------------------------------------------------------
def test_a_sealed_payload_that_was_changed_or_moved_does_not_open(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()
        stored = {(p.seq, p.part): p async for p in clinic.env.sealing.inner.payloads(result.run_id)}
        (seq, part), first = next(iter(stored.items()))
        for at in (0, NONCE, len(first.bytes) - 1):
            torn = first.bytes[:at] + bytes([first.bytes[at] ^ 1]) + first.bytes[at + 1 :]
            with pytest.raises(ProofError, match="not the one"):
                await read(clinic, result.run_id, seq, part, lambda p, torn=torn: structs.replace(p, bytes=torn))
        for other in stored.values():
            if other is not first:
                with pytest.raises(ProofError, match="not the one"):
                    await read(clinic, result.run_id, seq, part, lambda p, other=other: structs.replace(p, bytes=other.bytes))

    told(tmp_path, story)


def test_another_plaintext_under_the_true_key_is_not_the_one(tmp_path: Path) -> None:
    """GCM does not commit to its plaintext, and who holds the key can seal anew: the commitment decides."""

    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()
        genesis = await genesis_of(clinic, result.run_id)
        assert genesis.body
        key = await clinic.env.sealing.keys.key(KeyName(f"run/{result.run_id}", "content", genesis.at[:7]))
        about = associated(clinic.env.origin, result.run_id, 0, genesis.body[0].commit)
        forged = bytes(NONCE) + AESGCM(key).encrypt(bytes(NONCE), os.urandom(32) + canon("pay somebody else"), about)
        with pytest.raises(ProofError, match="not the one"):
            await read(clinic, result.run_id, 0, "input", lambda p: structs.replace(p, bytes=forged))

    told(tmp_path, story)


def test_what_a_payload_is_bound_to_can_be_read_in_one_way_only() -> None:
    """No two places have the same associated data: each field stands behind its length."""
    places = itertools.product(("a", "ab", ""), ("a", "ba", ""), (0, 1, 256), ("00" * 32, "01" * 32))
    made = [associated(*place) for place in places]
    assert len(set(made)) == len(made)


def test_a_plain_payload_in_a_sealed_run_is_held_against_its_commitment(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()
        plain = os.urandom(32) + canon("pay somebody else")
        found = await read(clinic, result.run_id, 0, "input", lambda p: Payload(p.run, p.seq, p.part, plain))
        assert found is not None
        genesis = await genesis_of(clinic, result.run_id)
        assert genesis.body
        with pytest.raises(ProofError, match="not the one"):
            opened(found, genesis.body[0].commit)

    told(tmp_path, story)


def test_a_message_that_only_looks_sealed_is_refused_mail(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        made, result = await clinic.waiting()
        for junk in (MAIL, MAIL + b"x", MAIL + os.urandom(60)):
            await clinic.env.sealing.inner.send(result.run_id, junk)
        assert (await made.resume(result.run_id, ledger=clinic.env)).state == "suspended"
        facts = [decode(raw).fact async for raw in clinic.env.ledger.read(result.run_id)]
        assert [f.reason for f in facts if isinstance(f, r.MessageRefused)] == ["malformed"] * 3

    told(tmp_path, story)


# -- without a record ----------------------------------------------------------------------------------------------------------
def test_a_key_that_goes_without_a_record_is_no_erasure(tmp_path: Path) -> None:
    """Deleted beside the log, marked as erased or not: nobody makes a bundle that says erased, and doctor finds it."""

    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()
        keys = clinic.env.sealing.keys
        await keys.destroy("nobody-asked", [KeyName(f"run/{result.run_id}")])
        assert "erased" in await clinic.forms(result.run_id)
        with pytest.raises(ProofError, match=r"missing|erased|gone"):
            await bundle(clinic, result.run_id)
        walked = await walk_all(clinic.env.ledger, 0, lambda done: None)
        assert [f.code for f in walked.faults] == ["MDM-0960"]

    told(tmp_path, story)


@pytest.mark.parametrize("how", ["never asked for", "before its time", "during a hold", "twice asked"])
def test_a_record_of_an_erasure_that_was_not_lawful_breaks_the_log(tmp_path: Path, how: str) -> None:
    """Written by a compromised process, past everything that would have kept it back."""

    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()
        found = await forget.survey(clinic.env, subject=PATIENT)
        clock = clinic.env.clock("UTC")
        after = clock.now + (10**12 if how == "before its time" else 0)
        asked = r.ErasureRequested(
            after=after, clock=clock, erasure="e-1", ground="objection", principal="p-x", subject=found.subject
        )  # fmt: skip
        if how == "during a hold":
            await holds.place(clinic.env, "legal_claims", "p-x", subject=PATIENT)
        drafts = [Draft(asked, 0)] * {"never asked for": 0, "twice asked": 2}.get(how, 1)
        done = r.Erased(clock=clock, commits=("0" * 64,), erasure="e-1", ground="objection", principal="p-x", subject=found.subject)
        await clinic.env.log.append([*drafts, Draft(done, 0)])
        with pytest.raises(ProofError, match=r"asked|requested|before its time|in force"):
            await bundle(clinic, result.run_id)

    told(tmp_path, story)


# -- what was erased comes back ------------------------------------------------------------------------------------------------
def test_no_dictionary_of_names_finds_anybody_by_what_is_left(tmp_path: Path) -> None:
    """Every name, under every key that is left and under none, in hex and as it is: none of it stands in any file."""

    async def story(clinic: Clinic) -> None:
        await clinic.treat()
        await clinic.treat("patient other")
        await clinic.forget()
        db = apsw.Connection(clinic.env.sealing.keys.path)
        left = [
            bytes(row[0]) for row in db.execute("SELECT value FROM meta UNION ALL SELECT key FROM subject UNION ALL SELECT key FROM dek")
        ]
        db.close()
        guesses = []
        for name in (PATIENT, WORD, PATIENT.lower(), canon(PATIENT).decode()):
            plain = name.encode()
            guesses += [hashlib.sha256(plain).digest(), hashlib.sha256(canon(name)).digest()]
            guesses += [hmac.digest(key, plain, "sha256") for key in left]
        needles = [n for g in guesses for n in (g, g.hex().encode(), g.hex()[:32].encode())]
        assert clinic.where(*needles) == []

    told(tmp_path, story)


def test_a_small_value_cannot_be_guessed_from_its_commitment(tmp_path: Path) -> None:
    """The amounts of a whole ledger are few; the salt that makes them unguessable went with the key."""

    async def story(clinic: Clinic) -> None:
        result = await agent("42").run("7", user="p-1", ledger=clinic.env)
        await clinic.forget("p-1")
        commits = {p.commit for raw in [x async for x in clinic.env.ledger.read(result.run_id)] for p in decode(raw).body or ()}
        tried = {commit(bytes(32), canon(str(n))) for n in range(2000)} | {hashlib.sha256(canon(str(n))).hexdigest() for n in range(2000)}
        assert not commits & tried
        for left in await clinic.deks():
            assert not commits & {commit(left, canon(str(n))) for n in range(50)}

    told(tmp_path, story)


def test_an_owner_that_wakes_up_late_writes_nothing_back(tmp_path: Path) -> None:
    """It slept over the erasure with the arguments in its memory."""

    async def story(clinic: Clinic) -> None:
        key = clinic.approver()
        made, result = await clinic.waiting()
        async with Clinic(tmp_path) as sleeper:
            s = await recover.read_run(sleeper.env, await wiring.bind(made), result.run_id)
            assert await s.value(s.run.open_actions[0].seq, "args")
            assert (await clinic.forget(key=key)).state == "erased"
            recover.own(s, s.clock())
            with pytest.raises((Conflict, Erased)):
                await s.save()
            assert (await made.resume(result.run_id, ledger=sleeper.env)).state == "cancelled"
        assert await clinic.forms(result.run_id) == {"erased"}
        assert clinic.where() == []

    told(tmp_path, story)


def test_a_run_is_not_driven_while_its_keys_are_out_of_use_and_is_cancelled_at_the_end_of_its_grace(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        key = clinic.approver()
        made, result = await clinic.waiting()
        now = clinic.env.time.now()
        assert (await clinic.forget(after=now + 10_000_000)).state == "waits"
        assert (await made.resume(result.run_id, ledger=clinic.env)).state == "suspended"
        s = await recover.read_run(clinic.env, await wiring.bind(made), result.run_id)
        await clinic.env.sealing.inner.send(result.run_id, people.vote(s, s.run.open_actions[0], key, "approve"))
        with pytest.raises((EngineFault, Erased)):
            await made.resume(result.run_id, ledger=clinic.env)
        clinic.env.time.now = lambda: now + 11_000_000  # type: ignore[method-assign]
        [report] = await forget.resume(clinic.env, key)
        assert report.state == "erased"
        facts = [decode(raw).fact async for raw in clinic.env.ledger.read(result.run_id)]
        assert isinstance(facts[-1], r.RunSealed)
        assert (await bundle(clinic, result.run_id)).exit_code == 3

    told(tmp_path, story)


def test_lifting_a_hold_without_the_administrators_lifts_nothing(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        await clinic.treat()
        hold = await holds.place(clinic.env, "legal_claims", "p-x", subject=PATIENT)
        fact = r.HoldLifted(clock=clinic.env.clock("UTC"), hold=hold, principal="p-x")
        await clinic.env.log.append([Draft(fact, 0)], raises=True)
        assert (await clinic.forget()).state == "blocked"

    told(tmp_path, story)


def test_the_key_store_of_another_log_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with Clinic(tmp_path / "one") as clinic:
            await clinic.treat()
            place = clinic.env.sealing.keys.path
        monkeypatch.setenv("MANDAMUS_KEYS", f"sqlite:///{place}")
        async with Clinic(tmp_path / "two") as other:
            with pytest.raises(Misuse, match="another log"):
                await other.treat()
            assert [h.run async for h in other.env.ledger.runs()] == [LOG]

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    asyncio.run(story())
