"""One suite over every signer: file, token (a real SoftHSM2), AWS KMS (the client's path, against moto), ssh.

What all of them promise: the public line names the key; what they sign verifies by proof/keys.py and nothing else does; a wrong address
is told with the way out, and nobody shows a private key.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mandamus import wiring
from mandamus.errors import EngineFault, Misuse, Unavailable
from mandamus.proof import dsse
from mandamus.proof.keys import COSIGNER, ED25519, P256, parse_vkey, verify
from tests.servers.moto import Moto
from tests.servers.needs import needs
from tests.servers.softhsm import Token

pytestmark = pytest.mark.service
MESSAGE = b"what is signed " * 20


@pytest.fixture(scope="module")
def token() -> Token:
    return Token()


@pytest.fixture(scope="module")
def aws() -> Iterator[Moto]:
    before = {name: os.environ.get(name) for name in Moto.environment}
    with Moto() as server:
        os.environ.update(Moto.environment)
        yield server
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})


def kms_key(aws: Moto, **more: Any) -> str:
    import boto3

    client = boto3.client("kms", region_name=aws.region, endpoint_url=aws.endpoint)
    return str(client.create_key(**{"KeySpec": "ECC_NIST_P256", "KeyUsage": "SIGN_VERIFY", **more})["KeyMetadata"]["KeyId"])


def kms_uri(aws: Moto, key: str) -> str:
    return f"awskms:{key}?region={aws.region}&endpoint={aws.endpoint}&name=kms.example"


@pytest.fixture(params=["file ed25519", "file p256", "token ed25519", "token p256", "kms p256"])
def signer(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    store, _, kind = request.param.partition(" ")
    number = {"ed25519": ED25519, "p256": P256}[kind]
    if store == "file":
        from mandamus.drivers.sign_file import FileSigner

        FileSigner.create(tmp_path / "k.pem", "file.example", kind=number)
        return wiring.signer(f"file://{tmp_path}/k.pem")
    if store == "token":
        uri = request.getfixturevalue("token").uri(f"{kind}-{os.urandom(4).hex()}")
        return wiring.make_signer(uri, "token.example", number)
    aws: Moto = request.getfixturevalue("aws")
    return wiring.signer(kms_uri(aws, kms_key(aws)))


# -- the suite ---------------------------------------------------------------------------------------------------------------
def test_what_it_signs_verifies_by_its_public_line(signer: Any) -> None:
    key = parse_vkey(signer.vkey)
    for message in (b"m", MESSAGE, os.urandom(4096)):
        signature = signer.sign(message)
        assert len(signature) == 64
        assert verify(key, message, signature)
        assert not verify(key, message + b".", signature)
        assert not verify(key, message, signature[:-1] + bytes([signature[-1] ^ 1]))


def test_its_envelope_is_believed_for_its_own_key_only(signer: Any) -> None:
    key = parse_vkey(signer.vkey)
    raw = dsse.sign("application/x", MESSAGE, [(key.id, signer.sign)])
    assert dsse.check(raw, "application/x", [key]).payload == MESSAGE


def test_it_shows_no_secret(signer: Any) -> None:
    assert "PRIVATE" not in repr(signer)
    assert signer.keyid in repr(signer)


# -- files -------------------------------------------------------------------------------------------------------------------
def test_a_key_of_another_kind_than_its_first_line_says_is_refused(tmp_path: Path) -> None:
    from mandamus.drivers.sign_file import FileSigner

    ed, p = FileSigner.create(tmp_path / "e.pem", "e", kind=ED25519), FileSigner.create(tmp_path / "p.pem", "p", kind=P256)
    mixed = tmp_path / "m.pem"
    mixed.write_bytes(f"# vkey {ed.vkey}\n".encode() + (tmp_path / "p.pem").read_bytes().partition(b"\n")[2])
    mixed.chmod(0o600)
    with pytest.raises(Misuse, match="another kind"):
        FileSigner.open(mixed)
    assert parse_vkey(p.vkey).kind == P256


def test_a_witness_key_is_a_kind_of_its_own(tmp_path: Path) -> None:
    from mandamus.drivers.sign_file import FileSigner

    made = FileSigner.create(tmp_path / "w.pem", "witness.example", kind=COSIGNER)
    assert parse_vkey(FileSigner.open(tmp_path / "w.pem").vkey) == made.key
    assert made.key.kind == COSIGNER


# -- the token ---------------------------------------------------------------------------------------------------------------
def test_a_second_process_finds_the_key_again(token: Token) -> None:
    made = wiring.make_signer(token.uri("again"), "token.example", ED25519)
    program = "import sys; from mandamus import wiring; s = wiring.signer(sys.argv[1]); print(s.vkey); print(s.sign(b'm').hex())"
    asked = subprocess.run(
        [sys.executable, "-c", program, token.uri("again") + "&name=token.example"], capture_output=True, text=True, check=True
    )
    line, signature = asked.stdout.split()
    assert line == made.vkey
    assert verify(made.key, b"m", bytes.fromhex(signature))


@pytest.mark.parametrize("kind", [ED25519, P256])
def test_the_private_half_cannot_be_read(token: Token, kind: int) -> None:
    import pkcs11
    from pkcs11 import Attribute

    made = wiring.make_signer(token.uri(f"hidden-{kind}"), "token.example", kind)
    private = made._private
    assert private[Attribute.SENSITIVE]
    assert not private[Attribute.EXTRACTABLE]
    with pytest.raises(pkcs11.exceptions.PKCS11Error):
        private[Attribute.VALUE]


def test_a_key_that_can_be_copied_is_refused(token: Token) -> None:
    import pkcs11
    from pkcs11 import Attribute, KeyType
    from pkcs11.util.ec import encode_named_curve_parameters

    wiring.make_signer(token.uri("beside"), "x", ED25519)  # so that this process is logged in
    with pkcs11.lib(token.module).get_token(token_label="ops").open(rw=True) as session:
        curve = session.create_domain_parameters(KeyType.EC, {Attribute.EC_PARAMS: encode_named_curve_parameters("secp256r1")}, local=True)
        curve.generate_keypair(store=True, label="loose", private_template={Attribute.EXTRACTABLE: True, Attribute.SENSITIVE: False})
    with pytest.raises(Misuse, match="taken out"):
        wiring.signer(token.uri("loose"))


def test_a_session_that_was_lost_is_made_again(token: Token) -> None:
    made = wiring.make_signer(token.uri("lost"), "token.example", ED25519)
    made._token.session(made._at).close()
    assert verify(made.key, MESSAGE, made.sign(MESSAGE))


def test_a_label_is_taken_once(token: Token) -> None:
    wiring.make_signer(token.uri("once"), "token.example", ED25519)
    with pytest.raises(Misuse, match="already"):
        wiring.make_signer(token.uri("once"), "token.example", P256)


def refused(make: Callable[[], Any], what: str, code: str, kind: type[Any] = Misuse) -> None:
    with pytest.raises(kind, match=what) as error:
        make()
    assert error.value.diagnosis.code == code
    assert error.value.diagnosis.expected or error.value.diagnosis.fix or error.value.diagnosis.found


def test_what_is_wrong_with_an_address_is_said(token: Token) -> None:
    refused(lambda: wiring.signer(token.uri("nothing")), "no such key", "MDM-0980")
    refused(lambda: wiring.signer(token.uri("x", token="other")), "no such token", "MDM-0980")
    refused(lambda: wiring.signer(token.uri("x", token="second", pin="env:NO_SUCH_PIN")), "where is the PIN", "MDM-0980")
    refused(lambda: wiring.signer("pkcs11:token=ops;object=x?pin-value=1234"), "PIN in it", "MDM-0980")
    refused(lambda: wiring.signer("pkcs11:object=x"), "no address", "MDM-0980")
    refused(lambda: wiring.signer("pkcs11:token=ops;object=x?pin-source=env:HSM_PIN"), "library", "MDM-0980")
    refused(
        lambda: wiring.signer("pkcs11:token=ops;object=x?module-path=/nowhere.so&pin-source=env:HSM_PIN"), "cannot be used", "MDM-0981",
        EngineFault,
    )  # fmt: skip
    refused(lambda: wiring.signer("yubi:1"), "no such signer", "MDM-0986")


def test_a_wrong_pin_is_told_and_not_repeated(token: Token, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WRONG", "0000")
    with pytest.raises(Misuse, match="PIN is wrong") as error:
        wiring.signer(token.uri("x", token="second", pin="env:WRONG"))
    assert "0000" not in str(error.value)


def test_the_pin_may_lie_in_a_file(token: Token, tmp_path: Path) -> None:
    (tmp_path / "pin").write_text("1234\n")
    assert wiring.make_signer(token.uri("filed", token="third", pin=f"file:{tmp_path}/pin"), "token.example", ED25519).sign(b"m")


# -- KMS ---------------------------------------------------------------------------------------------------------------------
def test_a_long_message_is_hashed_here_and_moto_hashes_it_again(aws: Moto) -> None:
    """moto hashes a digest once more, so that its signature does not verify: found out before it is used. AWS signs it as it is."""
    made = wiring.signer(kms_uri(aws, kms_key(aws)))
    with pytest.raises(EngineFault, match="something else") as fault:
        made.sign(os.urandom(4097))
    assert fault.value.diagnosis.code == "MDM-0984"


@pytest.mark.xfail(strict=True, reason="moto signs with a disabled key; AWS answers DisabledException. Revocation is proved on SoftHSM")
def test_a_disabled_key_signs_nothing(aws: Moto) -> None:
    import boto3

    key = kms_key(aws)
    made = wiring.signer(kms_uri(aws, key))
    boto3.client("kms", region_name=aws.region, endpoint_url=aws.endpoint).disable_key(KeyId=key)
    with pytest.raises(EngineFault):
        made.sign(MESSAGE)


def test_keys_that_cannot_sign_so_are_refused(aws: Moto) -> None:
    refused(lambda: wiring.signer(kms_uri(aws, kms_key(aws, KeySpec="ECC_NIST_P384"))), "P-256", "MDM-0983")
    refused(lambda: wiring.signer(kms_uri(aws, "00000000-0000-0000-0000-000000000000")), "no such KMS key", "MDM-0983")
    refused(lambda: wiring.signer("awskms:x"), "which region", "MDM-0983")
    refused(lambda: wiring.signer("awskms:x?region=r&secret=s"), "no address", "MDM-0983")


def test_a_service_that_is_gone_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("boto3")
    for name, value in Moto.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Unavailable):
        wiring.signer("awskms:x?region=eu-central-1&endpoint=http://127.0.0.1:1")


# -- roles -------------------------------------------------------------------------------------------------------------------
def test_a_log_is_signed_with_ed25519_only(token: Token, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wiring.make_signer(token.uri("p-log"), "x", P256)
    monkeypatch.setenv("MANDAMUS_SIGN_LOG", token.uri("p-log"))
    refused(lambda: wiring.Home(tmp_path).signer("log"), "Ed25519", "MDM-0987")


def test_a_log_key_in_a_token_names_the_log(token: Token, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wiring.make_signer(token.uri("e-log"), "x", ED25519)
    monkeypatch.setenv("MANDAMUS_SIGN_LOG", token.uri("e-log"))
    assert wiring.Home(tmp_path).signer("log").vkey.startswith("mandamus.local/")
    assert not (tmp_path / "keys" / "log.pem").exists()


def test_one_key_has_one_role(token: Token, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wiring.make_signer(token.uri("shared"), "x", ED25519)
    monkeypatch.setenv("MANDAMUS_SIGN_BUNDLE", token.uri("shared"))
    monkeypatch.setenv("MANDAMUS_SIGN_ADMINISTRATOR", token.uri("shared"))
    home = wiring.Home(tmp_path)
    home.signer("bundle")
    refused(lambda: home.signer("administrator"), "share a key", "MDM-0988")
