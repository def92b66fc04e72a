"""The log and its witnesses: real ones, over sockets. A level is reached when the quorum stands under a stored checkpoint, never before;
and what a witness knows outlives every backup of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from mandamus.drivers.ledger_memory import MemoryLedger
from mandamus.drivers.store_memory import MemoryStore
from mandamus.drivers.witness_http import HttpWitness
from mandamus.errors import ProofError, Unavailable
from mandamus.proof import tlogproof
from mandamus.proof.note import check
from mandamus.proof.trust import Trust
from mandamus.runtime.tlog import objects
from mandamus.runtime.tlog.objects import CHECKPOINT, COSIGNED, SIGNED
from mandamus.runtime.tlog.service import TenantLog
from mandamus.testing.conformance.chains import Chain, raws
from tests.core.tlog_stand import ORIGIN, Stand
from tests.servers.witnesses import Standing, clock, standing

pytestmark = pytest.mark.service


class Watched(Stand):
    """A stand with real witnesses; the trust file asks for `quorum` of them."""

    def __init__(self, witnesses: list[Standing], quorum: int, stack: AsyncExitStack, **more: Any) -> None:
        super().__init__(**more)
        names = " ".join(w.core.key.name for w in witnesses)
        lines = [f"log {self.signer.vkey}", *(f"witness {w.core.key.name} {w.core.key}" for w in witnesses)]
        self.trust = Trust.parse("\n".join([*lines, f"group q {quorum} {names}", "quorum q"]) + "\n")
        self.witnesses, self.stack = witnesses, stack

    def tick(self) -> int:
        return clock() * 1_000_000

    def asking(self, *clients: HttpWitness, **more: Any) -> TenantLog:
        """A process that asks all witnesses, or these; closed when the story ends, whatever came of it."""
        made = self.process(witnesses=list(clients) or [w.client() for w in self.witnesses], **more)
        self.stack.push_async_callback(made.close)
        return made


def played(story: Callable[[Watched, AsyncExitStack], Awaitable[None]], folder: Path, many: int = 3, quorum: int = 2) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            signer = Stand().signer
            found = [await stack.enter_async_context(standing(folder, signer, name=f"w{n}.example")) for n in range(many)]
            await story(Watched(found, quorum, stack), stack)

    asyncio.run(main())


def test_a_level_is_reached_when_the_quorum_stands_under_a_stored_checkpoint(tmp_path: Path) -> None:
    async def story(stand: Watched, stack: AsyncExitStack) -> None:
        tlog = stand.asking()
        assert tlog.offers("witnessed") == ""
        for n in range(50):
            await stand.writer.write(f"01RUN{n}", 2)
        told = await asyncio.gather(*(tlog.reach(f"01RUN{n}", 1, "witnessed") for n in range(50)))
        assert {t.size for t in told} == {100}, "many who wait share one checkpoint"
        stored = check(stand.store.objects[objects.name(COSIGNED, 100)], stand.trust, ORIGIN, now=clock())
        assert stored.met
        assert len(stored.cosigners) >= 2
        assert stored.checkpoint.root.hex() == told[0].root
        shown = check(stand.store.objects[CHECKPOINT], stand.trust, ORIGIN)
        assert shown.met
        proof = tlogproof.parse(await tlog.prove("01RUN3", 1))
        assert check(proof.note, stand.trust, ORIGIN).met
        anchor = await stand.asking().anchor()
        assert (anchor.size, anchor.root) == (100, told[0].root)
        await tlog.close()

    played(story, tmp_path)


def test_every_checkpoint_is_cosigned_as_one_log_that_grows(tmp_path: Path) -> None:
    async def story(stand: Watched, stack: AsyncExitStack) -> None:
        tlog = stand.asking()
        for n in range(12):
            await stand.writer.write("01RUNA", 37)
            told = await tlog.reach("01RUNA", 37 * (n + 1) - 1, "witnessed")
            assert told.size == 37 * (n + 1)
        await tlog.close()
        again = stand.asking()
        await stand.writer.write("01RUNA", 300)
        assert (await again.reach("01RUNA", 743, "witnessed")).size == 744
        await again.close()

    played(story, tmp_path)


def test_one_witness_of_three_may_be_silent_and_two_may_not(tmp_path: Path) -> None:
    """A witness that hangs keeps nobody waiting once the quorum is met; without the quorum the level is not had, and that is said."""

    async def story(stand: Watched, stack: AsyncExitStack) -> None:
        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()  # until the other side has gone
            writer.close()

        mute = await asyncio.start_server(hang, "127.0.0.1", 0)
        port = mute.sockets[0].getsockname()[1]
        slow = HttpWitness.open(f"witness+http://127.0.0.1:{port}?timeout=30#{stand.witnesses[2].core.key}")
        clients = [w.client() for w in stand.witnesses[:2]]
        tlog = stand.asking(*clients, slow)
        await stand.writer.write("01RUNA", 5)
        tlog.cosigning._ask_again = float("inf")  # the first question waits for everybody; it is not what is tested here
        async with asyncio.timeout(9):
            assert (await tlog.reach("01RUNA", 4, "witnessed")).size == 5
        await tlog.cosigning.close()
        alone = stand.asking(stand.witnesses[0].client())
        await stand.writer.write("01RUNA", 5)
        with pytest.raises(Unavailable, match="MDM-0939"):
            await alone.reach("01RUNA", 9, "witnessed")
        assert (await alone.reach("01RUNA", 9, "sealed")).size == 10
        await alone.close()
        mute.close()

    played(story, tmp_path)


def _copy(stand: Watched) -> tuple[MemoryStore, list[tuple[str, list[bytes]]]]:
    store = MemoryStore()
    store.objects.update(stand.store.objects)
    return store, [(run, list(was)) for run, was in stand.ledger._store.records.items()]


def test_a_backup_of_everything_is_found_by_the_witnesses(tmp_path: Path) -> None:
    """Ledger, log and index of one old day fit together; only somebody else knows better. Nothing is signed, before and after."""

    async def story(stand: Watched, stack: AsyncExitStack) -> None:
        tlog = stand.asking()
        await stand.writer.write("01RUNA", 10)
        await tlog.reach("01RUNA", 9, "witnessed")
        store, records = _copy(stand)
        await stand.writer.write("01RUNA", 10)
        await tlog.reach("01RUNA", 19, "witnessed")
        await tlog.close()
        old = MemoryLedger()
        for run, was in records:
            await old.append(run, None, was)
        for go_on in (False, True):
            if go_on:
                await old.append("01RUNB", None, raws(Chain("01RUNB").genesis()))
            restored = stand.asking(store=store, ledger=old)
            before = dict(store.objects)
            for _ in range(2):
                with pytest.raises(ProofError, match="MDM-0951") as refused:
                    await restored.catch_up()
            assert "20" in refused.value.diagnosis.expected
            assert "10" in refused.value.diagnosis.found
            asked, restored.cosigning.witnesses = restored.cosigning.witnesses, ()
            with pytest.raises(ProofError, match="MDM-0951"):
                await restored.catch_up()  # it was said once: that nobody says it now does not make it untrue
            restored.cosigning.witnesses = asked
            assert store.objects == before, "nothing was announced or signed"

    played(story, tmp_path)


def test_two_stores_with_one_key_are_found_by_the_witnesses(tmp_path: Path) -> None:
    """Two ledgers, two stores, one key: the second to come is told of another tree, or of a larger one."""

    async def story(stand: Watched, stack: AsyncExitStack) -> None:
        mine = stand.asking()
        await stand.writer.write("01RUNA", 10)
        await mine.reach("01RUNA", 9, "witnessed")
        for many in (10, 4, 17):
            other = Watched(stand.witnesses, 2, stack)
            await other.writer.write("01RUNB", many)
            theirs = other.asking()
            with pytest.raises(ProofError, match=r"MDM-095[12]"):
                await theirs.reach("01RUNB", many - 1, "witnessed")
            with pytest.raises(ProofError, match=r"MDM-095[12]"):
                await theirs.catch_up()
            assert await objects.sizes(other.store, COSIGNED) == []
        await stand.writer.write("01RUNA", 10)
        assert (await mine.reach("01RUNA", 19, "witnessed")).size == 20
        await mine.close()

    played(story, tmp_path)


def test_what_is_shown_is_never_replaced_by_something_older(tmp_path: Path) -> None:
    """Also when a quorum is asked for that only an older checkpoint has."""

    async def story(stand: Watched, stack: AsyncExitStack) -> None:
        tlog, asked = stand.asking(), stand.trust
        await stand.writer.write("01RUNA", 5)
        await tlog.reach("01RUNA", 4, "witnessed")
        stand.trust = Trust.parse(f"log {stand.signer.vkey}\nquorum none\n")
        await stand.writer.write("01RUNA", 5)
        await tlog.catch_up()
        assert check(stand.store.objects[CHECKPOINT], stand.trust, ORIGIN).checkpoint.size == 10
        stand.trust = asked
        await tlog.points.publish()
        assert check(stand.store.objects[CHECKPOINT], stand.trust, ORIGIN).checkpoint.size == 10

    played(story, tmp_path)


def test_a_quorum_that_is_no_longer_asked_for_counts_for_nothing(tmp_path: Path) -> None:
    """Whether a stored checkpoint is witnessed is asked of the trust file as it stands now."""

    async def story(stand: Watched, stack: AsyncExitStack) -> None:
        tlog = stand.asking()
        await stand.writer.write("01RUNA", 5)
        await tlog.reach("01RUNA", 4, "witnessed")
        other = await stack.enter_async_context(standing(tmp_path, stand.signer, name="other.example"))
        stand.trust = Trust.parse(f"log {stand.signer.vkey}\nwitness o {other.core.key}\nquorum o\n")
        assert await tlog.newest("witnessed") is None
        with pytest.raises(Unavailable):
            await tlog.reach("01RUNA", 4, "witnessed")
        later = stand.asking(other.client())
        assert (await later.reach("01RUNA", 4, "witnessed")).size == 5
        assert await objects.sizes(stand.store, SIGNED) == [5]
        await later.close()

    played(story, tmp_path)
