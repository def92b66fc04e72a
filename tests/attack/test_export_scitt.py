"""The SCITT export: our own reader and a foreign one accept it, and every change is refused."""

from __future__ import annotations

import pytest

from tests.servers.needs import needs

needs("cbor2")

import cbor2  # noqa: E402
from cryptography.hazmat.primitives import serialization  # noqa: E402

from mandamus.drivers import export_scitt as scitt  # noqa: E402
from mandamus.errors import Misuse, ProofError  # noqa: E402
from mandamus.proof import bundle, dsse, tlogproof  # noqa: E402
from mandamus.proof.keys import VKey  # noqa: E402
from tests.logged import Log, demanding  # noqa: E402
from tests.samples import BUNDLE_KEY, LOG_KEY, ORIGIN, RUN, STRANGER, Keyring, sections, story  # noqa: E402


def exported(signer: Keyring = BUNDLE_KEY, log_key: Keyring = LOG_KEY, older: int = 1000) -> tuple[bytes, bytes]:
    """(transparent statement, the run's last record)."""
    tale = story()
    log = Log().add([b"older %d" % n for n in range(older)]).add([*tale.log.raws, *tale.chain.raws])
    statement = dsse.read(sections(tale.bundle())["dsse"][0]).payload
    last = tale.chain.raws[-1]
    proof = tlogproof.parse(log.proof(last))
    made = scitt.transparent(statement, last, proof, bundle=(signer.key, signer.sign), log=(log_key.key, log_key.sign))
    return made, last


def test_what_was_exported_is_accepted() -> None:
    raw, last = exported()
    told = scitt.check(raw, demanding())
    assert (told.run, told.origin, told.index, told.size) == (RUN, ORIGIN, 1021, 1022)
    receipt = cbor2.loads(raw).value[1][scitt.RECEIPTS][0]
    assert len(receipt) < 600, "what the receipt costs, at 1,000 leaves"
    assert last in raw


@pytest.mark.parametrize("older", [0, 1, 2, 5, 234])
def test_sizes_of_the_log(older: int) -> None:
    assert scitt.check(exported(older=older)[0], demanding()).size == older + 22


def test_a_foreign_reader_accepts_it() -> None:
    """scitt-cose, an implementation that shares no code with ours, reads statement and receipt."""
    needs("scitt_cose")
    import scitt_cose

    raw, last = exported()
    pem = {key: _pem(key) for key in (BUNDLE_KEY, LOG_KEY)}
    parsed = scitt_cose.parse_signed_statement(raw, public_key_pem=pem[BUNDLE_KEY])
    assert parsed["issuer"] == ORIGIN if isinstance(parsed, dict) else parsed.issuer == ORIGIN
    (receipt,) = scitt_cose.extract_receipts(raw)
    good = scitt_cose.verify_receipt(receipt, leaf_entry_hex=last.hex(), log_public_key_pem=pem[LOG_KEY])
    assert not good.errors, good
    assert scitt_cose.verify_receipt(receipt, leaf_entry_hex=last[:-1].hex(), log_public_key_pem=pem[LOG_KEY]).errors
    assert scitt_cose.verify_receipt(receipt, leaf_entry_hex=last.hex(), log_public_key_pem=pem[BUNDLE_KEY]).errors


def _pem(key: Keyring) -> str:
    public = key.private.public_key()
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()


def test_strangers_signatures() -> None:
    for raw in (exported(STRANGER)[0], exported(BUNDLE_KEY, STRANGER)[0], exported(LOG_KEY)[0], exported(BUNDLE_KEY, BUNDLE_KEY)[0]):
        with pytest.raises(ProofError, match="no trusted key"):
            scitt.check(raw, demanding())


def test_a_change_of_any_byte() -> None:
    raw, _ = exported(older=3)
    for position in range(0, len(raw), 7):
        changed = raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]
        with pytest.raises(ProofError):
            scitt.check(changed, demanding())


def test_pieces_of_another_one() -> None:
    """A receipt of another record, another algorithm in the header, no receipt, two receipts."""
    raw, last = exported()
    tag = cbor2.loads(raw)
    protected, header, payload, signature = tag.value
    other = cbor2.loads(exported(older=7)[0]).value[1]
    for changed in (
        {**header, scitt.RECORD: last[:-1]},
        {**header, scitt.RECEIPTS: []},
        {**header, scitt.RECEIPTS: header[scitt.RECEIPTS] * 2},
        {scitt.RECORD: last},
        {**header, scitt.RECEIPTS: [b"\x00"]},
    ):
        with pytest.raises(ProofError):
            scitt.check(cbor2.dumps(cbor2.CBORTag(18, [protected, changed, payload, signature])), demanding())
    swapped = {**header, scitt.RECEIPTS: other[scitt.RECEIPTS]}
    assert scitt.check(cbor2.dumps(cbor2.CBORTag(18, [protected, swapped, payload, signature])), demanding()).size == 29
    for junk in (b"", b"\xd2\x84", cbor2.dumps([1]), cbor2.dumps(cbor2.CBORTag(98, tag.value)), b"\x9f" * 100_000):
        with pytest.raises(ProofError):
            scitt.check(junk, demanding())


def test_another_algorithm_in_the_header() -> None:
    """Attack 42: the key says how it signs, and the header must say the same."""
    tale, log = story(), Log()
    log.add(tale.chain.raws)
    statement = dsse.read(sections(tale.bundle())["dsse"][0]).payload
    last = tale.chain.raws[-1]
    lying = VKey(BUNDLE_KEY.key.name, 2, BUNDLE_KEY.key.public)
    proof = tlogproof.parse(log.proof(last))
    raw = scitt.transparent(statement, last, proof, bundle=(lying, BUNDLE_KEY.sign), log=(LOG_KEY.key, LOG_KEY.sign))
    with pytest.raises(ProofError, match="no trusted key"):
        scitt.check(raw, demanding())


def test_a_key_that_its_own_verifier_could_use() -> None:
    """HMAC "signatures" are refused for export: no table has them."""
    hmac = VKey("dev", 0xFF, bytes(32))
    tale = story()
    log = Log().add(tale.chain.raws)
    statement = dsse.read(sections(tale.bundle())["dsse"][0]).payload
    last = tale.chain.raws[-1]
    with pytest.raises(Misuse, match="signs nothing for others"):
        scitt.transparent(
            statement, last, tlogproof.parse(log.proof(last)), bundle=(hmac, lambda m: bytes(32)), log=(LOG_KEY.key, LOG_KEY.sign)
        )


def test_what_does_not_belong_together_is_not_signed() -> None:
    tale = story()
    log = Log().add(tale.chain.raws)
    statement = dsse.read(sections(tale.bundle())["dsse"][0]).payload
    last, before = tale.chain.raws[-1], tale.chain.raws[-2]
    keys = {"bundle": (BUNDLE_KEY.key, BUNDLE_KEY.sign), "log": (LOG_KEY.key, LOG_KEY.sign)}
    with pytest.raises(Misuse, match="not the one of this statement"):
        scitt.transparent(statement, before, tlogproof.parse(log.proof(before)), **keys)
    with pytest.raises(Misuse, match="not under this checkpoint"):
        scitt.transparent(statement, last, tlogproof.parse(log.proof(before)), **keys)
    assert bundle.parse_statement(statement).run == RUN
