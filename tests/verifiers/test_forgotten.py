"""What was forgotten, and what was pruned, on a real ledger: all three verifiers say the same of the bundles, and that it was lawful."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mandamus import wiring
from mandamus.drivers.spans_sqlite import Spans
from mandamus.proof import verify
from mandamus.proof.verify import Beside
from mandamus.runtime import evidence
from mandamus.runtime.tlog.compact import Rule, planned, prune
from mandamus.runtime.tlog.reader import Reader
from tests.e2e.clinic import Clinic
from tests.verifiers.html import Node, question
from tests.verifiers.single import by_single, said, text_of

pytestmark = pytest.mark.service


def told(tmp_path: Path, story: Callable[[Clinic], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with Clinic(tmp_path) as clinic:
            await story(clinic)

    asyncio.run(whole())


async def alike(clinic: Clinic, run: str) -> Any:
    """The library's report, after the single file and the page have said the same."""
    raw, trust, now = await evidence.build(clinic.env, run, {}, ""), clinic.env.trust(), int(time.time())
    report = verify(raw, trust, Beside(now=now))
    assert said(by_single(raw, text_of(trust), Beside(now=now))) == said(report)
    with Node() as node:
        assert said(node.ask(question(raw, text_of(trust), now=now))) == said(report)
    return report


def test_a_person_who_is_forgotten_leaves_a_bundle_that_holds_everywhere(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        result = await clinic.treat()
        assert (await alike(clinic, result.run_id)).exit_code == 0
        assert (await clinic.forget()).state == "erased"
        assert clinic.where() == [], "no file holds a word of it"
        report = await alike(clinic, result.run_id)
        assert (report.ok, report.exit_code) == (True, 3)
        assert "erased, with record" in next(c.says for c in report.claims if c.name == "payloads")
        assert next(c.outcome for c in report.claims if c.name == "chain") == "proven"

    told(tmp_path, story)


async def pruned(clinic: Clinic) -> int:
    """As `mandamus log compact --before` does it, in ten years. How many objects went."""
    store = wiring.open_store(wiring.log_uri(clinic.uri, clinic.env.home))
    reader, spans, rule = Reader(store, clinic.env.origin), Spans.open(None), Rule("books-7y", "seven years are over", 2_557)
    then = clinic.env.time.now() + 3_650 * 86_400_000_000
    try:
        plan = await planned(clinic.env.ledger, reader, spans, 300, rule, then)
        return await prune(reader, spans, plan, rule, then)
    finally:
        spans.close()
        await store.close()


def test_a_pruned_log_still_proves_what_is_above(tmp_path: Path) -> None:
    async def story(clinic: Clinic) -> None:
        for n in range(24):
            await clinic.treat(f"patient-{n}")
        await clinic.env.tlog.catch_up()
        assert await clinic.env.tlog.size() > 300, "more than one full tile"
        last = await clinic.treat("patient-last")
        before = await alike(clinic, last.run_id)
        assert await pruned(clinic) >= 2
        after = await alike(clinic, last.run_id)
        assert (before.exit_code, after.exit_code) == (0, 0)
        assert said(before) == said(after)

    told(tmp_path, story)
