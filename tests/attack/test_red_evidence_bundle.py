"""Attempts on the offline verifier by people who hold some of the keys: owners, one witness, one worker, a thief of an old key.

Each test builds the lie for real (keys, trees, notes, bundles) and fails if it is believed. The rule a newcomer would break: an attempt
that ends as "not in this bundle" or "cannot check now" is stopped only where its test says why that is all that can be said.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from mandamus.cli import verify as command
from mandamus.core import fields
from mandamus.core import records as r
from mandamus.core.canonical import canon, parse
from mandamus.core.clock import rfc3339
from mandamus.errors import Misuse, ProofError
from mandamus.proof import bundle, chain, dsse, note, shown, tlogproof, tree, verify, witnessed
from mandamus.proof import period as periods
from mandamus.proof.keys import COSIGNER, VKey, b64
from mandamus.proof.report import Report
from mandamus.proof.verify import Beside
from tests.attack.test_bundle_log import OTHER, PUBLIC, Leveled, checked, claim, log_of, refused, retiring, told
from tests.attack.test_bundle_period import World
from tests.attack.test_bundle_period import checked as checked_period
from tests.attack.test_bundle_period import files as log_files
from tests.logged import ALL, NOW, QUORUM, Log, demanding, proofs
from tests.samples import (
    ADMIN,
    ADMIN_2,
    BOB,
    BUNDLE_KEY,
    ENOUGH,
    ENOUGH_DIGEST,
    LOG_KEY,
    ORIGIN,
    POLICY,
    RUN,
    START,
    TRUST_TEXT,
    W1,
    W2,
    W3,
    Chain,
    Keyring,
    Story,
    clock,
    insider,
    log_chain,
    sections,
    statement,
    story,
    trust,
)

HOUR_S = 3600


def noted(log: Log, tale: Story, signed: bytes) -> tuple[bytes, ...]:
    """The two proofs of a run under this note."""
    return tuple(log.proof(raw, signed) for raw in (tale.chain.raws[-1], tale.log.raws[-1]))


def cosigned(log: Log, times: dict[str, int], key: Keyring = LOG_KEY) -> bytes:
    """The newest checkpoint, each witness at its own time."""
    text, ring = log.checkpoint().text, {"one": W1, "two": W2, "three": W3}
    lines = [note.cosign_line(text, ring[name].key, ring[name].sign, time) for name, time in times.items()]
    return note.write(text, [note.sign_line(text, key.key, key.sign), *lines])


# -- widen: who counts ---------------------------------------------------------------------------------------------------------
def test_one_witness_is_put_into_two_groups() -> None:
    """A doctored trust file: both groups of an `all` are met by the one witness that they share."""
    head, _ = QUORUM.split("group all 2")
    nested = head + "group a any one two\ngroup b any one three\ngroup q all a b\nquorum q\n"
    with pytest.raises(Misuse) as caught:
        trust(nested)
    assert caught.value.diagnosis.code == "MDM-0181"
    with pytest.raises(Misuse):
        trust(head + "group a any one two\ngroup q 2 a one three\nquorum q\n")
    honest = trust(head + "group a any one two\ngroup q all a three\nquorum q\n")
    tale = story()
    assert checked(tale.bundle(proofs=proofs(tale, witnesses=(W1, W2))), honest).exit_code == 3
    assert checked(tale.bundle(proofs=proofs(tale, witnesses=(W2, W3))), honest).exit_code == 0


def test_witnesses_are_named_and_the_quorum_line_is_lost() -> None:
    """Nobody falls back to asking nobody: a line that was left out would switch all witnesses off."""
    with pytest.raises(Misuse, match="how many of them"):
        trust(QUORUM.replace("quorum all\n", ""))
    with pytest.raises(Misuse):
        trust(QUORUM.replace("quorum all\n", "# quorum all\n"))


@pytest.mark.parametrize(
    "hidden",
    [
        "# as agreed\rquorum all\n",
        "# as agreed\u2028quorum all\n",
        "# as agreed\x85quorum all\n",
        "# \u202equorum all\n",
        "quorum\x0ball\n",
    ],
)
def test_a_line_of_the_trust_file_that_an_editor_shows_and_nobody_reads(hidden: str) -> None:
    """What looks like a line of its own is the tail of a comment; the real last line says `quorum none`."""
    with pytest.raises(Misuse):
        trust(QUORUM.replace("quorum all\n", hidden) + ("" if hidden.startswith("quorum") else "quorum none\n"))


def test_names_of_witnesses_with_ids_of_strangers() -> None:
    """Twenty-eight strangers sign under the names of the three witnesses: none is counted, none makes the note broken."""
    tale = story()
    log = log_of(tale)
    text = log.checkpoint().text
    strangers = [Keyring.of(f"witness-{n % 3 + 1}", f"stranger {n}", COSIGNER) for n in range(28)]
    lines = [note.sign_line(text, LOG_KEY.key, LOG_KEY.sign), *(note.cosign_line(text, s.key, s.sign, NOW) for s in strangers)]
    signed = note.write(text, [*lines, note.cosign_line(text, W1.key, W1.sign, NOW)])
    report = checked(tale.bundle(proofs=noted(log, tale, signed)))
    assert (report.exit_code, claim(report, "checkpoint").outcome) == (3, "not in this bundle")
    assert "cosigned by one;" in claim(report, "checkpoint").says


def test_a_quorum_that_is_no_majority_can_be_shown_two_logs() -> None:
    """Two views, each cosigned by a witness of its own. With `any` of three both are met (docs/security.md says so); with two of three
    nobody can be in both, and the bundle falls short."""
    tale = story()
    one = log_of(tale)
    other = Log().add([b"another past"]).add(tale.log.raws).add([b"x"] * 40)
    lines = (one.proof(tale.chain.raws[-1], witnesses=(W1,)), other.proof(tale.log.raws[-1], witnesses=(W2,)))
    weak = trust(QUORUM.replace("group all 2", "group all any"))
    assert checked(tale.bundle(proofs=lines), weak).exit_code == 0, "if this is stopped now, take the line out of docs/security.md"
    report = checked(tale.bundle(proofs=lines))
    assert (report.exit_code, claim(report, "checkpoint").exit_code) == (3, 3)


# -- backdate, and make young --------------------------------------------------------------------------------------------------
def test_one_witness_makes_an_old_checkpoint_young() -> None:
    """The log was cosigned by two of three; a day later the third, in league with the owner, cosigns the same old head again."""
    tale = story()
    log = log_of(tale)
    day = 24 * HOUR_S
    lone = cosigned(log, {"one": NOW, "two": NOW, "three": NOW + day})
    asked: dict[str, Any] = {"max_age": HOUR_S}
    report = verify(tale.bundle(proofs=noted(log, tale, lone)), demanding(), witnessed_at(NOW + day, **asked))
    assert (report.exit_code, claim(report, "checkpoint").exit_code) == (3, 3), report
    both = cosigned(log, {"one": NOW, "two": NOW + day, "three": NOW + day})
    assert verify(tale.bundle(proofs=noted(log, tale, both)), demanding(), witnessed_at(NOW + day, **asked)).exit_code == 0


def witnessed_at(now: int, **asked: Any) -> Beside:
    return Beside(now=now, **asked)


def test_one_witness_makes_an_old_period_young() -> None:
    world = World()
    day = 24 * HOUR_S
    last = cosigned(world.log, {"one": NOW, "two": NOW, "three": NOW + day})
    raw = world.bundle(notes=(world.log.note(size=world.old), last))
    assert verify(raw, demanding(), witnessed_at(NOW + day, max_age=HOUR_S)).exit_code == 3
    assert verify(raw, demanding(), witnessed_at(NOW + day, max_age=2 * day)).exit_code == 0


def test_an_early_stamp_is_over_another_checkpoint_of_the_bundle() -> None:
    """An early checkpoint, of the proposal alone, was stamped in time; what people signed came later and bears early dates. The stamp
    does not say that the whole run was there."""
    tale, log = told()
    lines = tale.lines(log, time=NOW)
    early, head = tlogproof.parse(lines[-1]).note, tlogproof.parse(lines[0]).note

    def reader(reply: bytes, message: bytes) -> int:
        assert message in (early, head)
        return int(reply)

    raw = tale.bundle(proofs=lines, stamps=[(early, b"%d" % (NOW - HOUR_S))])
    report = checked(raw, stamp=reader)
    assert claim(report, "stamps").outcome == "cannot check now", claim(report, "stamps")
    both = tale.bundle(proofs=lines, stamps=[(early, b"%d" % (NOW - HOUR_S)), (head, b"%d" % NOW)])
    says = claim(checked(both, stamp=reader), "stamps").says
    assert rfc3339(NOW * 1_000_000) in says, says
    assert rfc3339((NOW - HOUR_S) * 1_000_000) not in says


def test_an_anchor_of_an_earlier_checkpoint_is_not_told_as_the_heads() -> None:
    tale, log = told()
    early = tale.early.checkpoint()
    entry = early.text.encode()
    public = Log(PUBLIC, PUBLIC.key.name).add([b"somebody else's", entry])
    raw = tale.bundle(proofs=(*tale.lines(log, time=NOW), public.proof(entry, extra=entry, witnesses=())))
    report = checked(raw, trust(QUORUM + f"anchor {PUBLIC.key.name} {PUBLIC.key}\n"))
    assert f"an earlier one, of size {early.size}" in claim(report, "anchors").says, claim(report, "anchors")


def test_a_period_begins_later_than_it_says() -> None:
    """The owner leaves November's first half out: the bundle is whole, and its first checkpoint is of the eighteenth."""
    world = World()
    narrow = checked_period(world.bundle(period=("2026-11-01", "2026-12-01")))
    assert (narrow.exit_code, narrow.claims[2].name, narrow.claims[2].exit_code) == (3, "checkpoint", 3), narrow
    assert "cosigned later" in narrow.claims[2].says
    assert checked_period(world.bundle(period=("the eleventh month", "2026-12-01"))).exit_code == 3
    assert checked_period(world.bundle(period=("2026-11-19", "2026-12-01"))).exit_code == 0
    assert checked_period(world.bundle(0, period=("2026-11-01", "2026-12-01"))).exit_code == 0, "a log that begins in the period"
    mixed = (cosigned_at(world, {"one": NOW - 20 * 24 * HOUR_S, "two": NOW, "three": NOW}), world.log.note())
    assert checked_period(world.bundle(period=("2026-11-01", "2026-12-01"), notes=mixed)).exit_code == 3, "one witness dates it back"


def cosigned_at(world: World, times: dict[str, int]) -> bytes:
    text, ring = world.log.checkpoint(world.old).text, {"one": W1, "two": W2, "three": W3}
    lines = [note.cosign_line(text, ring[name].key, ring[name].sign, time) for name, time in times.items()]
    return note.write(text, [note.sign_line(text, LOG_KEY.key, LOG_KEY.sign), *lines])


# -- hide ----------------------------------------------------------------------------------------------------------------------
def _hiding(world: World) -> Chain:
    """A run that no line shows, and the run whose numbers jump over as many events as it has. Answers the latter."""
    hidden = Chain("HIDDEN", entropy=iter([bytes([200, k]) * 16 for k in range(64)]))
    opened: Any = world.chains[f"RUN{0:023}"].records[0].fact
    hidden.add(msgspec.structs.replace(opened, register=r.Register(number=7, prev="")), input="go")
    hidden.add(r.TurnStarted(clock=clock(1)), 1)
    world.log.add(hidden.raws)
    world.chains["HIDDEN"] = Chain("HIDDEN")
    jumps = world.chains[f"RUN{7:023}"]
    assert jumps.at is not None
    jumps.at = type(jumps.at)(jumps.at.run, jumps.at.seq + len(hidden.raws), jumps.at.hash, jumps.at.epoch)
    jumps.add(r.TurnStarted(clock=clock(2)), 2)
    world.log.add([jumps.raws[-1]])
    return jumps


def test_a_hidden_run_is_paid_for_with_holes_in_another(tmp_path: Path) -> None:
    """The leaves of a run that is not shown are claimed by a chain that jumps over as many numbers. Without the log's files nobody can
    see it (docs/security.md); with them, and in the bundle of the run that jumps, it is broken."""
    world = World()
    jumps = _hiding(world)
    raw = _without(world, "HIDDEN", jumps.run)
    report = checked_period(raw)
    outcomes = {c.name: c.outcome for c in report.claims}
    assert (report.exit_code, outcomes["records"]) == (0, "cannot check now"), "if this is stopped now, say so in docs/security.md"
    assert chain.walk(jumps.raws, jumps.run).fault is not None, "its own bundle cannot be made"
    seen = checked_period(raw, tiles=log_files(tmp_path, world.log))
    assert (seen.exit_code, seen.claims[-1].name) == (1, "records"), seen


def _without(world: World, hidden: str, open_run: str) -> bytes:
    runs: dict[str, tuple[int, int]] = {}
    log: list[periods.LogLine] = []
    for index in range(world.old, world.log.tree.size):
        record = r.decode(world.log.raws[index])
        if record.run == r.LOG:
            log.append(periods.LogLine(index=index, record=world.log.raws[index].decode()))
        elif record.run != hidden:
            runs[record.run] = (runs.get(record.run, (index, 0))[0], index)
    made = []
    for run, (i, j) in runs.items():
        seq = r.decode(world.log.raws[j]).seq
        whole = world.chains[run].raws[: seq + 1]
        state: Any = "open" if run == open_run else chain.state_of(chain.walk(whole, run))
        made.append(periods.RunLine(first=world.log.raws[i].decode(), index=(i, j), last=world.log.raws[j].decode(), state=state))
    return world.bundle(runs=made, log=log)


def test_a_record_of_tomorrow_covers_a_forged_vote() -> None:
    """A type that no verifier knows yet stands behind the lie: the verdict is "cannot tell", and never that it holds."""
    tale = Story(voters=(("p-alice", BOB), ("p-bob", BOB)), seal=False).tell()
    assert checked(tale.bundle(), trust()).exit_code == 1
    lines = sections(tale.bundle())
    plain = parse(lines["record"][-1])
    newer = {**plain, "seq": plain["seq"] + 1, "prev": r.event_hash(lines["record"][-1]), "type": "ActionBlessed", "fact": {}}
    newer.pop("body", None)
    lines["record"].append(canon(newer))
    report = checked(insider(lines), trust())
    assert report.exit_code in (1, 5), report
    assert report.verdict != "PROVEN"


def test_two_readers_are_shown_two_members_of_one_name() -> None:
    """Who makes the record commits to two amounts and shows each auditor one. Nobody can see into what is hidden (docs/security.md), so
    a payload that is shown in part is never whole: the claim says so, and exit 0 is not given for it."""
    secret = bytes(range(32))
    small = fields.field_digest(fields.salt(secret, 0), "amount", "100")
    large = fields.field_digest(fields.salt(secret, 1), "amount", "1000000")
    commit = fields.commit_of([small, large])
    part = r.BodyPart(class_="confidential", commit=commit, media=fields.MEDIA, part="output")
    base = {"commit": commit, "part": "output", "run": RUN, "seq": 3}

    def line(number: int, value: str, hidden: bytes) -> bytes:
        own = fields.salt(secret, number)
        return canon(base | {"fields": [[number, b64(own), "amount", value]], "hidden": [hidden.hex()], "show": "fields"})

    for raw in (line(0, "100", large), line(1, "1000000", small)):
        read = shown.read(raw, 1)
        assert shown._commitment(read, part) == commit
        assert read.show != "whole"
    both = canon(
        base
        | {
            "fields": [[0, b64(fields.salt(secret, 0)), "amount", "100"], [1, b64(fields.salt(secret, 1)), "amount", "1000000"]],
            "hidden": [small.hex()], "show": "fields",
        }
    )  # fmt: skip
    with pytest.raises(ProofError, match="two members have one name"):
        shown.read(both, 1)


# -- forge: levels -------------------------------------------------------------------------------------------------------------
def test_witnessed_is_not_proven_to_somebody_who_names_no_witness() -> None:
    """The owner alone signs the checkpoint, and writes `witnessed`; the reader's trust file has `quorum none`."""
    tale, log = told()
    report = checked(tale.bundle(proofs=tale.lines(log, witnesses=())), trust())
    assert claim(report, "levels").outcome == "cannot check now", claim(report, "levels")
    assert checked(tale.bundle(proofs=tale.lines(log, witnesses=()))).exit_code == 3


class Twice(Leveled):
    """Behind the judgement of the policy in force, one of another policy that asks the same."""

    def escalated(self) -> None:
        super().escalated()
        mine, self.policy = self.policy, ENOUGH_DIGEST
        self.judged("escalate", asks=(r.Ask(chain="witnessed", quorum=0, to="log", within=60000),))
        self.policy = mine


def test_another_policys_ask_does_not_replace_the_one_in_force() -> None:
    tale = Twice()
    tale.reached = False
    tale.tell()
    log = Log().add([*tale.log.raws, *tale.chain.raws])
    refused(tale.bundle(proofs=proofs(tale, log), policies={tale.policy: POLICY, ENOUGH_DIGEST: ENOUGH}), "MDM-0673", "levels")


# -- keys: the same key by another name, a retired one at work ------------------------------------------------------------------
def renamed(ring: Keyring, name: str) -> VKey:
    return VKey(name, ring.key.kind, ring.key.public)


def test_a_revoked_approver_stands_in_the_trust_file_by_another_name() -> None:
    """The log revoked Bob's key; the auditor was given the same key as `bobs-laptop`."""
    gone = r.KeyChanged(clock=clock(2), old=str(renamed(BOB, "bob-of-2019")), principal="p-bob", role="approver")
    tale = Story(log=log_chain((gone, {})), authority=1).tell()
    refused(tale.bundle(), "MDM-0656", "votes", trust())
    other = trust(TRUST_TEXT.replace(str(BOB.key), str(renamed(BOB, "bobs-laptop"))))
    assert checked(tale.bundle(), other).exit_code == 1


def test_a_retired_bundle_key_stands_in_the_trust_file_by_another_name() -> None:
    fresh = Keyring.of("bundles-2")
    tale = retiring(BUNDLE_KEY, fresh, "bundle")
    alias = renamed(BUNDLE_KEY, "archive")
    roots = trust(TRUST_TEXT.replace(str(BUNDLE_KEY.key), str(alias)))
    refused(tale.bundle(key=alias), "MDM-0656", "authority", roots)


def test_an_administrator_that_was_removed_by_another_name_signs_no_more() -> None:
    """Two of three are asked. The third was removed; its signature under another name does not make two."""
    third = Keyring.of("admin-3")
    gone = r.KeyChanged(clock=clock(1), old=str(renamed(third, "admin-iii")), principal="operator", role="administrator")
    bob = r.KeyChanged(clock=clock(2), new=str(BOB.key), principal="p-bob", role="approver")
    signed = statement(bob, ADMIN, third)
    log = log_chain((gone, {}), (bob, {"statement": signed}), admins=(ADMIN, ADMIN_2, third))
    tale = Story(log=log).tell()
    refused(tale.bundle(), "MDM-0651", "authority", trust(TRUST_TEXT + f"admin {third.key}\n"))


def test_a_thief_of_the_retired_log_key_takes_a_run_over() -> None:
    """A judgement of the run saw the rotation; the takeover behind it is signed with the key that was rotated away."""
    fresh = Keyring.of(ORIGIN, "fresh")
    change = r.KeyChanged(clock=clock(2), new=str(fresh.key), old=str(LOG_KEY.key), principal="operator", role="log")
    roots = trust(QUORUM + f"log {fresh.key}\n")
    for owner, code in ((LOG_KEY, 1), (fresh, 0)):
        tale = Story(authority=3, owner=owner)
        tale.log.add(change, statement=statement(change, ADMIN, ADMIN_2, LOG_KEY, fresh, nonce="rotate"))
        tale.tell()
        log = Log(fresh).add([*tale.log.raws, *tale.chain.raws])
        report = checked(tale.bundle(proofs=proofs(tale, log)), roots)
        assert report.exit_code == code, report
        assert claim(report, "owners").exit_code == code


def test_a_thief_of_a_retired_bundle_key_cuts_the_chain_that_retired_it() -> None:
    """Chain log is shown to where the judgement saw it, and no further. With witnesses the forged run is in no log; where nobody is asked
    for, the signature is all there is: whoever retires a bundle key takes it out of trust files (docs/security.md)."""
    forged = Story(authority=0, log=log_chain()).tell()
    assert checked(forged.bundle(), trust()).exit_code == 0, "if this is stopped now, take the line out of docs/security.md"
    honest = story()
    assert checked(forged.bundle()).exit_code == 3
    stolen = proofs(honest, log_of(honest))
    assert checked(forged.bundle(proofs=stolen)).exit_code == 1


def test_a_statement_that_had_expired_is_used_by_whoever_writes_an_older_clock() -> None:
    """The clock in a record is its writer's word, so an unused statement outlives its hour for him (docs/security.md); it still counts
    once, for the one thing that it says."""
    bob = r.KeyChanged(clock=clock(10), new=str(BOB.key), principal="p-bob", role="approver")
    signed = statement(bob, ADMIN, ADMIN_2, expires=clock(60).now)
    late = msgspec.structs.replace(bob, clock=clock(600))
    again = msgspec.structs.replace(bob, clock=clock(50))
    refused(Story(log=log_chain((late, {"statement": signed})), authority=1).tell().bundle(), "MDM-0651", "authority", trust())
    assert checked(Story(log=log_chain((again, {"statement": signed})), authority=1).tell().bundle(), trust()).exit_code == 0
    twice = log_chain((bob, {"statement": signed}), (again, {"statement": signed}))
    refused(Story(log=twice, authority=2).tell().bundle(), "MDM-0651", "authority", trust())


# -- forge: one thing shown as another ------------------------------------------------------------------------------------------
def test_the_envelope_of_another_kind_of_statement() -> None:
    """One key, one envelope type, three kinds of in-toto statement: none passes for another."""
    world, tale = World(), story()
    lines = sections(tale.bundle())
    period_envelope = world.bundle().split(b"\n")[1]
    release = canon({"_type": bundle.STATEMENT, "predicate": {}, "predicateType": "https://slsa.dev/provenance/v1", "subject": []})
    for envelope in (period_envelope, dsse.sign(bundle.PAYLOAD_TYPE, release, [(BUNDLE_KEY.key.id, BUNDLE_KEY.sign)])):
        raw = b"\n".join([tale.bundle().split(b"\n")[0], envelope, *(x for name in bundle.SECTIONS[1:] for x in lines[name])]) + b"\n"
        refused(raw, "MDM-0647", "signature", trust())


@pytest.mark.parametrize("size", [(1 << 53) + 2, 9_999_999_999_999_999])
def test_a_tree_that_is_larger_than_numbers_that_every_reader_has(size: int) -> None:
    """Two leaves at the far end of an enormous tree, whose left side is one made-up hash: a reader in JavaScript would round the index.
    All three verifiers refuse such a size, so they cannot differ about it."""
    tale = story()
    run, log = (tree.leaf_hash(raws[-1]) for raws in (tale.chain.raws, tale.log.raws))
    left = b"\x22" * 32
    root = tree.node_hash(left, tree.node_hash(log, run))
    text = f"{ORIGIN}\n{size}\n{b64(root)}\n"
    signed = note.write(text, [note.sign_line(text, LOG_KEY.key, LOG_KEY.sign), *(note.cosign_line(text, w.key, w.sign, NOW) for w in ALL)])
    lines = (tlogproof.write((1 << 53) + 1, [log, left], signed), tlogproof.write(1 << 53, [run, left], signed))
    report = checked(tale.bundle(proofs=lines))
    assert (report.exit_code, report.broken and report.broken.code) in ((1, "MDM-0900"), (1, "MDM-0904")), report


def test_an_unwitnessed_head_is_not_remembered(tmp_path: Path) -> None:
    """An auditor who keeps what he saw last is shown a long fork that nobody cosigned: from then on every honest bundle would look rolled
    back."""
    tale = story()
    fork = Log().add([b"fork %d" % n for n in range(1000)]).add([*tale.log.raws, *tale.chain.raws])
    paths = {name: tmp_path / name for name in ("fork", "honest", "trust", "state")}
    paths["fork"].write_bytes(tale.bundle(proofs=proofs(tale, fork, witnesses=(), time=NOW)))
    paths["honest"].write_bytes(tale.bundle(proofs=proofs(tale, log_of(tale))))
    paths["trust"].write_text(QUORUM)
    more = ["--trust", str(paths["trust"]), "--state", str(paths["state"]), "-q"]
    assert command.main([str(paths["fork"]), *more]) == 3
    assert not paths["state"].exists()
    assert command.main([str(paths["honest"]), *more]) == 0
    assert b'"size":27' in paths["state"].read_bytes()


def test_a_slow_reader_does_not_make_another_forget(tmp_path: Path) -> None:
    """Two audits keep one state file. The one that began first saw less; when it ends last it must not write the log shorter, or a
    rollback to what lies between would go unseen."""
    tale, long = story(), Log().add([*story().log.raws, *story().chain.raws]).add([b"more %d" % n for n in range(100)])
    short = Log().add([*tale.log.raws, *tale.chain.raws])
    state = tmp_path / "state"
    before = command._last(state)
    slow = checked(tale.bundle(proofs=proofs(tale, short)), last=before)
    fast = checked(tale.bundle(proofs=proofs(tale, long)), last=before)
    command._remember(state, fast)
    command._remember(state, slow)
    assert command._last(state)[ORIGIN].size == long.tree.size


# -- exhaust ---------------------------------------------------------------------------------------------------------------------
class Counted(list[Any]):
    """Records that count how many of them were handed out in slices and by the way."""

    read = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        Counted.read += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self) -> Any:
        Counted.read += len(self)
        return super().__iter__()


class Climbing(Leveled):
    """Reaches a level after every event."""

    many = 600

    def escalated(self) -> None:
        super().escalated()
        for n in range(self.many):
            self.chain.add(r.EvidenceReached(level="sealed", root="ab" * 32, seq=len(self.chain.sealed) - 1, size=100_000 + n), 1)


def test_as_many_levels_as_events_cost_no_square_of_them() -> None:
    """A small bundle with a proof line for each of its events: the records before each of them are not read again and again."""
    tale = Climbing()
    tale.tell()
    log = Log().add([*tale.log.raws, *tale.chain.raws])
    text = [note.Checkpoint(ORIGIN, 100_000 + n, bytes.fromhex("ab" * 32)).text for n in range(tale.many)]
    lines = [tlogproof.write(0, [], note.write(t, [note.sign_line(t, LOG_KEY.key, LOG_KEY.sign)])) for t in text]
    records = Counted(tale.chain.records)
    run = witnessed.Run(ORIGIN, records, tale.chain.raws, tale.log.records, tale.log.raws)
    raws = [canon(line.decode()) for line in (*proofs(tale, log), *lines)]
    Counted.read = 0
    found = witnessed.Proofs(raws, 1, run, demanding(), NOW)
    assert found.checkpoint().name == "checkpoint"
    assert sum(line.job == "level" for line in found.lines) == tale.many
    assert Counted.read < 20 * len(records), f"{Counted.read} reads of {len(records)} records"


def test_the_corpus_of_these_attempts_is_about_whole_stories() -> None:
    """The honest story that the lies above are made of holds: what stops them is the lie."""
    tale = story()
    for report in (checked(tale.bundle(proofs=proofs(tale, log_of(tale)))), checked(tale.bundle(), trust())):
        assert isinstance(report, Report)
        assert report.exit_code == 0, report
    assert START < NOW * 1_000_000
    assert OTHER.tree.size == 5
