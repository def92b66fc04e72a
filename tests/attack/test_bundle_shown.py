"""What of a payload is shown: whole, member by member, beside the bundle, as stored, or erased with a record. Each lie is named."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from mandamus.core import fields
from mandamus.core import records as r
from mandamus.core.canonical import canon, parse
from mandamus.core.payload import SALT, Payload, holds, opened
from mandamus.core.seal import Content, Draft, Position, seal
from mandamus.errors import ProofError
from mandamus.proof import verify
from mandamus.proof.keys import b64
from mandamus.proof.report import Report
from mandamus.proof.verify import Beside
from tests.samples import ADMIN, ADMIN_2, RUN, Chain, Story, clock, enrolled, insider, log_chain, sections, statement, story, trust

PERSON = {"iban": "DE02120300000000202051", "name": "Ada", "paid": True, "\U00010000": 1, "\uffff": 2}


@dataclass
class Told(Story):
    """The story, whose receipt can be shown member by member."""

    receipt: Any = field(default_factory=lambda: dict(PERSON))

    def finished(self) -> None:
        add = self.chain.add

        def by_members(fact: Any, turn: int = 0, **body: Any) -> Any:
            if not isinstance(fact, r.ActionEnded):
                return add(fact, turn, **body)
            at = self.chain.at
            assert at is not None
            content = Content("output", self.receipt, media=fields.media_of(self.receipt))
            position = Position(at.run, at.seq, at.hash, self.chain.epoch)
            made, self.chain.at = seal([Draft(fact, turn, (content,))], position, "2026-11-21T22:00:00.000000Z", self.chain.entropy)
            self.chain.sealed += made
            self.seq = made[0].record.seq
            return made[0]

        self.chain.add = by_members  # type: ignore[method-assign]
        super().finished()


def told(**knobs: Any) -> Told:
    tale = Told(**knobs)
    tale.tell()
    return tale


def only(tale: Told, names: Any) -> bytes:
    return tale.bundle(withheld=lambda key: names if key == (RUN, tale.seq, "output") else False)


def line_of(raw: bytes, key: tuple[str, int, str]) -> tuple[int, Any]:
    for number, line in enumerate(sections(raw)["payload"]):
        value = parse(line)
        if (value["run"], value["seq"], value["part"]) == key:
            return number, value
    raise AssertionError(key)


def changed(raw: bytes, key: tuple[str, int, str], **change: Any) -> bytes:
    """That payload line with these fields (None: without), signed by an insider."""
    number, value = line_of(raw, key)
    lines = sections(raw)
    lines["payload"][number] = canon({k: v for k, v in {**value, **change}.items() if v is not None})
    return insider(lines)


def refused(raw: bytes, code: str, **beside: Any) -> Report:
    report = verify(raw, trust(), Beside(**beside))
    assert report.exit_code == 1, report
    assert report.broken is not None
    assert report.broken.code == code, report.broken
    return report


# -- members -----------------------------------------------------------------------------------------------------------------
def test_the_commitment_of_members_by_hand() -> None:
    """Computed here from the words of the format, not by the code that is tested."""
    secret = bytes(range(32))

    def sha(*parts: bytes) -> bytes:
        return hashlib.sha256(b"".join(parts)).digest()

    names = ["iban", "name", "paid", "\U00010000", "\uffff"]  # UTF-16: a surrogate pair stands before U+FFFF
    digests = []
    for i, name in enumerate(names):
        salt = sha(b"mandamus/v1/salt\0", secret, i.to_bytes(4, "big"))[:16]
        digests.append(sha(b"mandamus/v1/field\0", salt, canon([name, PERSON[name]])))
    assert fields.commit(secret, PERSON) == sha(b"mandamus/v1/fields\0", *sorted(digests)).hex()


def test_a_payload_of_members_is_read_like_any_other() -> None:
    """The ledger's readers recompute the commitment, and what is neither form is refused."""
    secret, value = bytes(32), canon(PERSON)
    named = fields.commit(secret, PERSON)
    assert opened(Payload("R", 1, "output", secret + value), named) == PERSON
    assert not holds(secret, canon(PERSON | {"paid": False}), named)
    assert not holds(secret[:-1], value, named)
    with pytest.raises(ProofError, match="not the one"):
        opened(Payload("R", 1, "output", secret + value), "0" * 64)


@pytest.mark.parametrize("value", [{}, {str(n): n for n in range(33)}, [], "text", None])
def test_what_has_no_members_or_too_many_is_committed_to_whole(value: Any) -> None:
    assert fields.media_of(value) == "application/json"
    with pytest.raises(ValueError, match="member by member"):
        fields.commit(bytes(32), value)


def test_whole_or_in_part() -> None:
    tale = told()
    assert verify(tale.bundle(), trust()).exit_code == 0
    raw = only(tale, ("name", "paid"))
    _, line = line_of(raw, (RUN, tale.seq, "output"))
    assert (line["show"], [m[2] for m in line["fields"]], len(line["hidden"])) == ("fields", ["name", "paid"], 3)
    secret = next(p.bytes[:SALT] for p in tale.chain.payloads if (p.seq, p.part) == (tale.seq, "output"))
    assert b64(secret).encode() not in raw
    assert b"DE0212" not in raw
    report = verify(raw, trust())
    assert (report.exit_code, report.verdict) == (3, "NOT FULLY CHECKED")
    assert verify(only(tale, ()), trust()).exit_code == 3
    assert verify(only(tale, PERSON.keys()), trust()).exit_code == 0, "nothing is hidden: it is shown whole"


def test_members_of_what_was_committed_to_whole_are_not_shown() -> None:
    """Asked for a part of a payload that has none, the whole of it stays away."""
    raw = story().bundle(withheld=lambda key: ("a",) if key[2] == "args" else False)
    report = verify(raw, trust())
    assert report.exit_code == 3
    assert b'"show":"fields"' not in raw


def test_a_member_that_was_altered() -> None:
    """Attacks 25 and 26 on a part: value, name, salt, number, and the boundary between them."""
    tale = told()
    key = (RUN, tale.seq, "output")
    raw = only(tale, ("name", "paid"))
    _, line = line_of(raw, key)
    (i, salt, name, value), paid = line["fields"]
    for members in (
        [[i, salt, name, "Eve"], paid], [[i, salt, "nam", value], paid], [[i, b64(bytes(16)), name, value], paid], [[i, salt, name, value]],
    ):  # fmt: skip
        refused(changed(raw, key, fields=members), "MDM-0610")
    for members in ([[i, b64(bytes(15)), name, value], paid], [[i, b64(bytes(17)), name, value], paid]):
        refused(changed(raw, key, fields=members), "MDM-0610")
    for members in (
        [paid, [i, salt, name, value]],
        [[i, salt, name, value]] * 2,
        [[True, salt, name, value]],
        [[40, salt, name, value]],
        7,
    ):
        refused(changed(raw, key, fields=members), "MDM-0646")
    for hidden in (line["hidden"][::-1], [], [line["hidden"][0]] * 2, ["x" * 64], [line["hidden"][0].upper()], None):
        assert verify(changed(raw, key, hidden=hidden), trust()).exit_code == 1, hidden
    refused(changed(raw, key, hidden=[*line["hidden"][:-1], "f" * 64]), "MDM-0610")
    refused(changed(raw, key, fields=[*line["fields"], [7, salt, "more", 1]]), "MDM-0610")


def test_a_fields_line_for_a_payload_that_has_none() -> None:
    """The record's media type says how it was committed to; nobody else does."""
    tale = told()
    raw = only(tale, ("name",))
    key = (RUN, tale.proposal.record.seq, "args")
    _, members = line_of(raw, (RUN, tale.seq, "output"))
    refused(changed(raw, key, show="fields", secret=None, value=None, fields=members["fields"], hidden=members["hidden"]), "MDM-0610")


# -- beside the bundle -------------------------------------------------------------------------------------------------------
def test_a_blob_beside_the_bundle() -> None:
    tale = story()
    payload = next(p for p in tale.chain.payloads if p.part == "output")
    name = hashlib.sha256(payload.bytes).hexdigest()
    commit = next(part.commit for record in tale.chain.records for part in record.body or () if part.part == "output")
    rest = [p for p in (*tale.chain.payloads, *tale.log.payloads) if p is not payload]
    raw = tale.bundle(payloads=rest, blobs={commit: name})
    key = (payload.run, payload.seq, "output")
    assert line_of(raw, key)[1]["show"] == "blob"
    assert verify(raw, trust()).exit_code == 3
    assert verify(raw, trust(), Beside(blobs={name: payload.bytes})).exit_code == 0
    refused(raw, "MDM-0610", blobs={name: payload.bytes + b" "})
    other = payload.bytes[:SALT] + canon({"receipt": "R-2"})
    forged = changed(raw, key, name=hashlib.sha256(other).hexdigest())
    refused(forged, "MDM-0610", blobs={hashlib.sha256(other).hexdigest(): other})
    refused(changed(raw, key, name="../../etc/passwd"), "MDM-0646")


def test_a_payload_as_it_is_stored() -> None:
    tale = story()
    stored = [Payload(p.run, p.seq, p.part, bytes(12 + 16) + p.bytes, "sealed") if p.part == "output" else p for p in tale.chain.payloads]
    raw = tale.bundle(payloads=[*stored, *tale.log.payloads])
    assert raw.count(b'"show":"cipher"') == 2
    report = verify(raw, trust())
    assert (report.exit_code, report.broken) == (3, None)
    key = next((p.run, p.seq, p.part) for p in stored if p.form == "sealed")
    refused(changed(raw, key, cipher=b64(bytes(60))), "MDM-0646")


# -- erased (attacks 52, 60, 63) ---------------------------------------------------------------------------------------------
def forgetting(tale: Story, *before: Any, part: str = "output") -> Story:
    """Chain log says that these payloads of the run were erased."""
    commits = tuple(p.commit for record in tale.chain.records for p in record.body or () if p.part == part)
    for fact, body in before:
        tale.log.add(fact, **body)
    tale.log.add(r.ErasureRequested(after=clock(20).now, clock=clock(20), erasure="E1", ground="request", principal="p-bob", subject="s-1"))
    tale.log.add(r.Erased(clock=clock(21), commits=commits, erasure="E1", ground="request", principal="p-bob", subject="s-1"))
    return tale


def without(tale: Story, part: str = "output") -> bytes:
    kept = [p for p in tale.chain.payloads if p.part != part]
    return tale.bundle(payloads=[*kept, *tale.log.payloads])


def test_erased_with_a_record() -> None:
    raw = without(forgetting(story()))
    assert raw.count(b'"show":"erased"') == 2
    report = verify(raw, trust())
    assert (report.exit_code, report.verdict, report.broken) == (3, "NOT FULLY CHECKED", None)
    assert "2 erased, with record" in next(c.says for c in report.claims if c.name == "payloads")


def test_missing_without_a_record() -> None:
    """Attack 52: what is gone is said to be gone by chain log, or it is missing: the builder refuses, the verifier too."""
    with pytest.raises(ProofError, match="missing"):
        without(story())
    tale = story()
    payload = next(p for p in tale.chain.payloads if p.part == "output")
    raw = changed(tale.bundle(), (payload.run, payload.seq, "output"), show="erased", secret=None, value=None)
    report = refused(raw, "MDM-0662")
    assert report.broken is not None
    assert "no record says that it was erased" in report.broken.what


def test_shown_although_it_was_erased() -> None:
    """The record says destroyed, and here it is."""
    tale = forgetting(story())
    payload = next(p for p in tale.chain.payloads if p.part == "output")
    erased = without(tale)
    shown = changed(
        erased, (payload.run, payload.seq, "output"), show="whole", secret=b64(payload.bytes[:SALT]), value=parse(payload.bytes[SALT:])
    )
    refused(shown, "MDM-0662")


def test_an_erasure_that_nobody_asked_for_or_too_early() -> None:
    for requested, at in (("E2", 21), ("E1", 19)):
        tale = story()
        tale.log.add(r.ErasureRequested(after=clock(20).now, clock=clock(18), erasure=requested, ground="request", principal="p-bob"))
        tale.log.add(r.Erased(clock=clock(at), commits=("c" * 64,), erasure="E1", ground="request", principal="p-bob"))
        assert_log(tale, "MDM-0643")


def assert_log(tale: Story, code: str) -> None:
    with pytest.raises(ProofError) as caught:
        tale.bundle()
    assert caught.value.diagnosis.code == code
    lines = sections(Story(log=enrolled()).tell().bundle())
    extra = [canon({"commit": x, "part": p.part, "run": "log", "seq": s, "show": "withheld"}) for x, s, p in _log_parts(tale)]
    lines["log"], lines["payload"] = tale.log.raws, [x for x in lines["payload"] if parse(x)["run"] != "log"] + extra
    assert verify(insider(lines), trust()).broken.code == code  # type: ignore[union-attr]


def _log_parts(tale: Story) -> list[Any]:
    return [(part.commit, record.seq, part) for record in tale.log.records for part in record.body or ()]


HOLD = r.HoldPlaced(clock=clock(10), ground="lawsuit", hold="H1", principal="p-alice")
LIFT = r.HoldLifted(clock=clock(11), hold="H1", principal="p-alice")


@pytest.mark.parametrize("what", [{}, {"subject": "s-1"}])
def test_erased_during_a_legal_hold(what: dict[str, str]) -> None:
    """Attack 60: on everything, or on this subject."""
    hold = r.HoldPlaced(clock=clock(10), ground="lawsuit", hold="H1", principal="p-alice", **what)
    assert_log(forgetting(story(), (hold, {"reason": {"text": "x"}})), "MDM-0643")


def test_a_hold_on_another_subject_keeps_nobody_else() -> None:
    hold = r.HoldPlaced(clock=clock(10), ground="lawsuit", hold="H1", principal="p-alice", subject="s-2")
    assert verify(without(forgetting(story(), (hold, {}))), trust()).exit_code == 3


def test_erased_during_a_hold_on_the_run() -> None:
    hold = r.HoldPlaced(clock=clock(10), ground="lawsuit", hold="H1", principal="p-alice", run=RUN)
    refused(without(forgetting(story(), (hold, {}))), "MDM-0672")
    other = r.HoldPlaced(clock=clock(10), ground="lawsuit", hold="H1", principal="p-alice", run="ANOTHER")
    assert verify(without(forgetting(story(), (other, {}))), trust()).exit_code == 3


def test_a_hold_is_lifted_by_administrators_only() -> None:
    """Attack 63 on a hold: lifting lets destroy, so it carries the signatures that LogOpened demands."""
    signed = {"statement": statement(LIFT, ADMIN, ADMIN_2, nonce="lift")}
    assert verify(without(forgetting(story(), (HOLD, {}), (LIFT, signed))), trust()).exit_code == 3
    one = {"statement": statement(LIFT, ADMIN, nonce="lift")}
    for body in ({}, one):
        refused(without(forgetting(story(), (HOLD, {}), (LIFT, body))), "MDM-0651")


@pytest.mark.parametrize(
    "facts",
    [
        (HOLD, HOLD),
        (LIFT,),
        (r.ErasureBlocked(clock=clock(1), erasure="E9", ground="floor"),),
        (
            r.ErasureRequested(after=0, clock=clock(1), erasure="E", ground="g", principal="p"),
            r.ErasureBlocked(clock=clock(1), erasure="E", ground="hold", hold="H9"),
        ),
        (
            r.ErasureRequested(after=0, clock=clock(1), erasure="E", ground="g", principal="p"),
            r.ErasureRequested(after=0, clock=clock(1), erasure="E", ground="g", principal="p"),
        ),
    ],
)
def test_chain_log_tells_holds_and_erasures_in_order(facts: tuple[Any, ...]) -> None:
    tale = story()
    for fact in facts:
        tale.log.add(fact)
    assert_log(tale, "MDM-0643")


def test_a_log_without_any_of_it_is_as_before() -> None:
    assert verify(Story(log=log_chain(), authority=0).tell().bundle(), trust()).exit_code == 0
    assert isinstance(Story().chain, Chain)
