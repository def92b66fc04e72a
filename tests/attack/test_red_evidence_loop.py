"""Attempts on what runs: a worker that was taken over and writes the ledger, a witness that is cloned, logs that grow while they prove.

Ledger, log, witnesses and keys are the real ones. What the attacker writes, he writes by the ledger's own port: he holds its password,
and no key of an administrator or a witness.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from mandamus.cli import verify_release
from mandamus.core import records as r
from mandamus.core.canonical import accept
from mandamus.core.clock import rfc3339
from mandamus.core.records import AnyRecord, decode
from mandamus.core.seal import Content, Draft, Position, seal
from mandamus.drivers.spans_sqlite import Spans
from mandamus.drivers.store_memory import MemoryStore
from mandamus.errors import ProofError, Unavailable
from mandamus.proof import authority, dsse, note, provenance, tlogproof, tree
from mandamus.proof.keys import COSIGNER
from mandamus.proof.trust import Trust
from mandamus.runtime import erased, levels, witnesses
from mandamus.runtime.forgetting import holds
from mandamus.runtime.log import LogBook
from mandamus.runtime.statements import signed, widen
from mandamus.runtime.tlog.compact import tidy
from mandamus.runtime.tlog.service import TenantLog
from mandamus.server.http import serve
from mandamus.server.memory import Memory
from mandamus.server.witness import LIMITS, Witness
from mandamus.testing.virtual import signer
from tests.core.tlog_stand import ORIGIN, Stand
from tests.e2e.approving import Desk
from tests.e2e.clinic import Clinic
from tests.e2e.test_levels import WITNESSED
from tests.ports.test_witness_client import clients
from tests.samples import salts
from tests.servers import witnesses as w

OTHER = "f" * 64
pytestmark = pytest.mark.service


def now_us() -> int:
    return int(time.time() * 1_000_000)


# -- levels --------------------------------------------------------------------------------------------------------------------
async def _forged(d: Desk, level: Any) -> None:
    """What a worker that was taken over writes: the proposal is witnessed, under a checkpoint that nobody ever saw."""
    run = d.result.run_id
    head = await d.env.ledger.head(run)
    records = await d.records()
    proposal = next(x for x in records if x.type == "ActionProposed")
    fact = r.EvidenceReached(level=level, root="ab" * 32, seq=proposal.seq, size=1000)
    at = Position(run, head.seq, head.hash, head.epoch)
    made, _ = seal([Draft(fact, records[-1].turn)], at, rfc3339(d.time.now()), salts("forged"))
    await d.env.ledger.append(run, head, [made[0].raw])


def test_a_forged_level_starts_nothing_and_a_real_one_does(tmp_path: Path) -> None:
    """An owner before wrote that the proposal was witnessed. The honest one who takes the run over asks the log himself, starts nothing,
    and pays when a witness has really cosigned."""

    async def tell() -> None:
        d = await Desk.open(rules=[WITNESSED])
        log = d.env.home.signer("log")
        async with w.standing(tmp_path, log, name="w1.example") as one:
            roots = Trust.parse(f"log {log.vkey}\nwitness w1 {one.core.key}\nquorum w1\n")
            gone, port = one.client(), one.server.port
            await one.server.close()
            d.env.tlog = TenantLog(d.env.ledger, MemoryStore(), Spans.open(None), log, lambda: roots, now_us, witnesses=[gone])
            assert (await d.ask()).state == "suspended"
            await _forged(d, "witnessed")
            d.time.advance(seconds=60)
            with pytest.raises(Unavailable, match="MDM-0939"):
                await d.resume()
            assert d.paid == []
            assert "ActionStarted" not in await d.types()
            back = await serve(one.core.answer, "127.0.0.1", port, LIMITS)
            try:
                d.time.advance(seconds=60)
                assert (await d.resume()).state == "completed"
            finally:
                await back.close()
            assert d.paid == [("Acme", "50,000.00 USD")]
            await d.env.tlog.close()

    asyncio.run(tell())


def test_a_forged_level_where_there_is_no_log_starts_nothing() -> None:
    """The next owner was started with MANDAMUS_LOG=none: what the run says of itself is all there is, and it is not enough."""

    async def tell() -> None:
        d = await Desk.open(rules=[WITNESSED])
        log = d.env.home.signer("log")
        key = w.key("w1.example", COSIGNER)
        roots = Trust.parse(f"log {log.vkey}\nwitness w1 {key.vkey}\nquorum w1\n")
        nobody = _Away()
        d.env.tlog = TenantLog(d.env.ledger, MemoryStore(), Spans.open(None), log, lambda: roots, now_us, witnesses=[nobody])
        assert (await d.ask()).state == "suspended"
        await _forged(d, "witnessed")
        await d.env.tlog.close()
        d.env.tlog = None
        with pytest.raises(Unavailable, match="MDM-0939"):
            await d.resume()
        assert d.paid == []
        assert levels.PATIENCE_S > 0

    asyncio.run(tell())


class _Away:
    """A witness that is never there."""

    name = "w1.example"

    async def add(self, origin: str, old: int, proof: Any, note: bytes) -> bytes:
        raise Unavailable("nobody answers", code="MDM-0954", outcome="none")

    async def close(self) -> None:
        pass


# -- chain log: what no administrator signed ---------------------------------------------------------------------------------------
async def _desk() -> tuple[Desk, str, str]:
    """A desk whose policy was replaced, by the administrator. (desk, agent, the policy that was replaced)."""
    d = await Desk.open()
    await d.ask()
    ((agent, policy),) = d.env.log.policies.items()
    await widen(d.env, r.PolicyChanged(agent=agent, clock=d.env.clock("UTC"), new=OTHER, old=policy))
    assert d.env.log.policies == {agent: OTHER}
    return d, agent, policy


async def _both(d: Desk) -> list[LogBook]:
    """This process, and another one that reads the chain from its beginning."""
    fresh = LogBook(d.env.ledger, d.time, d.env.home.signer("log"))
    await fresh.refresh()
    return [d.env.log, fresh]


def test_a_worker_puts_the_replaced_policy_back_in_force() -> None:
    """No administrator signed it: nobody who reads the chain believes it, and it is told as an incident."""

    async def tell() -> None:
        d, agent, policy = await _desk()
        back = r.PolicyChanged(agent=agent, clock=d.env.clock("UTC"), new=policy, old=OTHER)
        junk = Content("statement", {"payload": "", "payloadType": authority.PAYLOAD_TYPE, "signatures": []})
        mallory = signer("p-mallory")
        said = authority.statement(back, expires=d.time.now() + 10**9, nonce="m", origin=d.env.origin)
        own = Content("statement", accept(dsse.sign(authority.PAYLOAD_TYPE, said, [(mallory.keyid, mallory.sign)])))
        for contents in ((), (junk,), (own,)):
            await d.env.log.append([Draft(back, 0, contents)], raises=True)
        for book in await _both(d):
            assert book.policies == {agent: OTHER}
            assert len(book.ignored(d.env.trust())) == 3

    asyncio.run(tell())


def test_a_worker_uses_an_old_signed_statement_again() -> None:
    """A to B, and B to A, were both signed once. The first of them does not count a second time."""

    async def tell() -> None:
        d = await Desk.open()
        await d.ask()
        ((agent, policy),) = d.env.log.policies.items()
        there = r.PolicyChanged(agent=agent, clock=d.env.clock("UTC"), new=OTHER, old=policy)
        kept = signed(d.env, there)
        await d.env.log.append([Draft(there, 0, (kept,))], raises=True)
        await widen(d.env, r.PolicyChanged(agent=agent, clock=d.env.clock("UTC"), new=policy, old=OTHER))
        await d.env.log.append([Draft(there, 0, (kept,))], raises=True)
        for book in await _both(d):
            assert book.policies == {agent: policy}

    asyncio.run(tell())


def test_a_worker_enrols_an_administrator() -> None:
    """The key stands in the trust file as an administrator's, for another ledger perhaps. This log has not taken it in."""

    async def tell() -> None:
        d, _, _ = await _desk()
        mallory = signer("p-mallory")
        d.env.home.add_trust(f"admin {mallory.vkey}")
        enrol = r.KeyChanged(clock=d.env.clock("UTC"), new=mallory.vkey, principal="p-mallory", role=authority.ADMIN)
        await d.env.log.append([Draft(enrol, 0)], raises=True)
        trust = Trust.parse("\n".join(f"admin {key}" for key in (mallory.vkey, d.env.home.signer(authority.ADMIN).vkey)))
        for book in await _both(d):
            assert [str(key) for key in book.admins(trust)] == [d.env.home.signer(authority.ADMIN).vkey]
        await widen(d.env, enrol)
        for book in await _both(d):
            assert len(book.admins(trust)) == 2

    asyncio.run(tell())


# -- forgetting: what anybody may write is no way around a hold -------------------------------------------------------------------------
def test_a_hold_is_placed_again_somewhere_else(tmp_path: Path) -> None:
    """To place a hold needs no signature. Under the id of one that is in force it would carry it away from what it keeps."""

    async def tell() -> None:
        async with Clinic(tmp_path) as clinic:
            run = (await clinic.treat()).run_id
            hold = await holds.place(clinic.env, "legal_claims", "p-counsel", run=run)
            again = r.HoldPlaced(clock=clinic.env.clock("UTC"), ground="x", hold=hold, principal="p-m", run="01OTHER")
            await clinic.env.log.append([Draft(again, 0)], raises=True)
            told = await erased.read(clinic.env.ledger, clinic.env.trust())
            assert [kept.run for kept in told.holds.values()] == [run]
            report = await clinic.forget()
            assert report.state == "blocked", report
            assert "erased" not in await clinic.forms(run)

    asyncio.run(tell())


@pytest.mark.parametrize("how", ["of the run", "of everything", "before its time"])
def test_an_erasure_is_written_that_never_happened(tmp_path: Path, how: str) -> None:
    """A worker without any key writes that everything was destroyed. The next process that has the key store takes it for an old copy,
    and would destroy the keys; but what a hold kept when the record was written was not destroyed then, whatever the record says."""

    async def tell() -> None:
        async with Clinic(tmp_path) as clinic:
            run = (await clinic.treat()).run_id
            if how != "before its time":
                await holds.place(clinic.env, "legal_claims", "p-counsel", run=run if how == "of the run" else "")
            commits = [part.commit for raw in [x async for x in clinic.env.ledger.read(run)] for part in decode(raw).body or ()]
            clock = clinic.env.clock("UTC")
            after = clock.now + 10**12 if how == "before its time" else 0
            asked = r.ErasureRequested(after=after, clock=clock, erasure="E1", ground="unlawful", principal="p-m")
            done = r.Erased(clock=clock, commits=tuple(commits), erasure="E1", ground="unlawful", principal="p-m")
            await clinic.env.log.append([Draft(asked, 0), Draft(done, 0)])
            await clinic.again()
            assert await clinic.forms(run) == {"plain"}

    asyncio.run(tell())


def test_a_hold_that_was_lifted_by_nobody_still_keeps_what_it_kept(tmp_path: Path) -> None:
    """The same, behind a lifting that a stranger signed; and behind a true one the erasure of an older copy is done again."""

    async def tell() -> None:
        async with Clinic(tmp_path) as clinic:
            run = (await clinic.treat()).run_id
            hold = await holds.place(clinic.env, "legal_claims", "p-counsel", run=run)
            lift = r.HoldLifted(clock=clinic.env.clock("UTC"), hold=hold, principal="p-m")
            said = authority.statement(lift, expires=clinic.env.time.now() + 10**9, nonce="m", origin=clinic.env.origin)
            mallory = signer("p-mallory")
            own = accept(dsse.sign(authority.PAYLOAD_TYPE, said, [(mallory.keyid, mallory.sign)]))
            await clinic.env.log.append([Draft(lift, 0, (Content("statement", own),))], raises=True)
            commits = [part.commit for raw in [x async for x in clinic.env.ledger.read(run)] for part in decode(raw).body or ()]
            clock = clinic.env.clock("UTC")
            asked = r.ErasureRequested(after=0, clock=clock, erasure="E1", ground="unlawful", principal="p-m")
            done = r.Erased(clock=clock, commits=tuple(commits), erasure="E1", ground="unlawful", principal="p-m")
            await clinic.env.log.append([Draft(asked, 0), Draft(done, 0)])
            await clinic.again()
            assert await clinic.forms(run) == {"plain"}
            await widen(clinic.env, lift)
            told = await erased.read(clinic.env.ledger)
            assert told.holds == {}

    asyncio.run(tell())


# -- witnesses -------------------------------------------------------------------------------------------------------------------
def test_a_witness_that_was_cloned_lends_itself_to_two_views(tmp_path: Path) -> None:
    """Its machine was copied while it ran: key and memory twice, each half of which cosigns another log. It is one key, so it is one
    vote in either view, and the quorum of two of three stands in one of them only."""

    async def tell() -> None:
        log, own = w.Log().grow(40), w.key("w1.example", COSIGNER)
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(w.standing(tmp_path, log.signer, signer=own))
            two = await stack.enter_async_context(w.standing(tmp_path, log.signer, name="w2.example"))
            roots = w.trust(log, one, two, quorum=2)
            first, second = await clients(stack, [one, two])
            await witnesses.collect([first, second], roots, log.note(20), log)
            for path in tmp_path.glob("w1.example.db*"):
                shutil.copy(path, tmp_path / f"clone-{path.name}")
            memory = tmp_path / "clone-w1.example.db"
            twin = Witness(own, Memory.open(memory, own.vkey), one.core.logs)
            stack.callback(twin.close)
            server = await serve(twin.answer, "127.0.0.1", 0, LIMITS)
            stack.push_async_callback(server.close)
            (clone,) = await clients(stack, [w.Standing(server, twin, memory)])
            assert (await witnesses.collect([first, second], roots, log.note(40), log)).met
            other = w.Log(signer=log.signer).grow(20)
            other.leaves = "another"
            other.grow(40)
            theirs = await witnesses.collect([clone], roots, other.note(40), other)
            assert not theirs.met
            assert len(note.check(theirs.note, roots, other.origin).cosigners) == 1, "the clone did cosign the second view"
            with pytest.raises(ProofError, match=r"MDM-095[12]"):
                await witnesses.collect([clone, second], roots, other.note(40), other)

    asyncio.run(tell())


# -- a log that grows, is tidied and proves at once ----------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(3))
def test_proofs_that_are_made_while_two_processes_write_and_tidy_up(seed: int) -> None:
    """Each proof is of its own record, under a signed checkpoint, whatever was thinned out meanwhile; and all checkpoints are one log."""

    async def tell() -> None:
        rng, stand = random.Random(seed), Stand()
        logs = [stand.process() for _ in range(2)]
        proofs: list[tuple[AnyRecord, bytes, bytes]] = []
        await stand.writer.some(rng, 30)

        async def grow() -> None:
            for _ in range(40):
                await stand.writer.some(rng, 9)
                stand.now += 3_600_000_000 * rng.randrange(3)
                await asyncio.sleep(0)

        async def sign(log: TenantLog) -> None:
            for _ in range(40):
                await log.catch_up()
                await tidy(stand.store, log.sequencer.stale, stand.now)
                await asyncio.sleep(0)

        async def prove(log: TenantLog) -> None:
            for _ in range(60):
                run, seq = rng.choice(stand.writer.leaves)
                (raw,) = [x async for x in stand.ledger.read(run, seq - 1, seq)]
                proofs.append((decode(raw), raw, await log.prove(run, seq)))

        await asyncio.gather(grow(), *(sign(log) for log in logs), *(prove(log) for log in logs))
        assert len(proofs) == 120
        for record, raw, made in proofs:
            read = tlogproof.parse(made)
            held = note.check(read.note, stand.trust, ORIGIN).checkpoint
            assert tree.verify_inclusion(tree.leaf_hash(raw), read.index, held.size, read.path, held.root), record.run
            assert stand.writer.tree.root(held.size) == held.root, "one log"
        for log in logs:
            await log.close()

    asyncio.run(tell())


# -- releases --------------------------------------------------------------------------------------------------------------------
def test_a_release_of_yesterday_is_proven_and_only_the_commit_says_which(tmp_path: Path) -> None:
    """Old files with their own old provenance hold: a provenance does not say that nothing newer exists (docs/security.md). Who expects
    a commit says so; a folder inside the folder is never passed over."""
    key = w.key("release")
    made = provenance.statement(
        {"a.whl": "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"}, builder="urn:b", version={}, source="git+https://x",
        commit="a" * 40, parameters={}, materials=[], invocation="1", started="2026-01-01T00:00:00Z", finished="2026-01-01T00:00:00Z",
    )  # fmt: skip
    (tmp_path / "a.whl").write_bytes(b"a")
    (tmp_path / verify_release.PROVENANCE).write_bytes(dsse.sign(provenance.PAYLOAD_TYPE, made, [(key.keyid, key.sign)]) + b"\n")
    asked = [str(tmp_path), "--key", key.vkey, "--builder", "urn:b"]
    assert verify_release.main(asked) == 0
    assert verify_release.main([*asked, "--commit", "b" * 40]) == 1
    (tmp_path / "hooks").mkdir()
    assert verify_release.main(asked) == 2
    (tmp_path / "hooks").rmdir()
    (tmp_path / "a.whl.pth").write_bytes(b"import os")
    assert verify_release.main(asked) == 1
