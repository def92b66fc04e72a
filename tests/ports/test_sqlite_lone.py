"""Who drives one run alone waits for nobody; appends of several share a flush, which a thread does while the loop goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import apsw

from mandamus.drivers._sqlite_group import FULL, GroupCommit, Job
from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.errors import Conflict
from mandamus.ports import AccountWrite, Head
from mandamus.testing.conformance.chains import Chain
from mandamus.testing.conformance.suite import put


async def _opened(ledger: SqliteLedger, name: str) -> tuple[Chain, Head]:
    chain = Chain(name)
    await put(ledger, None, chain.genesis())
    head = await ledger.claim("default", 15_000, run=name)
    assert head is not None
    return chain, head


def test_the_only_run_is_committed_without_giving_way(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = SqliteLedger.open(tmp_path / "ledger.db")
        chain, head = await _opened(ledger, "run-1")
        other: list[str] = []
        asyncio.get_running_loop().call_soon(other.append, "ran")
        await put(ledger, head, chain.next())
        assert other == [], "the append gave way, though nobody could join it"
        await ledger.close()

    asyncio.run(story())


def test_two_runs_at_once_share_a_commit(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = SqliteLedger.open(tmp_path / "ledger.db")
        both = [await _opened(ledger, f"run-{n}") for n in (1, 2)]
        inline, groups = ledger.commits
        await asyncio.gather(*(put(ledger, head, chain.next()) for chain, head in both))
        assert ledger.commits == (inline, groups + 1)
        await ledger.close()

    asyncio.run(story())


def test_a_run_that_is_left_alone_is_alone_again(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = SqliteLedger.open(tmp_path / "ledger.db")
        (chain, head), (_, second) = [await _opened(ledger, f"run-{n}") for n in (1, 2)]
        await ledger.renew(second, 0)
        other: list[str] = []
        asyncio.get_running_loop().call_soon(other.append, "ran")
        await put(ledger, head, chain.next())
        assert other == []
        await ledger.close()

    asyncio.run(story())


def test_a_group_is_worked_in_the_loop_and_flushed_in_a_thread() -> None:
    """Who comes during the flush is carried on in the loop, and is in the next group."""
    here, flushing, flush = threading.get_ident(), threading.Event(), threading.Event()
    worked: list[tuple[int, ...]] = []
    flushed: list[int] = []

    def begin(jobs: list[Job]) -> Callable[[], None]:
        assert threading.get_ident() == here
        for job in jobs:
            job.value = job.work()
        worked.append(tuple(job.value for job in jobs))
        return rest

    def rest() -> None:
        flushed.append(threading.get_ident())
        flushing.set()
        assert flush.wait(20)

    def commit(jobs: list[Job]) -> None:
        raise AssertionError("nobody is alone, and the file is free")

    async def story() -> None:
        group = GroupCommit(commit, begin)
        first = [asyncio.ensure_future(group.submit(lambda n=n: n)) for n in (1, 2)]
        while not flushing.is_set():
            await asyncio.sleep(0)
        later = [asyncio.ensure_future(group.submit(lambda n=n: n)) for n in (3, 4)]
        for _ in range(8):
            await asyncio.sleep(0)
        assert worked == [(1, 2)]
        assert not any(task.done() for task in (*first, *later))
        flush.set()
        assert await asyncio.gather(*first, *later) == [1, 2, 3, 4]
        assert worked == [(1, 2), (3, 4)]
        assert len(flushed) == 2
        assert here not in flushed
        group.close()

    asyncio.run(story())


def test_a_full_group_does_not_wait_for_the_loop_to_be_idle() -> None:
    sizes: list[int] = []

    def begin(jobs: list[Job]) -> Callable[[], None]:
        sizes.append(len(jobs))
        return lambda: None

    async def story() -> None:
        group = GroupCommit(lambda jobs: sizes.append(len(jobs)), begin)
        tasks = [asyncio.ensure_future(group.submit(int)) for _ in range(FULL + 1)]
        await asyncio.sleep(0)
        assert sizes == [FULL], "the last one came when the group was gone"
        await asyncio.gather(*tasks)
        assert sum(sizes) == FULL + 1
        group.close()

    asyncio.run(story())


def test_a_loop_that_is_gone_does_not_hold_up_the_others() -> None:
    """Its jobs waited when it was closed: they stand or were withdrawn, and whoever waits behind them is answered."""
    done: list[int] = []
    flushing, flush = threading.Event(), threading.Event()

    def begin(jobs: list[Job]) -> Callable[[], None]:
        for job in jobs:
            job.work()
        return rest

    def rest() -> None:
        flushing.set()
        assert flush.wait(20)

    def commit(jobs: list[Job]) -> None:
        for job in jobs:
            job.value = job.work()

    group = GroupCommit(commit, begin)

    async def two(n: int) -> None:
        await asyncio.gather(*(group.submit(lambda k=k: done.append(k)) for k in (n, n + 1)))

    gone = asyncio.new_event_loop()
    task = gone.create_task(two(1))
    gone.call_later(0, gone.stop)
    gone.run_forever()
    while not flushing.is_set():
        gone.call_soon(gone.stop)
        gone.run_forever()
    waits = gone.create_task(two(3))
    for _ in range(4):
        gone.call_soon(gone.stop)
        gone.run_forever()
    gone.close()

    async def story() -> None:
        other = asyncio.ensure_future(two(5))
        await asyncio.sleep(0)
        flush.set()
        await asyncio.wait_for(other, 20)
        await asyncio.to_thread(group.close)

    asyncio.run(story())
    assert sorted(done) == [1, 2, 3, 4, 5, 6]
    for lost in (task, waits):
        lost._log_destroy_pending = False  # type: ignore[attr-defined]  # that it is lost is the story


def test_a_file_that_another_process_writes_is_not_waited_for_in_the_loop(tmp_path: Path) -> None:
    async def story() -> None:
        ledger = SqliteLedger.open(tmp_path / "ledger.db")
        both = [await _opened(ledger, f"run-{n}") for n in (1, 2)]
        other = apsw.Connection(str(tmp_path / "ledger.db"))
        other.execute("BEGIN IMMEDIATE")
        tasks = [asyncio.ensure_future(put(ledger, head, chain.next())) for chain, head in both]
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)
        other.execute("ROLLBACK")
        other.close()
        assert [head.seq for head in await asyncio.gather(*tasks)] == [1, 1]
        await ledger.close()

    asyncio.run(story())


def test_a_write_that_counts_on_from_another_is_refused_with_it(tmp_path: Path) -> None:
    """Of the same version, but not the one it was computed from: the versions alone would chain a delta to a stranger."""

    def write(version: int, hash: str, prev: str) -> AccountWrite:
        return AccountWrite("register", version, hash, 0, 0, b"{}", "run-1", 0, prev)

    async def story() -> None:
        ledger = SqliteLedger.open(tmp_path / "ledger.db")
        chains = [Chain(f"run-{n}") for n in range(4)]
        await put(ledger, None, chains[0].genesis(), also=[write(1, "h1", "")])
        calls = [
            put(ledger, None, chains[1].genesis(), also=[write(2, "of a stranger", "h1")]),
            put(ledger, None, chains[2].genesis(), also=[write(2, "h2", "h1")]),
            put(ledger, None, chains[3].genesis(), also=[write(3, "h3", "h2")]),
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(x) for x in found] == [Head, Conflict, Conflict]
        assert [x.on for x in found[1:]] == ["account", "account"]  # type: ignore[union-attr]
        account = await ledger.account("register")
        assert account is not None
        assert (account.version, account.hash) == (2, "of a stranger")
        await ledger.close()

    asyncio.run(story())
