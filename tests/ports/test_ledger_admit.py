"""Admission and the wake-up rule, as pure functions: every lawful chain is admitted however it is cut, every change of it is not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandamus.core.admit import PARTS_MAX, After, admit, next_wake
from mandamus.core.payload import Payload
from mandamus.core.records import decode, encode
from mandamus.core.seal import Sealed
from mandamus.errors import Misuse, ProofError
from mandamus.testing.conformance.chains import Chain, bodies, ended, raws, replied, turn

instants = st.integers(0, 2**53 - 1)
maybe = st.none() | instants


@st.composite
def chains(draw: st.DrawFn) -> list[Sealed]:
    chain = Chain("run-1")
    sealed = chain.genesis(input=draw(st.text(max_size=20)))
    for _ in range(draw(st.integers(1, 12))):
        match draw(st.sampled_from(("plain", "body", "owner"))):
            case "plain":
                sealed += chain.next()
            case "body":
                sealed += chain.next(a=draw(st.text(max_size=20)), b="b")
            case _:
                sealed += chain.take_over("next")
    return sealed


@given(chains(), st.data())
def test_a_chain_is_admitted_however_it_is_cut(sealed: list[Sealed], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(sealed) - 1))
    whole = admit("run-1", None, raws(sealed), bodies(sealed))
    first = admit("run-1", None, raws(sealed[:cut]), bodies(sealed[:cut]))
    rest = admit("run-1", (first.seq, first.hash, first.epoch), raws(sealed[cut:]), bodies(sealed[cut:]))
    told = admit("run-1", (first.seq, first.hash, first.epoch), raws(sealed[cut:]), bodies(sealed[cut:]), sealed[cut:])
    assert first.hash == sealed[cut - 1].hash
    assert told == rest
    assert (
        (rest.seq, rest.hash, rest.epoch)
        == (whole.seq, whole.hash, whole.epoch)
        == (len(sealed) - 1, sealed[-1].hash, sealed[-1].record.epoch)
    )


@given(chains(), st.data())
def test_seals_must_follow_the_head_and_each_other_and_bring_every_payload(sealed: list[Sealed], data: st.DataObject) -> None:
    at, i = (0, sealed[0].hash, sealed[0].record.epoch), data.draw(st.integers(1, len(sealed) - 1))
    rest = sealed[1:]
    twice, without = [*sealed[1:i], sealed[i], *sealed[i:]], sealed[1:i] + sealed[i + 1 :]
    for wrong in (twice, without if without != rest[:-1] else twice):
        with pytest.raises(ProofError):
            admit("run-1", at, raws(wrong), bodies(wrong), wrong)
    with pytest.raises(ProofError):
        admit("run-2", at, raws(rest), bodies(rest), rest)
    with pytest.raises(ProofError):  # the place is right, the head is another one
        admit("run-1", (at[0], "f" * 64, at[2]), raws(rest), bodies(rest), rest)
    with pytest.raises(ProofError):  # the same bytes, but not those that were sealed
        admit("run-1", at, [bytes(bytearray(raw)) for raw in raws(rest)], bodies(rest), rest)
    with pytest.raises(ValueError):
        admit("run-1", at, raws(rest), bodies(rest), rest + rest[:1])
    if payloads := bodies(rest):
        for stray in (payloads[1:], [*payloads, payloads[0]]):
            with pytest.raises(Misuse):
                admit("run-1", at, raws(rest), stray, rest)


@given(chains(), st.data())
def test_no_record_can_be_left_out_moved_or_repeated(sealed: list[Sealed], data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(sealed) - 2))
    without = sealed[:i] + sealed[i + 1 :]
    swapped = [*sealed[:i], sealed[i + 1], sealed[i], *sealed[i + 2 :]]
    for wrong in (without, swapped, [*sealed[: i + 1], *sealed[i:]]):
        with pytest.raises(ProofError):
            admit("run-1", None, raws(wrong), bodies(sealed))


@given(chains(), st.data())
def test_no_payload_can_be_changed_by_a_bit(sealed: list[Sealed], data: st.DataObject) -> None:
    payloads = bodies(sealed)
    i = data.draw(st.integers(0, len(payloads) - 1))
    value = bytearray(payloads[i].bytes)
    value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    payloads[i] = msgspec.structs.replace(payloads[i], bytes=bytes(value))
    with pytest.raises(ProofError, match="MDM-0610"):
        admit("run-1", None, raws(sealed), payloads)


def test_nothing_to_append_leaves_the_place() -> None:
    after: After = (3, "ab" * 32, 2)
    same = admit("run-1", after, [])
    assert (same.seq, same.hash, same.epoch, same.progress) == (*after, False)
    with pytest.raises(Misuse):
        admit("run-1", None, [])
    with pytest.raises(Misuse):
        admit("run-1", after, [], [Payload("run-1", 3, "a", b"x" * 40)])


def test_progress_is_a_reply_or_an_outcome() -> None:
    for fact, progress in ((turn(), False), (replied(), True), (ended(), True)):
        chain = Chain("run-1")
        assert admit("run-1", None, raws(chain.genesis() + chain.next(turn(), fact))).progress is progress


def test_parts_of_a_record_are_few_and_distinct() -> None:
    chain = Chain("run-1")
    many = chain.genesis(**{f"p{i:02}": "x" for i in range(PARTS_MAX)})
    assert admit("run-1", None, raws(many), bodies(many)).seq == 0
    too_many = Chain("run-1").genesis(**{f"p{i:02}": "x" for i in range(PARTS_MAX + 1)})
    with pytest.raises(ProofError, match="MDM-0682"):
        admit("run-1", None, raws(too_many), bodies(too_many))
    (one,) = Chain("run-1").genesis(a="x")
    record = decode(one.raw)
    assert isinstance(record.body, tuple)
    with pytest.raises(ProofError, match="MDM-0682"):
        admit("run-1", None, [encode(msgspec.structs.replace(record, body=record.body * 2))], bodies([one]))


def test_diagnoses_name_the_place_and_quote_no_payload() -> None:
    chain = Chain("run-1")
    sealed = chain.genesis() + chain.next(note="the secret word")
    with pytest.raises(Misuse) as missing:
        admit("run-1", None, raws(sealed))
    swapped = [msgspec.structs.replace(bodies(sealed)[0], bytes=b"\0" * 32 + b'{"text":"the secret word!"}')]
    with pytest.raises(ProofError) as wrong:
        admit("run-1", None, raws(sealed), swapped)
    for error in (missing.value, wrong.value):
        assert error.diagnosis.where == "run run-1 (event 1)"
        assert "secret" not in str(error)


@given(maybe, maybe, instants, instants, instants)
def test_unseen_mail_keeps_a_run_due(stored: int | None, at: int | None, mail: int, cursor: int, now: int) -> None:
    wake = next_wake(stored, mail, at, cursor, now)
    if mail <= cursor:
        assert wake == at
    else:
        assert wake is not None
        assert wake <= now
        assert all(wake <= other for other in (stored, at) if other is not None)
