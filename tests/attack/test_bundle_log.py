"""Bundles with proofs of the log: checkpoints, cosignatures, inclusion, children, levels, anchors. Honest ones hold, each lie is named."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from mandamus.core import records as r
from mandamus.core.canonical import canon
from mandamus.proof import bundle, note, tlogproof, verify
from mandamus.proof.keys import b64
from mandamus.proof.report import Report
from mandamus.proof.verify import Beside
from tests.logged import ALL, NOW, QUORUM, Log, Parent, child_chain, demanding, proofs
from tests.samples import (
    ADMIN,
    ADMIN_2,
    BUNDLE_KEY,
    LOG_KEY,
    ORIGIN,
    STRANGER,
    W1,
    W2,
    W3,
    Keyring,
    Story,
    clock,
    insider,
    sections,
    statement,
    story,
    trust,
)

OTHER = Log().add([b"other leaf %d" % n for n in range(5)])


def claim(report: Report, name: str) -> Any:
    return next((c for c in report.claims if c.name == name), None)


def checked(raw: bytes, roots: Any = None, **beside: Any) -> Report:
    return verify(raw, roots or demanding(), Beside(now=NOW, **beside))


def refused(raw: bytes, code: str, name: str, roots: Any = None, **beside: Any) -> Report:
    report = checked(raw, roots, **beside)
    assert (report.exit_code, report.verdict) == (1, "NOT PROVEN"), report
    assert report.broken is not None
    assert report.broken.code == code, report.broken
    assert claim(report, name).outcome == "broken", report.claims
    return report


def log_of(tale: Story) -> Log:
    return Log().add(OTHER.raws).add([*tale.log.raws, *tale.chain.raws])


# -- honest ------------------------------------------------------------------------------------------------------------------
def test_a_witnessed_run_is_proven() -> None:
    tale = story()
    report = checked(tale.bundle(proofs=proofs(tale)))
    assert (report.exit_code, report.verdict) == (0, "PROVEN"), report
    assert claim(report, "checkpoint").outcome == claim(report, "inclusion").outcome == "proven"
    assert "cosigned by one, three, two: quorum all" in claim(report, "checkpoint").says
    assert report.as_json()["checkpoint"] == {"origin": ORIGIN, "size": 22, "root": report.checkpoint.root, "time": NOW}


def test_without_a_log_nothing_is_claimed_and_a_demanded_quorum_is_missed() -> None:
    """A trust file that asks for no witness takes a bundle without proofs; one that does says what it lacks."""
    raw = story().bundle()
    plain = checked(raw, trust())
    assert plain.exit_code == 0
    assert {claim(plain, name).outcome for name in ("checkpoint", "inclusion")} == {"not in this bundle"}
    strict = checked(raw)
    assert (strict.exit_code, strict.verdict) == (3, "NOT FULLY CHECKED")
    assert claim(strict, "checkpoint").exit_code == 3


def test_proofs_under_different_checkpoints_of_one_log() -> None:
    tale = story()
    log = log_of(tale)
    early = len(OTHER.raws) + len(tale.log.raws)
    mixed = (log.proof(tale.chain.raws[-1]), log.proof(tale.log.raws[-1], size=early, time=NOW - 5))
    assert checked(tale.bundle(proofs=mixed)).exit_code == 0


def test_an_open_run_is_proven_so_far() -> None:
    tale = story(seal=False)
    report = checked(tale.bundle(proofs=proofs(tale)))
    assert (report.exit_code, claim(report, "inclusion").outcome) == (4, "proven")


# -- the log's signature, the origin, the witnesses (attacks 4, 5, 6, 28 to 33, 47) ---------------------------------------------
def with_proofs(**how: Any) -> bytes:
    tale = story()
    return tale.bundle(proofs=proofs(tale, log_of(tale), **how))


def test_another_log_key_under_the_same_name() -> None:
    """Attack 4: an attacker's key that calls itself by the log's name is none of the trust file."""
    refused(with_proofs(key=Keyring.of(ORIGIN, "thief")), "MDM-0902", "checkpoint")


def test_a_forged_signature_of_the_log_rejects_the_note() -> None:
    """A line with name and id of a known key must hold, or nothing of the note does."""
    good = with_proofs()
    forged = Keyring(STRANGER.private, LOG_KEY.key)
    assert checked(good).exit_code == 0
    refused(with_proofs(key=forged), "MDM-0901", "checkpoint")
    refused(with_proofs(witnesses=(W1, W2, Keyring(STRANGER.private, W3.key))), "MDM-0901", "checkpoint")


@pytest.mark.parametrize("witnesses", [(), (W1,), (W1, W1, W1), (STRANGER,)])
def test_too_few_witnesses(witnesses: tuple[Keyring, ...]) -> None:
    """Attacks 5, 6 and 33: the log's own key, one colluding witness, or one witness three times are not two of three."""
    report = checked(with_proofs(witnesses=witnesses))
    assert (report.exit_code, report.verdict) == (3, "NOT FULLY CHECKED")
    assert claim(report, "checkpoint").outcome == "not in this bundle"
    assert claim(report, "inclusion").outcome == "proven"


def test_a_witness_does_not_sign_for_the_log() -> None:
    """Attack 32: a cosignature is no log signature, and the trust file takes no log's key for a witness's."""
    tale = story()
    text = log_of(tale).checkpoint().text
    lines = [note.cosign_line(text, w.key, w.sign, NOW) for w in ALL]
    only_witnesses = tuple(_noted(raw, note.write(text, lines)) for raw in proofs(tale, log_of(tale)))
    refused(tale.bundle(proofs=only_witnesses), "MDM-0902", "checkpoint")


def _noted(proof: bytes, signed: bytes) -> bytes:
    read = tlogproof.parse(proof)
    return tlogproof.write(read.index, read.path, signed, read.extra)


def test_another_origin() -> None:
    """Attacks 31 and 47: the log says whose it is, and the trust file says whose is believed."""
    tale = story()
    elsewhere = Log(LOG_KEY, "mandamus.local/elsewhere").add([*tale.log.raws, *tale.chain.raws])
    refused(tale.bundle(proofs=proofs(tale, elsewhere)), "MDM-0902", "checkpoint")


@pytest.mark.parametrize(("seconds", "holds"), [(300, True), (301, False)])
def test_a_cosignature_from_the_future(seconds: int, holds: bool) -> None:
    """Attack 30, first half: five minutes are a clock that goes wrong, more is not."""
    raw = with_proofs(time=NOW + seconds)
    if holds:
        assert checked(raw).exit_code == 0
    else:
        refused(raw, "MDM-0903", "checkpoint")


def test_a_cosignature_older_than_what_it_covers() -> None:
    """Attack 30, second half: nobody saw a record before it was written."""
    tale = story()
    last = tale.chain.records[-1].at
    second = 3600 * int(last[11:13]) + 60 * int(last[14:16]) + int(last[17:19])
    midnight = (NOW - 7200) // 86400 * 86400
    assert checked(with_proofs(time=midnight + second - 300)).exit_code == 0
    report = refused(with_proofs(time=midnight + second - 301), "MDM-0666", "checkpoint")
    assert report.broken is not None
    assert report.broken.expected == last


def test_a_stale_checkpoint() -> None:
    raw = with_proofs(time=NOW - 100)
    assert checked(raw, max_age=100).exit_code == 0
    assert checked(raw, max_age=99).exit_code == 3
    assert checked(with_proofs(witnesses=()), trust(), max_age=99).exit_code == 3


def test_two_roots_of_one_size() -> None:
    """Attack 29 within one bundle: two checkpoints of one size contradict each other."""
    tale = story()
    one = log_of(tale)
    other = Log().add([b"hidden"]).add(OTHER.raws[1:]).add([*tale.log.raws, *tale.chain.raws])
    refused(tale.bundle(proofs=(one.proof(tale.chain.raws[-1]), other.proof(tale.log.raws[-1]))), "MDM-0670", "checkpoint")


# -- inclusion (attacks 16, 34, 46) -------------------------------------------------------------------------------------------
def test_a_proof_of_another_record() -> None:
    """Attacks 16 and 46: a valid proof that is not about this record."""
    tale = story()
    log = log_of(tale)
    wrong = (log.proof(OTHER.raws[2]), log.proof(tale.log.raws[-1]))
    report = refused(tale.bundle(proofs=wrong), "MDM-0664", "inclusion")
    assert report.broken is not None
    assert report.broken.line == bundle.read(tale.bundle(proofs=wrong)).first["proof"]


def test_a_cut_run_is_not_the_one_in_the_log() -> None:
    """The last record shown must be the leaf; the proof of the one behind it does not help."""
    tale, whole = story(seal=False), story()
    log = log_of(whole)
    refused(tale.bundle(proofs=(log.proof(whole.chain.raws[-1]), log.proof(whole.log.raws[-1]))), "MDM-0664", "inclusion")


@pytest.mark.parametrize("change", ["index", "path", "shorter"])
def test_an_altered_path(change: str) -> None:
    tale = story()
    read = tlogproof.parse(proofs(tale, log_of(tale))[0])
    path = list(read.path)
    if change == "path":
        path[0] = bytes(32)
    if change == "shorter":
        path.pop()
    altered = tlogproof.write(read.index - (change == "index"), path, read.note)
    refused(tale.bundle(proofs=(altered, proofs(tale, log_of(tale))[1])), "MDM-0664", "inclusion")


def test_a_run_cannot_name_a_checkpoint_that_came_after_it() -> None:
    """The genesis names a tree of 1,000 leaves, and the run stands at leaf 21 of it."""
    fresh = _AnchoredStory(r.Anchor(root="ab" * 32, size=1000)).tell()
    report = refused(fresh.bundle(proofs=proofs(fresh)), "MDM-0664", "inclusion")
    assert report.broken is not None
    assert "newer than itself" in report.broken.what


class _AnchoredStory(Story):
    def __init__(self, anchor: r.Anchor) -> None:
        super().__init__()
        self.anchor = anchor

    def opened(self) -> None:
        add = self.chain.add

        def anchored(fact: Any, turn: int = 0, **body: Any) -> Any:
            if isinstance(fact, r.RunOpened):
                fact = r.RunOpened(**{f: getattr(fact, f) for f in fact.__struct_fields__} | {"anchor": self.anchor})
            return add(fact, turn, **body)

        self.chain.add = anchored  # type: ignore[method-assign]
        super().opened()
        self.chain.add = add  # type: ignore[method-assign]


def test_the_anchor_of_the_genesis_is_the_log_that_is_shown() -> None:
    """A run that began under the log's first three leaves; another root for three leaves is a split view."""
    first = OTHER.checkpoint(3)
    honest = _AnchoredStory(r.Anchor(root=first.root.hex(), size=3)).tell()
    log = log_of(honest)
    assert checked(honest.bundle(proofs=proofs(honest, log))).exit_code == 0


def test_a_root_that_the_run_names_is_the_one_that_is_shown() -> None:
    """The level's own line is left out; the line of chain log shows another tree of that size."""
    tale, log = told()
    other = Log().add([b"hidden", *log.raws[1 : tale.early.tree.size]])
    lines = (log.proof(tale.chain.raws[-1]), other.proof(tale.log.raws[-1]))
    report = refused(tale.bundle(proofs=lines), "MDM-0670", "inclusion")
    assert report.broken is not None
    assert "a split view" in report.broken.what


# -- which lines there are (attack 54) -----------------------------------------------------------------------------------------
def test_lines_in_another_order_or_number() -> None:
    tale = story()
    run, log = proofs(tale, log_of(tale))
    for lines in ((run,), (log, run), (run, log, run), (run, log) * 9):
        report = checked(tale.bundle(proofs=lines))
        assert report.exit_code == 1, lines
    tale_log = tale.bundle(proofs=(run, log))
    assert checked(tale_log).exit_code == 0


def test_ten_thousand_proof_lines() -> None:
    tale = story()
    refused(tale.bundle(proofs=proofs(tale) * 5000), "MDM-0665", "checkpoint")


def test_a_proof_of_a_hundred_hashes() -> None:
    tale = story()
    read = tlogproof.parse(proofs(tale)[0])
    refused(tale.bundle(proofs=(tlogproof.write(read.index, [bytes(32)] * 100, read.note), proofs(tale)[1])), "MDM-0904", "checkpoint")


def test_a_proof_line_that_is_no_text() -> None:
    tale = story()
    lines = sections(tale.bundle(proofs=proofs(tale)))
    lines["proof"][0] = canon({"proof": 1})
    refused(insider(lines), "MDM-0646", "checkpoint")


def test_a_fourth_line_in_the_checkpoint() -> None:
    """Attack 39: what no auditor would see is refused, whoever signed it."""
    tale = story()
    log = log_of(tale)
    text = log.checkpoint().text + "smuggled\n"
    lines = [note.sign_line(text, LOG_KEY.key, LOG_KEY.sign), *(note.cosign_line(text, w.key, w.sign, NOW) for w in ALL)]
    signed = note.write(text, lines)
    refused(tale.bundle(proofs=tuple(_noted(p, signed) for p in proofs(tale, log))), "MDM-0900", "checkpoint")


def test_a_size_with_a_leading_zero() -> None:
    """Attack 38."""
    tale = story()
    log = log_of(tale)
    text = log.checkpoint().text.replace("\n27\n", "\n027\n")
    assert "027" in text
    signed = note.write(text, [note.sign_line(text, LOG_KEY.key, LOG_KEY.sign)])
    refused(tale.bundle(proofs=tuple(_noted(p, signed) for p in proofs(tale, log))), "MDM-0900", "checkpoint")


# -- children ----------------------------------------------------------------------------------------------------------------
def family(result: str = "done", code: str = "", closed: str = "completed") -> tuple[Parent, Any, Log]:
    tale = Parent(result=result, code=code)
    tale.tell()
    child = child_chain(tale.child, closed)
    return tale, child, Log().add([*tale.log.raws, *child.raws, *tale.chain.raws])


def test_the_seal_of_a_child_is_in_the_log() -> None:
    tale, child, log = family()
    lines = (*proofs(tale, log), log.proof(child.raws[-1], extra=child.raws[-1]))
    report = checked(tale.bundle(proofs=lines))
    assert (report.exit_code, claim(report, "children").outcome) == (0, "proven"), report
    without = checked(tale.bundle(proofs=proofs(tale, log)))
    assert (without.exit_code, claim(without, "children").outcome) == (3, "not in this bundle")
    alone = checked(tale.bundle(), trust())
    assert (alone.exit_code, claim(alone, "children").outcome) == (0, "not in this bundle")


def test_a_child_that_failed() -> None:
    tale, child, log = family("failed", "child_failed", "failed")
    assert checked(tale.bundle(proofs=(*proofs(tale, log), log.proof(child.raws[-1], extra=child.raws[-1])))).exit_code == 0
    lied, _, _ = family()
    log = Log().add([*lied.log.raws, *child.raws, *lied.chain.raws])
    lines = (*proofs(lied, log), log.proof(child.raws[-1], extra=child.raws[-1]))
    refused(lied.bundle(proofs=lines), "MDM-0667", "children")


def test_another_run_is_shown_as_the_child() -> None:
    tale, child, _ = family()
    other = child_chain("A" * 26)
    log = Log().add([*tale.log.raws, *other.raws, *child.raws, *tale.chain.raws])
    refused(tale.bundle(proofs=(*proofs(tale, log), log.proof(other.raws[-1], extra=other.raws[-1]))), "MDM-0665", "checkpoint")
    refused(tale.bundle(proofs=(*proofs(tale, log), log.proof(child.raws[0], extra=child.raws[0]))), "MDM-0667", "checkpoint")
    unlogged = child_chain(tale.child)
    wrong = log.proof(child.raws[0], extra=unlogged.raws[-1])
    refused(tale.bundle(proofs=(*proofs(tale, log), wrong)), "MDM-0664", "inclusion")


# -- public anchors ----------------------------------------------------------------------------------------------------------
PUBLIC = Keyring.of("log.example.org")


def anchored(entry: bytes, public: Log, tale: Story, log: Log) -> bytes:
    public.add([entry])
    return tale.bundle(proofs=(*proofs(tale, log), public.proof(entry, extra=entry, witnesses=())))


@pytest.mark.parametrize("form", ["text", "rekor"])
def test_the_checkpoint_is_an_entry_of_a_public_log(form: str) -> None:
    tale = story()
    log = log_of(tale)
    text = log.checkpoint().text.encode()
    data = {"algorithm": "SHA2_256", "digest": b64(hashlib.sha256(text).digest())}
    rekor = canon({"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": {"hashedRekordV002": {"data": data, "signature": {}}}})
    entry = text if form == "text" else rekor
    public = Log(PUBLIC, PUBLIC.key.name).add([b"somebody else's"])
    raw = anchored(entry, public, tale, log)
    roots = trust(QUORUM + f"anchor {PUBLIC.key.name} {PUBLIC.key}\n")
    report = checked(raw, roots)
    assert (report.exit_code, claim(report, "anchors").outcome) == (0, "proven"), report
    unknown = checked(raw)
    assert (unknown.exit_code, claim(unknown, "anchors").outcome) == (0, "cannot check now")
    about_another = anchored(b"a\n1\nb\n", Log(PUBLIC, PUBLIC.key.name), tale, log)
    refused(about_another, "MDM-0668", "anchors", roots)
    thief = Log(Keyring.of(PUBLIC.key.name, "thief"), PUBLIC.key.name)
    refused(anchored(entry, thief, tale, log), "MDM-0668", "anchors", roots)


def test_anchors_stand_behind_the_proofs_of_the_log() -> None:
    tale, child, log = family()
    public = Log(PUBLIC, PUBLIC.key.name).add([b"x"])
    lines = (*proofs(tale, log), public.proof(b"x", extra=b"x"), log.proof(child.raws[-1], extra=child.raws[-1]))
    refused(tale.bundle(proofs=lines), "MDM-0665", "checkpoint")


# -- levels of evidence ------------------------------------------------------------------------------------------------------
class Leveled(Story):
    """Policy wants the proposal witnessed; `reached` says whether, and for which event, the run recorded that it was."""

    reached: bool = True
    upto: int | None = None

    def escalated(self) -> None:
        super().escalated()
        asks = (r.Ask(chain="treasury", quorum=2), r.Ask(chain="witnessed", quorum=0, to="log", within=60000))
        self.judged("escalate", asks=asks)
        self.early = Log().add([*self.log.raws, *self.chain.raws])
        if self.reached:
            upto = self.proposal.record.seq if self.upto is None else self.upto
            held = self.early.checkpoint()
            self.level_seq = upto
            self.chain.add(r.EvidenceReached(level="witnessed", root=held.root.hex(), seq=upto, size=held.size), 1)

    def lines(self, log: Log, **how: Any) -> tuple[bytes, ...]:
        return (*proofs(self, log), log.proof(self.chain.raws[self.level_seq], size=self.early.tree.size, **how))


def told(**knobs: Any) -> tuple[Leveled, Log]:
    tale = Leveled()
    for name, value in knobs.items():
        setattr(tale, name, value)
    tale.tell()
    return tale, Log().add([*tale.early.raws, *tale.chain.raws[len(tale.early.raws) - len(tale.log.raws) :]])


def test_what_policy_wanted_witnessed_was_so() -> None:
    tale, log = told()
    report = checked(tale.bundle(proofs=tale.lines(log, time=NOW)))
    assert (report.exit_code, claim(report, "levels").outcome) == (0, "proven"), report
    without = checked(tale.bundle(proofs=proofs(tale, log)))
    assert (without.exit_code, claim(without, "levels").outcome) == (3, "not in this bundle")
    alone = checked(tale.bundle(), trust())
    assert (alone.exit_code, claim(alone, "levels").outcome) == (0, "not in this bundle")
    few = checked(tale.bundle(proofs=tale.lines(log, witnesses=(W1,))))
    assert (few.exit_code, claim(few, "levels").exit_code) == (3, 3)


def test_an_intent_before_the_level_that_policy_wanted() -> None:
    tale, log = told(reached=False)
    refused(tale.bundle(proofs=proofs(tale, log)), "MDM-0673", "levels")
    tale, log = told(upto=0)
    refused(tale.bundle(proofs=tale.lines(log)), "MDM-0673", "levels")


def test_a_level_under_another_checkpoint_than_the_one_named() -> None:
    tale, log = told()
    wrong = log.proof(tale.chain.raws[tale.level_seq], size=tale.early.tree.size + 1)
    refused(tale.bundle(proofs=(*proofs(tale, log), wrong)), "MDM-0665", "checkpoint")


def test_a_level_that_names_another_root() -> None:
    """The record names a root that the log, as it is shown, never had: a split view."""
    tale, log = told()
    other = Log().add([b"hidden", *log.raws[1:]])
    lines = (*proofs(tale, other), other.proof(tale.chain.raws[tale.level_seq], size=tale.early.tree.size))
    refused(tale.bundle(proofs=lines), "MDM-0665", "checkpoint")


# -- keys that are none any more (attack 45) ------------------------------------------------------------------------------------
def retiring(old: Keyring, new: Keyring, role: str) -> Story:
    change = r.KeyChanged(clock=clock(2), new=str(new.key), old=str(old.key), principal="operator", role=role)
    tale = Story(authority=3, owner=new if role == "log" else LOG_KEY)
    tale.log.add(change, statement=statement(change, ADMIN, ADMIN_2, old, new, nonce="rotate"))
    return tale.tell()


def test_a_bundle_signed_with_a_retired_key() -> None:
    fresh = Keyring.of("bundles-2")
    tale = retiring(BUNDLE_KEY, fresh, "bundle")
    roots = trust(QUORUM + f"bundle local {fresh.key}\n")
    refused(tale.bundle(proofs=proofs(tale)), "MDM-0656", "authority", roots)
    assert checked(tale.bundle(proofs=proofs(tale), signer=fresh.sign, key=fresh.key), roots).exit_code == 0


def test_a_checkpoint_signed_with_a_retired_key() -> None:
    """Over chain log as it is shown, whose last records say that the key is none any more. A child's older one may bear it."""
    fresh = Keyring.of(ORIGIN, "fresh")
    tale = retiring(LOG_KEY, fresh, "log")
    roots = trust(QUORUM + f"log {fresh.key}\n")
    refused(tale.bundle(proofs=proofs(tale)), "MDM-0656", "authority", roots)
    log = Log(fresh).add([*tale.log.raws, *tale.chain.raws])
    assert checked(tale.bundle(proofs=proofs(tale, log)), roots).exit_code == 0
    early = Log().add([*tale.chain.raws, *tale.log.raws])
    before = early.proof(tale.chain.raws[-1], size=len(tale.chain.raws))
    after = early.proof(tale.log.raws[-1], key=fresh)
    assert checked(tale.bundle(proofs=(before, after)), roots).exit_code == 0


def test_the_clock_is_not_part_of_it_where_nobody_says_the_time() -> None:
    raw = with_proofs(time=NOW + 10_000_000)
    assert verify(raw, demanding()).exit_code == 0
    assert verify(with_proofs(time=NOW - 10_000_000), demanding()).exit_code == 1
