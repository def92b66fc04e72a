"""What an event means: everything that says when, where and under which id is left out, everything else counts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mandamus.core import records as r
from mandamus.core.clock import Clock
from mandamus.core.records import FACTS, BodyPart, Record
from mandamus.core.semantic import COUNTED, ENVELOPE, LEFT_OUT, PRESENCE, VALUES_LEFT_OUT, differences, meaning, semantic_hash, table
from mandamus.errors import ProofError
from tests.samples import RUN, Chain, salts, story

NOW = Clock(1, 0, "UTC")


def record(fact: r.Fact, **envelope: Any) -> Record[Any]:
    known: dict[str, Any] = {"at": "", "epoch": 1, "prev": "", "run": "a", "seq": 1, "turn": 1, "type": type(fact).__name__}
    return Record(fact=fact, **(known | envelope))


def with_body(fact: r.Fact, part: str, value: Any, **envelope: Any) -> tuple[Record[Any], dict[str, Any]]:
    body = (BodyPart(class_="business", commit=str(envelope.pop("commit", "c")), media="application/json", part=part),)
    return record(fact, body=body, **envelope), {part: value}


def meant(fact: r.Fact, part: str = "", value: Any = None, **envelope: Any) -> str | None:
    made, values = with_body(fact, part, value, **envelope) if part else (record(fact, **envelope), {})
    return semantic_hash(made, values)


@pytest.mark.parametrize(("field", "value"), [("at", "x"), ("epoch", 9), ("prev", "p"), ("run", "b"), ("seq", 7), ("causes", ("h",))])
def test_the_envelope_says_nothing(field: str, value: Any) -> None:
    assert field in ENVELOPE
    assert meant(r.TurnStarted(clock=NOW), **{field: value}) == meant(r.TurnStarted(clock=NOW))


def test_the_turn_and_the_type_count() -> None:
    assert meant(r.TurnStarted(clock=NOW), turn=2) != meant(r.TurnStarted(clock=NOW))
    assert meant(r.MessageReceived(clock=NOW, mail=r.MailRef(cursor=1, key="k"), principal="p")) != meant(r.TurnStarted(clock=NOW))


def test_the_salt_of_a_payload_says_nothing_and_its_value_everything() -> None:
    fact = r.MessageReceived(clock=NOW, mail=r.MailRef(cursor=1, key="k"), principal="p")
    assert meant(fact, "text", "hello", commit="one") == meant(fact, "text", "hello", commit="two")
    assert meant(fact, "text", "hello") != meant(fact, "text", "hullo")


def test_only_that_it_will_be_tried_again_counts_not_when() -> None:
    base: dict[str, Any] = {"action": "1.1", "attempt": 1, "cause": "fault"}
    never, soon, late = (r.ActionDoubted(**base), r.ActionDoubted(**base, retry_at=5), r.ActionDoubted(**base, retry_at=9))
    assert meant(soon) == meant(late)
    assert meant(never) != meant(soon)


def test_of_votes_only_the_number_counts() -> None:
    def started(*votes: int) -> r.ActionStarted:
        return r.ActionStarted(action="1.1", attempt=1, capabilities=(), deadline=1, effect="keyed", landing=1, operation="o", votes=votes)

    assert meant(started(3, 4)) == meant(started(8, 9))
    assert meant(started(3)) != meant(started(3, 4))


def test_ids_clocks_and_measures_inside_payloads_say_nothing() -> None:
    judged = r.ActionJudged(action="1.1", attempt=1, authority=0, bundle="b", determining=(), engine="e", layers=(), verdict="allow")
    facts = {
        "action": {"attempt": 1, "tool": "pay"},
        "clock": {"hour": 9},
        "context": {"tier": "dev"},
        "people": {"allowed": [], "met": []},
    }
    other = {
        "action": {"attempt": 2, "tool": "pay"},
        "clock": {"hour": 10},
        "context": {"tier": "cloud"},
        "people": {"allowed": [], "met": []},
    }
    assert meant(judged, "facts", facts) == meant(judged, "facts", other)
    assert meant(judged, "facts", facts) != meant(judged, "facts", {**facts, "action": {"attempt": 1, "tool": "wire"}})
    assert meant(judged, "decision", {"eval_micros": 1}) == meant(judged, "decision", {"eval_micros": 2})
    replied = r.ModelReplied(attempt=1, calls=1, model="m", stop="calls", usage=r.Usage())
    reply = {"calls": [{"id": "a", "name": "pay"}], "text": ""}
    assert meant(replied, "reply", reply) == meant(replied, "reply", {"calls": [{"id": "b", "name": "pay"}], "text": ""})
    compiled = r.ContextCompiled(items=1, tokens=1, window=1)
    assert meant(compiled, "manifest", [["user", 0, "input"]]) == meant(compiled, "manifest", [["user", 7, "input"]])
    assert meant(compiled, "manifest", [["user", 0, "input"]]) != meant(compiled, "manifest", [["note", 0, "input"]])


def test_recorded_time_and_dice_say_nothing_a_note_does() -> None:
    def use(capability: str) -> r.CapabilityChecked:
        return r.CapabilityChecked(action="1.1", capability=capability, mechanism="in_process", result="granted", use=1)

    assert meant(use("clock.read"), "value", 1) == meant(use("clock.read"), "value", 2)
    assert meant(use("random.read"), "value", "aa") == meant(use("random.read"), "value", "bb")
    assert meant(use("note"), "value", 1) != meant(use("note"), "value", 2)


def test_housekeeping_means_nothing() -> None:
    assert meant(r.TimePassed(clock=NOW, source="worker")) is None
    assert meant(r.RunOwned(clock=NOW, nonce="n", signature="s", worker="w")) is None


def test_a_payload_that_is_gone_has_no_meaning() -> None:
    made, _ = with_body(r.ContextCompiled(items=1, tokens=1, window=1), "manifest", [])
    with pytest.raises(ProofError, match="MDM-0611"):
        semantic_hash(made, {})


def test_a_ballot_is_not_needed() -> None:
    voted = r.Voted(about="start", action="1.1", ballot="b", clock=NOW, decision="approve", principal="p", request="r", scope="once")
    made, _ = with_body(voted, "ballot", {})
    assert semantic_hash(made, {}) is not None


def test_every_field_left_out_is_a_field() -> None:
    for name, fields in {**LEFT_OUT, **COUNTED, **PRESENCE}.items():
        assert set(fields) <= set(FACTS[name].__struct_fields__), name
    for name, fields in PRESENCE.items():
        assert set(fields) <= set(LEFT_OUT[name])
    assert set(ENVELOPE) <= set(Record.__struct_fields__)


@pytest.mark.parametrize("name", FACTS)
def test_no_clock_no_place_in_a_mailbox_and_no_attempt_is_ever_compared(name: str) -> None:
    """By type, so that a fact added later cannot forget one."""
    if FACTS[name].housekeeping:
        return
    for field in msgspec.structs.fields(FACTS[name]):
        kind = str(field.type)
        if any(word in kind for word in ("Clock", "MailRef", "Register", "Parent", "Anchor")) or field.name in (
            "attempt",
            "nonce",
            "origin",
            "retry_at",
        ):
            assert field.name in LEFT_OUT[name], field.name


def test_two_tellings_of_one_story_mean_the_same() -> None:
    """The sample run, told with another run id, other salts and another clock would differ in every byte, and in no meaning."""
    one = story()
    two = story(chain=Chain(RUN, entropy=salts("other")))
    first = [semantic_hash(x.record, _values(x)) for x in one.chain.sealed]
    assert len({h for h in first if h}) > 15
    moved = [msgspec.structs.replace(x.record, run="other", at="", prev="p", epoch=5, seq=99) for x in two.chain.sealed]
    assert not {x.hash for x in one.chain.sealed[1:]} & {x.hash for x in two.chain.sealed[1:]}
    assert [semantic_hash(m, _values(x)) for m, x in zip(moved, two.chain.sealed, strict=True)] == first


def _values(sealed: Any) -> dict[str, Any]:
    return {p.part: msgspec.json.decode(p.bytes[32:]) for p in sealed.payloads}


def test_differences_are_named_by_their_path() -> None:
    a = {"fact": {"tool": "pay", "n": 1}, "body": [{"part": "args", "value": {"to": "A"}}]}
    b = {"fact": {"tool": "wire", "n": 1}, "body": [{"part": "args", "value": {"to": "B"}}]}
    assert differences(a, b) == [("fact.tool", "pay", "wire"), ("body.args.value.to", "A", "B")]
    assert differences(a, a) == []


def test_meaning_shows_values_unless_digests_are_asked_for() -> None:
    made, values = with_body(r.ContextCompiled(items=1, tokens=1, window=1), "manifest", [["user", 0, "input"]])
    assert meaning(made, values)["body"][0]["value"] == [["user", "input"]]
    assert len(meaning(made, values, digested=True)["body"][0]["value"]) == 64


def test_the_table_names_everything() -> None:
    text = table()
    for name, fields in LEFT_OUT.items():
        assert all(f"| {name} | `{field}` |" in text for field in fields)
    assert all(f"payload `{part}`" in text for part in VALUES_LEFT_OUT)
    assert "| TimePassed | the whole event | housekeeping |" in text
