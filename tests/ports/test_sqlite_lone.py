"""Who drives one run alone waits for nobody; who drives several gives way once, so that their appends share a flush."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mandamus.drivers.ledger_sqlite import SqliteLedger
from mandamus.ports import Head
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
