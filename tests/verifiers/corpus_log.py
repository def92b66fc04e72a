"""Cases about the log: checkpoints, witnesses, inclusion, children, levels of evidence, public anchors, and what was seen before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from mandamus.core import records as r
from mandamus.core.canonical import canon, parse
from mandamus.proof import note, tlogproof, tree
from mandamus.proof.keys import b64
from tests.attack import test_bundle_log as logged
from tests.attack.test_bundle_attacks import with_record
from tests.logged import ALL, NOW, QUORUM, Log, child_chain, proofs
from tests.samples import (
    LOG_KEY,
    ORIGIN,
    STRANGER,
    TRUST_TEXT,
    W1,
    W2,
    W3,
    Keyring,
    Story,
    insider,
    relinked,
    sections,
    story,
)
from tests.verifiers.corpus import Builder, Case

replace = msgspec.structs.replace
ONE = QUORUM.replace("group all 2", "group all 1")


class Logged(Builder):
    """Cases are read with a trust file that demands two of three witnesses, at the moment of their signatures."""

    def honest(self, name: str, bundle: bytes, code: int = 0, **more: Any) -> None:
        super().honest(name, bundle, code, **{"trust": QUORUM, "now": NOW, **more})

    def attack(self, number: int, name: str, bundle: bytes, *codes: int, **more: Any) -> None:
        super().attack(number, name, bundle, *codes, **{"trust": QUORUM, "now": NOW, **more})


def made() -> list[Case]:
    b = Logged("log")
    _witnesses(b)
    _notes(b)
    _inclusion(b)
    _lines(b)
    _children(b)
    _levels(b)
    _anchors(b)
    _before(b)
    return b.made


def _witnesses(b: Builder) -> None:
    with_proofs, tale = logged.with_proofs, story()
    b.honest("witnessed", with_proofs())
    b.honest("witnessed_and_nobody_asked", with_proofs(), trust=TRUST_TEXT)
    b.honest("no_clock", with_proofs(time=NOW + 10_000_000), now=None)
    b.honest("open_run", story(seal=False).bundle(proofs=proofs(story(seal=False))), 4)
    b.honest("no_proof_but_a_quorum", tale.bundle(), 3)
    b.attack(4, "log_key_of_the_same_name", with_proofs(key=Keyring.of(ORIGIN, "thief")))
    b.attack(4, "forged_log_signature", with_proofs(key=Keyring(STRANGER.private, LOG_KEY.key)))
    b.attack(5, "no_witness", with_proofs(witnesses=()), 3)
    b.attack(6, "one_colluding_witness", with_proofs(witnesses=(W1,)), 3)
    b.attack(33, "one_witness_three_times", with_proofs(witnesses=(W1, W1, W1)), 3)
    b.attack(33, "one_witness_under_two_names", with_proofs(witnesses=(W1, Keyring(W1.private, replace(W1.key, name="another")))), 3)
    b.attack(6, "a_stranger_as_witness", with_proofs(witnesses=(STRANGER,)), 3)
    b.attack(32, "forged_cosignature", with_proofs(witnesses=(W1, W2, Keyring(STRANGER.private, W3.key))))
    text = logged.log_of(tale).checkpoint().text
    only = note.write(text, [note.cosign_line(text, w.key, w.sign, NOW) for w in ALL])
    b.attack(32, "a_witness_for_the_log", renoted(tale, only))
    as_log = note.sign_line(text, W1.key, W1.sign)
    b.attack(
        32, "a_plain_signature_of_a_witness", renoted(tale, note.write(text, [note.sign_line(text, LOG_KEY.key, LOG_KEY.sign), as_log]))
    )
    b.honest("five_minutes_ahead", with_proofs(time=NOW + 300))
    b.attack(30, "from_the_future", with_proofs(time=NOW + 301))
    b.attack(30, "older_than_its_records", with_proofs(time=NOW - 10_000_000))
    b.attack(30, "time_zero", with_proofs(time=0))
    b.honest("young_enough", with_proofs(time=NOW - 100), max_age=100)
    b.attack(30, "too_old", with_proofs(time=NOW - 100), 3, max_age=99)
    b.attack(30, "nobody_says_when", with_proofs(witnesses=()), 3, max_age=99, trust=TRUST_TEXT)
    b.honest("one_of_three_is_enough_here", with_proofs(witnesses=(W2,)), trust=ONE)
    elsewhere = Log(LOG_KEY, "mandamus.local/elsewhere").add([*tale.log.raws, *tale.chain.raws])
    b.attack(31, "checkpoint_of_another_log", tale.bundle(proofs=proofs(tale, elsewhere)))
    b.attack(
        47,
        "log_that_names_itself",
        tale.bundle(proofs=proofs(tale, Log(Keyring.of("evil.example"), "evil.example").add([*tale.log.raws, *tale.chain.raws]))),
    )


def renoted(tale: Story, signed: bytes, lines: Iterable[bytes] | None = None) -> bytes:
    """The bundle with this note in place of each proof's."""
    read = [tlogproof.parse(one) for one in (lines or proofs(tale, logged.log_of(tale)))]
    return tale.bundle(proofs=tuple(tlogproof.write(x.index, x.path, signed, x.extra) for x in read))


def _notes(b: Builder) -> None:
    tale = story()
    log = logged.log_of(tale)
    text = log.checkpoint().text
    size = f"\n{log.tree.size}\n"

    def signed(changed: str) -> bytes:
        return note.write(
            changed, [note.sign_line(changed, LOG_KEY.key, LOG_KEY.sign), *(note.cosign_line(changed, w.key, w.sign, NOW) for w in ALL)]
        )

    b.attack(38, "leading_zero", renoted(tale, signed(text.replace(size, f"\n0{log.tree.size}\n"))))
    b.attack(38, "plus_sign", renoted(tale, signed(text.replace(size, f"\n+{log.tree.size}\n"))))
    b.attack(38, "size_of_twenty_digits", renoted(tale, signed(text.replace(size, "\n" + "9" * 20 + "\n"))))
    b.attack(39, "fourth_line", renoted(tale, signed(text + "smuggled\n")))
    b.attack(39, "empty_line", renoted(tale, signed(text + "\n")))
    b.attack(38, "tab_in_the_origin", renoted(tale, signed(text.replace("mandamus", "manda\tmus"))))
    whole = log.note()
    b.attack(37, "root_with_dirty_bits", renoted(tale, signed(text[:-3] + chr(ord(text[-3]) + 1) + "=\n")))
    b.attack(54, "forty_signatures", renoted(tale, whole + b"".join(whole.split(b"\n\n")[1].split(b"\n")[0] + b"\n" for _ in range(40))))
    b.attack(40, "carriage_returns", renoted(tale, whole.replace(b"\n", b"\r\n")))
    b.attack(39, "no_signature_block", renoted(tale, text.encode()))
    b.attack(54, "a_note_of_half_a_megabyte", renoted(tale, whole + b"\xe2\x80\x94 x " + b"A" * (1 << 19) + b"\n"))
    signature = whole.split(b"\n")[4]
    b.attack(37, "signature_with_a_space", renoted(tale, whole.replace(signature, signature + b" ")))
    b.attack(42, "hyphen_for_the_dash", renoted(tale, whole.replace("\N{EM DASH}".encode(), b"-")))


def _inclusion(b: Builder) -> None:
    tale, log = story(), logged.log_of(story())
    good = [tlogproof.parse(x) for x in proofs(tale, log)]

    def first(index: int, path: Iterable[bytes]) -> bytes:
        return tale.bundle(proofs=(tlogproof.write(index, list(path), good[0].note), proofs(tale, log)[1]))

    b.attack(16, "proof_of_another_leaf", tale.bundle(proofs=(log.proof(logged.OTHER.raws[2]), log.proof(tale.log.raws[-1]))))
    b.attack(46, "proof_that_names_the_log_record_twice", tale.bundle(proofs=(log.proof(tale.log.raws[-1]),) * 2))
    b.attack(16, "index_less_one", first(good[0].index - 1, good[0].path))
    b.attack(16, "index_beyond_the_tree", first(log.tree.size, good[0].path))
    b.attack(16, "path_altered", first(good[0].index, [bytes(32), *good[0].path[1:]]))
    b.attack(16, "path_shorter", first(good[0].index, good[0].path[:-1]))
    b.attack(16, "path_longer", first(good[0].index, [*good[0].path, bytes(32)]))
    cut = story(seal=False)
    b.attack(8, "cut_run_with_the_whole_one_s_proof", cut.bundle(proofs=(log.proof(tale.chain.raws[-1]), log.proof(tale.log.raws[-1]))))
    sub = Log().add([*logged.OTHER.raws, *tale.log.raws, *tale.chain.raws])
    height, inner = 1, sub.tree.node(1, 0)
    path = sub.tree.inclusion(0)[1:]
    assert tree.node_hash(sub.tree.node(0, 0), sub.tree.node(0, 1)) == inner
    b.attack(34, "node_offered_as_a_leaf", tale.bundle(proofs=(tlogproof.write(0, path, sub.note()), log.proof(tale.log.raws[-1]))))
    assert height == 1
    other = Log().add([b"hidden"]).add(logged.OTHER.raws[1:]).add([*tale.log.raws, *tale.chain.raws])
    b.attack(29, "two_roots_of_one_size", tale.bundle(proofs=(log.proof(tale.chain.raws[-1]), other.proof(tale.log.raws[-1]))))
    late = logged._AnchoredStory(r.Anchor(root="ab" * 32, size=1000)).tell()
    b.attack(48, "names_a_checkpoint_newer_than_itself", late.bundle(proofs=proofs(late)))
    early = logged._AnchoredStory(r.Anchor(root=logged.OTHER.checkpoint(3).root.hex(), size=3)).tell()
    b.honest("begun_under_a_checkpoint", early.bundle(proofs=proofs(early, logged.log_of(early))))
    edit = with_record(tale.bundle(proofs=proofs(tale, log)), 11, lambda rec: replace(rec, fact=replace(rec.fact, landing=39000)))
    relinked_ = relinked(edit["record"])
    seal: Any = r.decode(relinked_[-1])
    relinked_[-1] = r.encode(replace(seal, fact=replace(seal.fact, head=seal.prev)))
    b.attack(5, "insider_rewrites_what_the_log_holds", insider({**edit, "record": relinked_}))
    lines = sections(tale.bundle(proofs=proofs(tale, log)))
    edited = relinked([lines["log"][0].replace(b'"quorum":2', b'"quorum":1'), *lines["log"][1:]])
    b.attack(5, "insider_rewrites_chain_log", insider({**lines, "log": edited}))
    b.attack(14, "another_run_under_this_one_s_proof", story(vote_minute=6).bundle(proofs=proofs(tale, log)))


def _lines(b: Builder) -> None:
    tale = story()
    run, log = proofs(tale, logged.log_of(tale))
    for name, lines in {"log_left_out": (run,), "exchanged": (log, run), "one_more": (run, log, run), "eighteen": (run, log) * 9}.items():
        b.attack(46, f"lines_{name}", tale.bundle(proofs=lines))
    b.attack(54, "ten_thousand_lines", tale.bundle(proofs=(run, log) * 5000))
    read = tlogproof.parse(run)
    b.attack(54, "a_hundred_hashes", tale.bundle(proofs=(tlogproof.write(read.index, [bytes(32)] * 100, read.note), log)))
    b.attack(46, "extra_where_none_belongs", tale.bundle(proofs=(tlogproof.write(read.index, read.path, read.note, b"x"), log)))
    body = sections(tale.bundle(proofs=(run, log)))
    b.attack(46, "line_that_is_no_text", insider({**body, "proof": [canon({"proof": 1}), body["proof"][1]]}))
    b.attack(
        46,
        "another_head_line",
        insider({**body, "proof": [body["proof"][0].replace(b"tlog-proof@v1", b"tlog-proof@v2"), body["proof"][1]]}),
    )
    b.attack(
        38, "index_with_a_leading_zero", insider({**body, "proof": [body["proof"][0].replace(b"index ", b"index 0"), body["proof"][1]]})
    )


def _children(b: Builder) -> None:
    tale, child, log = logged.family()
    seal = log.proof(child.raws[-1], extra=child.raws[-1])
    b.honest("child", tale.bundle(proofs=(*proofs(tale, log), seal)))
    b.honest("child_left_out", tale.bundle(proofs=proofs(tale, log)), 3)
    b.honest("child_and_no_log", tale.bundle(), 0, trust=TRUST_TEXT)
    failed, gone, both = logged.family("failed", "child_failed", "failed")
    b.honest("child_that_failed", failed.bundle(proofs=(*proofs(failed, both), both.proof(gone.raws[-1], extra=gone.raws[-1]))))
    lied, _, _ = logged.family()
    log2 = Log().add([*lied.log.raws, *gone.raws, *lied.chain.raws])
    b.attack(46, "child_that_ended_otherwise", lied.bundle(proofs=(*proofs(lied, log2), log2.proof(gone.raws[-1], extra=gone.raws[-1]))))
    other = child_chain("A" * 26)
    log3 = Log().add([*tale.log.raws, *other.raws, *child.raws, *tale.chain.raws])
    own = proofs(tale, log3)
    b.attack(46, "another_run_as_the_child", tale.bundle(proofs=(*own, log3.proof(other.raws[-1], extra=other.raws[-1]))))
    b.attack(46, "child_without_its_seal", tale.bundle(proofs=(*own, log3.proof(child.raws[0], extra=child.raws[0]))))
    b.attack(16, "seal_under_another_leaf", tale.bundle(proofs=(*own, log3.proof(child.raws[0], extra=child_chain(tale.child).raws[-1]))))
    b.attack(46, "seal_that_is_no_record", tale.bundle(proofs=(*own, log3.proof(child.raws[0], extra=b"{}"))))


def _levels(b: Builder) -> None:
    tale, log = logged.told()
    b.honest("level_reached", tale.bundle(proofs=tale.lines(log, time=NOW)))
    b.honest("level_not_shown", tale.bundle(proofs=proofs(tale, log)), 3)
    b.honest("level_and_no_log", tale.bundle(), 0, trust=TRUST_TEXT)
    b.attack(6, "level_by_one_witness", tale.bundle(proofs=tale.lines(log, witnesses=(W1,))), 3)
    early, before = logged.told(reached=False)
    b.attack(63, "intent_before_its_level", early.bundle(proofs=proofs(early, before)))
    upto, short = logged.told(upto=0)
    b.attack(63, "level_of_an_earlier_event", upto.bundle(proofs=upto.lines(short)))
    wrong = log.proof(tale.chain.raws[tale.level_seq], size=tale.early.tree.size + 1)
    b.attack(46, "level_under_another_checkpoint", tale.bundle(proofs=(*proofs(tale, log), wrong)))
    forked = Log().add([b"hidden", *log.raws[1:]])
    lines = (*proofs(tale, forked), forked.proof(tale.chain.raws[tale.level_seq], size=tale.early.tree.size))
    b.attack(29, "level_of_another_tree", tale.bundle(proofs=lines))
    split = Log().add([b"hidden", *log.raws[1 : tale.early.tree.size]])
    b.attack(29, "level_root_against_chain_log_s", tale.bundle(proofs=(log.proof(tale.chain.raws[-1]), split.proof(tale.log.raws[-1]))))


def _anchors(b: Builder) -> None:
    tale, key = story(), logged.PUBLIC
    log = logged.log_of(tale)
    text = log.checkpoint().text.encode()
    data = {"algorithm": "SHA2_256", "digest": b64(hashlib.sha256(text).digest())}
    rekor = {"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": {"hashedRekordV002": {"data": data, "signature": {}}}}
    roots = QUORUM + f"anchor {key.key.name} {key.key}\n"

    def anchored(entry: bytes, key: Keyring = key) -> bytes:
        return logged.anchored(entry, Log(key, logged.PUBLIC.key.name).add([b"somebody else's"]), tale, log)

    b.honest("anchored", anchored(text), trust=roots)
    b.honest("anchored_in_rekor", anchored(canon(rekor)), trust=roots)
    b.honest("anchor_not_known", anchored(text))
    b.attack(46, "anchor_of_something_else", anchored(b"a\n1\nb\n"), trust=roots)
    b.attack(46, "anchor_of_another_digest", anchored(canon(rekor).replace(data["digest"].encode(), b64(bytes(32)).encode())), trust=roots)
    b.attack(46, "anchor_of_another_kind", anchored(canon(rekor | {"kind": "intoto"})), trust=roots)
    b.attack(4, "anchor_by_a_thief", anchored(text, Keyring.of(key.key.name, "thief")), trust=roots)
    nine = tale.bundle(proofs=(*proofs(tale, log), *[Log(key, key.key.name).add([text]).proof(text, extra=text, witnesses=())] * 9))
    b.attack(54, "nine_anchors", nine, trust=roots)
    child_first = (
        *proofs(tale, log),
        Log(key, key.key.name).add([text]).proof(text, extra=text, witnesses=()),
        log.proof(tale.chain.raws[-1]),
    )
    b.attack(46, "own_proof_behind_an_anchor", tale.bundle(proofs=child_first), trust=roots)


def _before(b: Builder) -> None:
    """What an auditor has seen of this log before."""
    raw, log = logged.with_proofs(), logged.log_of(story())
    size, root = log.tree.size, log.checkpoint().root.hex()
    b.honest("first_look", raw, last={})
    b.honest("seen_before", raw, last={ORIGIN: (size, root)})
    b.honest("grown_and_no_tiles", raw, 5, last={ORIGIN: (3, log.checkpoint(3).root.hex())})
    b.honest("nothing_to_compare", story().bundle(), 3, last={ORIGIN: (3, root)}, trust=TRUST_TEXT)
    b.attack(29, "split_view", raw, last={ORIGIN: (size, "ab" * 32)})
    b.attack(28, "rolled_back", raw, last={ORIGIN: (size + 1, "ab" * 32)})
    b.honest("another_log_seen_before", raw, last={"elsewhere": (9, root)})
    stamp = sections(raw)
    digest = hashlib.sha256(tlogproof.parse(parse(stamp["proof"][0]).encode()).note).hexdigest()
    b.honest("stamped", insider({**stamp, "tsr": [canon({"note": digest, "reply": b64(b"der")})]}))
    b.attack(46, "stamp_over_something_else", insider({**stamp, "tsr": [canon({"note": "0" * 64, "reply": b64(b"der")})]}))
    b.attack(54, "nine_stamps", insider({**stamp, "tsr": [canon({"note": digest, "reply": b64(b"der")})] * 9}))
    b.attack(46, "stamp_that_is_empty", insider({**stamp, "tsr": [canon({"note": digest, "reply": ""})]}))
