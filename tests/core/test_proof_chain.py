"""Chains and views: what a walk refuses, what it claims, and what the three views say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandamus.core import records as r
from mandamus.core.canonical import accept
from mandamus.core.fold import _STEP
from mandamus.proof import verify, verify_chain, views
from mandamus.proof.chain import Walk, attested, backward, further, type_of, walk
from mandamus.proof.life import RUN_RULES, Life
from mandamus.proof.report import Finding, exit_code, verdict
from tests.samples import EMPTY_ANCHOR, RUN, Chain, Story, clock, log_chain, relinked, story, trust

replace = msgspec.structs.replace
WHOLE = story()
RAWS = WHOLE.chain.raws


def test_a_whole_chain_holds_but_names_no_signer() -> None:
    report = verify_chain(RAWS)
    assert (report.ok, report.state, report.events, report.head) == (True, "sealed", len(RAWS), WHOLE.chain.head)
    assert (report.verdict, report.exit_code) == ("NOT FULLY CHECKED", 3)
    assert [claim.outcome for claim in report.claims] == ["proven", "not in this bundle"]


def test_chain_log_holds_too() -> None:
    assert verify_chain(WHOLE.log.raws).ok


def test_no_record_is_nothing_to_verify() -> None:
    assert verify_chain([]).exit_code == 2


@given(st.data())
def test_a_changed_record_breaks_the_chain_there_or_behind_it(data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(RAWS) - 2))
    at = data.draw(st.integers(0, len(RAWS[index]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != RAWS[index][at]))
    changed = RAWS[index][:at] + bytes([byte]) + RAWS[index][at + 1 :]
    raws = [*RAWS[:index], changed, *RAWS[index + 1 :]]
    report = verify_chain(raws)
    newer = report.exit_code == 5
    assert newer or (report.exit_code == 1 and report.broken is not None and report.broken.event in (index, index + 1))
    torn = backward(raws, WHOLE.chain.head)
    assert torn is not None
    assert torn.event == index


def test_the_backward_walk_claims_only_what_it_attests() -> None:
    assert backward(RAWS, WHOLE.chain.head) is None
    assert attested(Finding("x", event=3), 9) == "events 4 to 8 are proven, 0 to 2 are not attested"
    assert attested(Finding("x", event=8), 9) == "no event is proven, 0 to 7 are not attested"
    assert attested(Finding("x", event=0), 9) == "events 1 to 8 are proven"


def edited(index: int, **fields: Any) -> list[bytes]:
    record: Any = r.decode(RAWS[index])
    fact = {k: v for k, v in fields.items() if k in record.fact.__struct_fields__ and k != "run"}
    envelope = {k: v for k, v in fields.items() if k not in fact}
    changed = replace(record, fact=replace(record.fact, **fact), **envelope)
    return relinked([*RAWS[:index], r.encode(changed), *RAWS[index + 1 :]])


ILLEGAL: dict[str, tuple[Callable[[], list[bytes]], str]] = {
    "another run": (lambda: edited(4, run="X"), "another run"),
    "a gap": (lambda: edited(4, seq=5), "its number is not the next one"),
    "epoch without owner": (lambda: edited(4, epoch=2), "the epoch changed"),
    "owner without epoch": (lambda: edited(12, epoch=1), "raises the epoch by one"),
    "owner skips an epoch": (lambda: edited(12, epoch=3), "raises the epoch by one"),
    "intent of another action": (lambda: edited(11, action="1.2"), "without the ALLOW"),
    "intent of another attempt": (lambda: edited(11, attempt=2), "without the ALLOW"),
    "judgement of nothing": (lambda: edited(6, action="9.9"), "never proposed"),
    "outcome of nothing": (lambda: edited(13, action="9.9"), "never proposed"),
    "a reply to nothing": (lambda: edited(3, attempt=1) and relinked([*RAWS[:3], renumbered(RAWS[4], 3)]), "no model call is open"),
    "seal counts wrongly": (lambda: edited(18, count=17), "the seal counts other records"),
    "seal of another head": (lambda: [*RAWS[:18], reencoded(RAWS[18], head="0" * 64)], "the seal counts other records"),
    "seal of another end": (lambda: edited(18, closed="failed"), "how the run ended"),
    "a record behind the seal": (lambda: relinked([*RAWS, renumbered(RAWS[14], 19)]), "stands behind the seal"),
    "an end without an end": (lambda: relinked([*RAWS[:17], reencoded(renumbered(RAWS[18], 17), count=17)]), "how the run ended"),
    "ended twice": (lambda: relinked([*RAWS[:18], renumbered(RAWS[17], 18)]), "ends once"),
    "a model call after the end": (lambda: relinked([*RAWS[:18], renumbered(RAWS[15], 18)]), "after the run ended"),
    "proposed twice": (lambda: relinked([*RAWS[:6], renumbered(RAWS[5], 6)]), "proposed twice"),
    "genesis twice": (lambda: relinked([RAWS[0], renumbered(RAWS[0], 1)]), "one genesis"),
    "a record of chain log": (lambda: relinked([RAWS[0], of_log()]), "belongs to chain log"),
    "no genesis": (lambda: [renumbered(RAWS[1], 0)], "begin with its genesis"),
    "no genesis, no link": (lambda: [r.encode(replace(r.decode(RAWS[1]), seq=0, prev=""))], "begin with its genesis"),
    "a vote on nothing": (lambda: edited(8, action="9.9"), "never proposed"),
    "genesis of another formula": (lambda: [reencoded(RAWS[0], nonce="22")], "begin with its genesis"),
}


def renumbered(raw: bytes, seq: int) -> bytes:
    return r.encode(replace(r.decode(raw), seq=seq))


def reencoded(raw: bytes, **fact: Any) -> bytes:
    record: Any = r.decode(raw)
    return r.encode(replace(record, fact=replace(record.fact, **fact)))


def of_log() -> bytes:
    fact = r.KeyChanged(clock=clock(1), old="k", principal="p", role="approver")
    return r.encode(r.Record(at="", epoch=1, fact=fact, prev="", run=RUN, seq=1, turn=0, type="KeyChanged"))


@pytest.mark.parametrize("name", ILLEGAL)
def test_steps_that_may_not_stand_where_they_stand(name: str) -> None:
    make, words = ILLEGAL[name]
    report = verify_chain(make())
    assert report.exit_code == 1
    assert report.broken is not None
    assert words in report.broken.what
    assert report.broken.event is not None


def test_an_action_that_is_in_flight_cannot_start_again_or_be_sealed_over() -> None:
    tale = Story()
    tale.opened()
    tale.proposed()
    tale.escalated()
    tale.voted()
    tale.started()
    assert verify_chain(tale.chain.raws).state == "interrupted"
    tale.chain.add(
        r.ActionJudged(action="1.1", attempt=2, authority=0, bundle="", determining=(), engine="", layers=(), verdict="allow"), 1
    )
    tale.chain.add(r.ActionStarted(action="1.1", attempt=2, capabilities=(), deadline=1, effect="keyed", landing=1, operation=""), 1)
    broken = verify_chain(tale.chain.raws).broken
    assert broken is not None
    assert "still in flight" in broken.what


def test_an_unknown_outcome_is_in_doubt_until_people_settle_it() -> None:
    tale = Story()
    for step in (tale.opened, tale.proposed, tale.escalated, tale.voted, tale.started, tale.taken_over):
        step()
    unknown = r.ActionEnded(action="1.1", attempt=1, output="none", result="unknown", via="policy")
    tale.chain.add(unknown, 1)
    assert verify_chain(tale.chain.raws).exit_code == 5
    report = verify(tale.bundle(), trust())
    assert (report.exit_code, report.broken) == (5, None)
    tale.chain.add(replace(unknown, via="people"), 1)
    assert verify_chain(tale.chain.raws).exit_code == 4
    alone = verify(tale.bundle(), trust()).broken
    assert alone is not None  # a record is no vote
    assert "never asked" in alone.what


def test_chain_log_takes_no_record_of_a_run() -> None:
    chain = log_chain()
    chain.add(r.TurnStarted(clock=clock(1)))
    broken = verify_chain(chain.raws).broken
    assert broken is not None
    assert (broken.where, broken.type) == ("chain log, event 1 TurnStarted", "TurnStarted")
    run = Chain(RUN)
    run.add(replace(WHOLE.chain.records[0].fact, anchor=EMPTY_ANCHOR))
    assert verify_chain(run.raws).exit_code == 4


def test_a_newer_record_cannot_be_judged_yet() -> None:
    newer = [*RAWS[:-1], RAWS[-1].replace(b'"v":1}', b'"v":2}')]
    assert verify_chain(newer).exit_code == 5
    unknown = [*RAWS[:-1], RAWS[-1].replace(b'"type":"RunSealed"', b'"type":"RunMoved"')]
    assert verify_chain(unknown).exit_code == 5
    assert walk(newer).count == len(RAWS) - 1


@pytest.mark.parametrize("raw", [b"", b"{}", b"\xff", b"[" * 5000, b'"type":"', b',"v":1}', b'"type":"RunOpened","v":1}', b"x" * 70_000])
def test_what_is_no_record(raw: bytes) -> None:
    report = verify_chain([raw])
    assert report.exit_code == 1
    assert report.broken is not None
    assert report.broken.event == 0
    assert type_of(raw) in ("", "RunOpened")


def test_a_walk_without_keeping_records_says_the_same() -> None:
    kept, bare = walk(RAWS), walk(RAWS, keep=False)
    assert (bare.records, bare.head, bare.count, bare.run) == ([], kept.head, kept.count, kept.run)


@pytest.mark.parametrize("page", [1, 2, 7, 100])
def test_page_by_page_is_the_same_walk(page: int) -> None:
    """A reader that holds one page at a time believes what one that holds the whole chain believes, and folds it as it goes."""
    whole, told = walk(RAWS), list[tuple[r.AnyRecord, str]]()
    paged = Walk([], Life(len(RAWS)), run=RUN)
    for i in range(0, len(RAWS), page):
        further(paged, RAWS[i : i + page], each=lambda record, hash: told.append((record, hash)))
    assert (paged.head, paged.count, paged.run, paged.fault) == (whole.head, whole.count, whole.run, None)
    assert [record for record, _ in told] == whole.records
    assert [hash for _, hash in told] == [r.event_hash(raw) for raw in RAWS]
    assert paged.life.sealed


@pytest.mark.parametrize("page", [1, 4, 100])
@pytest.mark.parametrize("changed", [0, 3, len(RAWS) - 2])
def test_nothing_behind_a_fault_is_handed_out(page: int, changed: int) -> None:
    """Not on the page of the fault, and not on a later one, whose records are sound in themselves."""
    raws = [*RAWS[:changed], RAWS[changed].replace(b'"at":"2', b'"at":"3', 1), *RAWS[changed + 1 :]]
    told, paged = list[int](), Walk([], Life(len(raws)), run=RUN)
    for i in range(0, len(raws), page):
        further(paged, raws[i : i + page], each=lambda record, hash: told.append(record.seq))
    assert paged.fault is not None
    assert paged.fault.event == changed + 1, "its bytes are well-formed: the next one does not name them"
    assert told == list(range(changed + 1))
    assert paged.count == changed + 1


def test_a_type_that_no_run_folds_may_not_stand_in_a_run() -> None:
    """Else a chain that verifies would stop every process that reads it."""
    unfolded = {name for name, kind in r.FACTS.items() if kind not in _STEP}
    kept = {"HoldPlaced", "HoldLifted", "ErasureRequested", "ErasureBlocked", "Erased", "Exported"}
    assert unfolded == {"LogOpened", "RunRefused", "PolicyChanged", "KeyChanged", "VoteWithdrawn"} | kept
    head = WHOLE.chain.records[0]
    for name in unfolded:
        record = replace(head, seq=1, type=name)
        assert name in RUN_RULES, f"{name}: a step in core/fold.py, or a place in chain log only (proof/life.py)"
        assert RUN_RULES[name](Life(2), record, head), name


def test_a_withdrawal_in_a_run_is_found() -> None:
    chain = Chain(RUN)
    chain.add(WHOLE.chain.records[0].fact)
    chain.add(r.VoteWithdrawn(ballot="00" * 32, clock=clock(1), principal="p-alice"))
    fault = walk(chain.raws).fault
    assert fault is not None
    assert (fault.code, fault.event, fault.type) == ("MDM-0643", 1, "VoteWithdrawn")


def test_the_one_exit_table() -> None:
    assert [exit_code(codes) for codes in ({0}, {0, 3}, {3, 4}, {4, 5}, {5, 1}, {1, 2}, set())] == [0, 3, 4, 5, 1, 2, 0]
    assert [verdict(code) for code in (0, 1, 2, 3, 4, 5)] == ["PROVEN", "NOT PROVEN", "NOT PROVEN", *["NOT FULLY CHECKED"] * 3]


# -- views -------------------------------------------------------------------------------------------------------------------
def values() -> dict[tuple[str, int, str], Any]:
    return {(p.run, p.seq, p.part): accept(p.bytes[32:]) for p in WHOLE.chain.payloads}


def test_the_three_views() -> None:
    made = views.render(WHOLE.chain.records, values())
    assert sorted(made) == ["agent_run.json", "decision.json", "tool_trace.json"]
    run, decision, trace = (accept(made[name].rstrip(b"\n")) for name in ("agent_run.json", "decision.json", "tool_trace.json"))
    assert (run["state"], run["events"], run["turns"], run["output"]) == ("completed", 19, 2, "Paid.")
    assert run["tokens"] == {"input": 60, "output": 14}
    assert [d["result"] for d in decision["decisions"]] == ["escalate", "allow"]
    assert decision["decisions"][0]["asks"] == [{"chain": "treasury", "quorum": 2, "to": "people"}]
    (action,) = trace["actions"]
    assert (action["tool"], action["input"]["to"], action["outcomes"][0]["output"]) == (
        "send_payment",
        "Acme Suppliers",
        {"receipt": "R-1"},
    )
    assert [vote["principal"] for vote in action["votes"]] == ["p-alice", "p-bob"]


def test_what_is_not_shown_appears_by_its_commitment() -> None:
    run = accept(views.render(WHOLE.chain.records, {})["agent_run.json"].rstrip(b"\n"))
    assert run["input"] == {"commit": WHOLE.chain.records[0].body[0].commit}  # type: ignore[index,union-attr]


def test_the_verifier_makes_the_views_anew() -> None:
    made = views.render(WHOLE.chain.records, values())
    raw = WHOLE.bundle()
    assert verify(raw, trust(), regenerated=made).exit_code == 0
    lie = {**made, "agent_run.json": made["agent_run.json"].replace(b"completed", b"cancelled")}
    report = verify(raw, trust(), regenerated=lie)
    assert report.exit_code == 1
    assert report.broken is not None
    assert "agent_run.json" in report.broken.what
    assert verify(raw, trust(), regenerated={"other.json": b"{}"}).exit_code == 1
