"""Cases about the chain, its bytes, the container and the signature on it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from mandamus.core import records as r
from mandamus.core.canonical import canon, parse
from mandamus.proof import bundle, dsse
from mandamus.proof.keys import P256, vkey
from tests.attack.test_bundle_attacks import TWINS, edit_records, edited_envelope, records_at, with_record
from tests.samples import BUNDLE_KEY, LOG_KEY, ORIGIN, RUN, STRANGER, TRUST_TEXT, Keyring, forged, insider, relinked, sections, story
from tests.verifiers.corpus import Builder, Case

replace = msgspec.structs.replace
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # order of P-256
L = 2**252 + 27742317777372353535851937790883648493  # order of Ed25519's base point


def made() -> list[Case]:
    b = Builder("chain")
    _chain(b)
    _bytes(b)
    _container(b)
    _signatures(b)
    _elliptic(b)
    _keys(b)
    return b.made


def _chain(b: Builder) -> None:
    whole = story().bundle()
    b.honest("two_approvers", whole)
    b.honest("open", story(seal=False).bundle(), 4)
    edit = with_record(whole, 11, lambda rec: replace(rec, fact=replace(rec.fact, landing=39000)))
    b.attack(1, "record_edited", whole.replace(b'"effect":"reconcilable","landing":30000', b'"effect":"reconcilable","landing":39000'))
    b.attack(2, "tail_rehashed", edit_records(whole, lambda _: relinked(edit["record"])))
    b.attack(3, "forged_head", insider({**edit, "record": relinked(edit["record"])}, key=STRANGER))
    b.attack(7, "tail_dropped", forged(whole, lambda lines: lines[:-3]))
    b.attack(7, "tail_dropped_and_counted", edit_records(whole, lambda raws: raws[:-3]))
    lines = sections(whole)
    short = {**lines, "record": lines["record"][:-1]}
    b.attack(8, "shorter_head_by_a_stranger", insider(short, key=STRANGER))
    b.attack(8, "shorter_head_by_an_insider", insider(short))
    b.attack(9, "genesis_dropped", insider({**lines, "record": lines["record"][1:]}))
    holed = lines["record"][:8] + lines["record"][9:]
    b.attack(10, "deleted", insider({**lines, "record": holed}))
    b.attack(10, "deleted_and_relinked", insider({**lines, "record": relinked(holed)}))
    swapped = [*lines["record"][:8], lines["record"][9], lines["record"][8], *lines["record"][10:]]
    b.attack(11, "reordered", insider({**lines, "record": swapped}))
    twice = [*lines["record"][:9], *lines["record"][8:]]
    b.attack(12, "duplicated", insider({**lines, "record": twice}))
    b.attack(13, "duplicate_number_relinked", insider({**lines, "record": relinked(twice)}))
    other = story(vote_minute=6).bundle()
    at = records_at(other)
    b.attack(14, "another_run_swapped_in", forged(whole, lambda ls: [*ls[: at.start], *sections(other)["record"], *ls[at.stop :]]))
    renamed = RUN[:-1] + "D"
    b.attack(15, "relabelled_header", whole.replace(f'"run":"{RUN}"'.encode(), f'"run":"{renamed}"'.encode(), 1))
    b.attack(15, "relabelled_and_signed", insider(lines, run=renamed))
    again = [*lines["record"][:9], replace_seq(lines["record"][0], 9), *lines["record"][9:]]
    b.attack(27, "second_genesis", insider({**lines, "record": relinked(renumbered(again))}))
    b.attack(27, "intent_without_allow", insider({**lines, "record": relinked(renumbered(lines["record"][:10] + lines["record"][11:]))}))
    b.attack(35, "fork_shown", forged(whole, lambda ls: [*ls[: at.start + 8], *sections(other)["record"][8:], *ls[at.stop :]]))
    b.attack(
        57, "newer_version", insider({**lines, "record": [*lines["record"][:-1], lines["record"][-1].replace(b'"v":1}', b'"v":2}')]}), 5
    )
    long = lines["record"][-1].replace(b'"v":1}', b'"v":' + b"9" * 5000 + b"}")
    b.attack(57, "a_version_of_5000_digits", insider({**lines, "record": [*lines["record"][:-1], long]}), 5)
    unknown = lines["record"][-1].replace(b'"type":"RunSealed"', b'"type":"RunSealedTwice"')
    b.attack(57, "newer_type", insider({**lines, "record": [*lines["record"][:-1], unknown]}), 5)


def renumbered(raws: list[bytes]) -> list[bytes]:
    return [replace_seq(raw, n) for n, raw in enumerate(raws)]


def replace_seq(raw: bytes, seq: int) -> bytes:
    return r.encode(replace(r.decode(raw), seq=seq))


def _bytes(b: Builder) -> None:
    """Two readers could read such a record differently, so no signature makes it good."""
    for name, twin in TWINS.items():
        lines = sections(story().bundle())
        lines["record"][8] = twin(lines["record"][8])
        tail, lines["record"][9:] = lines["record"][9:], []
        for raw in tail:
            lines["record"].append(r.encode(replace(r.decode(raw), prev=r.event_hash(lines["record"][-1]))))
        b.attack(int(name[:2]), name[3:], insider(lines))
    whole = story().bundle()
    nfd = forged(whole, lambda lines: [line.replace(b"Acme Suppliers", "Acme Supplie\u0301rs".encode()) for line in lines])
    b.attack(24, "nfd_twin", nfd)
    for name, tail_ in {"newline": b"\n", "space": b" ", "line": b"{}\n", "crlf": b"\r\n"}.items():
        b.attack(40, f"{name}_behind_the_end", whole + tail_)
    b.attack(40, "crlf_everywhere", whole.replace(b"\n", b"\r\n"))
    b.attack(40, "byte_order_mark_before_all", b"\xef\xbb\xbf" + whole)
    deleted = sections(whole)
    deleted["record"][3] = deleted["record"][3].replace(b'"scripted"', b'"scri\x7fpted"')
    b.attack(21, "a_delete_character_as_it_is", insider({**deleted, "record": relinked(deleted["record"])}))


def _container(b: Builder) -> None:
    whole = story().bundle()
    lines = sections(whole)
    b.attack(58, "empty_file", b"", 2)
    b.attack(58, "one_newline", b"\n")
    b.attack(58, "no_trust_file", whole, 2, trust=None)
    b.attack(58, "empty_trust_file", whole, 2, trust="# nobody\n")
    b.attack(58, "no_bundle_line", whole, 2, trust=f"log {LOG_KEY.key}\n")
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    b.attack(54, "depth_bomb", insider({**lines, "payload": [deep, *lines["payload"][1:]]}))
    b.attack(54, "deep_first_section", whole.replace(b"\n", b"\n" + b"[" * 5000 + b"\n", 1))
    b.attack(54, "line_of_a_megabyte", forged(whole, lambda ls: [*ls[:4], b'"' + b"x" * (1 << 20) + b'"', *ls[5:]]))
    b.attack(54, "two_megabytes_of_nothing", b"x" * 2_000_000 + b"\n")
    b.attack(54, "a_billion_records_promised", whole.replace(b'["record",19]', b'["record",1000000000]'))
    b.attack(54, "number_of_a_million_digits", insider({**lines, "payload": [b'{"a":' + b"7" * 1_000_000 + b"}", *lines["payload"][1:]]}))
    fat = parse(lines["dsse"][0])
    fat["signatures"] = fat["signatures"] * 10_000
    b.attack(54, "ten_thousand_signatures", whole.replace(lines["dsse"][0], canon(fat)))
    huge = lines["record"][3].replace(b'"scripted"', b'"' + b"s" * 70_000 + b'"')
    b.attack(54, "record_of_70_kilobytes", insider({**lines, "record": [*lines["record"][:3], huge]}))
    for name in ("manifest", "policy", "log", "account", "payload", "key"):
        b.attack(
            7, f"section_{name}_emptied", insider({**lines, name: []}), *((3,) if name == "policy" else (0,) if name == "key" else (1,))
        )
    b.attack(45, "section_key_is_no_key", insider({**lines, "key": [canon({"key": "bundles+00000000+AAAA", "role": "bundle"})]}))
    b.attack(31, "statement_of_another_log", insider(lines, origin="mandamus.local/ffffffffffffffff"))
    b.attack(3, "statement_counts_wrong", insider(lines, count=18))
    b.attack(3, "statement_of_another_state", insider(lines, state="open"))
    b.attack(3, "statement_of_another_manifest", insider(lines, manifest="0" * 64))


def _signatures(b: Builder) -> None:
    whole = story().bundle()
    other = Keyring.of("mandamus.local/ffffffffffffffff")
    b.attack(4, "signed_by_a_stranger", story().bundle(signer=STRANGER.sign, key=STRANGER.key))
    b.attack(5, "signed_by_the_log_key", story().bundle(signer=LOG_KEY.sign, key=LOG_KEY.key))
    b.attack(31, "another_log_is_trusted", whole, trust=TRUST_TEXT.replace(str(LOG_KEY.key), str(other.key)))
    two = TRUST_TEXT.replace("bundle local", f"bundle {other.key.name}") + f"log {other.key}\n"
    b.attack(47, "bundle_key_of_another_log", whole, trust=two)
    both = TRUST_TEXT.replace("bundle local", f"bundle {ORIGIN}") + f"log {other.key}\n"
    b.honest("two_logs_in_the_trust_file", whole, trust=both)
    line = sections(whole)["dsse"][0]
    envelope = parse(line)
    sig = envelope["signatures"][0]["sig"]
    dirty = sig[:-3] + chr(ord(sig[-3]) + 1) + "=="
    b.attack(37, "dirty_trailing_bits", edited_envelope(lambda e: e["signatures"][0].update(sig=dirty)))
    b.attack(37, "no_padding", edited_envelope(lambda e: e["signatures"][0].update(sig=sig.rstrip("="))))
    b.attack(41, "payload_type_swapped", edited_envelope(lambda e: e.update(payloadType="application/json")))
    b.attack(41, "no_signature", edited_envelope(lambda e: e.update(signatures=[])))
    b.attack(41, "one_key_twice", edited_envelope(lambda e: e["signatures"].append(dict(e["signatures"][0]))))
    again = {"keyid": "00000000", "sig": sig}
    b.attack(41, "one_key_under_two_names", edited_envelope(lambda e: e["signatures"].append(again)))
    unsigned = base64.b64encode(b'{"predicate":{"origin":"x"}}').decode()
    b.attack(41, "parsed_before_verified", edited_envelope(lambda e: e.update(payload=unsigned)))
    foreign = dsse.sign(bundle.PAYLOAD_TYPE, b'{"not":"a statement"}', [(BUNDLE_KEY.key.id, BUNDLE_KEY.sign)])
    b.attack(41, "a_statement_of_another_kind", whole.replace(line, foreign))
    b.attack(42, "keyid_of_another_key", edited_envelope(lambda e: e["signatures"][0].update(keyid=LOG_KEY.key.id)))
    b.attack(42, "alg_in_the_signature", edited_envelope(lambda e: e["signatures"][0].update(alg="HS256")))
    message = dsse.pae(bundle.PAYLOAD_TYPE, base64.b64decode(envelope["payload"]))
    mac = base64.b64encode(hmac.new(BUNDLE_KEY.key.public, message, hashlib.sha512).digest()).decode()
    b.attack(42, "hmac_with_the_public_key", edited_envelope(lambda e: e["signatures"][0].update(sig=mac)))
    raw = base64.b64decode(sig)
    more = raw[:32] + (int.from_bytes(raw[32:], "little") + L).to_bytes(32, "little")
    b.attack(44, "s_beyond_the_order", edited_envelope(lambda e: e["signatures"][0].update(sig=base64.b64encode(more).decode())))
    for name, point in {"zero": bytes(32), "one": (1).to_bytes(32, "little"), "minus_zero": bytes(31) + b"\x80"}.items():
        small = base64.b64encode(point + bytes(32)).decode()
        b.attack(44, f"small_order_r_{name}", edited_envelope(lambda e, small=small: e["signatures"][0].update(sig=small)))
    b.attack(46, "signature_of_another_bundle", whole.replace(line, sections(story(seal=False).bundle())["dsse"][0]))


class Elliptic:
    """A P-256 key that signs bundles; the nonce is random, so these bundles differ from day to day in their signature alone."""

    def __init__(self) -> None:
        self.private = ec.derive_private_key(0xB0B, ec.SECP256R1())
        public = self.private.public_key().public_numbers()
        self.key = vkey("hsm", b"\4" + public.x.to_bytes(32, "big") + public.y.to_bytes(32, "big"), P256)

    def sign(self, message: bytes) -> bytes:
        first, second = utils.decode_dss_signature(self.private.sign(message, ec.ECDSA(hashes.SHA256())))
        return first.to_bytes(32, "big") + second.to_bytes(32, "big")


def _elliptic(b: Builder) -> None:
    hsm = Elliptic()
    roots = TRUST_TEXT + f"bundle hsm {hsm.key}\n"
    whole = story().bundle(signer=hsm.sign, key=hsm.key)
    b.honest("signed_by_a_p256_key", whole, trust=roots)

    def resigned(change: Any) -> bytes:
        line = sections(whole)["dsse"][0]
        envelope = parse(line)
        raw = base64.b64decode(envelope["signatures"][0]["sig"])
        envelope["signatures"][0]["sig"] = base64.b64encode(change(raw)).decode()
        return whole.replace(line, canon(envelope))

    def twin(raw: bytes) -> bytes:
        return raw[:32] + (N - int.from_bytes(raw[32:], "big")).to_bytes(32, "big")

    b.attack(43, "the_other_signature_of_the_same", resigned(twin), 0, trust=roots)
    b.attack(43, "r_of_zero", resigned(lambda raw: bytes(32) + raw[32:]), trust=roots)
    b.attack(43, "s_beyond_the_order", resigned(lambda raw: raw[:32] + (2**256 - 1).to_bytes(32, "big")), trust=roots)
    b.attack(43, "der_instead_of_raw", resigned(lambda raw: utils.encode_dss_signature(1, 1)), trust=roots)
    b.attack(42, "p256_signature_under_an_ed25519_key", story().bundle(signer=hsm.sign, key=BUNDLE_KEY.key))
    crossed = TRUST_TEXT.replace(str(BUNDLE_KEY.key), str(vkey("bundles", hsm.key.public, P256)))
    b.attack(42, "ed25519_signature_under_a_p256_key", story().bundle(), trust=crossed)


def _keys(b: Builder) -> None:
    """Trust files that nobody may read with: exit code 2, and no word about the bundle."""
    whole = story().bundle()
    strangers = story().bundle(signer=STRANGER.sign, key=STRANGER.key, keys=[("bundle", STRANGER.key), ("log", STRANGER.key)])
    b.attack(45, "keys_in_the_bundle", strangers)
    weak = base64.b64encode(b"\1" + (1).to_bytes(32, "little")).decode()
    key_id = hashlib.sha256(b"weak\n\1" + (1).to_bytes(32, "little")).hexdigest()[:8]
    bad = {
        "small_order_key": f"approver p-eve weak+{key_id}+{weak}",
        "word_not_known": "believe everything",
        "key_twice": f"admin {LOG_KEY.key}",
        "id_of_another_key": f"approver p-eve eve+00000000+{str(STRANGER.key).split('+', 2)[2]}",
        "group_of_nobody": "group g any nobody",
        "second_quorum": "quorum none",
        "key_cut": str(STRANGER.key)[:-4],
        "bidi_principal": f"approver p-\u202eecila {STRANGER.key}",
        "witness_with_a_log_key": f"witness w {STRANGER.key}",
        "too_many_words": f"log {STRANGER.key} please",
    }
    for name, line in bad.items():
        b.attack(44 if name == "small_order_key" else 45, f"trust_{name}", whole, 2, trust=f"{TRUST_TEXT}{line}\n")
