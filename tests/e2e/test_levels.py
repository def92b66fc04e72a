"""Evidence before the effect: policy asks that a proposal is sealed or witnessed, and nothing starts before it is (law 1, law 2).

The log here answers as the real one does, when the test says so.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from mandamus import Misuse, evidence, rule
from mandamus.core.asks import level, sound, united
from mandamus.core.fold import evolve, fold
from mandamus.core.parts import Anchor
from mandamus.core.records import ActionJudged, ActionStarted, Ask, EvidenceReached, RunHalted
from mandamus.errors import ProofError, Unavailable
from mandamus.proof.tree import EMPTY_ROOT
from mandamus.runtime import levels
from mandamus.runtime.replay import replay
from tests.e2e.approving import Desk

ROOT = "ab" * 32
WITNESSED = {"id": "seen", "needsEvidence": {"level": "witnessed", "over": "10000.00 USD"}}
DUAL = {"id": "dual", "dualApproval": {"over": "10000.00 USD", "chain": "treasury"}}


class Reached:
    root, size = ROOT, 7


class Log:
    """`answers`: what it says to each question in turn, an exception to raise or None for yes; the last one for ever."""

    def __init__(self, *answers: Any, lacks: str = "") -> None:
        self.answers, self.lacks, self.asked = list(answers) or [None], lacks, []  # type: ignore[var-annotated]

    def offers(self, name: str) -> str:
        return self.lacks

    async def reach(self, run: str, seq: int, name: str) -> Reached:
        self.asked.append((run, seq, name))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer
        return Reached()

    async def covered(self, run: str, seq: int, name: str) -> Reached:
        """What was reached once, stays."""
        return Reached()

    async def anchor(self) -> Anchor:
        return Anchor(root=EMPTY_ROOT.hex(), size=0)

    async def close(self) -> None:
        pass


def down() -> Unavailable:
    return Unavailable("no witness answers", code="MDM-0500", outcome="none")


async def desk(log: Log | None, *rules: Any, **more: Any) -> Desk:
    d = await Desk.open(rules=list(rules) or [WITNESSED], **more)
    d.env.tlog = log
    return d


async def facts(d: Desk, kind: type[Any]) -> list[Any]:
    return [r.fact for r in await d.records() if isinstance(r.fact, kind)]


def test_the_intent_stands_behind_the_evidence() -> None:
    async def tell() -> None:
        log = Log()
        d = await desk(log)
        assert (await d.ask()).state == "completed"
        assert d.paid == [("Acme", "50,000.00 USD")]
        kinds = await d.types()
        at = [kinds.index("ActionProposed"), kinds.index("ActionJudged"), kinds.index("EvidenceReached"), kinds.index("ActionStarted")]
        assert at == sorted(at)
        assert kinds[at[3] - 1] == "ActionJudged", "the intent stands right behind its ALLOW"
        assert log.asked == [(d.result.run_id, at[0], "witnessed")]
        (told,) = await facts(d, EvidenceReached)
        assert (told.level, told.root, told.seq, told.size) == ("witnessed", ROOT, at[0], 7)
        asked = (await facts(d, ActionJudged))[0]
        assert asked.verdict == "escalate"
        assert asked.asks == (Ask(chain="witnessed", quorum=0, to="log", within=3_600_000),)

    asyncio.run(tell())


def test_below_the_limit_nobody_waits() -> None:
    async def tell() -> None:
        log = Log()
        d = await desk(log, {"id": "seen", "needsEvidence": {"over": "90000.00 USD"}})
        assert (await d.ask()).state == "completed"
        assert log.asked == []
        assert await facts(d, EvidenceReached) == []

    asyncio.run(tell())


def test_a_log_that_does_not_answer_leaves_the_run_waiting_and_then_it_pays_once() -> None:
    async def tell() -> None:
        d = await desk(Log(down(), down(), None))
        assert (await d.ask()).state == "suspended"
        head = await d.env.ledger.head(d.result.run_id)
        assert head.state == "level"
        assert head.wake_at == d.time.now() + levels.AGAIN_US
        assert (await d.resume()).state == "suspended"
        assert d.paid == []
        assert (await d.resume()).state == "completed"
        assert d.paid == [("Acme", "50,000.00 USD")]

    asyncio.run(tell())


def test_evidence_that_does_not_come_in_time_is_a_no() -> None:
    async def tell() -> None:
        d = await desk(Log(down()), {"id": "seen", "needsEvidence": {"within": "30m"}})
        assert (await d.ask()).state == "suspended"
        d.time.advance(seconds=1700)
        assert (await d.resume()).state == "suspended"
        d.time.advance(seconds=101)
        result = await d.resume()
        assert d.paid == []
        last = (await facts(d, ActionJudged))[-1]
        assert (last.verdict, last.code, last.determining) == ("deny", "expired", ("ask.expired",))
        assert await facts(d, ActionStarted) == []
        assert result.state == "completed"  # the model is told, and answers

    asyncio.run(tell())


def test_waiting_again_does_not_begin_the_time_anew() -> None:
    async def tell() -> None:
        d = await desk(Log(down()), {"id": "seen", "needsEvidence": {"within": "1h"}})
        await d.ask()
        for _ in range(3):
            d.time.advance(seconds=1300)
            await d.resume()
        assert (await facts(d, ActionJudged))[-1].code == "expired"

    asyncio.run(tell())


def test_people_are_asked_when_the_log_has_answered() -> None:
    async def tell() -> None:
        log = Log(down(), None)
        d = await desk(log, WITNESSED, DUAL)
        assert (await d.ask()).state == "suspended"
        assert d.result.waiting == ()
        assert (await d.resume()).waiting[0].needed == 2
        await d.vote("p-alice")
        await d.vote("p-bob")
        assert (await d.resume()).state == "completed"
        assert d.paid == [("Acme", "50,000.00 USD")]
        assert len(log.asked) == 2

    asyncio.run(tell())


@pytest.mark.parametrize("log", [None, Log(lacks="the trust file names no quorum of witnesses")], ids=["no log", "no witnesses"])
def test_what_cannot_be_had_halts_the_run_instead_of_starting_it(log: Log | None) -> None:
    async def tell() -> None:
        d = await desk(log)
        assert (await d.ask()).state == "halted"
        (halted,) = await facts(d, RunHalted)
        assert (halted.cause, halted.code) == ("engine", "no_evidence")
        assert d.paid == []
        d.env.tlog = Log()
        assert (await d.resume()).state == "completed"
        assert d.paid == [("Acme", "50,000.00 USD")]

    asyncio.run(tell())


def test_a_log_that_contradicts_itself_halts_the_run() -> None:
    async def tell() -> None:
        d = await desk(Log(ProofError("another tree", code="MDM-0640")))
        with pytest.raises(ProofError):
            await d.ask()
        assert d.paid == []
        run = (await d.env.ledger.runs().__anext__()).run
        kinds = [r async for r in d.env.ledger.read(run)]
        assert b'"cause":"engine","code":"proof"' in kinds[-1]

    asyncio.run(tell())


def test_a_run_that_waited_for_evidence_replays() -> None:
    async def tell() -> None:
        d = await desk(Log(down(), None), WITNESSED, DUAL)
        await d.ask()
        await d.resume()
        await d.vote("p-alice")
        await d.vote("p-bob")
        await d.resume()
        from mandamus import wiring

        told = await replay(d.env, await wiring.bind(d.agent), d.result.run_id)
        assert told.ok, told.text()

    asyncio.run(tell())


def test_sealed_is_enough_where_sealed_is_asked_and_witnessed_is_more() -> None:
    async def tell() -> None:
        log = Log()
        d = await desk(log, {"id": "a", "needsEvidence": {"level": "sealed"}}, {"id": "b", "needsEvidence": {"within": "5m"}})
        assert (await d.ask()).state == "completed"
        assert [asked[2] for asked in log.asked] == ["witnessed"]
        (ask,) = (await facts(d, ActionJudged))[0].asks
        assert ask == level("witnessed", 300_000)

    asyncio.run(tell())


@pytest.mark.parametrize(
    "ask",
    [
        Ask(chain="witnessed", quorum=1, to="log", within=1),
        Ask(chain="notarised", quorum=0, to="log", within=1),
        Ask(chain="sealed", quorum=0, to="log"),
        Ask(chain="sealed", quorum=0, to="log", within=0),
        Ask(chain="sealed", quorum=0, to="log", within=10**15),
        Ask(chain="sealed", quorum=1),
        Ask(chain="treasury", quorum=0),
        Ask(chain="treasury", quorum=1, within=5),
        Ask(chain="treasury", quorum=True),
        "witnessed",
    ],
)
def test_an_engine_that_asks_for_nonsense_has_not_answered(ask: Any) -> None:
    assert not sound(ask)
    assert sound(level("sealed"))
    assert sound(Ask(chain="treasury", quorum=1))


def test_asks_are_united() -> None:
    people = [Ask(chain="b", quorum=1), Ask(chain="a", quorum=2), Ask(chain="b", quorum=3)]
    assert united([*people, level("sealed", 10), level("witnessed", 20), level("sealed", 5)]) == (
        Ask(chain="a", quorum=2), Ask(chain="b", quorum=3), level("witnessed", 5),
    )  # fmt: skip
    assert united(people)[0].within is UNSET


@pytest.mark.parametrize("name", ["sealed", "witnessed"])
def test_no_chain_of_people_is_called_like_a_level(name: str) -> None:
    async def tell() -> None:
        with pytest.raises(Misuse, match="no name for people"):
            await Desk.open(rules=[DUAL], policies=[{"rules": [], "chains": {name: {"tiers": [{"quorum": 1}]}}}])

    with pytest.raises((Misuse, TypeError)):
        asyncio.run(tell())


def test_a_length_of_time_that_is_none_is_refused_with_its_place() -> None:
    async def tell() -> None:
        await (await desk(Log(), {"id": "seen", "needsEvidence": {"within": "soon"}})).ask()

    with pytest.raises(Misuse, match="within") as refused:
        asyncio.run(tell())
    assert refused.value.diagnosis.expected == "90s, 30m, 1h or 2d"


def test_a_rule_in_code_asks_for_evidence_too() -> None:
    @rule("seen.code")
    def seen(facts: Any) -> Any:
        return None if "sealed" in facts.people.met else evidence("sealed", within_ms=60_000)

    async def tell() -> None:
        log = Log()
        d = await desk(log, {"id": "small", "needsEvidence": {"over": "90000.00 USD"}}, more_policies=[seen])
        assert (await d.ask()).state == "completed"
        assert [asked[2] for asked in log.asked] == ["sealed"]

    asyncio.run(tell())


def test_a_judgement_that_asks_for_the_same_level_again_gives_no_more_time() -> None:
    async def tell() -> None:
        d = await desk(Log(down()))
        await d.ask()
        records = await d.records()
        run = fold(records)
        until = run.actions["1.1"].awaits.until  # type: ignore[union-attr]
        asked = next(r for r in reversed(records) if isinstance(r.fact, ActionJudged))
        later = msgspec.structs.replace(run, clock=msgspec.structs.replace(run.clock, now=run.clock.now + 60_000_000))  # type: ignore[union-attr, type-var]
        again = evolve(later, asked)
        assert again.actions["1.1"].awaits.until == until  # type: ignore[union-attr]
        stronger = msgspec.structs.replace(asked.fact, asks=(level("sealed"),))
        other = evolve(later, msgspec.structs.replace(asked, fact=stronger))
        assert other.actions["1.1"].awaits.until == until + 60_000_000  # type: ignore[union-attr]

    asyncio.run(tell())
