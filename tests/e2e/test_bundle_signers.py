"""One run, proved by three signers: a key file, a key in a real SoftHSM2 token, and a key of AWS KMS (the client's path, against moto).

The trust file names all three bundle keys; each bundle verifies by its own, and by none of the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mandamus import wiring
from mandamus.drivers.sign_file import FileSigner
from mandamus.errors import Misuse
from mandamus.proof.keys import COSIGNER, ED25519, P256, b64, parse_vkey
from mandamus.proof.trust import Trust
from mandamus.proof.verify import verify
from tests.e2e.cli_world import World
from tests.servers.moto import Moto
from tests.servers.softhsm import Token

pytestmark = pytest.mark.service


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Moto]:
    with Moto() as server:
        for name, value in Moto.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def signers(aws: Moto) -> dict[str, str]:
    import boto3

    token = Token()
    for name, kind in (("ed", ED25519), ("p256", P256)):
        wiring.make_signer(token.uri(name), f"token.example/{name}", kind)
    key = boto3.client("kms", region_name=aws.region, endpoint_url=aws.endpoint).create_key(KeySpec="ECC_NIST_P256", KeyUsage="SIGN_VERIFY")
    return {
        "file": "",
        "token, Ed25519": token.uri("ed") + "&name=token.example/ed",
        "token, P-256": token.uri("p256") + "&name=token.example/p256",
        "KMS": f"awskms:{key['KeyMetadata']['KeyId']}?region={aws.region}&endpoint={aws.endpoint}&name=kms.example",
    }


def test_a_run_is_proved_by_each_of_them(tmp_path: Path, aws: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = World(tmp_path)
    run = world.ok("run", "payout.py:small", "Pay a little", "--json").data["run_id"]
    trust_file = tmp_path / ".mandamus" / "trust"
    origin = trust_file.read_text().split()[1].partition("+")[0]
    made: dict[str, tuple[bytes, str]] = {}
    for name, uri in signers(aws).items():
        monkeypatch.setenv("MANDAMUS_SIGN_BUNDLE", uri) if uri else monkeypatch.delenv("MANDAMUS_SIGN_BUNDLE", raising=False)
        world.ok("bundle", run, "-o", "run.bundle")
        line = f"bundle {origin} {wiring.signer(uri, 'bundle').vkey}" if uri else ""
        made[name] = (tmp_path / "run.bundle").read_bytes(), line
    monkeypatch.delenv("MANDAMUS_SIGN_BUNDLE", raising=False)
    own = trust_file.read_text()
    for name, (raw, line) in made.items():
        report = verify(raw, Trust.parse(own + line + "\n"))
        assert (report.exit_code, report.verdict) == (0, "PROVEN"), (name, report)
        if line:
            assert verify(raw, Trust.parse(own)).exit_code == 1, "a signer whom the trust file does not know"
    everybody = Trust.parse(own + "\n".join(line for _, line in made.values()) + "\n")
    assert {verify(raw, everybody).exit_code for raw, _ in made.values()} == {0}
    assert len({raw for raw, _ in made.values()}) == 4


def test_a_p256_key_is_no_ed25519_key(tmp_path: Path) -> None:
    """The kind of a key is bound to the key: a trust file that calls it something else is refused, not tried."""
    key: Any = FileSigner.create(tmp_path / "p.pem", "p.example", kind=P256).key
    for kind in (ED25519, COSIGNER):
        raw = bytes([kind]) + key.public
        id = hashlib.sha256(b"p.example\n" + raw).hexdigest()[:8]
        with pytest.raises(Misuse):
            parse_vkey(f"p.example+{id}+{b64(raw)}")
